//! Several nodes as one. The pool picks a node, sends the call, and asks another node if that may give a
//! better answer.
//!
//! The pool knows nothing of the cache. A fault stays in here while another node can answer. The result is a
//! node's own answer, or [`NoUpstream`](crate::error::Error::NoUpstream) with every attempt. Some answers are
//! confirmed by a second node: a missing block does not prove absence, because each node holds its own part
//! of history.

mod attempt;
mod budget;
mod call;
mod caller;
pub mod choices;
mod cluster;
mod confirmed;
pub mod health;
mod hedge;
pub mod member;
mod members;
mod nodes;
mod passthrough;
pub mod peak_ewma;
pub mod probe;
mod prober;
mod reply;
mod request;
pub mod select;
mod selector;
mod upstream_call;
mod verdict;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use budget::{Budget, KEPT, RETRIES_PER_SECOND};
pub use caller::{CallContext, CallerId};
use choices::Choice;
use cluster::Cluster;
use confirmed::ConfirmedWatch;
use member::Member;
pub use members::{Members, Prepared};
use nodes::Nodes;
pub use passthrough::PassthroughRequest;
use peak_ewma::Latencies;
pub use reply::PoolReply;
pub use request::UpstreamRequest;
use select::Unusable;
use selector::Selector;

use crate::config;
use crate::error::Error;
use crate::frontier::Frontier;
use crate::methods::Method;
use crate::node::client::ClientError;
use crate::node::{BufferBudget, NodeReply};
use crate::telemetry::Metrics;

/// All upstream nodes, and the state that calls to them share.
pub struct Pool {
    nodes: Nodes,
    selector: Selector,
    latencies: Latencies,
    retries: Budget,
    hedges: Budget,
    confirmed: ConfirmedWatch,
    buffers: Arc<BufferBudget>,
    metrics: Arc<Metrics>,
    next_id: AtomicU64,
    /// Receives every call in place of the nodes, in tests of the code above the pool.
    #[cfg(test)]
    pub(crate) fake_node: std::sync::OnceLock<FakeNode>,
}

/// A receiver of calls, each with the sender for its answer.
#[cfg(test)]
pub(crate) type FakeNode = tokio::sync::mpsc::UnboundedSender<(UpstreamRequest, ReplySender)>;
#[cfg(test)]
pub(crate) type ReplySender = tokio::sync::oneshot::Sender<Result<PoolReply, Error>>;

impl Pool {
    /// Returns a pool over the configured upstreams, which `frontier` numbers from 0. No node is asked before
    /// [`Pool::probe`] runs.
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
        let cluster = Cluster::new(config.pool.genesis_hash.clone(), Arc::clone(&frontier));
        Ok(Self {
            nodes: Nodes::new(members, cluster, frontier, config.cache.max_lag_slots),
            selector: Selector::new(),
            latencies: Latencies::default(),
            retries: Budget::new(config.pool.retry_budget, RETRIES_PER_SECOND, KEPT),
            hedges: Budget::new(hedge_share(&config.pool), 0.0, KEPT),
            confirmed: ConfirmedWatch::default(),
            buffers,
            metrics,
            next_id: AtomicU64::new(1),
            #[cfg(test)]
            fake_node: std::sync::OnceLock::new(),
        })
    }

    /// Asks nodes for a typed query until one answers, inside the request's deadline, `pool.retries` and the retry budget.
    ///
    /// # Errors
    /// [`Error::NoUpstream`] with every attempt. Ending the call at its deadline is left to the caller.
    pub async fn call(&self, request: &UpstreamRequest) -> Result<PoolReply, Error> {
        #[cfg(test)]
        if let Some(fake_node) = self.fake_node.get() {
            let (reply_sender, answer) = tokio::sync::oneshot::channel();
            let _ = fake_node.send((request.clone(), reply_sender));
            return answer.await.unwrap_or_else(|_| Err(Error::NoUpstream(Vec::new())));
        }
        call::run(self, request).await
    }

    /// Asks nodes for a passthrough method, as [`Pool::call`] does for a typed query.
    ///
    /// # Errors
    /// As for [`Pool::call`].
    pub async fn pass_through(&self, request: &PassthroughRequest) -> Result<NodeReply, Error> {
        call::run(self, request).await
    }

    /// Returns the node that `request` goes to first, and takes one of its calls a second. For benches.
    pub fn first_choice(&self, request: &UpstreamRequest) -> Option<Arc<Member>> {
        self.selector.pick(&self.nodes, request, &[], None).ok()
    }

    /// Starts to probe every node that is not probed yet, each in a task of its own. A task ends with `stop`, or once its
    /// node has left the pool.
    pub fn probe(self: &Arc<Self>, tasks: &TaskTracker, stop: &CancellationToken) {
        for member in self.members().iter().filter(|member| member.begin_probing()) {
            let (pool, stop, id) = (Arc::clone(self), stop.clone(), member.id);
            tasks.spawn(async move {
                let probing = prober::probe_node(&pool.nodes, &pool.selector, id);
                let _ = stop.run_until_cancelled(probing).await;
            });
        }
    }

    /// Prepares the nodes and settings of `config`. Nothing changes until [`Pool::put_in_force`].
    ///
    /// # Errors
    /// The first upstream whose client cannot be built.
    pub fn prepare(&self, config: &config::Config) -> Result<Prepared, ClientError> {
        self.nodes.load().prepare(config, &self.buffers)
    }

    /// Puts a prepared configuration in force, in one step. [`Pool::probe`] must follow for the new nodes.
    /// Reloads come one at a time: the nodes must still be those with which the configuration was prepared.
    ///
    /// # Panics
    /// If another configuration was put in force since this one was prepared.
    pub fn put_in_force(&self, prepared: Prepared) {
        let before = self.nodes.snapshot();
        let settings = prepared.settings.clone();
        let after = Arc::new(before.reconfigured(prepared, &self.nodes.frontier, &self.metrics));
        self.buffers.set_limit(settings.max_buffered);
        self.retries.set_share(settings.retry_budget);
        self.hedges.set_share(hedge_share(&settings));
        self.nodes.replace(Arc::clone(&after));
        let now = Instant::now();
        for gone in before.iter().filter(|member| after.of(member.id).is_none()) {
            self.nodes.frontier.leave(gone.id, now);
            tracing::info!(upstream.name = gone.name, "upstream removed: its calls in flight continue");
        }
        for added in after.iter().filter(|member| before.of(member.id).is_none()) {
            tracing::info!(upstream.name = added.name, "upstream added");
        }
        self.metrics.retain_upstreams(|name| after.named(name).is_some());
        if let Some(genesis) = settings.genesis_hash
            && before.settings.genesis_hash.as_ref() != Some(&genesis)
        {
            self.nodes.cluster.configure(&after, &genesis);
        }
    }

    /// Returns the nodes, in the order of the configuration, and the settings that they are asked with.
    pub fn members(&self) -> Arc<Members> {
        self.nodes.snapshot()
    }

    /// Returns true if calls for single accounts are merged while the pool is busy.
    pub fn merges(&self) -> bool {
        self.nodes.load().settings.merge
    }

    /// Returns the name of the node with this number, for people to read; empty if the node has left the pool.
    pub fn name_of(&self, node: usize) -> String {
        self.nodes.load().of(node).map(|member| member.name.clone()).unwrap_or_default()
    }

    /// Returns the cluster's genesis hash, once it is configured or a node has reported it.
    pub fn genesis(&self) -> Option<String> {
        self.nodes.cluster.genesis()
    }

    /// Returns true if the node with this number is known to belong to the pool's cluster.
    pub fn is_of_cluster(&self, node: usize) -> bool {
        self.nodes.load().of(node).is_some_and(|member| member.is_of_cluster())
    }

    /// Returns a receiver that changes whenever the cluster behind the pool has become another one. Earlier
    /// answers are invalid from then on.
    pub fn clusters(&self) -> watch::Receiver<u64> {
        self.nodes.cluster.changes()
    }

    /// Returns every node with the worst reason why it is not usable for a plain call.
    pub fn standing(&self, now: Instant) -> Vec<(Arc<Member>, Option<Unusable>)> {
        let members = self.nodes.load();
        let standing =
            |member: &Arc<Member>| (Arc::clone(member), self.reasons(member, now).into_iter().max());
        members.iter().map(standing).collect()
    }

    /// Returns every reason why a node is not usable for a plain call. Methods that the node does not serve
    /// are left out.
    pub fn reasons(&self, member: &Member, now: Instant) -> Vec<Unusable> {
        self.nodes.reasons(member, now)
    }

    /// Returns the last choice of a node for `method` that was recorded.
    pub fn last_choice(&self, method: Method) -> Option<Choice> {
        self.selector.last_choice(method)
    }

    fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

/// Returns the number of hedges that one call earns.
fn hedge_share(settings: &config::PoolSettings) -> f64 {
    settings.hedge.map_or(0.0, |hedge| hedge.budget)
}

/// Locks a mutex, even after a panic: the values behind these locks are consistent at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
