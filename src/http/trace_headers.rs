//! Reads the trace context of a request from `traceparent` and `tracestate` (W3C Trace Context).

use super::fields::Fields;
use crate::telemetry::Trace;
use crate::telemetry::trace::{TRACEPARENT, TRACESTATE};

/// Returns the trace context in the request's header fields, which is empty if there is none.
pub(super) fn caller(fields: &(impl Fields + ?Sized)) -> Trace {
    Trace::of_caller(fields.all(TRACEPARENT), || fields.all(TRACESTATE))
}
