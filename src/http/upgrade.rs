//! The upgrade of a request to a WebSocket (RFC 6455, 4.2), which a client's key must allow first.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use hyper::header::{
    CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use hyper::http::request::Parts;
use hyper::{Method as Verb, StatusCode, Version};

use super::client::ClientInfo;
use super::fields::{all, elements};
use super::{Front, cors, key};
use crate::error::Error;
use crate::node::websocket::accept_key;

const VERSION: &str = "13";

/// A client's wish to open a WebSocket.
pub(super) struct Handshake {
    /// The API key. `None` if the request names two that differ.
    key: Option<Box<str>>,
    /// The value of `Sec-WebSocket-Accept`. `None` if the client's key is missing or its version is unknown.
    accept: Option<String>,
}

impl Handshake {
    /// Reads the handshake. `None` for any other request, in which `Upgrade` is ignored.
    pub(super) fn of(front: &Front, head: &Parts) -> Option<Self> {
        let lists = |field, element: &[u8]| {
            all(&head.headers, field).flat_map(elements).any(|listed| listed.eq_ignore_ascii_case(element))
        };
        // `Upgrade` concerns one connection. A proxy that does not know it passes it on without the wish in `Connection`.
        let is_websocket = head.method == Verb::GET
            && head.version == Version::HTTP_11
            && lists("connection", b"upgrade")
            && lists("upgrade", b"websocket");
        let is_known = head.headers.get(SEC_WEBSOCKET_VERSION).is_some_and(|version| version == VERSION);
        let nonce = head.headers.get(SEC_WEBSOCKET_KEY).filter(|nonce| is_known && nonce.len() == 24);
        let accept = nonce.map(|nonce| accept_key(nonce.as_bytes()));
        let key = || key::of(front, &head.uri, &head.headers).map(Box::from);
        is_websocket.then(|| Self { key: key(), accept })
    }

    /// Returns the response. If it accepts the WebSocket, its extensions hold the client.
    pub(super) fn answer(self, front: &Front, client: &ClientInfo) -> Response {
        let Some(accept) = self.accept else {
            let text = "a WebSocket needs Sec-WebSocket-Version: 13 and a Sec-WebSocket-Key\n";
            return (StatusCode::UPGRADE_REQUIRED, [(SEC_WEBSOCKET_VERSION, VERSION)], text).into_response();
        };
        let origin = client.origin.as_deref();
        let config = front.config.now();
        let allowed = &config.server.cors_origins;
        let admitted = match origin {
            // A script of any origin may open a WebSocket, so the server has to check what a browser checks for HTTP.
            Some(origin) if !cors::is_allowed(allowed, origin.as_bytes()) => {
                Err(Error::Forbidden("this origin".to_owned()))
            }
            _ => match &self.key {
                Some(key) => front.subscriptions.admit(key, client.address, origin),
                None => Err(front.gateway.refuse_two_keys(client.address)),
            },
        };
        match admitted {
            Ok(admitted) => {
                let headers: [(HeaderName, HeaderValue); 3] = [
                    (CONNECTION, HeaderValue::from_static("upgrade")),
                    (UPGRADE, HeaderValue::from_static("websocket")),
                    (
                        SEC_WEBSOCKET_ACCEPT,
                        HeaderValue::try_from(accept).unwrap_or(HeaderValue::from_static("")),
                    ),
                ];
                let mut response = (StatusCode::SWITCHING_PROTOCOLS, headers).into_response();
                response.extensions_mut().insert(Arc::clone(&admitted));
                response
            }
            Err(error) => error.into_response(),
        }
    }
}
