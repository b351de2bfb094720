//! A followed chain that a test moves.

use std::sync::Arc;

use tokio::time::Instant;

use super::FollowedChain;
use super::chain::ChainWriter;
use crate::methods::{Pubkey, Slot};

/// A followed chain that a test moves.
pub(crate) struct TestChain {
    followed: Arc<FollowedChain>,
    writer: ChainWriter,
}

impl TestChain {
    /// Begins a chain at the block of `first`, in place of the followed chain.
    pub(crate) fn begin(followed: &Arc<FollowedChain>, first: Slot) -> Self {
        let writer = ChainWriter::new(followed.next_number(), first, Instant::now());
        followed.chain.store(Some(Arc::clone(writer.chain())));
        followed.note_move();
        Self { followed: Arc::clone(followed), writer }
    }

    /// Adds the block at `slot`, which writes these accounts.
    pub(crate) fn add(&mut self, slot: Slot, writes: &[Pubkey]) {
        let buckets = writes.iter().map(|address| self.followed.bucket(address)).collect();
        self.writer.add(slot, buckets).unwrap();
        self.followed.note_move();
    }

    /// Notes that a poll has named the tip as the newest slot.
    pub(crate) fn renew(&self) {
        self.writer.renew(Instant::now());
    }

    /// Moves the finalized target to `slot`, if the chain has reached it.
    pub(crate) fn finalize(&mut self, slot: Slot) {
        self.writer.finalize(slot).unwrap();
    }
}
