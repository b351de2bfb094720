//! Purges by one gateway reach the store, and every other gateway that reads it, including those that start
//! later.

use serde_json::{Value, json};
use slotfront::cache::purge::Filter;
use slotfront::config::{Config, Secret, SharedSettings};
use slotfront::methods::{Method, Pubkey};
use slotfront::telemetry::{EvictionCause, SharedOperation, SharedResult};
use slotfront_sim::{Cluster, Fault};
use tokio::time::Instant;

use super::{connected, counted, put, two, with};
use crate::harness::{PATIENCE, Reply, Stage};
use crate::redis_server::{Redis, RedisCluster};

const TOKEN: &str = "admin";

/// Returns settings with a store and an admin token.
fn with_token(shared: SharedSettings) -> impl FnOnce(&mut Config) {
    |config| {
        config.auth.admin_token = Some(Secret::new(TOKEN));
        with(shared)(config);
    }
}

async fn purge(stage: &Stage, query: &str) -> Value {
    let request = stage.client.post(format!("{}/api/cache/purge{query}", stage.admin));
    let reply = stage.send(request.header("authorization", format!("Bearer {TOKEN}"))).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()
}

/// Returns the calls for three blocks, by slot.
fn blocks(stage: &Stage) -> [(u64, Value); 3] {
    let there = stage.cluster.examples();
    let config = json!({"maxSupportedTransactionVersion": 0, "transactionDetails": "none"});
    let before = [there.block_with_v0, there.block_with_v0 - 1, there.block_with_v0 - 2];
    before.map(|slot| (slot, json!([slot, config])))
}

async fn is_hit(stage: &Stage, params: &Value) -> bool {
    let reply: Reply = stage.call("getBlock", params.clone()).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.cache().starts_with("hit")
}

async fn a_purge_holds_for_gateways_that_start_later(shared: SharedSettings) {
    let a = connected(Stage::with(with_token(shared)).await).await;
    let blocks = blocks(&a);
    for (shared, (_, params)) in (1..).zip(&blocks) {
        a.call("getBlock", params.clone()).await;
        put(&a, shared).await;
    }
    let (slot, purged) = &blocks[0];
    assert_eq!(
        purge(&a, &format!("?slot={slot}")).await,
        json!({"done": true, "entries": 1, "shared": true})
    );
    // A new gateway and a restarted one know no more than this.
    let b = connected(a.beside(|_| ()).await).await;
    for (_, params) in &blocks[1..] {
        assert!(is_hit(&b, params).await, "what was not named is shared on");
    }
    assert!(!is_hit(&b, purged).await, "it was purged before this one began");
    put(&b, 1).await;
    // The time of a purge is rounded up, and a cluster's parts are read one by one. An answer of the same
    // moment may therefore count as purged. In that case the next gateway finds a newer one.
    let deadline = Instant::now() + PATIENCE;
    let c = loop {
        let c = connected(a.beside(|_| ()).await).await;
        c.until("the purges are read", || counted(&c, SharedOperation::Purge, SharedResult::Ok) > 0).await;
        if is_hit(&c, purged).await {
            break c;
        }
        assert!(Instant::now() < deadline, "what was fetched since is never shared again");
        put(&c, 1).await;
    };
    assert_eq!(purge(&c, "").await["shared"], true);
    let d = connected(a.beside(|_| ()).await).await;
    for (slot, params) in &blocks {
        assert!(!is_hit(&d, params).await, "{slot}");
    }
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_purge_outlives_the_gateway_that_did_it() {
    a_purge_holds_for_gateways_that_start_later(Redis::start(&[]).settings()).await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_purge_outlives_its_gateway_in_a_cluster() {
    let cluster = RedisCluster::start();
    a_purge_holds_for_gateways_that_start_later(cluster.settings()).await;
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_purge_empties_the_caches_of_other_gateways() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    let [(slot, purged), (_, other), _] = blocks(&a);
    for params in [&purged, &other] {
        b.call("getBlock", params.clone()).await;
    }
    put(&b, 2).await;
    a.front().cache.purger().purge(&Filter { slot: Some(slot), ..Filter::default() });
    let went = || b.front().metrics.cache_evictions.at(EvictionCause::Purged).get();
    b.until("the purge is heard of", || went() > 0).await;
    assert_eq!((is_hit(&b, &purged).await, is_hit(&b, &other).await), (false, true));
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn many_purges_take_nothing_but_what_they_name() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    let [purged, other] = [0, 1].map(|wallet| a.cluster.examples().wallets[wallet]);
    for account in [purged, other] {
        b.call("getAccountInfo", json!([account.to_string()])).await;
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
    let c = connected(a.beside(|_| ()).await).await;
    for stage in [&b, &c] {
        let reply = stage.call("getAccountInfo", json!([other.to_string()])).await;
        assert!(reply.cache().starts_with("hit"), "{}", reply.cache());
    }
    let reply = c.call("getAccountInfo", json!([purged.to_string()])).await;
    // The answer is not kept by the gateway that fetched it while it applied the purges.
    assert!(reply.cache().starts_with("fwd=miss"), "{}", reply.cache());
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn a_purge_stays_within_its_cluster() {
    let store = Redis::start(&[]);
    let a = connected(Stage::with(with_token(store.settings())).await).await;
    let another = |cluster: &Cluster| {
        let hash = "Another111111111111111111111111111111111111";
        cluster.node(0).fault_on("getGenesisHash", Fault::Result(json!(hash)), None);
    };
    let b = Stage::before_any_probe(1, with(store.settings()), another).await;
    b.settled().await;
    let b = connected(b).await;
    let [(_, params), ..] = blocks(&a);
    for stage in [&a, &b] {
        stage.call("getBlock", params.clone()).await;
        put(stage, 1).await;
    }
    assert_eq!(purge(&a, "").await["shared"], true);
    let looks = || counted(&b, SharedOperation::Purge, SharedResult::Ok);
    let before = looks();
    b.until("it has looked since", || looks() >= before + 2).await;
    assert!(is_hit(&b, &params).await, "what it keeps");
    let c = connected(b.beside(|_| ()).await).await;
    assert!(is_hit(&c, &params).await, "what its cluster shares");
    let d = connected(a.beside(|_| ()).await).await;
    assert!(!is_hit(&d, &params).await, "what was purged");
}

#[tokio::test]
#[ignore = "needs redis-server"]
async fn purges_reach_a_returning_store() {
    let store = Redis::start(&[]);
    let a = connected(Stage::with(with_token(store.settings())).await).await;
    let [(slot, purged), (_, other), _] = blocks(&a);
    for (shared, params) in [(1, &purged), (2, &other)] {
        a.call("getBlock", params.clone()).await;
        put(&a, shared).await;
    }
    store.pause();
    a.until("the store is lost", || !a.front().cache.purger().shares()).await;
    assert_eq!(purge(&a, &format!("?slot={slot}")).await["shared"], false, "it says so");
    store.resume();
    let listed = || {
        let keys = store.keys("test:purges1");
        let text = |key: &String| {
            redis::Commands::get(&mut store.connection(), key).unwrap_or_else(|_| String::new())
        };
        keys.iter().any(|key| text(key).contains(&format!(" {slot} ")))
    };
    a.until("the store has heard of it", listed).await;
    let b = connected(a.beside(|_| ()).await).await;
    assert_eq!((is_hit(&b, &purged).await, is_hit(&b, &other).await), (false, true));
}

#[tokio::test]
#[ignore = "needs redis-server"]
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
#[ignore = "needs redis-server"]
async fn what_was_purged_does_not_come_back() {
    let store = Redis::start(&[]);
    let (a, b) = two(store.settings()).await;
    let params = json!([a.cluster.examples().wallets[0].to_string()]);
    a.call("getAccountInfo", params.clone()).await;
    put(&a, 1).await;
    assert!(b.call("getAccountInfo", params.clone()).await.cache().starts_with("hit"));
    b.front().cache.purger().purge(&Filter::default());
    // The purge holds before the store has heard of it.
    assert_eq!(b.call("getAccountInfo", params.clone()).await.cache(), "fwd=miss; stored");
}
