//! The single-flight, the generations of the cache and the floors of keys under thousands of schedules, drawn by shuttle.
//!
//! The scenes run the text of `src/cache/flight.rs`, `src/cache/generation.rs` and `src/gateway/slot_floor.rs`. The
//! build script replaces the primitives by shuttle's, so that another task may run at every lock, atomic and wait.

mod watch;

use std::sync::Arc;

use shuttle::future::{JoinHandle, block_on, spawn, yield_now};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicUsize, Ordering};

#[allow(dead_code)]
mod flight {
    include!(concat!(env!("OUT_DIR"), "/flight.rs"));
}
#[allow(dead_code)]
mod generation {
    include!(concat!(env!("OUT_DIR"), "/generation.rs"));
}
#[allow(dead_code)]
mod slot_floor {
    include!(concat!(env!("OUT_DIR"), "/slot_floor.rs"));
}

/// Schedules for each scene.
const SCHEDULES: usize = 2_000;

/// A stand-in for `tokio_util`'s tracker, on shuttle's tasks.
#[derive(Debug, Clone, Default)]
pub struct TaskTracker(Arc<std::sync::Mutex<Vec<JoinHandle<()>>>>);

impl TaskTracker {
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task = spawn(task);
        self.0.lock().unwrap().push(task);
    }

    /// Runs every task to its end. A scene must end with this. The scheduler drops tasks that are left over, and a lock
    /// that is taken during a drop aborts the process.
    fn finish(&self) {
        loop {
            let task = self.0.lock().unwrap().pop();
            let Some(task) = task else { return };
            block_on(task).unwrap();
        }
    }
}

/// A stand-in for `arc_swap`'s type, on a lock.
#[derive(Debug, Default)]
pub struct ArcSwap<T>(Mutex<Arc<T>>);

impl<T> ArcSwap<T> {
    pub fn load_full(&self) -> Arc<T> {
        Arc::clone(&self.0.lock().unwrap())
    }

    pub fn store(&self, value: Arc<T>) {
        *self.0.lock().unwrap() = value;
    }
}

pub mod methods {
    pub type Slot = u64;
    #[derive(Debug, Clone, Copy)]
    pub struct Commitment;
    #[derive(Debug, Default)]
    pub struct PerCommitment<T>(T);
    impl<T> PerCommitment<T> {
        pub fn get(&self, _: Commitment) -> &T {
            &self.0
        }
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
                    let fetch = move || {
                        let (begun, done, under_way) = (begun.clone(), done.clone(), under_way.clone());
                        async move {
                            assert_eq!(under_way.fetch_add(1, Ordering::SeqCst), 0, "two fetches at once");
                            let number = begun.fetch_add(1, Ordering::SeqCst) + 1;
                            yield_now().await;
                            under_way.fetch_sub(1, Ordering::SeqCst);
                            done.store(number, Ordering::SeqCst);
                            number
                        }
                    };
                    let got = flights.join(&1, fetch, |_| false).landed().await;
                    // The result that was landing when the caller asked is the oldest that it may get.
                    assert!(got.is_some_and(|number| number >= before), "{got:?} after {before}");
                }
            })
        })
        .collect();
    for caller in callers {
        block_on(caller).unwrap();
    }
    tasks.finish();
    assert!(flights.join(&1, || async { 0 }, |_| false).leads, "a landed flight is off the table");
    tasks.finish();
}

/// Checks that a failed fetch is tried once more for the callers who wait, and that each of them gets the result.
fn a_failure_is_tried_once_more() {
    let tasks = TaskTracker::default();
    let flights = flight::Flights::<u8, usize>::new(tasks.clone());
    let tries = Arc::<AtomicUsize>::default();
    let callers: Vec<_> = (0..3)
        .map(|caller| {
            let (flights, tries) = (flights.clone(), tries.clone());
            spawn(async move {
                let fetch = move || {
                    let tries = tries.clone();
                    async move {
                        yield_now().await;
                        tries.fetch_add(1, Ordering::SeqCst) + 1
                    }
                };
                let handle = flights.join(&1, fetch, |number| number % 2 == 1);
                if caller == 0 {
                    return;
                }
                let got = handle.landed().await.expect("a flight lands");
                assert!(got % 2 == 0, "a caller who waits gets the second try, and this one got {got}");
            })
        })
        .collect();
    for caller in callers {
        block_on(caller).unwrap();
    }
    tasks.finish();
}

/// Checks that a purge during fetches leaves nothing from before it: neither in the cache, nor for callers who ask after
/// it.
fn nothing_outlives_a_clearing() {
    let tasks = TaskTracker::default();
    let flights = flight::Flights::<(u8, u64), usize>::new(tasks.clone());
    let generation = Arc::<generation::Generation>::default();
    // The numbers of purges that have begun, and that are done. Each answer is the number of purges that had begun when
    // it was asked for.
    let (begun, done) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let kept = Arc::<Mutex<Option<usize>>>::default();
    let callers = (0..3).map(|_| {
        let (flights, generation, kept) = (flights.clone(), generation.clone(), kept.clone());
        let (begun, done) = (begun.clone(), done.clone());
        spawn(async move {
            for _ in 0..2 {
                let cleared = done.load(Ordering::SeqCst);
                let found = *kept.lock().unwrap();
                assert!(found.is_none_or(|asked| asked >= cleared), "{found:?} is kept after clearing {cleared}");
                let (of, begun, kept) = (generation.clone(), begun.clone(), kept.clone());
                let fetch = move || {
                    let (of, begun, kept) = (of.clone(), begun.clone(), kept.clone());
                    async move {
                        let number = of.number();
                        let asked = begun.load(Ordering::SeqCst);
                        yield_now().await;
                        let held = of.hold();
                        if held.number() == number {
                            *kept.lock().unwrap() = Some(asked);
                        }
                        asked
                    }
                };
                let got = flights.join(&(1, generation.number()), fetch, |_| false).landed().await;
                assert!(got.is_some_and(|asked| asked >= cleared), "{got:?} after clearing {cleared}");
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    let clears = spawn(async move {
        for _ in 0..2 {
            begun.fetch_add(1, Ordering::SeqCst);
            generation.advance();
            *kept.lock().unwrap() = None;
            done.fetch_add(1, Ordering::SeqCst);
            yield_now().await;
        }
    });
    for task in callers.into_iter().chain([clears]) {
        block_on(task).unwrap();
    }
    tasks.finish();
}

/// Checks that a key's floor is the highest slot that was shown, with several callers at once.
fn a_floor_only_rises() {
    let shown = slot_floor::ShownSlots::default();
    let callers: Vec<_> = [[3, 9], [7, 4], [5, 8]]
        .into_iter()
        .map(|slots| {
            let shown = shown.clone();
            spawn(async move {
                let mut last = 0;
                for slot in slots {
                    shown.at(methods::Commitment).raise(slot);
                    let now = shown.at(methods::Commitment).slot().unwrap_or(0);
                    assert!(now >= slot && now >= last, "{now} after {slot} and {last}");
                    last = now;
                }
            })
        })
        .collect();
    for caller in callers {
        block_on(caller).unwrap();
    }
    assert_eq!(shown.at(methods::Commitment).slot(), Some(9));
}

/// Checks that each of two callers who leave at any time gets the result once.
fn who_leaves_is_told_once() {
    let tasks = TaskTracker::default();
    let flights = flight::Flights::<u8, usize>::new(tasks.clone());
    let told = [Arc::<AtomicUsize>::default(), Arc::default()];
    let fetch = || async {
        yield_now().await;
        7
    };
    let waiter = flights.clone();
    tasks.spawn(async move { assert_eq!(waiter.join(&1, fetch, |_| false).landed().await, Some(7)) });
    for told in told.clone() {
        let flights = flights.clone();
        tasks.spawn(async move {
            let handle = flights.join(&1, fetch, |_| false);
            yield_now().await;
            handle.leave(move |landed| {
                assert_eq!(*landed, 7);
                told.fetch_add(1, Ordering::SeqCst);
            });
        });
    }
    tasks.finish();
    assert!(told.iter().all(|told| told.load(Ordering::SeqCst) == 1));
}

fn main() {
    for (name, scene) in [
        ("one_flight_at_a_time", one_flight_at_a_time as fn()),
        ("a_failure_is_tried_once_more", a_failure_is_tried_once_more),
        ("nothing_outlives_a_clearing", nothing_outlives_a_clearing),
        ("a_floor_only_rises", a_floor_only_rises),
        ("who_leaves_is_told_once", who_leaves_is_told_once),
    ] {
        shuttle::check_random(scene, SCHEDULES);
        shuttle::check_pct(scene, SCHEDULES, 3);
        println!("{name}: {} schedules", 2 * SCHEDULES);
    }
}
