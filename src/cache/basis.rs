//! The reasons for which an entry may serve a call, or may not.

use super::status::CacheStatus;
use crate::error::Error;
use crate::telemetry::Outcome;

/// The reason why an entry may serve a call. The reason decides which bounds are checked when the answer
/// leaves.
#[derive(Debug, Clone, Copy)]
pub(super) enum Basis {
    /// The look-up found the entry. The entry is fresh, or stale while a refetch runs, and reaches the slot
    /// that the caller wants.
    LookedUp,
    /// A flight found the entry without asking a node. The entry is fresh, or stale while a refetch runs. The
    /// caller's slot was checked when the flight ended.
    FoundByFlight,
    /// No node gives a better answer, and the entry may still stand in.
    StandIn,
    /// The answer, or a part of it, was fetched for another caller and is fresh. The values are the status
    /// and outcome to report.
    SharedFetch(CacheStatus, Outcome),
    /// A node was asked after the caller arrived. Only the time that the answer waits to be rendered counts
    /// as its age.
    FetchedSinceArrival(CacheStatus, Outcome),
}

impl Basis {
    /// Returns true if the look-up or a flight found the entry without asking a node.
    pub(super) fn is_stored(self) -> bool {
        matches!(self, Self::LookedUp | Self::FoundByFlight)
    }
}

/// The reason why an entry or a fetch gave a caller no answer.
#[derive(Debug)]
pub(super) enum NotServed {
    /// No entry may serve the caller. None is stored, or the entry passed its bounds, or a newer answer was
    /// shown meanwhile. An entry may also be in a form that serves only the caller who led the flight.
    Unusable,
    /// The entry cannot be rendered, or the fetch failed.
    Failed(Error),
}

impl From<Error> for NotServed {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The bounds that stored entries must meet to be used for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tolerance {
    /// The entries are fresh.
    Fresh,
    /// The entries may stand in if no node answers.
    InFault,
    /// The entries may stand in, even below a slot at which one of their accounts was shown.
    LastResort,
}
