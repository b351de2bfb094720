//! The second listener: metrics, health, and the status page with the numbers behind it.
//!
//! The listener reads, and the bearer of a token may change what [`Controls`] gives. The routes are listed in `routes`. The
//! state comes from a [`Source`] and the counts from [`Metrics`]. One task reads both once a second, however many pages are
//! open.

pub mod history;
pub mod node_view;
pub mod status;
pub mod upstreams;

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

pub use status::{Readiness, Source, Status};

use crate::config::Secret;
use crate::config::reload::Changes;
use crate::gateway::Gateway;
use crate::telemetry::Metrics;
use crate::telemetry::totals::Totals;
use history::{History, Point, Traffic};

/// The time between two looks at the nodes while a page is open. A node that is cut off shows on the page at once, not up to
/// a tick later.
const GLANCE: Duration = Duration::from_millis(200);
/// The number of looks of which one is a tick, once a second: it reads the counters, and every page is told.
const GLANCES: u32 = 5;
/// The number of pages that may listen for events at once. Further ones poll.
const VIEWERS: usize = 64;
/// The most bytes of a body, which is a name, a plan and a date, or a log filter.
const MAX_BODY_BYTES: usize = 16 * 1024;

/// The state that the admin listener serves from.
pub struct State {
    metrics: Arc<Metrics>,
    source: Box<dyn Source>,
    history: Mutex<History>,
    /// The newest tick as JSON text, written once for all pages.
    ticks: watch::Sender<Arc<str>>,
    viewers: Arc<Semaphore>,
    controls: Controls,
    stop: CancellationToken,
}

/// The parts of the gateway that an operator may change.
pub struct Controls {
    /// The bearer token that allows changes. Without one no change is allowed.
    pub token: Option<Secret>,
    /// The gateway, for its keys.
    pub gateway: Arc<Gateway>,
    /// The way to the task that reads the configuration again.
    pub reloads: mpsc::Sender<Reload>,
}

/// A request to read the configuration again. The answer is what changed, or everything that is wrong.
pub type Reload = oneshot::Sender<Result<Changes, String>>;

/// The data of the page: all of it when the page opens, and without most `points` each second.
#[derive(Serialize)]
struct Snapshot {
    /// The Unix time in milliseconds.
    at_ms: u64,
    readiness: Readiness,
    status: Status,
    traffic: Traffic,
    /// The last five minutes, oldest first. A tick has only the newest point, and a look between two ticks has none.
    points: Vec<Point>,
}

impl State {
    /// Returns a state that serves `metrics` and `source` until `stop`, which also ends the event streams of the pages.
    pub fn new(
        metrics: Arc<Metrics>,
        source: impl Source,
        controls: Controls,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let (ticks, _) = watch::channel(Arc::from(""));
        let (source, viewers) = (Box::new(source), Arc::new(Semaphore::new(VIEWERS)));
        Arc::new(Self { metrics, source, history: Mutex::default(), ticks, viewers, controls, stop })
    }

    /// Starts to read the counters once a second until the stop, for the lines and rates of the page.
    pub fn watch(self: &Arc<Self>, tasks: &TaskTracker) {
        let state = Arc::clone(self);
        tasks.spawn(async move {
            let mut ticker = tokio::time::interval(GLANCE);
            ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut shown = Vec::new();
            for turn in (0..GLANCES).cycle() {
                if state.stop.run_until_cancelled(ticker.tick()).await.is_none() {
                    break;
                }
                shown = if turn == 0 { state.tick(Instant::now()) } else { state.glance(shown) };
            }
        });
    }

    /// Reads everything once, tells the open pages, and returns the signs of the nodes.
    fn tick(&self, now: Instant) -> Vec<status::NodeSigns> {
        let status = self.source.status();
        let at_ms = unix_ms();
        let totals = Totals::read(&self.metrics);
        let point = self.history().record(now, at_ms, totals, status.frontier);
        let signs = status.signs();
        if self.ticks.receiver_count() > 0 {
            self.ticks.send_replace(self.snapshot(status, point.into_iter().collect()).into());
        }
        signs
    }

    /// Tells the open pages at once if the signs of a node are not those `shown`, and returns the signs.
    fn glance(&self, shown: Vec<status::NodeSigns>) -> Vec<status::NodeSigns> {
        if self.ticks.receiver_count() == 0 {
            return shown;
        }
        let status = self.source.status();
        let signs = status.signs();
        if signs != shown {
            self.ticks.send_replace(self.snapshot(status, Vec::new()).into());
        }
        signs
    }

    /// Returns everything that the page shows, as JSON text.
    fn everything(&self) -> String {
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

/// Returns the routes of the admin listener.
pub fn router(state: Arc<State>) -> Router {
    let (mut open, mut guarded) = (Router::new(), Router::new());
    for route in routes::all() {
        match route.access {
            routes::Access::Anyone => open = open.route(route.path, route.handler),
            routes::Access::Token => guarded = guarded.route(route.path, route.handler),
        }
    }
    let token = axum::middleware::from_fn_with_state(Arc::clone(&state), control::token);
    // axum panics for a layer over no route. There is one at least.
    open.merge(guarded.route_layer(token))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(axum::middleware::from_fn(host::guard))
        .with_state(state)
}

async fn metrics(extract::State(state): extract::State<Arc<State>>) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], state.metrics.render()).into_response()
}

async fn livez() -> Response {
    json(StatusCode::OK, r#"{"state":"alive"}"#.to_owned())
}

/// Answers 200 when ready or degraded and 503 when not ready. The body says why.
async fn readyz(extract::State(state): extract::State<Arc<State>>) -> Response {
    let readiness = state.source.readiness();
    let status = match readiness {
        Readiness::Ready | Readiness::Degraded { .. } => StatusCode::OK,
        Readiness::Unready { .. } => StatusCode::SERVICE_UNAVAILABLE,
    };
    json(status, serde_json::to_string(&readiness).expect("plain texts always have a JSON form"))
}

async fn api_status(extract::State(state): extract::State<Arc<State>>) -> Response {
    json(StatusCode::OK, state.everything())
}

async fn api_upstreams(extract::State(state): extract::State<Arc<State>>) -> Response {
    let body = serde_json::to_string(&state.source.upstreams());
    json(StatusCode::OK, body.expect("plain numbers and texts always have a JSON form"))
}

/// The description of this listener in `OpenAPI` 3.1.
const OPENAPI: &str = include_str!("admin/openapi.json");

async fn openapi() -> Response {
    json(StatusCode::OK, OPENAPI.to_owned())
}

fn json(status: StatusCode, body: String) -> Response {
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
