//! What all calls of one HTTP request share, and the response to each of them.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Front;
use super::accepted::Accepted;
use super::access::CallOutcome;
use super::body_parts::BodyParts;
use super::client::ClientInfo;
use super::in_flight::{FREE_BYTES, InFlightPermit, Reservation};
use crate::cache::CacheStatus;
use crate::cache::entry::Entry;
use crate::coding::{Coding, CompressedText, SplicePart, WORTH_BYTES};
use crate::config::AnswerLimit;
use crate::config::reload::ConfigNow;
use crate::error::Error;
use crate::gateway::Principal;
use crate::jsonrpc::{Id, reply};
use crate::methods::{AnyMethod, Commitment, Profile};
use crate::pool::{CallContext, LongestRead};
use crate::telemetry::{Trace, method_name};

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

    /// Reserves the bytes of an answer from the budget for unsent answers. `shared` is the entry whose text the answer
    /// sends, and the length of that text.
    ///
    /// All answers of one request together may have as many bytes as a node's answer to that of its methods whose answers
    /// may be longest. Without this limit, a batch of 100 calls could hold 100 times as much. The limit never refuses the
    /// first answer of a request.
    ///
    /// # Errors
    /// [`Error::AnswersTooLarge`] if the answers of the request exceed that. [`Error::Overloaded`] if
    /// they exceed the budget or the key's share of the budget.
    pub(super) fn take_bytes(
        &self,
        method: AnyMethod,
        body: &BodyParts,
        shared: Option<(&Entry, usize)>,
    ) -> Result<(), Error> {
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
            let shared = shared.map(|(entry, bytes)| (&entry.unsent, bytes));
            let reservation = Reservation::within(self.front, &self.principal, body, more, shared);
            self.permit.keep(reservation.ok_or(Error::Overloaded)?);
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

pub(super) fn node_error(id: &Id, error: &[u8]) -> BodyParts {
    let mut text = Vec::with_capacity(error.len() + 64);
    reply::node_error(&mut text, id, error);
    BodyParts::from(Bytes::from(text))
}
