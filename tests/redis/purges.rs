//! Purges by one gateway reach the store and every other gateway that uses it, including gateways that start
//! later.

use serde_json::{Value, json};
use slotfront::cache::purge::Filter;
use slotfront::config::{Config, Secret, SharedSettings};
use slotfront::methods::{Method, Pubkey, Slot};
use slotfront::telemetry::{EvictionCause, SharedOperation, SharedResult};
use slotfront_sim::{Cluster, Fault};
use slotfront_testkit::redis_server::{Redis, RedisCluster};
use slotfront_testkit::{Reply, TestGateway};

use crate::{SILENT_AFTER, connected, counted, two, until_stored, with};

const TOKEN: &str = "admin";

/// Returns a function that sets this store and an admin token in a gateway's settings.
fn with_token(shared: SharedSettings) -> impl FnOnce(&mut Config) {
    |config| {
        config.auth.admin_token = Some(Secret::new(TOKEN));
        with(shared)(config);
    }
}

async fn purge(gateway: &TestGateway, query: &str) -> Value {
    let reply = gateway.admin_post(&format!("/api/cache/purge{query}"), TOKEN).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()
}

/// Returns the slots of three blocks, the newest first.
fn blocks(gateway: &TestGateway) -> [Slot; 3] {
    let newest = gateway.cluster.examples().block_with_v0;
    [newest, newest - 1, newest - 2]
}

async fn ask(gateway: &TestGateway, slot: Slot) -> Reply {
    gateway.get_block(slot).version_0().details("none").send().await
}

async fn is_hit(gateway: &TestGateway, slot: Slot) -> bool {
    let reply = ask(gateway, slot).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.is_hit()
}

async fn a_purge_holds_for_gateways_that_start_later(shared: SharedSettings) {
    let a = connected(TestGateway::builder().config(with_token(shared)).start().await).await;
    let blocks = blocks(&a);
    for (shared, slot) in (1..).zip(blocks) {
        ask(&a, slot).await;
        until_stored(&a, shared).await;
    }
    let b = connected(a.beside().start().await).await;
    for slot in blocks {
        assert!(is_hit(&b, slot).await, "the block is shared");
    }
    assert_eq!(
        purge(&a, &format!("?slot={}", blocks[0])).await,
        json!({"done": true, "entries": 1, "shared": true})
    );
    // A new gateway knows of no purge when it starts. A restarted gateway knows as little.
    let c = connected(a.beside().start().await).await;
    for slot in blocks {
        assert!(!is_hit(&c, slot).await, "no shared answer outlives a purge");
    }
    until_stored(&c, 3).await;
    let d = connected(a.beside().start().await).await;
    assert!(is_hit(&d, blocks[0]).await, "the block is shared again");
}

#[tokio::test]
async fn a_purge_outlives_the_gateway_that_did_it() {
    a_purge_holds_for_gateways_that_start_later(Redis::start(&[]).settings()).await;
}

#[tokio::test]
async fn a_purge_outlives_its_gateway_in_a_cluster() {
    let cluster = RedisCluster::start();
    a_purge_holds_for_gateways_that_start_later(cluster.settings()).await;
}

#[tokio::test]
async fn a_purge_empties_the_caches_of_other_gateways() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    let [purged, other, _] = blocks(&a);
    for slot in [purged, other] {
        ask(&b, slot).await;
    }
    until_stored(&b, 2).await;
    a.front().cache.purger().purge(&Filter { slot: Some(purged), ..Filter::default() });
    let went = || b.front().metrics.cache_evictions.at(EvictionCause::Purged).get();
    b.until("the purge is applied", || went() > 0).await;
    assert_eq!((is_hit(&b, purged).await, is_hit(&b, other).await), (false, true));
}

#[tokio::test]
async fn purges_take_nothing_from_other_caches_but_what_they_name() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    let [purged, other] = [0, 1].map(|wallet| a.cluster.examples().wallets[wallet]);
    for account in [purged, other] {
        b.get_account(account).send().await;
    }
    until_stored(&b, 2).await;
    let others = (0..29_u16).map(|number| {
        let mut bytes = [7; 32];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        Pubkey(bytes)
    });
    for account in others.chain([purged]) {
        a.front().cache.purger().purge(&Filter { account: Some(account), ..Filter::default() });
    }
    let went = || b.front().metrics.cache_evictions.at(EvictionCause::Purged).get();
    b.until("the purge is applied", || went() > 0).await;
    assert!(b.get_account(other).send().await.is_hit());
    let reply = b.get_account(purged).send().await;
    // A gateway does not keep an answer that it fetched while it was applying purges, so `stored` may be missing.
    assert!(reply.cache_status().starts_with("fwd=miss"), "{}", reply.cache_status());
}

#[tokio::test]
async fn a_purge_stays_within_its_cluster() {
    let store = Redis::start(&[]);
    let a = connected(TestGateway::builder().config(with_token(store.settings())).start().await).await;
    let another = |cluster: &Cluster| {
        let hash = "Another111111111111111111111111111111111111";
        cluster.node(0).fault_on("getGenesisHash", Fault::Result(json!(hash)), None);
    };
    let b = TestGateway::builder()
        .nodes(1)
        .config(with(store.settings()))
        .prepare(another)
        .start_unprobed()
        .await;
    b.settled().await;
    let b = connected(b).await;
    let [slot, ..] = blocks(&a);
    for gateway in [&a, &b] {
        ask(gateway, slot).await;
        until_stored(gateway, 1).await;
    }
    assert_eq!(purge(&a, "").await["shared"], true);
    let looks = || counted(&b, SharedOperation::Purge, SharedResult::Ok);
    let before = looks();
    b.until("the purges were read since", || looks() >= before + 2).await;
    assert!(is_hit(&b, slot).await, "its own entry stays");
    let c = connected(b.beside().start().await).await;
    assert!(is_hit(&c, slot).await, "the answer that its cluster shares stays");
    let d = connected(a.beside().start().await).await;
    assert!(!is_hit(&d, slot).await, "the purged block is gone");
}

#[tokio::test]
async fn purges_reach_a_returning_store() {
    let store = Redis::start(&[]);
    let shared = SharedSettings { timeout: SILENT_AFTER, ..store.settings() };
    let a = connected(TestGateway::builder().config(with_token(shared)).start().await).await;
    let [purged, other, _] = blocks(&a);
    for (shared, slot) in [(1, purged), (2, other)] {
        ask(&a, slot).await;
        until_stored(&a, shared).await;
    }
    store.pause();
    a.until("the store is lost", || !a.front().cache.purger().shares()).await;
    assert_eq!(
        purge(&a, &format!("?slot={purged}")).await["shared"],
        false,
        "the reply says that the purge is not shared"
    );
    store.resume();
    a.until("the purge has reached the store", || a.front().cache.purger().shares()).await;
    let b = connected(a.beside().start().await).await;
    assert_eq!((is_hit(&b, purged).await, is_hit(&b, other).await), (false, false));
}

/// Returns the generation that the store has, with the purges below it.
fn generation(store: &Redis) -> Option<String> {
    let key = store.keys("test:generation1").pop()?;
    redis::Commands::get(&mut store.connection(), key).ok()
}

#[tokio::test]
async fn lost_generation_is_restored() {
    let store = Redis::start(&[]);
    let (a, _b) = two(store.settings()).await;
    a.front().cache.purger().purge(&Filter { method: Some(Method::GetBlock), ..Filter::default() });
    a.until("the purge has reached the store", || a.front().cache.purger().shares()).await;
    let number = |store: &Redis| generation(store)?.lines().next().map(str::to_owned);
    let before = number(&store);
    // The store loses its data, as after a restore from an earlier copy.
    store.flush();
    a.until("the store has the generation again", || number(&store) == before).await;
}

#[tokio::test]
async fn evicted_generation_brings_nothing_back() {
    let store = Redis::start(&[]);
    let a = connected(TestGateway::builder().config(with(store.settings())).start().await).await;
    let [purged, ..] = blocks(&a);
    ask(&a, purged).await;
    until_stored(&a, 1).await;
    let values = |store: &Redis| {
        let keys = store.keys("test:cache");
        let mut connection = store.connection();
        keys.into_iter()
            .map(|key| (key.clone(), redis::Commands::get::<_, Vec<u8>>(&mut connection, key).unwrap()))
            .collect::<Vec<_>>()
    };
    let old = values(&store);
    a.front().cache.purger().purge(&Filter::default());
    a.until("the purge has reached the store", || a.front().cache.purger().shares()).await;
    drop(a);
    // No gateway is left that knows the generation. The store has evicted it, and has the old value.
    store.flush();
    for (key, value) in &old {
        () = redis::Commands::set(&mut store.connection(), key, value).unwrap();
    }
    let b = connected(TestGateway::builder().config(with(store.settings())).start().await).await;
    assert!(!is_hit(&b, purged).await, "a missing generation is none of the earlier ones");
}

#[tokio::test]
async fn what_was_purged_does_not_come_back() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    let wallet = a.cluster.examples().wallets[0];
    a.get_account(wallet).send().await;
    until_stored(&a, 1).await;
    assert!(b.get_account(wallet).send().await.is_hit());
    b.front().cache.purger().purge(&Filter::default());
    // The purge is in force at this gateway before the store knows of it.
    assert_eq!(b.get_account(wallet).send().await.cache_status(), "fwd=miss; stored");
}

#[test]
fn a_generation_that_no_purge_has_made_counts_as_missing() {
    let store = Redis::start(&[]);
    let key = "test:generation1:hash";
    let ask = |known: u64, purge: Option<&str>| -> (u64, String) {
        let mut call = redis::cmd("EVAL");
        call.arg(include_str!("../../src/redis_store/generation.lua")).arg(1).arg(key).arg(known).arg(60_000);
        let (number, purges): (String, String) = call.arg(purge).query(&mut store.connection()).unwrap();
        (number.parse().unwrap(), purges)
    };
    let first = ask(0, None).0;
    for poison in ["1000000000000000000\n", "1000000000000000000\n1 2 3\n", "nan\n", "-1\n"] {
        let () = redis::cmd("SET").arg(key).arg(poison).query(&mut store.connection()).unwrap();
        assert_eq!(ask(first, None), (first, String::new()), "{poison:?}");
        let () = redis::cmd("SET").arg(key).arg(poison).query(&mut store.connection()).unwrap();
        let (raised, purges) = ask(first, Some("purge"));
        assert!(raised > first && raised < first + 3_600_000_000, "{poison:?}: {raised} after {first}");
        assert_eq!(purges, format!("{raised} {first} purge"));
    }
    let (number, _) = ask(1_000_000_000_000_000_000, None);
    assert!(number < first + 3_600_000_000, "what a gateway has heard of it is none either: {number}");
}
