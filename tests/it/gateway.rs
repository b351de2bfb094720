//! Keys and limits: permissions, rates and quotas, seen from outside.

use futures_util::future::join_all;
use serde_json::json;
use slotfront::config::AuthMode;
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront::methods::{AnyMethod, Commitment, Method};
use slotfront_sim::Settings;

use crate::harness::{Reply, Stage};

#[tokio::test]
async fn unknown_key_is_401_with_callers_id() {
    let stage = Stage::of(1, |_| {}).await;
    let url = stage.url.replace("/dev", "/sf_unknown");
    for (body, id) in [
        (r#"{"jsonrpc":"2.0","id":"abc","method":"getClusterNodes"}"#, json!("abc")),
        (r#"{"jsonrpc":"2.0","id":7,"method":"nope"}"#, json!(7)),
        ("not json", json!(null)),
        (r#"[{"jsonrpc":"2.0","id":7,"method":"getClusterNodes"}]"#, json!(null)),
    ] {
        let request = stage.client.post(&url).header("content-type", "application/json").body(body);
        let reply = stage.send(request).await;
        assert_eq!((reply.status, reply.code(), reply.json()["id"].clone()), (401, -32090, id));
        assert_eq!(reply.json()["error"]["message"], "Unauthorized: unknown, expired or revoked API key");
        assert_eq!(reply.cache(), "");
    }
    assert_eq!(stage.upstream_calls(), 0);
}

#[tokio::test]
async fn a_plan_says_what_a_key_may_do() {
    let stage = Stage::of(1, |config| {
        let plan = config.plans.get_mut("dev").expect("the dev plan");
        plan.methods = Some(
            [Method::GetClusterNodes, Method::GetAccountInfo, Method::GetMultipleAccounts]
                .map(AnyMethod::Own)
                .into(),
        );
        plan.commitments = Some(vec![Commitment::Finalized]);
        plan.max_accounts = Some(2);
        plan.max_batch = Some(3);
    })
    .await;
    let key = stage.cluster.examples().wallets[0].to_string();
    for (method, params, what) in [
        ("getVoteAccounts", json!([]), "getVoteAccounts"),
        ("getAccountInfo", json!([key, {"commitment": "processed"}]), "processed"),
        ("getMultipleAccounts", json!([[key, key, key]]), "accounts"),
    ] {
        let reply = stage.call(method, params).await;
        assert_eq!((reply.status, reply.code()), (403, -32091), "{}", reply.text);
        assert!(reply.text.contains(what), "{}", reply.text);
    }
    assert_eq!(stage.call("getMultipleAccounts", json!([[key, key]])).await.status, 200);
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "getClusterNodes"});
    let reply = stage.post(json!([call, call, call, call]).to_string()).await;
    assert_eq!((reply.status, reply.code(), reply.json()["id"].clone()), (413, -32093, json!(null)));
    assert_eq!(reply.json()["error"]["message"], "Request too large: a batch of 4 calls, the limit is 3");
}

#[tokio::test]
async fn reload_changes_plans_and_reports_pending_settings() {
    let stage = Stage::of(1, |_| {}).await;
    let app = stage.app.as_ref().expect("running");
    let mut new = (*app.front().config).clone();
    new.plans.get_mut("dev").expect("the dev plan").methods = Some(vec![AnyMethod::Own(Method::GetBlock)]);
    new.cache.max_entry += 1;
    let changes = app.reload(&new).expect("a good configuration");
    assert_eq!((changes.at_once, changes.after_restart), (vec!["plans"], vec!["cache"]));
    assert_eq!(stage.call("getClusterNodes", json!([])).await.code(), -32091);
}

#[tokio::test]
async fn calls_past_the_burst_are_limited_individually() {
    let stage = Stage::of(1, |config| {
        let plan = config.plans.get_mut("dev").expect("the dev plan");
        (plan.rps, plan.burst) = (1, 5);
    })
    .await;
    let mut limited = 0;
    for i in 0..20 {
        let reply = stage.call("getClusterNodes", json!([])).await;
        assert!(reply.header("ratelimit-policy").starts_with("\"rate\";q=5;w="), "{:?}", reply.headers);
        match reply.status {
            200 => assert!(i < 10, "five at once, and one a second"),
            429 => {
                limited += 1;
                assert_eq!(reply.code(), -32092);
                assert!(reply.json()["error"]["data"]["retryAfterMs"].as_u64().is_some_and(|ms| ms <= 1000));
                assert_eq!(reply.header("retry-after"), "1");
            }
            status => panic!("{status}"),
        }
    }
    assert!(limited >= 10, "{limited}");
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "getClusterNodes"});
    let reply = stage.post(json!([call, call]).to_string()).await;
    assert_eq!(reply.status, 200, "a batch is 200, its elements have their own outcome");
}

#[tokio::test]
async fn key_guessing_at_usage_is_limited() {
    let stage = Stage::of(1, |config| {
        config.auth.failed_per_minute = 5;
        config.server.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    })
    .await;
    let usage = |key: &str, client: &str| {
        let url = stage.url.replace("/dev", &format!("/{key}/usage"));
        stage.send(stage.client.get(url).header("x-forwarded-for", client.to_owned()))
    };
    for _ in 0..5 {
        let reply = usage("guess", "192.0.2.1").await;
        assert_eq!((reply.status, reply.text.contains("Unauthorized")), (401, true), "{}", reply.text);
    }
    let limited = usage("guess", "192.0.2.1").await;
    assert_eq!(limited.status, 429);
    assert!(limited.header("retry-after").parse::<u64>().is_ok_and(|seconds| seconds >= 1));
    let url = stage.url.replace("/dev", "/guess");
    let call = stage.client.post(url).header("content-type", "application/json").body("[]");
    assert_eq!(
        stage.send(call.header("x-forwarded-for", "192.0.2.1")).await.status,
        429,
        "one count for both"
    );
    assert_eq!(usage("guess", "192.0.2.2").await.status, 401, "each address by itself");
    assert_eq!(usage("dev", "192.0.2.1").await.json()["plan"], "dev", "a key that holds is never refused");
    let metrics = stage.admin("/metrics").await.text;
    for expected in
        [r#"auth_failures_total{reason="unknown"} 6"#, r#"auth_failures_total{reason="limited"} 2"#]
    {
        assert!(metrics.contains(expected), "{expected} is not in\n{metrics}");
    }
}

#[tokio::test]
async fn units_are_booked_per_account_call_and_hit() {
    let stage = Stage::of(1, |config| {
        config.units.by_method[Method::GetMultipleAccounts.index()] = 10;
        config.units.hit_factor = 0.5;
    })
    .await;
    let there = stage.cluster.examples();
    let list = |n: usize| json!([vec![there.wallets[0].to_string(); n], {"encoding": "base64"}]);
    let nodes = json!({"jsonrpc": "2.0", "id": 1, "method": "getClusterNodes"});
    let mut expected = 0.0;
    for (what, body, cost) in [
        ("a list of 31", json!({"method": "getMultipleAccounts", "params": list(31)}), 4.0),
        ("it again", json!({"method": "getMultipleAccounts", "params": list(31)}), 2.0),
        (
            "a full list of another form",
            json!({"method": "getMultipleAccounts", "params":
            [vec![there.wallets[1].to_string(); 100]]}),
            10.0,
        ),
        ("two misses of a batch, collapsed or not", json!([nodes, nodes]), 2.0),
        ("refused by us", json!({"method": "getNothing"}), 0.0),
        ("no params of a node's", json!({"method": "getAccountInfo", "params": [1]}), 0.0),
    ] {
        let mut body = body;
        if body.is_object() {
            (body["jsonrpc"], body["id"]) = (json!("2.0"), json!(1));
        }
        stage.post(body.to_string()).await;
        expected += cost;
        let usage = stage.send(stage.client.get(format!("{}/usage", stage.url))).await;
        assert_eq!(usage.json()["day"]["used"], json!(expected), "{what}");
    }
}

fn slot_of(reply: &Reply) -> u64 {
    reply.result()["context"]["slot"].as_u64().unwrap_or_else(|| panic!("no context: {}", reply.text))
}

#[tokio::test]
async fn monotonic_keys_never_see_older_slots() {
    for monotonic in [false, true] {
        let stage = Stage::with(|config| {
            config.plans.get_mut("dev").expect("the dev plan").monotonic = monotonic;
        })
        .await;
        let there = stage.cluster.examples();
        let [a, b] = [0, 1].map(|i| there.wallets[i].to_string());
        let token = there.token_accounts[0].to_string();
        let base64 = json!({"encoding": "base64"});
        let held = [
            ("getAccountInfo", json!([b, base64])),
            ("getMultipleAccounts", json!([[b, there.mints[0].to_string()]])),
            ("getTokenAccountBalance", json!([token])),
            ("getFeeForMessage", json!([there.fee_message])),
        ];
        for (method, params) in &held {
            stage.call(method, params.clone()).await;
        }
        stage.call("getVoteAccounts", json!([])).await;
        let old = stage.cluster.slot(Commitment::Finalized);
        while stage.cluster.slot(Commitment::Finalized) == old {
            stage.step_by(1).await;
        }
        // A higher slot at another commitment does not matter.
        stage.call("getAccountInfo", json!([a, {"commitment": "processed"}])).await;
        let hit = stage.call("getAccountInfo", json!([b, base64])).await;
        assert_eq!((slot_of(&hit), hit.cache().starts_with("hit")), (old, true), "{}", hit.cache());

        let shown = slot_of(&stage.call("getAccountInfo", json!([a, base64])).await);
        assert!(shown > old);
        for (method, params) in &held {
            let calls = stage.upstream_calls();
            let reply = stage.call(method, params.clone()).await;
            let asked = stage.upstream_calls() - calls;
            if monotonic {
                assert!(slot_of(&reply) >= shown, "{method}: {}", reply.text);
                assert_eq!((reply.cache(), asked), ("fwd=miss; stored", 1), "{method}");
            } else {
                assert_eq!((slot_of(&reply), asked), (old, 0), "{method}");
                assert!(reply.cache().starts_with("hit"), "{method}: {}", reply.cache());
            }
        }
        // An answer without a slot is not compared with one.
        assert!(stage.call("getVoteAccounts", json!([])).await.cache().starts_with("hit"));
    }
}

#[tokio::test]
async fn unreachable_slot_is_no_monotonic_keys_error() {
    let stage =
        Stage::with(|config| config.plans.get_mut("dev").expect("the dev plan").monotonic = true).await;
    let there = stage.cluster.examples();
    let [a, b] = [0, 1].map(|i| json!([there.wallets[i].to_string()]));
    let shown = slot_of(&stage.call("getAccountInfo", a).await);
    stage.cluster.nodes().iter().for_each(|node| node.set_lag(5));
    let first = stage.call("getAccountInfo", b.clone()).await;
    assert_eq!((first.status, first.cache()), (200, "fwd=miss; stored"));
    assert!(slot_of(&first) < shown, "the highest answer that there is");
    let calls = stage.upstream_calls();
    let again = stage.call("getAccountInfo", b.clone()).await;
    assert_eq!((again.status, slot_of(&again)), (200, slot_of(&first)));
    assert!(stage.upstream_calls() > calls, "fresh as it is, it is not simply a hit");
    stage.cluster.nodes().iter().for_each(|node| node.set_lag(0));
    let newest = stage.call("getAccountInfo", b).await;
    assert!(slot_of(&newest) >= shown, "{}", newest.text);
}

#[tokio::test]
async fn restarted_cluster_resets_monotonic_keys() {
    let stage =
        Stage::of(1, |config| config.plans.get_mut("dev").expect("the dev plan").monotonic = true).await;
    let wallet = |cluster: &slotfront_sim::Cluster| json!([cluster.examples().wallets[0].to_string()]);
    let shown = slot_of(&stage.call("getAccountInfo", wallet(&stage.cluster)).await);
    let node = stage.cluster.node(0).address().expect("an address");
    let other = stage.replace_cluster_at(Settings::default().first_slot - 864_000, 2, &[node]).await;
    let slot = other.slot(Commitment::Processed);
    stage
        .until("the other cluster is known", || stage.front().frontier.slot(Commitment::Processed) == slot)
        .await;
    // The floors fall a moment after the frontier does.
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        stage.call("getAccountInfo", wallet(&other)).await;
        let again = stage.call("getAccountInfo", wallet(&other)).await;
        assert!(slot_of(&again) < shown);
        if again.cache().starts_with("hit") {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "held to the old cluster's slots: {}", again.cache());
    }
}

#[tokio::test]
async fn one_key_cannot_take_every_permit() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let new = NewKey::of("other", "standard");
    let other = file.create(&new, jiff::Timestamp::now()).expect("a key").key;
    let stage = Stage::of(1, |config| {
        config.server.max_in_flight = 20;
        config.auth.keys_file = Some(file.path().to_path_buf());
    })
    .await;
    let gate = stage.cluster.node(0).hold("getVoteAccounts");
    let in_flight = || stage.front().in_flight.load(std::sync::atomic::Ordering::Relaxed);
    let hog = join_all((0..25).map(|_| stage.call("getVoteAccounts", json!([]))));
    let others = async {
        gate.arrived(1).await;
        stage.until("the hog has its share", || in_flight() == 18).await;
        for _ in 0..5 {
            let reply = stage.call_as(other.expose(), "getClusterNodes", json!([])).await;
            assert_eq!(reply.status, 200, "{}", reply.text);
        }
        let refused = || stage.front().metrics.render().contains(r#"method="other",outcome="error"} 7"#);
        stage.until("what is over the share is refused", refused).await;
        gate.release();
    };
    let (hog, ()) = tokio::join!(hog, others);
    let overloaded: Vec<_> = hog.iter().filter(|reply| reply.status != 200).collect();
    assert_eq!((hog.len(), overloaded.len()), (25, 7));
    assert!(overloaded.iter().all(|reply| (reply.status, reply.code()) == (503, -32094)));
    assert!(overloaded.iter().all(|reply| reply.header("retry-after") == "1"));
    stage.until("every place is given back", || in_flight() == 0).await;
    assert_eq!(stage.call("getVoteAccounts", json!([])).await.status, 200);
}

#[tokio::test]
async fn open_gateway_needs_no_key() {
    let stage = Stage::of(1, |config| config.auth.mode = AuthMode::Open).await;
    let base = stage.url.trim_end_matches("/v3/dev").to_owned();
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"getClusterNodes"}"#;
    for path in ["/", "/v3", "/v3/", "/v3/any", "/v3/dev"] {
        let request = stage.client.post(format!("{base}{path}")).header("content-type", "application/json");
        let reply = stage.send(request.body(call)).await;
        assert_eq!((reply.status, reply.header("ratelimit")), (200, ""), "{path}: {}", reply.text);
    }
    assert_eq!(stage.send(stage.client.get(format!("{base}/v3/any/usage"))).await.status, 404);
    assert_eq!(stage.send(stage.client.get(format!("{base}/"))).await.status, 405, "calls are POSTs");
}

#[tokio::test]
async fn an_open_plan_limits_each_client_address() {
    let stage = Stage::of(1, |config| {
        config.auth.mode = AuthMode::Open;
        config.auth.open_plan = Some("dev".to_owned());
        let plan = config.plans.get_mut("dev").expect("the dev plan");
        (plan.rps, plan.burst, plan.daily_units) = (1, 3, Some(100));
        config.server.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    })
    .await;
    let base = stage.url.trim_end_matches("/v3/dev").to_owned();
    let call = |client: &'static str| {
        let request = stage.client.post(&base).header("content-type", "application/json");
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"getClusterNodes"}"#;
        stage.send(request.header("x-forwarded-for", client).body(body))
    };
    let mut limited = 0;
    for _ in 0..20 {
        limited += usize::from(call("2001:db8::1").await.status == 429);
    }
    assert!(limited >= 10, "{limited} of 20 calls at a burst of 3");
    assert_eq!(call("2001:db8::2").await.status, 429, "a /64 is one client");
    assert_eq!(call("2001:db8:0:1::1").await.status, 200);
    let request = stage.client.get(format!("{base}/v3/any/usage")).header("x-forwarded-for", "192.0.2.1");
    let usage = stage.send(request).await;
    assert_eq!((usage.status, usage.json()["day"]["used"].clone()), (200, json!(0.0)), "of this address");
}
