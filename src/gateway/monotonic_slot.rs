//! The highest slot shown to a key at each commitment. A key with a `monotonic` plan is shown no lower slot later.
//!
//! This module only stores the slots. The cache decides how to answer. At processed, a slot stays recorded even if
//! its fork is dropped. That is harmless, because a recorded slot only makes the cache look for a newer answer and
//! never causes an error. When the Solana cluster changes, all slots are forgotten. Calls that began earlier then
//! no longer record their slots.

use std::sync::Arc;

use crate::methods::{Commitment, PerCommitment, Slot};
use crate::sync::ArcSwap;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The highest slot, at each commitment, of the answers to one key. 0 before the first answer.
type Slots = PerCommitment<AtomicU64>;

/// The highest slots of the answers to one key. Clones share the slots, so that the slots survive a reload.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShownSlots(Arc<ArcSwap<Slots>>);

impl ShownSlots {
    /// Returns the handle with which one call at `commitment` reads and raises the highest slot shown to the key.
    pub(crate) fn at(&self, commitment: Commitment) -> MonotonicSlot {
        MonotonicSlot { slots: self.0.load_full(), commitment }
    }

    /// Forgets the highest slots, so that the next answers may have any slot.
    pub(crate) fn forget(&self) {
        self.0.store(Arc::default());
    }
}

/// A handle to the highest slot that answers at one commitment have shown to the caller.
#[derive(Debug)]
pub struct MonotonicSlot {
    slots: Arc<Slots>,
    commitment: Commitment,
}

impl MonotonicSlot {
    /// Returns the highest slot that an answer has shown to the caller so far. `None` before the first answer.
    pub fn highest(&self) -> Option<Slot> {
        let slot = self.slots.get(self.commitment).load(Ordering::Relaxed);
        (slot > 0).then_some(slot)
    }

    /// Records that an answer has shown `slot` to the caller. Has no effect if an earlier answer had a higher slot.
    pub fn raise(&self, slot: Slot) {
        self.slots.get(self.commitment).fetch_max(slot, Ordering::Relaxed);
    }
}
