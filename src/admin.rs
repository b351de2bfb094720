//! The second listener: metrics, health, and the status page with the numbers behind it.
//!
//! Reads, and for the bearer of a token changes what [`Controls`] gives it; its routes are listed in `routes`. It knows
//! how things stand through [`Source`] and what was counted through [`Metrics`]; one task reads both once a second,
//! however many pages are open.

pub mod history;
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

/// Between two looks at the nodes while a page is open: one that is cut shows on the page as soon as it is known, and
/// not up to a tick later.
const GLANCE: Duration = Duration::from_millis(200);
/// Of this many looks one is a tick, once a second: it reads the counters, and every page is told.
const GLANCES: u32 = 5;
/// Pages that may listen for events at once; further ones poll.
const VIEWERS: usize = 64;
/// A call's body: a name, a plan and a date, or a log filter.
const MAX_BODY_BYTES: usize = 16 * 1024;

/// What the admin listener serves from.
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

/// What an operator may change from here.
pub struct Controls {
    /// The bearer token of those who may; nobody may without one.
    pub token: Option<Secret>,
    /// Whose keys are made and taken back.
    pub gateway: Arc<Gateway>,
    /// To whoever reads the configuration again.
    pub reloads: mpsc::Sender<Reload>,
}

/// A wish that the configuration be read again, to be answered with what changed, or with all that is wrong.
pub type Reload = oneshot::Sender<Result<Changes, String>>;

/// What the page is given: all of it when it opens, without `points` each second.
#[derive(Serialize)]
struct Snapshot {
    /// Unix time in milliseconds.
    at_ms: u64,
    readiness: Readiness,
    status: Status,
    traffic: Traffic,
    /// The last five minutes, oldest first; in a tick only the newest, in one between two ticks none.
    points: Vec<Point>,
}

impl State {
    /// Serves `metrics` and `source` until `stop`, which also ends the pages' event streams.
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

    /// Reads the counters once a second, from now until the stop, for the page's lines and rates.
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

    /// Takes one reading, tells the open pages, and returns how the nodes stood.
    fn tick(&self, now: Instant) -> Vec<status::Light> {
        let status = self.source.status();
        let at_ms = unix_ms();
        let totals = Totals::read(&self.metrics);
        let point = self.history().record(now, at_ms, totals, status.frontier);
        let lights = status.lights();
        if self.ticks.receiver_count() > 0 {
            self.ticks.send_replace(self.snapshot(status, point.into_iter().collect()).into());
        }
        lights
    }

    /// Tells the open pages at once where a node stands otherwise than `shown`; returns how they stand.
    fn glance(&self, shown: Vec<status::Light>) -> Vec<status::Light> {
        if self.ticks.receiver_count() == 0 {
            return shown;
        }
        let status = self.source.status();
        let lights = status.lights();
        if lights != shown {
            self.ticks.send_replace(self.snapshot(status, Vec::new()).into());
        }
        lights
    }

    /// All that the page shows, as JSON text.
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

/// The admin listener's routes.
pub fn router(state: Arc<State>) -> Router {
    let (mut open, mut guarded) = (Router::new(), Router::new());
    for route in routes::all() {
        match route.access {
            routes::Access::Anyone => open = open.route(route.path, route.handler),
            routes::Access::Token => guarded = guarded.route(route.path, route.handler),
        }
    }
    let token = axum::middleware::from_fn_with_state(Arc::clone(&state), control::token);
    // Laid over no route at all it would be refused; there are some.
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

/// 200 when ready or degraded, 503 when not ready; the body says why.
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

/// The document of this listener, in `OpenAPI` 3.1.
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
