//! The trace context of a request. It is read from the request's headers, and sent with every attempt on a node.
//!
//! Without an exporter (`telemetry.otlp`) the caller's context passes through to the nodes. With an exporter, a sampled
//! trace gets a span for the request and one for each attempt. An attempt then sends its own span as the parent. A
//! fetch shared by several callers carries the context of the caller that started it. A request without a trace
//! allocates nothing.

use std::fmt::Write as _;
use std::sync::Arc;

use tokio::time::Instant;

use super::AttemptResult;
use super::otlp::{Exporter, OpenSpan, SpanKind};
use super::trace_context::{PARENT_LEN, TraceContext, TraceId, trace_state};

/// The header with the trace id and the parent span.
pub(crate) const TRACEPARENT: &str = "traceparent";
/// The header with the data of tracing vendors.
pub(crate) const TRACESTATE: &str = "tracestate";

/// The trace context of a request. Empty if the request is not traced.
#[derive(Debug, Clone, Default)]
pub struct Trace(Option<Arc<SpanContext>>);

#[derive(Debug)]
struct SpanContext {
    /// The parent of the request's attempts: slotfront's own span if it is recorded, otherwise the caller's.
    context: TraceContext,
    state: Option<Box<str>>,
    /// The exporter that gets the spans of attempts. `None` if the trace is not recorded here.
    recorded: Option<Arc<Exporter>>,
}

impl Trace {
    /// Reads a caller's `traceparent` and `tracestate` fields by the rules of W3C Trace Context. The trace is empty
    /// unless there is exactly one `traceparent` and it is valid. Only then is `states` called.
    pub fn of_caller<'a, S: Iterator<Item = &'a [u8]>>(
        mut parents: impl Iterator<Item = &'a [u8]>,
        states: impl FnOnce() -> S,
    ) -> Self {
        let Some(parent) = parents.next() else { return Self(None) };
        let context = TraceContext::parse(parent).filter(|_| parents.next().is_none());
        Self(
            context.map(|context| {
                Arc::new(SpanContext { context, state: trace_state(states()), recorded: None })
            }),
        )
    }

    /// Returns the trace id, for log lines. `None` if the request is not traced.
    pub fn id(&self) -> Option<TraceId> {
        self.0.as_ref().map(|span_context| span_context.context.trace)
    }

    /// Starts an attempt to call `method` on the node `upstream`, with a span if the trace is recorded.
    pub fn attempt(&self, upstream: &str, method: &'static str) -> Attempt<'_> {
        let span_context = self.0.as_deref();
        let span = span_context.and_then(|span_context| {
            let exporter = span_context.recorded.as_ref()?;
            let mut span = exporter.open(
                span_context.context,
                span_context.state.as_deref(),
                SpanKind::Client,
                Instant::now(),
            );
            span.name(method);
            span.text("rpc.system", "jsonrpc");
            span.text("rpc.method", method);
            span.text("upstream.name", upstream.to_owned());
            Some(span)
        });
        Attempt { span_context, span }
    }
}

/// The trace context of one attempt on a node. Dropping it without [`Attempt::end`] records the attempt as cancelled.
#[derive(Debug)]
pub struct Attempt<'a> {
    span_context: Option<&'a SpanContext>,
    span: Option<OpenSpan>,
}

impl Attempt<'_> {
    /// Returns the `traceparent` for the node, and the caller's `tracestate` if any. `None` if the request is not
    /// traced.
    pub fn headers(&self) -> Option<(String, Option<&str>)> {
        let span_context = self.span_context?;
        let context = self.span.as_ref().map_or(span_context.context, OpenSpan::context);
        let mut parent = String::with_capacity(PARENT_LEN);
        // Writing to a String does not fail.
        let _ = write!(parent, "{context}");
        Some((parent, span_context.state.as_deref()))
    }

    pub fn end(mut self, result: AttemptResult) {
        if let Some(span) = self.span.take() {
            close_attempt(span, result);
        }
    }
}

fn close_attempt(mut span: OpenSpan, result: AttemptResult) {
    span.text("upstream.result", result.as_str());
    span.close(!matches!(result, AttemptResult::Ok | AttemptResult::NodeError));
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            close_attempt(span, AttemptResult::Cancelled);
        }
    }
}

/// Starts the spans of requests. Without an exporter it starts none.
#[derive(Debug, Default)]
pub struct Tracer {
    exporter: Option<Arc<Exporter>>,
}

impl Tracer {
    pub fn to(exporter: Exporter) -> Self {
        Self { exporter: Some(Arc::new(exporter)) }
    }

    /// Starts the span of a request that arrived at `started`, in the trace of `caller` or a new one. Returns the
    /// trace for the request's attempts, and the span. If nothing is recorded, the trace is `caller` unchanged,
    /// and the span is empty.
    pub fn begin(&self, caller: Trace, started: Instant) -> (Trace, RequestSpan) {
        let Some(exporter) = &self.exporter else { return (caller, RequestSpan::default()) };
        let span_context = caller.0.as_deref();
        let span = match span_context {
            // The caller does not sample this trace: its context passes through.
            Some(span_context) if !span_context.context.is_sampled() => {
                return (caller, RequestSpan::default());
            }
            Some(span_context) => {
                exporter.open(span_context.context, span_context.state.as_deref(), SpanKind::Server, started)
            }
            None => match exporter.open_root(started) {
                Some(span) => span,
                None => return (caller, RequestSpan::default()),
            },
        };
        let state = span_context.and_then(|span_context| span_context.state.clone());
        let span_context =
            SpanContext { context: span.context(), state, recorded: Some(Arc::clone(exporter)) };
        (Trace(Some(Arc::new(span_context))), RequestSpan { span: Some(span) })
    }
}

/// The span of one request. Empty if it is not recorded. Dropping it without [`RequestSpan::end`] records that the
/// caller has disconnected.
#[derive(Debug, Default)]
pub struct RequestSpan {
    span: Option<OpenSpan>,
}

/// The attributes of a request's span. The values are those of the access log.
#[derive(Debug, Clone, Copy)]
pub struct RequestAttributes<'a> {
    /// The method, `other` if it is not one of [`Method`](crate::methods::Method), or `mixed` in a batch of several
    /// methods.
    pub method: &'static str,
    /// The commitment, `none` if the call has none, or `mixed` in a batch of several commitments.
    pub commitment: &'static str,
    /// The outcome, or `mixed` in a batch of several outcomes.
    pub outcome: &'static str,
    pub calls: usize,
    pub status: u16,
    pub key: &'a str,
    pub request: &'a str,
    /// True if the request failed through a fault of slotfront or of the nodes.
    pub failed: bool,
}

impl RequestSpan {
    /// Ends the span of an answered request, and queues it for export.
    pub fn end(mut self, attributes: &RequestAttributes<'_>) {
        let Some(mut span) = self.span.take() else { return };
        span.name(attributes.method);
        span.text("rpc.method", attributes.method);
        span.text("rpc.commitment", attributes.commitment);
        span.text("cache.outcome", attributes.outcome);
        span.number("rpc.calls", i64::try_from(attributes.calls).unwrap_or(i64::MAX));
        span.number("http.response.status_code", attributes.status.into());
        span.text("key.id", attributes.key.to_owned());
        span.text("request.id", attributes.request.to_owned());
        span.close(attributes.failed);
    }
}

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
}
