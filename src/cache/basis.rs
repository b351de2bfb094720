//! The reasons for which an entry may serve a call, or may not.

use super::status::CacheStatus;
use crate::error::Error;
use crate::telemetry::Outcome;

/// The reason why an entry may serve a call. It decides which bounds are checked when the answer leaves.
#[derive(Debug, Clone, Copy)]
pub(super) enum Basis {
    /// The look-up found the entry. It is fresh, or stale while a refetch runs, and reaches the slot that the
    /// caller wants.
    LookedUp,
    /// A flight found the entry in the cache. As for `LookedUp`, but the caller's slot was checked by the flight.
    FoundByFlight,
    /// No node gives a better answer, and the entry may still stand in.
    StandIn,
    /// The answer, or a part of it, was fetched for another caller and is fresh. Holds the status and outcome
    /// to report.
    SharedFetch(CacheStatus, Outcome),
    /// A node was asked after the caller arrived. Only the time that the answer waits to be rendered counts
    /// as its age.
    FetchedSinceArrival(CacheStatus, Outcome),
}

impl Basis {
    /// Returns true if the entry was stored when the caller arrived, so that no node was asked.
    pub(super) fn is_stored(self) -> bool {
        matches!(self, Self::LookedUp | Self::FoundByFlight)
    }
}

/// The reason why an entry or a fetch gave a caller no answer.
#[derive(Debug)]
pub(super) enum NotServed {
    /// No entry may serve the caller. It passed its bounds, a newer one was shown meanwhile, or its form serves
    /// only the caller who led the flight.
    Unusable,
    /// The entry cannot be rendered, or the fetch failed.
    Failed(Error),
}

impl From<Error> for NotServed {
    fn from(error: Error) -> Self {
        Self::Failed(error)
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
