//! Several nodes as one: pick one that can answer, attempt, retry elsewhere what another may answer better.
//!
//! Knows nothing of the cache. Faults stay in here as long as one node can answer; what comes out is a node's own
//! word, or [`NoUpstream`](crate::error::Error::NoUpstream) with what was tried. The surprise is that some *answers*
//! are asked elsewhere too: an absent block is not proof of absence, for each node holds its own part of history.

mod attempt;
pub mod breaker;
pub mod member;
pub mod peak_ewma;
pub mod probe;
mod retry_budget;
pub mod select;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

pub use attempt::Reply;
use member::Member;
use peak_ewma::P95;
use retry_budget::RetryBudget;
use select::{Candidate, Unusable};

use crate::config;
use crate::error::{Attempt, Error};
use crate::frontier::Frontier;
use crate::methods::{Commitment, Method, PerCommitment, Query, Slot};
use crate::node::client::ClientError;
use crate::node::{BufferBudget, Client, Fault, NodeReply};
use crate::telemetry::{Metrics, RetryReason};

/// What the pool is asked for.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The call as it is to go upstream.
    pub query: Query,
    /// The slot that a node should have shown to be preferred, and an answer's context to be taken.
    pub floor: Option<Slot>,
    /// One node, no retry: the caller's own condition is above the frontier, and the node's word on it passes through.
    pub alone: bool,
    /// When the caller stops waiting.
    pub deadline: Instant,
}

/// All upstreams, their standing and what is shared between them.
pub struct Pool {
    members: Vec<Member>,
    frontier: Arc<Frontier>,
    settings: config::Pool,
    near_lag: PerCommitment<u64>,
    metrics: Arc<Metrics>,
    budget: RetryBudget,
    latency: [Mutex<P95>; 8],
    /// The node that cluster nodes and samples stay with, by [`Method::index`]; `usize::MAX` before the first.
    sticky: [AtomicUsize; 8],
    genesis: Mutex<Option<String>>,
    /// How many clusters this pool has been in front of, less one.
    clusters: watch::Sender<u64>,
    next_id: AtomicU64,
    draws: AtomicU64,
}

impl Pool {
    /// A pool over the configured upstreams; nothing is asked before [`Pool::probe`] runs.
    ///
    /// # Errors
    /// The first upstream whose client cannot be built.
    pub fn new(
        config: &config::Config,
        frontier: Arc<Frontier>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, ClientError> {
        let budget = Arc::new(BufferBudget::new(config.pool.max_buffered));
        let members = config
            .upstreams
            .iter()
            .map(|upstream| {
                let client = Client::new(upstream, &config.pool, Arc::clone(&budget))?;
                Ok(Member::new(upstream, client, config.pool.breaker, &metrics))
            })
            .collect::<Result<Vec<_>, ClientError>>()?;
        Ok(Self {
            members,
            frontier,
            near_lag: config.cache.max_lag_slots,
            budget: RetryBudget::new(config.pool.retry_budget),
            genesis: Mutex::new(config.pool.genesis_hash.clone()),
            settings: config.pool.clone(),
            clusters: watch::Sender::new(0),
            metrics,
            latency: Default::default(),
            sticky: std::array::from_fn(|_| AtomicUsize::new(usize::MAX)),
            next_id: AtomicU64::new(1),
            draws: AtomicU64::new(1),
        })
    }

    /// The nodes, in the order of the configuration.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Changes whenever the cluster behind the pool has become another one: what was kept is of no use then.
    pub fn clusters(&self) -> watch::Receiver<u64> {
        self.clusters.subscribe()
    }

    /// Whether any node is usable, and why each of the others is not.
    pub fn standing(&self, now: Instant) -> Vec<(&str, Option<Unusable>)> {
        (0..self.members.len())
            .map(|node| {
                // Asked as for a method that nothing but full API hides, so that only health and lag speak.
                let unusable = self.members[node].unusable(Method::GetVoteAccounts, now);
                (self.members[node].name.as_str(), unusable.max(self.lagging(node)))
            })
            .collect()
    }

    /// Asks the nodes until one answers, inside the call's deadline, `pool.retries` and the retry budget.
    ///
    /// # Errors
    /// [`Error::NoUpstream`] with every attempt, [`Error::TimedOut`] never: deadlines are the caller's.
    pub async fn call(&self, ask: &Ask) -> Result<Reply, Error> {
        self.budget.deposit(Instant::now());
        let mut tried = Vec::new();
        let mut attempts = Vec::new();
        let mut doubtful: Option<Reply> = None;
        let mut retries_left = self.settings.retries;
        while let Some(node) = self.pick(ask, &tried, doubtful.is_some()) {
            tried.push(node);
            match self.attempt(node, ask).await {
                Ok(reply) if reply.confirmed || ask.alone => return Ok(reply),
                // The second voice on an answer that another node might have bettered. That a block is cleaned up says
                // nothing of the other nodes: those of deeper history are asked as well.
                Ok(reply) => match doubtful.take() {
                    Some(first) if code(&reply) == Some(-32001) && retries_left > 0 => {
                        retries_left -= 1;
                        doubtful = Some(first);
                    }
                    Some(first) => return Ok(agreed(first, reply)),
                    None => doubtful = Some(reply),
                },
                Err(fault) => {
                    let name = &self.members[node].name;
                    tracing::debug!(upstream.name = name, reason = fault.result().as_str(), "attempt failed");
                    attempts.push(Attempt { upstream: name.clone(), reason: fault.result().to_string() });
                    self.after_fault(node, fault);
                    if doubtful.is_some() || ask.alone || !fault.may_retry() || retries_left == 0 {
                        break;
                    }
                    // An idle connection that a node closed is not its fault: a pool of one asks it again, once.
                    if fault == Fault::Connect && self.members.len() == 1 && attempts.len() == 1 {
                        tried.clear();
                    }
                    if Instant::now() >= ask.deadline || !self.budget.withdraw(Instant::now()) {
                        break;
                    }
                    retries_left -= 1;
                    self.metrics.upstream_retries.at(RetryReason(fault.result())).inc();
                }
            }
        }
        match doubtful {
            Some(reply) => Ok(reply),
            None if attempts.is_empty() => Err(Error::NoUpstream(self.nobody(ask))),
            None => Err(Error::NoUpstream(attempts)),
        }
    }

    /// The node to ask, by selection, or the one that this method stays with.
    fn pick(&self, ask: &Ask, tried: &[usize], second_voice: bool) -> Option<usize> {
        let now = Instant::now();
        let mut candidates = self.candidates(ask, tried, now);
        if second_voice {
            // A second voice must be a usable one: a doubtful node's agreement proves nothing.
            candidates.retain(|c| c.unusable.is_none());
        }
        let sticky = matches!(ask.query, Query::ClusterNodes | Query::Samples(_))
            .then(|| &self.sticky[ask.query.method().index()]);
        if let Some(sticky) = sticky {
            let node = sticky.load(Ordering::Relaxed);
            if candidates.iter().any(|c| c.node == node && c.unusable.is_none()) {
                return Some(node);
            }
        }
        let node = select::choose(&candidates, self.draw())?;
        if let Some(sticky) = sticky {
            sticky.store(node, Ordering::Relaxed);
        }
        Some(node)
    }

    fn candidates(&self, ask: &Ask, tried: &[usize], now: Instant) -> Vec<Candidate> {
        let commitment = ask.query.commitment();
        (0..self.members.len())
            .map(|node| {
                let member = &self.members[node];
                let slot = |c| self.frontier.node_slot(node, c);
                let below = |floor: Slot| commitment.and_then(slot).is_some_and(|slot| slot < floor);
                let no_history = match &ask.query {
                    // Final blocks come from nodes that have reached them: final by construction.
                    Query::Block(q) => {
                        member.first_available() > q.slot || below_final(q.slot, &self.frontier, node)
                    }
                    _ => false,
                };
                let unusable = [
                    member.unusable(ask.query.method(), now),
                    self.lagging(node),
                    no_history.then_some(Unusable::NoHistory),
                    ask.floor.is_some_and(below).then_some(Unusable::BelowFloor),
                    tried.contains(&node).then_some(Unusable::Tried),
                ];
                let near = commitment.is_none_or(|c| {
                    self.frontier.lag(node, c).is_none_or(|lag| lag <= *self.near_lag.get(c))
                });
                Candidate {
                    node,
                    unusable: unusable.into_iter().flatten().max(),
                    near,
                    tier: member.tier,
                    load: member.load(now),
                }
            })
            .collect()
    }

    fn lagging(&self, node: usize) -> Option<Unusable> {
        let lag = self.frontier.lag(node, Commitment::Processed);
        lag.is_some_and(|lag| lag > self.settings.max_slot_lag).then_some(Unusable::Lagging)
    }

    /// What a fault means for the next calls to this node.
    fn after_fault(&self, node: usize, fault: Fault) {
        if let Fault::TooManyRequests(wait) = fault {
            let wait = wait.unwrap_or(Duration::from_millis(250));
            self.members[node].quiet_for(wait, Instant::now());
        }
    }

    /// Why nobody could even be asked.
    fn nobody(&self, ask: &Ask) -> Vec<Attempt> {
        self.candidates(ask, &[], Instant::now())
            .into_iter()
            .map(|c| Attempt {
                upstream: self.members[c.node].name.clone(),
                reason: c.unusable.map_or("usable", Unusable::as_str).to_owned(),
            })
            .collect()
    }

    fn p95(&self, method: usize) -> Option<Duration> {
        self.latency[method].lock().unwrap_or_else(std::sync::PoisonError::into_inner).get()
    }

    fn observe_latency(&self, method: usize, latency: Duration) {
        self.latency[method].lock().unwrap_or_else(std::sync::PoisonError::into_inner).observe(latency);
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

/// Whether the cluster has finalized `slot` but this node is not known to have.
fn below_final(slot: Slot, frontier: &Frontier, node: usize) -> bool {
    slot <= frontier.slot(Commitment::Finalized)
        && frontier.node_slot(node, Commitment::Finalized).is_some_and(|reached| reached < slot)
}

/// The code of a reply that is an error.
fn code(reply: &Reply) -> Option<i32> {
    match &reply.body {
        NodeReply::Error { code, .. } => Some(*code),
        NodeReply::Result(_) => None,
    }
}

/// Two voices on an answer that was in doubt: a block from any node wins, then an error that names a reason, then
/// null; an absence that both name is confirmed.
fn agreed(first: Reply, second: Reply) -> Reply {
    let is_null = |reply: &Reply| reply.body == NodeReply::Result(Bytes::from_static(b"null"));
    match (code(&first), code(&second)) {
        (Some(a), Some(b)) => Reply { confirmed: a == b, ..first },
        (None, Some(_)) if is_null(&first) => Reply { confirmed: false, ..second },
        (None, _) if !is_null(&first) && first.slot >= second.slot => Reply { confirmed: false, ..first },
        _ if is_null(&second) => Reply { confirmed: false, ..first },
        _ => Reply { confirmed: false, ..second },
    }
}
