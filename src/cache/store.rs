//! The kept entries: a moka cache that is bounded in bytes, in which an entry is replaced only by one of the same or a
//! higher slot.
//!
//! moka has no `Expiry` and no time to live here. Freshness is a rule of the entry's own, and moka's clock is not ours.

use std::hash::RandomState;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use moka::notification::RemovalCause;
use moka::ops::compute::Op;
use moka::sync::SegmentedCache;

use super::entry::{Entry, EntryMeta};
use super::key::Key;
use crate::low_priority;
use crate::telemetry::{EvictionCause, Metrics};

/// The bytes that an entry takes beside its answer, as measured (`cargo bench --bench memory`): the key, the entry's own
/// fields, moka's books, and what the allocator adds to each piece.
const OVERHEAD_BYTES: usize = 620;
/// An entry that nobody asks for in this long makes room, however much there is.
const IDLE: Duration = Duration::from_hours(24);

/// Freeing more entries than this would hold up a worker.
const FREED_AT_ONCE: u64 = 1000;

/// More segments make it no less likely that two reads meet.
const MAX_SEGMENTS: u64 = 64;
/// The least number of entries of the largest size that fit a segment.
const LARGEST_IN_SEGMENT: u64 = 4;

type Entries = SegmentedCache<Key, Arc<Entry>, RandomState>;

/// The kept entries.
pub struct Store {
    /// Replaced as a whole when everything is forgotten: moka's own `invalidate_all` takes the entries out later.
    entries: ArcSwap<Entries>,
    capacity: u64,
    max_entry: u64,
    metrics: Arc<Metrics>,
}

/// The outcome of an insert.
#[derive(Debug)]
pub enum Insert {
    /// The entry is kept.
    Stored,
    /// The entry is kept in place of one of a higher slot, which no node reaches and which may not be served any more.
    ReplacedNewer,
    /// An entry of a higher slot is held already, and stays.
    KeptNewer(Arc<Entry>),
    /// The entry is over `cache.max_entry`.
    TooLarge,
}

impl Store {
    /// Creates an empty store of `capacity` bytes, for single entries of up to `max_entry` bytes.
    pub fn new(capacity: u64, max_entry: u64, metrics: Arc<Metrics>) -> Self {
        // moka keeps nothing, and does not say so, where it has no room at all.
        let max_entry = max_entry.min(capacity);
        let entries = ArcSwap::from_pointee(entries(capacity, max_entry, Arc::clone(&metrics)));
        Self { entries, capacity, max_entry, metrics }
    }

    /// Returns the entry held for `key`, fresh or not.
    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.entries.load().get(key)
    }

    /// Keeps `entry`, unless the held one is of a higher slot and may still be served, as `serves` says. Compares and
    /// replaces in one step.
    pub fn keep(&self, key: Key, entry: &Arc<Entry>, serves: impl Fn(&EntryMeta) -> bool) -> Insert {
        if u64::from(weight(&key, entry)) > self.max_entry {
            return Insert::TooLarge;
        }
        let mut outcome = Insert::Stored;
        self.entries.load().entry(key).and_compute_with(|held| {
            let held = held.map(moka::Entry::into_value);
            if let Some(held) = held.filter(|held| held.stamp.slot > entry.stamp.slot) {
                if serves(&held.stamp) {
                    outcome = Insert::KeptNewer(held);
                    return Op::Nop;
                }
                outcome = Insert::ReplacedNewer;
            }
            Op::Put(Arc::clone(entry))
        });
        outcome
    }

    /// Weighs `entry` anew, if it is the one held for `key`.
    pub fn weigh(&self, key: Key, entry: &Arc<Entry>) {
        self.entries.load().entry(key).and_compute_with(|held| match held {
            Some(held) if Arc::ptr_eq(held.value(), entry) => Op::Put(held.into_value()),
            _ => Op::Nop,
        });
    }

    /// Forgets everything at once. Many entries are freed by a thread of low priority.
    pub fn clear(&self) {
        let empty = entries(self.capacity, self.max_entry, Arc::clone(&self.metrics));
        let forgotten = self.entries.swap(Arc::new(empty));
        forgotten.run_pending_tasks();
        let count = forgotten.entry_count();
        self.metrics.cache_evictions.at(EvictionCause::Purged).inc_by(count);
        if count > FREED_AT_ONCE {
            // Without a thread, they are freed here.
            let _ = low_priority::spawn(|| drop(forgotten));
        }
    }

    /// Forgets the entries whose keys `takes`, and returns their number. Walks over all entries, so an async worker must
    /// not call it.
    pub fn purge(&self, takes: impl Fn(&Key) -> bool) -> u64 {
        let entries = self.entries.load();
        let named = entries.iter().filter(|(key, _)| takes(key));
        named.map(|(key, _)| u64::from(entries.remove(&*key).is_some())).sum()
    }

    /// Returns the bytes held and the number of entries, once moka has evicted what is over the capacity.
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

/// Returns the number of moka's segments. Two reads that meet in one wait for each other. Each segment has its share of
/// the capacity, and must hold some of the largest entries.
fn segments(capacity: u64, max_entry: u64) -> usize {
    let fit = (capacity / max_entry.max(1) / LARGEST_IN_SEGMENT).clamp(1, MAX_SEGMENTS);
    // A power of two, which moka would make of it anyway, but not a larger one.
    1 << fit.ilog2()
}

fn weight(key: &Key, entry: &Entry) -> u32 {
    let bytes = entry.kept.weight() + entry.coded.weight() + key.heap_bytes() + OVERHEAD_BYTES;
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
