//! What a plan says of single methods: prices, rates, and which scans are allowed.

use serde_json::{Value, json};
use slotfront::config::{Config, Secret, from_text};
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront_testkit::{Reply, TestGateway};
use tempfile::TempDir;

use crate::subscribe::NodeSocket;

const TOKENS: &str = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA";
const OTHER: &str = "Vote111111111111111111111111111111111111111";

/// Returns the plan `free` of this text.
fn free(text: &str) -> slotfront::config::Plan {
    let text = format!("[[upstream]]\nurl = \"http://node.invalid\"\n[plans.free]\n{text}");
    let config = from_text(&text, &std::collections::BTreeMap::new(), std::path::Path::new(""));
    config.unwrap_or_else(|problems| panic!("{problems}")).plans.remove("free").unwrap()
}

/// Starts a gateway with the key `dev`, which may call everything, and a key on the plan `free`, which is returned.
async fn start(plan: &str, change: impl FnOnce(&mut Config)) -> (TestGateway, String, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let key = file.create(&NewKey::of("customer", "free"), jiff::Timestamp::now()).unwrap().key;
    let configure = |config: &mut Config| {
        config.auth.keys_file = Some(file.path().to_path_buf());
        config.plans.insert("free".to_owned(), free(plan));
        change(config);
    };
    let gateway = TestGateway::builder().nodes(1).config(configure).start().await;
    (gateway, key.expose().to_owned(), dir)
}

async fn scan(gateway: &TestGateway, key: &str, program: &str, config: Value) -> Reply {
    gateway.call("getProgramAccounts", json!([program, config])).key(key).send().await
}

fn filtered() -> Value {
    json!({ "encoding": "base64", "filters": [{ "dataSize": 165 }] })
}

#[tokio::test]
async fn a_plan_has_prices_of_its_own() {
    let plan = "methods = [\"core\"]\ndaily_units = 100\n[plans.free.units]\ngetClusterNodes = 40\ngetVoteAccounts = 0";
    let (gateway, key, _dir) = start(plan, |_| ()).await;
    let left = |reply: &Reply| {
        let (_, day) = reply.header("ratelimit").split_once("\"day\";r=").unwrap();
        day.split(';').next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(left(&gateway.get_nodes().key(&key).send().await), 60);
    assert_eq!(left(&gateway.get_votes().key(&key).send().await), 60);
    assert_eq!(left(&gateway.get_samples().key(&key).send().await), 59);
    assert_eq!(left(&gateway.get_nodes().key(&key).send().await), 19);
    let refused = gateway.get_nodes().key(&key).send().await;
    assert_eq!((refused.status, refused.header("x-slotfront-error")), (429, "-32092 day"));
    gateway.get_nodes().send().await;
    assert_eq!(
        gateway.metric(r#"slotfront_key_units_total{key="dev"}"#),
        1,
        "another plan pays what all pay"
    );
}

#[tokio::test]
async fn a_method_has_a_rate_of_its_own_by_key() {
    let plan = "methods = [\"core\", \"scans\"]\nrate = { getProgramAccounts = \"2/h\", getClusterNodes = \"1/min\" }";
    let (gateway, key, _dir) = start(plan, |_| ()).await;
    for _ in 0..2 {
        assert_eq!(scan(&gateway, &key, TOKENS, filtered()).await.status, 200);
    }
    let refused = scan(&gateway, &key, TOKENS, filtered()).await;
    assert_eq!((refused.status, refused.code()), (429, -32092), "{}", refused.text);
    assert_eq!(refused.header("x-slotfront-error"), "-32092 method");
    assert_eq!(refused.error()["message"], "Too many requests: 2/h of getProgramAccounts");
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1_700..=1_800).contains(&wait), "{wait} s until the next of two in an hour");
    let limited =
        format!("slotfront_key_limited_total{{reason=\"method\",key=\"{}\"}}", id(&gateway, &key).await);
    assert_eq!(gateway.metric(&limited), 1);

    // Neither another method of the key nor another key is concerned.
    assert_eq!(gateway.get_nodes().key(&key).send().await.status, 200);
    assert_eq!(gateway.get_nodes().key(&key).send().await.header("x-slotfront-error"), "-32092 method");
    assert_eq!(gateway.get_votes().key(&key).send().await.status, 200);
    for _ in 0..5 {
        assert_eq!(scan(&gateway, "dev", TOKENS, filtered()).await.status, 200);
    }
    // In a batch each element needs its own call of the rate.
    let calls = [gateway.get_nodes().id(1), gateway.get_votes().id(2)];
    let batch = gateway.batch(calls).key(&key).send().await.json();
    assert_eq!((&batch[0]["error"]["code"], &batch[1]["id"]), (&json!(-32092), &json!(2)), "{batch}");

    // A reload keeps what is used.
    let mut config = gateway.front().config.copy();
    config.plans.insert("free".to_owned(), free(&plan.replace("2/h", "3/h")));
    gateway.app.reload(&config).unwrap();
    assert_eq!(scan(&gateway, &key, TOKENS, filtered()).await.status, 200, "one more than before");
    assert_eq!(scan(&gateway, &key, TOKENS, filtered()).await.status, 429);
}

/// Returns the id of the key.
async fn id(gateway: &TestGateway, key: &str) -> String {
    let url = format!("{}/usage", gateway.url_of(key));
    gateway.send(gateway.client.get(url)).await.json()["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_scan_without_a_filter_is_refused_if_the_plan_says_so() {
    let plan = "methods = [\"scans\", \"subscriptions\"]\nscan_filter = true";
    let (gateway, key, _dir) = start(plan, |_| ()).await;
    let said = "Forbidden: getProgramAccounts without a filter (add to its config, for example, \"filters\": \
                [{\"dataSize\": 165}]) is not allowed for this API key";
    let empty = json!({ "filters": [{ "memcmp": { "offset": 0, "bytes": "" } }] });
    for config in [json!(null), json!({ "filters": [] }), json!({ "unknown": true }), empty.clone()] {
        let refused = scan(&gateway, &key, TOKENS, config.clone()).await;
        assert_eq!((refused.status, refused.code()), (403, -32091), "{config}");
        assert_eq!(refused.error()["message"], said);
        assert_eq!(scan(&gateway, "dev", TOKENS, config).await.status, 200, "another key");
    }
    assert_eq!(scan(&gateway, &key, TOKENS, filtered()).await.status, 200);
    let mut socket = gateway.try_socket(&format!("/v3/{key}"), "").await.unwrap();
    for config in [json!(null), json!({ "commitment": "confirmed" }), empty] {
        let refused = socket.call("programSubscribe", json!([TOKENS, config])).await;
        assert_eq!(refused["error"]["message"], said.replace("getProgramAccounts", "programSubscribe"));
    }
    // No upstream has a WebSocket, so no further it goes.
    let passed = socket.call("programSubscribe", json!([TOKENS, filtered()])).await;
    assert_eq!(passed["error"]["code"], -32601, "{passed}");
}

#[tokio::test]
async fn denied_programs_are_neither_scanned_nor_watched() {
    let node = NodeSocket::start().await;
    let plan = "methods = [\"scans\", \"owners\", \"subscriptions\"]\n";
    let denied = format!("{plan}deny_programs = [\"{TOKENS}\"]\nrate = {{ programSubscribe = \"3/h\" }}");
    let url = node.url.clone();
    let (gateway, key, _dir) = start(plan, |config| config.upstreams[0].ws_url = Some(url)).await;
    let path = format!("/v3/{key}");
    let mut before = gateway.try_socket(&path, "").await.unwrap();
    before.subscribe("programSubscribe", json!([TOKENS])).await;
    let mut other = gateway.try_socket(&path, "").await.unwrap();
    other.subscribe("programSubscribe", json!([OTHER])).await;

    let mut config = gateway.front().config.copy();
    config.plans.insert("free".to_owned(), free(&denied));
    gateway.app.reload(&config).unwrap();
    assert_eq!(before.closed().await, 1008, "its plan does not allow its subscription any more");
    let refused = scan(&gateway, &key, TOKENS, filtered()).await;
    assert_eq!((refused.status, refused.code()), (403, -32091));
    let said = format!("Forbidden: getProgramAccounts of {TOKENS} is not allowed for this API key");
    assert_eq!(refused.error()["message"], said);
    assert_eq!(scan(&gateway, &key, OTHER, filtered()).await.status, 200);
    assert_eq!(scan(&gateway, "dev", TOKENS, filtered()).await.status, 200, "another key");
    for method in ["getTokenAccountsByOwner", "getTokenAccountsByDelegate"] {
        let of = |filter| gateway.call(method, json!([OTHER, filter])).key(&key).send();
        let refused = of(json!({ "programId": TOKENS })).await;
        assert_eq!((refused.status, refused.code()), (403, -32091), "{method}");
        assert_ne!(of(json!({ "mint": TOKENS })).await.status, 403, "{method}");
    }
    let refused = other.call("programSubscribe", json!([TOKENS, filtered()])).await;
    assert_eq!(refused["error"]["code"], -32091, "{refused}");

    // A subscription beyond the rate of its method is refused, and its connection stays.
    for filter in 1..=3 {
        other.subscribe("programSubscribe", json!([OTHER, { "filters": [{ "dataSize": filter }] }])).await;
    }
    let refused = other.call("programSubscribe", json!([OTHER, { "filters": [{ "dataSize": 4 }] }])).await;
    assert_eq!(refused["error"]["code"], -32092, "{refused}");
    assert!(refused["error"]["data"]["retryAfterMs"].as_u64().unwrap() > 60_000, "{refused}");
    other.subscribe("slotSubscribe", json!([])).await;
}

#[tokio::test]
async fn a_call_that_its_quota_refuses_takes_nothing_from_the_rate_of_its_method() {
    let plan = "methods = [\"getClusterNodes\"]\ndaily_units = 1\nrate = { getClusterNodes = \"2/h\" }";
    let token = "a token of an operator";
    let (gateway, key, _dir) = start(plan, |config| config.auth.admin_token = Some(Secret::new(token))).await;
    let call = async || gateway.get_nodes().key(&key).send().await;
    assert_eq!(call().await.status, 200);
    for _ in 0..3 {
        let refused = call().await;
        assert!(refused.text.contains("Too many requests: 1 units a day"), "{}", refused.text);
    }
    let id = gateway.get(&format!("/v3/{key}/usage")).await.json()["id"].as_str().unwrap().to_owned();
    let set = async |body: &'static str| {
        let put = gateway.client.put(format!("{}/api/keys/{id}/usage", gateway.admin));
        gateway.send(put.bearer_auth(token).body(body)).await
    };
    for (body, status) in [(r#"{"day":-1}"#, 400), (r#"{"day":1e13}"#, 400), (r#"{"hour":1}"#, 400)] {
        assert_eq!(set(body).await.status, status, "{body}");
    }
    let repaired = set(r#"{"day":0}"#).await;
    assert_eq!((repaired.status, &repaired.json()["day"]["used"]), (200, &json!(0)), "{}", repaired.text);
    assert_eq!(call().await.status, 200, "of two calls an hour one was left");
    set(r#"{"day":0}"#).await;
    let refused = call().await;
    assert!(refused.text.contains("2/h of getClusterNodes"), "{}", refused.text);
}
