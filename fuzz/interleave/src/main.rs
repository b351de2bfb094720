//! The single-flight, the generations of the cache, the monotonic slots of keys and the followed chain under thousands of random
//! schedules of shuttle.
//!
//! The scenes run the product's own files. Those take their primitives from `crate::sync`, which here is shuttle's, so that
//! tasks can switch at every lock, atomic operation and wait.

#![allow(dead_code, reason = "the scenes use a part of each file")]

use std::sync::Arc;

use shuttle::future::{block_on, spawn, yield_now};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicUsize, Ordering};

use crate::sync::TaskTracker;

#[path = "../../../src/follow/chain.rs"]
mod chain;
#[path = "../../../src/cache/flight.rs"]
mod flight;
#[path = "../../../src/follow/last_writes.rs"]
mod last_writes;
mod sync;

/// The number of schedules of each kind for each scene.
const SCHEDULES: usize = 2_000;

pub mod methods {
    pub type Slot = u64;
    #[derive(Debug, Clone, Copy)]
    pub struct Pubkey(pub [u8; 32]);
}

pub mod telemetry {
    #[derive(Debug, PartialEq)]
    pub enum RestartReason {
        Fork,
        Full,
    }
}

/// Checks that three callers of one key never fetch at the same time, and never get a result from before their call.
fn one_flight_at_a_time() {
    let tasks = TaskTracker::default();
    let flights = flight::Flights::<u8, usize>::new(tasks.clone());
    let (begun, landed, under_way) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let callers: Vec<_> = (0..3)
        .map(|_| {
            let (flights, begun, landed, under_way) = (flights.clone(), begun.clone(), landed.clone(), under_way.clone());
            spawn(async move {
                for _ in 0..2 {
                    let before = landed.load(Ordering::SeqCst);
                    let (begun, done, under_way) = (begun.clone(), landed.clone(), under_way.clone());
                    let fetch = async move {
                        assert_eq!(under_way.fetch_add(1, Ordering::SeqCst), 0, "two fetches at once");
                        let number = begun.fetch_add(1, Ordering::SeqCst) + 1;
                        yield_now().await;
                        under_way.fetch_sub(1, Ordering::SeqCst);
                        done.store(number, Ordering::SeqCst);
                        number
                    };
                    let got = flights.join(&1, fetch).result().await;
                    // The oldest valid result is the newest one that had landed before the call.
                    assert!(got.is_some_and(|number| number >= before), "{got:?} after {before}");
                }
            })
        })
        .collect();
    for caller in callers {
        block_on(caller).unwrap();
    }
    tasks.finish();
    assert!(flights.join(&1, async { 0 }).is_leader, "a landed flight is removed");
    tasks.finish();
}

/// Checks that after a purge no answer from before it is in the cache or reaches a caller.
fn purge_leaves_no_earlier_answer() {
    let tasks = TaskTracker::default();
    let flights = flight::Flights::<(u8, u64), usize>::new(tasks.clone());
    let generation = Arc::<flight::Generation>::default();
    // The numbers of purges that have begun and have ended. Each answer is the number of purges that had begun when its
    // fetch began.
    let (begun, done) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let kept = Arc::<Mutex<Option<usize>>>::default();
    let callers = (0..3).map(|_| {
        let (flights, generation, kept) = (flights.clone(), generation.clone(), kept.clone());
        let (begun, done) = (begun.clone(), done.clone());
        spawn(async move {
            for _ in 0..2 {
                let purged = done.load(Ordering::SeqCst);
                let found = *kept.lock().unwrap();
                assert!(found.is_none_or(|asked| asked >= purged), "{found:?} is kept after purge {purged}");
                let (of, begun, kept) = (generation.clone(), begun.clone(), kept.clone());
                let fetch = async move {
                    let number = of.number();
                    let asked = begun.load(Ordering::SeqCst);
                    yield_now().await;
                    let held = of.lock();
                    if held.number() == number {
                        *kept.lock().unwrap() = Some(asked);
                    }
                    asked
                };
                let got = flights.join(&(1, generation.number()), fetch).result().await;
                assert!(got.is_some_and(|asked| asked >= purged), "{got:?} after purge {purged}");
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    let purges = spawn(async move {
        for _ in 0..2 {
            begun.fetch_add(1, Ordering::SeqCst);
            generation.advance();
            *kept.lock().unwrap() = None;
            done.fetch_add(1, Ordering::SeqCst);
            yield_now().await;
        }
    });
    for task in callers.into_iter().chain([purges]) {
        block_on(task).unwrap();
    }
    tasks.finish();
}

/// Checks that each callback of a flight runs exactly once.
fn callbacks_run_once() {
    let tasks = TaskTracker::default();
    let flights = flight::Flights::<u8, usize>::new(tasks.clone());
    let callbacks = [Arc::<AtomicUsize>::default(), Arc::default()];
    let fetch = || async {
        yield_now().await;
        7
    };
    let waiter = flights.clone();
    tasks.spawn(async move { assert_eq!(waiter.join(&1, fetch()).result().await, Some(7)) });
    for count in callbacks.clone() {
        let flights = flights.clone();
        tasks.spawn(async move {
            let handle = flights.join(&1, fetch());
            yield_now().await;
            handle.on_result(move |landed| {
                assert_eq!(*landed, 7);
                count.fetch_add(1, Ordering::SeqCst);
            });
        });
    }
    tasks.finish();
    assert!(callbacks.iter().all(|count| count.load(Ordering::SeqCst) == 1));
}

/// Checks that an account is never called unchanged over a block that writes it, while blocks are added and become final.
fn carried_accounts_are_unchanged() {
    const FIRST: u64 = 100;
    const SKIPPED: u64 = FIRST + 3;
    // The number of writes up to a slot.
    let version = |slot: u64| [FIRST + 2, FIRST + 4].iter().filter(|written| **written <= slot).count();
    let account = last_writes::Buckets::default().of(&methods::Pubkey([1; 32]));
    let mut writer = chain::ChainWriter::new(1, FIRST, std::time::Instant::now());
    let readers = (0..2).map(|_| {
        let chain = Arc::clone(writer.chain());
        spawn(async move {
            for read in [FIRST + 4, FIRST + 1, FIRST + 2, SKIPPED, FIRST + 5] {
                let to_target = |may_be_newer| chain::Carry::ToTarget { may_be_newer };
                for carry in [chain::Carry::ToTip, to_target(false), to_target(true)] {
                    let Some(tip) = chain.unchanged_until(account, read, carry) else { continue };
                    assert!(read != SKIPPED && tip.slot != SKIPPED, "{read} to {} by {carry:?}", tip.slot);
                    assert_eq!(version(read), version(tip.slot), "{read} to {} by {carry:?}", tip.slot);
                }
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    let blocks = spawn(async move {
        for (slot, is_written, last_final) in
            [(1, false, 0), (2, true, 1), (4, true, 2), (5, false, 4), (6, false, 5)]
        {
            let buckets = if is_written { vec![account] } else { vec![] };
            assert_eq!(writer.add(FIRST + slot, buckets), Ok(()));
            assert_eq!(writer.finalize(FIRST + last_final), Ok(()));
        }
    });
    for task in readers.into_iter().chain([blocks]) {
        block_on(task).unwrap();
    }
}

fn main() {
    for (name, scene) in [
        ("one_flight_at_a_time", one_flight_at_a_time as fn()),
        ("purge_leaves_no_earlier_answer", purge_leaves_no_earlier_answer),
        ("callbacks_run_once", callbacks_run_once),
        ("carried_accounts_are_unchanged", carried_accounts_are_unchanged),
    ] {
        shuttle::check_random(scene, SCHEDULES);
        shuttle::check_pct(scene, SCHEDULES, 3);
        println!("{name}: {} schedules", 2 * SCHEDULES);
    }
}
