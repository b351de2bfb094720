//! A followed chain to which a test adds blocks.

use std::sync::Arc;

use tokio::time::Instant;

use super::FollowedChain;
use super::chain::ChainWriter;
use crate::methods::{Pubkey, Slot};

/// A followed chain to which a test adds blocks.
pub(crate) struct TestChain {
    followed: Arc<FollowedChain>,
    writer: ChainWriter,
}

impl TestChain {
    /// Begins a chain at the slot `first`, and makes it the followed chain.
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

    /// Records that a poll has just named the chain's newest slot as the newest slot of a node.
    pub(crate) fn renew(&self) {
        self.writer.renew(Instant::now());
    }

    /// Records that the blocks up to `slot` are final, if the chain has reached `slot`.
    pub(crate) fn finalize(&mut self, slot: Slot) {
        self.writer.finalize(slot).unwrap();
    }
}
