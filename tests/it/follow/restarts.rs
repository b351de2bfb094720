//! The reasons for which following begins anew: each is counted, and every account is then fetched once more.

use std::time::Duration;

use serde_json::json;
use slotfront_sim::Fault;
use slotfront_testkit::TestGateway;
use tokio::time::Instant;

use super::{CARRIED, following, on, restarts, step, tip, until_tip};

/// Breaks the followed chain with `shatter`, and waits until a fresh start is counted for `reason`. Checks that a
/// carried account is then fetched again.
async fn check_restart(reason: &str, shatter: impl AsyncFn(&TestGateway)) {
    let builder = TestGateway::builder().nodes(1).config(|config| config.follow.max_gap = 8);
    let gateway = following(builder).await;
    let call = gateway.get_account(gateway.cluster.examples().nonce_account).base64().confirmed();
    let calls = || gateway.cluster.node(0).calls("getAccountInfo");
    call.send().await;
    step(&gateway, 5).await;
    assert_eq!((call.send().await.cache_status(), calls()), (CARRIED, 1), "{reason}");
    shatter(&gateway).await;
    gateway.until(&format!("{reason} is counted"), || restarts(&gateway, reason) > 0).await;
    gateway.cluster.clear_faults();
    until_tip(&gateway).await;
    step(&gateway, 6).await;
    let reply = call.send().await;
    assert_eq!((reply.result(), calls()), (call.result_of(gateway.cluster.node(0)), 2), "{reason}");
    step(&gateway, 6).await;
    assert_eq!((call.send().await.cache_status(), calls()), (CARRIED, 2), "{reason}");
}

#[tokio::test]
async fn broken_chains_are_replaced() {
    let faulty = async |gateway: &TestGateway, method: &str, fault: Fault| {
        gateway.cluster.fault_everywhere(method, &fault);
        gateway.step_by(2).await;
    };
    let listed = async |gateway: &TestGateway, slots: serde_json::Value| {
        gateway.cluster.fault_everywhere("getBlocks", &Fault::Result(slots));
    };
    let other_hash = json!({ "previousBlockhash": "11111111111111111111111111111111" });
    let other_parent = json!({ "parentSlot": 1 });
    let mid_epoch = json!({ "numRewardPartitions": 1 });
    tokio::join!(
        check_restart("gap", async |gateway| faulty(gateway, "getBlock", Fault::NullResult).await),
        check_restart("gap", async |gateway| {
            faulty(gateway, "getBlock", Fault::With(other_hash.clone())).await;
        }),
        check_restart("gap", async |gateway| {
            faulty(gateway, "getBlock", Fault::With(other_parent.clone())).await;
        }),
        check_restart("gap", async |gateway| {
            faulty(gateway, "getBlock", Fault::With(mid_epoch.clone())).await;
        }),
        check_restart("fork", async |gateway| {
            let tip = tip(gateway).unwrap();
            listed(gateway, json!([tip - 1, tip + 1])).await;
        }),
        check_restart("behind", async |gateway| listed(gateway, json!([])).await),
        check_restart("too_far", async |gateway| gateway.cluster.step_by(30)),
    );
}

#[tokio::test]
async fn second_nodes_other_block_ends_the_chain() {
    let gateway = following(TestGateway::builder().nodes(2)).await;
    let other = json!({ "blockhash": "11111111111111111111111111111111" });
    let second = gateway.cluster.node(1);
    second.fault_on("getBlock", Fault::With(other), None);
    // The chain is read from the first node. Each 64th block is compared with the second node's.
    second.fault_on("getBlocks", Fault::Error { code: -32_603, message: String::new() }, None);
    for _ in 0..8 {
        step(&gateway, 7).await;
    }
    assert_eq!(restarts(&gateway, "disagreement"), 0);
    gateway.step_by(20).await;
    gateway.until("the second node disagrees", || restarts(&gateway, "disagreement") == 1).await;
}

#[tokio::test]
async fn chains_that_end_young_begin_less_often() {
    let gateway = following(TestGateway::builder().nodes(1)).await;
    let without_meta = json!([{ "meta": null, "transaction": { "accountKeys": [], "signatures": [] } }]);
    gateway.cluster.node(0).fault_on("getBlock", Fault::With(json!({ "transactions": without_meta })), None);
    let gaps = async |count| {
        let has_ended = || {
            gateway.cluster.step();
            restarts(&gateway, "gap") >= count
        };
        gateway.until("the chain ends", has_ended).await;
    };
    gaps(1).await;
    let first_end = Instant::now();
    gaps(4).await;
    // The second chain begins after a second at the latest, the third one two seconds after the second, and the
    // fourth one four seconds after the third.
    assert!(first_end.elapsed() >= Duration::from_secs(6), "{:?}", first_end.elapsed());
}

#[tokio::test]
async fn unknown_blocks_pause_following() {
    let newer = "Transaction version (2) is not supported by the requesting client";
    let newer = Fault::Error { code: -32_015, message: newer.to_owned() };
    for fault in [newer, Fault::With(json!({ "transactions": null }))] {
        let gateway = following(TestGateway::builder().nodes(1).config(on)).await;
        let call = gateway.get_account(gateway.cluster.examples().nonce_account).base64().confirmed();
        call.send().await;
        gateway.cluster.fault_everywhere("getBlock", &fault);
        gateway.step_by(1).await;
        let is_paused = || gateway.front().followed.state().as_str() == "paused";
        gateway.until("following pauses", is_paused).await;
        gateway.step_by(9).await;
        let reply = call.send().await;
        assert_ne!(reply.cache_status(), CARRIED);
        assert_eq!(reply.result(), call.result_of(gateway.cluster.node(0)));
        assert!(gateway.admin("/readyz").await.status == 200, "{fault:?}");
    }
}
