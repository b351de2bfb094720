//! Answers of nodes from version 4.1 to 4.5 that differ from those of 4.0, and what the gateway does with
//! them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use slotfront::methods::Commitment;
use slotfront_sim::Fault;
use slotfront_testkit::TestGateway;

/// Returns a gateway whose node answers each call of `method` with `result`.
async fn answering(method: &str, result: Value) -> TestGateway {
    let gateway = TestGateway::builder().nodes(1).start().await;
    gateway.cluster.node(0).fault_on(method, Fault::Result(result), None);
    gateway
}

/// Returns the number of attempts that counted as failures of a node.
async fn faults(gateway: &TestGateway) -> u64 {
    let view = gateway.admin("/api/upstreams").await.json();
    view["upstreams"].as_array().unwrap().iter().map(|node| node["failures"].as_u64().unwrap()).sum()
}

#[tokio::test]
async fn cluster_nodes_without_tpu_vote_pass_through() {
    let nodes =
        json!([{ "clientId": "Agave", "featureSet": 1, "gossip": null, "pubkey": "P", "version": "4.5.0" }]);
    let gateway = answering("getClusterNodes", nodes.clone()).await;
    for cache in ["fwd=miss; stored", "hit; "] {
        let reply = gateway.get_nodes().send().await;
        assert_eq!(reply.result(), nodes);
        assert!(reply.cache_status().starts_with(cache), "{}", reply.cache_status());
    }
}

#[tokio::test]
async fn vote_accounts_keep_their_commission_bps() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut all = gateway.get_votes().processed().send().await.result();
    for account in all["current"].as_array_mut().unwrap() {
        account["inflationRewardsCommissionBps"] = json!(550);
    }
    gateway.cluster.node(0).fault_on("getVoteAccounts", Fault::Result(all.clone()), None);
    assert_eq!(gateway.get_votes().send().await.result(), all);
    let one = &all["current"][0];
    let reply = gateway.get_votes().with("votePubkey", one["votePubkey"].clone()).send().await;
    assert_eq!(reply.result(), json!({ "current": [one], "delinquent": [] }));
    assert!(reply.is_derived(), "{}", reply.cache_status());
}

#[tokio::test]
async fn base58_refusals_pass_through_unstored() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let slot = gateway.cluster.slot(Commitment::Finalized);
    let ask = async |version: Option<u8>| {
        let block = gateway.get_block(slot).encoding("base58");
        block.with("maxSupportedTransactionVersion", version).send().await
    };
    let message = "base58 encoding is not supported with maxSupportedTransactionVersion >= 1";
    let refusal = Fault::Error { code: -32602, message: message.to_owned() };
    gateway.cluster.node(0).fault_on("getBlock", refusal, Some(2));
    for _ in 0..2 {
        let refused = ask(Some(1)).await;
        assert_eq!((refused.code(), &refused.error()["message"]), (-32602, &json!(message)));
        assert!(refused.cache_status().starts_with("fwd=miss"), "{}", refused.cache_status());
    }
    assert_eq!((gateway.upstream_calls(), faults(&gateway).await), (2, 0));
    // A node of version 4.0 answers the call. Its answer is cached for callers with the same question.
    let answered = ask(Some(1)).await;
    assert!(answered.result()["transactions"].is_array());
    assert!(ask(Some(1)).await.is_hit());
}

#[tokio::test]
async fn version_1_messages_go_to_a_node() {
    let answer = json!({ "context": { "apiVersion": "4.5.0", "slot": 7 }, "value": 5000 });
    let gateway = answering("getFeeForMessage", answer.clone()).await;
    let message = STANDARD.encode([&[0x81, 1, 0, 1][..], &[7; 4092]].concat());
    let reply = gateway.get_fee(&message).send().await;
    assert_eq!(reply.result(), answer);
    let too_long = STANDARD.encode([&[0x81][..], &[7; 4096]].concat());
    assert_eq!(gateway.get_fee(&too_long).send().await.code(), -32602);
    assert_eq!(gateway.upstream_calls(), 1);
}
