//! Nodes that are out of use for a while: on trial after their breaker was open, or quiet after a 429.

use std::time::Duration;

use serde_json::json;
use slotfront::breaker::BreakerState;
use slotfront::methods::Pubkey;
use slotfront::pool::{CallContext, UpstreamRequest};
use slotfront_sim::Fault;
use slotfront_testkit::{PATIENCE, TestGateway, upstream_request};
use tokio::time::{Instant, timeout};

#[tokio::test]
async fn half_open_breaker_gets_a_trial() {
    let gateway = TestGateway::builder().breakers_open_at_once(Duration::from_millis(1)).start().await;
    let (wallets, node) = (gateway.cluster.examples().wallets, gateway.cluster.node(0));
    let mut calls = wallets.iter().map(|wallet| gateway.get_account(wallet));
    node.fault_on("getAccountInfo", Fault::Status(500), Some(1));
    while node.calls("getAccountInfo") == 0 {
        calls.next().expect("one of the calls asks the node").send().await;
    }
    let breaker = || gateway.front().pool.members()[0].breaker(Instant::now());
    gateway.until("its breaker is half-open", || breaker() == BreakerState::HalfOpen).await;
    while node.calls("getAccountInfo") == 1 {
        calls.next().expect("one of the calls asks the node").send().await;
    }
    assert_eq!((node.calls("getAccountInfo"), breaker()), (2, BreakerState::Closed));
}

#[tokio::test]
async fn hanging_trial_is_answered_by_another_node() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .breakers_open_at_once(Duration::from_millis(1))
        .config(|config| {
            config.pool.attempt_timeout.fill(10 * PATIENCE);
            config.pool.breaker.slow = 4.0;
        })
        .in_tiers()
        .start()
        .await;
    let (wallet, node) = (gateway.cluster.examples().wallets[0], gateway.cluster.node(0));
    let query = gateway.get_account(wallet).query();
    let context = CallContext::own(Instant::now() + 10 * PATIENCE);
    let (front, request) = (gateway.front(), UpstreamRequest { context, ..upstream_request(query) });
    // From now on the pool knows how long a call usually takes.
    for _ in 0..32 {
        front.pool.call(&request).await.unwrap();
    }
    node.fault_on("getAccountInfo", Fault::Status(500), Some(1));
    front.pool.call(&request).await.unwrap();
    let breaker = || front.pool.members()[0].breaker(Instant::now());
    gateway.until("its breaker is half-open", || breaker() == BreakerState::HalfOpen).await;
    node.fault_on("getAccountInfo", Fault::Hang, Some(1));
    let calls = node.calls("getAccountInfo");
    let answered = timeout(PATIENCE, front.pool.call(&request)).await;
    let reply = answered.expect("an attempt may take ten minutes, and a hanging trial takes less").unwrap();
    assert_eq!((reply.node, node.calls("getAccountInfo")), (1, calls + 1));
}

#[tokio::test]
async fn refusals_by_rate_concern_their_method_alone() {
    let gateway =
        TestGateway::builder().nodes(2).config(|config| config.pool.breaker.failures = 2).start().await;
    let wallets = gateway.cluster.examples().wallets;
    let refused = Fault::Status429 { retry_after_s: 60 };
    gateway.cluster.fault_everywhere("getAccountInfo", &refused);
    let holds: Vec<_> = gateway.cluster.nodes().iter().map(|node| node.hold("getAccountInfo")).collect();
    let callers = wallets.iter().take(8).map(|wallet| gateway.get_account(wallet).send());
    let (replies, ()) = tokio::join!(futures_util::future::join_all(callers), async {
        let waiting = || holds.iter().map(slotfront_sim::Hold::waiting).sum::<usize>();
        gateway.until("all are at a node", || waiting() == 8).await;
        holds.iter().for_each(slotfront_sim::Hold::release);
    });
    for reply in replies {
        assert_eq!((reply.status, reply.code()), (429, -32095), "{}", reply.text);
        assert_eq!(reply.header("retry-after"), "60");
        assert_eq!(reply.error()["data"]["retryAfterMs"], 60_000);
    }
    for member in gateway.front().pool.members().iter() {
        assert_eq!(member.breaker(Instant::now()), BreakerState::Closed, "{}", member.name);
    }
    assert_eq!(gateway.get_accounts(&wallets[..2]).send().await.status, 200);
    assert_eq!(gateway.get_nodes().send().await.status, 200);
}

#[tokio::test]
async fn calls_too_long_for_a_node_open_no_breaker() {
    let gateway =
        TestGateway::builder().nodes(2).breakers_open_at_once(Duration::from_hours(1)).start().await;
    let address = |first: u8, number: usize| {
        let mut address = [first; 32];
        address[30..].copy_from_slice(&u16::try_from(number).unwrap().to_be_bytes());
        Pubkey(address).to_string()
    };
    let body = |short: usize, long: usize| {
        let short = (0..short).map(|number| address(0, number));
        let addresses: Vec<_> = short.chain((0..long).map(|number| address(255, number))).collect();
        let params = json!([addresses]);
        json!({ "jsonrpc": "2.0", "id": 1, "method": "getInflationReward", "params": params }).to_string()
    };
    let fits = |body: &String| body.len() <= 51_200;
    // The caller's text is nearly as long as a node takes. With the default commitment, it is longer.
    let short = (0..51_200).take_while(|short| fits(&body(*short, 0))).last().unwrap();
    let longest = (0..=short).map(|long| body(short - long, long)).take_while(fits).last().unwrap();
    let refused = gateway.post(longest).send().await;
    assert_eq!((refused.status, refused.code()), (502, -32095), "{}", refused.text);
    let asked = gateway.cluster.nodes().iter().map(|node| node.calls("getInflationReward"));
    assert_eq!(asked.sum::<u64>(), 0, "a node does not read it");
    let attempts = refused.error()["data"]["attempts"].clone();
    assert_eq!(attempts.as_array().unwrap().len(), 2, "another node may take longer calls: {attempts}");
    for member in gateway.front().pool.members().iter() {
        assert_eq!(member.breaker(Instant::now()), BreakerState::Closed, "{}", member.name);
    }
}

#[tokio::test]
async fn quiet_nodes_are_asked_one_by_one() {
    let gateway = TestGateway::builder().nodes(2).start().await;
    for (node, retry_after_s) in [(0, 60), (1, 2)] {
        gateway.cluster.node(node).fault_on("getAccountInfo", Fault::Status429 { retry_after_s }, None);
    }
    let wallets = gateway.cluster.examples().wallets;
    for (wallet, asked) in wallets.iter().zip([[1, 1], [1, 2]]) {
        let refused = gateway.get_account(wallet).send().await;
        assert_eq!((refused.status, refused.header("retry-after")), (429, "2"), "{}", refused.text);
        assert_eq!([0, 1].map(|node| gateway.cluster.node(node).calls("getAccountInfo")), asked);
    }
}

#[tokio::test]
async fn a_quiet_node_is_asked_after_a_fault() {
    let gateway = TestGateway::builder().nodes(2).config(|config| config.upstreams[1].tier = 1).start().await;
    let wallets = gateway.cluster.examples().wallets;
    gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Status429 { retry_after_s: 60 }, Some(1));
    assert_eq!(gateway.get_account(wallets[0]).send().await.status, 200);
    gateway.cluster.node(1).fault_on("getAccountInfo", Fault::Status(500), None);
    let reply = gateway.get_account(wallets[1]).send().await;
    assert_eq!(reply.status, 200, "{}", reply.text);
}
