//! HTTP around the calls: routes, media types, sizes, CORS, compression, and the documents.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{PATIENCE, Stage};

#[tokio::test]
async fn only_the_key_path_takes_calls() {
    let stage = Stage::of(1, |_| {}).await;
    let base = stage.url.trim_end_matches("/v3/dev").to_owned();
    for (verb, path, status) in [
        ("POST", "/", 404),
        ("POST", "/v3/dev/more", 404),
        ("POST", "//v3/dev", 404),
        ("POST", "/V3/dev", 404),
        ("POST", "/v3/%64ev", 401),
        ("POST", "/v3/", 401),
        ("GET", "/v3/dev", 405),
        ("PUT", "/v3/dev", 405),
        ("OPTIONS", "/v3/dev", 200),
        ("GET", "/health", 200),
        ("GET", "/openrpc.json", 200),
        ("GET", "/v3/dev/usage", 200),
        ("GET", "/v3/%64ev/usage", 401),
        ("GET", "/v3/nokey/usage", 401),
        ("GET", "/metrics", 404),
    ] {
        let request = stage.client.request(verb.parse().unwrap(), format!("{base}{path}"));
        let request = request.header("content-type", "application/json").body("[]");
        assert_eq!(stage.send(request).await.status, status, "{verb} {path}");
    }
}

#[tokio::test]
async fn answers_end_and_are_typed_like_nodes() {
    let stage = Stage::of(1, |_| {}).await;
    let reply = stage.call("getClusterNodes", json!([])).await;
    assert_eq!(reply.header("content-type"), "application/json; charset=utf-8");
    assert!(reply.text.ends_with("}\n"));
}

#[tokio::test]
async fn a_browser_may_read_what_the_settings_allow() {
    let stage =
        Stage::of(1, |config| config.server.cors_origins = vec!["https://dapp.example".to_owned()]).await;
    for (origin, allowed) in [("https://dapp.example", "https://dapp.example"), ("https://other.example", "")]
    {
        let request = stage.client.request("OPTIONS".parse().unwrap(), &stage.url);
        let request = request.header("origin", origin).header("access-control-request-headers", "x-mine");
        let reply = stage.send(request).await;
        assert_eq!(reply.header("access-control-allow-origin"), allowed);
        assert_eq!(
            reply.header("access-control-allow-headers"),
            if allowed.is_empty() { "" } else { "x-mine" }
        );
    }
}

#[tokio::test]
async fn every_answer_has_a_request_id() {
    let stage = Stage::of(1, |_| {}).await;
    let base = stage.url.trim_end_matches("/v3/dev").to_owned();
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"getClusterNodes"}"#;
    let mut made = std::collections::BTreeSet::new();
    let rows = [
        ("POST", "/v3/dev", 200),
        ("POST", "/v3/nokey", 401),
        ("GET", "/v3/dev", 405),
        ("OPTIONS", "/v3/dev", 200),
        ("GET", "/health", 200),
        ("GET", "/v3/dev/usage", 200),
        ("POST", "/nowhere", 404),
    ];
    for (verb, path, status) in rows {
        let request = |id: Option<&str>| {
            let request = stage.client.request(verb.parse().unwrap(), format!("{base}{path}"));
            let request =
                request.header("content-type", "application/json").header("origin", "https://a.example");
            let request = id.into_iter().fold(request, |request, id| request.header("x-request-id", id));
            stage.send(request.body(call))
        };
        let kept = request(Some("trace-1/2")).await;
        assert_eq!((kept.status, kept.header("x-request-id")), (status, "trace-1/2"), "{verb} {path}");
        assert_eq!(
            kept.header("access-control-expose-headers"),
            "Cache-Status, RateLimit, RateLimit-Policy, Retry-After, X-Request-Id, X-Slotfront-Error"
        );
        for sent in [None, Some("two words")] {
            let id = request(sent).await.header("x-request-id").to_owned();
            assert!(id.len() == 32 && made.insert(id.clone()), "{verb} {path}: {id:?} is no fresh id");
        }
    }
}

#[tokio::test]
async fn long_answers_are_compressed_on_request() {
    let stage = Stage::of(1, |_| {}).await;
    let slot = stage.cluster.examples().block_with_v0;
    let params = json!([slot, {"maxSupportedTransactionVersion": 0}]);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "getBlock", "params": params}).to_string();
    let plain = reqwest::Client::builder().no_proxy().no_gzip().no_zstd().build().unwrap();
    let request = |encoding: &str| {
        let request = plain.post(&stage.url).header("content-type", "application/json").body(body.clone());
        request.header("accept-encoding", encoding.to_owned())
    };
    let identity = stage.send(request("identity")).await;
    for encoding in ["gzip", "zstd"] {
        let response = request(encoding).send().await.unwrap();
        assert_eq!(response.headers()["content-encoding"], encoding);
        assert!(response.bytes().await.unwrap().len() < identity.text.len() / 2);
        // The harness' own client decompresses.
        let unpacking =
            stage.client.post(&stage.url).header("content-type", "application/json").body(body.clone());
        assert_eq!(stage.send(unpacking).await.text, identity.text);
    }
}

#[tokio::test]
async fn compressed_forms_fit_every_callers_id() {
    let stage = Stage::of(1, |_| {}).await;
    let plain = reqwest::Client::builder().no_proxy().no_gzip().no_zstd().build().unwrap();
    let examples = stage.cluster.examples();
    let wallets: Vec<_> = examples.wallets.iter().cycle().take(60).map(ToString::to_string).collect();
    for (method, params) in [
        ("getBlock", json!([examples.block_with_v0, {"maxSupportedTransactionVersion": 0}])),
        ("getMultipleAccounts", json!([wallets, {"encoding": "base64"}])),
    ] {
        let body = |id: &serde_json::Value| {
            json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
        };
        for coding in ["gzip", "zstd"] {
            stage
                .send(plain.post(&stage.url).header("content-type", "application/json").body(body(&json!(0))))
                .await;
            let mut held = stage.front().cache.usage().0;
            for (id, adds) in [(json!(1), true), (json!("another id"), false), (json!(u64::MAX), false)] {
                let request =
                    || plain.post(&stage.url).header("content-type", "application/json").body(body(&id));
                let expected = stage.send(request()).await.text;
                let response = request().header("accept-encoding", coding).send().await.unwrap();
                assert_eq!(response.headers()["content-encoding"], coding, "{method} {id}");
                let sent = response.bytes().await.unwrap();
                let mut text = String::new();
                if coding == "gzip" {
                    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&sent[..]), &mut text)
                        .unwrap();
                } else {
                    text = String::from_utf8(zstd::stream::decode_all(&sent[..]).unwrap()).unwrap();
                }
                assert_eq!(text, expected, "{method} {coding} {id}");
                let now = stage.front().cache.usage().0;
                assert!(adds == (now > held) && now >= held, "{method} {coding} {id}: {held} then {now}");
                held = now;
            }
        }
    }
}

/// Opens a bare connection, without an HTTP client.
pub(crate) async fn connect(stage: &Stage) -> TcpStream {
    let address = stage.url.trim_start_matches("http://").trim_end_matches("/v3/dev");
    TcpStream::connect(address).await.unwrap()
}

/// Returns the text of a POST request.
pub(crate) fn post(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
}

/// Returns the text of a call without params.
pub(crate) fn wire(method: &str) -> String {
    post("/v3/dev", "", &json!({"jsonrpc": "2.0", "id": 1, "method": method}).to_string())
}

/// Reads until `enough` returns true, the connection ends, or the test has waited too long.
pub(crate) async fn read_until(socket: &mut TcpStream, enough: impl Fn(&str) -> bool) -> String {
    let mut seen = Vec::new();
    let reading = async {
        while !enough(&String::from_utf8_lossy(&seen)) {
            if !matches!(socket.read_buf(&mut seen).await, Ok(n) if n > 0) {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(PATIENCE, reading).await;
    String::from_utf8_lossy(&seen).into_owned()
}

/// Returns true if an answer is complete, by its content-length.
pub(crate) fn is_whole(seen: &str) -> bool {
    let length =
        |head: &str| head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    seen.split_once("\r\n\r\n").is_some_and(|(head, body)| body.len() >= length(head).unwrap_or(0))
}

#[tokio::test]
async fn pipelined_answers_leave_as_they_finish() {
    let stage = Stage::of(1, |_| {}).await;
    let hold = stage.cluster.node(0).hold("getVoteAccounts");
    let mut socket = connect(&stage).await;
    // The third call leaves unread bytes behind the held one.
    let calls = wire("getClusterNodes") + &wire("getVoteAccounts") + &wire("getClusterNodes");
    socket.write_all(calls.as_bytes()).await.unwrap();
    let first = read_until(&mut socket, |seen| seen.ends_with("}\n")).await;
    assert!(first.starts_with("HTTP/1.1 200") && first.matches("HTTP/1.1").count() == 1, "{first:?}");
    hold.arrived(1).await;
    drop(hold);
    let rest = read_until(&mut socket, |seen| seen.matches("HTTP/1.1 200").count() == 2).await;
    assert_eq!(rest.matches("HTTP/1.1 200").count(), 2, "{rest:?}");
}

#[tokio::test]
async fn header_timeout_applies_to_begun_heads_only() {
    let timeout = Duration::from_millis(200);
    let stage = Stage::of(1, |config| config.server.header_timeout = timeout).await;
    let mut socket = connect(&stage).await;
    for _ in 0..2 {
        socket.write_all(wire("getClusterNodes").as_bytes()).await.unwrap();
        let answer = read_until(&mut socket, |seen| seen.ends_with("}\n")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
        tokio::time::sleep(timeout * 3).await;
    }
    for begun in [&b"POST /v3/dev HTTP/1.1\r\nhost:"[..], b""] {
        // The second connection is new, and its client sends nothing.
        socket.write_all(begun).await.unwrap();
        let closed = tokio::time::timeout(PATIENCE, socket.read(&mut [0; 64])).await;
        assert!(matches!(closed, Ok(Ok(0) | Err(_))), "{closed:?}");
        socket = connect(&stage).await;
    }
}

#[tokio::test]
async fn requests_are_in_flight_until_written() {
    let stage = Stage::of(1, |config| {
        (config.server.max_batch, config.server.max_body) = (2000, 1 << 20);
        config.plans.get_mut("dev").expect("the dev plan").max_batch = None;
    })
    .await;
    let in_flight = || stage.front().in_flight.load(std::sync::atomic::Ordering::Relaxed);
    // The answer exceeds the kernel's buffers of both sides by far.
    let slot = stage.cluster.examples().block_with_v0;
    let params = json!([slot, {"maxSupportedTransactionVersion": 0}]);
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "getBlock", "params": params});
    let body = serde_json::Value::from(vec![call; 2000]).to_string();
    let mut socket = connect(&stage).await;
    socket.write_all(post("/v3/dev", "connection: close\r\n", &body).as_bytes()).await.unwrap();
    let head = read_until(&mut socket, |seen| seen.contains("\r\n\r\n")).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{}", &head[..200]);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!((in_flight(), stage.front().outgoing.used() > 0), (1, true));
    tokio::io::copy(&mut socket, &mut tokio::io::sink()).await.unwrap();
    stage.until("the answer is written", || in_flight() == 0).await;
    assert_eq!(stage.front().outgoing.used(), 0);
}

#[tokio::test]
async fn unfinished_or_keyless_requests_take_no_permit() {
    let stage = Stage::of(1, |config| config.server.max_in_flight = 1).await;
    let mut trickling = Vec::new();
    for key in ["dev", "nokey"] {
        let mut socket = connect(&stage).await;
        let call = wire("getClusterNodes").replace("/v3/dev", &format!("/v3/{key}"));
        socket.write_all(&call.as_bytes()[..call.len() - 1]).await.unwrap();
        trickling.push(socket);
    }
    let gate = stage.cluster.node(0).hold("getVoteAccounts");
    assert_eq!(stage.call("getClusterNodes", json!([])).await.status, 200);
    let held = stage.call("getVoteAccounts", json!([]));
    let overloaded = async {
        gate.arrived(1).await;
        let reply = stage.call("getClusterNodes", json!([])).await;
        gate.release();
        reply
    };
    let (held, overloaded) = tokio::join!(held, overloaded);
    assert_eq!((held.status, overloaded.status, overloaded.code()), (200, 503, -32094));
}

#[tokio::test]
async fn trickling_body_times_out() {
    let stage = Stage::of(1, |config| config.server.body_timeout = Duration::from_millis(200)).await;
    for path in ["/v3/dev", "/v3/nokey", "/nowhere"] {
        let mut socket = connect(&stage).await;
        let call = wire("getClusterNodes").replace("/v3/dev", path);
        socket.write_all(&call.as_bytes()[..call.len() - 1]).await.unwrap();
        // Nothing more is sent, so the end of the text is the end of the connection.
        let answer = read_until(&mut socket, |_| false).await;
        let expected = if path == "/nowhere" { "404 Not Found" } else { "408 Request Timeout" };
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected}\r\n")), "{path}: {answer:?}");
        assert!(answer.contains("connection: close"), "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn odd_requests_get_clear_answers() {
    let stage = Stage::of(1, |_| {}).await;
    let call = r#"{"jsonrpc":"2.0","id":7,"method":"getClusterNodes"}"#;
    let (long, longer) = (format!("/v3/{}", "k".repeat(12 << 10)), format!("/v3/{}", "k".repeat(70 << 10)));
    let (many, large) = ("x-many: 1\r\n".repeat(200), format!("x-large: {}\r\n", "v".repeat(200 << 10)));
    for (request, status, stays) in [
        (post("/unknown", "", call), "404 Not Found", true),
        (post("/unknown", "", &" ".repeat(40 << 10)), "404 Not Found", true),
        (post(&long, "", call), "401 Unauthorized", true),
        // The status depends on how much has arrived when the limit is exceeded.
        (post(&longer, "", call), "414 URI Too Long|431 Request Header Fields Too Large", false),
        (post("/v3/dev", &many, call), "431 Request Header Fields Too Large", false),
        (post("/v3/dev", &large, call), "431 Request Header Fields Too Large", false),
    ] {
        let mut socket = connect(&stage).await;
        let what = (&request[..40], request.len());
        let _ = socket.write_all(request.as_bytes()).await;
        let answer = read_until(&mut socket, is_whole).await;
        let is = |status| answer.starts_with(&format!("HTTP/1.1 {status}\r\n"));
        assert!(status.split('|').any(is), "{what:?}: {answer:?}");
        let _ = socket.write_all(post("/v3/dev", "", call).as_bytes()).await;
        let next = read_until(&mut socket, |seen| seen.contains(r#""id":7}"#)).await;
        let said = format!("{answer}{next}").to_ascii_lowercase().contains("connection: close");
        assert!(
            if stays { next.contains("HTTP/1.1 200") || said } else { said },
            "{what:?}: {answer:?} {next:?}"
        );
    }
}

#[tokio::test]
async fn batch_answers_are_bounded_in_length() {
    let stage = Stage::of(1, |config| config.pool.max_response = 64 << 10).await;
    let slot = stage.cluster.examples().block_with_v0;
    let call = |id: usize| {
        let params = json!([slot, {"maxSupportedTransactionVersion": 0}]);
        json!({"jsonrpc": "2.0", "id": id, "method": "getBlock", "params": params})
    };
    let one = stage.post(call(0).to_string()).await.text.len();
    let fit = (64 << 10) / one;
    assert!((2..10).contains(&fit), "{one}");
    let reply = stage.post((0..10).map(call).collect::<serde_json::Value>().to_string()).await;
    let answers = reply.json();
    let answers = answers.as_array().expect("a batch");
    let refused: Vec<_> = answers.iter().filter(|answer| answer["error"]["code"] == -32093).collect();
    assert_eq!((reply.status, answers.len(), refused.len()), (200, 10, 10 - fit));
    assert!(refused.iter().all(|answer| answer["id"].is_u64()), "{refused:?}");
    assert!(answers.iter().filter(|answer| answer["result"].is_object()).count() == fit);
}

#[tokio::test]
async fn no_answer_names_the_software_or_its_version() {
    let stage = Stage::of(1, |_| {}).await;
    let public = stage.url.replace("/v3/dev", "");
    let other = |path: &str| stage.client.get(format!("{public}{path}"));
    let replies = [
        stage.call("getClusterNodes", json!([])).await,
        stage.post("nonsense").await,
        stage.call_as("nobody", "getClusterNodes", json!([])).await,
        stage.send(other("/health")).await,
        stage.send(other("/nothing")).await,
    ];
    for reply in replies {
        for name in ["server", "x-powered-by", "via"] {
            assert_eq!(reply.header(name), "", "{reply:?}");
        }
        let values: String = reply.headers.values().filter_map(|value| value.to_str().ok()).collect();
        assert!(!values.contains(env!("CARGO_PKG_VERSION")), "{values}");
    }
    // The admin listener is for operators, who may know.
    let metrics = stage.admin("/metrics").await.text;
    let info = metrics.lines().find(|line| line.starts_with("slotfront_build_info{")).expect("a line");
    assert!(info.contains(env!("CARGO_PKG_VERSION")) && info.contains("revision="), "{info}");
}
