//! The client's address behind trusted proxies: the header that names it, and the treatment of an unknown
//! address.

use jiff::Timestamp;
use serde_json::json;
use slotfront::config::{AuthMode, Config};
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront_testkit::TestGateway;
use slotfront_testkit::wire::{is_whole, post, read_until};
use tokio::io::AsyncWriteExt;

/// The headers of a request, and true if the key's address list admits the client that they name.
type Row<'a> = (&'a [(&'static str, &'a str)], bool);

fn trust_loopback(config: &mut Config) {
    config.server.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
}

async fn check(rows: &[Row<'_>]) {
    let dir = tempfile::tempdir().unwrap();
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let mut new = NewKey::of("inside", "dev");
    new.scope.addresses = Some(vec!["127.0.0.0/8".parse().unwrap()]);
    let key = file.create(&new, Timestamp::now()).unwrap().key;
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            trust_loopback(config);
            config.auth.keys_file = Some(file.path().to_path_buf());
        })
        .start()
        .await;
    for (headers, is_inside) in rows {
        for reply in gateway.get_nodes().key(key.expose()).headers(headers).request().send_every_way().await {
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
    check(&[
        (&[], true),
        (&[(x, "127.0.0.5")], true),
        (&[(x, "203.0.113.9")], false),
        (&[(x, "127.0.0.5, 203.0.113.9")], false),
        // `X-Forwarded-For` has no quoted strings.
        (&[(x, "\", 203.0.113.9")], false),
        (&[(x, "\"127.0.0.5\"")], false),
        // The header `Forwarded` is not read.
        (&[(x, "203.0.113.9"), ("forwarded", "for=1.1.1.1")], false),
        (&[(x, "203.0.113.9"), ("forwarded", "for=127.0.0.5")], false),
        (&[(x, "203.0.113.9"), ("forwarded", "x")], false),
        (&[(x, "127.0.0.5"), ("forwarded", "for=203.0.113.9")], true),
        (&[("forwarded", "for=127.0.0.5")], false),
        // Some elements are not addresses.
        (&[(x, "")], false),
        (&[(x, "127.0.0.5,")], false),
        (&[(x, "127.0.0.5,,127.0.0.1")], false),
        (&[(x, "unknown")], false),
        (&[(x, "127.0.0.5, _hidden")], false),
        (&[(x, "127.0.0.5, unknown, 127.0.0.1")], false),
        (&[(x, "127.0.0.5, \u{fc}")], false),
        (&[(x, &outside)], false),
        (&[(x, &inside)], true),
    ])
    .await;
}

#[tokio::test]
async fn nobody_behind_an_unnamed_connection_names_himself() {
    let dir = tempfile::tempdir().unwrap();
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let key_for = |name: &str, addresses: &str| {
        let mut new = NewKey::of(name, "dev");
        new.scope.addresses = Some(vec![addresses.parse().unwrap()]);
        file.create(&new, Timestamp::now()).unwrap().key
    };
    let (client, balancer) = (key_for("client", "203.0.113.0/24"), key_for("balancer", "127.0.0.1/32"));
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            trust_loopback(config);
            config.server.proxy_protocol = true;
            config.server.trusted_proxies.push("10.0.0.0/8".parse().unwrap());
            config.auth.keys_file = Some(file.path().to_path_buf());
        })
        .start()
        .await;
    let second = b"\r\n\r\n\0\r\nQUIT\n";
    let (unknown, local) = (b"PROXY UNKNOWN\r\n".to_vec(), [second, &b"\x20\0\0\0"[..]].concat());
    let unspecified = [second, &b"\x21\0\0\0"[..]].concat();
    let proxy = b"PROXY TCP4 10.0.0.9 10.0.0.1 1 2\r\n".to_vec();
    let own = b"PROXY TCP4 203.0.113.9 10.0.0.1 1 2\r\n".to_vec();
    let (x, f) = ("x-forwarded-for: 203.0.113.9\r\n", "forwarded: for=203.0.113.9\r\n");
    for (begins, headers, key, is_admitted) in [
        (&unknown, x, &client, false),
        (&local, x, &client, false),
        (&unspecified, x, &client, false),
        (&unknown, f, &client, false),
        (&unknown, "x-forwarded-for: 127.0.0.1\r\n", &balancer, false),
        (&local, "x-forwarded-for: 127.0.0.1\r\n", &balancer, false),
        // The balancer may speak for itself, and what it names counts.
        (&unknown, "", &balancer, true),
        (&local, "", &balancer, true),
        (&unspecified, "", &balancer, false),
        (&own, "x-forwarded-for: 127.0.0.1\r\n", &client, true),
        (&proxy, x, &client, true),
    ] {
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"getClusterNodes"}"#;
        let request = post(&format!("/v3/{}", key.expose()), headers, call);
        let mut socket = gateway.connect().await;
        socket.write_all(&[begins, request.as_bytes()].concat()).await.unwrap();
        let answer = read_until(&mut socket, is_whole).await;
        let begins = String::from_utf8_lossy(begins);
        let status = if is_admitted { "HTTP/1.1 200" } else { "HTTP/1.1 403" };
        assert!(answer.starts_with(status), "{begins:?} {headers:?}: {answer:?}");
    }
}

#[tokio::test]
async fn requests_of_proxies_without_an_address_are_counted() {
    let gateway = TestGateway::builder().nodes(1).config(trust_loopback).start().await;
    for headers in [&[][..], &[("x-forwarded-for", "203.0.113.9")], &[("forwarded", "for=203.0.113.9")]] {
        assert_eq!(gateway.get_nodes().headers(headers).send().await.status, 200);
    }
    assert_eq!(gateway.metric("slotfront_client_addresses_missing_total"), 1);
    assert_eq!(gateway.metric("slotfront_client_addresses_unknown_total"), 1);
    let direct = TestGateway::builder().nodes(1).start().await;
    direct.get_nodes().send().await;
    assert_eq!(direct.metric("slotfront_client_addresses_missing_total"), 0, "no proxy");
}

#[tokio::test]
async fn clients_of_unknown_address_share_one_limit() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            trust_loopback(config);
            config.auth.mode = AuthMode::Open;
            config.auth.open_plan = Some("dev".to_owned());
            let plan = config.plans.get_mut("dev").unwrap();
            (plan.rps, plan.burst, plan.daily_units) = (1, 1, Some(1));
        })
        .start()
        .await;
    let send = |value: &str| gateway.get_nodes().header("x-forwarded-for", value).send();
    assert_eq!(send("unknown").await.status, 200);
    assert_eq!(send("_hidden").await.status, 429);
    assert_eq!(send("1.1.1.1, \"").await.status, 429);
    assert_eq!(send("127.0.0.1").await.status, 200, "the proxy's own address has a limit of its own");
    assert_eq!(send("203.0.113.9").await.status, 200);
    let unknown = gateway.front().metrics.client_addresses_unknown.at(()).get();
    assert_eq!(unknown, 3);
}

#[tokio::test]
async fn failed_keys_of_unknown_clients_count_together() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            trust_loopback(config);
            config.auth.failed_per_minute = 2;
        })
        .start()
        .await;
    let mut codes = Vec::new();
    for client in ["unknown", "", "a, b", "203.0.113.9", "127.0.0.1"] {
        let call = gateway.get_nodes().key("wrong").header("x-forwarded-for", client);
        codes.push(call.send().await.code());
    }
    assert_eq!(json!(codes), json!([-32090, -32090, -32092, -32090, -32090]));
}
