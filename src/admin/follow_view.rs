//! The state of following the cluster's blocks, for the status page and the admin API.

use serde::Serialize;

use crate::methods::Slot;

/// The state of following the cluster's blocks, which lets cached answers be served at newer slots while their
/// accounts are unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct FollowView {
    /// True if cached answers are served at a newer slot than they were fetched at (carried). False if
    /// `follow.mode` is `shadow`, and after a carried answer was found wrong.
    pub serves: bool,
    /// True from the time at which an answer carried to a newer slot was found wrong, until a restart.
    pub contradicted: bool,
    /// The state: `starting`, `following`, `parked` or `paused`. Following is parked while no account has been
    /// requested for five minutes.
    pub state: &'static str,
    /// The reason for a pause. `None` unless the state is `paused`.
    pub reason: Option<&'static str>,
    /// The newest followed slot. Cached answers at confirmed can be served at this slot if they are unchanged.
    /// `None` while no blocks are followed.
    pub tip: Option<Slot>,
    /// The newest followed slot that is final. Cached answers at finalized can be served at this slot if they are
    /// unchanged. `None` before a slot is known to be final, and while too many blocks are not final yet.
    pub finalized: Option<Slot>,
    /// The number of slots by which the newest followed slot is behind the newest confirmed slot. `None` while no
    /// blocks are followed.
    pub lag_slots: Option<u64>,
}
