//! Nodes that support less than Agave, or answer differently.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use slotfront::breaker::BreakerState;
use slotfront::methods::{AnyMethod, Commitment, Method, Pubkey};
use slotfront::telemetry::Unusable;
use slotfront_sim::Fault;
use slotfront_testkit::{FORWARDED, LoopbackTap, TestGateway, forwarded_params};
use tokio::time::Instant;

/// Returns a call of each of the eight methods.
fn calls(gateway: &TestGateway) -> Vec<(&'static str, Value)> {
    let there = gateway.cluster.examples();
    let (wallet, token) = (there.wallets[0].to_string(), there.token_accounts[0].to_string());
    vec![
        ("getAccountInfo", json!([wallet, {"encoding": "base64"}])),
        ("getMultipleAccounts", json!([[wallet, token], {"encoding": "base64"}])),
        ("getTokenAccountBalance", json!([token])),
        ("getFeeForMessage", json!([there.fee_message])),
        ("getVoteAccounts", json!([])),
        ("getBlock", json!([there.block_with_v0, {"maxSupportedTransactionVersion": 0}])),
        ("getRecentPerformanceSamples", json!([5])),
        ("getClusterNodes", json!([])),
    ]
}

/// Asserts that no failure is counted against any node.
fn assert_no_fault(gateway: &TestGateway) {
    for (member, unusable) in gateway.front().pool.standing(Instant::now()) {
        let marks = (member.breaker(Instant::now()), member.counts().1, member.last_failure(), unusable);
        assert_eq!(marks, (BreakerState::Closed, 0, None, None), "{}", member.name);
    }
}

#[tokio::test]
async fn firedancer_beside_agave_has_no_fault() {
    for first in 0..2 {
        let configure = |config: &mut slotfront::config::Config| config.upstreams[1 - first].tier = 1;
        let prepare = |cluster: &slotfront_sim::Cluster| cluster.node(0).set_firedancer(true);
        let gateway =
            TestGateway::builder().nodes(2).config(configure).prepare(prepare).start_unprobed().await;
        gateway.settled().await;
        let calls = calls(&gateway);
        assert_eq!(calls.len(), 8);
        for round in 0..3 {
            for (method, params) in &calls {
                let reply = gateway.call(method, params.clone()).send().await;
                assert_eq!(reply.status, 200, "{method}: {}", reply.text);
                assert!(!reply.result().is_null(), "{method}, round {round}");
            }
            gateway.front().cache.purger().clear();
        }
        assert_no_fault(&gateway);
        if first == 0 {
            let members = gateway.front().pool.members();
            assert_eq!((members[0].first_available(), members[1].first_available().is_some()), (None, true));
            assert_eq!(gateway.cluster.node(0).calls("getBlock"), 0, "the other one is known to have blocks");
            assert!(!members[0].lacks(AnyMethod::Own(Method::GetAccountInfo)));
            let metrics = gateway.admin("/metrics").await.text;
            assert!(metrics.contains(r#"result="incapable""#), "{metrics}");
        }
    }
}

#[tokio::test]
async fn method_missing_everywhere_is_not_found() {
    let gateway = TestGateway::builder().nodes(2).start().await;
    gateway.cluster.nodes().iter().for_each(|node| node.set_firedancer(true));
    let slot = gateway.cluster.examples().block_with_v0;
    for _ in 0..3 {
        let reply = gateway.get_block(slot).send().await;
        assert_eq!((reply.status, reply.code()), (200, -32601), "{}", reply.text);
        let reply = gateway.call(FORWARDED, forwarded_params()).send().await;
        assert_eq!((reply.status, reply.code()), (200, -32601), "{}", reply.text);
    }
    assert_no_fault(&gateway);
}

#[tokio::test]
async fn status_405_is_a_fault_and_501_not() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let node = gateway.cluster.node(0);
    let wallets = gateway.cluster.examples().wallets;
    let ask = async |n: usize| gateway.get_account(wallets[n]).send().await;
    node.fault_on("getAccountInfo", Fault::Status(501), Some(1));
    node.fault_on("getAccountInfo", Fault::Status(405), Some(1));
    let refused = ask(0).await;
    assert_eq!((refused.status, refused.code()), (200, -32601), "{}", refused.text);
    assert_no_fault(&gateway);
    let failed = ask(1).await;
    assert_eq!((failed.status, failed.code()), (502, -32095), "{}", failed.text);
    let answered = ask(2).await;
    assert_eq!(answered.status, 200, "{}", answered.text);
    let member = &gateway.front().pool.members()[0];
    assert_eq!((member.counts().1, member.breaker(Instant::now())), (1, BreakerState::Closed));
}

/// Providers write the absent one of result and error as null, ids as strings, and errors with statuses of their own.
#[tokio::test]
async fn what_a_provider_says_is_what_the_node_said() {
    for status in [200, 400, 403, 404, 410, 422, 500, 501, 503] {
        let prepare = |cluster: &slotfront_sim::Cluster| {
            cluster.nodes().iter().for_each(|node| node.fault(Fault::Provider(status)));
        };
        let gateway = TestGateway::builder().nodes(2).prepare(prepare).start().await;
        let there = gateway.cluster.examples();
        assert!(gateway.get_account(there.wallets[0]).send().await.value()["lamports"].is_u64());
        assert!(gateway.get_account(Pubkey([1; 32])).send().await.value().is_null());
        for unknown in 1..=40 {
            let reply = gateway.get_token_balance(Pubkey([unknown; 32])).send().await;
            let (code, message) = (-32602, "Invalid param: could not find account");
            assert_eq!(reply.error(), json!({"code": code, "message": message}), "{status}: {}", reply.text);
        }
        assert_no_fault(&gateway);
    }
}

#[tokio::test]
async fn some_statuses_speak_for_themselves() {
    for (status, expected) in [(401, "status_401"), (402, "status_429"), (429, "status_429")] {
        let gateway = TestGateway::builder().nodes(1).start().await;
        gateway.cluster.node(0).fault_on("getTokenAccountBalance", Fault::Provider(status), None);
        let reply = gateway.get_token_balance(Pubkey([1; 32])).send().await;
        assert_eq!(reply.code(), -32095, "{}", reply.text);
        assert_eq!(reply.error()["data"]["attempts"][0]["reason"], expected, "{}", reply.text);
    }
}

#[tokio::test]
async fn unknown_codes_are_asked_of_every_node() {
    let unknown = |code| Fault::Error { code, message: format!("own word {code}") };
    for (first, second, third, expected) in [
        (unknown(-32050), None, None, None),
        (unknown(-32050), Some(unknown(7)), None, None),
        (unknown(-32050), Some(unknown(7)), Some(unknown(-32000)), Some(-32050)),
        (unknown(-32050), Some(Fault::Status(503)), None, None),
    ] {
        let gateway = TestGateway::builder().in_tiers().start().await;
        let breaks = u64::from(matches!(second, Some(Fault::Status(_))));
        for method in ["getAccountInfo", FORWARDED] {
            gateway.cluster.node(0).fault_on(method, first.clone(), None);
            for (node, fault) in [(1, &second), (2, &third)] {
                if let Some(fault) = fault {
                    gateway.cluster.node(node).fault_on(method, fault.clone(), None);
                }
            }
            let wallet = json!([gateway.cluster.examples().wallets[0].to_string()]);
            let params = if method == FORWARDED { forwarded_params() } else { wallet };
            for asked in 1..=2 {
                let reply = gateway.call(method, params.clone()).send().await;
                assert_eq!(reply.status, 200, "{method}: {}", reply.text);
                match expected {
                    Some(code) => assert_eq!(reply.code(), code, "{method}: {}", reply.text),
                    None => assert!(!reply.result().is_null(), "{method}"),
                }
                if expected.is_some() {
                    let calls = [0, 1, 2].map(|node| gateway.cluster.node(node).calls(method));
                    assert_eq!(calls, [asked; 3], "{method}: the error is not held");
                }
            }
        }
        for member in gateway.front().pool.members().iter() {
            assert_eq!(member.breaker(Instant::now()), BreakerState::Closed);
        }
        let failures = gateway.front().pool.members().iter().map(|member| member.counts().1).sum::<u64>();
        assert_eq!(failures, breaks, "forwarded calls count no failures, and the first account is stored");
    }
}

/// Checks that asking another node after an unknown error code is no retry, and uses no retry budget.
#[tokio::test]
async fn an_unknown_code_is_asked_elsewhere_without_retries() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(|config| {
            config.upstreams[1].tier = 1;
            config.pool.retries = 0;
        })
        .start()
        .await;
    for method in ["getAccountInfo", FORWARDED] {
        let own_word = Fault::Error { code: -32000, message: "own word".to_owned() };
        gateway.cluster.node(0).fault_on(method, own_word, None);
        for wallet in gateway.cluster.examples().wallets.iter().take(12) {
            let params = if method == FORWARDED { forwarded_params() } else { json!([wallet.to_string()]) };
            let reply = gateway.call(method, params).send().await;
            assert!(reply.json().get("result").is_some(), "{method}: {}", reply.text);
        }
    }
}

#[tokio::test]
async fn a_forwarded_unknown_code_asks_no_doubtful_node() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(|config| {
            config.upstreams[1].tier = 1;
        })
        .start()
        .await;
    let own_word = Fault::Error { code: -32050, message: "own word".to_owned() };
    gateway.cluster.node(0).fault_on(FORWARDED, own_word, None);
    gateway.cluster.node(1).set_healthy(false);
    let doubtful = || gateway.front().pool.standing(Instant::now())[1].1 == Some(Unusable::Unhealthy);
    gateway.until("the second node is known to be unhealthy", doubtful).await;
    let reply = gateway.call(FORWARDED, forwarded_params()).send().await;
    assert_eq!((reply.code(), gateway.cluster.node(1).calls(FORWARDED)), (-32050, 0), "{}", reply.text);
}

#[tokio::test]
async fn no_number_of_a_caller_opens_a_breaker() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let (node, wallets) = (gateway.cluster.node(0), gateway.cluster.examples().wallets);
    // The node ignores minContextSlot.
    let slot = gateway.cluster.slot(Commitment::Finalized);
    let lower = json!({"context": {"apiVersion": "4.0.0", "slot": slot}, "value": null});
    node.fault_on("getAccountInfo", Fault::Result(lower), None);
    for (n, wanted) in (0..10).zip([slot + 1, slot + 1_000_000, u64::MAX].into_iter().cycle()) {
        let call = gateway.get_account(wallets[n]).min_context_slot(wanted);
        let reply = call.send().await;
        assert_eq!((reply.status, reply.code()), (200, -32016), "{}", reply.text);
        assert_eq!(reply.error()["data"]["contextSlot"], slot);
    }
    assert_no_fault(&gateway);
}

/// Balancers close a connection after so many requests, some of them only when the next one comes.
#[tokio::test]
async fn a_node_may_close_each_connection_at_its_third_request() {
    let tap = LoopbackTap::start().await;
    tap.close_at(|number, _| number == 3);
    let gateway = TestGateway::builder().nodes(1).tap(&tap).start().await;
    let wallets = gateway.cluster.examples().wallets;
    for _ in 0..10 {
        let calls = wallets.iter().take(6).map(|wallet| gateway.get_account(wallet).no_cache().send());
        for reply in join_all(calls).await {
            assert_eq!(reply.status, 200, "{}", reply.text);
        }
    }
    assert!(tap.seen("getAccountInfo").len() > 60, "some were sent again");
    assert_no_fault(&gateway);
}

#[tokio::test]
async fn reads_are_sent_again_on_a_new_connection() {
    let tap = LoopbackTap::start().await;
    tap.close_at(|number, seen| {
        number > 1 && ["getBlock\"", "getSupply"].iter().any(|cut| seen.body.contains(cut))
    });
    let gateway = TestGateway::builder().nodes(1).tap(&tap).start().await;
    let block = json!([gateway.cluster.examples().block_with_v0, { "maxSupportedTransactionVersion": 0 }]);
    for (method, params) in [("getBlock", block), ("getSupply", json!([]))] {
        let seen = || tap.seen(&format!("\"{method}\"")).len();
        let mut calls = 0;
        // A call on a new connection is answered at once.
        while seen() == calls {
            calls += 1;
            assert!(calls < 100, "no call of {method} came on a kept connection");
            let reply = gateway.call(method, params.clone()).no_cache().send().await;
            assert_eq!(reply.status, 200, "{}", reply.text);
        }
        assert_eq!(seen(), calls + 1, "{method}");
    }
    assert_no_fault(&gateway);
}

/// A balancer that waits no longer cuts a call that the node still works on. Nobody should give it that work twice.
#[tokio::test]
async fn a_read_that_breaks_late_is_not_sent_again() {
    let tap = LoopbackTap::start().await;
    tap.close_at(|number, seen| {
        let is_cut = number > 1 && seen.body.contains("getSupply");
        if is_cut {
            std::thread::sleep(Duration::from_secs(2));
        }
        is_cut
    });
    // The limit is a second more.
    let configure =
        |config: &mut slotfront::config::Config| config.pool.connect_timeout = Duration::from_millis(500);
    let gateway = TestGateway::builder().nodes(1).tap(&tap).config(configure).start().await;
    for calls in 1..100 {
        let reply = gateway.call("getSupply", json!([])).no_cache().send().await;
        assert_eq!(tap.seen("getSupply").len(), calls);
        if reply.status != 200 {
            return;
        }
    }
    panic!("no call came on a kept connection");
}
