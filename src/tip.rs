//! The tip: the highest slot that anybody was shown, at each commitment, and the reads that may never go back.
//!
//! A wallet asks one node for the height of the chain and another one for the status of its payment. If these two are at
//! different slots, a payment that has landed looks expired. So whatever somebody was shown at a slot, no later answer
//! comes from below it, and a height is shown only once every signature that is watched was asked for at its slot.
//!
//! The tip is everybody's, not each key's: a key may belong to a balancer in front of many callers.

mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::frontier::Frontier;
use crate::methods::{Commitment, Signature, Slot};
use watch::Watches;
pub use watch::{Landed, Watch};

/// The tip of the cluster as callers have seen it.
pub struct Tip {
    frontier: Arc<Frontier>,
    /// The highest slot that was shown at each commitment, by [`Commitment::index`]. 0 before the first.
    shown: [AtomicU64; 3],
    /// The newest known slot at each commitment when the tip last looked. If it is lower now, no node reaches it any more.
    known: [AtomicU64; 3],
    watches: Arc<Watches>,
}

impl Tip {
    /// Creates a tip that nobody was shown anything of.
    pub fn new(frontier: Arc<Frontier>) -> Arc<Self> {
        Arc::new(Self {
            frontier,
            shown: Default::default(),
            known: Default::default(),
            watches: Arc::default(),
        })
    }

    /// Returns the highest slot that an answer of the set has shown to anybody, at this commitment. 0 before the first.
    pub fn slot(&self, commitment: Commitment) -> Slot {
        self.follow_falls();
        self.shown[commitment.index()].load(Ordering::Acquire)
    }

    /// Notes that a caller is shown `slot`. A slot that is confirmed is processed, too, so the tip rises at all weaker
    /// commitments. A slot that a single node invents would stop all answers, so it does not count.
    pub fn raise(&self, commitment: Commitment, slot: Slot) {
        self.follow_falls();
        if self.frontier.believes(commitment, slot) {
            for shown in &self.shown[..=commitment.index()] {
                shown.fetch_max(slot, Ordering::AcqRel);
            }
        }
    }

    /// Waits for the end of a signature: until it is at `commitment`. Dropping the watch ends it.
    pub fn watch(&self, signature: Signature, commitment: Commitment) -> Watch {
        self.watches.add(signature, commitment)
    }

    /// Lowers the tip with a frontier that has fallen, as after the restart of a cluster: no node could answer otherwise.
    fn follow_falls(&self) {
        for commitment in Commitment::ALL {
            let at = commitment.index();
            let now = self.frontier.slot(commitment);
            if self.known[at].swap(now, Ordering::AcqRel) > now {
                self.shown[at].fetch_min(now, Ordering::AcqRel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use Commitment::{Confirmed, Finalized, Processed};

    fn slots(tip: &Tip) -> [Slot; 3] {
        Commitment::ALL.map(|commitment| tip.slot(commitment))
    }

    #[tokio::test]
    async fn tip_rises_with_what_is_shown_and_falls_with_the_frontier() {
        let frontier = Arc::new(Frontier::new(1));
        let tip = Tip::new(Arc::clone(&frontier));
        frontier.set_usable(0, true, Instant::now());
        for commitment in Commitment::ALL {
            frontier.probed(0, commitment, 1_000, Instant::now());
        }
        assert_eq!(slots(&tip), [0; 3], "nothing was shown");
        tip.raise(Confirmed, 1_001);
        assert_eq!(slots(&tip), [1_001, 1_001, 0]);
        tip.raise(Processed, 999);
        tip.raise(Finalized, 990);
        assert_eq!(slots(&tip), [1_001, 1_001, 990]);
        tip.raise(Processed, 1_000_000);
        assert_eq!(slots(&tip), [1_001, 1_001, 990], "a slot that no other node is near");
        frontier.forget();
        assert_eq!(slots(&tip), [0; 3]);
    }
}
