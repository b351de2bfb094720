//! One try at one node: send, time, take apart, and judge what the node's word means for the call.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::member::Member;
use super::{Ask, Pool};
use crate::frontier::Frontier;
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
    /// A second node that holds the range has said the same (absent blocks).
    pub confirmed: bool,
}

/// What a node's answer means for the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is the answer.
    Answer,
    /// It may be the answer; one other node is asked first.
    AskElsewhere,
    /// It is a fault of this node.
    Fault(Fault),
}

impl Pool {
    /// One try at `member`.
    pub(super) async fn attempt(&self, node: usize, ask: &Ask) -> Result<Reply, Fault> {
        let member = &self.members[node];
        let method = ask.query.method();
        let sent_at = Instant::now();
        let patience = self.settings.attempt_timeout[method.index()];
        let timeout = patience.min(ask.deadline.saturating_duration_since(sent_at));
        let Some(mut place) = member.start(method, sent_at) else {
            return Err(Fault::TooManyRequests(None));
        };
        // Without a context the answer's slot is the node's own, as known before the call was sent.
        let slot_before = self.slot_before(node, ask);
        let id = self.next_id();
        let body = call_body(id, &ask.query);
        let outcome = {
            let exchange = async {
                let body = member.client.post(body, timeout).await?;
                take_apart(body, id).await
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
        let fault = match &judged {
            Err(fault) | Ok((Verdict::Fault(fault), ..)) => Some(*fault),
            Ok(_) => None,
        };
        if place.ended(fault, latency, now) {
            tracing::warn!(
                upstream.name = member.name,
                reason = fault.map(|f| f.result().as_str()),
                "circuit breaker opened"
            );
        }
        let result = match (&judged, fault) {
            (_, Some(fault)) => fault.result(),
            (Ok((_, NodeReply::Error { .. }, _)), None) => AttemptResult::NodeError,
            _ => AttemptResult::Ok,
        };
        member.metrics.requests.at((Some(method), result)).inc();
        member.metrics.request_duration.at(Some(method)).observe(latency.as_secs_f64());
        if fault.is_none() {
            self.observe_latency(method.index(), latency);
        }
        let (verdict, body, context) = judged?;
        self.learn(node, ask, &body, context, now);
        match verdict {
            Verdict::Fault(fault) => Err(fault),
            Verdict::Answer | Verdict::AskElsewhere => Ok(Reply {
                node,
                body,
                sent_at,
                slot: context.unwrap_or(slot_before),
                confirmed: verdict == Verdict::Answer,
            }),
        }
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

/// The parts of a body, and its context slot where it has one.
async fn take_apart(body: Bytes, id: u64) -> Result<(NodeReply, Option<Slot>), Fault> {
    let long = body.len() > OFF_WORKER_BYTES;
    let parse = move || {
        let reply = NodeReply::parse(&body, id)?;
        let context = match &reply {
            NodeReply::Result(result) => context_slot(result),
            NodeReply::Error { .. } => None,
        };
        Ok((reply, context))
    };
    if long { tokio::task::spawn_blocking(parse).await.unwrap_or(Err(Fault::BadJson)) } else { parse() }
}

/// `context.slot` of a contextual result. A node writes `context` first, so long values are rarely read for it.
fn context_slot(result: &Bytes) -> Option<Slot> {
    if !result.starts_with(b"{\"context\"") {
        return None;
    }
    Contextual::split(result).map(|parts| parts.slot)
}

/// What `body` means for `ask`, by contract: which codes are an answer, a reason to ask another node, or a fault.
pub(super) fn judge(body: &NodeReply, context: Option<Slot>, ask: &Ask, frontier: &Frontier) -> Verdict {
    let (code, error) = match body {
        NodeReply::Result(result) if result.as_ref() == b"null" => {
            return if matches!(ask.query, Query::Block(_)) {
                Verdict::AskElsewhere
            } else {
                Verdict::Answer
            };
        }
        NodeReply::Result(_) => {
            return match (contextual(&ask.query), context) {
                (true, None) => Verdict::Fault(Fault::BadJson),
                (true, Some(slot)) if ask.floor.is_some_and(|floor| slot < floor) => Verdict::AskElsewhere,
                _ => Verdict::Answer,
            };
        }
        NodeReply::Error { code, body } => (*code, body),
    };
    match code {
        -32005 => Verdict::Fault(Fault::Unhealthy),
        // Absent blocks: another node may have what this one lacks.
        -32001 | -32007 | -32009 | -32014 => Verdict::AskElsewhere,
        -32004 => match &ask.query {
            Query::Block(q) if q.slot <= frontier.slot(q.commitment) => Verdict::AskElsewhere,
            _ => Verdict::Answer,
        },
        // Not served, or not well enough to serve: another node may.
        -32601 | -32011 | -32010 | -32012 | -32019 | -32016 => Verdict::AskElsewhere,
        -32600 if !error.windows(18).any(|w| w == b"Encoded binary (ba") => {
            Verdict::Fault(Fault::UnknownCode)
        }
        -32602
        | -32600
        | -32022..=-32020
        | -32018
        | -32017
        | -32015
        | -32013
        | -32008
        | -32006
        | -32003
        | -32002 => Verdict::Answer,
        _ => Verdict::Fault(Fault::UnknownCode),
    }
}

/// Whether the method's results carry a context.
fn contextual(query: &Query) -> bool {
    matches!(query, Query::Account(_) | Query::Accounts(_) | Query::Balance(_) | Query::Fee(_))
}
