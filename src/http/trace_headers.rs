//! `traceparent` and `tracestate` as they arrive.

use super::fields::Fields;
use crate::telemetry::Trace;
use crate::telemetry::trace::{TRACEPARENT, TRACESTATE};

/// The place in a trace that the request's fields name.
pub(super) fn caller(fields: &(impl Fields + ?Sized)) -> Trace {
    Trace::of_caller(fields.all(TRACEPARENT), || fields.all(TRACESTATE))
}
