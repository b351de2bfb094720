//! Who may do what, how often, seen from outside.

use serde_json::json;
use slotfront::methods::{Commitment, Method};

use crate::harness::Stage;

#[tokio::test]
async fn an_unknown_key_is_401_with_the_callers_id() {
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
        plan.methods =
            Some(vec![Method::GetClusterNodes, Method::GetAccountInfo, Method::GetMultipleAccounts]);
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
async fn a_reload_changes_a_plan_at_once_and_says_what_waits() {
    let stage = Stage::of(1, |_| {}).await;
    let app = stage.app.as_ref().expect("running");
    let mut new = (*app.front().config).clone();
    new.plans.get_mut("dev").expect("the dev plan").methods = Some(vec![Method::GetBlock]);
    new.pool.retries = 9;
    let changes = app.reload(&new).expect("a good configuration");
    assert_eq!((changes.at_once, changes.after_restart), (vec!["plans"], vec!["pool"]));
    assert_eq!(stage.call("getClusterNodes", json!([])).await.code(), -32091);
}

#[tokio::test]
async fn past_the_burst_calls_are_limited_each_by_itself() {
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
async fn guessing_keys_at_the_usage_page_is_limited_and_counted_as_at_the_door() {
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
