//! Subscriptions over WebSockets: the protocol, the sources of notifications, and the ends of connections.

mod ends;
mod limits;
mod model;
mod others;
mod relay;
mod restarts;
mod signatures;
mod transports;

use serde_json::{Value, json};
use slotfront::methods::{Commitment, Signature};
use slotfront_sim::Fault;
use slotfront_testkit::wire::read_until;
use slotfront_testkit::{TestGateway, TestSocket};
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::tungstenite::Message;

pub(crate) use relay::NodeSocket;

const CLOCK: &str = "SysvarC1ock11111111111111111111111111111111";

/// Returns a signature that no transaction has.
fn signature(number: u64) -> String {
    let mut bytes = [7; 64];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    Signature(bytes).to_string()
}

/// Asserts that nothing was notified before an answer that the gateway gives now.
async fn nothing_more(socket: &mut TestSocket) {
    let answer = socket.call("slotUnsubscribe", json!([0])).await;
    assert_eq!(answer["error"]["code"], -32602);
    let after = socket.call("slotUnsubscribe", json!([0])).await;
    assert_eq!(after["error"]["message"], "Invalid subscription id.");
    socket.assert_quiet();
}

#[tokio::test]
async fn calls_count_by_their_own_names() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let (mut one, mut other) = (gateway.socket().await, gateway.socket().await);
    let clock = json!([CLOCK, { "commitment": "confirmed" }]);
    let id = one.subscribe("accountSubscribe", clock.clone()).await;
    for _ in 0..2 {
        other.subscribe("accountSubscribe", clock.clone()).await;
    }
    one.call("accountSubscribe", json!(["x"])).await;
    one.call("logsSubscribe", json!(["all"])).await;
    one.call("getSlot", json!([])).await;
    one.call("accountUnsubscribe", json!([id])).await;
    one.call("slotUnsubscribe", json!([id])).await;
    let metrics = gateway.admin("/metrics").await.text;
    let counted: Vec<_> =
        metrics.lines().filter_map(|line| line.strip_prefix("slotfront_requests_total")).collect();
    let expected = [
        r#"{commitment="confirmed",method="accountSubscribe",outcome="collapsed"} 2"#,
        r#"{commitment="confirmed",method="accountSubscribe",outcome="miss"} 1"#,
        r#"{commitment="finalized",method="logsSubscribe",outcome="invalid"} 1"#,
        r#"{commitment="none",method="accountSubscribe",outcome="invalid"} 1"#,
        r#"{commitment="none",method="other",outcome="invalid"} 1"#,
    ];
    assert_eq!(counted, expected);
    assert_eq!(gateway.metric(r#"slotfront_key_requests_total{outcome="collapsed",key="dev"}"#), 2);
}

#[tokio::test]
async fn calls_are_answered_in_a_nodes_words() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut socket = gateway.socket().await;
    for (message, expected) in [
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"getSlot"}"#,
            json!({"jsonrpc":"2.0","error":{"code":-32601,"message":"Method not found"},"id":1}),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"getAccountInfo","params":["x"]}"#,
            json!({"jsonrpc":"2.0","error":{"code":-32601,"message":"Method not found"},"id":1}),
        ),
        ("{", json!({"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"},"id":null})),
        (
            r#"{"jsonrpc":"2.0","id":"a","method":"accountSubscribe","params":["x"]}"#,
            json!({"jsonrpc":"2.0","error":{"code":-32602,"message":"Invalid Request: Invalid pubkey provided"},"id":"a"}),
        ),
        (
            r#"{"jsonrpc":"2.0","id":2,"method":"signatureSubscribe","params":["x"]}"#,
            json!({"jsonrpc":"2.0","error":{"code":-32602,"message":"Invalid Request: Invalid signature provided"},"id":2}),
        ),
        (
            r#"{"jsonrpc":"2.0","id":3,"method":"slotUnsubscribe","params":[7]}"#,
            json!({"jsonrpc":"2.0","error":{"code":-32602,"message":"Invalid subscription id."},"id":3}),
        ),
        (
            r#"{"jsonrpc":"2.0","id":4,"method":"logsSubscribe","params":["all"]}"#,
            json!({"jsonrpc":"2.0","error":{"code":-32601,"message":"Method not found: logsSubscribe needs the WebSocket of a node, and no upstream has a ws_url"},"id":4}),
        ),
    ] {
        socket.send(message).await;
        assert_eq!(socket.next().await, Ok(expected), "{message}");
        socket.send(Message::binary(message)).await;
        assert!(socket.next().await.is_ok(), "{message} in binary");
    }
    // Messages without id get nothing, so the next message is the answer to the batch.
    socket.send(r#"{"method":"ping"}"#).await;
    socket.send(r#"[{"jsonrpc":"2.0","method":"ping"}]"#).await;
    let call = |id: u64| json!({"jsonrpc":"2.0","id":id,"method":"slotSubscribe"});
    socket.send(json!([call(1), {"method":"ping"}, call(2), {"jsonrpc":"2.0","id":3,"method":"rootSubscribe","params":[]}]).to_string()).await;
    let batch = socket.next().await.unwrap();
    let results: Vec<_> =
        batch.as_array().unwrap().iter().map(|answer| answer["result"].as_u64().unwrap()).collect();
    assert!(results.len() == 3 && results[0] == results[1] && results[0] != results[2], "{batch}");
    assert!(results.iter().all(|id| *id < 1 << 53));
}

#[tokio::test]
async fn equal_params_are_one_subscription_of_a_connection() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let (mut one, mut other) = (gateway.socket().await, gateway.socket().await);
    let id = one.subscribe("accountSubscribe", json!([CLOCK])).await;
    let same = one
        .subscribe("accountSubscribe", json!([CLOCK, {"commitment": "finalized", "encoding": "binary"}]))
        .await;
    assert_eq!(id, same);
    let theirs = other.subscribe("accountSubscribe", json!([CLOCK])).await;
    assert_ne!(id, theirs);
    let invalid = json!({"code": -32602, "message": "Invalid subscription id."});
    assert_eq!(other.call("accountUnsubscribe", json!([id])).await["error"], invalid, "somebody else's");
    assert_eq!(one.call("accountUnsubscribe", json!([id])).await["result"], true);
    assert_eq!(one.call("accountUnsubscribe", json!([id])).await["error"], invalid, "twice");
    assert_eq!(gateway.metric("slotfront_ws_subscriptions{method=\"accountSubscribe\"}"), 1);
}

#[tokio::test]
async fn accounts_are_notified_of_when_they_change() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut socket = gateway.socket().await;
    let config = |encoding: &str| json!([CLOCK, {"commitment": "confirmed", "encoding": encoding}]);
    let mut ids = Vec::new();
    for encoding in ["base64", "jsonParsed", "base58"] {
        ids.push(socket.subscribe("accountSubscribe", config(encoding)).await);
    }
    let stable = gateway.cluster.examples().lookup_tables[0].to_string();
    socket
        .subscribe("accountSubscribe", json!([stable, {"commitment": "confirmed", "encoding": "base64"}]))
        .await;
    let mut last = vec![0; ids.len()];
    for _ in 0..3 {
        let slot = gateway.cluster.step_to_block();
        gateway.settled().await;
        for _ in &ids {
            let params = socket.notification().await;
            let at =
                ids.iter().position(|id| params["subscription"] == *id).unwrap_or_else(|| panic!("{params}"));
            let shown = params["result"]["context"]["slot"].as_u64().unwrap();
            assert!(shown > last[at] && shown <= slot, "{params}");
            assert!(params["result"]["context"].get("apiVersion").is_none());
            last[at] = shown;
        }
    }
    nothing_more(&mut socket).await;
}

#[tokio::test]
async fn a_deleted_account_is_shown_as_a_node_shows_it() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut socket = gateway.socket().await;
    let expected = [
        ("binary", json!("")),
        ("base58", json!(["", "base58"])),
        ("base64", json!(["", "base64"])),
        ("base64+zstd", json!(["KLUv/SAAAQAA", "base64+zstd"])),
        ("jsonParsed", json!(["", "base64"])),
    ];
    let mut ids = Vec::new();
    for (encoding, _) in &expected {
        let config = json!({"commitment": "confirmed", "encoding": encoding});
        ids.push(socket.subscribe("accountSubscribe", json!([CLOCK, config])).await);
    }
    let node = gateway.cluster.node(0);
    node.fault_on("getMultipleAccounts", Fault::With(json!({"value": [null]})), None);
    node.fault_on("getAccountInfo", Fault::With(json!({"value": null})), None);
    gateway.cluster.step_to_block();
    for _ in &ids {
        let params = socket.notification().await;
        let at = ids.iter().position(|id| params["subscription"] == *id).unwrap();
        let (encoding, data) = &expected[at];
        let shown = json!({"lamports": 0, "data": data, "owner": "11111111111111111111111111111111", "executable": false, "rentEpoch": 0, "space": 0});
        assert_eq!(params["result"]["value"], shown, "{encoding}");
    }
    // Nothing is the same frame wherever it is made: of an account without data, and of a slice without bytes.
    node.clear_faults();
    let wallet = gateway.cluster.examples().wallets[0].to_string();
    for (key, slice) in
        [(&*wallet, None), (&*wallet, Some((0, 8))), (CLOCK, Some((3, 0))), (CLOCK, Some((99, 8)))]
    {
        let slice = slice.map(|(offset, length)| json!({"offset": offset, "length": length}));
        let ask = async |encoding: &str| {
            let config = json!({"encoding": encoding, "dataSlice": slice});
            gateway.call("getAccountInfo", json!([key, config])).send().await.value()["data"].clone()
        };
        let packed = json!(["KLUv/SAAAQAA", "base64+zstd"]);
        assert_eq!(ask("base64+zstd").await, packed, "{key} {slice:?}, from the node");
        gateway.front().cache.purger().clear();
        ask("base64").await;
        assert_eq!(ask("base64+zstd").await, packed, "{key} {slice:?}, made of base64");
    }
}

/// A node notifies of an account that is too long for base58, with words in place of its data.
#[tokio::test]
async fn what_is_too_long_for_base58_is_told_in_a_nodes_words() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut socket = gateway.socket().await;
    for encoding in ["base58", "binary"] {
        let config = json!({"commitment": "confirmed", "encoding": encoding});
        socket.subscribe("accountSubscribe", json!([CLOCK, config])).await;
    }
    let node = gateway.cluster.node(0);
    let slot = gateway.cluster.step_to_block();
    let account = json!({"data": ["A".repeat(268), "base64"], "executable": false, "lamports": 7, "owner": CLOCK, "rentEpoch": 0, "space": 201});
    let answer = |value| Fault::Result(json!({"context": {"slot": slot}, "value": value}));
    node.fault_on("getMultipleAccounts", answer(json!([account])), None);
    node.fault_on("getAccountInfo", answer(account.clone()), None);
    let words = "error: data too large for bs58 encoding";
    let mut told = Vec::new();
    while told.len() < 2 {
        let shown = socket.notification().await["result"]["value"].clone();
        if shown["lamports"] == 7 {
            assert_eq!(shown["space"], 201);
            told.push(shown["data"].clone());
        }
    }
    told.sort_by_key(Value::is_array);
    assert_eq!(told, [json!(words), json!([words, "base58"])]);
}

#[tokio::test]
async fn slow_reads_of_accounts_do_not_wait_for_each_other() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut socket = gateway.socket().await;
    // Both are written by each block.
    for key in [CLOCK, "SysvarS1otHashes111111111111111111111111111"] {
        let config = json!([key, {"commitment": "confirmed", "encoding": "jsonParsed"}]);
        socket.subscribe("accountSubscribe", config).await;
    }
    let hold = gateway.cluster.node(0).hold("getAccountInfo");
    gateway.cluster.step_to_block();
    hold.arrived(2).await;
    hold.release();
    let [one, other] = [socket.notification().await, socket.notification().await];
    assert_ne!(one["subscription"], other["subscription"]);
}

#[tokio::test]
async fn slots_and_roots_rise_and_none_is_left_out() {
    let gateway = TestGateway::builder().nodes(2).start().await;
    let mut socket = gateway.socket().await;
    let slots = socket.subscribe("slotSubscribe", json!([])).await;
    let roots = socket.subscribe("rootSubscribe", json!([])).await;
    let before = [Commitment::Processed, Commitment::Finalized].map(|c| gateway.cluster.slot(c));
    gateway.step_by(1).await;
    gateway.step_by(20).await;
    let after = [Commitment::Processed, Commitment::Finalized].map(|c| gateway.cluster.slot(c));
    let (mut last, mut seen) = (before[0], Vec::new());
    let expected: Vec<_> =
        (before[1] + 1..=after[1]).filter(|slot| gateway.cluster.has_block(*slot)).collect();
    while last < after[0] || seen.len() < expected.len() {
        let params = socket.notification().await;
        if params["subscription"] == roots {
            seen.push(params["result"].as_u64().unwrap());
            continue;
        }
        assert_eq!(params["subscription"], slots);
        let slot = params["result"]["slot"].as_u64().unwrap();
        assert!(slot > last && params["result"]["parent"].as_u64().unwrap() < slot, "{params}");
        last = slot;
    }
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn handshakes_are_refused_like_calls() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.server.cors_origins = vec!["https://a.example".to_owned()];
            config.plans.get_mut("dev").unwrap().connections = 1;
        })
        .start()
        .await;
    let refused = async |path: &str, headers: &str| match gateway.try_socket(path, headers).await {
        Ok(_) => panic!("{path} {headers:?} was accepted"),
        Err(refused) => (refused.status, refused.body),
    };
    assert_eq!(refused("/v3/wrong", "").await.0, 401);
    assert_eq!(refused("/v3/dev", "origin: https://b.example\r\n").await.0, 403);
    let open = gateway.try_socket("/v3/dev", "origin: https://a.example\r\n").await.unwrap();
    let (status, body) = refused("/v3/dev", "").await;
    assert_eq!((status, body.as_str()), (429, "Too many requests: 1 open WebSockets\n"));
    drop(open);
    gateway.until("the connection is gone", || gateway.connections() == 0).await;
    gateway.try_socket("/v3/dev", "").await.unwrap();
}

#[tokio::test]
async fn a_handshake_is_whole_or_none() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut open = Vec::new();
    for (name, connection, rest, expected) in [
        ("as browsers send it", "keep-alive, Upgrade", "\r\n", "101"),
        ("in lower case", "upgrade", "\r\n", "101"),
        // A proxy that knows no upgrades may pass on `Upgrade`, and would take what follows for HTTP.
        ("no wish of the connection", "keep-alive", "\r\n", "405"),
        ("a body", "Upgrade", "content-length: 2\r\n\r\n{}", "101"),
        ("a body that is too long", "Upgrade", &format!("content-length: 60000\r\n\r\n{:60000}", ""), "413"),
        ("a body that ends early", "Upgrade", "transfer-encoding: chunked\r\n\r\nx\r\n", "400"),
    ] {
        let head = format!(
            "GET /v3/dev HTTP/1.1\r\nhost: x\r\nconnection: {connection}\r\nupgrade: WebSocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n{rest}"
        );
        let mut socket = gateway.connect().await;
        socket.write_all(head.as_bytes()).await.unwrap();
        let answer = read_until(&mut socket, |seen| seen.contains("\r\n\r\n")).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{name}: {answer}");
        open.push(socket);
    }
    gateway.until("three are open", || gateway.metric("slotfront_ws_connections") == 3).await;
}

#[tokio::test]
async fn a_call_in_the_packet_of_the_handshake_is_answered() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"slotSubscribe"}"#;
    let handshake = "GET /v3/dev HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                     sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    // A masked text frame, with a mask of zeros.
    let head = [0x81, 0x80 | u8::try_from(call.len()).unwrap(), 0, 0, 0, 0];
    let mut socket = gateway.connect().await;
    socket.write_all(&[handshake.as_bytes(), &head, call.as_bytes()].concat()).await.unwrap();
    let answer = read_until(&mut socket, |seen| seen.contains("\"id\":1}")).await;
    assert!(answer.starts_with("HTTP/1.1 101 ") && answer.contains("\"result\":"), "{answer}");
}

#[tokio::test]
async fn the_age_of_the_newest_slot_is_shown() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let age = || {
        let metrics = gateway.front().metrics.render();
        let line = metrics.lines().find_map(|line| line.strip_prefix("slotfront_ws_slot_age_seconds "));
        line.and_then(|age| age.parse::<f64>().ok()).unwrap_or_else(|| panic!("no age in\n{metrics}"))
    };
    gateway.until("no new slot comes", || age() > 0.5).await;
    let before = age();
    let is_younger = || {
        gateway.cluster.step();
        age() < before
    };
    gateway.until("new slots come", is_younger).await;
}
