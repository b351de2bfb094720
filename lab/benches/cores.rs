//! The cache hits per second of two threads, compared with those of one thread.
//!
//! Run with `cargo bench --package slotfront-lab --bench cores`. Each hit is measured from the request's body to
//! the reply, without a socket. The ratio shows how much the cores wait for shared memory. A whole server has a
//! higher ratio, because the cores share little of the kernel's work.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use slotfront::cache::entry::Payload;
use slotfront::cache::{Cache, CallOptions, Charge, NoConditions};
use slotfront::gateway::Gateway;
use slotfront::pool::CallerId;
use slotfront::telemetry::{Metrics, Outcome, Trace};
use slotfront_rpc::jsonrpc::Id;
use slotfront_rpc::jsonrpc::envelope::{self, Element, Request};
use slotfront_rpc::jsonrpc::reply;
use slotfront_rpc::methods::{Method, Profile, Query};
use slotfront_testkit::{CacheScene, TestCluster};
use tokio::time::Instant;

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(500);
const CLIENT: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));

/// A cache, a gateway with two API keys, and the bodies of calls that hit the cache.
struct HitScene {
    cache: Arc<Cache>,
    gateway: Gateway,
    metrics: Arc<Metrics>,
    keys: Vec<String>,
    bodies: Vec<Bytes>,
    _cluster: TestCluster,
}

async fn start_scene() -> HitScene {
    let CacheScene { cluster, mut config, cache, metrics } = CacheScene::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let keys: Vec<String> = (0..2).map(|i| format!("sf_{i:0>43}")).collect();
    let file = keys.iter().enumerate().map(|(i, key)| {
        let hash = slotfront::gateway::keys::KeyHash::of(key);
        format!("[[key]]\nid = \"key-{i}\"\nname = \"n\"\nplan = \"dev\"\nsha256 = \"{hash}\"\ncreated = \"2026-11-21T00:00:00Z\"\n")
    });
    let file = file.collect::<Vec<_>>().join("\n");
    config.auth.keys_file = Some(folder.path().join("keys.toml"));
    std::fs::write(folder.path().join("keys.toml"), file).expect("a key file");
    let plan = config.plans.get_mut("dev").expect("the dev plan");
    (plan.rps, plan.burst) = (1_000_000_000, 1_000_000_000);
    let gateway = Gateway::new(&config).expect("a gateway");
    gateway.report_to(&metrics);
    let bodies = cluster.examples().wallets.iter().map(CacheScene::body).collect();
    HitScene { cache, gateway, metrics, keys, bodies, _cluster: cluster }
}

/// Parses the call in `body`. Returns the call's id and query.
fn parse_call(body: &Bytes) -> (Id, Query) {
    // The body is copied, so that no other thread shares its memory. The same holds for a body that was read from
    // a connection.
    let Request::One(Element::Call(call)) = envelope::parse(&Bytes::copy_from_slice(body)) else {
        panic!("no call")
    };
    let query = Query::parse(Method::GetAccountInfo, &call.params, Profile::Node).expect("params");
    (call.id, query)
}

fn options(now: Instant) -> CallOptions {
    let deadline = now + Duration::from_secs(10);
    let (caller, trace) = (CallerId::default(), Trace::default());
    CallOptions { bypass: false, monotonic_slot: None, deadline, coding: None, caller, trace }
}

impl HitScene {
    /// Answers a call that hits the cache, with the same steps as the server. Returns the length of the reply in bytes.
    async fn call(&self, key: &str, body: &Bytes) -> usize {
        let now = Instant::now();
        let principal = self.gateway.authenticate(key, CLIENT, None, now).expect("a key");
        let (id, query) = parse_call(body);
        principal.admit(&query).expect("allowed");
        principal.take(now).expect("within the limit");
        let charge = Charge::new(Arc::clone(&principal) as _, principal.price(&query));
        let answer = self.cache.answer(&query, options(now), charge, &NoConditions).await.expect("a hit");
        let Payload::Result(result) = &answer.payload else { panic!("an error") };
        let mut out = Vec::with_capacity(512);
        reply::result(&mut out, &id, &result.pieces()[0]);
        principal.write_left(&mut out, now);
        self.metrics.call(
            Some(Method::GetAccountInfo),
            query.commitment(),
            Outcome::Hit,
            now.elapsed(),
            out.len(),
        );
        principal.count(&self.metrics, Outcome::Hit);
        out.len()
    }

    /// Returns the calls per second of all `callers` together, with a thread for each. A caller is a pair of
    /// positions: of its key in `keys`, and of its first body in `bodies`.
    fn rate(&self, callers: &[(usize, usize)]) -> f64 {
        let (stop, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        let begun = Instant::now();
        std::thread::scope(|threads| {
            for (key, first) in callers {
                threads.spawn(|| {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                    let mine = runtime.expect("a runtime").block_on(async {
                        let mut mine = 0;
                        for body in self.bodies.iter().cycle().skip(*first) {
                            if stop.load(Ordering::Relaxed) {
                                break;
                            }
                            std::hint::black_box(self.call(&self.keys[*key], body).await);
                            mine += 1;
                        }
                        mine
                    });
                    calls.fetch_add(mine, Ordering::Relaxed);
                });
            }
            std::thread::sleep(ROUND);
            stop.store(true, Ordering::Relaxed);
        });
        #[expect(clippy::cast_precision_loss, reason = "millions")]
        let calls = calls.into_inner() as f64;
        calls / begun.elapsed().as_secs_f64()
    }
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let scene = runtime.block_on(start_scene());
    runtime.block_on(async {
        for body in &scene.bodies {
            scene
                .cache
                .answer(&parse_call(body).1, options(Instant::now()), Charge::free(), &NoConditions)
                .await
                .expect("an answer");
        }
    });
    let half = scene.bodies.len() / 2;
    let kinds: [(&str, &[(usize, usize)]); 3] = [
        ("one thread", &[(0, 0)]),
        ("two threads, a key each", &[(0, 0), (1, half)]),
        ("two threads, one key", &[(0, 0), (0, half)]),
    ];
    // The kinds of measurement take turns, so that a noisy moment affects all of them.
    let mut rates = vec![Vec::new(); kinds.len()];
    for _ in 0..ROUNDS {
        for (rates, (_, callers)) in rates.iter_mut().zip(kinds) {
            rates.push(scene.rate(callers));
        }
    }
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let one = median(&mut rates[0]);
    for (rates, (name, _)) in rates.iter_mut().zip(kinds) {
        println!("cores/{name}: {:.2} of one thread's {:.0} ns a hit", median(rates) / one, 1e9 / one);
    }
}
