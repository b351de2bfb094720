//! A gateway in front of a simulated cluster, with an HTTP client.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use slotfront::app::{App, Listeners};
use slotfront::config::Config;
use slotfront::gateway::Gateway;
use slotfront::http::Front;
use slotfront::http::shutdown::GracePeriods;
use slotfront::methods::{Commitment, Query, Slot};
use slotfront::pool::{CallContext, UpstreamRequest};
use slotfront::telemetry::Metrics;
use slotfront::telemetry::Unusable;
use slotfront_sim::{Cluster, Settings};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::PATIENCE;
use crate::call::TestCall;
use crate::certificate::TestCertificate;
use crate::cluster::TestCluster;
use crate::loopback_tap::LoopbackTap;
use crate::reply::Reply;
use crate::request::TestRequest;

/// A gateway with the API key `dev`, in front of a simulated cluster. Slots pass only when the test steps the cluster.
pub struct TestGateway {
    /// The cluster with which the gateway was started. [`TestCluster::replace`] does not change this field.
    pub cluster: TestCluster,
    /// The gateway.
    pub app: App,
    /// The URL for calls with the key `dev`.
    pub url: String,
    pub admin: String,
    /// The HTTP client of all requests, which keeps its connections open.
    pub client: reqwest::Client,
}

/// A function that changes the settings of a test gateway before it starts.
type Change<'a, T> = Box<dyn FnOnce(&mut T) + 'a>;
/// A function that sets up the nodes of a new cluster.
type Preparation<'a> = Box<dyn FnOnce(&Cluster) + 'a>;

/// A gateway that has not started yet, with its settings.
#[must_use = "a gateway that is not started does nothing"]
pub struct TestGatewayBuilder<'a> {
    nodes: usize,
    cluster: Option<TestCluster>,
    start_from: Option<Config>,
    prepare: Vec<Preparation<'a>>,
    configure: Vec<Change<'a, Config>>,
    periods: Option<Change<'a, GracePeriods>>,
    tap: Option<&'a LoopbackTap>,
    secured: bool,
}

impl<'a> TestGatewayBuilder<'a> {
    /// Sets the number of nodes of the new cluster, which is three by default.
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// Uses this cluster instead of a new one. `nodes` and `prepare` then have no effect.
    pub fn cluster(mut self, cluster: &TestCluster) -> Self {
        self.cluster = Some(cluster.clone());
        self
    }

    /// Changes the settings. Several changes apply in the order in which they were added.
    pub fn config(mut self, change: impl FnOnce(&mut Config) + 'a) -> Self {
        self.configure.push(Box::new(change));
        self
    }

    /// Gives each node a tier of its own, so that the nodes are asked in their order.
    pub fn in_tiers(self) -> Self {
        self.config(|config| {
            for (tier, upstream) in (0..).zip(&mut config.upstreams) {
                upstream.tier = tier;
            }
        })
    }

    /// Lets the first failure open the breaker of a node, for the time `open`.
    pub fn breakers_open_at_once(self, open: Duration) -> Self {
        self.config(move |config| (config.pool.breaker.failures, config.pool.breaker.open) = (1, open))
    }

    /// Sets up the nodes of the new cluster before the gateway sends them a request.
    pub fn prepare(mut self, prepare: impl FnOnce(&Cluster) + 'a) -> Self {
        self.prepare.push(Box::new(prepare));
        self
    }

    /// Changes the durations of a shutdown's phases, for example the time between the notice and the closing of
    /// the listener.
    pub fn grace_periods(mut self, change: impl FnOnce(&mut GracePeriods) + 'a) -> Self {
        self.periods = Some(Box::new(change));
        self
    }

    /// Puts `tap` between the gateway and the first node, so that it records the requests to that node.
    pub fn tap(mut self, tap: &'a LoopbackTap) -> Self {
        self.tap = Some(tap);
        self
    }

    pub fn tls(self, certificate: &TestCertificate) -> Self {
        let files = certificate.files();
        let mut builder = self.config(move |config| config.server.tls = Some(files));
        builder.secured = true;
        builder
    }

    /// Starts the gateway, and waits until every node is probed and the gateway knows the cluster's newest slots.
    pub async fn start(self) -> TestGateway {
        let gateway = self.start_unprobed().await;
        gateway.settled().await;
        gateway
    }

    /// Starts the gateway without waiting for the first probes.
    pub async fn start_unprobed(self) -> TestGateway {
        let cluster = if let Some(cluster) = self.cluster {
            cluster
        } else {
            let cluster = TestCluster::unserved(self.nodes);
            self.prepare.into_iter().for_each(|prepare| prepare(&cluster));
            TestCluster::serve(cluster).await
        };
        let mut config = self.start_from.unwrap_or_else(|| cluster.config());
        if let Some(tap) = self.tap {
            let node = std::mem::replace(&mut config.upstreams[0].url, tap.secret_url());
            tap.forward_to(node.expose());
        }
        self.configure.into_iter().for_each(|change| change(&mut config));
        // A stop waits for no balancer and no idle client. A test of these times sets its own.
        let (notice, last_moment) = (Duration::ZERO, Duration::ZERO);
        let mut periods =
            GracePeriods { notice, last_moment, ..GracePeriods::of(config.server.unready_before_stop) };
        if let Some(change) = self.periods {
            change(&mut periods);
        }
        let gateway = Gateway::new(&config, Metrics::new()).expect("a gateway");
        let listeners = Listeners::bind(&config).await.expect("free ports");
        let app = App::start_with(config, gateway, listeners, periods).expect("an app");
        // Without the system's certificates, which take longer to read than the gateway takes to start.
        let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().expect("a client");
        let url = if self.secured {
            // The certificate is valid for this name only.
            format!("https://localhost:{}/v3/dev", app.public.port())
        } else {
            format!("http://{}/v3/dev", app.public)
        };
        TestGateway { cluster, url, admin: format!("http://{}", app.admin), app, client }
    }
}

impl TestGateway {
    /// Returns a builder with settings for tests: cached answers stay fresh for an hour, and nodes are probed
    /// every 20 ms.
    pub fn builder<'a>() -> TestGatewayBuilder<'a> {
        TestGatewayBuilder {
            nodes: 3,
            cluster: None,
            start_from: None,
            prepare: Vec::new(),
            configure: Vec::new(),
            periods: None,
            tap: None,
            secured: false,
        }
    }

    /// Starts a gateway in front of three nodes, with the settings of [`Self::builder`].
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Returns a builder of another gateway in front of the same cluster. The other gateway has the settings
    /// of this gateway.
    pub fn beside<'a>(&self) -> TestGatewayBuilder<'a> {
        let start_from = Some(self.front().config.copy());
        TestGatewayBuilder { start_from, ..Self::builder().cluster(&self.cluster) }
    }

    /// Returns this gateway if every account of the cluster has a bucket of its own, the place where following
    /// records the account's last write. Otherwise replaces the gateway by one where this is so. Two accounts in one
    /// bucket cost a fetch that a test does not expect. Each gateway assigns the buckets at random.
    pub async fn with_own_buckets(self) -> Self {
        let mut gateway = self;
        while gateway.shares_a_bucket() {
            let other = gateway.beside().start().await;
            gateway.app.stop().await;
            gateway = other;
        }
        gateway
    }

    fn shares_a_bucket(&self) -> bool {
        let mut buckets = HashSet::new();
        let mut addresses = self.cluster.addresses().into_iter();
        addresses.any(|address| !buckets.insert(self.front().followed.bucket(&address)))
    }

    /// Returns the parts of the gateway that serve calls.
    pub fn front(&self) -> &Front {
        self.app.front()
    }
}

/// Methods that prepare calls and send requests.
impl TestGateway {
    #[track_caller]
    pub fn call(&self, method: &str, params: Value) -> TestCall {
        let Value::Array(params) = params else { panic!("the params are no array: {params}") };
        self.prepared(method, params)
    }

    fn prepared(&self, method: &str, params: Vec<Value>) -> TestCall {
        TestCall::new(self.post(""), method, params)
    }

    pub fn get_account(&self, key: impl ToString) -> TestCall {
        self.prepared("getAccountInfo", vec![json!(key.to_string())])
    }

    pub fn get_accounts<K: ToString>(&self, keys: impl IntoIterator<Item = K>) -> TestCall {
        let keys = keys.into_iter().map(|key| json!(key.to_string())).collect();
        self.prepared("getMultipleAccounts", vec![Value::Array(keys)])
    }

    pub fn get_token_balance(&self, key: impl ToString) -> TestCall {
        self.prepared("getTokenAccountBalance", vec![json!(key.to_string())])
    }

    pub fn get_fee(&self, message: &str) -> TestCall {
        self.prepared("getFeeForMessage", vec![json!(message)])
    }

    pub fn get_votes(&self) -> TestCall {
        self.prepared("getVoteAccounts", Vec::new())
    }

    pub fn get_samples(&self) -> TestCall {
        self.prepared("getRecentPerformanceSamples", Vec::new())
    }

    pub fn get_nodes(&self) -> TestCall {
        self.prepared("getClusterNodes", Vec::new())
    }

    pub fn get_block(&self, slot: Slot) -> TestCall {
        self.prepared("getBlock", vec![json!(slot)])
    }

    /// Prepares a batch of `calls`, each with its own id.
    pub fn batch(&self, calls: impl IntoIterator<Item = TestCall>) -> TestRequest {
        let calls: Vec<_> = calls.into_iter().map(|call| call.json()).collect();
        self.post(Value::Array(calls).to_string())
    }

    /// Prepares a POST of `body`, which is sent unchanged.
    pub fn post(&self, body: impl Into<Vec<u8>>) -> TestRequest {
        TestRequest::new(&self.client, self.base_url(), body)
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Reply {
        Reply::read(request.timeout(PATIENCE).send().await.expect("an answer")).await
    }

    /// Sends a GET to a path of the public listener.
    pub async fn get(&self, path: &str) -> Reply {
        self.send(self.client.get(format!("{}{path}", self.base_url()))).await
    }

    pub async fn admin(&self, path: &str) -> Reply {
        self.send(self.client.get(format!("{}{path}", self.admin))).await
    }

    pub async fn admin_post(&self, path: &str, token: &str) -> Reply {
        self.send(self.client.post(format!("{}{path}", self.admin)).bearer_auth(token)).await
    }

    /// Returns the URL of the public listener, without a path.
    pub fn base_url(&self) -> &str {
        self.url.trim_end_matches("/v3/dev")
    }

    pub fn url_of(&self, key: &str) -> String {
        format!("{}/v3/{key}", self.base_url())
    }

    /// Opens a TCP connection to the public listener, without an HTTP client.
    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.app.public).await.expect("the gateway listens")
    }
}

/// Methods that read counters or wait for a state.
impl TestGateway {
    /// Returns the value of a metric series, which is named as on `/metrics`: `name{label="value"}`. A series
    /// that was never counted is 0. Panics if no metric has the name, or if the value is no whole number.
    #[track_caller]
    pub fn metric(&self, series: &str) -> u64 {
        let metrics = self.front().metrics.render();
        let value = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        let name = series.split('{').next().unwrap_or(series);
        let is_known = value.is_some() || Metrics::names().any(|known| known == name);
        assert!(is_known, "no metric {name} in\n{metrics}");
        value.map_or(0, |value| value.parse().expect("a whole number"))
    }

    /// Returns the number of requests that the gateway is answering now.
    pub fn in_flight(&self) -> usize {
        self.front().in_flight.load(Ordering::Relaxed)
    }

    /// Returns the number of connections to the public listener that are open now.
    pub fn connections(&self) -> i64 {
        self.front().metrics.connections.get()
    }

    /// Returns the number of calls to all nodes together. Calls of probe methods are not counted.
    pub fn upstream_calls(&self) -> u64 {
        self.cluster.calls_without_probes()
    }

    /// Returns the most severe reason why a node gets no calls. `None` if the node is usable.
    pub fn unusable(&self, node: usize) -> Option<Unusable> {
        self.front().pool.standing(Instant::now())[node].1
    }

    /// Returns the number of slots by which a node is behind the newest known slot. `None` if it has reported no slot.
    pub fn lag(&self, node: usize, commitment: Commitment) -> Option<u64> {
        let frontier = &self.front().frontier;
        frontier.lag(&frontier.slots_of(node), commitment)
    }

    /// Waits until `holds` returns true. Panics with the text `what` if that takes longer than [`PATIENCE`].
    pub async fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < deadline, "timed out while waiting until {what}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until the gateway is answering exactly `requests` requests.
    pub async fn until_in_flight(&self, requests: usize) {
        let what = format!("{requests} requests are in flight");
        self.until(&what, || self.in_flight() == requests).await;
    }

    /// Waits until a metric series has at least the value `least`.
    pub async fn until_metric(&self, series: &str, least: u64) {
        self.until(&format!("{series} is at least {least}"), || self.metric(series) >= least).await;
    }

    /// Waits until every node has been probed and the gateway knows the newest slots of the cluster.
    pub async fn settled(&self) {
        self.until("every node is probed and the cluster's slots are known", || {
            let front = self.front();
            let probed =
                front.pool.standing(Instant::now()).iter().all(|(_, unusable)| {
                    !matches!(unusable, Some(Unusable::Unprobed | Unusable::Unidentified))
                });
            probed && Commitment::ALL.iter().all(|c| front.frontier.slot(*c) == self.cluster.slot(*c))
        })
        .await;
    }

    /// Lets `slots` slots pass, and waits until the gateway knows the new slots.
    pub async fn step_by(&self, slots: u64) {
        self.cluster.step_by(slots);
        self.settled().await;
    }

    /// Replaces the cluster by one that has restarted `slots` slots lower without the transactions of clients. The newest
    /// known slots then fall, as they do once no node has reached them for half a minute.
    pub async fn restart_cluster(&mut self, slots: u64) {
        let settings = TestCluster::settings(self.cluster.nodes().len());
        let history_slots = self.cluster.slot(Commitment::Processed) - slots - settings.first_slot;
        self.cluster = self.cluster.replace(Cluster::new(Settings { history_slots, ..settings })).await;
        let frontier = &self.front().frontier;
        let is_at = |node| {
            let slots = frontier.slots_of(node);
            Commitment::ALL.iter().all(|c| slots.slot(*c) == Some(self.cluster.slot(*c)))
        };
        let nodes = self.cluster.nodes().len();
        self.until("every node is known to be lower", || (0..nodes).all(is_at)).await;
        // In half a minute, what nodes have said before expires.
        tokio::time::sleep(frontier.slot_time()).await;
        let later = Instant::now() + Duration::from_secs(31);
        self.until("the newest known slots have fallen", || {
            Commitment::ALL.iter().all(|c| {
                frontier.probed(frontier.era(), 0, *c, self.cluster.slot(*c), later);
                frontier.slot(*c) == self.cluster.slot(*c)
            })
        })
        .await;
        self.settled().await;
    }

    /// Waits until the public listener refuses connections.
    pub async fn until_closed(&self) {
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(self.app.public).await.is_ok() {
            assert!(Instant::now() < deadline, "the listener stays open");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Makes some calls that go to a node and back, one after the other. What was on its way before, and waits for
    /// nothing, has ended by then. With this a test sees that something waits, without a time in which it would end.
    pub async fn round_trips(&self) {
        for _ in 0..5 {
            let call = self.call("getMinimumBalanceForRentExemption", json!([165])).no_cache();
            let reply = call.send().await;
            assert_eq!(reply.status, 200, "{}", reply.text);
        }
    }

    /// Begins to stop the gateway, and runs `seen` while readiness fails and the public listener is still open.
    /// Panics if the stop completes before `seen` does.
    pub async fn during_the_notice(&self, seen: impl Future<Output = ()>) {
        tokio::select! {
            () = self.app.stop() => panic!("the notice ended first"),
            () = seen => {}
        }
    }
}

/// Returns a request for [`Pool::call`](slotfront::pool::Pool::call), which sends it to a node without using the
/// cache. Its deadline is [`PATIENCE`] from now.
pub fn upstream_request(query: Query) -> UpstreamRequest {
    let context = CallContext::own(Instant::now() + PATIENCE);
    UpstreamRequest { query, min_slot: None, prefer: None, one_node: false, context }
}
