//! The admin listener: metrics, health checks, the status page and its data, and the actions of operators.
//!
//! `routes` lists all routes. Routes that show keys or the log filter, or that change something, need the bearer
//! token `auth.admin_token`. The status page asks for [`Snapshot`]s, and for what was before once, when it is opened.

pub(crate) mod node_view;

mod control;
mod host;
mod keys;
mod memory;
mod nodes;
mod page;
mod routes;
mod status;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{self, DefaultBodyLimit};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::reload::Changes;
use crate::gateway::PerAddress;
use crate::http::Front;
use crate::limiter::Limiter;
use crate::telemetry::totals::Totals;
use memory::Memory;
use status::{Readiness, Status};

/// The maximum length of a request body, in bytes.
const MAX_BODY_BYTES: usize = 16 * 1024;

pub(crate) struct AdminState {
    front: Arc<Front>,
    reloads: mpsc::Sender<ReloadRequest>,
    started: Instant,
    wrong_tokens: PerAddress<Limiter>,
    memory: Memory,
}

/// A request to reload the configuration. The request is the sender of its reply: the changes, or the text of all
/// problems.
pub(crate) type ReloadRequest = oneshot::Sender<Result<Changes, String>>;

/// The data of the status page.
#[derive(Serialize)]
struct Snapshot {
    at_ms: u64,
    readiness: Readiness,
    status: Status,
    totals: Totals,
}

impl AdminState {
    pub(crate) fn new(front: Arc<Front>, reloads: mpsc::Sender<ReloadRequest>) -> Arc<Self> {
        Arc::new(Self {
            front,
            reloads,
            started: Instant::now(),
            wrong_tokens: PerAddress::new(),
            memory: Memory::default(),
        })
    }
}

/// Returns the routes, and starts the task that remembers what they show.
pub(crate) fn served(state: Arc<AdminState>, tasks: &TaskTracker, stop: &CancellationToken) -> Router {
    memory::watch(Arc::clone(&state), tasks, stop);
    router(state)
}

pub(crate) fn router(state: Arc<AdminState>) -> Router {
    let (mut open, mut guarded) = (Router::new(), Router::new());
    for route in routes::all() {
        match route.access {
            routes::Access::Anyone => open = open.route(route.path, route.handler),
            routes::Access::Token => guarded = guarded.route(route.path, route.handler),
        }
    }
    let token = axum::middleware::from_fn_with_state(Arc::clone(&state), control::require_token);
    // Without guarded routes `route_layer` would panic, but some routes need the token.
    open.merge(guarded.route_layer(token))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(axum::middleware::from_fn(host::guard))
        .with_state(state)
}

async fn metrics(extract::State(state): extract::State<Arc<AdminState>>) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], state.front.metrics.render()).into_response()
}

async fn livez() -> Response {
    json_response(StatusCode::OK, r#"{"state":"alive"}"#.to_owned())
}

async fn readyz(extract::State(state): extract::State<Arc<AdminState>>) -> Response {
    readiness_response(&state.readiness())
}

/// Answers 200 if slotfront is ready or degraded, otherwise 503. The body has the state and the reasons.
fn readiness_response(readiness: &Readiness) -> Response {
    let status = match readiness {
        Readiness::Ready | Readiness::Degraded { .. } => StatusCode::OK,
        Readiness::Unready { .. } => StatusCode::SERVICE_UNAVAILABLE,
    };
    json_response(status, json(readiness))
}

async fn api_status(extract::State(state): extract::State<Arc<AdminState>>) -> Response {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let snapshot = Snapshot {
        at_ms: since.as_millis().try_into().unwrap_or(u64::MAX),
        readiness: state.readiness(),
        status: state.status(),
        totals: Totals::read(&state.front.metrics),
    };
    json_response(StatusCode::OK, json(&snapshot))
}

async fn api_history(extract::State(state): extract::State<Arc<AdminState>>) -> Response {
    json_response(StatusCode::OK, json(&state.memory.all()))
}

async fn api_events(extract::State(state): extract::State<Arc<AdminState>>) -> Response {
    json_response(StatusCode::OK, json(&state.front.metrics.events.all()))
}

async fn api_upstreams(extract::State(state): extract::State<Arc<AdminState>>) -> Response {
    json_response(StatusCode::OK, json(&nodes::upstreams(&state.front)))
}

fn json_response(status: StatusCode, body: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (status, headers, body).into_response()
}

fn json(data: &impl Serialize) -> String {
    serde_json::to_string(data).expect("plain numbers and texts always have a JSON form")
}

#[cfg(test)]
mod tests;
