//! The hot route: one POST body becomes calls, each call goes down through the rooms, and the answers come back up.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::future::join_all;
use hyper::StatusCode;
use tokio::time::Instant;

use super::access::{Calls, Ended, Line};
use super::call::Rest;
use super::caller::Caller;
use super::exchange::Place;
use super::reply::{Pieces, Reply};
use super::request_id::RequestId;
use super::{Front, body, encoding};
use crate::cache::entry::{Body, Payload, SHORT_BYTES};
use crate::cache::{Answer, CacheStatus};
use crate::coding::Coding;
use crate::error::Error;
use crate::gateway::Principal;
use crate::jsonrpc::envelope::{self, Element};
use crate::jsonrpc::{Call, Id, reply};
use crate::methods::{self, Commitment, Method, Profile, Query};
use crate::telemetry::trace::RequestSpan;
use crate::telemetry::{NodeCode, Outcome, Trace};

/// What ends a body, as on a node.
pub(super) const END: &[u8] = b"\n";

/// Everything that one request shares among its calls.
pub(super) struct Context<'a> {
    pub(super) front: &'a Arc<Front>,
    pub(super) principal: Arc<Principal>,
    request: &'a RequestId,
    pub(super) trace: Trace,
    pub(super) bypass: bool,
    pub(super) started: Instant,
    /// Bytes of a batch's answers so far.
    answered: AtomicUsize,
}

/// One call's answer, spoken.
pub(super) struct Spoken {
    pub(super) body: Pieces,
    /// The same compressed, its end included, where it stands alone and the caller takes it so.
    pub(super) coded: Option<(Coding, [Bytes; 3])>,
    /// Where the answer came from; refusals of ours have no such place.
    pub(super) status: Option<CacheStatus>,
    pub(super) refusal: Option<Error>,
    pub(super) ended: Ended,
}

/// A request's reply, and what its access line says of it.
struct Done {
    reply: Reply,
    calls: Calls,
    /// Why it was refused as a whole.
    reason: Option<&'static str>,
    bytes: usize,
}

/// A reply that is there, or on its way. Most are there at once: no future is made for them, so that nothing of them lies
/// in the memory of a connection that has been idle, which would have to be fetched for each.
pub(super) enum Served {
    Now(Reply),
    Later(Pin<Box<dyn Future<Output = Reply> + Send>>),
}

impl Served {
    /// The reply, once it is there.
    pub(super) async fn reply(self) -> Reply {
        match self {
            Self::Now(reply) => reply,
            Self::Later(reply) => reply.await,
        }
    }
}

/// Serves one POST to the hot route; `key` is the raw path segment, `started` when the request came.
pub(super) fn serve(
    front: &Arc<Front>,
    caller: &Caller,
    key: &str,
    body: &Bytes,
    started: Instant,
) -> Served {
    if let Some(refusal) = body::refusal(body) {
        return Served::Now(refusal);
    }
    let principal = match front.gateway.authenticate(key, caller.client, caller.origin.as_deref(), started) {
        Ok(principal) => principal,
        Err(refusal) => return Served::Now(refuse_whole(front, caller, started, body, &refusal)),
    };
    // Only from here on: whoever has no key, or trickles a body, takes no place from those who call.
    let Some(place) = Place::take(front, &principal) else {
        return Served::Now(refuse_whole(front, caller, started, body, &Error::Overloaded));
    };
    let bypass = principal.bypass_cache() && caller.no_cache;
    let (trace, span) = front.tracer.begin(caller.trace.clone(), started);
    let answered = AtomicUsize::new(0);
    let accepts = caller.accepts;
    let request = &caller.id;
    let context = Context { front, principal, request, trace, bypass, started, answered };
    let begun = match envelope::parse(body) {
        envelope::Request::ParseError => Begun::Done(context.alone(context.refused(&Id::Null, Error::Parse))),
        envelope::Request::One(Element::Notification) => Begun::Done(Done::nothing()),
        envelope::Request::One(Element::Refused { id, error }) => {
            Begun::Done(context.alone(context.refused(&id, error)))
        }
        envelope::Request::One(Element::Call(call)) => match context.begin(call, accepts) {
            Ok(spoken) => Begun::Done(context.alone(spoken)),
            Err(rest) => Begun::Call(rest),
        },
        envelope::Request::Batch(elements) => Begun::Batch(elements),
    };
    let begun = match begun {
        Begun::Done(done) if encoding::wanted(accepts, &done.reply).is_none() => {
            return Served::Now(context.end(done, span, place));
        }
        begun => begun,
    };
    let Context { principal, trace, answered, .. } = context;
    let (front, request) = (Arc::clone(front), caller.id.clone());
    Served::Later(Box::pin(async move {
        let (front, request) = (&front, &request);
        let context = Context { front, principal, request, trace, bypass, started, answered };
        let done = match begun {
            Begun::Done(done) => done,
            Begun::Call(rest) => context.alone(context.rest(*rest).await),
            Begun::Batch(elements) => context.batch(elements).await,
        };
        let mut reply = context.end(done, span, place);
        if let Some(coding) = encoding::wanted(accepts, &reply) {
            encoding::encode(coding, &mut reply).await;
        }
        reply
    }))
}

/// How far a request has come at once.
#[expect(clippy::large_enum_variant, reason = "the large one is usual, and stays where it is")]
enum Begun {
    Done(Done),
    Call(Box<Rest>),
    Batch(Vec<Element>),
}

impl Done {
    /// The reply to notifications only: there is nothing to say.
    fn nothing() -> Self {
        let reply = Reply::json(StatusCode::OK, Pieces::default());
        Self { reply, calls: Calls::NONE, reason: None, bytes: 0 }
    }
}

impl Context<'_> {
    /// The reply to a call that stands alone: its own HTTP status.
    fn alone(&self, spoken: Spoken) -> Done {
        let wire = spoken.refusal.as_ref().map(Error::wire);
        let status =
            wire.as_ref().and_then(|wire| StatusCode::from_u16(wire.status).ok()).unwrap_or_default();
        let mut body = spoken.body;
        body.push(Bytes::from_static(END));
        let bytes = body.len();
        let mut reply = self.reply(status, body);
        if let Some((coding, pieces)) = spoken.coded {
            reply.body = pieces.into_iter().collect();
            (reply.varies, reply.coding) = (true, Some(coding));
        }
        reply.retry_after = wire.as_ref().and_then(|wire| wire.retry_after_s);
        reply.cache = spoken.status;
        let reason = wire.map(|wire| wire.reason);
        Done { reply, calls: Calls::NONE.and(spoken.ended), reason, bytes }
    }

    fn reply(&self, status: StatusCode, body: Pieces) -> Reply {
        let mut reply = Reply::json(status, body);
        reply.limits = Some((Arc::clone(&self.principal), Instant::now()));
        reply
    }

    /// The reply to a batch: 200, each element with its own outcome, in order; notifications have none.
    async fn batch(&self, elements: Vec<Element>) -> Done {
        let limit = self.front.config.server.max_batch.min(self.principal.max_batch());
        if elements.len() > limit {
            let error = Error::BatchTooLarge { calls: elements.len(), limit };
            return self.alone(self.refused(&Id::Null, error));
        }
        let spoken: Vec<Spoken> = join_all(elements.into_iter().map(|element| self.element(element)))
            .await
            .into_iter()
            .flatten()
            .collect();
        if spoken.is_empty() {
            return Done::nothing();
        }
        let calls = spoken.iter().fold(Calls::NONE, |calls, spoken| calls.and(spoken.ended));
        let answers: Vec<CacheStatus> = spoken.iter().filter_map(|spoken| spoken.status).collect();
        let mut body = Pieces::default();
        for (i, spoken) in spoken.into_iter().enumerate() {
            body.push(Bytes::from_static(if i == 0 { b"[" } else { b"," }));
            body.append(spoken.body);
        }
        body.push(Bytes::from_static(b"]\n"));
        let bytes = body.len();
        let mut reply = self.reply(StatusCode::OK, body);
        if !answers.is_empty() {
            let hits = answers.iter().filter(|status| status.is_hit()).count();
            reply.cache = Some(CacheStatus::Batch { hits, of: answers.len() });
        }
        Done { reply, calls, reason: None, bytes }
    }

    /// The reply in its place, after its access line.
    fn end(&self, done: Done, span: RequestSpan, place: Place) -> Reply {
        let Done { mut reply, calls, reason, bytes } = done;
        let line = Line {
            request: self.request,
            trace: &self.trace,
            key: self.principal.id(),
            reason,
            status: reply.status,
            calls,
            bytes,
            started: self.started,
            ended: reply.made(),
        };
        line.write(&self.front.access, span);
        // Said whichever coding it is: another client's may differ (RFC 9110, 12.5.5).
        reply.varies |= encoding::is_worth(reply.body.len());
        reply.place = Some(place);
        reply
    }

    /// One element's answer; a notification has none.
    async fn element(&self, element: Element) -> Option<Spoken> {
        match element {
            Element::Notification => None,
            Element::Refused { id, error } => Some(self.refused(&id, error)),
            Element::Call(call) => Some(match self.begin(call, None) {
                Ok(spoken) => spoken,
                Err(rest) => Box::pin(self.rest(*rest)).await,
            }),
        }
    }

    pub(super) fn answered(&self, id: &Id, query: &Query, answer: &Answer) -> Spoken {
        let method = query.method();
        let profile = self.front.config.profile;
        let mut body = Pieces::default();
        match &answer.payload {
            Payload::Error { code, .. } if profile == Profile::Spec && methods::absent_block(*code) => {
                splice(&mut body, id, [Bytes::from_static(b"null")]);
            }
            Payload::Error { code, body: error } => {
                self.front.metrics.node_errors.at((Some(method), NodeCode::from(*code))).inc();
                let mut text = Vec::with_capacity(error.len() + 64);
                reply::node_error(&mut text, id, error);
                body.push(text.into());
            }
            Payload::Result(result) if profile == Profile::Spec => {
                splice(&mut body, id, [methods::shape_result(profile, query, result.whole())]);
            }
            Payload::Result(Body::One(result)) if result.len() <= SHORT_BYTES => {
                let mut text = Vec::with_capacity(result.len() + 64);
                reply::result(&mut text, id, result);
                body.push(text.into());
            }
            Payload::Result(result) => splice(&mut body, id, result.pieces().iter().cloned()),
        }
        if !self.fits(body.len()) {
            let error = Error::AnswersTooLarge { limit: self.front.config.pool.max_response };
            return self.count_refused(id, Some(method), query.commitment(), error);
        }
        let ended = Ended { method: Some(method), commitment: query.commitment(), outcome: answer.outcome };
        self.count(ended, body.len());
        Spoken { body, coded: None, status: Some(answer.status), refusal: None, ended }
    }

    /// Whether an answer of so many bytes still fits beside those that were there before it: together they may be as
    /// long as a single one may be, or 100 small calls would hold 100 times that. The first always fits.
    pub(super) fn fits(&self, bytes: usize) -> bool {
        let limit = self.front.config.pool.max_response;
        let before = self.answered.load(Ordering::Relaxed);
        let fits = before == 0 || before.saturating_add(bytes) <= limit;
        if fits {
            // One task polls all elements of a batch, so nothing comes in between.
            self.answered.store(before + bytes, Ordering::Relaxed);
        }
        fits
    }

    pub(super) fn refused(&self, id: &Id, error: Error) -> Spoken {
        self.count_refused(id, None, None, error)
    }

    pub(super) fn count_refused(
        &self,
        id: &Id,
        method: Option<Method>,
        commitment: Option<Commitment>,
        error: Error,
    ) -> Spoken {
        let mut text = Vec::with_capacity(128);
        reply::refusal(&mut text, id, &error);
        let ended = Ended { method, commitment, outcome: outcome(&error) };
        self.count(ended, text.len());
        let mut body = Pieces::default();
        body.push(text.into());
        Spoken { body, coded: None, status: None, refusal: Some(error), ended }
    }

    pub(super) fn count(&self, ended: Ended, bytes: usize) {
        let Ended { method, commitment, outcome } = ended;
        self.front.metrics.call(method, commitment, outcome, self.started.elapsed(), bytes);
        self.principal.count(&self.front.metrics, outcome);
        // Of a batch the access line says the sum.
        tracing::trace!(
            rpc.method = method.map_or("other", Method::as_str),
            rpc.commitment = commitment.map_or("none", Commitment::as_str),
            cache.outcome = outcome.as_str(),
            request.id = self.request.as_str(),
            response_bytes = bytes,
            "call"
        );
    }
}

/// A kept result between the envelope and the caller's id.
pub(super) fn splice(body: &mut Pieces, id: &Id, result: impl IntoIterator<Item = Bytes>) {
    let (head, tail) = reply::head_and_tail(id);
    body.push(head);
    result.into_iter().for_each(|piece| body.push(piece));
    body.push(tail);
}

/// The outcome that a refusal counts as.
#[deny(clippy::wildcard_enum_match_arm)]
fn outcome(error: &Error) -> Outcome {
    match error {
        Error::Parse
        | Error::InvalidRequest
        | Error::UnsupportedVersion
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

/// A refusal of the whole request, before there is a principal, with the caller's id where one can be read.
fn refuse_whole(front: &Front, caller: &Caller, started: Instant, body: &Bytes, error: &Error) -> Reply {
    let id = match envelope::parse(body) {
        envelope::Request::One(Element::Call(Call { id, .. }) | Element::Refused { id, .. }) => id,
        _ => Id::Null,
    };
    let mut text = Vec::with_capacity(160);
    reply::refusal(&mut text, &id, error);
    front.metrics.call(None, None, outcome(error), started.elapsed(), text.len());
    let wire = error.wire();
    text.push(b'\n');
    let status = StatusCode::from_u16(wire.status).unwrap_or_default();
    let calls = Calls::NONE.and(Ended { method: None, commitment: None, outcome: outcome(error) });
    let (reason, bytes) = (Some(wire.reason), text.len());
    let (request, trace) = (&caller.id, &caller.trace);
    let line =
        Line { request, trace, key: "none", reason, status, calls, bytes, started, ended: Instant::now() };
    line.write(&front.access, RequestSpan::default());
    let mut reply = Reply::json(status, Pieces::from(Bytes::from(text)));
    reply.retry_after = wire.retry_after_s;
    reply
}
