//! Tests of the admin routes with a fake [`StatusSource`].

use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use tokio::sync::Notify;
use tower::ServiceExt;

use super::node_view::{NodeView, UpstreamsView};
use super::status::{CacheView, FollowView};
use super::*;
use crate::breaker::BreakerState;
use crate::cache::purge::Filter;
use crate::methods::{Commitment, Method, PerCommitment};
use crate::telemetry::Outcome;

/// The time between two `tick` events in the event stream of the status page. The counters are read once for each
/// event.
const TICK: Duration = COMPARE_INTERVAL.saturating_mul(COMPARES_PER_TICK);

struct FakeSource {
    readiness: Readiness,
    sharing: Arc<Sharing>,
}

/// The state of the fake source's shared store. Writing purges to the store signals `begun`, and ends once the
/// test signals `may_end`.
#[derive(Default)]
struct Sharing {
    begun: Notify,
    may_end: Notify,
    has_ended: AtomicBool,
}

impl StatusSource for FakeSource {
    fn purge(&self, _: &Filter) -> u64 {
        0
    }

    fn share_purges(&self) -> std::pin::Pin<Box<dyn Future<Output = Option<bool>> + Send>> {
        let sharing = Arc::clone(&self.sharing);
        Box::pin(async move {
            sharing.begun.notify_one();
            sharing.may_end.notified().await;
            sharing.has_ended.store(true, Ordering::Relaxed);
            Some(true)
        })
    }

    fn set_drained(&self, _: &str, _: bool) -> bool {
        false
    }

    fn status(&self) -> Status {
        let slots = PerCommitment { processed: Some(150), confirmed: Some(149), finalized: Some(118) };
        let upstream = NodeView {
            name: "validator-1".to_owned(),
            tier: 0,
            up: true,
            usable: true,
            reasons: Vec::new(),
            worst: None,
            slots,
            lag_slots: PerCommitment::uniform(Some(0)),
            version: Some("4.0.0".to_owned()),
            first_available_block: 7,
            breaker: BreakerState::HalfOpen,
            in_flight: 2,
            max_in_flight: 100,
            latency_ms: 1.5,
            rps_left: None,
            lacks: Vec::new(),
            drained: false,
            requests: 10,
            failures: 1,
            last_failure: None,
        };
        let cache = CacheView { bytes: 1_000, entries: 3, capacity_bytes: 4_000 };
        Status {
            version: "0.0.0",
            uptime_s: 5,
            frontier: slots,
            follow: Some(FollowView {
                serves: true,
                contradicted: false,
                state: "following",
                reason: None,
                tip: Some(149),
                finalized: Some(118),
                lag_slots: Some(0),
            }),
            slot_time_ms: 250.0,
            upstreams: vec![upstream],
            cache,
        }
    }

    fn upstreams(&self) -> UpstreamsView {
        UpstreamsView { frontier: PerCommitment::default(), upstreams: Vec::new() }
    }

    fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }
}

fn state(readiness: Readiness) -> Arc<AdminState> {
    state_of(FakeSource { readiness, sharing: Arc::default() }, None)
}

fn state_of(source: FakeSource, token: Option<Secret>) -> Arc<AdminState> {
    let any = "127.0.0.1:0".parse().unwrap();
    let gateway = Gateway::new(&crate::config::Config::dev(any, any, vec![])).unwrap();
    let controls = Controls { token, gateway: Arc::new(gateway), reloads: mpsc::channel(1).0 };
    AdminState::new(Metrics::new(), source, controls, TaskTracker::new(), CancellationToken::new())
}

async fn get_from(state: &Arc<AdminState>, path: &str) -> Response {
    let request = Request::get(path).header("host", "127.0.0.1:9899").body(Body::empty()).unwrap();
    router(Arc::clone(state)).oneshot(request).await.unwrap()
}

async fn text(response: Response) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn purge_is_shared_if_its_caller_hangs_up() {
    let sharing = Arc::<Sharing>::default();
    let source = FakeSource { readiness: Readiness::Ready, sharing: Arc::clone(&sharing) };
    let state = state_of(source, Some(Secret::new("token")));
    let request = Request::post("/api/cache/purge").header("host", "127.0.0.1:9899");
    let request = request.header("authorization", "Bearer token").body(Body::empty()).unwrap();
    tokio::select! {
        _ = router(Arc::clone(&state)).oneshot(request) => panic!("the store has not taken the purge yet"),
        () = sharing.begun.notified() => {} // the caller disconnects here
    }
    sharing.may_end.notify_one();
    state.tasks.close();
    state.tasks.wait().await;
    assert!(sharing.has_ended.load(Ordering::Relaxed));
}

#[tokio::test]
async fn readyz_gives_status_and_reasons() {
    let reasons = || vec!["no usable upstream".to_owned()];
    for (readiness, status, body) in [
        (Readiness::Ready, 200, r#"{"state":"ready"}"#),
        (
            Readiness::Degraded { reasons: reasons() },
            200,
            r#"{"state":"degraded","reasons":["no usable upstream"]}"#,
        ),
        (
            Readiness::Unready { reasons: reasons() },
            503,
            r#"{"state":"unready","reasons":["no usable upstream"]}"#,
        ),
    ] {
        let state = state(readiness);
        let response = get_from(&state, "/readyz").await;
        assert_eq!(response.status(), status);
        assert_eq!(text(response).await, body);
        assert_eq!(get_from(&state, "/livez").await.status(), 200);
    }
}

#[tokio::test]
async fn status_holds_what_the_page_shows() {
    let state = state(Readiness::Ready);
    let start = Instant::now();
    state.tick(start);
    state.tick(start + TICK);
    let took = Duration::from_micros(90);
    state.metrics.call(Some(Method::GetBlock), Some(Commitment::Finalized), Outcome::Hit, took, 1);
    state.metrics.call(Some(Method::GetAccountInfo), Some(Commitment::Confirmed), Outcome::Hit, took, 1);
    state.metrics.follow_carried.at((Some(Method::GetAccountInfo), Some(Commitment::Confirmed))).inc();
    state.tick(start + 2 * TICK);

    let body = text(get_from(&state, "/api/status").await).await;
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["readiness"]["state"], "ready");
    assert_eq!(body["status"]["upstreams"][0]["breaker"], "half-open");
    assert_eq!(body["status"]["frontier"]["finalized"], 118);
    assert_eq!(
        (&body["status"]["follow"]["tip"], &body["traffic"]["carried_ratio"]),
        (&149.into(), &0.5.into())
    );
    assert_eq!(body["points"].as_array().unwrap().len(), 2);
    assert_eq!(body["points"][1]["kept"], 2.0);
    assert_eq!(body["traffic"]["methods"][0]["method"], "getBlock");
    assert_eq!(body["traffic"]["outcomes"][0]["outcome"], "hit");
}

#[tokio::test]
async fn page_loads_nothing_from_other_hosts() {
    let response = get_from(&state(Readiness::Ready), "/").await;
    let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    let page = text(response).await;
    assert!(page.contains("new EventSource") && !page.contains("/* page."));
    let foreign = page.replace("http://www.w3.org/2000/svg", "");
    for word in ["http://", "https://", "//cdn", "src=", "@import", "url("] {
        assert!(!foreign.contains(word), "{word}");
    }
}

#[tokio::test]
async fn events_start_full_and_end_at_stop() {
    let state = state(Readiness::Ready);
    let response = get_from(&state, "/api/events").await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    state.tick(Instant::now());
    let mut body = response.into_body();
    for event in ["event: all\ndata: {", "event: tick\ndata: {"] {
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(frame.starts_with(event.as_bytes()), "{frame:?}");
    }
    state.stop.cancel();
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn node_health_changes_are_sent_between_ticks() {
    let state = state(Readiness::Ready);
    let shown = state.tick(Instant::now());
    assert_eq!(shown, [(true, true, BreakerState::HalfOpen)]);
    let mut ticks = state.ticks.subscribe();
    assert_eq!(state.send_changes(shown.clone()), shown);
    assert!(!ticks.has_changed().unwrap(), "unchanged health is not sent");
    assert_eq!(state.send_changes(vec![(false, false, BreakerState::Open)]), shown);
    assert!(ticks.has_changed().unwrap());
    assert!(ticks.borrow_and_update().contains(r#""points":[]"#), "counters are read at ticks only");
}

#[tokio::test]
async fn event_streams_are_bounded_and_freed() {
    let state = state(Readiness::Ready);
    let mut open = Vec::new();
    for _ in 0..MAX_STREAMS {
        open.push(get_from(&state, "/api/events").await);
    }
    assert_eq!(get_from(&state, "/api/events").await.status(), 503);
    open.pop();
    assert_eq!(get_from(&state, "/api/events").await.status(), 200);
}

#[tokio::test]
async fn a_public_host_name_is_refused() {
    let request = Request::get("/metrics").header("host", "rebound.example").body(Body::empty()).unwrap();
    let response = router(state(Readiness::Ready)).oneshot(request).await.unwrap();
    assert_eq!(response.status(), 403);
    let response = get_from(&state(Readiness::Ready), "/metrics").await;
    assert!(text(response).await.contains("slotfront_build_info"));
}
