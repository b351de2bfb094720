//! The shared store: answers that gateways share by a real server are as good as a node's own.
//!
//! The tests are ignored by default, because they need redis-server, which `tests/run` installs.

mod faults;
mod limits;
mod purges;

use std::time::Duration;

use redis::Commands;
use serde_json::{Value, json};
use slotfront::config::{Config, Secret, SharedSettings};
use slotfront::methods::{Commitment, PerCommitment};
use slotfront::telemetry::{SharedOperation, SharedResult};

use crate::harness::{Reply, Stage};
use crate::redis_server::{Redis, RedisCluster};

fn with(shared: SharedSettings) -> impl FnOnce(&mut Config) {
    |config| config.shared = Some(shared)
}

fn counted(stage: &Stage, operation: SharedOperation, result: SharedResult) -> u64 {
    stage.front().metrics.shared_requests.at((operation, result)).get()
}

/// Waits until a gateway is connected to the store and knows the purges.
async fn connected(stage: Stage) -> Stage {
    stage.until("the store is there", || stage.front().cache.purger().shares()).await;
    stage
}

/// Returns two gateways over one cluster and one store.
async fn two(shared: SharedSettings) -> (Stage, Stage) {
    let a = connected(Stage::with(with(shared)).await).await;
    let b = connected(a.beside(|_| ()).await).await;
    (a, b)
}

/// Waits until this many answers were stored in, or refused by, the store.
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

async fn what_one_fetched_the_other_answers(shared: SharedSettings) {
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
        // From now on the entry is the second gateway's own.
        let gets = counted(&b, SharedOperation::Get, SharedResult::Hit);
        assert!(b.call(method, params.clone()).await.cache().starts_with("hit"), "{method}");
        assert_eq!(counted(&b, SharedOperation::Get, SharedResult::Hit), gets, "{method}");
    }
    assert_eq!(counted(&b, SharedOperation::Get, SharedResult::Hit), calls(&a).len() as u64);
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn shared_answers_need_no_node() {
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
async fn short_lived_answers_are_not_shared() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    // The harness lets entries live for an hour. These live as long as by default.
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
async fn shared_answers_expire_by_time() {
    let store = Redis::start(&[]);
    let ttl = Duration::from_secs(2);
    let a = Stage::with(|config| {
        config.shared = Some(store.settings());
        config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
        config.cache.ttl.account.finalized = ttl;
    })
    .await;
    let a = connected(a).await;
    // The entry is fresh for a shorter time here than at the other gateway.
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
async fn shared_answers_expire_by_slots() {
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
    // After the older answer the newer one may follow, never the other way round.
    assert!(slot_of(&b.call("getAccountInfo", params).await) >= slot_of(&older));
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn foreign_values_are_counted_misses() {
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
    // The key is free for a valid value.
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
async fn clusters_and_secrets_separate_shared_answers() {
    let store = Redis::start(&[]);
    let a = connected(Stage::with(with(store.settings())).await).await;
    let params = json!([a.cluster.examples().block_with_v0, {"maxSupportedTransactionVersion": 0}]);
    let first = a.call("getBlock", params.clone()).await;
    put(&a, 1).await;
    let signed = a.beside(|config| {
        config.shared = Some(SharedSettings { secret: Some(Secret::new("secret")), ..store.settings() });
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
    let other = a.replace_cluster_at(slotfront_sim::Settings::default().first_slot, 99, &addresses).await;
    let b = Stage::behind(other, &a, with(store.settings())).await;
    let b = connected(b).await;
    let second = b.call("getBlock", params).await;
    assert!(!second.cache().starts_with("hit"), "{}", second.cache());
    assert_ne!(second.text, first.text);
    assert_eq!(counted(&b, SharedOperation::Get, SharedResult::Hit), 0);
}
