//! The reasons for which an entry may serve a call.

use super::status::CacheStatus;
use crate::telemetry::Outcome;

/// The reason why an entry may serve a call, and so the bounds that it is held to when it leaves.
#[derive(Debug, Clone, Copy)]
pub(super) enum Basis {
    /// It is kept: it is fresh, or a fresh one is being fetched, and it meets what the caller wants.
    Kept,
    /// A flight found it kept: as above, and what the caller wants was looked at by then.
    Found,
    /// No node gives better: it may still stand in.
    StandIn,
    /// Another caller's call brought it, or a part of it was kept: it is fresh. So it is said, and so counted.
    Joined(CacheStatus, Outcome),
    /// A node was asked for it after the caller had come: of its age, only the time counts that it waits for its turn.
    Own(CacheStatus, Outcome),
}

impl Basis {
    /// Returns true if the entry was held when the caller came, and no node was asked.
    pub(super) fn is_kept(self) -> bool {
        matches!(self, Self::Kept | Self::Found)
    }
}

/// The bounds that kept entries must meet to be used for another answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// They are fresh.
    Fresh,
    /// They may stand in if no node answers.
    InFault,
    /// They may stand in, even below a slot at which an account was shown.
    LastResort,
}
