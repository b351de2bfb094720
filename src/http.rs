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
pub(crate) mod certificate;
mod client_ip;
mod connection_activity;
mod connection_service;
mod cors;
mod fields;
mod h1;
mod in_flight;
mod incoming;
mod key;
mod keyless;
pub mod listener;
pub(crate) mod openrpc;
mod proxy_protocol;
pub(crate) mod readiness;
mod reply;
mod request;
mod request_head;
mod routes;
mod send;
pub mod shutdown;
mod timed_socket;
mod tip;
pub mod tls;
mod uncached;
mod upgrade;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use axum::body::Body;
use bytes::Bytes;
use hyper::Response;
use hyper::header::{CONNECTION, HeaderValue};
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

pub(crate) use fields::has_one_host;
pub use in_flight::Outgoing;
use incoming::Arriving;
pub use incoming::Incoming;
use request_head::{REQUEST_ID, RequestHead, Wants};

use crate::cache::Cache;
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
    /// The nodes, for `/health` and for calls that the cache does not answer.
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
    /// Triggered once a stop has begun.
    pub draining: shutdown::Signal,
    /// The tasks of calls that continue after their callers have disconnected.
    pub tasks: TaskTracker,
    /// The budget for the bytes of all unsent answers, and the bytes reserved from it.
    pub outgoing: Arc<Outgoing>,
    /// The budget for the bytes of all bodies, and the bytes that bodies hold.
    pub incoming: Arc<Incoming>,
}

/// Serves a request whose head hyper has read. `body` may still be arriving.
async fn serve(
    front: &Arc<Front>,
    routes: &axum::Router,
    RequestHead { client, started, wanted_headers, wants }: RequestHead,
    body: hyper::body::Incoming,
) -> Response<Body> {
    let mut arriving = match &wants {
        Wants::Call(Ok(principal)) => Some(Arriving::new(front, principal, client.address)),
        _ => None,
    };
    let body = incoming::read(front, body, &mut arriving).await;
    let is_last = body.is_err();
    // Futures are boxed, so that a request whose body is arriving takes little memory.
    let mut response = match (wants, body) {
        (Wants::Call(Err(error)), body) => {
            let body = body.ok().flatten().unwrap_or_default();
            request::refuse(front, &client, started, &body, &error).into_response()
        }
        (Wants::Call(Ok(principal)), Ok(Some(body))) => {
            Box::pin(request::serve(front, &client, principal, &body, started)).await.into_response()
        }
        (Wants::Call(Ok(principal)), Ok(None)) => {
            let error = request::overloaded(&principal, started);
            request::refuse(front, &client, started, &Bytes::new(), &error).into_response()
        }
        (Wants::Call(Ok(_)) | Wants::Socket(_), Err(refusal)) => refusal.into_response(),
        (Wants::Socket(handshake), Ok(_)) => handshake.answer(front, &client),
        (Wants::Fixed(response), _) => response(),
        (Wants::Route(mut request), _) => {
            request.extensions_mut().insert(client.clone());
            let answer = Box::pin(routes.clone().oneshot(*request));
            answer.await.unwrap_or_else(|never| match never {})
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
