//! Where the transactions of kept blocks are, so that getTransaction is answered from a block.
//!
//! A place is a hint and decides nothing. The entry of its block may be gone, too old, or of another fork, so the block
//! is looked up and judged like any other entry, and the signature is compared with the one at the place.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use parking_lot::{Mutex, MutexGuard};

use super::derive::block::TransactionPlace;
use crate::methods::{BlockEncoding, Signature};

/// The bytes of cache for which one place is remembered. A transaction in base64 has one to five thousand bytes.
const BYTES_PER_PLACE: usize = 2048;
/// The most memory that one place takes, in bytes.
const PLACE_BYTES: usize = 75;

/// Returns the memory of the places that are remembered for a block of this length, in bytes.
pub(super) const fn places_weight(block_bytes: usize) -> usize {
    block_bytes / BYTES_PER_PLACE * PLACE_BYTES
}

/// The places of transactions, a bounded number of them.
pub(super) struct TransactionIndex {
    hasher: RandomState,
    places: Mutex<Places>,
    max_recent: usize,
}

#[derive(Default)]
struct Places {
    recent: HashMap<u64, TransactionPlace>,
    /// The places that were noted before `recent` was last full. They are forgotten when it is full again.
    earlier: HashMap<u64, TransactionPlace>,
}

impl TransactionIndex {
    /// Creates an empty index for a cache of `capacity` bytes.
    pub(super) fn new(capacity: u64) -> Self {
        let max_recent = usize::try_from(capacity).unwrap_or(usize::MAX) / BYTES_PER_PLACE / 2;
        Self { hasher: RandomState::new(), places: Mutex::default(), max_recent }
    }

    pub(super) fn note(&self, encoding: BlockEncoding, places: &[(Signature, TransactionPlace)]) {
        let hashed = places.iter().map(|(signature, place)| (self.hash(encoding, signature), *place));
        let mut places = self.lock();
        if places.recent.len() >= self.max_recent {
            places.earlier = std::mem::take(&mut places.recent);
        }
        places.recent.extend(hashed);
    }

    pub(super) fn find(&self, encoding: BlockEncoding, signature: &Signature) -> Option<TransactionPlace> {
        let (hash, places) = (self.hash(encoding, signature), self.lock());
        places.recent.get(&hash).or_else(|| places.earlier.get(&hash)).copied()
    }

    fn hash(&self, encoding: BlockEncoding, signature: &Signature) -> u64 {
        self.hasher.hash_one((encoding, signature))
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_number_of_places_is_remembered() {
        let index = TransactionIndex::new(20 * BYTES_PER_PLACE as u64);
        let base64 = BlockEncoding::Base64;
        let signature = |n: u8| Signature([n; 64]);
        let place = |slot: u8| TransactionPlace { slot: slot.into(), span: (0, 1), index: 0 };
        for n in 0..100 {
            index.note(base64, &[(signature(n), place(n))]);
            let found = (0..=n).rev().take_while(|n| index.find(base64, &signature(*n)) == Some(place(*n)));
            let found = found.count();
            assert!((usize::from(n).min(10)..=20).contains(&found), "{found} after {n}");
            let places = index.lock();
            assert!(places.recent.len() + places.earlier.len() <= 20);
        }
        let newest = signature(99);
        assert_eq!(index.find(BlockEncoding::JsonParsed, &newest), None, "of that block nothing is known");
        index.note(base64, &[(newest, place(7))]);
        assert_eq!(index.find(base64, &newest), Some(place(7)), "the block of another fork has it, too");
    }
}
