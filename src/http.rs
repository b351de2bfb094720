//! The public listener: accept loop, routes, body limits, content types, CORS, compression, headers.
//!
//! Beside `admin`, and `app` which starts that one, the only room that knows axum. The hot route, `POST /v3/<API_KEY>`, is
//! `request::serve`: the fast path calls it for plain requests of HTTP/1.1, and `serve` for all that hyper has read.
//! axum's router has the other routes. The order of checks is a node's: verb, content type, size, UTF-8, and only then
//! JSON-RPC, each with a node's own status and text.

mod accept_encoding;
pub mod access;
mod body;
mod call;
mod caller;
mod client_ip;
mod connection_activity;
mod connection_service;
mod context;
pub mod cors;
pub mod encoding;
mod farewell;
pub mod fields;
#[cfg(feature = "h1-fast-path")]
mod h1;
mod in_flight;
pub mod listener;
pub(crate) mod openrpc;
mod outgoing;
mod passthrough;
pub mod pieces;
mod places;
mod proxy_protocol;
pub mod reply;
mod request;
mod request_id;
mod responses;
pub mod routes;
pub mod shutdown;
mod socket;
mod stream;
mod streams;
mod summary;
pub mod tls;
mod trace_headers;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use caller::Caller;
pub use outgoing::Outgoing;
use reply::Reply;
use summary::{Summary, Wants};

use crate::cache::Cache;
use crate::config::Config;
use crate::frontier::Frontier;
use crate::gateway::Gateway;
use crate::pool::Pool;
use crate::telemetry::{Metrics, Tracer};

/// What every request is served with.
pub struct Front {
    /// The settings in force.
    pub config: Arc<Config>,
    /// Who may call.
    pub gateway: Arc<Gateway>,
    /// What answers.
    pub cache: Arc<Cache>,
    /// Whose health is shown.
    pub pool: Arc<Pool>,
    /// Against which lag is shown.
    pub frontier: Arc<Frontier>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What records traces.
    pub tracer: Tracer,
    /// What bounds the log of slow and failed requests.
    pub access: access::Sampled,
    /// Requests being served.
    pub in_flight: Arc<AtomicUsize>,
    /// Where calls run that outlive their callers.
    pub tasks: TaskTracker,
    /// Bytes of answers that are made or on their way out.
    pub outgoing: Arc<Outgoing>,
}

/// Serves one request that hyper has read: what is kept of its head, and its body, which may still be on its way.
async fn serve(
    front: &Arc<Front>,
    routes: &axum::Router,
    summary: Summary,
    body: Incoming,
) -> Response<Body> {
    let Summary { caller, wanted_headers, wants } = summary;
    let mut response = match wants {
        Wants::Call { key, is_json } => post(front, &caller, &key, is_json, body).await.into_response(),
        Wants::WebSocket => beside(front, &caller, body, routes::no_websocket()).await,
        Wants::Options => beside(front, &caller, body, options()).await,
        Wants::OtherVerb => {
            let refusal = Reply::text(StatusCode::METHOD_NOT_ALLOWED, WRONG_VERB);
            beside(front, &caller, body, refusal.into_response()).await
        }
        Wants::Other(request) => {
            let response = routes.clone().oneshot(*request).await.unwrap_or_else(|never| match never {});
            beside(front, &caller, body, response).await
        }
    };
    response.headers_mut().insert(request_id::NAME, caller.id.header());
    let origin = caller.origin.as_deref().and_then(|origin| HeaderValue::from_str(origin).ok());
    cors::apply(&front.config.server.cors_origins, origin.as_ref(), wanted_headers, response.headers_mut());
    response
}

/// An answer that needs no body, in the caller's coding, once the body has passed.
async fn beside(front: &Front, caller: &Caller, body: Incoming, response: Response<Body>) -> Response<Body> {
    let response = body::pass_over(front, body, response).await;
    encoding::apply(front.cache.compressor(), caller.accepts.best(), response).await
}

/// A POST to the hot route.
async fn post(front: &Arc<Front>, caller: &Caller, key: &str, is_json: bool, body: Incoming) -> Reply {
    let started = Instant::now();
    if !is_json {
        let refusal = Reply::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, WRONG_MEDIA_TYPE);
        return if body::passes(front, body).await { refusal } else { refusal.last() };
    }
    match body::read(front, body).await {
        Ok(body) => request::serve(front, caller, key, &body, started).await,
        Err(refusal) => *refusal,
    }
}

/// The raw API key of the hot route: the segment as it came, since decoding it could turn it into another path.
fn route<'a>(path: &'a str, front: &Front) -> Option<&'a str> {
    match path.strip_prefix("/v3/") {
        Some(key) => (!key.contains('/')).then_some(key),
        None if front.gateway.is_open() && (path == "/" || path == "/v3") => Some(""),
        None => None,
    }
}

const WRONG_VERB: &str = "Used HTTP Method is not allowed. POST or OPTIONS is required\n";
const WRONG_MEDIA_TYPE: &str =
    "Supplied content type is not allowed. Content-Type: application/json is required\n";
const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

/// A node's answer to OPTIONS.
fn options() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert(CONTENT_TYPE, JSON);
    headers.insert(ALLOW, HeaderValue::from_static("OPTIONS, POST"));
    headers.insert(hyper::header::ACCEPT, HeaderValue::from_static("application/json"));
    response
}
