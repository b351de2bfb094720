//! The read-through cache.
//!
//! A call is looked up, derived from another held answer, or fetched. Callers with the same question share
//! one fetch. A node's answer is checked and stored before it is returned.
//!
//! Three rules hold throughout. One question has at most one fetch under way. A stored answer is never
//! replaced by an older one. An answer never comes from a weaker commitment than the caller's. An answer past
//! its bounds says so in its [`CacheStatus`].

mod answer;
mod basis;
mod charge;
pub mod class;
mod coded;
pub mod derive;
pub mod entry;
mod fetched;
mod fetcher;
pub mod flight;
mod floors;
mod forms;
pub mod freshness;
mod generation;
mod held_entries;
pub mod key;
mod lookup;
mod merge;
#[cfg(test)]
mod model;
mod options;
mod planned_call;
mod policy;
pub mod purge;
mod render;
mod renderer;
mod second_level;
pub mod sizes;
pub mod status;
pub mod store;
pub mod verify;

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use basis::Basis;
pub use charge::Charge;
pub use coded::Compressor;
use entry::EntryMeta;
use fetcher::Fetcher;
use lookup::Lookup;
pub use options::{CacheAnswer, CallOptions, Conditions, MemoryPermit, NoConditions};
use planned_call::PlannedCall;
use renderer::Renderer;
use second_level::SecondLevel;
pub use status::{CacheStatus, ForwardReason};

use crate::config;
use crate::error::Error;
use crate::frontier::Frontier;
use crate::methods::Query;
use crate::pool::Pool;
use crate::redis_store;
use crate::telemetry::{Metrics, Outcome};

/// The interval between two reads of the purge lists that other gateways write.
const PURGE_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The interval between two checks for the genesis hash of the pool's cluster.
const GENESIS_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The cache over a pool: three owners, and the way of a call through them (`cache/answer.rs`).
pub struct Cache {
    /// The held entries, and the rules for serving them.
    lookup: Arc<Lookup>,
    /// Fetches answers that are not held.
    fetcher: Arc<Fetcher>,
    /// Writes an entry in the caller's form and coding.
    renderer: Arc<Renderer>,
    frontier: Arc<Frontier>,
    request_timeout: Duration,
}

impl Cache {
    /// Creates an empty cache over `pool`. Fetches run as tasks of `tasks`.
    pub fn new(
        config: &config::Config,
        frontier: Arc<Frontier>,
        pool: Arc<Pool>,
        metrics: Arc<Metrics>,
        tasks: TaskTracker,
        shared: Option<&Arc<redis_store::Store>>,
    ) -> Arc<Self> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let lookup = Arc::new(Lookup::new(&config.cache, Arc::clone(&frontier), Arc::clone(&metrics)));
        let renderer =
            Renderer::new(config, cores, Arc::clone(&lookup), Arc::clone(&pool), &metrics, tasks.clone());
        let renderer = Arc::new(renderer);
        let owners = (Arc::clone(&lookup), Arc::clone(&renderer));
        let fetcher =
            Arc::new(Fetcher::new(config, owners, Arc::clone(&frontier), pool, metrics, tasks, shared));
        Arc::new(Self { lookup, fetcher, renderer, frontier, request_timeout: config.server.request_timeout })
    }

    /// Answers `query` from a held entry or from a node. `charge` books the call, even if the caller
    /// disconnects first.
    ///
    /// # Errors
    /// Unless a held answer may stand in: [`Error::NoUpstream`] if no node answers, [`Error::TimedOut`] if
    /// none answers in time, and [`Error::Overloaded`] if memory for the answer is short.
    pub async fn answer(
        &self,
        query: &Query,
        options: CallOptions,
        charge: Charge,
        conditions: &dyn Conditions,
    ) -> Result<CacheAnswer, Error> {
        let plan = self.lookup.plan(query);
        let reason = if options.bypass { ForwardReason::Request } else { ForwardReason::Miss };
        let (charge, arrived_at) = (&charge, Instant::now());
        let call =
            PlannedCall { query, plan, reason, options, charge, conditions, arrived_at, is_retry: false };
        answer::answer(self, call).await
    }

    /// Returns true if an answer, which waited for other answers of its batch, may still leave: it is within its bounds, and
    /// nobody was shown a newer one meanwhile.
    pub fn still_serves(&self, query: &Query, meta: &EntryMeta, status: CacheStatus) -> bool {
        let basis = match status {
            CacheStatus::Hit { .. } => Basis::Found,
            CacheStatus::StaleIfError { .. } => Basis::StandIn,
            // Another caller's call brought the answer, or a part of it was held.
            other => Basis::Joined(other, Outcome::Collapsed),
        };
        let plan = self.lookup.plan(query);
        self.lookup.held.status(meta, basis).is_some() && !self.lookup.held.is_behind(&plan, meta, basis)
    }

    /// Returns the compressor of long texts.
    pub fn compressor(&self) -> &Arc<Compressor> {
        self.renderer.compressor()
    }

    /// Returns the bytes held and the number of entries.
    pub fn usage(&self) -> (u64, u64) {
        self.lookup.held.usage()
    }

    /// Returns true if a shared store is configured and answers.
    pub fn shares(&self) -> bool {
        self.fetcher.second().is_some_and(SecondLevel::is_available)
    }

    /// Removes all entries. Fetches under way are not stored and not given to later callers. Answers that the
    /// shared store got before this moment are ignored from now on.
    pub fn clear(&self) {
        self.lookup.held.end_generation();
        if let Some(second) = self.fetcher.second() {
            second.ignore_before(Instant::now());
        }
        self.lookup.held.clear();
    }

    /// Removes the entries that match `filter`, and returns their number. Walks over all entries, so an async
    /// worker must not call this. Matching answers in the shared store are ignored from now on.
    /// [`Self::share_purges`] informs the other gateways.
    pub fn purge(&self, filter: &purge::Filter) -> u64 {
        if let Some(second) = self.fetcher.second() {
            second.purge(self.fetcher.genesis().as_deref(), filter, Instant::now());
        }
        self.lookup.held.purge(&[*filter])
    }

    /// Removes all entries and purges the shared store for each cluster that this gateway has belonged to.
    /// Needed after a node of another cluster was asked: its answers may have been shared under the name of
    /// any of those clusters.
    pub fn purge_all_clusters(&self) {
        if let Some(second) = self.fetcher.second() {
            second.purge_all_clusters(Instant::now());
        }
        self.lookup.held.purge(&[purge::Filter::default()]);
    }

    /// Exchanges purges with the other gateways until `stop` is cancelled.
    pub fn watch_purges(self: &Arc<Self>, tasks: &TaskTracker, stop: &CancellationToken) {
        let (cache, stop) = (Arc::clone(self), stop.clone());
        tasks.spawn(async move {
            let watching = async {
                let Some(second) = cache.fetcher.second() else { return };
                loop {
                    let is_identified = cache.fetcher.genesis().is_some();
                    cache.share_purges().await;
                    // The store is not read before its purges for this cluster are known, so a new cluster is
                    // looked up at once.
                    let reason_to_look = async {
                        tokio::select! {
                            () = second.connected() => {}
                            () = cache.identified(), if !is_identified => {}
                        }
                    };
                    let _ = tokio::time::timeout(PURGE_POLL_INTERVAL, reason_to_look).await;
                }
            };
            stop.run_until_cancelled(watching).await;
        });
    }

    /// Waits until the cluster of the pool is known.
    async fn identified(&self) {
        while self.fetcher.genesis().is_none() {
            tokio::time::sleep(GENESIS_POLL_INTERVAL).await;
        }
    }

    /// Writes own purges to the shared store and applies those of other gateways. Returns true if the store
    /// has all of this gateway's purges, and `None` if no store is configured.
    pub async fn share_purges(&self) -> Option<bool> {
        let genesis = self.fetcher.genesis();
        Some(self.fetcher.second()?.share_purges(&self.lookup, genesis.as_deref()).await)
    }
}
