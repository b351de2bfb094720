//! A node that gives no answer says why, in the same word wherever it is shown, and never its address.

use serde_json::{Value, json};
use slotfront::config::{CaFile, Secret, Upstream};
use slotfront_sim::Fault;
use slotfront_testkit::{TestCertificate, TestGateway};

/// Returns an upstream that is named after the word that is expected of it.
fn named(word: &str, url: String) -> Upstream {
    Upstream::plain(word, Secret::new(url))
}

#[tokio::test]
async fn a_silent_node_has_one_reason_everywhere() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [valid, expired] =
        [TestCertificate::write(dirs[0].path()), TestCertificate::write_until(dirs[1].path(), 2020)];
    let served = TestGateway::builder().nodes(1).tls(&valid).start().await;
    let outdated = TestGateway::builder().nodes(1).tls(&expired).start().await;
    let port = |gateway: &TestGateway| gateway.app.public.port();
    // A port that was free a moment ago, and a listener that never answers.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gateway = TestGateway::builder()
        .nodes(5)
        .prepare(|cluster| {
            for (node, status) in cluster.nodes().iter().zip([401, 403, 404, 308, 503]) {
                node.fault(Fault::Status(status));
            }
        })
        .config(|config| {
            let words = ["status_401", "status_403", "status_404", "status_3xx", "status_5xx"];
            for (upstream, word) in config.upstreams.iter_mut().zip(words) {
                upstream.name = word.to_owned();
            }
            let plain = config.upstreams[0].url.expose().replace("http:", "https:");
            let trusted = |word: &str, url: String, pem: &str| Upstream {
                ca_file: Some(CaFile { path: "ca.pem".into(), pem: pem.to_owned() }),
                ..named(word, url)
            };
            config.upstreams.extend([
                named("name_not_found", "http://no-such-host.invalid/SECRET".to_owned()),
                named("connection_refused", format!("http://{closed}/SECRET")),
                named("timeout", format!("http://{}/SECRET", silent.local_addr().unwrap())),
                named("tls_failed", format!("{plain}/SECRET")),
                named("certificate_unknown_issuer", format!("https://localhost:{}/SECRET", port(&served))),
                trusted(
                    "certificate_wrong_name",
                    format!("https://127.0.0.1:{}/", port(&served)),
                    &valid.pem,
                ),
                trusted(
                    "certificate_expired",
                    format!("https://localhost:{}/", port(&outdated)),
                    &expired.pem,
                ),
            ]);
            config.pool.genesis_hash = Some("5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d".to_owned());
            config.pool.retries = 20;
            // After this time the silent node has timed out. Until then, it has no reason.
            config.pool.connect_timeout = std::time::Duration::from_secs(5);
        })
        .start_unprobed()
        .await;

    let all = |view: &Value| {
        let of = |node: &Value| node["why"] == node["name"];
        view["upstreams"].as_array().unwrap().iter().all(of)
    };
    let mut view = gateway.admin("/api/upstreams").await;
    while !all(&view.json()) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        view = gateway.admin("/api/upstreams").await;
    }
    for node in view.json()["upstreams"].as_array().unwrap() {
        let [word, since] = ["why", "since"].map(|member| node[member].as_str().unwrap());
        assert_eq!(node["reasons"], json!([format!("not reached: {word}, since {since}")]));
        assert_eq!((&node["latency_ms"], &node["breaker"]), (&Value::Null, &Value::Null));
    }
    let ready = gateway.admin("/readyz").await;
    let call = gateway.get_nodes().send().await;
    let attempts = call.error()["data"]["attempts"].clone();
    for node in view.json()["upstreams"].as_array().unwrap() {
        let word = node["name"].as_str().unwrap();
        let said = format!("upstream {word}: not reached: {word}, since ");
        assert!(ready.text.contains(&said), "{}", ready.text);
        assert!(
            attempts.as_array().unwrap().contains(&json!({"reason": word, "upstream": word})),
            "{attempts}"
        );
    }
    for text in [&view.text, &ready.text, &call.text] {
        assert!(
            !text.contains("SECRET") && !text.contains("invalid") && !text.contains("127.0.0.1"),
            "{text}"
        );
    }
}
