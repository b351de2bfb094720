//! One call through the pool: asks a node, asks another one if that may give a better answer, and returns the best answer.
//!
//! All kinds of calls share one loop. Their differences are in [`UpstreamCall`].

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Pool;
use super::attempt::{attempt, slow_after};
use super::meaning::{Holders, Meaning, WhyAskOn, may_go_on};
use super::member::{Member, NodeState};
use super::members::Members;
use super::question::{BlocksRead, Question};
use super::reply::{Best, PoolReply};
use super::retry_budget::RetryBudget;
use super::upstream_call::{MinSlotUse, UpstreamCall};
use crate::error::{Error, FailedAttempt};
use crate::methods::{AnyMethod, Slot};
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
    course.retry_budget().deposit();
    pool.patience.deposit();
    let mut member = course.pick_in_time(Some(Unusable::Incapable)).await.map_err(Error::NoUpstream)?;
    loop {
        let next = match course.ask(&member).await {
            CallStep::Done(reply) => return Ok(reply),
            CallStep::Enough => None,
            CallStep::Confirm => course.pick_to_confirm(),
            CallStep::Retry(why) => course.pick_to_retry(why).await,
        };
        let Some(next) = next else { break };
        member = next;
    }
    if let Some(member) = course.pick_without_min_slot().await {
        let outcome = attempt(pool, call, &member, MinSlotUse::Withheld).await;
        if let CallStep::Done(reply) = course.record(&member, outcome) {
            return Ok(reply);
        }
    }
    course.conclude()
}

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
    /// The nodes that do not hold what is asked, by their ids, with their oldest blocks.
    without_it: Vec<(usize, Option<Slot>)>,
    /// The nodes whose refusals may be their own trouble. If another node answers the call, they were.
    doubted: Vec<Arc<NodeState>>,
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
        let (retries_left, tried) = (members.settings.retries, excluded(&question, &members));
        Self {
            pool,
            call,
            question,
            retries_left,
            tried,
            attempts: Vec::new(),
            best: None,
            without_it: Vec::new(),
            doubted: Vec::new(),
        }
    }

    /// Returns the budget for retries. It protects a pool that is down from triple load. Forwarded calls
    /// have a budget of their own, because a caller may find one that fails everywhere.
    fn retry_budget(&self) -> &RetryBudget {
        if self.question.is_known_work() { &self.pool.retries } else { &self.pool.forwarded_retries }
    }

    /// Asks `member`. If that takes many times the usual time, asks a second node as well, and takes the first answer that
    /// decides the call. The slower attempt is given up. Returns what follows.
    async fn ask(&mut self, member: &Arc<Member>) -> CallStep {
        let (pool, call) = (self.pool, self.call);
        self.tried.push(member.id);
        let first = attempt(pool, call, member, MinSlotUse::Sent);
        tokio::pin!(first);
        let (patience, _) = slow_after(pool, member, &self.question);
        if !self.question.is_quick {
            let outcome = first.await;
            return self.record(member, outcome);
        }
        if let Ok(outcome) = tokio::time::timeout(patience, &mut first).await {
            return self.record(member, outcome);
        }
        if self.is_spare(member) {
            self.failed(member, AttemptResult::Slow);
            return CallStep::Confirm;
        }
        let Some(second) = self.pick_beside(patience) else {
            let outcome = first.await;
            return self.record(member, outcome);
        };
        self.tried.push(second.id);
        let other = attempt(pool, call, &second, MinSlotUse::Sent);
        tokio::pin!(other);
        let (step, left) = tokio::select! {
            biased;
            outcome = &mut first => (self.record(member, outcome), &second),
            outcome = &mut other => (self.record(&second, outcome), member),
        };
        if matches!(step, CallStep::Done(_) | CallStep::Enough) {
            return step;
        }
        // It does not decide the call, so the other answer is worth waiting for.
        let outcome = if left.id == member.id { first.await } else { other.await };
        self.record(left, outcome)
    }

    /// Returns true if the absence of what is asked may be told without the word of `member`.
    fn is_spare(&self, member: &Member) -> bool {
        let Some(Best { meaning: Meaning::AskOn(WhyAskOn::Absent(holders)), .. }) = self.best else {
            return false;
        };
        !self.unheard(holders, &self.pool.nodes.load()).iter().any(|unheard| unheard.id == member.id)
    }

    /// Picks the node that is asked beside one that has taken `waited` so far, and pays for it. `None` if there is no usable
    /// node that is faster: where all are slow, asking twice would make them slower.
    fn pick_beside(&self, waited: Duration) -> Option<Arc<Member>> {
        if !self.has_time() || !self.pool.nodes.has_faster(&self.question, &self.tried, waited) {
            return None;
        }
        if !self.pool.patience.withdraw() {
            return None;
        }
        let second = self.pool.nodes.pick(&self.question, &self.tried, None).ok()?;
        self.pool.metrics.upstream_retries.at(RetryReason(AttemptResult::Slow)).inc();
        Some(second)
    }

    /// Records the outcome of one attempt at `member`, and returns what follows.
    fn record(&mut self, member: &Member, outcome: Result<(Meaning, PoolReply), Fault>) -> CallStep {
        let (meaning, reply) = match outcome {
            Ok(answer) => answer,
            Err(fault) => return self.record_fault(member, fault),
        };
        match meaning {
            Meaning::Decides => return self.done(reply),
            Meaning::AskOn(WhyAskOn::Absent(_)) => {
                // What it told of its oldest block is not true any more if it leaves out blocks above that.
                let is_wrong = |first: &Slot| matches!(self.question.reads, BlocksRead::BlocksFrom(asked) if *first <= asked);
                let first = member.first_available().filter(|first| !is_wrong(first));
                self.without_it.push((member.id, first));
            }
            Meaning::AskOn(WhyAskOn::Private) => {
                self.failed(member, AttemptResult::NodeError);
                self.doubted.push(Arc::clone(&member.state));
            }
            Meaning::AskOn(WhyAskOn::Behind | WhyAskOn::Unlikely) | Meaning::NotHere => {}
        }
        if let Some(why) = meaning.result() {
            self.failed(member, why);
        } else if self.question.is_for_one_node {
            return CallStep::Done(reply);
        }
        let is_confirmed = meaning == Meaning::AskOn(WhyAskOn::Unlikely)
            && self.best.as_ref().is_some_and(|best| best.meaning == meaning);
        let best = Best::better(self.best.take(), Best { meaning, reply });
        if is_confirmed {
            return CallStep::Done(best.reply);
        }
        let step = match meaning.result() {
            Some(why) if !best.is_answer() => CallStep::Retry(why),
            _ => CallStep::Confirm,
        };
        self.best = Some(best);
        step
    }

    fn done(&mut self, reply: PoolReply) -> CallStep {
        if matches!(reply.body, NodeReply::Result(_)) {
            let now = Instant::now();
            self.doubted.iter().for_each(|node| node.quiet.refused(self.question.method, None, now, now));
        }
        CallStep::Done(reply)
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
        let limit = (fault == Fault::TooLarge).then(|| self.pool.longest_answer(self.question.method));
        let attempt = FailedAttempt::new(member.name.clone(), fault.result());
        self.attempts.push(FailedAttempt { limit, retry_after, ..attempt });
        log_fault(member, fault);
        // A call that is too long for one node says nothing of shorter ones.
        let has_hung = fault == Fault::Timeout && self.question.method == AnyMethod::Send;
        if has_hung || matches!(fault, Fault::UnknownCode | Fault::Status(..=412 | 414..500)) {
            self.doubted.push(Arc::clone(&member.state));
        }
        if !may_go_on(&self.question, fault) {
            // The node may hold what others lack, and only could not deliver it.
            self.best.take_if(|best| matches!(best.meaning, Meaning::AskOn(WhyAskOn::Absent(_))));
            return CallStep::Enough;
        }
        let has_answer = self.best.as_ref().is_some_and(Best::is_answer);
        if has_answer { CallStep::Confirm } else { CallStep::Retry(fault.result()) }
    }

    /// Returns true if `member` may hold what the nodes that have answered lack.
    fn may_hold_more(&self, member: &Member, holders: Holders) -> bool {
        match (holders, self.question.reads, member.first_available()) {
            // A node may have dropped blocks since it told its first one, so one with as old blocks is asked, too.
            (Holders::Older, _, Some(first)) => self.oldest_heard().is_none_or(|oldest| first <= oldest),
            (Holders::Any, BlocksRead::Block(slot), Some(first)) => first <= slot,
            _ => true,
        }
    }

    /// Returns the oldest block of the nodes that do not hold what is asked. `None` if none of them has told it.
    fn oldest_heard(&self) -> Option<Slot> {
        self.without_it.iter().filter_map(|(_, first)| *first).min()
    }

    /// Returns the nodes that may hold what others lack, and have not answered. A node whose blocks do not go back further
    /// than those of one that has answered is not one of them.
    fn unheard(&self, holders: Holders, members: &Members) -> Vec<Arc<Member>> {
        let oldest = self.oldest_heard();
        let is_unheard = |member: &&Arc<Member>| {
            let is_as_young =
                oldest.zip(member.first_available()).is_some_and(|(heard, first)| heard <= first);
            holders != Holders::Ahead
                && member.serves(self.question.method)
                && self.pool.nodes.cluster.unidentified(member).is_none()
                && !self.without_it.iter().any(|(id, _)| *id == member.id)
                && !is_as_young
                && self.may_hold_more(member, holders)
        };
        members.iter().filter(is_unheard).cloned().collect()
    }

    fn failed(&mut self, member: &Member, why: AttemptResult) {
        self.attempts.push(FailedAttempt::new(member.name.clone(), why));
    }

    fn has_time(&self) -> bool {
        Instant::now() < self.question.context.deadline
    }

    /// Picks a node that may improve or confirm the answer. `None` if no node may be asked.
    fn pick_to_confirm(&self) -> Option<Arc<Member>> {
        let Meaning::AskOn(doubt) = self.best.as_ref()?.meaning else { return None };
        let mut out = self.tried.clone();
        let worst = match doubt {
            // No report proves that there is nothing, so nodes in a bad state are asked, too. One that answers no probe would
            // only cost the caller time.
            WhyAskOn::Absent(holders @ (Holders::Any | Holders::Older)) => {
                let members = self.pool.nodes.load();
                let lacks = |member: &&Arc<Member>| !self.may_hold_more(member, holders);
                out.extend(members.iter().filter(lacks).map(|member| member.id));
                Some(Unusable::Lagging)
            }
            WhyAskOn::Private => Some(Unusable::NoHistory),
            // The agreement of a node in a bad state proves nothing.
            WhyAskOn::Absent(Holders::Ahead) | WhyAskOn::Unlikely | WhyAskOn::Behind => None,
        };
        if self.has_time() { self.pool.nodes.pick(&self.question, &out, worst).ok() } else { None }
    }

    /// Picks the node for a retry after an attempt with the result `why`, and pays for the retry. `None` if there is no
    /// retry.
    async fn pick_to_retry(&mut self, why: AttemptResult) -> Option<Arc<Member>> {
        if self.retries_left == 0 || !self.has_time() {
            return None;
        }
        let worst = match why {
            // Waiting for a node in a worse state costs the caller more than an answer that is slightly behind.
            AttemptResult::Behind if self.question.is_known_work() => Unusable::BelowFloor,
            _ => Unusable::Unreachable,
        };
        // The node may have closed an idle connection. If no other node is usable, the same node is asked again.
        let may_reconnect =
            why == AttemptResult::Connect && self.attempts.len() == 1 && self.question.is_known_work();
        if may_reconnect && self.pool.nodes.usable(&self.question, &self.tried).is_empty() {
            self.tried.clear();
        }
        let picked = self.pick_in_time(Some(worst)).await.ok()?;
        // The node is picked before the retry budget is charged, because without a node there is no retry. A node that
        // refuses the call or has fallen behind is not down, so a retry after it takes no token. A transaction is worth more
        // than the calls that it costs.
        let is_down = !matches!(why, AttemptResult::Incapable | AttemptResult::Behind);
        let is_free = !is_down || self.question.method == AnyMethod::Send;
        if !is_free && !self.retry_budget().withdraw() {
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
        let mut probed = nodes.probed.subscribe();
        loop {
            let picked = nodes.pick_or_wait(&self.question, &self.tried, worst).await;
            if picked.is_ok() || !nodes.first_probe(&mut probed, self.question.context.deadline).await {
                return picked;
            }
        }
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
    fn conclude(mut self) -> Result<PoolReply, Error> {
        let members = self.pool.members();
        let Some(best) = self.best.take() else { return Err(Error::NoUpstream(self.attempts)) };
        let is_accepted = match best.meaning {
            Meaning::AskOn(WhyAskOn::Absent(holders)) => {
                let unheard = self.unheard(holders, &members);
                self.attempts.extend(self.pool.nodes.why_not(&self.question, &unheard, &self.attempts));
                unheard.is_empty()
            }
            Meaning::AskOn(WhyAskOn::Behind) if self.question.accepts_behind => true,
            Meaning::AskOn(WhyAskOn::Behind) | Meaning::NotHere => {
                self.call.accepts_refusal(&self.attempts, &members)
            }
            Meaning::AskOn(WhyAskOn::Private | WhyAskOn::Unlikely) | Meaning::Decides => true,
        };
        if is_accepted { Ok(best.reply) } else { Err(Error::NoUpstream(self.attempts)) }
    }
}

fn excluded(question: &Question<'_>, members: &Members) -> Vec<usize> {
    let is_out = |member: &&Arc<Member>| {
        question.without.contains(&member.id)
            || !question.upstreams.is_empty() && !question.upstreams.contains(&member.name)
    };
    members.iter().filter(is_out).map(|member| member.id).collect()
}

fn log_fault(member: &Member, fault: Fault) {
    let reason = fault.result().as_str();
    match fault {
        Fault::TooManyRequests(_)
        | Fault::TooLarge
        | Fault::BuffersFull
        | Fault::Foreign
        | Fault::GivenUp => {
            tracing::debug!(
                upstream.name = member.name,
                reason,
                "an attempt on an upstream brought no usable answer, which does not count against the upstream"
            );
        }
        _ => tracing::warn!(upstream.name = member.name, reason, "an attempt on an upstream failed"),
    }
}

#[cfg(test)]
mod tests;
