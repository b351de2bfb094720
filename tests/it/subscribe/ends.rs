//! The ends of connections: each has a code from which client libraries connect again, or know that they may not.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use slotfront::app::Listeners;
use slotfront::config::{AuthMode, Plan, WsListen};
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront::methods::{AnyMethod, Commitment, Group, SubscriptionMethod};
use slotfront_testkit::wire::read_until;
use slotfront_testkit::{PATIENCE, TestGateway, TestSocket};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use super::{CLOCK, signature};

/// The number of sockets in the tests of many.
const MANY: usize = 1_000;
const CLOSED_BY_POLICY: &str = "slotfront_ws_closes_total{reason=\"policy\"}";

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
async fn frames_that_end_no_message_end_the_connection() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let frame = |text: &str, opcode, is_last| {
        Message::Frame(Frame::message(text.as_bytes().to_vec(), OpCode::Data(opcode), is_last))
    };
    // The longest message in the shortest frames is one, with nothing in some of them.
    let mut socket = gateway.socket().await;
    let call = format!("{:4096}", r#"{"jsonrpc":"2.0","id":1,"method":"slotSubscribe"}"#);
    socket.send(frame("", Data::Text, false)).await;
    for at in 0..call.len() {
        socket.send(frame(&call[at..=at], Data::Continue, false)).await;
    }
    socket.send(frame("", Data::Continue, true)).await;
    assert!(socket.next().await.unwrap()["result"].is_u64());
    socket.send(frame("", Data::Text, false)).await;
    for _ in 0..10_000 {
        socket.send(frame("", Data::Continue, false)).await;
    }
    assert_eq!(socket.closed().await, 1009);
}

#[tokio::test]
async fn calls_above_the_rate_end_the_connection() {
    let limit = |burst| {
        TestGateway::builder().nodes(1).config(move |config| {
            let plan = config.plans.get_mut("dev").unwrap();
            (plan.rps, plan.burst) = (1, burst);
        })
    };
    // Each refused call is another one. One that comes again has to wait instead.
    for method in ["accountSubscribe", "getSlot", "accountUnsubscribe"] {
        let gateway = limit(5).start().await;
        let mut socket = gateway.socket().await;
        let mut answers = 0;
        let code = loop {
            let params = if method == "accountSubscribe" { json!([CLOCK]) } else { json!([answers]) };
            match socket.try_call(method, params).await {
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
async fn a_client_that_leaves_its_answers_is_not_heard() {
    const CALLS: usize = 4_000;
    let gateway = TestGateway::builder().nodes(1).start().await;
    let (reading, mut writing) = gateway.narrow_socket().await.into_stream().into_split();
    // A masked frame, with a mask of zeros. The answer repeats the id.
    let call = json!({"jsonrpc": "2.0", "id": "x".repeat(4_000), "method": "slotSubscribe"}).to_string();
    let length = u16::try_from(call.len()).unwrap().to_be_bytes();
    let frame = [&[0x81, 0xfe][..], &length, &[0; 4], call.as_bytes()].concat();
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let sending = async {
        for _ in 0..CALLS {
            writing.write_all(&frame).await.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
        }
    };
    let answering = async {
        // The client begins to read once it can send no more.
        let mut before = usize::MAX;
        while before != sent.load(Ordering::Relaxed) {
            before = sent.load(Ordering::Relaxed);
            gateway.round_trips().await;
        }
        assert!(before < CALLS, "all calls are heard");
        let (mut reading, mut answers) = (BufReader::new(reading), 0);
        while answers < CALLS {
            match timeout(PATIENCE, reading.read_u16()).await.expect("an answer in time").unwrap() {
                // A text of more than 125 bytes, and a ping.
                0x817e => {
                    let length = reading.read_u16().await.unwrap();
                    reading.read_exact(&mut vec![0; length.into()]).await.unwrap();
                    answers += 1;
                }
                0x8900 => {}
                other => panic!("{other:x} after {answers} of {CALLS} answers"),
            }
        }
    };
    tokio::join!(sending, answering);
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
    assert_eq!(other.call("accountSubscribe", json!([CLOCK])).await["error"], refused);
    assert_eq!(gateway.cluster.node(0).calls("getAccountInfo"), 0, "no node works for a refused call");
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
async fn a_plan_opens_subscriptions_as_a_group() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            let group = Group::from_name("subscriptions").unwrap();
            config.plans.get_mut("dev").unwrap().methods = Some(group.methods().collect());
        })
        .start()
        .await;
    let mut socket = gateway.socket().await;
    for (method, params) in [
        ("accountSubscribe", json!([CLOCK])),
        ("signatureSubscribe", json!([signature(1)])),
        ("slotSubscribe", json!([])),
        ("rootSubscribe", json!([])),
    ] {
        socket.subscribe(method, params).await;
    }
    // No node has a WebSocket.
    assert_eq!(socket.call("voteSubscribe", json!([])).await["error"]["code"], -32601);
    assert_eq!(gateway.call("getClusterNodes", json!([])).send().await.code(), -32091);
}

/// Opens `count` sockets, each with a subscription of `method`. A busy machine opens so many one after another in less than
/// the time for a request's head only if not all of them begin together.
async fn open_many(gateway: &TestGateway, key: &str, count: usize, method: &str) -> Vec<TestSocket> {
    let path = format!("/v3/{key}");
    let open = async || {
        let mut socket = gateway.try_socket(&path, "").await.unwrap();
        socket.subscribe(method, json!([])).await;
        socket
    };
    let mut sockets = Vec::new();
    while sockets.len() < count {
        sockets.extend(join_all((0..50).map(|_| open())).await);
    }
    sockets
}

/// Keeps the sockets that are open, and returns their number. The others were closed by code 1008.
async fn keep_open(sockets: &mut Vec<TestSocket>) -> usize {
    let calls = sockets.iter_mut().map(|socket| socket.try_call("slotUnsubscribe", json!([0])));
    let codes: Vec<_> = join_all(calls).await.into_iter().map(Result::err).collect();
    assert!(codes.iter().all(|code| code.is_none_or(|code| code == 1008)), "{codes:?}");
    let mut codes = codes.into_iter();
    sockets.retain(|_| codes.next() == Some(None));
    sockets.len()
}

#[tokio::test]
async fn a_lowered_plan_ends_what_it_does_not_allow() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut sockets = open_many(&gateway, "dev", MANY - 50, "slotSubscribe").await;
    let mut roots = open_many(&gateway, "dev", 50, "rootSubscribe").await;
    let mut config = gateway.front().config.copy();
    let mut lower = async |change: &dyn Fn(&mut Plan), closed: u64| {
        change(config.plans.get_mut("dev").unwrap());
        gateway.app.reload(&config).unwrap();
        gateway.until_metric(CLOSED_BY_POLICY, closed).await;
    };
    // A higher rate concerns no socket, so the next reload closes as many as are too many.
    lower(&|plan| plan.rps += 1, 0).await;
    lower(&|plan| plan.connections = 700, 300).await;
    let open = async |sockets: &mut Vec<TestSocket>, roots: &mut Vec<TestSocket>| {
        (keep_open(sockets).await, keep_open(roots).await)
    };
    let (of_slots, of_roots) = open(&mut sockets, &mut roots).await;
    assert_eq!((of_slots + of_roots, gateway.metric(CLOSED_BY_POLICY)), (700, 300));
    lower(&|plan| plan.subscriptions = 400, 600).await;
    let (of_slots, of_roots) = open(&mut sockets, &mut roots).await;
    assert_eq!((of_slots + of_roots, gateway.metric(CLOSED_BY_POLICY)), (400, 600));
    let only_roots = vec![AnyMethod::Subscription(SubscriptionMethod::Root)];
    let closed = u64::try_from(600 + of_slots).unwrap();
    lower(&|plan| plan.methods = Some(only_roots.clone()), closed).await;
    assert_eq!(open(&mut sockets, &mut roots).await, (0, of_roots));
    assert_eq!(gateway.metric(CLOSED_BY_POLICY), closed);
}

#[tokio::test]
async fn a_changed_plan_of_addresses_counts_their_open_sockets() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.auth.mode = AuthMode::Open;
            config.auth.open_plan = Some("dev".to_owned());
        })
        .start()
        .await;
    let mut sockets = open_many(&gateway, "x", 50, "slotSubscribe").await;
    let mut config = gateway.front().config.copy();
    let mut lower = async |change: &dyn Fn(&mut Plan), closed: u64| {
        change(config.plans.get_mut("dev").unwrap());
        gateway.app.reload(&config).unwrap();
        gateway.until_metric(CLOSED_BY_POLICY, closed).await;
    };
    lower(&|plan| plan.connections = 20, 30).await;
    assert_eq!(keep_open(&mut sockets).await, 20);
    let refused = gateway.try_socket("/v3/x", "").await;
    assert!(refused.is_err_and(|refused| refused.status == 429));
    lower(&|plan| plan.subscriptions = 5, 45).await;
    assert_eq!(keep_open(&mut sockets).await, 5);
    lower(&|plan| plan.connections = 0, 50).await;
    assert_eq!((keep_open(&mut sockets).await, gateway.metric(CLOSED_BY_POLICY)), (0, 50));
}

#[tokio::test]
async fn a_revoked_key_ends_its_connections() {
    let dir = tempfile::tempdir().unwrap();
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let now = jiff::Timestamp::now();
    let [revoked, kept] = ["a", "b"].map(|name| file.create(&NewKey::of(name, "dev"), now).unwrap());
    let path = file.path().to_owned();
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.auth.keys_file = Some(path)).start().await;
    let mut sockets = open_many(&gateway, revoked.key.expose(), MANY, "slotSubscribe").await;
    let mut others = open_many(&gateway, kept.key.expose(), 50, "slotSubscribe").await;
    // A reload without a change for them concerns nobody.
    gateway.app.reload(&gateway.front().config.copy()).unwrap();
    file.revoke(&revoked.id, now).unwrap();
    let codes = join_all(sockets.iter_mut().map(TestSocket::closed)).await;
    assert!(codes.iter().all(|code| *code == 1008), "{codes:?}");
    let closed = u64::try_from(MANY).unwrap();
    assert_eq!((keep_open(&mut others).await, gateway.metric(CLOSED_BY_POLICY)), (50, closed));
    let refused = gateway.try_socket(&format!("/v3/{}", revoked.key.expose()), "").await;
    assert!(refused.is_err_and(|refused| refused.status == 401));
}

#[tokio::test]
async fn a_stop_tells_every_client_to_go() {
    const NOTICE: Duration = Duration::from_secs(1);
    let gateway =
        TestGateway::builder().nodes(1).grace_periods(|periods| periods.notice = NOTICE).start().await;
    let mut sockets = open_many(&gateway, "dev", MANY, "slotSubscribe").await;
    assert_eq!(gateway.in_flight(), 0, "an idle socket holds no permit of a request");
    let began = Instant::now();
    let closed = async {
        let codes = join_all(sockets.iter_mut().map(TestSocket::closed)).await;
        (codes, began.elapsed())
    };
    let (stopped, (codes, lasted)) = tokio::join!(timeout(PATIENCE, gateway.app.stop()), closed);
    assert!(codes.iter().all(|code| *code == 1001), "{codes:?}");
    assert!(lasted >= NOTICE, "sockets end after the notice, not after {lasted:?}");
    assert!(stopped.is_ok());
}

#[tokio::test]
async fn a_socket_ends_at_its_maximum_age() {
    const AGE: Duration = Duration::from_secs(1);
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| config.server.max_socket_age = Some(AGE))
        .start()
        .await;
    let began = Instant::now();
    let mut socket = gateway.socket().await;
    socket.subscribe("slotSubscribe", serde_json::json!([])).await;
    assert_eq!(socket.closed().await, 1001);
    assert!(began.elapsed() >= AGE);
}

#[tokio::test]
async fn a_client_that_ends_its_half_is_gone() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut stream = gateway.connect().await;
    let handshake = "GET /v3/dev HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                     sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(handshake.as_bytes()).await.unwrap();
    read_until(&mut stream, |seen| seen.contains("\r\n\r\n")).await;
    // It could still read, but would never be heard again.
    stream.shutdown().await.unwrap();
    gateway.until("the connection is gone", || gateway.connections() == 0).await;
    assert_eq!(gateway.metric("slotfront_ws_connections"), 0);
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

/// Asserts that the gateway serves WebSockets and calls at its second listener, and returns its address.
async fn second_listener(gateway: &TestGateway) -> SocketAddr {
    let address = gateway.app.socket.unwrap();
    assert_ne!(address, gateway.app.public);
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut socket = TestSocket::open(stream, "/v3/dev", "").await.unwrap();
    socket.subscribe("slotSubscribe", json!([])).await;
    let health = gateway.client.get(format!("http://{address}/health")).send().await.unwrap();
    assert_eq!(health.text().await.unwrap(), "ok");
    address
}

#[tokio::test]
async fn the_second_listener_serves_the_same() {
    let any = "127.0.0.1:0".parse().unwrap();
    let at = |place| TestGateway::builder().nodes(1).config(move |config| config.server.ws_listen = place);
    second_listener(&at(WsListen::At(any)).start().await).await;
    let mut next = at(WsListen::Next).start().await;
    for _ in 0..20 {
        // Usually the next port is free.
        if next.app.socket.is_none() {
            next = at(WsListen::Next).start().await;
        }
    }
    assert_eq!(second_listener(&next).await.port(), next.app.public.port() + 1);
    // If it is not, the start goes on without it, because nobody has named it.
    let mut config = next.front().config.copy();
    let (public, taken) = loop {
        let one = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = one.local_addr().unwrap();
        let port = address.port().wrapping_add(1);
        if let Ok(after) = TcpListener::bind(SocketAddr::new(address.ip(), port)).await {
            break (one, after);
        }
    };
    config.server.listen = public.local_addr().unwrap();
    drop(public);
    let bound = Listeners::bind(&config).await.unwrap();
    assert!(bound.socket.is_none());
    let why = bound.no_socket.unwrap();
    let port = taken.local_addr().unwrap().port();
    assert!(why.starts_with(&format!("port {port} is taken, so client libraries do not find")), "{why}");
    // Whoever names the port gets it, or an error.
    drop(bound.public);
    config.server.ws_listen = WsListen::At(taken.local_addr().unwrap());
    let error = Listeners::bind(&config).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("server.ws_listen: cannot listen on 127.0.0.1:{port}: ")), "{error}");
}
