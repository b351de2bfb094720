//! One call on its way through the pool: attempt, weigh what came, go on to another node, conclude.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::time::Instant;

use super::attempt::{Floor, Reply};
use super::member::Member;
use super::select::Unusable;
use super::verdict::{LastResort, Verdict, agreed, code, lacks};
use super::{Ask, Pool};
use crate::error::{Attempt, Error};
use crate::node::{Fault, NodeReply};
use crate::telemetry::{AttemptResult, RetryReason};

/// What an attempt came to.
pub(super) type Outcome = Result<(Verdict, Reply), Fault>;

/// What one call has brought so far.
#[derive(Debug, Default)]
struct SoFar {
    /// By their numbers.
    tried: Vec<usize>,
    /// Every attempt that brought no answer.
    attempts: Vec<Attempt>,
    /// An answer that another node might better.
    doubtful: Option<Reply>,
    /// The first error that no contract names.
    own_word: Option<Reply>,
    /// The best of what was sent elsewhere.
    last_resort: Option<LastResort>,
    /// The first attempt found no connection, or one that was closed.
    reconnect: bool,
}

/// What follows from an attempt.
enum Step {
    /// The answer.
    Done(Reply),
    /// One more node is asked.
    Next(Next),
    /// No further node would change anything.
    Enough,
}

/// Why one more node is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// To confirm or better the first answer, once for a call.
    SecondVoice,
    /// It is one of the retries; with a reason it is counted, and most come out of the retry budget as well.
    Retry(Option<AttemptResult>),
}

impl SoFar {
    /// Takes one attempt's outcome in.
    fn weigh(&mut self, member: &Member, ask: &Ask, outcome: Outcome) -> Step {
        // An error that no contract names gives way to a result, and to nothing else.
        if let Some(first) = self.own_word.take() {
            return Step::Done(match outcome {
                Ok((_, reply)) if is_result(&reply) => reply,
                Ok(_) => first,
                Err(fault) => {
                    after_fault(member, fault);
                    first
                }
            });
        }
        match outcome {
            Ok((Verdict::Answer, reply)) => Step::Done(reply),
            Ok((Verdict::OwnWord, reply)) if ask.alone => Step::Done(reply),
            Ok((Verdict::OwnWord, reply)) => {
                self.failed(member, AttemptResult::NodeError);
                // It says nothing of a block that another node calls absent.
                if self.doubtful.is_some() {
                    return Step::Next(Next::Retry(Some(AttemptResult::NodeError)));
                }
                // Outside the retries, too: one other node is asked, however many such errors there are.
                self.own_word = Some(reply);
                Step::Next(Next::SecondVoice)
            }
            Ok((Verdict::SecondVoice, reply)) if ask.alone => Step::Done(reply),
            Ok((Verdict::SecondVoice, reply)) => match self.doubtful.take() {
                // Outside the retries: one further call is the price of an absence that is kept for long.
                None => {
                    self.doubtful = Some(reply);
                    Step::Next(Next::SecondVoice)
                }
                // That a block is cleaned up, or not there yet though the frontier has passed it, says nothing of the other
                // nodes: those of deeper history, or further on, are asked.
                Some(first) if code(&reply).is_some_and(lacks) => {
                    self.doubtful = Some(first);
                    Step::Next(Next::Retry(None))
                }
                Some(first) => Step::Done(agreed(first, reply)),
            },
            Ok((Verdict::Elsewhere(why), reply)) => {
                self.failed(member, why);
                let other = LastResort { reply, why };
                self.last_resort = Some(LastResort::better(self.last_resort.take(), other));
                Step::Next(Next::Retry(Some(why)))
            }
            Err(fault) => {
                self.failed(member, fault.result());
                after_fault(member, fault);
                if ask.alone || !fault.may_retry() {
                    return Step::Enough;
                }
                // A second voice that breaks is none: the next one that is usable may have the block.
                self.reconnect =
                    fault == Fault::Connect && self.attempts.len() == 1 && self.doubtful.is_none();
                Step::Next(Next::Retry(Some(fault.result())))
            }
        }
    }

    fn failed(&mut self, member: &Member, why: AttemptResult) {
        self.attempts.push(Attempt { upstream: member.name.clone(), reason: why.to_string() });
    }

    /// Whether the best so far is that a floor of ours is not reached.
    fn floor_refused(&self, ask: &Ask) -> bool {
        let refused = self.last_resort.as_ref().is_some_and(|resort| code(&resort.reply) == Some(-32016));
        refused && self.doubtful.is_none() && ask.query.min_context_slot().is_none()
    }
}

impl Pool {
    /// Asks the nodes until one answers, inside the call's deadline, `pool.retries` and the retry budget.
    ///
    /// # Errors
    /// [`Error::NoUpstream`] with every attempt, [`Error::TimedOut`] never: deadlines are the caller's.
    pub async fn call(&self, ask: &Ask) -> Result<Reply, Error> {
        #[cfg(test)]
        if let Some(stand_in) = self.stand_in.get() {
            let (way_back, answer) = tokio::sync::oneshot::channel();
            let _ = stand_in.send((ask.clone(), way_back));
            return answer.await.unwrap_or_else(|_| Err(Error::NoUpstream(Vec::new())));
        }
        self.budget.deposit(Instant::now());
        self.hedges.deposit(Instant::now());
        let mut so_far = SoFar::default();
        let mut retries_left = self.members.load().settings.retries;
        let mut member =
            self.pick_in_time(ask, &[], Some(Unusable::Incapable)).await.map_err(Error::NoUpstream)?;
        loop {
            so_far.tried.push(member.id);
            let first = so_far.attempts.is_empty() && so_far.doubtful.is_none();
            let ended = self.attempt_hedged(&member, ask, first).await;
            let mut step = Step::Enough;
            for (by, outcome) in ended {
                if by.id != member.id {
                    so_far.tried.push(by.id);
                }
                step = so_far.weigh(&by, ask, outcome);
                if matches!(step, Step::Done(_)) {
                    break;
                }
            }
            let next = match step {
                Step::Done(reply) => return Ok(reply),
                Step::Next(next) => next,
                Step::Enough => break,
            };
            let now = Instant::now();
            if now >= ask.deadline || (retries_left == 0 && next != Next::SecondVoice) {
                break;
            }
            // Picked before it is paid for: where nobody is left there was no retry.
            let Some(picked) = self.pick_next(ask, &mut so_far, next).await else { break };
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
            member = picked;
        }
        if so_far.floor_refused(ask) {
            self.without_floor(ask, &mut so_far).await;
        }
        self.conclude(ask, so_far)
    }

    /// A floor of ours is never a caller's error: where nobody reaches it any more, the node of the highest slot is asked
    /// without it. Outside the retries, since nobody has been asked for what there is.
    async fn without_floor(&self, ask: &Ask, so_far: &mut SoFar) {
        so_far.last_resort = None;
        if Instant::now() >= ask.deadline {
            return;
        }
        let Some(member) = self.pick_highest(ask) else { return };
        self.metrics.upstream_retries.at(RetryReason(AttemptResult::Behind)).inc();
        let outcome = self.attempt(&member, ask, Floor::Withheld, &AtomicBool::new(false)).await;
        if let Step::Done(reply) = so_far.weigh(&member, ask, outcome) {
            so_far.doubtful = Some(reply);
        }
    }

    /// Who is asked after what was heard `so_far`.
    async fn pick_next(&self, ask: &Ask, so_far: &mut SoFar, next: Next) -> Option<Arc<Member>> {
        // Who lacks a block proves nothing; who has it does, however it stands: a breaker may be open for a fault that is over.
        let lacking = so_far.doubtful.as_ref().and_then(code).is_some_and(lacks);
        let worst = match next {
            // A second voice must be a usable one: a doubtful node's agreement proves nothing.
            _ if so_far.doubtful.is_some() && !lacking => None,
            _ if so_far.own_word.is_some() => None,
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
        if so_far.doubtful.is_some() || so_far.own_word.is_some() {
            return self.pick(ask, &so_far.tried, worst).ok();
        }
        self.pick_in_time(ask, &so_far.tried, worst).await.ok()
    }

    /// As [`Self::pick`]; where nobody may be asked before a first probe has come back, that is waited for.
    async fn pick_in_time(
        &self,
        ask: &Ask,
        tried: &[usize],
        worst: Option<Unusable>,
    ) -> Result<Arc<Member>, Vec<Attempt>> {
        let mut standings = self.standings.subscribe();
        loop {
            let picked = self.pick(ask, tried, worst);
            if picked.is_ok() || !self.first_probe(&mut standings, ask.deadline).await {
                return picked;
            }
        }
    }

    /// What the caller gets where no node gave an answer that is beyond doubt.
    fn conclude(&self, ask: &Ask, so_far: SoFar) -> Result<Reply, Error> {
        let method = ask.query.method();
        let refused = |name: &str| {
            let word = AttemptResult::Incapable.as_str();
            so_far.attempts.iter().any(|attempt| attempt.upstream == name && attempt.reason == word)
        };
        match (so_far.doubtful.or(so_far.own_word), so_far.last_resort) {
            (Some(reply), _) | (None, Some(LastResort { reply, why: AttemptResult::Behind })) => Ok(reply),
            // That a node lacks the method is the answer only where no other node is left that may have it.
            (None, Some(LastResort { reply, .. }))
                if self
                    .members
                    .load()
                    .iter()
                    .all(|member| !member.serves(method) || refused(&member.name)) =>
            {
                Ok(reply)
            }
            _ => Err(Error::NoUpstream(so_far.attempts)),
        }
    }
}

/// Whether it is a result other than `null`, which proves nothing.
fn is_result(reply: &Reply) -> bool {
    matches!(&reply.body, NodeReply::Result(result) if result.as_ref() != b"null")
}

/// What a fault means for the next calls to this node, and a word of it: the log folds what it has said before.
pub(super) fn after_fault(member: &Member, fault: Fault) {
    let reason = fault.result().as_str();
    if fault.counts_against_node() {
        tracing::warn!(upstream.name = member.name, reason, "an attempt on an upstream failed");
    } else {
        tracing::debug!(upstream.name = member.name, reason, "an attempt on an upstream was given up");
    }
    if let Fault::TooManyRequests(wait) = fault {
        let wait = wait.unwrap_or(Duration::from_millis(250));
        member.quiet_for(wait, Instant::now());
    }
}
