//! Floors as `minContextSlot`: they are sent to nodes that have shown them, and are never a caller's error.

use std::time::Duration;

use serde_json::{Value, json};
use slotfront::jsonrpc::Params;
use slotfront::methods::{Commitment, Method, Profile, Query, Slot};
use slotfront::node::NodeReply;
use slotfront::pool::{CallContext, PoolReply, UpstreamRequest};
use slotfront_sim::Fault;
use tokio::time::Instant;

use crate::harness::Stage;

/// Returns a gateway whose nodes are probed at the start only, so that later slots are known from answers.
async fn stage(nodes: usize) -> Stage {
    Stage::of(nodes, |config| config.pool.probe_interval = Duration::from_mins(1)).await
}

fn query(method: Method, params: &Value) -> Query {
    Query::parse(method, &Params::Array(params.to_string().into()), Profile::Node).unwrap()
}

async fn ask(stage: &Stage, query: Query, floor: Slot) -> PoolReply {
    let deadline = Instant::now() + Duration::from_secs(5);
    let ask = UpstreamRequest {
        query,
        floor: Some(floor),
        prefer: None,
        alone: false,
        context: CallContext::own(deadline),
    };
    stage.front().pool.call(&ask).await.unwrap()
}

fn code(reply: &PoolReply) -> Option<i32> {
    match &reply.body {
        NodeReply::Error { code, .. } => Some(*code),
        NodeReply::Result(_) => None,
    }
}

#[tokio::test]
async fn floors_are_sent_and_never_callers_errors() {
    use Commitment::{Confirmed, Finalized, Processed};
    use Method::{GetAccountInfo, GetMultipleAccounts, GetTokenAccountBalance};
    // A node that was sent the floor refuses and is asked again without it. Another node answers at once.
    for (method, commitment, calls) in [
        (GetAccountInfo, Finalized, 2),
        (GetAccountInfo, Confirmed, 2),
        (GetMultipleAccounts, Confirmed, 2),
        (GetAccountInfo, Processed, 1),
        (GetTokenAccountBalance, Finalized, 1),
    ] {
        let stage = stage(1).await;
        let examples = stage.cluster.examples();
        let what = match method {
            GetTokenAccountBalance => json!(examples.token_accounts[0].to_string()),
            GetMultipleAccounts => json!([examples.wallets[0].to_string()]),
            _ => json!(examples.wallets[0].to_string()),
        };
        let query = query(method, &json!([what, { "commitment": commitment.as_str() }]));
        let floor = stage.front().frontier.slot(commitment);
        stage.cluster.node(0).set_lag(20);
        let fallen = stage.cluster.node(0).slot(commitment);
        assert!(fallen < floor);
        let asked = || stage.cluster.node(0).calls(method.as_str());
        let reply = ask(&stage, query.clone(), floor).await;
        assert_eq!((code(&reply), reply.slot), (None, fallen), "{method:?} {commitment:?}");
        assert_eq!(asked(), calls, "{method:?} {commitment:?}");
        if calls == 2 {
            assert_eq!(stage.front().frontier.node_slot(0, commitment), Some(fallen), "it is believed");
            ask(&stage, query, floor).await;
            assert_eq!(asked(), calls + 1, "a node that has not reached the floor is not held to it");
        }
    }
}

#[tokio::test]
async fn fallen_node_is_avoided() {
    let stage = stage(3).await;
    let floor = stage.front().frontier.slot(Commitment::Finalized);
    for (fallen, lag) in [(0, 30), (1, 20)] {
        stage.cluster.node(fallen).set_lag(lag);
    }
    for wallet in stage.cluster.examples().wallets.iter().take(12) {
        let query = query(Method::GetAccountInfo, &json!([wallet.to_string()]));
        let reply = ask(&stage, query, floor).await;
        assert_eq!((code(&reply), reply.slot), (None, floor));
    }
    let asked: u64 = stage.cluster.nodes()[..2].iter().map(|node| node.calls("getAccountInfo")).sum();
    assert!(asked <= 2, "each is asked until it has said where it is: {asked}");
}

#[tokio::test]
async fn highest_answer_wins_when_all_fell_back() {
    let stage = stage(3).await;
    let floor = stage.front().frontier.slot(Commitment::Confirmed);
    for (node, lag) in [(0, 12), (1, 4), (2, 9)] {
        stage.cluster.node(node).set_lag(lag);
    }
    let highest = stage.cluster.node(1).slot(Commitment::Confirmed);
    let wallet = stage.cluster.examples().wallets[0].to_string();
    let query = query(Method::GetAccountInfo, &json!([wallet, { "commitment": "confirmed" }]));
    let reply = ask(&stage, query, floor).await;
    assert_eq!((code(&reply), reply.slot), (None, highest));
    assert_eq!(stage.upstream_calls(), 4, "each with the number, then the highest without");
}

#[tokio::test]
async fn callers_min_context_slot_is_always_sent() {
    let stage = stage(2).await;
    let floor = stage.front().frontier.slot(Commitment::Confirmed);
    stage.cluster.nodes().iter().for_each(|node| node.set_lag(20));
    let wallet = stage.cluster.examples().wallets[0].to_string();
    let config = json!({ "commitment": "confirmed", "minContextSlot": floor });
    let reply = ask(&stage, query(Method::GetAccountInfo, &json!([wallet, config])), floor).await;
    assert_eq!((code(&reply), stage.upstream_calls()), (Some(-32016), 2));
}

#[tokio::test]
async fn account_errors_below_the_floor_are_retried() {
    for (method, what) in
        [(Method::GetTokenAccountBalance, 0), (Method::GetAccountInfo, 1), (Method::GetMultipleAccounts, 2)]
    {
        let stage = Stage::of(2, |config| {
            config.pool.probe_interval = Duration::from_mins(1);
            config.upstreams[1].tier = 1;
        })
        .await;
        let examples = stage.cluster.examples();
        let token = json!(examples.token_accounts[0].to_string());
        let base64 = json!({ "encoding": "base64" });
        let params = [json!([token]), json!([token, base64]), json!([[token], base64])][what].clone();
        let absent =
            || Fault::Error { code: -32602, message: "Invalid param: could not find account".to_owned() };
        stage.cluster.node(0).fault_on(method.as_str(), absent(), None);
        // Neither node is known to have reached the slot, and the first has not.
        stage.cluster.node(0).set_lag(20);
        stage.cluster.step_by(20);
        let floor = stage.cluster.node(1).slot(Commitment::Finalized);
        let reply = ask(&stage, query(method, &params), floor).await;
        assert_eq!((code(&reply), reply.slot), (None, floor), "{method:?}");
        // If every node is behind, the error is the best answer available.
        stage.cluster.node(1).fault_on(method.as_str(), absent(), None);
        let reply = ask(&stage, query(method, &params), floor + 1000).await;
        assert_eq!(code(&reply), Some(-32602), "{method:?}");
    }
}
