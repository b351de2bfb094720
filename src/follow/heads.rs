//! The newest blocks of the followed chain: their heights and hashes.

use std::collections::VecDeque;
use std::sync::Arc;

use super::chain::Chain;
use crate::methods::{Commitment, Slot};

/// The number of newest blocks that are remembered: as many as a bank has blockhashes.
const REMEMBERED: usize = 300;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockHead {
    pub slot: Slot,
    /// The number of blocks below it.
    pub height: u64,
    /// Its hash, in base58.
    pub blockhash: Arc<str>,
}

/// The newest blocks of a chain, oldest first, and the newest one of them that is final.
#[derive(Debug)]
pub struct Heads {
    blocks: Box<[BlockHead]>,
    final_slot: Option<Slot>,
}

impl Heads {
    /// Returns the newest block at `commitment`. `None` if the chain does not know it; it never does at processed.
    pub fn at(&self, commitment: Commitment) -> Option<&BlockHead> {
        match commitment {
            Commitment::Processed => None,
            Commitment::Confirmed => self.blocks.last(),
            Commitment::Finalized => self.at_slot(self.final_slot?),
        }
    }

    /// Returns the block at `slot`, if it is one of the newest.
    pub fn at_slot(&self, slot: Slot) -> Option<&BlockHead> {
        self.blocks.binary_search_by_key(&slot, |head| head.slot).ok().map(|at| &self.blocks[at])
    }

    pub fn named(&self, blockhash: &str) -> Option<&BlockHead> {
        self.blocks.iter().rev().find(|head| &*head.blockhash == blockhash)
    }
}

/// The heads of a chain in progress. Empty if the height of its first block is unknown.
pub(super) struct HeadsWriter(VecDeque<BlockHead>);

impl HeadsWriter {
    pub(super) fn new(slot: Slot, height: Option<u64>, blockhash: &str) -> Self {
        Self(
            height
                .map(|height| BlockHead { slot, height, blockhash: blockhash.into() })
                .into_iter()
                .collect(),
        )
    }

    /// Adds the block at `slot`, whose parent is the newest block.
    pub(super) fn add(&mut self, slot: Slot, blockhash: &str) {
        let Some(parent) = self.0.back() else { return };
        let height = parent.height + 1;
        self.0.push_back(BlockHead { slot, height, blockhash: blockhash.into() });
        if self.0.len() > REMEMBERED {
            self.0.pop_front();
        }
    }

    pub(super) fn of(&self, chain: &Chain) -> Arc<Heads> {
        Arc::new(Heads { blocks: self.0.iter().cloned().collect(), final_slot: chain.target() })
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::super::chain::ChainWriter;
    use super::*;

    #[tokio::test]
    async fn heads_have_heights_and_the_newest_final_block() {
        let mut chain = ChainWriter::new(1, 100, Instant::now());
        let mut heads = HeadsWriter::new(100, Some(90), "a");
        for (slot, hash) in [(101, "b"), (104, "c")] {
            chain.add(slot, Vec::new()).unwrap();
            heads.add(slot, hash);
        }
        let at = |heads: &Heads, commitment| heads.at(commitment).map(|head| (head.slot, head.height));
        let before = heads.of(chain.chain());
        assert_eq!(at(&before, Commitment::Confirmed), Some((104, 92)));
        assert_eq!(at(&before, Commitment::Finalized), None);
        chain.finalize(101).unwrap();
        let after = heads.of(chain.chain());
        assert_eq!(at(&after, Commitment::Finalized), Some((101, 91)));
        assert_eq!(at(&after, Commitment::Processed), None);
        assert_eq!(after.named("c").map(|head| head.slot), Some(104));
        assert!(after.named("d").is_none() && after.at_slot(102).is_none());
        for slot in 105..1_000 {
            heads.add(slot, "x");
        }
        assert_eq!(heads.0.len(), REMEMBERED);
        let unknown = HeadsWriter::new(100, None, "a").of(chain.chain());
        assert_eq!(at(&unknown, Commitment::Confirmed), None);
    }
}
