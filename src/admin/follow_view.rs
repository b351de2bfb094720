//! The followed chain, for the status page and the admin API.

use serde::Serialize;

use crate::methods::Slot;

/// The followed chain, and the state of the follower.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FollowView {
    /// True if carried answers are served. False in shadow mode, and once a carried answer was found wrong.
    pub serves: bool,
    /// True once a carried answer was found wrong. It stays true until a restart.
    pub contradicted: bool,
    /// The state: `starting`, `following`, `parked` or `paused`.
    pub state: &'static str,
    /// The reason of a pause. `None` unless the state is `paused`.
    pub reason: Option<&'static str>,
    /// The newest slot of the chain, to which answers at confirmed are carried. `None` while there is no chain.
    pub tip: Option<Slot>,
    /// The slot to which answers at finalized are carried. `None` before a slot is known to be final.
    pub finalized: Option<Slot>,
    /// The number of slots by which the tip is behind the newest confirmed slot. `None` while there is no chain.
    pub lag_slots: Option<u64>,
}
