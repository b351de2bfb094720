//! What a key was told, by a status or a notification, is in the accounts that it reads next. What a relayed notification
//! tells is tested with the relays (`subscribe/relay.rs`).

use serde_json::json;
use slotfront::config::FollowMode;
use slotfront::methods::Commitment;
use slotfront_testkit::{TestGateway, node_answer};
use tokio_util::task::TaskTracker;

use crate::tip::{SIGNATURE, at, landed, status};

/// Whoever was told that a transaction has landed reads what it has changed, although older answers are still fresh.
#[tokio::test]
async fn a_landed_transaction_is_in_the_next_balance() {
    let (off, on) = (FollowMode::Off, FollowMode::On);
    for (is_told_by_socket, commitment, follow) in [
        (false, Commitment::Confirmed, off),
        (false, Commitment::Finalized, off),
        (true, Commitment::Confirmed, off),
        (true, Commitment::Finalized, off),
        (false, Commitment::Confirmed, on),
        (true, Commitment::Finalized, on),
    ] {
        let gateway = TestGateway::builder().config(|config| config.follow.mode = follow).start().await;
        let wallet = gateway.cluster.examples().wallets[0].to_string();
        let balance = gateway.call("getBalance", json!([wallet, at(commitment)]));
        let sent =
            node_answer(gateway.cluster.node(0), "requestAirdrop", &json!([wallet, 77]))["result"].clone();
        let landed = gateway.cluster.step_to_block();
        while gateway.cluster.slot(commitment) + 1 < landed {
            gateway.step_by(1).await;
        }
        let before = balance.send().await.value().as_u64().unwrap();
        while gateway.cluster.slot(commitment) < landed {
            gateway.step_by(1).await;
        }
        if follow == off {
            assert!(balance.send().await.is_hit(), "nothing is known of the transaction");
        }
        if is_told_by_socket {
            let mut socket = gateway.socket().await;
            socket.subscribe("signatureSubscribe", json!([sent, at(commitment)])).await;
            socket.notification().await;
        } else {
            let status = gateway.call("getSignatureStatuses", json!([[sent]])).send().await;
            assert!(status.value()[0]["slot"].as_u64() <= Some(landed), "{}", status.text);
        }
        let after = balance.send().await;
        assert_eq!(after.value(), before + 77, "{commitment}, told by a socket: {is_told_by_socket}");
        assert!(balance.send().await.is_hit());
    }
}

/// The node that has answered first may be the only one that has the transaction.
#[tokio::test]
async fn the_next_balance_comes_from_a_node_with_the_transaction() {
    let gateway = TestGateway::start().await;
    let confirmed = at(Commitment::Confirmed);
    let wallets = gateway.cluster.examples().wallets;
    let [wallet, other] = [0, 1].map(|at: usize| wallets[at].to_string());
    let balance = gateway.call("getBalance", json!([wallet, confirmed]));
    let sent = node_answer(gateway.cluster.node(0), "requestAirdrop", &json!([wallet, 77]))["result"].clone();
    let landed = gateway.cluster.step_to_block();
    gateway.step_by(0).await;
    let before = balance.send().await.value().as_u64().unwrap();
    let now = gateway.cluster.slot(Commitment::Processed);
    gateway.cluster.nodes()[1..].iter().for_each(|node| node.stand_still_at(Some(now)));
    while gateway.cluster.node(0).slot(Commitment::Confirmed) < landed {
        gateway.cluster.step();
    }
    let status = gateway.call("getSignatureStatuses", json!([[sent]]));
    while status.send().await.value()[0]["confirmationStatus"] != "confirmed" {
        // Not in turn, so that the nodes behind do not get each second call.
        gateway.call("getBalance", json!([other, { "commitment": "processed" }])).send().await;
    }
    for _ in 0..4 {
        assert_eq!(balance.send().await.value(), before + 77);
    }
}

/// What is too old for a key is fetched together with what is not there.
#[tokio::test]
async fn a_batch_of_a_told_key_is_fetched_at_once() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let node = gateway.cluster.node(0);
    let wallets = gateway.cluster.examples().wallets;
    let [one, other] = [0, 1].map(|of: usize| {
        gateway.call("getAccountInfo", json!([wallets[of].to_string(), at(Commitment::Confirmed)]))
    });
    one.send().await;
    gateway.step_by(1).await;
    let [newest, confirmed] = [Commitment::Processed, Commitment::Confirmed].map(|c| gateway.cluster.slot(c));
    node.fault_on("getSignatureStatuses", status(newest, &landed(confirmed, Commitment::Confirmed)), None);
    gateway.call("getSignatureStatuses", json!([[SIGNATURE]])).send().await;
    let hold = node.hold("getAccountInfo");
    let batch = TaskTracker::new().spawn(gateway.batch([one, other]).send());
    // Neither waits for the other.
    hold.arrived(2).await;
    hold.release();
    let answers = batch.await.unwrap().json();
    assert!(answers.as_array().unwrap().iter().all(|answer| answer["error"].is_null()), "{answers}");
}
