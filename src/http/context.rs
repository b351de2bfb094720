//! The context that all calls of one HTTP request share: the caller, the options, and the byte limit of the answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::time::Instant;

use super::Front;
use super::accept_encoding::Accepted;
use super::access::CallOutcome;
use super::body_parts::BodyParts;
use super::in_flight::InFlightPermit;
use super::outgoing::FREE_BYTES;
use super::request_head::ClientInfo;
use super::responses::CallResponse;
use crate::coding::Coding;
use crate::error::Error;
use crate::gateway::Principal;
use crate::jsonrpc::Id;
use crate::methods::{Commitment, Method, Profile};
use crate::telemetry::{Outcome, Trace};

/// The context of a request that is authenticated and has an in-flight permit.
pub(super) struct RequestContext<'a> {
    pub(super) front: &'a Arc<Front>,
    pub(super) client: &'a ClientInfo,
    pub(super) principal: Arc<Principal>,
    pub(super) permit: InFlightPermit,
    pub(super) trace: Trace,
    pub(super) started: Instant,
    pub(super) bypass: bool,
    /// The content coding in which the cache returns each long answer. `None` for uncompressed answers.
    pub(super) coding: Option<Coding>,
    /// The total length of the request's answers so far, in bytes.
    answered: AtomicUsize,
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
        let is_node = front.config.profile == Profile::Node;
        let bypass = principal.bypass_cache() && client.no_cache;
        let coding = cache_coding(client.accepts, calls).filter(|_| is_node);
        let answered = AtomicUsize::new(0);
        Self { front, client, principal, permit, trace, started, bypass, coding, answered }
    }

    /// Reserves the bytes of an answer from the budget for unsent answers ([`Outgoing`](super::Outgoing)).
    ///
    /// All answers of one request together may have `pool.max_response` bytes, the maximum length of a node's
    /// response. Without this limit, a batch of 100 calls could hold 100 times as much. The limit never refuses
    /// the first answer of a request.
    ///
    /// # Errors
    /// [`Error::AnswersTooLarge`] if the answers of the request exceed `pool.max_response`. [`Error::Overloaded`] if
    /// they exceed the budget or the key's share of the budget.
    pub(super) fn take_bytes(&self, body: &BodyParts) -> Result<(), Error> {
        let limit = self.front.config.pool.max_response;
        // One task polls all elements of a batch, so there is no race between this load and the store below.
        let before = self.answered.load(Ordering::Relaxed);
        let all = before.saturating_add(body.len());
        if before > 0 && all > limit {
            return Err(Error::AnswersTooLarge { limit });
        }
        if all > FREE_BYTES {
            // While the answers had at most `FREE_BYTES` in total, nothing was reserved. So the earlier answers
            // are reserved now.
            let more = if before <= FREE_BYTES { before } else { 0 };
            if !self.permit.reserve(self.front, &self.principal, body, more) {
                return Err(Error::Overloaded);
            }
        }
        self.answered.store(all, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the response to a call refused with `error`, and counts the call.
    pub(super) fn refuse(
        &self,
        id: &Id,
        method: Option<Method>,
        commitment: Option<Commitment>,
        error: Error,
    ) -> CallResponse {
        let mut text = Vec::with_capacity(128);
        error.write_response(&mut text, id);
        let body = BodyParts::from(Bytes::from(text));
        let outcome = CallOutcome { method, commitment, outcome: outcome(&error) };
        self.count(CallResponse { refusal: Some(error), ..CallResponse::new(body, outcome) })
    }

    /// Counts a call in the metrics, logs it at trace level, and returns `response` unchanged.
    pub(super) fn count(&self, response: CallResponse) -> CallResponse {
        let (CallOutcome { method, commitment, outcome }, bytes) = (response.outcome, response.body.len());
        self.front.metrics.call(method, commitment, outcome, self.started.elapsed(), bytes);
        self.principal.count(outcome);
        // The access log has one line for a batch, so each call has a line at trace level.
        tracing::trace!(
            rpc.method = method.map_or("other", Method::as_str),
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

/// Returns the outcome under which the metrics count a refusal.
#[deny(clippy::wildcard_enum_match_arm)]
pub(super) fn outcome(error: &Error) -> Outcome {
    match error {
        Error::Envelope(_)
        | Error::MethodNotFound
        | Error::Write(_)
        | Error::Params(_)
        | Error::BatchTooLarge { .. }
        | Error::AnswersTooLarge { .. } => Outcome::Invalid,
        Error::Unauthorized | Error::Forbidden(_) => Outcome::Denied,
        Error::Limited { .. } => Outcome::Limited,
        Error::Overloaded | Error::NoUpstream(_) | Error::TimedOut(_) => Outcome::Error,
    }
}
