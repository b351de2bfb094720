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

/// What an entry weighs beyond its bytes: moka's node and its two policy queues, the two `Arc`s and the entry itself.
const OVERHEAD_BYTES: usize = 240;
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
pub enum Kept {
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
    pub fn keep(&self, key: Key, entry: &Arc<Entry>, serves: impl Fn(&Entry) -> bool) -> Kept {
        if weight(&key, entry) > self.max_entry {
            return Kept::TooLarge;
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
            CompResult::Unchanged(held) => Kept::Behind(held.into_value()),
            _ if fallen => Kept::FloorFell,
            _ => Kept::Stored,
        }
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.entries.invalidate_all();
    }

    /// Bytes held, and entries; both as of moka's last housekeeping.
    pub fn usage(&self) -> (u64, u64) {
        self.entries.run_pending_tasks();
        (self.entries.weighted_size(), self.entries.entry_count())
    }
}

fn weight(key: &Key, entry: &Entry) -> u64 {
    (entry.payload.weight() + key.heap_bytes() + OVERHEAD_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::time::Instant;

    use super::super::entry::{Body, Payload};
    use super::super::freshness::Class;
    use super::*;

    fn entry(slot: u64, bytes: usize) -> Arc<Entry> {
        let payload = Payload::Result(Body::One(Bytes::from(vec![b'1'; bytes])));
        Arc::new(Entry { payload, slot, sent_at: Instant::now(), class: Class::Samples })
    }

    fn store(capacity: u64, max_entry: u64) -> Store {
        Store::new(capacity, max_entry, Metrics::new())
    }

    #[tokio::test]
    async fn an_entry_is_replaced_by_the_same_or_a_higher_slot_only() {
        let store = store(1 << 20, 1 << 20);
        let held = || store.get(&Key::Samples).map(|e| (e.slot, e.payload.len()));
        assert!(matches!(store.keep(Key::Samples, &entry(10, 1), |_| true), Kept::Stored));
        assert!(
            matches!(store.keep(Key::Samples, &entry(9, 2), |_| true), Kept::Behind(held) if held.slot == 10)
        );
        assert_eq!(held(), Some((10, 1)));
        assert!(matches!(store.keep(Key::Samples, &entry(10, 3), |_| true), Kept::Stored));
        assert_eq!(held(), Some((10, 3)));
        assert!(matches!(store.keep(Key::Samples, &entry(11, 4), |_| true), Kept::Stored));
        assert_eq!(held(), Some((11, 4)));
        assert!(matches!(store.keep(Key::Samples, &entry(7, 5), |held| held.slot != 11), Kept::FloorFell));
        assert_eq!(held(), Some((7, 5)));
    }

    #[tokio::test]
    async fn the_store_is_bounded_in_bytes() {
        let store = store(100_000, 20_000);
        assert!(matches!(store.keep(Key::Samples, &entry(1, 20_000), |_| true), Kept::TooLarge));
        for slot in 0..1000 {
            store.keep(Key::NoBlock(slot), &entry(slot, 1000), |_| true);
        }
        let (bytes, entries) = store.usage();
        assert!(bytes <= 100_000 && entries > 40, "{bytes} bytes in {entries} entries");
    }
}
