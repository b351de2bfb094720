//! The shared store: answers that gateways share through a real redis-server equal a node's own answers.
//!
//! The tests are a target of their own, because they need redis-server, which `tests/run` installs:
//!
//! `cargo test --test redis`

#![expect(clippy::unwrap_used, reason = "a panic in a test shows its line")]

mod faults;
mod following;
mod limits;
mod purges;
mod timeouts;

use std::time::Duration;

use redis::Commands;
use serde_json::{Value, json};
use slotfront::config::{Config, Secret, SharedSettings};
use slotfront::methods::{Commitment, PerCommitment};
use slotfront::telemetry::{SharedOperation, SharedResult};
use slotfront_sim::{Cluster, Settings};
use slotfront_testkit::redis_server::{Redis, RedisCluster};
use slotfront_testkit::{TestCluster, TestGateway};

fn with(shared: SharedSettings) -> impl FnOnce(&mut Config) {
    |config| config.shared = Some(shared)
}

/// The timeout of a store that stops in a test: longer than an answer takes on a busy machine.
const SILENT_AFTER: Duration = Duration::from_secs(5);

fn counted(gateway: &TestGateway, operation: SharedOperation, result: SharedResult) -> u64 {
    gateway.front().metrics.shared_requests.at((operation, result)).get()
}

/// Waits until a gateway is connected to the store and knows its generation. Returns the gateway.
async fn connected(gateway: TestGateway) -> TestGateway {
    gateway.until("the store is there", || gateway.front().cache.purger().shares()).await;
    gateway
}

/// Returns two gateways over one simulated Solana cluster and one store.
async fn two(shared: SharedSettings) -> (TestGateway, TestGateway) {
    let a = connected(TestGateway::builder().config(with(shared)).start().await).await;
    let b = connected(a.beside().start().await).await;
    (a, b)
}

/// Waits until the store has accepted `answers` answers of the gateway, or refused them as outdated.
async fn until_stored(gateway: &TestGateway, answers: u64) {
    let of = |result| counted(gateway, SharedOperation::Put, result);
    gateway
        .until("the answers are stored", || of(SharedResult::Ok) + of(SharedResult::Older) >= answers)
        .await;
}

fn calls(gateway: &TestGateway) -> Vec<(&'static str, Value)> {
    let there = gateway.cluster.examples();
    let account = there.wallets[0].to_string();
    let slot = there.block_with_v0;
    let signatures = gateway.get_block(slot).details("signatures").result_of(gateway.cluster.node(0));
    vec![
        ("getAccountInfo", json!([account])),
        ("getAccountInfo", json!([account, {"encoding": "jsonParsed"}])),
        ("getMultipleAccounts", json!([[account, there.mints[0].to_string()]])),
        ("getTokenAccountBalance", json!([there.token_accounts[0].to_string()])),
        ("getTokenAccountBalance", json!([account])),
        ("getVoteAccounts", json!([])),
        ("getFeeForMessage", json!([there.fee_message])),
        // Before its block, of which it would be made.
        ("getTransaction", json!([signatures["signatures"][0], {"maxSupportedTransactionVersion": 0}])),
        ("getBlock", json!([there.block_with_v0, {"maxSupportedTransactionVersion": 0}])),
        ("getBlock", json!([there.block_with_v0, "jsonParsed"])),
        ("getRecentPerformanceSamples", json!([])),
        ("getClusterNodes", json!([])),
        ("getBlocks", json!([slot - 9, slot])),
        ("getEpochSchedule", json!([])),
    ]
}

async fn what_one_fetched_the_other_answers(shared: SharedSettings) {
    let (a, b) = two(shared).await;
    for (method, params) in calls(&a) {
        let kept = counted(&a, SharedOperation::Put, SharedResult::Ok);
        let first = a.call(method, params.clone()).send().await;
        assert_eq!(first.cache_status(), "fwd=miss; stored", "{method} {params}: {}", first.text);
        until_stored(&a, kept + 1).await;
        let upstream = a.upstream_calls();
        let second = b.call(method, params.clone()).send().await;
        assert!(
            second.cache_status().starts_with("hit; ttl="),
            "{method} {params}: {}",
            second.cache_status()
        );
        assert_eq!((second.text, a.upstream_calls()), (first.text, upstream), "{method}");
        // The second gateway now has an entry of its own, and does not ask the store.
        let gets = counted(&b, SharedOperation::Get, SharedResult::Hit);
        assert!(b.call(method, params.clone()).send().await.is_hit(), "{method}");
        assert_eq!(counted(&b, SharedOperation::Get, SharedResult::Hit), gets, "{method}");
    }
    assert_eq!(counted(&b, SharedOperation::Get, SharedResult::Hit), calls(&a).len() as u64);
}

#[tokio::test]
async fn shared_answers_need_no_node() {
    let store = Redis::start(&[]);
    what_one_fetched_the_other_answers(store.settings()).await;
}

#[tokio::test]
async fn a_cluster_of_stores_is_one_store() {
    let cluster = RedisCluster::start();
    what_one_fetched_the_other_answers(cluster.settings()).await;
    assert!(
        cluster.0.iter().filter(|node| !node.keys("test:").is_empty()).count() > 1,
        "the keys are spread over the nodes"
    );
}

#[tokio::test]
async fn short_lived_answers_are_not_shared() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    // In the test kit, cached answers stay fresh for an hour. These two gateways use the default lifetimes.
    let short = |config: &mut Config| {
        let any = ([127, 0, 0, 1], 0).into();
        let defaults = Config::dev(any, any, Vec::new()).cache.ttl;
        config.cache.ttl.account = defaults.account;
        config.cache.ttl.no_block_not_yet = defaults.no_block_not_yet;
    };
    let (a, b) = (
        connected(a.beside().config(short).start().await).await,
        connected(b.beside().config(short).start().await).await,
    );
    let account = a.cluster.examples().wallets[0].to_string();
    let not_yet = a.cluster.slot(Commitment::Confirmed) + 100;
    for (method, params) in [
        ("getAccountInfo", json!([account, {"commitment": "processed"}])),
        ("getAccountInfo", json!([account, {"commitment": "confirmed"}])),
        ("getBlock", json!([not_yet, {"commitment": "confirmed"}])),
    ] {
        a.call(method, params.clone()).send().await;
        let calls = a.upstream_calls();
        b.call(method, params.clone()).send().await;
        assert!(a.upstream_calls() > calls, "{method} {params}");
    }
    assert!(store.keys("test:cache").is_empty(), "{:?}", store.keys("test:"));
    a.get_account(account).send().await;
    until_stored(&a, 1).await;
    let (key, mut connection) = (store.keys("test:cache").remove(0), store.connection());
    let left: i64 = connection.pttl(key).unwrap();
    assert!((1..=5000).contains(&left), "the value expires in {left} ms");
}

#[tokio::test]
async fn shared_answers_expire_by_time() {
    let store = Redis::start(&[]);
    // Longer than the answer is on its way to the store on a busy machine.
    let ttl = Duration::from_secs(5);
    let a = TestGateway::builder()
        .config(|config| {
            config.shared = Some(store.settings());
            config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
            config.cache.ttl.account.finalized = ttl;
        })
        .start()
        .await;
    let a = connected(a).await;
    let b = a.beside().config(|config| config.cache.ttl.account.finalized = ttl).start().await;
    let b = connected(b).await;
    let wallet = a.cluster.examples().wallets[0];
    a.get_account(wallet).send().await;
    until_stored(&a, 1).await;
    tokio::time::sleep(ttl).await;
    assert_eq!(b.get_account(wallet).send().await.cache_status(), "fwd=miss; stored");
}

#[tokio::test]
async fn shared_answers_expire_by_slots() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    let there = a.cluster.examples();
    let [one, other] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    for account in [&one, &other] {
        a.get_account(account).send().await;
    }
    until_stored(&a, 2).await;
    a.step_by(4).await;
    b.settled().await;
    let slot = a.cluster.slot(Commitment::Finalized);
    let reply = b.get_account(&one).min_context_slot(slot).send().await;
    assert_eq!((reply.cache_status(), reply.slot()), ("fwd=miss; stored", slot));
    a.step_by(9).await;
    b.settled().await;
    // The entry is thirteen slots behind the newest slot, one more than is allowed.
    let reply = b.get_account(&other).send().await;
    assert_eq!((reply.cache_status(), reply.slot()), ("fwd=miss; stored", slot + 9));
}

#[tokio::test]
async fn an_older_answer_replaces_no_newer_one() {
    let store = Redis::start(&[]);
    let a = connected(TestGateway::builder().nodes(2).config(with(store.settings())).start().await).await;
    let b = connected(a.beside().config(|config| drop(config.upstreams.remove(0))).start().await).await;
    let newer = connected(a.beside().config(|config| drop(config.upstreams.remove(1))).start().await).await;
    let c = connected(a.beside().start().await).await;
    a.cluster.node(1).set_lag(4);
    let wallet = a.cluster.examples().wallets[0];
    let slot = newer.get_account(wallet).send().await.slot();
    until_stored(&newer, 1).await;
    let older = b.get_account(wallet).no_cache().send().await;
    assert!(older.slot() < slot, "{} against {slot}", older.slot());
    b.until("the older answer is refused", || counted(&b, SharedOperation::Put, SharedResult::Older) == 1)
        .await;
    let calls = c.upstream_calls();
    assert_eq!((c.get_account(wallet).send().await.slot(), c.upstream_calls()), (slot, calls));
    // An older answer may be followed by a newer one, never the other way round.
    assert!(b.get_account(wallet).send().await.slot() >= older.slot());
}

#[tokio::test]
async fn foreign_values_are_counted_misses() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    let there = a.cluster.examples();
    let five = &there.wallets[..5];
    for wallet in five {
        a.get_account(wallet).send().await;
    }
    until_stored(&a, 5).await;
    let (keys, mut connection) = (store.keys("test:cache"), store.connection());
    assert_eq!(keys.len(), 5);
    let value =
        |connection: &mut redis::Connection, i: usize| -> Vec<u8> { connection.get(&keys[i]).unwrap() };
    let anothers = value(&mut connection, 1);
    let mut later_version = value(&mut connection, 2);
    later_version[3] = b'9';
    let mut altered = value(&mut connection, 3);
    *altered.last_mut().unwrap() ^= 1;
    let cut = value(&mut connection, 4);
    () = connection.set(&keys[0], anothers).unwrap();
    () = connection.set(&keys[1], b"sfA299999999999999999999 garbage").unwrap();
    () = connection.set(&keys[2], later_version).unwrap();
    () = connection.set(&keys[3], altered).unwrap();
    () = connection.del(&keys[4]).unwrap();
    () = connection.lpush(&keys[4], &cut[..100]).unwrap();
    for wallet in five {
        let reply = b.get_account(wallet).send().await;
        assert_eq!(reply.cache_status(), "fwd=miss; stored", "{wallet}");
        assert_eq!(reply.text, a.get_account(wallet).send().await.text, "{wallet}");
    }
    assert_eq!(counted(&b, SharedOperation::Get, SharedResult::Foreign), 5);
    // Gateway `b`, which fetched the answers, replaces the invalid values by its own.
    let c = connected(a.beside().start().await).await;
    b.until("all keys have valid values again", || {
        keys.iter()
            .all(|key| redis::cmd("TYPE").arg(key).query::<String>(&mut connection).unwrap() == "string")
    })
    .await;
    let calls = c.upstream_calls();
    for wallet in five {
        assert!(c.get_account(wallet).send().await.is_hit(), "{wallet}");
    }
    assert_eq!(c.upstream_calls(), calls);
}

#[tokio::test]
async fn clusters_and_secrets_separate_shared_answers() {
    let store = Redis::start(&[]);
    let a = connected(TestGateway::builder().config(with(store.settings())).start().await).await;
    let slot = a.cluster.examples().block_with_v0;
    let first = a.get_block(slot).version_0().send().await;
    until_stored(&a, 1).await;
    let shared = SharedSettings { secret: Some(Secret::new("secret")), ..store.settings() };
    let signed = connected(a.beside().config(with(shared)).start().await).await;
    assert_eq!(signed.get_block(slot).version_0().send().await.cache_status(), "fwd=miss; stored");
    let other = Cluster::new(Settings { seed: 99, ..TestCluster::settings(3) });
    let other = a.cluster.replace(other).await;
    let b = connected(a.beside().cluster(&other).start().await).await;
    let second = b.get_block(slot).version_0().send().await;
    assert!(!second.is_hit(), "{}", second.cache_status());
    assert_ne!(second.text, first.text);
    assert_eq!(counted(&b, SharedOperation::Get, SharedResult::Hit), 0);
}
