//! Tests of the specification's rules: examples in tables, and properties of random headers.

use proptest::prelude::*;

use super::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

#[test]
fn traceparent_rules() {
    let (good, zeros) = (format!("00-{TRACE}-{SPAN}-01"), "0".repeat(32));
    let upper = TRACE.to_uppercase();
    for (header, expected) in [
        (good.clone(), Some(good.clone())),
        (format!("00-{TRACE}-{SPAN}-00"), Some(format!("00-{TRACE}-{SPAN}-00"))),
        // The flag `random` is passed on. Unknown flags are dropped.
        (format!("00-{TRACE}-{SPAN}-03"), Some(format!("00-{TRACE}-{SPAN}-03"))),
        (format!("00-{TRACE}-{SPAN}-ff"), Some(format!("00-{TRACE}-{SPAN}-03"))),
        (format!("00-{TRACE}-{SPAN}-fc"), Some(format!("00-{TRACE}-{SPAN}-00"))),
        // Later versions may be longer, after a dash.
        (format!("cc-{TRACE}-{SPAN}-01"), Some(good.clone())),
        (format!("cc-{TRACE}-{SPAN}-01-what-the-future-holds"), Some(good.clone())),
        (format!("cc-{TRACE}-{SPAN}-01.what"), None),
        (format!("00-{TRACE}-{SPAN}-01-more"), None),
        (format!("00-{TRACE}-{SPAN}-01-"), None),
        (format!("ff-{TRACE}-{SPAN}-01"), None),
        // All zeros are not an id.
        (format!("00-{zeros}-{SPAN}-01"), None),
        (format!("00-{TRACE}-{}-01", &zeros[..16]), None),
        // Upper case, invalid digits, wrong lengths and wrong separators are refused.
        (format!("00-{upper}-{SPAN}-01"), None),
        (format!("00-{TRACE}-{}-01", SPAN.to_uppercase()), None),
        (format!("0A-{TRACE}-{SPAN}-01"), None),
        (format!("00-{TRACE}-{SPAN}-0G"), None),
        (format!("00-{TRACE}-{SPAN}-1"), None),
        (format!("00-{}-{SPAN}-01", &TRACE[1..]), None),
        (format!("00_{TRACE}-{SPAN}-01"), None),
        (format!(" {good}"), None),
        (format!("{good} "), None),
        (format!("{good},{good}"), None),
        (String::new(), None),
        ("00".to_owned(), None),
    ] {
        let read = TraceContext::parse(header.as_bytes());
        assert_eq!(read.map(|context| context.to_string()), expected, "{header:?}");
        let sampled = expected.is_some_and(|expected| expected.ends_with(['1', '3']));
        assert_eq!(read.is_some_and(TraceContext::is_sampled), sampled, "{header:?}");
    }
}

#[test]
fn tracestate_rules() {
    let (long, many) = (format!("a={}", "x".repeat(257)), "k=v,".repeat(33));
    let distinct = |n: usize| (0..n).map(|i| format!("k{i}=v")).collect::<Vec<_>>().join(",");
    let (fits, over) = (distinct(32), distinct(33));
    let wide = (0..3).map(|i| format!("k{i}={}", "x".repeat(200))).collect::<Vec<_>>().join(",");
    for (lines, expected) in [
        (&["rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"][..], Some("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")),
        (&["a=1", "b=2"], Some("a=1,b=2")),
        (&[" a=1 ,\tb=2 ", ""], Some("a=1,b=2")),
        (&["tenant@vendor=1,0x_-*/=~"], Some("tenant@vendor=1,0x_-*/=~")),
        (&[], None),
        (&["", " , "], None),
        (&["a"], None),
        (&["a="], None),
        (&["A=1"], None),
        (&["a=1=2"], None),
        (&["a=1,a=2"], None),
        (&["a@b@c=1"], None),
        (&["=1"], None),
        (&["a=\u{e9}"], None),
        (&["a=1\u{7}"], None),
        (&[&long], None),
        (&[&many], None),
        (&[&fits], Some(fits.as_str())),
        (&[&over], None),
        (&[&wide], None),
    ] {
        let read = trace_state(lines.iter().map(|line| line.as_bytes()));
        assert_eq!(read.as_deref(), expected, "{lines:?}");
    }
    assert_eq!(trace_state(std::iter::once(&b"a=\xff"[..])), None);
}

proptest! {
    #[test]
    fn written_headers_are_read_again(trace: [u8; 16], span: [u8; 8], sampled: bool) {
        prop_assume!(trace != [0; 16] && span != [0; 8]);
        let context = TraceContext::root(TraceId(trace), SpanId(span), sampled);
        let text = context.to_string();
        prop_assert_eq!(text.len(), PARENT_LEN);
        prop_assert_eq!(TraceContext::parse(text.as_bytes()), Some(context));
        prop_assert_eq!(context.is_sampled(), sampled);
    }

    #[test]
    fn any_accepted_header_round_trips(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        if let Some(context) = TraceContext::parse(&bytes) {
            let head = context.to_string();
            prop_assert_eq!(&head.as_bytes()[3..53], &bytes[3..53]);
        }
        let _ = trace_state(bytes.split(|b| *b == b'\n'));
    }

    #[test]
    fn one_wrong_byte_never_keeps_the_trace(at in 0..PARENT_LEN, byte: u8) {
        let good = format!("00-{TRACE}-{SPAN}-01");
        let mut bytes = good.clone().into_bytes();
        bytes[at] = byte;
        let hex = byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let dash = [2, 35, 52].contains(&at);
        if let Some(read) = TraceContext::parse(&bytes) {
            let allowed = if dash { byte == b'-' } else { hex };
            prop_assert!(allowed);
            prop_assert!((3..53).contains(&at) <= (read.to_string().as_bytes()[at] == byte));
        } else {
            prop_assert!(byte != good.as_bytes()[at]);
        }
    }

    #[test]
    fn accepted_tracestate_is_stable(lines in proptest::collection::vec("[ -~\t]{0,60}", 0..6)) {
        if let Some(state) = trace_state(lines.iter().map(String::as_bytes)) {
            prop_assert!(state.len() <= MAX_STATE_BYTES);
            let again = trace_state(std::iter::once(state.as_bytes()));
            prop_assert_eq!(again, Some(state));
        }
    }
}

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn of(parents: &[&str], states: &[&str]) -> Trace {
    Trace::of_caller(parents.iter().map(|p| p.as_bytes()), || states.iter().map(|s| s.as_bytes()))
}

#[test]
fn callers_context_passes_through_without_exporter() {
    for (parents, states, expected) in [
        (&[PARENT][..], &["a=1", "b=2"][..], Some((PARENT, Some("a=1,b=2")))),
        (&[PARENT], &["broken"], Some((PARENT, None))),
        (&[PARENT], &[], Some((PARENT, None))),
        // A `tracestate` without a `traceparent`, with an invalid one, and with two.
        (&[], &["a=1"], None),
        (&["00-x"], &["a=1"], None),
        (&[PARENT, PARENT], &["a=1"], None),
    ] {
        let (trace, _) = Tracer::default().begin(of(parents, states), Instant::now());
        let attempt = trace.attempt("a", "getBlock");
        let sent = attempt.headers();
        assert_eq!(
            sent.as_ref().map(|(parent, state)| (parent.as_str(), *state)),
            expected,
            "{parents:?} {states:?}"
        );
        assert_eq!(trace.id().map(|id| id.to_string()), expected.map(|(p, _)| p[3..35].to_owned()));
        attempt.end(AttemptResult::Ok);
    }
}
