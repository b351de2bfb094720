//! The last slot at which each account was written, for the tip and for the finalized target.
//!
//! Both tables have a fixed size and are indexed by a hash of the address. Two addresses in one bucket cost a
//! needless fetch, never a wrong answer. The key of the hash is drawn at start, so that nobody can choose
//! addresses that share a bucket.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::methods::{Pubkey, Slot};

/// The number of buckets: 16 MiB for each chain. Models make many chains of few accounts.
const BUCKETS: usize = if cfg!(test) { 1 << 12 } else { 1 << 21 };

/// The bucket of an address. It stays the same while the process runs, so an entry keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bucket(u32);

/// Assigns addresses to buckets.
#[derive(Debug, Default)]
pub(super) struct Buckets(RandomState);

impl Buckets {
    /// Returns the bucket of an address.
    pub(super) fn of(&self, address: &Pubkey) -> Bucket {
        let hash = self.0.hash_one(address.0) % BUCKETS as u64;
        Bucket(u32::try_from(hash).expect("the remainder is below 2^21"))
    }
}

/// The last writes of one bucket, as distances from the chain's first slot. 0 stands for none.
#[derive(Debug, Default)]
struct LastWrite {
    up_to_tip: AtomicU32,
    up_to_target: AtomicU32,
}

/// The last writes of a chain.
#[derive(Debug)]
pub(super) struct LastWrites {
    first: Slot,
    buckets: Box<[LastWrite]>,
}

impl LastWrites {
    /// Creates tables without writes, for a chain that begins at `first`.
    pub(super) fn new(first: Slot) -> Self {
        Self { first, buckets: std::iter::repeat_with(LastWrite::default).take(BUCKETS).collect() }
    }

    /// Notes a write at `slot`, which is above all slots noted before and within `u32` of the first.
    pub(super) fn note(&self, bucket: Bucket, slot: Slot) {
        self.last_write(bucket).up_to_tip.store(self.distance(slot), Ordering::Relaxed);
    }

    /// Notes a write at `slot`, which is final.
    pub(super) fn note_final(&self, bucket: Bucket, slot: Slot) {
        self.last_write(bucket).up_to_target.store(self.distance(slot), Ordering::Relaxed);
    }

    /// Returns the slot of the last write that was noted, or the chain's first slot.
    pub(super) fn last(&self, bucket: Bucket) -> Slot {
        self.first + u64::from(self.last_write(bucket).up_to_tip.load(Ordering::Relaxed))
    }

    /// Returns the slot of the last final write that was noted, or the chain's first slot.
    pub(super) fn last_final(&self, bucket: Bucket) -> Slot {
        self.first + u64::from(self.last_write(bucket).up_to_target.load(Ordering::Relaxed))
    }

    fn last_write(&self, bucket: Bucket) -> &LastWrite {
        &self.buckets[bucket.0 as usize]
    }

    fn distance(&self, slot: Slot) -> u32 {
        u32::try_from(slot - self.first).expect("a chain is shorter than 2^32 slots")
    }
}
