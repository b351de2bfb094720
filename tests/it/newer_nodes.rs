//! Answers of nodes from version 4.1 to 4.5 that differ from those of 4.0, and what the gateway does with
//! them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use slotfront_sim::Fault;
use slotfront_testkit::TestGateway;

/// Returns a gateway whose node answers each call of `method` with `result`.
async fn answering(method: &str, result: Value) -> TestGateway {
    let gateway = TestGateway::builder().nodes(1).start().await;
    gateway.cluster.node(0).fault_on(method, Fault::Result(result), None);
    gateway
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
async fn unknown_blocks_are_asked_for_as_they_are() {
    let message = "Transaction version (1) is not supported by the requesting client. Please try the request again \
                   with the following configuration parameter: \"maxSupportedTransactionVersion\": 1";
    let version_1 = Fault::Error { code: -32015, message: message.to_owned() };
    for fault in [version_1, Fault::Result(Value::Null)] {
        let gateway = TestGateway::builder().nodes(1).start().await;
        let node = gateway.cluster.node(0);
        let slot = gateway.cluster.examples().block_with_v0;
        let ask = || gateway.get_block(slot).with("maxSupportedTransactionVersion", 1);
        let expected = ask().result_of(node);
        let fault = match fault {
            Fault::Result(_) => {
                let mut newer = gateway.get_block(slot).encoding("base64").version_0().result_of(node);
                newer["transactions"][0]["meta"]["aNewMember"] = json!(1);
                Fault::Result(newer)
            }
            error => error,
        };
        node.fault_on("getBlock", fault, Some(1));
        let before = gateway.upstream_calls();
        for cache in ["fwd=miss; stored", "hit; "] {
            let reply = ask().send().await;
            assert_eq!(reply.result(), expected);
            assert!(reply.cache_status().starts_with(cache), "{}", reply.cache_status());
        }
        assert_eq!(gateway.upstream_calls() - before, 2, "the block in base64, and then in json");
    }
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
