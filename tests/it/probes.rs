//! The requests that probes send, those that they leave out, and what their answers mean.

use std::time::Duration;

use serde_json::json;
use slotfront::methods::{Commitment, Pubkey};
use slotfront::pool::health::Health;
use slotfront::pool::select::Unusable;
use slotfront_sim::{Cluster, Fault};
use slotfront_testkit::{PATIENCE, TestGateway, upstream_request};
use tokio::time::Instant;

/// Counts the getSlot calls of probes. There are fewer while answers at confirmed show the nodes' slots than while
/// the gateway is idle.
#[tokio::test]
async fn probes_skip_slots_known_from_answers() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| config.pool.probe_interval = Duration::from_millis(300))
        .start()
        .await;
    let node = gateway.cluster.node(0);
    let counts = || (node.calls("getHealth"), node.calls("getSlot"));
    let query = gateway.get_account(gateway.cluster.examples().wallets[0]).confirmed().query();
    let before = counts();
    while counts().0 < before.0 + 8 {
        gateway.front().pool.call(&upstream_request(query.clone())).await.unwrap();
    }
    let busy = counts();
    let (healths, slots) = (busy.0 - before.0, busy.1 - before.1);
    assert!(slots <= healths * 2 + 4, "{slots} slots, {healths} healths");
    gateway.until("eight probes have come while no call is made", || counts().0 >= busy.0 + 8).await;
    let (healths, slots) = (counts().0 - busy.0, counts().1 - busy.1);
    assert!(slots + 4 >= healths * 3, "{slots} slots, {healths} healths");
    // Probes still report a slot that no answer reports.
    gateway.cluster.step_by(3);
    gateway.settled().await;
    assert_eq!(
        gateway.front().frontier.slot(Commitment::Processed),
        gateway.cluster.slot(Commitment::Processed)
    );
}

/// Checks that calls at finalized also keep the confirmed slot known. Probes are an hour apart, so only calls, and
/// the getSlot requests that calls cause, can report that slot.
#[tokio::test]
async fn misses_at_finalized_keep_the_confirmed_frontier_young() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let node = gateway.cluster.node(0);
    probe_hourly(&gateway).await;
    let mut misses = 0_u64;
    for _ in 0..3 {
        let slot = gateway.cluster.step_to_block();
        let deadline = Instant::now() + Duration::from_secs(20);
        while gateway.front().frontier.slot(Commitment::Confirmed)
            < gateway.cluster.slot(Commitment::Confirmed)
        {
            assert!(Instant::now() < deadline, "the confirmed frontier does not follow to {slot}");
            misses += 1;
            gateway.get_account(missing(misses)).finalized().send().await;
        }
    }
    // Hits send no requests. A last probe, and a last getSlot request that a miss caused, may still be under way.
    let before = node.calls("getSlot");
    for _ in 0..200 {
        assert!(gateway.get_account(missing(1)).finalized().send().await.is_hit());
    }
    let asked = node.calls("getSlot") - before;
    assert!(asked <= 4, "{asked} slots asked for beside 200 hits");
}

/// Returns the address of an account that does not exist, a different one for each number.
fn missing(number: u64) -> Pubkey {
    let mut key = [7; 32];
    key[..8].copy_from_slice(&number.to_le_bytes());
    Pubkey(key)
}

/// Sets the probe interval to an hour, and waits until the last probe at the old, short interval is over.
async fn probe_hourly(gateway: &TestGateway) {
    let (pool, node) = (&gateway.front().pool, gateway.cluster.node(0));
    let mut config = (*gateway.front().config).clone();
    config.pool.probe_interval = Duration::from_hours(1);
    pool.put_in_force(pool.prepare(&config).unwrap());
    // The probe under way may have the old interval. The next one has the new interval.
    let before = node.calls("getHealth");
    gateway.until("the last quick probe is over", || node.calls("getHealth") > before).await;
}

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
    let heard = || Commitment::ALL.iter().all(|c| front.frontier.node_slot(1, *c).is_some());
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
