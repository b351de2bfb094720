//! Upstreams that are added, removed and changed while calls are in flight.

use std::time::Duration;

use serde_json::json;
use slotfront::config::{Config, Secret, Upstream};
use slotfront::methods::Commitment;
use slotfront::pool::select::Unusable;
use slotfront_sim::Fault;
use tokio::time::Instant;

use crate::harness::Stage;

fn upstream(stage: &Stage, node: usize) -> Upstream {
    let address = stage.cluster.node(node).address().unwrap();
    Upstream::plain(format!("node-{node}"), Secret::new(format!("http://{address}")))
}

/// Returns the initial configuration with these nodes.
fn with_nodes(stage: &Stage, nodes: &[usize]) -> Config {
    let upstreams = nodes.iter().map(|node| upstream(stage, *node)).collect();
    Config { upstreams, ..(*stage.front().config).clone() }
}

fn reload(stage: &Stage, new: &Config) {
    stage.app.as_ref().unwrap().reload(new).unwrap();
}

/// Returns a gateway with three nodes, of which the first two are configured.
async fn stage() -> Stage {
    Stage::of(3, |config| config.upstreams.truncate(2)).await
}

async fn read(stage: &Stage, wallet: usize) -> u16 {
    let account = stage.cluster.examples().wallets[wallet].to_string();
    stage.call("getAccountInfo", json!([account])).await.status
}

#[tokio::test]
async fn nodes_come_and_go_without_a_dropped_request() {
    let stage = stage().await;
    let wallets = stage.cluster.examples().wallets;
    assert!(wallets.len() >= 60);
    for wallet in 0..10 {
        assert_eq!(read(&stage, wallet).await, 200);
    }
    let before = stage.front().pool.members();
    let kept = before.named("node-1").unwrap();
    let counted = kept.counts();

    // Calls are under way at both nodes when one of them is removed and another one added.
    let holds = [0, 1].map(|node| stage.cluster.node(node).hold("getAccountInfo"));
    let calls = (10..20).map(|wallet| read(&stage, wallet));
    let in_flight = async {
        let all = || holds.iter().map(slotfront_sim::Hold::waiting).sum::<usize>() == 10;
        stage.until("all calls wait at the nodes", all).await;
        assert!(holds.iter().all(|hold| hold.waiting() > 0), "at both");
        reload(&stage, &with_nodes(&stage, &[1, 2]));
        holds.iter().for_each(slotfront_sim::Hold::release);
    };
    let (statuses, ()) = futures_util::future::join(futures_util::future::join_all(calls), in_flight).await;
    assert_eq!(statuses, [200; 10]);

    let usable =
        || stage.front().pool.standing(Instant::now()).iter().all(|(_, unusable)| unusable.is_none());
    stage.until("the new node has been probed", usable).await;
    let (old, probes) =
        (stage.cluster.node(0).calls("getAccountInfo"), |n: usize| stage.cluster.node(n).calls("getHealth"));
    for wallet in 20..60 {
        assert_eq!(read(&stage, wallet).await, 200);
    }
    assert_eq!(stage.cluster.node(0).calls("getAccountInfo"), old, "a removed node is asked no more");
    assert!(stage.cluster.node(2).calls("getAccountInfo") > 0, "a new one is");
    let after = stage.front().pool.members();
    let still = after.named("node-1").unwrap();
    assert_eq!(still.id, kept.id);
    assert!(still.counts().0 > counted.0, "what is known of a node stays");
    assert_eq!(still.slot(Commitment::Finalized), Some(stage.cluster.slot(Commitment::Finalized)));

    let (gone, here) = (probes(0), probes(1));
    stage.until("the others are probed on", || probes(1) >= here + 4 && probes(2) > 4).await;
    assert!(probes(0) <= gone + 1, "a removed node is not probed any more");
    let metrics = stage.admin("/metrics").await.text;
    let named = |name: &str| metrics.contains(&format!("upstream=\"{name}\""));
    assert_eq!(["node-0", "node-1", "node-2"].map(named), [false, true, true]);
    let page = stage.admin("/api/status").await.json();
    let listed: Vec<_> = page["status"]["upstreams"].as_array().unwrap().iter().map(|u| &u["name"]).collect();
    assert_eq!(listed, ["node-1", "node-2"]);
    stage.step_by(3).await;
}

#[tokio::test]
async fn node_with_other_settings_keeps_its_state() {
    let stage = stage().await;
    for wallet in 0..12 {
        read(&stage, wallet).await;
    }
    let before = stage.front().pool.members();
    let mut new = with_nodes(&stage, &[0, 1]);
    new.upstreams[0].tier = 1;
    new.upstreams[0].headers.insert("x-proof".to_owned(), Secret::new("1"));
    new.upstreams[1].max_in_flight = 7;
    reload(&stage, &new);
    let asked = stage.cluster.node(0).calls("getAccountInfo");
    for wallet in 12..24 {
        assert_eq!(read(&stage, wallet).await, 200);
    }
    assert_eq!(stage.cluster.node(0).calls("getAccountInfo"), asked, "of a higher tier now");
    let after = stage.front().pool.members();
    for (old, now) in before.iter().zip(&*after) {
        assert_eq!(old.id, now.id);
        assert!(now.counts().0 >= 1 && *now.health() == *old.health());
    }
    // The same name at another address is another node, which is probed before it counts.
    let mut moved = new.clone();
    moved.upstreams[1].url = upstream(&stage, 2).url;
    let held = stage.cluster.node(2).hold("getHealth");
    reload(&stage, &moved);
    let standing = |at: usize| stage.front().pool.standing(Instant::now())[at].1;
    assert_eq!((standing(0), standing(1)), (None, Some(Unusable::Unidentified)));
    assert_ne!(stage.front().pool.members()[1].id, after[1].id);
    assert_eq!(read(&stage, 24).await, 200);
    assert_eq!(stage.cluster.node(2).calls("getAccountInfo"), 0);
    held.release();
    stage.until("it has been probed", || standing(1).is_none()).await;
}

#[tokio::test]
async fn pool_settings_apply_atomically() {
    let stage = stage().await;
    stage.cluster.node(0).fault_on("getAccountInfo", Fault::Status(500), None);
    let mut new = with_nodes(&stage, &[0]);
    new.pool.retries = 0;
    new.pool.probe_interval = Duration::from_millis(30);
    let changes = stage.app.as_ref().unwrap().reload(&new).unwrap();
    assert_eq!(changes.at_once, ["upstream", "pool"]);
    assert_eq!(changes.after_restart, [""; 0]);
    assert_eq!(read(&stage, 0).await, 502);

    let mut bad = with_nodes(&stage, &[0, 1]);
    bad.upstreams[1].ca_file = Some("/nowhere/ca.pem".into());
    assert!(stage.app.as_ref().unwrap().reload(&bad).unwrap_err().to_string().contains("node-1"));
    assert_eq!(stage.front().pool.members().len(), 1);
    reload(&stage, &with_nodes(&stage, &[1]));
    stage.settled().await;
    assert_eq!(read(&stage, 0).await, 200);
}

#[tokio::test]
async fn cluster_change_by_reload_purges_the_cache() {
    let stage = stage().await;
    assert_eq!(read(&stage, 0).await, 200);
    let mut new = with_nodes(&stage, &[0, 1]);
    new.pool.genesis_hash = Some("5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d".to_owned());
    reload(&stage, &new);
    let foreign = || {
        let standing = stage.front().pool.standing(Instant::now());
        standing.iter().all(|(_, unusable)| *unusable == Some(Unusable::Foreign))
    };
    assert!(foreign());
    stage.until("the cache is empty", || stage.front().cache.usage().1 == 0).await;
    assert_eq!(read(&stage, 0).await, 502);
    // Without a configured hash the pool follows its nodes, because they agree.
    reload(&stage, &with_nodes(&stage, &[0, 1]));
    stage.settled().await;
    stage.until("they are of the pool's cluster again", || !foreign()).await;
    assert_eq!(read(&stage, 0).await, 200);
}
