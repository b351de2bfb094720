//! One caller's call, planned.

use tokio::time::Instant;

use super::charge::Charge;
use super::key::LookupPlan;
use super::options::{CallOptions, Conditions};
use super::status::Why;
use crate::methods::{Query, Slot};

/// One caller's call, planned.
pub(super) struct PlannedCall<'a> {
    pub(super) query: &'a Query,
    pub(super) plan: LookupPlan,
    pub(super) why: Why,
    pub(super) options: CallOptions,
    pub(super) charge: &'a Charge,
    pub(super) conditions: &'a dyn Conditions,
    /// When the caller came.
    pub(super) came: Instant,
    /// A node is asked anew, since an answer came too late. The next answer is the last.
    pub(super) is_anew: bool,
}

impl PlannedCall<'_> {
    /// Returns the slot that an answer should stand for: the caller's condition, or the floor that its plan keeps.
    pub(super) fn wanted(&self) -> Option<Slot> {
        self.query.min_context_slot().max(self.options.floor)
    }
}
