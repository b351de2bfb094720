use bytes::Bytes;
use proptest::prelude::*;
use tokio::time::Instant;

use super::super::entry::{Body, CodedForms, Kept, Payload, SHORT_BYTES};
use super::super::freshness::Class;
use super::*;
use crate::coding::{Coded, Coding};

pub(super) fn entry(slot: u64, bytes: usize) -> Arc<Entry> {
    let kept = Kept::Said(Payload::Result(Body::One(Bytes::from(vec![b'1'; bytes]))));
    Arc::new(Entry {
        kept,
        stamp: Stamp { slot, sent_at: Instant::now(), class: Class::Samples, derived: false },
        coded: CodedForms::default(),
    })
}

fn store(capacity: u64, max_entry: u64) -> Store {
    Store::new(capacity, max_entry, Metrics::new())
}

#[tokio::test]
async fn an_entry_is_replaced_by_the_same_or_a_higher_slot_only() {
    let store = store(1 << 20, 1 << 20);
    let held = || store.get(&Key::Samples).map(|e| (e.slot(), e.entry().kept.weight()));
    assert!(matches!(store.keep(Key::Samples, &entry(10, 1), |_| true), Placed::Stored));
    assert!(
        matches!(store.keep(Key::Samples, &entry(9, 2), |_| true), Placed::Behind(held) if held.stamp.slot == 10)
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
        store.keep(Key::NoBlock(slot), &entry(1, 2 << 20), |_| true);
        found += asked(scanned);
        of += 250;
    }
    let (bytes, _) = store.usage();
    assert!(bytes <= 16 << 20, "{bytes} bytes");
    assert!(found * 100 >= of * 99, "{found} of {of} asked for during the scan were there");
}

#[tokio::test]
async fn a_kept_answer_is_handed_out_without_a_copy_if_it_is_long() {
    for (bytes, is_long) in [(5 << 20, true), (SHORT_BYTES + 1, true), (SHORT_BYTES, false)] {
        let store = store(16 << 20, 8 << 20);
        let block = entry(1, bytes);
        store.keep(Key::NoBlock(1), &block, |_| true);
        let held = store.get(&Key::NoBlock(1)).unwrap();
        let text = |entry: &Entry| match &entry.kept {
            Kept::Said(Payload::Result(Body::One(text))) => text.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(text(&held.entry()), text(&block));
        assert_eq!(text(&held.entry()).as_ptr() == text(&block).as_ptr(), is_long, "{bytes}");
        let short = held.short(None).map(|payload| payload.len());
        assert_eq!(short, (!is_long).then_some(bytes), "{bytes}");
    }
}

/// What is done to a store, by keys of a few.
#[derive(Debug, Clone)]
enum Deed {
    Keep(u64, usize),
    Compress(u64, usize),
    Read(u64),
    Purge(u64),
    Clear,
}

fn deed() -> impl Strategy<Value = Deed> {
    let key = 0..40_u64;
    prop_oneof![
        8 => (key.clone(), 0..6_000_usize).prop_map(|(key, bytes)| Deed::Keep(key, bytes)),
        2 => (key.clone(), 0..2_000_usize).prop_map(|(key, bytes)| Deed::Compress(key, bytes)),
        8 => key.clone().prop_map(Deed::Read),
        1 => key.prop_map(Deed::Purge),
        1 => Just(Deed::Clear),
    ]
}

fn does(store: &Store, deed: &Deed) {
    match deed {
        Deed::Keep(key, bytes) => drop(store.keep(Key::NoBlock(*key), &entry(*key, *bytes), |_| true)),
        Deed::Compress(key, bytes) => {
            if let Some(held) = store.get(&Key::NoBlock(*key)).map(|held| held.entry()) {
                let text = Bytes::from(vec![b'1'; *bytes]);
                if let Some(coded) = Coded::new(Coding::Gzip, &text) {
                    let _ = held.coded.of(Coding::Gzip).set(Arc::new(coded));
                }
                store.weigh(Key::NoBlock(*key), &held);
            }
        }
        Deed::Read(key) => drop(store.get(&Key::NoBlock(*key))),
        Deed::Purge(key) => {
            store.purge(|held| *held == Key::NoBlock(*key));
        }
        Deed::Clear => store.clear(),
    }
}

/// What can be read: bytes and entries.
fn readable(store: &Store) -> (u64, u64) {
    let held =
        (0..40).map(Key::NoBlock).filter_map(|key| store.get(&key).map(|held| weight(&key, &held.entry())));
    held.fold((0, 0), |(bytes, entries), weight| (bytes + weight, entries + 1))
}

/// Holds what can be read against moka's books, once moka has let go what it is to let go, some at a time.
fn assert_books_are_right(store: &Store) {
    for _ in 0..10 {
        store.usage();
    }
    let books = store.weights.iter();
    let booked = books.fold((0, 0), |(bytes, n), (_, each)| (bytes + u64::from(each.bytes), n + 1));
    assert_eq!(readable(store), booked, "bytes and entries that can be read, and that moka knows of");
    assert_eq!(
        readable(store),
        store.usage(),
        "bytes and entries that can be read, and that are said to be held"
    );
}

/// Room for some ten of the entries that deeds make.
const CAPACITY: u64 = 40_000;

proptest! {
    #[test]
    fn what_can_be_read_is_what_moka_has_in_its_books(deeds in prop::collection::vec(deed(), 1..300)) {
        let store = store(CAPACITY, 8_000);
        for deed in &deeds {
            does(&store, deed);
        }
        assert_books_are_right(&store);
    }

    #[test]
    fn the_same_where_many_do_it_at_once(
        deeds in prop::collection::vec(prop::collection::vec(deed(), 100..400), 4)
    ) {
        let store = store(CAPACITY, 8_000);
        std::thread::scope(|scope| {
            let store = &store;
            for deeds in &deeds {
                // Not in here: who has read an entry of before the emptying makes moka think that its successor is of before,
                // too, and it leaves a little early.
                let deeds = deeds.iter().filter(|deed| !matches!(deed, Deed::Clear));
                scope.spawn(move || {
                    for deed in deeds {
                        does(store, deed);
                    }
                });
            }
        });
        assert_books_are_right(&store);
    }
}

#[test]
fn what_was_emptied_does_not_come_back_while_it_is_weighed() {
    let store = store(16 << 20, 1 << 20);
    let keys: Vec<Key> = (0..64).map(Key::NoBlock).collect();
    for _ in 0..300 {
        let held = entry(1, 100);
        for key in &keys {
            store.keep(key.clone(), &held, |_| true);
        }
        std::thread::scope(|scope| {
            let weighing = scope.spawn(|| {
                for key in keys.iter().cycle().take(640) {
                    store.weigh(key.clone(), &held);
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

#[test]
fn of_every_nth_read_as_large_a_part_is_sampled() {
    let sampled: Vec<bool> = (0..128_000).map(|_| is_sampled()).collect();
    for step in 1..=32 {
        for from in 0..step {
            let told = sampled.iter().skip(from).step_by(step).filter(|sampled| **sampled).count();
            let expected = sampled.len() / step / usize::try_from(SAMPLED).unwrap();
            assert!(
                told.abs_diff(expected) * 10 <= expected,
                "{told}, not {expected}: each {step}th from {from}"
            );
        }
    }
}

#[tokio::test]
async fn moka_is_told_of_all_reads_before_it_must_choose() {
    let store = store(CAPACITY, 8_000);
    let filling = (0..12).map(|slot| {
        store.keep(Key::NoBlock(slot), &entry(slot, 1_900), |_| true);
        store.is_filling()
    });
    assert_eq!(filling.filter(|filling| *filling).count(), 5, "{:?} of {CAPACITY}", store.usage());
    store.clear();
    store.usage();
    assert!(!store.is_filling(), "{:?} of {CAPACITY}", store.usage());
}
