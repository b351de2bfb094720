//! The two background tasks that share rates and quotas between gateways. One task reserves calls of the shared
//! rates in advance, so that no request waits for the store. The other adds the units (prices of calls) that each
//! key has used to the totals in the store.
//!
//! While the store is unreachable, each gateway enforces the limits on its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::clock::{Period, WallClock};
use super::lease::{Lease, LeaseQueue};
use super::quota::{Ledger, Used};
use crate::redis_store::Store;
use crate::redis_store::limits::Booking;

const AT_ONCE: usize = 256;
/// The interval at which reserved calls that were not used are given back to the store. Used units are added to
/// the totals in the store at the same interval.
const SYNC_INTERVAL: Duration = Duration::from_millis(250);

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
            // A booking that fails is sent again unchanged in the next round. The store therefore counts it only
            // once.
            if let Ok(totals) = store.book(&id, &booking).await {
                used.booked(&booking, totals);
            }
        }
    };
    join_all(ledger.bookings(period).into_iter().map(book)).await;
}
