//! The pool of upstream nodes, which serves calls like a single node. It picks a node, sends the call, and asks
//! another node if that may give a better answer.
//!
//! The pool uses no code of the cache. A caller sees a fault only if no other node can answer. The result is a
//! node's own answer, or [`NoUpstream`](crate::error::Error::NoUpstream) with every failed attempt. For some
//! answers a second node is asked. For example, a node's report of a missing block does not prove that there is no
//! block: each node holds its own part of history.

mod attempt;
mod call;
mod call_context;
mod cluster;
mod cluster_mark;
mod followed_node;
mod forward;
pub mod health;
mod in_flight;
mod meaning;
pub mod member;
mod members;
mod nodes;
mod own_answer;
pub mod peak_ewma;
pub mod probe;
mod prober;
mod question;
mod rate;
mod reply;
mod request;
mod retry_budget;
mod scans;
pub mod select;
mod send_request;
#[cfg(test)]
mod tests;
mod tip_request;
mod upstream_call;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use call_context::{CallContext, LongestRead};
use cluster::ClusterIdentity;
pub(crate) use cluster::no_genesis_hash;
pub use followed_node::FollowedNode;
pub use forward::ForwardedRequest;
use member::Member;
pub use members::{Members, Prepared};
use nodes::Nodes;
use peak_ewma::Latencies;
use question::Question;
pub use reply::PoolReply;
pub use request::UpstreamRequest;
use retry_budget::RetryBudget;
use scans::{ScanPlace, Scans};
pub use send_request::SendRequest;
pub use tip_request::TipRequest;
use upstream_call::UpstreamCall;

use crate::config::{self, AnswerLimit};
use crate::error::Error;
pub use crate::fair::CallerId;
use crate::frontier::Frontier;
use crate::methods::{Answerer, AnyMethod, Commitment, Slot};
use crate::node::BufferBudget;
use crate::node::client::ClientError;
use crate::telemetry::{Metrics, Unusable};

/// The share of calls for which a second node may be asked because the first one is slow. A node that hangs is avoided
/// before it has made more calls slow than that.
const SHARE_OF_SLOW: f64 = 0.02;

/// All upstream nodes, and the state that calls to them share.
pub struct Pool {
    nodes: Nodes,
    latencies: Latencies,
    retries: RetryBudget,
    forwarded_retries: RetryBudget,
    /// The budget for second nodes that are asked because a first one is slow.
    patience: RetryBudget,
    /// The places of calls for which nodes walk over many accounts. A reload that changes their number replaces them.
    scans: ArcSwap<Scans>,
    request_timeout: Duration,
    buffers: Arc<BufferBudget>,
    metrics: Arc<Metrics>,
    next_id: AtomicU64,
    /// Receives every call in place of the nodes, in tests of the code above the pool.
    #[cfg(test)]
    pub(crate) fake_node: std::sync::OnceLock<FakeNode>,
}

/// The channel to a test that answers calls. Each call comes with the sender for its answer.
#[cfg(test)]
pub(crate) type FakeNode = tokio::sync::mpsc::UnboundedSender<(UpstreamRequest, ReplySender)>;
#[cfg(test)]
pub(crate) type ReplySender = tokio::sync::oneshot::Sender<Result<PoolReply, Error>>;

impl Pool {
    /// Returns a pool of the configured upstreams. The nodes get the ids 0, 1 and so on, which `frontier` uses,
    /// too. No node is probed before [`Pool::probe`] is called.
    ///
    /// # Errors
    /// The client of an upstream cannot be built. The error is about the first such upstream.
    pub fn new(
        config: &config::Config,
        frontier: Arc<Frontier>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, ClientError> {
        let buffers = Arc::new(BufferBudget::new(config.pool.max_buffered));
        let members = Members::new(config, &frontier, &metrics, &buffers)?;
        let cluster = ClusterIdentity::new(config.pool.genesis_hash.clone(), Arc::clone(&frontier));
        Ok(Self {
            nodes: Nodes::new(members, cluster, frontier, config.cache.max_lag_slots),
            latencies: Latencies::default(),
            retries: RetryBudget::new(config.pool.retry_budget),
            forwarded_retries: RetryBudget::new(config.pool.retry_budget),
            patience: RetryBudget::new(SHARE_OF_SLOW),
            scans: ArcSwap::from_pointee(Scans::new(config.pool.max_scans)),
            request_timeout: config.server.request_timeout,
            buffers,
            metrics,
            next_id: AtomicU64::new(1),
            #[cfg(test)]
            fake_node: std::sync::OnceLock::new(),
        })
    }

    /// Returns the longest time for a call of `method`: `server.request_timeout`. A scan may take that long to get its
    /// place, and then has the whole time of an attempt.
    pub fn time_of(&self, method: AnyMethod) -> Duration {
        self.request_timeout + self.walking_time(method)
    }

    /// Returns the limit on a node's answer to a call of `method`.
    pub fn longest_answer(&self, method: AnyMethod) -> AnswerLimit {
        self.nodes.load().settings.longest_answer(method)
    }

    /// Returns the time for which a node may walk over accounts for a call of `method`. Zero if it walks over none.
    fn walking_time(&self, method: AnyMethod) -> Duration {
        let times = &self.nodes.load().settings.attempt_timeout;
        if method.rules().walks { times[method.index()] } else { Duration::ZERO }
    }

    /// Sends a typed query to nodes until one answers. `pool.retries`, the retry budget and the request's deadline
    /// limit the number of attempts.
    ///
    /// A scan has its place until this future ends. Drop the future of a scan only with the process, because its node
    /// walks on without a caller.
    ///
    /// # Errors
    /// No node gave a usable answer: [`Error::NoUpstream`], with every failed attempt. A passed deadline gives
    /// this error, too, so the caller must check the deadline. [`Error::Overloaded`] if a scan gets no place in time.
    pub async fn call(&self, request: &UpstreamRequest) -> Result<PoolReply, Error> {
        #[cfg(test)]
        if let Some(fake_node) = self.fake_node.get() {
            let (reply_sender, answer) = tokio::sync::oneshot::channel();
            let _ = fake_node.send((request.clone(), reply_sender));
            return answer.await.unwrap_or_else(|_| Err(Error::NoUpstream(Vec::new())));
        }
        let method = request.query.method();
        if method.rules().answerer == Answerer::Pool
            && let Some(reply) = self.own_answer(method)
        {
            return Ok(reply);
        }
        self.in_place(request).await
    }

    /// Sends a call that is forwarded as it came to nodes, as [`Pool::call`] does with a typed query.
    ///
    /// # Errors
    /// As for [`Pool::call`].
    pub async fn forward(&self, request: &ForwardedRequest) -> Result<PoolReply, Error> {
        self.in_place(request).await
    }

    /// Makes a call. If nodes walk over accounts for it, waits for a place first.
    async fn in_place(&self, request: &impl UpstreamCall) -> Result<PoolReply, Error> {
        let Question { method, context, .. } = request.question();
        let walks = method.rules().walks;
        let _place = if walks { Some(self.scan_place(method, context).await?) } else { None };
        call::run(self, request).await
    }

    /// Waits for the place of a scan, as long as an attempt can still have its whole time before the call's deadline.
    ///
    /// # Errors
    /// [`Error::Overloaded`] if there is no place in time.
    async fn scan_place(&self, method: AnyMethod, context: &CallContext) -> Result<ScanPlace, Error> {
        let until = context.deadline.checked_sub(self.walking_time(method)).unwrap_or(context.deadline);
        let scans = self.scans.load_full();
        timeout_at(until, scans.place(context.caller)).await.ok().flatten().ok_or(Error::Overloaded)
    }

    /// Sends a read of the tip to nodes until one answers at or above the tip.
    ///
    /// # Errors
    /// As for [`Pool::call`]. An attempt failed as `behind` if its node is below the tip.
    pub async fn read_tip(&self, request: &TipRequest) -> Result<PoolReply, Error> {
        call::run(self, request).await
    }

    /// Returns the number of nodes that may get a transaction. If `names` is not empty, only nodes with these names may.
    pub fn sending_nodes(&self, names: &[String]) -> usize {
        let members = self.nodes.load();
        let is_named = |member: &&Arc<Member>| names.is_empty() || names.contains(&member.name);
        members.iter().filter(is_named).filter(|member| member.serves(AnyMethod::Send)).count()
    }

    /// Sends a transaction to nodes until one accepts or refuses it.
    ///
    /// # Errors
    /// As for [`Pool::call`]. A node may have sent the transaction nevertheless.
    pub async fn send(&self, request: &SendRequest) -> Result<PoolReply, Error> {
        call::run(self, request).await
    }

    /// Returns the node to which `request` goes first, and counts a call against that node's rate limit. `None` if no
    /// node is usable. For benches.
    pub fn first_choice(&self, request: &UpstreamRequest) -> Option<Arc<Member>> {
        self.nodes.pick(&request.question(), &[], None).ok()
    }

    /// Starts to probe every node that no task probes yet, each in a task of its own. A task ends with `stop`, or once
    /// its node has left the pool.
    pub fn probe(self: &Arc<Self>, tasks: &TaskTracker, stop: &CancellationToken) {
        for member in self.members().iter().filter(|member| member.begin_probing()) {
            let (pool, stop, id) = (Arc::clone(self), stop.clone(), member.id);
            tasks.spawn(async move {
                let probing = prober::probe_node(&pool.nodes, id);
                let _ = stop.run_until_cancelled(probing).await;
            });
        }
    }

    /// Prepares the nodes and settings of `config`. Nothing changes until [`Pool::put_in_force`].
    ///
    /// # Errors
    /// The client of an upstream cannot be built. The error is about the first such upstream.
    pub fn prepare(&self, config: &config::Config) -> Result<Prepared, ClientError> {
        self.nodes.load().prepare(config, &self.buffers)
    }

    /// Puts a prepared configuration in force, in one step. The caller must then call [`Pool::probe`] for the new
    /// nodes. No other configuration may have been put in force since [`Pool::prepare`].
    pub fn put_in_force(&self, prepared: Prepared) {
        let before = self.members();
        let settings = prepared.settings.clone();
        let after = Arc::new(before.reconfigured(prepared, &self.nodes.frontier, &self.metrics));
        self.buffers.set_limit(settings.max_buffered);
        self.retries.set_share(settings.retry_budget);
        self.forwarded_retries.set_share(settings.retry_budget);
        if before.settings.max_scans != settings.max_scans {
            self.scans.store(Arc::new(Scans::new(settings.max_scans)));
        }
        self.nodes.replace(&after);
        let now = Instant::now();
        for gone in before.iter().filter(|member| after.of(member.id).is_none()) {
            self.nodes.frontier.leave(gone.id, now);
            tracing::info!(upstream.name = gone.name, "upstream removed: its calls in flight continue");
        }
        for added in after.iter().filter(|member| before.of(member.id).is_none()) {
            tracing::info!(upstream.name = added.name, "upstream added");
        }
        self.metrics.retain_upstreams(|name| after.named(name).is_some());
        match settings.genesis_hash {
            Some(genesis) if before.settings.genesis_hash.as_ref() != Some(&genesis) => {
                self.nodes.cluster.configure(&after, &genesis);
            }
            // Without the nodes that have left, the others may agree.
            _ => self.nodes.cluster.decide(&after),
        }
    }

    /// Returns a snapshot of the nodes, in the order of the configuration, and of the pool's settings.
    pub fn members(&self) -> Arc<Members> {
        self.nodes.members.load_full()
    }

    /// Returns the name of the node with this id. Empty if the node has left the pool.
    pub fn name_of(&self, node: usize) -> String {
        self.nodes.load().of(node).map(|member| member.name.clone()).unwrap_or_default()
    }

    /// Returns the reason why no node gets calls, as long as it is not known to which Solana cluster the pool belongs.
    pub fn undecided_cluster(&self) -> Option<&'static str> {
        self.nodes.cluster.undecided()
    }

    /// Returns the cluster's genesis hash. `None` until it is configured or the nodes have agreed on it.
    pub fn genesis(&self) -> Option<String> {
        self.nodes.cluster.genesis()
    }

    /// Returns true if the node with this id has reported the genesis hash of the pool's cluster, or need not
    /// report it. False if the node has left the pool.
    pub fn is_of_cluster(&self, node: usize) -> bool {
        self.nodes.load().of(node).is_some_and(|member| member.is_of_cluster())
    }

    /// Returns the oldest block of the node with this id. `None` if it is not known.
    pub fn first_available(&self, node: usize) -> Option<Slot> {
        self.nodes.load().of(node)?.first_available()
    }

    /// Returns true if a node that is at `slot`, at processed, is behind by more than `pool.max_slot_lag`.
    pub fn is_behind(&self, slot: Slot) -> bool {
        let max_lag = self.nodes.load().settings.max_slot_lag;
        slot.saturating_add(max_lag) < self.nodes.frontier.slot(Commitment::Processed)
    }

    /// Returns true if answers of the node with this id may be carried: served at newer slots than they were
    /// fetched at. The node must belong to the pool's cluster, and be of a kind and version whose blocks list
    /// every write of an account.
    pub fn is_followable(&self, node: usize) -> bool {
        #[cfg(test)]
        if self.fake_node.get().is_some() {
            return true;
        }
        self.nodes.load().of(node).is_some_and(|member| member.lists_writes() && member.is_of_cluster())
    }

    /// Returns the nodes that can be asked for blocks now, lower tiers first. If `names` is not empty, only nodes with
    /// these names are returned.
    pub fn block_nodes(self: &Arc<Self>, names: &[String]) -> Vec<FollowedNode> {
        let (members, now) = (self.members(), Instant::now());
        let is_usable = |member: &&Arc<Member>| {
            // A node that is busy with callers' calls still gives blocks, because requests for blocks are outside of
            // the limit on calls in flight.
            let is_named = names.is_empty() || names.contains(&member.name);
            is_named
                && member.gives_blocks()
                && member.state.quiet_for_follower.left((), now).is_none()
                && self.reasons(member, now).iter().all(|reason| *reason == Unusable::Busy)
        };
        let mut nodes: Vec<_> = members.iter().filter(is_usable).collect();
        nodes.sort_by_key(|member| member.upstream.tier);
        let followed = |member| FollowedNode { member: Arc::clone(member), pool: Arc::clone(self) };
        nodes.into_iter().map(followed).collect()
    }

    /// Returns a receiver of a counter. The counter grows when the pool's Solana cluster has changed or may have
    /// changed. Answers from before the change are then invalid.
    pub fn clusters(&self) -> watch::Receiver<u64> {
        self.nodes.cluster.changes.subscribe()
    }

    /// Returns a receiver that is notified when a reload has changed the nodes or the settings of a node.
    pub fn reloaded(&self) -> watch::Receiver<()> {
        self.nodes.reloaded.subscribe()
    }

    /// Returns every node with the worst reason why it is not usable, or `None` if it is usable. Reasons that depend on
    /// a call, such as its method, are left out.
    pub fn standing(&self, now: Instant) -> Vec<(Arc<Member>, Option<Unusable>)> {
        let members = self.nodes.load();
        let standing =
            |member: &Arc<Member>| (Arc::clone(member), self.reasons(member, now).into_iter().max());
        members.iter().map(standing).collect()
    }

    /// Returns every reason why a node is not usable. Reasons that depend on a call, such as its method, are left out.
    pub fn reasons(&self, member: &Member, now: Instant) -> Vec<Unusable> {
        let lagging = self.nodes.lagging(&self.nodes.load(), member);
        let mut reasons: Vec<_> = member.reasons(now).chain(lagging).collect();
        // Whoever cannot be asked cannot be asked for a genesis hash.
        let says_more = [Unusable::Unidentified, Unusable::Unreachable, Unusable::Unprobed];
        if !reasons.iter().any(|reason| says_more.contains(reason)) {
            reasons.extend(self.nodes.cluster.unidentified(member));
        }
        reasons
    }

    fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

/// Locks a mutex, even after a panic: the values behind these locks are consistent at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
