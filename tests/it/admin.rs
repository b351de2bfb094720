//! The admin API: its effects, seen from both listeners.

use std::time::Duration;

use serde_json::{Value, json};
use slotfront::app::signals::Signals;
use slotfront::app::{self, Listeners};
use slotfront::config::Secret;
use slotfront::config::reload::ConfigSource;
use slotfront::gateway::Gateway;
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront::methods::Commitment;
use slotfront::telemetry::Metrics;
use slotfront_testkit::{Reply, TestGateway};
use tokio::time::Instant;

const TOKEN: &str = "an-admin-token";

async fn gateway_with_keys(file: &KeyFile) -> TestGateway {
    TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.auth.admin_token = Some(Secret::new(TOKEN));
            config.auth.keys_file = Some(file.path().to_path_buf());
            config.auth.dev_key = None;
        })
        .start()
        .await
}

async fn ask(client: &reqwest::Client, admin: &str, verb: &str, path: &str, body: &Value) -> (u16, Value) {
    let request = client.request(verb.parse().unwrap(), format!("{admin}{path}")).bearer_auth(TOKEN);
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let response = request.body(text).send().await.unwrap();
    let status = response.status().as_u16();
    (status, serde_json::from_str(&response.text().await.unwrap()).unwrap())
}

async fn nodes(gateway: &TestGateway, key: &str) -> Reply {
    gateway.get_nodes().key(key).send().await
}

#[tokio::test]
async fn keys_are_created_rotated_and_revoked_without_restart() {
    let dir = tempfile::tempdir().unwrap();
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let gateway = gateway_with_keys(&file).await;
    let ask = |verb, path: String, body| {
        let gateway = &gateway;
        async move { ask(&gateway.client, &gateway.admin, verb, &path, &body).await }
    };
    let (status, made) =
        ask("POST", "/api/keys".into(), json!({"name": "alice", "expires": "2099-01-01T00:00:00Z"})).await;
    assert_eq!((status, &made["in_force"]), (200, &json!(true)), "{made}");
    let (id, first) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    assert_eq!(nodes(&gateway, first).await.status, 200, "the key is in force when the reply comes");

    let (_, rotated) = ask("POST", format!("/api/keys/{id}/rotate"), json!({"grace": "1h"})).await;
    let second = rotated["key"].as_str().unwrap();
    assert!(rotated["old_until"].is_string() && rotated["id"] == id, "{rotated}");
    assert_eq!(rotated["earlier"][0]["until"], rotated["old_until"], "{rotated}");
    for key in [first, second] {
        assert_eq!(nodes(&gateway, key).await.status, 200, "both secrets are in force");
    }
    let (_, rotated) = ask("POST", "/api/keys/alice/rotate".into(), json!({"grace": "0s"})).await;
    let third = rotated["key"].as_str().unwrap();
    assert_eq!([first, second, third].map(|key| key == third), [false, false, true]);
    assert_eq!(nodes(&gateway, second).await.status, 401, "without a grace the old secret ends at once");
    assert_eq!(nodes(&gateway, first).await.status, 401, "nor does any older secret outlive it");
    assert_eq!((&rotated["old_until"], &rotated["earlier"]), (&Value::Null, &json!([])));

    let (_, usage) = ask("GET", format!("/api/keys/{id}/usage"), Value::Null).await;
    assert_eq!((usage["plan"].clone(), usage["day"]["used"].clone()), (json!("standard"), json!(3)));

    // Another program adds a key to the key file. The next call of the API does not lose that key.
    let new = NewKey::of("bob", "standard");
    file.create(&new, jiff::Timestamp::now()).unwrap();
    let (_, revoked) = ask("POST", format!("/api/keys/{id}/revoke"), Value::Null).await;
    assert_eq!(revoked, json!({"id": id, "in_force": true}));
    for key in [first, third] {
        assert_eq!(nodes(&gateway, key).await.status, 401, "the key ends at once, with its older secrets");
    }
    let (_, listed) = ask("GET", "/api/keys".into(), Value::Null).await;
    let standing =
        |i: usize| ["name", "state"].map(|member| listed["keys"][i][member].as_str().unwrap().to_owned());
    assert_eq!([standing(0), standing(1)], [["alice", "revoked"], ["bob", "active"]]);
    let hash = std::fs::read_to_string(file.path()).unwrap();
    let hash = hash.split("sha256 = \"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    for secret in [first, second, third, &hash] {
        assert!(!listed.to_string().contains(secret), "{listed}");
    }
}

#[tokio::test]
async fn key_restrictions_are_set_at_creation_and_stay() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = gateway_with_keys(&KeyFile::new(dir.path().join("keys.toml"))).await;
    let narrowed = json!({
        "origins": ["https://a.example"],
        "addresses": ["127.0.0.1/32", "2001:db8::/32"],
        "methods": ["getClusterNodes"],
    });
    let mut wanted = narrowed.clone();
    wanted["name"] = json!("narrow");
    let (status, made) = ask(&gateway.client, &gateway.admin, "POST", "/api/keys", &wanted).await;
    assert_eq!((status, &made["in_force"]), (200, &json!(true)), "{made}");
    let (_, rotated) =
        ask(&gateway.client, &gateway.admin, "POST", "/api/keys/narrow/rotate", &json!({"grace": "0s"}))
            .await;
    let key = rotated["key"].as_str().unwrap();
    let (_, listed) = ask(&gateway.client, &gateway.admin, "GET", "/api/keys", &Value::Null).await;
    for member in ["origins", "addresses", "methods"] {
        assert_eq!(listed["keys"][0][member], narrowed[member], "{listed}");
    }
    assert_eq!(nodes(&gateway, key).await.status, 200);
    let refused = gateway.get_votes().key(key).send().await;
    assert_eq!((refused.status, refused.code()), (403, -32091), "{}", refused.text);
    let from = |origin: &str| gateway.get_nodes().key(key).header("origin", origin).send();
    assert_eq!(from("https://a.example").await.status, 200);
    let refused = from("https://b.example").await;
    assert_eq!((refused.status, refused.code()), (403, -32091), "{}", refused.text);

    let elsewhere = json!({"name": "elsewhere", "addresses": ["192.0.2.0/24"]});
    let (_, made) = ask(&gateway.client, &gateway.admin, "POST", "/api/keys", &elsewhere).await;
    assert_eq!(nodes(&gateway, made["key"].as_str().unwrap()).await.status, 403);
}

#[tokio::test]
async fn admin_refusals_name_the_expected_value() {
    let dir = tempfile::tempdir().unwrap();
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let new = |name: &str| NewKey::of(name, "standard");
    let now = jiff::Timestamp::now();
    for name in ["twin", "twin", "gone"] {
        file.create(&new(name), now).unwrap();
    }
    file.revoke("gone", now).unwrap();
    let gateway = gateway_with_keys(&file).await;
    let before = std::fs::read_to_string(file.path()).unwrap();
    for (verb, path, body, status, why) in [
        ("POST", "/api/keys", json!({}), 400, "missing field `name`"),
        (
            "POST",
            "/api/keys",
            json!({"name": "a", "secret": "x"}),
            400,
            "unknown field `secret`, expected one of `name`",
        ),
        ("POST", "/api/keys", json!({"name": ""}), 400, "name: expected 1 to 64 characters"),
        ("POST", "/api/keys", json!({"name": "a\u{202e}b"}), 400, "characters that hide or reorder text"),
        (
            "POST",
            "/api/keys",
            json!({"name": "a", "plan": "gold"}),
            400,
            "plan: expected one of dev, standard, found",
        ),
        (
            "POST",
            "/api/keys",
            json!({"name": "a", "expires": "soon"}),
            400,
            "expires: expected a future time",
        ),
        (
            "POST",
            "/api/keys",
            json!({"name": "a", "expires": "2020-01-01T00:00:00Z"}),
            400,
            "expires: expected",
        ),
        (
            "POST",
            "/api/keys",
            json!({"name": "a", "origins": ["https://a.example", "https://a.example/"]}),
            400,
            "origins[1]: expected an origin as a browser sends it",
        ),
        (
            "POST",
            "/api/keys",
            json!({"name": "a", "addresses": ["10.0.0.0/33"]}),
            400,
            "addresses[0]: expected an address or a network, like 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32, found \"10.0.0.0/33\"",
        ),
        (
            "POST",
            "/api/keys",
            json!({"name": "a", "methods": ["requestAirdrop"]}),
            400,
            "methods[0]: expected an exact method name",
        ),
        ("POST", "/api/keys", json!({"name": "a", "methods": []}), 400, "methods: expected at least one"),
        (
            "POST",
            "/api/keys/twin/rotate",
            json!({"grace": "long"}),
            400,
            "grace: expected a duration such as",
        ),
        ("POST", "/api/keys/twin/rotate", Value::Null, 409, "2 keys have the name"),
        ("POST", "/api/keys/gone/rotate", Value::Null, 409, "is revoked"),
        ("POST", "/api/keys/nobody/revoke", Value::Null, 404, "no key has this id or name"),
        ("GET", "/api/keys/nobody/usage", Value::Null, 404, "no key in force"),
        ("PUT", "/api/log", json!({"filter": "slotfront=loud"}), 400, "is not a log filter"),
        ("PUT", "/api/log", json!({"level": "debug"}), 400, "unknown field `level`, expected `filter`"),
        ("GET", "/api/log", Value::Null, 503, "logging is not set up"),
    ] {
        let (got, answer) = ask(&gateway.client, &gateway.admin, verb, path, &body).await;
        let found = answer["error"].as_str().unwrap_or_default();
        assert!(got == status && found.contains(why), "{verb} {path} {body}: {got} {answer}");
    }
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), before, "nothing was written");

    std::fs::write(file.path(), before.replacen("standard", "gold", 1)).unwrap();
    let (status, made) =
        ask(&gateway.client, &gateway.admin, "POST", "/api/keys", &json!({"name": "a"})).await;
    assert_eq!((status, &made["in_force"]), (200, &json!(false)), "another key's plan is gone: {made}");
    std::fs::write(file.path(), "no toml").unwrap();
    let (status, refused) = ask(&gateway.client, &gateway.admin, "GET", "/api/keys", &Value::Null).await;
    assert!(status == 409 && refused["error"].as_str().unwrap().contains("line 1"), "{refused}");

    let without = TestGateway::builder()
        .nodes(1)
        .config(|config| config.auth.admin_token = Some(Secret::new(TOKEN)))
        .start()
        .await;
    let (status, refused) = ask(&without.client, &without.admin, "GET", "/api/keys", &Value::Null).await;
    assert!(status == 409 && refused["error"].as_str().unwrap().contains("auth.keys_file"), "{refused}");
}

#[tokio::test]
async fn admin_reload_applies_good_and_refuses_bad_settings() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("slotfront.toml");
    let text = |rps: &str| {
        format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\n[auth]\nmode = \"open\"\n\
             admin_token = \"{TOKEN}\"\n[plans.standard]\nrps = {rps}\n[[upstream]]\nurl = \"http://127.0.0.1:9\"\n"
        )
    };
    std::fs::write(&path, text("1")).unwrap();
    let load = {
        let path = path.clone();
        move || slotfront::config::load(Some(&path), &std::collections::BTreeMap::new())
    };
    // The configuration file is not watched, so only the API call reads it again.
    let mut source = ConfigSource::unwatched(load);
    let config = source.load().unwrap();
    let (gateway, listeners) =
        (Gateway::new(&config, Metrics::new()).unwrap(), Listeners::bind(&config).await.unwrap());
    let admin = format!("http://{}", listeners.admin.local_addr().unwrap());
    let running = app::run(config, gateway, listeners, source, Signals::catch().unwrap());
    let other = TestGateway::builder().nodes(1).start().await;
    let calls = async {
        let reload = || ask(&other.client, &admin, "POST", "/api/reload", &Value::Null);
        assert_eq!(reload().await, (200, json!({"at_once": [], "after_restart": []})));
        std::fs::write(&path, text("2") + "[cache]\ncapacity = \"64MiB\"\n").unwrap();
        assert_eq!(reload().await, (200, json!({"at_once": ["plans"], "after_restart": ["cache.capacity"]})));
        std::fs::write(&path, text("\"many\"")).unwrap();
        let (status, refused) = reload().await;
        assert!(
            status == 409 && refused["error"].as_str().unwrap().contains("plans.standard.rps"),
            "{refused}"
        );
    };
    tokio::select! {
        ended = running => panic!("{:?}", ended.err()),
        () = calls => {}
    }
}

#[tokio::test]
async fn operator_purges_the_cache_and_drains_nodes() {
    let token = "an-admin-token";
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(|config| config.auth.admin_token = Some(Secret::new(token)))
        .start()
        .await;
    let post = |path: &str, header: &str| {
        let request = gateway
            .client
            .post(format!("{}{path}", gateway.admin))
            .header("authorization", header.to_owned());
        gateway.send(request)
    };
    let bearer = format!("Bearer {token}");
    gateway.get_nodes().send().await;
    for header in ["", "Bearer", "Bearer no", "Basic an-admin-token", token] {
        assert_eq!(post("/api/cache/purge", header).await.status, 401, "{header}");
    }
    assert!(gateway.get_nodes().send().await.is_hit());
    let purged = post("/api/cache/purge", &bearer).await;
    assert_eq!((purged.status, purged.text.as_str()), (200, r#"{"done":true,"entries":1}"#));
    assert_eq!(gateway.get_nodes().send().await.cache_status(), "fwd=miss; stored");

    assert_eq!(post("/api/upstreams/nobody/drain", &bearer).await.status, 404);
    assert_eq!(post("/api/upstreams/node-0/drain", &bearer).await.status, 200);
    let before = gateway.cluster.node(0).calls_without_probes();
    for wallet in gateway.cluster.examples().wallets.iter().take(10) {
        gateway.get_account(wallet).send().await;
    }
    assert_eq!(gateway.cluster.node(0).calls_without_probes(), before);
    assert_eq!(post("/api/upstreams/node-0/restore", &bearer).await.status, 200);
    assert_eq!(post("/api/upstreams/node-1/drain", &bearer).await.status, 200);
    let wallet = gateway.cluster.examples().wallets[10].to_string();
    assert_eq!(gateway.get_account(&wallet).send().await.status, 200);
    assert_eq!(gateway.cluster.node(0).calls_without_probes(), before + 1);

    let closed = TestGateway::builder().nodes(1).start().await;
    let request =
        closed.client.post(format!("{}/api/cache/purge", closed.admin)).header("authorization", bearer);
    assert_eq!(closed.send(request).await.status, 403, "purges are off without a token");
}

#[tokio::test]
async fn tokens_cannot_be_guessed() {
    let token = "the-token-of-the-admin";
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| config.auth.admin_token = Some(Secret::new(token)))
        .start()
        .await;
    let keys = async |from: [u8; 4], authorization: &str| {
        let client =
            reqwest::Client::builder().no_proxy().local_address(std::net::IpAddr::from(from)).build();
        let request = client.unwrap().get(format!("{}/api/keys", gateway.admin));
        gateway.send(request.header("authorization", authorization)).await
    };
    let (attacker, operator, right) = ([127, 0, 0, 1], [127, 0, 0, 2], format!("Bearer {token}"));
    for _ in 0..20 {
        assert_eq!(keys(attacker, "").await.status, 401, "no token is no guess");
    }
    let before = keys(attacker, &right).await.status;
    let (began, mut guesses) = (Instant::now(), 0);
    // Each six seconds allow one more, which may be the right one.
    while guesses < 10 || keys(attacker, &right).await.status != 429 {
        let guess = keys(attacker, "Bearer wrong").await;
        if guess.status == 429 {
            assert_eq!(guess.header("retry-after"), "6");
            assert!(guess.text.contains("10 wrong tokens a minute"), "{}", guess.text);
        } else {
            guesses += 1;
            let allowed = 10 + began.elapsed().as_secs() / 6;
            assert!(guess.status == 401 && guesses <= allowed, "{guesses}: {}", guess.text);
        }
    }
    assert_eq!(keys(operator, &right).await.status, before, "another address is not concerned");
}

#[tokio::test]
async fn purge_removes_only_matching_entries() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(|config| {
            config.auth.admin_token = Some(Secret::new("token"));
            // On a machine that stands still, no entry goes by its age.
            config.cache.ttl.no_block_unconfirmed = Duration::from_hours(1);
        })
        .start()
        .await;
    let there = gateway.cluster.examples();
    let [a, b, c] = [0, 1, 2].map(|i| there.wallets[i].to_string());
    let (token, slot) = (there.token_accounts[0].to_string(), gateway.cluster.slot(Commitment::Finalized));
    let shape = json!({"transactionDetails": "none"});
    let skipped = there.skipped_slot.expect("some slot is skipped");
    let calls = [
        ("a", "getAccountInfo", json!([a])),
        ("b", "getAccountInfo", json!([b])),
        ("a and c", "getMultipleAccounts", json!([[a, c], {"encoding": "jsonParsed"}])),
        ("token", "getAccountInfo", json!([token])),
        ("balance", "getTokenAccountBalance", json!([token])),
        ("block", "getBlock", json!([slot, shape])),
        ("skipped", "getBlock", json!([skipped])),
        ("nodes", "getClusterNodes", json!([])),
    ];
    let purge = async |query: &str| gateway.admin_post(&format!("/api/cache/purge?{query}"), "token").await;
    // The cache holds an entry for the list and an entry for each of its accounts. The encoding is one that no
    // other call here uses.
    for (query, entries, gone) in [
        (format!("account={a}"), 3, &["a", "a and c"][..]),
        (format!("account={token}"), 2, &["token", "balance"]),
        (format!("account={token}&method=getTokenAccountBalance"), 1, &["balance"]),
        ("method=getMultipleAccounts".to_owned(), 6, &["a", "b", "a and c", "token"]),
        ("method=getBlock".to_owned(), 2, &["block", "skipped"]),
        (format!("slot={slot}"), 1, &["block"]),
        (format!("slot={skipped}&method=getBlock"), 1, &["skipped"]),
        (format!("slot={slot}&method=getClusterNodes"), 0, &[]),
    ] {
        for (_, method, params) in &calls {
            gateway.call(method, params.clone()).send().await;
        }
        let purged = purge(&query).await;
        assert_eq!(purged.json(), json!({"done": true, "entries": entries}), "{query}");
        for (name, method, params) in &calls {
            let hit = gateway.call(method, params.clone()).send().await.is_hit();
            assert_eq!(hit, !gone.contains(name), "{name} after {query}");
        }
    }
    for (query, expected) in [("methods=getBlock", "expected method, account or slot"), ("slot=x", "found")] {
        let refused = purge(query).await;
        assert_eq!((refused.status, refused.text.contains(expected)), (400, true), "{}", refused.text);
    }
    assert!(gateway.get_nodes().send().await.is_hit(), "a refused purge removes nothing");
}

#[tokio::test]
async fn the_admin_listener_shows_how_things_stand() {
    let gateway = TestGateway::start().await;
    gateway.get_nodes().send().await;
    let status = gateway.admin("/api/status").await.json();
    assert_eq!(status["status"]["upstreams"].as_array().map(Vec::len), Some(3));
    assert_eq!(status["status"]["upstreams"][0]["usable"], true);
    assert_eq!(status["status"]["slot_time_ms"], 400.0, "the slot time is not measured yet");
    let metrics = gateway.admin("/metrics").await.text;
    for expected in [
        r#"slotfront_requests_total{commitment="none",method="getClusterNodes",outcome="miss"} 1"#,
        r#"slotfront_upstream_up{upstream="node-0"} 1"#,
        "slotfront_cache_entries 1",
        "slotfront_slot_time_seconds 0.4",
    ] {
        assert!(metrics.contains(expected), "{expected} is not in\n{metrics}");
    }
    let page = gateway.admin("/").await;
    assert!(page.header("content-type").starts_with("text/html") && page.text.contains("slotfront"));
}
