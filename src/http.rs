//! The public listener: accept loop, routes, body limits, content types, CORS, compression, headers.
//!
//! The hot route is `POST /v3/<API_KEY>`, which carries the JSON-RPC calls. `request::serve` answers the requests
//! to this route. The fast path calls this function for plain HTTP/1.1 requests, and `post` calls it for the
//! requests that hyper has read. The other routes belong to axum's router. Only this module, `admin` and `app` use
//! axum.
//!
//! Requests are checked in a node's order: verb, content type, size, UTF-8, then JSON-RPC. A request that a node would
//! refuse gets the node's status and text.

pub mod access;
mod call;
mod client_ip;
mod connection_activity;
mod connection_service;
mod cors;
mod h1;
mod in_flight;
pub mod listener;
pub(crate) mod openrpc;
mod passthrough;
mod proxy_protocol;
mod reply;
mod request;
mod request_head;
mod routes;
mod send;
pub mod shutdown;
mod timed_socket;
mod tip;
pub mod tls;
mod upgrade;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

pub use in_flight::Outgoing;
use reply::HttpReply;
use request_head::{REQUEST_ID, RequestHead, Wants};

use crate::cache::Cache;
use crate::chunks::{BodyBuffer, OverLimit};
use crate::config::Config;
use crate::follow::FollowedChain;
use crate::frontier::Frontier;
use crate::gateway::Gateway;
use crate::pool::Pool;
use crate::subscribe::Hub;
use crate::telemetry::{Metrics, Tracer};
use crate::tip::Tip;

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
    /// The slots that callers were shown, and the reads that never go back behind them.
    pub tip: Arc<Tip>,
    /// The run of blocks that is followed, for the status page.
    pub followed: Arc<FollowedChain>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The recorder of traces.
    pub tracer: Tracer,
    /// The subscriptions over WebSockets.
    pub subscriptions: Arc<Hub>,
    /// The limit on log lines about slow and failed requests.
    pub access: access::LogSampler,
    /// The number of requests in flight, which `server.max_in_flight` limits.
    pub in_flight: Arc<AtomicUsize>,
    /// The tasks of calls that continue after their callers have disconnected.
    pub tasks: TaskTracker,
    /// The budget for the bytes of all unsent answers, and the bytes reserved from it.
    pub outgoing: Arc<Outgoing>,
}

/// Serves a request whose head hyper has read. `body` may still be arriving.
async fn serve(
    front: &Arc<Front>,
    routes: &axum::Router,
    RequestHead { client, wanted_headers, wants }: RequestHead,
    body: Incoming,
) -> Response<Body> {
    let started = Instant::now();
    // A body that the route does not need is read as well. If it stayed unread, hyper would close the connection without
    // notice. The TCP reset might then reach the client before the response.
    let body = read_body(front, body).await;
    let is_last = body.is_err();
    let mut response = match (wants, body) {
        (Wants::Call { is_json: false, .. }, _) => {
            HttpReply::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, WRONG_MEDIA_TYPE).into_response()
        }
        (Wants::Call { key, .. }, Ok(body)) => {
            request::serve(front, &client, &key, &body, started).await.into_response()
        }
        (Wants::Call { .. } | Wants::Socket(_), Err(refusal)) => refusal.into_response(),
        (Wants::Socket(handshake), Ok(_)) => handshake.answer(front, &client),
        (Wants::Fixed(response), _) => response(),
        (Wants::Route(mut request), _) => {
            request.extensions_mut().insert(client.clone());
            routes.clone().oneshot(*request).await.unwrap_or_else(|never| match never {})
        }
    };
    let headers = response.headers_mut();
    if is_last {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    headers.insert(REQUEST_ID, client.id.header());
    let origin = client.origin.as_deref().and_then(|origin| HeaderValue::from_str(origin).ok());
    cors::apply(&front.config.server.cors_origins, origin.as_ref(), wanted_headers, headers);
    response
}

/// Reads the whole body of a request, within `server.max_body` bytes and `server.body_timeout`.
///
/// # Errors
/// The body is too long, ends early, or takes too long. The error is a refusal that closes the connection, because the
/// start of the next request is unknown.
async fn read_body(front: &Front, mut body: Incoming) -> Result<Bytes, Box<HttpReply>> {
    let server = &front.config.server;
    let mut buffer = BodyBuffer::new(server.max_body);
    let refusal = |status, why: &'static str| Box::new(HttpReply::text(status, why).last());
    let reading = async {
        while let Some(frame) = body.frame().await {
            let early = |_| refusal(StatusCode::BAD_REQUEST, "the request body ended early\n");
            if let Ok(chunk) = frame.map_err(early)?.into_data() {
                buffer.push(chunk).map_err(|OverLimit| {
                    refusal(StatusCode::PAYLOAD_TOO_LARGE, "request body size exceeds allowed maximum")
                })?;
            }
        }
        Ok(buffer.finish())
    };
    tokio::time::timeout(server.body_timeout, reading)
        .await
        .unwrap_or_else(|_| Err(Box::new(request::late_body())))
}

const WRONG_MEDIA_TYPE: &str =
    "Supplied content type is not allowed. Content-Type: application/json is required\n";
