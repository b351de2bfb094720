//! The state of the follower, and the reasons for which it pauses.

use crate::named;
use crate::telemetry::RestartReason;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FollowState {
    /// Following does not run: the setting `follow.mode` is `off`, or slotfront is shutting down.
    #[default]
    Off,
    /// Following begins: a node is asked for the first block, now or after a pause.
    Starting,
    /// The follower reads every new block.
    Following,
    /// No account was asked for in the last five minutes. No blocks are read until the next call for an account.
    Parked,
    /// No blocks are read for a while, for the given reason.
    Paused(PauseReason),
}

impl FollowState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Starting => "starting",
            Self::Following => "following",
            Self::Parked => "parked",
            Self::Paused(_) => "paused",
        }
    }

    pub const fn number(self) -> i64 {
        match self {
            Self::Off => 0,
            Self::Starting => 1,
            Self::Following => 2,
            Self::Parked => 3,
            Self::Paused(_) => 4,
        }
    }
}

named! {
    /// The reason why the follower reads no blocks for a while.
    pub enum PauseReason {
        NoNode = "no usable node of a known kind and version gives its newest block",
        /// The node that was asked last does not answer `getEpochSchedule`, so the slots at which epochs begin
        /// are unknown.
        NoEpochs = "no node answers getEpochSchedule",
        UnknownForm = "a block has a form that slotfront does not know",
        NoFees = "the blocks of this cluster list no fee rewards, so a block without its rewards would not be noticed",
        TooSlow = "the nodes give blocks more slowly than the cluster makes them",
    }
}

/// The reason why following a chain ended, and the next action of the follower: a new chain or a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FollowEnd {
    /// The follower begins a new chain, a second or more after the beginning of the ended chain.
    Restart(RestartReason),
    /// The follower reads no blocks for a while.
    Pause(PauseReason),
}

impl FollowEnd {
    /// The end of the followed chain, because the accounts that a block writes cannot be known.
    pub(super) const GAP: Self = Self::Restart(RestartReason::Gap);
    /// The end of the followed chain, because a node has other blocks at the chain's slots.
    pub(super) const FORK: Self = Self::Restart(RestartReason::Fork);
}

impl From<PauseReason> for FollowEnd {
    fn from(reason: PauseReason) -> Self {
        Self::Pause(reason)
    }
}

impl From<RestartReason> for FollowEnd {
    fn from(reason: RestartReason) -> Self {
        Self::Restart(reason)
    }
}
