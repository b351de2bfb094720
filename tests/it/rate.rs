//! Rate limits: the calls that count, and the order in which a request is refused.

use serde_json::{Value, json};
use slotfront::config::Config;
use slotfront::methods::{AnyMethod, Method};
use slotfront_testkit::{Reply, TestGateway};

fn plan(rps: u32, burst: u32) -> impl FnOnce(&mut Config) {
    move |config| {
        let plan = config.plans.get_mut("dev").unwrap();
        (plan.rps, plan.burst, plan.max_batch) = (rps, burst, Some(20));
        let allowed = [Method::GetAccountInfo, Method::GetClusterNodes].map(AnyMethod::Own);
        plan.methods = Some(allowed.into());
    }
}

/// Returns the number of calls that the rate still allows in one burst, from the header `RateLimit`.
fn left(reply: &Reply) -> u32 {
    let field = reply.header("ratelimit");
    field.trim_start_matches("\"rate\";r=").split(';').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn calls_that_are_refused_count() {
    for (method, params, code) in [
        ("noSuchMethod", json!([]), -32601),
        ("sendTransaction", json!(["AQ=="]), -32601),
        ("getAccountInfo", json!(["x"]), -32602),
        ("getVoteAccounts", json!([]), -32091),
        ("simulateTransaction", json!([]), -32091),
    ] {
        let gateway = TestGateway::builder().nodes(1).config(plan(1, 3)).start().await;
        let answers = gateway.batch(vec![gateway.call(method, params); 20]).send().await.json();
        let with = |code: i64| {
            answers.as_array().unwrap().iter().filter(|answer| answer["error"]["code"] == code).count()
        };
        assert!(with(code) >= 3 && with(-32092) >= 10, "{method}: {answers}");
        assert_eq!(with(code) + with(-32092), 20);
    }
}

#[tokio::test]
async fn elements_that_are_no_calls_count() {
    let gateway = TestGateway::builder().nodes(1).config(plan(1, 3)).start().await;
    let good = gateway.get_nodes().json();
    let batch =
        json!([{}, {"jsonrpc": "2.0", "method": "getClusterNodes"}, {"jsonrpc": "1.0", "id": 1}, good]);
    let answers = gateway.post(batch.to_string()).send().await.json();
    let codes: Vec<_> =
        answers.as_array().unwrap().iter().map(|answer| answer["error"]["code"].clone()).collect();
    assert_eq!(codes, [-32600, -32600, -32092], "{answers}");
}

#[tokio::test]
async fn bodies_that_hold_no_call_count_as_one() {
    let long = Value::from(vec![json!({}); 21]).to_string();
    let notification = r#"{"jsonrpc":"2.0","method":"getClusterNodes"}"#;
    for (body, status) in [("no JSON", 200), ("{}", 200), (notification, 200), ("[]", 200), (&long, 413)] {
        let gateway = TestGateway::builder().nodes(1).config(plan(1, 1000)).start().await;
        for _ in 0..20 {
            assert_eq!(gateway.post(body.to_owned()).send().await.status, status, "{body}");
        }
        // While the test runs, the rate allows one further call each second.
        let left = left(&gateway.get_nodes().send().await);
        assert!((979..=989).contains(&left), "{left} are left after 20 times {body}");
    }
}

#[tokio::test]
async fn bodies_that_hold_no_call_are_limited() {
    let long = Value::from(vec![json!({}); 21]).to_string();
    let notification = r#"{"jsonrpc":"2.0","method":"getClusterNodes"}"#;
    for (body, status) in [("no JSON", 200), ("{}", 200), (notification, 200), ("[]", 200), (&long, 413)] {
        let gateway = TestGateway::builder().nodes(1).config(plan(1, 3)).start().await;
        // While the test runs, the rate allows one further call each second.
        let mut answers = 0;
        let limited = loop {
            let reply = gateway.post(body.to_owned()).send().await;
            if reply.status == 429 {
                break reply;
            }
            assert_eq!(reply.status, status, "{body}");
            answers += 1;
            assert!(answers < 1000, "{body} is never limited");
        };
        assert!(answers >= 3, "{answers} answers to {body}");
        assert_eq!((limited.code(), limited.json()["id"].clone()), (-32092, json!(null)), "{body}");
        assert!(!limited.header("retry-after").is_empty(), "{body}");
    }
}

#[tokio::test]
async fn the_usage_is_outside_the_rate() {
    let gateway = TestGateway::builder().nodes(1).config(plan(1, 3)).start().await;
    for _ in 0..20 {
        let reply = gateway.get("/v3/dev/usage").await;
        assert_eq!((reply.status, &reply.json()["plan"]), (200, &json!("dev")));
    }
    let reply = gateway.batch(vec![gateway.get_nodes(); 3]).send().await.json();
    assert!(reply.as_array().unwrap().iter().all(|answer| answer["result"].is_array()), "{reply}");
}

#[tokio::test]
async fn calls_that_find_no_place_count() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            plan(1, 1000)(config);
            config.server.max_in_flight = 1;
        })
        .start()
        .await;
    let hold = gateway.cluster.node(0).hold("getClusterNodes");
    let others = async {
        hold.arrived(1).await;
        for _ in 0..20 {
            assert_eq!(gateway.get_nodes().send().await.status, 503);
        }
        hold.release();
    };
    let (first, ()) = tokio::join!(gateway.get_nodes().send(), others);
    // While the test runs, the rate allows one further call each second.
    assert!((979..=989).contains(&left(&first)), "{} are left", left(&first));
}

#[tokio::test]
async fn limited_guessers_are_not_read() {
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.auth.failed_per_minute = 1).start().await;
    let wrong = || gateway.get_nodes().key("wrong").send();
    let first = wrong().await;
    assert_eq!((first.status, first.json()["id"].clone()), (401, json!(1)));
    let next = wrong().await;
    assert_eq!((next.status, next.code(), next.json()["id"].clone()), (429, -32092, json!(null)));
}
