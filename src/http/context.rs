//! One request, as its calls share it: the caller's key, the options, and the bytes that the answers may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::time::Instant;

use super::Front;
use super::accept_encoding::Accepted;
use super::access::CallOutcome;
use super::caller::Caller;
use super::in_flight::InFlightPermit;
use super::outgoing::FREE_BYTES;
use super::pieces::Pieces;
use super::responses::CallResponse;
use crate::coding::Coding;
use crate::error::Error;
use crate::gateway::Principal;
use crate::jsonrpc::Id;
use crate::methods::{Commitment, Method, Profile};
use crate::telemetry::{Outcome, Trace};

/// A request whose caller is known and which may be served.
pub(super) struct RequestContext<'a> {
    pub(super) front: &'a Arc<Front>,
    pub(super) caller: &'a Caller,
    pub(super) principal: Arc<Principal>,
    pub(super) permit: InFlightPermit,
    pub(super) trace: Trace,
    pub(super) started: Instant,
    /// The calls go past the cache.
    pub(super) bypass: bool,
    /// The coding in which the cache is to give each long answer.
    pub(super) coding: Option<Coding>,
    /// An answer may have to wait before it leaves: for others of its batch, or to be compressed.
    pub(super) waits: bool,
    /// Bytes of the answers so far.
    answered: AtomicUsize,
}

impl<'a> RequestContext<'a> {
    /// A request of so many calls, which came at `started`.
    pub(super) fn new(
        front: &'a Arc<Front>,
        caller: &'a Caller,
        principal: Arc<Principal>,
        permit: InFlightPermit,
        trace: Trace,
        started: Instant,
        calls: usize,
    ) -> Self {
        let is_node = front.config.profile == Profile::Node;
        let bypass = principal.bypass_cache() && caller.no_cache;
        let coding = cache_coding(caller.accepts, calls).filter(|_| is_node);
        let waits = calls > 1 || (!is_node && caller.accepts.best().is_some());
        let answered = AtomicUsize::new(0);
        Self { front, caller, principal, permit, trace, started, bypass, coding, waits, answered }
    }

    /// Takes the bytes of an answer. Those of a batch may be as long together as a single one, or 100 small calls would
    /// hold 100 times that; the first always fits. All that is on its way out has a budget.
    ///
    /// # Errors
    /// [`Error::AnswersTooLarge`] past the one, [`Error::Overloaded`] past the other.
    pub(super) fn take_bytes(&self, body: &Pieces) -> Result<(), Error> {
        let limit = self.front.config.pool.max_response;
        // One task polls all elements of a batch, so nothing comes in between.
        let before = self.answered.load(Ordering::Relaxed);
        let all = before.saturating_add(body.len());
        if before > 0 && all > limit {
            return Err(Error::AnswersTooLarge { limit });
        }
        if all > FREE_BYTES {
            // Bytes that were free until now count, too.
            let more = if before <= FREE_BYTES { before } else { 0 };
            if !self.permit.load(self.front).add(&self.principal, body, more) {
                return Err(Error::Overloaded);
            }
        }
        self.answered.store(all, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the bytes of an answer that is not sent after all.
    pub(super) fn give_back_bytes(&self, body: &Pieces) {
        self.answered.fetch_sub(body.len(), Ordering::Relaxed);
    }

    /// Counts a refused call, and returns the refusal.
    pub(super) fn refuse(
        &self,
        id: &Id,
        method: Option<Method>,
        commitment: Option<Commitment>,
        error: Error,
    ) -> CallResponse {
        let mut text = Vec::with_capacity(128);
        error.write_response(&mut text, id);
        let body = Pieces::from(Bytes::from(text));
        let outcome = CallOutcome { method, commitment, outcome: outcome(&error) };
        self.count(CallResponse { refusal: Some(error), ..CallResponse::new(body, outcome) })
    }

    /// Counts a call by its response, which it returns.
    pub(super) fn count(&self, response: CallResponse) -> CallResponse {
        let (CallOutcome { method, commitment, outcome }, bytes) = (response.outcome, response.body.len());
        self.front.metrics.call(method, commitment, outcome, self.started.elapsed(), bytes);
        self.principal.count(&self.front.metrics, outcome);
        // The access line of a batch has the sum only.
        tracing::trace!(
            rpc.method = method.map_or("other", Method::as_str),
            rpc.commitment = commitment.map_or("none", Commitment::as_str),
            cache.outcome = outcome.as_str(),
            request.id = self.caller.id.as_str(),
            response_bytes = bytes,
            "call"
        );
        response
    }
}

/// Returns the coding in which the cache gives each long answer of a request of so many calls. Several go out in gzip
/// alone: zstd cannot hold more than one text that was compressed before.
fn cache_coding(accepts: Accepted, calls: usize) -> Option<Coding> {
    if calls <= 1 { accepts.best() } else { Some(Coding::Gzip).filter(|gzip| accepts.takes(*gzip)) }
}

/// Returns the outcome that a refusal counts as.
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
