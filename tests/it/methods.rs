//! The eight cached methods: answers equal a node's, byte for byte. Where Solana's documentation differs from
//! nodes, the setting `compat.profile` decides.

use serde_json::{Value, json};
use slotfront::methods::{Commitment, Profile};
use slotfront_testkit::TestGateway;

/// Returns calls of every method in many forms, for existing data.
fn calls(gateway: &TestGateway) -> Vec<(&'static str, Value)> {
    let there = gateway.cluster.examples();
    let (wallet, token) = (there.wallets[0].to_string(), there.token_accounts[0].to_string());
    let (vote, mint) = (there.vote_accounts[0].to_string(), there.mints[0].to_string());
    let slot = there.block_with_v0;
    let mut calls = vec![
        ("getClusterNodes", json!([])),
        ("getRecentPerformanceSamples", json!([])),
        ("getRecentPerformanceSamples", json!([3])),
        ("getVoteAccounts", json!([{"votePubkey": vote}])),
        ("getTokenAccountBalance", json!([token])),
        ("getTokenAccountBalance", json!([wallet])),
        ("getFeeForMessage", json!([there.fee_message])),
        ("getFeeForMessage", json!([there.fee_message_v0, {"commitment": "processed"}])),
        ("getBlock", json!([slot])),
        ("getBlock", json!([slot + 1_000_000])),
    ];
    for commitment in ["processed", "confirmed", "finalized"] {
        calls.push(("getVoteAccounts", json!([{"commitment": commitment, "keepUnstakedDelinquents": true}])));
        calls.push(("getFeeForMessage", json!([there.fee_message, {"commitment": commitment}])));
        for encoding in ["binary", "base58", "base64", "jsonParsed"] {
            let form = json!({"commitment": commitment, "encoding": encoding});
            let slice = json!({"commitment": commitment, "encoding": encoding, "dataSlice": {"offset": 3, "length": 70}});
            for account in [&wallet, &token, &vote, &mint] {
                calls.push(("getAccountInfo", json!([account, form])));
                calls.push(("getAccountInfo", json!([account, slice])));
            }
            calls.push(("getMultipleAccounts", json!([[wallet, token, wallet], slice])));
        }
    }
    for details in ["full", "accounts", "signatures", "none"] {
        for encoding in ["json", "jsonParsed", "base58", "base64"] {
            for rewards in [true, false] {
                let config = json!({"transactionDetails": details, "encoding": encoding, "rewards": rewards,
                    "maxSupportedTransactionVersion": 0});
                calls.push(("getBlock", json!([slot, config])));
            }
        }
    }
    calls
}

#[tokio::test]
async fn every_method_answers_like_the_node() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    for (method, params) in calls(&gateway) {
        let call = gateway.call(method, params).id("x");
        let expected = String::from_utf8(gateway.cluster.node(0).answer(call.body().as_bytes())).unwrap();
        for round in ["first", "again"] {
            let reply = call.send().await;
            assert_eq!((reply.status, &reply.text), (200, &expected), "{round}: {}", call.body());
        }
    }
}

#[tokio::test]
async fn a_block_holds_transactions_and_its_shapes_agree() {
    let gateway = TestGateway::start().await;
    let slot = gateway.cluster.examples().block_with_v0;
    let block = gateway.get_block(slot).version_0().send().await.result();
    let transactions = block["transactions"].as_array().unwrap();
    assert!(!transactions.is_empty());
    let signatures =
        gateway.get_block(slot).details("signatures").send().await.result()["signatures"].clone();
    let firsts: Vec<_> = transactions.iter().map(|t| t["transaction"]["signatures"][0].clone()).collect();
    assert_eq!(signatures, json!(firsts));
}

#[tokio::test]
async fn the_profile_decides_where_interface_and_node_differ() {
    let spec = TestGateway::builder().config(|config| config.profile = Profile::Spec).start().await;
    let node = TestGateway::start().await;
    let missing = "3uWi9x2SRpmjztkpkr2WWeBoVq3exjXG2YfDWLvm8KsQ";
    let slot = node.cluster.examples().block_with_v0;

    assert_eq!(spec.get_account(missing).send().await.result(), Value::Null);
    assert_eq!(node.get_account(missing).send().await.value(), Value::Null);
    let list = spec.get_accounts([&missing]).send().await.result();
    assert_eq!(list["value"], json!([null]), "a list keeps its context");

    assert_eq!(spec.get_block(u64::MAX).send().await.result(), Value::Null);
    assert_eq!(node.get_block(u64::MAX).send().await.code(), -32004);

    assert_eq!(spec.get_block(slot).version_0().details("none").send().await.result().get("rewards"), None);
    assert!(node.get_block(slot).version_0().details("none").send().await.result()["rewards"].is_array());
    let newer = spec.get_block(slot).send().await;
    assert_eq!(newer.code(), -32015, "an error that is not about absence stays one");
}

#[tokio::test]
async fn commitments_are_ordered() {
    let gateway = TestGateway::start().await;
    let wallet = gateway.cluster.examples().wallets[0];
    let mut slots = Vec::new();
    for commitment in Commitment::ALL {
        slots.push(gateway.get_account(wallet).commitment(commitment).send().await.slot());
        assert_eq!(slots.last().copied(), Some(gateway.cluster.slot(commitment)));
    }
    assert!(slots[0] > slots[1] && slots[1] > slots[2], "{slots:?}");
}
