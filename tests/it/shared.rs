//! What gateways share by way of a real store: answers, as good as a node's own, and nothing that could do harm.
//!
//! Ignored where nobody asks for them: they need redis-server, which `tests/run` installs.

use std::time::Duration;

use redis::Commands;
use serde_json::{Value, json};
use slotfront::config::{Config, Secret, Shared};
use slotfront::methods::{Commitment, PerCommitment};
use slotfront::telemetry::{SharedOperation, SharedResult};
use tokio::time::Instant;

use crate::harness::{Reply, Stage};
use crate::redis_server::{Redis, RedisCluster};

fn with(shared: Shared) -> impl FnOnce(&mut Config) {
    |config| config.shared = Some(shared)
}

fn counted(stage: &Stage, operation: SharedOperation, result: SharedResult) -> u64 {
    stage.front().metrics.shared_requests.at((operation, result)).get()
}

/// A gateway that has found the store.
async fn connected(stage: Stage) -> Stage {
    stage
        .until("the store is there", || counted(&stage, SharedOperation::Connect, SharedResult::Ok) > 0)
        .await;
    stage
}

/// Two gateways before one cluster and one store.
async fn two(shared: Shared) -> (Stage, Stage) {
    let a = connected(Stage::with(with(shared)).await).await;
    let b = connected(a.beside(|_| ()).await).await;
    (a, b)
}

/// Waits until so many answers were kept, or refused, in the store.
async fn put(stage: &Stage, answers: u64) {
    let of = |result| counted(stage, SharedOperation::Put, result);
    stage.until("it is shared", || of(SharedResult::Ok) + of(SharedResult::Older) >= answers).await;
}

fn slot_of(reply: &Reply) -> u64 {
    reply.result()["context"]["slot"].as_u64().unwrap()
}

fn calls(stage: &Stage) -> Vec<(&'static str, Value)> {
    let there = stage.cluster.examples();
    let account = there.wallets[0].to_string();
    vec![
        ("getAccountInfo", json!([account])),
        ("getAccountInfo", json!([account, {"encoding": "jsonParsed"}])),
        ("getMultipleAccounts", json!([[account, there.mints[0].to_string()]])),
        ("getTokenAccountBalance", json!([there.token_accounts[0].to_string()])),
        ("getTokenAccountBalance", json!([account])),
        ("getVoteAccounts", json!([])),
        ("getFeeForMessage", json!([there.fee_message])),
        ("getBlock", json!([there.block_with_v0, {"maxSupportedTransactionVersion": 0}])),
        ("getBlock", json!([there.block_with_v0])),
        ("getRecentPerformanceSamples", json!([])),
        ("getClusterNodes", json!([])),
    ]
}

async fn what_one_fetched_the_other_answers(shared: Shared) {
    let (a, b) = two(shared).await;
    for (method, params) in calls(&a) {
        let kept = counted(&a, SharedOperation::Put, SharedResult::Ok);
        let first = a.call(method, params.clone()).await;
        assert_eq!(first.cache(), "fwd=miss; stored", "{method} {params}: {}", first.text);
        put(&a, kept + 1).await;
        let upstream = a.upstream_calls();
        let second = b.call(method, params.clone()).await;
        assert!(second.cache().starts_with("hit; ttl="), "{method} {params}: {}", second.cache());
        assert_eq!((second.text, a.upstream_calls()), (first.text, upstream), "{method}");
        // From now on it is the second one's own.
        let gets = counted(&b, SharedOperation::Get, SharedResult::Hit);
        assert!(b.call(method, params.clone()).await.cache().starts_with("hit"), "{method}");
        assert_eq!(counted(&b, SharedOperation::Get, SharedResult::Hit), gets, "{method}");
    }
    assert_eq!(counted(&b, SharedOperation::Get, SharedResult::Hit), calls(&a).len() as u64);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn what_one_gateway_fetched_another_answers_without_a_node() {
    let store = Redis::start(&[]);
    what_one_fetched_the_other_answers(store.settings()).await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_cluster_of_stores_is_one_store() {
    let cluster = RedisCluster::start();
    what_one_fetched_the_other_answers(cluster.settings()).await;
    assert!(cluster.0.iter().filter(|node| !node.keys("test:").is_empty()).count() > 1, "spread");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn what_is_over_in_less_than_two_seconds_is_not_shared() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    // The harness lets everything live for an hour; these live as long as by default.
    let short = |config: &mut Config| {
        config.cache.ttl.account = slotfront::config::defaults::TTL_STATE;
        config.cache.ttl.no_block_not_yet = slotfront::config::defaults::TTL_NO_BLOCK_NOT_YET;
    };
    let (a, b) = (connected(a.beside(short).await).await, connected(b.beside(short).await).await);
    let account = a.cluster.examples().wallets[0].to_string();
    let not_yet = a.cluster.slot(Commitment::Confirmed) + 100;
    for (method, params) in [
        ("getAccountInfo", json!([account, {"commitment": "processed"}])),
        ("getAccountInfo", json!([account, {"commitment": "confirmed"}])),
        ("getBlock", json!([not_yet, {"commitment": "confirmed"}])),
    ] {
        a.call(method, params.clone()).await;
        let calls = a.upstream_calls();
        b.call(method, params.clone()).await;
        assert!(a.upstream_calls() > calls, "{method} {params}");
    }
    assert!(store.keys("test:cache").is_empty(), "{:?}", store.keys("test:"));
    a.call("getAccountInfo", json!([account])).await;
    put(&a, 1).await;
    let (key, mut connection) = (store.keys("test:cache").remove(0), store.connection());
    let left: i64 = connection.pttl(key).unwrap();
    assert!((1..=5000).contains(&left), "expires with its ttl: {left} ms");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn time_ends_the_life_of_a_shared_answer_too() {
    let store = Redis::start(&[]);
    let ttl = Duration::from_secs(2);
    let a = Stage::with(|config| {
        config.shared = Some(store.settings());
        config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
        config.cache.ttl.account.finalized = ttl;
    })
    .await;
    let a = connected(a).await;
    // What it is asked for is fresh for less time than there.
    let b = a.beside(|config| config.cache.ttl.account.finalized = ttl).await;
    let b = connected(b).await;
    let params = json!([a.cluster.examples().wallets[0].to_string()]);
    a.call("getAccountInfo", params.clone()).await;
    put(&a, 1).await;
    tokio::time::sleep(ttl).await;
    assert_eq!(b.call("getAccountInfo", params).await.cache(), "fwd=miss; stored");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn slots_end_the_life_of_a_shared_answer_and_a_callers_own_number_holds() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    let there = a.cluster.examples();
    let [one, other] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    for account in [&one, &other] {
        a.call("getAccountInfo", json!([account])).await;
    }
    put(&a, 2).await;
    a.step_by(4).await;
    b.settled().await;
    let slot = a.cluster.slot(Commitment::Finalized);
    let reply = b.call("getAccountInfo", json!([one, {"minContextSlot": slot}])).await;
    assert_eq!((reply.cache(), slot_of(&reply)), ("fwd=miss; stored", slot));
    a.step_by(9).await;
    b.settled().await;
    // Thirteen slots behind: one past the bound.
    let reply = b.call("getAccountInfo", json!([other])).await;
    assert_eq!((reply.cache(), slot_of(&reply)), ("fwd=miss; stored", slot + 9));
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn an_older_answer_replaces_no_newer_one() {
    let store = Redis::start(&[]);
    let a = connected(Stage::of(2, with(store.settings())).await).await;
    let b = connected(a.beside(|config| drop(config.upstreams.remove(0))).await).await;
    let newer = connected(a.beside(|config| drop(config.upstreams.remove(1))).await).await;
    let c = connected(a.beside(|_| ()).await).await;
    a.cluster.node(1).set_lag(4);
    let params = json!([a.cluster.examples().wallets[0].to_string()]);
    let slot = slot_of(&newer.call("getAccountInfo", params.clone()).await);
    put(&newer, 1).await;
    let past = |stage: &Stage| {
        let body =
            json!({"jsonrpc": "2.0", "id": 1, "method": "getAccountInfo", "params": params}).to_string();
        let post = stage.client.post(&stage.url).header("content-type", "application/json");
        post.header("cache-control", "no-cache").body(body)
    };
    let older = b.send(past(&b)).await;
    assert!(slot_of(&older) < slot, "{} against {slot}", slot_of(&older));
    b.until("it is refused", || counted(&b, SharedOperation::Put, SharedResult::Older) == 1).await;
    let calls = c.upstream_calls();
    assert_eq!((slot_of(&c.call("getAccountInfo", params.clone()).await), c.upstream_calls()), (slot, calls));
    // And where the older one was shown, the newer one may follow, never the other way round.
    assert!(slot_of(&b.call("getAccountInfo", params).await) >= slot_of(&older));
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn what_is_no_value_of_ours_is_a_miss_and_is_counted() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    let there = a.cluster.examples();
    let params = |i: usize| json!([there.wallets[i].to_string()]);
    for i in 0..5 {
        a.call("getAccountInfo", params(i)).await;
    }
    put(&a, 5).await;
    let (keys, mut connection) = (store.keys("test:cache"), store.connection());
    assert_eq!(keys.len(), 5);
    let value =
        |connection: &mut redis::Connection, i: usize| -> Vec<u8> { connection.get(&keys[i]).unwrap() };
    let anothers = value(&mut connection, 1);
    let mut later_version = value(&mut connection, 2);
    later_version[3] = b'2';
    let mut altered = value(&mut connection, 3);
    *altered.last_mut().unwrap() ^= 1;
    let cut = value(&mut connection, 4);
    () = connection.set(&keys[0], anothers).unwrap();
    () = connection.set(&keys[1], b"sfA199999999999999999999 garbage").unwrap();
    () = connection.set(&keys[2], later_version).unwrap();
    () = connection.set(&keys[3], altered).unwrap();
    () = connection.del(&keys[4]).unwrap();
    () = connection.lpush(&keys[4], &cut[..100]).unwrap();
    for i in 0..5 {
        let reply = b.call("getAccountInfo", params(i)).await;
        assert_eq!(reply.cache(), "fwd=miss; stored", "{i}");
        assert_eq!(reply.text, a.call("getAccountInfo", params(i)).await.text, "{i}");
    }
    assert_eq!(counted(&b, SharedOperation::Get, SharedResult::Foreign), 5);
    // Its place is free for the right one.
    let c = connected(a.beside(|_| ()).await).await;
    b.until("all is well again", || {
        keys.iter()
            .all(|key| redis::cmd("TYPE").arg(key).query::<String>(&mut connection).unwrap() == "string")
    })
    .await;
    let calls = c.upstream_calls();
    for i in 0..5 {
        assert!(c.call("getAccountInfo", params(i)).await.cache().starts_with("hit"), "{i}");
    }
    assert_eq!(c.upstream_calls(), calls);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn one_cluster_never_answers_for_another_nor_one_secret_for_another() {
    let store = Redis::start(&[]);
    let a = connected(Stage::with(with(store.settings())).await).await;
    let params = json!([a.cluster.examples().block_with_v0, {"maxSupportedTransactionVersion": 0}]);
    let first = a.call("getBlock", params.clone()).await;
    put(&a, 1).await;
    let signed = a.beside(|config| {
        config.shared = Some(Shared { secret: Some(Secret::new("secret")), ..store.settings() });
    });
    let signed = connected(signed.await).await;
    assert_eq!(signed.call("getBlock", params.clone()).await.cache(), "fwd=miss; stored");
    let addresses: Vec<_> = a
        .front()
        .config
        .upstreams
        .iter()
        .map(|upstream| upstream.url.expose().trim_start_matches("http://").parse().unwrap())
        .collect();
    let other = a.replace_cluster_at(slotfront::sim::Settings::default().first_slot, 99, &addresses).await;
    let b = Stage::behind(other, &a, with(store.settings())).await;
    let b = connected(b).await;
    let second = b.call("getBlock", params).await;
    assert!(!second.cache().starts_with("hit"), "{}", second.cache());
    assert_ne!(second.text, first.text);
    assert_eq!(counted(&b, SharedOperation::Get, SharedResult::Hit), 0);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn what_was_purged_does_not_come_back() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    let params = json!([a.cluster.examples().wallets[0].to_string()]);
    a.call("getAccountInfo", params.clone()).await;
    put(&a, 1).await;
    assert!(b.call("getAccountInfo", params.clone()).await.cache().starts_with("hit"));
    b.front().cache.purge(&slotfront::cache::purge::Filter::default());
    assert_eq!(b.call("getAccountInfo", params.clone()).await.cache(), "fwd=miss; stored");
    put(&b, 1).await;
    // What is newer than the purge is shared again.
    let c = connected(a.beside(|_| ()).await).await;
    assert!(c.call("getAccountInfo", params).await.cache().starts_with("hit"));
}

/// Settings as a gateway has them, for a store that does not answer.
fn hasty(store: &Redis) -> Shared {
    Shared { timeout: Duration::from_millis(20), ..store.settings() }
}

/// Calls that are misses, one after the other; how long the longest took.
async fn misses(stage: &Stage, calls: usize) -> Duration {
    let there = stage.cluster.examples();
    let mut longest = Duration::ZERO;
    for i in 0..calls {
        let (account, from) = (&there.wallets[i % there.wallets.len()], i);
        let form = json!({"encoding": "base64", "dataSlice": {"offset": from, "length": 1}});
        let started = Instant::now();
        let reply = stage.call("getAccountInfo", json!([account.to_string(), form])).await;
        longest = longest.max(started.elapsed());
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert!(reply.json().get("result").is_some(), "{}", reply.text);
    }
    longest
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_store_that_stops_is_left_alone_and_taken_up_again() {
    let store = Redis::start(&[]);
    let a = connected(Stage::with(with(hasty(&store))).await).await;
    misses(&a, 5).await;
    put(&a, 1).await;
    store.pause();
    a.until("it is left alone", || {
        counted(&a, SharedOperation::Connect, SharedResult::Timeout) >= 1 && !a.front().cache.shares()
    })
    .await;
    let asked = || {
        let of = |result| counted(&a, SharedOperation::Get, result);
        SharedResult::ALL.into_iter().map(of).sum::<u64>() - of(SharedResult::Skipped)
    };
    let before = asked();
    misses(&a, 200).await;
    assert_eq!(asked(), before, "nothing is asked of it");
    assert!(counted(&a, SharedOperation::Get, SharedResult::Skipped) >= 1);
    store.resume();
    a.until("it is taken up again", || a.front().cache.shares()).await;
    // What was sent before it stopped is not taken for something new.
    a.front().cache.purge(&slotfront::cache::purge::Filter::default());
    let hits = asked();
    misses(&a, 5).await;
    assert!(asked() > hits);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn under_load_no_caller_fails_whatever_becomes_of_the_store() {
    let mut store = Redis::start(&["--maxmemory-policy", "noeviction"]);
    let a = connected(Stage::with(with(hasty(&store))).await).await;
    let b = connected(a.beside(|_| ()).await).await;
    let over = std::sync::atomic::AtomicBool::new(false);
    let load = async {
        while !over.load(std::sync::atomic::Ordering::Relaxed) {
            tokio::join!(misses(&a, 20), misses(&b, 20));
            for stage in [&a, &b] {
                stage.front().cache.clear();
            }
        }
    };
    let faults = async {
        let moment = || tokio::time::sleep(Duration::from_millis(400));
        let back =
            |what: &'static str| a.until(what, || a.front().cache.shares() && b.front().cache.shares());
        moment().await;
        store.pause();
        moment().await;
        store.resume();
        back("after a pause").await;
        store.kill();
        moment().await;
        store.restart();
        back("after a restart").await;
        moment().await;
        assert!(!store.keys("test:cache").is_empty(), "it is used again");
        store.flush();
        moment().await;
        assert!(!store.keys("test:cache").is_empty(), "and again");
        () = redis::cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).query(&mut store.connection()).unwrap();
        let refused = |stage| counted(stage, SharedOperation::Put, SharedResult::Refused) > 0;
        a.until("it is full", || refused(&a) && refused(&b)).await;
        assert!(a.front().cache.shares(), "and can still be read");
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    tokio::join!(load, faults);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn wrong_credentials_cost_nobody_anything_and_right_ones_need_little() {
    let store = Redis::start(&["--requirepass", "hunter2"]);
    let mut admin = redis::Client::open(format!("redis://:hunter2@127.0.0.1:{}", store.port()))
        .unwrap()
        .get_connection()
        .unwrap();
    // As deploy/shared.md gives them.
    let rights = "~test:* +get +set +getrange +del +hmget +hset +pexpire +time +evalsha +script|load";
    let rights: Vec<_> = rights.split(' ').collect();
    let user = ["SETUSER", "slotfront", "on", ">p@ss,word"];
    () = redis::cmd("ACL").arg(&user).arg(&rights).query(&mut admin).unwrap();
    let url = |user: &str| format!("redis://{user}@127.0.0.1:{}", store.port());
    for wrong in ["", "slotfront:hunter2", "nobody:x"] {
        let a = Stage::of(1, with(Redis::settings_at(&url(wrong)))).await;
        a.until("it is refused", || counted(&a, SharedOperation::Connect, SharedResult::Refused) > 0).await;
        misses(&a, 3).await;
        assert!(!a.front().cache.shares());
    }
    let shared = Redis::settings_at(&url("slotfront:p%40ss%2Cword"));
    what_one_fetched_the_other_answers(shared).await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn over_tls_the_stores_certificate_is_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let issued = |name: &str| {
        let issued = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let (cert, key) = (dir.path().join(format!("{name}.pem")), dir.path().join(format!("{name}.key")));
        std::fs::write(&cert, issued.cert.pem()).unwrap();
        std::fs::write(&key, issued.signing_key.serialize_pem()).unwrap();
        (cert, key)
    };
    let ((cert, key), (another, _)) = (issued("store"), issued("another"));
    let port = crate::redis_server::free_port().to_string();
    let _store = Redis::start(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        cert.to_str().unwrap(),
        "--tls-key-file",
        key.to_str().unwrap(),
        "--tls-auth-clients",
        "no",
    ]);
    let shared = |ca_file: &std::path::PathBuf| Shared {
        ca_file: Some(ca_file.clone()),
        ..Redis::settings_at(&format!("rediss://localhost:{port}"))
    };
    let distrusts = Stage::of(1, with(shared(&another))).await;
    let refused = || counted(&distrusts, SharedOperation::Connect, SharedResult::Unreachable) > 0;
    distrusts.until("the certificate is not believed", refused).await;
    what_one_fetched_the_other_answers(shared(&cert)).await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn of_several_servers_the_one_that_takes_writes_is_used() {
    let first = Redis::start(&[]);
    let follows = first.port().to_string();
    let second = Redis::start(&["--replicaof", "127.0.0.1", &follows]);
    let both = Shared { urls: vec![Secret::new(second.url()), Secret::new(first.url())], ..first.settings() };
    let a = connected(Stage::with(with(both)).await).await;
    misses(&a, 3).await;
    put(&a, 3).await;
    // They change places: the first one refuses writes from now on.
    let tell = |server: &Redis, words: [&str; 2]| {
        redis::cmd("REPLICAOF").arg(&words).exec(&mut server.connection()).unwrap();
    };
    tell(&second, ["NO", "ONE"]);
    tell(&first, ["127.0.0.1", &second.port().to_string()]);
    a.front().cache.clear();
    let puts = || counted(&a, SharedOperation::Put, SharedResult::Ok);
    let before = puts();
    let deadline = Instant::now() + Duration::from_secs(20);
    while puts() == before {
        assert!(Instant::now() < deadline, "the new one is never found");
        misses(&a, 3).await;
        a.front().cache.clear();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_cluster_without_one_of_its_nodes_goes_on_with_the_others() {
    let mut cluster = RedisCluster::start();
    let shared = Shared { timeout: Duration::from_millis(20), ..cluster.settings() };
    let a = connected(Stage::with(with(shared)).await).await;
    misses(&a, 30).await;
    let of = |operation, result| counted(&a, operation, result);
    a.until("it is used", || of(SharedOperation::Put, SharedResult::Ok) > 20).await;
    cluster.0[1].pause();
    for _ in 0..10 {
        a.front().cache.clear();
        misses(&a, 30).await;
    }
    let skipped = of(SharedOperation::Get, SharedResult::Skipped);
    assert!(skipped > 0, "its part is left alone");
    let kept = of(SharedOperation::Put, SharedResult::Ok);
    a.front().cache.clear();
    misses(&a, 30).await;
    a.until("the others are used", || of(SharedOperation::Put, SharedResult::Ok) > kept).await;
    cluster.0[1].resume();
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        a.front().cache.clear();
        let skipped = of(SharedOperation::Get, SharedResult::Skipped);
        misses(&a, 30).await;
        if of(SharedOperation::Get, SharedResult::Skipped) == skipped {
            break;
        }
        assert!(Instant::now() < deadline, "its part is never taken up again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    cluster.0[2].kill();
    a.front().cache.clear();
    misses(&a, 60).await;
    cluster.0[0].kill();
    cluster.0[1].kill();
    misses(&a, 60).await;
    cluster.0.iter_mut().for_each(Redis::restart);
    let kept = of(SharedOperation::Put, SharedResult::Ok);
    let deadline = Instant::now() + Duration::from_secs(60);
    while of(SharedOperation::Put, SharedResult::Ok) == kept {
        assert!(Instant::now() < deadline, "the cluster is never found again");
        a.front().cache.clear();
        misses(&a, 30).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Settings of a gateway that shares limits on this plan.
fn limited(shared: Shared, rps: u32, burst: u32, monthly_units: Option<u64>) -> impl FnOnce(&mut Config) {
    move |config| {
        config.shared = Some(shared);
        let plan = config.plans.get_mut("dev").unwrap();
        (plan.rps, plan.burst, plan.monthly_units) = (rps, burst, monthly_units);
    }
}

/// Calls at each of `stages` from several callers without a pause; how many passed, and how long it took.
async fn flood(stages: &[Stage], callers: usize, time: Duration) -> (u64, Duration) {
    let started = Instant::now();
    let all = stages.iter().flat_map(|stage| std::iter::repeat_n(stage, callers)).map(|stage| async move {
        let mut passed = 0_u64;
        while started.elapsed() < time {
            let reply = stage.call("getClusterNodes", json!([])).await;
            assert!(matches!(reply.status, 200 | 429), "{}", reply.text);
            passed += u64::from(reply.status == 200);
        }
        passed
    });
    let passed = futures_util::future::join_all(all).await.into_iter().sum();
    (passed, started.elapsed())
}

/// So many gateways with one store and one plan.
async fn gateways(n: usize, change: impl FnOnce(&mut Config)) -> Vec<Stage> {
    let mut stages = vec![connected(Stage::of(1, change).await).await];
    while stages.len() < n {
        stages.push(connected(stages[0].beside(|_| ()).await).await);
    }
    stages
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_plan_of_a_hundred_a_second_is_that_at_four_gateways_together() {
    let store = Redis::start(&[]);
    let stages = gateways(4, limited(store.settings(), 100, 100, None)).await;
    let (passed, took) = flood(&stages, 2, Duration::from_secs(4)).await;
    let allowed = 100.0 + 100.0 * took.as_secs_f64();
    println!("{passed} passed, {allowed:.0} allowed");
    // However slow the machine is, the store's time is the time that counts.
    assert!((passed as f64) <= allowed * 1.05, "{passed} of {allowed}");
    assert!((passed as f64) >= allowed * 0.7, "{passed} of {allowed}: nobody goes short");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn one_caller_alone_has_its_whole_burst_at_once_and_what_is_not_used_is_given_back() {
    let store = Redis::start(&[]);
    let stages = gateways(2, limited(store.settings(), 1, 100, None)).await;
    let batch = |calls: usize| {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "getClusterNodes", "params": []});
        Value::from(vec![call; calls]).to_string()
    };
    let passed = |reply: &Reply| {
        let json = reply.json();
        json.as_array().unwrap().iter().filter(|element| element.get("result").is_some()).count()
    };
    // Ninety at once, out of nothing: no one waits for the store.
    assert_eq!(passed(&stages[0].post(batch(90)).await), 90);
    let told = || counted(&stages[0], SharedOperation::Limit, SharedResult::Ok) > 0;
    stages[0].until("the store has heard of them", told).await;
    // What the first one leased ahead comes back; the second one has what is left, and a few that time brings.
    let key = store.keys("test:limit").remove(0);
    let owed = || {
        let rest: f64 = redis::cmd("GET").arg(&key).query(&mut store.connection()).unwrap();
        let time: (f64, f64) = redis::cmd("TIME").query(&mut store.connection()).unwrap();
        (rest - time.0 * 1e6 - time.1) / 1e6
    };
    stages[0].until("what was leased is given back", || owed() < 91.0).await;
    let second = passed(&stages[1].post(batch(100)).await);
    let told = || counted(&stages[1], SharedOperation::Limit, SharedResult::Ok) > 0;
    stages[1].until("the store has heard of them, too", told).await;
    println!("{second} more at the second");
    // The second one could not know, and let them pass once; now both know that nothing is left.
    let after = stages[1].post(batch(50)).await;
    assert_eq!(passed(&after), 0, "{}", after.text);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn units_count_for_all_gateways_and_outlive_the_store() {
    let mut store = Redis::start(&[]);
    let stages = gateways(2, limited(store.settings(), 1000, 1000, Some(40))).await;
    let used = |stage: &Stage| {
        let gateway = &stage.front().gateway;
        let who = gateway.authenticate("dev", [127, 0, 0, 1].into(), None, Instant::now()).unwrap();
        who.usage(Instant::now()).unwrap().month.used
    };
    for _ in 0..15 {
        stages[0].call("getClusterNodes", json!([])).await;
    }
    stages[1].until("the other knows", || used(&stages[1]) > 14.9).await;
    store.flush();
    for _ in 0..5 {
        stages[1].call("getClusterNodes", json!([])).await;
    }
    stages[0].until("nothing is forgotten", || used(&stages[0]) > 19.9).await;
    // Without a store each counts for itself, and tells afterwards.
    store.kill();
    stages[0].until("it is lost", || !stages[0].front().cache.shares()).await;
    stages[1].until("it is lost", || !stages[1].front().cache.shares()).await;
    for stage in &stages {
        for _ in 0..5 {
            assert_eq!(stage.call("getClusterNodes", json!([])).await.status, 200);
        }
    }
    store.restart();
    for stage in &stages {
        stage.until("all is told", || used(stage) > 29.9).await;
        assert!(used(stage) < 30.1, "and told once: {}", used(stage));
    }
    while stages[0].call("getClusterNodes", json!([])).await.status == 200 {}
    stages[1].until("the quota is used up here, too", || used(&stages[1]) > 39.9).await;
    assert_eq!(stages[1].call("getClusterNodes", json!([])).await.status, 429);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn without_the_store_each_gateway_goes_by_its_own_limit_and_with_it_by_one() {
    let mut store = Redis::start(&[]);
    let stages = gateways(2, limited(store.settings(), 10, 10, None)).await;
    store.kill();
    for stage in &stages {
        stage.until("it is lost", || !stage.front().cache.shares()).await;
    }
    let (passed, took) = flood(&stages, 1, Duration::from_secs(2)).await;
    let one = 10.0 + 10.0 * took.as_secs_f64();
    assert!((passed as f64) <= one * 2.0 + 2.0, "{passed} where one has {one}");
    store.restart();
    for stage in &stages {
        stage.until("it is there", || stage.front().cache.shares()).await;
    }
    flood(&stages, 1, Duration::from_secs(2)).await;
    let (passed, took) = flood(&stages, 1, Duration::from_secs(3)).await;
    let one = 10.0 * took.as_secs_f64();
    assert!((passed as f64) <= one * 1.05 + 10.0, "{passed} where {one} are allowed");
}
