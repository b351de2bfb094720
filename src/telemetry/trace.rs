//! A request's place in a trace: read where it arrives, handed down by value, sent on with every attempt at a node.
//!
//! Nothing is made for a request that is in no trace. Without an exporter (the feature `otlp` and `telemetry.otlp`) the
//! caller's own place goes on to the nodes as it came; with one, a trace that is recorded gets a span for the request
//! and one for each attempt, and each attempt sends its own. A flight that callers share carries its leader's.

use std::fmt::Write as _;
use std::sync::Arc;

use tokio::time::Instant;

use super::AttemptResult;
#[cfg(feature = "otlp")]
use super::otlp::{Exporter, Kind, Open};
use super::trace_context::{PARENT_LEN, TraceContext, TraceId, trace_state};

/// The header of a place in a trace.
pub const TRACEPARENT: &str = "traceparent";
/// The header of what tracing systems add to it.
pub const TRACESTATE: &str = "tracestate";

/// A request's place in a trace, if it is in one.
#[derive(Debug, Clone, Default)]
pub struct Trace(Option<Arc<Place>>);

#[derive(Debug)]
struct Place {
    /// What an attempt is called from: the caller's span, or the one recorded here.
    context: TraceContext,
    state: Option<Box<str>>,
    #[cfg(feature = "otlp")]
    recorded: Option<Arc<Exporter>>,
}

impl Trace {
    /// What a caller's headers say, by the rules of W3C Trace Context; `states` is only looked at beside one good
    /// `traceparent`.
    pub fn of_caller<'a, S: Iterator<Item = &'a [u8]>>(
        mut parents: impl Iterator<Item = &'a [u8]>,
        states: impl FnOnce() -> S,
    ) -> Self {
        let Some(parent) = parents.next() else { return Self(None) };
        let context = TraceContext::parse(parent).filter(|_| parents.next().is_none());
        Self(context.map(|context| {
            Arc::new(Place {
                context,
                state: trace_state(states()),
                #[cfg(feature = "otlp")]
                recorded: None,
            })
        }))
    }

    /// The trace, for log lines.
    pub fn id(&self) -> Option<TraceId> {
        self.0.as_ref().map(|place| place.context.trace)
    }

    /// An attempt at the node `upstream`, from now on.
    pub fn attempt(&self, upstream: &str, method: &'static str) -> Attempt<'_> {
        let place = self.0.as_deref();
        #[cfg(feature = "otlp")]
        let span = place.and_then(|place| {
            let exporter = place.recorded.as_ref()?;
            let mut span = exporter.open(place.context, place.state.as_deref(), Kind::Client, Instant::now());
            span.name(method);
            span.text("rpc.system", "jsonrpc");
            span.text("rpc.method", method);
            span.text("upstream.name", upstream.to_owned());
            Some(span)
        });
        #[cfg(not(feature = "otlp"))]
        let _ = (upstream, method);
        Attempt {
            place,
            #[cfg(feature = "otlp")]
            span,
        }
    }
}

/// One attempt's place in a trace. Dropped without an end it was given up.
#[derive(Debug)]
pub struct Attempt<'a> {
    place: Option<&'a Place>,
    #[cfg(feature = "otlp")]
    span: Option<Open>,
}

impl Attempt<'_> {
    /// What goes to the node: a `traceparent`, and a `tracestate` where there is one.
    pub fn headers(&self) -> Option<(String, Option<&str>)> {
        let place = self.place?;
        #[cfg(feature = "otlp")]
        let context = self.span.as_ref().map_or(place.context, Open::context);
        #[cfg(not(feature = "otlp"))]
        let context = place.context;
        let mut parent = String::with_capacity(PARENT_LEN);
        // Writing to a String does not fail.
        let _ = write!(parent, "{context}");
        Some((parent, place.state.as_deref()))
    }

    /// It has ended so.
    #[cfg_attr(not(feature = "otlp"), expect(unused_mut, reason = "there is no span to end"))]
    pub fn end(mut self, result: AttemptResult) {
        #[cfg(feature = "otlp")]
        if let Some(span) = self.span.take() {
            close_attempt(span, result);
        }
        #[cfg(not(feature = "otlp"))]
        let _ = result;
    }
}

#[cfg(feature = "otlp")]
fn close_attempt(mut span: Open, result: AttemptResult) {
    span.text("upstream.result", result.as_str());
    span.close(!matches!(result, AttemptResult::Ok | AttemptResult::NodeError));
}

#[cfg(feature = "otlp")]
impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            close_attempt(span, AttemptResult::Cancelled);
        }
    }
}

/// Begins the spans of requests; without an exporter it begins none.
#[derive(Debug, Default)]
pub struct Tracer {
    #[cfg(feature = "otlp")]
    exporter: Option<Arc<Exporter>>,
}

impl Tracer {
    /// A tracer whose spans go to `exporter`.
    #[cfg(feature = "otlp")]
    pub fn to(exporter: Exporter) -> Self {
        Self { exporter: Some(Arc::new(exporter)) }
    }

    /// The place that a request takes in its caller's trace, or in one of its own; `started` is when it came.
    #[cfg(feature = "otlp")]
    pub fn begin(&self, caller: Trace, started: Instant) -> (Trace, RequestSpan) {
        let Some(exporter) = &self.exporter else { return (caller, RequestSpan::default()) };
        let place = caller.0.as_deref();
        let span = match place {
            // Who is asked not to record hands on what it was given.
            Some(place) if !place.context.is_sampled() => return (caller, RequestSpan::default()),
            Some(place) => exporter.open(place.context, place.state.as_deref(), Kind::Server, started),
            None => match exporter.open_root(started) {
                Some(span) => span,
                None => return (caller, RequestSpan::default()),
            },
        };
        let state = place.and_then(|place| place.state.clone());
        let place = Place { context: span.context(), state, recorded: Some(Arc::clone(exporter)) };
        (Trace(Some(Arc::new(place))), RequestSpan { span: Some(span) })
    }

    /// The place that a request takes in its caller's trace: this build records none.
    #[cfg(not(feature = "otlp"))]
    pub fn begin(&self, caller: Trace, _: Instant) -> (Trace, RequestSpan) {
        (caller, RequestSpan::default())
    }
}

/// The span of one request, if it is recorded. Dropped without an end the caller has gone.
#[derive(Debug, Default)]
pub struct RequestSpan {
    #[cfg(feature = "otlp")]
    span: Option<Open>,
}

/// What a span says of its request, in the words of the access line.
#[derive(Debug, Clone, Copy)]
pub struct Told<'a> {
    /// The method, `other`, or `mixed` in a batch.
    pub method: &'static str,
    /// The commitment, `none` or `mixed`.
    pub commitment: &'static str,
    /// The outcome, or `mixed`.
    pub outcome: &'static str,
    /// Calls in the request.
    pub calls: usize,
    /// The HTTP status.
    pub status: u16,
    /// The key's id.
    pub key: &'a str,
    /// The request's id.
    pub request: &'a str,
    /// Whether it failed for a reason on our side of the wire.
    pub failed: bool,
}

impl RequestSpan {
    /// The request was answered.
    #[cfg(feature = "otlp")]
    pub fn end(mut self, told: &Told<'_>) {
        let Some(mut span) = self.span.take() else { return };
        span.name(told.method);
        span.text("rpc.method", told.method);
        span.text("rpc.commitment", told.commitment);
        span.text("cache.outcome", told.outcome);
        span.number("rpc.calls", i64::try_from(told.calls).unwrap_or(i64::MAX));
        span.number("http.response.status_code", told.status.into());
        span.text("key.id", told.key.to_owned());
        span.text("request.id", told.request.to_owned());
        span.close(told.failed);
    }

    /// The request was answered; nothing is recorded.
    #[cfg(not(feature = "otlp"))]
    pub fn end(self, _: &Told<'_>) {}
}

#[cfg(feature = "otlp")]
impl Drop for RequestSpan {
    fn drop(&mut self) {
        if let Some(mut span) = self.span.take() {
            span.text("cache.outcome", "abandoned");
            span.close(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn of(parents: &[&str], states: &[&str]) -> Trace {
        Trace::of_caller(parents.iter().map(|p| p.as_bytes()), || states.iter().map(|s| s.as_bytes()))
    }

    #[test]
    fn a_callers_place_goes_on_as_it_came_where_nothing_is_recorded() {
        for (parents, states, expected) in [
            (&[PARENT][..], &["a=1", "b=2"][..], Some((PARENT, Some("a=1,b=2")))),
            (&[PARENT], &["broken"], Some((PARENT, None))),
            (&[PARENT], &[], Some((PARENT, None))),
            // A state without a parent, a parent that is none, and two of them.
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
}
