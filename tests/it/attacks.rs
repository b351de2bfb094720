//! Malicious requests to the public and the admin listener, over bare sockets.
//!
//! SECURITY.md has the table of all attacks. Some of its rows are tests in other files.

use serde_json::Value;
use slotfront::methods::Pubkey;
use slotfront_testkit::TestGateway;
use slotfront_testkit::wire::{is_whole, post, read_until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

mod bodies;
mod frames;
mod heads;
mod upstream;

const CALL: &str = r#"{"jsonrpc":"2.0","id":7,"method":"getClusterNodes"}"#;
/// A text that only a node's answer contains.
const ANSWERED: &str = r#""result""#;

/// Sends `sent` on a new connection, and returns all that the gateway answers until it closes the connection.
/// The client never closes it, because a gateway may drop unsent bytes when its client has gone.
async fn all(gateway: &TestGateway, sent: &[u8]) -> String {
    let mut socket = gateway.connect().await;
    let _ = socket.write_all(sent).await;
    read_until(&mut socket, |_| false).await
}

/// Returns the number of HTTP responses in the text.
fn answers(seen: &str) -> usize {
    seen.matches("HTTP/1.1 ").count()
}

async fn from(gateway: &TestGateway, address: [u8; 4]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((address, 0).into()).unwrap();
    socket.connect(gateway.app.public).await.unwrap()
}

/// Returns true if the gateway serves a call on the connection.
async fn is_served(socket: &mut TcpStream) -> bool {
    let _ = socket.write_all(post("/v3/dev", "", CALL).as_bytes()).await;
    read_until(socket, is_whole).await.contains(ANSWERED)
}

#[tokio::test]
async fn one_address_cannot_take_every_connection() {
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.server.max_connections = 18).start().await;
    // The client of the test kit has one of the eighteen connections. Its address is the attacker's, so its
    // connection counts for that address, too.
    let mut hog = Vec::new();
    for _ in 0..30 {
        hog.push(from(&gateway, [127, 0, 0, 1]).await);
    }
    let mut served = 0;
    for socket in &mut hog {
        served += usize::from(is_served(socket).await);
    }
    assert!((12..=16).contains(&served), "{served} of 18");
    let mut other = from(&gateway, [127, 0, 0, 2]).await;
    assert!(is_served(&mut other).await, "another address still gets a connection");
    drop(hog);
    let open = || gateway.connections();
    gateway.until("the connections are closed", || open() <= 2).await;
    assert!(is_served(&mut from(&gateway, [127, 0, 0, 1]).await).await, "the first address is served again");
}

#[tokio::test]
async fn trusted_proxies_are_not_limited_as_one_address() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.server.max_connections = 18;
            config.server.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
        })
        .start()
        .await;
    let mut sockets = Vec::new();
    for _ in 0..17 {
        let mut socket = from(&gateway, [127, 0, 0, 1]).await;
        assert!(is_served(&mut socket).await, "connection {}", sockets.len());
        sockets.push(socket);
    }
}

#[tokio::test]
async fn connections_that_name_no_client_have_one_share() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.server.max_connections = 18;
            config.server.proxy_protocol = true;
            config.server.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
        })
        .start()
        .await;
    let begun = async |header: &[u8]| {
        let mut socket = from(&gateway, [127, 0, 0, 1]).await;
        socket.write_all(header).await.unwrap();
        let served = is_served(&mut socket).await;
        (socket, served)
    };
    let mut hog = Vec::new();
    for _ in 0..17 {
        hog.push(begun(b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0").await);
    }
    let served = hog.iter().filter(|(_, served)| *served).count();
    assert!((12..=16).contains(&served), "{served} of 18");
    let named = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\x0a\0\0\x01\x01\x02\x03\x04";
    assert!(begun(named).await.1, "a named client gets a connection");
}

#[tokio::test]
async fn ten_megabytes_are_not_read() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let string = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"getClusterNodes"}}"#, "x".repeat(10 << 20));
    let chunk = format!("{:x}\r\n{string}\r\n0\r\n\r\n", string.len());
    let head = "POST /v3/dev HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    for request in [post("/v3/dev", "", &string), format!("{head}transfer-encoding: chunked\r\n\r\n{chunk}")]
    {
        let mut socket = gateway.connect().await;
        let (mut read, mut write) = socket.split();
        let mut seen = Vec::new();
        // The request is written while the answer is read, so that the test sees an answer that comes before
        // the request's end.
        let written = tokio::join!(write.write_all(request.as_bytes()), read.read_to_end(&mut seen)).0;
        let seen = String::from_utf8_lossy(&seen);
        let refused = seen.starts_with("HTTP/1.1 413 ") && seen.contains("connection: close");
        assert!(refused || (seen.is_empty() && written.is_err()), "{seen:?}");
        assert!(!seen.contains(ANSWERED));
    }
    assert_eq!(gateway.post(CALL).send().await.status, 200);
}

#[tokio::test]
async fn deep_nesting_is_refused_cheaply() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let deep = |open: &str, close: &str| {
        let n = (48 << 10) / (open.len() + close.len());
        format!("{}1{}", open.repeat(n), close.repeat(n))
    };
    let call = |id: &str, params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"getAccountInfo","params":{params}}}"#)
    };
    let (list, object) = (deep("[", "]"), deep(r#"{"a":"#, "}"));
    for body in [
        "[".repeat(50 << 10),
        r#"{"a":"#.repeat(10 << 10),
        list.clone(),
        object.clone(),
        call("1", &list),
        call("1", &format!("[\"x\",{object}]")),
        call(&list, "[]"),
        format!("[{}]", call("1", &list)),
    ] {
        let reply = gateway.post(body).send().await;
        assert_eq!((reply.status, reply.code()), (200, -32700), "{}", reply.text);
    }
    assert_eq!(gateway.post(CALL).send().await.status, 200);
}

#[tokio::test]
async fn batched_blocks_cost_as_much_as_single_ones() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            let plan = config.plans.get_mut("dev").unwrap();
            (plan.max_batch, plan.daily_units) = (None, Some(1000));
        })
        .start()
        .await;
    let newest = gateway.cluster.examples().block_with_v0;
    let batch = gateway.batch((0..100).map(|i| gateway.get_block(newest - i).version_0().id(i)));
    let gate = gateway.cluster.node(0).hold("getBlock");
    let (reply, ()) = tokio::join!(batch.send(), async {
        gate.arrived(50).await;
        assert_eq!(gateway.in_flight(), 1);
        gate.release();
    });
    let answers = reply.json();
    let ids: Vec<u64> = answers.as_array().unwrap().iter().map(|a| a["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, (0..100).collect::<Vec<_>>(), "each call has an answer, in order");
    let again = gateway.get_nodes().send().await;
    assert_eq!(
        (again.status, again.code()),
        (429, -32092),
        "the units of the day are used up: {}",
        again.text
    );
}

#[tokio::test]
async fn ambiguous_request_ends_cannot_smuggle_requests() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let chunked = format!("{:x}\r\n{CALL}\r\n0\r\n\r\n", CALL.len());
    let long = CALL.len();
    let smuggled = post("/v3/dev", "", CALL);
    let last = post("/v3/dev", "connection: close\r\n", CALL);
    let two = all(&gateway, (smuggled.clone() + &last).as_bytes()).await;
    assert_eq!(two.matches(ANSWERED).count(), 2, "two requests with clear ends are two requests: {two:?}");
    let head = |more: &str| {
        format!("POST /v3/dev HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{more}\r\n")
    };
    // The gateway reads the body by its chunks, answers, and ends the connection. The bytes after the chunks are
    // never taken for a request.
    for lengths in [
        format!("content-length: {}\r\ntransfer-encoding: chunked\r\n", chunked.len() + smuggled.len()),
        format!("transfer-encoding: chunked\r\ncontent-length: {}\r\n", chunked.len() + smuggled.len()),
        "content-length: 0\r\ntransfer-encoding: gzip, chunked\r\n".to_owned(),
    ] {
        let seen = all(&gateway, (head(&lengths) + &chunked + &smuggled).as_bytes()).await;
        assert_eq!(answers(&seen), 1, "{lengths}: {seen:?}");
        assert!(seen.contains("connection: close"), "{lengths}: {seen:?}");
    }
    // The request is not served as a call: the gateway refuses it or ends the connection.
    for lengths in [
        format!("content-length: {long}\r\ncontent-length: 3\r\n"),
        format!("content-length: {long}, {long}1\r\n"),
        format!("content-length: +{long}\r\n"),
        format!("content-length: -{long}\r\n"),
        format!("content-length: {long}\0\r\n"),
        "content-length: 0x10\r\n".to_owned(),
        "content-length: 18446744073709551616\r\n".to_owned(),
        "content-length:\r\n".to_owned(),
        format!("content-length : {long}\r\n"),
        format!("content-length\r\n : {long}\r\n"),
        "transfer-encoding: identity\r\n".to_owned(),
        "transfer-encoding: chunked, identity\r\n".to_owned(),
        "transfer-encoding: xchunked\r\n".to_owned(),
        "transfer-encoding : chunked\r\n".to_owned(),
        "transfer-encoding:\x0bchunked\r\n".to_owned(),
        "transfer-encoding: \"chunked\"\r\n".to_owned(),
    ] {
        for body in [CALL, &chunked] {
            let seen = all(&gateway, (head(&lengths) + body + &smuggled).as_bytes()).await;
            assert!(answers(&seen) <= 1 && !seen.contains(ANSWERED), "{lengths:?}: {seen:?}");
        }
    }
    // Chunks with an invalid length.
    for chunk in ["-1", "+34", "0x34", "fffffffffffffffff", "34 1", "", "g", "\n34"] {
        let body = format!("{chunk}\r\n{CALL}\r\n0\r\n\r\n{smuggled}");
        let seen = all(&gateway, (head("transfer-encoding: chunked\r\n") + &body).as_bytes()).await;
        assert!(answers(&seen) <= 1 && !seen.contains(ANSWERED), "{chunk:?}: {seen:?}");
    }
    // HTTP/1.0 has no chunks.
    let old = head("transfer-encoding: chunked\r\n").replace("HTTP/1.1", "HTTP/1.0") + &chunked + &smuggled;
    assert!(!all(&gateway, old.as_bytes()).await.contains(ANSWERED));
    // The body of a refused request is not taken for a request, either. After 401, 404, 405 and 415 the gateway
    // reads the body, or ends the connection.
    let wrapped = post("/v3/nokey", "", &smuggled) + &post("/nowhere", "", &smuggled);
    let wrapped = wrapped + &post("/v3/dev", "", &smuggled).replacen("application/json", "text/plain", 1);
    let ends = post("/v3/dev", "connection: close\r\n", &smuggled).replacen("POST", "GET", 1);
    let seen = all(&gateway, (wrapped + &ends).as_bytes()).await;
    assert!(!seen.contains(ANSWERED) && answers(&seen) == 4, "{seen:?}");
}

#[tokio::test]
async fn no_spelling_of_a_path_is_another_path() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    for (path, statuses) in [
        // The API key is one segment of the path. Percent encoding in it is not decoded.
        ("/v3/dev%2f", &[401][..]),
        ("/v3/%2fdev", &[401]),
        ("/v3/%2e%2e", &[401]),
        ("/v3/..", &[401]),
        ("/v3/.", &[401]),
        ("/v3/dev%00", &[401]),
        ("/v3/dev%3f", &[401]),
        ("/v3/dev;a=b", &[401]),
        ("/v3/DEV", &[401]),
        ("/v3/dev%20", &[401]),
        ("/v3/..%2f..%2fmetrics", &[401]),
        // Dots and empty segments are not normalized.
        ("/v3/dev//", &[404]),
        ("/v3//", &[404]),
        ("/v3//dev", &[404]),
        ("//v3/dev", &[404]),
        ("/v3/./dev", &[404]),
        ("/v3/x/../dev", &[404]),
        ("/v3/dev/..", &[404]),
        ("/./v3/dev", &[404]),
        ("/%763/dev", &[404]),
        ("/v3%2fdev", &[404]),
        ("/v3\\dev", &[400, 404]),
        ("v3/dev", &[400, 404]),
        ("/metrics", &[404]),
        ("/api/keys", &[404]),
        ("/v3/../metrics", &[404]),
        ("/v3/dev/../../metrics", &[404]),
        ("/v3/dev/usage/", &[404]),
        ("/v3/dev/usage/x", &[404]),
        ("http://evil.example/v3/nokey", &[401]),
        ("*", &[400, 404]),
        // The query is not a part of the path, one slash may end it, and an absolute URL has the same path.
        ("/v3/dev/", &[200]),
        ("/v3/dev?x=/v3/nokey", &[200]),
        ("http://evil.example/v3/dev", &[200]),
    ] {
        let seen = all(&gateway, post(path, "connection: close\r\n", CALL).as_bytes()).await;
        let status = seen.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        assert!(statuses.contains(&status), "{path}: {seen:?}");
        assert_eq!(seen.contains(ANSWERED), status == 200, "{path}: {seen:?}");
    }
    for path in
        ["/v3/dev/../dev/usage", "/v3//usage", "/v3/dev%2fusage", "/v3/%64ev/usage", "/v3/x%2f..%2fdev/usage"]
    {
        let seen =
            all(&gateway, format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())
                .await;
        assert!(!seen.contains("HTTP/1.1 200"), "{path}: {seen:?}");
    }
}

#[tokio::test]
async fn nothing_that_a_caller_names_becomes_a_header() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let id = r#""a\r\nx-evil: 1\r\n\r\nHTTP/1.1 200 OK\u000d\u000ax-evil: 1""#;
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"getClusterNodes"}}"#);
    let reply = gateway.post(body.clone()).send().await;
    assert!(reply.headers.get("x-evil").is_none() && !reply.text.trim_end().contains(['\r', '\n']));
    assert_eq!(reply.json()["id"], serde_json::from_str::<Value>(id).unwrap(), "the id is the caller's own");
    // With literal line breaks the text is not JSON.
    let bare = gateway.post(body.replace(r"\r\n", "\r\n")).send().await;
    assert_eq!((bare.code(), bare.headers.get("x-evil")), (-32700, None));
    for line in [
        "x-request-id: a\rx-evil: 1",
        "x-request-id: a\n\nx-evil: 1",
        "x-request-id: a\0x-evil: 1",
        "x-request-id: a\r\n x-evil: 1",
        "x-request-id: %0d%0ax-evil: 1",
        "origin: https://a.example\rx-evil: 1",
        "access-control-request-headers: a\rx-evil: 1",
        "traceparent: 00-a\rx-evil: 1",
        "cache-control: no-cache\rx-evil: 1",
    ] {
        for path in ["/v3/dev", "/v3/nokey", "/nowhere", "/v3/x%0d%0ax-evil:1"] {
            let headers = format!("connection: close\r\n{line}\r\n");
            let seen = all(&gateway, post(path, &headers, CALL).as_bytes()).await;
            let head = seen.split("\r\n\r\n").next().unwrap_or_default().to_ascii_lowercase();
            assert!(!head.contains("\nx-evil") && !head.contains("\rx-evil"), "{line:?}: {seen:?}");
        }
    }
}

#[tokio::test]
async fn rebound_host_cannot_read_the_admin_listener() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let admin = gateway.app.admin;
    let ask = async |request: String| {
        let mut socket = TcpStream::connect(admin).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        read_until(&mut socket, is_whole).await
    };
    for path in ["/", "/metrics", "/api/status", "/api/upstreams", "/api/keys"] {
        for host in ["evil.example", &format!("evil.example:{}", admin.port()), "127.0.0.1.evil.example", ""]
        {
            let seen = ask(format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n")).await;
            assert!(seen.starts_with("HTTP/1.1 403 "), "{path} of {host}: {seen:?}");
        }
    }
    let seen =
        ask(format!("GET /livez HTTP/1.1\r\nhost: {admin}\r\norigin: https://evil.example\r\n\r\n")).await;
    assert!(seen.starts_with("HTTP/1.1 200 "), "{seen:?}");
    assert!(
        !seen.to_ascii_lowercase().contains("access-control-"),
        "another origin may read the answer: {seen:?}"
    );
}

#[tokio::test]
async fn crafted_addresses_do_not_collide_in_the_cache() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    // An attacker who knows the hash function would choose such addresses: their last two words are equal, and
    // cancel each other out in the hash.
    let crafted = (0..2000_u64).map(|i| {
        let (i, mut key) = (i.to_be_bytes(), [0; 32]);
        key[16..24].copy_from_slice(&i);
        key[24..].copy_from_slice(&i);
        Pubkey(key)
    });
    let batches: Vec<_> = crafted
        .collect::<Vec<_>>()
        .chunks(100)
        .map(|keys| gateway.batch(keys.iter().map(|key| gateway.get_account(key))))
        .collect();
    for batch in &batches {
        assert_eq!(batch.send().await.status, 200);
    }
    let calls = gateway.upstream_calls();
    for batch in &batches {
        assert_eq!(batch.send().await.cache_status(), "hit");
    }
    assert_eq!(gateway.upstream_calls(), calls);
}

#[tokio::test]
async fn scanning_key_does_not_evict_hot_entries() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            // The capacity suffices for about nine hundred small entries.
            config.cache.capacity = 512 << 10;
            config.cache.max_entry = 64 << 10;
        })
        .start()
        .await;
    let there = gateway.cluster.examples();
    let batch = |keys: &[Pubkey]| gateway.batch(keys.iter().map(|key| gateway.get_account(key)));
    let hot = batch(&there.wallets[..50]);
    for _ in 0..5 {
        hot.send().await;
    }
    let (mut hits, mut asked) = (0.0, 0.0);
    for round in 0..40_u64 {
        let never_again: Vec<_> = (0..100)
            .map(|i| {
                let mut key = [7; 32];
                key[..8].copy_from_slice(&(round * 100 + i).to_be_bytes());
                Pubkey(key)
            })
            .collect();
        batch(&never_again).send().await;
        let before = gateway.upstream_calls();
        let answers = hot.send().await.json().as_array().unwrap().len();
        #[expect(clippy::cast_precision_loss, reason = "a share of some thousands")]
        {
            asked += answers as f64;
            hits += answers as f64 - (gateway.upstream_calls() - before) as f64;
        }
    }
    assert!(hits / asked > 0.95, "{hits} of {asked} were hits");
    assert!(gateway.front().cache.usage().0 <= 600 << 10, "{:?}", gateway.front().cache.usage());
}
