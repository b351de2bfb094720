//! Answers one JSON-RPC call: checks the key's limits, asks the cache, and writes the JSON-RPC envelope. All calls of one
//! HTTP request share a [`RequestContext`].

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::accepted::Accepted;
use super::access::CallOutcome;
use super::client::ClientInfo;
use super::in_flight::{FREE_BYTES, InFlightPermit};
use super::reply::BodyParts;
use super::{Front, in_flight, uncached};
use crate::cache::entry::{Payload, TextParts};
use crate::cache::{CacheAnswer, CacheStatus, CallOptions, Charge, Conditions, MemoryPermit};
use crate::coding::{Coding, CompressedText, SplicePart, WORTH_BYTES};
use crate::config::AnswerLimit;
use crate::config::reload::ConfigNow;
use crate::error::Error;
use crate::gateway::Principal;
use crate::jsonrpc::{Call, Id, reply};
use crate::methods::{self, AnyMethod, Commitment, Method, Profile, Query, Slot};
use crate::pool::{CallContext, LongestRead};
use crate::telemetry::{NodeCode, Trace, method_name};

/// The longest result, in bytes, that is copied into one buffer with its envelope. Longer results are sent as slices of
/// the cached text.
const COPIED_BYTES: usize = 1024;

pub(super) struct CallResponse {
    pub(super) body: BodyParts,
    /// The compressed text between the first and the last piece of `body`. These two pieces are the JSON-RPC
    /// envelope. `None` if the cache has not compressed the text.
    pub(super) compressed: Option<Arc<CompressedText>>,
    /// The value for the header `Cache-Status`. `None` for a refusal by slotfront.
    pub(super) status: Option<CacheStatus>,
    pub(super) refusal: Option<Error>,
    pub(super) outcome: CallOutcome,
    /// The id of the node that gave the answer, now or when it was stored.
    pub(super) node: Option<u32>,
}

impl CallResponse {
    /// Creates a response that is not compressed and has no cache status.
    pub(super) fn new(body: BodyParts, outcome: CallOutcome) -> Self {
        Self { body, compressed: None, status: None, refusal: None, outcome, node: None }
    }

    /// Returns true if the cache compresses answers with this response's length and method. `compressed` may still
    /// be `None`, for example if too many answers were being compressed.
    pub(super) fn compression_is_left_to_cache(&self) -> bool {
        matches!(self.outcome.method, Some(AnyMethod::Own(_))) && self.body.len() >= WORTH_BYTES
    }

    /// Adds the response's body to `parts`, in compressed form if the cache has compressed it.
    pub(super) fn add_to<'a>(&'a self, parts: &mut Vec<SplicePart<'a>>) {
        match (&self.compressed, self.body.first_and_last()) {
            (Some(compressed), Some((head, tail))) => {
                parts.extend([
                    SplicePart::Plain(head),
                    SplicePart::Coded(compressed),
                    SplicePart::Plain(tail),
                ]);
            }
            _ => parts.extend(self.body.iter().cloned().map(SplicePart::Plain)),
        }
    }
}

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
            Self::Foreign(Call { id, method, params }) => {
                Box::pin(uncached::answer(request, &id, &method, params)).await
            }
            Self::Refused(response) => response,
        }
    }
}

impl AdmittedCall {
    fn new(
        request: &RequestContext<'_>,
        call: &Call,
        method: Method,
    ) -> Result<Self, (Option<Commitment>, Error)> {
        // The rate is charged before the params are parsed, so that calls with invalid params count as well.
        request.principal.take(Instant::now()).map_err(|error| (None, error))?;
        let query = Query::parse(method, &call.params, request.config.profile)
            .map_err(|error| (None, Error::Params(error)))?;
        let charge = request.principal.admit(&query).map_err(|error| (query.commitment(), error))?;
        Ok(Self { id: call.id.clone(), query, charge })
    }

    /// Answers the call, and counts it in the metrics.
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
    request.take_bytes(AnyMethod::Own(query.method()), &body)?;
    charge.answered(answer.status, body.len());
    let (method, commitment) = (Some(query.method().into()), query.commitment());
    let outcome = CallOutcome { method, commitment, outcome: answer.status.outcome() };
    let (compressed, status) = (answer.compressed.clone(), Some(answer.status));
    Ok(CallResponse { compressed, status, node: answer.meta.node, ..CallResponse::new(body, outcome) })
}

/// Returns the body of the response: the answer inside the JSON-RPC envelope, with the caller's id.
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
        in_flight::reserve(&self.request.front.outgoing, &self.request.principal, bytes)
    }
}

/// The context that all calls of one HTTP request share: the caller, the options, and the byte limit of the answers. The
/// request is authenticated and has an in-flight permit.
pub(super) struct RequestContext<'a> {
    pub(super) front: &'a Arc<Front>,
    /// The configuration that was in force when the request came.
    pub(super) config: ConfigNow,
    pub(super) client: &'a ClientInfo,
    pub(super) principal: Arc<Principal>,
    pub(super) permit: InFlightPermit,
    pub(super) trace: Trace,
    pub(super) started: Instant,
    pub(super) bypass: bool,
    /// The content coding in which the cache returns each long answer. `None` for uncompressed answers.
    pub(super) coding: Option<Coding>,
    /// The total length of the request's answers so far, in bytes, and the limit on it.
    answered: Mutex<(usize, Option<AnswerLimit>)>,
}

impl<'a> RequestContext<'a> {
    /// Creates the context of a request with `calls` calls that arrived at `started`.
    pub(super) fn new(
        front: &'a Arc<Front>,
        client: &'a ClientInfo,
        principal: Arc<Principal>,
        permit: InFlightPermit,
        trace: Trace,
        started: Instant,
        calls: usize,
    ) -> Self {
        let config = front.config.now();
        let is_node = config.profile == Profile::Node;
        let bypass = principal.bypass_cache() && client.no_cache;
        let coding = cache_coding(client.accepts, calls).filter(|_| is_node);
        let answered = Mutex::default();
        Self { front, config, client, principal, permit, trace, started, bypass, coding, answered }
    }

    /// Reserves the bytes of an answer from the budget for unsent answers ([`Outgoing`](super::Outgoing)).
    ///
    /// All answers of one request together may have as many bytes as a node's answer to that of its methods whose answers
    /// may be longest. Without this limit, a batch of 100 calls could hold 100 times as much. The limit never refuses the
    /// first answer of a request.
    ///
    /// # Errors
    /// [`Error::AnswersTooLarge`] if the answers of the request exceed that. [`Error::Overloaded`] if
    /// they exceed the budget or the key's share of the budget.
    pub(super) fn take_bytes(&self, method: AnyMethod, body: &BodyParts) -> Result<(), Error> {
        let mut answered = self.answered.lock();
        let (before, own) = (answered.0, self.front.pool.longest_answer(method));
        let limit = answered.1.filter(|limit| limit.bytes > own.bytes).unwrap_or(own);
        let all = before.saturating_add(body.len());
        if before > 0 && all > limit.bytes {
            return Err(Error::AnswersTooLarge(limit));
        }
        if all > FREE_BYTES {
            // While the answers had at most `FREE_BYTES` in total, nothing was reserved. So the earlier answers
            // are reserved now.
            let more = if before <= FREE_BYTES { before } else { 0 };
            if !self.permit.reserve(self.front, &self.principal, body, more) {
                return Err(Error::Overloaded);
            }
        }
        *answered = (all, Some(limit));
        Ok(())
    }

    /// Returns the context of a call of `method` to nodes for this request that the cache does not answer.
    pub(super) fn call_context(&self, method: AnyMethod) -> CallContext {
        CallContext {
            deadline: self.started + self.front.pool.time_of(method),
            caller: self.principal.caller(),
            trace: self.trace.clone(),
            is_background: false,
            read: LongestRead::default(),
        }
    }

    /// Returns the response to a call refused with `error`, and counts the call.
    pub(super) fn refuse(
        &self,
        id: &Id,
        method: Option<AnyMethod>,
        commitment: Option<Commitment>,
        error: Error,
    ) -> CallResponse {
        let mut text = Vec::with_capacity(128);
        error.write_response(&mut text, id);
        let body = BodyParts::from(Bytes::from(text));
        let outcome = CallOutcome { method, commitment, outcome: error.outcome() };
        self.count(CallResponse { refusal: Some(error), ..CallResponse::new(body, outcome) })
    }

    /// Counts a call in the metrics, logs it at trace level, and returns `response` unchanged.
    pub(super) fn count(&self, response: CallResponse) -> CallResponse {
        let (CallOutcome { method, commitment, outcome }, bytes) = (response.outcome, response.body.len());
        self.front.metrics.call(method, commitment, outcome, self.started.elapsed(), bytes);
        self.principal.count(outcome);
        // The access log has one line for a batch, so each call has a line at trace level.
        tracing::trace!(
            rpc.method = method_name(method),
            rpc.commitment = commitment.map_or("none", Commitment::as_str),
            cache.outcome = outcome.as_str(),
            request.id = self.client.id.as_str(),
            response_bytes = bytes,
            "call"
        );
        response
    }
}

/// Returns the content coding in which the cache returns each long answer of a request with `calls` calls. A batch can
/// use gzip only, because a zstd body cannot be assembled from texts that were compressed separately.
fn cache_coding(accepts: Accepted, calls: usize) -> Option<Coding> {
    if calls <= 1 { accepts.best() } else { Some(Coding::Gzip).filter(|gzip| accepts.takes(*gzip)) }
}

/// Returns a result, given in pieces, inside the JSON-RPC envelope with the caller's id. The pieces are not copied.
pub(super) fn spliced_result(id: &Id, result: impl IntoIterator<Item = Bytes>) -> BodyParts {
    let (head, tail) = reply::head_and_tail(id);
    let mut body = BodyParts::default();
    body.push(head);
    result.into_iter().for_each(|piece| body.push(piece));
    body.push(tail);
    body
}

/// Returns a node's error object inside the JSON-RPC envelope with the caller's id.
pub(super) fn node_error(id: &Id, error: &[u8]) -> BodyParts {
    let mut text = Vec::with_capacity(error.len() + 64);
    reply::node_error(&mut text, id, error);
    BodyParts::from(Bytes::from(text))
}
