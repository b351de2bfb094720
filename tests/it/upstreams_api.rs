//! The two views of the nodes: `/api/upstreams` and `/api/status`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use slotfront::telemetry::Unusable;
use slotfront_sim::Fault;
use slotfront_testkit::TestGateway;
use tokio::time::Instant;

async fn view(gateway: &TestGateway) -> Value {
    let reply = gateway.admin("/api/upstreams").await;
    assert_eq!(reply.status, 200);
    assert!(!reply.text.contains("127.0.0.1"), "no address: {}", reply.text);
    reply.json()
}

#[tokio::test]
async fn every_nodes_standing_is_told_in_words() {
    let gateway = TestGateway::builder().config(|config| config.upstreams[2].rps = Some(50)).start().await;
    gateway.cluster.node(0).set_lag(100);
    gateway.cluster.node(1).set_full_api(false);
    let standing = |node: usize| gateway.front().pool.standing(Instant::now())[node].1;
    gateway.until("the lag is known", || standing(0) == Some(Unusable::Lagging)).await;
    gateway.front().pool.members()[0].set_drained(true);
    // Node 1 reports that it lacks the method, and node 2 fails once.
    gateway.cluster.node(2).fault_on("getAccountInfo", Fault::Html, Some(1));
    for wallet in gateway.cluster.examples().wallets.iter().take(6) {
        gateway.get_account(wallet).send().await;
    }
    let view = view(&gateway).await;
    let [zero, one, two] = [0, 1, 2].map(|node| &view["upstreams"][node]);
    assert_eq!(zero["name"], "node-0");
    let reasons = zero["reasons"].as_array().unwrap();
    assert!(reasons.contains(&json!("drained by an operator until the next restart")), "{reasons:?}");
    assert!(reasons.iter().any(|r| r.as_str().unwrap().contains(" s) behind the frontier")), "{reasons:?}");
    assert_eq!((&zero["usable"], &zero["drained"]), (&json!(false), &json!(true)));
    assert!(zero["lag_slots"]["processed"].as_u64() > Some(50));
    assert_eq!((&one["usable"], &one["lacks"]), (&json!(true), &json!(["getAccountInfo"])));
    assert_eq!((&two["last_failure"]["kind"], &two["breaker"]), (&json!("status_5xx"), &json!("closed")));
    assert!(two["rps_left"].as_f64().is_some_and(|left| (0.0..=50.0).contains(&left)), "{two}");
    assert!(one["version"].is_string() && one["rps_left"].is_null());
    let slot = gateway.cluster.slot(slotfront::methods::Commitment::Finalized);
    assert_eq!((&view["frontier"]["finalized"], &two["slots"]["finalized"]), (&json!(slot), &json!(slot)));
}

/// Returns the members of a JSON object in the order of the text, each as its name and the kind of its value.
fn members(object: &str) -> Vec<String> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(object).unwrap();
    let start = object.as_ptr() as usize;
    let mut members: Vec<_> = members
        .iter()
        .map(|(name, value)| {
            let kind = match value.get().as_bytes()[0] {
                b'"' => "text",
                b'{' => "object",
                b'[' => "list",
                b't' | b'f' => "bool",
                b'n' => "null",
                _ if value.get().contains('.') => "float",
                _ => "integer",
            };
            (value.get().as_ptr() as usize - start, format!("{name} {kind}"))
        })
        .collect();
    members.sort_unstable();
    members.into_iter().map(|(_, member)| member).collect()
}

#[tokio::test]
async fn node_json_has_stable_members() {
    #[derive(Deserialize)]
    struct Nodes<'a> {
        #[serde(borrow)]
        upstreams: Vec<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Status<'a> {
        #[serde(borrow)]
        status: Nodes<'a>,
    }

    let gateway = TestGateway::builder().config(|config| config.upstreams[2].rps = Some(50)).start().await;
    gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Html, Some(1));
    gateway.front().pool.members()[1].set_drained(true);
    for wallet in gateway.cluster.examples().wallets.iter().take(6) {
        gateway.get_account(wallet).send().await;
    }
    // Both get an answer, whomever the calls went to.
    for (drained, call) in [(2, gateway.get_votes()), (0, gateway.get_nodes())] {
        gateway.front().pool.members()[drained].set_drained(true);
        call.send().await;
        gateway.front().pool.members()[drained].set_drained(false);
    }
    let all = gateway.admin("/api/status").await.text;
    let Status { status } = serde_json::from_str(&all).unwrap();
    let all = gateway.admin("/api/upstreams").await.text;
    let nodes: Nodes = serde_json::from_str(&all).unwrap();
    let of_nodes = |node: usize| {
        let shown = members(nodes.upstreams[node].get());
        assert_eq!(members(status.upstreams[node].get()), shown, "both answers show a node alike");
        shown
    };
    let expected = |rps, failure| {
        format!(
            "name text,tier integer,why null,since text,up bool,usable bool,reasons list,slots object,lag_slots object,version text,\
             first_available_block integer,breaker text,in_flight integer,max_in_flight integer,latency_ms float,\
             rps_left {rps},lacks list,drained bool,requests integer,failures integer,last_failure {failure}"
        )
    };
    assert_eq!(of_nodes(0).join(","), expected("null", "object"));
    assert_eq!(of_nodes(2).join(","), expected("integer", "null"));
}
