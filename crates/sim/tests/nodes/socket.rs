//! Tests of the WebSocket of a simulated node, over real connections.

use std::sync::Arc;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use slotfront_rpc::methods::{Commitment, Pubkey, Slot};
use slotfront_sim::{Cluster, Fault, Node, Settings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::sending::{Client, blockhash, send};
use super::{HISTORY, call, result};

/// A cluster that listens. It stops when the guard is dropped.
struct Served {
    cluster: Arc<Cluster>,
    _stop: DropGuard,
}

impl Served {
    async fn start(nodes: usize) -> Self {
        let settings = Settings { slot_time: None, history_slots: HISTORY, nodes, ..Settings::default() };
        let (cluster, stop) = (Cluster::new(settings), CancellationToken::new());
        let mut listeners = vec![];
        for _ in 0..nodes {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        Arc::clone(&cluster).serve(listeners, &TaskTracker::new(), stop.clone()).await;
        Self { cluster, _stop: stop.drop_guard() }
    }

    fn node(&self) -> &Node {
        self.cluster.node(0)
    }

    async fn connect(&self, node: usize) -> Socket {
        let mut stream = TcpStream::connect(self.cluster.node(node).address().unwrap()).await.unwrap();
        // The key and the answer to it are those of RFC 6455.
        let head = "GET /any/path HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        while !answer.ends_with("\r\n\r\n") {
            answer.push(stream.read_u8().await.unwrap().into());
        }
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        assert!(answer.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{answer}");
        Socket(WebSocketStream::from_raw_socket(stream, Role::Client, None).await)
    }
}

struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    async fn send(&mut self, text: impl Into<String>) {
        self.0.send(Message::text(text.into())).await.unwrap();
    }

    async fn next(&mut self) -> Value {
        let message = self.0.next().await.unwrap().unwrap();
        serde_json::from_str(message.to_text().unwrap()).unwrap()
    }

    /// Returns the next answer to a call, which must come before any notification.
    async fn call(&mut self, method: &str, params: Value) -> Value {
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        self.send(call.to_string()).await;
        let answer = self.next().await;
        assert!(answer.get("id").is_some(), "{method} {params}: {answer}");
        answer
    }

    async fn subscribe(&mut self, method: &str, params: Value) -> u64 {
        let answer = self.call(method, params).await;
        answer["result"].as_u64().unwrap_or_else(|| panic!("{method}: {answer}"))
    }

    /// Returns the result of the next notification of a subscription, which must be the next message.
    async fn notified(&mut self, method: &str, subscription: u64) -> Value {
        let mut message = self.next().await;
        assert_eq!(
            (&message["method"], &message["params"]["subscription"]),
            (&json!(method), &json!(subscription)),
            "{message}"
        );
        message["params"]["result"].take()
    }

    /// Waits for the end of the connection, which must be the next event.
    async fn ended(&mut self) {
        let end = self.0.next().await;
        assert!(end.as_ref().is_none_or(Result::is_err), "{end:?}");
    }
}

/// Returns the blocks of a node in the order of their slots: those after `after`.
fn blocks(node: &Node, after: Slot) -> Vec<Slot> {
    let has_block = |slot: &Slot| call(node, "getBlockTime", &json!([slot])).get("error").is_none();
    (after + 1..=node.slot(Commitment::Processed)).filter(has_block).collect()
}

#[tokio::test]
async fn slots_and_roots_come_once_and_in_order() {
    let served = Served::start(2).await;
    let node = served.node();
    let (mut socket, mut behind) = (served.connect(0).await, served.connect(1).await);
    let slots = socket.subscribe("slotSubscribe", json!([])).await;
    let roots = socket.subscribe("rootSubscribe", json!([])).await;
    assert_ne!(slots, roots);
    served.cluster.node(1).set_lag(20);
    let others = behind.subscribe("slotSubscribe", json!([])).await;
    let (tip, root) = (node.slot(Commitment::Processed), node.slot(Commitment::Finalized));
    served.cluster.step_by(60);
    let mut seen_roots = vec![];
    for slot in blocks(node, tip) {
        let shown = socket.notified("slotNotification", slots).await;
        assert_eq!(shown["slot"], slot);
        assert!(shown["parent"].as_u64() < Some(slot));
        seen_roots.push(socket.notified("rootNotification", roots).await);
        assert_eq!(shown["root"], *seen_roots.last().unwrap());
    }
    let last = seen_roots.last().unwrap().as_u64().unwrap();
    assert_eq!(last, node.slot(Commitment::Finalized));
    let expected: Vec<Slot> = blocks(node, root).into_iter().filter(|slot| *slot <= last).collect();
    assert_eq!(json!(seen_roots), json!(expected));
    for slot in blocks(served.cluster.node(1), tip) {
        assert_eq!(
            behind.notified("slotNotification", others).await["slot"],
            slot,
            "a node shows its own slots"
        );
    }
    assert_eq!(behind.call("slotUnsubscribe", json!([others])).await["result"], true);
}

#[tokio::test]
async fn a_payment_is_notified_at_each_commitment() {
    let served = Served::start(1).await;
    let (node, client) = (served.node(), Client::funded(&served.cluster));
    let mut socket = served.connect(0).await;
    let to = served.cluster.examples().nonce_account;
    let before = served.cluster.account_at(&to, node.slot(Commitment::Processed)).unwrap().lamports;
    let wire = client.transfer(&blockhash(node), to, 5_000_000);
    let signature = bs58::encode(&wire[1..65]).into_string();
    let level = |commitment: &str| json!({ "commitment": commitment, "encoding": "base64" });
    let key = to.to_string();
    let mut all = vec![];
    for commitment in ["processed", "confirmed", "finalized"] {
        all.push([
            socket.subscribe("signatureSubscribe", json!([signature, level(commitment)])).await,
            socket.subscribe("accountSubscribe", json!([key, level(commitment)])).await,
            socket.subscribe("logsSubscribe", json!([{ "mentions": [key] }, level(commitment)])).await,
        ]);
    }
    let filters = json!({ "commitment": "processed", "encoding": "base64", "filters": [{ "dataSize": 80 }] });
    let program =
        socket.subscribe("programSubscribe", json!(["11111111111111111111111111111111", filters])).await;
    let told = json!({ "commitment": "processed", "enableReceivedNotification": true });
    let receipt = socket.subscribe("signatureSubscribe", json!([signature, told])).await;
    assert_eq!(send(node, &wire, &json!({}))["result"], signature);
    let slot = served.cluster.step_to_block();
    let with_context = |value: Value| json!({ "context": { "slot": slot }, "value": value });
    let account = json!({ "data": result(node, "getAccountInfo", &json!([key, level("processed")]))["value"]["data"],
        "executable": false, "lamports": before + 5_000_000, "owner": "11111111111111111111111111111111",
        "rentEpoch": u64::MAX, "space": 80 });
    let system = "Program 11111111111111111111111111111111";
    let logs = json!({ "signature": signature, "err": null,
        "logs": [format!("{system} invoke [1]"), format!("{system} success")] });
    for (at, [signed, written, logged]) in all.into_iter().enumerate() {
        while node.slot(Commitment::ALL[at]) < slot {
            served.cluster.step();
        }
        // Each subscription looks at the new block in turn, so they are notified in the order of their making.
        let shown = socket.notified("signatureNotification", signed).await;
        assert_eq!(shown["value"], json!({ "err": null }));
        assert!(shown["context"]["slot"].as_u64() >= Some(slot));
        assert_eq!(socket.notified("accountNotification", written).await, with_context(account.clone()));
        assert_eq!(socket.notified("logsNotification", logged).await, with_context(logs.clone()));
        if at == 0 {
            let value = json!({ "pubkey": key, "account": account });
            assert_eq!(socket.notified("programNotification", program).await, with_context(value));
            let received = socket.notified("signatureNotification", receipt).await;
            assert_eq!(received, with_context("receivedSignature".into()));
            assert_eq!(
                socket.notified("signatureNotification", receipt).await["value"],
                json!({ "err": null })
            );
            // The account is written no more, and a notified signature is no subscription any longer.
            assert_eq!(socket.call("programUnsubscribe", json!([program])).await["result"], true);
            assert_eq!(socket.call("signatureUnsubscribe", json!([signed])).await["error"]["code"], -32_602);
        }
    }
}

#[tokio::test]
async fn a_late_signature_is_answered_at_the_next_block() {
    let served = Served::start(1).await;
    let node = served.node();
    let wire = Client::funded(&served.cluster).transfer(
        &blockhash(node),
        served.cluster.examples().wallets[1],
        1_000_000_000_000_000,
    );
    let signature = send(node, &wire, &json!({ "skipPreflight": true }))["result"].take();
    served.cluster.step_by(50);
    let mut socket = served.connect(0).await;
    let late = socket.subscribe("signatureSubscribe", json!([signature])).await;
    served.cluster.step_to_block();
    let shown = socket.notified("signatureNotification", late).await;
    let context = json!({ "slot": node.slot(Commitment::Finalized) });
    assert_eq!(
        shown,
        json!({ "context": context, "value": { "err": { "InstructionError": [0, { "Custom": 1 }] } } })
    );
    served.cluster.step_by(350);
    let later = socket.subscribe("signatureSubscribe", json!([signature])).await;
    served.cluster.step_by(5);
    assert_eq!(
        socket.call("signatureUnsubscribe", json!([later])).await["result"],
        true,
        "300 blocks later, never"
    );
}

#[tokio::test]
async fn calls_are_answered_as_a_node_answers_them() {
    let served = Served::start(1).await;
    let mut socket = served.connect(0).await;
    let key = served.cluster.examples().wallets[0].to_string();
    for (method, params, code, words) in [
        ("accountSubscribe", json!(["x"]), -32_602, "Invalid Request: Invalid pubkey provided"),
        ("accountSubscribe", json!([]), -32_602, "`params` should have at least 1 argument(s)"),
        ("signatureSubscribe", json!(["x"]), -32_602, "Invalid Request: Invalid signature provided"),
        (
            "logsSubscribe",
            json!([{ "mentions": ["x"] }]),
            -32_602,
            "Invalid Request: Invalid mentions provided",
        ),
        (
            "logsSubscribe",
            json!([{ "mentions": [key, key] }]),
            -32_602,
            "Invalid Request: Only 1 address supported",
        ),
        (
            "programSubscribe",
            json!([key, { "filters": [{ "memcmp": { "offset": 0, "bytes": "!" } }] }]),
            -32_602,
            "Invalid params: Invalid param: Base58DecodeError(InvalidCharacter { character: '!', index: 0 })",
        ),
        ("blockSubscribe", json!(["all"]), -32_601, "Method not found"),
        ("voteSubscribe", json!([]), -32_601, "Method not found"),
        ("getSlot", json!([]), -32_601, "Method not found"),
        ("accountUnsubscribe", json!([999]), -32_602, "Invalid subscription id."),
        (
            "accountUnsubscribe",
            json!([]),
            -32_602,
            "Invalid params: invalid length 0, expected a tuple of size 1.",
        ),
    ] {
        let answer = socket.call(method, params).await;
        assert_eq!(answer["error"], json!({ "code": code, "message": words }), "{method}");
    }
    let first = socket.subscribe("accountSubscribe", json!([key])).await;
    let same = json!([key, { "commitment": "finalized", "encoding": "binary" }]);
    assert_eq!(socket.subscribe("accountSubscribe", same).await, first, "equal params are one subscription");
    assert_ne!(
        socket.subscribe("accountSubscribe", json!([key, { "commitment": "confirmed" }])).await,
        first
    );
    assert_eq!(socket.call("slotUnsubscribe", json!([first])).await["result"], true);
    assert_eq!(socket.call("accountUnsubscribe", json!([first])).await["error"]["code"], -32_602);
    // What has no id gets no answer, so the next answer is that to the batch.
    socket.send(r#"{"jsonrpc":"2.0","method":"ping"}"#).await;
    socket.send("[]").await;
    socket.send(r#"[{"jsonrpc":"2.0","id":7,"method":"x"}]"#).await;
    assert_eq!(socket.next().await[0]["id"], 7);
    socket.send("nope").await;
    assert_eq!(socket.next().await["error"], json!({ "code": -32_700, "message": "Parse error" }));
    // One subscription is left from above.
    for n in 1..=1_000_u64 {
        let key = Pubkey(std::array::from_fn(|at| n.to_le_bytes()[at % 8])).to_string();
        let answer = socket.call("accountSubscribe", json!([key])).await;
        assert_eq!(answer.get("result").is_some(), n < 1_000, "{n}: {answer}");
        if n == 1_000 {
            let words = "Internal Error: Subscription refused. Node subscription limit reached";
            assert_eq!(answer["error"], json!({ "code": -32_603, "message": words }));
        }
    }
    socket
        .send(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":["{}"]}}"#, "y".repeat(4_090)))
        .await;
    socket.ended().await;
}

#[tokio::test]
async fn sockets_meet_the_faults_of_their_node() {
    let served = Served::start(1).await;
    let (cluster, node) = (&served.cluster, served.node());
    let mut socket = served.connect(0).await;
    let slots = socket.subscribe("slotSubscribe", json!([])).await;
    node.fault(Fault::Hang);
    let hung = [cluster.step_to_block(), cluster.step_to_block()];
    node.clear_faults();
    for slot in hung {
        assert_eq!(socket.notified("slotNotification", slots).await["slot"], slot, "it goes on where it was");
    }
    node.fault_on("rootSubscribe", Fault::Error { code: -32_005, message: "busy".to_owned() }, Some(1));
    assert_eq!(socket.call("rootSubscribe", json!([])).await["error"]["code"], -32_005);
    // Without the full API a node keeps subscriptions and never notifies.
    node.set_full_api(false);
    cluster.step_to_block();
    let answer = socket.call("rootSubscribe", json!([])).await;
    assert!(answer["result"].is_u64(), "{answer}");
    node.set_full_api(true);
    let slot = cluster.step_to_block();
    assert_eq!(socket.notified("slotNotification", slots).await["slot"], slot);
    node.fault_on("upgrade", Fault::Status(503), Some(1));
    let mut refused = TcpStream::connect(node.address().unwrap()).await.unwrap();
    let head = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    refused.write_all(head.as_bytes()).await.unwrap();
    let mut start = [0; 12];
    refused.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 503");
    assert_eq!(node.calls("upgrade"), 2);
    socket.notified("rootNotification", answer["result"].as_u64().unwrap()).await;
    node.set_down(true);
    socket.ended().await;
}

#[tokio::test]
async fn a_close_is_answered() {
    let served = Served::start(1).await;
    let mut socket = served.connect(0).await;
    socket.0.close(None).await.unwrap();
    let answer = socket.0.next().await;
    assert!(matches!(answer, Some(Ok(Message::Close(_)))), "{answer:?}");
    socket.ended().await;
}

#[tokio::test]
async fn slots_updates_tell_the_life_of_a_block() {
    let served = Served::start(1).await;
    let mut socket = served.connect(0).await;
    let id = socket.subscribe("slotsUpdatesSubscribe", json!([])).await;
    let slot = served.cluster.step_to_block();
    for kind in ["firstShredReceived", "createdBank", "completed", "frozen"] {
        let update = socket.notified("slotsUpdatesNotification", id).await;
        assert_eq!((&update["type"], &update["slot"]), (&json!(kind), &json!(slot)));
        assert_eq!(update["parent"].is_u64(), kind == "createdBank");
        assert_eq!(update["stats"].is_object(), kind == "frozen");
    }
    let last = loop {
        let update = socket.notified("slotsUpdatesNotification", id).await;
        if update["type"] == "root" {
            break update;
        }
        assert_eq!(update["type"], "optimisticConfirmation");
    };
    assert_eq!(last["slot"], served.node().slot(Commitment::Finalized));
}
