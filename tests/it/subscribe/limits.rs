//! Refused calls that come again, and quotas that are used up.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use slotfront::config::Config;
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront::methods::{AnyMethod, Commitment, Group, SubscriptionMethod};
use slotfront_testkit::{TestGateway, TestSocket};
use tokio::time::Instant;

use super::CLOCK;

/// Calls that are refused here: each with the code.
fn refused() -> [(&'static str, Value, i64); 7] {
    [
        ("logsSubscribe", json!(["all"]), -32601),
        ("fooSubscribe", json!([]), -32601),
        ("getSlot", json!([]), -32601),
        ("accountSubscribe", json!(["x"]), -32602),
        ("accountUnsubscribe", json!([7]), -32602),
        ("accountSubscribe", json!([CLOCK]), -32603),
        ("rootSubscribe", json!([]), -32091),
    ]
}

/// Every client has a subscription to slots and a call that is refused, which it repeats at once, as web3.js does.
#[tokio::test]
async fn a_repeated_refusal_costs_time_and_not_the_connection() {
    let clients = refused().len();
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            let plan = config.plans.get_mut("dev").unwrap();
            // A handshake, a subscription and a refusal each, and nothing is left for a repetition.
            (plan.rps, plan.burst, plan.subscriptions) = (1, u32::try_from(3 * clients).unwrap(), clients);
            let mut methods: Vec<_> = Group::Subscriptions.methods().collect();
            methods.retain(|method| *method != AnyMethod::Subscription(SubscriptionMethod::Root));
            plan.methods = Some(methods);
        })
        .start()
        .await;
    let mut sockets = Vec::new();
    for _ in 0..clients {
        let mut socket = gateway.socket().await;
        socket.subscribe("slotSubscribe", json!([])).await;
        sockets.push(socket);
    }
    let began = Instant::now();
    let repeat = async |(socket, (method, params, code)): (&mut TestSocket, (&str, Value, i64))| {
        for at in 0..6 {
            let answer = socket.try_call(method, params.clone()).await;
            let answer = answer.unwrap_or_else(|closed| panic!("{method}: {closed} at the {at}th call"));
            assert_eq!(answer["error"]["code"], code, "{method}: {answer}");
        }
    };
    join_all(sockets.iter_mut().zip(refused()).map(repeat)).await;
    assert!(began.elapsed() >= Duration::from_millis(3_100), "{:?}", began.elapsed());
    gateway.step_by(1).await;
    let newest = gateway.cluster.slot(Commitment::Processed);
    for socket in &mut sockets {
        while socket.notification().await["result"]["slot"] != newest {}
    }
}

#[tokio::test]
async fn other_calls_pass_those_that_wait() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut socket = gateway.socket().await;
    let call = |id: u64, method: &str| {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": ["all"]}).to_string()
    };
    // The last of them waits for five seconds.
    for id in 0..8 {
        socket.send(call(id, "logsSubscribe")).await;
    }
    assert_eq!(socket.next().await.unwrap()["id"], 0);
    let subscribe = json!({"jsonrpc": "2.0", "id": 100, "method": "rootSubscribe"});
    socket.send(subscribe.to_string()).await;
    let mut order = Vec::new();
    while order.len() < 8 {
        let message = socket.next().await.unwrap();
        order.extend(message["id"].as_u64());
    }
    let at = |id| order.iter().position(|one| *one == id).unwrap();
    assert!(at(100) < at(7), "{order:?}");
    assert_eq!(order.last(), Some(&7), "{order:?}");
}

#[tokio::test]
async fn a_call_that_waits_is_accepted_once_it_may_be() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| config.plans.get_mut("dev").unwrap().subscriptions = 1)
        .start()
        .await;
    let (mut holder, mut socket) = (gateway.socket().await, gateway.socket().await);
    let held = holder.subscribe("rootSubscribe", json!([])).await;
    assert_eq!(socket.call("slotSubscribe", json!([])).await["error"]["code"], -32603);
    assert_eq!(holder.call("rootUnsubscribe", json!([held])).await["result"], true);
    socket.subscribe("slotSubscribe", json!([])).await;
}

#[tokio::test]
async fn a_flood_of_refused_calls_ends_the_connection_of_the_flood() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let (mut flood, mut other) = (gateway.socket().await, gateway.socket().await);
    let slots = other.subscribe("slotSubscribe", json!([])).await;
    for id in 0..2_000 {
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "logsSubscribe", "params": ["all"]});
        flood.send(call.to_string()).await;
    }
    assert_eq!(flood.closed().await, 1013);
    gateway.step_by(1).await;
    assert_eq!(other.notification().await["subscription"], slots);
}

/// Returns a change of the plan `dev` to this quota of the day, with this price of a notification.
fn quota(units: u64, notification: u64) -> impl FnOnce(&mut Config) {
    move |config| {
        config.units.notification = notification;
        config.plans.get_mut("dev").unwrap().daily_units = Some(units);
    }
}

/// Steps the cluster until the connection is closed.
async fn closed(gateway: &TestGateway, socket: &mut TestSocket) -> u16 {
    let stepping = async {
        loop {
            gateway.step_by(1).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        code = socket.closed() => code,
        () = stepping => unreachable!("it never ends"),
    }
}

#[tokio::test]
async fn a_quota_that_notifications_use_up_ends_the_connection() {
    let gateway = TestGateway::builder().nodes(1).config(quota(40, 10)).start().await;
    let mut socket = gateway.socket().await;
    socket.subscribe("slotSubscribe", json!([])).await;
    assert_eq!(closed(&gateway, &mut socket).await, 1013);
    let used = gateway.metric("slotfront_key_units_total{key=\"dev\"}");
    assert!(used >= 40, "{used} units");
    // Whoever comes again is told when to come.
    let refused = gateway.try_socket("/v3/dev", "").await.err().expect("no unit is left");
    assert_eq!((refused.status, &*refused.body), (429, "Too many requests: 40 units a day\n"));
    assert!(refused.head.contains("retry-after: "), "{}", refused.head);
}

#[tokio::test]
async fn a_quota_that_calls_use_up_ends_the_connections_of_that_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let now = jiff::Timestamp::now();
    let other = file.create(&NewKey::of("other", "dev"), now).unwrap();
    let path = file.path().to_owned();
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            quota(20, 0)(config);
            config.auth.keys_file = Some(path);
        })
        .start()
        .await;
    let (mut socket, path) = (gateway.socket().await, format!("/v3/{}", other.key.expose()));
    let mut unconcerned = gateway.try_socket(&path, "").await.unwrap();
    for one in [&mut socket, &mut unconcerned] {
        one.subscribe("slotSubscribe", json!([])).await;
    }
    while gateway.call("getVoteAccounts", json!([])).send().await.status == 200 {}
    // The last units are too few for that call.
    while gateway.get_account(CLOCK).send().await.status == 200 {}
    assert_eq!(closed(&gateway, &mut socket).await, 1013);
    assert!(unconcerned.call("slotUnsubscribe", json!([0])).await["error"].is_object());
}

#[tokio::test]
async fn a_quota_that_a_reload_lowers_ends_the_connection() {
    let gateway = TestGateway::builder().nodes(1).config(quota(1_000, 0)).start().await;
    let mut socket = gateway.socket().await;
    socket.subscribe("slotSubscribe", json!([])).await;
    assert_eq!(gateway.get_account(CLOCK).send().await.status, 200);
    let mut config = gateway.front().config.copy();
    let plan = config.plans.get_mut("dev").unwrap();
    (plan.daily_units, plan.monthly_units) = (None, Some(2));
    gateway.app.reload(&config).unwrap();
    assert_eq!(closed(&gateway, &mut socket).await, 1013);
    let refused = gateway.try_socket("/v3/dev", "").await.err().expect("no unit is left");
    assert_eq!(refused.body, "Too many requests: 2 units a month\n");
}

#[tokio::test]
async fn an_expired_key_ends_its_connections() {
    let dir = tempfile::tempdir().unwrap();
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let now = jiff::Timestamp::now();
    let later =
        NewKey { expires: Some(now + jiff::SignedDuration::from_hours(24)), ..NewKey::of("a", "dev") };
    let key = file.create(&later, now).unwrap();
    let path = file.path().to_owned();
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.auth.keys_file = Some(path)).start().await;
    let mut socket = gateway.try_socket(&format!("/v3/{}", key.key.expose()), "").await.unwrap();
    socket.subscribe("slotSubscribe", json!([])).await;
    let text = std::fs::read_to_string(file.path()).unwrap();
    let line = text.lines().find(|line| line.starts_with("expires")).unwrap();
    std::fs::write(file.path(), text.replace(line, "expires = \"2026-01-01T00:00:00Z\"")).unwrap();
    assert_eq!(closed(&gateway, &mut socket).await, 1008);
}
