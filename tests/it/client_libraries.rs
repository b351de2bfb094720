//! Details of responses on which client libraries depend.

use serde_json::json;
use slotfront::methods::{AnyMethod, Method};
use slotfront_sim::Fault;
use slotfront_testkit::TestGateway;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn every_refusal_says_why_in_its_head() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.server.max_batch = 2;
            let plan = config.plans.get_mut("dev").unwrap();
            let methods = [Method::GetClusterNodes, Method::GetVoteAccounts];
            plan.methods = Some(methods.map(AnyMethod::Own).into());
        })
        .start()
        .await;
    gateway.cluster.node(0).fault_on("getVoteAccounts", Fault::Status(500), None);
    let call = |method| gateway.call(method, json!([])).request();
    let nodes = || gateway.get_nodes();
    for (key, request, status, error) in [
        ("dev", call("getClusterNodes"), 200, ""),
        ("dev", call("nothing"), 200, ""),
        (
            "dev",
            gateway.batch(["getBlockProduction", "getBalance"].map(|method| gateway.call(method, json!([])))),
            200,
            "",
        ),
        ("wrong", call("getClusterNodes"), 401, "-32090 unauthorized"),
        ("dev", call("getRecentPerformanceSamples"), 403, "-32091 forbidden"),
        ("dev", gateway.batch([nodes(), nodes(), nodes()]), 413, "-32093 batch"),
        ("dev", call("getVoteAccounts"), 502, "-32095 no_upstream"),
    ] {
        for reply in request.key(key).send_every_way().await {
            assert_eq!((reply.status, reply.header("x-slotfront-error")), (status, error), "{error}");
            let challenge = if status == 401 { "ApiKey realm=\"slotfront\"" } else { "" };
            assert_eq!(reply.header("www-authenticate"), challenge, "{error}");
            let exposed = reply.header("access-control-expose-headers");
            assert!(exposed.is_empty() || exposed.contains("X-Slotfront-Error"), "{exposed}");
        }
    }
    let usage = gateway.get("/v3/wrong/usage").await;
    assert_eq!(usage.header("x-slotfront-error"), "-32090 unauthorized");
    assert_eq!(usage.header("www-authenticate"), "ApiKey realm=\"slotfront\"");
}

#[tokio::test]
async fn a_limit_says_which_in_its_head() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.auth.failed_per_minute = 1;
            let plan = config.plans.get_mut("dev").unwrap();
            (plan.rps, plan.burst, plan.daily_units) = (1, 100, Some(1));
        })
        .start()
        .await;
    assert_eq!(gateway.get_nodes().key("dev").request().send_every_way().await[0].status, 200);
    for reply in gateway.get_nodes().key("dev").request().send_every_way().await {
        assert_eq!((reply.status, reply.header("x-slotfront-error")), (429, "-32092 day"));
    }
    let wrong = gateway.get_nodes().key("wrong").request().send_every_way().await;
    let errors = wrong.each_ref().map(|reply| reply.header("x-slotfront-error"));
    assert_eq!(errors, ["-32090 unauthorized", "-32092 failed_keys", "-32092 failed_keys"]);
}

/// Sends `head` without a body on a new connection, and then a request for `/health`. Returns both responses.
async fn then_health(gateway: &TestGateway, head: &str) -> String {
    let mut socket = gateway.connect().await;
    let health = "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    socket.write_all(format!("{head}\r\n\r\n{health}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn other_upgrades_are_ignored() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let upgrade = "host: x\r\nconnection: Upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==";
    let answer = then_health(&gateway, &format!("GET /v3/dev HTTP/1.1\r\n{upgrade}\r\nupgrade: h2c")).await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    assert_eq!(gateway.get_nodes().header("upgrade", "websocket").send().await.status, 200);
}
