//! The part of a request's head that is kept while the request's body is awaited.
//!
//! A parsed head may take many times the memory of its bytes: over HTTP/2 one byte may stand for a whole header
//! field. Therefore only the fields that slotfront needs are copied, each up to a bound. The head is then dropped.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use hyper::header::{ACCESS_CONTROL_REQUEST_HEADERS, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method as Verb, Request, Uri};

use super::client_info::{self, ClientInfo};
use super::fields::{FIELD_BYTES, cut};
use super::routes::{self, RouteCaller};
use super::{Front, route};
use crate::gateway::MAX_KEY;

/// The part of a request's head that is kept while the request's body is awaited.
pub(super) struct Summary {
    pub(super) client: ClientInfo,
    /// The value of a preflight's `Access-Control-Request-Headers`.
    pub(super) wanted_headers: Option<HeaderValue>,
    pub(super) wants: Wants,
}

/// The kind of a request, by its route and verb.
pub(super) enum Wants {
    /// A POST to the route of the JSON-RPC calls.
    Call {
        /// The raw path segment of the API key, cut to one byte more than the longest valid key.
        key: Box<str>,
        /// True if the content type is JSON.
        is_json: bool,
    },
    /// A WebSocket handshake, which is refused.
    WebSocket,
    /// An OPTIONS request on any route.
    Options,
    /// A request to the route of the JSON-RPC calls, with a verb other than POST and OPTIONS.
    OtherVerb,
    /// A request for another route, without its header fields and body.
    Other(Box<Request<Body>>),
}

impl Summary {
    /// Copies the needed parts of a request's head. `peer` is the address of the client or its proxy.
    pub(super) fn of(front: &Front, peer: Option<IpAddr>, head: &Parts) -> Self {
        let client = ClientInfo::of(front, peer, &head.headers);
        let wants = match route(head.uri.path(), front) {
            Some(key) if head.method == Verb::POST => Wants::Call {
                key: cut(key, MAX_KEY + 1).into(),
                is_json: head
                    .headers
                    .get(CONTENT_TYPE)
                    .is_some_and(|media| client_info::is_json(media.as_bytes())),
            },
            _ if routes::is_websocket(head) => Wants::WebSocket,
            _ if head.method == Verb::OPTIONS => Wants::Options,
            Some(_) => Wants::OtherVerb,
            None => Wants::Other(Box::new(routed_request(&client, head))),
        };
        Self {
            client,
            wanted_headers: head.headers.get(ACCESS_CONTROL_REQUEST_HEADERS).and_then(copied),
            wants,
        }
    }
}

/// Returns a request for axum's router with the verb, the path and the caller, without header fields and body.
fn routed_request(client: &ClientInfo, head: &Parts) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = head.method.clone();
    // The path is copied, because the head's own path keeps the whole read buffer alive. A copy of a valid path is
    // valid.
    *request.uri_mut() = Uri::try_from(head.uri.path()).unwrap_or_default();
    request.extensions_mut().insert(RouteCaller {
        address: client.address,
        origin: client.origin.as_deref().map(Arc::from),
        accepts: client.accepts.best(),
    });
    request
}

/// Returns a copy of a header field's value, cut to [`FIELD_BYTES`].
fn copied(value: &HeaderValue) -> Option<HeaderValue> {
    let value = value.as_bytes();
    HeaderValue::from_bytes(&value[..value.len().min(FIELD_BYTES)]).ok()
}
