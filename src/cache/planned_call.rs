//! A caller's call with its plan: the keys to look up, and the call to send to a node.

use tokio::time::Instant;

use super::charge::Charge;
use super::key::LookupPlan;
use super::options::{CallOptions, Conditions};
use super::status::ForwardReason;
use crate::methods::{Query, Slot};

/// A caller's call with its plan: the keys to look up, and the call to send to a node.
pub(super) struct PlannedCall<'a> {
    pub(super) query: &'a Query,
    pub(super) plan: LookupPlan,
    pub(super) reason: ForwardReason,
    pub(super) options: CallOptions,
    pub(super) charge: &'a Charge,
    pub(super) conditions: &'a dyn Conditions,
    /// The moment at which the caller arrived.
    pub(super) arrived_at: Instant,
    /// True once the first try has failed, or has given an answer too late to be served. There is no third
    /// try.
    pub(super) is_retry: bool,
}

impl PlannedCall<'_> {
    /// Returns the slot that a stored answer must reach to serve this caller. It is the minContextSlot or the
    /// [`CallOptions::monotonic_slot`], whichever is higher.
    pub(super) fn min_slot(&self) -> Option<Slot> {
        self.query.min_context_slot().max(self.options.monotonic_slot)
    }
}
