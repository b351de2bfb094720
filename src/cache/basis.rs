//! The reasons for which an entry may serve a call.

use super::status::CacheStatus;
use crate::telemetry::Outcome;

/// The reason why an entry may serve a call. It decides which bounds are checked when the answer leaves.
#[derive(Debug, Clone, Copy)]
pub(super) enum Basis {
    /// The look-up found the entry. It is fresh, or stale while a refetch runs, and reaches the slot that the
    /// caller wants.
    Kept,
    /// A flight found the entry in the cache. As for `Kept`, but the caller's slot was checked by the flight.
    Found,
    /// No node gives a better answer, and the entry may still stand in.
    StandIn,
    /// The answer, or a part of it, was fetched for another caller and is fresh. Holds the status and outcome
    /// to report.
    Joined(CacheStatus, Outcome),
    /// A node was asked after the caller arrived. Only the time that the answer waits to be rendered counts
    /// as its age.
    Own(CacheStatus, Outcome),
}

impl Basis {
    /// Returns true if the entry was stored when the caller arrived, so that no node was asked.
    pub(super) fn is_kept(self) -> bool {
        matches!(self, Self::Kept | Self::Found)
    }
}

/// The bounds that stored entries must meet to be used for another answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tolerance {
    /// The entries are fresh.
    Fresh,
    /// The entries may stand in if no node answers.
    InFault,
    /// The entries may stand in, even below a slot at which an account was shown.
    LastResort,
}
