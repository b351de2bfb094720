//! The routes beside the hot one: health as a node answers it, the interface's own document, a key's usage.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Extension, Router};
use tokio::time::Instant;

use super::{Front, client_ip};
use crate::error::Error;
use crate::methods::openrpc;
use crate::pool::member::Health;

/// Who is at the other end of the connection, an extension of each request.
#[derive(Clone, Copy)]
pub(super) struct Peer(pub(super) IpAddr);

/// axum's router over `front`.
pub fn router(front: Arc<Front>) -> Router {
    Router::new()
        .route("/health", any(health))
        .route("/openrpc.json", get(openrpc_document))
        .route("/v3/{key}/usage", get(usage))
        .fallback(|| async { (StatusCode::NOT_FOUND, "Not found. Calls go to POST /v3/<API_KEY>\n") })
        .with_state(front)
}

/// `ok`, `behind` or `unknown`, always with 200: a node's own words, for whatever watches nodes.
async fn health(State(front): State<Arc<Front>>) -> &'static str {
    let standing = front.pool.standing(Instant::now());
    if standing.iter().any(|(_, unusable)| unusable.is_none()) {
        return "ok";
    }
    let mut members = standing.iter().map(|(member, _)| member.health());
    if members.any(|health| matches!(*health, Health::Healthy | Health::Unhealthy(_))) {
        "behind"
    } else {
        "unknown"
    }
}

async fn openrpc_document() -> Response {
    let body = format!("{:#}\n", openrpc::document("/v3/${apiKey}"));
    ([(header::CONTENT_TYPE, "application/json; charset=utf-8")], body).into_response()
}

/// What a key's owner may see of it; the key is proved as on the hot route, and wrong ones are counted with its own.
async fn usage(
    State(front): State<Arc<Front>>,
    Extension(Peer(peer)): Extension<Peer>,
    request: axum::extract::Request,
) -> Response {
    let (path, headers) = (request.uri().path(), request.headers());
    let key = path.strip_prefix("/v3/").and_then(|rest| rest.strip_suffix("/usage")).unwrap_or_default();
    let client = client_ip::client_ip(peer, headers, &front.config.server.trusted_proxies);
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    let now = Instant::now();
    match front.gateway.authenticate(key, client, origin, now).map(|principal| principal.usage(now)) {
        Ok(Some(usage)) => axum_json(&usage),
        Ok(None) => (StatusCode::NOT_FOUND, "Nothing is counted: there is no plan\n").into_response(),
        Err(error) => refuse(&error),
    }
}

/// A refusal of ours where there is no call that an error object could answer.
fn refuse(error: &Error) -> Response {
    let wire = error.wire();
    let status = StatusCode::from_u16(wire.status).unwrap_or_default();
    let mut response = (status, wire.message + "\n").into_response();
    if let Some(seconds) = wire.retry_after_s {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

fn axum_json(value: &impl serde::Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => {
            ([(header::CONTENT_TYPE, "application/json; charset=utf-8")], text + "\n").into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
