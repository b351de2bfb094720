use bytes::Bytes;
use proptest::prelude::*;
use tokio::time::Instant;

use super::super::entry::{Class, CompressedForms, EntryBody, Payload, TextParts};
use super::*;
use crate::cache::derive::block::BlockShape;
use crate::cache::key::Finality;
use crate::coding::{Coding, CompressedText};
use crate::fair::TakenOnce;

fn entry(slot: u64, bytes: usize) -> Arc<Entry> {
    let body = EntryBody::Verbatim(Payload::Result(TextParts::One(Bytes::from(vec![b'1'; bytes]))));
    Arc::new(Entry {
        body,
        meta: EntryMeta {
            slot,
            sent_at: Instant::now(),
            class: Class::Samples,
            derived: false,
            carried: false,
            node: None,
        },
        stamp: None,
        compressed: CompressedForms::default(),
        unsent: TakenOnce::default(),
    })
}

fn store(capacity: u64, max_entry: u64) -> EntryStore {
    EntryStore::new(capacity, max_entry, Metrics::new())
}

#[tokio::test]
async fn what_is_better_stays() {
    let store = store(1 << 20, 1 << 20);
    let stored = || store.get(&Key::Samples).map(|e| (e.meta.slot, e.body.weight()));
    let insert = |slot, bytes, stays| store.insert(Key::Samples, &entry(slot, bytes), |_| stays);
    assert!(matches!(insert(10, 1, true), Insert::Stored));
    assert!(matches!(insert(9, 2, true), Insert::KeptNewer(stored) if stored.meta.slot == 10));
    assert_eq!(stored(), Some((10, 1)));
    assert!(matches!(insert(10, 3, false), Insert::Stored));
    assert_eq!(stored(), Some((10, 3)));
    assert!(matches!(insert(11, 4, false), Insert::Stored));
    assert!(matches!(insert(7, 5, false), Insert::ReplacedNewer));
    assert_eq!(stored(), Some((7, 5)));
}

#[tokio::test]
async fn a_block_weighs_its_places() {
    let bytes_of = |shape| {
        let store = store(1 << 20, 1 << 20);
        store.insert(Key::Block(7, shape, Finality::Final), &entry(7, 100 << 10), |_| false);
        store.usage().0
    };
    let made = BlockShape { rewards: false, ..BlockShape::BASE64 };
    // 100 KiB have the places of fifty transactions.
    assert_eq!(bytes_of(BlockShape::BASE64) - bytes_of(made), 50 * 75);
}

#[tokio::test]
async fn a_purged_entry_is_not_replaced() {
    let store = store(1 << 20, 1 << 20);
    let (stored, later, other) = (entry(10, 1), entry(11, 2), entry(12, 3));
    store.insert(Key::Samples, &stored, |_| false);
    store.replace(Key::Samples, &stored, &later);
    assert_eq!(store.get(&Key::Samples).map(|entry| entry.meta.slot), Some(11));
    // Another answer came meanwhile.
    store.replace(Key::Samples, &stored, &other);
    assert_eq!(store.get(&Key::Samples).map(|entry| entry.meta.slot), Some(11));
    store.purge(|_, _| true);
    store.replace(Key::Samples, &later, &other);
    assert!(store.get(&Key::Samples).is_none());
}

#[tokio::test]
async fn purge_removes_and_counts_matching_entries() {
    let metrics = Metrics::new();
    let store = EntryStore::new(1 << 30, 1 << 20, Arc::clone(&metrics));
    for slot in 0..1000 {
        store.insert(Key::NoBlock(slot), &entry(slot, 10), |_| false);
    }
    let even = |key: &Key, _: &EntryMeta| key.block_slot().is_some_and(|slot| slot % 2 == 0);
    assert_eq!((store.purge(even), store.purge(even)), (500, 0));
    assert!(store.get(&Key::NoBlock(4)).is_none() && store.get(&Key::NoBlock(5)).is_some());
    assert_eq!(store.usage().1, 500);
    assert_eq!(metrics.cache_evictions.at(EvictionCause::Purged).get(), 500);
}

#[tokio::test]
async fn store_is_bounded_in_bytes() {
    let store = store(100_000, 20_000);
    assert!(matches!(store.insert(Key::Samples, &entry(1, 20_000), |_| false), Insert::TooLarge));
    for slot in 0..1000 {
        store.insert(Key::NoBlock(slot), &entry(slot, 1000), |_| false);
    }
    let (bytes, entries) = store.usage();
    assert!(bytes <= 100_000 && entries > 40, "{bytes} bytes in {entries} entries");
}

#[tokio::test]
async fn what_does_not_fit_is_evicted_and_counted() {
    const CAPACITY: u64 = 2 << 20;
    // Blocks of which many, four, one and none fit into the cache.
    for block in [10 << 10, 500 << 10, 1_500 << 10, 3 << 20] {
        let metrics = Metrics::new();
        let store = EntryStore::new(CAPACITY, 16 << 20, Arc::clone(&metrics));
        let mut too_large = 0;
        for slot in 0..400 {
            let inserted = store.insert(Key::NoBlock(slot), &entry(slot, block), |_| false);
            too_large += u64::from(matches!(inserted, Insert::TooLarge));
        }
        let (bytes, entries) = store.usage();
        let evicted = metrics.cache_evictions.at(EvictionCause::Size).get();
        assert!(bytes <= CAPACITY, "{bytes} bytes in {entries} blocks of {block}");
        assert_eq!(
            evicted + entries + too_large,
            400,
            "{evicted} evicted, {entries} kept, {too_large} refused"
        );
        assert_eq!(too_large > 0, block as u64 > CAPACITY);
    }
}

#[tokio::test]
async fn hot_entries_survive_a_scan_of_large_blocks() {
    // The store holds 16 MiB: 1,000 hot accounts of 300 bytes, then a scan over 400 blocks of 2 MiB.
    let store = store(16 << 20, 4 << 20);
    let hot: Vec<Key> = (0..1000).map(Key::NoBlock).collect();
    for key in &hot {
        store.insert(key.clone(), &entry(1, 300), |_| false);
    }
    let asked =
        |round: usize| hot.iter().skip(round % 4).step_by(4).filter(|key| store.get(key).is_some()).count();
    for round in 0..20 {
        asked(round);
    }
    store.usage();
    let (mut found, mut of) = (0, 0);
    for scanned in 0..400 {
        let slot = 1_000_000 + u64::try_from(scanned).unwrap();
        assert!(store.get(&Key::NoBlock(slot)).is_none());
        store.insert(Key::NoBlock(slot), &entry(1, 2 << 20), |_| false);
        found += asked(scanned);
        of += 250;
    }
    let (bytes, _) = store.usage();
    assert!(bytes <= 16 << 20, "{bytes} bytes");
    assert!(found * 100 >= of * 99, "{found} of {of} asked for during the scan were there");
}

#[tokio::test]
async fn get_returns_the_entry_without_a_copy() {
    let store = store(16 << 20, 8 << 20);
    let block = entry(1, 5 << 20);
    store.insert(Key::NoBlock(1), &block, |_| false);
    assert!(Arc::ptr_eq(&store.get(&Key::NoBlock(1)).unwrap(), &block));
}

#[tokio::test]
async fn clear_removes_and_counts_all_entries() {
    for entries in [10, 2 * FREED_AT_ONCE] {
        let metrics = Metrics::new();
        let store = EntryStore::new(1 << 30, 1 << 20, Arc::clone(&metrics));
        for slot in 0..entries {
            store.insert(Key::NoBlock(slot), &entry(slot, 10), |_| false);
        }
        store.clear();
        assert_eq!(store.usage(), (0, 0));
        assert!((0..entries).all(|slot| store.get(&Key::NoBlock(slot)).is_none()));
        assert_eq!(metrics.cache_evictions.at(EvictionCause::Purged).get(), entries);
        store.insert(Key::NoBlock(1), &entry(1, 10), |_| false);
        assert!(store.get(&Key::NoBlock(1)).is_some() && store.usage().1 == 1);
    }
}

/// One operation on the store, in a random sequence of operations on a few keys.
#[derive(Debug, Clone)]
enum StoreStep {
    Keep { key: u64, bytes: usize },
    Compress { key: u64, bytes: usize },
    Read { key: u64 },
    Purge { key: u64 },
    Clear,
}

fn step() -> impl Strategy<Value = StoreStep> {
    let key = 0..40_u64;
    prop_oneof![
        8 => (key.clone(), 0..6_000_usize).prop_map(|(key, bytes)| StoreStep::Keep { key, bytes }),
        2 => (key.clone(), 0..2_000_usize).prop_map(|(key, bytes)| StoreStep::Compress { key, bytes }),
        8 => key.clone().prop_map(|key| StoreStep::Read { key }),
        1 => key.prop_map(|key| StoreStep::Purge { key }),
        1 => Just(StoreStep::Clear),
    ]
}

fn apply(store: &EntryStore, step: &StoreStep) {
    match step {
        StoreStep::Keep { key, bytes } => {
            drop(store.insert(Key::NoBlock(*key), &entry(*key, *bytes), |_| false));
        }
        StoreStep::Compress { key, bytes } => {
            if let Some(stored) = store.get(&Key::NoBlock(*key)) {
                let text = Bytes::from(vec![b'1'; *bytes]);
                if let Some(coded) = CompressedText::new(Coding::Gzip, &text) {
                    let _ = stored.compressed.of(Coding::Gzip).set(Arc::new(coded));
                }
                store.replace(Key::NoBlock(*key), &stored, &stored);
            }
        }
        StoreStep::Read { key } => drop(store.get(&Key::NoBlock(*key))),
        StoreStep::Purge { key } => {
            store.purge(|stored, _| *stored == Key::NoBlock(*key));
        }
        StoreStep::Clear => store.clear(),
    }
}

/// Returns the total weight in bytes of the entries that can be read from the store, and their number.
fn readable(store: &EntryStore) -> (u64, u64) {
    let stored =
        (0..40).map(Key::NoBlock).filter_map(|key| Some(u64::from(weight(&key, &*store.get(&key)?))));
    stored.fold((0, 0), |(bytes, entries), weight| (bytes + weight, entries + 1))
}

/// Asserts that moka's byte and entry counts match the readable entries, after several rounds of eviction.
///
/// moka's byte count may be wrong by the difference between two weights of an entry. This happens if the
/// entry is evicted before moka has processed the last change of its weight.
fn assert_usage_is_what_can_be_read(store: &EntryStore) {
    for _ in 0..10 {
        store.usage();
    }
    let (readable, usage) = (readable(store), store.usage());
    assert_eq!(readable.1, usage.1, "the entries that can be read, and those that moka counts");
    let off = readable.0.abs_diff(usage.0);
    assert!(
        off <= CAPACITY / 4 && usage.0 <= CAPACITY,
        "{} bytes can be read, and moka counts {}",
        readable.0,
        usage.0
    );
}

/// The capacity in bytes: room for about ten entries of the average size that the tests store.
const CAPACITY: u64 = 40_000;

proptest! {
    #[test]
    fn usage_matches_the_readable_entries(steps in prop::collection::vec(step(), 1..300)) {
        let store = store(CAPACITY, 8_000);
        for step in &steps {
            apply(&store, step);
        }
        assert_usage_is_what_can_be_read(&store);
    }

    #[test]
    fn usage_matches_after_several_threads(
        steps in prop::collection::vec(prop::collection::vec(step(), 100..400), 4)
    ) {
        let store = store(CAPACITY, 8_000);
        std::thread::scope(|scope| {
            let store = &store;
            for steps in &steps {
                scope.spawn(move || {
                    for step in steps {
                        apply(store, step);
                    }
                });
            }
        });
        assert_usage_is_what_can_be_read(&store);
    }
}

#[test]
fn weighing_does_not_restore_cleared_entries() {
    let store = store(16 << 20, 1 << 20);
    let keys: Vec<Key> = (0..64).map(Key::NoBlock).collect();
    for _ in 0..300 {
        let stored = entry(1, 100);
        for key in &keys {
            store.insert(key.clone(), &stored, |_| false);
        }
        std::thread::scope(|scope| {
            let weighing = scope.spawn(|| {
                for key in keys.iter().cycle().take(640) {
                    store.replace(key.clone(), &stored, &stored);
                }
            });
            std::thread::yield_now();
            store.clear();
            assert!(keys.iter().all(|key| store.get(key).is_none()));
            weighing.join().unwrap();
            assert!(keys.iter().all(|key| store.get(key).is_none()));
        });
    }
}
