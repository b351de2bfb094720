//! One attempt at one node: sends the request, classifies the answer, and records what follows from it.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::Pool;
use super::in_flight::InFlight;
use super::meaning::{Effect, Meaning, WhyAskOn, effect, lacks_method};
use super::member::Member;
use super::question::{ParsedReply, Question, SentRequest};
use super::reply::PoolReply;
use super::upstream_call::{MinSlotUse, UpstreamCall};
use crate::methods::{Commitment, write_method};
use crate::node::{CallBounds, Fault, NodeReply, Resend, code};
use crate::telemetry::AttemptResult;
use crate::telemetry::trace::Attempt;

/// The shortest time that counts as usual, however fast a method is: four times as much is slow, by default.
const USUAL_AT_LEAST: Duration = Duration::from_millis(60);
/// The time that counts as usual while nobody knows how long a method takes.
const USUAL_AT_FIRST: Duration = Duration::from_millis(250);

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
    let judged = received.and_then(|read| {
        // The node was perhaps asked before the pool's cluster was known, or may belong to another cluster by now.
        let is_foreign = pool.nodes.cluster.unidentified(member).is_some();
        let meaning = if is_foreign { Err(Fault::Foreign) } else { call.judge(&read, &sent, frontier) };
        let is_unknown = matches!(meaning, Ok(Meaning::AskOn(WhyAskOn::Private)) | Err(Fault::UnknownCode));
        if is_unknown
            && let NodeReply::Error { code, body } = &read.reply
            && *code != code::OF_A_PROVIDER
        {
            member.log_unknown_words(question.method, body);
        }
        Ok((meaning?, read))
    });
    let result = record(pool, call, &sent, in_flight, &judged);
    span.end(result);
    let (meaning, ParsedReply { reply: body, slot, is_short, blocks }) = judged?;
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
            blocks,
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
    let (member, context) = (in_flight.member, question.context);
    let most = question.timeout(&pool.nodes.load().settings);
    let left = context.deadline.saturating_duration_since(sent.at);
    // A node walks on without its caller, so a scan has its place until the node answers or has had its time.
    let timeout = if question.method.rules().walks { most } else { most.min(left) };
    let finalized = pool.nodes.frontier.slot(Commitment::Finalized);
    let is_read = write_method(question.method.as_str()).is_none();
    let resend = if is_read { Resend::Once } else { Resend::Never };
    let longest = pool.longest_answer(question.method).bytes;
    let bounds = CallBounds { caller: context.caller, timeout, longest, resend };
    let exchange = async {
        let (answer, bytes) = member.client.post(body, bounds, span).await;
        let body = answer.as_ref().map(|answer| answer.body.clone()).unwrap_or_default();
        let received = match answer {
            Ok(answer) => answer.read(sent.id, call.reader(finalized)).await,
            Err(fault) => Err(fault),
        };
        if received.as_ref().err().is_none_or(|fault| fault.result().is_limit()) {
            context.read.note(bytes);
        }
        if let Err(Fault::Status(_)) = received {
            member.log_unknown_words(question.method, &body);
        }
        received
    };
    tokio::pin!(exchange);
    let (slow, is_measured) = slow_after(pool, member, &question);
    let received = if let Ok(received) = tokio::time::timeout(slow, &mut exchange).await {
        received
    } else {
        note_slow(in_flight, is_measured && question.is_known_work());
        exchange.await
    };
    match received {
        // The caller had less time left than an attempt may take, so the timeout is not the node's fault.
        Err(Fault::Timeout) if timeout < most && Instant::now() >= context.deadline => Err(Fault::GivenUp),
        received => received,
    }
}

/// Returns the time after which a call takes `pool.breaker.slow` times as long as its method usually does at `member`, or at
/// all nodes as long as that is not known there, and true if it is known at all.
pub(super) fn slow_after(pool: &Pool, member: &Member, question: &Question<'_>) -> (Duration, bool) {
    let usual = member.state.latencies.usual(question.method);
    let usual = usual.or_else(|| pool.latencies.usual(question.method));
    let slow = usual.map_or(USUAL_AT_FIRST, |usual| usual.max(USUAL_AT_LEAST));
    (slow.mul_f64(pool.nodes.load().settings.breaker.slow), usual.is_some())
}

/// Notes that the call is slow. It hangs if it takes much longer than is known to be usual.
fn note_slow(in_flight: &mut InFlight<'_>, hangs: bool) {
    in_flight.is_slow = true;
    if hangs && in_flight.note_hang(Instant::now()) {
        tracing::warn!(
            upstream.name = in_flight.member.name,
            "circuit breaker opened because calls hang: this upstream is avoided for a while"
        );
    }
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
    let (frontier, member, now) = (&pool.nodes.frontier, in_flight.member, Instant::now());
    let question = call.question();
    let (method, latency) = (question.method, now.duration_since(sent.at));
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
    let usual = || pool.latencies.usual(question.method).unwrap_or(USUAL_AT_FIRST);
    let felt = if effect == Effect::Refused { latency.max(usual()) } else { latency };
    if in_flight.ended(effect, meaning.err(), felt, now) {
        tracing::warn!(
            upstream.name = member.name,
            part = question.part().as_str(),
            reason = result.as_str(),
            "circuit breaker opened: this upstream is avoided for a while"
        );
    }
    if effect == Effect::Well {
        pool.latencies.observe(question.method, latency);
        member.state.latencies.observe(question.method, latency);
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
