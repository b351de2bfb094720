//! `traceparent` and `tracestate` as they arrive.

use hyper::header::{HeaderMap, HeaderValue};

use crate::telemetry::Trace;
use crate::telemetry::trace::{TRACEPARENT, TRACESTATE};

/// The place in a trace that the request's headers name.
pub(super) fn caller(headers: &HeaderMap) -> Trace {
    let all = |name| headers.get_all(name).iter().map(HeaderValue::as_bytes);
    Trace::of_caller(all(TRACEPARENT), || all(TRACESTATE))
}
