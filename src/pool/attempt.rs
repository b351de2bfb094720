//! One try at one node: send, time, take apart, and learn from what the node says.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::call::Outcome;
use super::member::Member;
use super::verdict::{Verdict, judge};
use super::{Ask, Pool};
use crate::config;
use crate::frontier::Era;
use crate::methods::{Commitment, Method, Query, Slot};
use crate::node::answer::{error_context_slot, first_available_block};
use crate::node::shape::fits;
use crate::node::{Arrived, Contextual, Fault, NodeReply};
use crate::telemetry::AttemptResult;

/// Calls shorter than this never count as hanging, however fast the method usually is.
const SLOW_AT_LEAST: Duration = Duration::from_millis(250);

/// One node's answer and what is known about it.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The node's number, as the frontier has it.
    pub node: usize,
    /// What it said.
    pub body: NodeReply,
    /// When the call was sent: an answer's age counts from here.
    pub sent_at: Instant,
    /// The slot of the answer: its context's, else the asked node's own at that commitment as known before sending.
    pub slot: Slot,
    /// Whether another node could not better it: every plain answer, and an absent block that a second node which holds
    /// the range calls absent for the same reason. Not a null, nor an answer that is behind, nor one node's "absent".
    pub confirmed: bool,
}

/// Whether a floor of ours goes up with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Floor {
    /// As `minContextSlot`, where the node is known to have reached it: then it cannot answer with less.
    Sent,
    /// Only checked on the answer: every node has fallen back behind it, and the highest answer is wanted.
    Withheld,
}

impl Pool {
    /// One try at one node. `heard` is set once its answer is arriving.
    pub(super) async fn attempt(
        &self,
        member: &Member,
        ask: &Ask,
        floor: Floor,
        heard: &AtomicBool,
    ) -> Outcome {
        let method = ask.query.method();
        let sent_at = Instant::now();
        let (patience, slow) = {
            let members = self.members.load();
            (members.settings.attempt_timeout[method.index()], self.slow_after(method, &members.settings))
        };
        let timeout = patience.min(ask.deadline.saturating_duration_since(sent_at));
        let mut place = member.start(Some(method), ask.caller, sent_at);
        let era = self.frontier.era();
        // Without a context the answer's slot is the node's own, as known before the call was sent.
        let slot_before = slot_before(member, ask);
        let id = self.next_id();
        let query = match floor {
            Floor::Sent => with_floor(member, ask),
            Floor::Withheld => Cow::Borrowed(&ask.query),
        };
        let body = call_body(id, &query);
        let span = ask.trace.attempt(&member.name, method.as_str());
        let outcome = {
            let exchange = async {
                let arrived = member.client.post(body, timeout, heard, &span).await?;
                take_apart(arrived, id, ask.query.clone()).await
            };
            tokio::pin!(exchange);
            if let Some(slow) = slow {
                if let Ok(outcome) = tokio::time::timeout(slow, &mut exchange).await {
                    outcome
                } else {
                    if place.hangs(Instant::now()) {
                        tracing::warn!(upstream.name = member.name, "circuit breaker opened: calls hang");
                    }
                    // The one call that finds out whether a node is back need not wait for a node that is not.
                    let heard = heard.load(Ordering::Relaxed);
                    if place.is_trial() && !heard && !ask.alone && self.another_usable(ask, member) {
                        Err(Fault::Timeout)
                    } else {
                        exchange.await
                    }
                }
            } else {
                exchange.await
            }
        };
        let now = Instant::now();
        let latency = now.duration_since(sent_at);
        // How little time the caller had left says nothing of the node.
        let cut_short = timeout < patience && now >= ask.deadline;
        let outcome = match outcome {
            Err(Fault::Timeout) if cut_short => Err(Fault::GivenUp),
            // It may have been asked before the pool's cluster was known, or have turned out to be of another meanwhile.
            Ok(_) if self.unidentified(member).is_some() => Err(Fault::Foreign),
            outcome => outcome,
        };
        let outcome = outcome.map(|answer| as_refusal(answer, &query, slot_before));
        let judged = outcome.map(|(body, context)| {
            (judge(&body, (context, slot_before), ask, &self.frontier), body, context)
        });
        let end = judged.as_ref().map_or_else(|fault| Err(*fault), |(verdict, ..)| *verdict);
        let result = match (end, &judged) {
            (Err(fault), _) => fault.result(),
            (Ok(Verdict::Elsewhere(result)), _) => result,
            (Ok(_), Ok((_, NodeReply::Error { .. }, _))) => AttemptResult::NodeError,
            (Ok(_), _) => AttemptResult::Ok,
        };
        span.end(result);
        member.metrics.requests.at((Some(method), result)).inc();
        member.metrics.request_duration.at(Some(method)).observe(latency.as_secs_f64());
        // How fast a node refuses says nothing of how it answers.
        let refuses = result == AttemptResult::Incapable || end == Ok(Verdict::OwnWord);
        if refuses {
            place.says_nothing();
        } else if place.ended(end.err(), latency, now) {
            tracing::warn!(upstream.name = member.name, reason = result.as_str(), "circuit breaker opened");
        }
        if end.is_ok() && !refuses {
            self.observe_latency(method, latency);
        }
        let (verdict, body, context) = judged?;
        // The slot that it was known to have reached and was asked for, where both hold.
        let promised = query.min_context_slot().filter(|slot| slot_before >= *slot);
        self.learn(member, ask, &body, context, promised, (era, now));
        let verdict = verdict?;
        self.note_answer(member, now);
        let confirmed = verdict == Verdict::Answer;
        Ok((
            verdict,
            Reply { node: member.id, body, sent_at, slot: context.unwrap_or(slot_before), confirmed },
        ))
    }

    /// What every answer tells of its node, whatever becomes of the call. `promised` is the slot that the call was sent
    /// with, where the node had shown it before; the call was sent in `era`.
    fn learn(
        &self,
        member: &Member,
        ask: &Ask,
        body: &NodeReply,
        context: Option<Slot>,
        promised: Option<Slot>,
        (era, now): (Era, Instant),
    ) {
        let commitment = ask.query.commitment();
        match body {
            NodeReply::Result(_) => {
                if let (Some(slot), Some(commitment)) = (context, commitment) {
                    self.frontier.answered_in(era, member.id, commitment, slot, now);
                }
            }
            NodeReply::Error { code: -32601 | -32011, .. } => member.set_incapable(ask.query.method()),
            NodeReply::Error { code: -32001, body } => {
                if let Some(first) = first_available_block(body) {
                    member.set_first_available(first);
                }
            }
            NodeReply::Error { code: -32016, body } => {
                if let (Some(slot), Some(commitment)) = (error_context_slot(body), commitment) {
                    // It takes back what it has shown: restarted, or another machine at the same address.
                    if promised.is_some_and(|promised| slot < promised) {
                        self.frontier.probed_in(era, member.id, commitment, slot, now);
                    } else {
                        self.frontier.answered_in(era, member.id, commitment, slot, now);
                    }
                }
            }
            NodeReply::Error { .. } => {}
        }
    }

    /// How long a call of this method may take before it counts as hanging.
    fn slow_after(&self, method: Method, settings: &config::Pool) -> Option<Duration> {
        let p95 = self.quantile(method, 0.95)?;
        Some(p95.mul_f64(settings.breaker.slow).max(SLOW_AT_LEAST))
    }
}

/// The answer of a node that ignores `minContextSlot`, as one that knows it would have given it: below a slot that the
/// node has not been known to have reached. Any caller could make faults of such answers otherwise.
fn as_refusal(
    (body, context): (NodeReply, Option<Slot>),
    query: &Query,
    slot_before: Slot,
) -> (NodeReply, Option<Slot>) {
    match (&body, context, query.min_context_slot()) {
        (NodeReply::Result(_), Some(slot), Some(wanted)) if slot < wanted && slot_before < wanted => {
            (NodeReply::min_context_slot_not_reached(slot), None)
        }
        _ => (body, context),
    }
}

fn slot_before(member: &Member, ask: &Ask) -> Slot {
    member.slot(ask.query.commitment().unwrap_or(Commitment::Processed)).unwrap_or(0)
}

/// The call with the floor as its condition, where the method honours one and the caller has none of their own. A node
/// that is not known to have reached the floor is not held to it: what it has may be the highest there is. Nor is one at
/// processed, where a fork may be dropped with its slot numbers.
fn with_floor<'a>(member: &Member, ask: &'a Ask) -> Cow<'a, Query> {
    let commitment = ask.query.commitment().filter(|commitment| *commitment != Commitment::Processed);
    let reached = commitment.and_then(|commitment| member.slot(commitment));
    match (ask.floor, reached) {
        (Some(floor), Some(reached)) if floor <= reached && ask.query.min_context_slot().is_none() => {
            Cow::Owned(ask.query.clone().with_min_context_slot(Some(floor)))
        }
        _ => Cow::Borrowed(&ask.query),
    }
}

/// The whole call as it goes upstream.
fn call_body(id: u64, query: &Query) -> Bytes {
    let params = query.params_json();
    Bytes::from(format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"{}","params":{params}}}"#,
        query.method().as_str()
    ))
}

/// The parts of a body that answers `query`, and its context slot where the method's results have one.
async fn take_apart(arrived: Arrived, id: u64, query: Query) -> Result<(NodeReply, Option<Slot>), Fault> {
    let long = arrived.is_long();
    let parse = move || {
        let reply = arrived.reply(id)?;
        let context = match &reply {
            NodeReply::Result(result) if !fits(&query, result) => return Err(Fault::BadJson),
            NodeReply::Result(result) if query.has_context() => {
                Contextual::split(result).map(|parts| parts.slot)
            }
            _ => None,
        };
        Ok((reply, context))
    };
    if long { tokio::task::spawn_blocking(parse).await.unwrap_or(Err(Fault::BadJson)) } else { parse() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jsonrpc::Params;
    use crate::methods::Profile;

    #[tokio::test]
    async fn a_context_is_read_however_it_is_written_and_only_where_there_is_one() {
        let params = Params::Array(Bytes::from_static(br#"["11111111111111111111111111111111"]"#));
        let balance = Query::parse(Method::GetTokenAccountBalance, &params, Profile::Node).unwrap();
        for (result, query, expected) in [
            (r#"{"context":{"slot":5},"value":{"amount":"1"}}"#, &balance, Ok(Some(5))),
            (r#"{ "context" : { "slot" : 5 }, "value" : { "amount" : "1" } }"#, &balance, Ok(Some(5))),
            (r#"{"value":{"amount":"1"},"context":{"apiVersion":"4.0.0","slot":5}}"#, &balance, Ok(Some(5))),
            (r#"{"value":{"amount":"1"}}"#, &balance, Err(Fault::BadJson)),
            ("[]", &Query::ClusterNodes, Ok(None)),
        ] {
            let body = Bytes::from(format!(r#"{{"jsonrpc":"2.0","result":{result},"id":3}}"#));
            let arrived = Arrived::new(body);
            let context = take_apart(arrived, 3, query.clone()).await.map(|(_, context)| context);
            assert_eq!(context, expected, "{result}");
        }
    }
}
