//! The results of fetches, and the slots that fetches must reach.

use std::sync::Arc;

use super::entry::Entry;
use super::key::{Key, LookupPlan};
use crate::error::Error;
use crate::methods::Slot;

/// The result of a flight, which all who wait for it get.
pub(super) type Landing = Result<Fetched, Error>;

/// The result of a fetch.
#[derive(Debug, Clone)]
pub(super) enum Fetched {
    /// A node's answer, and true if it is kept.
    New(Arc<Entry>, bool),
    /// The held entry, since no node gives anything newer, and its key if that is the other one of the caller who led.
    KeptNewer(Arc<Entry>, Option<Key>),
    /// An entry that was fresh when the flight began, or was made of one. No node was asked. The key is as above.
    AlreadyFresh(Arc<Entry>, Option<Key>),
}

impl Fetched {
    pub(super) fn entry(&self) -> &Arc<Entry> {
        match self {
            Self::New(entry, _) | Self::KeptNewer(entry, _) | Self::AlreadyFresh(entry, _) => entry,
        }
    }

    /// Returns true if it has what the caller of `plan` asks for. Callers of different parts of an account share a call
    /// for the whole of it; an entry that holds one part serves only those who asked for that.
    pub(super) fn serves(&self, plan: &LookupPlan) -> bool {
        match self {
            Self::KeptNewer(_, Some(key)) | Self::AlreadyFresh(_, Some(key)) => {
                plan.other.as_ref() == Some(key)
            }
            _ => true,
        }
    }
}

/// The slot that a fetched answer must reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum SlotRequirement {
    /// Any answer of a usable node will do.
    None,
    /// This slot at least, which the frontier has reached.
    AtLeast(Slot),
    /// The caller's own minContextSlot, which goes to the node: the node's word on it passes through.
    CallerMinimum(Slot),
}
