//! Faults of upstreams, one by one: the caller's view, and the cost.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use slotfront::breaker::BreakerState;
use slotfront::config::Config;
use slotfront::error::Error;
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront::methods::{Commitment, Part, Query};
use slotfront::pool::{CallContext, CallerId, UpstreamRequest};
use slotfront::telemetry::Unusable;
use slotfront_sim::Fault;
use slotfront_testkit::{PATIENCE, Reply, TestGateway, upstream_request};
use tokio::time::Instant;

/// The timeout of attempts, longer than a good answer takes on a busy machine.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// The same on a machine that stands still for a while.
const LONG_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(6);

/// Returns faults of a node, each with the reason that slotfront reports for a failed attempt.
fn faults() -> Vec<(&'static str, Fault)> {
    vec![
        ("connect", Fault::Reset),
        ("timeout", Fault::Hang),
        ("timeout", Fault::Latency(LONG_ATTEMPT_TIMEOUT + ATTEMPT_TIMEOUT)),
        ("status_429", Fault::Status429 { retry_after_s: 1 }),
        ("status_5xx", Fault::Status(503)),
        ("status_3xx", Fault::Status(307)),
        ("status_403", Fault::Status(403)),
        ("status_5xx", Fault::Html),
        ("reset", Fault::Truncated),
        ("wrong_id", Fault::WrongId),
        ("unknown_code", Fault::Error { code: -32603, message: "Internal error".to_owned() }),
        ("unknown_code", Fault::Error { code: -32700, message: "Parse error".to_owned() }),
        ("unhealthy", Fault::Error { code: -32005, message: "Node is unhealthy".to_owned() }),
    ]
}

fn with_short_attempts(config: &mut Config) {
    config.pool.attempt_timeout.fill(ATTEMPT_TIMEOUT);
}

#[tokio::test]
async fn single_faults_cost_one_more_call() {
    join_all(faults().into_iter().map(async |(reason, fault)| {
        let gateway = TestGateway::builder()
            .config(|config| {
                config.pool.attempt_timeout.fill(LONG_ATTEMPT_TIMEOUT);
                config.pool.connect_timeout = LONG_ATTEMPT_TIMEOUT;
                // The faulty node is asked first, while it is usable.
                config.upstreams[1..].iter_mut().for_each(|upstream| upstream.tier = 1);
            })
            .start()
            .await;
        gateway.cluster.node(0).fault_on("getAccountInfo", fault, None);
        let callers = 8;
        let wallets = gateway.cluster.examples().wallets;
        for reply in
            join_all(wallets.iter().take(callers).map(|account| gateway.get_account(account).send())).await
        {
            assert_eq!(reply.status, 200, "{reason}: {}", reply.text);
            assert!(reply.value()["lamports"].is_u64(), "{reason}: {}", reply.text);
        }
        let failed = gateway.cluster.node(0).calls("getAccountInfo");
        assert!(failed >= 1, "{reason}");
        assert_eq!(
            gateway.upstream_calls(),
            callers as u64 + failed,
            "{reason}: one further call for each failed one"
        );
    }))
    .await;
}

#[tokio::test]
async fn second_node_is_asked_without_retries() {
    let gateway = TestGateway::builder()
        .config(|config| {
            config.pool.retries = 0;
            config.upstreams[1..].iter_mut().for_each(|upstream| upstream.tier = 1);
        })
        .start()
        .await;
    let skipped = gateway.cluster.examples().skipped_slot.expect("some slot is skipped");
    assert_eq!(gateway.get_block(skipped).send().await.code(), -32007);
    assert_eq!(gateway.upstream_calls(), 3, "a missing block needs the word of all nodes");
    gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Status(500), None);
    let query = gateway.get_account(gateway.cluster.examples().wallets[0]).query();
    let before = gateway.cluster.node(0).calls("getAccountInfo");
    let answer = gateway.front().pool.call(&upstream_request(query)).await;
    let asked = gateway.cluster.node(0).calls("getAccountInfo") - before;
    assert!(matches!(answer, Err(Error::NoUpstream(attempts)) if attempts.len() == 1));
    assert_eq!(asked, 1);
}

#[tokio::test]
async fn failed_second_opinion_asks_a_third_node() {
    let refused = Fault::Error { code: -32011, message: "not here".to_owned() };
    for second in [Fault::Status(500), refused] {
        let gateway = TestGateway::builder().in_tiers().start().await;
        let unlisted = Fault::Error { code: -32000, message: "odd".to_owned() };
        gateway.cluster.node(0).fault_on("getAccountInfo", unlisted, None);
        gateway.cluster.node(1).fault_on("getAccountInfo", second, None);
        let wallet = gateway.cluster.examples().wallets[0];
        let reply = gateway.get_account(wallet).send().await;
        assert_eq!((reply.status, gateway.upstream_calls()), (200, 3), "{}", reply.text);
        assert!(reply.result().is_object(), "{}", reply.text);
        gateway.cluster.node(2).fault_on("getAccountInfo", Fault::Status(500), None);
        let reply = gateway.get_account(wallet).no_cache().send().await;
        assert_eq!((reply.status, reply.code()), (200, -32000), "no node knows better: {}", reply.text);
    }
}

#[tokio::test]
async fn total_failure_names_nodes_without_addresses() {
    join_all(faults().into_iter().map(async |(reason, fault)| {
        // A short timeout could come before another fault.
        let configure = |config: &mut Config| {
            if reason == "timeout" {
                with_short_attempts(config);
            }
        };
        let gateway = TestGateway::builder().nodes(2).config(configure).start().await;
        gateway.cluster.fault_everywhere("getAccountInfo", &fault);
        let account = gateway.cluster.examples().wallets[0].to_string();
        let reply = gateway.get_account(&account).send().await;
        let status = if reason == "status_429" { 429 } else { 502 };
        assert_eq!((reply.status, reply.code()), (status, -32095), "{reason}: {}", reply.text);
        let attempts = reply.error()["data"]["attempts"].as_array().unwrap().clone();
        assert_eq!(attempts[0]["reason"], json!(reason), "{}", reply.text);
        assert!(attempts[0]["upstream"].as_str().unwrap().starts_with("node-"));
        assert!(!reply.text.contains("127.0.0.1"), "{}", reply.text);
    }))
    .await;
}

#[tokio::test]
async fn total_failure_costs_one_call_without_retries() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| (config.pool.retries, config.pool.retry_budget) = (0, 0.0))
        .start()
        .await;
    gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Status(503), None);
    for wallet in gateway.cluster.examples().wallets.iter().take(8) {
        assert_eq!(gateway.get_account(wallet).send().await.status, 502);
    }
    assert_eq!(gateway.upstream_calls(), 8);
}

#[tokio::test]
async fn oversized_answers_cost_one_call() {
    let gateway = TestGateway::builder().config(|config| config.pool.max_response = 1 << 20).start().await;
    for node in gateway.cluster.nodes() {
        node.fault_on("getAccountInfo", Fault::Huge(200 << 20), None);
    }
    let account = gateway.cluster.examples().wallets[0].to_string();
    let reply = gateway.get_account(&account).send().await;
    assert_eq!((reply.status, reply.code()), (502, -32095));
    assert_eq!(reply.error()["data"]["attempts"][0]["reason"], "too_large");
    assert_eq!(reply.error()["data"]["attempts"][0]["setting"], "pool.max_response");
    let message = "No upstream could answer: the answer is longer than 1048576 bytes (pool.max_response)";
    assert_eq!(reply.error()["message"], message);
    assert_eq!(gateway.upstream_calls(), 1, "another node's answer would be as large");
    let other = gateway.get_nodes().send().await;
    assert_eq!(other.status, 200, "other calls are still answered");
}

#[tokio::test]
async fn each_group_has_its_own_longest_answer() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.pool.max_response_of[Part::History.index()] = Some(64 << 10);
        })
        .start()
        .await;
    let mut config = gateway.front().config.copy();
    let node = gateway.cluster.node(0);
    for method in ["getAccountInfo", "getBlockTime"] {
        node.fault_on(method, Fault::Huge(1 << 20), None);
    }
    let long = |reply: Reply| {
        let attempt = reply.error()["data"]["attempts"][0].clone();
        (attempt["reason"].clone(), attempt["limit"].clone(), attempt["setting"].clone())
    };
    let history = gateway.call("getBlockTime", json!([gateway.cluster.examples().block_with_v0]));
    let setting = "pool.max_response_of.history";
    assert_eq!(long(history.send().await), (json!("too_large"), json!(64 << 10), json!(setting)));
    // A reload is in force at once.
    config.pool.max_response_of = [None; Part::ALL.len()];
    config.pool.max_response = 32 << 10;
    config.pool.max_response_of[Part::Accounts.index()] = Some(2 << 20);
    gateway.app.reload(&config).unwrap();
    assert_eq!(long(history.send().await), (json!("too_large"), json!(32 << 10), json!("pool.max_response")));
    let account = gateway.get_account(gateway.cluster.examples().wallets[0]).send().await;
    assert_eq!(long(account), (json!("bad_json"), json!(null), json!(null)), "it was read to its end");
}

#[tokio::test]
async fn short_deadlines_do_not_blame_the_node() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    gateway.cluster.node(0).fault_on("getClusterNodes", Fault::Hang, None);
    let pool = &gateway.front().pool;
    let members = pool.members();
    let member = &members[0];
    let unmeasured = member.latency();
    let breaker = gateway.front().config.now().pool.breaker;
    let call = async |patience_ms| {
        let deadline = Instant::now() + Duration::from_millis(patience_ms);
        let context = CallContext::own(deadline);
        pool.call(&UpstreamRequest { context, ..upstream_request(Query::ClusterNodes) }).await.unwrap_err()
    };
    for _ in 0..breaker.failures {
        call(20).await;
    }
    assert_eq!((member.breaker(Instant::now()), member.counts().1), (BreakerState::Closed, 0));
    assert_eq!(member.latency(), unmeasured);
    // Now the node has all the time that an attempt may take.
    let mut config = gateway.front().config.copy();
    config.pool.attempt_timeout.fill(Duration::from_secs(1));
    gateway.app.reload(&config).unwrap();
    for _ in 0..breaker.failures {
        call(20_000).await;
    }
    assert_eq!(member.breaker(Instant::now()), BreakerState::Open);
    assert!(member.latency() > Some(Duration::from_millis(700)), "{:?}", member.latency());
}

#[tokio::test]
async fn heavy_calls_do_not_open_a_breaker() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| (config.pool.breaker.failures, config.pool.breaker.slow) = (3, 4.0))
        .start()
        .await;
    let node = gateway.cluster.node(0);
    let pool = &gateway.front().pool;
    let callers = [CallerId::fresh(), CallerId::fresh()];
    let call = async |caller: usize, query: Query| {
        let deadline = Instant::now() + Duration::from_secs(10);
        let context = CallContext { caller: callers[caller], ..CallContext::own(deadline) };
        pool.call(&UpstreamRequest { context, ..upstream_request(query) }).await.unwrap();
    };
    let breaker = || pool.members()[0].breaker(Instant::now());
    // The pool must know the usual duration of the method before the node becomes slow. There are so many calls that the few
    // at which the machine stands still do not count.
    let votes = gateway.get_votes().query();
    for _ in 0..200 {
        tokio::join!(call(0, Query::ClusterNodes), call(0, votes.clone()));
    }
    for method in ["getClusterNodes", "getVoteAccounts"] {
        node.fault_on(method, Fault::Latency(Duration::from_millis(600)), None);
    }
    // One caller may ask for something slow, also by two methods in turn.
    for _ in 0..2 {
        let queries = [Query::ClusterNodes, votes.clone()].into_iter().cycle().take(8);
        futures_util::future::join_all(queries.map(|query| call(0, query))).await;
        assert_eq!(breaker(), BreakerState::Closed);
    }
    // The node is slow for other callers, too. A machine that stands still may see the calls end before they are slow.
    let opened = async {
        while breaker() != BreakerState::Open {
            join_all((0..8).map(|n| call(n % 2, Query::ClusterNodes))).await;
        }
    };
    tokio::time::timeout(PATIENCE, opened).await.expect("the breaker opens");
}

#[tokio::test]
async fn one_caller_cannot_fill_a_node() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let other = file.create(&NewKey::of("other", "standard"), jiff::Timestamp::now()).expect("a key").key;
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.upstreams[0].max_in_flight = 9;
            config.auth.keys_file = Some(file.path().to_path_buf());
            config.server.request_timeout = Duration::from_secs(5);
        })
        .start()
        .await;
    let (node, wallets) = (gateway.cluster.node(0), gateway.cluster.examples().wallets);
    let hold = node.hold("getAccountInfo");
    let ask = async |n: usize| gateway.get_account(wallets[n]).send().await;
    {
        // The callers hang up, and their calls stay at the node.
        let hog = futures_util::future::join_all((0..8).map(ask));
        tokio::select! {
            _ = hog => panic!("the calls are held"),
            () = hold.arrived(8) => {}
        }
    }
    let refused = ask(8).await;
    assert_eq!((refused.status, refused.code()), (502, -32095), "{}", refused.text);
    assert_eq!(refused.error()["data"]["attempts"], json!([{"upstream": "node-0", "reason": "busy"}]));
    let served = gateway.get_nodes().key(other.expose()).send().await;
    assert_eq!(served.status, 200, "{}", served.text);
    hold.release();
    gateway.until("no call is in flight", || gateway.front().pool.members()[0].in_flight() == 0).await;
    assert_eq!(ask(8).await.status, 200);
}

#[tokio::test]
async fn full_buffers_do_not_blame_nodes() {
    let gateway = TestGateway::builder().config(|config| config.pool.max_buffered = 16).start().await;
    let account = gateway.cluster.examples().wallets[0].to_string();
    let reply = gateway.get_account(&account).send().await;
    assert_eq!((reply.status, reply.code()), (502, -32095), "{}", reply.text);
    let attempts = reply.error()["data"]["attempts"].as_array().unwrap().clone();
    assert_eq!(attempts.len(), 1, "the buffers are shared by all nodes: {}", reply.text);
    assert_eq!(attempts[0]["reason"], "buffers_full");
    for (member, unusable) in gateway.front().pool.standing(Instant::now()) {
        assert_eq!(unusable, None, "{}", member.name);
    }
}

#[tokio::test]
async fn lagging_node_is_avoided_until_it_recovers() {
    let gateway = TestGateway::builder().nodes(2).config(with_short_attempts).start().await;
    gateway.cluster.node(0).set_lag(100);
    gateway.until("the lag is known", || gateway.lag(0, Commitment::Processed) > Some(50)).await;
    for account in gateway.cluster.examples().wallets.iter().take(10) {
        gateway.get_account(account).send().await;
    }
    assert_eq!(gateway.cluster.node(0).calls("getAccountInfo"), 0);
    gateway.cluster.node(0).set_lag(0);
    gateway.until("the node has caught up", || gateway.lag(0, Commitment::Processed) == Some(0)).await;
    // The other node lags now, so latency does not decide.
    gateway.cluster.node(1).set_lag(100);
    gateway.until("the other node lags", || gateway.lag(1, Commitment::Processed) > Some(50)).await;
    let account = gateway.cluster.examples().wallets[10].to_string();
    gateway.get_account(&account).send().await;
    assert_eq!(gateway.cluster.node(0).calls("getAccountInfo"), 1);
}

#[tokio::test]
async fn blocks_come_from_nodes_that_hold_them() {
    let gateway = TestGateway::builder().config(with_short_attempts).start().await;
    let slot = gateway.cluster.examples().block_with_v0;
    for node in &gateway.cluster.nodes()[..2] {
        node.prune_below(slot + 1);
    }
    for details in ["none", "signatures", "full", "accounts"] {
        let reply = gateway.get_block(slot).details(details).version_0().send().await;
        assert!(reply.result()["blockhash"].is_string(), "{}", reply.text);
    }
}

#[tokio::test]
async fn missing_first_block_keeps_the_old_one() {
    let gateway = TestGateway::builder().nodes(1).config(with_short_attempts).start().await;
    let asked = || gateway.cluster.node(0).calls("getFirstAvailableBlock");
    let first = gateway.cluster.examples().block_with_v0;
    gateway.cluster.node(0).prune_below(first);
    let known = || gateway.front().pool.members()[0].first_available();
    gateway.until("the first available block is known", || known() == Some(first)).await;
    let fault = Fault::Error { code: -32603, message: "Internal error".to_owned() };
    gateway.cluster.node(0).fault_on("getFirstAvailableBlock", fault, None);
    let before = asked();
    gateway.until("the node is asked twice more", || asked() >= before + 2).await;
    assert_eq!(known(), Some(first));
}

#[tokio::test]
async fn null_blocks_are_retried_and_kept_for_a_slot() {
    let gateway = TestGateway::builder().config(with_short_attempts).start().await;
    let slot = gateway.cluster.examples().block_with_v0;
    let call = gateway.get_block(slot).details("none");
    for node in gateway.cluster.nodes() {
        node.fault_on("getBlock", Fault::NullResult, Some(1));
    }
    let reply = call.send().await;
    assert_eq!((reply.result(), reply.cache_status()), (Value::Null, "fwd=miss; stored"));
    assert!(call.send().await.is_hit());
    assert_eq!(gateway.upstream_calls(), 3);
    gateway.step_by(1).await;
    let reply = call.send().await;
    assert!(reply.result()["blockhash"].is_string(), "{}", reply.text);
}

#[tokio::test]
async fn incapable_node_is_not_asked_again() {
    let gateway = TestGateway::builder().nodes(2).config(with_short_attempts).start().await;
    gateway.cluster.node(0).set_full_api(false);
    for account in gateway.cluster.examples().wallets.iter().take(20) {
        let reply = gateway.get_account(account).send().await;
        assert!(reply.result().is_object(), "{}", reply.text);
    }
    assert!(
        gateway.cluster.node(0).calls("getAccountInfo") <= 3,
        "the node is asked until it reports that it is incapable, and after each identity probe"
    );
}

#[tokio::test]
async fn capable_node_is_found_behind_incapable_ones() {
    for code in [-32601, -32010, -32011, -32012, -32019] {
        let gateway = TestGateway::builder().config(with_short_attempts).start().await;
        let fault = Fault::Error { code, message: "not here".to_owned() };
        for node in &gateway.cluster.nodes()[..2] {
            node.fault_on("getAccountInfo", fault.clone(), None);
        }
        for account in gateway.cluster.examples().wallets.iter().take(8) {
            let reply = gateway.get_account(account).send().await;
            assert!(reply.result().is_object(), "{code}: {}", reply.text);
        }
        for member in gateway.front().pool.members().iter() {
            let marks = (member.breaker(Instant::now()), member.counts().1);
            assert_eq!(marks, (BreakerState::Closed, 0), "{code}: {}", member.name);
        }
        // An account needs no index, so what the last two say is of no account.
        let expected = if matches!(code, -32010 | -32012) { "node_error" } else { "incapable" };
        let metrics = gateway.admin("/metrics").await.text;
        assert!(metrics.contains(&format!(r#"result="{expected}""#)), "{code}");
    }
}

#[tokio::test]
async fn method_missing_everywhere_passes_through() {
    let gateway = TestGateway::builder().nodes(2).config(with_short_attempts).start().await;
    gateway.cluster.nodes().iter().for_each(|node| node.set_full_api(false));
    for account in gateway.cluster.examples().wallets.iter().take(4) {
        let reply = gateway.get_account(account).send().await;
        assert_eq!((reply.status, reply.code()), (200, -32601), "{}", reply.text);
    }
    // Node 1 fails, so it may have the method. The error of node 0, which lacks the method, is therefore not
    // passed on.
    gateway.cluster.node(1).set_full_api(true);
    gateway.cluster.node(1).fault_on("getVoteAccounts", Fault::Status(503), None);
    let lacks = Fault::Error { code: -32601, message: "Method not found".to_owned() };
    gateway.cluster.node(0).fault_on("getVoteAccounts", lacks, None);
    let reply = gateway.get_votes().send().await;
    assert_eq!((reply.status, reply.code()), (502, -32095), "{}", reply.text);
}

#[tokio::test]
async fn node_that_names_no_slot_is_not_behind() {
    let gateway = TestGateway::builder().nodes(2).config(with_short_attempts).start().await;
    let behind =
        Fault::Error { code: -32016, message: "Minimum context slot has not been reached".to_owned() };
    gateway.cluster.node(0).fault_on("getAccountInfo", behind, None);
    for account in gateway.cluster.examples().wallets.iter().take(10) {
        let reply = gateway.get_account(account).send().await;
        assert!(reply.result().is_object(), "{}", reply.text);
    }
    let metrics = gateway.admin("/metrics").await.text;
    assert!(metrics.contains(r#"result="node_error""#) && !metrics.contains(r#"result="behind""#));
    assert!(gateway.cluster.node(0).calls("getAccountInfo") > 0);
}

#[tokio::test]
async fn retries_count_only_at_another_node() {
    let gateway = TestGateway::builder().nodes(1).config(with_short_attempts).start().await;
    gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Status(500), None);
    for account in gateway.cluster.examples().wallets.iter().take(3) {
        gateway.get_account(account).send().await;
    }
    let metrics = gateway.admin("/metrics").await.text;
    let retries = metrics.lines().filter(|line| line.starts_with("slotfront_upstream_retries_total{"));
    assert_eq!(retries.filter(|line| !line.ends_with(" 0")).count(), 0);
}

#[tokio::test]
async fn node_at_its_rate_is_not_faulty() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(|config| {
            config.upstreams[0].rps = Some(1);
            config.server.request_timeout = Duration::from_secs(3);
        })
        .start()
        .await;
    for account in gateway.cluster.examples().wallets.iter().take(12) {
        assert_eq!(gateway.get_account(account).send().await.status, 200);
    }
    assert!(gateway.cluster.node(1).calls("getAccountInfo") >= 6);
    let members = gateway.front().pool.members();
    assert_eq!(members[0].counts().1, 0);
    members[1].set_drained(true);
    let accounts = gateway.cluster.examples().wallets.clone();
    let refused = loop {
        // Not all of them get their turn at the node before their deadline.
        let calls = accounts.iter().skip(12).take(12);
        let calls = calls.map(|account| gateway.get_account(account).send());
        let replies = futures_util::future::join_all(calls).await;
        if let Some(refused) = replies.into_iter().find(|reply| reply.status == 502) {
            break refused;
        }
        gateway.front().cache.purger().clear();
    };
    assert_eq!((refused.status, refused.code()), (502, -32095), "{}", refused.text);
    let reasons = [("node-0", "busy"), ("node-1", "drained")];
    let expected = reasons.map(|(upstream, reason)| json!({"upstream": upstream, "reason": reason}));
    assert_eq!(refused.error()["data"]["attempts"], json!(expected));
}

#[tokio::test]
async fn closed_connection_is_retried_at_the_only_node() {
    for nodes in [1, 2] {
        let gateway = TestGateway::builder().nodes(nodes).config(with_short_attempts).start().await;
        for other in &gateway.cluster.nodes()[1..] {
            other.set_healthy(false);
            let standing = || gateway.front().pool.standing(Instant::now())[other.index()].1;
            gateway.until("the other node is unhealthy", || standing() == Some(Unusable::Unhealthy)).await;
        }
        gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Reset, Some(1));
        let account = gateway.cluster.examples().wallets[0].to_string();
        let reply = gateway.get_account(&account).send().await;
        assert_eq!(
            (reply.status, gateway.cluster.node(0).calls("getAccountInfo")),
            (200, 2),
            "{nodes} nodes"
        );
    }
}

#[tokio::test]
async fn health_passes_through_and_readiness_has_reasons() {
    let gateway = TestGateway::builder().nodes(2).config(with_short_attempts).start().await;
    assert_eq!(gateway.get("/health").await.text, "ok");
    assert_eq!(gateway.admin("/readyz").await.status, 200);
    gateway.cluster.nodes().iter().for_each(|node| node.set_healthy(false));
    gateway
        .until("all are unhealthy", || {
            gateway.front().pool.standing(Instant::now()).iter().all(|(_, unusable)| unusable.is_some())
        })
        .await;
    assert_eq!(gateway.get("/health").await.text, "behind");
    let readiness = gateway.admin("/readyz").await;
    assert_eq!((readiness.status, readiness.json()["state"].clone()), (200, json!("degraded")));
    assert!(readiness.text.contains("node-0"), "{}", readiness.text);
    let account = gateway.cluster.examples().wallets[0].to_string();
    assert_eq!(
        gateway.get_account(&account).send().await.status,
        200,
        "an unhealthy node is asked if there is no other"
    );
}
