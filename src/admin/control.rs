//! What an operator may change through the admin listener, with the bearer token of `auth.admin_token`.
//!
//! Off without a token: then every call is 403. Everything that is done leaves a log line.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State as Shared};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use sha2::{Digest, Sha256};

use super::{State, json};

/// The routes that change something, behind the token.
pub(super) fn router(state: &Arc<State>) -> Router<Arc<State>> {
    Router::new()
        .route("/api/cache/purge", post(purge))
        .route("/api/upstreams/{name}/drain", post(drain))
        .route("/api/upstreams/{name}/restore", post(restore))
        .layer(from_fn_with_state(Arc::clone(state), token))
}

/// Lets only the bearer of the token through (RFC 6750). Hashes are compared, so that timing tells nothing.
async fn token(Shared(state): Shared<Arc<State>>, request: Request, next: Next) -> Response {
    let Some(expected) = &state.token else {
        return refuse(StatusCode::FORBIDDEN, "set auth.admin_token to use this");
    };
    let sent = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let sent =
        sent.and_then(|value| value.split_once(' ')).filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
    if sent.is_none_or(|(_, token)| Sha256::digest(token) != Sha256::digest(expected.expose())) {
        tracing::warn!(path = request.uri().path(), "admin call without the token");
        return refuse(StatusCode::UNAUTHORIZED, "expected Authorization: Bearer and the admin token");
    }
    next.run(request).await
}

/// Empties the cache.
async fn purge(Shared(state): Shared<Arc<State>>) -> Response {
    state.source.purge();
    tracing::info!(audit.action = "cache.purge", "the cache was emptied by an admin call");
    done()
}

/// Sends no further calls to an upstream; those in flight end as they would.
async fn drain(Shared(state): Shared<Arc<State>>, Path(name): Path<String>) -> Response {
    set_drained(&state, &name, true)
}

/// Sends calls to a drained upstream again.
async fn restore(Shared(state): Shared<Arc<State>>, Path(name): Path<String>) -> Response {
    set_drained(&state, &name, false)
}

fn set_drained(state: &State, name: &str, drained: bool) -> Response {
    if !state.source.set_drained(name, drained) {
        return refuse(StatusCode::NOT_FOUND, "no upstream of this name");
    }
    let action = if drained { "upstream.drain" } else { "upstream.restore" };
    tracing::info!(audit.action = action, upstream.name = name, "an upstream was changed by an admin call");
    done()
}

fn done() -> Response {
    json(StatusCode::OK, r#"{"done":true}"#.to_owned())
}

fn refuse(status: StatusCode, why: &str) -> Response {
    let mut response = json(status, serde_json::json!({ "error": why }).to_string()).into_response();
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
    }
    response
}
