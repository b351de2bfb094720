//! The routes that carry no JSON-RPC calls: `/health` as on a node, the `OpenRPC` document, and the usage of an
//! API key.

use std::sync::{Arc, LazyLock};

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Extension, Router};
use bytes::Bytes;
use hyper::Request;
use tokio::time::Instant;

use super::Front;
use super::openrpc;
use super::reply::{HttpReply, JSON};
use super::request_head::ClientInfo;
use crate::gateway::Usage;
use crate::pool::health::Health;

pub(super) fn router(front: Arc<Front>) -> Router {
    Router::new()
        .route("/health", any(health))
        .route("/openrpc.json", get(openrpc_document))
        .route("/v3/{key}/usage", get(usage))
        .fallback(|| async { (StatusCode::NOT_FOUND, "Not found. Calls go to POST /v3/<API_KEY>\n") })
        .with_state(front)
}

/// Answers `ok` if a node can take calls. Otherwise answers `behind` if a node can be reached, and `unknown` if
/// none can. The words and the status, always 200, are those of a node, so that tools made for nodes understand
/// them.
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

/// The `OpenRPC` document. It is made only once, so that many requests by callers without a key cost little.
static DOCUMENT: LazyLock<Bytes> =
    LazyLock::new(|| Bytes::from(format!("{:#}\n", openrpc::document("/v3/${apiKey}"))));

async fn openrpc_document() -> Response {
    HttpReply::json(StatusCode::OK, DOCUMENT.clone().into()).into_response()
}

/// Returns the answer that a node gives to an OPTIONS request.
pub(super) fn options() -> Response {
    let headers = [(CONTENT_TYPE, JSON), (ALLOW, "OPTIONS, POST"), (ACCEPT, "application/json")];
    (headers, ()).into_response()
}

/// Returns the answer of a node to a verb other than POST and OPTIONS on the route of the JSON-RPC calls.
pub(super) fn wrong_verb() -> Response {
    let why = "Used HTTP Method is not allowed. POST or OPTIONS is required\n";
    HttpReply::text(StatusCode::METHOD_NOT_ALLOWED, why).into_response()
}

/// Answers with the usage of the key in the path. The key is checked as for a JSON-RPC call, so a wrong key counts
/// as a failed attempt of the client's address, and the request is taken from the key's rate.
async fn usage(
    State(front): State<Arc<Front>>,
    Extension(client): Extension<ClientInfo>,
    request: Request<axum::body::Body>,
) -> Response {
    let path = request.uri().path();
    let key = path.strip_prefix("/v3/").and_then(|rest| rest.strip_suffix("/usage")).unwrap_or_default();
    let now = Instant::now();
    match front
        .gateway
        .authenticate(key, client.address, client.origin.as_deref(), now)
        .and_then(|principal| principal.take(now).map(|()| Usage::of(&principal, now)))
    {
        Ok(Some(usage)) => {
            let text = serde_json::to_string(&usage).unwrap_or_default() + "\n";
            HttpReply::json(StatusCode::OK, Bytes::from(text).into()).into_response()
        }
        Ok(None) => (StatusCode::NOT_FOUND, "No usage is counted, because no plan applies\n").into_response(),
        // In plain text, because there is no JSON-RPC call to answer.
        Err(error) => {
            let wire = error.to_reply();
            let mut reply = HttpReply::text(StatusCode::OK, wire.message.clone() + "\n");
            reply.refuse(&wire);
            reply.into_response()
        }
    }
}
