//! One call through the pool: asks a node, classifies the answer, asks another node if needed, and returns the best
//! answer.
//!
//! Typed queries and passthrough methods share one loop. Their differences are in [`UpstreamCall`].

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::time::Instant;

use super::Pool;
use super::attempt::attempt;
use super::budget::Budget;
use super::hedge::attempt_hedged;
use super::member::Member;
use super::reply::{LastResort, PoolReply};
use super::select::Unusable;
use super::selector::pick_highest;
use super::upstream_call::{MinSlotUse, UpstreamCall};
use super::verdict::{AttemptOutcome, Verdict};
use crate::error::{Error, FailedAttempt};
use crate::node::{Fault, NodeReply, code};
use crate::telemetry::{AttemptResult, RetryReason};

/// Sends `call` to nodes until one answers. `pool.retries`, the retry budget and the call's deadline limit the
/// number of attempts.
///
/// # Errors
/// No node gave a usable answer: [`Error::NoUpstream`], with every failed attempt. A passed deadline gives this
/// error, too, so the caller must check the deadline.
pub(super) async fn run<C: UpstreamCall>(pool: &Pool, call: &C) -> Result<C::Answer, Error> {
    let now = Instant::now();
    retry_budget::<C>(pool).deposit(now);
    if C::WEIGHT_IS_KNOWN {
        pool.hedges.deposit(now);
    }
    CallCourse::new(pool, call).run().await.map(C::answer)
}

/// Returns the budget for retries. It protects a pool that is down from triple load. Calls of passthrough methods have a
/// budget of their own, because a caller may find one that fails everywhere.
fn retry_budget<C: UpstreamCall>(pool: &Pool) -> &Budget {
    if C::WEIGHT_IS_KNOWN { &pool.retries } else { &pool.passthrough_retries }
}

/// One call with its attempts so far.
struct CallCourse<'a, C> {
    pool: &'a Pool,
    call: &'a C,
    /// The ids of the nodes asked so far.
    tried: Vec<usize>,
    /// The attempts that failed or brought no certain answer, each with its reason. [`Error::NoUpstream`] reports them.
    attempts: Vec<FailedAttempt>,
    /// The best answer so far that another node may improve or confirm, with its verdict: [`Verdict::NeedsSecondNode`]
    /// or [`Verdict::UnlistedError`].
    best: Option<(Verdict, PoolReply)>,
    /// The best of the answers that are used only if no other node gives a better one.
    last_resort: Option<LastResort>,
    /// True if the first attempt failed with [`Fault::Connect`], so that the same node may be asked again.
    reconnect: bool,
}

/// The next step of a call after an attempt.
enum CallStep {
    /// The call is answered.
    Done(PoolReply),
    /// One more node is asked.
    Ask(NextAttempt),
    /// No further node is asked.
    Enough,
}

/// The reason why one more node is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextAttempt {
    /// There is an answer, which another node may improve or confirm. Such attempts are made in addition to the
    /// retries. They end with the nodes, because each node is asked once.
    SecondNode,
    /// No node gave a usable answer. Holds the result of the last attempt, under which metrics count the retry.
    Retry(AttemptResult),
}

impl<'a, C: UpstreamCall> CallCourse<'a, C> {
    /// Returns the course of a call that has asked no node yet.
    fn new(pool: &'a Pool, call: &'a C) -> Self {
        Self {
            pool,
            call,
            tried: Vec::new(),
            attempts: Vec::new(),
            best: None,
            last_resort: None,
            reconnect: false,
        }
    }

    async fn run(mut self) -> Result<PoolReply, Error> {
        let pool = self.pool;
        let mut retries_left = pool.nodes.load().settings.retries;
        let mut member = self.pick_in_time(Some(Unusable::Incapable)).await.map_err(Error::NoUpstream)?;
        loop {
            self.tried.push(member.id);
            let may_hedge = self.attempts.is_empty() && self.best.is_none();
            let mut step = CallStep::Enough;
            for (by, outcome) in attempt_hedged(pool, self.call, &member, may_hedge).await {
                if by.id != member.id {
                    self.tried.push(by.id);
                }
                step = self.process_outcome(&by, outcome);
                if matches!(step, CallStep::Done(_)) {
                    break;
                }
            }
            let next = match step {
                CallStep::Done(reply) => return Ok(reply),
                CallStep::Ask(_) if self.best.is_some() => NextAttempt::SecondNode,
                CallStep::Ask(next) => next,
                CallStep::Enough => break,
            };
            let now = Instant::now();
            if now >= self.call.context().deadline || (retries_left == 0 && next != NextAttempt::SecondNode) {
                break;
            }
            // The node is picked before the retry budget is charged, because without a node there is no
            // retry.
            let Some(picked) = self.pick_next(next).await else { break };
            if let NextAttempt::Retry(why) = next {
                // A node that refuses the call or has fallen behind is not down, so a retry after it takes no token.
                let is_down = !matches!(why, AttemptResult::Incapable | AttemptResult::Behind);
                if is_down && !retry_budget::<C>(pool).withdraw(now) {
                    break;
                }
                pool.metrics.upstream_retries.at(RetryReason(why)).inc();
                retries_left -= 1;
            }
            member = picked;
        }
        self.ask_without_min_slot().await;
        self.conclude()
    }

    /// Records the outcome of one attempt at `member`, and returns the next step of the call.
    fn process_outcome(&mut self, member: &Member, outcome: AttemptOutcome) -> CallStep {
        use Verdict::{Answer, NeedsSecondNode, TryElsewhere, UnlistedError};
        let (verdict, reply) = match outcome {
            Ok(answer) => answer,
            Err(fault) => return self.process_fault(member, fault),
        };
        match (verdict, self.best.take()) {
            (TryElsewhere(why), first) => {
                self.best = first;
                self.failed(member, why, None);
                let other = LastResort { reply, why };
                self.last_resort = Some(LastResort::better(self.last_resort.take(), other));
                CallStep::Ask(NextAttempt::Retry(why))
            }
            // Only a certain result replaces an error with an unlisted code. A doubtful one would need a third node.
            (_, Some((UnlistedError, first))) => {
                let is_result = matches!(reply.body, NodeReply::Result(_));
                CallStep::Done(if verdict == Answer && is_result { reply } else { first })
            }
            (Answer, _) => CallStep::Done(reply),
            (NeedsSecondNode | UnlistedError, None) if self.call.is_for_one_node() => CallStep::Done(reply),
            (NeedsSecondNode | UnlistedError, None) => {
                self.best = Some((verdict, reply));
                CallStep::Ask(NextAttempt::SecondNode)
            }
            // Another node has reported a missing block. This error says nothing about that block, so one more node is
            // asked.
            (UnlistedError, first) => {
                self.best = first;
                self.failed(member, AttemptResult::NodeError, None);
                CallStep::Ask(NextAttempt::SecondNode)
            }
            // Two nodes confirm an unexpected slot. They do not confirm that a block is missing, because several nodes
            // may have started from the same snapshot. So all of them are asked.
            (NeedsSecondNode, Some((_, first))) if reply.has_no_block() => {
                self.best = Some((verdict, first.better_of(reply)));
                CallStep::Ask(NextAttempt::SecondNode)
            }
            (NeedsSecondNode, Some((_, first))) => CallStep::Done(first.better_of(reply)),
        }
    }

    /// Records a fault of `member`, and returns the next step of the call.
    fn process_fault(&mut self, member: &Member, fault: Fault) -> CallStep {
        let now = Instant::now();
        let mut retry_after = None;
        if let Fault::TooManyRequests(asked) = fault {
            let is_quiet = |member: &&Arc<Member>| member.quiet_left(self.call.method(), now).is_some();
            // If the node asks for no pause, the caller gets the one that the pool makes.
            let own_pause = || member.quiet_left(self.call.method(), now).unwrap_or_default();
            retry_after = Some(asked.filter(|wait| !wait.is_zero()).unwrap_or_else(own_pause));
            // Other nodes that are quiet have just refused the method, and would refuse it once more.
            self.tried.extend(self.pool.members().iter().filter(is_quiet).map(|quiet| quiet.id));
        }
        self.failed(member, fault.result(), retry_after);
        log_fault(member, fault);
        if !fault.may_retry() {
            // The node may hold the block that others lack, and only could not deliver it.
            if self.misses_block() {
                self.best = None;
            }
            return CallStep::Enough;
        }
        // The same node may be asked again only if no answer is kept. If an answer is kept, another node must be asked,
        // because only another node may improve the answer.
        self.reconnect =
            C::WEIGHT_IS_KNOWN && fault == Fault::Connect && self.attempts.len() == 1 && self.best.is_none();
        CallStep::Ask(NextAttempt::Retry(fault.result()))
    }

    /// Returns true if the nodes asked so far have reported that a block is missing.
    fn misses_block(&self) -> bool {
        self.best
            .as_ref()
            .is_some_and(|(verdict, best)| *verdict == Verdict::NeedsSecondNode && best.has_no_block())
    }

    fn failed(&mut self, member: &Member, why: AttemptResult, retry_after: Option<Duration>) {
        let (upstream, reason) = (member.name.clone(), why.to_string());
        self.attempts.push(FailedAttempt { upstream, reason, retry_after });
    }

    /// Picks the node to ask next. `None` if no node may be asked.
    async fn pick_next(&mut self, next: NextAttempt) -> Option<Arc<Member>> {
        let has_answer = self.best.is_some();
        let worst = match next {
            // No report of a missing block proves that there is no block, so nodes in a bad state are asked, too. One
            // that answers no probe would only cost the caller time.
            _ if self.misses_block() => Some(Unusable::Lagging),
            // The agreement of a node in a bad state proves nothing.
            _ if has_answer => None,
            // Waiting for a node in a worse state costs the caller more than an answer that is slightly behind.
            NextAttempt::Retry(AttemptResult::Behind) if C::ACCEPTS_BEHIND => Some(Unusable::BelowFloor),
            NextAttempt::Retry(_) | NextAttempt::SecondNode => Some(Unusable::Unreachable),
        };
        // The node may have closed an idle connection. If no other node is usable, the same node is asked again, once.
        if std::mem::take(&mut self.reconnect) {
            if let Ok(usable) = self.pick(None) {
                return Some(usable);
            }
            self.tried.clear();
        }
        if has_answer { self.pick(worst).ok() } else { self.pick_in_time(worst).await.ok() }
    }

    /// Picks the node to ask. The node is usable, or unusable for `worst` or a milder reason. If `worst` is
    /// `None`, the node is usable. Waits if only a first probe can make a node usable, or if all usable nodes are at their
    /// rate limit.
    async fn pick_in_time(&self, worst: Option<Unusable>) -> Result<Arc<Member>, Vec<FailedAttempt>> {
        let nodes = &self.pool.nodes;
        let mut probed = nodes.probed();
        loop {
            let picked = self.pool.selector.pick_or_wait(nodes, self.call, &self.tried, worst).await;
            if picked.is_ok() || !nodes.first_probe(&mut probed, self.call.context().deadline).await {
                return picked;
            }
        }
    }

    fn pick(&self, worst: Option<Unusable>) -> Result<Arc<Member>, Vec<FailedAttempt>> {
        self.pool.selector.pick(&self.pool.nodes, self.call, &self.tried, worst)
    }

    /// Asks the node with the highest slot, without a minimum slot. Does this only if the best answer so far is a
    /// refusal of the gateway's own minimum slot. A caller never gets such a refusal. This attempt is made in
    /// addition to `pool.retries`.
    async fn ask_without_min_slot(&mut self) {
        let refused = |resort: &LastResort| resort.reply.code() == Some(code::MIN_CONTEXT_SLOT_NOT_REACHED);
        let by_min_slot = self.call.may_send_min_slot()
            && self.best.is_none()
            && self.last_resort.as_ref().is_some_and(refused);
        if !by_min_slot {
            return;
        }
        self.last_resort = None;
        if Instant::now() >= self.call.context().deadline {
            return;
        }
        let Some(member) = pick_highest(&self.pool.nodes, self.call).await else { return };
        self.pool.metrics.upstream_retries.at(RetryReason(AttemptResult::Behind)).inc();
        let unheard = AtomicBool::new(false);
        let outcome = attempt(self.pool, self.call, &member, MinSlotUse::Withheld, &unheard).await;
        if let CallStep::Done(reply) = self.process_outcome(&member, outcome) {
            self.best = Some((Verdict::NeedsSecondNode, reply));
        }
    }

    /// Returns the best answer of all attempts, none of which brought a certain answer.
    ///
    /// # Errors
    /// No attempt brought a usable answer: [`Error::NoUpstream`], with every failed attempt.
    fn conclude(self) -> Result<PoolReply, Error> {
        if let Some((_, reply)) = self.best {
            return Ok(reply);
        }
        match self.last_resort {
            Some(LastResort { reply, why: AttemptResult::Behind }) if C::ACCEPTS_BEHIND => Ok(reply),
            Some(LastResort { reply, .. })
                if self.call.accepts_refusal(&self.attempts, &self.pool.nodes.load()) =>
            {
                Ok(reply)
            }
            _ => Err(Error::NoUpstream(self.attempts)),
        }
    }
}

fn log_fault(member: &Member, fault: Fault) {
    let reason = fault.result().as_str();
    if fault.counts_against_node() {
        tracing::warn!(upstream.name = member.name, reason, "an attempt on an upstream failed");
    } else {
        tracing::debug!(
            upstream.name = member.name,
            reason,
            "an attempt on an upstream brought no usable answer, which does not count against the upstream"
        );
    }
}

#[cfg(test)]
mod tests;
