//! The admin listener: metrics, health checks, the status page and its data, and the actions of operators.
//!
//! `routes` lists all routes. Routes that show keys or the log filter, or that change something, need the bearer
//! token of [`Controls`]. The status page shows the state from a [`StatusSource`] and counts from [`Metrics`]. One
//! task reads both for all open pages, so their number does not matter.

pub(crate) mod history;
pub(crate) mod node_view;
pub(crate) mod status;

mod control;
mod host;
mod keys;
mod page;
mod process;
mod routes;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{self, DefaultBodyLimit};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use status::{Readiness, Status, StatusSource};

use crate::config::Secret;
use crate::config::reload::Changes;
use crate::gateway::Gateway;
use crate::telemetry::Metrics;
use crate::telemetry::totals::Totals;
use history::{History, Point, Traffic};

/// The interval at which the health of nodes is compared with the health that open pages show. A failure is thus
/// shown soon, without waiting for the next tick.
const COMPARE_INTERVAL: Duration = Duration::from_millis(200);
/// The number of intervals of [`COMPARE_INTERVAL`] from one tick to the next. A tick comes once a second, and
/// sends the newest status to open pages.
const COMPARES_PER_TICK: u32 = 5;
/// The maximum number of event streams. Pages beyond this number poll `/api/status`.
const MAX_STREAMS: usize = 64;
/// The maximum length of a request body, in bytes.
const MAX_BODY_BYTES: usize = 16 * 1024;

pub(crate) struct AdminState {
    metrics: Arc<Metrics>,
    source: Box<dyn StatusSource>,
    history: Mutex<History>,
    /// The newest status as JSON, for all open event streams. It is sent each second, and soon after a node's
    /// health has changed.
    ticks: watch::Sender<Arc<str>>,
    stream_permits: Arc<Semaphore>,
    controls: Controls,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The parts of the process that an operator can change, and the bearer token that allows changes.
pub(crate) struct Controls {
    /// The bearer token `auth.admin_token`. If it is `None`, all actions are refused.
    pub token: Option<Secret>,
    pub gateway: Arc<Gateway>,
    pub reloads: mpsc::Sender<ReloadRequest>,
}

/// A request to reload the configuration. The request is the sender of its reply: the changes, or the text of all
/// problems.
pub(crate) type ReloadRequest = oneshot::Sender<Result<Changes, String>>;

/// The data of the status page. A page gets all points of its chart when it opens, and then the newest point each
/// second.
#[derive(Serialize)]
struct Snapshot {
    at_ms: u64,
    readiness: Readiness,
    status: Status,
    traffic: Traffic,
    /// The points of the chart, oldest first: those of the last five minutes for a new page, and one for the
    /// update of each second. Updates between two seconds have no point.
    points: Vec<Point>,
}

impl AdminState {
    /// Creates the state. The event streams of pages end when `stop` is cancelled. Work that may outlive its
    /// request runs on `tasks`.
    pub(crate) fn new(
        metrics: Arc<Metrics>,
        source: impl StatusSource,
        controls: Controls,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let (ticks, _) = watch::channel(Arc::from(""));
        let (source, stream_permits) = (Box::new(source), Arc::new(Semaphore::new(MAX_STREAMS)));
        let history = Mutex::default();
        Arc::new(Self { metrics, source, history, ticks, stream_permits, controls, tasks, stop })
    }

    /// Starts the task that records the history and updates open pages. The task ends when slotfront stops.
    pub(crate) fn watch(self: &Arc<Self>) {
        let state = Arc::clone(self);
        self.tasks.spawn(async move {
            let mut ticker = tokio::time::interval(COMPARE_INTERVAL);
            ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut shown = Vec::new();
            for turn in (0..COMPARES_PER_TICK).cycle() {
                if state.stop.run_until_cancelled(ticker.tick()).await.is_none() {
                    break;
                }
                shown = if turn == 0 { state.tick(Instant::now()) } else { state.send_changes(shown) };
            }
        });
    }

    /// Reads the status and the counters, sends them to open pages, and returns the health of the nodes. Called once a
    /// second.
    fn tick(&self, now: Instant) -> Vec<status::NodeHealth> {
        let status = self.source.status();
        let at_ms = unix_ms();
        let totals = Totals::read(&self.metrics);
        let point = self.history().record(now, at_ms, totals, status.frontier);
        let health = status.health();
        if self.ticks.receiver_count() > 0 {
            self.ticks.send_replace(self.snapshot(status, point.into_iter().collect()).into());
        }
        health
    }

    /// Sends the status to open pages if the health of a node differs from `shown`, the health that the pages show.
    /// Returns the health that they show afterwards.
    fn send_changes(&self, shown: Vec<status::NodeHealth>) -> Vec<status::NodeHealth> {
        if self.ticks.receiver_count() == 0 {
            return shown;
        }
        let status = self.source.status();
        let health = status.health();
        if health != shown {
            self.ticks.send_replace(self.snapshot(status, Vec::new()).into());
        }
        health
    }

    /// Returns the data of the status page with all points, as JSON.
    fn full_snapshot(&self) -> String {
        let points = self.history().points();
        self.snapshot(self.source.status(), points)
    }

    fn snapshot(&self, status: Status, points: Vec<Point>) -> String {
        let traffic = self.history().traffic();
        let snapshot =
            Snapshot { at_ms: unix_ms(), readiness: self.source.readiness(), status, traffic, points };
        serde_json::to_string(&snapshot).expect("plain numbers and texts always have a JSON form")
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
    ([(header::CONTENT_TYPE, kind)], state.metrics.render()).into_response()
}

async fn livez() -> Response {
    json_response(StatusCode::OK, r#"{"state":"alive"}"#.to_owned())
}

/// Answers 200 if slotfront is ready or degraded, otherwise 503. The body has the state and the reasons.
async fn readyz(extract::State(state): extract::State<Arc<AdminState>>) -> Response {
    let readiness = state.source.readiness();
    let status = match readiness {
        Readiness::Ready | Readiness::Degraded { .. } => StatusCode::OK,
        Readiness::Unready { .. } => StatusCode::SERVICE_UNAVAILABLE,
    };
    json_response(status, serde_json::to_string(&readiness).expect("plain texts always have a JSON form"))
}

async fn api_status(extract::State(state): extract::State<Arc<AdminState>>) -> Response {
    json_response(StatusCode::OK, state.full_snapshot())
}

async fn api_upstreams(extract::State(state): extract::State<Arc<AdminState>>) -> Response {
    let body = serde_json::to_string(&state.source.upstreams());
    json_response(StatusCode::OK, body.expect("plain numbers and texts always have a JSON form"))
}

/// The `OpenAPI` 3.1 description of this listener.
const OPENAPI: &str = include_str!("admin/openapi.json");

async fn openapi() -> Response {
    json_response(StatusCode::OK, OPENAPI.to_owned())
}

fn json_response(status: StatusCode, body: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (status, headers, body).into_response()
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
