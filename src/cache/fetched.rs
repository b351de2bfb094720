//! The results of fetches, and the slots that fetches must reach.

use std::sync::Arc;

use super::entry::Entry;
use super::key::{Key, LookupPlan};
use crate::error::Error;
use crate::methods::Slot;

/// The result of a fetch that several callers may share. All of them get this result.
pub(super) type FlightResult = Result<Fetched, Error>;

/// The result of a fetch.
#[derive(Debug, Clone)]
pub(super) enum Fetched {
    /// A node's answer, and true if it is stored.
    New(Arc<Entry>, bool),
    /// A stored entry, which is given because the node's answer is older. The key is set if the entry is stored
    /// under the [`LookupPlan::alternate_key`] of the caller who started the fetch.
    KeptNewer(Arc<Entry>, Option<Key>),
    /// A fresh entry for which no node was asked. The entry was stored, was derived from a stored one, or came
    /// from the shared store. The key is set if the entry is stored under the [`LookupPlan::alternate_key`] of
    /// the caller who started the fetch.
    AlreadyFresh(Arc<Entry>, Option<Key>),
}

impl Fetched {
    pub(super) fn entry(&self) -> &Arc<Entry> {
        match self {
            Self::New(entry, _) | Self::KeptNewer(entry, _) | Self::AlreadyFresh(entry, _) => entry,
        }
    }

    /// Returns true if the result is in a form that fits the caller of `plan`. Callers who want different parts of an account
    /// share one call for the whole account. An entry that holds one part serves only the callers who asked
    /// for that part.
    pub(super) fn fits(&self, plan: &LookupPlan) -> bool {
        match self {
            Self::KeptNewer(_, Some(key)) | Self::AlreadyFresh(_, Some(key)) => {
                plan.alternate_key.as_ref() == Some(key)
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
    /// At least this slot, which a usable node has reached.
    AtLeast(Slot),
    /// The caller's own minContextSlot, which is sent to the node. If the node refuses the call, the caller
    /// gets the refusal.
    CallerMinimum(Slot),
}

impl SlotRequirement {
    /// Returns the requirement of at least `slot`. Without a slot, any answer will do.
    pub(super) fn at_least(slot: Option<Slot>) -> Self {
        slot.map_or(Self::None, Self::AtLeast)
    }
}
