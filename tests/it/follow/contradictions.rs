//! Accounts that change although no block lists them: the gateway no longer trusts the blocks, and carries no
//! answer.

use serde_json::json;
use slotfront::config::FollowMode;
use slotfront::methods::PerCommitment;
use slotfront_sim::Fault;
use slotfront_testkit::TestGateway;

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
    let builder = TestGateway::builder().nodes(2);
    let builder = builder.config(|config| config.cache.stale_while_revalidate = PerCommitment::uniform(0.0));
    let gateway = following(builder).await;
    let keys: Vec<_> = gateway.cluster.examples().wallets.iter().take(6).copied().collect();
    hide_writes(&gateway);
    step(&gateway, 1).await;
    let single = |key| gateway.get_account(key).base64().confirmed();
    for key in &keys {
        single(key).send().await;
    }
    step(&gateway, 40).await;
    for key in &keys {
        assert_eq!(single(key).send().await.cache_status(), CARRIED, "the blocks list no write");
    }
    // A list with an account that is not cached is fetched whole.
    let list = [&keys[..], &[gateway.cluster.examples().mints[0]]].concat();
    gateway.get_accounts(&list).base64().confirmed().send().await;
    until_contradicted(&gateway).await;
    step(&gateway, 10).await;
    for key in &keys {
        let reply = single(key).send().await;
        assert!(reply.cache_status().starts_with("fwd=stale"), "{}", reply.cache_status());
        check_state(&gateway, key, reply.slot(), &reply.value());
    }
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
    let builder = TestGateway::builder().nodes(1);
    let builder = builder.config(|config| config.cache.stale_while_revalidate = PerCommitment::uniform(0.0));
    let gateway = following(builder).await;
    let key = gateway.cluster.examples().nonce_account;
    let single = gateway.get_account(key).base64().confirmed();
    let first = single.send().await;
    step(&gateway, 10).await;
    // One answer of the node shows a wrong balance of the account. The next answer is right again.
    let mut wrong = first.value();
    wrong["lamports"] = json!(1);
    let slot = gateway.cluster.slot(slotfront::methods::Commitment::Confirmed);
    let wrong = json!({ "context": { "apiVersion": "4.0.0", "slot": slot }, "value": [wrong, null] });
    gateway.cluster.node(0).fault_on("getMultipleAccounts", Fault::Result(wrong), Some(1));
    let list = [key, gateway.cluster.examples().mints[0]];
    gateway.get_accounts(list).base64().confirmed().send().await;
    let asked = || gateway.cluster.node(0).calls("getAccountInfo");
    gateway.until("the account is fetched again", || asked() == 2).await;
    step(&gateway, 10).await;
    single.send().await;
    assert!(!gateway.front().followed.is_contradicted());
}
