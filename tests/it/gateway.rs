//! Keys and limits: permissions, rates and quotas, seen from outside.

use futures_util::future::join_all;
use serde_json::json;
use slotfront::config::AuthMode;
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront::methods::{AnyMethod, Commitment, Method};
use slotfront_sim::{Cluster, Settings};
use slotfront_testkit::{PATIENCE, TestCluster, TestGateway};
use tokio::time::Instant;

#[tokio::test]
async fn unknown_key_is_401_with_callers_id() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    for (body, id) in [
        (r#"{"jsonrpc":"2.0","id":"abc","method":"getClusterNodes"}"#, json!("abc")),
        (r#"{"jsonrpc":"2.0","id":7,"method":"nope"}"#, json!(7)),
        ("not json", json!(null)),
        (r#"[{"jsonrpc":"2.0","id":7,"method":"getClusterNodes"}]"#, json!(null)),
    ] {
        let reply = gateway.post(body).key("sf_unknown").send().await;
        assert_eq!((reply.status, reply.code(), reply.json()["id"].clone()), (401, -32090, id));
        assert_eq!(reply.error()["message"], "Unauthorized: unknown, expired or revoked API key");
        assert_eq!(reply.cache_status(), "");
    }
    assert_eq!(gateway.upstream_calls(), 0);
}

#[tokio::test]
async fn a_plan_says_what_a_key_may_do() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
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
        .start()
        .await;
    let key = gateway.cluster.examples().wallets[0].to_string();
    for (method, params, what) in [
        ("getVoteAccounts", json!([]), "getVoteAccounts"),
        ("getAccountInfo", json!([key, {"commitment": "processed"}]), "processed"),
        ("getMultipleAccounts", json!([[key, key, key]]), "accounts"),
    ] {
        let reply = gateway.call(method, params).send().await;
        assert_eq!((reply.status, reply.code()), (403, -32091), "{}", reply.text);
        assert!(reply.text.contains(what), "{}", reply.text);
    }
    assert_eq!(gateway.get_accounts([&key, &key]).send().await.status, 200);
    let reply = gateway.batch([(); 4].map(|()| gateway.get_nodes())).send().await;
    assert_eq!((reply.status, reply.code(), reply.json()["id"].clone()), (413, -32093, json!(null)));
    assert_eq!(reply.error()["message"], "Request too large: a batch of 4 calls, the limit is 3");
}

#[tokio::test]
async fn reload_changes_plans_and_reports_pending_settings() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let app = &gateway.app;
    let mut new = app.front().config.copy();
    new.plans.get_mut("dev").expect("the dev plan").methods = Some(vec![AnyMethod::Own(Method::GetBlock)]);
    new.cache.max_entry += 1;
    let changes = app.reload(&new).expect("a good configuration");
    assert_eq!(
        (&changes.at_once[..], &changes.after_restart[..]),
        (&["plans".to_owned()][..], &["cache.max_entry".to_owned()][..])
    );
    assert_eq!(gateway.get_nodes().send().await.code(), -32091);
}

#[tokio::test]
async fn calls_past_the_burst_are_limited_individually() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            let plan = config.plans.get_mut("dev").expect("the dev plan");
            (plan.rps, plan.burst) = (1, 5);
        })
        .start()
        .await;
    let (began, mut passed, mut limited) = (Instant::now(), 0, 0);
    while limited < 10 {
        let reply = gateway.get_nodes().send().await;
        assert!(reply.header("ratelimit-policy").starts_with("\"rate\";q=5;w="), "{:?}", reply.headers);
        match reply.status {
            200 => {
                passed += 1;
                let most = 6 + began.elapsed().as_secs();
                assert!(passed <= most, "five calls pass at once, and one a second: {passed} of {most}");
            }
            429 => {
                limited += 1;
                assert_eq!(reply.code(), -32092);
                assert!(reply.error()["data"]["retryAfterMs"].as_u64().is_some_and(|ms| ms <= 1000));
                assert_eq!(reply.header("retry-after"), "1");
            }
            status => panic!("{status}"),
        }
    }
    let reply = gateway.batch([gateway.get_nodes(), gateway.get_nodes()]).send().await;
    assert_eq!(reply.status, 200, "a batch has status 200, and each element its own outcome");
}

#[tokio::test]
async fn key_guessing_at_usage_is_limited() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.auth.failed_per_minute = 5;
            config.server.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
        })
        .start()
        .await;
    let usage = |key: &str, client: &str| {
        let url = format!("{}/usage", gateway.url_of(key));
        gateway.send(gateway.client.get(url).header("x-forwarded-for", client.to_owned()))
    };
    for _ in 0..5 {
        let reply = usage("guess", "192.0.2.1").await;
        assert_eq!((reply.status, reply.text.contains("Unauthorized")), (401, true), "{}", reply.text);
    }
    let limited = usage("guess", "192.0.2.1").await;
    assert_eq!(limited.status, 429);
    assert!(limited.header("retry-after").parse::<u64>().is_ok_and(|seconds| seconds >= 1));
    let call = gateway.post("[]").key("guess").header("x-forwarded-for", "192.0.2.1");
    assert_eq!(call.send().await.status, 429, "calls and usage share one count");
    assert_eq!(usage("guess", "192.0.2.2").await.status, 401, "each address has its own count");
    assert_eq!(usage("dev", "192.0.2.1").await.json()["plan"], "dev", "a valid key is never refused");
    let metrics = gateway.admin("/metrics").await.text;
    for expected in
        [r#"auth_failures_total{reason="unknown"} 6"#, r#"auth_failures_total{reason="limited"} 2"#]
    {
        assert!(metrics.contains(expected), "{expected} is not in\n{metrics}");
    }
}

#[tokio::test]
async fn units_are_booked_per_account_call_and_hit() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.units.by_method[AnyMethod::Own(Method::GetMultipleAccounts).index()] = 10;
            config.units.hit_factor = 0.5;
        })
        .start()
        .await;
    let there = gateway.cluster.examples();
    let list = |n: usize| gateway.get_accounts(vec![there.wallets[0]; n]).base64();
    let nodes = || gateway.get_nodes();
    let mut expected = 0.0;
    for (what, request, cost) in [
        ("a list of 31", list(31).request(), 4.0),
        ("it again", list(31).request(), 2.0),
        ("a full list of another form", gateway.get_accounts([there.wallets[1]; 100]).request(), 10.0),
        ("two misses of a batch, collapsed or not", gateway.batch([nodes(), nodes()]), 2.0),
        ("refused by us", gateway.call("getNothing", json!([])).request(), 0.0),
        ("no params of a node's", gateway.call("getAccountInfo", json!([1])).request(), 0.0),
    ] {
        request.send().await;
        expected += cost;
        let usage = gateway.get("/v3/dev/usage").await;
        assert_eq!(usage.json()["day"]["used"].as_f64(), Some(expected), "{what}");
    }
}

#[tokio::test]
async fn monotonic_keys_never_see_older_slots() {
    for monotonic in [false, true] {
        let gateway = TestGateway::builder()
            .config(|config| {
                config.plans.get_mut("dev").expect("the dev plan").monotonic = monotonic;
            })
            .start()
            .await;
        let there = gateway.cluster.examples();
        let [a, b] = [there.wallets[0], there.wallets[1]];
        let held = [
            gateway.get_account(b).base64(),
            gateway.get_accounts([b, there.mints[0]]),
            gateway.get_token_balance(there.token_accounts[0]),
            gateway.get_fee(&there.fee_message),
        ];
        for call in &held {
            call.send().await;
        }
        gateway.get_votes().send().await;
        let old = gateway.cluster.slot(Commitment::Finalized);
        while gateway.cluster.slot(Commitment::Finalized) == old {
            gateway.step_by(1).await;
        }
        // A higher slot at another commitment does not matter.
        gateway.get_account(a).processed().send().await;
        let hit = held[0].send().await;
        assert_eq!((hit.slot(), hit.is_hit()), (old, true), "{}", hit.cache_status());

        let shown = gateway.get_account(a).base64().send().await.slot();
        assert!(shown > old);
        for call in &held {
            let (calls, method) = (gateway.upstream_calls(), call.method());
            let reply = call.send().await;
            let asked = gateway.upstream_calls() - calls;
            if monotonic {
                assert!(reply.slot() >= shown, "{method}: {}", reply.text);
                assert_eq!((reply.cache_status(), asked), ("fwd=miss; stored", 1), "{method}");
            } else {
                assert_eq!((reply.slot(), asked), (old, 0), "{method}");
                assert!(reply.is_hit(), "{method}: {}", reply.cache_status());
            }
        }
        // An answer without a slot is not compared with any slot.
        assert!(gateway.get_votes().send().await.is_hit());
    }
}

#[tokio::test]
async fn unreachable_slot_is_no_monotonic_keys_error() {
    let gateway = TestGateway::builder()
        .config(|config| config.plans.get_mut("dev").expect("the dev plan").monotonic = true)
        .start()
        .await;
    let there = gateway.cluster.examples();
    let [a, b] = [0, 1].map(|i| gateway.get_account(there.wallets[i]));
    let shown = a.send().await.slot();
    gateway.cluster.set_lag(5);
    let first = b.send().await;
    assert_eq!((first.status, first.cache_status()), (200, "fwd=miss; stored"));
    assert!(first.slot() < shown, "the highest available answer is given");
    let calls = gateway.upstream_calls();
    let again = b.send().await;
    assert_eq!((again.status, again.slot()), (200, first.slot()));
    assert!(gateway.upstream_calls() > calls, "a fresh answer below the key's floor is no hit");
    gateway.cluster.set_lag(0);
    let newest = b.send().await;
    assert!(newest.slot() >= shown, "{}", newest.text);
}

#[tokio::test]
async fn restarted_cluster_resets_monotonic_keys() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| config.plans.get_mut("dev").expect("the dev plan").monotonic = true)
        .start()
        .await;
    let ask = |cluster: &Cluster| gateway.get_account(cluster.examples().wallets[0]).send();
    let shown = ask(&gateway.cluster).await.slot();
    let settings = TestCluster::settings(1);
    let settings = Settings { seed: 2, first_slot: settings.first_slot - 864_000, ..settings };
    let other = gateway.cluster.replace(Cluster::new(settings)).await;
    let slot = other.slot(Commitment::Processed);
    gateway
        .until("the other cluster is known", || gateway.front().frontier.slot(Commitment::Processed) == slot)
        .await;
    // The floors fall a moment after the frontier does.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        ask(&other).await;
        let again = ask(&other).await;
        assert!(again.slot() < shown);
        if again.is_hit() {
            break;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "held to the old cluster's slots: {}",
            again.cache_status()
        );
    }
}

#[tokio::test]
async fn one_key_cannot_take_every_permit() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let new = NewKey::of("other", "standard");
    let other = file.create(&new, jiff::Timestamp::now()).expect("a key").key;
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.server.max_in_flight = 20;
            config.auth.keys_file = Some(file.path().to_path_buf());
        })
        .start()
        .await;
    let gate = gateway.cluster.node(0).hold("getVoteAccounts");
    let in_flight = || gateway.in_flight();
    let hog = join_all((0..25).map(|_| gateway.get_votes().send()));
    let others = async {
        gate.arrived(1).await;
        gateway.until("the first key has its share", || in_flight() == 18).await;
        for _ in 0..5 {
            let reply = gateway.get_nodes().key(other.expose()).send().await;
            assert_eq!(reply.status, 200, "{}", reply.text);
        }
        let refused =
            || gateway.front().metrics.render().contains(r#"method="getVoteAccounts",outcome="error"} 7"#);
        gateway.until("calls above the share are refused", refused).await;
        gate.release();
    };
    let (hog, ()) = tokio::join!(hog, others);
    let overloaded: Vec<_> = hog.iter().filter(|reply| reply.status != 200).collect();
    assert_eq!((hog.len(), overloaded.len()), (25, 7));
    assert!(overloaded.iter().all(|reply| (reply.status, reply.code()) == (503, -32094)));
    assert!(overloaded.iter().all(|reply| reply.header("retry-after") == "1"));
    gateway.until("no request is in flight", || in_flight() == 0).await;
    assert_eq!(gateway.get_votes().send().await.status, 200);
}

#[tokio::test]
async fn open_gateway_needs_no_key() {
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.auth.mode = AuthMode::Open).start().await;
    for path in ["/", "/v3", "/v3/", "/v3/any", "/v3/dev"] {
        let reply = gateway.get_nodes().path(path).send().await;
        assert_eq!((reply.status, reply.header("ratelimit")), (200, ""), "{path}: {}", reply.text);
    }
    assert_eq!(gateway.get("/v3/any/usage").await.status, 404);
    assert_eq!(gateway.get("/").await.status, 405, "calls are POSTs");
}

#[tokio::test]
async fn an_open_plan_limits_each_client_address() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.auth.mode = AuthMode::Open;
            config.auth.open_plan = Some("dev".to_owned());
            let plan = config.plans.get_mut("dev").expect("the dev plan");
            (plan.rps, plan.burst, plan.daily_units) = (1, 3, Some(100));
            config.server.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
        })
        .start()
        .await;
    let call = |client: &str| gateway.get_nodes().path("").header("x-forwarded-for", client).send();
    let mut limited = 0;
    for _ in 0..20 {
        limited += usize::from(call("2001:db8::1").await.status == 429);
    }
    assert!(limited >= 10, "{limited} of 20 calls at a burst of 3");
    assert_eq!(call("2001:db8::2").await.status, 429, "a /64 is one client");
    assert_eq!(call("2001:db8:0:1::1").await.status, 200);
    let request = gateway.client.get(format!("{}/usage", gateway.url_of("any")));
    let request = request.header("x-forwarded-for", "192.0.2.1");
    let usage = gateway.send(request).await;
    assert_eq!(
        (usage.status, usage.json()["day"]["used"].clone()),
        (200, json!(0)),
        "the usage is that of this address"
    );
}
