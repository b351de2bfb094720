//! The reasons for which an entry may serve a call, or may not.

use super::status::CacheStatus;
use crate::error::Error;
use crate::telemetry::Outcome;

/// The reason why an entry may serve a call. The reason decides which limits of age and slot are checked
/// before the answer is sent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Basis {
    /// The look-up found the entry. The entry is fresh, or stale while a refetch runs, and reaches the slot
    /// that the caller wants.
    LookedUp,
    /// A shared fetch found the entry without asking a node. The entry is fresh, or stale while a refetch
    /// runs. The slot that the caller wants was checked when the fetch ended.
    FoundByFlight,
    /// No node gives a better answer, and the entry may still stand in.
    StandIn,
    /// The answer, or a part of it, was fetched for another caller and is fresh. The two values are the
    /// `Cache-Status` and the outcome for metrics.
    SharedFetch(CacheStatus, Outcome),
    /// A node was asked after the caller arrived. The answer's age counts only from the end of the fetch until the
    /// answer is rendered. The two values are the `Cache-Status` and the outcome for metrics.
    FetchedSinceArrival(CacheStatus, Outcome),
}

impl Basis {
    /// Returns true if the look-up or a shared fetch found the entry without asking a node.
    pub(super) fn is_stored(self) -> bool {
        matches!(self, Self::LookedUp | Self::FoundByFlight)
    }
}

/// The reason why an entry or a fetch gives a caller no answer.
#[derive(Debug)]
pub(super) enum NotServed {
    /// No entry may serve the caller: none is stored, the entry became too old, or a newer answer was sent to a
    /// caller meanwhile. The result of a shared fetch may also be in a form that serves only the caller for whom
    /// the fetch began.
    Unusable,
    /// The entry cannot be rendered, or the fetch failed.
    Failed(Error),
}

impl From<Error> for NotServed {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The limits of age and slot that stored entries must meet to be used for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tolerance {
    /// The entries are fresh.
    Fresh,
    /// The entries are young enough to be served while no node answers.
    InFault,
    /// The entries are young enough to be served while no node answers. An entry may even be below a slot at
    /// which one of its accounts was shown.
    LastResort,
}
