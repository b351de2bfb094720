//! The ends of transactions: each that lands is notified of once, however late somebody subscribes.

use serde_json::{Value, json};
use slotfront::methods::Commitment::{self, Confirmed, Processed};
use slotfront::methods::Slot;
use slotfront_sim::{Fault, HISTORY_SEARCH};
use slotfront_testkit::{LoopbackTap, TestGateway, node_answer};

use super::{nothing_more, signature};

/// Lets every node say that the transaction was in the block of `slot`, has failed if `err` is not null, and is now at
/// `commitment`.
pub(super) fn land(gateway: &TestGateway, slot: Slot, commitment: Commitment, err: &Value) {
    gateway.cluster.clear_faults();
    let context = gateway.cluster.slot(Processed);
    let status = json!({ "slot": slot, "confirmations": null, "err": err, "status": { "Ok": null },
        "confirmationStatus": commitment.as_str() });
    let answer = json!({ "context": { "slot": context }, "value": [status] });
    gateway.cluster.fault_everywhere("getSignatureStatuses", &Fault::Result(answer));
}

#[tokio::test]
async fn a_landed_transaction_is_notified_of_once_to_each() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let (mut one, mut other) = (gateway.socket().await, gateway.socket().await);
    let params = json!([signature(1), {"commitment": "confirmed"}]);
    let ids = [
        one.subscribe("signatureSubscribe", params.clone()).await,
        other.subscribe("signatureSubscribe", params.clone()).await,
    ];
    gateway.step_by(2).await;
    nothing_more(&mut one).await;
    let slot = gateway.cluster.slot(Processed);
    let err = json!({"InstructionError": [0, {"Custom": 1}]});
    land(&gateway, slot, Confirmed, &err);
    gateway.cluster.step();
    for (socket, id) in [(&mut one, ids[0]), (&mut other, ids[1])] {
        let params = socket.notification().await;
        assert_eq!((&params["subscription"], &params["result"]["value"]), (&json!(id), &json!({"err": err})));
        assert!(params["result"]["context"]["slot"].as_u64().unwrap() >= slot, "{params}");
    }
    // The subscription has ended, and another one of the same transaction is answered at once.
    assert_eq!(one.call("signatureUnsubscribe", json!([ids[0]])).await["error"]["code"], -32602);
    let late = one.subscribe("signatureSubscribe", params).await;
    assert_eq!(one.notification().await["subscription"], late);
    nothing_more(&mut one).await;
    nothing_more(&mut other).await;
    assert_eq!(gateway.metric("slotfront_ws_subscriptions{method=\"signatureSubscribe\"}"), 0);
}

#[tokio::test]
async fn a_received_transaction_is_notified_of_twice() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut socket = gateway.socket().await;
    let config = json!({"commitment": "confirmed", "enableReceivedNotification": true});
    let id = socket.subscribe("signatureSubscribe", json!([signature(1), config])).await;
    land(&gateway, gateway.cluster.slot(Processed), Processed, &Value::Null);
    gateway.cluster.step();
    let params = socket.notification().await;
    assert_eq!(
        (&params["subscription"], &params["result"]["value"]),
        (&json!(id), &json!("receivedSignature"))
    );
    land(&gateway, gateway.cluster.slot(Processed), Confirmed, &Value::Null);
    gateway.cluster.step();
    assert_eq!(socket.notification().await["result"]["value"], json!({"err": null}));
    nothing_more(&mut socket).await;
}

#[tokio::test]
async fn a_transaction_that_landed_long_ago_is_notified_of_at_once() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let params = json!([gateway.cluster.examples().wallets[0].to_string(), 1]);
    let sent = node_answer(gateway.cluster.node(0), "requestAirdrop", &params)["result"].clone();
    let landed = gateway.cluster.step_to_block();
    // Without a search of the history, a node knows the newest 300 blocks.
    gateway.step_by(400).await;
    let mut socket = gateway.socket().await;
    let id = socket.subscribe("signatureSubscribe", json!([sent])).await;
    let params = socket.notification().await;
    assert_eq!((&params["subscription"], &params["result"]["value"]), (&json!(id), &json!({"err": null})));
    assert!(params["result"]["context"]["slot"].as_u64().unwrap() >= landed, "{params}");
}

#[tokio::test]
async fn no_height_waits_for_the_history() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let params = json!([gateway.cluster.examples().wallets[0].to_string(), 1]);
    let sent = node_answer(gateway.cluster.node(0), "requestAirdrop", &params)["result"].clone();
    gateway.cluster.step_to_block();
    gateway.step_by(400).await;
    // The node looks into a store that is slow.
    let held = gateway.cluster.node(0).hold(HISTORY_SEARCH);
    let mut socket = gateway.socket().await;
    socket.subscribe("signatureSubscribe", json!([sent, { "commitment": "confirmed" }])).await;
    held.arrived(1).await;
    for _ in 0..3 {
        gateway.step_by(1).await;
        let height = gateway.call("getBlockHeight", json!([{ "commitment": "confirmed" }])).send().await;
        assert_eq!(height.status, 200, "{}", height.text);
    }
    held.release();
    assert_eq!(socket.notification().await["result"]["value"], json!({ "err": null }));
}

/// One signature may take a node longer than all others, so a search that fails is repeated in halves.
#[tokio::test]
async fn a_search_that_fails_is_halved() {
    let tap = LoopbackTap::start().await;
    tap.close_at(|_, seen| {
        let is_search = seen.body.contains(r#""searchTransactionHistory":true"#);
        let list = seen.body.split_once("[[").and_then(|(_, list)| list.split_once(']'));
        is_search && list.is_some_and(|(list, _)| list.contains(','))
    });
    let gateway = TestGateway::builder().nodes(1).tap(&tap).start().await;
    let airdrop = |lamports: u64| {
        let params = json!([gateway.cluster.examples().wallets[0].to_string(), lamports]);
        node_answer(gateway.cluster.node(0), "requestAirdrop", &params)["result"].clone()
    };
    let sent = [1, 2].map(airdrop);
    gateway.cluster.step_to_block();
    gateway.step_by(400).await;
    let held = gateway.cluster.node(0).hold(HISTORY_SEARCH);
    let mut socket = gateway.socket().await;
    socket.subscribe("signatureSubscribe", json!([signature(1)])).await;
    held.arrived(1).await;
    for sent in &sent {
        socket.subscribe("signatureSubscribe", json!([sent])).await;
    }
    held.release();
    for _ in sent {
        assert_eq!(socket.notification().await["result"]["value"], json!({ "err": null }));
    }
}
