//! The test harness: a cluster that is stepped by hand, slotfront in front of it, and a client that reads
//! everything.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use slotfront::app::{App, Listeners};
use slotfront::config::{Config, Secret, Upstream};
use slotfront::gateway::Gateway;
use slotfront::http::shutdown::GracePeriods;
use slotfront::methods::{Commitment, PerCommitment};
use slotfront::pool::select::Unusable;
use slotfront_sim::{Cluster, Settings};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The longest wait of a test: longer than any step, shorter than a CI job.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A cluster with slotfront in front of it.
pub(crate) struct Stage {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) app: Option<App>,
    pub(crate) url: String,
    pub(crate) admin: String,
    pub(crate) client: reqwest::Client,
    stop: CancellationToken,
}

/// One HTTP response, read to the end.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) text: String,
    pub(crate) headers: reqwest::header::HeaderMap,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {:?}", self.text))
    }

    pub(crate) fn result(&self) -> Value {
        let json = self.json();
        json.get("result").unwrap_or_else(|| panic!("no result: {json}")).clone()
    }

    pub(crate) fn code(&self) -> i64 {
        self.json()["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("headers are text"))
    }

    /// Returns the part of `Cache-Status` that states the answer's source.
    pub(crate) fn cache(&self) -> &str {
        self.header("cache-status").trim_start_matches("slotfront; ")
    }
}

impl Stage {
    /// Starts a gateway over three nodes, with default settings and the key `dev`.
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// Starts a gateway over three nodes, with the key `dev` and settings from `change`.
    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::of(3, change).await
    }

    /// Starts a gateway over `nodes` nodes, with the key `dev` and settings from `change`.
    pub(crate) async fn of(nodes: usize, change: impl FnOnce(&mut Config)) -> Self {
        let stage = Self::before_any_probe(nodes, change, |_| {}).await;
        stage.settled().await;
        stage
    }

    /// Starts a gateway over one node, with connection timeouts from `change`. The drain lasts as long as a
    /// test may take.
    pub(crate) async fn ending(
        configure: impl FnOnce(&mut Config),
        change: impl FnOnce(&mut GracePeriods),
    ) -> Self {
        let with_drain = |config: &mut Config| {
            config.server.drain_timeout = PATIENCE;
            configure(config);
        };
        let (cluster, config, stop) = Self::prepared(1, with_drain, |_| {}).await;
        let mut periods = GracePeriods::of(config.server.drain_timeout);
        change(&mut periods);
        let stage = Self::start_with(cluster, config, stop, periods).await;
        stage.settled().await;
        stage
    }

    /// Starts a gateway as [`Stage::of`] does, with nodes from `prepare`, and without waiting for their first
    /// probes.
    pub(crate) async fn before_any_probe(
        nodes: usize,
        change: impl FnOnce(&mut Config),
        prepare: impl FnOnce(&Cluster),
    ) -> Self {
        let (cluster, config, stop) = Self::prepared(nodes, change, prepare).await;
        Self::start(cluster, config, stop).await
    }

    /// Serves a cluster, and returns it with the settings of a gateway in front of it.
    async fn prepared(
        nodes: usize,
        change: impl FnOnce(&mut Config),
        prepare: impl FnOnce(&Cluster),
    ) -> (Arc<Cluster>, Config, CancellationToken) {
        let cluster = Cluster::new(Settings { nodes, slot_time: None, ..Settings::default() });
        let stop = CancellationToken::new();
        let mut listeners = Vec::new();
        for _ in 0..nodes {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.expect("a free port"));
        }
        let upstreams = listeners.iter().enumerate().map(|(i, listener)| {
            let address = listener.local_addr().expect("bound");
            Upstream::plain(format!("node-{i}"), Secret::new(format!("http://{address}")))
        });
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = Config::dev(any, any, upstreams.collect());
        // Frequent enough that a step is soon known. Tests wait for the frontier, never for a time.
        config.pool.probe_interval = Duration::from_millis(20);
        // Longer than a busy machine takes. A test of a timeout sets its own.
        config.pool.attempt_timeout = [Duration::from_secs(20); 8];
        config.server.request_timeout = Duration::from_secs(40);
        // Entries age only if a test sets shorter lives, so that a test may pause anywhere.
        let hour = Duration::from_hours(1);
        for ttl in
            [&mut config.cache.ttl.account, &mut config.cache.ttl.fee, &mut config.cache.ttl.vote_accounts]
        {
            *ttl = PerCommitment::uniform(hour);
        }
        config.cache.ttl.block_confirmed = hour;
        config.cache.ttl.no_block_not_yet = hour;
        change(&mut config);
        prepare(&cluster);
        Arc::clone(&cluster).serve(listeners, &TaskTracker::new(), stop.clone()).await;
        (cluster, config, stop)
    }

    /// Starts another gateway over the same cluster, with the first one's settings changed by `change`.
    pub(crate) async fn beside(&self, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = (*self.front().config).clone();
        change(&mut config);
        let stage = Self::start(Arc::clone(&self.cluster), config, CancellationToken::new()).await;
        stage.settled().await;
        stage
    }

    /// Starts a gateway over `cluster`, which has replaced the cluster of `before`.
    pub(crate) async fn behind(
        cluster: Arc<Cluster>,
        before: &Self,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let mut config = (*before.front().config).clone();
        change(&mut config);
        let stage = Self::start(cluster, config, CancellationToken::new()).await;
        stage.settled().await;
        stage
    }

    async fn start(cluster: Arc<Cluster>, config: Config, stop: CancellationToken) -> Self {
        let periods = GracePeriods::of(config.server.drain_timeout);
        Self::start_with(cluster, config, stop, periods).await
    }

    async fn start_with(
        cluster: Arc<Cluster>,
        config: Config,
        stop: CancellationToken,
        periods: GracePeriods,
    ) -> Self {
        let gateway = Gateway::new(&config).expect("a gateway");
        let listeners = Listeners::bind(&config).await.expect("free ports");
        let app = App::start_with(config, gateway, listeners, periods).expect("an app");
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let (url, admin) = (format!("http://{}/v3/dev", app.public), format!("http://{}", app.admin));
        Self { cluster, app: Some(app), url, admin, client, stop }
    }

    pub(crate) fn front(&self) -> &slotfront::http::Front {
        self.app.as_ref().expect("running").front()
    }

    /// Waits until every node has been probed and the frontier has reached the cluster's slots.
    pub(crate) async fn settled(&self) {
        self.until("the frontier is where the cluster is", || {
            let front = self.front();
            let probed =
                front.pool.standing(Instant::now()).iter().all(|(_, unusable)| {
                    !matches!(unusable, Some(Unusable::Unprobed | Unusable::Unidentified))
                });
            probed && Commitment::ALL.iter().all(|c| front.frontier.slot(*c) == self.cluster.slot(*c))
        })
        .await;
    }

    /// Steps the cluster, and waits until the gateway has the new slots.
    pub(crate) async fn step_by(&self, slots: u64) {
        self.cluster.step_by(slots);
        self.settled().await;
    }

    /// Waits until `holds` returns true. A failure names `what` was awaited.
    pub(crate) async fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < deadline, "waited in vain until {what}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Ends the cluster, and starts one of another seed and a later slot at the same addresses.
    pub(crate) async fn replace_cluster(&self, seed: u64, addresses: &[SocketAddr]) -> Arc<Cluster> {
        self.replace_cluster_at(Settings::default().first_slot + 1_000_000, seed, addresses).await
    }

    /// Ends the cluster, and starts one of another seed from `first_slot` on at the same addresses.
    pub(crate) async fn replace_cluster_at(
        &self,
        first_slot: u64,
        seed: u64,
        addresses: &[SocketAddr],
    ) -> Arc<Cluster> {
        let nodes = addresses.len();
        let settings = Settings { seed, first_slot, nodes, slot_time: None, ..Settings::default() };
        let other = Cluster::new(settings);
        self.replace_cluster_by(&other, addresses).await;
        other
    }

    /// Ends the cluster, and starts `other` at the same addresses.
    pub(crate) async fn replace_cluster_by(&self, other: &Arc<Cluster>, addresses: &[SocketAddr]) {
        self.stop.cancel();
        let mut listeners = Vec::new();
        for address in addresses {
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
        Arc::clone(other).serve(listeners, &TaskTracker::new(), CancellationToken::new()).await;
    }

    /// Makes a call as [`Stage::call`] does, with another key than `dev`.
    pub(crate) async fn call_as(&self, key: &str, method: &str, params: Value) -> Reply {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let url = self.url.replace("/v3/dev", &format!("/v3/{key}"));
        self.send(self.client.post(url).header("content-type", "application/json").body(body)).await
    }

    /// Makes one call, with id 1.
    pub(crate) async fn call(&self, method: &str, params: Value) -> Reply {
        self.post(json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()).await
    }

    /// Posts a body as it is.
    pub(crate) async fn post(&self, body: impl Into<reqwest::Body>) -> Reply {
        self.send(self.client.post(&self.url).header("content-type", "application/json").body(body)).await
    }

    pub(crate) async fn send(&self, request: reqwest::RequestBuilder) -> Reply {
        let response = request.timeout(PATIENCE).send().await.expect("an answer");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Reply { status, headers, text: response.text().await.expect("a whole body") }
    }

    /// Sends a GET to the admin listener.
    pub(crate) async fn admin(&self, path: &str) -> Reply {
        self.send(self.client.get(format!("{}{path}", self.admin))).await
    }

    /// Returns the number of calls that all nodes have answered, without probes.
    pub(crate) fn upstream_calls(&self) -> u64 {
        self.cluster.nodes().iter().map(|node| node.calls_without_probes()).sum()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
