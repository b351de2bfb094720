//! The cost of the pool, in three measurements: the choice of a node, a miss compared with a direct call, and
//! calls while a node hangs.
//!
//! Run with `cargo bench --package slotfront-lab --bench pool`. Nodes, gateway and client share one process, so
//! only ratios and differences are meaningful.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use slotfront::config::Config;
use slotfront::http::shutdown::GracePeriods;
use slotfront::pool::{CallContext, UpstreamRequest};
use slotfront_sim::Fault;
use slotfront_testkit::{CacheScene, TestGateway, upstream_request};
use tokio::runtime::Runtime;
use tokio::time::Instant;

const CALLS: usize = 3_000;
/// The number of concurrent callers when a node hangs.
const CALLERS: usize = 4;

/// A gateway in front of simulated nodes, and a client that calls the gateway or a node.
struct Bench {
    gateway: TestGateway,
    client: reqwest::Client,
    body: Bytes,
}

/// Sets `server` and `pool` to their defaults, except for a shorter probe interval. `TestGateway` has set timeouts
/// that suit only tests.
fn restore_defaults(config: &mut Config) {
    let plain = Config::dev(config.server.listen, config.server.admin_listen, Vec::new());
    (config.server, config.pool) = (plain.server, plain.pool);
    config.pool.probe_interval = Duration::from_millis(200);
}

impl Bench {
    async fn new(nodes: usize) -> Self {
        let gateway = TestGateway::builder().nodes(nodes).config(restore_defaults);
        // The benchmark does not wait for a graceful stop.
        let gateway = gateway.grace_periods(|periods| *periods = GracePeriods::default()).start().await;
        let usable = || (0..nodes).all(|node| gateway.unusable(node).is_none());
        gateway.until("every node is usable", usable).await;
        let body = CacheScene::body(&gateway.cluster.examples().wallets[0]);
        let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build().expect("a client");
        Self { gateway, client, body }
    }

    /// Sends one call that bypasses the cache. Returns the time that it took.
    async fn call(&self, url: &str) -> Duration {
        let request = self.client.post(url).header("content-type", "application/json");
        let request = request.header("cache-control", "no-cache").body(self.body.clone());
        let began = Instant::now();
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        black_box(response.bytes().await.expect("a body"));
        began.elapsed()
    }

    /// Sends `calls` calls from each of [`CALLERS`] callers, without pauses. Returns the sorted latencies.
    async fn load(&self, calls: usize) -> Vec<Duration> {
        let url = &self.gateway.url;
        let caller = async || {
            let mut took = Vec::with_capacity(calls);
            for _ in 0..calls {
                took.push(self.call(url).await);
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

fn selection(c: &mut Criterion, runtime: &Runtime) {
    for nodes in [3, 10] {
        let bench = runtime.block_on(Bench::new(nodes));
        let query =
            bench.gateway.get_account(bench.gateway.cluster.examples().wallets[0]).confirmed().query();
        let context = CallContext::own(Instant::now() + Duration::from_hours(1));
        let ask = UpstreamRequest { min_slot: Some(1), context, ..upstream_request(query) };
        let pool = Arc::clone(&bench.gateway.front().pool);
        c.bench_function(&format!("select: one of {nodes}"), |b| {
            b.iter(|| black_box(pool.first_choice(black_box(&ask))).is_some());
        });
        runtime.block_on(bench.gateway.app.stop());
    }
}

/// Compares misses with calls that go directly to a node. Misses and direct calls take turns, so that noise
/// affects both.
async fn miss(bench: &Bench) {
    let direct = bench.gateway.cluster.url(0);
    let (direct, front) = (direct.expose(), &bench.gateway.url);
    let (mut asked, mut through) = (Vec::new(), Vec::new());
    for i in 0..CALLS + 200 {
        let pair = (bench.call(direct).await, bench.call(front).await);
        if i >= 200 {
            asked.push(pair.0);
            through.push(pair.1);
        }
    }
    asked.sort_unstable();
    through.sort_unstable();
    let (asked, through) = (asked[CALLS / 2], through[CALLS / 2]);
    let (added, ratio) = (through.saturating_sub(asked), through.div_duration_f64(asked));
    report(&format!("miss: p50 {added:?} above a direct call, {ratio:.2} times as long"));
}

async fn hang(bench: &Bench) {
    bench.load(200).await;
    let healthy = bench.load(CALLS / CALLERS).await;
    bench.gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Hang, None);
    let first = bench.load(CALLS / CALLERS).await;
    let after = bench.load(CALLS / CALLERS).await;
    bench.gateway.cluster.node(0).clear_faults();
    let p99 = |sorted: &[Duration]| sorted[sorted.len() * 99 / 100];
    report(&format!(
        "one of three nodes hangs: p99 {:.2} times the healthy p99 until its breaker opens (slowest {:?}), {:.2} times afterwards",
        p99(&first).div_duration_f64(p99(&healthy)),
        first[first.len() - 1],
        p99(&after).div_duration_f64(p99(&healthy)),
    ));
}

#[expect(clippy::print_stdout, reason = "a benchmark prints its results")]
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
