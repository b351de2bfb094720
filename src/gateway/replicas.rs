//! What gateways with one store share: rates, of which they lease calls in advance so that no request waits for the store,
//! and the units that each key has used.
//!
//! While the store is unreachable, each gateway enforces the limits on its own.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::clock::{Period, WallClock};
use super::lease::LeaseState;
use super::quota::{Ledger, Used};
use crate::limiter::Rate;
use crate::redis_store::Store;
use crate::redis_store::limits::{Booking, LeaseRequest, Leased};

/// The maximum number of leases that wait for their request to the store. A lease that finds the queue full tries again
/// at its next call.
const QUEUE: usize = 16_384;

const AT_ONCE: usize = 256;
/// The interval at which reserved calls that were not used are given back to the store. Used units are added to
/// the totals in the store at the same interval.
const SYNC_INTERVAL: Duration = Duration::from_millis(250);

/// The shared store, and the queue through which leases ask for their next request to the store.
pub(crate) struct LeaseClient {
    /// The shared store. Empty until the store is connected.
    store: OnceLock<Arc<Store>>,
    queue: mpsc::Sender<Arc<Lease>>,
    started: Instant,
}

pub(crate) type LeaseQueue = mpsc::Receiver<Arc<Lease>>;

impl LeaseClient {
    /// Creates a client without a store. Also returns the receiving end of the queue of leases that wait for a request
    /// to the store.
    pub(crate) fn new() -> (Arc<Self>, LeaseQueue) {
        let (queue, queued) = mpsc::channel(QUEUE);
        (Arc::new(Self { store: OnceLock::new(), queue, started: Instant::now() }), queued)
    }

    pub(crate) fn connect(&self, store: Arc<Store>) {
        let _ = self.store.set(store);
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the shared store. `None` while the store is not connected, is unreachable, or accepts no writes.
    fn store(&self) -> Option<&Arc<Store>> {
        self.store.get().filter(|store| store.takes_writes())
    }
}

/// The calls that this gateway has leased from one shared rate. The rate belongs to a key or a client address.
pub(crate) struct Lease {
    of: String,
    client: Arc<LeaseClient>,
    state: Mutex<LeaseState>,
}

impl Lease {
    /// Creates a lease without leased calls for the shared rate named `of` in the store.
    pub(super) fn new(of: String, client: &Arc<LeaseClient>) -> Arc<Self> {
        Arc::new(Self { of, client: Arc::clone(client), state: Mutex::default() })
    }

    /// Takes one call. Also queues this lease for a request to the store if a request is due. Returns false if the
    /// store is unreachable. The call then passes without being counted here.
    ///
    /// # Errors
    /// The shared rate is used up. The error is the time until a call may pass.
    pub(super) fn take(self: &Arc<Self>, rate: Rate) -> Result<bool, Duration> {
        if self.client.store().is_none() {
            return Ok(false);
        }
        let mut state = self.lock();
        // Read under the lock, so that no call comes before one that was counted.
        let now = self.client.now();
        let taken = state.take(rate, now);
        let is_due = state.begin(rate, now);
        drop(state);
        if is_due && self.client.queue.try_send(Arc::clone(self)).is_err() {
            self.lock().not_queued();
        }
        taken.map(|()| true)
    }

    /// Gives back a call for which [`Self::take`] returned true, because the gateway's own limiter has refused the
    /// call.
    pub(super) fn give_back(&self) {
        self.lock().give_back();
    }

    /// Returns the estimated number of calls that would pass now. `None` while the store is unreachable.
    pub(super) fn left(&self, rate: Rate) -> Option<u32> {
        self.client.store()?;
        let state = self.lock();
        Some(state.passing(rate, self.client.now()))
    }

    /// Sends the next request to the store and applies the answer. Returns true if unused leased calls are left.
    async fn ask(&self) -> bool {
        let Some(ask) = self.lock().ask() else { return false };
        let answer = self.send(ask).await;
        let mut state = self.lock();
        match answer {
            Some(leased) => state.answered(ask, leased, self.client.now()),
            None => state.failed(),
        }
        state.holds_calls()
    }

    /// Gives idle leased calls back to the store. Returns true if unused leased calls are left.
    async fn settle(&self) -> bool {
        let ask = self.lock().give_back_idle();
        if let Some(ask) = ask
            && let Some(leased) = self.send(ask).await
        {
            self.lock().given_back(ask, leased, self.client.now());
        }
        self.lock().holds_calls()
    }

    /// Sends `ask` to the store, which counts the calls that `ask` reports, and leases further calls. `None` if the request
    /// fails.
    async fn send(&self, ask: LeaseRequest) -> Option<Leased> {
        self.client.store.get()?.lease(&self.of, ask).await.ok()
    }

    fn lock(&self) -> MutexGuard<'_, LeaseState> {
        self.state.lock()
    }
}

/// Starts the task that reserves calls in the shared store for the leases in `queue`. The task ends at `stop`. A
/// lease is the gateway's part of one shared rate.
pub(super) fn lease(queue: LeaseQueue, tasks: &TaskTracker, stop: &CancellationToken) {
    let stop = stop.clone();
    tasks.spawn(async move {
        stop.run_until_cancelled(renew(queue)).await;
    });
}

/// Starts the task that regularly adds the used units in `ledger` to the totals in `store`. After `stop` the task
/// adds them a last time, and ends.
pub(super) fn book(
    store: Arc<Store>,
    ledger: Arc<Ledger>,
    clock: Arc<WallClock>,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) {
    ledger.share();
    let stop = stop.clone();
    tasks.spawn(async move {
        let mut running = true;
        while running {
            running = stop.run_until_cancelled(tokio::time::sleep(SYNC_INTERVAL)).await.is_some();
            if store.takes_writes() {
                book_once(&store, &ledger, Period::of(clock.wall(Instant::now()))).await;
            }
        }
    });
}

/// Reserves calls in the shared store for the leases in `queue`, for up to [`AT_ONCE`] leases at a time. Gives
/// back reserved calls that are not used.
async fn renew(mut queue: LeaseQueue) {
    let mut leased: HashMap<usize, Arc<Lease>> = HashMap::new();
    let mut asking = FuturesUnordered::new();
    let mut ticks = tokio::time::interval(SYNC_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(lease) = queue.recv(), if asking.len() < AT_ONCE => {
                asking.push(async move {
                    let held = lease.ask().await;
                    (lease, held)
                });
            }
            Some((lease, held)) = asking.next() => {
                if held {
                    leased.insert(Arc::as_ptr(&lease).addr(), lease);
                }
            }
            _ = ticks.tick() => {
                let settled = leased.values().map(|lease| lease.settle());
                let held = join_all(settled).await;
                let mut held = held.into_iter();
                leased.retain(|_, _| held.next().unwrap_or(false));
            }
        }
    }
}

/// Adds the units that each key has newly used to the totals in `store`, and notes the new totals in `ledger`.
/// Sends the units of up to [`AT_ONCE`] keys at a time.
async fn book_once(store: &Store, ledger: &Ledger, period: Period) {
    let permits = Semaphore::new(AT_ONCE);
    let book = |(id, used, booking): (Arc<str>, Arc<Used>, Booking)| {
        let permits = &permits;
        async move {
            let _permit = permits.acquire().await;
            // A booking that fails is sent again unchanged in the next round. The store therefore counts it only once.
            if let Ok(totals) = store.book(&id, &booking).await {
                used.booked(&booking, totals);
            }
        }
    };
    join_all(ledger.bookings(period).into_iter().map(book)).await;
}
