//! The routes that carry no JSON-RPC calls: `/health` as on a node, the `OpenRPC` document, and the usage of an
//! API key.

use std::sync::{Arc, LazyLock};

use axum::extract::State;
use axum::http::header::{ACCEPT, ACCEPT_ENCODING, ALLOW, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Extension, Router};
use bytes::Bytes;
use hyper::Request;
use tokio::time::Instant;

use super::Front;
use super::fields::elements;
use super::key;
use super::openrpc;
use super::reply::{HttpReply, JSON};
use super::request_head::ClientInfo;
use crate::coding::Coding;
use crate::config::sha256;
use crate::error::Error;
use crate::gateway::{Principal, Usage};
use crate::pool::health::Health;

pub(super) fn router(front: Arc<Front>) -> Router {
    Router::new()
        .route("/health", any(health))
        .route("/openrpc.json", get(openrpc_document))
        .route("/v3/{key}/health", any(health_of_key))
        .route("/v3/{key}/usage", get(usage))
        .route("/usage", get(usage))
        .fallback(|| async { (StatusCode::NOT_FOUND, "Not found. Calls go to POST /v3/<API_KEY>\n") })
        .with_state(front)
}

/// Answers `ok` if a node can take calls. Otherwise answers `behind` if a node can be reached, and `unknown` if
/// none can. The words are those of a node, so that tools made for nodes understand them. The status is that of
/// `/readyz`, so that a balancer sees 503 during a start and a stop.
async fn health(State(front): State<Arc<Front>>) -> (StatusCode, &'static str) {
    let now = Instant::now();
    let standing = front.pool.standing(now);
    if front.unready(&standing, now).is_some() {
        return (StatusCode::SERVICE_UNAVAILABLE, "unknown");
    }
    if standing.iter().any(|(_, unusable)| unusable.is_none()) {
        return (StatusCode::OK, "ok");
    }
    let mut members = standing.iter().map(|(member, _)| member.health());
    let is_reached = members.any(|health| matches!(*health, Health::Healthy | Health::Unhealthy(_)));
    (StatusCode::OK, if is_reached { "behind" } else { "unknown" })
}

/// Answers as `/health` to the holder of the key in the path, for tools that append to the URL of the calls.
async fn health_of_key(
    state: State<Arc<Front>>,
    Extension(client): Extension<ClientInfo>,
    request: Request<axum::body::Body>,
) -> Response {
    match caller_of(&state, &client, &request, Instant::now()) {
        Ok(_) => health(state).await.into_response(),
        Err(error) => HttpReply::refusal(&error).into_response(),
    }
}

/// Returns the caller whose key is in the path before its last segment, or elsewhere in the head. The key is checked as for
/// a JSON-RPC call, so a wrong key counts as a failed attempt of the client's address.
fn caller_of(
    front: &Front,
    client: &ClientInfo,
    request: &Request<axum::body::Body>,
    now: Instant,
) -> Result<Arc<Principal>, Error> {
    let uri = request.uri();
    let in_path = uri.path().strip_prefix("/v3/").and_then(|rest| rest.split('/').next()).unwrap_or_default();
    client.caller(front, key::of(front, in_path, uri.query(), request.headers()), now)
}

/// The `OpenRPC` document in all its codings. It is made only once.
struct Document {
    plain: Bytes,
    coded: [Option<Bytes>; Coding::ALL.len()],
    /// The entity tag, for all codings.
    tag: String,
}

static DOCUMENT: LazyLock<Document> = LazyLock::new(|| {
    let plain = Bytes::from(format!("{}\n", openrpc::document("/v3/${apiKey}")));
    let [a, b, c, d, ..] = sha256(&plain);
    let tag = format!("\"{:08x}\"", u32::from_be_bytes([a, b, c, d]));
    Document { coded: Coding::ALL.map(|coding| coding.encode(&plain)), plain, tag }
});

/// Answers with the document, which is much longer than a request. So it counts as a failed key of the client's address,
/// unless the client has the document already.
async fn openrpc_document(
    State(front): State<Arc<Front>>,
    Extension(client): Extension<ClientInfo>,
    headers: HeaderMap,
) -> Response {
    let Document { plain, coded, tag } = &*DOCUMENT;
    let known = headers.get(IF_NONE_MATCH).map_or(&[][..], HeaderValue::as_bytes);
    let is_known =
        |known: &[u8]| known == b"*" || known.strip_prefix(b"W/").unwrap_or(known) == tag.as_bytes();
    let tag = [(ETAG, format!("W/{tag}")), (VARY, ACCEPT_ENCODING.to_string())];
    if elements(known).any(is_known) {
        return (StatusCode::NOT_MODIFIED, tag).into_response();
    }
    if let Err(error) = front.gateway.count_stranger(client.address, Instant::now()) {
        return HttpReply::refusal(&error).into_response();
    }
    let mut reply = HttpReply::json(StatusCode::OK, plain.clone().into());
    if let Some((coding, text)) =
        client.accepts.best().and_then(|best| Some((best, coded[best as usize].clone()?)))
    {
        reply.set_compressed(coding, [text]);
    }
    reply.varies = false;
    (tag, reply.into_response()).into_response()
}

/// Returns the answer that a node gives to an OPTIONS request.
pub(super) fn options() -> Response {
    let headers = [(CONTENT_TYPE, JSON), (ALLOW, "OPTIONS, POST"), (ACCEPT, "application/json")];
    (headers, ()).into_response()
}

/// Returns the answer of a node to a call that is not sent as JSON.
pub(super) fn wrong_media() -> Response {
    let why = "Supplied content type is not allowed. Content-Type: application/json is required\n";
    HttpReply::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, why).into_response()
}

/// Returns the answer of a node to a verb other than POST and OPTIONS on the route of the JSON-RPC calls.
pub(super) fn wrong_verb() -> Response {
    let why = "Used HTTP Method is not allowed. POST or OPTIONS is required\n";
    HttpReply::text(StatusCode::METHOD_NOT_ALLOWED, why).into_response()
}

/// Refuses a request without a host, or with several.
pub(super) fn wrong_host() -> Response {
    let why = "expected one Host header with the name and port of this server\n";
    HttpReply::text(StatusCode::BAD_REQUEST, why).last().into_response()
}

/// Refuses a body in a transfer coding other than chunks (RFC 9112, 6.1).
pub(super) fn wrong_coding() -> Response {
    let why = "expected no Transfer-Encoding, or chunked alone\n";
    HttpReply::text(StatusCode::NOT_IMPLEMENTED, why).last().into_response()
}

/// Answers with the usage of the caller's key. The request takes nothing from the key's rate, so that whoever is limited
/// can see why.
async fn usage(
    State(front): State<Arc<Front>>,
    Extension(client): Extension<ClientInfo>,
    request: Request<axum::body::Body>,
) -> Response {
    let now = Instant::now();
    match caller_of(&front, &client, &request, now).map(|principal| Usage::of(&principal, now)) {
        Ok(Some(usage)) => {
            let text = serde_json::to_string(&usage).unwrap_or_default() + "\n";
            HttpReply::json(StatusCode::OK, Bytes::from(text).into()).into_response()
        }
        Ok(None) => (StatusCode::NOT_FOUND, "No usage is counted, because no plan applies\n").into_response(),
        Err(error) => HttpReply::refusal(&error).into_response(),
    }
}
