//! Tests of the second level over a store that is never connected.

use super::*;
use crate::cache::purge::Filter;
use crate::config::{Config, GenesisCheck, Secret, SharedSettings, Upstream};
use crate::frontier::Frontier;
use crate::telemetry::Metrics;

const GENESIS: &str = "genesis";
const SECOND: Duration = Duration::from_secs(1);

/// Returns a second level whose store is unreachable, with the pool that it works for.
fn unreachable_store() -> (SecondLevel, Pool) {
    let any = ([127, 0, 0, 1], 0).into();
    let url = || Secret::new("redis://store.invalid");
    let mut config = Config::dev(any, any, vec![Upstream::plain("node", Secret::new("http://node.invalid"))]);
    config.upstreams[0].genesis = GenesisCheck::Unchecked;
    config.pool.genesis_hash = Some(GENESIS.to_owned());
    let settings = SharedSettings {
        urls: vec![url()],
        cluster: false,
        namespace: "test".to_owned(),
        timeout: SECOND,
        ca_file: None,
        secret: None,
    };
    let (metrics, frontier, tasks) = (Metrics::new(), Arc::new(Frontier::new(1)), TaskTracker::new());
    let store = Store::new(&settings, Arc::clone(&metrics), tasks.clone()).unwrap();
    config.shared = Some(settings);
    let pool = Pool::new(&config, Arc::clone(&frontier), Arc::clone(&metrics)).unwrap();
    let lookup = Arc::new(Lookup::new(&config, Arc::default(), frontier, metrics));
    (SecondLevel::new(&config, lookup, store, &tasks), pool)
}

fn reply(bytes: usize) -> PoolReply {
    let body = NodeReply::Result(vec![b' '; bytes].into());
    PoolReply {
        node: 0,
        body,
        sent_at: Instant::now(),
        slot: 5,
        finalized: Slot::MAX,
        is_short: false,
        blocks: None,
    }
}

#[tokio::test]
async fn unreachable_store_gets_nothing() {
    let (second_level, pool) = unreachable_store();
    assert!(pool.is_of_cluster(0) && pool.genesis().is_some());
    second_level.queue_write_back(&pool, &Key::Samples, &reply(9), Class::Samples);
    assert_eq!(second_level.waiting.load(Ordering::Relaxed), 0);
    second_level.generations.purge(Some(GENESIS), Filter::default());
    assert!(!second_level.share_purges(Some(GENESIS)).await, "the store lacks the purge");
}

#[tokio::test]
async fn queue_of_answers_is_bounded_in_bytes() {
    let (second_level, _) = unreachable_store();
    let name = second_level.mac.name("test", GENESIS, &Key::Samples).unwrap();
    let enqueue = |bytes| {
        second_level.enqueue(WriteBack {
            name: name.clone(),
            reply: reply(bytes),
            generation: 1,
            life: SECOND,
        });
        let dropped =
            second_level.lookup.metrics.shared_requests.at((SharedOperation::Put, SharedResult::Dropped));
        (second_level.waiting.load(Ordering::Relaxed), dropped.get())
    };
    assert_eq!(enqueue(1024), (1024, 0));
    assert_eq!(enqueue(QUEUE_BYTES), (1024, 1));
    assert_eq!(enqueue(QUEUE_BYTES - 1024), (QUEUE_BYTES, 1));
    assert_eq!(enqueue(1), (QUEUE_BYTES, 2));
}

#[tokio::test]
async fn higher_age_of_two_clocks_counts() {
    let read_at = 1_000_000_000;
    for (name, by_store_s, by_wall_s) in [("the store's clock", 7, 2), ("the wall clocks", 2, 7)] {
        let before = Instant::now();
        let value = SharedValue {
            slot: 5,
            generation: 1,
            sent_at: read_at - by_store_s * 1_000_000,
            wall_us: wall_us() - by_wall_s * 1_000_000,
            body: NodeReply::Result(Bytes::new()),
        };
        let sent_at = sent_at(&value, read_at, before).unwrap();
        assert!(before - 6 * SECOND > sent_at, "{name}");
    }
}
