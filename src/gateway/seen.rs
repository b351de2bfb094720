//! The highest slot that a key has been shown at each commitment: what `monotonic` plans hold it to.
//!
//! Only remembers; what an older answer means is the cache's to say. At processed a fork may be dropped with its slots,
//! and the number stays all the same: a floor asks for more, and is never an error. In front of another cluster, whose
//! slots are other numbers, everything is forgotten; a call that began before that is not heard any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use crate::methods::{Commitment, PerCommitment, Slot};

/// By commitment; 0 before the first.
type Slots = PerCommitment<AtomicU64>;

/// The highest slots shown so far. Shared with its successor on a reload.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen(Arc<ArcSwap<Slots>>);

impl Seen {
    /// What was shown at `commitment`, for as long as one call takes.
    pub(crate) fn at(&self, commitment: Commitment) -> Shown {
        Shown { slots: self.0.load_full(), commitment }
    }

    /// Forgets all of it.
    pub(crate) fn forget(&self) {
        self.0.store(Arc::default());
    }
}

/// What a caller has been shown at one commitment, and is shown by the call that holds this.
#[derive(Debug)]
pub struct Shown {
    slots: Arc<Slots>,
    commitment: Commitment,
}

impl Shown {
    /// The highest slot so far: what is kept below it is a miss. `None` before the first.
    pub fn slot(&self) -> Option<Slot> {
        let slot = self.slots.get(self.commitment).load(Ordering::Relaxed);
        (slot > 0).then_some(slot)
    }

    /// Remembers that `slot` was shown; a lower one than before changes nothing.
    pub fn show(&self, slot: Slot) {
        self.slots.get(self.commitment).fetch_max(slot, Ordering::Relaxed);
    }
}
