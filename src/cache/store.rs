//! The kept entries: moka bounds their weight, and an entry is replaced only by one of the same or a higher slot.
//!
//! moka has no `Expiry` and no ttl here: freshness is the entry's own, and moka's clock is not ours.

use std::sync::Arc;
use std::time::Duration;

use moka::notification::RemovalCause;
use moka::ops::compute::{CompResult, Op};
use moka::sync::Cache;

use super::entry::Entry;
use super::key::Key;
use crate::telemetry::{EvictionCause, Metrics};

/// What an entry weighs beyond its answer's bytes, as measured (`cargo bench --bench memory`): moka's part of it is
/// about half, the key, the entry and what the allocator adds to each piece the other.
const OVERHEAD_BYTES: usize = 600;
/// An entry that nobody asks for in this long makes room, however much there is.
const IDLE: Duration = Duration::from_hours(24);

/// The kept entries.
#[derive(Debug)]
pub struct Store {
    entries: Cache<Key, Arc<Entry>>,
    max_entry: u64,
}

/// What became of an answer that was to be kept.
#[derive(Debug)]
pub enum Placed {
    /// It is kept.
    Stored,
    /// It is kept in place of one of a higher slot, which no node reaches and which may not be served any more.
    FloorFell,
    /// An answer of a higher slot is held already, and stays.
    Behind(Arc<Entry>),
    /// It is over `cache.max_entry`.
    TooLarge,
}

impl Store {
    /// An empty store of `capacity` bytes, single entries up to `max_entry` bytes.
    pub fn new(capacity: u64, max_entry: u64, metrics: Arc<Metrics>) -> Self {
        let entries = Cache::builder()
            .max_capacity(capacity)
            .weigher(|key, entry: &Arc<Entry>| u32::try_from(weight(key, entry)).unwrap_or(u32::MAX))
            .time_to_idle(IDLE)
            .eviction_listener(move |_, _, cause| match cause {
                RemovalCause::Size => metrics.cache_evictions.at(EvictionCause::Size).inc(),
                RemovalCause::Expired => metrics.cache_evictions.at(EvictionCause::Idle).inc(),
                RemovalCause::Explicit => metrics.cache_evictions.at(EvictionCause::Purged).inc(),
                RemovalCause::Replaced => {}
            })
            .build();
        Self { entries, max_entry }
    }

    /// The entry held for `key`, fresh or not.
    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.entries.get(key)
    }

    /// Keeps `entry`, unless what is held stands for a higher slot and may still be served, as `serves` says; compared
    /// and replaced in one step.
    pub fn keep(&self, key: Key, entry: &Arc<Entry>, serves: impl Fn(&Entry) -> bool) -> Placed {
        if weight(&key, entry) > self.max_entry {
            return Placed::TooLarge;
        }
        let mut fallen = false;
        let result = self.entries.entry(key).and_compute_with(|held| match held {
            Some(held) if held.value().slot > entry.slot => {
                fallen = !serves(held.value());
                if fallen { Op::Put(Arc::clone(entry)) } else { Op::Nop }
            }
            _ => Op::Put(Arc::clone(entry)),
        });
        match result {
            CompResult::Unchanged(held) => Placed::Behind(held.into_value()),
            _ if fallen => Placed::FloorFell,
            _ => Placed::Stored,
        }
    }

    /// Weighs `entry` anew, if it is what is held for `key`.
    pub fn weigh(&self, key: Key, entry: &Arc<Entry>) {
        let _ = self.entries.entry(key).and_compute_with(|held| match held {
            Some(held) if Arc::ptr_eq(held.value(), entry) => Op::Put(Arc::clone(entry)),
            _ => Op::Nop,
        });
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.entries.invalidate_all();
    }

    /// Forgets what is kept under keys that `takes`, and says how many entries that were. Walks over all of them, so
    /// it is no work for an async worker.
    pub fn purge(&self, takes: impl Fn(&Key) -> bool) -> u64 {
        let keys = self.entries.iter().map(|(key, _)| key).filter(|key| takes(key));
        keys.map(|key| u64::from(self.entries.remove(&*key).is_some())).sum()
    }

    /// Bytes held, and entries; both as of moka's last housekeeping.
    pub fn usage(&self) -> (u64, u64) {
        self.entries.run_pending_tasks();
        (self.entries.weighted_size(), self.entries.entry_count())
    }
}

fn weight(key: &Key, entry: &Entry) -> u64 {
    (entry.kept.weight() + entry.coded.weight() + key.heap_bytes() + OVERHEAD_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::time::Instant;

    use super::super::entry::{Body, CodedForms, Kept, Payload};
    use super::super::freshness::Class;
    use super::*;

    fn entry(slot: u64, bytes: usize) -> Arc<Entry> {
        let kept = Kept::Said(Payload::Result(Body::One(Bytes::from(vec![b'1'; bytes]))));
        Arc::new(Entry {
            kept,
            slot,
            sent_at: Instant::now(),
            class: Class::Samples,
            derived: false,
            coded: CodedForms::default(),
        })
    }

    fn store(capacity: u64, max_entry: u64) -> Store {
        Store::new(capacity, max_entry, Metrics::new())
    }

    #[tokio::test]
    async fn an_entry_is_replaced_by_the_same_or_a_higher_slot_only() {
        let store = store(1 << 20, 1 << 20);
        let held = || store.get(&Key::Samples).map(|e| (e.slot, e.kept.weight()));
        assert!(matches!(store.keep(Key::Samples, &entry(10, 1), |_| true), Placed::Stored));
        assert!(
            matches!(store.keep(Key::Samples, &entry(9, 2), |_| true), Placed::Behind(held) if held.slot == 10)
        );
        assert_eq!(held(), Some((10, 1)));
        assert!(matches!(store.keep(Key::Samples, &entry(10, 3), |_| true), Placed::Stored));
        assert_eq!(held(), Some((10, 3)));
        assert!(matches!(store.keep(Key::Samples, &entry(11, 4), |_| true), Placed::Stored));
        assert_eq!(held(), Some((11, 4)));
        assert!(matches!(store.keep(Key::Samples, &entry(7, 5), |held| held.slot != 11), Placed::FloorFell));
        assert_eq!(held(), Some((7, 5)));
    }

    #[tokio::test]
    async fn a_purge_takes_what_it_names_and_counts_it() {
        let metrics = Metrics::new();
        let store = Store::new(1 << 30, 1 << 20, Arc::clone(&metrics));
        for slot in 0..1000 {
            store.keep(Key::NoBlock(slot), &entry(slot, 10), |_| true);
        }
        let even = |key: &Key| key.block_slot().is_some_and(|slot| slot % 2 == 0);
        assert_eq!((store.purge(even), store.purge(even)), (500, 0));
        assert!(store.get(&Key::NoBlock(4)).is_none() && store.get(&Key::NoBlock(5)).is_some());
        assert_eq!(store.usage().1, 500);
        assert_eq!(metrics.cache_evictions.at(EvictionCause::Purged).get(), 500);
    }

    #[tokio::test]
    async fn the_store_is_bounded_in_bytes() {
        let store = store(100_000, 20_000);
        assert!(matches!(store.keep(Key::Samples, &entry(1, 20_000), |_| true), Placed::TooLarge));
        for slot in 0..1000 {
            store.keep(Key::NoBlock(slot), &entry(slot, 1000), |_| true);
        }
        let (bytes, entries) = store.usage();
        assert!(bytes <= 100_000 && entries > 40, "{bytes} bytes in {entries} entries");
    }

    #[tokio::test]
    async fn a_hot_small_set_outlives_a_scan_of_large_blocks_that_nobody_asks_for_again() {
        // 1,000 accounts of 300 bytes that are asked for all the time, in a store of 16 MiB; then 400 blocks of 2 MiB.
        let store = store(16 << 20, 4 << 20);
        let hot: Vec<Key> = (0..1000).map(Key::NoBlock).collect();
        for key in &hot {
            store.keep(key.clone(), &entry(1, 300), |_| true);
        }
        let asked = |round: usize| {
            hot.iter().skip(round % 4).step_by(4).filter(|key| store.get(key).is_some()).count()
        };
        for round in 0..20 {
            asked(round);
        }
        store.usage();
        let (mut found, mut of) = (0, 0);
        for scanned in 0..400 {
            let slot = 1_000_000 + u64::try_from(scanned).unwrap();
            assert!(store.get(&Key::NoBlock(slot)).is_none());
            store.keep(Key::NoBlock(slot), &entry(1, 2 << 20), |_| true);
            found += asked(scanned);
            of += 250;
        }
        let (bytes, _) = store.usage();
        assert!(bytes <= 16 << 20, "{bytes} bytes");
        assert!(found * 100 >= of * 99, "{found} of {of} asked for during the scan were there");
    }

    #[tokio::test]
    async fn a_kept_answer_is_handed_out_without_a_copy() {
        let store = store(16 << 20, 8 << 20);
        let block = entry(1, 5 << 20);
        store.keep(Key::NoBlock(1), &block, |_| true);
        let held = store.get(&Key::NoBlock(1)).unwrap();
        let address = |entry: &Entry| match &entry.kept {
            Kept::Said(Payload::Result(Body::One(text))) => text.as_ptr(),
            other => panic!("{other:?}"),
        };
        assert_eq!(address(&held), address(&block));
        let Kept::Said(payload) = &held.kept else { panic!("no text") };
        let Payload::Result(delivered) = payload.clone() else { panic!("an error") };
        assert_eq!(delivered.pieces()[0].as_ptr(), address(&block));
    }
}
