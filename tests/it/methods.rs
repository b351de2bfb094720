//! The eight methods: answers equal a node's, byte for byte. Where the published interface differs, the
//! profile decides.

use serde_json::{Value, json};
use slotfront::methods::{Commitment, Profile};

use crate::harness::Stage;

/// Returns calls of every method in many forms, for existing data.
fn calls(stage: &Stage) -> Vec<(&'static str, Value)> {
    let there = stage.cluster.examples();
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
    let stage = Stage::of(1, |_| {}).await;
    for (method, params) in calls(&stage) {
        let body = json!({"jsonrpc": "2.0", "id": "x", "method": method, "params": params}).to_string();
        let expected = String::from_utf8(stage.cluster.node(0).answer(body.as_bytes())).unwrap();
        for round in ["first", "again"] {
            let reply = stage.post(body.clone()).await;
            assert_eq!((reply.status, &reply.text), (200, &expected), "{round}: {body}");
        }
    }
}

#[tokio::test]
async fn a_block_holds_transactions_and_its_shapes_agree() {
    let stage = Stage::new().await;
    let slot = stage.cluster.examples().block_with_v0;
    let block = stage.call("getBlock", json!([slot, {"maxSupportedTransactionVersion": 0}])).await.result();
    let transactions = block["transactions"].as_array().unwrap();
    assert!(!transactions.is_empty());
    let signatures = stage
        .call("getBlock", json!([slot, {"transactionDetails": "signatures"}]))
        .await
        .result()["signatures"]
        .clone();
    let firsts: Vec<_> = transactions.iter().map(|t| t["transaction"]["signatures"][0].clone()).collect();
    assert_eq!(signatures, json!(firsts));
}

#[tokio::test]
async fn the_profile_decides_where_interface_and_node_differ() {
    let spec = Stage::with(|config| config.profile = Profile::Spec).await;
    let node = Stage::new().await;
    let missing = "3uWi9x2SRpmjztkpkr2WWeBoVq3exjXG2YfDWLvm8KsQ";
    let slot = node.cluster.examples().block_with_v0;
    let version = json!({"maxSupportedTransactionVersion": 0, "transactionDetails": "none"});

    assert_eq!(spec.call("getAccountInfo", json!([missing])).await.result(), Value::Null);
    assert_eq!(node.call("getAccountInfo", json!([missing])).await.result()["value"], Value::Null);
    let list = spec.call("getMultipleAccounts", json!([[missing]])).await.result();
    assert_eq!(list["value"], json!([null]), "a list keeps its context");

    assert_eq!(spec.call("getBlock", json!([u64::MAX])).await.result(), Value::Null);
    assert_eq!(node.call("getBlock", json!([u64::MAX])).await.code(), -32004);

    assert_eq!(spec.call("getBlock", json!([slot, version])).await.result().get("rewards"), None);
    assert!(node.call("getBlock", json!([slot, version])).await.result()["rewards"].is_array());
    let newer = spec.call("getBlock", json!([slot])).await;
    assert_eq!(newer.code(), -32015, "an error that is not about absence stays one");
}

#[tokio::test]
async fn commitments_are_ordered() {
    let stage = Stage::new().await;
    let wallet = stage.cluster.examples().wallets[0].to_string();
    let mut slots = Vec::new();
    for commitment in Commitment::ALL {
        let config = json!({"commitment": commitment.as_str()});
        let context = stage.call("getAccountInfo", json!([wallet, config])).await.result()["context"].clone();
        slots.push(context["slot"].as_u64().unwrap());
        assert_eq!(slots.last().copied(), Some(stage.cluster.slot(commitment)));
    }
    assert!(slots[0] > slots[1] && slots[1] > slots[2], "{slots:?}");
}
