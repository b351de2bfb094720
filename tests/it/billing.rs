//! The price of calls, including those whose callers do not wait for the answer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use slotfront::config::{AuthMode, Config};
use slotfront::methods::{Commitment, Further};
use slotfront_sim::Fault;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::harness::Stage;

/// The ways in which a request is read.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// A plain request of HTTP/1.1, read by the fast path.
    Plain,
    /// A request of HTTP/1.1 that hyper reads.
    Hyper,
    Http2,
}

const WAYS: [Way; 3] = [Way::Plain, Way::Hyper, Way::Http2];

/// Starts a call whose task can be aborted, as if its caller hung up.
fn begin(stage: &Stage, way: Way, headers: &[(&'static str, &str)], body: &Value) -> JoinHandle<()> {
    let client = reqwest::Client::builder().no_proxy();
    let client = if matches!(way, Way::Http2) { client.http2_prior_knowledge() } else { client };
    let mut request = client.build().unwrap().post(&stage.url).header("content-type", "application/json");
    if matches!(way, Way::Hyper) {
        request = request.header("origin", "http://page.example");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let sending = request.body(body.to_string()).send();
    TaskTracker::new().spawn(async move {
        let _ = sending.await.unwrap().bytes().await;
    })
}

fn in_flight(stage: &Stage) -> usize {
    stage.front().in_flight.load(Ordering::Relaxed)
}

/// Returns the units that the key was charged.
fn charged(stage: &Stage) -> f64 {
    let metrics = stage.front().metrics.render();
    let line = metrics.lines().find_map(|line| line.strip_prefix("slotfront_key_units_total{key=\"dev\"} "));
    line.map_or(0.0, |units| units.parse().unwrap())
}

fn connections(stage: &Stage) -> i64 {
    stage.front().metrics.connections.get()
}

/// Waits until `before` connections are left, and `kept` requests in flight.
async fn until_gone(stage: &Stage, before: i64, kept: usize) {
    let has_gone = || connections(stage) <= before && in_flight(stage) == kept;
    stage.until("the caller has gone", has_gone).await;
}

/// Returns the number of requests in flight after the caller has gone. A passthrough call stays until it is
/// answered.
fn kept(method: &str) -> usize {
    usize::from(method == "getBalance")
}

/// Makes a call, hangs up once `calls` of `method` are at the node, and waits until `units` are charged.
async fn hang_up(
    stage: &Stage,
    (way, headers): (Way, &[(&'static str, &str)]),
    (method, calls): (&str, usize),
    body: &Value,
    units: f64,
) {
    let (before, open) = (charged(stage), connections(stage));
    let hold = stage.cluster.node(0).hold(method);
    let caller = begin(stage, way, headers, body);
    hold.arrived(calls).await;
    caller.abort();
    until_gone(stage, open, kept(method)).await;
    assert!((charged(stage) - before).abs() < f64::EPSILON, "nothing has landed yet");
    hold.release();
    let what = format!("{units} units are charged for {body} by {way:?}");
    let is_charged = || (charged(stage) - before - units).abs() < f64::EPSILON;
    stage.until(&what, || is_charged() && in_flight(stage) == 0).await;
}

fn call(id: u64, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn prices(config: &mut Config) {
    config.passthrough = vec![Further::from_name("getBalance").unwrap()];
    config.units.by_further[Further::from_name("getBalance").unwrap().index()] = 7;
    config.units.hit_factor = 0.0;
    config.plans.get_mut("dev").unwrap().bypass_cache = true;
}

#[tokio::test]
async fn a_caller_who_hangs_up_has_paid() {
    for way in WAYS {
        let stage = Stage::of(1, prices).await;
        let wallet = stage.cluster.examples().wallets[0].to_string();
        let votes = |commitment: &str| json!([{"commitment": commitment}]);
        let one = call(1, "getVoteAccounts", &votes("confirmed"));
        hang_up(&stage, (way, &[]), ("getVoteAccounts", 1), &one, 5.0).await;

        let batch = json!([
            call(1, "getVoteAccounts", &votes("finalized")),
            call(2, "getVoteAccounts", &votes("processed")),
            call(3, "getVoteAccounts", &votes("confirmed")),
        ]);
        hang_up(&stage, (way, &[]), ("getVoteAccounts", 2), &batch, 10.0).await;

        let no_cache: &[_] = &[("cache-control", "no-cache")];
        hang_up(&stage, (way, no_cache), ("getVoteAccounts", 1), &one, 5.0).await;

        let forwarded = call(1, "getBalance", &json!([wallet]));
        hang_up(&stage, (way, &[]), ("getBalance", 1), &forwarded, 7.0).await;

        // The slot is too far ahead to wait for, so the call goes to one node alone.
        let ahead = stage.cluster.slot(Commitment::Finalized) + 1000;
        let alone = call(1, "getAccountInfo", &json!([wallet, {"minContextSlot": ahead}]));
        hang_up(&stage, (way, &[]), ("getAccountInfo", 1), &alone, 1.0).await;
    }
}

#[tokio::test]
async fn every_caller_of_a_shared_flight_pays() {
    let stage = Stage::of(1, prices).await;
    let hold = stage.cluster.node(0).hold("getVoteAccounts");
    let body = call(1, "getVoteAccounts", &json!([]));
    let leaves: Vec<_> = WAYS.map(|way| begin(&stage, way, &[], &body)).into();
    stage.until("all are in flight", || in_flight(&stage) == 3).await;
    let stays = begin(&stage, Way::Plain, &[], &body);
    stage.until("all are in flight", || in_flight(&stage) == 4).await;
    leaves.iter().for_each(JoinHandle::abort);
    stage.until("one stays", || in_flight(&stage) == 1).await;
    hold.release();
    stays.await.unwrap();
    stage.until("all are charged", || (charged(&stage) - 20.0).abs() < f64::EPSILON).await;
    assert_eq!(stage.upstream_calls(), 1);
}

#[tokio::test]
async fn a_call_that_fails_costs_nothing() {
    let stage = Stage::of(1, |config| {
        prices(config);
        config.pool.retries = 0;
    })
    .await;
    let wallet = stage.cluster.examples().wallets[0].to_string();
    for (method, params) in [("getVoteAccounts", json!([])), ("getBalance", json!([wallet]))] {
        let node = stage.cluster.node(0);
        node.fault_on(method, Fault::Status(503), None);
        assert_eq!(stage.call(method, params.clone()).await.status, 502);
        let (hold, body, open) = (node.hold(method), call(1, method, &params), connections(&stage));
        let caller = begin(&stage, Way::Plain, &[], &body);
        hold.arrived(1).await;
        caller.abort();
        until_gone(&stage, open, kept(method)).await;
        let failed = || {
            let result =
                |line: &&str| line.contains("upstream_requests_total") && line.contains("status_5xx");
            let metrics = stage.front().metrics.render();
            let of = if method == "getBalance" { "other" } else { method };
            metrics.lines().filter(result).find(|line| line.contains(of)).map(str::to_owned)
        };
        let before = failed();
        hold.release();
        stage.until("it has failed", || failed() != before).await;
        node.clear_faults();
        assert!(charged(&stage).abs() < f64::EPSILON, "{}", charged(&stage));
    }
    stage.call("getBalance", json!([wallet])).await;
    assert!((charged(&stage) - 7.0).abs() < f64::EPSILON, "{}", charged(&stage));
}

#[tokio::test]
async fn an_open_forwarded_call_ends_with_its_caller() {
    for way in WAYS {
        let stage = Stage::of(1, |config| {
            prices(config);
            config.auth.mode = AuthMode::Open;
            // Longer than any wait of the test.
            config.server.request_timeout = Duration::from_hours(1);
            config.pool.forward_timeout = Duration::from_hours(1);
        })
        .await;
        let wallet = stage.cluster.examples().wallets[0].to_string();
        let hold = stage.cluster.node(0).hold("getBalance");
        let caller = begin(&stage, way, &[], &call(1, "getBalance", &json!([wallet])));
        hold.arrived(1).await;
        let of_node = || stage.front().pool.members()[0].in_flight();
        assert_eq!(of_node(), 1);
        caller.abort();
        stage.until("the node's place is given back", || of_node() == 0).await;
        hold.release();
    }
}

#[tokio::test]
async fn hit_fetched_again_for_its_batch_costs_miss() {
    let stage = Stage::of(1, prices).await;
    let wallet = stage.cluster.examples().wallets[0].to_string();
    let account = json!([wallet, {"encoding": "base64", "commitment": "processed"}]);
    stage.call("getAccountInfo", account.clone()).await.result();
    let before = charged(&stage);
    let hold = stage.cluster.node(0).hold("getVoteAccounts");
    let calls = [call(1, "getAccountInfo", &account), call(2, "getVoteAccounts", &json!([]))];
    let (answers, ()) = tokio::join!(stage.post(json!(calls).to_string()), async {
        hold.arrived(1).await;
        stage.step_by(3).await;
        hold.release();
    });
    assert_eq!((answers.status, stage.upstream_calls()), (200, 3), "{}", answers.text);
    assert!((charged(&stage) - before - 6.0).abs() < f64::EPSILON, "{}", charged(&stage) - before);
}

#[tokio::test]
async fn quota_counts_calls_that_hang_up() {
    let stage = Stage::of(1, |config| {
        prices(config);
        config.plans.get_mut("dev").unwrap().daily_units = Some(100);
    })
    .await;
    let newest = stage.cluster.slot(Commitment::Finalized);
    let slots = (0..=newest).rev().filter(|slot| stage.cluster.has_block(*slot)).take(11).collect::<Vec<_>>();
    let node = stage.cluster.node(0);
    for (i, slot) in slots.iter().enumerate() {
        let body = call(1, "getBlock", &json!([slot, {"maxSupportedTransactionVersion": 0}]));
        if i == 10 {
            assert_eq!(stage.post(body.to_string()).await.status, 429);
            break;
        }
        hang_up(&stage, (WAYS[i % 3], &[]), ("getBlock", 1), &body, 10.0).await;
    }
    assert_eq!(node.calls("getBlock"), 10);
}
