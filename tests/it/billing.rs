//! The price of calls, including those whose callers do not wait for the answer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use slotfront::cache::{CallOptions, Charge, NoConditions, Payer, Price};
use slotfront::config::{AuthMode, Config, ListedSettings};
use slotfront::error::Error;
use slotfront::methods::{AnyMethod, Commitment, Group, SubscriptionMethod};
use slotfront::pool::CallerId;
use slotfront::telemetry::Trace;
use slotfront_sim::Fault;
use slotfront_testkit::{FORWARDED, PATIENCE, TestCall, TestGateway, TestRequest, forwarded_params};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// A method that is listed in some tests.
const LISTED: &str = "getAsset";

/// The way in which the gateway reads a request.
#[derive(Debug, Clone, Copy)]
enum Way {
    Http1,
    Http2,
}

const WAYS: [Way; 2] = [Way::Http1, Way::Http2];

/// Starts a call whose task can be aborted, as if its caller hung up.
fn begin(way: Way, request: TestRequest) -> JoinHandle<()> {
    let client = reqwest::Client::builder().no_proxy();
    let client = if matches!(way, Way::Http2) { client.http2_prior_knowledge() } else { client };
    let sending = request.client(&client.build().unwrap()).build().send();
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

/// Returns the number of requests in flight after the caller has gone. A forwarded call stays until it is
/// answered.
fn kept(method: &str) -> usize {
    usize::from(method == FORWARDED)
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
    config.units.by_method[AnyMethod::from_name(FORWARDED).unwrap().index()] = 7;
    config.units.hit_factor = 0.0;
    // A call stays under way while it is held, also on a machine that stands still.
    config.pool.attempt_timeout.fill(PATIENCE);
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

        let forwarded = gateway.call(FORWARDED, forwarded_params());
        hang_up(&gateway, way, (FORWARDED, 1), forwarded.request(), 7).await;

        // This minContextSlot is too far ahead to wait for, so the call goes to one node alone.
        let ahead = gateway.cluster.slot(Commitment::Finalized) + 1000;
        let alone = gateway.get_account(gateway.cluster.examples().wallets[0]).min_context_slot(ahead);
        hang_up(&gateway, way, ("getAccountInfo", 1), alone.request(), 1).await;
    }
}

#[tokio::test]
async fn subscribers_pay_for_every_look_at_a_node() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            prices(config);
            let method = AnyMethod::Subscription(SubscriptionMethod::Account);
            config.units.by_method[method.index()] = 3;
            config.plans.get_mut("dev").unwrap().subscriptions = 1;
        })
        .start()
        .await;
    let mut socket = gateway.socket().await;
    let wallets = gateway.cluster.examples().wallets;
    let calls: Vec<_> = wallets[..3]
        .iter()
        .map(ToString::to_string)
        .map(|key| json!({"jsonrpc": "2.0", "id": 1, "method": "accountSubscribe", "params": [key]}))
        .collect();
    socket.send(json!(calls).to_string()).await;
    let answers = socket.next().await.unwrap();
    let accepted = answers.as_array().unwrap().iter().filter(|answer| answer["result"].is_u64()).count();
    // All three were looked at before one of them took the only place.
    assert_eq!((accepted, gateway.cluster.node(0).calls("getAccountInfo")), (1, 3), "{answers}");
    assert_eq!(charged(&gateway), 9);
}

#[tokio::test]
async fn every_caller_of_a_shared_flight_pays() {
    let gateway = TestGateway::builder().nodes(1).config(prices).start().await;
    let hold = gateway.cluster.node(0).hold("getVoteAccounts");
    let request = gateway.get_votes().request();
    let leaves: Vec<_> = WAYS.map(|way| begin(way, request.clone())).into();
    gateway.until_in_flight(2).await;
    let stays = begin(Way::Http1, request);
    gateway.until_in_flight(3).await;
    leaves.iter().for_each(JoinHandle::abort);
    gateway.until_in_flight(1).await;
    hold.release();
    stays.await.unwrap();
    gateway.until("all are charged", || charged(&gateway) == 15).await;
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
    for (method, params) in [("getVoteAccounts", json!([])), (FORWARDED, forwarded_params())] {
        let node = gateway.cluster.node(0);
        node.fault_on(method, Fault::Status(503), None);
        let call = gateway.call(method, params);
        assert_eq!(call.send().await.status, 502);
        let (hold, open) = (node.hold(method), gateway.connections());
        let caller = begin(Way::Http1, call.request());
        hold.arrived(1).await;
        caller.abort();
        until_gone(&gateway, open, kept(method)).await;
        let failed = || {
            let result =
                |line: &&str| line.contains("upstream_requests_total") && line.contains("status_5xx");
            let metrics = gateway.front().metrics.render();
            metrics.lines().filter(result).find(|line| line.contains(method)).map(str::to_owned)
        };
        let before = failed();
        hold.release();
        gateway.until("the call has failed at the node", || failed() != before).await;
        node.clear_faults();
        assert_eq!(charged(&gateway), 0);
    }
    gateway.call(FORWARDED, forwarded_params()).send().await;
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
                config.list_method(LISTED, ListedSettings::of(Group::Provider));
                // These timeouts are longer than any wait of the test.
                config.server.request_timeout = Duration::from_hours(1);
                config.pool.attempt_timeout.fill(Duration::from_hours(1));
            })
            .start()
            .await;
        let hold = gateway.cluster.node(0).hold(LISTED);
        let caller = begin(way, gateway.call(LISTED, json!([])).request());
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
        hang_up(&gateway, WAYS[i % 2], ("getBlock", 1), block.request(), 10).await;
    }
    assert_eq!(node.calls("getBlock"), 10);
}

/// Makes the calls at the same time, and returns the HTTP statuses of the replies.
async fn at_once(calls: Vec<TestCall>) -> Vec<u16> {
    join_all(calls.iter().map(TestCall::send)).await.into_iter().map(|reply| reply.status).collect()
}

/// Returns the calls for the newest `n` blocks.
fn blocks(gateway: &TestGateway, n: usize) -> Vec<TestCall> {
    let newest = gateway.cluster.slot(Commitment::Finalized);
    let there = (0..=newest).rev().filter(|slot| gateway.cluster.has_block(*slot));
    there.take(n).map(|slot| gateway.get_block(slot).version_0()).collect()
}

fn daily(units: u64) -> impl FnOnce(&mut Config) {
    move |config| {
        let plan = config.plans.get_mut("dev").unwrap();
        (plan.daily_units, plan.max_batch) = (Some(units), None);
    }
}

#[tokio::test]
async fn answers_too_long_or_late_cost_a_miss() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            prices(config);
            config.pool.max_response = 64 << 10;
            config.pool.retries = 0;
            config.pool.attempt_timeout.fill(Duration::from_millis(300));
            config.server.request_timeout = Duration::from_millis(600);
        })
        .start()
        .await;
    let node = gateway.cluster.node(0);
    let mut expected = 0;
    for (method, params, price) in [("getVoteAccounts", json!([]), 5), (FORWARDED, forwarded_params(), 7)] {
        let call = gateway.call(method, params);
        for fault in [Fault::Huge(1 << 20), Fault::Hang] {
            let what = format!("{price} units for {method} with {fault:?}");
            node.fault_on(method, fault, None);
            let reply = call.send().await;
            assert!(matches!(reply.status, 502 | 504), "{what}: {}", reply.text);
            expected += price;
            gateway.until(&what, || charged(&gateway) == expected).await;
        }
    }
}

/// Returns a node's answer with an account whose data are `bytes` zeros, which are a third longer in base64.
fn long_account(slot: u64, bytes: usize) -> Fault {
    let data = [&*"A".repeat(bytes / 3 * 4), "base64"];
    let owner = "11111111111111111111111111111111";
    let value = json!({ "data": data, "executable": false, "lamports": 1, "owner": owner, "rentEpoch": u64::MAX, "space": bytes });
    Fault::Result(json!({ "context": { "slot": slot }, "value": value }))
}

#[tokio::test]
async fn each_further_mib_costs_a_plain_call() {
    let change = |config: &mut Config| {
        prices(config);
        config.units.hit_factor = 1.0;
        config.pool.max_response = 5 << 20;
    };
    let gateway = TestGateway::builder().nodes(1).config(change).start().await;
    let (node, wallets) = (gateway.cluster.node(0), gateway.cluster.examples().wallets);
    let slot = gateway.cluster.slot(Commitment::Finalized);
    node.fault_on("getAccountInfo", long_account(slot, 9 << 17), None);
    node.fault_on("getMultipleAccounts", Fault::Huge(200 << 20), None);
    node.fault_on(FORWARDED, Fault::Huge(3 << 20), None);
    let [account, other] = [wallets[0], wallets[1]].map(|wallet| gateway.get_account(wallet).base64());
    let slice = |account: &TestCall| account.clone().slice(0, 8);
    let mut expected = 0;
    for (what, call, cost) in [
        ("a miss of two MiB", account.request(), 2),
        ("a hit of two MiB", account.request(), 2),
        ("a short hit made of a long entry", slice(&account).request(), 1),
        ("a batch of two hits", gateway.batch([account.clone(), account.clone().id(2)]), 4),
        ("a miss for which a node has sent two MiB", slice(&other).request(), 2),
        ("an answer refused after five MiB", gateway.get_accounts(&wallets[..6]).request(), 6),
        ("the same again", gateway.get_accounts(&wallets[..6]).request(), 6),
        (
            "a forwarded call, for which a node has sent three MiB",
            gateway.call(FORWARDED, forwarded_params()).request(),
            10,
        ),
    ] {
        call.send().await;
        expected += cost;
        gateway.until(what, || charged(&gateway) >= expected).await;
        assert_eq!(charged(&gateway), expected, "{what}");
    }
}

/// docs/limits-and-units.md has this as an example.
#[tokio::test]
async fn six_of_the_largest_accounts_cost_65_units() {
    let change = |config: &mut Config| {
        let at_work = config.pool.max_response;
        prices(config);
        config.pool.max_response = at_work;
    };
    let gateway = TestGateway::builder().nodes(1).config(change).start().await;
    gateway.cluster.node(0).fault_on("getMultipleAccounts", Fault::Huge(84 << 20), None);
    let refused = gateway.get_accounts(&gateway.cluster.examples().wallets[..6]).send().await;
    assert_eq!((refused.status, refused.code()), (502, -32095), "{}", refused.text);
    gateway.until("it is charged", || charged(&gateway) >= 65).await;
    assert_eq!(charged(&gateway), 65);
}

#[tokio::test]
async fn no_answer_is_refused_for_its_length() {
    let gateway = TestGateway::builder().nodes(1).config(daily(2)).start().await;
    let slot = gateway.cluster.slot(Commitment::Finalized);
    gateway.cluster.node(0).fault_on("getAccountInfo", long_account(slot, 3 << 20), None);
    let account = gateway.get_account(gateway.cluster.examples().wallets[0]).base64();
    assert_eq!(
        (account.send().await.status, charged(&gateway)),
        (200, 5),
        "over the quota by the last answer"
    );
    assert_eq!(account.send().await.status, 429);
}

/// A payer that records the units of each settled call.
#[derive(Default)]
struct TestPayer(Mutex<Vec<f64>>);

impl Payer for TestPayer {
    fn settle(&self, _: Price, units: f64) {
        self.0.lock().unwrap().push(units);
    }
}

#[tokio::test]
async fn late_fetch_is_paid_by_its_callers() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let hold = gateway.cluster.node(0).hold("getVoteAccounts");
    let payer = Arc::<TestPayer>::default();
    let charge = Charge::new(
        Arc::clone(&payer) as _,
        Price { method: AnyMethod::Send, miss: 5.0, mib: 1.0, hit_factor: 0.0 },
    );
    let options = CallOptions {
        bypass: false,
        asked_at: Instant::now(),
        timeout: Duration::from_millis(50),
        coding: None,
        caller: CallerId::default(),
        trace: Trace::default(),
    };
    let (query, cache) = (gateway.get_votes().query(), &gateway.front().cache);
    let late = cache.answer(&query, options, &charge, &NoConditions).await.unwrap_err();
    assert!(matches!(late, Error::TimedOut(_)), "{late:?}");
    drop(charge);
    hold.arrived(1).await;
    assert!(payer.0.lock().unwrap().is_empty(), "the fetch goes on");
    hold.release();
    gateway.until("the fetch is paid", || *payer.0.lock().unwrap() == [5.0]).await;
}

#[tokio::test]
async fn who_starts_a_refetch_pays_a_miss() {
    let gateway = TestGateway::builder().nodes(1).config(prices).start().await;
    let account = gateway.get_account(gateway.cluster.examples().wallets[0]);
    let first = account.send().await.slot();
    let before = charged(&gateway);
    while gateway.cluster.slot(Commitment::Finalized) <= first + 12 {
        gateway.step_by(1).await;
    }
    let hold = gateway.cluster.node(0).hold("getAccountInfo");
    for _ in 0..3 {
        assert_eq!(account.send().await.cache_status(), "hit; ttl=0; detail=stale");
    }
    hold.release();
    gateway.until("the refetch is charged", || charged(&gateway) == before + 1).await;
    assert_eq!(gateway.upstream_calls(), 2);
}

#[tokio::test]
async fn calls_at_once_stay_within_the_quota() {
    for (method, passing, units) in [("getBlock", 10, 100), (FORWARDED, 14, 98)] {
        let change = |config: &mut Config| {
            prices(config);
            daily(100)(config);
        };
        let gateway = TestGateway::builder().nodes(1).config(change).start().await;
        let forwarded = gateway.call(FORWARDED, forwarded_params());
        let calls = if method == "getBlock" { blocks(&gateway, 30) } else { vec![forwarded; 30] };
        let hold = gateway.cluster.node(0).hold(method);
        let (statuses, ()) = tokio::join!(at_once(calls), async {
            hold.arrived(passing).await;
            let limited = r#"slotfront_key_limited_total{reason="day",key="dev"}"#;
            gateway.until_metric(limited, 30 - passing as u64).await;
            hold.release();
        });
        let with = |status: u16| statuses.iter().filter(|got| **got == status).count();
        assert_eq!((with(200), with(429)), (passing, 30 - passing), "{method}");
        assert_eq!(charged(&gateway), units);
    }
}

#[tokio::test]
async fn batch_elements_reserve_units_one_by_one() {
    for (quota, passing) in [(0, 0), (1, 1), (7, 7)] {
        let gateway = TestGateway::builder().nodes(1).config(daily(quota)).start().await;
        let account = gateway.get_account(gateway.cluster.examples().wallets[0]);
        let answers = gateway.batch((0..100).map(|id| account.clone().id(id))).send().await.json();
        let (passed, refused): (Vec<_>, Vec<_>) =
            answers.as_array().unwrap().iter().partition(|answer| answer.get("result").is_some());
        assert_eq!((passed.len(), refused.len()), (passing, 100 - passing), "{answers}");
        assert!(refused.iter().all(|answer| answer["error"]["code"] == -32092), "{answers}");
        assert_eq!(charged(&gateway), passing as u64);
    }
}

#[tokio::test]
async fn call_dearer_than_the_rest_is_refused() {
    let gateway = TestGateway::builder().nodes(1).config(daily(15)).start().await;
    let blocks = blocks(&gateway, 2);
    blocks[0].send().await.result();
    for block in &blocks {
        let refused = block.send().await;
        assert_eq!((refused.status, refused.header("x-slotfront-error")), (429, "-32092 day"));
        assert!(refused.header("ratelimit").contains("\"day\";r=5"), "{:?}", refused.headers);
    }
    assert_eq!(gateway.get_nodes().send().await.status, 200, "five units are left for cheaper calls");
}

#[tokio::test]
async fn units_of_failed_calls_come_back() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            daily(10)(config);
            config.pool.retries = 0;
        })
        .start()
        .await;
    let node = gateway.cluster.node(0);
    let block = blocks(&gateway, 1).remove(0);
    node.fault_on("getBlock", Fault::Status(503), None);
    for _ in 0..3 {
        assert_eq!(block.send().await.status, 502);
    }
    // A caller who hangs up gives back what was reserved once its fetch has failed.
    let (hold, open) = (node.hold("getBlock"), gateway.connections());
    let caller = begin(Way::Http1, block.request());
    hold.arrived(1).await;
    caller.abort();
    until_gone(&gateway, open, 0).await;
    let waiting = gateway.get_nodes().send().await;
    assert_eq!((waiting.status, waiting.header("retry-after")), (429, "1"), "units may come back soon");
    assert!(waiting.header("ratelimit").contains("\"day\";r=0"), "{:?}", waiting.headers);
    hold.release();
    let left = || async { gateway.get_nodes().send().await.status == 200 };
    while !left().await {}
}

#[tokio::test]
async fn refusals_cost_what_nodes_did_for_them() {
    for (limit, code) in [(LimitOf::Batch, -32093), (LimitOf::Budget, -32094)] {
        let gateway = TestGateway::builder()
            .nodes(1)
            .config(|config| match limit {
                LimitOf::Batch => config.pool.max_response = 20_000,
                LimitOf::Budget => config.server.max_outgoing = 20_000,
            })
            .start()
            .await;
        let block = blocks(&gateway, 1).remove(0);
        block.send().await.result();
        let before = charged(&gateway);
        let answers = gateway.batch(vec![block; 20]).send().await.json();
        let (there, refused): (Vec<_>, Vec<_>) =
            answers.as_array().unwrap().iter().partition(|answer| answer.get("result").is_some());
        assert!(!there.is_empty() && !refused.is_empty(), "{answers}");
        assert!(refused.iter().all(|answer| answer["error"]["code"] == code), "{answers}");
        assert_eq!(charged(&gateway), before + 10 * there.len() as u64, "{code}");

        // Where nodes had to be asked, they have worked for the refused answers, too.
        let before = charged(&gateway);
        let answers = gateway.batch(blocks(&gateway, 11).into_iter().skip(1)).send().await;
        assert!(answers.text.contains(&code.to_string()), "{}", answers.text);
        assert_eq!(charged(&gateway), before + 100, "{code}");
    }
}

#[tokio::test]
async fn calls_over_a_quota_count_towards_the_rate() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            daily(1)(config);
            let plan = config.plans.get_mut("dev").unwrap();
            (plan.rps, plan.burst) = (1, 1000);
        })
        .start()
        .await;
    let nodes = gateway.get_nodes();
    assert_eq!(nodes.send().await.status, 200);
    let answers = gateway.batch((0..100).map(|id| nodes.clone().id(id))).send().await;
    let left: u64 = answers
        .header("ratelimit")
        .strip_prefix("\"rate\";r=")
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(left < 950, "{left} of 1000 calls are left after 101");
    assert_eq!(charged(&gateway), 1);
}

/// The limit that refuses some answers of a batch.
#[derive(Debug, Clone, Copy)]
enum LimitOf {
    Batch,
    Budget,
}
