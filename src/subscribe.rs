//! Subscriptions over WebSockets (`PubSub`), as a node has them, shared by all clients.
//!
//! A client's connection (`connection`) reads calls (`protocol`), which join feeds (`feeds`); one that is refused and
//! comes again has to wait (`pauses`). A feed is one question, such as the changes of an account, for all clients that
//! ask it. Four sources answer: the tip for signatures (`signatures`), the frontier for slots and roots (`slots`), the
//! cache for accounts (`accounts`), and the WebSocket of a node for what only a node knows (`relay`). A change becomes
//! one text for all subscribers, in the queue of each client (`client`).
//!
//! A subscription has no silent gap: whatever may have been missed closes the connection with a code that makes client
//! libraries connect and subscribe anew.

mod account_view;
mod accounts;
mod client;
mod connection;
mod feeds;
mod pauses;
mod protocol;
mod queue;
mod relay;
mod signatures;
mod slots;
#[cfg(test)]
mod tests;
mod unread;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

pub use client::SocketClient;
pub use connection::serve;
use feeds::{Feed, Feeds};
use relay::RelayRequest;

use crate::cache::Cache;
use crate::config::reload::InForce;
use crate::error::Error;
use crate::frontier::Frontier;
use crate::gateway::Gateway;
use crate::methods::{Commitment, Slot, Subscription};
use crate::pool::Pool;
use crate::telemetry::Metrics;
use crate::tip::Tip;

const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of calls to subscribe that wait for the WebSocket of a node.
const MAX_RELAY_REQUESTS: usize = 1_024;

pub struct HubParts {
    pub config: Arc<InForce>,
    pub gateway: Arc<Gateway>,
    pub cache: Arc<Cache>,
    pub pool: Arc<Pool>,
    pub frontier: Arc<Frontier>,
    pub tip: Arc<Tip>,
    pub metrics: Arc<Metrics>,
}

/// All subscriptions, and the clients that have them.
pub struct Hub {
    parts: HubParts,
    feeds: Feeds,
    tasks: TaskTracker,
    clients: Mutex<HashMap<u64, Arc<SocketClient>>>,
    last_client: AtomicU64,
    relay: mpsc::Sender<RelayRequest>,
    last_slot: Mutex<(Slot, Instant)>,
    /// The nodes whose sockets feed subscriptions, by their ids, with the newest slot that each has announced.
    fed_by: Mutex<HashMap<usize, Slot>>,
}

impl Hub {
    /// Creates the hub, and starts the tasks that feed it. They run until `stop`.
    pub fn start(parts: HubParts, tasks: &TaskTracker, stop: &CancellationToken) -> Arc<Self> {
        let (relay, requests) = mpsc::channel(MAX_RELAY_REQUESTS);
        let feeds = Feeds::new(parts.config.now().server.max_outgoing, Arc::clone(&parts.metrics));
        let (clients, last_slot) = (Mutex::default(), Mutex::new((0, Instant::now())));
        let hub = Arc::new(Self {
            parts,
            feeds,
            tasks: tasks.clone(),
            clients,
            last_client: AtomicU64::new(0),
            relay,
            last_slot,
            fed_by: Mutex::default(),
        });
        let spawn = |work: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
            let stop = stop.clone();
            tasks.spawn(async move { stop.run_until_cancelled(work).await });
        };
        spawn(Box::pin(slots::follow_slots(Arc::clone(&hub))));
        spawn(Box::pin(slots::follow_roots(Arc::clone(&hub))));
        for commitment in Commitment::ALL {
            spawn(Box::pin(accounts::follow(Arc::clone(&hub), commitment)));
        }
        spawn(Box::pin(relay::run(Arc::clone(&hub), requests)));
        spawn(Box::pin(Arc::clone(&hub.parts.tip).ask_for_watched()));
        spawn(Box::pin(Arc::clone(&hub.parts.tip).search_for_watched()));
        spawn(Box::pin(Arc::clone(&hub).check_clients()));
        hub
    }

    /// Admits a client that may open a WebSocket with `key` from this address and origin.
    ///
    /// # Errors
    /// The key is not valid here, its rate is used up, or its plan allows no further connection.
    pub fn admit(
        &self,
        key: &str,
        address: Option<IpAddr>,
        origin: Option<&str>,
    ) -> Result<Arc<SocketClient>, Error> {
        let HubParts { gateway, metrics, .. } = &self.parts;
        let id = self.last_client.fetch_add(1, Ordering::Relaxed) + 1;
        let client =
            SocketClient::new(id, (key, address, origin), gateway, Arc::clone(metrics), Instant::now())?;
        Ok(Arc::new(client))
    }

    /// Closes all clients with subscriptions, because the nodes belong to another cluster than before.
    pub fn restart(&self) {
        self.feeds.interrupt(|_| true);
    }

    pub fn clients(&self) -> usize {
        self.connected().len()
    }

    /// Returns the time since the last new slot that subscribers were notified of, or would have been. Whoever is fed by the
    /// socket of a node is as old as that.
    pub fn slot_age(&self, now: Instant) -> Duration {
        let (age, frontier) = (now.saturating_duration_since(self.last_slot().1), &self.parts.frontier);
        let newest = frontier.slot(Commitment::Processed);
        let lag = self.fed_by().values().map(|slot| newest.saturating_sub(*slot)).max();
        lag.map_or(age, |lag| age.max(frontier.time_of(lag)))
    }

    fn fed_by(&self) -> MutexGuard<'_, HashMap<usize, Slot>> {
        self.fed_by.lock()
    }

    /// Returns the bytes of all notifications that wait to be sent.
    pub fn queued_bytes(&self) -> usize {
        self.feeds.queued_bytes()
    }

    fn connected(&self) -> MutexGuard<'_, HashMap<u64, Arc<SocketClient>>> {
        self.clients.lock()
    }

    /// Checks each second that every client may stay. One task does it for all, so that idle connections need no timer.
    async fn check_clients(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let clients: Vec<_> = self.connected().values().cloned().collect();
            for client in clients {
                client.check(&self.parts.gateway, Instant::now());
            }
        }
    }

    /// Starts the work of a new feed that is not part of a common task.
    fn begin(self: &Arc<Self>, subscription: &Arc<Subscription>, feed: &mut Feed) {
        match **subscription {
            Subscription::Signature { signature, commitment, received } => {
                let (hub, subscription) = (Arc::clone(self), Arc::clone(subscription));
                let work = signatures::follow(hub, subscription, signature, commitment, received);
                feed.work = Some(AbortOnDropHandle::new(self.tasks.spawn(work)));
            }
            Subscription::Slot => relay::prefer_socket(self),
            Subscription::Account { .. } | Subscription::Root | Subscription::Relayed { .. } => {}
        }
    }

    /// Waits until the newest slot at `commitment` is above `last`, and returns it. A slot below `last` means that the
    /// chain has restarted lower.
    async fn next_slot(&self, commitment: Commitment, last: Slot) -> Slot {
        let frontier = &self.parts.frontier;
        loop {
            tokio::select! {
                () = frontier.reached(commitment, last + 1) => return frontier.slot(commitment),
                () = tokio::time::sleep(CHECK_INTERVAL) => {
                    let slot = frontier.slot(commitment);
                    if slot < last {
                        return slot;
                    }
                }
            }
        }
    }
}
