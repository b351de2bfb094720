//! HTTP around the calls: routes, media types, sizes, CORS, compression, and timeouts.

use std::time::Duration;

use serde_json::json;
use slotfront::methods::Part;
use slotfront_testkit::wire::{self, exchange, is_whole, post, read_until};
use slotfront_testkit::{PATIENCE, TestGateway};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

#[tokio::test]
async fn only_the_key_path_takes_calls() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let base = gateway.base_url();
    for (verb, path, status) in [
        ("POST", "/", 401),
        ("POST", "/v3", 401),
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
        ("GET", "/v3/dev/health", 200),
        ("GET", "/v3/nokey/health", 401),
        ("GET", "/v3/dev/usage", 200),
        ("GET", "/v3/%64ev/usage", 401),
        ("GET", "/v3/nokey/usage", 401),
        ("GET", "/metrics", 404),
    ] {
        let request = gateway.client.request(verb.parse().unwrap(), format!("{base}{path}"));
        let request = request.header("content-type", "application/json").body("[]");
        assert_eq!(gateway.send(request).await.status, status, "{verb} {path}");
    }
}

#[tokio::test]
async fn the_openrpc_document_is_short_and_counted() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let url = format!("{}/openrpc.json", gateway.base_url());
    let plain = reqwest::Client::builder().no_proxy().no_gzip().no_zstd().build().unwrap();
    let get = async |field: &'static str, value: &str| {
        let response = plain.get(&url).header(field, value).send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        (status, headers, response.bytes().await.unwrap())
    };
    let (_, headers, whole) = get("accept-encoding", "identity").await;
    assert!(headers.get("content-encoding").is_none() && headers["vary"] == "accept-encoding");
    let document: serde_json::Value = serde_json::from_slice(&whole).unwrap();
    assert_eq!(whole, format!("{document}\n").as_bytes(), "without blanks");
    let tag = headers["etag"].to_str().unwrap();
    for coding in ["gzip", "zstd"] {
        let (_, headers, packed) = get("accept-encoding", coding).await;
        assert!(headers["content-encoding"] == coding && headers["etag"] == tag, "{headers:?}");
        assert!(packed.len() < whole.len() / 5, "{coding}: {} of {}", packed.len(), whole.len());
    }
    let mut last = 200;
    for _ in 0..30 {
        last = get("if-none-match", "\"another\"").await.0;
    }
    assert_eq!(last, 429, "thirty a minute");
    let strong = tag.trim_start_matches("W/");
    for known in [tag, strong, "*", &format!("\"another\", {strong}")] {
        let (status, headers, body) = get("if-none-match", known).await;
        assert_eq!((status, body.len(), headers["etag"].to_str().unwrap()), (304, 0, tag), "{known}");
    }
    let guessed = gateway.get_nodes().key("wrong").send().await;
    assert_eq!((guessed.status, guessed.code()), (429, -32092), "failed keys and documents have one limit");
    assert_eq!(gateway.get_nodes().send().await.status, 200, "a valid key is not concerned");
}

#[tokio::test]
async fn answers_end_and_are_typed_like_nodes() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let reply = gateway.get_nodes().send().await;
    assert_eq!(reply.header("content-type"), "application/json; charset=utf-8");
    assert!(reply.text.ends_with("}\n"));
}

#[tokio::test]
async fn a_browser_may_read_what_the_settings_allow() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| config.server.cors_origins = vec!["https://dapp.example".to_owned()])
        .start()
        .await;
    for (origin, allowed) in [("https://dapp.example", "https://dapp.example"), ("https://other.example", "")]
    {
        let request = gateway.client.request("OPTIONS".parse().unwrap(), &gateway.url);
        let request = request.header("origin", origin).header("access-control-request-headers", "x-mine");
        let reply = gateway.send(request).await;
        assert_eq!(reply.header("vary"), "origin");
        assert_eq!(reply.header("access-control-allow-origin"), allowed);
        assert_eq!(
            reply.header("access-control-allow-headers"),
            if allowed.is_empty() { "" } else { "x-mine" }
        );
    }
    // A cache between here and the browser must not give another origin the answer to a call without one.
    let any = TestGateway::builder().nodes(1).start().await;
    let request = post("/v3/dev", "", r#"{"jsonrpc":"2.0","id":1,"method":"getClusterNodes"}"#);
    let (_, fields, _) = exchange(&mut gateway.connect().await, request.as_bytes()).await;
    assert!(fields.contains("vary: origin"), "{fields:?}");
    let (_, fields, _) = exchange(&mut any.connect().await, request.as_bytes()).await;
    assert!(!fields.contains("vary: origin"), "{fields:?}");
}

#[tokio::test]
async fn every_answer_has_a_request_id() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let base = gateway.base_url();
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
            let request = gateway.client.request(verb.parse().unwrap(), format!("{base}{path}"));
            let request =
                request.header("content-type", "application/json").header("origin", "https://a.example");
            let request = id.into_iter().fold(request, |request, id| request.header("x-request-id", id));
            gateway.send(request.body(call))
        };
        let kept = request(Some("trace-1/2")).await;
        assert_eq!((kept.status, kept.header("x-request-id")), (status, "trace-1/2"), "{verb} {path}");
        assert_eq!(
            kept.header("access-control-expose-headers"),
            "Cache-Status, RateLimit, RateLimit-Policy, Retry-After, X-Request-Id, X-Slotfront-Error, X-Slotfront-Upstream"
        );
        for sent in [None, Some("two words")] {
            let id = request(sent).await.header("x-request-id").to_owned();
            assert!(id.len() == 32 && made.insert(id.clone()), "{verb} {path}: {id:?} is no fresh id");
        }
    }
}

#[tokio::test]
async fn long_answers_are_compressed_on_request() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let call = gateway.get_block(gateway.cluster.examples().block_with_v0).version_0();
    let plain = reqwest::Client::builder().no_proxy().no_gzip().no_zstd().build().unwrap();
    let request = |encoding: &str| call.clone().client(&plain).header("accept-encoding", encoding).request();
    let identity = request("identity").send().await;
    for encoding in ["gzip", "zstd"] {
        let response = request(encoding).build().send().await.unwrap();
        assert_eq!(response.headers()["content-encoding"], encoding);
        assert!(response.bytes().await.unwrap().len() < identity.text.len() / 2);
        // The client of the test kit decompresses answers.
        assert_eq!(call.send().await.text, identity.text);
    }
}

#[tokio::test]
async fn compressed_forms_fit_every_callers_id() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let plain = reqwest::Client::builder().no_proxy().no_gzip().no_zstd().build().unwrap();
    let examples = gateway.cluster.examples();
    let wallets: Vec<_> = examples.wallets.iter().cycle().take(60).map(ToString::to_string).collect();
    for (method, params) in [
        ("getBlock", json!([examples.block_with_v0, {"maxSupportedTransactionVersion": 0}])),
        ("getMultipleAccounts", json!([wallets, {"encoding": "base64"}])),
    ] {
        let call = gateway.call(method, params).client(&plain);
        for coding in ["gzip", "zstd"] {
            call.clone().id(0).send().await;
            let mut held = gateway.front().cache.usage().0;
            for (id, adds) in [(json!(1), true), (json!("another id"), false), (json!(u64::MAX), false)] {
                let call = call.clone().id(id.clone());
                let expected = call.send().await.text;
                let packed = call.header("accept-encoding", coding).request().build();
                let response = packed.send().await.unwrap();
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
                let now = gateway.front().cache.usage().0;
                assert!(adds == (now > held) && now >= held, "{method} {coding} {id}: {held} then {now}");
                held = now;
            }
        }
    }
}

#[tokio::test]
async fn pipelined_answers_leave_as_they_finish() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let hold = gateway.cluster.node(0).hold("getVoteAccounts");
    let mut socket = gateway.connect().await;
    // The second call waits at its node, and the third call waits behind the second. The first answer is sent all
    // the same.
    let calls =
        wire::call("getClusterNodes") + &wire::call("getVoteAccounts") + &wire::call("getClusterNodes");
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
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.server.header_timeout = timeout).start().await;
    let is_served = async |socket: &mut TcpStream| {
        let _ = socket.write_all(wire::call("getClusterNodes").as_bytes()).await;
        read_until(socket, |seen| seen.ends_with("}\n")).await.starts_with("HTTP/1.1 200")
    };
    let mut socket = gateway.connect().await;
    let deadline = Instant::now() + PATIENCE;
    while !is_served(&mut socket).await {
        // On a busy machine a new connection may end before its first head is read.
        assert!(Instant::now() < deadline, "no connection is served");
        socket = gateway.connect().await;
    }
    // Its client may take longer to begin the next head.
    tokio::time::sleep(timeout * 3).await;
    assert!(is_served(&mut socket).await);
    for begun in [&b"POST /v3/dev HTTP/1.1\r\nhost:"[..], b""] {
        // The second connection is new, and its client sends nothing.
        socket.write_all(begun).await.unwrap();
        let closed = tokio::time::timeout(PATIENCE, socket.read(&mut [0; 64])).await;
        assert!(matches!(closed, Ok(Ok(0) | Err(_))), "{closed:?}");
        socket = gateway.connect().await;
    }
}

#[tokio::test]
async fn requests_are_in_flight_until_written() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            (config.server.max_batch, config.server.max_body) = (2000, 1 << 20);
            config.plans.get_mut("dev").expect("the dev plan").max_batch = None;
        })
        .start()
        .await;
    let in_flight = || gateway.in_flight();
    // The answer exceeds the kernel's buffers of both sides by far.
    let call = gateway.get_block(gateway.cluster.examples().block_with_v0).version_0();
    let body = serde_json::Value::from(vec![call.json(); 2000]).to_string();
    let mut socket = gateway.connect().await;
    socket.write_all(post("/v3/dev", "connection: close\r\n", &body).as_bytes()).await.unwrap();
    let head = read_until(&mut socket, |seen| seen.contains("\r\n\r\n")).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{}", &head[..200]);
    gateway.round_trips().await;
    assert_eq!((in_flight(), gateway.front().outgoing.used() > 0), (1, true));
    tokio::io::copy(&mut socket, &mut tokio::io::sink()).await.unwrap();
    gateway.until("the answer is written", || in_flight() == 0).await;
    assert_eq!(gateway.front().outgoing.used(), 0);
}

#[tokio::test]
async fn unfinished_or_keyless_requests_take_no_permit() {
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.server.max_in_flight = 1).start().await;
    let mut trickling = Vec::new();
    for key in ["dev", "nokey"] {
        let mut socket = gateway.connect().await;
        let call = wire::call("getClusterNodes").replace("/v3/dev", &format!("/v3/{key}"));
        socket.write_all(&call.as_bytes()[..call.len() - 1]).await.unwrap();
        trickling.push(socket);
    }
    let gate = gateway.cluster.node(0).hold("getVoteAccounts");
    assert_eq!(gateway.get_nodes().send().await.status, 200);
    let held = gateway.get_votes().send();
    let overloaded = async {
        gate.arrived(1).await;
        let reply = gateway.get_nodes().send().await;
        gate.release();
        reply
    };
    let (held, overloaded) = tokio::join!(held, overloaded);
    assert_eq!((held.status, overloaded.status, overloaded.code()), (200, 503, -32094));
}

#[tokio::test]
async fn trickling_body_times_out() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| config.server.body_timeout = Duration::from_millis(200))
        .start()
        .await;
    for path in ["/v3/dev", "/v3/nokey", "/nowhere"] {
        let mut socket = gateway.connect().await;
        let call = wire::call("getClusterNodes").replace("/v3/dev", path);
        socket.write_all(&call.as_bytes()[..call.len() - 1]).await.unwrap();
        // The text is read until the gateway closes the connection.
        let answer = read_until(&mut socket, |_| false).await;
        // What needs no body is answered without it.
        let expected = match path {
            "/v3/dev" => "408 Request Timeout",
            "/v3/nokey" => "401 Unauthorized",
            _ => "404 Not Found",
        };
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected}\r\n")), "{path}: {answer:?}");
        assert!(answer.contains("connection: close"), "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn odd_requests_get_clear_answers() {
    let gateway = TestGateway::builder().nodes(1).start().await;
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
        let mut socket = gateway.connect().await;
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
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.pool.max_response = 64 << 10).start().await;
    let slot = gateway.cluster.examples().block_with_v0;
    let call = |id: usize| gateway.get_block(slot).version_0().id(id);
    let one = call(0).send().await.text.len();
    let fit = (64 << 10) / one;
    assert!((2..10).contains(&fit), "{one}");
    let reply = gateway.batch((0..10).map(call)).send().await;
    let answers = reply.json();
    let answers = answers.as_array().expect("a batch");
    let refused: Vec<_> = answers.iter().filter(|answer| answer["error"]["code"] == -32093).collect();
    assert_eq!((reply.status, answers.len(), refused.len()), (200, 10, 10 - fit));
    assert!(refused.iter().all(|answer| answer["id"].is_u64()), "{refused:?}");
    assert!(answers.iter().filter(|answer| answer["result"].is_object()).count() == fit);
    assert!(
        refused.iter().all(|answer| answer["error"]["data"]["setting"] == "pool.max_response"),
        "{refused:?}"
    );

    // The longest answer that one of its methods may have is the limit of a batch, and a reload changes it at once.
    let mut config = gateway.front().config.copy();
    config.pool.max_response_of[Part::History.index()] = Some((one + 1) * 10);
    gateway.app.reload(&config).unwrap();
    let answers = gateway.batch((0..14).map(call)).send().await.json();
    let answers = answers.as_array().expect("a batch");
    let refused: Vec<_> = answers.iter().filter(|answer| answer["error"]["code"] == -32093).collect();
    assert_eq!(refused.len(), 14 - 10, "{refused:?}");
    let setting = "pool.max_response_of.history";
    assert!(refused.iter().all(|answer| answer["error"]["data"]["setting"] == setting), "{refused:?}");
}

#[tokio::test]
async fn no_answer_names_the_software_or_its_version() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let replies = [
        gateway.get_nodes().send().await,
        gateway.post("nonsense").send().await,
        gateway.get_nodes().key("nobody").send().await,
        gateway.get("/health").await,
        gateway.get("/nothing").await,
    ];
    for reply in replies {
        for name in ["server", "x-powered-by", "via"] {
            assert_eq!(reply.header(name), "", "{reply:?}");
        }
        let values: String = reply.headers.values().filter_map(|value| value.to_str().ok()).collect();
        assert!(!values.contains(env!("CARGO_PKG_VERSION")), "{values}");
    }
    // The admin listener may name the version, because only operators read it.
    let metrics = gateway.admin("/metrics").await.text;
    let info = metrics.lines().find(|line| line.starts_with("slotfront_build_info{")).expect("a line");
    assert!(info.contains(env!("CARGO_PKG_VERSION")) && info.contains("revision="), "{info}");
}
