//! The cluster of each node: no caller gets an answer of another cluster.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::{Value, json};
use slotfront::config::{Config, GenesisCheck, Secret};
use slotfront::methods::{Commitment, Slot};
use slotfront::pool::health::Health;
use slotfront::pool::select::Unusable;
use slotfront_sim::{Cluster, Fault, Settings};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::harness::Stage;

const GENESIS: &str = "getGenesisHash";

/// Returns the genesis hash that a node of the tested cluster reports.
fn genesis_of(cluster: &Cluster) -> String {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": GENESIS}).to_string();
    let answer: Value = serde_json::from_slice(&cluster.node(0).answer(body.as_bytes())).unwrap();
    answer["result"].as_str().unwrap().to_owned()
}

fn ours() -> String {
    genesis_of(&Cluster::new(Settings { slot_time: None, ..Settings::default() }))
}

/// Creates a cluster of one node with the same slots and other contents, which is not served yet.
fn another_cluster() -> Arc<Cluster> {
    Cluster::new(Settings { seed: 2, nodes: 1, slot_time: None, ..Settings::default() })
}

/// Serves a cluster of one node, and returns its address.
async fn serve(cluster: &Arc<Cluster>) -> Secret {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Secret::new(format!("http://{}", listener.local_addr().unwrap()));
    Arc::clone(cluster).serve(vec![listener], &TaskTracker::new(), CancellationToken::new()).await;
    url
}

fn standing(stage: &Stage, node: usize) -> Option<Unusable> {
    stage.front().pool.standing(Instant::now())[node].1
}

/// A block that both clusters have.
static SLOT: LazyLock<Slot> = LazyLock::new(|| {
    let (one, other) = (Cluster::new(Settings { slot_time: None, ..Settings::default() }), another_cluster());
    let first = Settings::default().first_slot;
    (first + 10..first + 60).find(|slot| one.has_block(*slot) && other.has_block(*slot)).unwrap()
});

fn question() -> Value {
    json!([*SLOT, {"transactionDetails": "none"}])
}

async fn block(stage: &Stage) -> crate::harness::Reply {
    stage.call("getBlock", question()).await
}

fn blockhash(cluster: &Cluster) -> Value {
    let params = question();
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "getBlock", "params": params}).to_string();
    let answer: Value = serde_json::from_slice(&cluster.node(0).answer(body.as_bytes())).unwrap();
    answer["result"]["blockhash"].clone()
}

#[tokio::test]
async fn calls_wait_until_a_node_shows_its_cluster() {
    let (other, mut holds) = (another_cluster(), Vec::new());
    let url = serve(&other).await;
    holds.push(other.node(0).hold(GENESIS));
    let configure = |config: &mut Config| {
        config.pool.genesis_hash = Some(ours());
        config.upstreams[0].url = url;
        config.upstreams[1].tier = 1;
    };
    let prepare = |cluster: &Cluster| holds.push(cluster.node(1).hold(GENESIS));
    let stage = Stage::before_any_probe(2, configure, prepare).await;
    let released = async {
        for hold in &holds {
            hold.arrived(1).await;
        }
        assert_eq!(stage.upstream_calls() + other.node(0).calls("getBlock"), 0);
        assert_eq!([0, 1].map(|node| standing(&stage, node)), [Some(Unusable::Unidentified); 2]);
        let readiness = stage.admin("/readyz").await;
        assert_eq!(readiness.status, 503);
        assert!(readiness.text.contains("unidentified"), "{}", readiness.text);
        holds.iter().for_each(slotfront_sim::Hold::release);
    };
    let (reply, ()) = tokio::join!(block(&stage), released);
    assert_eq!(reply.result()["blockhash"], blockhash(&stage.cluster));
    stage.until("the other is known", || standing(&stage, 0) == Some(Unusable::Foreign)).await;
    assert_eq!(other.node(0).calls("getBlock"), 0);
}

#[tokio::test]
async fn answers_of_unknown_clusters_are_refused() {
    let (other, mut holds) = (another_cluster(), Vec::new());
    let url = serve(&other).await;
    holds.push(other.node(0).hold(GENESIS));
    let asked = other.node(0).hold("getBlock");
    let configure = |config: &mut Config| {
        config.upstreams[0].url = url;
        config.upstreams[1].tier = 1;
    };
    let prepare = |cluster: &Cluster| holds.push(cluster.node(1).hold(GENESIS));
    let stage = Stage::before_any_probe(2, configure, prepare).await;
    let told = async {
        // No genesis hash is known, so the node of the lower tier is asked.
        asked.arrived(1).await;
        holds[1].release();
        stage.until("a genesis hash is known", || stage.front().pool.genesis().is_some()).await;
        asked.release();
    };
    let (reply, ()) = tokio::join!(block(&stage), told);
    assert_eq!(reply.result()["blockhash"], blockhash(&stage.cluster));
    holds[0].release();
    stage.until("the other is known", || standing(&stage, 0) == Some(Unusable::Foreign)).await;
    assert_eq!(block(&stage).await.result()["blockhash"], blockhash(&stage.cluster));
}

#[tokio::test]
async fn slow_first_probes_keep_to_the_callers_deadline() {
    let configure = |config: &mut Config| {
        config.pool.genesis_hash = Some(ours());
        config.server.request_timeout = Duration::from_millis(200);
    };
    let prepare =
        |cluster: &Cluster| cluster.nodes().iter().for_each(|node| node.fault_on(GENESIS, Fault::Hang, None));
    let stage = Stage::before_any_probe(2, configure, prepare).await;
    let reply = block(&stage).await;
    assert!([-32095, -32096].contains(&reply.code()), "{}", reply.text);
    assert_eq!(stage.upstream_calls(), 0);
}

#[tokio::test]
async fn a_silent_node_is_asked_alone_or_unchecked() {
    let silent = || Fault::Error { code: -32601, message: "Method not found".to_owned() };
    let both =
        |cluster: &Cluster| cluster.nodes().iter().for_each(|node| node.fault_on(GENESIS, silent(), None));
    let first = |cluster: &Cluster| cluster.node(0).fault_on(GENESIS, silent(), None);
    // Without a known genesis hash nothing is checked.
    let stage = Stage::before_any_probe(2, |_| {}, both).await;
    stage.settled().await;
    assert_eq!(block(&stage).await.status, 200);
    assert!(block(&stage).await.cache().starts_with("hit"));

    // Beside a node that reports its hash, one that does not gets no calls.
    let stage = Stage::before_any_probe(2, |config| config.upstreams[1].tier = 1, first).await;
    stage
        .until("its silence is known", || {
            let member = &stage.front().pool.members()[0];
            *member.health() == slotfront::pool::health::Health::NoGenesisHash
        })
        .await;
    let asked = stage.cluster.node(0).calls("getBlock");
    assert_eq!(block(&stage).await.status, 200);
    assert_eq!(
        (stage.cluster.node(0).calls("getBlock"), stage.cluster.node(1).calls("getBlock")),
        (asked, 1)
    );
    let view = stage.admin("/api/upstreams").await.json();
    let reason = view["upstreams"][0]["reasons"][0].as_str().unwrap().to_owned();
    assert!(reason.contains("genesis = \"unchecked\""), "{reason}");

    // The operator's setting is enough, and the node's answers are held.
    let unchecked = |config: &mut Config| {
        config.pool.genesis_hash = Some(ours());
        config.upstreams.iter_mut().for_each(|upstream| upstream.genesis = GenesisCheck::Unchecked);
    };
    let stage = Stage::before_any_probe(2, unchecked, both).await;
    stage.settled().await;
    assert_eq!(block(&stage).await.status, 200);
    assert!(block(&stage).await.cache().starts_with("hit"));
}

#[tokio::test]
async fn answers_of_foreign_nodes_are_purged() {
    let stage = Stage::of(1, |config| config.pool.genesis_hash = Some(ours())).await;
    let (other, address) = (another_cluster(), stage.cluster.node(0).address().unwrap());
    let hold = other.node(0).hold(GENESIS);
    stage.replace_cluster_by(&other, &[address]).await;
    // The address belongs to another node now, whose cluster has not been asked yet.
    let wrong = blockhash(&other);
    assert_ne!(wrong, blockhash(&stage.cluster));
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut reply = block(&stage).await;
    while reply.status != 200 {
        assert!(Instant::now() < deadline, "the new node is never asked: {}", reply.text);
        reply = block(&stage).await;
    }
    assert_eq!(reply.result()["blockhash"], wrong);
    assert!(block(&stage).await.cache().starts_with("hit"));
    // The node is asked, although its next regular check is far away.
    hold.arrived(1).await;
    hold.release();
    stage.until("it is known", || standing(&stage, 0) == Some(Unusable::Foreign)).await;
    stage.until("the cache is empty", || stage.front().cache.usage().1 == 0).await;
    let reply = block(&stage).await;
    assert_eq!((reply.status, reply.code()), (502, -32095), "{}", reply.text);
}

#[tokio::test]
async fn late_answers_of_the_old_cluster_move_nothing() {
    let stage = Stage::of(1, |_| {}).await;
    let (front, node) = (stage.front(), stage.cluster.node(0));
    // An answer of the old cluster, at a slot that the new one is far from having reached.
    let held = node.hold("getAccountInfo");
    let wallet = stage.cluster.examples().wallets[0].to_string();
    let late = json!({"context": {"apiVersion": "4.0.0", "slot": 900_000_000u64}, "value": null});
    node.fault_on("getAccountInfo", Fault::Result(late), None);
    let lands = async {
        held.arrived(1).await;
        front.frontier.forget();
        held.release();
    };
    let (reply, ()) = tokio::join!(stage.call("getAccountInfo", json!([wallet])), lands);
    assert_eq!(reply.result()["context"]["slot"], 900_000_000u64);
    assert_ne!(front.frontier.node_slot(0, Commitment::Finalized), Some(900_000_000));
    stage.settled().await;
}

fn health(stage: &Stage, node: usize) -> Health {
    (*stage.front().pool.members()[node].health()).clone()
}

fn no_method() -> Fault {
    Fault::Error { code: -32601, message: "Method not found".to_owned() }
}

/// Waits until probes no longer ask for the genesis hash: no connection is new.
async fn asked_no_more(stage: &Stage, node: usize) {
    let node = stage.cluster.node(node);
    let mut seen = (node.calls(GENESIS), node.calls("getHealth"));
    stage
        .until("its cluster is asked for no more", || {
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
    let stage = Stage::of(1, |_| {}).await;
    let node = stage.cluster.node(0);
    assert_eq!(block(&stage).await.status, 200);
    asked_no_more(&stage, 0).await;
    node.fault_on(GENESIS, no_method(), None);
    let before = node.calls(GENESIS);
    stage.until("its cluster is asked for", || node.calls(GENESIS) > before).await;
    let probes = node.calls("getHealth");
    // Without this, its missing hash would be requested with every probe, and its health with none.
    stage
        .until("two more probes have come", || {
            node.calls("getHealth") >= probes + 2 || node.calls(GENESIS) >= before + 3
        })
        .await;
    assert_eq!(health(&stage, 0), Health::Healthy);
    assert!(block(&stage).await.cache().starts_with("hit"), "nothing is forgotten");
}

#[tokio::test]
async fn node_without_hash_keeps_the_pools_cluster() {
    let stage = Stage::of(2, |_| {}).await;
    let [first, second] = [0, 1].map(|node| stage.cluster.node(node));
    let ours = stage.front().pool.genesis();
    // A new connection, over which the hash is not reported.
    second.fault_on(GENESIS, no_method(), None);
    second.fault_on("getHealth", Fault::Reset, Some(1));
    stage.until("it is silent", || health(&stage, 1) == Health::NoGenesisHash).await;
    first.fault_on(GENESIS, Fault::Result(json!(genesis_of(&another_cluster()))), None);
    let before = first.calls(GENESIS);
    stage.until("the other has told", || first.calls(GENESIS) >= before + 4).await;
    assert!(matches!(health(&stage, 0), Health::Foreign { .. }), "{:?}", health(&stage, 0));
    assert_eq!(stage.front().pool.genesis(), ours);
}

#[tokio::test]
async fn invalid_genesis_hashes_name_no_cluster() {
    let long = "1".repeat(190);
    for text in ["another}{cluster", &long, ""] {
        let tells = |cluster: &Cluster| cluster.node(0).fault_on(GENESIS, Fault::Result(json!(text)), None);
        let stage = Stage::before_any_probe(1, |_| {}, tells).await;
        stage.settled().await;
        let node = stage.cluster.node(0);
        let told_again = async |what: &str| {
            let before = node.calls(GENESIS);
            stage.until(what, || node.calls(GENESIS) >= before + 3).await;
        };
        told_again("the node has told its text").await;
        assert_eq!(stage.front().pool.genesis(), None, "{text:?}");
        assert_eq!(block(&stage).await.status, 200, "{text:?}");
        node.clear_faults();
        stage.until("the node has told a hash", || stage.front().pool.genesis().is_some()).await;
        tells(&stage.cluster);
        stage.until("the node is not asked", || matches!(health(&stage, 0), Health::Foreign { .. })).await;
        told_again("the node has told its text again").await;
        assert_eq!(stage.front().pool.genesis(), Some(ours()), "{text:?}: the pool does not follow");
    }
}

#[tokio::test]
async fn a_refused_further_look_leaves_a_node_usable() {
    for jumps in [true, false] {
        // The next regular check is far away.
        let stage = Stage::of(1, |config| config.pool.probe_interval = Duration::from_millis(200)).await;
        let node = stage.cluster.node(0);
        asked_no_more(&stage, 0).await;
        node.fault_on(GENESIS, Fault::Status(403), Some(1));
        let before = node.calls(GENESIS);
        if jumps {
            stage.cluster.step_by(200);
        } else {
            // More simultaneous calls than there are connections.
            let calls: Vec<Value> = (0..8)
                .map(|n| json!({"jsonrpc": "2.0", "id": n, "method": "getBlock", "params": [*SLOT - n]}))
                .collect();
            let hold = node.hold("getBlock");
            tokio::join!(stage.post(Value::from(calls).to_string()), async {
                hold.arrived(8).await;
                hold.release();
            });
        }
        stage
            .until("its cluster is asked for again", || {
                assert_eq!(health(&stage, 0), Health::Healthy, "jumps: {jumps}");
                node.calls(GENESIS) >= before + 2
            })
            .await;
        stage.settled().await;
    }
}
