//! HTTP around the calls: routes, media types, sizes, CORS, compression, the documents beside the hot route.

use std::time::Duration;

use serde_json::json;
use slotfront::config::Secret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::Stage;

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
        ("GET", "/v3/nokey/usage", 401),
        ("GET", "/metrics", 404),
    ] {
        let request = stage.client.request(verb.parse().unwrap(), format!("{base}{path}"));
        let request = request.header("content-type", "application/json").body("[]");
        assert_eq!(stage.send(request).await.status, status, "{verb} {path}");
    }
}

#[tokio::test]
async fn an_answer_ends_with_a_newline_and_carries_a_nodes_content_type() {
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
async fn a_long_answer_is_compressed_when_asked_for_and_is_the_same_answer() {
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
        // The harness' own client unpacks.
        let unpacking =
            stage.client.post(&stage.url).header("content-type", "application/json").body(body.clone());
        assert_eq!(stage.send(unpacking).await.text, identity.text);
    }
}

#[tokio::test]
async fn an_operator_with_the_token_empties_the_cache_and_drains_a_node() {
    let token = "an-admin-token";
    let stage = Stage::of(2, |config| config.auth.admin_token = Some(Secret::new(token))).await;
    let post = |path: &str, header: &str| {
        let request =
            stage.client.post(format!("{}{path}", stage.admin)).header("authorization", header.to_owned());
        stage.send(request)
    };
    let bearer = format!("Bearer {token}");
    stage.call("getClusterNodes", json!([])).await;
    for header in ["", "Bearer", "Bearer no", "Basic an-admin-token", token] {
        assert_eq!(post("/api/cache/purge", header).await.status, 401, "{header}");
    }
    assert!(stage.call("getClusterNodes", json!([])).await.cache().starts_with("hit"));
    assert_eq!(post("/api/cache/purge", &bearer).await.status, 200);
    assert_eq!(stage.call("getClusterNodes", json!([])).await.cache(), "fwd=miss; stored");

    assert_eq!(post("/api/upstreams/nobody/drain", &bearer).await.status, 404);
    assert_eq!(post("/api/upstreams/node-0/drain", &bearer).await.status, 200);
    let before = stage.cluster.node(0).calls_without_probes();
    for wallet in stage.cluster.examples().wallets.iter().take(10) {
        stage.call("getAccountInfo", json!([wallet.to_string()])).await;
    }
    assert_eq!(stage.cluster.node(0).calls_without_probes(), before);
    assert_eq!(post("/api/upstreams/node-0/restore", &bearer).await.status, 200);
    for wallet in stage.cluster.examples().wallets.iter().skip(10) {
        stage.call("getAccountInfo", json!([wallet.to_string()])).await;
    }
    assert!(stage.cluster.node(0).calls_without_probes() > before);

    let closed = Stage::of(1, |_| {}).await;
    let request =
        closed.client.post(format!("{}/api/cache/purge", closed.admin)).header("authorization", bearer);
    assert_eq!(closed.send(request).await.status, 403, "off without a token");
}

#[tokio::test]
async fn the_admin_listener_shows_how_things_stand() {
    let stage = Stage::new().await;
    stage.call("getClusterNodes", json!([])).await;
    let status = stage.admin("/api/status").await.json();
    assert_eq!(status["status"]["upstreams"].as_array().map(Vec::len), Some(3));
    assert_eq!(status["status"]["upstreams"][0]["usable"], true);
    let metrics = stage.admin("/metrics").await.text;
    for expected in [
        r#"slotfront_requests_total{commitment="none",method="getClusterNodes",outcome="miss"} 1"#,
        r#"slotfront_upstream_up{upstream="node-0"} 1"#,
        "slotfront_cache_entries 1",
    ] {
        assert!(metrics.contains(expected), "{expected} is not in\n{metrics}");
    }
    let page = stage.admin("/").await;
    assert!(page.header("content-type").starts_with("text/html") && page.text.contains("slotfront"));
}

/// A connection without a client's own ideas about it.
async fn connect(stage: &Stage) -> TcpStream {
    let address = stage.url.trim_start_matches("http://").trim_end_matches("/v3/dev");
    TcpStream::connect(address).await.unwrap()
}

/// A call as it goes over the wire.
fn wire(method: &str, params: &serde_json::Value) -> String {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    format!(
        "POST /v3/dev HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// What comes until `enough` of it is there, or the connection ends, or the test has waited long enough.
async fn read_until(socket: &mut TcpStream, enough: impl Fn(&str) -> bool) -> String {
    let mut seen = Vec::new();
    let reading = async {
        while !enough(&String::from_utf8_lossy(&seen)) {
            if !matches!(socket.read_buf(&mut seen).await, Ok(n) if n > 0) {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(5), reading).await;
    String::from_utf8_lossy(&seen).into_owned()
}

#[tokio::test]
async fn a_finished_answer_does_not_wait_for_the_next_pipelined_call() {
    let stage = Stage::of(1, |_| {}).await;
    let hold = stage.cluster.node(0).hold("getVoteAccounts");
    let mut socket = connect(&stage).await;
    // The third call is what leaves bytes unread behind the held one.
    let calls = wire("getClusterNodes", &json!([]))
        + &wire("getVoteAccounts", &json!([]))
        + &wire("getClusterNodes", &json!([]));
    socket.write_all(calls.as_bytes()).await.unwrap();
    let first = read_until(&mut socket, |seen| seen.ends_with("}\n")).await;
    assert!(first.starts_with("HTTP/1.1 200") && first.matches("HTTP/1.1").count() == 1, "{first:?}");
    hold.arrived(1).await;
    drop(hold);
    let rest = read_until(&mut socket, |seen| seen.matches("HTTP/1.1 200").count() == 2).await;
    assert_eq!(rest.matches("HTTP/1.1 200").count(), 2, "{rest:?}");
}
