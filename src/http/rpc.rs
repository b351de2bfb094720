//! The hot route: one POST body becomes calls, each call goes down through the rooms, and the answers come back up.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use hyper::StatusCode;
use tokio::time::Instant;

use super::access::{CallOutcome, Calls, Line};
use super::call::{PendingHit, Rest};
use super::caller::Caller;
use super::in_flight::InFlightPermit;
use super::outgoing::FREE_BYTES;
use super::pieces::Pieces;
use super::reply::Reply;
use super::request_id::RequestId;
use super::{Front, batch, body};
use crate::cache::entry::{Body, Payload};
use crate::cache::{CacheAnswer, CacheStatus};
use crate::coding::{self, Coded, Coding, Part};
use crate::error::Error;
use crate::gateway::Principal;
use crate::jsonrpc::envelope::{self, Element, TooMany};
use crate::jsonrpc::{Call, Id, reply};
use crate::methods::{self, Commitment, Method, Profile, Query};
use crate::telemetry::trace::RequestSpan;
use crate::telemetry::{NodeCode, Outcome, Trace};

/// Results up to this length are copied next to their envelope. Longer ones leave as slices of what is kept.
const COPIED_BYTES: usize = 1024;

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
    /// The coding in which the cache is to give each long answer.
    pub(super) coding: Option<Coding>,
    /// An answer may have to wait before it leaves: for others of its batch, or to be compressed.
    pub(super) waits: bool,
    /// Where the request is served from.
    pub(super) place: InFlightPermit,
    /// Bytes of a batch's answers so far.
    answered: AtomicUsize,
}

/// One call's answer, spoken.
pub(super) struct CallResponse {
    pub(super) body: Pieces,
    /// The text of `body` between its first and its last piece, compressed.
    pub(super) coded: Option<Arc<Coded>>,
    /// Where the answer came from; refusals of ours have no such place.
    pub(super) status: Option<CacheStatus>,
    /// The hit that it is, where it may have to wait for something else before it leaves.
    pub(super) hit: Option<Box<PendingHit>>,
    pub(super) refusal: Option<Error>,
    pub(super) ended: CallOutcome,
}

impl CallResponse {
    /// An answer in plain text that rests on nothing kept.
    pub(super) fn new(body: Pieces, ended: CallOutcome) -> Self {
        Self { body, coded: None, status: None, hit: None, refusal: None, ended }
    }

    /// Adds it to a text that is put together, compressed where it is so.
    pub(super) fn add_to<'a>(&'a self, parts: &mut Vec<Part<'a>>) {
        match (&self.coded, self.body.around()) {
            (Some(coded), Some((head, tail))) => {
                parts.extend([Part::Plain(head), Part::Coded(coded), Part::Plain(tail)]);
            }
            _ => parts.extend(self.body.iter().cloned().map(Part::Plain)),
        }
    }
}

/// A request's reply, and what its access line says of it.
pub(super) struct Done {
    pub(super) reply: Reply,
    pub(super) calls: Calls,
    /// Why it was refused as a whole.
    pub(super) reason: Option<&'static str>,
    pub(super) bytes: usize,
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
    let Some(place) = InFlightPermit::take(front, &principal) else {
        principal.note_call(started);
        return Served::Now(refuse_whole(front, caller, started, body, &Error::Overloaded));
    };
    let bypass = principal.bypass_cache() && caller.no_cache;
    let (trace, span) = front.tracer.begin(caller.trace.clone(), started);
    let answered = AtomicUsize::new(0);
    let accepts = caller.accepts;
    let request = &caller.id;
    let coding = accepts.best().filter(|_| front.config.profile == Profile::Node);
    let waits = front.config.profile == Profile::Spec && accepts.best().is_some();
    let mut context =
        Context { front, principal, request, trace, bypass, started, coding, waits, place, answered };
    let limit = front.config.server.max_batch.min(context.principal.max_batch());
    let begun = match envelope::parse_within(body, limit) {
        Err(TooMany(calls)) => context.faulty(&Id::Null, Error::BatchTooLarge { calls, limit }),
        Ok(envelope::Request::ParseError) => context.faulty(&Id::Null, Error::Parse),
        Ok(envelope::Request::One(Element::Refused { id, error })) => context.faulty(&id, error),
        Ok(envelope::Request::One(Element::Notification)) => context.silent(),
        Ok(envelope::Request::Batch(elements)) if elements.is_empty() => context.silent(),
        Ok(envelope::Request::One(Element::Call(call))) => match context.begin(call) {
            Ok(spoken) if context.is_packed(&spoken, accepts) => Begun::Packed(Box::new(spoken)),
            Ok(spoken) => Begun::Done(context.alone(spoken)),
            Err(rest) => Begun::Call(rest),
        },
        Ok(envelope::Request::Batch(elements)) => Begun::Batch(elements),
    };
    let begun = match begun {
        Begun::Done(done) => return Served::Now(context.end(done, span)),
        Begun::Batch(elements) => {
            context.coding = coding.and_then(|_| batch::coding(accepts, elements.len()));
            context.waits |= elements.len() > 1;
            Begun::Batch(elements)
        }
        begun => begun,
    };
    let Context { principal, trace, coding, waits, place, answered, .. } = context;
    let (front, request) = (Arc::clone(front), caller.id.clone());
    Served::Later(Box::pin(async move {
        let (front, request) = (&front, &request);
        let context =
            Context { front, principal, request, trace, bypass, started, coding, waits, place, answered };
        let done = match begun {
            Begun::Done(done) => done,
            Begun::Packed(spoken) => context.alone_packed(*spoken, accepts).await,
            Begun::Call(rest) => {
                let spoken = context.rest(*rest).await;
                context.alone_packed(spoken, accepts).await
            }
            Begun::Batch(elements) => context.batch(elements, accepts).await,
        };
        context.end(done, span)
    }))
}

/// How far a request has come at once.
#[expect(clippy::large_enum_variant, reason = "the large one is usual, and stays where it is")]
enum Begun {
    Done(Done),
    /// Its answer is to be compressed.
    Packed(Box<CallResponse>),
    Call(Box<Rest>),
    Batch(Vec<Element>),
}

impl Done {
    /// The reply to notifications only: there is nothing to say.
    pub(super) fn nothing() -> Self {
        let reply = Reply::json(StatusCode::OK, Pieces::default());
        Self { reply, calls: Calls::NONE, reason: None, bytes: 0 }
    }
}

impl Context<'_> {
    /// The reply to a call that stands alone: its own HTTP status.
    pub(super) fn alone(&self, spoken: CallResponse) -> Done {
        let wire = spoken.refusal.as_ref().map(Error::wire);
        let packed = spoken.coded.as_ref().and_then(|coded| {
            let mut parts = Vec::with_capacity(4);
            spoken.add_to(&mut parts);
            parts.push(Part::Plain(Bytes::from_static(END)));
            Some((coded.coding(), coding::spliced(coded.coding(), &parts)?))
        });
        let mut body = spoken.body;
        body.push(Bytes::from_static(END));
        let bytes = body.len();
        let mut reply = self.reply(StatusCode::OK, body);
        if let Some((coding, pieces)) = packed {
            reply.packed(coding, pieces);
        }
        if let Some(wire) = &wire {
            reply.refuse(wire);
        }
        reply.cache = spoken.status;
        let reason = wire.map(|wire| wire.reason);
        Done { reply, calls: Calls::NONE.and(spoken.ended), reason, bytes }
    }

    /// The refusal of a body that holds no call. Its sender has made one call all the same, and may be over its rate.
    fn faulty(&self, id: &Id, error: Error) -> Begun {
        let error = self.principal.take(self.started).err().unwrap_or(error);
        Begun::Done(self.alone(self.refused(id, error)))
    }

    /// The answer to a body that wants none, unless its sender is over its rate.
    fn silent(&self) -> Begun {
        Begun::Done(match self.principal.take(self.started) {
            Ok(()) => Done::nothing(),
            Err(error) => self.alone(self.refused(&Id::Null, error)),
        })
    }

    pub(super) fn reply(&self, status: StatusCode, body: Pieces) -> Reply {
        let mut reply = Reply::json(status, body);
        reply.limits = Some((Arc::clone(&self.principal), Instant::now()));
        reply
    }

    /// The reply in its place, after its access line.
    fn end(self, done: Done, span: RequestSpan) -> Reply {
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
        reply.varies |= coding::is_worth(reply.body.len());
        if reply.coding.is_some() {
            self.place.holds_instead(&self.principal, &reply.body);
        }
        reply.permit = Some(self.place);
        reply
    }

    pub(super) fn answered(&self, id: &Id, query: &Query, answer: &CacheAnswer) -> CallResponse {
        let method = query.method();
        let body = self.text(id, query, answer);
        if let Err(error) = self.takes(&body) {
            return self.count_refused(id, Some(method), query.commitment(), error);
        }
        let ended =
            CallOutcome { method: Some(method), commitment: query.commitment(), outcome: answer.outcome };
        self.count(ended, body.len());
        CallResponse {
            coded: answer.coded.clone(),
            status: Some(answer.status),
            hit: self.hit(id, query, answer),
            ..CallResponse::new(body, ended)
        }
    }

    /// An answer between the envelope and the caller's id.
    pub(super) fn text(&self, id: &Id, query: &Query, answer: &CacheAnswer) -> Pieces {
        let profile = self.front.config.profile;
        let mut body = Pieces::default();
        match &answer.payload {
            Payload::Error { code, .. } if profile == Profile::Spec && methods::absent_block(*code) => {
                splice(&mut body, id, [Bytes::from_static(b"null")]);
            }
            Payload::Error { code, body: error } => {
                self.front.metrics.node_errors.at((Some(query.method()), NodeCode::from(*code))).inc();
                let mut text = Vec::with_capacity(error.len() + 64);
                reply::node_error(&mut text, id, error);
                body.push(text.into());
            }
            Payload::Result(result) if profile == Profile::Spec => {
                splice(&mut body, id, [methods::shape_result(profile, query, result.whole())]);
            }
            Payload::Result(Body::One(result)) if result.len() <= COPIED_BYTES => {
                let mut text = Vec::with_capacity(result.len() + 64);
                reply::result(&mut text, id, result);
                body.push(text.into());
            }
            Payload::Result(result) => splice(&mut body, id, result.pieces().iter().cloned()),
        }
        body
    }

    /// Takes the bytes of an answer. Those of a batch may be as long together as a single one, or 100 small calls would
    /// hold 100 times that; the first always fits. All that is on its way out has a budget.
    ///
    /// # Errors
    /// [`Error::AnswersTooLarge`] past the one, [`Error::Overloaded`] past the other.
    pub(super) fn takes(&self, body: &Pieces) -> Result<(), Error> {
        let limit = self.front.config.pool.max_response;
        // One task polls all elements of a batch, so nothing comes in between.
        let before = self.answered.load(Ordering::Relaxed);
        let all = before.saturating_add(body.len());
        if before > 0 && all > limit {
            return Err(Error::AnswersTooLarge { limit });
        }
        if all > FREE_BYTES {
            // What was free until now counts, too.
            let more = if before <= FREE_BYTES { before } else { 0 };
            if !self.place.load(self.front).add(&self.principal, body, more) {
                return Err(Error::Overloaded);
            }
        }
        self.answered.store(all, Ordering::Relaxed);
        Ok(())
    }

    /// So many bytes of an answer are not sent after all.
    pub(super) fn gives_back(&self, bytes: usize) {
        self.answered.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn refused(&self, id: &Id, error: Error) -> CallResponse {
        self.count_refused(id, None, None, error)
    }

    pub(super) fn count_refused(
        &self,
        id: &Id,
        method: Option<Method>,
        commitment: Option<Commitment>,
        error: Error,
    ) -> CallResponse {
        let mut text = Vec::with_capacity(128);
        reply::refusal(&mut text, id, &error);
        let ended = CallOutcome { method, commitment, outcome: outcome(&error) };
        self.count(ended, text.len());
        let mut body = Pieces::default();
        body.push(text.into());
        CallResponse { refusal: Some(error), ..CallResponse::new(body, ended) }
    }

    pub(super) fn count(&self, ended: CallOutcome, bytes: usize) {
        let CallOutcome { method, commitment, outcome } = ended;
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

/// A refusal of the whole request, before there is a principal, with the caller's id where one can be read. Whoever is
/// limited is not read any more.
fn refuse_whole(front: &Front, caller: &Caller, started: Instant, body: &Bytes, error: &Error) -> Reply {
    let id = match error {
        Error::Limited { .. } => Id::Null,
        _ => match envelope::parse_within(body, 0) {
            Ok(envelope::Request::One(Element::Call(Call { id, .. }) | Element::Refused { id, .. })) => id,
            _ => Id::Null,
        },
    };
    let mut text = Vec::with_capacity(160);
    reply::refusal(&mut text, &id, error);
    front.metrics.call(None, None, outcome(error), started.elapsed(), text.len());
    let wire = error.wire();
    text.push(b'\n');
    let mut reply = Reply::json(StatusCode::OK, Pieces::default());
    reply.refuse(&wire);
    let calls = Calls::NONE.and(CallOutcome { method: None, commitment: None, outcome: outcome(error) });
    let (reason, bytes) = (Some(wire.reason), text.len());
    let (request, trace) = (&caller.id, &caller.trace);
    let (status, ended) = (reply.status, Instant::now());
    let line = Line { request, trace, key: "none", reason, status, calls, bytes, started, ended };
    line.write(&front.access, RequestSpan::default());
    reply.body = Bytes::from(text).into();
    reply
}
