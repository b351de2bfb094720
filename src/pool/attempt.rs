//! One try at one node: send, time, take apart, and learn from what the node says.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::member::Member;
use super::verdict::{Verdict, contextual, judge};
use super::{Ask, Pool};
use crate::methods::{Commitment, Query, Slot};
use crate::node::answer::{error_context_slot, first_available_block};
use crate::node::{Contextual, Fault, NodeReply};
use crate::telemetry::AttemptResult;

/// Work on longer bodies leaves the async workers: checking 256 KiB of JSON takes some 200 µs.
const OFF_WORKER_BYTES: usize = 256 * 1024;
/// Calls shorter than this never count as hanging, however fast the method usually is.
const SLOW_AT_LEAST: Duration = Duration::from_millis(250);

/// One node's answer and what is known about it.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The node's position in the pool.
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

impl Pool {
    /// One try at `member`.
    pub(super) async fn attempt(&self, node: usize, ask: &Ask) -> Result<(Verdict, Reply), Fault> {
        let member = &self.members[node];
        let method = ask.query.method();
        let sent_at = Instant::now();
        let patience = self.settings.attempt_timeout[method.index()];
        let timeout = patience.min(ask.deadline.saturating_duration_since(sent_at));
        let mut place = member.start(method, sent_at);
        // Without a context the answer's slot is the node's own, as known before the call was sent.
        let slot_before = self.slot_before(node, ask);
        let id = self.next_id();
        let body = call_body(id, &ask.query);
        let outcome = {
            let exchange = async {
                let body = member.client.post(body, timeout).await?;
                take_apart(body, id, contextual(&ask.query)).await
            };
            tokio::pin!(exchange);
            if let Some(slow) = self.slow_after(method.index()) {
                if let Ok(outcome) = tokio::time::timeout(slow, &mut exchange).await {
                    outcome
                } else {
                    if place.hangs(Instant::now()) {
                        tracing::warn!(upstream.name = member.name, "circuit breaker opened: calls hang");
                    }
                    exchange.await
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
            outcome => outcome,
        };
        let judged =
            outcome.map(|(body, context)| (judge(&body, context, ask, &self.frontier), body, context));
        let end = judged.as_ref().map_or_else(|fault| Err(*fault), |(verdict, ..)| *verdict);
        let result = match (end, &judged) {
            (Err(fault), _) => fault.result(),
            (Ok(Verdict::Elsewhere(result)), _) => result,
            (Ok(_), Ok((_, NodeReply::Error { .. }, _))) => AttemptResult::NodeError,
            (Ok(_), _) => AttemptResult::Ok,
        };
        member.metrics.requests.at((Some(method), result)).inc();
        member.metrics.request_duration.at(Some(method)).observe(latency.as_secs_f64());
        if result == AttemptResult::Incapable {
            // How fast it refuses says nothing of how it answers.
            place.says_nothing();
        } else if place.ended(end.err(), latency, now) {
            tracing::warn!(upstream.name = member.name, reason = result.as_str(), "circuit breaker opened");
        }
        if end.is_ok() && result != AttemptResult::Incapable {
            self.observe_latency(method.index(), latency);
        }
        let (verdict, body, context) = judged?;
        self.learn(node, ask, &body, context, now);
        let verdict = verdict?;
        let confirmed = verdict == Verdict::Answer;
        Ok((verdict, Reply { node, body, sent_at, slot: context.unwrap_or(slot_before), confirmed }))
    }

    fn slot_before(&self, node: usize, ask: &Ask) -> Slot {
        let commitment = ask.query.commitment().unwrap_or(Commitment::Processed);
        self.frontier.node_slot(node, commitment).unwrap_or(0)
    }

    /// What every answer tells of its node, whatever becomes of the call.
    fn learn(&self, node: usize, ask: &Ask, body: &NodeReply, context: Option<Slot>, now: Instant) {
        let member: &Member = &self.members[node];
        let commitment = ask.query.commitment();
        match body {
            NodeReply::Result(_) => {
                if let (Some(slot), Some(commitment)) = (context, commitment) {
                    self.frontier.answered(node, commitment, slot, now);
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
                    self.frontier.answered(node, commitment, slot, now);
                }
            }
            NodeReply::Error { .. } => {}
        }
    }

    /// How long a call of this method may take before it counts as hanging.
    fn slow_after(&self, method: usize) -> Option<Duration> {
        let p95 = self.p95(method)?;
        Some(p95.mul_f64(self.settings.breaker.slow).max(SLOW_AT_LEAST))
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

/// The parts of a body, and its context slot where the method's results are `contextual`.
async fn take_apart(body: Bytes, id: u64, contextual: bool) -> Result<(NodeReply, Option<Slot>), Fault> {
    let long = body.len() > OFF_WORKER_BYTES;
    let parse = move || {
        let reply = NodeReply::parse(&body, id)?;
        let context = match &reply {
            NodeReply::Result(result) if contextual => Contextual::split(result).map(|parts| parts.slot),
            _ => None,
        };
        Ok((reply, context))
    };
    if long { tokio::task::spawn_blocking(parse).await.unwrap_or(Err(Fault::BadJson)) } else { parse() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_context_is_read_however_it_is_written_and_only_where_there_is_one() {
        for (result, contextual, expected) in [
            (r#"{"context":{"slot":5},"value":null}"#, true, Some(5)),
            (r#"{ "context" : { "slot" : 5 }, "value" : 1 }"#, true, Some(5)),
            (r#"{"value":{"data":[]},"context":{"apiVersion":"4.0.0","slot":5}}"#, true, Some(5)),
            (r#"{"value":1}"#, true, None),
            (r#"{"context":{"slot":5},"value":null}"#, false, None),
        ] {
            let body = Bytes::from(format!(r#"{{"jsonrpc":"2.0","result":{result},"id":3}}"#));
            assert_eq!(take_apart(body, 3, contextual).await.unwrap().1, expected, "{result}");
        }
    }
}
