//! One call through the pool: asks a node, asks another one if that may give a better answer, and returns the best answer.
//!
//! All kinds of calls share one loop. Their differences are in [`UpstreamCall`].

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Pool;
use super::attempt::attempt;
use super::member::Member;
use super::question::{MinSlotUse, Question, UpstreamCall};
use super::rate::Budget;
use super::reply::{Best, Meaning, PoolReply};
use crate::error::{Error, FailedAttempt};
use crate::node::{Fault, NodeReply};
use crate::telemetry::{AttemptResult, RetryReason, Unusable};

/// Sends `call` to nodes until one answers. `pool.retries`, the retry budget and the call's deadline limit the
/// number of attempts.
///
/// # Errors
/// No node gave a usable answer: [`Error::NoUpstream`], with every failed attempt. A passed deadline gives this
/// error, too, so the caller must check the deadline.
pub(super) async fn run<C: UpstreamCall>(pool: &Pool, call: &C) -> Result<PoolReply, Error> {
    let mut course = CallCourse::new(pool, call);
    course.retry_budget().deposit(Instant::now());
    let mut member = course.pick_in_time(Some(Unusable::Incapable)).await.map_err(Error::NoUpstream)?;
    loop {
        course.tried.push(member.id);
        let next = match course.record(&member, attempt(pool, call, &member, MinSlotUse::Sent).await) {
            CallStep::Done(reply) => return Ok(reply),
            CallStep::Enough => None,
            CallStep::Confirm => course.pick_to_confirm(),
            CallStep::Retry(why) => course.pick_to_retry(why).await,
        };
        member = match next {
            Some(member) => member,
            None => break,
        };
    }
    if let Some(member) = course.pick_without_min_slot().await {
        let outcome = attempt(pool, call, &member, MinSlotUse::Withheld).await;
        if let CallStep::Done(reply) = course.record(&member, outcome) {
            return Ok(reply);
        }
    }
    course.conclude()
}

/// One call with its attempts so far.
struct CallCourse<'a, C> {
    pool: &'a Pool,
    call: &'a C,
    question: Question<'a>,
    retries_left: usize,
    /// The ids of the nodes that are not asked any more.
    tried: Vec<usize>,
    /// The attempts that failed or brought no certain answer, each with its reason. [`Error::NoUpstream`] reports them.
    attempts: Vec<FailedAttempt>,
    /// The best answer so far. None is certain, because a certain answer ends the call.
    best: Option<Best>,
}

/// What follows from an attempt.
enum CallStep {
    Done(PoolReply),
    /// There is an answer, which another node may improve or confirm. Such attempts are made in addition to the
    /// retries. They end with the nodes, because each node is asked once.
    Confirm,
    /// No node gave a usable answer. Holds the result of the last attempt, under which metrics count the retry.
    Retry(AttemptResult),
    Enough,
}

impl<'a, C: UpstreamCall> CallCourse<'a, C> {
    fn new(pool: &'a Pool, call: &'a C) -> Self {
        let (members, question) = (pool.nodes.load(), call.question());
        let (retries_left, tried) = (members.settings.retries, question.excluded(&members));
        Self { pool, call, question, retries_left, tried, attempts: Vec::new(), best: None }
    }

    /// Returns the budget for retries. It protects a pool that is down from triple load. Calls of passthrough methods
    /// have a budget of their own, because a caller may find one that fails everywhere.
    fn retry_budget(&self) -> &Budget {
        if self.question.is_own() { &self.pool.retries } else { &self.pool.passthrough_retries }
    }

    /// Records the outcome of one attempt at `member`, and returns what follows.
    fn record(&mut self, member: &Member, outcome: Result<(Meaning, PoolReply), Fault>) -> CallStep {
        use Meaning::{Answer, NeedsSecondNode, TryElsewhere, UnlistedError};
        let (meaning, reply) = match outcome {
            Ok(answer) => answer,
            Err(fault) => return self.record_fault(member, fault),
        };
        match (meaning, self.best.take()) {
            (TryElsewhere(why), held) => {
                self.failed(member, why, None);
                let best = Best::better(held, Best { meaning, reply });
                let step = if best.is_answer() { CallStep::Confirm } else { CallStep::Retry(why) };
                self.best = Some(best);
                step
            }
            // Only a certain result replaces an error with an unlisted code. A doubtful one would need a third node.
            (_, Some(Best { meaning: UnlistedError, reply: first })) => {
                let is_result = matches!(reply.body, NodeReply::Result(_));
                CallStep::Done(if meaning == Answer && is_result { reply } else { first })
            }
            (Answer, _) => CallStep::Done(reply),
            // Two nodes confirm an unexpected slot. They do not confirm that a block is missing, because several nodes
            // may have started from the same snapshot. So all of them are asked.
            (NeedsSecondNode, Some(Best { meaning: NeedsSecondNode, reply: first })) => {
                let is_missing = reply.has_no_block();
                let better = first.better_of(reply);
                if !is_missing {
                    return CallStep::Done(better);
                }
                self.best = Some(Best { meaning, reply: better });
                CallStep::Confirm
            }
            // Another node has reported a missing block. This error says nothing about that block.
            (UnlistedError, first @ Some(Best { meaning: NeedsSecondNode, .. })) => {
                self.best = first;
                self.failed(member, AttemptResult::NodeError, None);
                CallStep::Confirm
            }
            _ if self.question.is_for_one_node => CallStep::Done(reply),
            _ => {
                self.best = Some(Best { meaning, reply });
                CallStep::Confirm
            }
        }
    }

    /// Records a fault of `member`, and returns what follows.
    fn record_fault(&mut self, member: &Member, fault: Fault) -> CallStep {
        let now = Instant::now();
        let mut retry_after = None;
        if let Fault::TooManyRequests(asked) = fault {
            let is_quiet =
                |member: &&Arc<Member>| member.state.quiet.left(self.question.method, now).is_some();
            // If the node asks for no pause, the caller gets the one that the pool makes.
            let own_pause = || member.state.quiet.left(self.question.method, now).unwrap_or_default();
            retry_after = Some(asked.filter(|wait| !wait.is_zero()).unwrap_or_else(own_pause));
            // Other nodes that are quiet have just refused the method, and would refuse it once more.
            self.tried.extend(self.pool.members().iter().filter(is_quiet).map(|quiet| quiet.id));
        }
        self.failed(member, fault.result(), retry_after);
        log_fault(member, fault);
        if !self.call.may_retry(fault) {
            // The node may hold the block that others lack, and only could not deliver it.
            if self.misses_block() {
                self.best = None;
            }
            return CallStep::Enough;
        }
        if self.has_answer() { CallStep::Confirm } else { CallStep::Retry(fault.result()) }
    }

    fn has_answer(&self) -> bool {
        self.best.as_ref().is_some_and(Best::is_answer)
    }

    /// Returns true if the nodes asked so far have reported that a block is missing.
    fn misses_block(&self) -> bool {
        self.best
            .as_ref()
            .is_some_and(|best| best.meaning == Meaning::NeedsSecondNode && best.reply.has_no_block())
    }

    fn failed(&mut self, member: &Member, why: AttemptResult, retry_after: Option<Duration>) {
        self.attempts.push(FailedAttempt { upstream: member.name.clone(), reason: why.into(), retry_after });
    }

    fn has_time(&self) -> bool {
        Instant::now() < self.question.context.deadline
    }

    /// Picks a node that may improve or confirm the answer. `None` if no node may be asked.
    fn pick_to_confirm(&self) -> Option<Arc<Member>> {
        // No report of a missing block proves that there is no block, so nodes in a bad state are asked, too. One that
        // answers no probe would only cost the caller time. Otherwise the agreement of a node in a bad state proves
        // nothing.
        let worst = self.misses_block().then_some(Unusable::Lagging);
        if self.has_time() { self.pick(worst).ok() } else { None }
    }

    /// Picks the node for a retry after an attempt with the result `why`, and pays for the retry. `None` if there is no
    /// retry.
    async fn pick_to_retry(&mut self, why: AttemptResult) -> Option<Arc<Member>> {
        if self.retries_left == 0 || !self.has_time() {
            return None;
        }
        let worst = match why {
            // Waiting for a node in a worse state costs the caller more than an answer that is slightly behind.
            AttemptResult::Behind if self.question.is_own() => Unusable::BelowFloor,
            _ => Unusable::Unreachable,
        };
        // The node may have closed an idle connection. If no other node is usable, the same node is asked again.
        let may_reconnect =
            why == AttemptResult::Connect && self.attempts.len() == 1 && self.question.is_own();
        if may_reconnect && !self.pool.nodes.has_usable(&self.question, &self.tried) {
            self.tried.clear();
        }
        let picked = self.pick_in_time(Some(worst)).await.ok()?;
        // The node is picked before the retry budget is charged, because without a node there is no retry. A node that
        // refuses the call or has fallen behind is not down, so a retry after it takes no token.
        let is_down = !matches!(why, AttemptResult::Incapable | AttemptResult::Behind);
        if is_down && !self.retry_budget().withdraw(Instant::now()) {
            return None;
        }
        self.pool.metrics.upstream_retries.at(RetryReason(why)).inc();
        self.retries_left -= 1;
        Some(picked)
    }

    /// Picks the node to ask. The node is usable, or unusable for `worst` or a milder reason. If `worst` is
    /// `None`, the node is usable. Waits if only a first probe can make a node usable, or if all usable nodes are at their
    /// rate limit.
    async fn pick_in_time(&self, worst: Option<Unusable>) -> Result<Arc<Member>, Vec<FailedAttempt>> {
        let nodes = &self.pool.nodes;
        let mut probed = nodes.probed();
        loop {
            let picked = nodes.pick_or_wait(&self.question, &self.tried, worst).await;
            if picked.is_ok() || !nodes.first_probe(&mut probed, self.question.context.deadline).await {
                return picked;
            }
        }
    }

    fn pick(&self, worst: Option<Unusable>) -> Result<Arc<Member>, Vec<FailedAttempt>> {
        self.pool.nodes.pick(&self.question, &self.tried, worst)
    }

    /// Picks the node with the highest slot, to ask it without a minimum slot. `None` unless the best answer so far is a
    /// refusal of the gateway's own minimum slot, which a caller never gets. This attempt is made in addition to
    /// `pool.retries`.
    async fn pick_without_min_slot(&mut self) -> Option<Arc<Member>> {
        self.best.take_if(|best| self.question.may_send_min_slot && best.refuses_min_slot())?;
        if !self.has_time() {
            return None;
        }
        let highest = self.pool.nodes.pick_highest(&self.question).await?;
        self.pool.metrics.upstream_retries.at(RetryReason(AttemptResult::Behind)).inc();
        Some(highest)
    }

    /// Returns the best answer of all attempts, none of which brought a certain answer.
    ///
    /// # Errors
    /// No attempt brought a usable answer: [`Error::NoUpstream`], with every failed attempt.
    fn conclude(self) -> Result<PoolReply, Error> {
        let is_accepted = |best: &Best| match best.meaning {
            Meaning::TryElsewhere(AttemptResult::Behind) if self.question.accepts_behind => true,
            Meaning::TryElsewhere(_) => self.call.accepts_refusal(&self.attempts, &self.pool.nodes.load()),
            _ => true,
        };
        self.best.filter(is_accepted).map(|best| best.reply).ok_or(Error::NoUpstream(self.attempts))
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
