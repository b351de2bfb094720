//! Nodes with malformed or outdated answers: a caller never gets an answer that is older than its status
//! says.

use serde_json::json;
use slotfront::methods::{Commitment, Pubkey};
use slotfront_sim::Fault;

use crate::harness::{Reply, Stage};

fn slot_of(reply: &Reply) -> u64 {
    reply.result()["context"]["slot"].as_u64().unwrap()
}

#[tokio::test]
async fn late_answer_does_not_replace_a_newer_one() {
    let stage = Stage::of(2, |_| {}).await;
    let account = stage.cluster.examples().wallets[0].to_string();
    let ask = async |number: Option<u64>| {
        let config = json!({"commitment": "confirmed", "encoding": "base64", "minContextSlot": number});
        stage.call("getAccountInfo", json!([account, config])).await
    };
    let holds = [0, 1].map(|node| stage.cluster.node(node).hold("getAccountInfo"));
    let waiting = || holds.iter().map(slotfront_sim::Hold::waiting).sum::<usize>();
    let old_slot = stage.cluster.slot(Commitment::Confirmed);
    let (late, newer) = tokio::join!(ask(None), async {
        stage.until("the first call is on its way", || waiting() == 1).await;
        let busy = usize::from(holds[1].waiting() == 1);
        stage.step_by(5).await;
        let slot = stage.cluster.slot(Commitment::Confirmed);
        assert!(slot > old_slot);
        // The node of the held call has not moved, and the other one is free.
        stage.cluster.node(busy).set_lag(5);
        holds[1 - busy].release();
        let newer = stage.call(
            "getMultipleAccounts",
            json!([[account], {"commitment": "confirmed", "minContextSlot": slot}]),
        );
        let newer = newer.await;
        holds[busy].release();
        newer
    });
    assert!(slot_of(&newer) > old_slot);
    assert_eq!((slot_of(&late), late.cache()), (slot_of(&newer), "hit; ttl=3599"), "what is held is better");
    let kept = ask(None).await;
    assert_eq!((slot_of(&kept), kept.cache().starts_with("hit")), (slot_of(&newer), true));
}

#[tokio::test]
async fn lone_leader_is_not_believed_until_confirmed() {
    let stage = Stage::new().await;
    let account = stage.cluster.examples().wallets[0].to_string();
    let params = json!([account, {"encoding": "base64"}]);
    stage.call("getAccountInfo", params.clone()).await;
    let before = stage.cluster.slot(Commitment::Finalized);
    for node in [1, 2] {
        stage.cluster.node(node).set_lag(100);
    }
    stage.cluster.step_by(100);
    let known = || stage.front().frontier.slot(Commitment::Finalized);
    let heard = |node: usize| stage.front().frontier.node_slot(node, Commitment::Finalized);
    stage.until("the leader's slot is heard", || heard(0) > Some(before + 64)).await;
    assert!(known() < before + 64, "one voice is not enough: {} of {before}", known());
    let kept = stage.call("getAccountInfo", params.clone()).await;
    assert!(kept.cache().starts_with("hit"), "what is kept is as near the frontier as it was");
    stage.cluster.node(2).set_lag(0);
    stage.settled().await;
    let fetched = stage.call("getAccountInfo", params).await;
    assert!(fetched.cache().starts_with("fwd=stale"), "{}", fetched.cache());
    assert!(slot_of(&fetched) > before + 64);
}

#[tokio::test]
async fn false_skip_report_does_not_hide_a_block() {
    for asked_first in 0..2 {
        let stage = Stage::of(2, |config| config.upstreams[1 - asked_first].tier = 1).await;
        let slot = stage.cluster.examples().block_with_v0;
        let message = format!("Slot {slot} was skipped, or missing due to ledger jump to recent snapshot");
        stage.cluster.node(0).fault_on("getBlock", Fault::Error { code: -32007, message }, None);
        let params = json!([slot, {"maxSupportedTransactionVersion": 0}]);
        let first = stage.call("getBlock", params.clone()).await;
        assert_eq!(first.result()["parentSlot"].as_u64().map(|parent| parent < slot), Some(true));
        assert_eq!(stage.upstream_calls(), if asked_first == 0 { 2 } else { 1 });
        assert!(stage.call("getBlock", params).await.cache().starts_with("hit"));
    }
}

#[tokio::test]
async fn failed_confirmation_asks_a_third_node() {
    let absent = |code, words: &str| Fault::Error { code, message: words.to_owned() };
    for (code, words, second) in [
        (-32007, "was skipped", Fault::Status(503)),
        (-32004, "not available", Fault::Status(503)),
        (-32014, "status", Fault::Status(503)),
        // Two nodes that are not as far agree on nothing. The frontier is at this slot.
        (-32004, "not available", absent(-32004, "not available")),
    ] {
        let stage = Stage::of(3, |config| {
            for (tier, upstream) in (0..).zip(&mut config.upstreams) {
                upstream.tier = tier;
            }
        })
        .await;
        let slot = stage.cluster.examples().block_with_v0;
        stage.cluster.node(0).fault_on("getBlock", absent(code, words), None);
        stage.cluster.node(1).fault_on("getBlock", second, None);
        let reply = stage.call("getBlock", json!([slot, {"transactionDetails": "none"}])).await;
        assert!(reply.result()["blockhash"].is_string(), "{code}: {}", reply.text);
        assert_eq!(stage.upstream_calls(), 3);
    }
}

#[tokio::test]
async fn finalized_answers_with_mixed_slots_never_go_back() {
    let stage = Stage::of(1, |_| {}).await;
    stage.cluster.node(0).set_reads_ahead(true);
    let there = stage.cluster.examples();
    let keys: Vec<Pubkey> = there.token_accounts.iter().chain(&there.wallets).take(12).copied().collect();
    let names: Vec<String> = keys.iter().map(ToString::to_string).collect();
    let mut ahead = 0;
    for round in 0..8 {
        // Lists and single accounts: from the node, taken from lists, and assembled here.
        let list = stage.call("getMultipleAccounts", json!([names])).await;
        let single = stage.call("getAccountInfo", json!([names[round], {"encoding": "base64"}])).await;
        let pair = stage.call("getMultipleAccounts", json!([[names[round], names[round + 1]]])).await;
        for (reply, keys) in
            [(&list, &keys[..]), (&single, &keys[round..=round]), (&pair, &keys[round..round + 2])]
        {
            let (slot, value) = (slot_of(reply), reply.result()["value"].clone());
            let values = value.as_array().cloned().unwrap_or_else(|| vec![value]);
            assert_eq!(values.len(), keys.len());
            for (key, value) in keys.iter().zip(values) {
                let at = |slot| {
                    let truth = stage.cluster.account_at(key, slot).expect("it lives");
                    let data =
                        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &truth.data);
                    value["lamports"] == truth.lamports && value["data"][0] == data
                };
                assert!(at(slot) || at(slot + 1), "{key} at {slot}");
                ahead += usize::from(!at(slot));
            }
        }
        stage.step_by(20).await;
    }
    assert!(ahead > 0, "no account was written just then: the test shows nothing");
}

#[tokio::test]
async fn dropped_fork_disappears_with_processed_ttl() {
    let stage = Stage::of(2, |config| {
        config.cache.ttl.account.processed = std::time::Duration::from_millis(150);
    })
    .await;
    let account = stage.cluster.examples().wallets[0].to_string();
    let ask = async |commitment: Commitment| {
        stage
            .call(
                "getAccountInfo",
                json!([account, {"encoding": "base64", "commitment": commitment.as_str()}]),
            )
            .await
    };
    let (tip, confirmed) = (stage.cluster.slot(Commitment::Processed), ask(Commitment::Confirmed).await);
    // Both nodes are on a fork for a moment, two slots ahead, on which the account differs.
    let mut fork = ask(Commitment::Processed).await.result();
    fork["context"]["slot"] = json!(tip + 2);
    fork["value"]["lamports"] = json!(1);
    stage.front().cache.purger().clear();
    for node in stage.cluster.nodes() {
        node.fault_on("getAccountInfo", Fault::Result(fork.clone()), Some(1));
    }
    let on_fork = ask(Commitment::Processed).await;
    assert_eq!((slot_of(&on_fork), on_fork.result()["value"]["lamports"].as_u64()), (tip + 2, Some(1)));
    stage.cluster.nodes().iter().for_each(|node| node.clear_faults());
    // At processed there is no floor: slots of a dropped fork do not hide later answers.
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        let now = ask(Commitment::Processed).await;
        if slot_of(&now) == tip {
            assert_eq!(now.cache(), "fwd=stale; stored");
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "the fork is still served");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let still = ask(Commitment::Confirmed).await;
    assert_eq!(still.result()["value"], confirmed.result()["value"], "confirmed never saw it");
}

#[tokio::test]
async fn malformed_results_are_retried_and_never_held() {
    let stage = Stage::of(2, |config| {
        config.upstreams[1].tier = 1;
        // Every call may be retried.
        config.pool.retry_budget = 1.0;
        config.pool.breaker.failures = 1_000;
        config.pool.breaker.failure_rate = 1.0;
    })
    .await;
    let there = stage.cluster.examples();
    let wallet = there.wallets[0].to_string();
    let context = json!({"slot": stage.cluster.slot(Commitment::Finalized)});
    let within = |value: serde_json::Value| json!({"context": context, "value": value});
    let odd =
        [json!(7), json!(""), json!(true), json!({}), json!([7]), json!([null]), json!({"not": "an array"})];
    let lists = [json!({"current": [], "delinquent": null}), json!({"current": [{}], "delinquent": []})];
    let rows = [
        ("getAccountInfo", json!([wallet]), vec![within(json!(7)), within(json!({"data": []}))]),
        ("getMultipleAccounts", json!([[wallet]]), vec![within(json!(null)), within(json!([7]))]),
        (
            "getTokenAccountBalance",
            json!([there.token_accounts[0].to_string()]),
            vec![within(json!(null)), within(json!({"amount": 7}))],
        ),
        ("getFeeForMessage", json!([there.fee_message]), vec![within(json!("5000")), within(json!({}))]),
        ("getVoteAccounts", json!([]), lists.to_vec()),
        ("getRecentPerformanceSamples", json!([5]), vec![json!([{"slot": "5"}])]),
        ("getClusterNodes", json!([]), vec![json!([{"pubkey": null}])]),
        (
            "getBlock",
            json!([there.block_with_v0, {"maxSupportedTransactionVersion": 0}]),
            vec![json!({"blockhash": null}), json!({"transactions": []})],
        ),
    ];
    for (method, params, own) in rows {
        for result in odd.iter().cloned().chain(own) {
            stage.front().cache.purger().clear();
            stage.cluster.node(0).fault_on(method, Fault::Result(result.clone()), Some(1));
            let asked = stage.cluster.node(1).calls(method);
            let first = stage.call(method, params.clone()).await;
            let direct = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
            let direct: serde_json::Value =
                serde_json::from_slice(&stage.cluster.node(1).answer(direct.as_bytes())).unwrap();
            assert_eq!(first.json(), direct, "{method} {result}");
            assert!(stage.cluster.node(1).calls(method) > asked, "{method} {result}");
            let kept = stage.call(method, params.clone()).await;
            assert_eq!((kept.json(), kept.cache().starts_with("hit")), (direct, true), "{method} {result}");
        }
    }
}
