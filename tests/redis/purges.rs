//! Purges by one gateway reach the store, and every other gateway that reads it, including those that start
//! later.

use serde_json::{Value, json};
use slotfront::cache::purge::Filter;
use slotfront::config::{Config, Secret, SharedSettings};
use slotfront::methods::{Method, Pubkey, Slot};
use slotfront::telemetry::{EvictionCause, SharedOperation, SharedResult};
use slotfront_sim::{Cluster, Fault};
use slotfront_testkit::redis_server::{Redis, RedisCluster};
use slotfront_testkit::{PATIENCE, Reply, TestGateway};
use tokio::time::Instant;

use crate::{connected, counted, put, two, with};

const TOKEN: &str = "admin";

/// Returns settings with a store and an admin token.
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

/// Returns the slots of three blocks.
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
        put(&a, shared).await;
    }
    let purged = blocks[0];
    assert_eq!(
        purge(&a, &format!("?slot={purged}")).await,
        json!({"done": true, "entries": 1, "shared": true})
    );
    // A new gateway and a restarted one know no more than this.
    let b = connected(a.beside().start().await).await;
    for slot in &blocks[1..] {
        assert!(is_hit(&b, *slot).await, "what was not named is shared on");
    }
    assert!(!is_hit(&b, purged).await, "it was purged before this one began");
    put(&b, 1).await;
    // The time of a purge is rounded up, and a cluster's parts are read one by one. An answer of the same
    // moment may therefore count as purged. In that case the next gateway finds a newer one.
    let deadline = Instant::now() + PATIENCE;
    let c = loop {
        let c = connected(a.beside().start().await).await;
        c.until("the purges are read", || counted(&c, SharedOperation::Purge, SharedResult::Ok) > 0).await;
        if is_hit(&c, purged).await {
            break c;
        }
        assert!(Instant::now() < deadline, "what was fetched since is never shared again");
        put(&c, 1).await;
    };
    assert_eq!(purge(&c, "").await["shared"], true);
    let d = connected(a.beside().start().await).await;
    for slot in blocks {
        assert!(!is_hit(&d, slot).await, "{slot}");
    }
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
    put(&b, 2).await;
    a.front().cache.purger().purge(&Filter { slot: Some(purged), ..Filter::default() });
    let went = || b.front().metrics.cache_evictions.at(EvictionCause::Purged).get();
    b.until("the purge is heard of", || went() > 0).await;
    assert_eq!((is_hit(&b, purged).await, is_hit(&b, other).await), (false, true));
}

#[tokio::test]
async fn many_purges_take_nothing_but_what_they_name() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    let [purged, other] = [0, 1].map(|wallet| a.cluster.examples().wallets[wallet]);
    for account in [purged, other] {
        b.get_account(account).send().await;
    }
    put(&b, 2).await;
    let others = (0..299_u16).map(|number| {
        let mut bytes = [7; 32];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        Pubkey(bytes)
    });
    for account in others.chain([purged]) {
        a.front().cache.purger().purge(&Filter { account: Some(account), ..Filter::default() });
    }
    let went = || b.front().metrics.cache_evictions.at(EvictionCause::Purged).get();
    b.until("the purge is heard of", || went() > 0).await;
    let c = connected(a.beside().start().await).await;
    for gateway in [&b, &c] {
        let reply = gateway.get_account(other).send().await;
        assert!(reply.is_hit(), "{}", reply.cache_status());
    }
    let reply = c.get_account(purged).send().await;
    // The answer is not kept by the gateway that fetched it while it applied the purges.
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
        put(gateway, 1).await;
    }
    assert_eq!(purge(&a, "").await["shared"], true);
    let looks = || counted(&b, SharedOperation::Purge, SharedResult::Ok);
    let before = looks();
    b.until("it has looked since", || looks() >= before + 2).await;
    assert!(is_hit(&b, slot).await, "what it keeps");
    let c = connected(b.beside().start().await).await;
    assert!(is_hit(&c, slot).await, "what its cluster shares");
    let d = connected(a.beside().start().await).await;
    assert!(!is_hit(&d, slot).await, "what was purged");
}

#[tokio::test]
async fn purges_reach_a_returning_store() {
    let store = Redis::start(&[]);
    let a = connected(TestGateway::builder().config(with_token(store.settings())).start().await).await;
    let [purged, other, _] = blocks(&a);
    for (shared, slot) in [(1, purged), (2, other)] {
        ask(&a, slot).await;
        put(&a, shared).await;
    }
    store.pause();
    a.until("the store is lost", || !a.front().cache.purger().shares()).await;
    assert_eq!(purge(&a, &format!("?slot={purged}")).await["shared"], false, "it says so");
    store.resume();
    let listed = || {
        let keys = store.keys("test:purges1");
        let text = |key: &String| {
            redis::Commands::get(&mut store.connection(), key).unwrap_or_else(|_| String::new())
        };
        keys.iter().any(|key| text(key).contains(&format!(" {purged} ")))
    };
    a.until("the store has heard of it", listed).await;
    let b = connected(a.beside().start().await).await;
    assert_eq!((is_hit(&b, purged).await, is_hit(&b, other).await), (false, true));
}

#[tokio::test]
async fn lost_purges_are_written_again() {
    let store = Redis::start(&[]);
    let (a, _b) = two(store.settings()).await;
    a.front().cache.purger().purge(&Filter { method: Some(Method::GetBlock), ..Filter::default() });
    a.until("the store has it", || !store.keys("test:purges1").is_empty()).await;
    // The store is emptied, as by a restore from an earlier copy.
    store.flush();
    a.until("the store has it again", || !store.keys("test:purges1").is_empty()).await;
}

#[tokio::test]
async fn what_was_purged_does_not_come_back() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    let wallet = a.cluster.examples().wallets[0];
    a.get_account(wallet).send().await;
    put(&a, 1).await;
    assert!(b.get_account(wallet).send().await.is_hit());
    b.front().cache.purger().purge(&Filter::default());
    // The purge holds before the store has heard of it.
    assert_eq!(b.get_account(wallet).send().await.cache_status(), "fwd=miss; stored");
}
