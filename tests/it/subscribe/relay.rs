//! Subscriptions that only a node can serve, with nodes' WebSockets that a test controls.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use slotfront::config::Secret;
use slotfront::methods::AnyMethod;
use slotfront::methods::Commitment::{Confirmed, Processed};
use slotfront::node::websocket::accept_key;
use slotfront_sim::{Fault, probe_methods};
use slotfront_testkit::{TestGateway, node_answer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio::time::sleep;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::task::TaskTracker;

use super::signature;
use super::signatures::land;

/// The WebSocket of a node. It accepts all subscriptions but those whose params contain "refuse".
pub(crate) struct NodeSocket {
    pub(crate) url: Secret,
    state: Arc<NodeState>,
}

struct NodeState {
    /// The calls that the node has got, as `method params`.
    calls: Mutex<Vec<String>>,
    /// The ids that the node gave, each with its call.
    ids: Mutex<Vec<(u64, String)>>,
    last_id: AtomicU64,
    is_silent: AtomicBool,
    /// True if the node gives one id to all subscriptions.
    has_one_id: AtomicBool,
    /// True if the first notification of a subscription comes before the answer to its call.
    is_early: AtomicBool,
    /// True if answers to subscribing calls are not sent.
    is_slow: AtomicBool,
    /// The newest slot.
    slot: AtomicU64,
    /// The method that the node does not serve.
    lacks: Mutex<String>,
    /// True if answers have null members, and ids as strings, as some providers write them.
    is_provider: AtomicBool,
    /// Texts for all open sockets. An empty one closes them.
    send: broadcast::Sender<String>,
}

impl NodeSocket {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Secret::new(format!("ws://{}/path", listener.local_addr().unwrap()));
        let state = Arc::new(NodeState {
            calls: Mutex::default(),
            ids: Mutex::default(),
            last_id: AtomicU64::new(100),
            is_silent: AtomicBool::new(false),
            has_one_id: AtomicBool::new(false),
            is_early: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
            slot: AtomicU64::new(1_000),
            lacks: Mutex::new("none".to_owned()),
            is_provider: AtomicBool::new(false),
            send: broadcast::channel(4_096).0,
        });
        let (tasks, shared) = (TaskTracker::new(), Arc::clone(&state));
        tasks.clone().spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tasks.spawn(Arc::clone(&shared).serve(stream));
            }
        });
        Self { url, state }
    }

    /// Stops announcing slots.
    pub(super) fn fall_silent(&self) {
        self.state.is_silent.store(true, Ordering::Relaxed);
    }

    /// Closes the open sockets.
    pub(super) fn close(&self) {
        let _ = self.state.send.send(String::new());
    }

    /// Returns the number of calls that contain `text`.
    pub(super) fn calls(&self, text: &str) -> usize {
        self.state.calls.lock().unwrap().iter().filter(|call| call.contains(text)).count()
    }

    /// Notifies of `result` all subscriptions whose calls contain `text`.
    pub(super) fn notify(&self, text: &str, method: &str, result: &Value) {
        for (id, call) in &*self.state.ids.lock().unwrap() {
            if call.contains(text) {
                let params = json!({"result": result, "subscription": id});
                let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
                let _ = self.state.send.send(message.to_string());
            }
        }
    }
}

impl NodeState {
    async fn serve(self: Arc<Self>, mut stream: TcpStream) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("GET /path HTTP/1.1\r\n"), "{head}");
        let key = head.lines().find_map(|line| line.strip_prefix("sec-websocket-key: ")).unwrap();
        let mut send = self.send.subscribe();
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: {}\r\n\r\n",
            accept_key(key.as_bytes())
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
        let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
        let mut slots_id = None;
        loop {
            let out = tokio::select! {
                message = socket.next() => match message {
                    Some(Ok(Message::Text(text))) => {
                        let call: Value = serde_json::from_str(&text).unwrap();
                        let name = format!("{} {}", call["method"].as_str().unwrap(), call["params"]);
                        let has_one_id = self.has_one_id.load(Ordering::Relaxed);
                        let id = if has_one_id { 0 } else { self.last_id.fetch_add(1, Ordering::Relaxed) };
                        if name.starts_with("slotSubscribe") {
                            slots_id = Some(id);
                        }
                        self.calls.lock().unwrap().push(name.clone());
                        let kind = name.split_once("Subscribe").map(|(kind, _)| kind.to_owned());
                        if let Some(kind) = kind.filter(|kind| kind != "slot" && self.is_early.load(Ordering::Relaxed)) {
                            let params = json!({"result": "early", "subscription": id});
                            let early = json!({"jsonrpc": "2.0", "method": format!("{kind}Notification"), "params": params});
                            if socket.send(Message::text(early.to_string())).await.is_err() {
                                return;
                            }
                        }
                        let is_slow = self.is_slow.load(Ordering::Relaxed) && name.contains("logsSubscribe");
                        let mut answer = if name.starts_with(&*self.lacks.lock().unwrap()) {
                            json!({"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": call["id"]})
                        } else if name.contains("refuse") {
                            json!({"jsonrpc": "2.0", "error": {"code": -32602, "message": "no"}, "id": call["id"]})
                        } else if name.contains("Unsubscribe") {
                            json!({"jsonrpc": "2.0", "result": true, "id": call["id"]})
                        } else {
                            self.ids.lock().unwrap().push((id, name));
                            json!({"jsonrpc": "2.0", "result": id, "id": call["id"]})
                        };
                        if self.is_provider.load(Ordering::Relaxed) {
                            answer["id"] = answer["id"].to_string().into();
                            let absent = if answer.get("result").is_some() { "error" } else { "result" };
                            answer[absent] = Value::Null;
                        }
                        if is_slow {
                            let (send, state) = (self.send.clone(), Arc::clone(&self));
                            TaskTracker::new().spawn(async move {
                                while state.is_slow.load(Ordering::Relaxed) {
                                    sleep(Duration::from_millis(10)).await;
                                }
                                send.send(answer.to_string())
                            });
                            continue;
                        }
                        answer.to_string()
                    }
                    Some(Ok(_)) => continue,
                    Some(Err(_)) | None => return,
                },
                Ok(text) = send.recv() => text,
                () = sleep(Duration::from_millis(20)), if slots_id.is_some() && !self.is_silent.load(Ordering::Relaxed) => {
                    let slot = self.slot.fetch_add(1, Ordering::Relaxed) + 1;
                    let result = json!({"slot": slot, "parent": slot - 1, "root": slot - 32});
                    let params = json!({"result": result, "subscription": slots_id});
                    json!({"jsonrpc": "2.0", "method": "slotNotification", "params": params}).to_string()
                }
            };
            if out.is_empty() || socket.send(Message::text(out)).await.is_err() {
                return;
            }
        }
    }
}

/// Starts a gateway in front of two nodes, whose WebSockets the test controls.
pub(super) async fn start() -> (TestGateway, [NodeSocket; 2]) {
    let nodes = [NodeSocket::start().await, NodeSocket::start().await];
    (start_with([nodes[0].url.clone(), nodes[1].url.clone()]).await, nodes)
}

async fn start_with(urls: [Secret; 2]) -> TestGateway {
    TestGateway::builder()
        .nodes(2)
        .in_tiers()
        .config(|config| {
            for (upstream, url) in config.upstreams.iter_mut().zip(urls) {
                upstream.ws_url = Some(url);
            }
        })
        .start()
        .await
}

#[tokio::test]
async fn one_subscription_at_a_node_serves_all() {
    let (gateway, [node, reserve]) = start().await;
    let (mut one, mut other) = (gateway.socket().await, gateway.socket().await);
    let ours = [
        one.subscribe("logsSubscribe", json!(["all", {"commitment": "confirmed", "x": 1}])).await,
        other.subscribe("logsSubscribe", json!(["all", {"x": 1, "commitment": "confirmed"}])).await,
    ];
    assert_eq!((node.calls("logsSubscribe"), reserve.calls("")), (1, 0));
    let result =
        json!({"context": {"slot": 5}, "value": {"err": null, "logs": ["a", "ü"], "signature": "s"}});
    node.notify("logsSubscribe", "logsNotification", &result);
    for (socket, id) in [(&mut one, ours[0]), (&mut other, ours[1])] {
        assert_eq!(socket.notification().await, json!({"result": result, "subscription": id}));
    }
    // A node's refusal passes through.
    let refused = one.call("programSubscribe", json!(["refuse"])).await;
    assert_eq!(refused["error"], json!({"code": -32602, "message": "no"}));
    // The node's subscription ends with the last one here.
    one.call("logsUnsubscribe", json!([ours[0]])).await;
    other.call("logsUnsubscribe", json!([ours[1]])).await;
    gateway.until("the node's subscription ends", || node.calls("logsUnsubscribe") == 1).await;
    node.notify("logsSubscribe", "logsNotification", &result);
    one.subscribe("logsSubscribe", json!(["all", {"commitment": "confirmed", "x": 1}])).await;
    assert_eq!(node.calls("logsSubscribe"), 2);
    one.assert_quiet();
}

#[tokio::test]
async fn null_members_and_ids_as_strings_are_read() {
    let (gateway, [node, reserve]) = start().await;
    node.state.is_provider.store(true, Ordering::Relaxed);
    let mut socket = gateway.socket().await;
    let ours = socket.subscribe("logsSubscribe", json!(["all"])).await;
    node.notify("logsSubscribe", "logsNotification", &json!(7));
    assert_eq!(socket.notification().await, json!({"result": 7, "subscription": ours}));
    let refused = socket.call("programSubscribe", json!(["refuse"])).await;
    assert_eq!(refused["error"], json!({"code": -32602, "message": "no"}));
    assert_eq!(reserve.calls(""), 0, "the first node is well");
}

/// Some providers read the numbers of a notification as floating point.
#[tokio::test]
async fn a_rounded_rent_epoch_is_put_right_in_notifications() {
    let (gateway, [node, _]) = start().await;
    let mut socket = gateway.socket().await;
    socket.subscribe("programSubscribe", json!(["11111111111111111111111111111111"])).await;
    let of = |rent_epoch: Value| {
        let account = json!({"lamports": 5, "rentEpoch": rent_epoch, "space": 0});
        json!({"context": {"slot": 5}, "value": {"account": account, "pubkey": "x"}})
    };
    node.notify("programSubscribe", "programNotification", &of(json!(2_f64.powi(64))));
    assert_eq!(socket.notification().await["result"], of(json!(u64::MAX)));
}

/// Whoever hears of a transaction reads what it has changed, although an older answer is still fresh, and although the first
/// node is behind.
#[tokio::test]
async fn what_a_log_tells_of_is_in_the_next_balance() {
    let (gateway, [node, _]) = start().await;
    let wallet = gateway.cluster.examples().wallets[0].to_string();
    let confirmed = json!({"commitment": "confirmed"});
    let balance = gateway.call("getBalance", json!([wallet, confirmed]));
    let mut socket = gateway.socket().await;
    socket.subscribe("logsSubscribe", json!(["all", confirmed])).await;
    node_answer(gateway.cluster.node(0), "requestAirdrop", &json!([wallet, 77]));
    let landed = gateway.cluster.step_to_block();
    gateway.step_by(0).await;
    let before = balance.send().await.value().as_u64().unwrap();
    gateway.cluster.node(0).stand_still_at(Some(gateway.cluster.slot(Processed)));
    // No probe tells how far the nodes are.
    let nodes = gateway.cluster.nodes();
    let _held: Vec<_> =
        nodes.iter().flat_map(|node| probe_methods().iter().map(|method| node.hold(method))).collect();
    while gateway.cluster.slot(Confirmed) < landed {
        gateway.cluster.step();
    }
    let value = json!({"err": null, "logs": [], "signature": "s"});
    node.notify("logsSubscribe", "logsNotification", &json!({"context": {"slot": landed}, "value": value}));
    socket.notification().await;
    assert_eq!(balance.send().await.value(), before + 77);
}

/// A node gives questions that mean the same one id.
#[tokio::test]
async fn two_spellings_of_one_question_are_told_alike() {
    let (gateway, [node, _]) = start().await;
    let config = json!({"encoding": "binary", "filters": null, "x": 1, "commitment": "finalized"});
    let spellings = [json!(["p"]), json!(["p", {}]), json!(["p", null]), json!(["p", config])];
    let mut sockets = Vec::new();
    for spelling in &spellings {
        let mut socket = gateway.socket().await;
        socket.subscribe("programSubscribe", spelling.clone()).await;
        sockets.push(socket);
    }
    assert_eq!(node.calls("programSubscribe"), 1);
    // Where the node knows better than we do, its id feeds both questions, until the last subscriber has left.
    node.state.has_one_id.store(true, Ordering::Relaxed);
    let mut others = [gateway.socket().await, gateway.socket().await];
    let mut ids = Vec::new();
    for (socket, key) in others.iter_mut().zip(["q", "r"]) {
        ids.push(socket.subscribe("programSubscribe", json!([key])).await);
    }
    node.notify(r#"["q"]"#, "programNotification", &json!(7));
    for (socket, id) in others.iter_mut().zip(&ids) {
        assert_eq!(socket.notification().await, json!({"result": 7, "subscription": id}));
    }
    let [mut one, mut other] = others;
    one.call("programUnsubscribe", json!([ids[0]])).await;
    // A third one comes and goes, so that the node's subscriptions were looked at since.
    let third = other.subscribe("voteSubscribe", json!([])).await;
    other.call("voteUnsubscribe", json!([third])).await;
    gateway.until("an unused subscription ends", || node.calls("voteUnsubscribe") == 1).await;
    assert_eq!(node.calls("programUnsubscribe"), 0);
    node.notify(r#"["r"]"#, "programNotification", &json!(8));
    assert_eq!(other.notification().await["result"], 8);
    other.call("programUnsubscribe", json!([ids[1]])).await;
    gateway.until("the node's subscription ends", || node.calls("programUnsubscribe [0]") == 1).await;
}

/// Whatever clients write, one question is one subscription at the node, and each connection is told once.
#[tokio::test]
async fn two_hundred_spellings_are_one_subscription() {
    let (gateway, [node, reserve]) = start().await;
    let choices = [
        ("commitment", vec![Value::Null, json!("finalized"), json!("unknown")]),
        ("encoding", vec![Value::Null, json!("binary")]),
        ("filters", vec![Value::Null, json!([])]),
        ("withContext", vec![Value::Null, json!(false)]),
        ("minContextSlot", vec![json!(1)]),
    ];
    // Each member is left out or has one of its values.
    let mut configs = vec![serde_json::Map::new()];
    for (name, values) in choices {
        for config in configs.clone() {
            configs.extend(values.iter().map(|value| {
                let mut config = config.clone();
                config.insert(name.to_owned(), value.clone());
                config
            }));
        }
    }
    assert!(configs.len() >= 200, "{}", configs.len());
    let mut clients = Vec::new();
    for configs in configs.chunks(25) {
        let mut socket = gateway.socket().await;
        let mut ids = BTreeSet::new();
        for config in configs {
            ids.insert(socket.subscribe("programSubscribe", json!(["p", config])).await);
        }
        assert_eq!(ids.len(), 1, "equal params are one subscription of a connection");
        clients.push((socket, ids.pop_first().unwrap()));
    }
    assert_eq!((node.calls("programSubscribe"), reserve.calls("")), (1, 0));
    for round in 0..2 {
        node.notify("programSubscribe", "programNotification", &json!(round));
        for (socket, id) in &mut clients {
            assert_eq!(socket.notification().await, json!({"result": round, "subscription": id}));
        }
    }
    drop(clients);
    gateway.until("the node's subscription ends", || node.calls("programUnsubscribe") == 1).await;
}

/// A node's socket and its answers over HTTP fail apart from each other, and whoever needs one of them is told of its fault
/// alone.
#[tokio::test]
async fn a_socket_and_statuses_fail_alone() {
    let (gateway, nodes) = start().await;
    let payment = json!([signature(1), {"commitment": "confirmed"}]);
    let mut watcher = gateway.socket().await;
    watcher.subscribe("logsSubscribe", json!(["all"])).await;
    let refusal = Fault::Error { code: -32603, message: "Internal error".to_owned() };
    gateway.cluster.fault_everywhere("getSignatureStatuses", &refusal);
    let mut payer = gateway.socket().await;
    payer.subscribe("signatureSubscribe", payment.clone()).await;
    let height = gateway.call("getBlockHeight", json!([{"commitment": "confirmed"}]));
    assert_eq!(height.send().await.status, 200);
    assert_eq!(payer.closed().await, 1012);
    nodes[0].notify("logsSubscribe", "logsNotification", &json!(1));
    assert_eq!(watcher.notification().await["result"], 1);
    // The reverse.
    gateway.cluster.clear_faults();
    let mut payer = gateway.socket().await;
    let id = payer.subscribe("signatureSubscribe", payment).await;
    nodes.iter().for_each(NodeSocket::fall_silent);
    assert_eq!(watcher.closed().await, 1012);
    land(&gateway, gateway.cluster.slot(Confirmed), Confirmed, &Value::Null);
    gateway.cluster.step();
    assert_eq!(payer.notification().await["subscription"], id);
}

/// A Firedancer numbers by kind.
#[tokio::test]
async fn one_id_of_two_kinds_is_two_subscriptions() {
    let (gateway, [node, _]) = start().await;
    node.state.has_one_id.store(true, Ordering::Relaxed);
    let mut socket = gateway.socket().await;
    let votes = socket.subscribe("voteSubscribe", json!([])).await;
    let logs = socket.subscribe("logsSubscribe", json!(["all"])).await;
    for (method, result, id) in [("voteNotification", "a", votes), ("logsNotification", "b", logs)] {
        node.notify("voteSubscribe", method, &json!(result));
        assert_eq!(socket.notification().await, json!({"result": result, "subscription": id}));
    }
    socket.assert_quiet();
}

#[tokio::test]
async fn what_comes_before_the_answer_of_a_node_comes_after_ours() {
    let (gateway, [node, _]) = start().await;
    node.state.is_early.store(true, Ordering::Relaxed);
    let mut sockets = [gateway.socket().await, gateway.socket().await];
    let params = || json!(["all", {"commitment": "confirmed"}]);
    let [one, other] = &mut sockets;
    let ids =
        tokio::join!(one.subscribe("logsSubscribe", params()), other.subscribe("logsSubscribe", params()));
    assert_eq!(one.notification().await, json!({"result": "early", "subscription": ids.0}));
    if node.calls("logsSubscribe") == 1 {
        node.notify("logsSubscribe", "logsNotification", &json!("late"));
        assert_eq!(one.notification().await["result"], "late");
    }
    one.assert_quiet();
}

#[tokio::test]
async fn what_one_node_does_not_serve_another_one_is_asked_for() {
    let (gateway, [node, reserve]) = start().await;
    "voteSubscribe".clone_into(&mut node.state.lacks.lock().unwrap());
    let mut socket = gateway.socket().await;
    let logs = socket.subscribe("logsSubscribe", json!(["all"])).await;
    let votes = socket.subscribe("voteSubscribe", json!([])).await;
    node.notify("logsSubscribe", "logsNotification", &json!(1));
    assert_eq!(socket.notification().await, json!({"result": 1, "subscription": logs}));
    reserve.notify("voteSubscribe", "voteNotification", &json!(2));
    assert_eq!(socket.notification().await, json!({"result": 2, "subscription": votes}));
    // It is remembered.
    gateway.socket().await.subscribe("voteSubscribe", json!([])).await;
    assert_eq!((node.calls("voteSubscribe"), reserve.calls("voteSubscribe")), (1, 1));
    // What no node serves is refused in a node's words.
    "slotsUpdates".clone_into(&mut node.state.lacks.lock().unwrap());
    "slotsUpdates".clone_into(&mut reserve.state.lacks.lock().unwrap());
    let refused = socket.call("slotsUpdatesSubscribe", json!([])).await;
    assert_eq!(refused["error"], json!({"code": -32601, "message": "Method not found"}));
}

#[tokio::test]
async fn upstream_methods_name_who_serves_a_subscription() {
    let nodes = [NodeSocket::start().await, NodeSocket::start().await];
    let urls = [nodes[0].url.clone(), nodes[1].url.clone()];
    let gateway = TestGateway::builder()
        .nodes(2)
        .in_tiers()
        .config(|config| {
            for (upstream, url) in config.upstreams.iter_mut().zip(urls) {
                upstream.ws_url = Some(url);
            }
            let all = AnyMethod::all().filter(|method| method.as_str() != "voteSubscribe");
            config.upstreams[0].methods = Some(all.collect());
        })
        .start()
        .await;
    let mut socket = gateway.socket().await;
    socket.subscribe("voteSubscribe", json!([])).await;
    socket.subscribe("logsSubscribe", json!(["all"])).await;
    assert_eq!([0, 1].map(|at| nodes[at].calls("voteSubscribe")), [0, 1]);
    assert_eq!([0, 1].map(|at| nodes[at].calls("logsSubscribe")), [1, 0]);
}

#[tokio::test]
async fn what_is_given_up_at_a_slow_node_is_ended_there() {
    let (gateway, [node, _]) = start().await;
    gateway.socket().await.subscribe("voteSubscribe", json!([])).await;
    node.state.is_slow.store(true, Ordering::Relaxed);
    let mut hasty = gateway.socket().await;
    hasty.send(r#"{"jsonrpc":"2.0","id":1,"method":"logsSubscribe","params":["all"]}"#).await;
    gateway.until("the node is asked", || node.calls("logsSubscribe") == 1).await;
    drop(hasty);
    gateway.until("the client has gone", || gateway.front().subscriptions.clients() == 0).await;
    node.state.is_slow.store(false, Ordering::Relaxed);
    gateway.until("the node's subscription ends", || node.calls("logsUnsubscribe") == 1).await;
}

#[tokio::test]
async fn a_node_that_falls_behind_is_left() {
    let (gateway, [node, reserve]) = start().await;
    let newest = gateway.cluster.slot(Processed);
    for of in [&node, &reserve] {
        of.state.slot.store(newest, Ordering::Relaxed);
    }
    let mut socket = gateway.socket().await;
    socket.subscribe("logsSubscribe", json!(["all"])).await;
    node.state.slot.store(newest - 100, Ordering::Relaxed);
    let stands_still = async {
        loop {
            node.state.slot.store(newest - 100, Ordering::Relaxed);
            sleep(Duration::from_millis(10)).await;
        }
    };
    let closed = tokio::select! {
        code = socket.closed() => code,
        () = stands_still => unreachable!(),
    };
    assert_eq!(closed, 1012);
    gateway.socket().await.subscribe("logsSubscribe", json!(["all"])).await;
    assert_eq!(reserve.calls("logsSubscribe"), 1);
}

/// Whoever was shown a slot by a node's notification is not told of an earlier one.
#[tokio::test]
async fn reads_do_not_go_back_behind_a_notification() {
    let (gateway, [node, _]) = start().await;
    let mut socket = gateway.socket().await;
    socket.subscribe("logsSubscribe", json!(["all", {"commitment": "confirmed"}])).await;
    let slot = gateway.cluster.slot(Confirmed);
    node.notify("logsSubscribe", "logsNotification", &json!({"context": {"slot": slot}, "value": 1}));
    socket.notification().await;
    assert_eq!(gateway.front().tip.slot(Confirmed), slot);
}

#[tokio::test]
async fn clients_who_subscribe_at_once_are_one_call() {
    let (gateway, [node, _]) = start().await;
    let mut sockets = Vec::new();
    for _ in 0..20 {
        sockets.push(gateway.socket().await);
    }
    join_all(sockets.iter_mut().map(|socket| socket.subscribe("voteSubscribe", json!([])))).await;
    assert_eq!(node.calls("voteSubscribe"), 1);
    node.notify("voteSubscribe", "voteNotification", &json!(7));
    for socket in &mut sockets {
        assert_eq!(socket.notification().await["result"], json!(7));
        socket.assert_quiet();
    }
}

#[tokio::test]
async fn a_lost_node_ends_what_it_fed() {
    let (gateway, [node, reserve]) = start().await;
    let (mut fed, mut plain) = (gateway.socket().await, gateway.socket().await);
    fed.subscribe("voteSubscribe", json!([])).await;
    plain.subscribe("rootSubscribe", json!([])).await;
    node.close();
    assert_eq!(fed.closed().await, 1012);
    let mut again = gateway.socket().await;
    again.subscribe("voteSubscribe", json!([])).await;
    assert_eq!(reserve.calls("voteSubscribe"), 1, "at another node");
    assert_eq!(gateway.metric("slotfront_ws_node_losses_total"), 1);
    assert!(plain.call("rootSubscribe", json!([])).await["result"].is_u64(), "no node's WebSocket feeds it");
}

#[tokio::test]
async fn a_silent_node_is_not_trusted() {
    let (gateway, [node, reserve]) = start().await;
    node.fall_silent();
    let mut socket = gateway.socket().await;
    socket.subscribe("slotsUpdatesSubscribe", json!([])).await;
    assert_eq!((node.calls("slotsUpdatesSubscribe"), reserve.calls("slotsUpdatesSubscribe")), (0, 1));
    // Nor is one that falls silent later.
    reserve.fall_silent();
    assert_eq!(socket.closed().await, 1012);
}

#[tokio::test]
async fn a_node_that_answers_no_handshake_is_passed_over() {
    let (mute, reserve) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), NodeSocket::start().await);
    let urls = [Secret::new(format!("ws://{}/", mute.local_addr().unwrap())), reserve.url.clone()];
    let gateway = start_with(urls).await;
    let mut socket = gateway.socket().await;
    let subscribing = socket.subscribe("voteSubscribe", json!([]));
    let (accepted, _) = tokio::join!(mute.accept(), subscribing);
    assert!(accepted.is_ok(), "it was asked first");
    assert_eq!(reserve.calls("voteSubscribe"), 1);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_closed_alone() {
    let (gateway, [node, _]) = start().await;
    let (mut lazy, mut eager) = (gateway.narrow_socket().await, gateway.socket().await);
    for socket in [&mut lazy, &mut eager] {
        socket.subscribe("logsSubscribe", json!(["all"])).await;
    }
    // More than one frame, with characters of several bytes.
    let result = json!({"context": {"slot": 5}, "value": "ü".repeat(40_000)});
    let mut sent = 0;
    let lagged = "slotfront_ws_closes_total{reason=\"lagged\"}";
    while gateway.metric(lagged) == 0 {
        node.notify("logsSubscribe", "logsNotification", &result);
        sent += 1;
        assert_eq!(eager.notification().await["result"], result);
        assert!(sent < 1_000, "a client may leave {sent} notifications unread");
    }
    assert_eq!(gateway.metric(lagged), 1);
    gateway.until("nothing waits to be sent", || gateway.front().subscriptions.queued_bytes() == 0).await;
    let code = lazy.closed().await;
    assert!(code == 1013 || code == 0, "{code}");
}
