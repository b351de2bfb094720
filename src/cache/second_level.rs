//! The second level of the cache: answers that other gateways have put into the shared store.
//!
//! A fetch that callers share reads the store after this gateway's own cache and before it asks a node. All callers
//! with the same question thus cost one read. An answer found there is treated like a node's: the same caching rules
//! apply, with this gateway's newest known slots, stored entries and clock. An answer is not used if it is older than a
//! stored one, expired, unreadable, or implausibly far above the newest known slot.
//!
//! Answers of nodes are written to the store in the background. They wait in a queue, which limits their
//! number and their total size. An answer that does not fit into the queue is not shared.

mod generations;
mod value;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::entry::Class;
use super::fetched::SlotRequirement;
use super::key::{Key, LookupPlan};
use super::lookup::Lookup;
use crate::config;
use crate::methods::{Query, Slot};
use crate::node::shape::BlockList;
use crate::node::{NodeReply, OFF_WORKER_BYTES};
use crate::pool::{Pool, PoolReply};
use crate::redis_store::{PutRequest, Store, StoreTime, StoredValues, micros};
use crate::telemetry::{SharedOperation, SharedResult};
use generations::Generations;
use value::{SecondLevelKey, SharedValue, ValueMac};

const WORTH_SHARING: Duration = Duration::from_secs(2);
/// The maximum number of answers that may wait to be written to the shared store.
const QUEUE: usize = 1024;
/// The maximum total size of the answers that wait to be written to the shared store, in bytes.
const QUEUE_BYTES: usize = 64 << 20;
/// The maximum number of answers that are written to the shared store at the same time.
const AT_ONCE: usize = 8;
/// The assumed factor by which compressing and signing a text takes longer than other work on it. Texts longer
/// than [`OFF_WORKER_BYTES`] divided by this factor are processed on blocking threads.
const LONG_PART: usize = 4;
const NO_NODE: usize = usize::MAX;

/// The shared store as the second level of the cache.
pub(super) struct SecondLevel {
    lookup: Arc<Lookup>,
    store: Arc<Store>,
    mac: Arc<ValueMac>,
    queue: mpsc::Sender<WriteBack>,
    /// The total size of the queued answers in bytes.
    waiting: Arc<AtomicUsize>,
    /// The longest text that is accepted from the store, in bytes.
    max_text: usize,
    /// The moment at which the cache was last cleared, for example after the machine was suspended. Answers
    /// in the store that were asked for before that moment are ignored.
    not_before: Mutex<Option<Instant>>,
    pub(super) generations: Generations,
    tasks: TaskTracker,
}

/// A node's answer that waits to be written to the shared store.
struct WriteBack {
    name: SecondLevelKey,
    reply: PoolReply,
    generation: u64,
    life: Duration,
}

impl SecondLevel {
    pub(super) fn new(
        config: &config::Config,
        lookup: Arc<Lookup>,
        store: Arc<Store>,
        tasks: &TaskTracker,
    ) -> Self {
        let secret = config.shared.as_ref().and_then(|shared| shared.secret.as_ref());
        let mac = Arc::new(ValueMac::new(secret));
        let (queue, write_backs) = mpsc::channel(QUEUE);
        let waiting = Arc::default();
        let owners = (Arc::clone(&store), Arc::clone(&mac));
        tasks.spawn(write_all(write_backs, owners, Arc::clone(&waiting), tasks.clone()));
        let max_text = usize::try_from(config.cache.max_entry).unwrap_or(usize::MAX);
        let tasks = tasks.clone();
        let (not_before, generations) = (Mutex::default(), Generations::default());
        Self { lookup, store, mac, queue, waiting, max_text, not_before, generations, tasks }
    }

    pub(super) fn is_available(&self) -> bool {
        self.store.is_there() && self.generations.is_any_known()
    }

    /// Looks for an answer to `plan` that another gateway has written to the shared store. `None` if the
    /// store is not asked, or does not answer.
    pub(super) async fn find(
        &self,
        pool: &Pool,
        plan: &LookupPlan,
        requirement: SlotRequirement,
    ) -> Option<SharedAnswers> {
        let min_slot = match requirement {
            SlotRequirement::None => 0,
            SlotRequirement::AtLeast(slot) => slot,
            // If the caller itself sets a minContextSlot, only a node may answer, not the store.
            SlotRequirement::CallerMinimum(_) => return None,
        };
        // Checked before any work, so that a miss loses no time while the store does not answer.
        if !self.is_available() {
            self.lookup.metrics.shared_requests.at((SharedOperation::Get, SharedResult::Skipped)).inc();
            return None;
        }
        // The generation is read before the genesis hash. If the pool leaves the cluster in between, the
        // answer is not stored.
        let generation = self.lookup.generation.number();
        let (genesis, reads) = self.planned_reads(pool, plan)?;
        let Some(current) = self.generations.current(&genesis) else {
            self.lookup.metrics.shared_requests.at((SharedOperation::Get, SharedResult::Skipped)).inc();
            return None;
        };
        let keys: Vec<_> = reads.iter().map(|(name, _)| name.key().to_owned()).collect();
        let found = self.store.get(&keys).await.ok()?;
        let took = found.asked_at.elapsed();
        let (candidate, foreign) = self.newest_usable(current, reads, found, min_slot).await;
        Some(SharedAnswers { candidate, foreign, took, generation })
    }

    /// Counts a read of the shared store in the metrics. `taken` is true if an answer was used. `foreign` is
    /// true if an answer was unreadable. `took` is the duration of the read.
    pub(super) fn count(&self, taken: bool, foreign: bool, took: Duration) {
        let result = match (taken, foreign) {
            (true, _) => SharedResult::Hit,
            (false, true) => SharedResult::Foreign,
            (false, false) => SharedResult::Miss,
        };
        self.store.count(SharedOperation::Get, result, took);
    }

    /// Returns two values: the genesis hash of the cluster; and the names in the shared store under which an
    /// answer to `plan` may be found, each with the plan for that answer. `None` while the cluster is unknown, or if the answer's time to live is
    /// too short for sharing.
    fn planned_reads(
        &self,
        pool: &Pool,
        plan: &LookupPlan,
    ) -> Option<(String, Vec<(SecondLevelKey, LookupPlan)>)> {
        if self.lookup.freshness.ttl(plan.class) < WORTH_SHARING {
            return None;
        }
        let genesis = pool.genesis()?;
        let planned = |key: &Key| {
            let name = self.mac.name(self.store.namespace(), &genesis, key)?;
            let mut plan = plan.clone();
            // A stored account is parsed in the form that its key names, even if `plan` asks for another form first.
            let form = match (key, &mut plan.upstream) {
                (Key::Account(_, form, _), Query::Account(q)) => Some((form, &mut q.form)),
                (Key::Accounts(_, form, _), Query::Accounts(q)) => Some((form, &mut q.form)),
                _ => None,
            };
            if let Some((stored, asked)) = form
                && plan.key != *key
            {
                *asked = *stored;
                plan.alternate_key = Some(std::mem::replace(&mut plan.key, key.clone()));
            }
            Some((name, plan))
        };
        let reads = plan.keys().filter_map(planned).collect();
        Some((genesis, reads))
    }

    /// Returns two values: the newest answer in `found` that may be used; and true if an answer was
    /// unreadable. Unreadable and purged answers are deleted from the store.
    async fn newest_usable(
        &self,
        current: u64,
        reads: Vec<(SecondLevelKey, LookupPlan)>,
        found: StoredValues,
        min_slot: Slot,
    ) -> (Option<SharedAnswer>, bool) {
        let StoredValues { values, read_at, asked_at } = found;
        let (mut best, mut foreign): (Option<SharedAnswer>, _) = (None, false);
        for ((name, plan), bytes) in reads.into_iter().zip(values) {
            let Some(bytes) = bytes else { continue };
            let Some((value, blocks)) = self.read(&name, &plan.upstream, bytes).await else {
                foreign = true;
                self.delete(&name);
                continue;
            };
            let Some(sent_at) = sent_at(&value, read_at, asked_at) else { continue };
            if value.generation < current || self.is_emptied(sent_at) {
                // The store would refuse an answer of a lower slot as long as it has the purged one.
                self.delete(&name);
                continue;
            }
            let SharedValue { slot, body, .. } = value;
            let (node, finalized, is_short) = (NO_NODE, Slot::MAX, false);
            let reply = PoolReply { node, body, sent_at, slot, finalized, is_short, blocks };
            let newest = best.as_ref().is_none_or(|(_, best)| (best.slot, best.sent_at) < (slot, sent_at));
            if newest && self.lookup.accepts_shared(&plan, &reply, min_slot) {
                best = Some((plan, reply));
            }
        }
        (best, foreign)
    }

    /// Queues a node's answer to be written to the shared store. `key` is the key of the answer in this
    /// gateway. Does nothing if answers of `class` expire too soon to be worth sharing. Returns at once.
    pub(super) fn queue_write_back(&self, pool: &Pool, key: &Key, reply: &PoolReply, class: Class) {
        let life = self.lookup.freshness.ttl(class);
        if life < WORTH_SHARING || !self.store.takes_writes() || !pool.is_of_cluster(reply.node) {
            return;
        }
        let Some(genesis) = pool.genesis() else { return };
        let Some(generation) = self.generations.current(&genesis) else { return };
        let Some(name) = self.mac.name(self.store.namespace(), &genesis, key) else { return };
        self.enqueue(WriteBack { name, reply: reply.clone(), generation, life });
    }

    /// Writes this gateway's purges to the shared store and applies those of other gateways. Returns true if
    /// the store has all of this gateway's purges.
    pub(super) async fn share_purges(&self, genesis: Option<&str>) -> bool {
        self.generations.exchange(&self.store, &self.mac, genesis, &self.lookup).await
    }

    pub(super) async fn connected(&self) {
        self.store.connected().await;
    }

    /// Ignores all answers in the shared store that were asked for before `now`.
    pub(super) fn ignore_before(&self, now: Instant) {
        *self.not_before.lock() = Some(now);
    }

    /// Returns true if an answer that was asked for at `sent_at` is from before this gateway's cache was cleared.
    fn is_emptied(&self, sent_at: Instant) -> bool {
        let emptied = *self.not_before.lock();
        emptied.is_some_and(|emptied| sent_at <= emptied)
    }

    /// Decodes the bytes of an answer to `query` in the shared store. `None` if they are unreadable, too long or written
    /// under another name.
    async fn read(
        &self,
        name: &SecondLevelKey,
        query: &Query,
        bytes: Bytes,
    ) -> Option<(SharedValue, Option<BlockList>)> {
        let is_long = bytes.len() >= OFF_WORKER_BYTES / LONG_PART;
        let (mac, name, max_text) = (Arc::clone(&self.mac), name.clone(), self.max_text);
        let query = query.clone();
        let decode = move || {
            let value = mac.decode(&name, &bytes, max_text)?;
            let blocks = BlockList::read(&query, value.text());
            Some((value, blocks))
        };
        if is_long { tokio::task::spawn_blocking(decode).await.ok().flatten() } else { decode() }
    }

    /// Deletes an unreadable or purged answer from the shared store. The store keeps the answer of the
    /// highest slot, so a useless answer could keep newer ones out.
    fn delete(&self, name: &SecondLevelKey) {
        let (store, key) = (Arc::clone(&self.store), name.key().to_owned());
        self.tasks.spawn(async move { store.forget(&key).await });
    }

    /// Queues an answer to be written to the shared store, unless the queue is full.
    fn enqueue(&self, queued: WriteBack) {
        let bytes = queued.bytes();
        let room = self.waiting.fetch_add(bytes, Ordering::Relaxed) + bytes <= QUEUE_BYTES;
        if !room || self.queue.try_send(queued).is_err() {
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
            self.lookup.metrics.shared_requests.at((SharedOperation::Put, SharedResult::Dropped)).inc();
        }
    }
}

type SharedAnswer = (LookupPlan, PoolReply);

/// The result of a read of the shared store.
pub(super) struct SharedAnswers {
    pub(super) candidate: Option<SharedAnswer>,
    /// True if an answer in the store was unreadable.
    pub(super) foreign: bool,
    pub(super) took: Duration,
    /// The number of purges of the cache when the store was asked.
    pub(super) generation: u64,
}

/// Returns the time at which an answer was asked for, by this gateway's clock. The age of the answer is
/// computed twice: by the store's clock, and by the wall clocks of the two gateways. The higher age counts,
/// so that a single wrong clock cannot make an answer younger.
fn sent_at(value: &SharedValue, read_at: StoreTime, asked_at: Instant) -> Option<Instant> {
    let by_store = asked_at.checked_sub(Duration::from_micros(read_at.saturating_sub(value.sent_at)))?;
    let by_wall =
        Instant::now().checked_sub(Duration::from_micros(wall_us().saturating_sub(value.wall_us)))?;
    Some(by_store.min(by_wall))
}

/// Returns the time of the wall clock, in microseconds since 1970.
fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

impl WriteBack {
    fn bytes(&self) -> usize {
        match &self.reply.body {
            NodeReply::Result(text) | NodeReply::Error { body: text, .. } => text.len(),
        }
    }
}

/// Writes queued answers to the shared store, several at once, until no sender is left.
async fn write_all(
    mut write_backs: mpsc::Receiver<WriteBack>,
    (store, mac): (Arc<Store>, Arc<ValueMac>),
    waiting: Arc<AtomicUsize>,
    tasks: TaskTracker,
) {
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    while let Some(queued) = write_backs.recv().await {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let (store, mac, waiting) = (Arc::clone(&store), Arc::clone(&mac), Arc::clone(&waiting));
        tasks.spawn(async move {
            let bytes = queued.bytes();
            write_back(&store, &mac, queued).await;
            waiting.fetch_sub(bytes, Ordering::Relaxed);
            drop(permit);
        });
    }
}

async fn write_back(store: &Store, mac: &Arc<ValueMac>, queued: WriteBack) {
    if !store.takes_writes() {
        return;
    }
    let Some(sent_at) = store.time_of(queued.reply.sent_at) else { return };
    let WriteBack { name, reply, generation, life } = queued;
    let wall_us = wall_us().saturating_sub(micros(reply.sent_at.elapsed()));
    let PoolReply { body, slot, .. } = reply;
    let value = SharedValue { slot, generation, sent_at, wall_us, body };
    let key = name.key().to_owned();
    let sealed = if value.text().len() > OFF_WORKER_BYTES / LONG_PART {
        let mac = Arc::clone(mac);
        tokio::task::spawn_blocking(move || mac.encode(&name, &value)).await.ok()
    } else {
        Some(mac.encode(&name, &value))
    };
    let Some(value) = sealed else { return };
    // A failed write is counted by the store.
    let _ = store.put(&PutRequest { key, value, sent_at, life }).await;
}

#[cfg(test)]
mod tests;
