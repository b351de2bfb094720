//! The second level: what another gateway has fetched, by way of the shared store.
//!
//! It is asked inside the flight, after the local look-up and before a node, so that however many want the same, it is
//! asked once; and what it gives goes the way of a node's answer: judged by the same rules against this gateway's
//! frontier, held entries and time, and kept. What is there is no better than a node's word: below what is held, past
//! its time, further ahead than is believed, or not what was written, it is a miss.
//!
//! Answers go up beside the requests, from a queue that is bounded in number and bytes; what does not fit is not shared.

mod purges;
mod value;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::class::Class;
use super::fetched::SlotRequirement;
use super::key::{Key, LookupPlan};
use super::lookup::Lookup;
use super::purge::Filter;
use crate::config;
use crate::methods::{Query, Slot};
use crate::node::{NodeReply, OFF_WORKER_BYTES};
use crate::pool::{Pool, Reply};
use crate::redis_store::{Found, Put, Store, StoreTime, micros};
use crate::telemetry::{Metrics, SharedOperation, SharedResult};
use purges::Purges;
use value::{Name, Seal, Value};

/// What lives shorter is over before it is of use to another.
const WORTH_SHARING: Duration = Duration::from_secs(2);
/// Answers that wait to be shared.
const QUEUE: usize = 1024;
/// Their bytes together.
const QUEUE_BYTES: usize = 64 << 20;
/// Answers on their way up at once.
const AT_ONCE: usize = 8;
/// Packing and signing take some times as long as what else is done to a text on the way of a request.
const LONG_PART: usize = 4;
/// No node has this number.
const NO_NODE: usize = usize::MAX;

/// The shared store as the second level of the cache.
pub(super) struct SecondLevel {
    store: Arc<Store>,
    seal: Arc<Seal>,
    queue: mpsc::Sender<Offer>,
    /// Bytes of answers that wait.
    waiting: Arc<AtomicUsize>,
    /// Longest text that is taken.
    max_text: usize,
    /// What was asked for before is not taken any more: the cache was emptied, since it was of another cluster.
    not_before: Mutex<Option<Instant>>,
    purges: Purges,
    metrics: Arc<Metrics>,
    tasks: TaskTracker,
}

/// An answer to be shared.
struct Offer {
    name: Name,
    reply: Reply,
    life: Duration,
}

impl SecondLevel {
    pub(super) fn new(
        config: &config::Config,
        store: Arc<Store>,
        metrics: &Arc<Metrics>,
        tasks: &TaskTracker,
    ) -> Self {
        let secret = config.shared.as_ref().and_then(|shared| shared.secret.as_ref());
        let seal = Arc::new(Seal::new(secret));
        let (queue, offers) = mpsc::channel(QUEUE);
        let waiting = Arc::default();
        let writer = Writer {
            store: Arc::clone(&store),
            seal: Arc::clone(&seal),
            waiting: Arc::clone(&waiting),
            tasks: tasks.clone(),
        };
        tasks.spawn(writer.run(offers));
        let max_text = usize::try_from(config.cache.max_entry).unwrap_or(usize::MAX);
        let (metrics, tasks) = (Arc::clone(metrics), tasks.clone());
        let (not_before, purges) = (Mutex::default(), Purges::new(store.parts()));
        Self { store, seal, queue, waiting, max_text, not_before, purges, metrics, tasks }
    }

    pub(super) fn is_there(&self) -> bool {
        self.store.is_there() && self.purges.are_known_somewhere()
    }

    /// Looks for an answer to `plan` that another gateway has shared; `None` if the store is not asked, or does not answer.
    pub(super) async fn find(
        &self,
        lookup: &Lookup,
        pool: &Pool,
        plan: &LookupPlan,
        requirement: SlotRequirement,
    ) -> Option<SharedAnswers> {
        let floor = match requirement {
            SlotRequirement::None => None,
            SlotRequirement::AtLeast(slot) => Some(slot),
            // A caller's own number, past what the pool has reached: a node's word on it is wanted.
            SlotRequirement::CallerMinimum(_) => return None,
        };
        // Before anything is made for it: a store that does not answer costs a miss nothing.
        if !self.is_there() {
            self.metrics.shared_requests.at((SharedOperation::Get, SharedResult::Skipped)).inc();
            return None;
        }
        // Before the cluster is read: what is found of one that the pool leaves meanwhile is not kept.
        let generation = lookup.held.generation();
        let (genesis, places) = self.places(lookup, pool, plan)?;
        let part = self.store.part(places.first()?.name.key());
        if !self.purges.are_known(&genesis, part) {
            self.metrics.shared_requests.at((SharedOperation::Get, SharedResult::Skipped)).inc();
            return None;
        }
        let keys: Vec<_> = places.iter().map(|place| place.name.key().to_owned()).collect();
        let found = self.store.get(&keys).await.ok()?;
        let took = found.asked_at.elapsed();
        let (candidate, foreign) = self.best(lookup, &genesis, places, found, floor).await;
        Some(SharedAnswers { candidate, foreign, took, generation })
    }

    /// Counts a look into the shared store, of which something was `taken`.
    pub(super) fn count(&self, taken: bool, foreign: bool, took: Duration) {
        let result = match (taken, foreign) {
            (true, _) => SharedResult::Hit,
            (false, true) => SharedResult::Foreign,
            (false, false) => SharedResult::Miss,
        };
        self.store.count(SharedOperation::Get, result, took);
    }

    /// Returns the genesis hash of the cluster, and the places where the answer to `plan` may be. There are none while the
    /// cluster is not known, or if the answer would not live long enough.
    fn places(&self, lookup: &Lookup, pool: &Pool, plan: &LookupPlan) -> Option<(String, Vec<Place>)> {
        let keys = std::iter::once(&plan.key).chain(&plan.other);
        let lives = |key: &&Key| {
            let class = if matches!(key, Key::NoBlock(_)) { Class::Skipped } else { plan.class };
            lookup.held.ttl(class) >= WORTH_SHARING
        };
        let mut keys = keys.filter(lives).peekable();
        keys.peek()?;
        let genesis = pool.genesis()?;
        let place = |key: &Key| {
            let name = self.seal.name(self.store.namespace(), &genesis, key)?;
            let mut plan = plan.clone();
            // What is found of an account is read in the form in which it is kept.
            let form = match (key, &mut plan.upstream) {
                (Key::Account(_, form, _), Query::Account(q)) => Some((form, &mut q.form)),
                (Key::Accounts(_, form, _), Query::Accounts(q)) => Some((form, &mut q.form)),
                _ => None,
            };
            if let Some((kept, asked)) = form
                && plan.key != *key
            {
                *asked = *kept;
                plan.other = Some(std::mem::replace(&mut plan.key, key.clone()));
            }
            Some(Place { name, plan })
        };
        let places = keys.filter_map(place).collect();
        Some((genesis, places))
    }

    /// Returns the newest of what was found that serves now, and true if anything was not what is kept there.
    async fn best(
        &self,
        lookup: &Lookup,
        genesis: &str,
        places: Vec<Place>,
        found: Found,
        floor: Option<Slot>,
    ) -> (Option<Candidate>, bool) {
        let Found { values, read_at, asked_at } = found;
        let (mut best, mut foreign): (Option<Candidate>, _) = (None, false);
        for (Place { name, plan }, bytes) in places.into_iter().zip(values) {
            let Some(bytes) = bytes else { continue };
            let Some(value) = self.read(&name, bytes).await else {
                foreign = true;
                self.forget(&name);
                continue;
            };
            let Some(sent_at) = sent_at(&value, read_at, asked_at) else { continue };
            if self.is_purged(genesis, &plan.key, &value, sent_at) {
                // It would keep the place against one of a lower slot.
                self.forget(&name);
                continue;
            }
            let Value { slot, body, confirmed, .. } = value;
            let reply = Reply { node: NO_NODE, body, sent_at, slot, confirmed };
            let newest = best.as_ref().is_none_or(|(_, best)| (best.slot, best.sent_at) < (slot, sent_at));
            if newest && lookup.takes(&plan, &reply, floor) {
                best = Some((plan, reply));
            }
        }
        (best, foreign)
    }

    /// Shares what a node has said and is kept under `key`, if its `life` is long enough; returns at once.
    pub(super) fn offer(&self, pool: &Pool, key: &Key, reply: &Reply, life: Duration) {
        if life < WORTH_SHARING || !self.store.takes_writes() || !pool.vouches_for(reply.node) {
            return;
        }
        let genesis = pool.genesis();
        let name = genesis.and_then(|genesis| self.seal.name(self.store.namespace(), &genesis, key));
        let Some(name) = name else { return };
        self.enqueue(Offer { name, reply: reply.clone(), life });
    }

    /// Brings purges to the shared store, and does here what others have purged. Returns true if the store has all of this
    /// gateway's.
    pub(super) async fn share_purges(&self, lookup: &Arc<Lookup>, genesis: Option<&str>) -> bool {
        self.purges.share(&self.store, &self.seal, genesis, lookup).await
    }

    /// Waits until the store is connected.
    pub(super) async fn connected(&self) {
        self.store.connected().await;
    }

    /// Takes nothing any more that was asked for before `now`.
    pub(super) fn nothing_before(&self, now: Instant) {
        *self.not_before.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// Takes nothing any more that was asked for before `now` and that `filter` takes, and tells the others of the cluster
    /// with this genesis hash.
    pub(super) fn purge(&self, genesis: Option<&str>, filter: &Filter, now: Instant) {
        self.purges.begin(genesis, *filter, now);
    }

    /// Takes nothing any more that was asked for before `now`, and tells the others of each cluster that this gateway has
    /// shared answers of.
    pub(super) fn purge_all_clusters(&self, now: Instant) {
        self.purges.begin_everywhere(now);
    }

    /// Whether `value` of `key`, which was asked for at `sent_at`, was purged since.
    fn is_purged(&self, genesis: &str, key: &Key, value: &Value, sent_at: Instant) -> bool {
        let emptied = *self.not_before.lock().unwrap_or_else(PoisonError::into_inner);
        emptied.is_some_and(|emptied| sent_at <= emptied)
            || self.purges.take(genesis, key, value.sent_at, sent_at)
    }

    /// What a value says, if it is the one that is kept under this name.
    async fn read(&self, name: &Name, bytes: Bytes) -> Option<Value> {
        if bytes.len() < OFF_WORKER_BYTES / LONG_PART {
            return self.seal.open(name, &bytes, self.max_text);
        }
        let (seal, name, max_text) = (Arc::clone(&self.seal), name.clone(), self.max_text);
        tokio::task::spawn_blocking(move || seal.open(&name, &bytes, max_text)).await.ok().flatten()
    }

    /// Takes away what no gateway can read: it would keep the place.
    fn forget(&self, name: &Name) {
        let (store, key) = (Arc::clone(&self.store), name.key().to_owned());
        self.tasks.spawn(async move { store.forget(&key).await });
    }

    /// Puts an answer into the queue, if there is room.
    fn enqueue(&self, offer: Offer) {
        let bytes = offer.bytes();
        let room = self.waiting.fetch_add(bytes, Ordering::Relaxed) + bytes <= QUEUE_BYTES;
        if !room || self.queue.try_send(offer).is_err() {
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
            self.metrics.shared_requests.at((SharedOperation::Put, SharedResult::Dropped)).inc();
        }
    }
}

/// A place where the answer to a plan may be, and the plan for what is found there.
struct Place {
    name: Name,
    plan: LookupPlan,
}

/// An answer that was found, with the plan for it.
type Candidate = (LookupPlan, Reply);

/// The result of a look into the shared store.
pub(super) struct SharedAnswers {
    /// The newest answer that serves now.
    pub(super) candidate: Option<Candidate>,
    /// True if something was not what is kept there.
    pub(super) foreign: bool,
    pub(super) took: Duration,
    /// The cache's generation when the store was asked.
    pub(super) generation: u64,
}

/// When an answer was asked for, on this gateway's clock, and not later than it was. Its age is told twice, by the
/// store's clock and by the two machines' own, and the higher one counts: no clock that is wrong by itself makes it
/// younger.
fn sent_at(value: &Value, read_at: StoreTime, asked_at: Instant) -> Option<Instant> {
    let by_store = asked_at.checked_sub(Duration::from_micros(read_at.saturating_sub(value.sent_at)))?;
    let by_wall =
        Instant::now().checked_sub(Duration::from_micros(wall_us().saturating_sub(value.wall_us)))?;
    Some(by_store.min(by_wall))
}

/// The wall clock, in microseconds since 1970.
fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

impl Offer {
    fn bytes(&self) -> usize {
        match &self.reply.body {
            NodeReply::Result(text) | NodeReply::Error { body: text, .. } => text.len(),
        }
    }
}

/// What brings answers up.
struct Writer {
    store: Arc<Store>,
    seal: Arc<Seal>,
    waiting: Arc<AtomicUsize>,
    tasks: TaskTracker,
}

impl Writer {
    /// Brings up what is offered until nobody can offer any more, some at once.
    async fn run(self, mut offers: mpsc::Receiver<Offer>) {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        while let Some(offer) = offers.recv().await {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let (store, seal, waiting) =
                (Arc::clone(&self.store), Arc::clone(&self.seal), Arc::clone(&self.waiting));
            self.tasks.spawn(async move {
                let bytes = offer.bytes();
                bring_up(&store, &seal, offer).await;
                waiting.fetch_sub(bytes, Ordering::Relaxed);
                drop(place);
            });
        }
    }
}

async fn bring_up(store: &Store, seal: &Arc<Seal>, offer: Offer) {
    if !store.takes_writes() {
        return;
    }
    let Some(sent_at) = store.time_of(offer.reply.sent_at) else { return };
    let Offer { name, reply, life } = offer;
    let wall_us = wall_us().saturating_sub(micros(reply.sent_at.elapsed()));
    let Reply { body, slot, confirmed, .. } = reply;
    let value = Value { slot, sent_at, wall_us, confirmed, body };
    let key = name.key().to_owned();
    let sealed = if value.text().len() > OFF_WORKER_BYTES / LONG_PART {
        let seal = Arc::clone(seal);
        tokio::task::spawn_blocking(move || seal.close(&name, &value)).await.ok()
    } else {
        Some(seal.close(&name, &value))
    };
    let Some(value) = sealed else { return };
    // It is counted, and nobody waits for it.
    let _ = store.put(&Put { key, value, sent_at, life }).await;
}
