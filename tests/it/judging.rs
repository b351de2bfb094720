//! Nodes that are not all alike: what one of them says of one method neither decides for the others nor takes it out of all
//! calls, and nobody is told that there is nothing while the node that has it does not answer.

use std::time::Duration;

use serde_json::{Value, json};
use slotfront::methods::{Commitment, Slot};
use slotfront_sim::Fault;
use slotfront_testkit::TestGateway;

/// Returns a gateway in front of an archive, the first node, and one that keeps twenty slots. Another key floods the pool
/// with what neither of them has.
async fn beside_an_archive() -> (TestGateway, Slot) {
    let gateway = TestGateway::builder().nodes(2).start().await;
    let kept = gateway.cluster.slot(Commitment::Finalized) - 20;
    gateway.cluster.node(1).prune_below(kept);
    let firsts = || {
        let members = gateway.front().pool.members();
        (members[0].first_available(), members[1].first_available())
    };
    gateway
        .until("the oldest blocks are known", || matches!(firsts(), (Some(_), Some(first)) if first == kept))
        .await;
    (gateway, kept)
}

#[tokio::test]
async fn nothing_is_told_missing_while_its_only_holder_fails() {
    let (gateway, kept) = beside_an_archive().await;
    let (archive, wallet) = (gateway.cluster.node(0), gateway.cluster.examples().wallets[0].to_string());
    let old = kept - 30;
    let signature =
        gateway.get_block(old).details("signatures").version_0().result_of(archive)["signatures"][0].clone();
    let questions = |n: u64| {
        [
            ("getSignaturesForAddress", json!([wallet, { "limit": 900 + n }])),
            ("getBlocks", json!([old - n, old + 3])),
            ("getBlockTime", json!([old - n])),
            ("getTransaction", json!([signature, { "maxSupportedTransactionVersion": n }])),
        ]
    };
    for fault in [Fault::Status(503), Fault::Status429 { retry_after_s: 3 }, Fault::Reset, Fault::Half] {
        for n in 0..3 {
            for (method, params) in questions(n) {
                archive.fault_on(method, fault.clone(), None);
                let call = gateway.call(method, params);
                let reply = call.no_cache().send().await;
                assert_eq!(reply.code(), -32095, "{fault:?} {method}: {}", reply.text);
                let attempts = reply.error()["data"]["attempts"].clone();
                let names = |attempt: &Value| attempt["upstream"] == "node-0";
                assert!(attempts.as_array().unwrap().iter().any(names), "{method}: {attempts}");
            }
        }
        archive.clear_faults();
    }
    // Once it answers again, its answer is told.
    for (method, params) in questions(9) {
        let call = gateway.call(method, params);
        let told = async || call.send().await.json() == call.answer_of(archive);
        while !told().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn one_dead_node_of_equals_makes_no_absence_an_error() {
    let gateway = TestGateway::builder().start().await;
    let first = || gateway.front().pool.members().iter().all(|member| member.first_available().is_some());
    gateway.until("the oldest blocks are known", first).await;
    gateway.cluster.node(2).set_down(true);
    let unknown = "5VERv8NMvzbJMEkV8xnrLkEaWRtSz9CosKDYjCJjBRnbJLgp8uirBgmQpjKhoR4tjF3ZpRzrFmBV6UjKdiSZkQUW";
    for version in 0..20 {
        let config = json!({ "maxSupportedTransactionVersion": version });
        let reply = gateway.call("getTransaction", json!([unknown, config])).send().await;
        assert_eq!(reply.json()["result"], Value::Null, "{}", reply.text);
        assert!(reply.json().get("error").is_none(), "{}", reply.text);
    }
}

/// A node that does not say where its blocks begin is no node with all blocks.
#[tokio::test]
async fn an_unknown_first_block_is_not_zero() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .prepare(|cluster| {
            let lacks = |message: &str| Fault::Error { code: -32601, message: message.to_owned() };
            cluster.node(0).fault_on("getFirstAvailableBlock", lacks("Method not found"), None);
            cluster.node(0).fault_on("getSignaturesForAddress", Fault::Result(json!([])), None);
            cluster.node(1).prune_below(cluster.slot(Commitment::Finalized) - 40);
        })
        .start()
        .await;
    let first = || gateway.front().pool.members()[1].first_available();
    gateway.until("the second node's oldest block is known", || first().is_some()).await;
    for n in 0..30 {
        let wallet = gateway.cluster.examples().wallets[0].to_string();
        let call = gateway.call("getSignaturesForAddress", json!([wallet, { "limit": 1000 - n }])).no_cache();
        let page = call.send().await;
        assert_eq!(page.result(), call.result_of(gateway.cluster.node(1)), "{}", page.text);
        assert!(!page.result().as_array().unwrap().is_empty());
    }
    for method in ["getFirstAvailableBlock", "minimumLedgerSlot"] {
        assert_eq!(gateway.call(method, json!([])).send().await.result(), json!(first()), "{method}");
    }
}

/// How far the blocks of a node go back is known from its last probe. An archive fails, and another node has dropped its
/// blocks since.
#[tokio::test]
async fn a_node_that_has_dropped_blocks_ends_no_page() {
    let gateway = TestGateway::builder().start().await;
    let known = || gateway.front().pool.members().iter().all(|member| member.first_available().is_some());
    gateway.until("the oldest blocks are known", known).await;
    let cluster = &gateway.cluster;
    let lost = Fault::Error { code: -32601, message: "Method not found".to_owned() };
    cluster.node(0).fault_on("getFirstAvailableBlock", lost, None);
    cluster.node(0).prune_below(cluster.slot(Commitment::Finalized));
    cluster.node(1).fault_on("getSignaturesForAddress", Fault::Status(503), None);
    let wallet = cluster.examples().wallets[0].to_string();
    for n in 0..20 {
        let call = gateway.call("getSignaturesForAddress", json!([wallet, { "limit": 1000 - n }])).no_cache();
        let page = call.send().await;
        assert_eq!(page.result(), call.result_of(cluster.node(2)), "{}", page.text);
    }
}

/// What a node refuses of one method says nothing of the others, whatever words it has for it.
#[tokio::test]
async fn a_refused_method_stays_with_the_method() {
    let error = |code, message: &str| Fault::Error { code, message: message.to_owned() };
    for fault in [
        Fault::Status(400),
        Fault::Status(402),
        Fault::Status(403),
        Fault::Status(404),
        Fault::Status(405),
        Fault::Status(410),
        error(-32600, "Unsupported method"),
        error(-32603, "Internal error"),
        error(-32003, "daily request limit reached"),
    ] {
        let gateway = TestGateway::builder().in_tiers().start().await;
        let first = gateway.cluster.node(0);
        first.fault_on("getVoteAccounts", fault.clone(), None);
        for _ in 0..12 {
            let votes = gateway.get_votes().no_cache().send().await;
            assert!(votes.result()["current"].is_array(), "{fault:?}: {}", votes.text);
        }
        let before = first.calls("getAccountInfo");
        for wallet in gateway.cluster.examples().wallets.iter().take(10) {
            assert!(gateway.get_account(wallet).send().await.value()["lamports"].is_u64());
        }
        assert_eq!(
            first.calls("getAccountInfo") - before,
            10,
            "{fault:?}: the first tier has all reads of accounts"
        );
        assert!(first.calls("getVoteAccounts") < 8, "{fault:?}: it is left alone for a while");
    }
}

#[tokio::test]
async fn accounts_stay_where_only_history_has_failed() {
    let gateway = TestGateway::builder().in_tiers().start().await;
    let first = gateway.cluster.node(0);
    for method in ["getTransaction", "getBlock", "getSignaturesForAddress"] {
        first.fault_on(method, Fault::Status(503), None);
    }
    let newest = gateway.cluster.slot(Commitment::Finalized);
    for back in 0..20 {
        let block = gateway.get_block(newest - back).details("none").send().await;
        assert_eq!(block.status, 200, "{}", block.text);
    }
    assert!(first.calls("getBlock") < 20, "its history is left alone");
    for wallet in gateway.cluster.examples().wallets.iter().take(10) {
        assert!(gateway.get_account(wallet).send().await.value()["lamports"].is_u64());
    }
    assert_eq!(first.calls("getAccountInfo"), 10);
}

#[tokio::test]
async fn whoever_was_shown_a_slot_may_ask_what_is_in_it() {
    let gateway = TestGateway::builder().nodes(2).start().await;
    gateway.cluster.node(0).set_lag(2);
    for _ in 0..24 {
        gateway.step_by(1).await;
        let shown = gateway.call("getSlot", json!([{ "commitment": "confirmed" }])).send().await.result();
        let slot = shown.as_u64().unwrap();
        let time = gateway.call("getBlockTime", json!([slot])).send().await;
        let told = gateway.get_block(slot).details("none").confirmed().send().await;
        let is_skipped = told.json()["error"]["code"] == json!(-32007);
        assert!(time.json()["result"].is_number() || is_skipped, "{slot}: {}", time.text);
        assert!(told.json()["result"].is_object() || is_skipped, "{slot}: {}", told.text);
    }
}

/// Asking again for what no node has does not ask every node again.
#[tokio::test]
async fn what_nobody_has_is_remembered_for_a_slot() {
    let gateway = TestGateway::builder().start().await;
    let unknown = "5VERv8NMvzbJMEkV8xnrLkEaWRtSz9CosKDYjCJjBRnbJLgp8uirBgmQpjKhoR4tjF3ZpRzrFmBV6UjKdiSZkQUW";
    let skipped = gateway.cluster.examples().skipped_slot.expect("some slot is skipped");
    for (method, params) in [("getTransaction", json!([unknown])), ("getBlockTime", json!([skipped]))] {
        let asked = || gateway.cluster.nodes().iter().map(|node| node.calls(method)).sum::<u64>();
        for _ in 0..20 {
            gateway.call(method, params.clone()).send().await;
        }
        assert_eq!(asked(), 3, "{method}: every node once");
        gateway.step_by(1).await;
        gateway.call(method, params).send().await;
        assert_eq!(asked(), 6, "{method}: the next slot may have it");
    }
}
