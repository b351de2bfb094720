//! The client's address behind trusted proxies: the header that names it, and the treatment of an unknown
//! address.

use jiff::Timestamp;
use reqwest::header::{HeaderMap, HeaderValue};
use serde_json::json;
use slotfront::config::{AuthMode, ClientIpHeader, Config};
use slotfront::gateway::keys::file::{KeyFile, NewKey};

use crate::harness::{Reply, Stage};

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"getClusterNodes"}"#;

/// The headers of one request, and whether it is in the key's address list.
type Row<'a> = (&'a [(&'static str, &'a str)], bool);

fn trust_loopback(config: &mut Config) {
    config.server.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
}

/// Sends a call with `headers` as plain HTTP/1.1, as HTTP/1.1 that hyper reads, and as HTTP/2.
async fn every_way(stage: &Stage, url: &str, headers: &HeaderMap) -> [Reply; 3] {
    let call = |client: &reqwest::Client| {
        client.post(url).header("content-type", "application/json").headers(headers.clone()).body(CALL)
    };
    let multiplexed = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    [
        stage.send(call(&stage.client)).await,
        stage.send(call(&stage.client).header("origin", "https://app.example")).await,
        stage.send(call(&multiplexed)).await,
    ]
}

fn map(headers: &[(&'static str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, text) in headers {
        map.append(*name, HeaderValue::from_bytes(text.as_bytes()).unwrap());
    }
    map
}

async fn check(header: ClientIpHeader, rows: &[Row<'_>]) {
    let dir = tempfile::tempdir().unwrap();
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let mut new = NewKey::of("inside", "dev");
    new.scope.addresses = Some(vec!["127.0.0.0/8".parse().unwrap()]);
    let key = file.create(&new, Timestamp::now()).unwrap().key;
    let stage = Stage::of(1, |config| {
        trust_loopback(config);
        config.server.client_ip_header = header;
        config.auth.keys_file = Some(file.path().to_path_buf());
    })
    .await;
    let url = stage.url.replace("/dev", &format!("/{}", key.expose()));
    for (headers, is_inside) in rows {
        for reply in every_way(&stage, &url, &map(headers)).await {
            let expected = if *is_inside { 200 } else { 403 };
            assert_eq!(reply.status, expected, "{headers:?}: {}", reply.text);
        }
    }
}

#[tokio::test]
async fn nobody_behind_a_proxy_passes_for_the_proxy() {
    let x = "x-forwarded-for";
    let chain = |client: &str| format!("{client}{}", ", 127.0.0.1".repeat(39));
    let (outside, inside) = (chain("203.0.113.9"), chain("127.0.0.5"));
    check(
        ClientIpHeader::XForwardedFor,
        &[
            (&[], true),
            (&[(x, "127.0.0.5")], true),
            (&[(x, "203.0.113.9")], false),
            (&[(x, "127.0.0.5, 203.0.113.9")], false),
            // This header has no quotes.
            (&[(x, "\", 203.0.113.9")], false),
            (&[(x, "\"127.0.0.5\"")], false),
            // The other header is never read.
            (&[(x, "203.0.113.9"), ("forwarded", "for=1.1.1.1")], false),
            (&[(x, "203.0.113.9"), ("forwarded", "for=127.0.0.5")], false),
            (&[(x, "203.0.113.9"), ("forwarded", "x")], false),
            (&[(x, "127.0.0.5"), ("forwarded", "for=203.0.113.9")], true),
            (&[("forwarded", "for=127.0.0.5")], false),
            // Elements that are not addresses.
            (&[(x, "")], false),
            (&[(x, "127.0.0.5,")], false),
            (&[(x, "127.0.0.5,,127.0.0.1")], false),
            (&[(x, "unknown")], false),
            (&[(x, "127.0.0.5, _hidden")], false),
            (&[(x, "127.0.0.5, unknown, 127.0.0.1")], false),
            (&[(x, "127.0.0.5, \u{fc}")], false),
            (&[(x, &outside)], false),
            (&[(x, &inside)], true),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_proxy_that_writes_forwarded_is_believed() {
    let f = "forwarded";
    check(
        ClientIpHeader::Forwarded,
        &[
            (&[], true),
            (&[(f, "for=127.0.0.5")], true),
            (&[(f, "for=203.0.113.9")], false),
            (&[(f, "for=127.0.0.5, for=203.0.113.9;by=127.0.0.1")], false),
            (&[(f, "for=\"127.0.0.5:80\";proto=https")], true),
            (&[(f, "for=\"127.0.0.5:_port\"")], true),
            (&[(f, "for=\"[2001:db8::1]:4711\"")], false),
            (&[(f, "for=203.0.113.9"), ("x-forwarded-for", "127.0.0.5")], false),
            (&[("x-forwarded-for", "127.0.0.5")], false),
            (&[(f, "for=\", for=203.0.113.9")], false),
            (&[(f, "for=127.0.0.5;for=127.0.0.6")], false),
            (&[(f, "for=unknown")], false),
            (&[(f, "for=_hidden")], false),
            (&[(f, "proto=https")], false),
            (&[(f, "")], false),
        ],
    )
    .await;
}

#[tokio::test]
async fn clients_of_unknown_address_share_one_limit() {
    let stage = Stage::of(1, |config| {
        trust_loopback(config);
        config.auth.mode = AuthMode::Open;
        config.auth.open_plan = Some("dev".to_owned());
        let plan = config.plans.get_mut("dev").unwrap();
        (plan.rps, plan.burst, plan.daily_units) = (1, 1, Some(1));
    })
    .await;
    let send = |value: &'static str| {
        let request = stage.client.post(&stage.url).header("content-type", "application/json").body(CALL);
        stage.send(request.header("x-forwarded-for", value))
    };
    assert_eq!(send("unknown").await.status, 200);
    assert_eq!(send("_hidden").await.status, 429);
    assert_eq!(send("1.1.1.1, \"").await.status, 429);
    assert_eq!(send("127.0.0.1").await.status, 200, "the proxy's own address has a limit of its own");
    assert_eq!(send("203.0.113.9").await.status, 200);
    let unknown = stage.front().metrics.client_addresses_unknown.at(()).get();
    assert_eq!(unknown, 3);
}

#[tokio::test]
async fn failed_keys_of_unknown_clients_count_together() {
    let stage = Stage::of(1, |config| {
        trust_loopback(config);
        config.auth.failed_per_minute = 2;
    })
    .await;
    let url = stage.url.replace("/dev", "/wrong");
    let mut codes = Vec::new();
    for client in ["unknown", "", "a, b", "203.0.113.9", "127.0.0.1"] {
        let request = stage.client.post(&url).header("content-type", "application/json").body(CALL);
        codes.push(stage.send(request.header("x-forwarded-for", client)).await.code());
    }
    assert_eq!(json!(codes), json!([-32090, -32090, -32092, -32090, -32090]));
}
