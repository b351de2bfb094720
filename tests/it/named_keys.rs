//! Where a request may name its API key, and what a head must say besides.

use std::time::Duration;

use slotfront_testkit::TestGateway;
use slotfront_testkit::wire::{exchange, is_whole, post, read_until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"getClusterNodes"}"#;
/// The keys are those of no other key file.
const BEARER: &str = "Authorization: Bearer dev\r\n";
const X_API_KEY: &str = "x-api-key: dev\r\n";

/// Returns the status of a call at `path` with these header fields, and the value of `X-Slotfront-Error`.
async fn status(gateway: &TestGateway, path: &str, headers: &str) -> (String, String) {
    let request = post(path, headers, CALL);
    let (status, fields, _) = exchange(&mut gateway.connect().await, request.as_bytes()).await;
    let error = fields.iter().find_map(|field| field.strip_prefix("x-slotfront-error: "));
    (status["HTTP/1.1 ".len()..][..3].to_owned(), error.unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_key_may_be_in_the_path_or_the_head() {
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.auth.failed_per_minute = 1000).start().await;
    let unknown = "-32090 unauthorized";
    for (path, headers, status, error) in [
        ("/v3/dev", "", "200", ""),
        ("/v3/dev/", "", "200", ""),
        ("/", BEARER, "200", ""),
        ("/v3", BEARER, "200", ""),
        ("/v3/", X_API_KEY, "200", ""),
        ("/", "authorization: bEARER   dev\r\n", "200", ""),
        ("/v3/dev", "authorization: Basic b3RoZXI6b3RoZXI=\r\n", "200", ""),
        ("/v3/dev/", "x-api-key: dev\r\nx-api-key: dev\r\nauthorization: Bearer dev\r\n", "200", ""),
        ("/", "", "401", unknown),
        ("/", "authorization: dev\r\n", "401", unknown),
        ("/", "authorization: Bearer\r\n", "401", unknown),
        ("/", "authorization: Bearer other\r\n", "401", unknown),
        ("/", "x-api-key: \u{ff}\r\n", "401", unknown),
        ("/?api-key=dev", "", "401", unknown),
        ("/v3/dev?api-key=other", "", "200", ""),
        ("/v3/dev", "x-api-key: other\r\n", "401", "-32090 two_keys"),
        ("/v3/other", X_API_KEY, "401", "-32090 two_keys"),
        ("/", "x-api-key: dev\r\nauthorization: Bearer other\r\n", "401", "-32090 two_keys"),
        ("/", "x-api-key: dev\r\nx-api-key: other\r\n", "401", "-32090 two_keys"),
        ("/health", BEARER, "200", ""),
        ("/v2/dev", BEARER, "404", ""),
    ] {
        let seen = self::status(&gateway, path, headers).await;
        assert_eq!((&*seen.0, &*seen.1), (status, error), "{path} {headers:?}");
    }
    assert_eq!(gateway.metric("slotfront_auth_failures_total{reason=\"two_keys\"}"), 4);
}

#[tokio::test]
async fn requests_with_two_keys_are_limited_like_wrong_ones() {
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.auth.failed_per_minute = 1).start().await;
    let two = async || status(&gateway, "/v3/dev", "x-api-key: other\r\n").await.0;
    assert_eq!((&*two().await, &*two().await), ("401", "429"));
    assert_eq!(status(&gateway, "/", BEARER).await.0, "200");
}

#[tokio::test]
async fn the_query_names_a_key_if_the_operator_lets_it() {
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.server.key_in_query = true).start().await;
    for (path, headers, status) in [
        ("/?api-key=dev", "", "200"),
        ("/v3/?a=b&api-key=dev&c", "", "200"),
        ("/v3/dev?api-key=dev", X_API_KEY, "200"),
        ("/?api-key=other", "", "401"),
        ("/?api-key=%64ev", "", "401"),
        ("/?xapi-key=dev", "", "401"),
        ("/v3/dev?api-key=other", "", "401"),
        ("/?api-key=dev&api-key=other", "", "401"),
    ] {
        assert_eq!(self::status(&gateway, path, headers).await.0, status, "{path}");
    }
    assert!(gateway.try_socket("/?api-key=dev", "").await.is_ok());
}

#[tokio::test]
async fn usage_and_health_are_for_one_key() {
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.server.key_in_query = true).start().await;
    for (path, headers, expected) in [
        ("/v3/dev/usage", "", "200"),
        ("/v3/dev/health", X_API_KEY, "200"),
        ("/usage", BEARER, "200"),
        ("/usage?api-key=dev", "", "200"),
        ("/usage", "", "401"),
        ("/v3/other/usage", "", "401"),
        ("/v3/dev/usage", "x-api-key: other\r\n", "401"),
        ("/v3/dev/health?api-key=other", "", "401"),
        ("/usage", "x-api-key: dev\r\nx-api-key: other\r\n", "401"),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
        let (status, ..) = exchange(&mut gateway.connect().await, request.as_bytes()).await;
        assert_eq!(&status["HTTP/1.1 ".len()..][..3], expected, "{path} {headers:?}");
    }
}

#[tokio::test]
async fn sockets_name_their_key_like_calls() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    for (path, headers) in [("/v3/dev", ""), ("/v3/dev/", ""), ("/", BEARER), ("/v3", X_API_KEY)] {
        let mut socket = gateway.try_socket(path, headers).await.unwrap();
        socket.subscribe("slotSubscribe", serde_json::json!([])).await;
    }
    for (path, headers) in [("/", ""), ("/v3/other/", ""), ("/v3/dev", "x-api-key: other\r\n")] {
        let refused = gateway.try_socket(path, headers).await.err();
        assert_eq!(refused.map(|refused| refused.status), Some(401), "{path} {headers}");
    }
}

#[tokio::test]
async fn a_request_says_once_for_which_host_it_is() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let head = |lines: &str, version: &str| {
        format!(
            "POST /v3/dev HTTP/{version}\r\n{lines}content-type: application/json\r\ncontent-length: {}\r\n\r\n{CALL}",
            CALL.len()
        )
    };
    let chunks = format!("{:x}\r\n{CALL}\r\n0\r\n\r\n", CALL.len());
    let coded = |coding: &str| {
        format!(
            "POST /v3/dev HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{coding}\r\n\r\n{chunks}"
        )
    };
    for (request, status) in [
        (head("host: x\r\n", "1.1"), 200),
        (head("host: [::1]:8080\r\n", "1.1"), 200),
        (head("host:\r\n", "1.1"), 200),
        (head("", "1.0"), 200),
        (head("", "1.1"), 400),
        (head("host: x\r\nhost: x\r\n", "1.1"), 400),
        (head("host: x\r\nHost: y\r\n", "1.0"), 400),
        (head("host: x/v3/other\r\n", "1.1"), 400),
        (head("host: x,y\r\n", "1.1"), 400),
        (head("host: a b\r\n", "1.1"), 400),
        (head("host: a@b\r\n", "1.1"), 400),
        (coded("transfer-encoding: chunked"), 200),
        (coded("Transfer-Encoding: Chunked"), 200),
        (coded("transfer-encoding: gzip, chunked"), 501),
        (coded("transfer-encoding: gzip\r\ntransfer-encoding: chunked"), 501),
        (coded("transfer-encoding: chunked, chunked"), 501),
        (coded("transfer-encoding: identity, chunked"), 501),
        (coded("transfer-encoding: chunked\r\ntransfer-encoding: chunked"), 501),
    ] {
        let mut socket = gateway.connect().await;
        socket.write_all(request.as_bytes()).await.unwrap();
        let seen = read_until(&mut socket, is_whole).await;
        assert!(seen.contains(&format!(" {status} ")), "{request:?}: {seen:?}");
        if status != 200 {
            assert!(seen.contains("connection: close\r\n"), "{seen:?}");
        }
    }
    for (lines, status) in
        [("", 400), ("host: localhost\r\nhost: localhost\r\n", 400), ("host: localhost\r\n", 200)]
    {
        let mut socket = tokio::net::TcpStream::connect(gateway.app.admin).await.unwrap();
        socket.write_all(format!("GET /readyz HTTP/1.1\r\n{lines}\r\n").as_bytes()).await.unwrap();
        let seen = read_until(&mut socket, is_whole).await;
        assert!(seen.starts_with(&format!("HTTP/1.1 {status} ")), "{lines:?}: {seen:?}");
    }
}

#[tokio::test]
async fn connections_may_idle_for_the_idle_timeout() {
    const IDLE: Duration = Duration::from_millis(200);
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.server.idle_timeout = IDLE).start().await;
    let mut socket = gateway.connect().await;
    exchange(&mut socket, post("/v3/dev", "", CALL).as_bytes()).await;
    let ended = tokio::time::timeout(slotfront_testkit::PATIENCE, socket.read(&mut [0])).await;
    assert!(matches!(ended, Ok(Ok(0))), "{ended:?}");
}

#[tokio::test]
async fn a_page_may_send_150_calls_at_once() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let answers = gateway.batch((0..150).map(|id| gateway.get_nodes().id(id))).send().await.json();
    assert!(answers.as_array().unwrap().iter().all(|answer| answer["result"].is_array()), "{answers}");
}
