//! The beginning and the end of connections: HTTP/2 without TLS (prior knowledge), the PROXY protocol, and the
//! gateway's stop.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::join_all;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use hyper::Request;
use serde_json::{Value, json};
use slotfront::config::AuthMode;
use slotfront_testkit::{PATIENCE, TestGateway};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_util::task::TaskTracker;

/// Opens a connection that accepts at most `window` bytes of an answer before it asks for more.
async fn connect(gateway: &TestGateway, window: u32) -> SendRequest<Bytes> {
    let socket = TcpStream::connect(gateway.app.public).await.unwrap();
    let mut builder = h2::client::Builder::new();
    let (calls, connection) = builder.initial_window_size(window).handshake(socket).await.unwrap();
    TaskTracker::new().spawn(connection);
    calls.ready().await.unwrap()
}

fn request(gateway: &TestGateway) -> Request<()> {
    Request::post(&gateway.url).header("content-type", "application/json").body(()).unwrap()
}

fn call(method: &str, params: &Value) -> Bytes {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string().into()
}

#[tokio::test]
async fn a_hundred_calls_share_one_connection() {
    let mut gateway = TestGateway::builder().nodes(1).start().await;
    gateway.client = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    let first = gateway.get_nodes().send().await;
    let replies = join_all((0..100).map(|_| gateway.get_nodes().send())).await;
    assert!(replies.iter().all(|reply| (reply.status, &reply.text) == (200, &first.text)));
    assert_eq!(gateway.connections(), 1);
    // A refused request gets its usual answer, and does not end the connection.
    let long = gateway.post("x".repeat(60 * 1024)).send().await;
    assert_eq!((long.status, long.text.as_str()), (413, "request body size exceeds allowed maximum"));
    assert_eq!(gateway.get_nodes().key("wrong").send().await.status, 401);
    assert_eq!(gateway.connections(), 1);
}

#[tokio::test]
async fn answer_holds_its_permit_until_taken() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let newest = gateway.cluster.slot(slotfront::methods::Commitment::Finalized);
    let slot = (0..=newest).rev().find(|slot| gateway.cluster.has_block(*slot)).unwrap();
    let block = call("getBlock", &json!([slot, {"maxSupportedTransactionVersion": 0}]));
    let block = String::from_utf8(block.to_vec()).unwrap();
    let batch = format!("[{}]", vec![block; 10].join(","));
    let plain = gateway.post(batch.clone()).send().await.text;
    assert!(plain.len() > 40 * 1024, "{} bytes are too few for what is tested", plain.len());
    let in_flight = || gateway.in_flight();

    let mut calls = connect(&gateway, 1000).await;
    let (reply, mut body) = calls.send_request(request(&gateway), false).unwrap();
    body.send_data(batch.into(), true).unwrap();
    let mut answer = reply.await.unwrap().into_body();
    let mut whole = answer.data().await.unwrap().unwrap().to_vec();
    assert_eq!((whole.len() <= 1000, in_flight(), gateway.front().outgoing.used() > 0), (true, 1, true));
    answer.flow_control().release_capacity(whole.len()).unwrap();
    while let Some(data) = answer.data().await {
        let data = data.unwrap();
        answer.flow_control().release_capacity(data.len()).unwrap();
        whole.extend_from_slice(&data);
    }
    assert_eq!(String::from_utf8(whole).unwrap(), plain);
    gateway.until("the request is no longer in flight", || in_flight() == 0).await;
    assert_eq!(gateway.front().outgoing.used(), 0);
}

#[tokio::test]
async fn calls_that_are_reset_leave_nothing_behind() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let hold = gateway.cluster.node(0).hold("getVoteAccounts");
    let mut calls = connect(&gateway, 65_535).await;
    let in_flight = || gateway.in_flight();
    let mut open = Vec::new();
    for _ in 0..10 {
        let (reply, mut body) = calls.send_request(request(&gateway), false).unwrap();
        body.send_data(call("getVoteAccounts", &json!([])), true).unwrap();
        open.push((reply, body));
    }
    gateway.until("all are in flight", || in_flight() == 10).await;
    for (reply, mut body) in open {
        body.send_reset(h2::Reason::CANCEL);
        drop(reply);
    }
    gateway.until("none is in flight", || in_flight() == 0).await;
    hold.release();
    let (reply, mut body) = calls.send_request(request(&gateway), false).unwrap();
    body.send_data(call("getVoteAccounts", &json!([])), true).unwrap();
    assert_eq!(reply.await.unwrap().status(), 200, "the connection still serves calls");
}

/// Requests whose bodies never arrive.
#[derive(Default)]
struct Waiting {
    open: Vec<(ResponseFuture, SendStream<Bytes>)>,
    refused: usize,
}

impl Waiting {
    /// Begins `count` more requests with `key`.
    fn begin(&mut self, gateway: &TestGateway, calls: &mut SendRequest<Bytes>, key: &str, count: usize) {
        let url = gateway.url_of(key);
        for _ in 0..count {
            let head = Request::post(&url).header("content-type", "application/json").body(()).unwrap();
            self.open.push(calls.send_request(head, false).unwrap());
        }
    }

    /// Returns the number of requests that the gateway has refused so far.
    fn refused(&mut self) -> usize {
        let before = self.open.len();
        self.open.retain_mut(|(reply, _)| {
            let refused = reply.now_or_never().map(|reply| reply.unwrap_err().reason());
            assert!(refused.is_none_or(|reason| reason == Some(Reason::REFUSED_STREAM)), "{refused:?}");
            refused.is_none()
        });
        self.refused += before - self.open.len();
        self.refused
    }
}

/// Returns the status of a call with the key `dev`.
async fn called(gateway: &TestGateway, calls: &mut SendRequest<Bytes>) -> u16 {
    let (reply, mut body) = calls.send_request(request(gateway), false).unwrap();
    body.send_data(call("getClusterNodes", &json!([])), true).unwrap();
    reply.await.unwrap().status().as_u16()
}

#[tokio::test]
async fn keyless_connections_have_sixteen_requests() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let (mut calls, mut waiting) = (connect(&gateway, 65_535).await, Waiting::default());
    waiting.begin(&gateway, &mut calls, "wrong", 19);
    gateway.until("three are refused", || waiting.refused() == 3).await;
    assert_eq!(called(&gateway, &mut calls).await, 200, "a good key is never refused");
    waiting.begin(&gateway, &mut calls, "wrong", 9);
    assert_eq!(called(&gateway, &mut calls).await, 200);
    assert_eq!(waiting.refused(), 3, "the connection has shown a good key");
}

#[tokio::test]
async fn one_address_leaves_http2_requests_for_the_others() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            (config.server.max_connections, config.server.max_in_flight) = (10, 10);
        })
        .start()
        .await;
    let (mut calls, mut waiting) = (connect(&gateway, 65_535).await, Waiting::default());
    waiting.begin(&gateway, &mut calls, "dev", 20);
    gateway.until("some are refused", || waiting.refused() > 0).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let socket = socket.connect(gateway.app.public).await.unwrap();
    let (mut others, connection) = h2::client::handshake(socket).await.unwrap();
    TaskTracker::new().spawn(connection);
    assert_eq!(called(&gateway, &mut others).await, 200);
}

#[tokio::test]
async fn stop_finishes_calls_and_sends_goaway() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .grace_periods(|periods| periods.notice = Duration::from_millis(10))
        .start()
        .await;
    let hold = gateway.cluster.node(0).hold("getVoteAccounts");
    let mut calls = connect(&gateway, 65_535).await;
    let (reply, mut body) = calls.send_request(request(&gateway), false).unwrap();
    body.send_data(call("getVoteAccounts", &json!([])), true).unwrap();
    gateway.until("the call is in flight", || gateway.in_flight() == 1).await;
    let app = &gateway.app;
    let seen = async {
        gateway.until_closed().await;
        hold.release();
        assert_eq!(reply.await.unwrap().status(), 200);
    };
    tokio::join!(app.stop(), seen);
    assert!(calls.ready().await.is_err(), "the connection has ended");
}

#[tokio::test]
async fn new_connections_are_served_until_the_stop() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| config.server.header_timeout = PATIENCE)
        .grace_periods(|periods| {
            (periods.notice, periods.last_moment) = (Duration::from_millis(10), PATIENCE);
        })
        .start()
        .await;
    let app = &gateway.app;
    let mut late = TcpStream::connect(app.public).await.unwrap();
    gateway.until("the connection is open", || gateway.connections() == 1).await;
    let seen = async {
        gateway.until_closed().await;
        assert_eq!(say(&mut late, b"").await, "HTTP/1.1 200 OK");
        drop(late);
    };
    tokio::join!(app.stop(), seen);
}

#[tokio::test]
async fn forty_preflights_at_once_need_no_key() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut calls = connect(&gateway, 65_535).await;
    let preflights: Vec<_> = (0..40)
        .map(|_| calls.send_request(Request::options(&gateway.url).body(()).unwrap(), true).unwrap().0)
        .collect();
    for answer in join_all(preflights).await {
        assert_eq!(answer.unwrap().status(), 200);
    }
}

/// Makes one call on a new connection that begins with the bytes `begins`. Returns the status line, or an
/// empty string if no answer comes.
async fn status(address: SocketAddr, begins: &[u8]) -> String {
    say(&mut TcpStream::connect(address).await.unwrap(), begins).await
}

/// Makes one call on an open connection, after the bytes `begins`. Returns the status line, or an empty
/// string if no answer comes.
async fn say(socket: &mut TcpStream, begins: &[u8]) -> String {
    let body = String::from_utf8(call("getClusterNodes", &json!([])).to_vec()).unwrap();
    let head = format!(
        "POST /v3/dev HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let _ = socket.write_all(&[begins, head.as_bytes(), body.as_bytes()].concat()).await;
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn proxy_protocol_names_the_client() {
    let header = |client: [u8; 4]| {
        let addresses = [&client[..], &[10, 0, 0, 1, 1, 2, 3, 4]].concat();
        [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &addresses].concat()
    };
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.server.proxy_protocol = true;
            config.server.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
            // The plan allows each client one call, so the statuses show which client a call counts for.
            config.auth.mode = AuthMode::Open;
            config.auth.open_plan = Some("dev".to_owned());
            let plan = config.plans.get_mut("dev").unwrap();
            (plan.rps, plan.burst) = (1, 1);
        })
        .start()
        .await;
    let address = gateway.app.public;
    for (name, begins, expected) in [
        ("one client", header([192, 0, 2, 1]), "HTTP/1.1 200 OK"),
        ("the same again", header([192, 0, 2, 1]), "HTTP/1.1 429 Too Many Requests"),
        ("another", header([192, 0, 2, 2]), "HTTP/1.1 200 OK"),
        ("the balancer itself", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0".to_vec(), "HTTP/1.1 200 OK"),
        ("a client that is not named", b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0".to_vec(), "HTTP/1.1 200 OK"),
        ("another", b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0".to_vec(), "HTTP/1.1 429 Too Many Requests"),
        ("version 1", b"PROXY TCP4 192.0.2.3 10.0.0.1 1 2\r\n".to_vec(), "HTTP/1.1 200 OK"),
        ("the same again", header([192, 0, 2, 3]), "HTTP/1.1 429 Too Many Requests"),
        ("IPv4 called IPv6", b"PROXY TCP6 192.0.2.4 10.0.0.1 1 2\r\n".to_vec(), ""),
        ("a line without an end", [&b"PROXY TCP4 "[..], &[b'1'; 200]].concat(), ""),
        ("no header", Vec::new(), ""),
    ] {
        assert_eq!(status(address, &begins).await, expected, "{name}");
    }
    let strangers = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.server.proxy_protocol = true;
            config.server.trusted_proxies = vec!["10.0.0.0/8".parse().unwrap()];
        })
        .start()
        .await;
    let address = strangers.app.public;
    assert_eq!(
        status(address, &header([192, 0, 2, 1])).await,
        "",
        "an address that is not trusted names no client"
    );
}
