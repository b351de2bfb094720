//! What the gateways count together: rates are leased from the shared store, units are booked there. All of it beside
//! the requests; while the store is lost, each gateway goes on alone.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Semaphore;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::clock::Clock;
use super::lease::Lease;
use super::quota::{Ledger, Period};
use super::standing::Standing;
use crate::shared::Store;
use crate::shared::limits::{Ask, Leased, identity};

/// Rates that wait to be asked for; whoever finds no room asks with its next call.
const QUEUE: usize = 16_384;
/// Asked for at once.
const AT_ONCE: usize = 256;
/// Between two looks for what was leased and is not used, and for units to be booked.
const LOOK: Duration = Duration::from_millis(250);

/// Asks the shared store on behalf of the keys.
pub(crate) struct Lessor {
    store: OnceLock<Arc<Store>>,
    queue: mpsc::Sender<Arc<Lease>>,
    clock: Arc<Clock>,
    /// Who books.
    who: u64,
}

/// What is asked for, until there is somebody to ask.
pub(crate) type Asked = mpsc::Receiver<Arc<Lease>>;

impl Lessor {
    pub(crate) fn new(clock: &Arc<Clock>) -> (Arc<Self>, Asked) {
        let (queue, asked) = mpsc::channel(QUEUE);
        let lessor = Self { store: OnceLock::new(), queue, clock: Arc::clone(clock), who: identity() };
        (Arc::new(lessor), asked)
    }

    /// Whether the store answers, and takes what is booked.
    pub(crate) fn is_on(&self) -> bool {
        self.store.get().is_some_and(|store| store.takes_writes())
    }

    /// Has the store asked for `lease`; `false` where too many wait.
    pub(crate) fn enqueue(&self, lease: &Arc<Lease>) -> bool {
        self.queue.try_send(Arc::clone(lease)).is_ok()
    }

    pub(crate) async fn lease(&self, of: &str, ask: Ask) -> Option<Leased> {
        self.store.get()?.lease(of, ask).await.ok()
    }

    /// Steady time.
    pub(crate) fn now(&self) -> Duration {
        self.clock.steady(Instant::now())
    }

    /// Starts asking `store`, until `stop`; what was used until then is booked last.
    pub(crate) fn start(
        self: &Arc<Self>,
        store: Arc<Store>,
        asked: Asked,
        ledger: Arc<Ledger>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) {
        // Told twice, the first holds.
        let _ = self.store.set(store);
        ledger.share();
        let (lessor, ended) = (Arc::clone(self), stop.clone());
        tasks.spawn(async move {
            ended.run_until_cancelled(lessor.ask(asked)).await;
        });
        let (lessor, stop) = (Arc::clone(self), stop.clone());
        tasks.spawn(async move {
            let mut running = true;
            while running {
                running = stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some();
                lessor.book(&ledger).await;
            }
        });
    }

    /// Asks for each that is due, many at once; what is leased and not used is given back.
    async fn ask(self: Arc<Self>, mut asked: Asked) {
        let mut leased: HashMap<usize, Arc<Lease>> = HashMap::new();
        let mut asking = FuturesUnordered::new();
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(lease) = asked.recv(), if asking.len() < AT_ONCE => {
                    let lessor = Arc::clone(&self);
                    asking.push(async move {
                        let held = lease.ask(&lessor).await;
                        (lease, held)
                    });
                }
                Some((lease, held)) = asking.next() => {
                    if held {
                        leased.insert(Arc::as_ptr(&lease).addr(), lease);
                    }
                }
                _ = look.tick() => {
                    let settled = leased.values().map(|lease| lease.settle(&self));
                    let held = join_all(settled).await;
                    let mut held = held.into_iter();
                    leased.retain(|_, _| held.next().unwrap_or(false));
                }
            }
        }
    }

    /// Books the units of each key that was used, some at once, and takes in what others have booked.
    async fn book(&self, ledger: &Ledger) {
        let Some(store) = self.store.get().filter(|store| store.takes_writes()) else { return };
        let (period, places) = (Period::of(self.clock.wall(Instant::now())), Semaphore::new(AT_ONCE));
        let book = |(id, standing): (Arc<str>, Arc<Standing>)| {
            let places = &places;
            async move {
                let _place = places.acquire().await;
                let booking = standing.used.booking(period, self.who);
                // What was not booked is tried again, as the same booking.
                if let Ok(booked) = store.book(&id, &booking).await {
                    standing.used.booked(&booking, &booked);
                }
            }
        };
        join_all(ledger.unshared().into_iter().map(book)).await;
    }
}
