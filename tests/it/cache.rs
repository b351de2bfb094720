//! The cache as callers see it, and its effect on the nodes.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use slotfront::methods::{Commitment, PerCommitment};
use slotfront_sim::Fault;
use slotfront_testkit::{PATIENCE, Reply, TestGateway};
use tokio::time::Instant;

#[tokio::test]
async fn repeat_is_a_hit() {
    let gateway = TestGateway::start().await;
    let there = gateway.cluster.examples();
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
        let first = gateway.call(method, params.clone()).send().await;
        assert_eq!(first.cache_status(), "fwd=miss; stored", "{method}");
        let calls = gateway.upstream_calls();
        let second = gateway.call(method, params).send().await;
        assert!(second.cache_status().starts_with("hit; ttl="), "{method}: {}", second.cache_status());
        assert_eq!((second.text, gateway.upstream_calls()), (first.text, calls), "{method}");
    }
}

#[tokio::test]
async fn what_means_the_same_is_one_entry() {
    let gateway = TestGateway::start().await;
    let account = gateway.cluster.examples().wallets[0].to_string();
    gateway.get_account(&account).base64().send().await;
    for config in [
        json!({"encoding": "base64", "commitment": "finalized"}),
        json!({"commitment": "bogus", "encoding": "base64"}),
        json!({"encoding": "base64", "dataSlice": null, "minContextSlot": null}),
        json!({"encoding": "base64", "minContextSlot": 5}),
    ] {
        let reply = gateway.call("getAccountInfo", json!([account, config])).send().await;
        assert!(reply.is_hit(), "{config}: {}", reply.cache_status());
    }
    let other = gateway.get_account(&account).json_parsed().send().await;
    assert_eq!(other.cache_status(), "fwd=miss; stored");
}

#[tokio::test]
async fn five_hundred_at_once_are_one_upstream_call() {
    let gateway = TestGateway::builder()
        .config(|config| {
            // Five hundred connections take long on a busy machine, and the call at the node must not time out.
            config.pool.attempt_timeout.fill(PATIENCE);
            config.server.request_timeout = PATIENCE;
        })
        .start()
        .await;
    let account = gateway.cluster.examples().wallets[0].to_string();
    let holds: Vec<_> = gateway.cluster.nodes().iter().map(|node| node.hold("getAccountInfo")).collect();
    let calls = (0..500).map(|_| gateway.get_account(&account).send());
    let release = async {
        gateway.until_in_flight(500).await;
        gateway
            .until("one call is held", || holds.iter().map(slotfront_sim::Hold::waiting).sum::<usize>() == 1)
            .await;
        drop(holds);
    };
    let (replies, ()) = tokio::join!(join_all(calls), release);
    assert_eq!(gateway.upstream_calls(), 1);
    let collapsed = replies.iter().filter(|reply| reply.cache_status() == "fwd=miss; collapsed").count();
    let led = replies.iter().filter(|reply| reply.cache_status() == "fwd=miss; stored").count();
    assert_eq!((led, collapsed), (1, 499));
    assert!(replies.iter().all(|reply| reply.text == replies[0].text && reply.status == 200));
}

#[tokio::test]
async fn the_fetch_outlives_the_caller_that_led_it() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let account = gateway.cluster.examples().wallets[0].to_string();
    let hold = gateway.cluster.node(0).hold("getAccountInfo");
    tokio::select! {
        _ = gateway.get_account(&account).send() => panic!("the reply is held"),
        () = hold.arrived(1) => {} // the caller hangs up here
    }
    let (joins, ()) = tokio::join!(gateway.get_account(&account).send(), async {
        gateway.until("the second call waits", || gateway.in_flight() >= 1).await;
        tokio::task::yield_now().await;
        hold.release();
    });
    assert_eq!((joins.status, gateway.upstream_calls()), (200, 1));
}

#[tokio::test]
async fn slot_bounds_are_tighter_at_weaker_commitments() {
    for (commitment, bound) in
        [(Commitment::Processed, 1), (Commitment::Confirmed, 2), (Commitment::Finalized, 12)]
    {
        let gateway = TestGateway::builder()
            .config(|config| config.cache.stale_while_revalidate = PerCommitment::uniform(0.0))
            .start()
            .await;
        let call = gateway.get_account(gateway.cluster.examples().wallets[0]).commitment(commitment);
        call.send().await;
        let start = gateway.cluster.slot(commitment);
        loop {
            let lag = gateway.cluster.slot(commitment) - start;
            let reply = call.send().await;
            assert_eq!(reply.is_hit(), lag <= bound, "{commitment}: {lag} slots behind");
            if lag > bound {
                break;
            }
            gateway.step_by(1).await;
        }
    }
}

#[tokio::test]
async fn time_ends_the_life_of_an_answer() {
    let ms = Duration::from_millis(60);
    let gateway = TestGateway::builder()
        .config(|config| {
            config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
            config.cache.ttl.account.confirmed = ms;
        })
        .start()
        .await;
    let call = gateway.get_account(gateway.cluster.examples().wallets[0]).confirmed();
    call.send().await;
    tokio::time::sleep(ms).await;
    let reply = call.send().await;
    assert_eq!(reply.cache_status(), "fwd=stale; stored");
}

#[tokio::test]
async fn a_stale_answer_is_served_and_refreshed_once() {
    let gateway = TestGateway::start().await;
    let call = gateway.get_account(gateway.cluster.examples().wallets[0]);
    let first = call.send().await.slot();
    while gateway.cluster.slot(Commitment::Finalized) <= first + 12 {
        gateway.step_by(1).await;
    }
    let served = call.send().await;
    assert_eq!((served.cache_status(), served.slot()), ("hit; ttl=0; detail=stale", first));
    gateway.until("a fresh answer was fetched", || gateway.upstream_calls() == 2).await;
    let newest = gateway.cluster.slot(Commitment::Finalized);
    loop {
        let reply = call.send().await;
        if reply.slot() == newest {
            break assert!(reply.cache_status().starts_with("hit; ttl=3"), "{}", reply.cache_status());
        }
    }
    assert_eq!(gateway.upstream_calls(), 2, "the answer was fetched once");
}

#[tokio::test]
async fn stale_if_error_serves_stored_answers() {
    let gateway = TestGateway::builder()
        .config(|config| {
            config.cache.ttl.account.confirmed = Duration::ZERO;
            config.cache.ttl.account.processed = Duration::ZERO;
            config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
        })
        .start()
        .await;
    let account = gateway.cluster.examples().wallets[0].to_string();
    let ask = |commitment| gateway.get_account(&account).commitment(commitment).send();
    for commitment in [Commitment::Processed, Commitment::Confirmed] {
        ask(commitment).await;
    }
    gateway.cluster.nodes().iter().for_each(|node| node.fault(Fault::Status(500)));
    let confirmed = ask(Commitment::Confirmed).await;
    assert_eq!((confirmed.status, confirmed.cache_status()), (200, "hit; ttl=0; detail=stale-if-error"));
    let processed = ask(Commitment::Processed).await;
    assert_eq!(
        (processed.status, processed.code()),
        (502, -32095),
        "stale-if-error does not apply at processed"
    );
}

#[tokio::test]
async fn falling_node_moves_no_answer_back() {
    let gateway = TestGateway::builder()
        .config(|config| config.cache.ttl.account.finalized = Duration::ZERO)
        .start()
        .await;
    let call = gateway.get_account(gateway.cluster.examples().wallets[0]);
    let before = call.send().await.slot();
    gateway.cluster.set_lag(50);
    for _ in 0..5 {
        let reply = call.send().await;
        assert_eq!((reply.status, reply.slot()), (200, before));
        let status = reply.cache_status();
        assert!(status.starts_with("hit; ttl=") && status.ends_with("; detail=stale-if-error"), "{status}");
    }
}

#[tokio::test]
async fn floor_falls_once_its_entry_expires() {
    let gateway = TestGateway::builder()
        .config(|config| {
            config.cache.ttl.account.finalized = Duration::ZERO;
            config.cache.stale_if_error.finalized = Duration::ZERO;
            config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
        })
        .start()
        .await;
    let call = gateway.get_account(gateway.cluster.examples().wallets[0]);
    let before = call.send().await.slot();
    gateway.cluster.set_lag(50);
    let after = call.send().await;
    assert!(after.slot() < before, "the highest available answer is given");
    assert_eq!(after.cache_status(), "fwd=stale; stored", "the answer is kept, because the floor fell to it");
    assert_eq!(gateway.metric("slotfront_cache_floor_resets_total"), 1);
}

#[tokio::test]
async fn many_callers_with_a_number_share_their_calls() {
    let gateway = TestGateway::builder().nodes(2).start().await;
    let account = gateway.cluster.examples().wallets[0].to_string();
    gateway.cluster.node(0).set_lag(3);
    gateway.until("the lag is known", || gateway.lag(0, Commitment::Finalized) > Some(0)).await;
    let slot = gateway.cluster.slot(Commitment::Finalized);
    let call = gateway.get_account(&account).min_context_slot(slot);
    let replies = join_all((0..100).map(|_| call.send())).await;
    assert!(replies.iter().all(|reply| reply.slot() >= slot));
    assert!(gateway.upstream_calls() <= 3, "{} calls", gateway.upstream_calls());
}

#[tokio::test]
async fn final_block_is_one_entry_for_all_commitments() {
    let gateway = TestGateway::start().await;
    let block = |slot| gateway.get_block(slot).details("none");
    let slot = gateway.cluster.slot(Commitment::Finalized);
    block(slot).confirmed().send().await;
    let reply = block(slot).finalized().send().await;
    assert!(reply.cache_status().starts_with("hit; ttl=86"), "{}", reply.cache_status());

    let young = gateway.cluster.slot(Commitment::Confirmed);
    let first = block(young).confirmed().send().await;
    assert!(block(young).confirmed().send().await.is_hit());
    let early = block(young).finalized().send().await;
    assert_eq!(early.code(), -32004, "a confirmed block does not serve callers at finalized");
    while gateway.cluster.slot(Commitment::Finalized) < young {
        gateway.step_by(1).await;
    }
    let last = block(young).confirmed().send().await;
    assert_eq!(last.cache_status(), "fwd=miss; stored", "a block that became final is fetched again");
    assert_eq!(last.result(), first.result());
}

#[tokio::test]
async fn not_yet_ends_when_the_block_is_there() {
    let gateway = TestGateway::start().await;
    let mut slot = gateway.cluster.slot(Commitment::Processed) + 1;
    let ask = |slot| gateway.get_block(slot).confirmed().details("none").send();
    assert_eq!(ask(slot).await.code(), -32004);
    let again = ask(slot).await;
    assert!(again.is_hit() && again.code() == -32004, "{}", again.cache_status());
    gateway.step_by(1).await;
    while !gateway.cluster.has_block(slot) {
        slot += 1;
        gateway.step_by(1).await;
    }
    while gateway.cluster.slot(Commitment::Confirmed) < slot {
        gateway.step_by(1).await;
    }
    assert!(ask(slot).await.result()["parentSlot"].is_u64());
}

/// Returns the remaining time to live of a hit, in seconds.
fn ttl_s(reply: &Reply) -> Option<u64> {
    reply.cache_status().strip_prefix("hit; ttl=").and_then(|ttl| ttl.parse().ok())
}

#[tokio::test]
async fn skip_that_all_nodes_report_lives_seconds() {
    for nodes in [1, 3] {
        let gateway = TestGateway::builder().nodes(nodes).start().await;
        let slot = gateway.cluster.examples().skipped_slot.expect("some slot is skipped");
        let first = gateway.get_block(slot).send().await;
        assert_eq!((first.code(), gateway.upstream_calls()), (-32007, nodes as u64));
        let again = gateway.get_block(slot).confirmed().rewards(false).send().await;
        assert_eq!((again.code(), gateway.upstream_calls()), (-32007, nodes as u64));
        assert!(ttl_s(&again).is_some_and(|ttl_s| ttl_s <= 5), "{}", again.cache_status());
    }
}

#[tokio::test]
async fn skip_that_a_block_proves_lives_long() {
    for (details, encoding) in [("full", "base64"), ("none", "json")] {
        let gateway = TestGateway::start().await;
        let slot = gateway.cluster.examples().skipped_slot.expect("some slot is skipped");
        let newest = gateway.cluster.slot(Commitment::Finalized);
        let next = (slot + 1..=newest).find(|slot| gateway.cluster.has_block(*slot)).unwrap();
        gateway.get_block(next).details(details).encoding(encoding).version_0().send().await;
        let skipped = gateway.get_block(slot);
        assert_eq!(skipped.send().await.code(), -32007);
        let again = skipped.send().await;
        assert!(ttl_s(&again).is_some_and(|ttl_s| ttl_s > 86_000), "{}", again.cache_status());
    }
}

#[tokio::test]
async fn stored_block_proves_no_skip_of_its_parent() {
    let gateway = TestGateway::start().await;
    let next = gateway.cluster.examples().block_with_v0;
    let parent = gateway.get_block(next).version_0().send().await.result()["parentSlot"].as_u64().unwrap();
    gateway.cluster.nodes().iter().for_each(|node| node.set_hole(parent..next));
    let lost = gateway.get_block(parent);
    assert_eq!(lost.send().await.code(), -32007);
    let again = lost.send().await;
    assert!(ttl_s(&again).is_some_and(|ttl_s| ttl_s <= 5), "{}", again.cache_status());
}

#[tokio::test]
async fn a_fee_that_is_null_is_not_stored() {
    let gateway = TestGateway::start().await;
    let message = gateway.cluster.examples().fee_message_processed;
    for _ in 0..2 {
        let reply = gateway.get_fee(&message).send().await;
        assert_eq!((reply.value().clone(), reply.cache_status()), (Value::Null, "fwd=miss"));
    }
    let known = gateway.get_fee(&message).processed().send().await;
    assert_eq!(known.value(), 5000);
}

#[tokio::test]
async fn account_errors_live_as_long_as_accounts() {
    let gateway = TestGateway::start().await;
    let wallet = gateway.cluster.examples().wallets[0].to_string();
    for _ in 0..2 {
        assert_eq!(gateway.get_token_balance(&wallet).send().await.code(), -32602);
    }
    assert_eq!(gateway.upstream_calls(), 1);
}

#[tokio::test]
async fn lists_fill_and_use_single_entries() {
    let gateway = TestGateway::start().await;
    let there = gateway.cluster.examples();
    let (a, b, c) = (there.wallets[0].to_string(), there.wallets[1].to_string(), there.mints[0].to_string());
    gateway.get_accounts([&a, &b]).send().await;
    let single = gateway.get_account(&b).base64().send().await;
    assert!(single.is_hit(), "{}", single.cache_status());
    let turned = gateway.get_accounts([&b, &a, &b]).send().await;
    assert!(turned.is_derived(), "{}", turned.cache_status());
    assert_eq!(turned.value()[1], gateway.get_account(&a).base64().send().await.value());
    assert_eq!(gateway.upstream_calls(), 1);
    assert_eq!(gateway.get_accounts([&a, &c]).send().await.cache_status(), "fwd=miss; stored");
    let empty = gateway.call("getMultipleAccounts", json!([[]])).send().await;
    assert_eq!(empty.value(), json!([]));
}

#[tokio::test]
async fn every_number_of_samples_comes_from_one_answer() {
    let gateway = TestGateway::start().await;
    let all = gateway.get_samples().send().await.result();
    for limit in [0, 1, 3, 719, 720] {
        let some = gateway.get_samples().limit(limit).send().await;
        let expected: Vec<_> = all.as_array().unwrap().iter().take(limit).cloned().collect();
        assert_eq!(some.result(), json!(expected));
        assert_eq!(some.is_derived(), limit < 720, "{limit}: {}", some.cache_status());
    }
    assert_eq!(gateway.upstream_calls(), 1);
}

#[tokio::test]
async fn min_context_slot_is_not_in_the_key() {
    let gateway = TestGateway::start().await;
    let account = gateway.cluster.examples().wallets[0].to_string();
    let from = |slot| gateway.get_account(&account).min_context_slot(slot).send();
    let held = gateway.get_account(&account).send().await.slot();
    assert!(from(held).await.is_hit());
    gateway.step_by(2).await;
    let above = gateway.cluster.slot(Commitment::Finalized);
    let newer = from(above).await;
    assert_eq!((newer.cache_status(), newer.slot()), ("fwd=miss; stored", above));
    let calls = gateway.upstream_calls();
    let far = from(above + 1000).await;
    assert_eq!((far.code(), gateway.upstream_calls()), (-32016, calls + 1), "one node's own error");
    assert_eq!(far.error()["data"]["contextSlot"], above);
}

/// Lets the cluster go back to a lower slot, as after a restart from an old snapshot.
#[tokio::test]
async fn fall_of_the_finalized_slot_purges_blocks() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let (front, node) = (gateway.front(), gateway.cluster.node(0));
    let skipped = gateway.cluster.examples().skipped_slot.expect("some slot is skipped");
    let mut blocks = (skipped..).filter(|slot| gateway.cluster.has_block(*slot));
    let (above, low) = (blocks.next().unwrap(), skipped - 1);
    let fetched = blocks.next().unwrap();
    assert!(fetched <= gateway.cluster.slot(Commitment::Finalized));
    let below = (0..=low).rev().find(|slot| gateway.cluster.has_block(*slot)).unwrap();
    let account = gateway.get_account(gateway.cluster.examples().wallets[0]).finalized();
    let ask = |slot| gateway.get_block(slot).details("none");
    for call in [account.clone(), ask(below), ask(skipped), ask(above)] {
        call.send().await;
        assert!(call.send().await.is_hit());
    }
    let hold = node.hold("getBlock");
    let falls = async {
        hold.arrived(1).await;
        node.fault_on("getSlot", Fault::Result(json!(low)), None);
        gateway
            .until("the node is known to be lower", || {
                front.frontier.slots_of(0).slot(Commitment::Finalized) == Some(low)
            })
            .await;
        assert!(ask(above).send().await.is_hit(), "a node that falls behind proves nothing");
        // Half a minute later, no node has come back.
        let later = Instant::now() + Duration::from_secs(31);
        front.frontier.probed(front.frontier.era(), 0, Commitment::Finalized, low, later);
        gateway.until_metric(r#"slotfront_cache_evictions_total{cause="purged"}"#, 3).await;
        assert!(ask(below).send().await.is_hit(), "the block is below the fall");
        hold.release();
    };
    let _ = tokio::join!(ask(fetched).send(), falls);
    for call in [ask(fetched), ask(above), ask(skipped), account] {
        assert!(!call.send().await.is_hit());
    }
}

#[tokio::test]
async fn plan_may_bypass_the_cache() {
    let gateway = TestGateway::start().await;
    let call = gateway.get_account(gateway.cluster.examples().wallets[0]);
    call.send().await;
    let past = call.clone().no_cache().send().await;
    assert_eq!((past.cache_status(), gateway.upstream_calls()), ("fwd=request; stored", 2));
    assert!(call.send().await.is_hit());
}

#[tokio::test]
async fn a_batch_says_how_many_were_hits() {
    let gateway = TestGateway::start().await;
    gateway.get_samples().send().await;
    let (samples, nodes) = (gateway.get_samples().limit(2), gateway.get_nodes().id(9));
    let notification = json!({"jsonrpc": "2.0", "method": "getBlock"});
    let reply = gateway.post(json!([samples.json(), nodes.json(), notification]).to_string()).send().await;
    assert_eq!(reply.cache_status(), "fwd=miss; detail=\"hits 1/2\"");
    let ids: Vec<_> = reply.json().as_array().unwrap().iter().map(|answer| answer["id"].clone()).collect();
    assert_eq!(ids, [json!(1), json!(9)]);
    assert_eq!(gateway.batch([samples, nodes]).send().await.cache_status(), "hit");
}
