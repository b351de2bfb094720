//! The answers that are carried: which, to which slot, and at which cost.

use std::time::Duration;

use serde_json::json;
use slotfront::config::FollowMode;
use slotfront::methods::{Commitment, PerCommitment, Pubkey};
use slotfront_testkit::{TestCall, TestGateway};

use super::{CARRIED, check_state, checked_slot, following, step, until_target, until_tip};

/// An address that never has an account.
const UNUSED: &str = "3uWi9x2SRpmjztkpkr2WWeBoVq3exjXG2YfDWLvm8KsQ";

/// The `Cache-Status` of an answer that is too many slots old, and is served while a fresh one is fetched.
const STALE_HIT: &str = "hit; ttl=0; detail=stale";

/// Returns the addresses of accounts that no block writes.
fn unwritten(gateway: &TestGateway) -> Vec<Pubkey> {
    let examples = gateway.cluster.examples();
    let (frozen, nonce) = (examples.frozen_token_account, examples.nonce_account);
    vec![frozen, nonce, examples.mints[0], examples.lookup_tables[0], Pubkey::parse(UNUSED).unwrap()]
}

#[tokio::test]
async fn unwritten_account_is_fetched_once() {
    let gateway = following(TestGateway::builder().nodes(1)).await;
    let calls: Vec<TestCall> =
        unwritten(&gateway).iter().map(|key| gateway.get_account(key).base64().confirmed()).collect();
    for call in &calls {
        assert_eq!(call.send().await.cache_status(), "fwd=miss; stored");
    }
    for _ in 0..15 {
        step(&gateway, 20).await;
        for call in &calls {
            let reply = call.send().await;
            assert_eq!(reply.cache_status(), CARRIED);
            assert_eq!(reply.result(), call.result_of(gateway.cluster.node(0)));
        }
    }
    assert_eq!(gateway.cluster.node(0).calls("getAccountInfo"), calls.len() as u64);
    assert_eq!(super::restarts(&gateway, "gap"), 0);
}

#[tokio::test]
async fn every_form_is_carried() {
    let gateway = following(TestGateway::builder().nodes(1)).await;
    let token = gateway.cluster.examples().frozen_token_account;
    let keys = unwritten(&gateway);
    let calls = [
        gateway.get_account(token).base64(),
        gateway.get_account(token).encoding("base64+zstd"),
        gateway.get_account(token).json_parsed(),
        gateway.get_account(token).encoding("base58").slice(3, 90),
        gateway.get_account(token).base64().slice(64, 8),
        gateway.get_token_balance(token),
        gateway.call("getBalance", json!([token.to_string()])),
        gateway.call("getBalance", json!([UNUSED])),
        gateway.call("getTokenSupply", json!([keys[2].to_string()])),
        gateway.get_accounts(&keys).base64(),
        gateway.get_accounts(&keys).base64().slice(0, 4),
        gateway.get_accounts(&keys[..2]).json_parsed(),
    ]
    .map(TestCall::confirmed);
    for call in &calls {
        call.send().await;
    }
    let methods =
        ["getAccountInfo", "getMultipleAccounts", "getTokenAccountBalance", "getTokenSupply", "getBalance"];
    let asked = || methods.map(|method| gateway.cluster.node(0).calls(method));
    let fetched = asked();
    for _ in 0..3 {
        step(&gateway, 30).await;
        for call in &calls {
            let reply = call.send().await;
            assert!(reply.is_hit(), "{}: {}", call.body(), reply.cache_status());
            assert_eq!(reply.result(), call.result_of(gateway.cluster.node(0)), "{}", call.body());
        }
    }
    assert_eq!(asked(), fetched);
}

#[tokio::test]
async fn written_accounts_show_their_new_values() {
    let gateway = following(TestGateway::builder().nodes(1)).await;
    let keys = &gateway.cluster.examples().wallets[..8];
    let calls: Vec<TestCall> = keys.iter().map(|key| gateway.get_account(key).base64().confirmed()).collect();
    let (mut slots, mut carried) = (vec![0; keys.len()], 0);
    for _ in 0..40 {
        step(&gateway, 1).await;
        for ((key, call), last) in keys.iter().zip(&calls).zip(&mut slots) {
            let reply = call.send().await;
            let slot = checked_slot(&gateway, key, &reply);
            assert!(slot >= *last, "{key} went back from {last} to {slot}");
            *last = slot;
            assert!(slot + 2 >= gateway.cluster.slot(Commitment::Confirmed), "{key} at {slot}");
            carried += u64::from(reply.cache_status() == CARRIED);
        }
    }
    let fetched = gateway.cluster.node(0).calls("getAccountInfo");
    assert!(carried > 40 && fetched > 20, "{carried} carried, {fetched} fetched");
}

#[tokio::test]
async fn overwritten_accounts_are_never_served_stale() {
    let gateway = following(TestGateway::builder().nodes(1)).await;
    let keys = &gateway.cluster.examples().wallets;
    let calls: Vec<TestCall> = keys.iter().map(|key| gateway.get_account(key).base64().confirmed()).collect();
    let mut refetched = 0;
    for _ in 0..10 {
        // An answer three slots behind is too old to count as fresh. It may be served only while a fresh one is
        // fetched.
        step(&gateway, 3).await;
        for (key, call) in keys.iter().zip(&calls) {
            let reply = call.send().await;
            checked_slot(&gateway, key, &reply);
            assert_ne!(reply.cache_status(), STALE_HIT, "{key}");
            refetched += u64::from(reply.cache_status() == "fwd=stale; stored");
        }
    }
    assert!(refetched > 0);
}

#[tokio::test]
async fn lists_are_answered_at_one_slot() {
    let gateway = following(TestGateway::builder().nodes(1)).await;
    let still = unwritten(&gateway);
    let mixed: Vec<_> = still.iter().chain(&gateway.cluster.examples().wallets[..3]).copied().collect();
    let call = |keys: &[Pubkey]| gateway.get_accounts(keys).base64().confirmed();
    let (still_call, mixed_call) = (call(&still), call(&mixed));
    for _ in 0..20 {
        step(&gateway, 1).await;
        for (keys, call) in [(&still, &still_call), (&mixed, &mixed_call)] {
            let reply = call.send().await;
            for (key, value) in keys.iter().zip(reply.value().as_array().unwrap()) {
                check_state(&gateway, key, reply.slot(), value);
            }
        }
    }
    step(&gateway, 30).await;
    let asked = || gateway.cluster.node(0).calls("getMultipleAccounts");
    let before = asked();
    let reply = still_call.send().await;
    assert_eq!(
        (reply.cache_status(), asked()),
        (CARRIED, before),
        "chain {}",
        gateway.front().followed.number()
    );
    assert_eq!(reply.slot(), gateway.cluster.slot(Commitment::Confirmed));
}

#[tokio::test]
async fn confirmed_fetch_serves_finalized_callers() {
    let gateway = following(TestGateway::builder().nodes(1)).await;
    step(&gateway, 60).await;
    until_target(&gateway).await;
    let keys = unwritten(&gateway);
    for key in &keys {
        gateway.get_account(key).base64().confirmed().send().await;
    }
    for slots in [1, 40, 60] {
        for key in &keys {
            let call = gateway.get_account(key).base64().finalized();
            let reply = call.send().await;
            assert_eq!(reply.cache_status(), CARRIED, "{key}");
            assert_eq!(reply.result(), call.result_of(gateway.cluster.node(0)));
        }
        step(&gateway, slots).await;
        until_target(&gateway).await;
    }
    assert_eq!(gateway.cluster.node(0).calls("getAccountInfo"), keys.len() as u64);
}

#[tokio::test]
async fn finalized_answers_are_states_of_final_slots() {
    let gateway = following(TestGateway::builder().nodes(1)).await;
    gateway.cluster.node(0).set_version("4.2.0");
    step(&gateway, 60).await;
    until_target(&gateway).await;
    let keys = &gateway.cluster.examples().wallets[..6];
    let (mut slots, mut carried) = (vec![0; keys.len()], 0);
    for _ in 0..25 {
        step(&gateway, 2).await;
        until_target(&gateway).await;
        for (key, last) in keys.iter().zip(&mut slots) {
            gateway.get_account(key).base64().confirmed().send().await;
            let reply = gateway.get_account(key).base64().finalized().send().await;
            let slot = checked_slot(&gateway, key, &reply);
            assert!(slot >= *last && slot <= gateway.cluster.slot(Commitment::Finalized));
            *last = slot;
            carried += u64::from(reply.cache_status() == CARRIED);
        }
    }
    assert!(carried > 10, "{carried} carried");
}

#[tokio::test]
async fn processed_is_never_carried() {
    let gateway = following(TestGateway::builder().nodes(1)).await;
    let call = gateway.get_account(unwritten(&gateway)[0]).base64().processed();
    for _ in 0..3 {
        assert!(!call.send().await.is_hit());
        step(&gateway, 4).await;
    }
}

#[tokio::test]
async fn shadow_mode_serves_as_before() {
    let no_stretch = PerCommitment::uniform(0.0);
    let builder = TestGateway::builder().nodes(1).config(|config| {
        super::on(config);
        config.follow.mode = FollowMode::Shadow;
        config.cache.stale_while_revalidate = no_stretch;
    });
    let gateway = builder.start().await;
    until_tip(&gateway).await;
    let call = gateway.get_account(unwritten(&gateway)[0]).base64().confirmed();
    call.send().await;
    step(&gateway, 10).await;
    assert_eq!(call.send().await.cache_status(), "fwd=stale; stored");
    let series = r#"slotfront_follow_carried_total{commitment="confirmed",method="getAccountInfo"}"#;
    gateway.until_metric(series, 1).await;
}

#[tokio::test]
async fn lists_of_blocks_come_from_the_chain() {
    let gateway = following(TestGateway::builder().nodes(1)).await;
    let first = gateway.cluster.slot(Commitment::Confirmed);
    step(&gateway, 60).await;
    until_target(&gateway).await;
    let asked = || ["getBlocks", "getBlocksWithLimit"].map(|method| gateway.cluster.node(0).calls(method));
    let before = asked();
    let last = gateway.cluster.slot(Commitment::Finalized);
    for (method, params) in [
        ("getBlocks", json!([first])),
        ("getBlocks", json!([first, last])),
        ("getBlocks", json!([first + 3, last + 1000])),
        ("getBlocks", json!([last, first])),
    ] {
        for call in [gateway.call(method, params.clone()), gateway.call(method, params).confirmed()] {
            let reply = call.send().await;
            assert!(reply.is_derived(), "{}: {}", call.body(), reply.cache_status());
            assert_eq!(reply.result(), call.result_of(gateway.cluster.node(0)), "{}", call.body());
        }
    }
    let some = gateway.call("getBlocksWithLimit", json!([first, 5])).send().await;
    let all = gateway.call("getBlocks", json!([first, last])).send().await.result();
    assert_eq!(some.result().as_array().map(Vec::as_slice), all.as_array().map(|all| &all[..5]));
    // The reader of the chain asks for lists of its own.
    assert_eq!(asked()[1], before[1]);
    // A list that begins before the chain needs a node.
    let earlier = gateway.call("getBlocks", json!([first - 9, last])).send().await;
    assert_eq!(earlier.cache_status(), "fwd=miss; stored");
}

#[tokio::test]
async fn list_that_the_chain_is_too_old_for_comes_from_a_node() {
    let builder = TestGateway::builder().nodes(1);
    // Every poll is too long ago.
    let builder = builder.config(|config| config.cache.ttl.account = PerCommitment::uniform(Duration::ZERO));
    let gateway = following(builder).await;
    let first = gateway.cluster.slot(Commitment::Confirmed);
    step(&gateway, 60).await;
    until_target(&gateway).await;
    for (method, params) in [
        ("getBlocks", json!([first])),
        ("getBlocks", json!([first, first + 1000])),
        ("getBlocksWithLimit", json!([first, 5])),
    ] {
        for call in [gateway.call(method, params.clone()), gateway.call(method, params).confirmed()] {
            let reply = call.send().await;
            assert_eq!(reply.status, 200, "{}", reply.text);
            assert_eq!(reply.result(), call.result_of(gateway.cluster.node(0)), "{}", call.body());
        }
    }
}
