//! What is forwarded as it came, simulations and the methods that an operator lists: limited and retried like what is
//! cached. A method that writes is refused with an error that names it.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use slotfront::breaker::BreakerState;
use slotfront::config::{Config, ListedSettings, Secret};
use slotfront::methods::{AnyMethod, Commitment, Group, Method};
use slotfront_sim::Fault;
use slotfront_testkit::{FORWARDED, TestGateway, forwarded_params};
use socket2::{Domain, Socket, Type};
use tokio::time::Instant;

/// A method that no simulated node has.
const UNKNOWN: &str = "getStakeActivation";

/// A method of a provider, which simulated nodes have only as a scripted answer.
const ASSET: &str = "getAsset";

fn on(config: &mut Config) {
    config.list_method(UNKNOWN, ListedSettings::of(Group::Core));
    config.list_method(ASSET, ListedSettings::of(Group::Provider));
}

#[tokio::test]
async fn nothing_is_forwarded_unless_it_is_named() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let outcome = gateway.call(FORWARDED, forwarded_params()).send().await;
    assert_eq!((outcome.status, outcome.cache_status()), (200, "fwd=bypass"));
    assert!(outcome.value()["err"].is_string());
    for method in [UNKNOWN, "simulatetransaction", "slotSubscribe"] {
        let reply = gateway.call(method, json!([])).send().await;
        assert_eq!((reply.status, reply.code()), (200, -32601));
        assert_eq!(reply.error()["message"], "Method not found");
        assert_eq!(gateway.cluster.node(0).calls(method), 0);
    }
}

#[tokio::test]
async fn writes_are_refused_by_name() {
    let gateway = TestGateway::builder().nodes(1).config(on).start().await;
    for method in ["sendTransaction", "requestAirdrop", "sendBundle"] {
        let reply = gateway.call(method, json!(["AQ=="])).send().await;
        assert_eq!((reply.status, reply.code()), (200, -32601));
        let message = reply.error()["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains(method) && message.contains("RPC node"), "{message}");
        assert_eq!(gateway.cluster.node(0).calls(method), 0);
    }
}

#[tokio::test]
async fn what_is_forwarded_changes_and_holds_nothing() {
    let gateway = TestGateway::builder().nodes(1).config(on).start().await;
    for calls in 1..=3 {
        let reply = gateway.call(FORWARDED, forwarded_params()).send().await;
        assert_eq!(reply.slot(), gateway.cluster.slot(Commitment::Finalized));
        assert_eq!(gateway.cluster.node(0).calls(FORWARDED), calls);
        gateway.step_by(1).await;
    }
    // A call keeps the caller's id, may have no params, and gets a node's own error.
    let reply = gateway.post(r#"{"jsonrpc":"2.0","id":"a","method":"simulateTransaction"}"#).send().await;
    assert_eq!((reply.status, reply.code(), reply.json()["id"].clone()), (200, -32602, json!("a")));
    let forwarded = gateway.call(FORWARDED, forwarded_params());
    let write = gateway.call("sendTransaction", json!([])).id(3);
    let answers = gateway.batch([forwarded, gateway.get_nodes().id(2), write]).send().await.json();
    assert!(answers[0]["result"].is_object() && answers[1]["result"].is_array(), "{answers}");
    assert_eq!(answers[2]["error"]["code"], -32601);
}

#[tokio::test]
async fn failing_or_incapable_nodes_are_replaced() {
    for (fault, word) in [(Fault::Status(500), "status_5xx"), (Fault::Reset, "connect")] {
        let gateway = TestGateway::builder().nodes(2).config(on).start().await;
        gateway.cluster.node(0).fault_on(FORWARDED, fault, None);
        for _ in 0..12 {
            let reply = gateway.call(FORWARDED, forwarded_params()).send().await;
            assert_eq!(reply.status, 200, "{word}: {}", reply.text);
        }
    }
    let gateway = TestGateway::builder().nodes(2).config(on).start().await;
    // The first call asks both nodes and returns their error. The second
    // call asks one node only.
    for expected in [2, 3] {
        let reply = gateway.call(UNKNOWN, json!([])).send().await;
        assert_eq!((reply.status, reply.code()), (200, -32601));
        let asked: u64 = gateway.cluster.nodes().iter().map(|node| node.calls(UNKNOWN)).sum();
        assert_eq!(asked, expected);
    }
    let floor = gateway.cluster.slot(Commitment::Finalized) + 1_000;
    let mut ahead = forwarded_params();
    ahead[1]["minContextSlot"] = json!(floor);
    let reply = gateway.call(FORWARDED, ahead).send().await;
    assert_eq!((reply.status, reply.code()), (200, -32016));
    for node in gateway.cluster.nodes() {
        node.fault_on(FORWARDED, Fault::Status(500), None);
    }
    let reply = gateway.call(FORWARDED, forwarded_params()).send().await;
    assert_eq!((reply.status, reply.code()), (502, -32095));
    let attempts = reply.error()["data"]["attempts"].clone();
    assert!(attempts.as_array().is_some_and(|list| !list.is_empty()), "{attempts}");
    assert!(!reply.text.contains("127.0.0.1"), "{}", reply.text);
}

#[tokio::test]
async fn retries_count_only_at_another_node() {
    let gateway = TestGateway::builder().nodes(1).config(on).start().await;
    gateway.cluster.node(0).fault_on(FORWARDED, Fault::Status(500), None);
    for _ in 0..3 {
        assert_eq!(gateway.call(FORWARDED, json!([])).send().await.status, 502);
    }
    let metrics = gateway.admin("/metrics").await.text;
    let retries = metrics.lines().filter(|line| line.starts_with("slotfront_upstream_retries_total{"));
    assert_eq!(retries.filter(|line| !line.ends_with(" 0")).collect::<Vec<_>>(), [""; 0]);
}

#[tokio::test]
async fn slot_refusals_win_over_method_refusals() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(|config| {
            on(config);
            config.upstreams[1].tier = 1;
        })
        .start()
        .await;
    for (node, code) in [(0, -32016), (1, -32601)] {
        let refusal = Fault::Error { code, message: "no".to_owned() };
        gateway.cluster.node(node).fault_on(FORWARDED, refusal, None);
    }
    let reply = gateway.call(FORWARDED, json!([])).send().await;
    assert_eq!((reply.status, reply.code()), (200, -32016));
    assert_eq!([0, 1].map(|node| gateway.cluster.node(node).calls(FORWARDED)), [1, 1]);
}

/// Returns an address whose connections are neither accepted nor refused while the returned sockets are open.
fn unanswering() -> (SocketAddr, Vec<Socket>) {
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let listener = socket();
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
    listener.listen(0).expect("it listens");
    let address = listener.local_addr().ok().and_then(|address| address.as_socket()).expect("an address");
    let mut kept = vec![listener];
    // The kernel accepts some connections before it lets others wait. On a busy machine, one of them may be late.
    let mut late = 0;
    while late < 2 {
        let waiting = socket();
        let connected = waiting.connect_timeout(&address.into(), Duration::from_millis(500));
        kept.push(waiting);
        late += usize::from(connected.is_err());
    }
    (address, kept)
}

#[tokio::test]
async fn slow_connections_are_retried_elsewhere() {
    let (nodes, _kept): (Vec<_>, Vec<_>) = (0..2).map(|_| unanswering()).unzip();
    let change = |config: &mut Config| {
        on(config);
        config.pool.connect_timeout = Duration::from_millis(20);
        // The caller's deadline comes before the attempt's timeout.
        config.pool.attempt_timeout.fill(Duration::from_hours(1));
        for (upstream, node) in config.upstreams.iter_mut().zip(&nodes) {
            upstream.url = Secret::new(format!("http://{node}"));
        }
    };
    let gateway = TestGateway::builder().nodes(2).config(change).start_unprobed().await;
    let reply = gateway.call(FORWARDED, json!([])).send().await;
    let reasons = reply.error()["data"]["attempts"].as_array().cloned().unwrap_or_default();
    let reasons: Vec<_> = reasons.iter().map(|attempt| attempt["reason"].clone()).collect();
    assert_eq!(reasons, ["timeout", "timeout"], "{}", reply.text);
}

#[tokio::test]
async fn hangs_of_a_simulation_open_no_breaker() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            on(config);
            config.pool.attempt_timeout.fill(Duration::from_millis(50));
            config.pool.breaker.failures = 2;
            config.pool.retries = 0;
        })
        .start()
        .await;
    let hold = gateway.cluster.node(0).hold(FORWARDED);
    for _ in 0..4 {
        let reply = gateway.call(FORWARDED, json!([])).send().await;
        assert_eq!((reply.status, reply.code()), (502, -32095), "{}", reply.text);
        assert!(reply.text.contains("timeout"), "{}", reply.text);
    }
    drop(hold);
    let standing = gateway.admin("/api/upstreams").await.text;
    assert!(!standing.contains("breaker_open"), "{standing}");
    assert_eq!(gateway.get_nodes().send().await.status, 200);
}

#[tokio::test]
async fn what_is_forwarded_obeys_plans_limits_and_units() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            on(config);
            let simulate = AnyMethod::from_name(FORWARDED).expect("a method");
            config.units.by_method[simulate.index()] = 7;
            let plan = config.plans.get_mut("dev").expect("the dev plan");
            plan.methods = Some(vec![AnyMethod::Own(Method::GetClusterNodes), simulate]);
            plan.commitments = Some(vec![Commitment::Confirmed]);
            plan.daily_units = Some(100);
            (plan.rps, plan.burst) = (1, 5);
        })
        .start()
        .await;
    assert_eq!(gateway.call(UNKNOWN, json!([])).send().await.code(), -32091);
    // Without a commitment the call is at finalized.
    assert_eq!(gateway.call(FORWARDED, forwarded_params()).send().await.code(), -32091);
    let mut confirmed = forwarded_params();
    confirmed[1]["commitment"] = json!("confirmed");
    let reply = gateway.call(FORWARDED, confirmed.clone()).send().await;
    assert_eq!(
        (reply.status, reply.header("ratelimit").contains("\"day\";r=93")),
        (200, true),
        "{:?}",
        reply.headers
    );
    let limited = loop {
        let reply = gateway.call(FORWARDED, confirmed.clone()).send().await;
        if reply.status != 200 {
            break reply;
        }
    };
    assert_eq!((limited.status, limited.code(), limited.header("retry-after")), (429, -32092, "1"));
    let metrics = gateway.admin("/metrics").await.text;
    for line in [
        r#"slotfront_upstream_requests_total{method="simulateTransaction",result="ok",upstream="node-0"}"#,
        r#"slotfront_requests_total{commitment="confirmed",method="simulateTransaction",outcome="bypass"}"#,
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

#[tokio::test]
async fn a_plans_commitments_hold_however_one_is_written() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            on(config);
            config.plans.get_mut("dev").expect("the dev plan").commitments =
                Some(vec![Commitment::Finalized]);
        })
        .start()
        .await;
    for method in [FORWARDED, UNKNOWN, ASSET] {
        for params in [
            r#"[{"commitment":"processed"}]"#,
            r#"[{"commitment":"finalized","commitment":"processed"}]"#,
            r#"[{"commitment":"finalized","comm\u0069tment":"processed"}]"#,
            r#"[{"commitment":"confirmed"},null]"#,
            r#"[5,{"commitment":"confirmed"},null,null]"#,
            r#"["x",{"commitment":"processed"},{"encoding":"base64"}]"#,
            r#"["x",["processed"]]"#,
            r#"[{"commitment":{"processed":null}}]"#,
        ] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
            let reply = gateway.post(body).send().await;
            assert_eq!((reply.status, reply.code()), (403, -32091), "{method} {params}: {}", reply.text);
        }
    }
    assert_eq!(gateway.upstream_calls(), 0);
    let mut params = forwarded_params();
    params[1]["commitment"] = json!("finalized");
    assert_eq!(gateway.call(FORWARDED, params).send().await.status, 200);
}

#[tokio::test]
async fn forwarded_429_concerns_its_method_alone() {
    let json = |code| Fault::Error { code, message: "Too many requests".to_owned() };
    let http = |retry_after_s| Fault::Status429 { retry_after_s };
    for (refusal, retry_after) in
        [(http(60), "60"), (http(0), "1"), (http(31_536_000), "3600"), (json(429), "1"), (json(-32429), "1")]
    {
        let gateway = TestGateway::builder().nodes(2).config(on).start().await;
        gateway.cluster.fault_everywhere(FORWARDED, &refusal);
        let wallets = gateway.cluster.examples().wallets;
        let forwarded = gateway.call(FORWARDED, forwarded_params());
        let refused = forwarded.send().await;
        assert_eq!((refused.status, refused.code()), (429, -32095), "{refusal:?}: {}", refused.text);
        assert_eq!(refused.header("retry-after"), retry_after, "{refusal:?}");
        let attempts = refused.error()["data"]["attempts"].as_array().cloned().unwrap_or_default();
        let reasons: Vec<_> = attempts.iter().map(|attempt| attempt["reason"].clone()).collect();
        assert_eq!(reasons, ["status_429", "status_429"], "{refusal:?}");
        for wallet in wallets.iter().take(8) {
            let reply = gateway.get_account(wallet).send().await;
            assert_eq!(reply.status, 200, "{refusal:?}: {}", reply.text);
        }
        assert_eq!(gateway.call(UNKNOWN, json!([])).send().await.status, 200, "{refusal:?}");
        gateway.cluster.clear_faults();
        assert_eq!(forwarded.send().await.status, 200, "{refusal:?}: one node is still asked");
    }
}

#[tokio::test]
async fn faults_of_a_forwarded_method_open_no_breaker() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(|config| {
            on(config);
            config.pool.breaker.failures = 2;
        })
        .start()
        .await;
    for fault in [Fault::Status(504), Fault::Reset, Fault::Truncated, Fault::WrongId] {
        gateway.cluster.fault_everywhere(FORWARDED, &fault);
        for _ in 0..4 {
            let reply = gateway.call(FORWARDED, json!([])).send().await;
            assert_eq!((reply.status, reply.code()), (502, -32095), "{fault:?}: {}", reply.text);
        }
        for member in gateway.front().pool.members().iter() {
            assert_eq!(member.breaker(Instant::now()), BreakerState::Closed, "{fault:?}: {}", member.name);
        }
        gateway.cluster.clear_faults();
    }
}

#[tokio::test]
async fn forwarded_calls_avoid_a_node_on_trial() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(on)
        .breakers_open_at_once(Duration::from_millis(1))
        .start()
        .await;
    let (node, wallets) = (gateway.cluster.node(0), gateway.cluster.examples().wallets);
    node.fault_on("getAccountInfo", Fault::Reset, None);
    let mut calls = wallets.iter().map(|wallet| gateway.get_account(wallet));
    while node.calls("getAccountInfo") == 0 {
        assert_eq!(calls.next().expect("one of the calls asks the node").send().await.status, 200);
    }
    let breaker = || gateway.front().pool.members()[0].breaker(Instant::now());
    gateway.until("its breaker is half-open", || breaker() == BreakerState::HalfOpen).await;
    let forwarded = gateway.call(FORWARDED, forwarded_params());
    for _ in 0..6 {
        assert_eq!(forwarded.send().await.status, 200);
    }
    assert_eq!((node.calls(FORWARDED), breaker()), (0, BreakerState::HalfOpen));
}

/// Returns a fault by which a node answers as one that has a method of its own.
fn answering(id: &str) -> Fault {
    Fault::Result(json!({ "id": id }))
}

#[tokio::test]
async fn a_listed_method_goes_to_its_upstreams_as_it_came() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(|config| {
            let settings = ListedSettings { upstreams: vec!["node-1".to_owned()], group: Group::Provider };
            config.list_method(ASSET, settings);
        })
        .start()
        .await;
    let [other, das] = [0, 1].map(|node| gateway.cluster.node(node));
    das.fault_on(ASSET, answering("a"), None);
    for params in [r#"{"id":"a","displayOptions":{"x":1.50}}"#, r#"["a"]"#, "[]"] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{ASSET}","params":{params}}}"#);
        let reply = gateway.post(body).send().await;
        assert_eq!((reply.status, reply.cache_status()), (200, "fwd=bypass"), "{}", reply.text);
        assert_eq!(reply.json()["result"]["id"], "a");
    }
    assert_eq!((other.calls(ASSET), das.calls(ASSET)), (0, 3));
    // A fault of its only upstream is told, and no other is asked.
    das.clear_faults();
    das.fault_on(ASSET, Fault::Status(503), None);
    let reply = gateway.call(ASSET, json!([])).send().await;
    assert_eq!((reply.status, reply.code(), other.calls(ASSET)), (502, -32095, 0), "{}", reply.text);
}

#[tokio::test]
async fn faults_of_a_listed_method_stay_with_its_group() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            on(config);
            config.pool.attempt_timeout.fill(Duration::from_millis(50));
            config.pool.attempt_timeout[Method::GetAccountInfo.index()] = Duration::from_secs(20);
            config.pool.breaker.failures = 2;
            config.pool.retries = 0;
        })
        .start()
        .await;
    let hold = gateway.cluster.node(0).hold(ASSET);
    for _ in 0..6 {
        let reply = gateway.call(ASSET, json!([])).send().await;
        assert_eq!((reply.status, reply.code()), (502, -32095), "{}", reply.text);
    }
    drop(hold);
    let wallets = gateway.cluster.examples().wallets;
    let reply = gateway.get_account(wallets[0]).send().await;
    assert_eq!(reply.status, 200, "{}", reply.text);
}

#[tokio::test]
async fn unknown_members_make_a_question_of_their_own() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| config.plans.get_mut("dev").expect("the dev plan").max_accounts = Some(2))
        .start()
        .await;
    let (node, wallets) = (gateway.cluster.node(0), gateway.cluster.examples().wallets);
    let (seen, bodies) = std::sync::mpsc::channel();
    node.observe(move |call| _ = seen.send(call.params.clone()));
    let known = gateway.get_account(wallets[0]).base64();
    let unknown = known.clone().with("changedSinceSlot", 7);
    for (call, status) in [(&known, "fwd=miss"), (&unknown, "fwd=miss"), (&known, "hit"), (&unknown, "hit")] {
        let reply = call.send().await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert!(reply.cache_status().starts_with(status), "{}: {}", call.body(), reply.cache_status());
    }
    assert_eq!(node.calls("getAccountInfo"), 2);
    assert_eq!(
        bodies.try_iter().filter(|params| format!("{params:?}").contains("changedSinceSlot")).count(),
        1
    );
    // A plan's limit holds for what the call asks for.
    let three = gateway.get_accounts(&wallets[..3]).with("changedSinceSlot", 7);
    assert_eq!(three.send().await.code(), -32091);
}
