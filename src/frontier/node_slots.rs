//! The newest slots that one node has reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::methods::{Commitment, Slot};

/// The newest slots that one node has reported, by [`Commitment::index`], for reads without a lock.
#[derive(Debug)]
pub struct NodeSlots {
    /// The newest reported slot at each commitment.
    slots: [AtomicU64; 3],
    /// For each commitment, the time at which an answer last had the slot in `slots` as its context slot. The time
    /// is in milliseconds after [`Frontier`](super::Frontier) was created.
    reported_ms: [AtomicU64; 3],
}

/// The stored value of a slot or time that is not known yet.
const NONE: u64 = u64::MAX;

impl Default for NodeSlots {
    fn default() -> Self {
        let unknown = || std::array::from_fn(|_| AtomicU64::new(NONE));
        Self { slots: unknown(), reported_ms: unknown() }
    }
}

impl NodeSlots {
    /// Returns the newest slot that the node is known to have reached. `None` if the node has reported no slot since
    /// [`Frontier::forget`](super::Frontier::forget).
    pub fn slot(&self, commitment: Commitment) -> Option<Slot> {
        let slot = self.slots[commitment.index()].load(Ordering::Acquire);
        (slot != NONE).then_some(slot)
    }

    /// Returns the time at which an answer last had the node's newest slot as its context slot. The time is in
    /// milliseconds after [`Frontier`](super::Frontier) was created. `None` if no answer had this slot.
    pub(super) fn reported_ms(&self, commitment: Commitment) -> Option<u64> {
        let reported = self.reported_ms[commitment.index()].load(Ordering::Relaxed);
        (reported != NONE).then_some(reported)
    }

    pub(super) fn set(&self, commitment: Commitment, slot: Option<Slot>) {
        self.slots[commitment.index()].store(slot.unwrap_or(NONE), Ordering::Release);
    }

    pub(super) fn set_reported_ms(&self, commitment: Commitment, ms: Option<u64>) {
        self.reported_ms[commitment.index()].store(ms.unwrap_or(NONE), Ordering::Relaxed);
    }
}

/// One node of the pool, with the slots that it has reported.
#[derive(Debug)]
pub(super) struct FrontierNode {
    pub(super) node: usize,
    /// True while the slots that the node reports count. A usable node answers its probes, is healthy and belongs
    /// to the same Solana cluster as the pool.
    pub(super) usable: bool,
    pub(super) slots: Arc<NodeSlots>,
}

impl FrontierNode {
    pub(super) fn new(node: usize) -> Self {
        Self { node, usable: true, slots: Arc::default() }
    }
}
