//! The public listener: accept loop, routes, body limits, content types, CORS, compression, headers.
//!
//! Beside `admin`, and `app` which starts that one, the only room that knows axum. The hot route, `POST /v3/<API_KEY>`, is one plain function:
//! the fast path calls it for plain requests of HTTP/1.1, hyper for all others; axum's router has the rest. The surprise is the order of checks, which is a node's: verb, content type,
//! size, UTF-8, and only then JSON-RPC, each with a node's own status and text.

pub mod access;
mod body;
mod call;
mod caller;
pub mod client_ip;
pub mod cors;
pub mod encoding;
mod exchange;
mod fast_path;
pub mod fields;
mod further;
pub mod listener;
mod places;
mod proxy_protocol;
pub mod reply;
mod request_id;
pub mod rest;
pub mod rpc;
pub mod signal;
mod stream;
pub mod tls;
mod trace_headers;
mod written;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method as Verb, Request, Response, StatusCode};
use tokio::time::Instant;
use tower::ServiceExt;

use caller::Caller;
use reply::Reply;

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
}

/// Serves one request from `peer` that hyper has read.
pub async fn serve(
    front: &Arc<Front>,
    peer: IpAddr,
    rest: &axum::Router,
    request: Request<Incoming>,
) -> Response<Body> {
    let origin = request.headers().get(hyper::header::ORIGIN).cloned();
    let wanted_headers = request.headers().get(hyper::header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let caller = Caller::of(front, peer, request.headers());
    let mut response = match route(request.uri().path(), front) {
        Some(key) if *request.method() == Verb::POST => {
            let key = key.to_owned();
            post(front, &caller, &key, request).await.into_response()
        }
        hot => {
            let other = if request.method() == Verb::OPTIONS {
                body::pass_over(front, request.into_body(), options()).await
            } else if hot.is_some() {
                let refusal = Reply::text(StatusCode::METHOD_NOT_ALLOWED, WRONG_VERB).into_response();
                body::pass_over(front, request.into_body(), refusal).await
            } else {
                let (head, body) = request.into_parts();
                let mut request = Request::from_parts(head, Body::empty());
                request.extensions_mut().insert(rest::Peer(peer));
                let response = rest.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
                body::pass_over(front, body, response).await
            };
            encoding::apply(caller.accepts, other).await
        }
    };
    response.headers_mut().insert(request_id::NAME, caller.id.header());
    cors::apply(&front.config.server.cors_origins, origin.as_ref(), wanted_headers, response.headers_mut());
    response
}

/// A POST to the hot route.
async fn post(front: &Arc<Front>, caller: &Caller, key: &str, request: Request<Incoming>) -> Reply {
    let started = Instant::now();
    let (head, body) = request.into_parts();
    if !head.headers.get(CONTENT_TYPE).is_some_and(|media| caller::is_json(media.as_bytes())) {
        let refusal = Reply::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, WRONG_MEDIA_TYPE);
        return if body::passes(front, body).await { refusal } else { refusal.last() };
    }
    match body::read(front, body).await {
        Ok(body) => rpc::serve(front, caller, key, &body, started).reply().await,
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
