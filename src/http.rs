//! The public listener: accept loop, routes, body limits, content types, CORS, compression, headers.
//!
//! The hot route is `POST /v3/<API_KEY>`, which carries the JSON-RPC calls. `request::serve` answers the requests
//! to this route. The fast path calls this function for plain HTTP/1.1 requests, and `post` calls it for the
//! requests that hyper has read. The other routes belong to axum's router. Only this module, `admin` and `app` use
//! axum.
//!
//! Requests are checked in a node's order: verb, content type, size, UTF-8, then JSON-RPC. A request that a node would
//! refuse gets the node's status and text.

mod accept_encoding;
pub mod access;
mod body;
mod call;
mod client_info;
mod client_ip;
mod connection_activity;
mod connection_permits;
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

use client_info::ClientInfo;
pub use outgoing::Outgoing;
use reply::HttpReply;
use summary::{Summary, Wants};

use crate::cache::Cache;
use crate::config::Config;
use crate::follow::FollowedChain;
use crate::frontier::Frontier;
use crate::gateway::Gateway;
use crate::pool::Pool;
use crate::telemetry::{Metrics, Tracer};

/// The parts of the program that requests need.
pub struct Front {
    /// The settings in force.
    pub config: Arc<Config>,
    /// The API keys and their limits.
    pub gateway: Arc<Gateway>,
    /// The cache, which answers calls.
    pub cache: Arc<Cache>,
    /// The nodes, for `/health` and for passthrough calls.
    pub pool: Arc<Pool>,
    /// The newest slots of the cluster, at each commitment.
    pub frontier: Arc<Frontier>,
    /// The run of blocks that is followed, for the status page.
    pub followed: Arc<FollowedChain>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The recorder of traces.
    pub tracer: Tracer,
    /// The limit on log lines about slow and failed requests.
    pub access: access::LogSampler,
    /// The number of requests in flight, which `server.max_in_flight` limits.
    pub in_flight: Arc<AtomicUsize>,
    /// The tasks of calls that continue after their callers have disconnected.
    pub tasks: TaskTracker,
    /// The budget for the bytes of all unsent answers, and the bytes reserved from it.
    pub outgoing: Arc<Outgoing>,
}

/// Serves a request whose head hyper has read. `summary` is the part of the head that is kept; `body` may still be
/// arriving.
async fn serve(
    front: &Arc<Front>,
    routes: &axum::Router,
    summary: Summary,
    body: Incoming,
) -> Response<Body> {
    let Summary { client, wanted_headers, wants } = summary;
    let mut response = match wants {
        Wants::Call { key, is_json } => post(front, &client, &key, is_json, body).await.into_response(),
        Wants::WebSocket => ignore_body(front, &client, body, routes::no_websocket()).await,
        Wants::Options => ignore_body(front, &client, body, options()).await,
        Wants::OtherVerb => {
            let refusal = HttpReply::text(StatusCode::METHOD_NOT_ALLOWED, WRONG_VERB);
            ignore_body(front, &client, body, refusal.into_response()).await
        }
        Wants::Other(request) => {
            let response = routes.clone().oneshot(*request).await.unwrap_or_else(|never| match never {});
            ignore_body(front, &client, body, response).await
        }
    };
    response.headers_mut().insert(request_id::NAME, client.id.header());
    let origin = client.origin.as_deref().and_then(|origin| HeaderValue::from_str(origin).ok());
    cors::apply(&front.config.server.cors_origins, origin.as_ref(), wanted_headers, response.headers_mut());
    response
}

/// Reads and discards the request's body. Then returns `response`, compressed if the caller accepts that.
async fn ignore_body(
    front: &Front,
    client: &ClientInfo,
    body: Incoming,
    response: Response<Body>,
) -> Response<Body> {
    let response = body::discard_before(front, body, response).await;
    encoding::apply(front.cache.compressor(), client.accepts.best(), response).await
}

/// Answers a POST to `/v3/<API_KEY>`. `key` is the raw path segment; `is_json` is true if the content type is JSON.
async fn post(
    front: &Arc<Front>,
    client: &ClientInfo,
    key: &str,
    is_json: bool,
    body: Incoming,
) -> HttpReply {
    let started = Instant::now();
    if !is_json {
        let refusal = HttpReply::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, WRONG_MEDIA_TYPE);
        return if body::discard(front, body).await { refusal } else { refusal.last() };
    }
    match body::read(front, body).await {
        Ok(body) => request::serve(front, client, key, &body, started).await,
        Err(refusal) => *refusal,
    }
}

/// Returns the API key in a path `/v3/<API_KEY>`, to which JSON-RPC calls are sent. `None` for any other path. In the
/// mode `open`, `/` and `/v3` give an empty key. The key is not percent-decoded, because decoding could add a `/`.
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

/// Returns the answer that a node gives to an OPTIONS request.
fn options() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert(CONTENT_TYPE, JSON);
    headers.insert(ALLOW, HeaderValue::from_static("OPTIONS, POST"));
    headers.insert(hyper::header::ACCEPT, HeaderValue::from_static("application/json"));
    response
}
