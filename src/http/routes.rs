//! The routes beside the hot one: health as a node answers it, the interface's own document, a key's usage.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Extension, Router};
use bytes::Bytes;
use hyper::http::request::Parts;
use hyper::{Method as Verb, Request};
use tokio::time::Instant;

use super::Front;
use super::fields::{Fields, elements};
use super::openrpc;
use super::reply::Reply;
use crate::coding::Coding;
use crate::error::Error;
use crate::gateway::Usage;
use crate::pool::health::Health;

/// The caller of one of these routes, an extension of each request.
#[derive(Clone)]
pub(super) struct Client {
    /// The address, `None` where it is not known.
    pub(super) address: Option<IpAddr>,
    /// The page that a browser calls from.
    pub(super) origin: Option<Arc<str>>,
    /// The content coding that it takes best.
    pub(super) accepts: Option<Coding>,
}

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

/// The document, plain and in each coding; anybody may ask for it, so it is made once.
static DOCUMENT: LazyLock<Document> = LazyLock::new(|| {
    let plain = Bytes::from(format!("{:#}\n", openrpc::document("/v3/${apiKey}")));
    let coded = Coding::ALL.map(|coding| coding.encode(&plain));
    Document { plain, coded }
});

/// A text that does not change while the program runs.
struct Document {
    plain: Bytes,
    /// By the number of each coding.
    coded: [Option<Bytes>; Coding::ALL.len()],
}

async fn openrpc_document(Extension(Client { accepts, .. }): Extension<Client>) -> Response {
    let mut reply = Reply::json(StatusCode::OK, DOCUMENT.plain.clone().into());
    reply.varies = true;
    if let Some((coding, coded)) =
        accepts.and_then(|coding| Some((coding, DOCUMENT.coded[coding as usize].clone()?)))
    {
        (reply.body, reply.coding) = (coded.into(), Some(coding));
    }
    reply.into_response()
}

/// The answer to a WebSocket handshake, in words for whoever reads a client library's error.
const NO_WEBSOCKET: &str = "slotfront relays no subscriptions: it has no WebSocket. Give your client library the WebSocket \
    address of a node beside this URL: new Connection(url, { wsEndpoint }) in @solana/web3.js, \
    createSolanaRpcSubscriptions(wsEndpoint) in @solana/kit.\n";

/// True for a WebSocket handshake (RFC 6455, 4.1). The `Upgrade` of any other request is ignored.
pub(super) fn is_websocket(head: &Parts) -> bool {
    let mut protocols = head.headers.all("upgrade").flat_map(elements);
    head.method == Verb::GET && protocols.any(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))
}

/// Refuses a WebSocket handshake.
pub(super) fn no_websocket() -> Response {
    Reply::text(StatusCode::NOT_IMPLEMENTED, NO_WEBSOCKET).into_response()
}

/// What a key's owner may see of it; the key is proved as on the hot route, and wrong ones are counted with its own.
async fn usage(
    State(front): State<Arc<Front>>,
    Extension(client): Extension<Client>,
    request: Request<axum::body::Body>,
) -> Response {
    let path = request.uri().path();
    let key = path.strip_prefix("/v3/").and_then(|rest| rest.strip_suffix("/usage")).unwrap_or_default();
    let now = Instant::now();
    match front
        .gateway
        .authenticate(key, client.address, client.origin.as_deref(), now)
        .map(|principal| Usage::of(&principal, now))
    {
        Ok(Some(usage)) => axum_json(&usage),
        Ok(None) => (StatusCode::NOT_FOUND, "Nothing is counted: there is no plan\n").into_response(),
        Err(error) => refuse(&error),
    }
}

/// A refusal of ours where there is no call that an error object could answer.
fn refuse(error: &Error) -> Response {
    let wire = error.to_reply();
    let mut reply = Reply::text(StatusCode::OK, wire.message.clone() + "\n");
    reply.refuse(&wire);
    reply.into_response()
}

fn axum_json(value: &impl serde::Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => {
            ([(header::CONTENT_TYPE, "application/json; charset=utf-8")], text + "\n").into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
