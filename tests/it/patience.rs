//! A read that takes many times its usual time goes on at another node, and nothing else does.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use slotfront::config::Config;
use slotfront_sim::Fault;
use slotfront_testkit::TestGateway;
use tokio::time::Instant;

/// Nothing ends an attempt but its answer.
fn without_timeouts(config: &mut Config) {
    config.pool.breaker.slow = 4.0;
    config.server.request_timeout = Duration::from_mins(5);
    config.pool.attempt_timeout.fill(Duration::from_mins(5));
}

#[tokio::test]
async fn a_node_that_hangs_in_one_method_delays_no_caller() {
    let gateway = TestGateway::builder().nodes(2).config(without_timeouts).start().await;
    let wallets = gateway.cluster.examples().wallets;
    let read = async |n: usize| {
        let began = Instant::now();
        let reply = gateway.get_account(wallets[n % wallets.len()]).no_cache().send().await;
        assert!(reply.value()["lamports"].is_u64(), "{}", reply.text);
        assert!(began.elapsed() < Duration::from_mins(1), "{:?}", began.elapsed());
    };
    for n in 0..80 {
        read(n).await;
    }
    let hanging = gateway.cluster.node(0);
    for method in ["getAccountInfo", "getMultipleAccounts"] {
        hanging.fault_on(method, Fault::Hang, None);
    }
    let before = hanging.calls("getAccountInfo");
    while hanging.calls("getAccountInfo") == before {
        join_all((0..8).map(read)).await;
    }
    for n in 0..64 {
        read(n).await;
    }
    let asked = hanging.calls("getAccountInfo") - before;
    assert!(asked <= 24, "it looks slow now, and is asked now and then: {asked} of 64 and the first ones");
    let metrics = gateway.admin("/metrics").await.text;
    assert!(
        metrics.lines().any(|line| line.contains("upstream_retries") && line.contains(r#"reason="slow""#))
    );
}

#[tokio::test]
async fn scans_and_searches_are_asked_once() {
    let gateway = TestGateway::builder()
        .in_tiers()
        .config(|config| {
            without_timeouts(config);
            config.pool.retries = 0;
            config.pool.attempt_timeout.fill(Duration::from_secs(4));
        })
        .start()
        .await;
    let wallet = gateway.cluster.examples().wallets[0].to_string();
    let program = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA";
    let calls = [
        ("getProgramAccounts", json!([program])),
        ("getTokenAccountsByOwner", json!([wallet, { "programId": program }])),
        ("getSignaturesForAddress", json!([wallet])),
    ];
    join_all(calls.map(async |(method, params)| {
        gateway.cluster.node(0).fault_on(method, Fault::Hang, None);
        let reply = gateway.call(method, params).send().await;
        assert_eq!(
            reply.error()["data"]["attempts"],
            json!([{ "reason": "timeout", "upstream": "node-0" }]),
            "{method}"
        );
        assert_eq!(gateway.cluster.node(1).calls(method), 0, "{method}");
    }))
    .await;
}
