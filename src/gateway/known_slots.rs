//! The slots below which a caller is shown no stored answer, because it knows better.
//!
//! A caller who was told that its payment has landed would take an older balance for a fault. So whatever a key was told to
//! have happened at a slot is in its later answers, although older ones are still fresh. With a `monotonic` plan, each answer
//! counts, too.
//!
//! This module only stores the slots. The cache decides how to answer. At processed, a slot stays recorded even if
//! its fork is dropped. That is harmless, because a recorded slot only makes the cache look for a newer answer and
//! never causes an error. When the Solana cluster changes, all slots are forgotten. Calls that began earlier then
//! no longer record their slots.

use std::sync::Arc;

use crate::methods::{Commitment, PerCommitment, Slot};
use crate::sync::ArcSwap;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The slots that one key knows of. Clones share the slots, so that the slots survive a reload.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShownSlots(Arc<ArcSwap<KnownSlots>>);

impl ShownSlots {
    /// Returns the slots, which a call takes before it asks a node, and raises afterwards.
    pub(crate) fn of_call(&self) -> Arc<KnownSlots> {
        self.0.load_full()
    }

    /// Returns the highest slot that the key knows of. `None` before the first.
    pub(crate) fn highest(&self, commitment: Commitment) -> Option<Slot> {
        let slot = self.0.load().0.get(commitment).load(Ordering::Relaxed);
        (slot > 0).then_some(slot)
    }

    /// Forgets the slots, so that the next answers may have any slot.
    pub(crate) fn forget(&self) {
        self.0.store(Arc::default());
    }
}

/// The highest slot, at each commitment, that a key knows of. 0 before the first.
#[derive(Debug, Default)]
pub struct KnownSlots(PerCommitment<AtomicU64>);

impl KnownSlots {
    /// Records that the caller knows of `slot`. Has no effect if it knows of a higher one.
    pub fn raise(&self, commitment: Commitment, slot: Slot) {
        self.0.get(commitment).fetch_max(slot, Ordering::Relaxed);
    }

    /// Records that the caller was told of something at `slot`. What is confirmed is processed, too.
    pub fn tell(&self, commitment: Commitment, slot: Slot) {
        Commitment::ALL[..=commitment.index()].iter().for_each(|weaker| self.raise(*weaker, slot));
    }
}
