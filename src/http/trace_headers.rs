//! Reads the trace context of a request from `traceparent` and `tracestate` (W3C Trace Context).

use super::fields::Fields;
use crate::telemetry::Trace;
use crate::telemetry::trace::{TRACEPARENT, TRACESTATE};

/// Returns the trace context that the request's header fields hold, or an empty one if they hold none.
pub(super) fn caller(fields: &(impl Fields + ?Sized)) -> Trace {
    Trace::of_caller(fields.all(TRACEPARENT), || fields.all(TRACESTATE))
}
