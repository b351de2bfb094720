//! Faults of upstreams, one by one: the caller's view, and the cost.

use std::time::Duration;

use serde_json::{Value, json};
use slotfront::breaker::BreakerState;
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront::methods::{Commitment, Query};
use slotfront::pool::select::Unusable;
use slotfront::pool::{CallContext, CallerId, UpstreamRequest};
use slotfront_sim::Fault;
use tokio::time::Instant;

use crate::harness::Stage;

/// Longer than a good answer takes on a busy machine.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the faults of one node among good ones.
fn faults() -> Vec<(&'static str, Fault)> {
    vec![
        ("connect", Fault::Reset),
        ("timeout", Fault::Hang),
        ("timeout", Fault::Latency(2 * ATTEMPT_TIMEOUT)),
        ("status_429", Fault::Status429 { retry_after_s: 1 }),
        ("status_5xx", Fault::Status(503)),
        ("status_4xx", Fault::Status(403)),
        ("status_5xx", Fault::Html),
        ("reset", Fault::Truncated),
        ("wrong_id", Fault::WrongId),
        ("unknown_code", Fault::Error { code: -32603, message: "Internal error".to_owned() }),
        ("unknown_code", Fault::Error { code: -32700, message: "Parse error".to_owned() }),
        ("unhealthy", Fault::Error { code: -32005, message: "Node is unhealthy".to_owned() }),
    ]
}

async fn stage(nodes: usize) -> Stage {
    Stage::of(nodes, |config| config.pool.attempt_timeout = [ATTEMPT_TIMEOUT; 8]).await
}

#[tokio::test]
async fn single_faults_cost_one_more_call() {
    for (reason, fault) in faults() {
        let stage = Stage::of(3, |config| {
            config.pool.attempt_timeout = [ATTEMPT_TIMEOUT; 8];
            // The faulty node is asked first, while it is usable.
            config.upstreams[1..].iter_mut().for_each(|upstream| upstream.tier = 1);
        })
        .await;
        stage.cluster.node(0).fault_on("getAccountInfo", fault, None);
        let callers = 8;
        for account in stage.cluster.examples().wallets.iter().take(callers) {
            let reply = stage.call("getAccountInfo", json!([account.to_string()])).await;
            assert_eq!(reply.status, 200, "{reason}: {}", reply.text);
            assert!(reply.result()["value"]["lamports"].is_u64(), "{reason}: {}", reply.text);
        }
        let failed = stage.cluster.node(0).calls("getAccountInfo");
        assert!(failed >= 1, "{reason}");
        assert_eq!(
            stage.upstream_calls(),
            callers as u64 + failed,
            "{reason}: one further call for each failed one"
        );
    }
}

#[tokio::test]
async fn total_failure_names_nodes_without_addresses() {
    for (reason, fault) in faults() {
        let stage = stage(2).await;
        stage.cluster.nodes().iter().for_each(|node| node.fault_on("getAccountInfo", fault.clone(), None));
        let account = stage.cluster.examples().wallets[0].to_string();
        let reply = stage.call("getAccountInfo", json!([account])).await;
        assert_eq!((reply.status, reply.code()), (502, -32095), "{reason}: {}", reply.text);
        let attempts = reply.json()["error"]["data"]["attempts"].as_array().unwrap().clone();
        assert_eq!(attempts[0]["reason"], json!(reason), "{}", reply.text);
        assert!(attempts[0]["upstream"].as_str().unwrap().starts_with("node-"));
        assert!(!reply.text.contains("127.0.0.1"), "{}", reply.text);
    }
}

#[tokio::test]
async fn oversized_answers_cost_one_call() {
    let stage = Stage::with(|config| config.pool.max_response = 1 << 20).await;
    for node in stage.cluster.nodes() {
        node.fault_on("getAccountInfo", Fault::Huge(200 << 20), None);
    }
    let account = stage.cluster.examples().wallets[0].to_string();
    let reply = stage.call("getAccountInfo", json!([account])).await;
    assert_eq!((reply.status, reply.code()), (502, -32095));
    assert_eq!(reply.json()["error"]["data"]["attempts"][0]["reason"], "too_large");
    assert_eq!(stage.upstream_calls(), 1, "another node's answer would be as large");
    let other = stage.call("getClusterNodes", json!([])).await;
    assert_eq!(other.status, 200, "nothing else is disturbed");
}

#[tokio::test]
async fn short_deadlines_do_not_blame_the_node() {
    let stage = Stage::of(1, |config| config.pool.attempt_timeout = [Duration::from_secs(1); 8]).await;
    stage.cluster.node(0).fault_on("getClusterNodes", Fault::Hang, None);
    let pool = &stage.front().pool;
    let members = pool.members();
    let member = &members[0];
    let breaker = stage.front().config.pool.breaker;
    let call = async |patience_ms| {
        let deadline = Instant::now() + Duration::from_millis(patience_ms);
        let ask = UpstreamRequest {
            query: Query::ClusterNodes,
            floor: None,
            prefer: None,
            alone: false,
            context: CallContext::own(deadline),
        };
        pool.call(&ask).await.unwrap_err()
    };
    for _ in 0..breaker.failures {
        call(20).await;
    }
    assert_eq!((member.breaker(Instant::now()), member.counts().1), (BreakerState::Closed, 0));
    assert!(member.latency() < Duration::from_millis(500), "{:?}", member.latency());
    for _ in 0..breaker.failures {
        call(20_000).await;
    }
    assert_eq!(member.breaker(Instant::now()), BreakerState::Open);
    assert!(member.latency() > Duration::from_millis(700), "{:?}", member.latency());
}

#[tokio::test]
async fn heavy_calls_do_not_open_a_breaker() {
    let stage = Stage::of(1, |config| config.pool.breaker.failures = 3).await;
    let node = stage.cluster.node(0);
    let pool = &stage.front().pool;
    let call = async |caller: usize, query: Query| {
        let deadline = Instant::now() + Duration::from_secs(10);
        let context = CallContext { caller: CallerId::numbered(caller), ..CallContext::own(deadline) };
        let ask = UpstreamRequest { query, floor: None, prefer: None, alone: false, context };
        pool.call(&ask).await.unwrap();
    };
    let breaker = || pool.members()[0].breaker(Instant::now());
    // The usual duration of the method must be known first.
    for _ in 0..40 {
        call(1, Query::ClusterNodes).await;
    }
    node.fault_on("getClusterNodes", Fault::Latency(Duration::from_millis(600)), None);
    for _ in 0..4 {
        futures_util::future::join_all((0..4).map(|_| call(1, Query::ClusterNodes))).await;
        assert_eq!(breaker(), BreakerState::Closed);
    }
    // The node is slow for other callers, too.
    let several = (0..8).map(|n| call(1 + n % 2, Query::ClusterNodes));
    let opened = async {
        stage.until("the breaker opens before the calls end", || breaker() == BreakerState::Open).await;
    };
    tokio::join!(futures_util::future::join_all(several), opened);
}

#[tokio::test]
async fn one_caller_cannot_fill_a_node() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let other = file.create(&NewKey::of("other", "standard"), jiff::Timestamp::now()).expect("a key").key;
    let stage = Stage::of(1, |config| {
        config.upstreams[0].max_in_flight = 9;
        config.auth.keys_file = Some(file.path().to_path_buf());
        config.server.request_timeout = Duration::from_secs(5);
    })
    .await;
    let (node, wallets) = (stage.cluster.node(0), stage.cluster.examples().wallets);
    let hold = node.hold("getAccountInfo");
    let ask = async |n: usize| stage.call("getAccountInfo", json!([wallets[n].to_string()])).await;
    {
        // The callers leave, and their calls at the node remain.
        let hog = futures_util::future::join_all((0..8).map(ask));
        tokio::select! {
            _ = hog => panic!("they are held"),
            () = hold.arrived(8) => {}
        }
    }
    let refused = ask(8).await;
    assert_eq!((refused.status, refused.code()), (502, -32095), "{}", refused.text);
    assert_eq!(
        refused.json()["error"]["data"]["attempts"],
        json!([{"upstream": "node-0", "reason": "busy"}])
    );
    let served = stage.call_as(other.expose(), "getClusterNodes", json!([])).await;
    assert_eq!(served.status, 200, "{}", served.text);
    hold.release();
    stage.until("every place is given back", || stage.front().pool.members()[0].in_flight() == 0).await;
    assert_eq!(ask(8).await.status, 200);
}

#[tokio::test]
async fn full_buffers_do_not_blame_nodes() {
    let stage = Stage::with(|config| config.pool.max_buffered = 16).await;
    let account = stage.cluster.examples().wallets[0].to_string();
    let reply = stage.call("getAccountInfo", json!([account])).await;
    assert_eq!((reply.status, reply.code()), (502, -32095), "{}", reply.text);
    let attempts = reply.json()["error"]["data"]["attempts"].as_array().unwrap().clone();
    assert_eq!(attempts.len(), 1, "the buffers are those of all nodes: {}", reply.text);
    assert_eq!(attempts[0]["reason"], "buffers_full");
    for (member, unusable) in stage.front().pool.standing(Instant::now()) {
        assert_eq!(unusable, None, "{}", member.name);
    }
}

#[tokio::test]
async fn lagging_node_is_avoided_until_it_recovers() {
    let stage = stage(2).await;
    stage.cluster.node(0).set_lag(100);
    stage.until("the lag is known", || stage.front().frontier.lag(0, Commitment::Processed) > Some(50)).await;
    for account in stage.cluster.examples().wallets.iter().take(10) {
        stage.call("getAccountInfo", json!([account.to_string()])).await;
    }
    assert_eq!(stage.cluster.node(0).calls("getAccountInfo"), 0);
    stage.cluster.node(0).set_lag(0);
    stage.until("it is back", || stage.front().frontier.lag(0, Commitment::Processed) == Some(0)).await;
    // The other node lags now, so that latency does not matter.
    stage.cluster.node(1).set_lag(100);
    stage.until("the other lags", || stage.front().frontier.lag(1, Commitment::Processed) > Some(50)).await;
    let account = stage.cluster.examples().wallets[10].to_string();
    stage.call("getAccountInfo", json!([account])).await;
    assert_eq!(stage.cluster.node(0).calls("getAccountInfo"), 1);
}

#[tokio::test]
async fn blocks_come_from_nodes_that_hold_them() {
    let stage = stage(3).await;
    let slot = stage.cluster.examples().block_with_v0;
    for node in &stage.cluster.nodes()[..2] {
        node.prune_below(slot + 1);
    }
    for details in ["none", "signatures", "full", "accounts"] {
        let config = json!({"transactionDetails": details, "maxSupportedTransactionVersion": 0});
        let reply = stage.call("getBlock", json!([slot, config])).await;
        assert!(reply.result()["blockhash"].is_string(), "{}", reply.text);
    }
}

#[tokio::test]
async fn missing_first_block_keeps_the_old_one() {
    let stage = stage(1).await;
    let asked = || stage.cluster.node(0).calls("getFirstAvailableBlock");
    let first = stage.cluster.examples().block_with_v0;
    stage.cluster.node(0).prune_below(first);
    let known = || stage.front().pool.members()[0].first_available();
    stage.until("the number is known", || known() == first).await;
    let fault = Fault::Error { code: -32603, message: "Internal error".to_owned() };
    stage.cluster.node(0).fault_on("getFirstAvailableBlock", fault, None);
    let before = asked();
    stage.until("it is asked twice more", || asked() >= before + 2).await;
    assert_eq!(known(), first);
}

#[tokio::test]
async fn null_blocks_are_retried_and_never_held() {
    let stage = stage(3).await;
    let slot = stage.cluster.examples().block_with_v0;
    let params = json!([slot, {"transactionDetails": "none"}]);
    for node in stage.cluster.nodes() {
        node.fault_on("getBlock", Fault::NullResult, Some(1));
    }
    let reply = stage.call("getBlock", params.clone()).await;
    assert_eq!((reply.result(), reply.cache()), (Value::Null, "fwd=miss"));
    assert_eq!(stage.upstream_calls(), 2);
    let reply = stage.call("getBlock", params).await;
    assert!(reply.result()["blockhash"].is_string(), "the third voice has it: {}", reply.text);
}

#[tokio::test]
async fn incapable_node_is_not_asked_again() {
    let stage = stage(2).await;
    stage.cluster.node(0).set_full_api(false);
    for account in stage.cluster.examples().wallets.iter().take(20) {
        let reply = stage.call("getAccountInfo", json!([account.to_string()])).await;
        assert!(reply.result().is_object(), "{}", reply.text);
    }
    assert!(
        stage.cluster.node(0).calls("getAccountInfo") <= 3,
        "asked until it said so, and after each identity probe"
    );
}

#[tokio::test]
async fn capable_node_is_found_behind_incapable_ones() {
    for code in [-32601, -32010, -32011, -32012, -32019] {
        let stage = stage(3).await;
        let fault = Fault::Error { code, message: "not here".to_owned() };
        for node in &stage.cluster.nodes()[..2] {
            node.fault_on("getAccountInfo", fault.clone(), None);
        }
        for account in stage.cluster.examples().wallets.iter().take(8) {
            let reply = stage.call("getAccountInfo", json!([account.to_string()])).await;
            assert!(reply.result().is_object(), "{code}: {}", reply.text);
        }
        for member in &*stage.front().pool.members() {
            let marks = (member.breaker(Instant::now()), member.counts().1);
            assert_eq!(marks, (BreakerState::Closed, 0), "{code}: {}", member.name);
        }
        let metrics = stage.admin("/metrics").await.text;
        assert!(metrics.contains(r#"result="incapable""#), "{code}");
    }
}

#[tokio::test]
async fn method_missing_everywhere_passes_through() {
    let stage = stage(2).await;
    stage.cluster.nodes().iter().for_each(|node| node.set_full_api(false));
    for account in stage.cluster.examples().wallets.iter().take(4) {
        let reply = stage.call("getAccountInfo", json!([account.to_string()])).await;
        assert_eq!((reply.status, reply.code()), (200, -32601), "{}", reply.text);
    }
    // A node that fails may have the method, so it is not known to be missing everywhere.
    stage.cluster.node(1).set_full_api(true);
    stage.cluster.node(1).fault_on("getVoteAccounts", Fault::Status(503), None);
    let lacks = Fault::Error { code: -32601, message: "Method not found".to_owned() };
    stage.cluster.node(0).fault_on("getVoteAccounts", lacks, None);
    let reply = stage.call("getVoteAccounts", json!([])).await;
    assert_eq!((reply.status, reply.code()), (502, -32095), "{}", reply.text);
}

#[tokio::test]
async fn node_behind_the_callers_slot_is_skipped() {
    let stage = stage(2).await;
    let behind =
        Fault::Error { code: -32016, message: "Minimum context slot has not been reached".to_owned() };
    stage.cluster.node(0).fault_on("getAccountInfo", behind, None);
    for account in stage.cluster.examples().wallets.iter().take(10) {
        let reply = stage.call("getAccountInfo", json!([account.to_string()])).await;
        assert!(reply.result().is_object(), "{}", reply.text);
    }
    let metrics = stage.admin("/metrics").await.text;
    assert!(metrics.contains(r#"result="behind""#));
    assert!(stage.cluster.node(0).calls("getAccountInfo") > 0);
}

#[tokio::test]
async fn retries_count_only_at_another_node() {
    let stage = stage(1).await;
    stage.cluster.node(0).fault_on("getAccountInfo", Fault::Status(500), None);
    for account in stage.cluster.examples().wallets.iter().take(3) {
        stage.call("getAccountInfo", json!([account.to_string()])).await;
    }
    let metrics = stage.admin("/metrics").await.text;
    let retries = metrics.lines().filter(|line| line.starts_with("slotfront_upstream_retries_total{"));
    assert_eq!(retries.filter(|line| !line.ends_with(" 0")).count(), 0);
}

#[tokio::test]
async fn node_at_its_rate_is_not_faulty() {
    let stage = Stage::of(2, |config| config.upstreams[0].rps = Some(1)).await;
    for account in stage.cluster.examples().wallets.iter().take(12) {
        assert_eq!(stage.call("getAccountInfo", json!([account.to_string()])).await.status, 200);
    }
    assert!(stage.cluster.node(1).calls("getAccountInfo") >= 6);
    let members = stage.front().pool.members();
    assert_eq!(members[0].counts().1, 0);
    members[1].set_drained(true);
    let accounts = stage.cluster.examples().wallets.clone();
    let refused = loop {
        let calls = accounts.iter().skip(12).take(4);
        let calls = calls.map(|account| stage.call("getAccountInfo", json!([account.to_string()])));
        let replies = futures_util::future::join_all(calls).await;
        if let Some(refused) = replies.into_iter().find(|reply| reply.status != 200) {
            break refused;
        }
        stage.front().cache.purger().clear();
    };
    assert_eq!((refused.status, refused.code()), (502, -32095), "{}", refused.text);
    let reasons = [("node-0", "busy"), ("node-1", "drained")];
    let expected = reasons.map(|(upstream, reason)| json!({"upstream": upstream, "reason": reason}));
    assert_eq!(refused.json()["error"]["data"]["attempts"], json!(expected));
}

#[tokio::test]
async fn closed_connection_is_retried_at_the_only_node() {
    for nodes in [1, 2] {
        let stage = stage(nodes).await;
        for other in &stage.cluster.nodes()[1..] {
            other.set_healthy(false);
            let standing = || stage.front().pool.standing(Instant::now())[other.index()].1;
            stage.until("it is unhealthy", || standing() == Some(Unusable::Unhealthy)).await;
        }
        stage.cluster.node(0).fault_on("getAccountInfo", Fault::Reset, Some(1));
        let account = stage.cluster.examples().wallets[0].to_string();
        let reply = stage.call("getAccountInfo", json!([account])).await;
        assert_eq!((reply.status, stage.cluster.node(0).calls("getAccountInfo")), (200, 2), "{nodes} nodes");
    }
}

#[tokio::test]
async fn health_passes_through_and_readiness_has_reasons() {
    let stage = stage(2).await;
    let health = || stage.client.get(stage.url.replace("/v3/dev", "/health"));
    assert_eq!(stage.send(health()).await.text, "ok");
    assert_eq!(stage.admin("/readyz").await.status, 200);
    stage.cluster.nodes().iter().for_each(|node| node.set_healthy(false));
    stage
        .until("all are unhealthy", || {
            stage.front().pool.standing(Instant::now()).iter().all(|(_, unusable)| unusable.is_some())
        })
        .await;
    assert_eq!(stage.send(health()).await.text, "behind");
    let readiness = stage.admin("/readyz").await;
    assert_eq!((readiness.status, readiness.json()["state"].clone()), (200, json!("degraded")));
    assert!(readiness.text.contains("node-0"), "{}", readiness.text);
    let account = stage.cluster.examples().wallets[0].to_string();
    assert_eq!(
        stage.call("getAccountInfo", json!([account])).await.status,
        200,
        "better a doubtful node than none"
    );
}

#[tokio::test]
async fn change_of_cluster_purges_the_cache() {
    let stage = stage(1).await;
    let before = stage.call("getClusterNodes", json!([])).await;
    let node = stage.cluster.node(0).address().unwrap();
    let other = stage.replace_cluster(2, &[node]).await;
    stage
        .until("the other cluster is known", || {
            let front = stage.front();
            front.frontier.slot(Commitment::Processed) == other.slot(Commitment::Processed)
                && front.cache.usage().1 == 0
        })
        .await;
    let after = stage.call("getClusterNodes", json!([])).await;
    assert_eq!(after.cache(), "fwd=miss; stored");
    assert_ne!(after.result(), before.result());
}

#[tokio::test]
async fn half_open_breaker_gets_a_trial() {
    let stage = Stage::of(3, |config| {
        config.pool.attempt_timeout = [Duration::from_secs(3); 8];
        config.pool.breaker.failures = 1;
        config.pool.breaker.open = Duration::from_millis(1);
    })
    .await;
    let (wallets, node) = (stage.cluster.examples().wallets, stage.cluster.node(0));
    let mut wallets = wallets.iter().map(|wallet| json!([wallet.to_string()]));
    node.fault_on("getAccountInfo", Fault::Hang, Some(1));
    while node.calls("getAccountInfo") == 0 {
        stage.call("getAccountInfo", wallets.next().expect("it is asked sooner or later")).await;
    }
    let breaker = || stage.front().pool.members()[0].breaker(Instant::now());
    stage.until("its breaker is half-open", || breaker() == BreakerState::HalfOpen).await;
    stage.call("getAccountInfo", wallets.next().expect("a further one")).await;
    assert_eq!((node.calls("getAccountInfo"), breaker()), (2, BreakerState::Closed));
    let latency = stage.front().pool.members()[0].latency();
    assert!(latency < Duration::from_millis(1500), "{latency:?} is from before it was down");
}
