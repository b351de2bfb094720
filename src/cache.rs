//! The read-through cache: look up, derive, join or lead a flight, judge what landed and keep it.
//!
//! Never asks twice at once for the same, never replaces an answer by an older one, never answers for a stronger
//! commitment than the one that was asked. What it serves past its bounds says so in its [`CacheStatus`].

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
pub use options::{CacheAnswer, CallOptions, Conditions, NoConditions, Room};
use planned_call::PlannedCall;
use renderer::Renderer;
use second_level::SecondLevel;
pub use status::{CacheStatus, Why};

use crate::config;
use crate::error::Error;
use crate::frontier::Frontier;
use crate::methods::Query;
use crate::pool::Pool;
use crate::shared as shared_store;
use crate::telemetry::Metrics;

/// The time between two looks at the purges of other gateways.
const LOOK: Duration = Duration::from_secs(1);
/// The time between two looks at whether the pool's cluster is known.
const IDENTIFIED_WITHIN: Duration = Duration::from_millis(20);

/// The cache over a pool: three owners, and the way of a call through them (`cache/answer.rs`).
pub struct Cache {
    /// What is held, and may serve.
    lookup: Arc<Lookup>,
    /// What is not held.
    fetcher: Arc<Fetcher>,
    /// An entry in the caller's form and coding.
    renderer: Arc<Renderer>,
    frontier: Arc<Frontier>,
    request_timeout: Duration,
}

impl Cache {
    /// Creates an empty cache over `pool`; fetches run as tasks of `tasks`.
    pub fn new(
        config: &config::Config,
        frontier: Arc<Frontier>,
        pool: Arc<Pool>,
        metrics: Arc<Metrics>,
        tasks: TaskTracker,
        shared: Option<&Arc<shared_store::Store>>,
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

    /// Answers `query` from what is kept, or from a node. The call is booked by `charge`, even if its caller goes meanwhile.
    ///
    /// # Errors
    /// [`Error::NoUpstream`] if no node answers, [`Error::TimedOut`] if none does in time, and [`Error::Overloaded`] if there
    /// is no room for the answer, unless a kept answer may stand in.
    pub async fn answer(
        &self,
        query: &Query,
        options: CallOptions,
        charge: Charge,
        conditions: &dyn Conditions,
    ) -> Result<CacheAnswer, Error> {
        let plan = self.lookup.plan(query);
        let why = if options.bypass { Why::Request } else { Why::Miss };
        let (charge, came) = (&charge, Instant::now());
        let call = PlannedCall { query, plan, why, options, charge, conditions, came, is_anew: false };
        answer::answer(self, call).await
    }

    /// Returns true if a hit, which waited for other answers of its batch, still is one: it is within its bounds, and nobody
    /// was shown a newer one meanwhile.
    pub fn still_serves(&self, query: &Query, stamp: &EntryMeta, status: CacheStatus) -> bool {
        let basis =
            if matches!(status, CacheStatus::StaleIfError { .. }) { Basis::StandIn } else { Basis::Found };
        let plan = self.lookup.plan(query);
        self.lookup.held.status(stamp, basis).is_some() && !self.lookup.held.is_behind(&plan, stamp, basis)
    }

    /// Returns the compressor of long texts.
    pub fn compressor(&self) -> &Arc<Compressor> {
        self.renderer.compressor()
    }

    /// Returns the bytes held and the number of entries.
    pub fn usage(&self) -> (u64, u64) {
        self.lookup.held.usage()
    }

    /// Returns true if there is a shared store, and it answers.
    pub fn shares(&self) -> bool {
        self.fetcher.second().is_some_and(SecondLevel::is_there)
    }

    /// Forgets everything. What nodes are being asked just now is not kept, nor given to callers who ask from now on. What
    /// was asked for until now is not taken from the shared store any more either.
    pub fn clear(&self) {
        self.lookup.held.end_generation();
        if let Some(second) = self.fetcher.second() {
            second.nothing_before(Instant::now());
        }
        self.lookup.held.clear();
    }

    /// Forgets what `filter` takes, and returns the number of entries; no work for an async worker. What of it is in the
    /// shared store is not taken any more; [`Self::share_purges`] tells the other gateways.
    pub fn purge(&self, filter: &purge::Filter) -> u64 {
        if let Some(second) = self.fetcher.second() {
            second.purge(self.fetcher.genesis().as_deref(), filter, Instant::now());
        }
        self.lookup.held.purge(&[*filter])
    }

    /// Forgets everything, since a node of another cluster was asked, or the pool has become one: the shared store may have
    /// what such a node gave, in the name of any cluster that this gateway has been of.
    pub fn purge_all_clusters(&self) {
        if let Some(second) = self.fetcher.second() {
            second.purge_all_clusters(Instant::now());
        }
        self.lookup.held.purge(&[purge::Filter::default()]);
    }

    /// Keeps the purges of all gateways known here, until `stop`.
    pub fn watch_purges(self: &Arc<Self>, tasks: &TaskTracker, stop: &CancellationToken) {
        let (cache, stop) = (Arc::clone(self), stop.clone());
        tasks.spawn(async move {
            let watching = async {
                let Some(second) = cache.fetcher.second() else { return };
                loop {
                    let is_identified = cache.fetcher.genesis().is_some();
                    cache.share_purges().await;
                    // Nothing is taken from the store before its purges for this cluster are known.
                    let reason_to_look = async {
                        tokio::select! {
                            () = second.connected() => {}
                            () = cache.identified(), if !is_identified => {}
                        }
                    };
                    let _ = tokio::time::timeout(LOOK, reason_to_look).await;
                }
            };
            stop.run_until_cancelled(watching).await;
        });
    }

    /// Waits until the cluster of the pool is known.
    async fn identified(&self) {
        while self.fetcher.genesis().is_none() {
            tokio::time::sleep(IDENTIFIED_WITHIN).await;
        }
    }

    /// Brings purges to the shared store, and does here what others have purged. Returns whether the store has all of this
    /// gateway's, or `None` if there is no such store.
    pub async fn share_purges(&self) -> Option<bool> {
        let genesis = self.fetcher.genesis();
        Some(self.fetcher.second()?.share_purges(&self.lookup, genesis.as_deref()).await)
    }
}
