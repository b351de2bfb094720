//! The part of a request's head that is kept while its body is awaited.
//!
//! A head takes many times as much memory as it takes on the wire: over HTTP/2 one byte names a whole header field. So the
//! few fields that matter are copied, each within a bound, and the head is dropped before anything is waited for.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use hyper::header::{ACCESS_CONTROL_REQUEST_HEADERS, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method as Verb, Request, Uri};

use super::caller::{self, Caller};
use super::fields::{FIELD_BYTES, cut};
use super::routes::{self, Client};
use super::{Front, route};
use crate::gateway::MAX_KEY;

/// A request's head, as far as it is kept.
pub(super) struct Summary {
    pub(super) caller: Caller,
    /// The header fields that a browser asks for.
    pub(super) wanted_headers: Option<HeaderValue>,
    pub(super) wants: Wants,
}

/// The purpose of a request.
pub(super) enum Wants {
    /// A call on the hot route.
    Call {
        /// The raw path segment, cut where no key can be longer.
        key: Box<str>,
        /// True if the body is said to be JSON.
        is_json: bool,
    },
    /// A WebSocket, which there is none of.
    WebSocket,
    /// The verbs of any route.
    Options,
    /// The hot route by another verb than POST.
    OtherVerb,
    /// Another route, without the header fields and the body.
    Other(Box<Request<Body>>),
}

impl Summary {
    /// Takes what is needed of the head of a request from `peer`.
    pub(super) fn of(front: &Front, peer: Option<IpAddr>, head: &Parts) -> Self {
        let caller = Caller::of(front, peer, &head.headers);
        let wants = match route(head.uri.path(), front) {
            Some(key) if head.method == Verb::POST => Wants::Call {
                key: cut(key, MAX_KEY + 1).into(),
                is_json: head
                    .headers
                    .get(CONTENT_TYPE)
                    .is_some_and(|media| caller::is_json(media.as_bytes())),
            },
            _ if routes::is_websocket(head) => Wants::WebSocket,
            _ if head.method == Verb::OPTIONS => Wants::Options,
            Some(_) => Wants::OtherVerb,
            None => Wants::Other(Box::new(beside(&caller, head))),
        };
        Self {
            caller,
            wanted_headers: head.headers.get(ACCESS_CONTROL_REQUEST_HEADERS).and_then(copied),
            wants,
        }
    }
}

/// The request as the other routes need it.
fn beside(caller: &Caller, head: &Parts) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = head.method.clone();
    // A copy, because the head's own path keeps all that was read with it. It cannot fail: it was a path before.
    *request.uri_mut() = Uri::try_from(head.uri.path()).unwrap_or_default();
    request.extensions_mut().insert(Client {
        address: caller.client,
        origin: caller.origin.as_deref().map(Arc::from),
        accepts: caller.accepts.best(),
    });
    request
}

/// A copy of a field's value, up to its bound.
fn copied(value: &HeaderValue) -> Option<HeaderValue> {
    let value = value.as_bytes();
    HeaderValue::from_bytes(&value[..value.len().min(FIELD_BYTES)]).ok()
}
