//! Answers one JSON-RPC call: checks the key's limits, asks the cache, and writes the JSON-RPC envelope.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::access::CallOutcome;
use super::context::RequestContext;
use super::pieces::Pieces;
use super::responses::{CallResponse, PendingAnswer, node_error, spliced_result};
use super::{outgoing, passthrough};
use crate::cache::entry::{Payload, TextParts};
use crate::cache::{CacheAnswer, CallOptions, Charge, Conditions, MemoryPermit, Price};
use crate::error::Error;
use crate::gateway::MonotonicSlot;
use crate::jsonrpc::{Call, Id, reply};
use crate::methods::{self, Method, Profile, Query, Slot};
use crate::telemetry::NodeCode;

/// The longest result, in bytes, that is copied into one buffer with its envelope. Longer results are sent as slices of
/// the cached text.
const COPIED_BYTES: usize = 1024;

/// Answers `call`, and counts it in the metrics.
pub(super) async fn answer(request: &RequestContext<'_>, call: Call) -> CallResponse {
    let Call { id, method: name, params } = call;
    let Some(method) = str::from_utf8(&name).ok().and_then(Method::from_name) else {
        return passthrough::answer(request, &id, &name, params).await;
    };
    // The rate is charged before the params are parsed, so that calls with invalid params count as well.
    if let Err(error) = request.principal.take(Instant::now()) {
        return request.refuse(&id, Some(method), None, error);
    }
    let query = match Query::parse(method, &params, request.front.config.profile) {
        Ok(query) => query,
        Err(error) => return request.refuse(&id, Some(method), None, Error::Params(error)),
    };
    match answer_query(request, &id, &query).await {
        Ok(response) => request.count(response),
        Err(error) => request.refuse(&id, Some(method), query.commitment(), error),
    }
}

/// Answers a call whose params are parsed to `query`. The call is already counted towards the key's rate.
///
/// # Errors
/// The plan or the key forbids the call, the cache has no answer, or the answer exceeds the limits on unsent
/// answers.
async fn answer_query(request: &RequestContext<'_>, id: &Id, query: &Query) -> Result<CallResponse, Error> {
    request.principal.admit(query)?;
    // The cache books the charge when the answer arrives, even if the caller has disconnected.
    let charge = Charge::new(Arc::clone(&request.principal) as _, request.principal.price(query));
    let answer = ask_cache(request, query, charge).await?;
    respond(request, id, query, &answer)
}

/// Asks the cache again for a response whose answer expired before the response was sent. Does nothing if the answer
/// cannot expire before that (`pending` is `None`). If the first answer was charged as a hit and the new one is a miss,
/// the key pays the difference.
pub(super) async fn renew(request: &RequestContext<'_>, response: &mut CallResponse) {
    let Some(pending) = response.pending.take() else { return };
    let PendingAnswer { id, query, costs_a_hit, .. } = *pending;
    request.give_back_bytes(&response.body);
    let charge = if costs_a_hit {
        let Price { hit, miss } = request.principal.price(&query);
        Charge::new(Arc::clone(&request.principal) as _, Price { hit: 0.0, miss: miss - hit })
    } else {
        Charge::free()
    };
    let renewed = ask_cache(request, &query, charge).await;
    *response = match renewed.and_then(|answer| respond(request, &id, &query, &answer)) {
        Ok(mut renewed) => {
            if let Some(pending) = &mut renewed.pending {
                pending.costs_a_hit &= costs_a_hit;
            }
            // The metrics already count the call by its first answer.
            CallResponse { outcome: response.outcome, ..renewed }
        }
        Err(error) => request.refuse(&id, Some(query.method()), query.commitment(), error),
    };
}

/// Turns a response into a refusal, because its answers expired too often. Does nothing if the answer cannot expire
/// (`pending` is `None`).
pub(super) fn give_up(request: &RequestContext<'_>, response: &mut CallResponse) {
    let Some(pending) = response.pending.take() else { return };
    let PendingAnswer { id, query, .. } = *pending;
    request.give_back_bytes(&response.body);
    *response = request.refuse(&id, Some(query.method()), query.commitment(), Error::Overloaded);
}

/// Asks the cache for an answer. If the plan is `monotonic`, records the answer's slot as shown to the key.
async fn ask_cache(
    request: &RequestContext<'_>,
    query: &Query,
    charge: Charge,
) -> Result<CacheAnswer, Error> {
    let conditions = CallConditions { request, monotonic_slot: request.principal.monotonic_slot(query) };
    let options = CallOptions {
        bypass: request.bypass,
        monotonic_slot: conditions.monotonic_slot(),
        deadline: request.started + request.front.config.server.request_timeout,
        coding: request.coding,
        caller: request.principal.caller(),
        trace: request.trace.clone(),
    };
    let answer = request.front.cache.answer(query, options, charge, &conditions).await?;
    if let Some(slot) = &conditions.monotonic_slot {
        slot.raise(answer.meta.slot);
    }
    Ok(answer)
}

/// Creates the response to a call from `answer`, and counts its bytes towards the limit on unsent answers.
///
/// # Errors
/// [`Error::AnswersTooLarge`] or [`Error::Overloaded`], as [`RequestContext::take_bytes`] describes.
fn respond(
    request: &RequestContext<'_>,
    id: &Id,
    query: &Query,
    answer: &CacheAnswer,
) -> Result<CallResponse, Error> {
    let body = envelope(request, id, query, answer);
    request.take_bytes(&body)?;
    let outcome =
        CallOutcome { method: Some(query.method()), commitment: query.commitment(), outcome: answer.outcome };
    // If the node was asked after the request arrived, the answer is new enough, however long it waits to be sent.
    let is_pending = request.waits && answer.meta.sent_at < request.started;
    let pending = || PendingAnswer {
        id: id.clone(),
        query: query.clone(),
        meta: answer.meta,
        status: answer.status,
        costs_a_hit: answer.status.is_hit(),
    };
    Ok(CallResponse {
        compressed: answer.compressed.clone(),
        status: Some(answer.status),
        pending: is_pending.then(|| Box::new(pending())),
        ..CallResponse::new(body, outcome)
    })
}

/// Returns the body of the response: the answer inside the JSON-RPC envelope, with the caller's id.
fn envelope(request: &RequestContext<'_>, id: &Id, query: &Query, answer: &CacheAnswer) -> Pieces {
    let profile = request.front.config.profile;
    match &answer.payload {
        Payload::Error { code, .. } if profile == Profile::Spec && methods::absent_block(*code) => {
            spliced_result(id, [Bytes::from_static(b"null")])
        }
        Payload::Error { code, body } => {
            request.front.metrics.node_errors.at((Some(query.method()), NodeCode::from(*code))).inc();
            node_error(id, body)
        }
        Payload::Result(result) if profile == Profile::Spec => {
            spliced_result(id, [methods::shape_result(profile, query, result.whole())])
        }
        Payload::Result(TextParts::One(result)) if result.len() <= COPIED_BYTES => {
            let mut text = Vec::with_capacity(result.len() + 64);
            reply::result(&mut text, id, result);
            Pieces::from(Bytes::from(text))
        }
        Payload::Result(result) => spliced_result(id, result.pieces().iter().cloned()),
    }
}

/// The limits on a call's answer that may change while the call waits: the lowest acceptable slot, and the memory
/// for answers. The cache asks for them again before it answers.
struct CallConditions<'a> {
    request: &'a RequestContext<'a>,
    monotonic_slot: Option<MonotonicSlot>,
}

impl Conditions for CallConditions<'_> {
    fn monotonic_slot(&self) -> Option<Slot> {
        self.monotonic_slot.as_ref().and_then(MonotonicSlot::highest)
    }

    fn reserve_memory(&self, bytes: usize) -> Option<MemoryPermit> {
        outgoing::reserve(&self.request.front.outgoing, &self.request.principal, bytes)
    }
}
