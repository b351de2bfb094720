//! The reasons why a stored or fetched entry may serve a call, and the reasons why no answer is given.

use super::status::CacheStatus;
use crate::error::Error;
use crate::telemetry::Outcome;

/// The reason why an entry may serve a call. The reason decides which limits of age and slot are checked
/// before the answer is sent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Basis {
    /// The look-up found the entry. The entry reaches the slot that the caller wants. The entry is fresh, or it is
    /// stale and a refetch is running.
    LookedUp,
    /// A shared fetch found the entry without asking a node. The entry is fresh, or it is stale and a refetch is
    /// running. When the fetch ended, the entry was checked against the slot that the caller wants.
    FoundByFlight,
    /// No node gives a better answer, and the stored entry may be served instead.
    StandIn,
    /// The answer was fetched for another caller. It is served only while it is fresh. The two values are the `Cache-Status` and the outcome for metrics.
    SharedFetch(CacheStatus, Outcome),
    /// A node was asked after the caller arrived, so the answer may have any age. Only the wait for rendering is
    /// limited. The two values are the `Cache-Status` and the outcome for metrics.
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
    /// No entry may serve the caller: none is stored, the entry became too old, or meanwhile a newer answer was
    /// stored or sent to a caller. The result of a shared fetch may also be in a form that serves only the caller
    /// for whom the fetch began.
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
    /// Each entry must be fresh.
    Fresh,
    /// Each entry must be young enough to be served while no node answers.
    InFault,
    /// Each entry must be young enough to be served while no node answers. An entry may even be below the floor of
    /// one of its accounts.
    LastResort,
}
