//! The last slot at which each account was written, for the tip and for the finalized target.
//!
//! Both tables have a fixed size and are indexed by a hash of the address. Two addresses in one bucket cost a
//! needless fetch, never a wrong answer. The key of the hash is drawn at start, so that nobody can choose
//! addresses that share a bucket. Addresses with the same [`Fingerprint`] always share a bucket. Nobody gains
//! by choosing such addresses, because a transaction may name the account itself.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::methods::{Pubkey, Slot};

/// The number of buckets, which take 16 MiB for each chain. Tests have fewer, because models make many
/// chains.
const BUCKETS: usize = if cfg!(test) { 1 << 12 } else { 1 << 21 };

/// The bucket of an address. The bucket stays the same while the process runs, so entries store it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bucket(u32);

/// A number made of an address. The number is the same in every process, so that replicas can exchange it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fingerprint(pub(super) u64);

impl Fingerprint {
    /// Returns the fingerprint of an address. Another formula needs another version of the records in the
    /// shared store.
    pub(super) fn of(address: &Pubkey) -> Self {
        let (words, _) = address.0.as_chunks();
        let mix = |hash: u64, word| {
            (hash.rotate_left(5) ^ u64::from_be_bytes(word)).wrapping_mul(0x517c_c1b7_2722_0a95)
        };
        Self(words.iter().copied().fold(0, mix))
    }
}

/// Assigns addresses to buckets.
#[derive(Debug, Default)]
pub(super) struct Buckets(RandomState);

impl Buckets {
    /// Returns the bucket of an address.
    pub(super) fn of(&self, address: &Pubkey) -> Bucket {
        self.of_fingerprint(Fingerprint::of(address))
    }

    /// Returns the bucket of the addresses with this fingerprint.
    pub(super) fn of_fingerprint(&self, fingerprint: Fingerprint) -> Bucket {
        let hash = self.0.hash_one(fingerprint.0) % BUCKETS as u64;
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

    /// Notes a write at `slot`, which is above all slots noted before and less than 2^32 slots above the
    /// first.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_the_same_in_every_process() {
        let counted = Pubkey(std::array::from_fn(|n| u8::try_from(n).unwrap()));
        assert_eq!(Fingerprint::of(&counted), Fingerprint(0x0a63_8bd9_ea19_ca1e));
        assert_eq!(Fingerprint::of(&Pubkey([0; 32])), Fingerprint(0));
    }

    #[test]
    fn each_byte_of_an_address_counts() {
        let address = Pubkey([7; 32]);
        for byte in 0..32 {
            let mut other = address;
            other.0[byte] ^= 1;
            assert_ne!(Fingerprint::of(&other), Fingerprint::of(&address), "{byte}");
        }
    }
}
