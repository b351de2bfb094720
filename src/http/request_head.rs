//! The part of a request's head that slotfront uses: who sends the request, what the sender wants, and in which form.
//!
//! A parsed head may take many times the memory of its bytes: over HTTP/2 one byte may stand for a whole header
//! field. While the body is awaited, only the fields that slotfront needs are therefore kept, each up to a bound.

use std::net::IpAddr;

use axum::body::Body;
use hyper::header::{ACCESS_CONTROL_REQUEST_HEADERS, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method as Verb, Request, Response, Uri};

use super::accept_encoding::Accepted;
use super::fields::{FIELD_BYTES, Fields, cut, elements};
use super::request_id::RequestId;
use super::{Front, client_ip, route, routes};
use crate::gateway::MAX_KEY;
use crate::telemetry::Trace;
use crate::telemetry::trace::{TRACEPARENT, TRACESTATE};

/// The sender of a request, and the form in which the sender wants the answer.
#[derive(Clone)]
pub(super) struct ClientInfo {
    /// Behind trusted proxies this is the address that the proxies report. `None` if the address is unknown.
    pub(super) address: Option<IpAddr>,
    /// The `Origin` header of a browser, cut to [`FIELD_BYTES`].
    pub(super) origin: Option<Box<str>>,
    pub(super) id: RequestId,
    /// The caller's trace context (W3C Trace Context).
    pub(super) trace: Trace,
    pub(super) accepts: Accepted,
    /// True if the request has `Cache-Control: no-cache` (RFC 9111, 5.2.1.4). Such a request bypasses the cache if the
    /// plan allows that.
    pub(super) no_cache: bool,
}

impl ClientInfo {
    /// Reads the header fields of a request. `peer` is the address of the client or its proxy.
    pub(super) fn of(front: &Front, peer: Option<IpAddr>, fields: &(impl Fields + ?Sized)) -> Self {
        let origin = fields.first("origin").and_then(|origin| str::from_utf8(origin).ok());
        Self {
            address: client_ip::of(front, peer, fields),
            origin: origin.map(|origin| cut(origin, FIELD_BYTES).into()),
            id: RequestId::of(fields),
            trace: Trace::of_caller(fields.all(TRACEPARENT), || fields.all(TRACESTATE)),
            accepts: Accepted::of(fields),
            no_cache: fields
                .all("cache-control")
                .flat_map(elements)
                .any(|directive| directive.eq_ignore_ascii_case(b"no-cache")),
        }
    }
}

/// What is kept of a head that hyper has read.
pub(super) struct RequestHead {
    pub(super) client: ClientInfo,
    /// The value of a preflight's `Access-Control-Request-Headers`.
    pub(super) wanted_headers: Option<HeaderValue>,
    pub(super) wants: Wants,
}

pub(super) enum Wants {
    /// A POST to the route of the JSON-RPC calls.
    Call {
        /// The raw path segment of the API key, cut to one byte more than the longest valid key.
        key: Box<str>,
        is_json: bool,
    },
    /// A request whose answer depends on nothing else.
    Fixed(fn() -> Response<Body>),
    /// A request for another route, without its header fields and body.
    Route(Box<Request<Body>>),
}

impl RequestHead {
    /// Copies the needed parts of a request's head. `peer` is the address of the client or its proxy.
    pub(super) fn of(front: &Front, peer: Option<IpAddr>, head: &Parts) -> Self {
        let wants = match route(head.uri.path(), front) {
            Some(key) if head.method == Verb::POST => Wants::Call {
                key: cut(key, MAX_KEY + 1).into(),
                is_json: head.headers.get(CONTENT_TYPE).is_some_and(|media| is_json(media.as_bytes())),
            },
            _ if routes::is_websocket(head) => Wants::Fixed(routes::no_websocket),
            _ if head.method == Verb::OPTIONS => Wants::Fixed(routes::options),
            Some(_) => Wants::Fixed(routes::wrong_verb),
            None => {
                let mut request = Request::new(Body::empty());
                *request.method_mut() = head.method.clone();
                // The path is copied, because the head's own path keeps the whole read buffer alive. A copy of a valid
                // path is valid.
                *request.uri_mut() = Uri::try_from(head.uri.path()).unwrap_or_default();
                Wants::Route(Box::new(request))
            }
        };
        let copied = |value: &HeaderValue| {
            HeaderValue::from_bytes(&value.as_bytes()[..value.len().min(FIELD_BYTES)]).ok()
        };
        Self {
            client: ClientInfo::of(front, peer, &head.headers),
            wanted_headers: head.headers.get(ACCESS_CONTROL_REQUEST_HEADERS).and_then(copied),
            wants,
        }
    }
}

/// Returns true for the three content types that a node accepts, in upper or lower case.
pub(super) fn is_json(media_type: &[u8]) -> bool {
    ["application/json", "application/json; charset=utf-8", "application/json;charset=utf-8"]
        .iter()
        .any(|accepted| media_type.eq_ignore_ascii_case(accepted.as_bytes()))
}
