//! The routes of the public listener: JSON-RPC calls and WebSockets, `/health` as on a node, the `OpenRPC` document, and the
//! usage of an API key.
//!
//! Requests are checked in a node's order: verb, content type, key, size, UTF-8, then JSON-RPC. A request that a node would
//! refuse gets the node's status and text. A key is looked up before more of a body is read than came with the head.

use std::sync::{Arc, LazyLock};

use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT, ACCEPT_ENCODING, ALLOW, CONNECTION, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Extension, Router};
use bytes::Bytes;
use hyper::body::Body as _;
use tokio::time::Instant;

use super::fields::{elements, is_json};
use super::incoming::{self, Arriving};
use super::openrpc;
use super::reply::{HttpReply, JSON};
use super::upgrade::Handshake;
use super::visit::{Refused, Visit};
use super::{Front, request};
use crate::coding::Coding;
use crate::config::sha256;
use crate::error::Error;
use crate::gateway::Usage;
use crate::pool::health::Health;

/// The paths of JSON-RPC calls and WebSockets. Client libraries append the slash at the end.
const CALLS: [&str; 5] = ["/v3/{key}", "/v3/{key}/", "/v3", "/v3/", "/"];

pub(super) fn router(front: Arc<Front>) -> Router {
    let before_body = from_fn_with_state(Arc::clone(&front), before_body);
    let calls = any(other_verbs).post(calls);
    let others = Router::new()
        .route("/health", any(health_of_all).options(options))
        .route("/openrpc.json", get(openrpc_document).options(options))
        .route("/v3/{key}/health", any(health_of_key).options(options))
        .route("/v3/{key}/usage", get(usage).options(options))
        .route("/usage", get(usage).options(options))
        // The router takes this for a path with an empty key.
        .route("/v3//", any(unknown))
        .fallback(unknown)
        .layer(before_body);
    CALLS.iter().fold(others, |router, path| router.route(path, calls.clone())).with_state(front)
}

/// Serves a POST to a path of calls.
async fn calls(
    State(front): State<Arc<Front>>,
    Extension(visit): Extension<Arc<Visit>>,
    request: Request,
) -> Result<Response, Refused> {
    let (head, body) = request.into_parts();
    let is_call = head.headers.get(CONTENT_TYPE).is_some_and(|media| is_json(media.as_bytes()));
    let caller = is_call.then(|| visit.caller(&head.uri, &head.headers));
    // A parsed head may take many times the memory of its bytes, so it is not kept while the body arrives.
    drop(head);
    visit.admit()?;
    let mut arriving = match &caller {
        Some(Ok(principal)) => Some(Arriving::new(&front, principal, visit.address())),
        _ => None,
    };
    let body = incoming::read(&front, body, &mut arriving, visit.started).await;
    let (client, started, is_last) = (&visit.client, visit.started, body.is_err());
    // Boxed, so that a request whose body is arriving takes little memory.
    let mut reply = match (caller, body) {
        (None, _) => wrong_media(),
        (Some(Err(error)), body) => {
            request::refuse(&front, client, started, &body.ok().flatten().unwrap_or_default(), &error)
        }
        (Some(Ok(principal)), Ok(Some(body))) => {
            Box::pin(request::serve(&front, client, principal, &body, started)).await
        }
        (Some(Ok(principal)), Ok(None)) => {
            let error = request::overloaded(&principal);
            request::refuse(&front, client, started, &Bytes::new(), &error)
        }
        (Some(Ok(_)), Err(refusal)) => *refusal,
    };
    reply.last |= is_last;
    visit.guard.keep(reply.permit.take());
    Ok(reply.into_response())
}

/// Serves a request with another verb to a path of calls.
async fn other_verbs(
    State(front): State<Arc<Front>>,
    Extension(visit): Extension<Arc<Visit>>,
    request: Request,
) -> Result<Response, Refused> {
    let (head, body) = request.into_parts();
    let (handshake, is_options) = (Handshake::of(&front, &head), head.method == Method::OPTIONS);
    drop(head);
    visit.admit()?;
    let body = incoming::read(&front, body, &mut None, visit.started).await;
    let is_last = body.is_err();
    let response = match (handshake, body) {
        _ if is_options => options().await,
        (Some(_), Err(refusal)) => refusal.into_response(),
        (Some(handshake), Ok(_)) => handshake.answer(&front, &visit.client),
        (None, _) => {
            let why = "Used HTTP Method is not allowed. POST or OPTIONS is required\n";
            HttpReply::text(StatusCode::METHOD_NOT_ALLOWED, why).into_response()
        }
    };
    Ok(ended(response, is_last))
}

/// Answers a request for a route without calls, of whose body nothing is used. It is read before the response is sent. If it
/// stayed unread, hyper would close the connection without notice, and the TCP reset might reach the client before the
/// response.
async fn before_body(
    State(front): State<Arc<Front>>,
    Extension(visit): Extension<Arc<Visit>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refused> {
    visit.admit()?;
    let body = std::mem::take(request.body_mut());
    // A parsed head may take many times the memory of its bytes, so it is gone before the body has arrived.
    let response = next.run(request).await;
    if body.is_end_stream() {
        return Ok(response);
    }
    let is_last = incoming::read(&front, body, &mut None, visit.started).await.is_err();
    Ok(ended(response, is_last))
}

/// Returns `response`, which ends its connection if `is_last`, because the start of the next request is unknown.
fn ended(mut response: Response, is_last: bool) -> Response {
    if is_last {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn unknown(method: Method) -> Response {
    if method == Method::OPTIONS {
        return options().await;
    }
    (StatusCode::NOT_FOUND, "Not found. Calls go to POST /v3/<API_KEY>\n").into_response()
}

/// Answers `ok` if a node can take calls. Otherwise answers `behind` if a node can be reached, and `unknown` if
/// none can. The words are those of a node, so that tools made for nodes understand them. The status is that of
/// `/readyz`, so that a balancer sees 503 during a start and a stop.
fn health(front: &Front) -> (StatusCode, &'static str) {
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

/// Answers as [`health`] to every address that `gateway.deny` does not refuse.
async fn health_of_all(
    state: State<Arc<Front>>,
    Extension(visit): Extension<Arc<Visit>>,
) -> Result<(StatusCode, &'static str), Error> {
    state.gateway.admit_stranger(visit.address())?;
    Ok(health(&state))
}

/// Answers as `/health` to the holder of the key in the path, for tools that append to the URL of the calls.
async fn health_of_key(
    state: State<Arc<Front>>,
    Extension(visit): Extension<Arc<Visit>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<(StatusCode, &'static str), Error> {
    visit.caller(&uri, &headers)?;
    Ok(health(&state))
}

/// The `OpenRPC` document in all its codings. It is made only once.
struct Document {
    plain: Bytes,
    coded: [Option<Bytes>; Coding::ALL.len()],
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
    Extension(visit): Extension<Arc<Visit>>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    front.gateway.admit_stranger(visit.address())?;
    let Document { plain, coded, tag } = &*DOCUMENT;
    let known = headers.get(IF_NONE_MATCH).map_or(&[][..], HeaderValue::as_bytes);
    let is_known =
        |known: &[u8]| known == b"*" || known.strip_prefix(b"W/").unwrap_or(known) == tag.as_bytes();
    let tag = [(ETAG, format!("W/{tag}")), (VARY, ACCEPT_ENCODING.to_string())];
    if elements(known).any(is_known) {
        return Ok((StatusCode::NOT_MODIFIED, tag).into_response());
    }
    front.gateway.count_stranger(visit.address())?;
    let mut reply = HttpReply::json(StatusCode::OK, plain.clone().into());
    if let Some((coding, text)) =
        visit.client.accepts.best().and_then(|best| Some((best, coded[best as usize].clone()?)))
    {
        reply.set_compressed(coding, [text]);
    }
    reply.varies = false;
    Ok((tag, reply).into_response())
}

/// Answers an OPTIONS request as a node does.
async fn options() -> Response {
    let headers = [(CONTENT_TYPE, JSON), (ALLOW, "OPTIONS, POST"), (ACCEPT, "application/json")];
    (headers, ()).into_response()
}

fn wrong_media() -> HttpReply {
    let why = "Supplied content type is not allowed. Content-Type: application/json is required\n";
    HttpReply::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, why)
}

/// Answers with the usage of the caller's key. The request takes nothing from the key's rate, so that whoever is limited can
/// see why.
async fn usage(
    Extension(visit): Extension<Arc<Visit>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let principal = visit.caller(&uri, &headers)?;
    let Some(usage) = Usage::of(&principal, Instant::now()) else {
        let why = "No usage is counted, because no plan applies\n";
        return Ok((StatusCode::NOT_FOUND, why).into_response());
    };
    let text = serde_json::to_string(&usage).unwrap_or_default() + "\n";
    Ok(HttpReply::json(StatusCode::OK, Bytes::from(text).into()).into_response())
}
