//! A further read method's call: forwarded as it is, to a node that stands well, and elsewhere where it fails.
//!
//! Through the same nodes, limits, retries and budget as the eight, but nothing is known of what these methods answer:
//! an error is the node's word unless it says that the node cannot serve or is not well. A hang says nothing of the
//! node here, since one call of getProgramAccounts may take a node's minute; so no caller can open breakers with one.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::time::Instant;

use super::call::after_fault;
use super::member::Member;
use super::select::{self, Candidate, Unusable};
use super::verdict::is_in_contract;
use super::{Caller, Members, Pool};
use crate::error::{Attempt, Error};
use crate::methods::{Commitment, Forwarded};
use crate::node::{Fault, NodeReply};
use crate::telemetry::{AttemptResult, RetryReason, Trace};

/// A call to be forwarded.
#[derive(Debug, Clone)]
pub struct Forward {
    /// The call.
    pub call: Forwarded,
    /// When the caller stops waiting.
    pub deadline: Instant,
    /// Who it is for.
    pub caller: Caller,
    /// The caller's place in a trace.
    pub trace: Trace,
}

impl Pool {
    /// Asks nodes until one answers, inside the call's deadline, `pool.retries` and the retry budget.
    ///
    /// # Errors
    /// [`Error::NoUpstream`] with every attempt; deadlines are the caller's.
    pub async fn forward(&self, ask: &Forward) -> Result<NodeReply, Error> {
        self.budget.deposit(Instant::now());
        let mut retries_left = self.members.load().settings.retries;
        let (mut tried, mut attempts, mut refusal) = (Vec::new(), Vec::new(), None);
        // The first error that no contract names.
        let mut own_word: Option<NodeReply> = None;
        let mut standings = self.standings.subscribe();
        loop {
            let worst = match own_word {
                // A node in doubt is worth no wait to a caller for whom there is an answer.
                Some(_) => None,
                None if tried.is_empty() => Some(Unusable::Incapable),
                // Whoever has been answered once already is worth no node in worse standing than unreachable.
                None => Some(Unusable::Unreachable),
            };
            let Some(member) = self.pick_to_forward(ask, &tried, worst, &mut attempts) else {
                if own_word.is_some() || !self.first_probe(&mut standings, ask.deadline).await {
                    break;
                }
                if tried.is_empty() {
                    attempts.clear();
                }
                continue;
            };
            tried.push(member.id);
            let outcome = self.forward_once(&member, ask).await;
            // An error that no contract names gives way to the result of one other node, and to nothing else.
            if let Some(first) = own_word {
                return Ok(match outcome {
                    Ok(reply @ NodeReply::Result(_)) => reply,
                    Ok(NodeReply::Error { .. }) => first,
                    Err(fault) => {
                        after_fault(&member, fault);
                        first
                    }
                });
            }
            let why = match outcome {
                // That other node is asked outside the retries and their budget, as for the eight.
                Ok(reply) if is_own_word(&reply) && Instant::now() < ask.deadline => {
                    own_word = Some(reply);
                    continue;
                }
                Ok(reply) => match elsewhere(&reply) {
                    None => return Ok(reply),
                    Some(why) => {
                        refusal = Some(reply);
                        why
                    }
                },
                Err(fault) => {
                    after_fault(&member, fault);
                    if !fault.may_retry() {
                        retries_left = 0;
                    }
                    fault.result()
                }
            };
            attempts.push(Attempt { upstream: member.name.clone(), reason: why.to_string() });
            let now = Instant::now();
            if retries_left == 0 || now >= ask.deadline {
                break;
            }
            // A node that refuses costs nothing, as for the eight.
            if why != AttemptResult::Incapable && !self.budget.withdraw(now) {
                break;
            }
            retries_left -= 1;
            self.metrics.upstream_retries.at(RetryReason(why)).inc();
        }
        if let Some(own_word) = own_word {
            return Ok(own_word);
        }
        // A node's own "cannot" is the answer only where every node that was asked has said so.
        let all_refused = attempts.iter().all(|attempt| {
            [AttemptResult::Incapable, AttemptResult::Behind]
                .iter()
                .any(|word| attempt.reason == word.as_str())
        });
        refusal.filter(|_| all_refused).ok_or(Error::NoUpstream(attempts))
    }

    /// The node to ask next, at `worst` in such standing. Where nobody may be asked at all, `attempts` says why.
    fn pick_to_forward(
        &self,
        ask: &Forward,
        tried: &[usize],
        worst: Option<Unusable>,
        attempts: &mut Vec<Attempt>,
    ) -> Option<Arc<Member>> {
        let (members, now) = (self.members.load(), Instant::now());
        let mut candidates: Vec<Candidate> =
            members.iter().enumerate().map(|one| self.to_forward(&members, one, ask, tried, now)).collect();
        loop {
            let chosen = select::choose(&candidates, self.draw()).map(|drawn| drawn.node);
            let Some(node) = chosen.filter(|node| candidates[*node].unusable <= worst) else {
                if tried.is_empty() {
                    *attempts = super::pick::reasons(&members, &candidates);
                }
                return None;
            };
            if members[node].take_turn(now) {
                return Some(Arc::clone(&members[node]));
            }
            candidates[node].unusable = Some(Unusable::Busy);
        }
    }

    /// A node as it stands for one forwarded call.
    fn to_forward(
        &self,
        members: &Members,
        (node, member): (usize, &Arc<Member>),
        ask: &Forward,
        tried: &[usize],
        now: Instant,
    ) -> Candidate {
        let call = &ask.call;
        let commitment = call.commitment.unwrap_or(Commitment::Processed);
        let below = |floor| member.slot(commitment).is_some_and(|slot| slot < floor);
        let unusable = [
            member.reasons(now).max(),
            member.over_share(ask.caller),
            member.lacks_further(call.method).then_some(Unusable::Incapable),
            self.lagging(members, member),
            self.unidentified(member),
            call.min_context_slot.is_some_and(below).then_some(Unusable::BelowFloor),
            tried.contains(&member.id).then_some(Unusable::Tried),
        ];
        let lag = self.frontier.lag_of(&member.shown, commitment);
        Candidate {
            node,
            unusable: unusable.into_iter().flatten().max(),
            near: lag.is_none_or(|lag| lag <= *self.near_lag.get(commitment)),
            trial: member.is_on_trial(now),
            tier: member.tier,
            load: member.load(now),
        }
    }

    async fn forward_once(&self, member: &Member, ask: &Forward) -> Result<NodeReply, Fault> {
        let sent_at = Instant::now();
        let patience = self.members.load().settings.forward_timeout;
        let timeout = patience.min(ask.deadline.saturating_duration_since(sent_at));
        let (id, place) = (self.next_id(), member.start(None, ask.caller, sent_at));
        let span = ask.trace.attempt(&member.name, ask.call.method.as_str());
        let unheard = AtomicBool::new(false);
        let outcome = match member.client.post(ask.call.body(id), timeout, &unheard, &span).await {
            Ok(arrived) if arrived.is_long() => {
                let parse = move || arrived.reply(id);
                tokio::task::spawn_blocking(parse).await.unwrap_or(Err(Fault::BadJson))
            }
            Ok(arrived) => arrived.reply(id),
            Err(Fault::Timeout) if timeout < patience => Err(Fault::GivenUp),
            Err(fault) => Err(fault),
        };
        let outcome = match outcome {
            Ok(NodeReply::Error { code: -32005, .. }) => Err(Fault::Unhealthy),
            Ok(NodeReply::Error { code: -32603 | -32700, .. }) => Err(Fault::UnknownCode),
            Ok(_) if self.unidentified(member).is_some() => Err(Fault::Foreign),
            outcome => outcome,
        };
        let now = Instant::now();
        let refused = outcome.as_ref().ok().and_then(elsewhere);
        let result = match (&outcome, refused) {
            (Err(fault), _) => fault.result(),
            (Ok(_), Some(why)) => why,
            (Ok(NodeReply::Error { .. }), None) => AttemptResult::NodeError,
            (Ok(NodeReply::Result(_)), None) => AttemptResult::Ok,
        };
        span.end(result);
        member.metrics.requests.at((None, result)).inc();
        let latency = now.duration_since(sent_at);
        member.metrics.request_duration.at(None).observe(latency.as_secs_f64());
        if let Ok(NodeReply::Error { code: -32601 | -32011, .. }) = outcome {
            member.set_lacks_further(ask.call.method);
        }
        match &outcome {
            Ok(reply) if refused.is_none() && !is_own_word(reply) => {
                place.ended(None, latency, now);
            }
            Err(fault) if !matches!(fault, Fault::Timeout | Fault::UnknownCode) => {
                if place.ended(Some(*fault), latency, now) {
                    tracing::warn!(
                        upstream.name = member.name,
                        reason = result.as_str(),
                        "circuit breaker opened"
                    );
                }
            }
            _ => place.says_nothing(),
        }
        outcome
    }
}

/// Whether it is an error that no contract names.
fn is_own_word(reply: &NodeReply) -> bool {
    matches!(reply, NodeReply::Error { code, .. } if !is_in_contract(*code))
}

/// Why another node may answer better, where that is so.
fn elsewhere(reply: &NodeReply) -> Option<AttemptResult> {
    match reply {
        // Not served, or not by this node's storage or indexes.
        NodeReply::Error { code: -32601 | -32010 | -32011 | -32012 | -32019, .. } => {
            Some(AttemptResult::Incapable)
        }
        NodeReply::Error { code: -32016, .. } => Some(AttemptResult::Behind),
        NodeReply::Error { .. } | NodeReply::Result(_) => None,
    }
}
