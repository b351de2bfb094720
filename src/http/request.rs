//! Answers one HTTP request that carries JSON-RPC calls: parses the body, answers the calls, and makes the reply.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use hyper::StatusCode;
use tokio::time::{Instant, timeout};

use super::Front;
use super::access::{AccessLine, CallOutcome, Calls};
use super::body_parts::BodyParts;
use super::call::{self, Admission};
use super::client::ClientInfo;
use super::context::{CallResponse, RequestContext};
use super::in_flight::InFlightPermit;
use super::reply::{Explained, HttpReply};
use crate::cache::CacheStatus;
use crate::coding::{self, Coding, CompressedText, SplicePart};
use crate::error::Error;
use crate::gateway::Principal;
use crate::jsonrpc::envelope::{self, Element, EnvelopeError, Request, TooMany};
use crate::jsonrpc::{Call, Id};
use crate::methods::{AnyMethod, Profile};
use crate::telemetry::trace::RequestSpan;

/// The longest wait for the compression of a response. After this time the response is sent uncompressed.
const COMPRESSION_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves a request of `principal` with a complete body. `started` is the request's arrival time.
pub(super) async fn serve(
    front: &Arc<Front>,
    client: &ClientInfo,
    principal: Arc<Principal>,
    body: &Bytes,
    started: Instant,
) -> HttpReply {
    if let Some(refusal) = refuse_invalid_utf8(body) {
        return refusal;
    }
    // The permit is taken after authentication and after the body, so that callers without a key and slow uploads
    // hold no permit.
    let Some(permit) = InFlightPermit::take(front, &principal) else {
        return refuse(front, client, started, body, &overloaded(&principal));
    };
    let limit = front.config.now().server.max_batch;
    let limit = principal.max_batch().map_or(limit, |own| own.min(limit));
    let parsed = envelope::parse_within(body, limit);
    let calls = if let Ok(Request::Batch(elements)) = &parsed { elements.len() } else { 1 };
    let (trace, span) = front.tracer.begin(client.trace.clone(), started);
    let request = RequestContext::new(front, client, principal, permit, trace, started, calls);
    let responses = match parsed {
        Ok(Request::One(Element::Call(call))) => Responses::Whole(call::answer(&request, call).await),
        Ok(Request::Batch(elements)) if !elements.is_empty() => answer_batch(&request, elements).await,
        Ok(Request::One(Element::Notification) | Request::Batch(_)) => answer_silence(&request),
        Ok(Request::One(Element::Refused { id, error })) => refuse_call(&request, &id, error.into()),
        Ok(Request::ParseError) => refuse_call(&request, &Id::Null, EnvelopeError::Parse.into()),
        Err(TooMany(calls)) => refuse_call(&request, &Id::Null, Error::BatchTooLarge { calls, limit }),
    };
    let compressed = compress(&request, &responses).await;
    finish(request, span, responses, compressed)
}

/// Answers the elements of a batch. Notifications get no response.
///
/// What nodes must be asked for is fetched first, all at once. What the cache holds is looked up after that, so that it
/// does not grow old while it waits for the rest.
async fn answer_batch(request: &RequestContext<'_>, elements: Vec<Element>) -> Responses {
    let mut calls = Vec::new();
    for element in elements {
        let call = match element {
            Element::Notification => {
                request.principal.note_call();
                continue;
            }
            Element::Refused { id, error } => {
                let error = request.principal.take().err().unwrap_or(error.into());
                Admission::Refused(request.refuse(&id, None, None, error))
            }
            Element::Call(call) => Admission::of(request, call),
        };
        calls.push((calls.len(), call));
    }
    let mut responses: Vec<_> = calls.iter().map(|_| None).collect();
    while !calls.is_empty() {
        let (held, missing): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(|(_, call): &(usize, Admission)| call.is_held(request));
        // What is held now may be gone when the fetches have returned.
        let (now, later) = if missing.is_empty() { (held, missing) } else { (missing, held) };
        for (at, response) in
            join_all(now.into_iter().map(async |(at, call)| (at, call.answer(request).await))).await
        {
            responses[at] = Some(response);
        }
        calls = later;
    }
    Responses::Batch(responses.into_iter().flatten().collect())
}

/// Answers a notification or an empty batch with an empty body. If the key is over its rate or a quota, answers with a
/// refusal.
fn answer_silence(request: &RequestContext<'_>) -> Responses {
    match request.principal.take() {
        Ok(()) => Responses::Batch(Vec::new()),
        Err(error) => Responses::Whole(request.refuse(&Id::Null, None, None, error)),
    }
}

/// Refuses a request whose body is not a valid call or batch. The request counts as one call towards the key's rate.
fn refuse_call(request: &RequestContext<'_>, id: &Id, error: Error) -> Responses {
    let error = request.principal.take().err().unwrap_or(error);
    Responses::Whole(request.refuse(id, None, None, error))
}

/// The body of a response in a content coding.
struct CompressedBody {
    coding: Coding,
    pieces: Vec<Bytes>,
    texts: Vec<Arc<CompressedText>>,
}

/// Returns the compressed body. `None` if the body is sent uncompressed.
async fn compress(request: &RequestContext<'_>, responses: &Responses) -> Option<CompressedBody> {
    let is_node = request.config.profile == Profile::Node;
    if is_node && responses.all().iter().any(CallResponse::compression_is_left_to_cache) {
        let coding = request.coding?;
        let texts = responses.all().iter().filter_map(|response| response.compressed.clone()).collect();
        return Some(CompressedBody { coding, pieces: responses.spliced(coding)?, texts });
    }
    let coding = request.client.accepts.best()?;
    if !coding::is_worth(responses.len()) {
        return None;
    }
    let text = responses.text();
    let work = request.front.cache.compressor().compress(text.len(), move || coding.encode(&text.joined()));
    let pieces = vec![timeout(COMPRESSION_TIMEOUT, work).await.ok()??];
    Some(CompressedBody { coding, pieces, texts: Vec::new() })
}

/// Makes the reply, writes the line of the access log, and ends the request's trace span. The reply takes over the
/// request's in-flight permit.
fn finish(
    request: RequestContext<'_>,
    span: RequestSpan,
    responses: Responses,
    compressed: Option<CompressedBody>,
) -> HttpReply {
    let mut reply = HttpReply::json(StatusCode::OK, BodyParts::default());
    let (calls, mut bytes) = (responses.calls(), 0);
    let is_told = request.principal.explains();
    if is_told || tracing::enabled!(tracing::Level::DEBUG) {
        let (node, status) = (responses.whole().and_then(|response| response.node), responses.status());
        let upstream =
            node.map(|node| request.front.pool.name_of(node as usize)).filter(|name| !name.is_empty());
        reply.explained = Some(Explained { upstream, bound: status.and_then(CacheStatus::bound) });
    }
    if !responses.is_empty() {
        reply.limits = Some((Arc::clone(&request.principal), Instant::now()));
        reply.cache = responses.status();
        let refusal = responses.whole().and_then(|response| response.refusal.as_ref());
        if let Some(wire) = refusal.map(Error::to_reply) {
            reply.refuse(&wire);
        }
        reply.body = responses.into_text();
        bytes = reply.body.len();
    }
    if let Some(CompressedBody { coding, pieces, texts }) = compressed {
        reply.set_compressed(coding, pieces);
        request.permit.keep_compressed(request.front, &request.principal, &reply.body, &texts);
    }
    // Even an uncompressed reply needs `Vary` if other clients may get it compressed (RFC 9110, 12.5.5).
    reply.varies |= coding::is_worth(reply.body.len());
    let line = AccessLine {
        client: request.client,
        trace: &request.trace,
        principal: Some(&request.principal),
        reply: &reply,
        calls,
        bytes,
        started: request.started,
    };
    line.write(&request.front.access, span);
    reply.explained = reply.explained.filter(|_| is_told);
    reply.permit = Some(request.permit);
    reply
}

/// Counts a call of `principal` for whose body there is no memory, or which gets no permit, and returns its error.
pub(super) fn overloaded(principal: &Principal) -> Error {
    principal.note_call();
    Error::Overloaded
}

/// Refuses a request that has no valid key, or for which there is no room. The refusal has the id of the call if `body`,
/// as far as it was kept, is one call. The body is not parsed if the caller is over a limit.
pub(super) fn refuse(
    front: &Front,
    client: &ClientInfo,
    started: Instant,
    body: &Bytes,
    error: &Error,
) -> HttpReply {
    let (id, method) = match error {
        Error::Limited { .. } => (Id::Null, None),
        _ => match envelope::parse_within(body, 0) {
            Ok(Request::One(Element::Call(Call { id, method, .. }))) => (id, AnyMethod::from_name(&method)),
            Ok(Request::One(Element::Refused { id, .. })) => (id, None),
            _ => (Id::Null, None),
        },
    };
    let mut text = Vec::with_capacity(160);
    error.write_response(&mut text, &id);
    front.metrics.call(method, None, error.outcome(), started.elapsed(), text.len());
    text.push(b'\n');
    let (calls, bytes) =
        (Calls::NONE.and(CallOutcome { method, commitment: None, outcome: error.outcome() }), text.len());
    let mut reply = HttpReply::json(StatusCode::OK, Bytes::from(text).into());
    reply.refuse(&error.to_reply());
    let (trace, principal) = (&client.trace, None);
    let line = AccessLine { client, trace, principal, reply: &reply, calls, bytes, started };
    line.write(&front.access, RequestSpan::default());
    reply
}

/// Returns the refusal that a node sends for a body that is not UTF-8. `None` if the body is UTF-8.
fn refuse_invalid_utf8(body: &[u8]) -> Option<HttpReply> {
    let at = str::from_utf8(body).err()?.valid_up_to();
    let why = format!("utf-8 encoding error at byte {at} in request body");
    Some(HttpReply::text(StatusCode::BAD_REQUEST, why))
}

enum Responses {
    Whole(CallResponse),
    /// The responses to the calls of a batch, in order. A notification has no response.
    Batch(Vec<CallResponse>),
}

impl Responses {
    fn all(&self) -> &[CallResponse] {
        match self {
            Self::Whole(response) => std::slice::from_ref(response),
            Self::Batch(responses) => responses,
        }
    }

    fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    fn len(&self) -> usize {
        let texts: usize = self.all().iter().map(|response| response.body.len()).sum();
        let separators: usize = (0..=self.all().len()).map(|at| self.separator(at).len()).sum();
        texts + separators
    }

    fn text(&self) -> BodyParts {
        let mut body = BodyParts::default();
        for (at, response) in self.all().iter().enumerate() {
            body.push(self.separator(at));
            body.append(response.body.clone());
        }
        body.push(self.separator(self.all().len()));
        body
    }

    fn into_text(self) -> BodyParts {
        let end = self.separator(1);
        match self {
            Self::Whole(response) => {
                let mut body = response.body;
                body.push(end);
                body
            }
            Self::Batch(_) => self.text(),
        }
    }

    /// Returns the body in `coding`, assembled from the texts that the cache has compressed. The other texts are
    /// embedded without compression. `None` if the cache has compressed no text.
    fn spliced(&self, coding: Coding) -> Option<Vec<Bytes>> {
        if self.all().iter().all(|response| response.compressed.is_none()) {
            return None;
        }
        let mut parts = Vec::with_capacity(4 * self.all().len() + 1);
        for (at, response) in self.all().iter().enumerate() {
            parts.push(SplicePart::Plain(self.separator(at)));
            response.add_to(&mut parts);
        }
        parts.push(SplicePart::Plain(self.separator(self.all().len())));
        coding::splice(coding, &parts)
    }

    /// Returns the text before the response at index `at`, such as the comma between two responses of a batch. For the
    /// index after the last response, returns the text that ends the body.
    fn separator(&self, at: usize) -> Bytes {
        Bytes::from_static(match self {
            Self::Whole(_) if at == 0 => b"",
            Self::Whole(_) => b"\n",
            Self::Batch(responses) if at == responses.len() => b"]\n",
            Self::Batch(_) if at == 0 => b"[",
            Self::Batch(_) => b",",
        })
    }

    /// Returns the value of the header `Cache-Status` for the HTTP response. `None` if every response is a refusal
    /// by slotfront.
    fn status(&self) -> Option<CacheStatus> {
        match self {
            Self::Whole(response) => response.status,
            Self::Batch(responses) => {
                let answers = || responses.iter().filter_map(|response| response.status);
                let hits = answers().filter(|status| status.is_hit()).count();
                let of = answers().count();
                (of > 0).then_some(CacheStatus::Batch { hits, of })
            }
        }
    }

    fn whole(&self) -> Option<&CallResponse> {
        match self {
            Self::Whole(response) => Some(response),
            Self::Batch(_) => None,
        }
    }

    fn calls(&self) -> Calls {
        self.all().iter().fold(Calls::NONE, |calls, response| calls.and(response.outcome))
    }
}
