//! Single-flight: all callers with the same question at the same time share one fetch, called a flight. The generation of the
//! cache says whether its answer came before a purge.
//!
//! The fetch is a task that goes on even if the caller who started it, the leader, leaves. Callers bring their own
//! deadlines and never cancel a flight. A callback gets the result even if its caller has left. A failed fetch is not
//! repeated here, because the pool has already asked every node that the retry budget allows.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;

use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, TaskTracker, watch};

/// The number of locks over which keys are spread, so that flights of different keys rarely contend.
const SHARDS: usize = 64;

/// The fetches under way that callers may share, called flights. Each flight gives a `T` to all of its callers.
pub(super) struct Flights<K, T> {
    shards: Box<[Mutex<FlightTable<K, T>>]>,
    hasher: RandomState,
    tasks: TaskTracker,
}

type FlightTable<K, T> = HashMap<K, Flight<T>>;

/// A shared fetch: the receiver for callers who wait for its result, and the callbacks that get the result whether
/// or not a caller waits.
struct Flight<T> {
    result: watch::Receiver<Option<T>>,
    state: Arc<Mutex<FlightState<T>>>,
}

impl<T> Clone for Flight<T> {
    fn clone(&self) -> Self {
        Self { result: self.result.clone(), state: Arc::clone(&self.state) }
    }
}

type ResultCallback<T> = Box<dyn FnOnce(&T) + Send>;

/// The state of a shared fetch, kept for the callbacks.
enum FlightState<T> {
    UnderWay(Vec<ResultCallback<T>>),
    Ended(T),
}

/// The access of one caller to a shared fetch and its result.
pub(super) struct FlightHandle<T> {
    flight: Flight<T>,
    /// True if the fetch began for this caller.
    pub(super) is_leader: bool,
}

impl<K: Hash + Eq + Clone + Send + 'static, T: Clone + Send + Sync + 'static> Flights<K, T> {
    /// Creates a table without fetches. Fetches run as tasks of `tasks`.
    pub(super) fn new(tasks: TaskTracker) -> Arc<Self> {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Arc::new(Self { shards, hasher: RandomState::new(), tasks })
    }

    pub(super) fn join(
        self: &Arc<Self>,
        key: &K,
        fetch: impl Future<Output = T> + Send + 'static,
    ) -> FlightHandle<T> {
        let mut shard = self.shard(key);
        if let Some(flight) = shard.get(key) {
            return FlightHandle { flight: flight.clone(), is_leader: false };
        }
        // The guard removes the flight however its task ends, even by a panic, so that no caller waits for a dead task.
        let guard = FlightGuard { flights: Arc::clone(self), key: key.clone() };
        let handle = self.start(fetch, Some(guard));
        shard.insert(key.clone(), handle.flight.clone());
        handle
    }

    /// Starts a fetch that no other caller can join.
    pub(super) fn start_unshared(
        self: &Arc<Self>,
        fetch: impl Future<Output = T> + Send + 'static,
    ) -> FlightHandle<T> {
        self.start(fetch, None)
    }

    fn start(
        &self,
        fetch: impl Future<Output = T> + Send + 'static,
        guard: Option<FlightGuard<K, T>>,
    ) -> FlightHandle<T> {
        let (sender, result) = watch::channel(None);
        let state = Arc::new(Mutex::new(FlightState::UnderWay(Vec::new())));
        let flight = Flight { result, state: Arc::clone(&state) };
        self.tasks.spawn(async move {
            let result = fetch.await;
            drop(guard);
            // The callbacks get the result before a waiting caller does.
            let ended = std::mem::replace(&mut *lock(&state), FlightState::Ended(result.clone()));
            if let FlightState::UnderWay(callbacks) = ended {
                for callback in callbacks {
                    callback(&result);
                }
            }
            sender.send_replace(Some(result));
        });
        FlightHandle { flight, is_leader: true }
    }

    fn shard(&self, key: &K) -> MutexGuard<'_, FlightTable<K, T>> {
        #[expect(clippy::cast_possible_truncation, reason = "any 64 shards will do")]
        let shard = self.hasher.hash_one(key) as usize % SHARDS;
        lock(&self.shards[shard])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl<T: Clone> FlightHandle<T> {
    /// Waits for the result of the flight. `None` if the flight's task died.
    pub(super) async fn result(mut self) -> Option<T> {
        self.flight.result.wait_for(Option::is_some).await.ok().and_then(|result| result.clone())
    }

    /// Calls `function` with the result, at once if the fetch has ended. `function` is not called if the fetch's
    /// task dies.
    pub(super) fn on_result(&self, function: impl FnOnce(&T) + Send + 'static) {
        match &mut *lock(&self.flight.state) {
            FlightState::UnderWay(functions) => functions.push(Box::new(function)),
            FlightState::Ended(result) => function(result),
        }
    }
}

/// The guard of a fetch. Dropping the guard removes the fetch from the table of fetches under way.
struct FlightGuard<K: Hash + Eq + Clone + Send + 'static, T: Clone + Send + Sync + 'static> {
    flights: Arc<Flights<K, T>>,
    key: K,
}

impl<K: Hash + Eq + Clone + Send + 'static, T: Clone + Send + Sync + 'static> Drop for FlightGuard<K, T> {
    fn drop(&mut self) {
        self.flights.shard(&self.key).remove(&self.key);
    }
}

/// The generation of the cache: the number of times it was purged.
///
/// An answer that was asked for in an earlier generation is neither stored nor given to later callers. The generation is
/// checked and the answer inserted under one lock. If they were not, a purge in between would be undone.
#[derive(Debug, Default)]
pub(super) struct Generation(RwLock<u64>);

/// A lock on the number of purges. No purge can begin before the guard is dropped.
pub(super) struct GenerationGuard<'a>(RwLockReadGuard<'a, u64>);

impl Generation {
    /// Waits until no [`GenerationGuard`] is left, and then counts a purge. Entries must be removed after this
    /// call, not before.
    pub(super) fn advance(&self) {
        *self.0.write() += 1;
    }

    pub(super) fn number(&self) -> u64 {
        self.lock().number()
    }

    /// Keeps purges from beginning while an answer is inserted. The guard must not be held across an await.
    pub(super) fn lock(&self) -> GenerationGuard<'_> {
        GenerationGuard(self.0.read())
    }
}

impl GenerationGuard<'_> {
    pub(super) fn number(&self) -> u64 {
        *self.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    struct Fetches {
        started: AtomicUsize,
        gate: Semaphore,
    }

    impl Fetches {
        fn new() -> Arc<Self> {
            Arc::new(Self { started: AtomicUsize::new(0), gate: Semaphore::new(0) })
        }

        /// Returns a fetch that waits for a permit of `gate`, and then returns its own number, counted from 1 in the
        /// order in which fetches began.
        fn fetch(self: &Arc<Self>) -> impl Future<Output = usize> + Send + 'static {
            let fetches = Arc::clone(self);
            async move {
                let number = fetches.started.fetch_add(1, Ordering::SeqCst) + 1;
                fetches.gate.acquire().await.unwrap().forget();
                number
            }
        }
    }

    #[tokio::test]
    async fn ten_thousand_callers_share_one_fetch() {
        let (flights, fetches) = (Flights::new(TaskTracker::new()), Fetches::new());
        let handles: Vec<_> = (0..10_000).map(|_| flights.join(&1, fetches.fetch())).collect();
        assert_eq!(handles.iter().filter(|s| s.is_leader).count(), 1);
        fetches.gate.add_permits(1);
        for handle in handles {
            assert_eq!(handle.result().await, Some(1));
        }
        assert_eq!(fetches.started.load(Ordering::SeqCst), 1);
        assert!(flights.join(&1, fetches.fetch()).is_leader, "a flight that has ended is not joined");
    }

    #[tokio::test]
    async fn flight_outlives_its_leader() {
        let (flights, fetches) = (Flights::new(TaskTracker::new()), Fetches::new());
        drop(flights.join(&1, fetches.fetch()));
        let waits = flights.join(&1, fetches.fetch());
        assert!(!waits.is_leader);
        fetches.gate.add_permits(1);
        assert_eq!(waits.result().await, Some(1));
    }

    #[tokio::test]
    async fn panicked_fetch_leaves_no_flight() {
        let flights = Flights::<u8, u8>::new(TaskTracker::new());
        let handle = flights.join(&1, async { panic!("the fetch died") });
        assert_eq!(handle.result().await, None);
        assert!(flights.join(&1, async { 1 }).is_leader);
    }
}
