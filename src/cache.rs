//! The read-through cache.
//!
//! A call is looked up first. If nothing stored may serve it, the call joins a fetch or starts one, which makes the
//! answer from another stored answer, or asks the shared store or a node. The fetch looks up once more before that,
//! because another one may just have ended, unless the caller requires a slot. A node's answer is checked and stored
//! before it is returned.
//!
//! Four rules hold throughout:
//!
//! - Callers share one fetch if they have the same key, need the same slot, and no purge came between them.
//! - An older answer replaces a stored one only if that one may not be served any more.
//! - An answer never comes from a weaker commitment than the caller's, unless the followed blocks prove that both
//!   commitments have the same answer (`cache/carry.rs`).
//! - The [`CacheStatus`] of an answer that was stored before the call says if the answer is past its limits of age and
//!   lag.

mod answer;
mod carry;
mod charge;
pub mod derive;
pub mod entry;
mod fetched;
mod fetcher;
mod flight;
mod floors;
mod follow_stamp;
mod forms;
mod freshness;
pub mod key;
mod lookup;
#[cfg(test)]
mod model;
mod placing;
pub mod purge;
mod render;
mod second_level;
mod status;
pub mod store;
mod transaction_index;
mod verify;

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

pub(crate) use charge::Debt;
pub use charge::{Charge, Payer, Price};
use entry::{Entry, EntryMeta, Payload};
use fetched::SlotRequirement;
use fetcher::Fetcher;
pub use forms::Sizes;
use freshness::{Limit, ServeRule};
use key::LookupPlan;
use lookup::Lookup;
pub use purge::Purger;
pub use render::Compressor;
use render::Renderer;
use second_level::SecondLevel;
pub use status::{CacheStatus, ForwardReason};
use verify::Verifier;

use crate::coding::{Coding, CompressedText};
use crate::config;
use crate::error::Error;
use crate::follow::FollowedChain;
use crate::frontier::Frontier;
use crate::methods::{Method, PlainQuery, Query, Slot};
use crate::pool::{CallerId, Pool};
use crate::redis_store;
use crate::telemetry::{Metrics, Trace};

const EPOCHS_WAIT: Duration = Duration::from_secs(1);

/// A cache in front of a pool of nodes. `cache/answer.rs` leads each call through these parts.
pub struct Cache {
    lookup: Arc<Lookup>,
    fetcher: Arc<Fetcher>,
    /// Writes an entry in the encoding, slice and compression that the caller wants.
    renderer: Arc<Renderer>,
    /// Removes entries from this cache and from the shared store.
    purger: Arc<Purger>,
    verifier: Arc<Verifier>,
}

#[derive(Debug, Clone)]
pub struct CallOptions {
    /// True if the call goes to a node even if an answer is stored. The node's answer is stored all the same.
    pub bypass: bool,
    /// The moment since which the caller waits.
    pub asked_at: Instant,
    /// The time for which the caller waits.
    pub timeout: Duration,
    /// The content coding that the caller accepts. The answer may still come uncompressed.
    pub coding: Option<Coding>,
    pub caller: CallerId,
    pub trace: Trace,
}

impl CallOptions {
    fn deadline(&self) -> Instant {
        self.asked_at + self.timeout
    }
}

/// The longest text, in bytes, that is copied into one buffer to be sent. For a longer text, writing its pieces costs less
/// than copying them.
pub const JOINED_BYTES: usize = 16 * 1024;

#[derive(Debug, Clone)]
pub struct CacheAnswer {
    /// The node's result or error.
    pub payload: Payload,
    /// The source of the answer, for the `Cache-Status` header, the log and the metrics.
    pub status: CacheStatus,
    pub meta: EntryMeta,
    /// The text of `payload` in the caller's coding. `None` if the text is not compressed.
    pub compressed: Option<Arc<CompressedText>>,
    /// The entry whose text this is. `None` if the text was written for this caller, or is at most [`JOINED_BYTES`] long.
    pub shared: Option<Arc<Entry>>,
}

/// The limits of one caller that may change while its call is under way: the lowest slot that it accepts, and the
/// memory that it may use.
pub trait Conditions: Send + Sync {
    /// Returns the slot that this caller knows of. It gets no stored answer below that while a node can give a newer one.
    /// If no node reaches the slot, the caller gets an answer below it, not an error.
    fn known_slot(&self) -> Option<Slot>;

    /// Reserves memory for `bytes` bytes that are written for this caller only. `None` if memory is short.
    fn reserve_memory(&self, bytes: usize) -> Option<MemoryPermit>;
}

/// The permit for memory that is reserved for a caller. Dropping the permit frees the memory.
pub type MemoryPermit = Box<dyn Send + Sync>;

/// A caller without conditions beyond its [`CallOptions`].
pub struct NoConditions;

impl Conditions for NoConditions {
    fn known_slot(&self) -> Option<Slot> {
        None
    }

    fn reserve_memory(&self, _: usize) -> Option<MemoryPermit> {
        Some(Box::new(()))
    }
}

#[derive(Clone)]
struct PlannedCall<'a> {
    query: &'a Query,
    plan: LookupPlan,
    options: CallOptions,
    charge: &'a Charge,
    conditions: &'a dyn Conditions,
    arrived_at: Instant,
}

/// Returns the rule for a stored answer to `query` that is served at present: it must reach the caller's minContextSlot,
/// and what the caller knows of.
fn stored_rule(query: &Query, conditions: &dyn Conditions) -> ServeRule {
    let rule = ServeRule::within(Limit::Stale).at_least(query.min_context_slot().unwrap_or(0));
    rule.knowing(query, conditions.known_slot())
}

impl PlannedCall<'_> {
    fn stored_rule(&self) -> ServeRule {
        stored_rule(self.query, self.conditions)
    }

    fn rule(&self, limit: Limit) -> ServeRule {
        ServeRule::within(limit).asked_since(self.arrived_at)
    }
}

impl Cache {
    /// Creates an empty cache in front of `pool`. An account is served at later slots if the blocks in `followed`
    /// prove the account unchanged. Fetches run as tasks of `tasks`.
    pub fn new(
        config: &config::Config,
        frontier: Arc<Frontier>,
        pool: Arc<Pool>,
        followed: Arc<FollowedChain>,
        metrics: Arc<Metrics>,
        tasks: TaskTracker,
        shared: Option<&Arc<redis_store::Store>>,
    ) -> Arc<Self> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let lookup = Arc::new(Lookup::new(config, followed, frontier, metrics));
        let second_level = shared
            .map(|store| Arc::new(SecondLevel::new(config, Arc::clone(&lookup), Arc::clone(store), &tasks)));
        let purger = Arc::new(Purger::new(Arc::clone(&lookup), second_level.clone(), Arc::clone(&pool)));
        let verifier = Verifier::new(config, Arc::clone(&lookup), Arc::clone(&pool), tasks.clone());
        let renderer = Arc::new(Renderer::new(cores, Arc::clone(&lookup), Arc::clone(&pool), tasks.clone()));
        let owners = (Arc::clone(&lookup), Arc::clone(&renderer), Arc::clone(&verifier));
        let fetcher = Arc::new(Fetcher::new(owners, second_level, pool, tasks));
        Arc::new(Self { lookup, fetcher, renderer, purger, verifier })
    }

    /// Answers `query` from a stored entry or from a node. Fetches share `charge`, and make it owe their price even if
    /// the caller disconnects first. The price of the answer itself is left to the caller of this function, who may
    /// still refuse the answer.
    ///
    /// # Errors
    /// [`Error::NoUpstream`] if no node answers, [`Error::TimedOut`] if none answers in time, and
    /// [`Error::Overloaded`] if memory for the answer is short. If a stored answer may be served although the call
    /// failed, that answer is returned instead of the error.
    pub async fn answer(
        &self,
        query: &Query,
        options: CallOptions,
        charge: &Charge,
        conditions: &dyn Conditions,
    ) -> Result<CacheAnswer, Error> {
        let of_epoch =
            query.plain().filter(|call| call.is_of_epoch() && self.lookup.epoch_schedule().is_none());
        if let Some(call) = of_epoch {
            // Until the epochs are known, answers live for one slot only. No caller waits long for them, because a node may
            // hang, and only those whose question depends on them wait at all.
            let epochs = self.lookup.plan(&Query::Plain(PlainQuery::epoch_schedule()));
            let flight = self.fetcher.join_or_start_flight(&epochs, SlotRequirement::None, &options, false);
            if flight.is_leader {
                charge.share(&flight);
            }
            if matches!(call.method, Method::GetLeaderSchedule | Method::GetInflationReward) {
                let _ = timeout(EPOCHS_WAIT, flight.result()).await;
            }
        }
        let plan = self.lookup.plan(query);
        let arrived_at = Instant::now();
        let call = PlannedCall { query, plan, options, charge, conditions, arrived_at };
        answer::answer_call(self, &call).await
    }

    /// Returns true if a call of `query` would be answered now without asking a node.
    pub fn holds(&self, query: &Query, conditions: &dyn Conditions) -> bool {
        let found = self.lookup.look_up(query, &self.lookup.plan(query), &stored_rule(query, conditions));
        found.is_some_and(|(_, verdict)| verdict.is_yes())
    }

    pub fn compressor(&self) -> &Arc<Compressor> {
        self.renderer.compressor()
    }

    pub fn usage(&self) -> (u64, u64) {
        self.lookup.store.usage()
    }

    pub fn purger(&self) -> &Arc<Purger> {
        &self.purger
    }

    fn count_hit(&self, query: &Query, entry: &Entry, payload: &Payload, status: CacheStatus) {
        if !matches!(status, CacheStatus::StaleIfError { .. }) {
            self.verifier.sample(query, entry, payload);
        }
        if status == CacheStatus::Carried {
            self.lookup.count_carried(query);
        }
        if let Some((commitment, lag)) = self.lookup.freshness.slots_behind(&entry.meta) {
            #[expect(clippy::cast_precision_loss, reason = "a histogram of slots")]
            self.lookup.metrics.cache_served_lag.at(Some(commitment)).observe(lag as f64);
        }
    }
}
