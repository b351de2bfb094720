//! The follower: which nodes it asks for blocks, and when it begins anew or pauses.

use std::time::Duration;

use serde_json::json;
use slotfront::config::Config;
use slotfront::follow::{FollowState, PauseReason};
use slotfront::methods::Commitment;
use slotfront_sim::{Cluster, Fault, Settings};
use slotfront_testkit::{TestCluster, TestGateway, TestGatewayBuilder};
use tokio::time::Instant;

use super::{on, restarts};

/// Prepares a gateway with following turned on.
fn following<'a>(nodes: usize) -> TestGatewayBuilder<'a> {
    TestGateway::builder().nodes(nodes).config(on)
}

fn tip(gateway: &TestGateway) -> u64 {
    gateway.metric("slotfront_follow_tip_slot")
}

/// Waits until the followed chain has reached the cluster's newest confirmed slot.
async fn until_caught_up(gateway: &TestGateway, cluster: &Cluster) {
    gateway.until("the chain is followed", || tip(gateway) == cluster.slot(Commitment::Confirmed)).await;
}

/// Lets one more block become confirmed, and waits until it is followed.
async fn follow_one_block(gateway: &TestGateway) {
    until_caught_up(gateway, &gateway.cluster).await;
    let before = gateway.cluster.slot(Commitment::Confirmed);
    while gateway.cluster.slot(Commitment::Confirmed) == before {
        gateway.cluster.step();
    }
    until_caught_up(gateway, &gateway.cluster).await;
}

#[tokio::test]
async fn tip_follows_the_confirmed_slot() {
    let gateway = following(2).start().await;
    until_caught_up(&gateway, &gateway.cluster).await;
    gateway.cluster.step_by(10);
    until_caught_up(&gateway, &gateway.cluster).await;
    let status = gateway.admin("/api/status").await.json();
    let follow = &status["status"]["follow"];
    assert_eq!((&follow["state"], &follow["serves"]), (&json!("following"), &json!(true)));
    assert_eq!((&follow["tip"], &follow["lag_slots"]), (&json!(tip(&gateway)), &json!(0)));
    assert_eq!(gateway.metric("slotfront_follow_state"), 2);
    let metrics = gateway.admin("/metrics").await.text;
    let restarts = metrics.lines().filter(|line| line.starts_with("slotfront_follow_restarts_total{"));
    assert!(restarts.clone().count() > 5 && restarts.clone().all(|line| line.ends_with(" 0")), "{metrics}");
}

#[tokio::test]
async fn only_suitable_nodes_are_asked_for_blocks() {
    let prepare = |cluster: &Cluster| {
        cluster.node(0).set_firedancer(true);
        cluster.node(1).set_version("4.6.0");
        cluster.node(2).set_history(false);
    };
    let gateway = following(4).prepare(prepare).start().await;
    follow_one_block(&gateway).await;
    let pool = &gateway.front().pool;
    assert_eq!([0, 1, 2, 3].map(|node| pool.is_followable(node)), [false, false, true, true]);
    // Node 2 lists its blocks, so perhaps node 3 is asked for the blocks alone.
    let methods = ["getBlocks", "getBlock"];
    let is_asked = |node| methods.iter().any(|method| gateway.cluster.node(node).calls(method) > 0);
    assert_eq!([0, 1, 3].map(is_asked), [false, false, true]);
}

#[tokio::test]
async fn named_upstreams_alone_are_asked() {
    let gateway = following(2).config(|config| config.follow.upstreams = vec!["node-1".into()]).start().await;
    follow_one_block(&gateway).await;
    assert_eq!(gateway.cluster.node(0).calls("getBlocks"), 0);
}

#[tokio::test]
async fn another_cluster_is_followed_anew() {
    let gateway = following(1).start().await;
    until_caught_up(&gateway, &gateway.cluster).await;
    let other = Cluster::new(Settings { seed: 2, ..TestCluster::settings(1) });
    other.step_by(7);
    let other = gateway.cluster.replace(other).await;
    until_caught_up(&gateway, &other).await;
    // The gateway may notice the first new block before it notices the new cluster.
    let reasons = ["cluster", "fork", "gap"].map(|reason| restarts(&gateway, reason));
    assert!(reasons.iter().sum::<u64>() > 0, "{reasons:?}");
}

#[tokio::test]
async fn refused_blocks_open_no_breaker() {
    let gateway = following(1).start().await;
    until_caught_up(&gateway, &gateway.cluster).await;
    gateway.cluster.node(0).fault_on("getBlock", Fault::Status(500), Some(6));
    follow_one_block(&gateway).await;
    assert_eq!(gateway.metric(r#"slotfront_follow_blocks_total{result="failed"}"#), 6);
    let view = gateway.admin("/api/upstreams").await.json();
    let node = &view["upstreams"][0];
    assert_eq!((&node["failures"], &node["breaker"]), (&json!(0), &json!("closed")));
    assert_eq!(restarts(&gateway, "gap"), 0);
}

#[tokio::test]
async fn changed_nodes_end_a_pause() {
    let gateway = following(2).config(|config| config.upstreams.truncate(1)).start().await;
    until_caught_up(&gateway, &gateway.cluster).await;
    let paused_at = Instant::now();
    let unsupported =
        Fault::Error { code: -32015, message: "Transaction version (1) is not supported".into() };
    gateway.cluster.node(0).fault_on("getBlock", unsupported, None);
    gateway.cluster.step_by(8);
    let is = |state: FollowState| gateway.front().followed.state() == state;
    gateway.until("following pauses", || is(FollowState::Paused(PauseReason::UnknownForm))).await;
    let upstreams = vec![gateway.cluster.upstream(1)];
    gateway.app.reload(&Config { upstreams, ..gateway.front().config.copy() }).unwrap();
    gateway.until("the other node is followed", || is(FollowState::Following)).await;
    assert!(paused_at.elapsed() < Duration::from_mins(1), "the pause is not waited for");
}
