//! The public listener: accept loop, routes, body limits, content types, CORS, compression, headers.
//!
//! Beside `admin`, and `app` which starts that one, the only room that knows axum. The hot route, `POST /v3/<API_KEY>`, is one plain function on
//! hyper; axum's router has the rest. The surprise is the order of checks, which is a node's: verb, content type,
//! size, UTF-8, and only then JSON-RPC, each with a node's own status and text.

pub mod access;
mod body;
pub mod client_ip;
pub mod cors;
pub mod encoding;
mod exchange;
pub mod listener;
mod places;
mod proxy_protocol;
pub mod reply;
mod request_id;
pub mod rest;
pub mod rpc;
mod stream;
pub mod tls;
mod trace_headers;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method as Verb, Request, Response, StatusCode};
use tower::ServiceExt;

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
    pub in_flight: AtomicUsize,
}

/// Serves one request from `peer`.
pub async fn serve(
    front: &Arc<Front>,
    peer: IpAddr,
    rest: &axum::Router,
    request: Request<Incoming>,
) -> Response<Body> {
    let origin = request.headers().get(hyper::header::ORIGIN).cloned();
    let wanted_headers = request.headers().get(hyper::header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let accepts = encoding::Accepted::of(request.headers());
    let id = request_id::RequestId::of(request.headers());
    let mut response = match route(request.uri().path(), front) {
        Some(key) => {
            let key = key.to_owned();
            match *request.method() {
                Verb::POST => rpc::serve(front, peer, &key, &id, request).await,
                Verb::OPTIONS => body::pass_over(front, request.into_body(), options()).await,
                _ => {
                    let refusal = text(StatusCode::METHOD_NOT_ALLOWED, WRONG_VERB);
                    body::pass_over(front, request.into_body(), refusal).await
                }
            }
        }
        None if request.method() == Verb::OPTIONS => {
            body::pass_over(front, request.into_body(), options()).await
        }
        None => {
            let (head, body) = request.into_parts();
            let mut request = Request::from_parts(head, Body::empty());
            request.extensions_mut().insert(rest::Peer(peer));
            let response = rest.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
            body::pass_over(front, body, response).await
        }
    };
    response.headers_mut().insert(request_id::NAME, id.header());
    cors::apply(&front.config.server.cors_origins, origin.as_ref(), wanted_headers, response.headers_mut());
    encoding::apply(accepts, response).await
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
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

/// A node's refusals below JSON-RPC are plain text.
fn text(status: StatusCode, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
}

/// A node's answer to OPTIONS.
fn options() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert(CONTENT_TYPE, JSON);
    headers.insert(ALLOW, HeaderValue::from_static("OPTIONS, POST"));
    headers.insert(hyper::header::ACCEPT, HeaderValue::from_static("application/json"));
    response
}
