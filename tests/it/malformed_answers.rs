//! Nodes with malformed or outdated answers: a caller never gets an answer that is older than its status
//! says.

use serde_json::{Value, json};
use slotfront::methods::{Commitment, Pubkey};
use slotfront_sim::Fault;
use slotfront_testkit::{PATIENCE, TestGateway};

#[tokio::test]
async fn late_answer_does_not_replace_a_newer_one() {
    let gateway = TestGateway::builder().nodes(2).start().await;
    let account = gateway.cluster.examples().wallets[0].to_string();
    let ask = async |number: Option<u64>| {
        gateway.get_account(&account).confirmed().base64().with("minContextSlot", number).send().await
    };
    let holds = [0, 1].map(|node| gateway.cluster.node(node).hold("getAccountInfo"));
    let waiting = || holds.iter().map(slotfront_sim::Hold::waiting).sum::<usize>();
    let old_slot = gateway.cluster.slot(Commitment::Confirmed);
    let (late, newer) = tokio::join!(ask(None), async {
        gateway.until("the first call is at a node", || waiting() == 1).await;
        let busy = usize::from(holds[1].waiting() == 1);
        gateway.step_by(5).await;
        let slot = gateway.cluster.slot(Commitment::Confirmed);
        assert!(slot > old_slot);
        // The node with the held call stays at the old slot. The other node answers at the new one.
        gateway.cluster.node(busy).set_lag(5);
        holds[1 - busy].release();
        let newer = gateway.get_accounts([&account]).confirmed().min_context_slot(slot).send();
        let newer = newer.await;
        holds[busy].release();
        newer
    });
    assert!(newer.slot() > old_slot);
    assert_eq!(
        (late.slot(), late.cache_status()),
        (newer.slot(), "hit; ttl=3599"),
        "the stored answer is newer"
    );
    let kept = ask(None).await;
    assert_eq!((kept.slot(), kept.is_hit()), (newer.slot(), true));
}

#[tokio::test]
async fn lone_leader_is_not_believed_until_confirmed() {
    let gateway = TestGateway::start().await;
    let account = gateway.cluster.examples().wallets[0].to_string();
    let call = gateway.get_account(&account).base64();
    call.send().await;
    let before = gateway.cluster.slot(Commitment::Finalized);
    for node in [1, 2] {
        gateway.cluster.node(node).set_lag(100);
    }
    gateway.cluster.step_by(100);
    let known = || gateway.front().frontier.slot(Commitment::Finalized);
    let heard = |node: usize| gateway.front().frontier.slots_of(node).slot(Commitment::Finalized);
    gateway.until("the leader's slot is known", || heard(0) > Some(before + 64)).await;
    assert!(known() < before + 64, "one node's word is not enough: {} after {before}", known());
    let kept = call.send().await;
    assert!(kept.is_hit(), "the stored answer is as near to the frontier as before");
    gateway.cluster.node(2).set_lag(0);
    gateway.settled().await;
    let fetched = call.send().await;
    assert!(fetched.cache_status().starts_with("fwd=stale"), "{}", fetched.cache_status());
    assert!(fetched.slot() > before + 64);
}

#[tokio::test]
async fn false_skip_report_does_not_hide_a_block() {
    for asked_first in 0..2 {
        let gateway = TestGateway::builder()
            .nodes(2)
            .config(|config| config.upstreams[1 - asked_first].tier = 1)
            .start()
            .await;
        let slot = gateway.cluster.examples().block_with_v0;
        let message = format!("Slot {slot} was skipped, or missing due to ledger jump to recent snapshot");
        gateway.cluster.node(0).fault_on("getBlock", Fault::Error { code: -32007, message }, None);
        let call = gateway.get_block(slot).version_0();
        let first = call.send().await;
        assert_eq!(first.result()["parentSlot"].as_u64().map(|parent| parent < slot), Some(true));
        assert_eq!(gateway.upstream_calls(), if asked_first == 0 { 2 } else { 1 });
        assert!(call.send().await.is_hit());
    }
}

#[tokio::test]
async fn failed_confirmation_asks_a_third_node() {
    let absent = |code, words: &str| Fault::Error { code, message: words.to_owned() };
    for (code, words, second) in [
        (-32007, "was skipped", Fault::Status(503)),
        (-32004, "not available", Fault::Status(503)),
        (-32014, "status", Fault::Status(503)),
        // The frontier has reached the slot. Two nodes without the block are therefore only behind, and do not
        // prove that the block does not exist.
        (-32004, "not available", absent(-32004, "not available")),
    ] {
        let gateway = TestGateway::builder().in_tiers().start().await;
        let slot = gateway.cluster.examples().block_with_v0;
        gateway.cluster.node(0).fault_on("getBlock", absent(code, words), None);
        gateway.cluster.node(1).fault_on("getBlock", second, None);
        let reply = gateway.get_block(slot).details("none").send().await;
        assert!(reply.result()["blockhash"].is_string(), "{code}: {}", reply.text);
        assert_eq!(gateway.upstream_calls(), 3);
    }
}

#[tokio::test]
async fn finalized_answers_with_mixed_slots_never_go_back() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    gateway.cluster.node(0).set_reads_ahead(true);
    let there = gateway.cluster.examples();
    let keys: Vec<Pubkey> = there.token_accounts.iter().chain(&there.wallets).take(12).copied().collect();
    let names: Vec<String> = keys.iter().map(ToString::to_string).collect();
    let mut ahead = 0;
    for round in 0..8 {
        // Some answers are fetched from the node, some are taken from stored lists, and some lists are assembled
        // by the gateway.
        let list = gateway.get_accounts(&names).send().await;
        let single = gateway.get_account(&names[round]).base64().send().await;
        let pair = gateway.get_accounts([&names[round], &names[round + 1]]).send().await;
        for (reply, keys) in
            [(&list, &keys[..]), (&single, &keys[round..=round]), (&pair, &keys[round..round + 2])]
        {
            let (slot, value) = (reply.slot(), reply.value().clone());
            let values = value.as_array().cloned().unwrap_or_else(|| vec![value]);
            assert_eq!(values.len(), keys.len());
            for (key, value) in keys.iter().zip(values) {
                let at = |slot| {
                    let truth = gateway.cluster.account_at(key, slot).expect("it lives");
                    let data =
                        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &truth.data);
                    value["lamports"] == truth.lamports && value["data"][0] == data
                };
                assert!(at(slot) || at(slot + 1), "{key} at {slot}");
                ahead += usize::from(!at(slot));
            }
        }
        gateway.step_by(20).await;
    }
    assert!(ahead > 0, "no account was written in these slots, so the test shows nothing");
}

#[tokio::test]
async fn dropped_fork_disappears_with_processed_ttl() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(|config| {
            config.cache.ttl.account.processed = std::time::Duration::from_millis(150);
        })
        .start()
        .await;
    let account = gateway.cluster.examples().wallets[0].to_string();
    let ask = async |commitment: Commitment| {
        gateway.get_account(&account).base64().commitment(commitment).send().await
    };
    let (tip, confirmed) = (gateway.cluster.slot(Commitment::Processed), ask(Commitment::Confirmed).await);
    // For a moment both nodes are on a fork that is two slots ahead. On this fork the account differs.
    let mut fork = ask(Commitment::Processed).await.result();
    fork["context"]["slot"] = json!(tip + 2);
    fork["value"]["lamports"] = json!(1);
    gateway.front().cache.purger().clear();
    for node in gateway.cluster.nodes() {
        node.fault_on("getAccountInfo", Fault::Result(fork.clone()), Some(1));
    }
    let on_fork = ask(Commitment::Processed).await;
    assert_eq!((on_fork.slot(), on_fork.value()["lamports"].as_u64()), (tip + 2, Some(1)));
    gateway.cluster.nodes().iter().for_each(|node| node.clear_faults());
    // At processed there is no floor, so the slots of a dropped fork do not hide later answers.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let now = ask(Commitment::Processed).await;
        if now.slot() == tip {
            assert_eq!(now.cache_status(), "fwd=stale; stored");
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "the fork is still served");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let still = ask(Commitment::Confirmed).await;
    assert_eq!(still.value(), confirmed.value(), "the fork was never shown at confirmed");
}

#[tokio::test]
async fn malformed_results_are_retried_and_never_stored() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(|config| {
            config.upstreams[1].tier = 1;
            // Every call may be retried.
            config.pool.retry_budget = 1.0;
            config.pool.breaker.failures = 1_000;
            // All answers of the first node are faults.
            config.pool.breaker.failure_rate = 2.0;
        })
        .start()
        .await;
    let there = gateway.cluster.examples();
    let wallet = there.wallets[0].to_string();
    let context = json!({"slot": gateway.cluster.slot(Commitment::Finalized)});
    let within = |value: serde_json::Value| json!({"context": context, "value": value});
    let odd =
        [json!(7), json!(""), json!(true), json!({}), json!([7]), json!([null]), json!({"not": "an array"})];
    let block = there.block_with_v0;
    let block_with = |member: &str, replacement: serde_json::Value| {
        let mut result = gateway.get_block(block).version_0().result_of(gateway.cluster.node(1));
        result[member] = replacement;
        result
    };
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
            json!([block, {"maxSupportedTransactionVersion": 0}]),
            vec![
                json!({"blockhash": null}),
                json!({"transactions": []}),
                block_with("parentSlot", json!(null)),
                block_with("parentSlot", json!(block)),
                block_with("previousBlockhash", json!(null)),
                block_with("transactions", json!({})),
            ],
        ),
    ];
    for (method, params, own) in rows {
        for result in odd.iter().cloned().chain(own) {
            gateway.front().cache.purger().clear();
            gateway.cluster.node(0).fault_on(method, Fault::Result(result.clone()), Some(1));
            let asked = || [0, 1].map(|node| gateway.cluster.node(node).calls(method));
            let before = asked();
            let call = gateway.call(method, params.clone());
            let (first, direct) = (call.send().await, call.answer_of(gateway.cluster.node(1)));
            assert_eq!(first.json(), direct, "{method} {result}");
            let [faulty, other] = asked();
            assert_eq!(other, before[1] + 1, "{method} {result}");
            // These two methods stay with the node that has answered.
            if !["getRecentPerformanceSamples", "getClusterNodes"].contains(&method) {
                assert_eq!(faulty, before[0] + 1, "{method} {result}");
            }
            let kept = call.send().await;
            assert_eq!((kept.json(), kept.is_hit()), (direct, true), "{method} {result}");
        }
    }
}

/// Some providers read the numbers of an answer as floating point.
#[tokio::test]
async fn a_rounded_rent_epoch_is_put_right() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let (node, slot) = (gateway.cluster.node(0), gateway.cluster.slot(Commitment::Finalized));
    let (wallet, base64) = (gateway.cluster.examples().wallets[0].to_string(), json!({"encoding": "base64"}));
    let account = json!({
        "data": ["AQ==", "base64"], "executable": false, "lamports": 5, "owner": wallet, "rentEpoch": 2_f64.powi(64),
        "space": 1,
    });
    let keyed = json!([{ "account": account, "pubkey": wallet }]);
    let within =
        |value: &Value| json!({ "context": { "apiVersion": "4.0.0", "slot": slot }, "value": value });
    for (method, params, answer) in [
        ("getAccountInfo", json!([wallet, base64]), within(&account)),
        ("getMultipleAccounts", json!([[wallet, wallet], base64]), within(&json!([account, account]))),
        ("getProgramAccounts", json!([wallet, base64]), keyed.clone()),
        ("getTokenAccountsByOwner", json!([wallet, { "mint": wallet }, base64]), within(&keyed)),
        ("getTokenAccountsByDelegate", json!([wallet, { "mint": wallet }, base64]), within(&keyed)),
    ] {
        node.fault_on(method, Fault::Result(answer), None);
        for _ in 0..2 {
            let reply = gateway.call(method, params.clone()).send().await;
            assert!(reply.text.contains(r#""rentEpoch":18446744073709551615,"#), "{method}: {}", reply.text);
            assert!(!reply.text.contains("e19"), "{method}: {}", reply.text);
        }
    }
}
