//! Hedging: a second call beside a slow first one. The tests check which call wins, what the second call costs,
//! and which calls are not hedged.

use std::time::Duration;

use slotfront::breaker::BreakerState;
use slotfront::config::Hedge;
use slotfront::error::Error;
use slotfront::pool::{PoolReply, UpstreamRequest};
use slotfront::telemetry::HedgeResult;
use slotfront_sim::Fault;
use slotfront_testkit::{TestGateway, upstream_request};
use tokio::time::Instant;

/// The latency of a slow node: far above most answers, and far below a timeout.
const SLOW: Duration = Duration::from_millis(150);

/// Returns a gateway over two nodes that prefers the first one, and knows the usual duration of a call.
async fn warmed_up(hedge: Option<Hedge>) -> TestGateway {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(|config| {
            config.pool.hedge = hedge;
            config.upstreams[1].tier = 1;
        })
        .start()
        .await;
    // These calls are not hedged, so no late hedge arrives at the second node during the test.
    for _ in 0..64 {
        ask(&gateway, true).await;
    }
    gateway
}

async fn ask(gateway: &TestGateway, alone: bool) -> PoolReply {
    call(gateway, alone).await.unwrap()
}

async fn call(gateway: &TestGateway, alone: bool) -> Result<PoolReply, Error> {
    let query = gateway.get_account(gateway.cluster.examples().wallets[0]).query();
    gateway.front().pool.call(&UpstreamRequest { one_node: alone, ..upstream_request(query) }).await
}

/// Returns the number of calls at the second node, and the hedges by result: won, lost, failed, over budget.
fn cost(gateway: &TestGateway) -> (u64, [u64; 4]) {
    let hedges = &gateway.front().metrics.upstream_hedges;
    let count = |result| hedges.at(result).get();
    let asked = gateway.cluster.node(1).calls("getAccountInfo");
    (asked, [HedgeResult::Won, HedgeResult::Lost, HedgeResult::Failed, HedgeResult::OverBudget].map(count))
}

/// Returns settings that send a hedge after the method's median latency. A busy machine changes the median
/// little. `budget` is the highest share of calls that may be hedged.
fn on(budget: f64) -> Hedge {
    Hedge { quantile: 0.5, budget }
}

#[tokio::test]
async fn hedge_wins_without_blaming_the_first_node() {
    let gateway = warmed_up(Some(on(1.0))).await;
    let (before, _) = cost(&gateway);
    let won_before = cost(&gateway).1[0];
    let held = gateway.cluster.node(0).hold("getAccountInfo");
    let (reply, ()) = futures_util::future::join(ask(&gateway, false), held.arrived(1)).await;
    assert_eq!(reply.node, 1);
    gateway.until("the loser's connection is closed", || held.waiting() == 0).await;
    let (asked, [won, ..]) = cost(&gateway);
    assert_eq!((asked - before, won - won_before), (1, 1));
    let members = gateway.front().pool.members();
    assert_eq!((members[0].breaker(Instant::now()), members[0].counts().1), (BreakerState::Closed, 0));
    assert_eq!(members[0].in_flight(), 0);
}

#[tokio::test]
async fn beaten_node_counts_as_slow() {
    let gateway = warmed_up(Some(on(1.0))).await;
    let _held = gateway.cluster.node(0).hold("getAccountInfo");
    gateway.cluster.node(1).fault_on("getAccountInfo", Fault::Latency(SLOW), None);
    assert_eq!(ask(&gateway, false).await.node, 1);
    // The recorded latency fades with time, so it may be somewhat below `SLOW`.
    assert!(gateway.front().pool.members()[0].latency() >= SLOW / 2);
}

#[tokio::test]
async fn first_attempt_may_still_win() {
    let gateway = warmed_up(Some(on(1.0))).await;
    gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Latency(SLOW), None);
    gateway.cluster.node(1).fault_on("getAccountInfo", Fault::Latency(SLOW * 10), None);
    let lost = cost(&gateway).1[1];
    assert_eq!(ask(&gateway, false).await.node, 0);
    gateway.cluster.node(1).clear_faults();
    gateway.cluster.node(1).fault_on("getAccountInfo", Fault::Status(500), None);
    assert_eq!(ask(&gateway, false).await.node, 0);
    assert_eq!(cost(&gateway).1[1] - lost, 2);
}

#[tokio::test]
async fn two_failed_attempts_continue_as_unhedged() {
    let gateway = warmed_up(Some(on(1.0))).await;
    gateway.cluster.node(1).fault_on("getAccountInfo", Fault::Status(500), None);
    gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Latency(SLOW), None);
    let failed = cost(&gateway).1[2];
    gateway.cluster.node(0).set_full_api(false);
    let Err(Error::NoUpstream(attempts)) = call(&gateway, false).await else { panic!("an answer") };
    let mut reasons: Vec<_> = attempts.iter().map(|a| (a.upstream.as_str(), a.reason.as_str())).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, [("node-0", "incapable"), ("node-1", "status_5xx")]);
    assert_eq!(cost(&gateway).1[2] - failed, 1);
}

#[tokio::test]
async fn hedges_are_a_share_of_all_calls() {
    let gateway = warmed_up(Some(on(0.05))).await;
    gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Latency(SLOW), None);
    let calls = 30;
    for _ in 0..calls {
        ask(&gateway, false).await;
    }
    let (asked, [won, lost, failed, over_budget]) = cost(&gateway);
    assert!(asked <= (64 + calls) / 20, "{asked}");
    assert!(asked <= won + lost + failed, "a hedge may be given up before it reaches the node");
    assert!(over_budget > 0);
}

#[tokio::test]
async fn hedging_is_skipped_when_off_or_pointless() {
    let trickle = Fault::Trickle(SLOW / 10);
    for (name, hedge, fault, alone) in [
        ("off", None, Fault::Latency(SLOW), false),
        ("alone", Some(on(1.0)), Fault::Latency(SLOW), true),
        ("arriving", Some(Hedge { quantile: 0.95, ..on(1.0) }), trickle, false),
    ] {
        let gateway = warmed_up(hedge).await;
        let (before, _) = cost(&gateway);
        gateway.cluster.node(0).fault_on("getAccountInfo", fault, None);
        // Three calls are made, so that a single answer that is late by chance does not fail the test.
        let mut by_first = 0;
        for _ in 0..3 {
            by_first += usize::from(ask(&gateway, alone).await.node == 0);
        }
        let (asked, _) = cost(&gateway);
        assert!(asked - before <= u64::from(name == "arriving"), "{name}: {}", asked - before);
        assert!(by_first >= 2, "{name}");
    }
}
