//! Compares the parser of the envelope with a model: the documented types of jsonrpc-core 18, read by serde.

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::*;

/// The types of jsonrpc-core 18, with serde implementations that are derived.
mod model {
    use super::{Deserialize, Map, Value};

    #[derive(Deserialize)]
    #[serde(untagged)]
    pub(super) enum Request {
        Single(Call),
        Batch(Vec<Call>),
    }

    #[derive(Deserialize)]
    #[serde(untagged)]
    pub(super) enum Call {
        MethodCall(MethodCall),
        #[expect(dead_code, reason = "a notification is not answered")]
        Notification(Notification),
        Invalid {
            #[serde(default)]
            id: Id,
        },
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct MethodCall {
        pub(super) jsonrpc: Option<JsonRpcVersion>,
        pub(super) method: String,
        #[serde(default)]
        pub(super) params: Params,
        pub(super) id: Id,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its presence makes a notification")]
    pub(super) struct Notification {
        jsonrpc: Option<JsonRpcVersion>,
        method: String,
        #[serde(default)]
        params: Params,
    }

    #[derive(Deserialize)]
    #[serde(field_identifier)]
    pub(super) enum JsonRpcVersion {
        #[serde(rename = "2.0")]
        Two,
    }

    #[derive(Deserialize, Default)]
    #[serde(untagged)]
    pub(super) enum Id {
        #[default]
        Null,
        Num(u64),
        Str(String),
    }

    #[derive(Deserialize, Default)]
    #[serde(untagged)]
    pub(super) enum Params {
        #[default]
        None,
        Array(Vec<Value>),
        Map(Map<String, Value>),
    }
}

/// Returns a call of the model as text, for comparison with [`show_ours`].
fn show_model(call: model::Call) -> String {
    let show_id = |id| match id {
        model::Id::Null => "null".to_owned(),
        model::Id::Num(n) => n.to_string(),
        model::Id::Str(s) => Value::from(s).to_string(),
    };
    match call {
        model::Call::Notification(_) => "notification".into(),
        model::Call::Invalid { id } => format!("invalid request, id {}", show_id(id)),
        model::Call::MethodCall(call) if call.jsonrpc.is_none() => {
            format!("unsupported version, id {}", show_id(call.id))
        }
        model::Call::MethodCall(call) => {
            let params = match call.params {
                model::Params::None => Value::Null,
                model::Params::Array(array) => array.into(),
                model::Params::Map(map) => map.into(),
            };
            format!("call {:?} with {params}, id {}", call.method, show_id(call.id))
        }
    }
}

fn show_ours(element: &Element) -> String {
    let show_id = |id: &Id| match id {
        Id::Null => "null".to_owned(),
        Id::Number(n) => n.to_string(),
        Id::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
    };
    match element {
        Element::Notification => "notification".into(),
        Element::Refused { id, error: EnvelopeError::InvalidRequest } => {
            format!("invalid request, id {}", show_id(id))
        }
        Element::Refused { id, error: EnvelopeError::UnsupportedVersion } => {
            format!("unsupported version, id {}", show_id(id))
        }
        Element::Refused { error, .. } => format!("no error of an envelope: {error:?}"),
        Element::Call(call) => {
            let params = match &call.params {
                Params::None => Value::Null,
                Params::Array(text) | Params::Object(text) => serde_json::from_slice(text).unwrap(),
            };
            let method = str::from_utf8(&call.method).unwrap();
            format!("call {method:?} with {params}, id {}", show_id(&call.id))
        }
    }
}

#[track_caller]
fn check(body: &str) {
    let expected = match serde_json::from_str(body) {
        Ok(model::Request::Single(call)) => show_model(call),
        Ok(model::Request::Batch(calls)) => {
            format!("{:?}", calls.into_iter().map(show_model).collect::<Vec<_>>())
        }
        Err(_) => "parse error".to_owned(),
    };
    let ours = match parse(&Bytes::copy_from_slice(body.as_bytes())) {
        Request::One(element) => show_ours(&element),
        Request::Batch(elements) => format!("{:?}", elements.iter().map(show_ours).collect::<Vec<_>>()),
        Request::ParseError => "parse error".to_owned(),
    };
    assert_eq!(ours, expected, "{body}");
}

#[test]
fn odd_bodies_are_read_like_the_model() {
    for body in [
        "",
        " \n",
        "\u{feff}{}",
        "{} {}",
        "[1]",
        "[[]]",
        "[{},[]]",
        "[null]",
        r#"["2.0"]"#,
        r#"["2.0","m"]"#,
        r#"[null,"m"]"#,
        r#"["2.0","m",[]]"#,
        r#"["2.0","m",null,7]"#,
        r#"[null,"m",{},"x"]"#,
        r#"["1.0","m",[],7]"#,
        r#"["2.0","m",5,7]"#,
        r#"["2.0","m",[],-7]"#,
        r#"["2.0","m",[],7,8]"#,
        r#"[["2.0","m",[],7],["2.0","m"],{}]"#,
        r#"[["2.0","m",[],7,8]]"#,
        r#"["2.\u0030","\u006d",[],"\u0041\/\u001f\b"]"#,
        r#"{"\u006aso\u006erpc":"2.\u0030","method":"a\u0062","id":"\ud83d\ude00\u00e9\n"}"#,
        r#"{"jsonrpc":"2.0","method":"m","params":["\ud800"],"id":1}"#,
        r#"{"jsonrpc":"2.0","method":"m","params":[1e999],"id":1}"#,
        r#"{"jsonrpc":"2.0","method":"m","params":[1e-999,-0,123456789012345678901234567890],"id":1}"#,
        r#"{"jsonrpc":"2.0","method":"m","id":-0}"#,
        r#"{"jsonrpc":"2.0","method":"m","id":1.0}"#,
        r#"{"jsonrpc":"2.0","method":"m","id":1e0}"#,
        r#"{"jsonrpc":"2.0","method":"m","id":01}"#,
        r#"{"jsonrpc":"2.0","method":"m","id":[]}"#,
        r#"{"jsonrpc":null,"jsonrpc":null,"method":"m","id":1}"#,
        r#"{"method":"m","id":1,"extra":{"id":2}}"#,
        r#"{"method":"m","extra":1,"id":1,"id":1}"#,
        r#"{"params":5,"id":-1}"#,
        "{\"jsonrpc\":\"2.0\",\"method\":\"m\t\",\"id\":1}",
    ] {
        check(body);
    }
}

#[test]
fn a_node_reads_127_levels() {
    for depth in 120..135 {
        let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        check(&format!(r#"{{"jsonrpc":"2.0","method":"m","params":{nested},"id":1}}"#));
        check(&format!(r#"[{{"jsonrpc":"2.0","method":"m","params":{nested},"id":1}}]"#));
        check(&format!(r#"["2.0","m",{nested},1]"#));
        check(&nested);
    }
    check(&"[".repeat(51_200));
}

#[test]
fn a_call_keeps_slices_of_the_body() {
    let body = Bytes::from_static(br#" {"id":"a","params":[ 1 ],"method":"m","jsonrpc":"2.0"} "#);
    let Request::One(Element::Call(call)) = parse(&body) else { panic!("a call") };
    let within = |part: &[u8]| body.as_ptr_range().contains(&part.as_ptr());
    let Params::Array(params) = &call.params else { panic!("an array") };
    let Id::Text(id) = &call.id else { panic!("a string") };
    assert_eq!((&params[..], &id[..], &call.method[..]), (&b"[ 1 ]"[..], &b"\"a\""[..], &b"m"[..]));
    assert!(within(params) && within(id) && within(&call.method));
}

#[test]
fn body_without_utf8_is_a_parse_error() {
    assert_eq!(parse(&Bytes::from_static(b"{\xff}")), Request::ParseError);
}

/// Generates calls from common and rare members in any order. A member may occur twice.
fn almost_a_call() -> impl Strategy<Value = String> {
    let member = prop_oneof![
        8 => prop_oneof![Just(r#""2.0""#), Just(r#""1.0""#), Just("2"), Just("null")].prop_map(|v| format!(r#""jsonrpc":{v}"#)),
        8 => prop_oneof![Just(r#""m""#), Just("1"), Just("null"), Just("\"\\u0041\"")].prop_map(|v| format!(r#""method":{v}"#)),
        4 => prop_oneof![Just("[]"), Just("[1,\"a\"]"), Just("{}"), Just("{\"a\":1}"), Just("null"), Just("5"), Just("true")]
            .prop_map(|v| format!(r#""params":{v}"#)),
        8 => prop_oneof![Just("1"), Just("\"a\""), Just("null"), Just("-1"), Just("1.5"), Just("true"), Just("{}")]
            .prop_map(|v| format!(r#""id":{v}"#)),
        1 => Just(r#""extra":[{}]"#.to_owned()),
    ];
    prop::collection::vec(member, 0..6).prop_map(|members| format!("{{{}}}", members.join(",")))
}

/// Generates calls in the form of an array, from common and rare elements.
fn almost_positional() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just(r#""2.0""#),
        Just(r#""m""#),
        Just("null"),
        Just("[]"),
        Just("{}"),
        Just("7"),
        Just("-1")
    ];
    prop::collection::vec(part, 0..6).prop_map(|parts| format!("[{}]", parts.join(",")))
}

proptest! {
    #[test]
    fn parse_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        parse(&bytes.into());
    }

    #[test]
    fn random_json_marks_are_read_like_the_model(body in r#"[\[\]{}",:\\0-9eE.+\- a-fu]{0,40}"#) {
        check(&body);
    }

    #[test]
    fn call_is_read_like_the_model(body in almost_a_call()) {
        check(&body);
    }

    #[test]
    fn positional_call_is_read_like_the_model(body in almost_positional()) {
        check(&body);
    }

    #[test]
    fn batch_is_read_like_the_model(
        elements in prop::collection::vec(prop_oneof![20 => almost_a_call(), 3 => almost_positional(), 1 => Just("5".into())], 0..5),
    ) {
        check(&format!("[{}]", elements.join(" , ")));
    }
}

/// Returns the processor time of the fastest of five runs.
fn computed(run: impl Fn()) -> std::time::Duration {
    let clock = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let timed = |_| {
        let before = std::time::Duration::try_from(clock()).unwrap();
        run();
        std::time::Duration::try_from(clock()).unwrap().saturating_sub(before)
    };
    (0..5).map(timed).min().unwrap()
}

#[test]
fn oversized_batch_is_counted_and_not_read() {
    let batch = |n: usize| Bytes::from(format!("[{}]", vec!["{}"; n].join(",")));
    assert_eq!(parse_within(&batch(101), 100), Err(TooMany(101)));
    assert!(matches!(parse_within(&batch(100), 100), Ok(Request::Batch(calls)) if calls.len() == 100));
    let full = batch(17_000);
    let counted = computed(|| assert_eq!(parse_within(&full, 100), Err(TooMany(17_000))));
    let read = computed(|| assert!(matches!(parse(&full), Request::Batch(_))));
    assert!(counted * 3 < read, "counted in {counted:?}, read in {read:?}");

    for (body, expected) in [
        (r#"["2.0","m",[],7]"#, Ok(parse(&Bytes::from_static(br#"["2.0","m",[],7]"#)))),
        (r#" [ ["2.0","m",[],7] ] "#, Err(TooMany(1))),
        ("[{}", Ok(Request::ParseError)),
        ("[]", Ok(Request::Batch(Vec::new()))),
    ] {
        assert_eq!(parse_within(&Bytes::from_static(body.as_bytes()), 0), expected, "{body}");
    }
}
