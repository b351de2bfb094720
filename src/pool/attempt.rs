//! One attempt at one node: sends the request, classifies the answer, and records what follows from it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::Pool;
use super::meaning::{Effect, Meaning, effect, lacks_method};
use super::member::{InFlight, Member};
use super::question::{MinSlotUse, ParsedReply, Question, SentRequest, UpstreamCall};
use super::reply::PoolReply;
use crate::methods::Commitment;
use crate::node::{Fault, NodeReply};
use crate::telemetry::AttemptResult;
use crate::telemetry::trace::Attempt;

/// The shortest time after which a call counts as hanging, however fast its method usually is.
const SLOW_AT_LEAST: Duration = Duration::from_millis(250);

/// Sends `call` to `member` once. Returns the answer with its meaning, or the fault of the attempt.
pub(super) async fn attempt<C: UpstreamCall>(
    pool: &Pool,
    call: &C,
    member: &Member,
    min_slot: MinSlotUse,
) -> Result<(Meaning, PoolReply), Fault> {
    let frontier = &pool.nodes.frontier;
    let question = call.question();
    let commitment = question.commitment.unwrap_or(Commitment::Processed);
    let id = pool.next_id();
    let (body, min_context_slot) = call.write(id, member, min_slot);
    let sent = SentRequest {
        id,
        at: Instant::now(),
        era: frontier.era(),
        min_context_slot,
        slot_before: member.slot(commitment).unwrap_or(0),
        finalized_before: member.slot(Commitment::Finalized).unwrap_or(0),
        newest_before: frontier.slot(commitment),
        max_slot_lag: pool.nodes.load().settings.max_slot_lag,
    };
    let mut in_flight = InFlight::begin(member, &question, sent.at);
    let span = question.context.trace.attempt(&member.name, question.method.as_str());
    let received = send(pool, call, body, &sent, &mut in_flight, &span).await;
    let judged = received.and_then(|reply| Ok((judge(pool, call, member, &sent, &reply)?, reply)));
    let result = record(pool, call, &sent, in_flight, &judged);
    span.end(result);
    let (meaning, ParsedReply { reply: body, slot, is_short }) = judged?;
    let slot = slot.unwrap_or(sent.slot_before);
    Ok((
        meaning,
        PoolReply {
            node: member.id,
            body,
            sent_at: sent.at,
            slot,
            finalized: sent.finalized_before,
            is_short,
        },
    ))
}

async fn send<C: UpstreamCall>(
    pool: &Pool,
    call: &C,
    body: Bytes,
    sent: &SentRequest,
    in_flight: &mut InFlight<'_>,
    span: &Attempt<'_>,
) -> Result<ParsedReply, Fault> {
    let question = call.question();
    let (member, context) = (in_flight.member(), question.context);
    let (patience, slow) = {
        let settings = &pool.nodes.load().settings;
        let p95 = question.own_method().and_then(|method| pool.latencies.quantile(method, 0.95));
        (question.timeout(settings), p95.map(|p95| p95.mul_f64(settings.breaker.slow).max(SLOW_AT_LEAST)))
    };
    let timeout = patience.min(context.deadline.saturating_duration_since(sent.at));
    let is_in_doubt = !member.has_closed_breaker(question.part());
    let finalized = pool.nodes.frontier.slot(Commitment::Finalized);
    // Set as soon as an answer begins to arrive.
    let heard = AtomicBool::new(false);
    let exchange = async {
        let answer = member.client.post(context.caller, body, timeout, &heard, span).await?;
        answer.read(sent.id, call.reader(finalized)).await
    };
    tokio::pin!(exchange);
    let received = match slow {
        None => exchange.await,
        Some(slow) => match tokio::time::timeout(slow, &mut exchange).await {
            Ok(received) => received,
            Err(_)
                if note_hang(pool, &question, in_flight) && is_in_doubt && !heard.load(Ordering::Relaxed) =>
            {
                Err(Fault::Timeout)
            }
            Err(_) => exchange.await,
        },
    };
    match received {
        // The caller had less time left than an attempt may take, so the timeout is not the node's fault.
        Err(Fault::Timeout) if timeout < patience && Instant::now() >= context.deadline => {
            Err(Fault::GivenUp)
        }
        received => received,
    }
}

/// Notes that the call hangs: it takes longer than `pool.breaker.slow` times the method's p95 latency. Returns true if
/// the attempt may be given up, because another node may answer the call. Only an attempt at a node whose breaker was not
/// closed is given up, and only if its answer is not arriving yet: a trial, or a question for a block that others lack.
fn note_hang(pool: &Pool, question: &Question<'_>, in_flight: &mut InFlight<'_>) -> bool {
    let member = in_flight.member();
    if in_flight.note_hang(Instant::now()) {
        tracing::warn!(
            upstream.name = member.name,
            "circuit breaker opened because calls hang: this upstream is avoided for a while"
        );
    }
    pool.nodes.has_usable(question, &[member.id])
}

/// Returns the meaning of an answer.
///
/// # Errors
/// The answer shows a fault of the node.
fn judge<C: UpstreamCall>(
    pool: &Pool,
    call: &C,
    member: &Member,
    sent: &SentRequest,
    reply: &ParsedReply,
) -> Result<Meaning, Fault> {
    // The node was perhaps asked before the pool's cluster was known, or may belong to another cluster by now.
    if pool.nodes.cluster.unidentified(member).is_some() {
        return Err(Fault::Foreign);
    }
    call.judge(reply, sent, &pool.nodes.frontier)
}

/// Updates the node's state, the newest known slots and the metrics. Returns the result under which the metrics count
/// the attempt.
fn record<C: UpstreamCall>(
    pool: &Pool,
    call: &C,
    sent: &SentRequest,
    in_flight: InFlight<'_>,
    judged: &Result<(Meaning, ParsedReply), Fault>,
) -> AttemptResult {
    let (frontier, member, now) = (&pool.nodes.frontier, in_flight.member(), Instant::now());
    let question = call.question();
    let (method, latency) = (question.counted_method(), now.duration_since(sent.at));
    let meaning = judged.as_ref().map(|(meaning, _)| *meaning).map_err(|fault| *fault);
    let result = match judged {
        Err(fault) => fault.result(),
        Ok((meaning, ParsedReply { reply, .. })) => meaning.result().unwrap_or(match reply {
            NodeReply::Error { .. } => AttemptResult::NodeError,
            NodeReply::Result(_) => AttemptResult::Ok,
        }),
    };
    member.metrics.requests.at((method, result)).inc();
    member.metrics.request_duration.at(method).observe(latency.as_secs_f64());
    let effect = effect(&question, &meaning);
    // A node that has done no work would look fast.
    let usual = || method.and_then(|method| pool.latencies.quantile(method, 0.95)).unwrap_or(SLOW_AT_LEAST);
    let felt = if effect == Effect::Refused { latency.max(usual()) } else { latency };
    if in_flight.ended(effect, meaning.err(), felt, now) {
        tracing::warn!(
            upstream.name = member.name,
            part = question.part().as_str(),
            reason = result.as_str(),
            "circuit breaker opened: this upstream is avoided for a while"
        );
    }
    if let (Some(method), Effect::Well) = (method, effect) {
        pool.latencies.observe(method, latency);
    }
    match judged {
        Err(Fault::TooManyRequests(wait)) => {
            member.state.quiet.refused(question.method, *wait, sent.at, now);
        }
        Err(_) => {}
        Ok((_, read)) => {
            if effect == Effect::Well {
                member.state.quiet.answered(question.method, sent.at);
            }
            if lacks_method(&question, &read.reply) {
                member.set_lacking(question.method);
            }
            call.learn(frontier, member, read, sent, now);
        }
    }
    result
}
