//! The price of calls, including those whose callers do not wait for the answer.

use std::time::Duration;

use serde_json::json;
use slotfront::config::{AuthMode, Config};
use slotfront::methods::{Commitment, PassthroughMethod};
use slotfront_sim::Fault;
use slotfront_testkit::{TestGateway, TestRequest};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

/// The way in which the gateway reads a request.
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
fn begin(way: Way, request: TestRequest) -> JoinHandle<()> {
    let client = reqwest::Client::builder().no_proxy();
    let client = if matches!(way, Way::Http2) { client.http2_prior_knowledge() } else { client };
    let request = request.client(&client.build().unwrap());
    let hyper = matches!(way, Way::Hyper);
    let request = if hyper { request.header("origin", "http://page.example") } else { request };
    let sending = request.build().send();
    TaskTracker::new().spawn(async move {
        let _ = sending.await.unwrap().bytes().await;
    })
}

/// Returns the units that the key `dev` was charged.
fn charged(gateway: &TestGateway) -> u64 {
    gateway.metric(r#"slotfront_key_units_total{key="dev"}"#)
}

/// Waits until at most `before` connections are open, and exactly `kept` requests are in flight.
async fn until_gone(gateway: &TestGateway, before: i64, kept: usize) {
    let has_gone = || gateway.connections() <= before && gateway.in_flight() == kept;
    gateway.until("the caller has gone", has_gone).await;
}

/// Returns the number of requests in flight after the caller has gone. A passthrough call stays until it is
/// answered.
fn kept(method: &str) -> usize {
    usize::from(method == "getBalance")
}

/// Makes a call, hangs up once `calls` of `method` are at the node, and waits until `units` are charged.
async fn hang_up(
    gateway: &TestGateway,
    way: Way,
    (method, calls): (&str, usize),
    request: TestRequest,
    units: u64,
) {
    let (before, open) = (charged(gateway), gateway.connections());
    let hold = gateway.cluster.node(0).hold(method);
    let caller = begin(way, request);
    hold.arrived(calls).await;
    caller.abort();
    until_gone(gateway, open, kept(method)).await;
    assert_eq!(charged(gateway), before, "no fetch has landed yet");
    hold.release();
    let what = format!("{units} units are charged for {method} by {way:?}");
    let is_charged = || charged(gateway) == before + units;
    gateway.until(&what, || is_charged() && gateway.in_flight() == 0).await;
}

fn prices(config: &mut Config) {
    config.passthrough = vec![PassthroughMethod::from_name("getBalance").unwrap()];
    config.units.by_passthrough[PassthroughMethod::from_name("getBalance").unwrap().index()] = 7;
    config.units.hit_factor = 0.0;
    config.plans.get_mut("dev").unwrap().bypass_cache = true;
}

#[tokio::test]
async fn a_caller_who_hangs_up_has_paid() {
    for way in WAYS {
        let gateway = TestGateway::builder().nodes(1).config(prices).start().await;
        let votes = ("getVoteAccounts", 1);
        let one = gateway.get_votes().confirmed();
        hang_up(&gateway, way, votes, one.request(), 5).await;

        let batch = gateway.batch([
            gateway.get_votes().finalized(),
            gateway.get_votes().processed().id(2),
            gateway.get_votes().confirmed().id(3),
        ]);
        hang_up(&gateway, way, ("getVoteAccounts", 2), batch, 10).await;

        hang_up(&gateway, way, votes, one.no_cache().request(), 5).await;

        let wallet = gateway.cluster.examples().wallets[0];
        let forwarded = gateway.call("getBalance", json!([wallet.to_string()]));
        hang_up(&gateway, way, ("getBalance", 1), forwarded.request(), 7).await;

        // This minContextSlot is too far ahead to wait for, so the call goes to one node alone.
        let ahead = gateway.cluster.slot(Commitment::Finalized) + 1000;
        let alone = gateway.get_account(wallet).min_context_slot(ahead);
        hang_up(&gateway, way, ("getAccountInfo", 1), alone.request(), 1).await;
    }
}

#[tokio::test]
async fn every_caller_of_a_shared_flight_pays() {
    let gateway = TestGateway::builder().nodes(1).config(prices).start().await;
    let hold = gateway.cluster.node(0).hold("getVoteAccounts");
    let request = gateway.get_votes().request();
    let leaves: Vec<_> = WAYS.map(|way| begin(way, request.clone())).into();
    gateway.until_in_flight(3).await;
    let stays = begin(Way::Plain, request);
    gateway.until_in_flight(4).await;
    leaves.iter().for_each(JoinHandle::abort);
    gateway.until_in_flight(1).await;
    hold.release();
    stays.await.unwrap();
    gateway.until("all are charged", || charged(&gateway) == 20).await;
    assert_eq!(gateway.upstream_calls(), 1);
}

#[tokio::test]
async fn a_call_that_fails_costs_nothing() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            prices(config);
            config.pool.retries = 0;
        })
        .start()
        .await;
    let wallet = gateway.cluster.examples().wallets[0].to_string();
    for (method, params) in [("getVoteAccounts", json!([])), ("getBalance", json!([wallet]))] {
        let node = gateway.cluster.node(0);
        node.fault_on(method, Fault::Status(503), None);
        let call = gateway.call(method, params);
        assert_eq!(call.send().await.status, 502);
        let (hold, open) = (node.hold(method), gateway.connections());
        let caller = begin(Way::Plain, call.request());
        hold.arrived(1).await;
        caller.abort();
        until_gone(&gateway, open, kept(method)).await;
        let failed = || {
            let result =
                |line: &&str| line.contains("upstream_requests_total") && line.contains("status_5xx");
            let metrics = gateway.front().metrics.render();
            let of = if method == "getBalance" { "other" } else { method };
            metrics.lines().filter(result).find(|line| line.contains(of)).map(str::to_owned)
        };
        let before = failed();
        hold.release();
        gateway.until("the call has failed at the node", || failed() != before).await;
        node.clear_faults();
        assert_eq!(charged(&gateway), 0);
    }
    gateway.call("getBalance", json!([wallet])).send().await;
    assert_eq!(charged(&gateway), 7);
}

#[tokio::test]
async fn an_open_forwarded_call_ends_with_its_caller() {
    for way in WAYS {
        let gateway = TestGateway::builder()
            .nodes(1)
            .config(|config| {
                prices(config);
                config.auth.mode = AuthMode::Open;
                // These timeouts are longer than any wait of the test.
                config.server.request_timeout = Duration::from_hours(1);
                config.pool.forward_timeout = Duration::from_hours(1);
            })
            .start()
            .await;
        let wallet = gateway.cluster.examples().wallets[0].to_string();
        let hold = gateway.cluster.node(0).hold("getBalance");
        let caller = begin(way, gateway.call("getBalance", json!([wallet])).request());
        hold.arrived(1).await;
        let of_node = || gateway.front().pool.members()[0].in_flight();
        assert_eq!(of_node(), 1);
        caller.abort();
        gateway.until("the call at the node has ended", || of_node() == 0).await;
        hold.release();
    }
}

#[tokio::test]
async fn hit_fetched_again_for_its_batch_costs_miss() {
    let gateway = TestGateway::builder().nodes(1).config(prices).start().await;
    let account = gateway.get_account(gateway.cluster.examples().wallets[0]).processed().base64();
    account.send().await.result();
    let before = charged(&gateway);
    let hold = gateway.cluster.node(0).hold("getVoteAccounts");
    let batch = gateway.batch([account, gateway.get_votes().id(2)]);
    let (answers, ()) = tokio::join!(batch.send(), async {
        hold.arrived(1).await;
        gateway.step_by(3).await;
        hold.release();
    });
    assert_eq!((answers.status, gateway.upstream_calls()), (200, 3), "{}", answers.text);
    assert_eq!(charged(&gateway), before + 6);
}

#[tokio::test]
async fn quota_counts_calls_that_hang_up() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            prices(config);
            config.plans.get_mut("dev").unwrap().daily_units = Some(100);
        })
        .start()
        .await;
    let newest = gateway.cluster.slot(Commitment::Finalized);
    let slots =
        (0..=newest).rev().filter(|slot| gateway.cluster.has_block(*slot)).take(11).collect::<Vec<_>>();
    let node = gateway.cluster.node(0);
    for (i, slot) in slots.iter().enumerate() {
        let block = gateway.get_block(*slot).version_0();
        if i == 10 {
            assert_eq!(block.send().await.status, 429);
            break;
        }
        hang_up(&gateway, WAYS[i % 3], ("getBlock", 1), block.request(), 10).await;
    }
    assert_eq!(node.calls("getBlock"), 10);
}
