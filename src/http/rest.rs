//! The routes beside the hot one: health as a node answers it, the interface's own document, a key's usage.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use tokio::time::Instant;

use super::Front;
use crate::methods::openrpc;
use crate::pool::member::Health;

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
    let alive = |member: &crate::pool::member::Member| {
        matches!(*member.health(), Health::Healthy | Health::Unhealthy(_))
    };
    if front.pool.members().iter().any(alive) { "behind" } else { "unknown" }
}

async fn openrpc_document() -> Response {
    let body = format!("{:#}\n", openrpc::document("/v3/<API_KEY>"));
    ([(header::CONTENT_TYPE, "application/json; charset=utf-8")], body).into_response()
}

async fn usage(State(front): State<Arc<Front>>, Path(key): Path<String>) -> Response {
    match front.gateway.usage(&key) {
        Some(usage) => axum_json(&usage),
        None => {
            (StatusCode::UNAUTHORIZED, "Unauthorized: unknown, expired or revoked API key\n").into_response()
        }
    }
}

fn axum_json(value: &impl serde::Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => {
            ([(header::CONTENT_TYPE, "application/json; charset=utf-8")], text + "\n").into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
