//! What the restart of a cluster at a lower slot, and accounts that no node gives, do to subscriptions.

use serde_json::{Value, json};
use slotfront::methods::Commitment::Confirmed;
use slotfront_sim::Fault;
use slotfront_testkit::{TestGateway, TestSocket};
use tokio_util::task::TaskTracker;

use super::signatures::land;
use super::{CLOCK, nothing_more, signature};

/// The slots for which an account may stay unread without an end of its subscribers, and those after which they are closed.
const UNREAD: [u64; 2] = [100, 160];

fn clock() -> Value {
    json!([CLOCK, {"commitment": "confirmed", "encoding": "base64"}])
}

/// Lets `slots` slots pass, and waits until the accounts were asked for at the last one.
async fn step_and_look(gateway: &TestGateway, slots: u64) {
    let calls = || gateway.cluster.node(0).calls("getMultipleAccounts");
    for slots in [slots - 1, 1] {
        let before = calls();
        gateway.cluster.step_by(slots);
        // A slot without a block is no new slot.
        gateway.cluster.step_to_block();
        gateway.settled().await;
        gateway.until("the accounts are asked for", || calls() > before).await;
    }
}

/// Lets no node give an account.
fn refuse_accounts(gateway: &TestGateway) {
    for method in ["getMultipleAccounts", "getAccountInfo"] {
        let refusal = Fault::Error { code: -32603, message: "Internal error".to_owned() };
        gateway.cluster.fault_everywhere(method, &refusal);
    }
}

/// Asserts that the next notification is of an account above `slot`, and returns its slot.
async fn changed_above(socket: &mut TestSocket, slot: u64) -> u64 {
    let params = socket.notification().await;
    let shown = params["result"]["context"]["slot"].as_u64().unwrap_or_else(|| panic!("{params}"));
    assert!(shown > slot, "{params} after {slot}");
    shown
}

#[tokio::test]
async fn an_account_that_stays_unread_ends_its_subscribers() {
    let mut gateway = TestGateway::builder().nodes(1).start().await;
    let [mut socket, mut other] = [gateway.socket().await, gateway.socket().await];
    socket.subscribe("accountSubscribe", clock()).await;
    other.subscribe("slotSubscribe", json!([])).await;
    step_and_look(&gateway, 2).await;
    let mut last = changed_above(&mut socket, 0).await;
    // Each gap is too short, and what happened meanwhile is told after it.
    for _ in 0..2 {
        refuse_accounts(&gateway);
        step_and_look(&gateway, 2).await;
        step_and_look(&gateway, UNREAD[0]).await;
        gateway.cluster.clear_faults();
        let slot = gateway.cluster.slot(Confirmed);
        step_and_look(&gateway, 2).await;
        while last <= slot {
            last = changed_above(&mut socket, last).await;
        }
    }
    refuse_accounts(&gateway);
    step_and_look(&gateway, 2).await;
    gateway.step_by(UNREAD[1]).await;
    assert_eq!(socket.closed().await, 1012);
    assert!(other.call("rootSubscribe", json!([])).await["result"].is_u64(), "no account feeds it");

    // After a restart at a lower slot, the slots count from there.
    let mut socket = gateway.socket().await;
    socket.subscribe("accountSubscribe", clock()).await;
    step_and_look(&gateway, 2).await;
    gateway.restart_cluster(UNREAD[1]).await;
    assert_eq!(socket.closed().await, 1012);
    refuse_accounts(&gateway);
    let mut socket = gateway.socket().await;
    socket.subscribe("accountSubscribe", clock()).await;
    step_and_look(&gateway, 2).await;
    step_and_look(&gateway, UNREAD[0]).await;
    nothing_more(&mut socket).await;
    gateway.step_by(UNREAD[1] - UNREAD[0]).await;
    assert_eq!(socket.closed().await, 1012);
}

#[tokio::test]
async fn a_restart_at_a_lower_slot_is_told() {
    let mut gateway = TestGateway::builder().nodes(2).start().await;
    let fed = [("slotSubscribe", json!([])), ("rootSubscribe", json!([])), ("accountSubscribe", clock())];
    let mut sockets = Vec::new();
    for (method, params) in &fed {
        let mut socket = gateway.socket().await;
        socket.subscribe(method, params.clone()).await;
        sockets.push(socket);
    }
    let get_slot = gateway.call("getSlot", json!([{"commitment": "confirmed"}]));
    let mut waiting = gateway.socket().await;
    waiting.subscribe("signatureSubscribe", json!([signature(1), {"commitment": "confirmed"}])).await;
    gateway.step_by(2).await;
    let before = get_slot.send().await.result().as_u64();
    gateway.restart_cluster(60).await;
    for socket in &mut sockets {
        assert_eq!(socket.closed().await, 1012);
    }
    let after = get_slot.send().await.result().as_u64();
    assert!(after < before && after == Some(gateway.cluster.slot(Confirmed)), "{before:?}, then {after:?}");
    // What the transaction waited for has not come, so it goes on waiting, also below the old slots.
    nothing_more(&mut waiting).await;
    let mut socket = gateway.socket().await;
    socket.subscribe("slotSubscribe", json!([])).await;
    let slot = gateway.cluster.step_to_block();
    assert_eq!(socket.notification().await["result"]["slot"], slot);
    // The statuses are of this slot, so no newer one may be shown before they are asked for.
    land(&gateway, slot, Confirmed, &Value::Null);
    assert_eq!(waiting.notification().await["result"]["value"], json!({"err": null}));
    nothing_more(&mut waiting).await;
}

#[tokio::test]
async fn heights_wait_for_watched_signatures_after_a_restart() {
    let mut gateway = TestGateway::builder().nodes(1).start().await;
    let mut socket = gateway.socket().await;
    socket.subscribe("signatureSubscribe", json!([signature(1), {"commitment": "confirmed"}])).await;
    let config = json!([{"commitment": "confirmed"}]);
    gateway.call("getBlockHeight", config.clone()).send().await.result();
    gateway.restart_cluster(60).await;
    // That the signature was asked for at the slots before the restart says nothing about the new ones.
    let hold = gateway.cluster.node(0).hold("getSignatureStatuses");
    let shown = gateway.cluster.slot(Confirmed);
    while gateway.cluster.slot(Confirmed) == shown {
        gateway.step_by(1).await;
    }
    let asked = || gateway.cluster.node(0).calls("getEpochInfo");
    let before = asked();
    let get_height = gateway.call("getBlockHeight", config);
    let height = TaskTracker::new().spawn(get_height.send());
    gateway.until("the height was asked for", || asked() > before).await;
    gateway.round_trips().await;
    assert!(!height.is_finished(), "the height was shown first");
    drop(hold);
    assert_eq!(height.await.unwrap().status, 200);
}
