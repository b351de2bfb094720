//! HTTP/1.1 on the wire: requests in pieces and in a row, callers that leave, answers that are read slowly.

use std::time::Duration;

use serde_json::json;
use slotfront::config::Config;
use slotfront_testkit::wire::{exchange, is_whole, post, read_until};
use slotfront_testkit::{PATIENCE, TestGateway};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

fn call(method: &str, params: &serde_json::Value) -> String {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()
}

#[tokio::test]
async fn requests_may_be_split_and_pipelined() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let request = post("/v3/dev", "", &call("getClusterNodes", &json!([])));
    let whole = exchange(&mut gateway.connect().await, request.as_bytes()).await;
    let (mut socket, mut other) = (gateway.connect().await, gateway.connect().await);
    socket.set_nodelay(true).unwrap();
    for cut in 1..request.len() {
        let (begin, end) = request.as_bytes().split_at(cut);
        socket.write_all(begin).await.unwrap();
        // Once a later request is answered, the beginning has been read.
        exchange(&mut other, request.as_bytes()).await;
        assert_eq!(exchange(&mut socket, end).await.2, whole.2, "cut at {cut}");
    }
    let many = request.repeat(100);
    socket.write_all(many.as_bytes()).await.unwrap();
    let answers = read_until(&mut socket, |seen| seen.matches("\"id\":1}\n").count() == 100).await;
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 100);
}

#[tokio::test]
async fn requests_of_all_kinds_follow_each_other() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let body = |id: u8| json!({"jsonrpc": "2.0", "id": id, "method": "getClusterNodes"}).to_string();
    let plain = |id| post("/v3/dev", "", &body(id));
    let chunked = {
        let (one, other) = (body(2), format!("{:x}", body(2).len()));
        format!(
            "POST /v3/dev HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{other}\r\n{one}\r\n0\r\n\r\n"
        )
    };
    let get = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n".to_owned();
    let all = [plain(1), chunked, plain(3), get, plain(4)];
    for at_once in [true, false] {
        let mut socket = gateway.connect().await;
        let mut seen = String::new();
        let pieces = if at_once { vec![all.concat()] } else { all.to_vec() };
        for (i, piece) in pieces.iter().enumerate() {
            socket.write_all(piece.as_bytes()).await.unwrap();
            let wanted = if at_once { all.len() } else { i + 1 };
            let before = seen.matches("HTTP/1.1 200 OK").count();
            let more = read_until(&mut socket, |more| {
                before + more.matches("HTTP/1.1 200 OK").count() == wanted && is_whole_last(more)
            });
            seen += &more.await;
        }
        let ids: Vec<_> = [1, 2, 3, 4].map(|id| seen.find(&format!("\"id\":{id}}}"))).into();
        assert!(ids.is_sorted() && ids.iter().all(Option::is_some), "{ids:?} {seen}");
        assert!(seen.contains("\r\n\r\nok"), "{seen}");
    }
}

/// Returns true if the last HTTP response in `seen` is complete.
fn is_whole_last(seen: &str) -> bool {
    seen.rfind("HTTP/1.1 ").is_some_and(|last| is_whole(&seen[last..]))
}

#[tokio::test]
async fn leaving_client_releases_its_permit() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let in_flight = || gateway.in_flight();
    let hold = gateway.cluster.node(0).hold("getVoteAccounts");
    let request = post("/v3/dev", "", &call("getVoteAccounts", &json!([])));
    let (mut goes, mut waits) = (gateway.connect().await, gateway.connect().await);
    for socket in [&mut goes, &mut waits] {
        socket.write_all(request.as_bytes()).await.unwrap();
    }
    hold.arrived(1).await;
    gateway.until("both are served", || in_flight() == 2).await;
    drop(goes);
    gateway.until("the first client's call has ended", || in_flight() == 1).await;
    // A client that sends a request before it has the previous answer keeps its connection.
    waits.write_all(request.as_bytes()).await.unwrap();
    drop(hold);
    let answers = read_until(&mut waits, |seen| seen.matches("HTTP/1.1 200 OK").count() == 2).await;
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
    gateway.until("all is written", || in_flight() == 0).await;
}

#[tokio::test]
async fn long_answer_is_in_flight_until_taken() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let in_flight = || gateway.in_flight();
    let slot = gateway.cluster.examples().block_with_v0;
    let block = call("getBlock", &json!([slot, {"maxSupportedTransactionVersion": 0}]));
    // The answers exceed the kernel's buffers of both sides by far.
    let request = post("/v3/dev", "", &format!("[{}]", vec![block; 20].join(",")));
    let mut socket = gateway.connect().await;
    let one = exchange(&mut socket, request.as_bytes()).await.2.len();
    assert!(one > 16 << 10, "{one} bytes are too few for what is tested");
    let count = (64 << 20) / one;
    let (mut reading, mut writing) = socket.into_split();
    let writes = async {
        for _ in 0..count {
            writing.write_all(request.as_bytes()).await.unwrap();
        }
    };
    let reads = async {
        gateway.until("the gateway waits for the client", || in_flight() == 1).await;
        gateway.round_trips().await;
        assert_eq!((in_flight(), gateway.front().outgoing.used() > 0), (1, true));
        let (mut read, mut buffer) = (0, vec![0; 1 << 20]);
        while read < count * one {
            read += reading.read(&mut buffer).await.unwrap();
        }
    };
    tokio::join!(writes, reads);
    gateway.until("the client has read all answers", || in_flight() == 0).await;
    assert_eq!(gateway.front().outgoing.used(), 0);
}

#[tokio::test]
async fn the_last_answer_says_so() {
    let short = Duration::from_millis(10);
    let gateway = TestGateway::builder()
        .nodes(1)
        .grace_periods(|periods| (periods.notice, periods.last_moment) = (short, short))
        .start()
        .await;
    let hold = gateway.cluster.node(0).hold("getVoteAccounts");
    let (mut idles, mut served) = (gateway.connect().await, gateway.connect().await);
    let nodes = post("/v3/dev", "", &call("getClusterNodes", &json!([])));
    exchange(&mut idles, nodes.as_bytes()).await;
    let request = post("/v3/dev", "", &call("getVoteAccounts", &json!([])));
    served.write_all(request.as_bytes()).await.unwrap();
    hold.arrived(1).await;
    let app = &gateway.app;
    let idle_ends = async {
        assert_eq!(idles.read(&mut [0; 8]).await.unwrap(), 0, "an idle connection just ends");
        hold.release();
    };
    let answered = async {
        let answer = read_until(&mut served, is_whole).await;
        (answer, served.read(&mut [0; 8]).await)
    };
    let ((), (), (head, ended)) = tokio::join!(app.stop(), idle_ends, answered);
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("\r\nconnection: close\r\n"), "{head}");
    assert!(matches!(ended, Ok(0)), "{ended:?}");
}

#[tokio::test]
async fn stop_during_a_write_closes_after_it() {
    let configure = |config: &mut Config| {
        config.server.drain_timeout = 2 * PATIENCE;
        // No timer wakes the connection before the end of the drain.
        config.server.header_timeout = 4 * PATIENCE;
        (config.server.max_batch, config.server.max_body) = (500, 64 << 10);
        config.plans.get_mut("dev").expect("the dev plan").max_batch = None;
    };
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(configure)
        .grace_periods(|periods| periods.notice = Duration::from_millis(10))
        .start()
        .await;
    let slot = gateway.cluster.examples().block_with_v0;
    let block = call("getBlock", &json!([slot, {"maxSupportedTransactionVersion": 0}]));
    // This answer exceeds the kernel's buffers of both sides, because the client's buffer is small. No request
    // follows this one.
    let request = post("/v3/dev", "", &format!("[{}]", vec![block; 500].join(",")));
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut socket = socket.connect(gateway.app.public).await.unwrap();
    let app = &gateway.app;
    // The connection waits for requests before and after a short exchange, so it already watches for a stop when
    // the long request comes.
    gateway.round_trips().await;
    exchange(&mut socket, post("/v3/dev", "", &call("getClusterNodes", &json!([]))).as_bytes()).await;
    gateway.round_trips().await;
    socket.write_all(request.as_bytes()).await.unwrap();
    gateway.until("the gateway waits for the client", || gateway.in_flight() == 1).await;
    gateway.round_trips().await;
    let taken = async {
        gateway.until_closed().await;
        let mut all = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut all)).await;
        drop(socket);
        ended
    };
    let ((), ended) = tokio::join!(app.stop(), taken);
    // Only the time is checked: a connection with a request that was not served may end with a reset.
    assert!(ended.is_ok(), "the connection ends with the answer, not with the drain");
}

#[tokio::test]
async fn truncated_body_is_refused() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let request = post("/v3/dev", "", &call("getClusterNodes", &json!([])));
    let mut socket = gateway.connect().await;
    socket.write_all(&request.as_bytes()[..request.len() - 5]).await.unwrap();
    socket.shutdown().await.unwrap();
    let answer = read_until(&mut socket, |_| false).await;
    let head = answer.starts_with("HTTP/1.1 400 ") && answer.contains("connection: close");
    assert!(head && answer.ends_with("the request body ended early\n"), "{answer}");
}
