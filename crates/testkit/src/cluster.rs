//! A simulated cluster whose nodes listen on loopback ports.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use slotfront::config::{Config, Secret, Upstream, WsListen};
use slotfront::methods::PerCommitment;
use slotfront_sim::{Cluster, Fault, Node, Settings};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::PATIENCE;

/// A simulated cluster whose nodes accept connections. Slots pass only when the test steps the cluster. The
/// listeners close when the last clone is dropped.
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
    /// Returns the settings of a cluster of `nodes` nodes. Its slots pass only when the test steps the cluster.
    pub fn settings(nodes: usize) -> Settings {
        Settings { nodes, slot_time: None, ..Settings::default() }
    }

    /// Creates a cluster of `nodes` nodes with [`Self::settings`]. Its history is made once in a process, and then copied,
    /// because a test would spend a third of its time on it.
    #[must_use]
    pub fn unserved(nodes: usize) -> Arc<Cluster> {
        static HISTORIES: Mutex<BTreeMap<usize, Arc<Cluster>>> = Mutex::new(BTreeMap::new());
        let mut histories = HISTORIES.lock().unwrap_or_else(PoisonError::into_inner);
        histories.entry(nodes).or_insert_with(|| Cluster::new(Self::settings(nodes))).fork()
    }

    /// Creates a cluster of `nodes` nodes, and serves it at free ports.
    pub async fn start(nodes: usize) -> Self {
        Self::serve(Self::unserved(nodes)).await
    }

    /// Serves each node of `cluster` at a free port of 127.0.0.1.
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

    /// Closes the listeners of this cluster, and serves `other` at the same addresses.
    pub async fn replace(&self, other: Arc<Cluster>) -> Self {
        self.stop.cancel();
        let mut listeners = Vec::new();
        for address in &self.addresses {
            // The old listener closes a moment after its task is cancelled.
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

    pub fn url(&self, node: usize) -> Secret {
        Secret::new(format!("http://{}", self.addresses[node]))
    }

    /// Returns the setting with which a gateway uses a node as an upstream. The upstream's name is `node-0` for
    /// the first node.
    pub fn upstream(&self, node: usize) -> Upstream {
        Upstream::plain(format!("node-{node}"), self.url(node))
    }

    /// Applies `fault` to each call of `method` at every node, until the faults are cleared.
    pub fn fault_everywhere(&self, method: &str, fault: &Fault) {
        self.nodes().iter().for_each(|node| node.fault_on(method, fault.clone(), None));
    }

    /// Removes the faults of every node.
    pub fn clear_faults(&self) {
        self.nodes().iter().for_each(|node| node.clear_faults());
    }

    /// Keeps every node this many slots behind the cluster.
    pub fn set_lag(&self, slots: u64) {
        self.nodes().iter().for_each(|node| node.set_lag(slots));
    }

    /// Returns the number of calls to all nodes together. Calls of probe methods are not counted.
    pub fn calls_without_probes(&self) -> u64 {
        self.nodes().iter().map(|node| node.calls_without_probes()).sum()
    }

    /// Returns settings for a gateway in front of the cluster: frequent probes, long timeouts, and cached
    /// answers that stay fresh for an hour.
    pub fn config(&self) -> Config {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let upstreams = (0..self.addresses.len()).map(|node| self.upstream(node)).collect();
        let mut config = Config::dev(any, any, upstreams);
        // The next port may be one that another test has just left, to be found closed.
        config.server.ws_listen = WsListen::Off;
        // Probes are frequent, so that the gateway soon learns of a new slot. Tests wait for the frontier, never
        // for a time.
        config.pool.probe_interval = Duration::from_millis(20);
        // The timeouts are longer than anything takes on a busy machine. A test of a timeout sets its own.
        config.pool.attempt_timeout.fill(Duration::from_secs(20));
        // A call that a test holds, or a machine that stands still, makes no node slow.
        config.pool.breaker.slow = 1000.0;
        config.server.request_timeout = Duration::from_secs(40);
        let server = &mut config.server;
        for timeout in [
            &mut config.pool.connect_timeout,
            &mut server.header_timeout,
            &mut server.body_timeout,
            &mut server.write_timeout,
            &mut server.drain_timeout,
        ] {
            *timeout = PATIENCE;
        }
        // The TTLs are long, so that no answer expires when a test stalls. A test of expiry sets its own.
        let hour = Duration::from_hours(1);
        let ttl = &mut config.cache.ttl;
        for ttl in [&mut ttl.account, &mut ttl.fee, &mut ttl.vote_accounts] {
            *ttl = PerCommitment::uniform(hour);
        }
        for ttl in [
            &mut ttl.block_confirmed,
            &mut ttl.no_block_not_yet,
            &mut ttl.performance_samples,
            &mut ttl.scan,
            &mut ttl.cluster_nodes,
        ] {
            *ttl = hour;
        }
        // Tests count upstream calls. A test of comparisons turns them on.
        config.verify.sample = Some(0.0);
        config
    }
}

/// Returns a node's whole JSON-RPC answer to a call, without HTTP. The faults of the node do not apply, and the
/// node neither holds back nor counts the call.
pub fn node_answer(node: &Node, method: &str, params: &Value) -> Value {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    serde_json::from_slice(&node.answer(body.as_bytes())).expect("a node answers in JSON")
}
