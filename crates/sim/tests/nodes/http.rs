//! Nodes over a real socket: a node's HTTP rules, and every fault as a client sees it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use slotfront_rpc::methods::Commitment;
use slotfront_sim::{Cluster, Fault, Node, Settings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{HISTORY, result};

/// The longest time for which a test waits for one event.
const PATIENCE: Duration = Duration::from_mins(1);

/// A served cluster. [`Self::end`] stops its servers.
struct Served {
    cluster: Arc<Cluster>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Served {
    async fn new(settings: Settings) -> Self {
        let cluster = Cluster::new(settings);
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let mut listeners = Vec::new();
        for _ in cluster.nodes() {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        Arc::clone(&cluster).serve(listeners, &tasks, stop.clone()).await;
        Self { cluster, tasks, stop }
    }

    async fn by_hand() -> Self {
        Self::new(Settings { slot_time: None, history_slots: HISTORY, ..Settings::default() }).await
    }

    fn node(&self) -> &Node {
        self.cluster.node(0)
    }

    async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        timeout(PATIENCE, self.tasks.wait()).await.expect("everything ends with stop");
    }
}

/// Sends `request`. Returns the text that arrived until the server closed the connection, or the error if the
/// server reset it.
async fn exchange(node: &Node, request: &[u8]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(node.address().unwrap()).await?;
    stream.write_all(request).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8(answer).unwrap())
}

fn request(verb: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{verb} / HTTP/1.1\r\nhost: node\r\nconnection: close\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Sends a call. Returns the HTTP status and the body.
async fn post(node: &Node, body: &str) -> (u16, String) {
    let answer = exchange(node, &request("POST", "application/json", body.as_bytes())).await.unwrap();
    split(&answer)
}

fn split(answer: &str) -> (u16, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

const SLOT: &str = r#"{"jsonrpc":"2.0","id":1,"method":"getSlot"}"#;
const CLOCK: &str = r#"{"jsonrpc":"2.0","id":1,"method":"getAccountInfo","params":["SysvarC1ock11111111111111111111111111111111",{"encoding":"base64"}]}"#;

#[track_caller]
fn check(answer: &str, status: u16, content_type: &str, body: &str) {
    assert_eq!(split(answer), (status, body.to_owned()));
    assert!(answer.contains(&format!("content-type: {content_type}\r\n")), "{answer}");
}

#[tokio::test]
async fn http_rules_are_a_nodes() {
    let served = Served::by_hand().await;
    let node = served.node();
    let text = "text/plain; charset=utf-8";
    let send = async |bytes: Vec<u8>| exchange(node, &bytes).await.unwrap();
    let slot = node.slot(Commitment::Finalized);
    let slot = format!("{{\"jsonrpc\":\"2.0\",\"result\":{slot},\"id\":1}}\n");
    let json = "application/json; charset=utf-8";
    for accepted in ["application/json", "Application/JSON;charset=utf-8", json] {
        check(&send(request("POST", accepted, SLOT.as_bytes())).await, 200, json, &slot);
    }
    let words = "Supplied content type is not allowed. Content-Type: application/json is required\n";
    check(&send(request("POST", "application/json;", SLOT.as_bytes())).await, 415, text, words);
    let words = "Used HTTP Method is not allowed. POST or OPTIONS is required\n";
    check(&send(request("PUT", "application/json", SLOT.as_bytes())).await, 405, text, words);
    let mut long = SLOT.as_bytes().to_vec();
    long.resize(51_200, b' ');
    check(&send(request("POST", json, &long)).await, 200, json, &slot);
    long.push(b' ');
    let words = "request body size exceeds allowed maximum";
    check(&send(request("POST", json, &long)).await, 413, text, words);
    let words = "utf-8 encoding error at byte 1 in request body";
    check(&send(request("POST", json, b"\"\xff\"")).await, 400, text, words);
    check(&send(request("POST", json, b"[]")).await, 200, json, "");
    let options = send(request("OPTIONS", json, b"")).await;
    assert!(options.contains("allow: OPTIONS, POST\r\n"), "{options}");
    let health = b"GET /health HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n";
    assert_eq!(split(&exchange(node, health).await.unwrap()).1, "ok");
    served.end().await;
}

#[tokio::test]
async fn answers_over_a_socket_are_those_in_place() {
    let served = Served::by_hand().await;
    let (status, body) = post(served.node(), CLOCK).await;
    assert_eq!((status, body.as_bytes()), (200, &served.node().answer(CLOCK.as_bytes())[..]));
    served.end().await;
}

#[tokio::test]
async fn faults_are_what_clients_meet() {
    let served = Served::by_hand().await;
    let node = served.node();
    let whole = String::from_utf8(node.answer(CLOCK.as_bytes())).unwrap();
    let next = |fault| node.fault_on("getAccountInfo", fault, Some(1));
    let call = request("POST", "application/json", CLOCK.as_bytes());

    next(Fault::Status429 { retry_after_s: 7 });
    let answer = exchange(node, &call).await.unwrap();
    assert_eq!(split(&answer).0, 429);
    assert!(answer.contains("retry-after: 7\r\n"), "{answer}");
    next(Fault::Status(503));
    assert_eq!(post(node, CLOCK).await.0, 503);
    next(Fault::Html);
    let (status, page) = post(node, CLOCK).await;
    assert!(status == 502 && page.starts_with("<html>"), "{status} {page}");
    next(Fault::WrongId);
    assert_eq!(post(node, CLOCK).await, (200, whole.replace("\"id\":1}", "\"id\":2}")));
    next(Fault::NullResult);
    assert_eq!(post(node, CLOCK).await.1, "{\"jsonrpc\":\"2.0\",\"result\":null,\"id\":1}\n");
    next(Fault::Error { code: -32_603, message: "Internal error".to_owned() });
    assert!(post(node, CLOCK).await.1.contains(r#""error":{"code":-32603,"message":"Internal error"}"#));

    next(Fault::Truncated);
    let answer = exchange(node, &call).await.unwrap();
    let (_, half) = split(&answer);
    assert!(answer.contains(&format!("content-length: {}\r\n", whole.len())), "{answer}");
    assert_eq!(half, whole[..whole.len() / 2]);

    next(Fault::Reset);
    let reset = exchange(node, &call).await.unwrap_err();
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);

    next(Fault::Huge(1_000_000));
    let (_, body) = split(&exchange(node, &call).await.unwrap());
    assert!(body.len() > 1_000_000, "{} bytes in chunks", body.len());
    let (begins, ends) = ("{\"jsonrpc\":\"2.0\",\"result\":\"\r\n", "\r\n\",\"id\":1}\n\r\n");
    assert!(body.contains(begins) && body.contains(ends), "one text under the id of the call");

    next(Fault::Nested(200_000));
    let nested = format!(
        "{{\"jsonrpc\":\"2.0\",\"result\":{}{},\"id\":1}}\n",
        "[".repeat(200_000),
        "]".repeat(200_000)
    );
    assert!(post(node, CLOCK).await == (200, nested), "an answer nested as deep as was told");
    next(Fault::Half);
    assert_eq!(post(node, CLOCK).await, (200, whole[..whole.len() / 2].to_owned()));
    next(Fault::Body { content_type: "text/html", text: "<html></html>" });
    check(&exchange(node, &call).await.unwrap(), 200, "text/html", "<html></html>");
    let slot = node.slot(Commitment::Finalized);
    next(Fault::Ahead(100_000));
    let expected = whole.replace(&format!("\"slot\":{slot}"), &format!("\"slot\":{}", slot + 100_000));
    assert_eq!(post(node, CLOCK).await, (200, expected));
    node.fault_on("getSlot", Fault::Ahead(7), Some(1));
    assert_eq!(
        post(node, SLOT).await.1,
        format!("{{\"jsonrpc\":\"2.0\",\"result\":{},\"id\":1}}\n", slot + 7)
    );

    let newest = node.slot(Commitment::Processed);
    let params = json!([{ "commitment": "processed", "minContextSlot": newest }]);
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "getSlot", "params": params }).to_string();
    node.fault_on("getSlot", Fault::TwoMachines, Some(2));
    let first: Value = serde_json::from_str(&post(node, &call).await.1).unwrap();
    let second: Value = serde_json::from_str(&post(node, &call).await.1).unwrap();
    assert_eq!(first["result"], newest);
    assert!(second["result"].as_u64() < Some(newest), "the other machine is behind: {second}");

    let block = json!([slot, { "transactionDetails": "none" }]);
    let right = result(node, "getBlock", &block);
    let other_fork = json!({ "previousBlockhash": "11111111111111111111111111111111", "rewards": [] });
    node.fault_on("getBlock", Fault::With(other_fork.clone()), Some(1));
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "getBlock", "params": block }).to_string();
    let with: Value = serde_json::from_str(&post(node, &call).await.1).unwrap();
    for (member, value) in with["result"].as_object().unwrap() {
        assert_eq!(value, other_fork.get(member).unwrap_or(&right[member]), "{member}");
    }
    assert_eq!(with["result"].as_object().unwrap().len(), right.as_object().unwrap().len());

    let latency = Duration::from_millis(60);
    next(Fault::Latency(latency));
    let asked_at = Instant::now();
    assert_eq!(post(node, CLOCK).await, (200, whole.clone()));
    assert!(asked_at.elapsed() >= latency, "{:?}", asked_at.elapsed());
    let asked = node.calls("getAccountInfo");
    next(Fault::Hang);
    let others = async {
        while node.calls("getAccountInfo") <= asked {
            tokio::task::yield_now().await;
        }
        for _ in 0..5 {
            assert_eq!(post(node, SLOT).await.0, 200);
        }
    };
    tokio::select! {
        answer = post(node, CLOCK) => panic!("it does not hang: {answer:?}"),
        () = others => {}
    }

    node.fault(Fault::Unhealthy);
    let health = r#"{"jsonrpc":"2.0","id":1,"method":"getHealth"}"#;
    assert!(post(node, health).await.1.contains(r#""code":-32005"#));
    assert_eq!(post(node, CLOCK).await, (200, whole));
    node.clear_faults();
    assert!(post(node, health).await.1.contains(r#""result":"ok""#));
    served.end().await;
}

#[tokio::test]
async fn a_node_that_is_down_refuses_connections() {
    let served = Served::by_hand().await;
    let node = served.node();
    let mut open = TcpStream::connect(node.address().unwrap()).await.unwrap();
    node.set_down(true);
    let ended = timeout(PATIENCE, open.read(&mut [0])).await.unwrap();
    assert!(matches!(ended, Ok(0) | Err(_)), "an open connection ends: {ended:?}");
    let refused = TcpStream::connect(node.address().unwrap()).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    node.set_down(false);
    let back = async {
        while TcpStream::connect(node.address().unwrap()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, back).await.unwrap();
    assert_eq!(post(node, SLOT).await.0, 200);
    served.end().await;
}

#[tokio::test]
async fn held_replies_wait_and_calls_are_counted() {
    let served = Served::by_hand().await;
    let node = served.node();
    let hold = node.hold("getAccountInfo");
    let calls = async { tokio::join!(post(node, CLOCK), post(node, CLOCK)) };
    let release = async {
        hold.arrived(2).await;
        assert_eq!(hold.waiting(), 2);
        assert_eq!(post(node, SLOT).await.0, 200);
        hold.release();
    };
    let ((a, b), ()) = tokio::join!(calls, release);
    assert_eq!(a, b);
    assert_eq!((node.calls("getAccountInfo"), node.calls("getSlot")), (2, 1));
    assert_eq!((node.calls_total(), node.calls_without_probes()), (3, 2));
    drop(hold);
    assert_eq!(post(node, CLOCK).await.0, 200);
    served.end().await;
}

#[tokio::test]
async fn served_cluster_advances_and_names_its_nodes() {
    let slot_time = Some(Duration::from_millis(10));
    let served = Served::new(Settings { slot_time, skipped_per_mille: 0, ..Settings::default() }).await;
    let before = served.cluster.slot(Commitment::Processed);
    let advanced = async {
        while served.cluster.slot(Commitment::Processed) < before + 5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, advanced).await.unwrap();
    let nodes = result(served.node(), "getClusterNodes", &json!([]));
    let listed: Vec<_> = nodes.as_array().unwrap().iter().map(|node| node["rpc"].as_str().unwrap()).collect();
    let expected: Vec<_> = served.cluster.nodes().iter().map(|n| n.address().unwrap().to_string()).collect();
    assert_eq!(listed, expected);
    served.end().await;
}
