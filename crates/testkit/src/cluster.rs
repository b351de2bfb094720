//! A simulated cluster with its listeners.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use slotfront::config::{Config, Secret, Upstream};
use slotfront::methods::PerCommitment;
use slotfront_sim::{Cluster, Fault, Node, Settings};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::PATIENCE;

/// A served cluster that is stepped by hand. It ends with its last clone.
#[derive(Clone)]
pub struct TestCluster {
    cluster: Arc<Cluster>,
    addresses: Vec<SocketAddr>,
    stop: CancellationToken,
    _ends: Arc<DropGuard>,
}

impl Deref for TestCluster {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl TestCluster {
    /// Makes the settings of a cluster that is stepped by hand.
    pub fn settings(nodes: usize) -> Settings {
        Settings { nodes, slot_time: None, ..Settings::default() }
    }

    /// Serves a cluster of `nodes` nodes.
    pub async fn start(nodes: usize) -> Self {
        Self::serve(Cluster::new(Self::settings(nodes))).await
    }

    /// Serves a cluster at free addresses.
    pub async fn serve(cluster: Arc<Cluster>) -> Self {
        let mut listeners = Vec::new();
        for _ in cluster.nodes() {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.expect("a free port"));
        }
        Self::serve_on(cluster, listeners).await
    }

    async fn serve_on(cluster: Arc<Cluster>, listeners: Vec<TcpListener>) -> Self {
        let addresses = listeners.iter().map(|listener| listener.local_addr().expect("bound")).collect();
        let stop = CancellationToken::new();
        Arc::clone(&cluster).serve(listeners, &TaskTracker::new(), stop.clone()).await;
        Self { cluster, addresses, _ends: Arc::new(stop.clone().drop_guard()), stop }
    }

    /// Ends the cluster, and serves `other` at the same addresses.
    pub async fn replace(&self, other: Arc<Cluster>) -> Self {
        self.stop.cancel();
        let mut listeners = Vec::new();
        for address in &self.addresses {
            // The old listener ends with its task, a moment after the request.
            let deadline = Instant::now() + PATIENCE;
            listeners.push(loop {
                match TcpListener::bind(address).await {
                    Ok(listener) => break listener,
                    Err(error) => assert!(Instant::now() < deadline, "{address}: {error}"),
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            });
        }
        Self::serve_on(other, listeners).await
    }

    /// Returns the URL of a node.
    pub fn url(&self, node: usize) -> Secret {
        Secret::new(format!("http://{}", self.addresses[node]))
    }

    /// Returns a node as an upstream, which is named after its number.
    pub fn upstream(&self, node: usize) -> Upstream {
        Upstream::plain(format!("node-{node}"), self.url(node))
    }

    /// Gives every node this fault for a method, until the faults are cleared.
    pub fn fault_everywhere(&self, method: &str, fault: &Fault) {
        self.nodes().iter().for_each(|node| node.fault_on(method, fault.clone(), None));
    }

    /// Removes the faults of every node.
    pub fn clear_faults(&self) {
        self.nodes().iter().for_each(|node| node.clear_faults());
    }

    /// Keeps every node this many slots behind.
    pub fn set_lag(&self, slots: u64) {
        self.nodes().iter().for_each(|node| node.set_lag(slots));
    }

    /// Returns the calls that all nodes have answered, without probes.
    pub fn calls_without_probes(&self) -> u64 {
        self.nodes().iter().map(|node| node.calls_without_probes()).sum()
    }

    /// Returns the settings of a gateway in front of the cluster, as tests need them.
    pub fn config(&self) -> Config {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let upstreams = (0..self.addresses.len()).map(|node| self.upstream(node)).collect();
        let mut config = Config::dev(any, any, upstreams);
        // Frequent enough that a step is soon known. Tests wait for the frontier, never for a time.
        config.pool.probe_interval = Duration::from_millis(20);
        // Longer than a busy machine takes. A test of a timeout sets its own.
        config.pool.attempt_timeout = [Duration::from_secs(20); 8];
        config.server.request_timeout = Duration::from_secs(40);
        config.server.drain_timeout = PATIENCE;
        // Entries age only if a test sets shorter lives, so that a test may pause anywhere.
        let hour = Duration::from_hours(1);
        let ttl = &mut config.cache.ttl;
        for ttl in [&mut ttl.account, &mut ttl.fee, &mut ttl.vote_accounts] {
            *ttl = PerCommitment::uniform(hour);
        }
        (ttl.block_confirmed, ttl.no_block_not_yet) = (hour, hour);
        config
    }
}

/// Returns a node's own answer to a call. The node counts no call, and has no faults and holds meanwhile.
pub fn node_answer(node: &Node, method: &str, params: &Value) -> Value {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    serde_json::from_slice(&node.answer(body.as_bytes())).expect("a node answers in JSON")
}
