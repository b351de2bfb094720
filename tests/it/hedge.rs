//! Hedging: a second call beside a slow first one, its winner, its cost, and the calls that are not hedged.

use std::time::Duration;

use serde_json::json;
use slotfront::breaker::BreakerState;
use slotfront::config::Hedge;
use slotfront::error::Error;
use slotfront::jsonrpc::Params;
use slotfront::methods::{Method, Profile, Query};
use slotfront::pool::{CallContext, PoolReply, UpstreamRequest};
use slotfront_sim::Fault;
use tokio::time::Instant;

use crate::harness::Stage;

/// Far slower than most answers, and far from a hang.
const SLOW: Duration = Duration::from_millis(150);

/// Returns a gateway over two nodes that prefers the first one and has learned the usual duration of a call.
async fn stage(hedge: Option<Hedge>) -> Stage {
    let stage = Stage::of(2, |config| {
        config.pool.hedge = hedge;
        config.upstreams[1].tier = 1;
    })
    .await;
    for _ in 0..64 {
        ask(&stage, false).await;
    }
    stage
}

async fn ask(stage: &Stage, alone: bool) -> PoolReply {
    call(stage, alone).await.unwrap()
}

async fn call(stage: &Stage, alone: bool) -> Result<PoolReply, Error> {
    let params = json!([stage.cluster.examples().wallets[0].to_string()]).to_string();
    let query = Query::parse(Method::GetAccountInfo, &Params::Array(params.into()), Profile::Node).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    stage
        .front()
        .pool
        .call(&UpstreamRequest {
            query,
            floor: None,
            prefer: None,
            alone,
            context: CallContext::own(deadline),
        })
        .await
}

/// Returns the last node's calls, and the hedges by result: won, lost, failed, over budget.
async fn cost(stage: &Stage) -> (u64, [u64; 4]) {
    let metrics = stage.admin("/metrics").await.text;
    let count = |result: &str| {
        let series = format!("slotfront_upstream_hedges_total{{result=\"{result}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&series)).map_or(0, |n| n.parse().unwrap())
    };
    let asked = stage.cluster.node(1).calls("getAccountInfo");
    (asked, ["won", "lost", "failed", "over_budget"].map(count))
}

/// Hedges after the median of the answers so far, which a busy machine moves little.
fn on(budget: f64) -> Hedge {
    Hedge { quantile: 0.5, budget }
}

#[tokio::test]
async fn hedge_wins_without_blaming_the_first_node() {
    let stage = stage(Some(on(1.0))).await;
    let (before, _) = cost(&stage).await;
    let won_before = cost(&stage).await.1[0];
    let held = stage.cluster.node(0).hold("getAccountInfo");
    let (reply, ()) = futures_util::future::join(ask(&stage, false), held.arrived(1)).await;
    assert_eq!(reply.node, 1);
    stage.until("the loser's connection is closed", || held.waiting() == 0).await;
    let (asked, [won, ..]) = cost(&stage).await;
    assert_eq!((asked - before, won - won_before), (1, 1));
    let members = stage.front().pool.members();
    assert_eq!((members[0].breaker(Instant::now()), members[0].counts().1), (BreakerState::Closed, 0));
    assert_eq!(members[0].in_flight(), 0);
}

#[tokio::test]
async fn first_attempt_may_still_win() {
    let stage = stage(Some(on(1.0))).await;
    stage.cluster.node(0).fault_on("getAccountInfo", Fault::Latency(SLOW), None);
    stage.cluster.node(1).fault_on("getAccountInfo", Fault::Latency(SLOW * 10), None);
    let lost = cost(&stage).await.1[1];
    assert_eq!(ask(&stage, false).await.node, 0);
    stage.cluster.node(1).clear_faults();
    stage.cluster.node(1).fault_on("getAccountInfo", Fault::Status(500), None);
    assert_eq!(ask(&stage, false).await.node, 0);
    assert_eq!(cost(&stage).await.1[1] - lost, 2);
}

#[tokio::test]
async fn two_failed_attempts_continue_as_unhedged() {
    let stage = stage(Some(on(1.0))).await;
    stage.cluster.node(1).fault_on("getAccountInfo", Fault::Status(500), None);
    stage.cluster.node(0).fault_on("getAccountInfo", Fault::Latency(SLOW), None);
    let failed = cost(&stage).await.1[2];
    stage.cluster.node(0).set_full_api(false);
    let Err(Error::NoUpstream(attempts)) = call(&stage, false).await else { panic!("an answer") };
    let mut reasons: Vec<_> = attempts.iter().map(|a| (a.upstream.as_str(), a.reason.as_str())).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, [("node-0", "incapable"), ("node-1", "status_5xx")]);
    assert_eq!(cost(&stage).await.1[2] - failed, 1);
}

#[tokio::test]
async fn hedges_are_a_share_of_all_calls() {
    let stage = stage(Some(on(0.05))).await;
    stage.cluster.node(0).fault_on("getAccountInfo", Fault::Latency(SLOW), None);
    let calls = 30;
    for _ in 0..calls {
        ask(&stage, false).await;
    }
    let (asked, [won, lost, failed, over_budget]) = cost(&stage).await;
    assert!(asked <= (64 + calls) / 20, "{asked}");
    assert!(asked <= won + lost + failed, "one may be given up before it has arrived");
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
        let stage = stage(hedge).await;
        let (before, _) = cost(&stage).await;
        stage.cluster.node(0).fault_on("getAccountInfo", fault, None);
        // Several calls, so that a response that was late by chance does not count.
        let mut by_first = 0;
        for _ in 0..3 {
            by_first += usize::from(ask(&stage, alone).await.node == 0);
        }
        let (asked, _) = cost(&stage).await;
        assert!(asked - before <= u64::from(name == "arriving"), "{name}: {}", asked - before);
        assert!(by_first >= 2, "{name}");
    }
}
