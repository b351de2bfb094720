//! Nodes that cannot be followed, that stall or fall behind: callers notice nothing.

use std::time::Duration;

use serde_json::json;
use slotfront::methods::PerCommitment;
use slotfront_sim::{Fault, Node};
use slotfront_testkit::{TestGateway, TestGatewayBuilder};
use tokio::time::Instant;

use super::{CARRIED, checked_slot, following, on, step, tip};

/// Turns following on, and serves no cached answer beyond its limits of time and slots while a fresh one is
/// fetched.
fn strict(builder: TestGatewayBuilder<'_>) -> TestGatewayBuilder<'_> {
    builder.config(on).config(|config| config.cache.stale_while_revalidate = PerCommitment::uniform(0.0))
}

/// Waits until following pauses, and checks that cached accounts then expire by time and slots, as without
/// following.
async fn check_pause(prepare: impl Fn(&Node)) {
    let builder = strict(TestGateway::builder().nodes(1));
    let gateway = builder.prepare(|cluster| prepare(cluster.node(0))).start().await;
    gateway.until("following pauses", || gateway.front().followed.state().as_str() == "paused").await;
    let view = gateway.admin("/api/status").await.json()["status"]["follow"].clone();
    let reason = view["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("no usable node"), "{view}");
    let key = gateway.cluster.examples().nonce_account;
    let call = gateway.get_account(key).base64().confirmed();
    assert_eq!(call.send().await.cache_status(), "fwd=miss; stored");
    gateway.step_by(2).await;
    assert!(call.send().await.cache_status().starts_with("hit; ttl="));
    gateway.step_by(6).await;
    let reply = call.send().await;
    assert_eq!(reply.cache_status(), "fwd=stale; stored");
    assert_eq!(reply.result(), call.result_of(gateway.cluster.node(0)));
}

#[tokio::test]
async fn nodes_of_other_kinds_pause_following() {
    let with_member = json!({ "feature-set": 1, "solana-core": "4.0.0", "surfnet-version": "1.0.0" });
    tokio::join!(
        check_pause(|node| node.set_firedancer(true)),
        check_pause(|node| node.set_version("3.1.9")),
        check_pause(|node| node.set_version("4.5.0")),
        check_pause(|node| node.fault_on("getVersion", Fault::Result(with_member.clone()), None)),
        check_pause(|node| node.set_history(false)),
    );
}

#[tokio::test]
async fn refused_blocks_fail_no_calls() {
    let gateway = following(TestGateway::builder().nodes(1)).await;
    let node = gateway.cluster.node(0);
    node.fault_on("getBlock", Fault::Status429 { retry_after_s: 20 }, None);
    gateway.step_by(1).await;
    let refused = || gateway.metric(r#"slotfront_follow_blocks_total{result="failed"}"#);
    gateway.until("the node refuses a block", || refused() > 0).await;
    for key in gateway.cluster.examples().wallets.iter().take(8) {
        let reply = gateway.get_account(key).base64().confirmed().send().await;
        assert_eq!(reply.cache_status(), "fwd=miss; stored", "{key}");
    }
    let asked = node.calls("getBlock");
    node.clear_faults();
    let block = gateway.get_block(gateway.cluster.examples().block_with_v0).version_0().send().await;
    assert_eq!(block.cache_status(), "fwd=miss; stored", "the node is asked for blocks of callers");
    assert_eq!(node.calls("getBlock"), asked + 1, "the follower itself keeps quiet");
}

#[tokio::test]
async fn answers_of_other_kinds_are_not_carried() {
    let builder = strict(TestGateway::builder().nodes(2));
    let builder = builder.prepare(|cluster| cluster.node(0).set_firedancer(true));
    // Accounts are asked of the first node alone, and blocks of the second.
    let gateway = following(builder.config(|config| config.upstreams[1].tier = 1)).await;
    gateway.cluster.node(1).fault_on("getAccountInfo", Fault::Status(503), None);
    let key = gateway.cluster.examples().nonce_account;
    let call = gateway.get_account(key).base64().confirmed();
    for _ in 0..3 {
        let reply = call.send().await;
        assert!(reply.cache_status().starts_with("fwd="), "{}", reply.cache_status());
        checked_slot(&gateway, &key, &reply);
        step(&gateway, 6).await;
    }
    assert!(gateway.cluster.node(0).calls("getAccountInfo") >= 3);
}

#[tokio::test]
async fn stalled_node_is_passed_over() {
    let gateway = following(TestGateway::builder().nodes(2)).await;
    let key = gateway.cluster.examples().nonce_account;
    let call = gateway.get_account(key).base64().confirmed();
    call.send().await;
    for method in ["getBlocks", "getBlock"] {
        gateway.cluster.node(0).fault_on(method, Fault::Hang, None);
    }
    for _ in 0..3 {
        step(&gateway, 2).await;
        assert_eq!(call.send().await.cache_status(), CARRIED);
    }
    assert_eq!(gateway.cluster.nodes().iter().map(|node| node.calls("getAccountInfo")).sum::<u64>(), 1);
}

#[tokio::test]
async fn node_that_falls_behind_is_passed_over() {
    let gateway = following(TestGateway::builder().nodes(2)).await;
    let number = gateway.front().followed.number();
    gateway.cluster.node(0).set_lag(15);
    for _ in 0..3 {
        step(&gateway, 4).await;
    }
    assert_eq!(gateway.front().followed.number(), number, "one chain covers all blocks");
}

#[tokio::test]
async fn blocks_that_come_late_are_asked_for_again() {
    let gateway = following(TestGateway::builder().nodes(1)).await;
    // One chain covers all blocks, unless the machine stands still for so long that the node counts as behind.
    let next = async |fault: &Fault| {
        let (number, began) = (gateway.front().followed.number(), Instant::now());
        step(&gateway, 2).await;
        gateway.cluster.clear_faults();
        let is_one = gateway.front().followed.number() == number;
        assert!(is_one || began.elapsed() > Duration::from_secs(2), "{fault:?}");
    };
    let error = |code: i32| Fault::Error { code, message: "later".to_owned() };
    for fault in [
        error(-32_004),
        error(-32_014),
        error(-32_603),
        Fault::NullResult,
        Fault::Half,
        Fault::Truncated,
        Fault::Html,
        Fault::Reset,
        Fault::With(json!({ "rewards": [] })),
    ] {
        gateway.cluster.node(0).fault_on("getBlock", fault.clone(), Some(2));
        let before = tip(&gateway);
        next(&fault).await;
        assert!(tip(&gateway) > before, "{fault:?}");
    }
    for fault in [Fault::Result(json!([])), error(-32_603), Fault::Html] {
        gateway.cluster.node(0).fault_on("getBlocks", fault.clone(), Some(2));
        next(&fault).await;
    }
}
