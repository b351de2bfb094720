//! The answers that are kept for an epoch or for ever: how the epochs are learned, and which node knows a schedule.

use std::time::Duration;

use serde_json::{Value, json};
use slotfront::methods::{Commitment, PerCommitment};
use slotfront_sim::{Fault, Node};
use slotfront_testkit::TestGateway;

/// Returns a gateway in front of one node whose first epoch ends 60 slots from now. Answers that are not kept for an epoch
/// expire at once.
async fn near_the_end_of_an_epoch() -> TestGateway {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.cache.ttl.account = PerCommitment::uniform(Duration::ZERO);
            config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
        })
        .start()
        .await;
    let length = gateway.cluster.slot(Commitment::Finalized) + 60;
    let schedule = json!({
        "firstNormalEpoch": 0, "firstNormalSlot": 0, "leaderScheduleSlotOffset": length, "slotsPerEpoch": length,
        "warmup": false,
    });
    gateway.cluster.node(0).fault_on("getEpochSchedule", Fault::Result(schedule), None);
    show_rate(gateway.cluster.node(0), 0);
    gateway
}

/// Lets the node answer getInflationRate with the rate of this epoch.
fn show_rate(node: &Node, epoch: u64) {
    let rate = json!({ "epoch": epoch, "foundation": 0.0, "total": 0.1, "validator": 0.1 });
    node.fault_on("getInflationRate", Fault::Result(rate), Some(1));
}

#[tokio::test]
async fn answers_of_an_epoch_end_with_it() {
    let gateway = near_the_end_of_an_epoch().await;
    let node = gateway.cluster.node(0);
    let call = gateway.call("getInflationRate", json!([]));
    let epoch = async || call.send().await.result()["epoch"].clone();
    gateway.call("getEpochSchedule", json!([])).send().await;
    assert_eq!(epoch().await, 0);
    gateway.step_by(3).await;
    show_rate(node, 7);
    assert_eq!(epoch().await, 0, "still the same epoch");
    assert_eq!((node.calls("getInflationRate"), node.calls("getEpochSchedule")), (1, 1));
    gateway.step_by(60).await;
    assert_eq!(epoch().await, 7);
    // At the border of two epochs a node may still show the last one, which does not stay.
    show_rate(node, 1);
    assert_eq!(epoch().await, 1);
    show_rate(node, 2);
    assert_eq!(epoch().await, 1);
}

#[tokio::test]
async fn no_caller_waits_for_the_epochs() {
    let gateway = near_the_end_of_an_epoch().await;
    let node = gateway.cluster.node(0);
    let hold = node.hold("getEpochSchedule");
    let call = gateway.call("getInflationRate", json!([]));
    assert_eq!(call.send().await.result()["epoch"], 0);
    hold.arrived(1).await;
    show_rate(node, 0);
    assert_eq!(call.send().await.cache_status(), "fwd=stale; stored", "it lives for a slot only");
    assert_eq!((hold.waiting(), node.calls("getEpochSchedule")), (1, 1));
    hold.release();
    gateway.call("getEpochSchedule", json!([])).send().await;
    show_rate(node, 0);
    assert_eq!(call.send().await.cache_status(), "fwd=miss; stored");
    assert!(call.send().await.is_hit());
    assert_eq!(node.calls("getEpochSchedule"), 1);
}

#[tokio::test]
async fn another_node_may_know_the_schedule() {
    let gateway = TestGateway::builder().nodes(3).start().await;
    let show = |node: usize, schedule: &Value| {
        gateway.cluster.node(node).fault_on("getLeaderSchedule", Fault::Result(schedule.clone()), None);
    };
    let known = json!({ "8VjqqZcYo6drjcVUEnfvFkhy1bLrqFxzYpc5zpAANEjU": [0, 1, 2, 3] });
    for (node, schedule) in [&Value::Null, &Value::Null, &known].into_iter().enumerate() {
        show(node, schedule);
    }
    let ask = async |slot: u64| gateway.call("getLeaderSchedule", json!([slot])).send().await;
    for epoch in 0..4 {
        assert_eq!(ask(epoch * 432_000).await.result(), known);
    }
    gateway.cluster.clear_faults();
    gateway.cluster.fault_everywhere("getLeaderSchedule", &Fault::Result(Value::Null));
    for _ in 0..2 {
        let unknown = ask(9 * 432_000).await;
        assert_eq!((unknown.result(), unknown.is_hit()), (Value::Null, false));
        assert!(ask(9 * 432_000).await.is_hit(), "what no node knows is remembered for a slot");
        gateway.step_by(1).await;
    }
}
