//! Traces: the trace context of a request goes from the caller's header to the node's header and the log. No
//! secret goes with it.

use std::sync::{Arc, LazyLock, Mutex};

use serde_json::{Value, json};
use slotfront::config::Config;
use slotfront_sim::Fault;
use slotfront_testkit::{LoopbackTap, Reply, TestGateway};
use tracing::Dispatch;
use tracing_subscriber::layer::SubscriberExt;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Returns a gateway over one node, and a recording proxy (tap) in front of that node.
async fn tapped(change: impl FnOnce(&mut Config)) -> (TestGateway, LoopbackTap) {
    let tap = LoopbackTap::start().await;
    let gateway = TestGateway::builder().nodes(1).tap(&tap).config(change).start().await;
    (gateway, tap)
}

async fn call(gateway: &TestGateway, wallet: usize, headers: &[(&str, &str)]) -> Reply {
    gateway.get_account(gateway.cluster.examples().wallets[wallet]).headers(headers).send().await
}

#[tokio::test]
async fn unknown_words_of_a_node_are_logged_once_a_minute() {
    let written = Written::default();
    let _guard = written.log("slotfront=warn");
    let (gateway, node) = tapped(|config| config.upstreams[0].name = "hosted".to_owned()).await;
    let refusing = gateway.cluster.node(0);
    let own = node.url().trim_start_matches("http://").to_owned();
    let error = |message: &str| Fault::Error { code: -32050, message: message.to_owned() };
    refusing.fault_on("getAccountInfo", error("Rate limit exceeded"), Some(1));
    refusing.fault_on(
        "getAccountInfo",
        error(&format!("Plan spent at {own}\r\nforged line {}", "x ".repeat(99))),
        Some(1),
    );
    refusing.fault_on("getAccountInfo", error("Other words"), Some(1));
    for wallet in 0..3 {
        call(&gateway, wallet, &[]).await;
    }
    let lines =
        written.lines("an upstream has refused a call in words that are not known, so others are asked");
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&line["upstream.name"], &line["rpc.method"]), (&json!("hosted"), &json!("getAccountInfo")));
    let words = line["upstream.words"].as_str().unwrap();
    assert!(words.starts_with("Plan spent at ***:*** forged line x x") && words.len() == 100, "{words}");
}

#[tokio::test]
async fn trace_context_reaches_the_node() {
    let (gateway, node) = tapped(|_| {}).await;
    let vendor = ("tracestate", "a=1,b=2");
    let unsampled = PARENT.replace("-01", "-00");
    let upper = PARENT.to_uppercase();
    for (i, (headers, expected)) in [
        (&[("traceparent", PARENT), vendor][..], (vec![PARENT], vec!["a=1,b=2"])),
        (
            &[("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")],
            (vec![PARENT], vec!["a=1,b=2"]),
        ),
        (&[("traceparent", &unsampled)], (vec![unsampled.as_str()], vec![])),
        (&[("traceparent", &upper), vendor], (vec![], vec![])),
        (&[("traceparent", PARENT), ("traceparent", PARENT)], (vec![], vec![])),
        (&[vendor], (vec![], vec![])),
        (&[], (vec![], vec![])),
    ]
    .into_iter()
    .enumerate()
    {
        gateway.front().cache.purger().clear();
        let reply = call(&gateway, 0, headers).await;
        assert_eq!(reply.cache_status(), "fwd=miss; stored");
        let seen = node.seen("getAccountInfo");
        let last = &seen[i];
        assert_eq!((last.header("traceparent"), last.header("tracestate")), expected, "{headers:?}");
    }
    for probe in node.seen("getSlot") {
        assert_eq!(probe.header("traceparent"), [""; 0]);
    }
}

#[tokio::test]
async fn a_shared_flight_carries_its_leaders_place() {
    let (gateway, node) = tapped(|_| {}).await;
    let hold = gateway.cluster.node(0).hold("getAccountInfo");
    let other = PARENT.replace("4bf9", "5bf9");
    let (lead, joined, ()) = tokio::join!(
        call(&gateway, 0, &[("traceparent", PARENT)]),
        async {
            hold.arrived(1).await;
            call(&gateway, 0, &[("traceparent", &other)]).await
        },
        async {
            gateway.until("both calls wait", || gateway.in_flight() == 2).await;
            // The second call has been read, but may not have joined the first call's fetch yet.
            gateway.round_trips().await;
            hold.release();
        },
    );
    assert_eq!([lead.cache_status(), joined.cache_status()], ["fwd=miss; stored", "fwd=miss; collapsed"]);
    let seen = node.seen("getAccountInfo");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].header("traceparent"), [PARENT]);
}

/// A log writer that keeps its text in memory. Clones share the text.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Written {
    /// Records the log of this thread as JSON, at the levels of `filter`, until the guard is dropped.
    ///
    /// If a process has a single subscriber, the first thread that meets an event decides for all threads whether
    /// tracing records it. That thread may belong to a test without a subscriber. With a second subscriber,
    /// tracing asks both.
    fn log(&self, filter: &str) -> tracing::subscriber::DefaultGuard {
        static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(tracing_subscriber::registry()));
        LazyLock::force(&SECOND);
        let writer = self.clone();
        let lines = tracing_subscriber::fmt::layer().json().flatten_event(true);
        let lines = lines.with_writer(move || writer.clone());
        let filter = tracing_subscriber::EnvFilter::new(filter);
        tracing::subscriber::set_default(tracing_subscriber::registry().with(filter).with(lines))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    fn lines(&self, message: &str) -> Vec<Value> {
        let text = self.text();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["message"] == message).collect()
    }
}

#[tokio::test]
async fn request_log_has_trace_and_no_secret() {
    let written = Written::default();
    let guard = written.log("slotfront=trace");
    let (gateway, node) = tapped(|config| config.pool.retries = 0).await;
    call(&gateway, 0, &[("traceparent", PARENT), ("x-request-id", "mine")]).await;
    let lines = written.lines("request");
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line = &lines[0];
    for (field, expected) in [
        ("level", json!("DEBUG")),
        ("target", json!("slotfront::http::access")),
        ("rpc.method", json!("getAccountInfo")),
        ("rpc.commitment", json!("finalized")),
        ("rpc.calls", json!(1)),
        ("cache.outcome", json!("miss")),
        ("http.status", json!(200)),
        ("request.id", json!("mine")),
        ("trace.id", json!(TRACE)),
    ] {
        assert_eq!(line[field], expected, "{field}");
    }
    assert!(line["duration_us"].is_u64() && line.get("reason").is_none(), "{line}");

    // A batch is logged as one line. A refused request is logged as one line, too, which does not show the key.
    let votes = gateway.get_votes();
    let block = gateway.call("getBlock", json!([])).id(3);
    gateway.batch([votes.clone(), votes.id(2), block]).send().await;
    let refused = gateway.get_votes().key("sf_hunter2").send().await;
    assert_eq!(refused.status, 401);
    let lines = written.lines("request");
    assert_eq!(lines.len(), 3);
    assert_eq!(
        [&lines[1]["rpc.calls"], &lines[1]["rpc.method"], &lines[1]["cache.outcome"]],
        [&json!(3), &json!("mixed"), &json!("mixed")]
    );
    assert_eq!([&lines[2]["key.id"], &lines[2]["cache.outcome"]], [&json!("none"), &json!("denied")]);
    assert!(lines[2]["reason"].is_string() && lines[2].get("trace.id").is_none());

    // Failed requests are logged at info, at most a few lines a second.
    gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Status(503), None);
    for _ in 0..8 {
        assert_eq!(call(&gateway, 1, &[]).await.status, 502);
    }
    let told = written.lines("request").iter().filter(|line| line["level"] == "INFO").count();
    assert!((5..8).contains(&told), "{told}");
    assert!(!written.lines("an attempt on an upstream failed").is_empty());

    drop(guard);
    let text = written.text();
    for secret in ["sf_hunter2", node.url().trim_start_matches("http://"), node.node_url()] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
}

#[tokio::test]
async fn a_good_request_is_no_line_at_info() {
    let written = Written::default();
    let _guard = written.log("slotfront=info");
    let (gateway, _) = tapped(|_| {}).await;
    assert_eq!(call(&gateway, 0, &[("traceparent", PARENT)]).await.status, 200);
    assert_eq!(written.lines("request"), [Value::Null; 0]);
}

mod exported {
    use super::*;

    /// Returns every span that the collector has received, in the order in which the spans ended.
    fn spans(collector: &LoopbackTap) -> Vec<Value> {
        let bodies = collector.seen("resourceSpans").into_iter().map(|seen| {
            assert_eq!(seen.path(), "/v1/traces");
            assert_eq!(seen.header("content-type"), ["application/json"]);
            serde_json::from_str::<Value>(&seen.body).unwrap()
        });
        let spans = |body: Value| {
            let scope = &body["resourceSpans"][0]["scopeSpans"][0];
            scope["spans"].as_array().unwrap().clone()
        };
        bodies.flat_map(spans).collect()
    }

    fn attribute(span: &Value, key: &str) -> Value {
        let all = span["attributes"].as_array().unwrap();
        let value = all.iter().find(|attribute| attribute["key"] == key).map(|found| &found["value"]);
        value.map_or(Value::Null, |value| value.as_object().unwrap().values().next().unwrap().clone())
    }

    async fn traced(share: f64) -> (TestGateway, LoopbackTap, LoopbackTap) {
        let collector = LoopbackTap::start().await;
        let url = collector.secret_url();
        let (gateway, node) = tapped(|config| {
            config.telemetry.otlp = Some(url);
            config.telemetry.trace_sample = share;
            config.server.drain_timeout = std::time::Duration::from_millis(100);
        })
        .await;
        (gateway, node, collector)
    }

    #[tokio::test]
    async fn recorded_spans_link_caller_and_node() {
        let (gateway, node, collector) = traced(0.0).await;
        // No connection brings two answers, so that the broken one is new, and the call is not sent again within its span.
        node.close_at(|number, _| number == 2);
        gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Reset, Some(1));
        let vendor = ("tracestate", "a=1");
        let reply = call(&gateway, 0, &[("traceparent", PARENT), vendor, ("x-request-id", "mine")]).await;
        assert_eq!(reply.status, 200);
        // Neither of these requests is recorded.
        let unsampled = PARENT.replace("-01", "-00");
        call(&gateway, 1, &[("traceparent", &unsampled)]).await;
        call(&gateway, 2, &[]).await;
        gateway
            .until("the server's span is exported", || spans(&collector).iter().any(|span| span["kind"] == 2))
            .await;

        let spans = spans(&collector);
        assert!(
            spans.iter().all(|span| span["traceId"] == TRACE && span["traceState"] == "a=1"),
            "{spans:?}"
        );
        let (servers, clients): (Vec<_>, Vec<_>) = spans.iter().partition(|span| span["kind"] == 2);
        let [server] = servers[..] else { panic!("{servers:?}") };
        assert_eq!(server["parentSpanId"], "00f067aa0ba902b7");
        assert_eq!(server["name"], "getAccountInfo");
        for (key, expected) in [
            ("rpc.commitment", json!("finalized")),
            ("cache.outcome", json!("miss")),
            ("http.response.status_code", json!("200")),
            ("request.id", json!("mine")),
        ] {
            assert_eq!(attribute(server, key), expected);
        }
        let results: Vec<_> = clients.iter().map(|span| attribute(span, "upstream.result")).collect();
        assert_eq!(results, ["connect", "ok"]);
        let time = |span: &Value, key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap();
        let mut asked = node.seen("getAccountInfo");
        asked.dedup_by(|second, first| second.body == first.body);
        for (client, asked) in clients.iter().zip(&asked) {
            assert_eq!(client["parentSpanId"], server["spanId"]);
            assert_eq!(attribute(client, "upstream.name"), "node-0");
            assert!(time(server, "startTimeUnixNano") <= time(client, "startTimeUnixNano") + 1_000_000);
            assert!(time(client, "startTimeUnixNano") <= time(client, "endTimeUnixNano"));
            let expected = format!("00-{TRACE}-{}-01", client["spanId"].as_str().unwrap());
            assert_eq!(asked.header("traceparent"), [expected]);
            assert_eq!(asked.header("tracestate"), ["a=1"]);
            let failed = attribute(client, "upstream.result") != "ok";
            assert_eq!(client["status"]["code"] == 2, failed);
        }
        // The node then got two requests whose traces are not recorded. The first request carries its caller's own
        // context, and the second one has no context.
        let others = &asked[clients.len()..];
        assert_eq!(others[0].header("traceparent"), [unsampled.as_str()]);
        assert_eq!(others[1].header("traceparent"), [""; 0]);
        let exported = slotfront::telemetry::SpanResult::Exported;
        let count = || gateway.front().metrics.trace_spans.at(exported).get();
        gateway.until("the spans are counted", || count() == spans.len() as u64).await;
    }

    #[tokio::test]
    async fn sampled_requests_begin_a_trace() {
        let (gateway, node, collector) = traced(1.0).await;
        call(&gateway, 0, &[]).await;
        call(&gateway, 0, &[]).await;
        // The stop sends the remaining spans.
        gateway.app.stop().await;
        let spans = spans(&collector);
        let outcomes: Vec<_> = spans.iter().map(|span| attribute(span, "cache.outcome")).collect();
        assert_eq!(outcomes, [Value::Null, json!("miss"), json!("hit")], "{spans:?}");
        assert_eq!(spans[0]["parentSpanId"], spans[1]["spanId"]);
        assert!(spans[1].get("parentSpanId").is_none() && spans[2].get("parentSpanId").is_none());
        assert_ne!(spans[1]["traceId"], spans[2]["traceId"]);
        let trace = spans[0]["traceId"].as_str().unwrap();
        assert!(node.seen("getAccountInfo")[0].header("traceparent")[0].starts_with(&format!("00-{trace}-")));
    }
}
