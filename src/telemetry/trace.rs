//! The trace context of a request (W3C Trace Context). It is read from the request's headers, and sent with every attempt
//! on a node.
//!
//! Without an exporter (`telemetry.otlp`) the caller's context passes through to the nodes. With an exporter, a sampled
//! trace gets a span for the request and one for each attempt. An attempt then sends its own span as the parent. A
//! fetch shared by several callers carries the context of the caller that started it. A request without a trace
//! allocates nothing.
//!
//! An invalid `traceparent` is ignored, and a `tracestate` counts only beside a valid `traceparent`. If the caller
//! sends a later version, the first four fields are read, and version 00 is sent to the node.
//!
//! Source: <https://www.w3.org/TR/trace-context-2/>, sections 3.2 and 3.3.

use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use tokio::time::Instant;

use super::AttemptResult;
use super::otlp::{Exporter, OpenSpan, SpanKind};

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

impl RequestSpan {
    /// Ends the span of an answered request, and queues it for export. `failed` is true if the request failed through a
    /// fault of slotfront or of the nodes.
    pub fn end(
        mut self,
        name: &'static str,
        failed: bool,
        texts: &[(&'static str, &str)],
        numbers: &[(&'static str, i64)],
    ) {
        let Some(mut span) = self.span.take() else { return };
        span.name(name);
        for (key, value) in texts {
            span.text(key, (*value).to_owned());
        }
        for (key, value) in numbers {
            span.number(key, *value);
        }
        span.close(failed);
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

/// The length of a `traceparent` of version 00, in bytes.
pub(crate) const PARENT_LEN: usize = 55;
const SAMPLED: u8 = 0b01;
/// The flag of a trace id whose last 7 bytes are random. The flag is passed on with the id.
const RANDOM: u8 = 0b10;
/// The maximum length of a `tracestate` that is passed on, in bytes (section 3.3.1.5).
const MAX_STATE_BYTES: usize = 512;
/// The maximum number of members of a `tracestate` (section 3.3.1.1).
const MAX_STATE_MEMBERS: usize = 32;
/// The maximum length of a member's key and of its value, each in bytes.
const MAX_STATE_WORD: usize = 256;

/// The id of a trace. Never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceId([u8; 16]);

/// The id of a span within its trace. Never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpanId([u8; 8]);

/// The content of a `traceparent`: a trace, a span in it, and flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceContext {
    pub trace: TraceId,
    /// The span that is the parent of the receiver's span.
    pub span: SpanId,
    flags: u8,
}

impl TraceId {
    pub fn new(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    /// Returns the last seven bytes as a number, from 0 to 2^56 - 1. Sampling compares it with a threshold.
    pub fn randomness(self) -> u64 {
        let mut last = [0; 8];
        last[1..].copy_from_slice(&self.0[9..]);
        u64::from_be_bytes(last)
    }
}

impl SpanId {
    pub(crate) fn new(bytes: [u8; 8]) -> Option<Self> {
        (bytes != [0; 8]).then_some(Self(bytes))
    }
}

impl TraceContext {
    /// Creates the context of a new trace. The last seven bytes of `trace` must be random.
    pub(crate) fn root(trace: TraceId, span: SpanId, sampled: bool) -> Self {
        Self { trace, span, flags: RANDOM | if sampled { SAMPLED } else { 0 } }
    }

    /// Parses a `traceparent`. `None` if it is invalid.
    pub(crate) fn parse(header: &[u8]) -> Option<Self> {
        let (head, rest) = header.split_at_checked(PARENT_LEN)?;
        let [version] = hex(&head[..2])?;
        // Version 00 ends here. A later version may continue after a dash. Version ff is forbidden.
        let ends = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.first().is_none_or(|b| *b == b'-'),
        };
        if !ends || [head[2], head[35], head[52]] != *b"---" {
            return None;
        }
        let [flags] = hex(&head[53..])?;
        Some(Self {
            trace: TraceId::new(hex(&head[3..35])?)?,
            span: SpanId::new(hex(&head[36..52])?)?,
            // Other flags are dropped, because their meaning is unknown.
            flags: flags & (SAMPLED | RANDOM),
        })
    }

    /// Returns true if the trace is sampled, so that its spans should be recorded.
    pub(crate) fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Returns the context of `span` in this trace.
    #[must_use]
    pub(crate) fn within(self, span: SpanId) -> Self {
        Self { span, ..self }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, self.flags)
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

/// Decodes `N` bytes in lower-case hex. `None` if `text` is anything else. Upper case is invalid (section 3.2.2.3).
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    let (pairs, []) = text.as_chunks::<2>() else { return None };
    if pairs.len() != N {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

/// Joins the `tracestate` header lines of a request into one. `None` if there are none, or if they break a rule of the
/// specification. The `traceparent` is then sent alone.
pub(crate) fn trace_state<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<Box<str>> {
    let mut state = String::new();
    for line in lines {
        let line = str::from_utf8(line).ok()?;
        for member in line.split(',').map(|member| member.trim_matches([' ', '\t'])) {
            // Empty members are allowed and have no meaning.
            if member.is_empty() {
                continue;
            }
            if !is_member(member) {
                return None;
            }
            if !state.is_empty() {
                state.push(',');
            }
            state.push_str(member);
            if state.len() > MAX_STATE_BYTES {
                return None;
            }
        }
    }
    let members = state.split(',').filter(|member| !member.is_empty());
    let keys: Vec<&str> = members.filter_map(|member| Some(member.split_once('=')?.0)).collect();
    let twice = || (1..keys.len()).any(|i| keys[..i].contains(&keys[i]));
    (!keys.is_empty() && keys.len() <= MAX_STATE_MEMBERS && !twice()).then(|| state.into_boxed_str())
}

/// Returns true if `member` is a valid `key=value` (section 3.3.1.3).
fn is_member(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else { return false };
    let starts = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let in_key = |b: &u8| starts(b) || b"_-*/@".contains(b);
    let in_value = |b: &u8| (0x20..=0x7e).contains(b) && *b != b'=';
    key.len() <= MAX_STATE_WORD
        && key.as_bytes().first().is_some_and(starts)
        && key.as_bytes().iter().all(in_key)
        && key.bytes().filter(|b| *b == b'@').count() <= 1
        && (1..=MAX_STATE_WORD).contains(&value.len())
        && value.as_bytes().iter().all(in_value)
}

#[cfg(test)]
mod tests;
