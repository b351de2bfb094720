//! Calls for which nodes walk over many accounts: their time, their places, and that lighter calls never wait for them.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use slotfront::config::Config;
use slotfront::error::Error;
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront::methods::{Group, Method};
use slotfront_testkit::{TestCall, TestGateway, upstream_request};
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

const SCAN: &str = "getProgramAccounts";
const OF_OWNER: &str = "getTokenAccountsByOwner";
const ANSWERED: &str =
    r#"slotfront_upstream_requests_total{method="getProgramAccounts",result="ok",upstream="node-0"}"#;

/// A gateway with several keys, which may scan and ask for the accounts of owners.
struct Scene {
    gateway: TestGateway,
    keys: Vec<String>,
    _dir: TempDir,
}

impl Scene {
    async fn new(nodes: usize, keys: usize, change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.toml"));
        let new_key = |key: usize| {
            let new = NewKey::of(format!("key-{key}"), "standard");
            file.create(&new, jiff::Timestamp::now()).unwrap().key.expose().to_owned()
        };
        let keys = (0..keys).map(new_key).collect();
        let configure = |config: &mut Config| {
            config.auth.keys_file = Some(file.path().to_path_buf());
            let methods = Group::Scans.methods().chain(Group::Owners.methods()).collect();
            config.plans.get_mut("standard").unwrap().methods = Some(methods);
            change(config);
        };
        let gateway = TestGateway::builder().nodes(nodes).config(configure).start().await;
        Self { gateway, keys, _dir: dir }
    }

    /// Returns a call of `method` by a key about an account of its own, which no other key asks for.
    fn call(&self, method: &str, key: usize, number: usize) -> TestCall {
        let wallets = self.gateway.cluster.examples().wallets;
        let account = wallets[key * 4 + number].to_string();
        let params = if method == SCAN { json!([account]) } else { json!([account, { "mint": account }]) };
        self.gateway.call(method, params).key(&self.keys[key])
    }

    fn calls(&self, method: &str) -> u64 {
        (0..2)
            .take(self.gateway.cluster.nodes().len())
            .map(|n| self.gateway.cluster.node(n).calls(method))
            .sum()
    }
}

/// Gives scans this time, and every other attempt and call another one.
fn times(config: &mut Config, of_scans: Duration, of_others: Duration) {
    config.pool.attempt_timeout.fill(of_others);
    config.pool.attempt_timeout[Method::GetProgramAccounts.index()] = of_scans;
    config.server.request_timeout = of_others;
}

#[tokio::test]
async fn an_owners_accounts_never_wait_for_scans() {
    let scene = Scene::new(1, 3, |config| config.pool.max_scans = 2).await;
    let hold = scene.gateway.cluster.node(0).hold(SCAN);
    let scans: Vec<_> = (0..2).map(|key| TaskTracker::new().spawn(scene.call(SCAN, key, 0).send())).collect();
    hold.arrived(2).await;
    for number in 0..3 {
        let reply = scene.call(OF_OWNER, 2, number).send().await;
        assert_eq!((reply.status, hold.waiting()), (200, 2), "{}", reply.text);
    }
    hold.release();
    for scan in join_all(scans).await {
        assert_eq!(scan.unwrap().status, 200);
    }
}

#[tokio::test]
async fn a_scan_may_take_longer_than_other_calls() {
    let change = |config: &mut Config| times(config, Duration::from_mins(1), Duration::from_millis(300));
    let scene = Scene::new(1, 2, change).await;
    let node = scene.gateway.cluster.node(0);
    let (scans, owners) = (node.hold(SCAN), node.hold(OF_OWNER));
    let scan = TaskTracker::new().spawn(scene.call(SCAN, 0, 0).send());
    scans.arrived(1).await;
    // Later calls have timed out, so the scan has taken longer than they may.
    for number in 0..3 {
        assert_ne!(scene.call(OF_OWNER, 1, number).send().await.status, 200);
    }
    drop(owners);
    scans.release();
    let reply = scan.await.unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text);
}

#[tokio::test]
async fn no_other_node_repeats_a_scan_that_has_had_its_time() {
    let scene = Scene::new(2, 1, |config| {
        config.pool.attempt_timeout.fill(Duration::from_millis(300));
    })
    .await;
    let nodes = [0, 1].map(|node| scene.gateway.cluster.node(node));
    for (method, asked) in [(SCAN, 1), (OF_OWNER, 2)] {
        let _held = nodes.map(|node| node.hold(method));
        let reply = scene.call(method, 0, 0).send().await;
        let attempts = reply.error()["data"]["attempts"].as_array().unwrap().len();
        assert_eq!(
            (reply.status, attempts, scene.calls(method)),
            (502, asked, asked as u64),
            "{}",
            reply.text
        );
    }
}

#[tokio::test]
async fn a_scan_keeps_its_place_while_its_node_works() {
    let scene = Scene::new(1, 4, |config| {
        config.pool.max_scans = 2;
        times(config, Duration::from_mins(1), Duration::from_secs(1));
    })
    .await;
    let gateway = &scene.gateway;
    let hold = gateway.cluster.node(0).hold(SCAN);
    let leaving = [0, 1].map(|key| TaskTracker::new().spawn(scene.call(SCAN, key, 0).send()));
    hold.arrived(2).await;
    leaving.iter().for_each(tokio::task::JoinHandle::abort);
    gateway.until_in_flight(0).await;
    let others = join_all((0..10).map(|n| scene.call(SCAN, n % 4, 1 + n / 4).send())).await;
    assert_eq!((scene.calls(SCAN), hold.waiting()), (2, 2), "the node still works on two");
    for refused in others {
        assert_eq!((refused.status, refused.code()), (503, -32094), "{}", refused.text);
    }
    hold.release();
    gateway.until_metric(ANSWERED, 2).await;
    let reply = scene.call(SCAN, 3, 0).send().await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(scene.calls(SCAN), 3);
}

#[tokio::test]
async fn a_scan_keeps_its_place_past_its_deadline() {
    let walk = Duration::from_mins(1);
    let scene = Scene::new(1, 1, |config| {
        config.pool.max_scans = 1;
        config.pool.attempt_timeout.fill(walk);
    })
    .await;
    let (pool, hold) = (&scene.gateway.front().pool, scene.gateway.cluster.node(0).hold(SCAN));
    let scan = |number: usize, time: Duration| {
        let mut request = upstream_request(scene.call(SCAN, 0, number).query());
        request.context.deadline = Instant::now() + time;
        request
    };
    let others = async {
        hold.arrived(1).await;
        // It waits for a place until long after the deadline of the first one.
        let refused = pool.call(&scan(1, walk + Duration::from_secs(1))).await;
        assert_eq!((refused.unwrap_err(), scene.calls(SCAN)), (Error::Overloaded, 1));
        hold.release();
    };
    let first = scan(0, Duration::from_millis(50));
    let (answer, ()) = tokio::join!(pool.call(&first), others);
    assert!(answer.is_ok(), "{answer:?}");
}
