//! The last slot at which each account was written: by any block of the chain, and by a block known to be final.
//!
//! The table has a fixed number of buckets and is indexed by a hash of the address, so two addresses may share a
//! bucket, which costs a needless fetch, never a wrong answer. The key of the hash is drawn at start, so that nobody
//! can choose addresses that share one. Only addresses with the same [`Fingerprint`] always do, and to choose these
//! gains nothing: whoever wants to force fetches of an account can name the account itself in a transaction.

use std::hash::BuildHasher;

use crate::methods::{Pubkey, Slot};
use crate::sync::UNDER_SHUTTLE;
use crate::sync::atomic::{AtomicU32, Ordering};

/// The number of hash buckets in which the last writes of accounts are kept. The buckets take 16 MiB for each
/// followed chain. Tests use fewer buckets, because they create many chains.
const BUCKETS: usize = if UNDER_SHUTTLE {
    2
} else if cfg!(test) {
    1 << 12
} else {
    1 << 21
};

/// The index under which the last write of an address is kept. Cache entries store the bucket, because an
/// address keeps its bucket while the process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bucket(u32);

/// A 64-bit hash of an address. The hash is the same in every process, so that replicas can exchange it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fingerprint(pub(super) u64);

impl Fingerprint {
    /// Returns the fingerprint of an address. A change of the formula needs a new version of the records in
    /// the shared store.
    pub(super) fn of(address: &Pubkey) -> Self {
        let (words, _) = address.0.as_chunks();
        let mix = |hash: u64, word| {
            (hash.rotate_left(5) ^ u64::from_be_bytes(word)).wrapping_mul(0x517c_c1b7_2722_0a95)
        };
        Self(words.iter().copied().fold(0, mix))
    }
}

/// Assigns account addresses to buckets, by a hash whose key is drawn at start.
#[derive(Debug, Default)]
pub(super) struct Buckets(
    #[cfg(not(test))] std::hash::RandomState,
    // Unit tests have a fixed key. Otherwise one could fail in the few runs in which two accounts share a bucket.
    #[cfg(test)] std::hash::BuildHasherDefault<std::hash::DefaultHasher>,
);

impl Buckets {
    /// Returns the bucket in which the last write of the account at `address` is kept.
    pub(super) fn of(&self, address: &Pubkey) -> Bucket {
        self.of_fingerprint(Fingerprint::of(address))
    }

    /// Returns the bucket of the addresses with this fingerprint, a 64-bit hash.
    pub(super) fn of_fingerprint(&self, fingerprint: Fingerprint) -> Bucket {
        let hash = self.0.hash_one(fingerprint.0) % BUCKETS as u64;
        Bucket(u32::try_from(hash).expect("the remainder is below 2^21"))
    }
}

/// The last slot at which any block wrote an account of one bucket, and the last slot at which a final block
/// did. Each is stored as the distance from the chain's first slot; 0 means never.
#[derive(Debug, Default)]
struct LastWrite {
    up_to_tip: AtomicU32,
    up_to_target: AtomicU32,
}

/// The last slots at which the blocks of a followed chain wrote accounts, for each bucket of accounts.
#[derive(Debug)]
pub(super) struct LastWrites {
    first: Slot,
    buckets: Box<[LastWrite]>,
}

impl LastWrites {
    pub(super) fn new(first: Slot) -> Self {
        Self { first, buckets: std::iter::repeat_with(LastWrite::default).take(BUCKETS).collect() }
    }

    /// Records that the block at `slot` writes an account of `bucket`. The slot must not be below a slot that
    /// was recorded before. It must be less than 2^32 slots above the chain's first slot.
    pub(super) fn note(&self, bucket: Bucket, slot: Slot) {
        self.last_write(bucket).up_to_tip.store(self.distance(slot), Ordering::Relaxed);
    }

    /// Records that the block at `slot`, which is final, writes an account of `bucket`.
    pub(super) fn note_final(&self, bucket: Bucket, slot: Slot) {
        self.last_write(bucket).up_to_target.store(self.distance(slot), Ordering::Relaxed);
    }

    /// Returns the last slot at which a block wrote an account of `bucket`. Returns the chain's first slot if none did.
    pub(super) fn last(&self, bucket: Bucket) -> Slot {
        self.first + u64::from(self.last_write(bucket).up_to_tip.load(Ordering::Relaxed))
    }

    /// Returns the last slot at which a final block wrote an account of `bucket`. Returns the slot at which
    /// following began if none did.
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
