//! The ends of connections: each has a code from which client libraries connect again, or know that they may not.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront::methods::{AnyMethod, Commitment, SubscriptionMethod};
use slotfront_testkit::{PATIENCE, TestGateway};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use super::{CLOCK, signature};

#[tokio::test]
async fn a_message_that_is_none_ends_the_connection() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let call = |length: usize| {
        let text = json!({"jsonrpc": "2.0", "id": 1, "method": "slotUnsubscribe", "params": [7]}).to_string();
        format!("{text}{}", " ".repeat(length - text.len()))
    };
    let mut socket = gateway.socket().await;
    socket.send(call(4_096)).await;
    assert!(socket.next().await.is_ok());
    for (message, code) in [
        (Message::text(call(4_097)), 1009),
        (Message::binary(call(4_097)), 1009),
        (Message::binary(b"{\"method\":\"\xff\"}".to_vec()), 1002),
        (Message::Frame(Frame::message(b"\xff".to_vec(), OpCode::Data(Data::Text), true)), 1002),
    ] {
        let mut socket = gateway.socket().await;
        socket.send(message.clone()).await;
        assert_eq!(socket.closed().await, code, "{message:?}");
    }
    assert_eq!(gateway.metric("slotfront_ws_closes_total{reason=\"too_long\"}"), 2);
    gateway.until("all closed connections are gone", || gateway.connections() == 1).await;
}

#[tokio::test]
async fn calls_above_the_rate_end_the_connection() {
    let limit = |burst| {
        TestGateway::builder().nodes(1).config(move |config| {
            let plan = config.plans.get_mut("dev").unwrap();
            (plan.rps, plan.burst) = (1, burst);
        })
    };
    for (method, params) in
        [("accountSubscribe", json!([CLOCK])), ("getSlot", json!([])), ("accountUnsubscribe", json!([1]))]
    {
        let gateway = limit(5).start().await;
        let mut socket = gateway.socket().await;
        let mut answers = 0;
        let code = loop {
            match socket.try_call(method, params.clone()).await {
                Ok(_) => answers += 1,
                Err(code) => break code,
            }
            assert!(answers < 100, "{method} has no limit");
        };
        assert!(code == 1013 && answers >= 4, "{method}: {answers} answers, then {code}");
    }
    // Messages without id cost something only if there are many of them.
    let gateway = limit(20).start().await;
    let mut socket = gateway.socket().await;
    for _ in 0..5_000 {
        socket.send(r#"{"method":"ping"}"#).await;
    }
    assert_eq!(socket.closed().await, 1013);
}

#[tokio::test]
async fn subscriptions_have_limits() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| config.plans.get_mut("dev").unwrap().subscriptions = 1_500)
        .start()
        .await;
    let refused = json!({"code": -32603, "message": "Internal Error: Subscription refused. Node subscription limit reached"});
    // One connection waits for 1,000 signatures at most.
    let mut socket = gateway.socket().await;
    let mut accepted = 0;
    for batch in 0..1_000 {
        let calls: Vec<_> = (0..25)
            .map(|at| json!({"jsonrpc": "2.0", "id": at, "method": "signatureSubscribe", "params": [signature(batch * 25 + at)]}))
            .collect();
        socket.send(json!(calls).to_string()).await;
        let answers = socket.next().await.unwrap();
        for answer in answers.as_array().unwrap() {
            let is_accepted = answer["result"].is_u64();
            assert!(is_accepted || answer["error"] == refused, "{answer}");
            accepted += usize::from(is_accepted);
        }
    }
    assert_eq!(accepted, 1_000);
    // A key has as many as its plan says, over all its connections.
    let mut other = gateway.socket().await;
    for at in 0..500 {
        other.subscribe("signatureSubscribe", json!([signature(at)])).await;
    }
    assert_eq!(other.call("slotSubscribe", json!([])).await["error"], refused);
    drop(socket);
    let series = "slotfront_ws_subscriptions{method=\"signatureSubscribe\"}";
    gateway.until("the subscriptions of a closed connection end", || gateway.metric(series) == 500).await;
    other.subscribe("slotSubscribe", json!([])).await;
}

#[tokio::test]
async fn plans_and_keys_restrict_subscriptions() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            let plan = config.plans.get_mut("dev").unwrap();
            plan.methods = Some(vec![AnyMethod::Subscription(SubscriptionMethod::Account)]);
            plan.commitments = Some(vec![Commitment::Confirmed]);
        })
        .start()
        .await;
    let mut socket = gateway.socket().await;
    for (method, params, expected) in [
        ("slotSubscribe", json!([]), "Forbidden: slotSubscribe is not allowed for this API key"),
        (
            "accountSubscribe",
            json!([CLOCK]),
            "Forbidden: commitment finalized is not allowed for this API key",
        ),
    ] {
        assert_eq!(socket.call(method, params).await["error"], json!({"code": -32091, "message": expected}));
    }
    socket.subscribe("accountSubscribe", json!([CLOCK, {"commitment": "confirmed"}])).await;
}

#[tokio::test]
async fn a_lowered_plan_ends_what_it_does_not_allow() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut sockets = vec![gateway.socket().await, gateway.socket().await, gateway.socket().await];
    let mut config = (*gateway.front().config).clone();
    config.plans.get_mut("dev").unwrap().connections = 1;
    gateway.app.reload(&config).unwrap();
    let series = "slotfront_ws_closes_total{reason=\"policy\"}";
    gateway.until_metric(series, 2).await;
    let mut open = 0;
    for socket in &mut sockets {
        match socket.try_call("slotSubscribe", json!([])).await {
            Ok(_) => open += 1,
            Err(code) => assert_eq!(code, 1008),
        }
    }
    assert_eq!((open, gateway.metric(series)), (1, 2));
    // A subscription that the plan does not allow any more ends its connection, too.
    config.plans.get_mut("dev").unwrap().methods =
        Some(vec![AnyMethod::Subscription(SubscriptionMethod::Root)]);
    gateway.app.reload(&config).unwrap();
    gateway.until_metric(series, 3).await;
}

#[tokio::test]
async fn a_revoked_key_ends_its_connections() {
    let dir = tempfile::tempdir().unwrap();
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let now = jiff::Timestamp::now();
    let [revoked, kept] = ["a", "b"].map(|name| file.create(&NewKey::of(name, "standard"), now).unwrap());
    let path = file.path().to_owned();
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.auth.keys_file = Some(path)).start().await;
    let open = async |key: &str| gateway.try_socket(&format!("/v3/{key}"), "").await.unwrap();
    let mut socket = open(revoked.key.expose()).await;
    let mut other = open(kept.key.expose()).await;
    socket.subscribe("slotSubscribe", json!([])).await;
    file.revoke(&revoked.id, now).unwrap();
    assert_eq!(socket.closed().await, 1008);
    other.subscribe("slotSubscribe", json!([])).await;
    assert!(
        gateway
            .try_socket(&format!("/v3/{}", revoked.key.expose()), "")
            .await
            .is_err_and(|r| r.status == 401)
    );
}

#[tokio::test]
async fn a_stop_tells_every_client_to_go() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .grace_periods(|periods| periods.notice = Duration::from_millis(10))
        .start()
        .await;
    let mut sockets = join_all((0..1_000).map(|_| gateway.socket())).await;
    join_all(sockets.iter_mut().map(|socket| socket.subscribe("slotSubscribe", json!([])))).await;
    assert_eq!(gateway.in_flight(), 0, "an idle socket holds no permit of a request");
    let codes = async { join_all(sockets.iter_mut().map(slotfront_testkit::TestSocket::closed)).await };
    let (codes, stopped) = tokio::join!(codes, tokio::time::timeout(PATIENCE, gateway.app.stop()));
    assert!(codes.iter().all(|code| *code == 1001) && stopped.is_ok(), "{codes:?}");
}

#[tokio::test]
async fn sockets_count_as_connections() {
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.server.max_connections = 2).start().await;
    let (one, other) = (gateway.socket().await, gateway.socket().await);
    // A third connection waits until one of the two ends.
    let waiting = gateway.try_socket("/v3/dev", "");
    let freed = async {
        gateway.until("both sockets count", || gateway.connections() == 2).await;
        drop(one);
    };
    let (third, ()) = tokio::join!(waiting, freed);
    assert!(third.is_ok());
    drop(other);
}

#[tokio::test]
async fn the_second_listener_serves_the_same() {
    let any = "127.0.0.1:0".parse().unwrap();
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.server.ws_listen = Some(any)).start().await;
    let address = gateway.app.socket.unwrap();
    assert_ne!(address, gateway.app.public);
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut socket = slotfront_testkit::TestSocket::open(stream, "/v3/dev", "").await.unwrap();
    socket.subscribe("slotSubscribe", json!([])).await;
    let health = gateway.client.get(format!("http://{address}/health")).send().await.unwrap();
    assert_eq!(health.text().await.unwrap(), "ok");
}
