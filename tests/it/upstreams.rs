//! Upstreams that are added, removed and changed while calls are in flight.

use std::time::Duration;

use slotfront::config::{CaFile, Config, Secret};
use slotfront::methods::Commitment;
use slotfront::telemetry::Unusable;
use slotfront_sim::Fault;
use slotfront_testkit::TestGateway;
use tokio::time::Instant;

/// Returns the initial configuration with these nodes as its upstreams.
fn with_nodes(gateway: &TestGateway, nodes: &[usize]) -> Config {
    let upstreams = nodes.iter().map(|node| gateway.cluster.upstream(*node)).collect();
    Config { upstreams, ..gateway.front().config.copy() }
}

fn reload(gateway: &TestGateway, new: &Config) {
    gateway.app.reload(new).unwrap();
}

/// Keeps only the first two nodes as upstreams.
fn without_the_last(config: &mut Config) {
    config.upstreams.truncate(2);
}

async fn read(gateway: &TestGateway, wallet: usize) -> u16 {
    gateway.get_account(gateway.cluster.examples().wallets[wallet]).send().await.status
}

#[tokio::test]
async fn nodes_come_and_go_without_a_dropped_request() {
    let half_of_the_calls = |config: &mut Config| {
        without_the_last(config);
        config.upstreams.iter_mut().for_each(|upstream| upstream.max_in_flight = 5);
    };
    let gateway = TestGateway::builder().config(half_of_the_calls).start().await;
    let wallets = gateway.cluster.examples().wallets;
    assert!(wallets.len() >= 60);
    for wallet in 0..10 {
        assert_eq!(read(&gateway, wallet).await, 200);
    }
    let before = gateway.front().pool.members();
    let kept = before.named("node-1").unwrap();
    let counted = kept.counts();

    // Calls are under way at both nodes when one of them is removed and another one added.
    let holds = [0, 1].map(|node| gateway.cluster.node(node).hold("getAccountInfo"));
    let calls = (10..20).map(|wallet| read(&gateway, wallet));
    let in_flight = async {
        let all = || holds.iter().map(slotfront_sim::Hold::waiting).sum::<usize>() == 10;
        gateway.until("all calls wait at the nodes", all).await;
        assert!(holds.iter().all(|hold| hold.waiting() > 0), "calls wait at both nodes");
        reload(&gateway, &with_nodes(&gateway, &[1, 2]));
        holds.iter().for_each(slotfront_sim::Hold::release);
    };
    let (statuses, ()) = futures_util::future::join(futures_util::future::join_all(calls), in_flight).await;
    assert_eq!(statuses, [200; 10]);

    let usable =
        || gateway.front().pool.standing(Instant::now()).iter().all(|(_, unusable)| unusable.is_none());
    gateway.until("the new node has been probed", usable).await;
    let (old, probes) = (gateway.cluster.node(0).calls("getAccountInfo"), |n: usize| {
        gateway.cluster.node(n).calls("getHealth")
    });
    for wallet in 20..60 {
        assert_eq!(read(&gateway, wallet).await, 200);
    }
    assert_eq!(gateway.cluster.node(0).calls("getAccountInfo"), old, "a removed node is asked no more");
    assert!(gateway.cluster.node(2).calls("getAccountInfo") > 0, "a new node is asked");
    let after = gateway.front().pool.members();
    let still = after.named("node-1").unwrap();
    assert_eq!(still.id, kept.id);
    assert!(still.counts().0 > counted.0, "a kept node keeps its counters");
    assert_eq!(still.slot(Commitment::Finalized), Some(gateway.cluster.slot(Commitment::Finalized)));

    let (gone, here) = (probes(0), probes(1));
    gateway.until("the other nodes are still probed", || probes(1) >= here + 4 && probes(2) > 4).await;
    assert!(probes(0) <= gone + 1, "a removed node is not probed any more");
    let metrics = gateway.admin("/metrics").await.text;
    let named = |name: &str| metrics.contains(&format!("upstream=\"{name}\""));
    assert_eq!(["node-0", "node-1", "node-2"].map(named), [false, true, true]);
    let page = gateway.admin("/api/status").await.json();
    let listed: Vec<_> = page["status"]["upstreams"].as_array().unwrap().iter().map(|u| &u["name"]).collect();
    assert_eq!(listed, ["node-1", "node-2"]);
    gateway.step_by(3).await;
}

#[tokio::test]
async fn node_with_other_settings_keeps_its_state() {
    let gateway = TestGateway::builder().config(without_the_last).start().await;
    for wallet in 0..12 {
        read(&gateway, wallet).await;
    }
    let before = gateway.front().pool.members();
    let mut new = with_nodes(&gateway, &[0, 1]);
    new.upstreams[0].tier = 1;
    new.upstreams[0].headers.insert("x-proof".to_owned(), Secret::new("1"));
    new.upstreams[1].max_in_flight = 7;
    reload(&gateway, &new);
    let asked = gateway.cluster.node(0).calls("getAccountInfo");
    for wallet in 12..24 {
        assert_eq!(read(&gateway, wallet).await, 200);
    }
    assert_eq!(
        gateway.cluster.node(0).calls("getAccountInfo"),
        asked,
        "a node of a higher tier is not asked"
    );
    let after = gateway.front().pool.members();
    for (old, now) in before.iter().zip(after.iter()) {
        assert_eq!(old.id, now.id);
        assert!(now.counts().0 >= 1 && *now.health() == *old.health());
    }
    // An upstream with the same name at another address is another node. It is probed before it gets calls.
    let mut moved = new.clone();
    moved.upstreams[1].url = gateway.cluster.url(2);
    let held = gateway.cluster.node(2).hold("getHealth");
    reload(&gateway, &moved);
    let standing = |at: usize| gateway.front().pool.standing(Instant::now())[at].1;
    assert_eq!((standing(0), standing(1)), (None, Some(Unusable::Unprobed)));
    assert_ne!(gateway.front().pool.members()[1].id, after[1].id);
    assert_eq!(read(&gateway, 24).await, 200);
    assert_eq!(gateway.cluster.node(2).calls("getAccountInfo"), 0);
    held.release();
    gateway.until("the moved node has been probed", || standing(1).is_none()).await;
}

#[tokio::test]
async fn pool_settings_apply_atomically() {
    let gateway = TestGateway::builder().config(without_the_last).start().await;
    gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Status(500), None);
    let mut new = with_nodes(&gateway, &[0]);
    new.pool.retries = 0;
    new.pool.probe_interval = Duration::from_millis(30);
    let changes = gateway.app.reload(&new).unwrap();
    assert_eq!(changes.at_once, ["upstream", "pool.probe_interval", "pool.retries"]);
    assert_eq!(changes.after_restart, [""; 0]);
    assert_eq!(read(&gateway, 0).await, 502);

    let mut bad = with_nodes(&gateway, &[0, 1]);
    let pem = "-----BEGIN CERTIFICATE-----\nno certificate".to_owned();
    bad.upstreams[1].ca_file = Some(CaFile { path: "ca.pem".into(), pem });
    assert!(gateway.app.reload(&bad).unwrap_err().to_string().contains("node-1"));
    assert_eq!(gateway.front().pool.members().len(), 1);
    reload(&gateway, &with_nodes(&gateway, &[1]));
    gateway.settled().await;
    assert_eq!(read(&gateway, 0).await, 200);
}

#[tokio::test]
async fn cluster_change_by_reload_purges_the_cache() {
    let gateway = TestGateway::builder().config(without_the_last).start().await;
    assert_eq!(read(&gateway, 0).await, 200);
    let first = with_nodes(&gateway, &[0, 1]);
    let mut new = first.clone();
    new.pool.genesis_hash = Some("5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d".to_owned());
    reload(&gateway, &new);
    let foreign = || {
        let standing = gateway.front().pool.standing(Instant::now());
        standing.iter().all(|(_, unusable)| *unusable == Some(Unusable::Foreign))
    };
    assert!(foreign());
    gateway.until("the cache is empty", || gateway.front().cache.usage().1 == 0).await;
    assert_eq!(read(&gateway, 0).await, 502);
    // Without a configured genesis hash the pool takes the hash of its nodes, because they agree.
    reload(&gateway, &first);
    gateway.settled().await;
    gateway.until("the nodes are of the pool's cluster again", || !foreign()).await;
    assert_eq!(read(&gateway, 0).await, 200);
}
