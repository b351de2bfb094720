//! The slots below which a caller is shown no stored answer, because it knows better.
//!
//! A caller who was told that its payment has landed would take an older balance for a fault. So whatever a key was told to
//! have happened at a slot is in its later answers, although older ones are still fresh. With a `monotonic` plan, each answer
//! counts, too.
//!
//! This module only stores the slots. The cache decides how to answer. At processed, a slot stays recorded even if
//! its fork is dropped. That is harmless, because a recorded slot only makes the cache look for a newer answer and
//! never causes an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::methods::{Commitment, PerCommitment, Slot};

/// The highest slot, at each commitment, that one key knows of. 0 before the first. Clones share the slots, so that they
/// survive a reload.
#[derive(Debug, Clone, Default)]
pub struct KnownSlots(Arc<PerCommitment<AtomicU64>>);

impl KnownSlots {
    /// Records that the key knows of `slot`. Has no effect if it knows of a higher one.
    pub fn raise(&self, commitment: Commitment, slot: Slot) {
        self.0.get(commitment).fetch_max(slot, Ordering::Relaxed);
    }

    /// Records that the key was told of something at `slot`. What is confirmed is processed, too.
    pub fn tell(&self, commitment: Commitment, slot: Slot) {
        Commitment::ALL[..=commitment.index()].iter().for_each(|weaker| self.raise(*weaker, slot));
    }

    /// Returns the highest slot that the key knows of. `None` before the first. A slot that is not believed is forgotten: a
    /// node has invented it, or the cluster goes on from a lower one.
    pub(super) fn highest(
        &self,
        commitment: Commitment,
        is_believed: impl FnOnce(Slot) -> bool,
    ) -> Option<Slot> {
        let known = self.0.get(commitment);
        let slot = known.load(Ordering::Relaxed);
        if slot > 0 && !is_believed(slot) {
            let _ = known.compare_exchange(slot, 0, Ordering::Relaxed, Ordering::Relaxed);
            return None;
        }
        (slot > 0).then_some(slot)
    }
}
