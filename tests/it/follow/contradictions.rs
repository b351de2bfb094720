//! Accounts that change although no block lists them: the gateway no longer trusts the blocks, and carries no
//! answer.

use std::time::Duration;

use serde_json::json;
use slotfront::config::FollowMode;
use slotfront::methods::PerCommitment;
use slotfront_sim::Fault;
use slotfront_testkit::{PATIENCE, TestGateway};
use tokio::time::Instant;

use super::{CARRIED, check_state, following, on, step, until_tip};

/// Lets all nodes give blocks that list no account.
fn hide_writes(gateway: &TestGateway) {
    let fee = json!([{ "pubkey": gateway.cluster.examples().frozen_token_account.to_string(), "rewardType": "Fee" }]);
    let unlisted = Fault::With(json!({ "transactions": [], "rewards": fee }));
    gateway.cluster.fault_everywhere("getBlock", &unlisted);
}

/// Waits until a refetched account has contradicted the followed blocks, so that no answer is carried any more.
async fn until_contradicted(gateway: &TestGateway) {
    gateway.until("nothing is carried any more", || gateway.front().followed.is_contradicted()).await;
    let view = gateway.admin("/api/status").await.json()["status"]["follow"].clone();
    assert_eq!((&view["contradicted"], &view["serves"]), (&json!(true), &json!(false)), "{view}");
}

#[tokio::test]
async fn unlisted_writes_end_carrying() {
    let max_carry = Duration::from_secs(2);
    let builder = TestGateway::builder().nodes(2).config(|config| {
        config.follow.max_carry = max_carry;
        config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
    });
    let gateway = following(builder).await;
    let keys: Vec<_> = gateway.cluster.examples().wallets.iter().take(6).copied().collect();
    hide_writes(&gateway);
    step(&gateway, 1).await;
    let single = |key| gateway.get_account(key).base64().confirmed();
    let asked_at = Instant::now();
    for key in &keys {
        single(key).send().await;
    }
    step(&gateway, 40).await;
    for key in &keys {
        let status = single(key).send().await.cache_status().to_owned();
        // On a busy machine the steps may take longer than the answers are carried.
        assert!(status == CARRIED || asked_at.elapsed() > max_carry, "the blocks list no write: {status}");
    }
    while !gateway.front().followed.is_contradicted() {
        for key in &keys {
            single(key).send().await;
        }
        step(&gateway, 10).await;
    }
    until_contradicted(&gateway).await;
    step(&gateway, 10).await;
    for key in &keys {
        let reply = single(key).send().await;
        assert!(reply.cache_status().starts_with("fwd=stale"), "{}", reply.cache_status());
        check_state(&gateway, key, reply.slot(), &reply.value());
    }
}

#[tokio::test]
async fn sampled_hits_find_unlisted_writes() {
    let builder = TestGateway::builder().nodes(2).config(|config| config.verify.sample = Some(1.0));
    let gateway = following(builder).await;
    hide_writes(&gateway);
    step(&gateway, 1).await;
    while !gateway.front().followed.is_contradicted() {
        for key in gateway.cluster.examples().wallets.iter().take(6) {
            gateway.get_account(key).base64().confirmed().send().await;
        }
        step(&gateway, 10).await;
    }
    until_contradicted(&gateway).await;
}

#[tokio::test]
async fn shadow_mode_finds_unlisted_writes() {
    let builder = TestGateway::builder().nodes(2).config(|config| {
        on(config);
        config.follow.mode = FollowMode::Shadow;
        config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
    });
    let gateway = builder.start().await;
    until_tip(&gateway).await;
    hide_writes(&gateway);
    step(&gateway, 1).await;
    let keys: Vec<_> = gateway.cluster.examples().wallets.iter().take(6).copied().collect();
    for _ in 0..2 {
        for key in &keys {
            gateway.get_account(key).base64().confirmed().send().await;
        }
        step(&gateway, 40).await;
    }
    until_contradicted(&gateway).await;
}

#[tokio::test]
async fn wrong_answer_of_one_node_contradicts_nothing() {
    let builder = TestGateway::builder().nodes(1).config(|config| {
        on(config);
        config.follow.mode = FollowMode::Shadow;
        config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
    });
    let gateway = builder.start().await.with_own_buckets().await;
    until_tip(&gateway).await;
    let single = gateway.get_account(gateway.cluster.examples().nonce_account).base64().confirmed();
    single.send().await;
    step(&gateway, 10).await;
    // One answer of the node shows a wrong balance of the account. The next answer is right again.
    let mut wrong = single.result_of(gateway.cluster.node(0));
    wrong["value"]["lamports"] = json!(1);
    gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Result(wrong), Some(1));
    single.send().await;
    let asked = || gateway.cluster.node(0).calls("getAccountInfo");
    gateway.until("the account is fetched once more", || asked() == 3).await;
    let mismatch = r#"slotfront_verify_total{method="getAccountInfo",result="mismatch"}"#;
    assert_eq!(gateway.metric(mismatch), 1);
    assert!(!gateway.front().followed.is_contradicted());
}

#[tokio::test]
async fn wrong_answer_lives_no_longer_than_max_carry() {
    let builder = TestGateway::builder().nodes(1);
    let builder = builder.config(|config| config.follow.max_carry = Duration::from_secs(4));
    let gateway = following(builder).await;
    let single = gateway.get_account(gateway.cluster.examples().nonce_account).base64().confirmed();
    let right = single.result_of(gateway.cluster.node(0));
    // One answer of the node shows an older state of the account under its newest slot.
    let mut wrong = right.clone();
    wrong["value"]["lamports"] = json!(1);
    gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Result(wrong), Some(1));
    assert_eq!(single.send().await.value()["lamports"], json!(1));
    let (mut carried, begun) = (0, Instant::now());
    loop {
        step(&gateway, 5).await;
        let reply = single.send().await;
        if reply.value() == right["value"] {
            break;
        }
        carried += u64::from(reply.cache_status() == CARRIED);
        assert!(begun.elapsed() < PATIENCE, "{carried} wrong answers were carried");
    }
    assert!(carried > 0);
    until_contradicted(&gateway).await;
}
