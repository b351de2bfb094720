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
mod verdict;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

pub use attempt::Reply;
use member::Member;
use peak_ewma::P95;
use retry_budget::RetryBudget;
use select::{Candidate, Unusable};
use verdict::{LastResort, Verdict, agreed, code};

use crate::config;
use crate::error::{Attempt, Error};
use crate::frontier::Frontier;
use crate::methods::{Commitment, Method, PerCommitment, Query, Slot};
use crate::node::client::ClientError;
use crate::node::{BufferBudget, Client, Fault};
use crate::telemetry::{AttemptResult, Metrics, RetryReason};

/// What the pool is asked for.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The call as it is to go upstream.
    pub query: Query,
    /// The slot that a node should have shown to be preferred, and an answer's context to be taken.
    pub floor: Option<Slot>,
    /// One node's word, without retry (but past nodes that do not serve the method): the caller's own condition is above
    /// the frontier, and what the node says of it passes through.
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

/// What one call has brought so far.
#[derive(Debug, Default)]
struct SoFar {
    tried: Vec<usize>,
    /// Every attempt that brought no answer.
    attempts: Vec<Attempt>,
    /// An answer that another node might better.
    doubtful: Option<Reply>,
    /// The best of what was sent elsewhere.
    last_resort: Option<LastResort>,
    /// The first attempt found no connection, or one that was closed.
    reconnect: bool,
}

impl SoFar {
    fn failed(&mut self, name: &str, why: AttemptResult) {
        tracing::debug!(upstream.name = name, reason = why.as_str(), "attempt failed");
        self.attempts.push(Attempt { upstream: name.to_owned(), reason: why.to_string() });
    }
}

/// Why one more node is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// To confirm or better the first answer.
    SecondVoice,
    /// It is one of the retries; with a reason it is counted, and most come out of the retry budget as well.
    Retry(Option<AttemptResult>),
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
        let mut so_far = SoFar::default();
        let mut retries_left = self.settings.retries;
        let first = self.pick(ask, &[], Some(Unusable::Incapable));
        let mut node = first.map_err(|all| Error::NoUpstream(self.reasons(&all)))?;
        loop {
            so_far.tried.push(node);
            let next = match self.attempt(node, ask).await {
                Ok((Verdict::Answer, reply)) => return Ok(reply),
                Ok((Verdict::SecondVoice, reply)) if ask.alone => return Ok(reply),
                Ok((Verdict::SecondVoice, reply)) => match so_far.doubtful.take() {
                    // Outside the retries: one further call is the price of an absence that is kept for long.
                    None => {
                        so_far.doubtful = Some(reply);
                        Next::SecondVoice
                    }
                    // That a block is cleaned up says nothing of the other nodes: those of deeper history are asked.
                    Some(first) if code(&reply) == Some(-32001) => {
                        so_far.doubtful = Some(first);
                        Next::Retry(None)
                    }
                    Some(first) => return Ok(agreed(first, reply)),
                },
                Ok((Verdict::Elsewhere(why), reply)) => {
                    so_far.failed(&self.members[node].name, why);
                    let other = LastResort { reply, why };
                    so_far.last_resort = Some(LastResort::better(so_far.last_resort.take(), other));
                    Next::Retry(Some(why))
                }
                Err(fault) => {
                    so_far.failed(&self.members[node].name, fault.result());
                    self.after_fault(node, fault);
                    if so_far.doubtful.is_some() || ask.alone || !fault.may_retry() {
                        break;
                    }
                    so_far.reconnect = fault == Fault::Connect && so_far.attempts.len() == 1;
                    Next::Retry(Some(fault.result()))
                }
            };
            let now = Instant::now();
            if now >= ask.deadline || (retries_left == 0 && next != Next::SecondVoice) {
                break;
            }
            // Picked before it is paid for: where nobody is left there was no retry.
            let Some(picked) = self.pick_next(ask, &mut so_far, next) else { break };
            if let Next::Retry(why) = next {
                if let Some(why) = why {
                    // A node that refuses costs nothing: the budget is against asking a pool that is down thrice as much.
                    if why != AttemptResult::Incapable && !self.budget.withdraw(now) {
                        break;
                    }
                    self.metrics.upstream_retries.at(RetryReason(why)).inc();
                }
                retries_left -= 1;
            }
            node = picked;
        }
        self.conclude(ask, so_far)
    }

    /// Who is asked after what was heard `so_far`.
    fn pick_next(&self, ask: &Ask, so_far: &mut SoFar, next: Next) -> Option<usize> {
        let worst = match next {
            // A second voice must be a usable one: a doubtful node's agreement proves nothing.
            _ if so_far.doubtful.is_some() => None,
            // Waiting for a node that is in worse standing costs more than an answer that is a little behind.
            Next::Retry(Some(AttemptResult::Behind)) => Some(Unusable::BelowFloor),
            Next::Retry(_) | Next::SecondVoice => Some(Unusable::Unreachable),
        };
        // An idle connection that a node closed is not its fault: where no other is usable it is asked again, once.
        if std::mem::take(&mut so_far.reconnect) {
            if let Ok(usable) = self.pick(ask, &so_far.tried, None) {
                return Some(usable);
            }
            so_far.tried.clear();
        }
        self.pick(ask, &so_far.tried, worst).ok()
    }

    /// What the caller gets where no node gave an answer that is beyond doubt.
    fn conclude(&self, ask: &Ask, so_far: SoFar) -> Result<Reply, Error> {
        let method = ask.query.method();
        let refused = |name: &str| {
            let word = AttemptResult::Incapable.as_str();
            so_far.attempts.iter().any(|attempt| attempt.upstream == name && attempt.reason == word)
        };
        match (so_far.doubtful, so_far.last_resort) {
            (Some(reply), _) | (None, Some(LastResort { reply, why: AttemptResult::Behind })) => Ok(reply),
            // That a node lacks the method is the answer only where no other node is left that may have it.
            (None, Some(LastResort { reply, .. }))
                if self.members.iter().all(|member| !member.serves(method) || refused(&member.name)) =>
            {
                Ok(reply)
            }
            _ => Err(Error::NoUpstream(so_far.attempts)),
        }
    }

    /// The node to ask, by selection, or the one that this method stays with, in no worse standing than `worst`; where
    /// there is none, all of them as they stand. Takes one of the node's calls a second.
    fn pick(&self, ask: &Ask, tried: &[usize], worst: Option<Unusable>) -> Result<usize, Vec<Candidate>> {
        let now = Instant::now();
        let mut candidates = self.candidates(ask, tried, now);
        let sticky = matches!(ask.query, Query::ClusterNodes | Query::Samples(_))
            .then(|| &self.sticky[ask.query.method().index()]);
        loop {
            let stays = sticky
                .map(|sticky| sticky.load(Ordering::Relaxed))
                .filter(|node| candidates.get(*node).is_some_and(|candidate| candidate.unusable.is_none()));
            let chosen = stays
                .or_else(|| select::choose(&candidates, self.draw()))
                .filter(|node| candidates[*node].unusable <= worst);
            let Some(node) = chosen else { return Err(candidates) };
            if self.members[node].take_turn() {
                if let Some(sticky) = sticky {
                    sticky.store(node, Ordering::Relaxed);
                }
                return Ok(node);
            }
            candidates[node].unusable = Some(Unusable::Busy);
        }
    }

    /// Every node as it stands for one call, in the order of the configuration.
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
    fn reasons(&self, candidates: &[Candidate]) -> Vec<Attempt> {
        candidates
            .iter()
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
