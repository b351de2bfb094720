//! A chain: the blocks that the follower has read without a gap, each joined to the one before.
//!
//! [`Chain`] is read by every hit and written by the follower alone, through [`ChainWriter`]. The follower
//! stores a block's writes and its slot first, and publishes the new tip last. A reader loads the tip first.
//! The reader therefore sees every write up to that tip. It may also see later writes, which cost a fetch,
//! never a wrong answer. The finalized target is published in the same way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::last_writes::{Bucket, LastWrites};
use crate::methods::Slot;

/// The most slots of a chain: more than the longest epoch, at whose end each chain ends.
pub(super) const MAX_SLOTS: u64 = 1 << 19;

/// The bits of a packed tip that hold its time, in milliseconds: 500 years.
const TIME_BITS: u32 = 44;

/// The most blocks above the finalized target whose writes are kept. If more blocks are not final yet,
/// carrying at finalized pauses.
const MAX_PENDING_BLOCKS: usize = 512;

/// The slots and the last writes of a chain.
#[derive(Debug)]
pub struct Chain {
    /// A number that no other chain of this process has.
    number: u64,
    first: Slot,
    /// One bit for each slot from the first: true if the chain has a block there.
    slots: Box<[AtomicU64]>,
    writes: LastWrites,
    began_at: Instant,
    /// The distance of the tip from the first slot, and the time of its poll, in one number.
    tip: AtomicU64,
    /// The finalized target: the newest slot that is known to be final and whose writes are noted as final. 0
    /// if there is none.
    target: AtomicU64,
    /// The lowest slot at which a carried answer may have been read, if that is below the target. Final
    /// writes below `target_from` may be missing.
    target_from: AtomicU64,
}

/// The newest slot of a chain, or a slot at which an account is known to be unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tip {
    /// The slot.
    pub slot: Slot,
    /// The time at which the poll was sent that last named the chain's tip as the newest slot.
    pub polled_at: Instant,
}

/// The commitment at which an answer is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carry {
    /// To the tip, for a caller at confirmed.
    ToTip,
    /// To the finalized target. Before Agave 4.1, answers at finalized may show data of a later slot than
    /// their own.
    ToTarget {
        /// True if the answer may show data of a later slot than its own.
        may_be_newer: bool,
    },
}

impl Chain {
    /// Creates a chain of one block.
    fn new(number: u64, first: Slot, polled_at: Instant) -> Self {
        let words = usize::try_from(MAX_SLOTS / 64).expect("the constant fits");
        let chain = Self {
            number,
            first,
            slots: std::iter::repeat_with(AtomicU64::default).take(words).collect(),
            writes: LastWrites::new(first),
            began_at: polled_at,
            tip: AtomicU64::new(0),
            target: AtomicU64::new(0),
            target_from: AtomicU64::new(first),
        };
        chain.add_slot(first);
        chain
    }

    /// Returns the chain's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the newest slot of the chain.
    pub fn tip(&self) -> Tip {
        let packed = self.tip.load(Ordering::Acquire);
        let since = Duration::from_millis(packed & ((1 << TIME_BITS) - 1));
        Tip { slot: self.first + (packed >> TIME_BITS), polled_at: self.began_at + since }
    }

    fn set_tip(&self, slot: Slot, polled_at: Instant) {
        let since = polled_at.saturating_duration_since(self.began_at).as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX).min((1 << TIME_BITS) - 1);
        self.tip.store((slot - self.first) << TIME_BITS | since, Ordering::Release);
    }

    /// Returns the finalized target, which is the newest slot known to be final. `None` if there is none, as
    /// while carrying at finalized pauses.
    pub fn target(&self) -> Option<Slot> {
        Some(self.target.load(Ordering::Acquire)).filter(|target| *target > 0)
    }

    /// Returns the slot of the last block that wrote an account of this bucket, or the chain's first slot.
    pub fn last_write(&self, bucket: Bucket) -> Slot {
        self.writes.last(bucket)
    }

    /// Returns the newest slot at which an account is known to be the same as at `read`, where it was read.
    /// `None` if there is none.
    pub fn unchanged_until(&self, bucket: Bucket, read: Slot, carry: Carry) -> Option<Tip> {
        let tip = self.tip();
        match carry {
            Carry::ToTip => {
                let is_unchanged = self.has(read, tip.slot) && self.writes.last(bucket) <= read;
                is_unchanged.then_some(tip)
            }
            Carry::ToTarget { may_be_newer } => {
                let target = self.target()?;
                if !self.has(read, tip.slot) {
                    return None;
                }
                let last = || self.writes.last(bucket);
                let is_unchanged = if read > target {
                    last() <= target
                } else {
                    let from = self.target_from.load(Ordering::Acquire);
                    read >= from
                        && self.writes.last_final(bucket) <= read
                        && (!may_be_newer || last() <= read)
                };
                is_unchanged.then_some(Tip { slot: target, ..tip })
            }
        }
    }

    /// Returns true if the chain has a block at `slot`, which is not above `tip`.
    fn has(&self, slot: Slot, tip: Slot) -> bool {
        (self.first..=tip).contains(&slot) && {
            let (word, bit) = self.place(slot);
            self.slots[word].load(Ordering::Relaxed) & bit != 0
        }
    }

    fn add_slot(&self, slot: Slot) {
        let (word, bit) = self.place(slot);
        self.slots[word].fetch_or(bit, Ordering::Relaxed);
    }

    /// Returns the word and the bit of a slot that is at most [`MAX_SLOTS`] above the first.
    fn place(&self, slot: Slot) -> (usize, u64) {
        let distance = slot - self.first;
        let word = usize::try_from(distance / 64).expect("a chain has at most 2^19 slots");
        (word, 1 << (distance % 64))
    }
}

/// The reason why a chain cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChainEnd {
    /// The finalized frontier names a slot that the chain does not have.
    Fork,
    /// The chain has as many slots as it can have.
    Full,
}

/// The follower's side of a chain.
pub(super) struct ChainWriter {
    chain: Arc<Chain>,
    /// The written buckets of the blocks above the target, oldest first.
    pending: VecDeque<(Slot, Vec<Bucket>)>,
}

impl ChainWriter {
    /// Begins a chain at the block of `first`.
    pub(super) fn new(number: u64, first: Slot, polled_at: Instant) -> Self {
        Self { chain: Arc::new(Chain::new(number, first, polled_at)), pending: VecDeque::new() }
    }

    /// Returns the chain, for readers.
    pub(super) fn chain(&self) -> &Arc<Chain> {
        &self.chain
    }

    /// Notes that a poll which was sent at `polled_at` has named the tip as the newest slot.
    pub(super) fn renew(&self, polled_at: Instant) {
        self.chain.set_tip(self.chain.tip().slot, polled_at);
    }

    /// Adds the block at `slot`, whose parent is the tip, with the buckets that it writes. The time of the
    /// tip stays until [`Self::renew`].
    ///
    /// # Errors
    /// The chain is full.
    pub(super) fn add(&mut self, slot: Slot, buckets: Vec<Bucket>) -> Result<(), ChainEnd> {
        let chain = &*self.chain;
        if slot - chain.first >= MAX_SLOTS {
            return Err(ChainEnd::Full);
        }
        for bucket in &buckets {
            chain.writes.note(*bucket, slot);
        }
        chain.add_slot(slot);
        chain.set_tip(slot, chain.tip().polled_at);
        self.pending.push_back((slot, buckets));
        if self.pending.len() > MAX_PENDING_BLOCKS
            && let Some((dropped, _)) = self.pending.pop_front()
        {
            // The writes of the dropped block matter only to answers that were read below its slot.
            chain.target.store(0, Ordering::Release);
            chain.target_from.store(dropped, Ordering::Release);
        }
        Ok(())
    }

    /// Moves the target to the finalized frontier, once the chain has reached it.
    ///
    /// # Errors
    /// The chain does not have the finalized slot.
    pub(super) fn finalize(&mut self, finalized: Slot) -> Result<(), ChainEnd> {
        let chain = &*self.chain;
        let tip = chain.tip().slot;
        if finalized < chain.first || finalized > tip || chain.target() >= Some(finalized) {
            return Ok(());
        }
        if !chain.has(finalized, tip) {
            return Err(ChainEnd::Fork);
        }
        while let Some((slot, buckets)) = self.pending.pop_front_if(|(slot, _)| *slot <= finalized) {
            for bucket in buckets {
                chain.writes.note_final(bucket, slot);
            }
        }
        if finalized >= chain.target_from.load(Ordering::Relaxed) {
            chain.target.store(finalized, Ordering::Release);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
