//! The read-through cache.
//!
//! A call is looked up first. If nothing stored may serve it, the call joins a fetch or starts one. The fetch
//! makes the answer from another stored answer, or asks the shared store or a node. Unless the caller requires a
//! slot, the fetch begins with one more look-up. A node's answer is checked and stored before it is returned.
//!
//! Four rules hold throughout. Callers share one fetch if they have the same key, need the same slot, and no purge
//! came between them. A stored answer is replaced by an older one only if the stored one may not be served any
//! more. An answer never comes from a weaker commitment than the caller's, unless the followed blocks prove that
//! both commitments have the same answer (`cache/carry.rs`). The [`CacheStatus`] of an answer
//! that was stored before the call says if the answer is past its limits of age and lag.

mod answer;
mod assembled_lists;
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
mod generation;
pub mod key;
mod lookup;
#[cfg(test)]
mod model;
mod placing;
mod planned_call;
mod policy;
pub mod purge;
mod purger;
mod render;
mod second_level;
pub mod sizes;
mod status;
pub mod store;
mod verify;

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::task::TaskTracker;

pub(crate) use charge::Debt;
pub use charge::{Charge, Payer, Price};
use entry::{Entry, Payload};
use fetcher::Fetcher;
use lookup::Lookup;
use planned_call::PlannedCall;
pub use planned_call::{CacheAnswer, CallOptions, Conditions, MemoryPermit, NoConditions};
pub use purger::Purger;
pub use render::Compressor;
use render::Renderer;
use second_level::SecondLevel;
pub use status::{CacheStatus, ForwardReason};
use verify::Verifier;

use crate::error::Error;
use crate::follow::FollowedChain;
use crate::frontier::Frontier;
use crate::methods::Query;
use crate::pool::Pool;
use crate::telemetry::Metrics;
use crate::{config, redis_store};

/// A cache in front of a pool of nodes. `cache/answer.rs` leads each call through these parts.
pub struct Cache {
    /// The stored entries, and the rules for serving them.
    lookup: Arc<Lookup>,
    /// Fetches answers that are not stored.
    fetcher: Arc<Fetcher>,
    /// Writes an entry in the encoding, slice and compression that the caller wants.
    renderer: Arc<Renderer>,
    /// Removes entries from this cache and from the shared store.
    purger: Arc<Purger>,
    /// Compares hits with nodes' later answers.
    verifier: Arc<Verifier>,
    request_timeout: Duration,
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
        let renderer = Arc::new(Renderer::new(config, cores, Arc::clone(&lookup), tasks.clone()));
        let owners = (Arc::clone(&lookup), Arc::clone(&renderer), Arc::clone(&verifier));
        let fetcher = Arc::new(Fetcher::new(config, owners, second_level, pool, tasks));
        let request_timeout = config.server.request_timeout;
        Arc::new(Self { lookup, fetcher, renderer, purger, verifier, request_timeout })
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
        let plan = self.lookup.plan(query);
        let arrived_at = Instant::now();
        let call = PlannedCall { query, plan, options, charge, conditions, arrived_at };
        answer::answer_call(self, &call).await
    }

    /// Returns true if a call of `query` would be answered now without asking a node.
    pub fn holds(&self, query: &Query) -> bool {
        let min_slot = query.min_context_slot().unwrap_or(0);
        let found = self.lookup.look_up(query, &self.lookup.plan(query), min_slot);
        found.is_some_and(|(_, verdict)| verdict.is_yes())
    }

    /// Returns the compressor for long texts.
    pub fn compressor(&self) -> &Arc<Compressor> {
        self.renderer.compressor()
    }

    /// Returns the size of the stored entries in bytes, and their number.
    pub fn usage(&self) -> (u64, u64) {
        self.lookup.store.usage()
    }

    /// Returns the purger, which removes stored entries.
    pub fn purger(&self) -> &Arc<Purger> {
        &self.purger
    }

    /// Counts a hit, and has a sample of the hits compared with a node's answer.
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
