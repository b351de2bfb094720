//! One attempt at one node: sends the request, reads the answer, and updates the node's state from it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Pool;
use super::member::{InFlight, Member};
use super::reply::PoolReply;
use super::upstream_call::{MinSlotUse, ParsedReply, ReceivedReply, SentRequest, UpstreamCall};
use super::verdict::{AttemptOutcome, Verdict};
use crate::config;
use crate::methods::{Commitment, Method};
use crate::node::code::{METHOD_NOT_FOUND, MIN_CONTEXT_SLOT_NOT_REACHED, TRANSACTION_HISTORY_NOT_AVAILABLE};
use crate::node::{Fault, NodeReply, RawAnswer};
use crate::telemetry::AttemptResult;

/// The shortest time after which a call counts as hanging, however fast its method usually is.
const SLOW_AT_LEAST: Duration = Duration::from_millis(250);

/// Sends `call` to `member` once. `heard` is set as soon as an answer begins to arrive.
pub(super) async fn attempt<C: UpstreamCall>(
    pool: &Pool,
    call: &C,
    member: &Member,
    min_slot: MinSlotUse,
    heard: &AtomicBool,
) -> AttemptOutcome {
    let frontier = &pool.nodes.frontier;
    let method = call.own_method();
    let sent_at = Instant::now();
    let (patience, slow, max_slot_lag) = {
        let members = pool.nodes.load();
        let slow = method.and_then(|method| slow_after(pool, method, &members.settings));
        (call.attempt_timeout(&members.settings), slow, members.settings.max_slot_lag)
    };
    let timeout = patience.min(call.context().deadline.saturating_duration_since(sent_at));
    let is_in_doubt = !member.has_closed_breaker();
    let mut in_flight = InFlight::begin(member, method, call.context().caller, sent_at);
    let era = frontier.era();
    let id = pool.next_id();
    let commitment = call.commitment().unwrap_or(Commitment::Processed);
    let newest_before = frontier.slot(commitment);
    let slot_before = member.slot(commitment).unwrap_or(0);
    let (body, min_context_slot) = call.write(id, member, min_slot);
    let sent = SentRequest { min_context_slot, slot_before, newest_before, max_slot_lag };
    let span = call.context().trace.attempt(&member.name, call.method().as_str());
    let read = call.reader();
    let outcome = {
        let exchange = async {
            let caller = call.context().caller;
            let answer = member.client.post(caller, body, timeout, heard, &span).await?;
            read_answer(answer, id, read).await
        };
        tokio::pin!(exchange);
        let in_time = match slow {
            Some(slow) => tokio::time::timeout(slow, &mut exchange).await.ok(),
            None => Some(exchange.as_mut().await),
        };
        match in_time {
            Some(outcome) => outcome,
            None if give_up_slow(
                pool,
                call,
                member,
                &mut in_flight,
                is_in_doubt && !heard.load(Ordering::Relaxed),
            ) =>
            {
                Err(Fault::Timeout)
            }
            None => exchange.await,
        }
    };
    let now = Instant::now();
    let latency = now.duration_since(sent_at);
    let outcome = match outcome {
        // The caller had less time left than an attempt may take, so the timeout is not the node's fault.
        Err(Fault::Timeout) if timeout < patience && now >= call.context().deadline => Err(Fault::GivenUp),
        // The node was perhaps asked before the pool's cluster was known, or may belong to another cluster by now.
        Ok(_) if pool.nodes.cluster.unidentified(member).is_some() => Err(Fault::Foreign),
        outcome => outcome,
    };
    let outcome = outcome.and_then(|read| Ok((call.classify(&read, sent, frontier)?, read)));
    match outcome {
        Err(Fault::TooManyRequests(wait)) => member.set_quiet(call.method(), wait, sent_at, now),
        Ok(_) => member.set_answered(call.method(), sent_at),
        Err(_) => {}
    }
    let result = match &outcome {
        Err(fault) => fault.result(),
        Ok((Verdict::TryElsewhere(result), _)) => *result,
        Ok((_, (NodeReply::Error { .. }, _))) => AttemptResult::NodeError,
        Ok(_) => AttemptResult::Ok,
    };
    span.end(result);
    member.metrics.requests.at((method, result)).inc();
    member.metrics.request_duration.at(method).observe(latency.as_secs_f64());
    match method.filter(|_| counts_for_health(&outcome)) {
        None => in_flight.end_without_result(),
        Some(method) => {
            if in_flight.ended(outcome.as_ref().err().copied(), latency, now) {
                tracing::warn!(
                    upstream.name = member.name,
                    reason = result.as_str(),
                    "circuit breaker opened: this upstream is avoided for a while"
                );
            }
            if outcome.is_ok() {
                pool.latencies.observe(method, latency);
            }
        }
    }
    let (verdict, (body, context)) = outcome?;
    if let NodeReply::Error { code: METHOD_NOT_FOUND | TRANSACTION_HISTORY_NOT_AVAILABLE, .. } = body {
        member.set_lacking(call.method());
    }
    call.learn(frontier, member, &ReceivedReply { body: &body, context, sent, era, at: now });
    if C::KEEPS_CONFIRMED_FRONTIER {
        pool.confirmed_slot.note_answer(frontier, member, now);
    }
    let reply = PoolReply { node: member.id, body, sent_at, slot: context.unwrap_or(sent.slot_before) };
    Ok((verdict, reply))
}

/// Returns the time after which a call of this method counts as hanging. `None` while too few latencies are
/// known.
fn slow_after(pool: &Pool, method: Method, settings: &config::PoolSettings) -> Option<Duration> {
    let p95 = pool.latencies.quantile(method, 0.95)?;
    Some(p95.mul_f64(settings.breaker.slow).max(SLOW_AT_LEAST))
}

/// Notes that the call hangs, and returns true if the attempt is given up. Only an attempt at a node whose breaker was not
/// closed may be given up, and only if its answer is not arriving yet and another node may answer the call. Such an
/// attempt is a trial, or asks for a block that other nodes lack.
fn give_up_slow<C: UpstreamCall>(
    pool: &Pool,
    call: &C,
    member: &Member,
    in_flight: &mut InFlight<'_>,
    may_give_up: bool,
) -> bool {
    if in_flight.note_hang(Instant::now()) {
        tracing::warn!(
            upstream.name = member.name,
            "circuit breaker opened because calls hang: this upstream is avoided for a while"
        );
    }
    may_give_up && pool.nodes.another_usable(call, member)
}

/// Returns true if the outcome counts for the node's health and latency. A refusal does not count, because it says
/// nothing about other calls, and an error with an unknown code does not, because nobody knows what it says.
fn counts_for_health(outcome: &Result<(Verdict, ParsedReply), Fault>) -> bool {
    match outcome {
        Ok((Verdict::TryElsewhere(AttemptResult::Incapable) | Verdict::UnlistedError, _)) => false,
        Ok((_, (NodeReply::Error { code, .. }, _))) => *code != MIN_CONTEXT_SLOT_NOT_REACHED,
        Ok(_) | Err(_) => true,
    }
}

/// Parses the answer to the request `id`, on a blocking thread if the answer is long.
async fn read_answer(
    answer: RawAnswer,
    id: u64,
    read: impl FnOnce(NodeReply) -> Result<ParsedReply, Fault> + Send + 'static,
) -> Result<ParsedReply, Fault> {
    let long = answer.is_long();
    let parse = move || read(answer.reply(id)?);
    if long { tokio::task::spawn_blocking(parse).await.unwrap_or(Err(Fault::BadJson)) } else { parse() }
}
