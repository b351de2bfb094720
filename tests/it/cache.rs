//! The cache as callers see it, and its effect on the nodes.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use slotfront::methods::{Commitment, PerCommitment};
use slotfront_sim::Fault;

use crate::harness::{Reply, Stage};

fn slot_of(reply: &Reply) -> u64 {
    reply.result()["context"]["slot"].as_u64().unwrap()
}

#[tokio::test]
async fn repeat_is_a_hit() {
    let stage = Stage::new().await;
    let there = stage.cluster.examples();
    let account = there.wallets[0].to_string();
    for (method, params) in [
        ("getAccountInfo", json!([account])),
        ("getMultipleAccounts", json!([[account, there.mints[0].to_string()]])),
        ("getTokenAccountBalance", json!([there.token_accounts[0].to_string()])),
        ("getVoteAccounts", json!([])),
        ("getFeeForMessage", json!([there.fee_message])),
        ("getBlock", json!([there.block_with_v0, {"maxSupportedTransactionVersion": 0}])),
        ("getRecentPerformanceSamples", json!([])),
        ("getClusterNodes", json!([])),
    ] {
        let first = stage.call(method, params.clone()).await;
        assert_eq!(first.cache(), "fwd=miss; stored", "{method}");
        let calls = stage.upstream_calls();
        let second = stage.call(method, params).await;
        assert!(second.cache().starts_with("hit; ttl="), "{method}: {}", second.cache());
        assert_eq!((second.text, stage.upstream_calls()), (first.text, calls), "{method}");
    }
}

#[tokio::test]
async fn what_means_the_same_is_one_entry() {
    let stage = Stage::new().await;
    let account = stage.cluster.examples().wallets[0].to_string();
    stage.call("getAccountInfo", json!([account, {"encoding": "base64"}])).await;
    for config in [
        json!({"encoding": "base64", "commitment": "finalized"}),
        json!({"commitment": "bogus", "encoding": "base64", "foo": [1]}),
        json!({"encoding": "base64", "dataSlice": null, "minContextSlot": null}),
        json!({"encoding": "base64", "minContextSlot": 5}),
    ] {
        let reply = stage.call("getAccountInfo", json!([account, config])).await;
        assert!(reply.cache().starts_with("hit"), "{config}: {}", reply.cache());
    }
    let other = stage.call("getAccountInfo", json!([account, {"encoding": "jsonParsed"}])).await;
    assert_eq!(other.cache(), "fwd=miss; stored");
}

#[tokio::test]
async fn five_hundred_at_once_are_one_upstream_call() {
    let patient = Duration::from_secs(20);
    let stage = Stage::with(|config| {
        // Five hundred connections take long on a busy machine, and the held call must not time out.
        config.pool.attempt_timeout = [patient; 8];
        config.server.request_timeout = patient;
    })
    .await;
    let account = stage.cluster.examples().wallets[0].to_string();
    let holds: Vec<_> = stage.cluster.nodes().iter().map(|node| node.hold("getAccountInfo")).collect();
    let calls = (0..500).map(|_| stage.call("getAccountInfo", json!([account])));
    let release = async {
        stage
            .until("all have asked", || {
                stage.front().in_flight.load(std::sync::atomic::Ordering::Relaxed) == 500
            })
            .await;
        stage
            .until("one call is held", || holds.iter().map(slotfront_sim::Hold::waiting).sum::<usize>() == 1)
            .await;
        drop(holds);
    };
    let (replies, ()) = tokio::join!(join_all(calls), release);
    assert_eq!(stage.upstream_calls(), 1);
    let collapsed = replies.iter().filter(|reply| reply.cache() == "fwd=miss; collapsed").count();
    let led = replies.iter().filter(|reply| reply.cache() == "fwd=miss; stored").count();
    assert_eq!((led, collapsed), (1, 499));
    assert!(replies.iter().all(|reply| reply.text == replies[0].text && reply.status == 200));
}

#[tokio::test]
async fn the_fetch_outlives_the_caller_that_led_it() {
    let stage = Stage::of(1, |_| {}).await;
    let account = stage.cluster.examples().wallets[0].to_string();
    let hold = stage.cluster.node(0).hold("getAccountInfo");
    tokio::select! {
        _ = stage.call("getAccountInfo", json!([account])) => panic!("the reply is held"),
        () = hold.arrived(1) => {} // the caller hangs up here
    }
    let (joins, ()) = tokio::join!(stage.call("getAccountInfo", json!([account])), async {
        stage
            .until("it waits", || stage.front().in_flight.load(std::sync::atomic::Ordering::Relaxed) >= 1)
            .await;
        tokio::task::yield_now().await;
        hold.release();
    });
    assert_eq!((joins.status, stage.upstream_calls()), (200, 1));
}

#[tokio::test]
async fn slot_bounds_are_tighter_at_weaker_commitments() {
    for (commitment, bound) in
        [(Commitment::Processed, 1), (Commitment::Confirmed, 2), (Commitment::Finalized, 12)]
    {
        let stage =
            Stage::with(|config| config.cache.stale_while_revalidate = PerCommitment::uniform(0.0)).await;
        let params =
            json!([stage.cluster.examples().wallets[0].to_string(), {"commitment": commitment.as_str()}]);
        stage.call("getAccountInfo", params.clone()).await;
        let start = stage.cluster.slot(commitment);
        loop {
            let lag = stage.cluster.slot(commitment) - start;
            let reply = stage.call("getAccountInfo", params.clone()).await;
            assert_eq!(reply.cache().starts_with("hit"), lag <= bound, "{commitment}: {lag} slots behind");
            if lag > bound {
                break;
            }
            stage.step_by(1).await;
        }
    }
}

#[tokio::test]
async fn time_ends_the_life_of_an_answer() {
    let ms = Duration::from_millis(60);
    let stage = Stage::with(|config| {
        config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
        config.cache.ttl.account.confirmed = ms;
    })
    .await;
    let params = json!([stage.cluster.examples().wallets[0].to_string(), {"commitment": "confirmed"}]);
    stage.call("getAccountInfo", params.clone()).await;
    tokio::time::sleep(ms).await;
    let reply = stage.call("getAccountInfo", params).await;
    assert_eq!(reply.cache(), "fwd=stale; stored");
}

#[tokio::test]
async fn a_stale_answer_is_served_and_refreshed_once() {
    let stage = Stage::new().await;
    let params = json!([stage.cluster.examples().wallets[0].to_string()]);
    let first = slot_of(&stage.call("getAccountInfo", params.clone()).await);
    while stage.cluster.slot(Commitment::Finalized) <= first + 12 {
        stage.step_by(1).await;
    }
    let served = stage.call("getAccountInfo", params.clone()).await;
    assert_eq!((served.cache(), slot_of(&served)), ("hit; ttl=0; detail=stale", first));
    stage.until("it was fetched", || stage.upstream_calls() == 2).await;
    let newest = stage.cluster.slot(Commitment::Finalized);
    loop {
        let reply = stage.call("getAccountInfo", params.clone()).await;
        if slot_of(&reply) == newest {
            break assert!(reply.cache().starts_with("hit; ttl=3"), "{}", reply.cache());
        }
    }
    assert_eq!(stage.upstream_calls(), 2, "it was fetched once");
}

#[tokio::test]
async fn stale_if_error_serves_held_answers() {
    let stage = Stage::with(|config| {
        config.cache.ttl.account.confirmed = Duration::ZERO;
        config.cache.ttl.account.processed = Duration::ZERO;
        config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
    })
    .await;
    let account = stage.cluster.examples().wallets[0].to_string();
    let params = |commitment: &str| json!([account, {"commitment": commitment}]);
    for commitment in ["processed", "confirmed"] {
        stage.call("getAccountInfo", params(commitment)).await;
    }
    stage.cluster.nodes().iter().for_each(|node| node.fault(Fault::Status(500)));
    let confirmed = stage.call("getAccountInfo", params("confirmed")).await;
    assert_eq!((confirmed.status, confirmed.cache()), (200, "hit; ttl=0; detail=stale-if-error"));
    let processed = stage.call("getAccountInfo", params("processed")).await;
    assert_eq!((processed.status, processed.code()), (502, -32095), "processed has no such grace");
}

#[tokio::test]
async fn falling_node_moves_no_answer_back() {
    let stage = Stage::with(|config| config.cache.ttl.account.finalized = Duration::ZERO).await;
    let params = json!([stage.cluster.examples().wallets[0].to_string()]);
    let before = slot_of(&stage.call("getAccountInfo", params.clone()).await);
    stage.cluster.nodes().iter().for_each(|node| node.set_lag(50));
    for _ in 0..5 {
        let reply = stage.call("getAccountInfo", params.clone()).await;
        assert_eq!((reply.status, slot_of(&reply)), (200, before));
        assert_eq!(reply.cache(), "hit; ttl=0; detail=stale-if-error");
    }
}

#[tokio::test]
async fn floor_falls_once_its_entry_expires() {
    let stage = Stage::with(|config| {
        config.cache.ttl.account.finalized = Duration::ZERO;
        config.cache.stale_if_error.finalized = Duration::ZERO;
        config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
    })
    .await;
    let params = json!([stage.cluster.examples().wallets[0].to_string()]);
    let before = slot_of(&stage.call("getAccountInfo", params.clone()).await);
    stage.cluster.nodes().iter().for_each(|node| node.set_lag(50));
    let after = stage.call("getAccountInfo", params).await;
    assert!(slot_of(&after) < before, "the highest answer that there is");
    assert_eq!(after.cache(), "fwd=stale; stored", "and it is kept: the floor fell to it");
    assert!(stage.admin("/metrics").await.text.contains("\nslotfront_cache_floor_resets_total 1\n"));
}

#[tokio::test]
async fn many_callers_with_a_number_share_their_calls() {
    let stage = Stage::of(2, |_| {}).await;
    let account = stage.cluster.examples().wallets[0].to_string();
    stage.cluster.node(0).set_lag(3);
    stage.until("the lag is known", || stage.front().frontier.lag(0, Commitment::Finalized) > Some(0)).await;
    let slot = stage.cluster.slot(Commitment::Finalized);
    let params = json!([account, {"minContextSlot": slot}]);
    let replies = join_all((0..100).map(|_| stage.call("getAccountInfo", params.clone()))).await;
    assert!(replies.iter().all(|reply| slot_of(reply) >= slot));
    assert!(stage.upstream_calls() <= 3, "{} calls", stage.upstream_calls());
}

#[tokio::test]
async fn final_block_is_one_entry_for_all_commitments() {
    let stage = Stage::new().await;
    let shape = |commitment: &str| json!({"commitment": commitment, "transactionDetails": "none"});
    let slot = stage.cluster.slot(Commitment::Finalized);
    stage.call("getBlock", json!([slot, shape("confirmed")])).await;
    let reply = stage.call("getBlock", json!([slot, shape("finalized")])).await;
    assert!(reply.cache().starts_with("hit; ttl=86"), "{}", reply.cache());

    let young = stage.cluster.slot(Commitment::Confirmed);
    let first = stage.call("getBlock", json!([young, shape("confirmed")])).await;
    assert!(stage.call("getBlock", json!([young, shape("confirmed")])).await.cache().starts_with("hit"));
    let early = stage.call("getBlock", json!([young, shape("finalized")])).await;
    assert_eq!(early.code(), -32004, "confirmed is no answer for finalized");
    while stage.cluster.slot(Commitment::Finalized) < young {
        stage.step_by(1).await;
    }
    let last = stage.call("getBlock", json!([young, shape("confirmed")])).await;
    assert_eq!(last.cache(), "fwd=miss; stored", "final now: fetched as such, not promoted");
    assert_eq!(last.result(), first.result());
}

#[tokio::test]
async fn not_yet_ends_when_the_block_is_there() {
    let stage = Stage::new().await;
    let mut slot = stage.cluster.slot(Commitment::Processed) + 1;
    let params = |slot: u64| json!([slot, {"commitment": "confirmed", "transactionDetails": "none"}]);
    assert_eq!(stage.call("getBlock", params(slot)).await.code(), -32004);
    let again = stage.call("getBlock", params(slot)).await;
    assert!(again.cache().starts_with("hit") && again.code() == -32004, "{}", again.cache());
    stage.step_by(1).await;
    while !stage.cluster.has_block(slot) {
        slot += 1;
        stage.step_by(1).await;
    }
    while stage.cluster.slot(Commitment::Confirmed) < slot {
        stage.step_by(1).await;
    }
    assert!(stage.call("getBlock", params(slot)).await.result()["parentSlot"].is_u64());
}

#[tokio::test]
async fn skipped_slot_needs_confirmation() {
    let stage = Stage::new().await;
    let slot = stage.cluster.examples().skipped_slot.expect("some slot is skipped");
    let first = stage.call("getBlock", json!([slot])).await;
    assert_eq!((first.code(), stage.upstream_calls()), (-32007, 2));
    let again = stage.call("getBlock", json!([slot, {"commitment": "confirmed", "rewards": false}])).await;
    assert!(again.cache().starts_with("hit; ttl=86"), "{}", again.cache());
    assert_eq!((again.code(), stage.upstream_calls()), (-32007, 2));
}

#[tokio::test]
async fn a_fee_that_is_null_is_not_kept() {
    let stage = Stage::new().await;
    let message = stage.cluster.examples().fee_message_processed;
    for _ in 0..2 {
        let reply = stage.call("getFeeForMessage", json!([message])).await;
        assert_eq!((reply.result()["value"].clone(), reply.cache()), (Value::Null, "fwd=miss"));
    }
    let known = stage.call("getFeeForMessage", json!([message, {"commitment": "processed"}])).await;
    assert_eq!(known.result()["value"], 5000);
}

#[tokio::test]
async fn account_errors_live_as_long_as_accounts() {
    let stage = Stage::new().await;
    let wallet = stage.cluster.examples().wallets[0].to_string();
    for _ in 0..2 {
        assert_eq!(stage.call("getTokenAccountBalance", json!([wallet])).await.code(), -32602);
    }
    assert_eq!(stage.upstream_calls(), 1);
}

#[tokio::test]
async fn lists_fill_and_use_single_entries() {
    let stage = Stage::new().await;
    let there = stage.cluster.examples();
    let (a, b, c) = (there.wallets[0].to_string(), there.wallets[1].to_string(), there.mints[0].to_string());
    stage.call("getMultipleAccounts", json!([[a, b]])).await;
    let single = stage.call("getAccountInfo", json!([b, {"encoding": "base64"}])).await;
    assert!(single.cache().starts_with("hit"), "{}", single.cache());
    let turned = stage.call("getMultipleAccounts", json!([[b, a, b]])).await;
    assert!(turned.cache().ends_with("detail=derived"), "{}", turned.cache());
    assert_eq!(
        turned.result()["value"][1],
        stage.call("getAccountInfo", json!([a, {"encoding": "base64"}])).await.result()["value"]
    );
    assert_eq!(stage.upstream_calls(), 1);
    assert_eq!(stage.call("getMultipleAccounts", json!([[a, c]])).await.cache(), "fwd=miss; stored");
    let empty = stage.call("getMultipleAccounts", json!([[]])).await;
    assert_eq!(empty.result()["value"], json!([]));
}

#[tokio::test]
async fn every_number_of_samples_comes_from_one_answer() {
    let stage = Stage::new().await;
    let all = stage.call("getRecentPerformanceSamples", json!([])).await.result();
    for limit in [0, 1, 3, 719, 720] {
        let some = stage.call("getRecentPerformanceSamples", json!([limit])).await;
        let expected: Vec<_> = all.as_array().unwrap().iter().take(limit).cloned().collect();
        assert_eq!(some.result(), json!(expected));
        assert_eq!(some.cache().ends_with("detail=derived"), limit < 720, "{limit}: {}", some.cache());
    }
    assert_eq!(stage.upstream_calls(), 1);
}

#[tokio::test]
async fn min_context_slot_is_not_in_the_key() {
    let stage = Stage::new().await;
    let account = stage.cluster.examples().wallets[0].to_string();
    let params = |slot: u64| json!([account, {"minContextSlot": slot}]);
    let held = slot_of(&stage.call("getAccountInfo", json!([account])).await);
    assert!(stage.call("getAccountInfo", params(held)).await.cache().starts_with("hit"));
    stage.step_by(2).await;
    let above = stage.cluster.slot(Commitment::Finalized);
    let newer = stage.call("getAccountInfo", params(above)).await;
    assert_eq!((newer.cache(), slot_of(&newer)), ("fwd=miss; stored", above));
    let calls = stage.upstream_calls();
    let far = stage.call("getAccountInfo", params(above + 1000)).await;
    assert_eq!((far.code(), stage.upstream_calls()), (-32016, calls + 1), "one node's own word");
    assert_eq!(far.json()["error"]["data"]["contextSlot"], above);
}

#[tokio::test]
async fn plan_may_bypass_the_cache() {
    let stage = Stage::new().await;
    let account = stage.cluster.examples().wallets[0].to_string();
    let body =
        json!({"jsonrpc": "2.0", "id": 1, "method": "getAccountInfo", "params": [account]}).to_string();
    stage.post(body.clone()).await;
    let request = stage.client.post(&stage.url).header("content-type", "application/json");
    let past = stage.send(request.header("cache-control", "no-cache").body(body.clone())).await;
    assert_eq!((past.cache(), stage.upstream_calls()), ("fwd=request; stored", 2));
    assert!(stage.post(body).await.cache().starts_with("hit"));
}

#[tokio::test]
async fn a_batch_says_how_many_were_hits() {
    let stage = Stage::new().await;
    let call = |id: u64, limit: u64| json!({"jsonrpc": "2.0", "id": id, "method": "getRecentPerformanceSamples", "params": [limit]});
    stage.call("getRecentPerformanceSamples", json!([])).await;
    let nodes = json!({"jsonrpc": "2.0", "id": 9, "method": "getClusterNodes"});
    let reply =
        stage.post(json!([call(1, 2), nodes, {"jsonrpc": "2.0", "method": "getBlock"}]).to_string()).await;
    assert_eq!(reply.cache(), "fwd=miss; detail=\"hits 1/2\"");
    let ids: Vec<_> = reply.json().as_array().unwrap().iter().map(|answer| answer["id"].clone()).collect();
    assert_eq!(ids, [json!(1), json!(9)]);
    assert_eq!(stage.post(json!([call(1, 2), nodes]).to_string()).await.cache(), "hit");
}
