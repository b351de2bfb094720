//! Nodes of another Solana cluster: no caller gets an answer of such a node.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::{Value, json};
use slotfront::config::{Config, GenesisCheck};
use slotfront::methods::{Commitment, Slot};
use slotfront::pool::health::Health;
use slotfront::telemetry::Unusable;
use slotfront_sim::{Cluster, Fault, Settings};
use slotfront_testkit::{PATIENCE, Reply, TestCluster, TestGateway, node_answer};
use tokio::time::Instant;

const GENESIS: &str = "getGenesisHash";

fn genesis_of(cluster: &Cluster) -> String {
    node_answer(cluster.node(0), GENESIS, &json!([]))["result"].as_str().unwrap().to_owned()
}

fn ours() -> String {
    genesis_of(&TestCluster::unserved(3))
}

/// Creates another simulated cluster of one node, with the same slots and other contents. No socket serves it yet.
fn another_cluster() -> Arc<Cluster> {
    Cluster::new(Settings { seed: 2, ..TestCluster::settings(1) })
}

/// A slot in which both clusters have a block.
static SLOT: LazyLock<Slot> = LazyLock::new(|| {
    let (one, other) = (TestCluster::unserved(3), another_cluster());
    let first = Settings::default().first_slot;
    (first + 10..first + 60).find(|slot| one.has_block(*slot) && other.has_block(*slot)).unwrap()
});

async fn block(gateway: &TestGateway) -> Reply {
    gateway.get_block(*SLOT).details("none").send().await
}

fn blockhash(cluster: &Cluster) -> Value {
    let params = json!([*SLOT, {"transactionDetails": "none"}]);
    node_answer(cluster.node(0), "getBlock", &params)["result"]["blockhash"].clone()
}

#[tokio::test]
async fn calls_wait_until_a_node_shows_its_cluster() {
    let (other, mut holds) = (TestCluster::serve(another_cluster()).await, Vec::new());
    holds.push(other.node(0).hold(GENESIS));
    let configure = |config: &mut Config| {
        config.pool.genesis_hash = Some(ours());
        config.upstreams[0].url = other.url(0);
        config.upstreams[1].tier = 1;
    };
    let prepare = |cluster: &Cluster| holds.push(cluster.node(1).hold(GENESIS));
    let gateway = TestGateway::builder().nodes(2).config(configure).prepare(prepare).start_unprobed().await;
    let released = async {
        for hold in &holds {
            hold.arrived(1).await;
        }
        assert_eq!(gateway.upstream_calls() + other.node(0).calls("getBlock"), 0);
        assert_eq!([0, 1].map(|node| gateway.unusable(node)), [Some(Unusable::Unprobed); 2]);
        let readiness = gateway.admin("/readyz").await;
        assert_eq!(readiness.status, 503);
        assert!(readiness.text.contains("has not answered a probe yet"), "{}", readiness.text);
        holds.iter().for_each(slotfront_sim::Hold::release);
    };
    let (reply, ()) = tokio::join!(block(&gateway), released);
    assert_eq!(reply.result()["blockhash"], blockhash(&gateway.cluster));
    gateway
        .until("the other cluster's node is known to be foreign", || {
            gateway.unusable(0) == Some(Unusable::Foreign)
        })
        .await;
    assert_eq!(other.node(0).calls("getBlock"), 0);
}

#[tokio::test]
async fn answers_of_unknown_clusters_are_refused() {
    let other = TestCluster::serve(another_cluster()).await;
    other.node(0).fault_on(GENESIS, no_method(), None);
    let asked = other.node(0).hold("getBlock");
    let configure = |config: &mut Config| {
        config.upstreams[0].url = other.url(0);
        config.upstreams[1].tier = 1;
    };
    let prepare = |cluster: &Cluster| cluster.node(1).fault_on(GENESIS, no_method(), None);
    let gateway = TestGateway::builder().nodes(2).config(configure).prepare(prepare).start_unprobed().await;
    // A node that has answered a probe would be preferred to one that has not, whatever their tiers.
    let is_probed =
        |node| !matches!(gateway.unusable(node), Some(Unusable::Unprobed | Unusable::Unidentified));
    gateway.until("both nodes are probed", || is_probed(0) && is_probed(1)).await;
    let told = async {
        // No node reports a genesis hash, so the node of the preferred tier is asked.
        asked.arrived(1).await;
        gateway.cluster.clear_faults();
        gateway.until("a genesis hash is known", || gateway.front().pool.genesis().is_some()).await;
        asked.release();
    };
    let (reply, ()) = tokio::join!(block(&gateway), told);
    assert_eq!(reply.result()["blockhash"], blockhash(&gateway.cluster));
    other.clear_faults();
    gateway
        .until("the other cluster's node is known to be foreign", || {
            gateway.unusable(0) == Some(Unusable::Foreign)
        })
        .await;
    assert_eq!(block(&gateway).await.result()["blockhash"], blockhash(&gateway.cluster));
}

#[tokio::test]
async fn upstreams_that_disagree_get_no_calls() {
    for by_setting in [true, false] {
        let other = TestCluster::serve(another_cluster()).await;
        let configure = |config: &mut Config| config.upstreams[0].url = other.url(0);
        let gateway = TestGateway::builder().config(configure).start_unprobed().await;
        let until_readyz = async |what: &str, status: u16, part: &str| {
            let deadline = Instant::now() + PATIENCE;
            loop {
                let readiness = gateway.admin("/readyz").await;
                if readiness.status == status && readiness.text.contains(part) {
                    break;
                }
                assert!(Instant::now() < deadline, "{what}: {}", readiness.text);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        until_readyz("the upstreams disagree", 503, "pool.genesis_hash").await;
        let reply = block(&gateway).await;
        assert_eq!((reply.status, reply.code()), (502, -32095), "{}", reply.text);
        assert_eq!(gateway.upstream_calls() + other.node(0).calls("getBlock"), 0);
        let differs = || matches!(health(&gateway, 0), Health::Disputed { .. });
        gateway.until("the upstream shows its hash", differs).await;
        let view = gateway.admin("/api/upstreams").await.json();
        let reason = view["upstreams"][0]["reasons"][0].as_str().unwrap().to_owned();
        assert!(reason.contains(&genesis_of(&other)) && reason.contains("pool.genesis_hash"), "{reason}");
        if by_setting {
            let mut config = gateway.front().config.copy();
            config.pool.genesis_hash = Some(ours());
            gateway.app.reload(&config).unwrap();
        } else {
            other.node(0).fault_on(GENESIS, Fault::Result(json!(ours())), None);
        }
        until_readyz("the cluster is known", 200, "ready").await;
        assert_eq!(gateway.front().pool.genesis(), Some(ours()));
        if by_setting {
            assert_eq!(block(&gateway).await.result()["blockhash"], blockhash(&gateway.cluster));
            assert_eq!(other.node(0).calls("getBlock"), 0);
        }
    }
}

#[tokio::test]
async fn slow_first_probes_keep_to_the_callers_deadline() {
    let configure = |config: &mut Config| {
        config.pool.genesis_hash = Some(ours());
        config.server.request_timeout = Duration::from_millis(200);
    };
    let prepare =
        |cluster: &Cluster| cluster.nodes().iter().for_each(|node| node.fault_on(GENESIS, Fault::Hang, None));
    let gateway = TestGateway::builder().nodes(2).config(configure).prepare(prepare).start_unprobed().await;
    let reply = block(&gateway).await;
    assert!([-32095, -32096].contains(&reply.code()), "{}", reply.text);
    assert_eq!(gateway.upstream_calls(), 0);
}

#[tokio::test]
async fn a_silent_node_is_asked_alone_or_unchecked() {
    let silent = || Fault::Error { code: -32601, message: "Method not found".to_owned() };
    let both =
        |cluster: &Cluster| cluster.nodes().iter().for_each(|node| node.fault_on(GENESIS, silent(), None));
    let first = |cluster: &Cluster| cluster.node(0).fault_on(GENESIS, silent(), None);
    // While no genesis hash is known, nodes are used without a check of their cluster.
    let gateway = TestGateway::builder().nodes(2).prepare(both).start_unprobed().await;
    gateway.settled().await;
    assert_eq!(block(&gateway).await.status, 200);
    assert!(block(&gateway).await.is_hit());

    // A node that reports no hash gets no calls while another node reports one.
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(|config| config.upstreams[1].tier = 1)
        .prepare(first)
        .start_unprobed()
        .await;
    gateway
        .until("the node is known to report no hash", || {
            let member = &gateway.front().pool.members()[0];
            *member.health() == slotfront::pool::health::Health::NoGenesisHash
        })
        .await;
    let asked = gateway.cluster.node(0).calls("getBlock");
    assert_eq!(block(&gateway).await.status, 200);
    assert_eq!(
        (gateway.cluster.node(0).calls("getBlock"), gateway.cluster.node(1).calls("getBlock")),
        (asked, 1)
    );
    let view = gateway.admin("/api/upstreams").await.json();
    let reason = view["upstreams"][0]["reasons"][0].as_str().unwrap().to_owned();
    assert!(reason.contains("genesis = \"unchecked\""), "{reason}");

    // The setting `unchecked` suffices: nodes without a hash are asked, and their answers are cached.
    let unchecked = |config: &mut Config| {
        config.pool.genesis_hash = Some(ours());
        config.upstreams.iter_mut().for_each(|upstream| upstream.genesis = GenesisCheck::Unchecked);
    };
    let gateway = TestGateway::builder().nodes(2).config(unchecked).prepare(both).start_unprobed().await;
    gateway.settled().await;
    assert_eq!(block(&gateway).await.status, 200);
    assert!(block(&gateway).await.is_hit());
}

#[tokio::test]
async fn answers_of_foreign_nodes_are_purged() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| config.pool.genesis_hash = Some(ours()))
        .start()
        .await;
    let other = another_cluster();
    let hold = other.node(0).hold(GENESIS);
    let _served = gateway.cluster.replace(Arc::clone(&other)).await;
    // Another node has the address now. Its genesis hash has not been requested yet.
    let wrong = blockhash(&other);
    assert_ne!(wrong, blockhash(&gateway.cluster));
    let deadline = Instant::now() + PATIENCE;
    let mut reply = block(&gateway).await;
    while reply.status != 200 {
        assert!(Instant::now() < deadline, "the new node is never asked: {}", reply.text);
        reply = block(&gateway).await;
    }
    assert_eq!(reply.result()["blockhash"], wrong);
    assert!(block(&gateway).await.is_hit());
    // The hash is requested at once, although the next regular check is far away.
    hold.arrived(1).await;
    hold.release();
    gateway.until("the node is known to be foreign", || gateway.unusable(0) == Some(Unusable::Foreign)).await;
    gateway.until("the cache is empty", || gateway.front().cache.usage().1 == 0).await;
    let reply = block(&gateway).await;
    assert_eq!((reply.status, reply.code()), (502, -32095), "{}", reply.text);
}

#[tokio::test]
async fn late_answers_of_the_old_cluster_move_nothing() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let (front, node) = (gateway.front(), gateway.cluster.node(0));
    // An answer of the old cluster, at a slot far above those of the new cluster.
    let held = node.hold("getAccountInfo");
    let wallet = gateway.cluster.examples().wallets[0].to_string();
    let late = json!({"context": {"apiVersion": "4.0.0", "slot": 900_000_000u64}, "value": null});
    node.fault_on("getAccountInfo", Fault::Result(late), None);
    let lands = async {
        held.arrived(1).await;
        front.frontier.forget();
        held.release();
    };
    let (reply, ()) = tokio::join!(gateway.get_account(&wallet).send(), lands);
    assert_eq!(reply.result()["context"]["slot"], 900_000_000u64);
    assert_ne!(front.frontier.slots_of(0).slot(Commitment::Finalized), Some(900_000_000));
    gateway.settled().await;
}

fn health(gateway: &TestGateway, node: usize) -> Health {
    (*gateway.front().pool.members()[node].health()).clone()
}

fn no_method() -> Fault {
    Fault::Error { code: -32601, message: "Method not found".to_owned() }
}

/// Waits until four probes in a row request no genesis hash, because no connection is new.
async fn asked_no_more(gateway: &TestGateway, node: usize) {
    let node = gateway.cluster.node(node);
    let mut seen = (node.calls(GENESIS), node.calls("getHealth"));
    gateway
        .until("the genesis hash is requested no more", || {
            let now = (node.calls(GENESIS), node.calls("getHealth"));
            if now.0 != seen.0 {
                seen = now;
            }
            now.1 >= seen.1 + 4
        })
        .await;
}

#[tokio::test]
async fn a_known_node_that_falls_silent_stays_known() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let node = gateway.cluster.node(0);
    assert_eq!(block(&gateway).await.status, 200);
    asked_no_more(&gateway, 0).await;
    node.fault_on(GENESIS, no_method(), None);
    let before = node.calls(GENESIS);
    gateway.until("the genesis hash is requested", || node.calls(GENESIS) > before).await;
    let probes = node.calls("getHealth");
    // The next probes must request the node's health. They could not if each of them requested the missing hash.
    gateway
        .until("two more probes have come", || {
            node.calls("getHealth") >= probes + 2 || node.calls(GENESIS) >= before + 3
        })
        .await;
    assert_eq!(health(&gateway, 0), Health::Healthy);
    assert!(block(&gateway).await.is_hit(), "no entry is removed");
}

#[tokio::test]
async fn node_without_hash_keeps_the_pools_cluster() {
    let gateway = TestGateway::builder().nodes(2).start().await;
    let [first, second] = [0, 1].map(|node| gateway.cluster.node(node));
    let ours = gateway.front().pool.genesis();
    // The probe opens a new connection, over which the node reports no hash.
    second.fault_on(GENESIS, no_method(), None);
    second.fault_on("getHealth", Fault::Reset, Some(1));
    gateway.until("the second node reports no hash", || health(&gateway, 1) == Health::NoGenesisHash).await;
    first.fault_on(GENESIS, Fault::Result(json!(genesis_of(&another_cluster()))), None);
    let before = first.calls(GENESIS);
    gateway.until("the first node has reported another hash", || first.calls(GENESIS) >= before + 4).await;
    assert!(matches!(health(&gateway, 0), Health::Foreign { .. }), "{:?}", health(&gateway, 0));
    assert_eq!(gateway.front().pool.genesis(), ours);
}

#[tokio::test]
async fn invalid_genesis_hashes_name_no_cluster() {
    let long = "1".repeat(190);
    for text in ["another}{cluster", &long, ""] {
        let tells = |cluster: &Cluster| cluster.node(0).fault_on(GENESIS, Fault::Result(json!(text)), None);
        let gateway = TestGateway::builder().nodes(1).prepare(tells).start_unprobed().await;
        gateway.settled().await;
        let node = gateway.cluster.node(0);
        let told_again = async |what: &str| {
            let before = node.calls(GENESIS);
            gateway.until(what, || node.calls(GENESIS) >= before + 3).await;
        };
        told_again("the node has reported its text").await;
        assert_eq!(gateway.front().pool.genesis(), None, "{text:?}");
        assert_eq!(block(&gateway).await.status, 200, "{text:?}");
        node.clear_faults();
        gateway.until("the node has reported a hash", || gateway.front().pool.genesis().is_some()).await;
        tells(&gateway.cluster);
        gateway
            .until("the node is known to be foreign", || {
                matches!(health(&gateway, 0), Health::Foreign { .. })
            })
            .await;
        told_again("the node has reported its text again").await;
        assert_eq!(gateway.front().pool.genesis(), Some(ours()), "{text:?}: the pool does not follow");
    }
}

#[tokio::test]
async fn a_refused_further_look_leaves_a_node_usable() {
    for jumps in [true, false] {
        // The interval is long, so that the next regular check is far away.
        let gateway = TestGateway::builder()
            .nodes(1)
            .config(|config| config.pool.probe_interval = Duration::from_millis(200))
            .start()
            .await;
        let node = gateway.cluster.node(0);
        asked_no_more(&gateway, 0).await;
        node.fault_on(GENESIS, Fault::Status(403), Some(1));
        let before = node.calls(GENESIS);
        if jumps {
            gateway.cluster.step_by(200);
        } else {
            // More simultaneous calls than there are connections.
            let calls = (0..8).map(|n| gateway.get_block(*SLOT - n).id(n));
            let hold = node.hold("getBlock");
            tokio::join!(gateway.batch(calls).send(), async {
                hold.arrived(8).await;
                hold.release();
            });
        }
        gateway
            .until("the genesis hash is requested again", || {
                assert_eq!(health(&gateway, 0), Health::Healthy, "jumps: {jumps}");
                node.calls(GENESIS) >= before + 2
            })
            .await;
        gateway.settled().await;
    }
}

#[tokio::test]
async fn change_of_cluster_purges_the_cache() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let before = gateway.get_nodes().send().await;
    let settings = TestCluster::settings(1);
    let settings = Settings { seed: 2, first_slot: settings.first_slot + 1_000_000, ..settings };
    let other = gateway.cluster.replace(Cluster::new(settings)).await;
    gateway
        .until("the other cluster is known", || {
            let front = gateway.front();
            front.frontier.slot(Commitment::Processed) == other.slot(Commitment::Processed)
                && front.cache.usage().1 == 0
        })
        .await;
    let after = gateway.get_nodes().send().await;
    assert_eq!(after.cache_status(), "fwd=miss; stored");
    assert_ne!(after.result(), before.result());
}
