//! What gateways share by way of a real store: answers, as good as a node's own, and nothing that could do harm.
//!
//! Ignored where nobody asks for them: they need redis-server, which `tests/run` installs.

use std::time::Duration;

use redis::Commands;
use serde_json::{Value, json};
use slotfront::config::{Config, Secret, Shared};
use slotfront::methods::{Commitment, PerCommitment};
use slotfront::telemetry::{SharedOperation, SharedResult};

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
