//! Several nodes as one: pick one that can answer, attempt, retry elsewhere what another may answer better.
//!
//! Knows nothing of the cache. Faults stay in here as long as one node can answer; what comes out is a node's own
//! word, or [`NoUpstream`](crate::error::Error::NoUpstream) with what was tried. The surprise is that some *answers*
//! are asked elsewhere too: an absent block is not proof of absence, for each node holds its own part of history.

mod attempt;
mod budget;
mod call;
mod caller;
pub mod choices;
mod cluster;
mod confirmed;
mod forward;
mod hedge;
pub mod member;
mod members;
pub mod peak_ewma;
mod pick;
pub mod probe;
pub mod select;
mod verdict;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::Instant;

pub use attempt::Reply;
use budget::{Budget, KEPT, RETRIES_PER_SECOND};
pub use caller::Caller;
use choices::{Choice, Choices};
use confirmed::Silence;
pub use forward::Forward;
use member::Member;
pub use members::{Members, Prepared};
use peak_ewma::Quantiles;
use select::Unusable;

use crate::config;
use crate::frontier::Frontier;
use crate::methods::{Method, PerCommitment, Query, Slot};
use crate::node::BufferBudget;
use crate::node::client::ClientError;
use crate::telemetry::{Metrics, Trace};

/// What the pool is asked for.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The call as it is to go upstream.
    pub query: Query,
    /// The slot that a node should have shown to be preferred, and an answer's context to be taken. At confirmed and
    /// finalized it goes up as `minContextSlot` to a node that has shown it. Never an error: where no node reaches it the
    /// highest answer is given.
    pub floor: Option<Slot>,
    /// A slot that only orders the choice of node: at processed a fork may be dropped with its slots.
    pub prefer: Option<Slot>,
    /// One node's word, without retry (but past nodes that do not serve the method): the caller's own condition is above
    /// the frontier, and what the node says of it passes through.
    pub alone: bool,
    /// When the caller stops waiting.
    pub deadline: Instant,
    /// Who it is for; of several, the one who has waited longest.
    pub caller: Caller,
    /// The caller's place in a trace, which every attempt carries on.
    pub trace: Trace,
}

/// All upstreams, their standing and what is shared between them.
pub struct Pool {
    /// One snapshot of nodes and settings; each choice of a node reads it anew.
    members: ArcSwap<Members>,
    frontier: Arc<Frontier>,
    near_lag: PerCommitment<u64>,
    metrics: Arc<Metrics>,
    buffers: Arc<BufferBudget>,
    budget: Budget,
    hedges: Budget,
    latency: [Mutex<Quantiles>; 8],
    /// The node that cluster nodes and samples stay with, by [`Method::index`]; `usize::MAX` before the first.
    sticky: [AtomicUsize; 8],
    choices: Choices,
    silence: Mutex<Silence>,
    genesis: Mutex<Option<String>>,
    /// How many clusters this pool has been in front of, less one.
    clusters: watch::Sender<u64>,
    /// Changes whenever a probe has changed how a node stands.
    standings: watch::Sender<()>,
    next_id: AtomicU64,
    draws: AtomicU64,
    /// Where calls go in place of nodes, in tests of what stands above.
    #[cfg(test)]
    pub(crate) stand_in: std::sync::OnceLock<StandIn>,
}

/// Takes each call, with the way back for its answer.
#[cfg(test)]
pub(crate) type StandIn = tokio::sync::mpsc::UnboundedSender<(Ask, WayBack)>;
#[cfg(test)]
pub(crate) type WayBack = tokio::sync::oneshot::Sender<Result<Reply, crate::error::Error>>;

impl Pool {
    /// A pool over the configured upstreams, which `frontier` numbers from 0; nothing is asked before [`Pool::probe`]
    /// runs.
    ///
    /// # Errors
    /// The first upstream whose client cannot be built.
    pub fn new(
        config: &config::Config,
        frontier: Arc<Frontier>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, ClientError> {
        let buffers = Arc::new(BufferBudget::new(config.pool.max_buffered));
        let members = Members::new(config, &frontier, &metrics, &buffers)?;
        Ok(Self {
            members: ArcSwap::from_pointee(members),
            frontier,
            near_lag: config.cache.max_lag_slots,
            metrics,
            buffers,
            budget: Budget::new(config.pool.retry_budget, RETRIES_PER_SECOND, KEPT),
            hedges: Budget::new(hedge::share(&config.pool), 0.0, KEPT),
            latency: Default::default(),
            sticky: std::array::from_fn(|_| AtomicUsize::new(usize::MAX)),
            choices: Choices::new(),
            silence: Mutex::default(),
            genesis: Mutex::new(config.pool.genesis_hash.clone()),
            clusters: watch::Sender::new(0),
            standings: watch::Sender::new(()),
            next_id: AtomicU64::new(1),
            // Other draws than those of a gateway that was started at the same time.
            draws: AtomicU64::new(getrandom::u64().unwrap_or(1)),
            #[cfg(test)]
            stand_in: std::sync::OnceLock::new(),
        })
    }

    /// The nodes, in the order of the configuration, and the settings that they are asked with.
    pub fn members(&self) -> Arc<Members> {
        self.members.load_full()
    }

    /// Whether misses of single accounts go up together while the pool is busy.
    pub fn merges(&self) -> bool {
        self.members().settings.merge
    }

    /// The name of the node with this number, for people to read; empty if it is no longer one of them.
    pub fn name_of(&self, node: usize) -> String {
        self.members().of(node).map(|member| member.name.clone()).unwrap_or_default()
    }

    /// The cluster's genesis hash, once a node has said it, or the settings have.
    pub fn genesis(&self) -> Option<String> {
        lock(&self.genesis).clone()
    }

    /// Whether the node with this number is known to be of the pool's cluster.
    pub fn vouches_for(&self, node: usize) -> bool {
        self.members.load().of(node).is_some_and(|member| member.is_vouched_for())
    }

    /// Changes whenever the cluster behind the pool has become another one: what was kept is of no use then.
    pub fn clusters(&self) -> watch::Receiver<u64> {
        self.clusters.subscribe()
    }

    /// Every node, and why it is not usable where it is not.
    pub fn standing(&self, now: Instant) -> Vec<(Arc<Member>, Option<Unusable>)> {
        let members = self.members.load();
        let standing = |member: &Arc<Member>| {
            // Which methods a node does says nothing of how it stands.
            let unusable = member.reasons(now).max();
            (Arc::clone(member), unusable.max(self.lagging(&members, member)).max(self.unidentified(member)))
        };
        members.iter().map(standing).collect()
    }

    /// How the last call of `method` came to its node, as far as it was kept.
    pub fn last_choice(&self, method: Method) -> Option<Choice> {
        self.choices.of(method)
    }

    /// Every reason why a node is not usable for plain calls, and how far it is behind where that is one.
    pub fn reasons(&self, member: &Member, now: Instant) -> Vec<Unusable> {
        let members = self.members.load();
        let mut reasons: Vec<_> = member.reasons(now).chain(self.lagging(&members, member)).collect();
        reasons.extend(self.unidentified(member).filter(|unidentified| !reasons.contains(unidentified)));
        reasons
    }

    /// How long the given share of this method's recent answers took at most; `None` while too few are known.
    fn quantile(&self, method: Method, share: f64) -> Option<Duration> {
        lock(&self.latency[method.index()]).at(share)
    }

    fn observe_latency(&self, method: Method, latency: Duration) {
        lock(&self.latency[method.index()]).observe(latency);
    }

    fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// A cheap random number (`SplitMix64`): the choice of two nodes needs spread, not secrecy.
    fn draw(&self) -> u64 {
        let mut z = self.draws.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A lock that a panic elsewhere does not spoil: all that is kept behind one is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
