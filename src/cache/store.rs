//! The kept entries: read from a table of our own, bounded by moka, and replaced only by one of the same or a higher slot.
//!
//! moka knows the entries' weights and how they are asked for, and says what is to go. It holds none itself: a read
//! through it touches several times as many lines of memory, which in a large cache all come from far away. Here it is
//! one line that says where the entry is, and the entry with its answer.
//! It has no `Expiry` and no ttl here: freshness is the entry's own, and moka's clock is not ours.

mod buckets;
mod held;
mod table;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use moka::notification::RemovalCause;
use moka::sync::SegmentedCache;

use super::entry::{Entry, Stamp};
use super::key::Key;
use crate::low_priority;
use crate::telemetry::{EvictionCause, Metrics};
use crate::uniform::BuildUniform;
pub use held::Held;
use table::Table;

/// What an entry weighs beyond its answer's bytes, as measured (`cargo bench --bench memory`): the key, what is known of the
/// entry, its place in the table, moka's books, and what the allocator adds to each piece.
const OVERHEAD_BYTES: usize = 530;
/// What one weighs further whose answer is not held in one piece with all else.
const APART_BYTES: usize = 240;
/// An entry that nobody asks for in this long makes room, however much there is; one that is seldom asked for may, too, as
/// long as not every read is told.
const IDLE: Duration = Duration::from_hours(24);

/// Of so many reads one is told to moka as long as half of the room is left: all that follows from them by then is what
/// goes as idle, and in which order what is held was asked for.
const SAMPLED: u64 = 16;

/// Of more entries the freeing would hold up a worker.
const FREED_AT_ONCE: usize = 1000;

/// More make it no more likely that two reads do not meet.
const MAX_SEGMENTS: u64 = 64;
/// Of entries that are as large as they may be, so many fit a part.
const LARGEST_IN_SEGMENT: u64 = 4;

/// The kept entries.
#[derive(Debug)]
pub struct Store {
    table: Arc<Table>,
    /// What moka is told: for the hash of a key the last placing under it.
    weights: SegmentedCache<u64, Weighed, BuildUniform>,
    placings: AtomicU64,
    used: Arc<Used>,
    capacity: u64,
    max_entry: u64,
}

/// What is held, as it is known here.
#[derive(Debug, Default)]
struct Used {
    /// What all that is placed weighs. moka's own sum is behind, and a little off once something was taken out by hand.
    bytes: AtomicU64,
    /// Whether something had to make room; one of moka's parts may be full before the half of all is.
    evicts: AtomicBool,
}

/// An entry as moka knows it: by the number of its placing, and what it weighs.
#[derive(Debug, Clone, Copy)]
struct Weighed {
    number: u64,
    bytes: u32,
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
        let table = Arc::new(Table::default());
        let used = Arc::<Used>::default();
        let (read, left) = (Arc::clone(&table), Arc::clone(&used));
        let weights = SegmentedCache::builder(segments(capacity, max_entry))
            .max_capacity(capacity)
            .weigher(|_, weighed: &Weighed| weighed.bytes)
            .time_to_idle(IDLE)
            // It must not panic: moka would never call it again.
            .eviction_listener(move |hash, weighed, cause| {
                read.remove_placing(*hash, weighed.number);
                left.bytes.fetch_sub(weighed.bytes.into(), Ordering::Relaxed);
                match cause {
                    RemovalCause::Size => {
                        left.evicts.store(true, Ordering::Relaxed);
                        metrics.cache_evictions.at(EvictionCause::Size).inc();
                    }
                    RemovalCause::Expired => metrics.cache_evictions.at(EvictionCause::Idle).inc(),
                    RemovalCause::Explicit => metrics.cache_evictions.at(EvictionCause::Purged).inc(),
                    RemovalCause::Replaced => {}
                }
            })
            .build_with_hasher(BuildUniform::default());
        // moka keeps nothing, and says nothing of it, where it has no room at all.
        let max_entry = max_entry.min(capacity);
        Self { table, weights, placings: AtomicU64::new(0), used, capacity, max_entry }
    }

    /// The entry held for `key`, fresh or not.
    pub fn get(&self, key: &Key) -> Option<Held> {
        let hash = self.table.hash(key);
        if self.is_filling() || is_sampled() {
            self.weights.get(&hash);
        }
        self.table.get(hash, key)
    }

    /// Keeps `entry`, unless what is held stands for a higher slot and may still be served, as `serves` says; compared
    /// and replaced in one step.
    pub fn keep(&self, key: Key, entry: &Arc<Entry>, serves: impl Fn(&Stamp) -> bool) -> Placed {
        if weight(&key, entry) > self.max_entry {
            return Placed::TooLarge;
        }
        let (hash, mut placed) = (self.table.hash(&key), Placed::Stored);
        let _alone = self.table.alone(hash);
        if let Some(held) = self.table.get(hash, &key).filter(|held| held.slot() > entry.stamp.slot) {
            if serves(held.stamp()) {
                return Placed::Behind(held.entry());
            }
            placed = Placed::FloorFell;
        }
        self.place(hash, key, entry);
        placed
    }

    /// Weighs `entry` anew, if it is what is held for `key`.
    pub fn weigh(&self, key: Key, entry: &Arc<Entry>) {
        let hash = self.table.hash(&key);
        let _alone = self.table.alone(hash);
        if self.table.get(hash, &key).is_some_and(|held| held.is(entry)) {
            self.place(hash, key, entry);
        }
    }

    /// Forgets everything at once; much of it is freed on a thread of low priority.
    pub fn clear(&self) {
        let all = self.table.emptied(|| self.weights.invalidate_all());
        self.used.evicts.store(false, Ordering::Relaxed);
        if all.len() > FREED_AT_ONCE {
            // Where no thread can be had, it is freed here after all.
            let _ = low_priority::spawn(|| drop(all));
        }
    }

    /// Forgets what is kept under keys that `takes`, and says how many entries that were. Walks over all of them, so
    /// it is no work for an async worker.
    pub fn purge(&self, takes: impl Fn(&Key) -> bool) -> u64 {
        let forget = |key: Key| {
            let hash = self.table.hash(&key);
            let _alone = self.table.alone(hash);
            let was_there = self.table.remove(hash, &key);
            if was_there {
                self.weights.invalidate(&hash);
            }
            u64::from(was_there)
        };
        self.table.keys(takes).map(forget).sum()
    }

    /// Bytes held, and entries, once moka has let go what is over the capacity.
    pub fn usage(&self) -> (u64, u64) {
        self.weights.run_pending_tasks();
        (self.used.bytes.load(Ordering::Relaxed), self.weights.entry_count())
    }

    /// Puts `entry` where it is read, and then tells moka, which may let it go at once.
    fn place(&self, hash: u64, key: Key, entry: &Arc<Entry>) {
        let number = self.placings.fetch_add(1, Ordering::Relaxed);
        let bytes = u32::try_from(weight(&key, entry)).unwrap_or(u32::MAX);
        self.table.put(hash, Held::new(key, entry, number));
        self.used.bytes.fetch_add(bytes.into(), Ordering::Relaxed);
        self.weights.insert(hash, Weighed { number, bytes });
    }

    /// Whether moka counts how often what is asked for, to know what to let go: it does from the half on.
    fn is_filling(&self) -> bool {
        self.used.bytes.load(Ordering::Relaxed) >= self.capacity / 2
            || self.used.evicts.load(Ordering::Relaxed)
    }
}

/// Whether moka is told of this read although there is room enough for all: of one in [`SAMPLED`], found or not, in no
/// rhythm that callers could fall into. Each thread counts in steps of 2^64 over the golden ratio, so that of every nth
/// read as large a part is told.
fn is_sampled() -> bool {
    thread_local!(static READS: Cell<u64> = const { Cell::new(0) });
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    READS.with(|reads| {
        reads.set(reads.get().wrapping_add(STEP));
        reads.get() <= u64::MAX / SAMPLED
    })
}

/// How many parts moka's books are kept in. It notes reads in a queue, which all cores would wait for: with several,
/// two that read at once seldom meet. Each part has its share of the capacity, and must hold some of the largest entries.
fn segments(capacity: u64, max_entry: u64) -> usize {
    let fit = (capacity / max_entry.max(1) / LARGEST_IN_SEGMENT).clamp(1, MAX_SEGMENTS);
    // A power of two, which moka would make of it anyway, but not a larger one.
    1 << fit.ilog2()
}

fn weight(key: &Key, entry: &Entry) -> u64 {
    let apart = if held::is_short(&entry.kept) { 0 } else { APART_BYTES };
    (entry.kept.weight() + entry.coded.weight() + key.heap_bytes() + OVERHEAD_BYTES + apart) as u64
}

#[cfg(test)]
mod tests;
