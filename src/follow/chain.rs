//! A chain: the blocks that the follower has read without a gap, each joined to the one before.
//!
//! [`Chain`] is read by every cache hit and written by the follower alone, through [`ChainWriter`]. The order makes
//! that safe without a lock: the follower stores a block's writes and its slot before it publishes the block as the
//! newest one, and a reader loads the newest slot first, so it sees every write up to that slot. It may also see later
//! writes, which cost a fetch, never a wrong answer. The newest final slot is published in the same way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::last_writes::{Bucket, LastWrites};
use crate::methods::Slot;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Instant, UNDER_SHUTTLE};
use crate::telemetry::RestartReason;

/// The maximum number of slots of a chain. A chain ends with its epoch, and the longest epoch is shorter than this.
pub(super) const MAX_SLOTS: u64 = if UNDER_SHUTTLE { 1 << 6 } else { 1 << 19 };

/// The number of low bits of the field `tip` of [`Chain`] that hold a time in milliseconds. They suffice for 500 years.
const TIME_BITS: u32 = 44;

/// The maximum number of blocks that are kept until they are final. While more blocks are not final, no answer at
/// finalized is served for a newer slot than it was read at.
const MAX_PENDING_BLOCKS: usize = 512;

/// A chain of blocks without a gap: the slots of the blocks, and the last writes of accounts.
#[derive(Debug)]
pub struct Chain {
    /// A number that no other chain of this process has.
    number: u64,
    first: Slot,
    /// One bit for each slot, beginning with the chain's first slot. The bit is set if the chain has a block at
    /// the slot.
    slots: Box<[AtomicU64]>,
    writes: LastWrites,
    began_at: Instant,
    /// The newest slot of the chain, and the time of the poll that last named this slot, in one number. The upper
    /// bits are the distance of the newest slot from the first slot. The lower [`TIME_BITS`] are milliseconds
    /// since `began_at`.
    tip: AtomicU64,
    /// The finalized target: the newest slot that is known to be final and whose writes are recorded as
    /// final. 0 if there is no such slot.
    target: AtomicU64,
    /// The lowest slot at which an answer that is carried to `target` may have been read. Final writes up to this
    /// slot may be missing from `writes`.
    target_from: AtomicU64,
}

/// The newest slot of a chain, or a slot at which an account is known to be unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainTip {
    pub slot: Slot,
    /// The time of the last poll that named the newest slot of the chain as the node's newest. The time is
    /// taken when the poll is sent.
    pub polled_at: Instant,
}

/// The slot for which a carried answer is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carry {
    /// The answer is served for the newest slot of the chain, to a caller at confirmed.
    ToTip,
    /// The answer is served for the newest slot that is known to be final, to a caller at finalized.
    ToTarget {
        /// True if the answer may show data of a later slot than its context slot, as answers at finalized did
        /// before Agave 4.1.
        may_be_newer: bool,
    },
}

impl Chain {
    /// Creates a chain whose only block is at the slot `first`. `polled_at` is the time at which a node was
    /// asked for this slot.
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

    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the newest slot of the chain, and the time of the last poll that named this slot.
    pub fn tip(&self) -> ChainTip {
        let packed = self.tip.load(Ordering::Acquire);
        let since = Duration::from_millis(packed & ((1 << TIME_BITS) - 1));
        ChainTip { slot: self.first + (packed >> TIME_BITS), polled_at: self.began_at + since }
    }

    fn set_tip(&self, slot: Slot, polled_at: Instant) {
        let since = polled_at.saturating_duration_since(self.began_at).as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX).min((1 << TIME_BITS) - 1);
        self.tip.store((slot - self.first) << TIME_BITS | since, Ordering::Release);
    }

    /// Returns the newest slot that is known to be final. `None` if no slot of the chain is known to be
    /// final, or while too many blocks are not final yet.
    pub fn target(&self) -> Option<Slot> {
        Some(self.target.load(Ordering::Acquire)).filter(|target| *target > 0)
    }

    /// Returns the slot of the last block that wrote an account in `bucket`, which several accounts may
    /// share. Returns the chain's first slot if no block did.
    pub fn last_write(&self, bucket: Bucket) -> Slot {
        self.writes.last(bucket)
    }

    /// Returns the slot for which an answer that was read at slot `read` may be served. `carry` selects the
    /// newest slot or the newest final slot. `bucket` is the hash bucket of the answer's account. `None` if
    /// the account may differ at the selected slot.
    pub fn unchanged_until(&self, bucket: Bucket, read: Slot, carry: Carry) -> Option<ChainTip> {
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
                is_unchanged.then_some(ChainTip { slot: target, ..tip })
            }
        }
    }

    /// Returns the slots from `first` to `last` at which the chain has a block. `None` if the chain does not reach that far.
    pub fn blocks(&self, first: Slot, last: Slot) -> Option<impl Iterator<Item = Slot>> {
        let tip = self.tip().slot;
        let reaches = first >= self.first && last <= tip;
        reaches.then(|| (first..=last).filter(move |slot| self.has(*slot, tip)))
    }

    /// Returns true if the chain has a block at `slot`, and `slot` is not above `tip`.
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

    /// Returns the position of a slot in the field `slots`: the index of an element, and the slot's bit in this
    /// element. The slot must be less than [`MAX_SLOTS`] above the chain's first slot.
    fn place(&self, slot: Slot) -> (usize, u64) {
        let distance = slot - self.first;
        let word = usize::try_from(distance / 64).expect("a chain has at most 2^19 slots");
        (word, 1 << (distance % 64))
    }
}

pub(super) struct ChainWriter {
    chain: Arc<Chain>,
    /// The blocks that are not known to be final, oldest first: their slots, and the buckets of the accounts
    /// that they write.
    pending: VecDeque<(Slot, Vec<Bucket>)>,
}

impl ChainWriter {
    /// Begins a chain at the block of slot `first`. `polled_at` is the time at which a node was asked for this slot.
    pub(super) fn new(number: u64, first: Slot, polled_at: Instant) -> Self {
        Self { chain: Arc::new(Chain::new(number, first, polled_at)), pending: VecDeque::new() }
    }

    pub(super) fn chain(&self) -> &Arc<Chain> {
        &self.chain
    }

    /// Records that a poll named the chain's newest slot as the node's newest. `polled_at` is the time at
    /// which the poll was sent.
    pub(super) fn renew(&self, polled_at: Instant) {
        self.chain.set_tip(self.chain.tip().slot, polled_at);
    }

    /// Adds the block at `slot`, which writes the accounts in `buckets`. The block's parent must be the
    /// chain's newest block. The time of the last poll stays as it was until [`Self::renew`].
    ///
    /// # Errors
    /// [`RestartReason::Full`] if the block is [`MAX_SLOTS`] or more above the chain's first slot.
    pub(super) fn add(&mut self, slot: Slot, buckets: Vec<Bucket>) -> Result<(), RestartReason> {
        let chain = &*self.chain;
        if slot - chain.first >= MAX_SLOTS {
            return Err(RestartReason::Full);
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
            // The writes of the dropped block are never recorded as final. Only answers that were read below the
            // slot of this block depend on these writes.
            chain.target.store(0, Ordering::Release);
            chain.target_from.store(dropped, Ordering::Release);
        }
        Ok(())
    }

    /// Records that the blocks up to the slot `finalized` are final. Does nothing while the chain has not
    /// reached this slot.
    ///
    /// # Errors
    /// [`RestartReason::Fork`] if the chain has no block at the finalized slot.
    pub(super) fn finalize(&mut self, finalized: Slot) -> Result<(), RestartReason> {
        let chain = &*self.chain;
        let tip = chain.tip().slot;
        if finalized < chain.first || finalized > tip || chain.target() >= Some(finalized) {
            return Ok(());
        }
        if !chain.has(finalized, tip) {
            return Err(RestartReason::Fork);
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
