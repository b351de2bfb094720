//! The entry store: a moka cache bounded in bytes.
//!
//! moka's `Expiry` and time to live are not used. Freshness depends on the newest known slot, too, and tests
//! step their own clock.

use std::hash::RandomState;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use moka::notification::RemovalCause;
use moka::ops::compute::Op;
use moka::sync::SegmentedCache;

use super::entry::{Entry, EntryMeta};
use super::key::Key;
use super::transaction_index::places_weight;
use crate::low_priority;
use crate::telemetry::{EvictionCause, Metrics};

/// The bytes that an entry takes beside its answer: the key, the entry's own fields, moka's bookkeeping and
/// the allocator's share. Measured by `cargo bench --package slotfront-lab --bench memory`.
const OVERHEAD_BYTES: usize = 620;
/// The time without a request for an entry after which the entry is evicted, even if there is memory for it.
const IDLE: Duration = Duration::from_hours(24);

/// The maximum number of entries that are freed at once on the caller's thread. Freeing more would block a
/// worker for too long.
const FREED_AT_ONCE: u64 = 1000;

/// The maximum number of segments into which moka's cache is split. More would not make contention between
/// two reads less likely.
const MAX_SEGMENTS: u64 = 64;
/// The minimum number of entries, all of the largest allowed size, that must fit into a segment of moka's cache.
const LARGEST_IN_SEGMENT: u64 = 4;

type Entries = SegmentedCache<Key, Arc<Entry>, RandomState>;

pub struct EntryStore {
    /// The whole cache is replaced when everything is removed, because moka's `invalidate_all` frees the entries later.
    entries: ArcSwap<Entries>,
    capacity: u64,
    max_entry: u64,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
pub enum Insert {
    Stored,
    /// The entry replaced an entry of a higher slot that may not be served any more.
    ReplacedNewer,
    /// A better entry is stored, and stays.
    KeptNewer(Arc<Entry>),
    /// The entry is larger than `cache.max_entry`.
    TooLarge,
}

impl EntryStore {
    /// Creates an empty store of `capacity` bytes, for single entries of up to `max_entry` bytes.
    pub fn new(capacity: u64, max_entry: u64, metrics: Arc<Metrics>) -> Self {
        // moka silently drops an entry above the capacity, so such entries are refused.
        let max_entry = max_entry.min(capacity);
        let entries = ArcSwap::from_pointee(entries(capacity, max_entry, Arc::clone(&metrics)));
        Self { entries, capacity, max_entry, metrics }
    }

    /// Returns the entry stored under `key`, fresh or not.
    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.entries.load().get(key)
    }

    /// Stores `entry`, unless `stays` returns true for the stored entry. The comparison and the replacement are atomic.
    pub fn insert(&self, key: Key, entry: &Arc<Entry>, stays: impl Fn(&EntryMeta) -> bool) -> Insert {
        if u64::from(weight(&key, entry)) > self.max_entry {
            return Insert::TooLarge;
        }
        let mut outcome = Insert::Stored;
        self.entries.load().entry(key).and_compute_with(|stored| {
            if let Some(stored) = stored.map(moka::Entry::into_value) {
                if stays(&stored.meta) {
                    outcome = Insert::KeptNewer(stored);
                    return Op::Nop;
                }
                if stored.meta.slot > entry.meta.slot {
                    outcome = Insert::ReplacedNewer;
                }
            }
            Op::Put(Arc::clone(entry))
        });
        outcome
    }

    /// Stores `entry` under `key`, if `stored` is still the entry under `key`. An entry that replaces itself tells moka its
    /// present weight.
    pub fn replace(&self, key: Key, stored: &Arc<Entry>, entry: &Arc<Entry>) {
        self.entries.load().entry(key).and_compute_with(|now| match now {
            Some(now) if Arc::ptr_eq(now.value(), stored) => Op::Put(Arc::clone(entry)),
            _ => Op::Nop,
        });
    }

    /// Removes all entries at once. A large number of entries is freed on a thread of low priority.
    pub fn clear(&self) {
        let empty = entries(self.capacity, self.max_entry, Arc::clone(&self.metrics));
        let forgotten = self.entries.swap(Arc::new(empty));
        forgotten.run_pending_tasks();
        let count = forgotten.entry_count();
        self.metrics.cache_evictions.at(EvictionCause::Purged).inc_by(count);
        if count > FREED_AT_ONCE {
            // If the thread cannot be started, the entries are freed here.
            let _ = low_priority::spawn(|| drop(forgotten));
        }
    }

    /// Removes the entries for which `takes` returns true, and returns their number. Walks over all entries, so an
    /// async worker must not call this.
    pub fn purge(&self, takes: impl Fn(&Key, &EntryMeta) -> bool) -> u64 {
        let entries = self.entries.load();
        let named = entries.iter().filter(|(key, entry)| takes(key, &entry.meta));
        named.map(|(key, _)| u64::from(entries.remove(&*key).is_some())).sum()
    }

    /// Returns the bytes stored and the number of entries, once moka has evicted what exceeds the capacity.
    pub fn usage(&self) -> (u64, u64) {
        let entries = self.entries.load();
        entries.run_pending_tasks();
        (entries.weighted_size(), entries.entry_count())
    }
}

fn entries(capacity: u64, max_entry: u64, metrics: Arc<Metrics>) -> Entries {
    SegmentedCache::builder(segments(capacity, max_entry))
        .max_capacity(capacity)
        .weigher(|key, entry: &Arc<Entry>| weight(key, entry))
        .time_to_idle(IDLE)
        // The listener must not panic: moka would never call it again.
        .eviction_listener(move |_, _, cause| {
            let cause = match cause {
                RemovalCause::Size => EvictionCause::Size,
                RemovalCause::Expired => EvictionCause::Idle,
                RemovalCause::Explicit => EvictionCause::Purged,
                RemovalCause::Replaced => return,
            };
            metrics.cache_evictions.at(cause).inc();
        })
        .build_with_hasher(RandomState::new())
}

/// Returns the number of segments into which moka's cache is split. Two reads of the same segment contend. Each segment
/// has its share of the capacity, and must have room for several entries of the largest allowed size.
fn segments(capacity: u64, max_entry: u64) -> usize {
    let fit = (capacity / max_entry.max(1) / LARGEST_IN_SEGMENT).clamp(1, MAX_SEGMENTS);
    // moka rounds up to a power of two. Rounding down here keeps the segments large enough.
    1 << fit.ilog2()
}

fn weight(key: &Key, entry: &Entry) -> u32 {
    let text = entry.body.weight();
    let places = if key.has_places() { places_weight(text) } else { 0 };
    let bytes = text + places + entry.compressed.weight() + key.heap_bytes() + OVERHEAD_BYTES;
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
