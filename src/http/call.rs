//! Answers one JSON-RPC call: checks the key's limits, asks the cache, and writes the JSON-RPC envelope.

use bytes::Bytes;

use super::access::CallOutcome;
use super::body_parts::BodyParts;
use super::context::{CallResponse, RequestContext, node_error, spliced_result};
use super::in_flight::Reservation;
use super::{forward, send, tip};
use crate::cache::entry::{Payload, TextParts};
use crate::cache::{CacheAnswer, CallOptions, Charge, Conditions, MemoryPermit};
use crate::error::Error;
use crate::jsonrpc::{Call, Id, reply};
use crate::methods::{
    self, AnyMethod, Commitment, ForwardedCall, Method, Profile, Query, Slot, write_method,
};
use crate::telemetry::NodeCode;

/// The longest result, in bytes, that is copied into one buffer with its envelope. Longer results are sent as slices of
/// the cached text.
const COPIED_BYTES: usize = 1024;

/// A call that the cache answers and that may be made: its params are read, and its price is reserved.
pub(super) struct AdmittedCall {
    id: Id,
    query: Query,
    charge: Charge,
}

/// Answers `call`, and counts it in the metrics.
pub(super) async fn answer(request: &RequestContext<'_>, call: Call) -> CallResponse {
    Admission::of(request, call).answer(request).await
}

/// What becomes of a call once the limits of its key are checked.
pub(super) enum Admission {
    /// The cache answers it.
    Admitted(AdmittedCall),
    /// Its method is not answered through the cache: it is read from the tip, sent, forwarded or unknown.
    Foreign(Call),
    Refused(CallResponse),
}

impl Admission {
    /// Checks the limits of the key, the params, and what the plan allows.
    pub(super) fn of(request: &RequestContext<'_>, call: Call) -> Self {
        let Some(method) = str::from_utf8(&call.method).ok().and_then(Method::from_name) else {
            return Self::Foreign(call);
        };
        match AdmittedCall::new(request, &call, method) {
            Ok(admitted) => Self::Admitted(admitted),
            Err((commitment, error)) => {
                Self::Refused(request.refuse(&call.id, Some(method.into()), commitment, error))
            }
        }
    }

    /// Returns true if the cache holds an answer that needs no node.
    pub(super) fn is_held(&self, request: &RequestContext<'_>) -> bool {
        let Self::Admitted(AdmittedCall { query, .. }) = self else { return false };
        !request.bypass && request.front.cache.holds(query, &CallConditions { request, query })
    }

    pub(super) async fn answer(self, request: &RequestContext<'_>) -> CallResponse {
        match self {
            Self::Admitted(call) => call.answer(request).await,
            // Boxed, so that the future of a call that the cache answers is small.
            Self::Foreign(call) => Box::pin(answer_foreign(request, call)).await,
            Self::Refused(response) => response,
        }
    }
}

/// Answers a call whose method is not one of the cached ones.
async fn answer_foreign(request: &RequestContext<'_>, call: Call) -> CallResponse {
    let Call { id, method: name, params } = call;
    let (method, config) = (AnyMethod::from_name(&name), &request.config);
    match method {
        Some(AnyMethod::Tip(method)) => return tip::answer(request, &id, method, &params).await,
        Some(AnyMethod::Send) if config.send.enabled => return send::answer(request, &id, &params).await,
        _ => {}
    }
    if let Err(limited) = request.principal.take() {
        return request.refuse(&id, method, None, limited);
    }
    let is_forwarded =
        |method: &AnyMethod| *method == AnyMethod::Simulate || config.methods.contains_key(method);
    let Some(method) = method.filter(is_forwarded) else {
        let write = str::from_utf8(&name).ok().and_then(write_method);
        return request.refuse(&id, method, None, write.map_or(Error::MethodNotFound, Error::Write));
    };
    forward::answer(request, &id, ForwardedCall::new(method, params)).await
}

impl AdmittedCall {
    fn new(
        request: &RequestContext<'_>,
        call: &Call,
        method: Method,
    ) -> Result<Self, (Option<Commitment>, Error)> {
        // The rate is charged before the params are parsed, so that calls with invalid params count as well.
        request.principal.take().map_err(|error| (None, error))?;
        let query = Query::parse(method, &call.params, request.config.profile)
            .map_err(|error| (None, Error::Params(error)))?;
        let charge = request.principal.admit(&query).map_err(|error| (query.commitment(), error))?;
        Ok(Self { id: call.id.clone(), query, charge })
    }

    async fn answer(self, request: &RequestContext<'_>) -> CallResponse {
        let Self { id, query, charge } = self;
        let answered = ask_cache(request, &query, &charge).await;
        match answered.and_then(|answer| respond(request, &id, &query, &answer, &charge)) {
            Ok(response) => request.count(response),
            Err(error) => request.refuse(&id, Some(query.method().into()), query.commitment(), error),
        }
    }
}

/// Asks the cache for an answer. If the plan is `monotonic`, records the answer's slot as shown to the key.
async fn ask_cache(
    request: &RequestContext<'_>,
    query: &Query,
    charge: &Charge,
) -> Result<CacheAnswer, Error> {
    let conditions = CallConditions { request, query };
    let options = CallOptions {
        bypass: request.bypass,
        asked_at: request.started,
        timeout: request.front.pool.time_of(query.method().into()),
        coding: request.coding,
        caller: request.principal.caller(),
        trace: request.trace.clone(),
    };
    let answer = request.front.cache.answer(query, options, charge, &conditions).await?;
    request.principal.note_shown(query, answer.meta.slot);
    Ok(answer)
}

/// Creates the response to a call from `answer`, and counts its bytes towards the limit on unsent answers. The call owes
/// the price of the answer from now on.
///
/// # Errors
/// [`Error::AnswersTooLarge`] or [`Error::Overloaded`], as [`RequestContext::take_bytes`] describes.
fn respond(
    request: &RequestContext<'_>,
    id: &Id,
    query: &Query,
    answer: &CacheAnswer,
    charge: &Charge,
) -> Result<CallResponse, Error> {
    let body = envelope(request, id, query, answer);
    // A text is copied to get another shape.
    let shared = answer.shared.as_deref().filter(|_| request.config.profile == Profile::Node);
    request.take_bytes(
        AnyMethod::Own(query.method()),
        &body,
        shared.map(|entry| (entry, answer.payload.len())),
    )?;
    charge.answered(answer.status, body.len());
    let (method, commitment) = (Some(query.method().into()), query.commitment());
    let outcome = CallOutcome { method, commitment, outcome: answer.status.outcome() };
    let (compressed, status) = (answer.compressed.clone(), Some(answer.status));
    Ok(CallResponse { compressed, status, node: answer.meta.node, ..CallResponse::new(body, outcome) })
}

fn envelope(request: &RequestContext<'_>, id: &Id, query: &Query, answer: &CacheAnswer) -> BodyParts {
    let profile = request.config.profile;
    match &answer.payload {
        Payload::Error { code, .. } if profile == Profile::Spec && methods::absent_block(*code) => {
            spliced_result(id, [Bytes::from_static(b"null")])
        }
        Payload::Error { code, body } => {
            request.front.metrics.node_errors.at((query.method().into(), NodeCode::from(*code))).inc();
            node_error(id, body)
        }
        Payload::Result(result) if profile == Profile::Spec => {
            spliced_result(id, [methods::shape_result(profile, query, result.whole())])
        }
        Payload::Result(TextParts::One(result)) if result.len() <= COPIED_BYTES => {
            let mut text = Vec::with_capacity(result.len() + 64);
            reply::result(&mut text, id, result);
            BodyParts::from(Bytes::from(text))
        }
        Payload::Result(result) => spliced_result(id, result.pieces().iter().cloned()),
    }
}

/// The limits on a call's answer that may change while the call waits: the lowest acceptable slot, and the memory
/// for answers. The cache asks for them again before it answers.
struct CallConditions<'a> {
    request: &'a RequestContext<'a>,
    query: &'a Query,
}

impl Conditions for CallConditions<'_> {
    fn known_slot(&self) -> Option<Slot> {
        let frontier = &self.request.front.frontier;
        self.request.principal.known_slot(self.query, |commitment, slot| frontier.believes(commitment, slot))
    }

    fn reserve_memory(&self, bytes: usize) -> Option<MemoryPermit> {
        let RequestContext { front, principal, .. } = self.request;
        let reserved = Reservation::within(front, principal, &BodyParts::default(), bytes, None)?;
        Some(Box::new(reserved))
    }
}
