//! The requests that probes send, and what their answers mean.

use serde_json::json;
use slotfront::methods::Commitment;
use slotfront::pool::health::Health;
use slotfront::telemetry::Unusable;
use slotfront_sim::{Cluster, Fault};
use slotfront_testkit::{PATIENCE, TestGateway};
use tokio::time::Instant;

/// Starts beside a node that stands still a thousand slots behind, calls itself healthy, and answers first.
#[tokio::test]
async fn start_waits_for_the_node_that_advances() {
    let mut holds = Vec::new();
    let prepare = |cluster: &Cluster| {
        let old = cluster.slot(Commitment::Processed) - 1_000;
        let context = json!({"context": {"apiVersion": "4.0.0", "slot": old}});
        cluster.node(1).fault_on("getSlot", Fault::Result(json!(old)), None);
        cluster.node(1).fault_on("getAccountInfo", Fault::With(context), None);
        holds.push(cluster.node(0).hold("getSlot"));
    };
    let gateway = TestGateway::builder().nodes(2).prepare(prepare).start_unprobed().await;
    let (front, deadline) = (gateway.front(), Instant::now() + PATIENCE);
    let heard = || Commitment::ALL.iter().all(|c| front.frontier.slots_of(1).slot(*c).is_some());
    gateway.until("the old slot is known", heard).await;
    holds[0].release();
    while gateway.admin("/readyz").await.status != 200 {
        assert!(Instant::now() < deadline, "never ready");
        gateway.cluster.step_by(1);
    }
    let newest = gateway.cluster.slot(Commitment::Finalized);
    let wallets = gateway.cluster.examples().wallets;
    for wallet in &wallets[..20] {
        let slot = gateway.get_account(wallet).send().await.slot();
        assert!(slot + 64 > newest, "{} slots behind", newest - slot);
    }
}

#[tokio::test]
async fn nodes_without_health_are_judged_by_slots() {
    let no_method = Fault::Error { code: -32601, message: "Method not found".to_owned() };
    for fault in [no_method, Fault::Status(501)] {
        let prepare = |cluster: &Cluster| {
            cluster.nodes().iter().for_each(|node| node.fault_on("getHealth", fault.clone(), None));
        };
        let gateway = TestGateway::builder().nodes(2).prepare(prepare).start().await;
        assert_eq!([0, 1].map(|node| gateway.unusable(node)), [None; 2]);
        gateway.cluster.node(1).set_lag(100);
        gateway.until("its lag counts", || gateway.unusable(1) == Some(Unusable::Lagging)).await;
        // Without slots, nothing shows that the node is well.
        gateway.cluster.node(1).fault_on("getSlot", Fault::NullResult, None);
        let health = || (*gateway.front().pool.members()[1].health()).clone();
        gateway.until("it counts as unhealthy", || matches!(health(), Health::Unhealthy(_))).await;
    }
}

#[tokio::test]
async fn a_fault_of_long_term_storage_is_not_the_nodes() {
    let prepare = |cluster: &Cluster| {
        cluster.node(0).fault_on("getFirstAvailableBlock", Fault::Status(504), None);
    };
    let gateway = TestGateway::builder().nodes(1).prepare(prepare).start().await;
    assert_eq!(gateway.unusable(0), None);
}

#[tokio::test]
async fn idle_nodes_are_rarely_identified() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let node = gateway.cluster.node(0);
    let healths = || node.calls("getHealth");
    let looks = async |n: u64| {
        let until = healths() + n;
        gateway.until("the node was probed", || healths() >= until).await;
        node.calls("getGenesisHash")
    };
    // After these probes, all connections that probes use are open.
    let before = looks(15).await;
    let after = looks(30).await;
    assert!((1..=2).contains(&(after - before)), "{} times in 30 probes", after - before);
}
