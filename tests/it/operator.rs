//! What an operator does with keys and nodes while slotfront runs, and what is told of it.

use std::sync::Arc;

use serde_json::{Value, json};
use slotfront::config::Secret;
use slotfront::gateway::keys::change::KeyChange;
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront_testkit::TestGateway;
use tokio_util::task::TaskTracker;

const TOKEN: &str = "an-admin-token";

async fn ask(gateway: &TestGateway, verb: &str, path: &str, body: Value) -> (u16, Value) {
    let request = gateway.client.request(verb.parse().unwrap(), format!("{}{path}", gateway.admin));
    let reply = gateway.send(request.bearer_auth(TOKEN).body(body.to_string())).await;
    (reply.status, reply.json())
}

/// Starts a gateway with one key on the plan `standard`, and returns it with the key's secret.
async fn with_key(folder: &std::path::Path) -> (TestGateway, KeyFile, String) {
    let file = KeyFile::new(folder.join("keys.toml"));
    let key = file.create(&NewKey::of("alice", "standard"), jiff::Timestamp::now()).unwrap().key;
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.auth.admin_token = Some(Secret::new(TOKEN));
            config.auth.keys_file = Some(file.path().to_path_buf());
            let large =
                slotfront::config::Plan { daily_units: Some(1_000), ..config.plans["standard"].clone() };
            config.plans.insert("large".to_owned(), large);
        })
        .start()
        .await;
    (gateway, file, key.expose().to_owned())
}

#[tokio::test]
async fn a_key_is_changed_suspended_and_removed_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (gateway, file, secret) = with_key(dir.path()).await;
    let call = || gateway.get_nodes().key(&secret).send();
    for (body, expected) in [
        (json!({}), "expected at least one of"),
        (json!({"plan": "none"}), "plan: expected one of dev, large, standard, found \"none\""),
        (json!({"name": "a\nb"}), "name: expected 1 to 64 characters"),
        (json!({"name": "a".repeat(200)}), "name: expected 1 to 64 characters"),
        (json!({"expires": "2020-01-01T00:00:00Z"}), "expires: expected a future time"),
        (json!({"origins": []}), "origins: expected at least one entry"),
        (json!({"addresses": ["here"]}), "addresses[0]: expected an address"),
        (json!({"plam": "large"}), "unknown field `plam`"),
    ] {
        let (status, refused) = ask(&gateway, "PATCH", "/api/keys/alice", body).await;
        assert_eq!(status, 400);
        assert!(refused["error"].as_str().unwrap().contains(expected), "{refused}");
    }
    assert_eq!(call().await.header("ratelimit-policy"), r#""rate";q=200;w=2"#);
    let name = "=cmd|' /C calc'!\"A0\"";
    let wanted = json!({"plan": "large", "name": name, "methods": ["getClusterNodes", "getVoteAccounts", "slotSubscribe"]});
    let (status, changed) = ask(&gateway, "PATCH", "/api/keys/alice", wanted).await;
    assert_eq!((status, &changed["in_force"], &changed["key"]["name"]), (200, &json!(true), &json!(name)));
    assert!(call().await.header("ratelimit-policy").contains("\"day\";q=1000"));
    assert_eq!(gateway.call("getHealth", json!([])).key(&secret).send().await.status, 403);
    let id = changed["key"]["id"].as_str().unwrap();
    let metrics = gateway.admin("/metrics").await.text;
    let info = format!(r#"slotfront_key_info{{name="=cmd|' /C calc'!\"A0\"",plan="large",key="{id}"}} 1"#);
    assert!(metrics.contains(&info), "{metrics}");
    assert!(
        metrics.contains(&format!("slotfront_key_quota_used_ratio{{period=\"day\",key=\"{id}\"}} 0.002"))
    );

    // A call that is under way ends well, a socket is closed, and all that comes later is refused.
    let mut socket = gateway.try_socket(&format!("/v3/{secret}"), "").await.unwrap();
    socket.subscribe("slotSubscribe", json!([])).await;
    let hold = gateway.cluster.node(0).hold("getVoteAccounts");
    let under_way = TaskTracker::new().spawn(gateway.get_votes().key(&secret).request().build().send());
    hold.arrived(1).await;
    let path = format!("/api/keys/{id}");
    let (status, changed) = ask(&gateway, "PATCH", &path, json!({"suspended": true, "methods": null})).await;
    assert_eq!((status, &changed["key"]["state"]), (200, &json!("suspended")), "{changed}");
    let refused = call().await;
    assert_eq!((refused.status, refused.code()), (403, -32091));
    assert!(refused.text.contains("suspended"), "{}", refused.text);
    assert_eq!(socket.closed().await, 1008);
    hold.release();
    assert_eq!(under_way.await.unwrap().unwrap().status(), 200);
    let (_, resumed) = ask(&gateway, "PATCH", &path, json!({"suspended": false})).await;
    assert_eq!((&resumed["key"]["state"], &resumed["key"]["methods"]), (&json!("active"), &Value::Null));
    assert_eq!(call().await.status, 200);

    assert_eq!(ask(&gateway, "DELETE", &path, Value::Null).await, (200, json!({"id": id, "in_force": true})));
    assert_eq!((call().await.status, file.list().unwrap().len()), (401, 0));
    assert_eq!(ask(&gateway, "PATCH", &path, json!({"plan": "large"})).await.0, 404);
    assert!(!gateway.admin("/metrics").await.text.contains(id), "its series are gone");
}

#[test]
fn two_changes_of_one_key_at_once_both_hold() {
    let dir = tempfile::tempdir().unwrap();
    let file = Arc::new(KeyFile::new(dir.path().join("keys.toml")));
    let now = jiff::Timestamp::now();
    file.create(&NewKey::of("alice", "standard"), now).unwrap();
    let plan = KeyChange { plan: Some("large".to_owned()), ..KeyChange::default() };
    let end = KeyChange { suspended: Some(true), ..KeyChange::default() };
    let changes = [plan, end].map(|change| {
        let file = Arc::clone(&file);
        std::thread::spawn(move || file.set("alice", change, now).unwrap())
    });
    for change in changes {
        change.join().unwrap();
    }
    let key = file.get("alice").unwrap();
    assert_eq!((&*key.plan, key.suspended.is_some()), ("large", true));
    file.revoke("alice", now).unwrap();
    let change = KeyChange { suspended: Some(false), ..KeyChange::default() };
    assert!(file.set("alice", change, now).unwrap_err().to_string().contains("is revoked"));
}

#[tokio::test]
async fn usage_is_told_to_whoever_is_limited() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            let plan = config.plans.get_mut("dev").unwrap();
            (plan.rps, plan.burst, plan.daily_units) = (1, 1, Some(1_000));
            config.units.hit_factor = 0.5;
        })
        .start()
        .await;
    while gateway.get_nodes().send().await.status != 429 {}
    for _ in 0..20 {
        let usage = gateway.client.get(format!("{}/usage", gateway.url));
        let usage = gateway.send(usage).await;
        assert_eq!(usage.status, 200, "{}", usage.text);
        let day = &usage.json()["day"];
        assert!(day["used"].is_u64() && day["left"].is_u64(), "{day}");
        assert!(day["resets"].as_str().unwrap().ends_with("T00:00:00Z"), "{day}");
    }
}

#[tokio::test]
async fn no_key_is_accepted_from_an_address_that_is_denied() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    assert_eq!(gateway.get_nodes().send().await.status, 200);
    let mut config = gateway.front().config.copy();
    config.deny = vec!["127.0.0.0/8".parse().unwrap()];
    assert_eq!(gateway.app.reload(&config).unwrap().at_once, ["gateway.deny"]);
    let refused = gateway.get_nodes().send().await;
    assert_eq!((refused.status, refused.code()), (403, -32091));
    assert_eq!(gateway.try_socket("/v3/dev", "").await.err().unwrap().status, 403);
    for path in ["/health", "/openrpc.json"] {
        let refused = gateway.get(path).await;
        assert_eq!(
            (refused.status, refused.header("x-slotfront-error")),
            (403, "-32091 forbidden"),
            "{path}"
        );
    }
    assert_eq!(gateway.admin("/readyz").await.status, 200, "who asks there is the operator");
}

#[tokio::test]
async fn the_last_usable_node_is_drained_by_force_only() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(|config| {
            config.auth.admin_token = Some(Secret::new(TOKEN));
            config.upstreams[1].drained = true;
        })
        .start_unprobed()
        .await;
    gateway
        .until("the node is usable", || {
            gateway.front().pool.standing(tokio::time::Instant::now())[0].1.is_none()
        })
        .await;
    let view = gateway.admin("/api/upstreams").await.json();
    assert_eq!(
        view["upstreams"][1]["reasons"],
        json!(["drained by the configuration: upstream.drained = true"])
    );
    let drain = "/api/upstreams/node-0/drain";
    let (status, refused) = ask(&gateway, "POST", drain, Value::Null).await;
    assert!(status == 409 && refused["error"].as_str().unwrap().contains("?force=true"), "{refused}");
    assert_eq!(ask(&gateway, "POST", &format!("{drain}?force=maybe"), Value::Null).await.0, 400);
    assert_eq!(ask(&gateway, "POST", &format!("{drain}?force=true"), Value::Null).await.0, 200);
    let view = gateway.admin("/api/upstreams").await.json();
    assert_eq!(view["upstreams"][0]["reasons"], json!(["drained by an operator until the next restart"]));
    let mut config = gateway.front().config.copy();
    config.upstreams[1].drained = false;
    gateway.app.reload(&config).unwrap();
    assert_eq!(
        gateway.get_nodes().send().await.status,
        200,
        "a reload restores what the configuration drained"
    );
}

#[tokio::test]
async fn a_plan_may_be_told_where_its_answers_come_from() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.plans.get_mut("dev").unwrap().explain = true;
            config.cache.stale_while_revalidate = slotfront::methods::PerCommitment::uniform(0.0);
        })
        .start()
        .await;
    let account = gateway.get_account(gateway.cluster.examples().wallets[0]).confirmed();
    let told = |reply: &slotfront_testkit::Reply| {
        (reply.header("cache-status").to_owned(), reply.header("x-slotfront-upstream").to_owned())
    };
    let pair = |status: &str| (status.to_owned(), "node-0".to_owned());
    assert_eq!(told(&account.send().await), pair("slotfront; fwd=miss; stored"));
    let hit = account.send().await;
    assert!(hit.is_hit() && hit.header("x-slotfront-upstream") == "node-0", "{:?}", hit.headers);
    gateway.step_by(3).await;
    assert_eq!(told(&account.send().await), pair("slotfront; fwd=stale; stored; detail=lag"));
    let signature = slotfront::methods::Signature([7; 64]).to_string();
    for (method, params) in [
        ("getSlot", json!([])),
        ("getBlockHeight", json!([{ "commitment": "confirmed" }])),
        ("getEpochInfo", json!([])),
        ("getLatestBlockhash", json!([])),
        ("isBlockhashValid", json!(["11111111111111111111111111111111"])),
        ("getSignatureStatuses", json!([[signature]])),
        // What a node refuses is its answer, too.
        ("simulateTransaction", json!(["AQ=="])),
        ("getSignatureStatuses", json!([[signature], { "searchTransactionHistory": true }])),
    ] {
        for _ in 0..2 {
            let reply = gateway.call(method, params.clone()).send().await;
            assert_eq!(reply.header("x-slotfront-upstream"), "node-0", "{method}: {}", reply.text);
        }
    }
    let plain =
        gateway.beside().config(|config| config.plans.get_mut("dev").unwrap().explain = false).start().await;
    let reply = plain.get_account(gateway.cluster.examples().wallets[0]).confirmed().send().await;
    assert!(!reply.headers.contains_key("x-slotfront-upstream"), "{:?}", reply.headers);
}

#[tokio::test]
async fn what_happened_before_the_page_was_opened_is_kept() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(|config| {
            config.auth.admin_token = Some(Secret::new(TOKEN));
            config.plans.get_mut("dev").unwrap().daily_units = Some(2);
        })
        .start()
        .await;
    gateway.cluster.node(1).fault(slotfront_sim::Fault::Status(401));
    gateway.get_nodes().send().await;
    gateway.get_nodes().send().await;
    ask(&gateway, "POST", "/api/cache/purge", Value::Null).await;
    let expected = [
        ("start", "slotfront 0.1.0 has started"),
        ("node_down", "node-1: gives no usable answer: status_401, since "),
        ("quota", "dev (dev) has used 100 % of its quota of the day"),
        ("action", "an operator purged "),
    ];
    let told = async |(kind, text): (&str, &str)| {
        let events = gateway.admin("/api/events").await.json();
        let mut all = events.as_array().unwrap().iter();
        all.any(|event| event["kind"] == kind && event["text"].as_str().unwrap().starts_with(text))
    };
    for event in expected {
        while !told(event).await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    let seconds = async || gateway.admin("/api/history").await.json();
    let hits = |seconds: &Value| {
        let of = |second: &Value| second["outcomes"]["hit"].as_u64().unwrap_or(0);
        seconds.as_array().unwrap().iter().map(of).sum::<u64>()
    };
    while hits(&seconds().await) == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(seconds().await[0]["slots"]["processed"].is_u64());
}
