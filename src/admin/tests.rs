//! Tests of the admin routes, with a gateway whose only node does not answer.

use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

use super::*;
use crate::app::{App, Listeners};
use crate::config::{Config, Secret, Upstream};
use crate::gateway::Gateway;
use crate::methods::{Commitment, Method};
use crate::telemetry::{Metrics, Outcome};

const TOKEN: &str = "token";

async fn state() -> Arc<AdminState> {
    state_with(Some(TOKEN)).await
}

async fn state_with(token: Option<&str>) -> Arc<AdminState> {
    let any = "127.0.0.1:0".parse().unwrap();
    let node = Upstream::plain("validator-1".to_owned(), Secret::new("http://127.0.0.1:1"));
    let mut config = Config::dev(any, any, vec![node]);
    config.auth.admin_token = token.map(Secret::new);
    let (gateway, listeners) =
        (Gateway::new(&config, Metrics::new()).unwrap(), Listeners::bind(&config).await.unwrap());
    let app = App::start(config, gateway, listeners).unwrap();
    AdminState::new(Arc::clone(app.front()), mpsc::channel(1).0)
}

async fn get_from(state: &Arc<AdminState>, path: &str) -> Response {
    let request = Request::get(path).header("host", "127.0.0.1:9899").body(Body::empty()).unwrap();
    TowerToHyperService::new(router(Arc::clone(state))).call(request).await.unwrap()
}

async fn text(response: Response) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn purge_goes_on_if_its_caller_hangs_up() {
    let state = state().await;
    let request = Request::post("/api/cache/purge").header("host", "127.0.0.1:9899");
    let request = request.header("authorization", format!("Bearer {TOKEN}")).body(Body::empty()).unwrap();
    let before = state.front.tasks.len();
    let mut asking = Box::pin(TowerToHyperService::new(router(Arc::clone(&state))).call(request));
    assert!(matches!(futures_util::poll!(&mut asking), Poll::Pending), "the purge has only begun");
    drop(asking);
    assert_eq!(state.front.tasks.len(), before + 1, "the purge is a task of its own");
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
        let response = readiness_response(&readiness);
        assert_eq!(response.status(), status);
        assert_eq!(text(response).await, body);
    }
    let state = state().await;
    assert_eq!(get_from(&state, "/readyz").await.status(), 503, "no node has reported a slot");
    state.front.draining.trigger();
    let response = get_from(&state, "/readyz").await;
    assert_eq!(text(response).await, r#"{"state":"unready","reasons":["draining before a stop"]}"#);
    assert_eq!(get_from(&state, "/livez").await.status(), 200);
}

#[tokio::test]
async fn status_holds_what_the_page_shows() {
    let state = state().await;
    let (metrics, took) = (&state.front.metrics, Duration::from_micros(90));
    metrics.call(Some(Method::GetBlock.into()), Some(Commitment::Finalized), Outcome::Hit, took, 1);
    metrics.follow_carried.at((Method::GetAccountInfo, Some(Commitment::Confirmed))).inc();

    let body = text(get_from(&state, "/api/status").await).await;
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&body["readiness"]["state"], body["at_ms"].is_u64()), (&"unready".into(), true));
    let node = &body["status"]["upstreams"][0];
    assert_eq!((&node["name"], &node["breaker"]), (&"validator-1".into(), &serde_json::Value::Null));
    let totals = &body["totals"];
    assert_eq!((&totals["calls"]["getBlock"]["hit"], &totals["carried"]), (&1.into(), &1.into()));
    assert_eq!(totals["durations"]["counts"]["hit"][1], 1, "{totals}");
}

#[tokio::test]
async fn page_loads_nothing_from_other_hosts() {
    let response = get_from(&state().await, "/").await;
    let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    let page = text(response).await;
    assert!(page.contains("fetch(\"/api/status\"") && !page.contains("/* page."));
    let foreign = page.replace("http://www.w3.org/2000/svg", "");
    for word in ["http://", "https://", "//cdn", "src=", "@import", "url("] {
        assert!(!foreign.contains(word), "{word}");
    }
}

#[tokio::test]
async fn guarded_routes_need_the_token() {
    let mut guarded = 0;
    for route in routes::all().into_iter().filter(|route| route.access == routes::Access::Token) {
        guarded += 1;
        // The wrong tokens of one gateway are limited.
        let (with, without) = (state().await, state_with(None).await);
        for (state, header, status) in [
            (&with, "", 401),
            (&with, "Bearer wrong", 401),
            (&with, TOKEN, 401),
            (&without, "", 403),
            (&without, "Bearer token", 403),
        ] {
            let request = Request::builder().method(route.verb).uri(route.path.replace(['{', '}'], ""));
            let request = request.header("host", "127.0.0.1:9899").header("authorization", header);
            let request = request.body(Body::empty()).unwrap();
            let response = TowerToHyperService::new(router(Arc::clone(state))).call(request).await.unwrap();
            let name = format!("{} {} with {header:?}", route.verb, route.path);
            assert_eq!(response.status(), status, "{name}");
            assert!(text(response).await.contains("auth.admin_token"), "{name}");
        }
    }
    assert!(guarded >= 11, "{guarded}");
}

#[tokio::test]
async fn a_public_host_name_is_refused() {
    let state = state().await;
    let request = Request::get("/metrics").header("host", "rebound.example").body(Body::empty()).unwrap();
    let response = TowerToHyperService::new(router(Arc::clone(&state))).call(request).await.unwrap();
    assert_eq!(response.status(), 403);
    assert!(text(get_from(&state, "/metrics").await).await.contains("slotfront_build_info"));
}
