//! Floors sent as `minContextSlot`: only nodes known to have reached a floor get it, and callers never see a
//! node's error about it.

use std::time::Duration;

use slotfront::config::Config;
use slotfront::methods::{Commitment, Method, Query, Slot};
use slotfront::node::NodeReply;
use slotfront::pool::{PoolReply, UpstreamRequest};
use slotfront_sim::Fault;
use slotfront_testkit::{TestGateway, upstream_request};

/// Makes probes happen only at the start, so that later slots are known from answers only.
fn probed_once(config: &mut Config) {
    config.pool.probe_interval = Duration::from_mins(1);
}

async fn ask(gateway: &TestGateway, query: Query, floor: Slot) -> PoolReply {
    let ask = UpstreamRequest { min_slot: Some(floor), ..upstream_request(query) };
    gateway.front().pool.call(&ask).await.unwrap()
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
    // A node that gets the floor refuses the call, and is then asked again without the floor. A node that does not
    // get the floor answers at once.
    for (method, commitment, calls) in [
        (GetAccountInfo, Finalized, 2),
        (GetAccountInfo, Confirmed, 2),
        (GetMultipleAccounts, Confirmed, 2),
        (GetAccountInfo, Processed, 1),
        (GetTokenAccountBalance, Finalized, 1),
    ] {
        let gateway = TestGateway::builder().nodes(1).config(probed_once).start().await;
        let examples = gateway.cluster.examples();
        let call = match method {
            GetTokenAccountBalance => gateway.get_token_balance(examples.token_accounts[0]),
            GetMultipleAccounts => gateway.get_accounts([examples.wallets[0]]),
            _ => gateway.get_account(examples.wallets[0]),
        };
        let query = call.commitment(commitment).query();
        let floor = gateway.front().frontier.slot(commitment);
        gateway.cluster.node(0).set_lag(20);
        let fallen = gateway.cluster.node(0).slot(commitment);
        assert!(fallen < floor);
        let asked = || gateway.cluster.node(0).calls(method.as_str());
        let reply = ask(&gateway, query.clone(), floor).await;
        assert_eq!((code(&reply), reply.slot), (None, fallen), "{method:?} {commitment:?}");
        assert_eq!(asked(), calls, "{method:?} {commitment:?}");
        if calls == 2 {
            assert_eq!(
                gateway.front().frontier.slots_of(0).slot(commitment),
                Some(fallen),
                "the node's lower slot is known"
            );
            ask(&gateway, query, floor).await;
            assert_eq!(asked(), calls + 1, "a node that has not reached the floor is not sent it");
        }
    }
}

#[tokio::test]
async fn fallen_node_is_avoided() {
    let gateway = TestGateway::builder().config(probed_once).start().await;
    let floor = gateway.front().frontier.slot(Commitment::Finalized);
    for (fallen, lag) in [(0, 30), (1, 20)] {
        gateway.cluster.node(fallen).set_lag(lag);
    }
    for wallet in gateway.cluster.examples().wallets.iter().take(12) {
        let query = gateway.get_account(wallet).query();
        let reply = ask(&gateway, query, floor).await;
        assert_eq!((code(&reply), reply.slot), (None, floor));
    }
    let asked: u64 = gateway.cluster.nodes()[..2].iter().map(|node| node.calls("getAccountInfo")).sum();
    assert!(asked <= 2, "each is asked until its slot is known: {asked}");
}

#[tokio::test]
async fn highest_answer_wins_when_all_fell_back() {
    let gateway = TestGateway::builder().config(probed_once).start().await;
    let floor = gateway.front().frontier.slot(Commitment::Confirmed);
    for (node, lag) in [(0, 12), (1, 4), (2, 9)] {
        gateway.cluster.node(node).set_lag(lag);
    }
    let highest = gateway.cluster.node(1).slot(Commitment::Confirmed);
    let query = gateway.get_account(gateway.cluster.examples().wallets[0]).confirmed().query();
    let reply = ask(&gateway, query, floor).await;
    assert_eq!((code(&reply), reply.slot), (None, highest));
    assert_eq!(
        gateway.upstream_calls(),
        4,
        "each node gets the floor, and then the highest is asked without it"
    );
}

#[tokio::test]
async fn callers_min_context_slot_is_always_sent() {
    let gateway = TestGateway::builder().nodes(2).config(probed_once).start().await;
    let floor = gateway.front().frontier.slot(Commitment::Confirmed);
    gateway.cluster.set_lag(20);
    let call = gateway.get_account(gateway.cluster.examples().wallets[0]);
    let reply = ask(&gateway, call.confirmed().min_context_slot(floor).query(), floor).await;
    assert_eq!((code(&reply), gateway.upstream_calls()), (Some(-32016), 2));
}

#[tokio::test]
async fn account_errors_below_the_floor_are_retried() {
    for method in [Method::GetTokenAccountBalance, Method::GetAccountInfo, Method::GetMultipleAccounts] {
        let gateway = TestGateway::builder()
            .nodes(2)
            .config(probed_once)
            .config(|config| config.upstreams[1].tier = 1)
            .start()
            .await;
        let examples = gateway.cluster.examples();
        let token = examples.token_accounts[0];
        let query = match method {
            Method::GetTokenAccountBalance => gateway.get_token_balance(token),
            Method::GetAccountInfo => gateway.get_account(token).base64(),
            _ => gateway.get_accounts([token]).base64(),
        };
        let query = query.query();
        let absent =
            || Fault::Error { code: -32602, message: "Invalid param: could not find account".to_owned() };
        gateway.cluster.node(0).fault_on(method.as_str(), absent(), None);
        // Neither node is known to have reached the floor, and the first node has not reached it.
        gateway.cluster.node(0).set_lag(20);
        gateway.cluster.step_by(20);
        let floor = gateway.cluster.node(1).slot(Commitment::Finalized);
        let reply = ask(&gateway, query.clone(), floor).await;
        assert_eq!((code(&reply), reply.slot), (None, floor), "{method:?}");
        // If every node is behind the floor, the nodes' error is the best available answer.
        gateway.cluster.node(1).fault_on(method.as_str(), absent(), None);
        let reply = ask(&gateway, query, floor + 1000).await;
        assert_eq!(code(&reply), Some(-32602), "{method:?}");
    }
}

#[tokio::test]
async fn result_below_the_callers_slot_is_a_refusal() {
    // Several machines may share an address, and one of them may be a slot behind and ignore `minContextSlot`.
    let gateway = TestGateway::builder().nodes(1).config(probed_once).start().await;
    let (node, floor) = (gateway.cluster.node(0), gateway.front().frontier.slot(Commitment::Confirmed));
    let call = gateway.get_account(gateway.cluster.examples().wallets[0]).confirmed().base64();
    // The confirmed slot may be the same after a slot.
    let lag = (1..20).find(|lag| {
        node.set_lag(*lag);
        node.slot(Commitment::Confirmed) < floor
    });
    let behind = node.slot(Commitment::Confirmed);
    node.fault_on("getAccountInfo", Fault::Result(call.result_of(node)), None);
    node.set_lag(0);
    let reply = ask(&gateway, call.min_context_slot(floor).query(), floor).await;
    let NodeReply::Error { code, body } = &reply.body else { panic!("a result below the caller's slot") };
    let body: serde_json::Value = serde_json::from_slice(body).unwrap();
    assert_eq!(
        (*code, &body["data"]["contextSlot"]),
        (-32016, &serde_json::json!(behind)),
        "{lag:?} slots back"
    );
    assert_eq!(gateway.front().pool.members()[0].counts(), (1, 0), "no fault of the node");
}

#[tokio::test]
async fn only_refusals_of_one_node_are_final() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(probed_once)
        .config(|config| config.upstreams[1].tier = 1)
        .start()
        .await;
    gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Status(500), None);
    let above = gateway.front().frontier.slot(Commitment::Confirmed) + 1_000;
    let call = gateway.get_account(gateway.cluster.examples().wallets[0]);
    let call = call.confirmed().min_context_slot(above);
    for asked in [2, 3] {
        let reply = call.send().await;
        assert_eq!((reply.status, reply.code()), (200, -32016), "{}", reply.text);
        assert_eq!(gateway.upstream_calls(), asked, "a fault is retried, and a refusal is not");
        gateway.cluster.clear_faults();
    }
}

#[tokio::test]
async fn refused_slots_say_nothing_about_health() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(probed_once)
        .config(|config| {
            config.pool.retries = 0;
            config.pool.breaker.failures = 2;
        })
        .start()
        .await;
    let behind =
        Fault::Error { code: -32016, message: "Minimum context slot has not been reached".to_owned() };
    let floor = gateway.front().frontier.slot(Commitment::Confirmed);
    let wallet = gateway.cluster.examples().wallets[0];
    for one_node in [false, true] {
        for fault in [Fault::Status(500), behind.clone()] {
            gateway.cluster.node(0).fault_on("getAccountInfo", fault, Some(1));
            let query = gateway.get_account(wallet).confirmed().min_context_slot(floor).query();
            let _ = gateway.front().pool.call(&UpstreamRequest { one_node, ..upstream_request(query) }).await;
        }
    }
    let breaker = gateway.front().pool.members()[0].breaker(tokio::time::Instant::now());
    assert_eq!(breaker, slotfront::breaker::BreakerState::Open, "two faults in a row, without a success");
}
