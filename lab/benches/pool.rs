//! The cost of the pool: the choice of a node, a miss compared with asking the node directly, and a node that hangs.
//!
//! `cargo bench --package slotfront-lab --bench pool`. Nodes, gateway and client share one process and the loopback, so only ratios and
//! differences count.

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::json;
use slotfront::app::{App, Listeners};
use slotfront::config::{Config, Secret, Upstream};
use slotfront::gateway::Gateway;
use slotfront::http::shutdown::GracePeriods;
use slotfront::pool::{CallContext, UpstreamRequest};
use slotfront_rpc::jsonrpc::Params;
use slotfront_rpc::methods::{Method, Profile, Query};
use slotfront_sim::{Cluster, Fault, Settings};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Calls of one measurement.
const CALLS: usize = 3_000;
/// Callers at once where a node hangs.
const CALLERS: usize = 4;

/// A gateway before so many nodes, all of them known to be well.
struct Bench {
    cluster: Arc<Cluster>,
    app: App,
    client: reqwest::Client,
    body: Bytes,
}

impl Bench {
    async fn new(nodes: usize) -> Self {
        let cluster = Cluster::new(Settings { nodes, slot_time: None, ..Settings::default() });
        let (mut listeners, mut upstreams) = (Vec::new(), Vec::new());
        for i in 0..nodes {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let url = format!("http://{}", listener.local_addr().expect("bound"));
            upstreams.push(Upstream::plain(format!("node-{i}"), Secret::new(url)));
            listeners.push(listener);
        }
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = Config::dev(any, any, upstreams);
        config.pool.probe_interval = Duration::from_millis(200);
        Arc::clone(&cluster).serve(listeners, &TaskTracker::new(), CancellationToken::new()).await;
        let gateway = Gateway::new(&config).expect("a gateway");
        let bound = Listeners::bind(&config).await.expect("free ports");
        // Nobody has to hear of a stop.
        let app = App::start_with(config, gateway, bound, GracePeriods::default()).expect("an app");
        while app.front().pool.standing(Instant::now()).iter().any(|(_, unusable)| unusable.is_some()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let wallet = cluster.examples().wallets[0].to_string();
        let params = json!([wallet, {"encoding": "base64", "commitment": "confirmed"}]);
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "getAccountInfo", "params": params});
        let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build().expect("a client");
        Self { cluster, app, client, body: body.to_string().into() }
    }

    /// One call, past the cache where there is one; how long it took.
    async fn call(&self, url: &str) -> Duration {
        let request = self.client.post(url).header("content-type", "application/json");
        let request = request.header("cache-control", "no-cache").body(self.body.clone());
        let began = Instant::now();
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        black_box(response.bytes().await.expect("a body"));
        began.elapsed()
    }

    fn front_url(&self) -> String {
        format!("http://{}/v3/dev", self.app.public)
    }

    /// Latencies of callers without a pause, in order.
    async fn load(&self, calls: usize) -> Vec<Duration> {
        let url = self.front_url();
        let caller = async || {
            let mut took = Vec::with_capacity(calls);
            for _ in 0..calls {
                took.push(self.call(&url).await);
            }
            took
        };
        let mut all: Vec<_> = futures_util::future::join_all((0..CALLERS).map(|_| caller()))
            .await
            .into_iter()
            .flatten()
            .collect();
        all.sort_unstable();
        all
    }
}

fn ask(body_wallet: &str) -> UpstreamRequest {
    let params = json!([body_wallet, {"commitment": "confirmed"}]).to_string();
    let query = Query::parse(Method::GetAccountInfo, &Params::Array(params.into()), Profile::Node);
    let deadline = Instant::now() + Duration::from_hours(1);
    UpstreamRequest {
        query: query.expect("good params"),
        floor: Some(1),
        prefer: None,
        alone: false,
        context: CallContext::own(deadline),
    }
}

fn selection(c: &mut Criterion, runtime: &Runtime) {
    for nodes in [3, 10] {
        let bench = runtime.block_on(Bench::new(nodes));
        let wallet = bench.cluster.examples().wallets[0].to_string();
        let ask = ask(&wallet);
        let pool = Arc::clone(&bench.app.front().pool);
        c.bench_function(&format!("select: one of {nodes}"), |b| {
            b.iter(|| black_box(pool.first_choice(black_box(&ask))).is_some());
        });
        runtime.block_on(bench.app.stop());
    }
}

/// In turns, so that whatever else the machine does meets both alike.
async fn miss(bench: &Bench) {
    let direct = format!("http://{}", bench.cluster.node(0).address().expect("it listens"));
    let front = bench.front_url();
    let (mut asked, mut through) = (Vec::new(), Vec::new());
    for i in 0..CALLS + 200 {
        let pair = (bench.call(&direct).await, bench.call(&front).await);
        if i >= 200 {
            asked.push(pair.0);
            through.push(pair.1);
        }
    }
    asked.sort_unstable();
    through.sort_unstable();
    let (asked, through) = (asked[CALLS / 2], through[CALLS / 2]);
    let (added, ratio) = (through.saturating_sub(asked), through.div_duration_f64(asked));
    report(&format!("miss: p50 {added:?} above asking the node, {ratio:.2} times as long"));
}

async fn hang(bench: &Bench) {
    bench.load(200).await;
    let healthy = bench.load(CALLS / CALLERS).await;
    bench.cluster.node(0).fault_on("getAccountInfo", Fault::Hang, None);
    let first = bench.load(CALLS / CALLERS).await;
    let after = bench.load(CALLS / CALLERS).await;
    bench.cluster.node(0).clear_faults();
    let p99 = |sorted: &[Duration]| sorted[sorted.len() * 99 / 100];
    report(&format!(
        "one of three hangs: p99 {:.2} times the healthy one while it is found out (slowest {:?}), {:.2} times afterwards",
        p99(&first).div_duration_f64(p99(&healthy)),
        first[first.len() - 1],
        p99(&after).div_duration_f64(p99(&healthy)),
    ));
}

#[expect(clippy::print_stdout, reason = "a bench tells its numbers")]
fn report(line: &str) {
    println!("{line}");
}

fn pool(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    selection(c, &runtime);
    runtime.block_on(async {
        miss(&Bench::new(1).await).await;
        hang(&Bench::new(3).await).await;
    });
}

criterion_group!(benches, pool);
criterion_main!(benches);
