//! Monotonicity: at confirmed and finalized no answer is older than an earlier answer to the same question,
//! whichever held entry it was made of. Malformed answers are never held.

use std::time::Duration;

use serde_json::{Value, json};
use slotfront::config::{Assemble, Config};
use slotfront::methods::{Commitment, PerCommitment};
use slotfront_sim::Fault;

use crate::harness::{Reply, Stage};

fn slot_of(reply: &Reply) -> u64 {
    reply.result()["context"]["slot"].as_u64().unwrap()
}

/// Makes an entry expire with the next slot, without a stale answer meanwhile.
fn short_lived(config: &mut Config) {
    config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
    config.cache.max_lag_slots = PerCommitment::uniform(0);
}

/// Returns a gateway over two nodes. The second one is asked only if the first fails, and is `slots` behind.
async fn first_and_laggard(slots: u64) -> Stage {
    let stage = Stage::of(2, |config| {
        short_lived(config);
        config.upstreams[1].tier = 1;
    })
    .await;
    stage.cluster.node(1).set_lag(slots);
    let lags = || stage.front().frontier.lag(1, Commitment::Finalized) > Some(0);
    stage.until("the lag is known", lags).await;
    stage
}

fn base64(key: &str) -> Value {
    json!([key, {"encoding": "base64"}])
}

fn slice(key: &str, minimum: Option<u64>) -> Value {
    json!([key, {"encoding": "base64", "dataSlice": {"offset": 0, "length": 8}, "minContextSlot": minimum}])
}

#[tokio::test]
async fn assembled_list_sets_a_floor() {
    let stage = first_and_laggard(4).await;
    let there = stage.cluster.examples();
    let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    for key in [&a, &b] {
        stage.call("getAccountInfo", base64(key)).await;
    }
    let first = stage.call("getMultipleAccounts", json!([[a, b]])).await;
    assert!(first.cache().ends_with("detail=derived"), "{}", first.cache());
    stage.step_by(1).await;
    stage.cluster.node(0).fault_on("getMultipleAccounts", Fault::Status(500), None);
    let second = stage.call("getMultipleAccounts", json!([[a, b]])).await;
    assert!(slot_of(&second) >= slot_of(&first), "{} after {}", slot_of(&second), slot_of(&first));
}

#[tokio::test]
async fn held_list_does_not_hide_newer_accounts() {
    for assemble in [Assemble::SameSlot, Assemble::WithinBound] {
        let stage = Stage::with(|config| config.cache.assemble = assemble).await;
        let there = stage.cluster.examples();
        let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
        stage.call("getMultipleAccounts", json!([[a, b]])).await;
        stage.step_by(4).await;
        let slot = stage.cluster.slot(Commitment::Finalized);
        stage.call("getMultipleAccounts", json!([[b, a], {"minContextSlot": slot}])).await;
        let first = stage.call("getMultipleAccounts", json!([[a, b], {"minContextSlot": slot}])).await;
        let second = stage.call("getMultipleAccounts", json!([[a, b]])).await;
        assert_eq!((slot_of(&first), slot_of(&second)), (slot, slot), "{assemble:?}");
    }
}

#[tokio::test]
async fn unheld_answers_do_not_go_back() {
    let stage = Stage::with(short_lived).await;
    let message = stage.cluster.examples().fee_message_processed;
    stage.step_by(3).await;
    let params = json!([message, {"commitment": "confirmed"}]);
    let first = stage.call("getFeeForMessage", params.clone()).await;
    assert_eq!(first.result()["value"], 5000);
    stage.step_by(1).await;
    stage.cluster.nodes().iter().for_each(|node| node.set_lag(50));
    // Before the slot of the blockhash every node answers null, which is never held.
    let second = stage.call("getFeeForMessage", params).await;
    assert_eq!((second.result(), second.cache().ends_with("stale-if-error")), (first.result(), true));
}

#[tokio::test]
async fn higher_slot_of_two_keys_wins() {
    let stage = Stage::new().await;
    let account = stage.cluster.examples().mints[0].to_string();
    // The slice is held under its own key. The whole account at a later slot shows its size, so that slices
    // are still fetched as slices.
    stage.call("getAccountInfo", slice(&account, None)).await;
    stage.step_by(4).await;
    let slot = stage.cluster.slot(Commitment::Finalized);
    let whole = json!([account, {"encoding": "base64", "minContextSlot": slot}]);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "getAccountInfo", "params": whole}).to_string();
    let answer: Value = serde_json::from_slice(&stage.cluster.node(0).answer(body.as_bytes())).unwrap();
    let mut large = answer["result"].clone();
    large["value"]["space"] = json!(100_000);
    let nodes = stage.cluster.nodes();
    for node in nodes {
        node.fault_on("getAccountInfo", Fault::Result(large.clone()), None);
    }
    stage.call("getAccountInfo", whole).await;
    for node in nodes {
        node.clear_faults();
    }
    for minimum in [Some(slot), None] {
        assert_eq!(
            slot_of(&stage.call("getAccountInfo", slice(&account, minimum)).await),
            slot,
            "{minimum:?}"
        );
    }
    for node in nodes {
        node.fault(Fault::Status(500));
    }
    stage.cluster.step_by(30);
    for minimum in [Some(slot), None] {
        assert_eq!(
            slot_of(&stage.call("getAccountInfo", slice(&account, minimum)).await),
            slot,
            "in a fault"
        );
    }
}

#[tokio::test]
async fn list_is_assembled_of_stand_ins_during_faults() {
    let stage = Stage::with(short_lived).await;
    let there = stage.cluster.examples();
    let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    for key in [&a, &b] {
        stage.call("getAccountInfo", base64(key)).await;
    }
    stage.step_by(1).await;
    stage.cluster.nodes().iter().for_each(|node| node.fault(Fault::Status(500)));
    let list = stage.call("getMultipleAccounts", json!([[b, a]])).await;
    assert_eq!((list.status, list.cache().ends_with("stale-if-error")), (200, true), "{}", list.cache());
}

#[tokio::test]
async fn fetches_from_before_a_purge_are_not_held() {
    let stage = Stage::of(1, |_| {}).await;
    let params = json!([stage.cluster.examples().block_with_v0, {"transactionDetails": "none"}]);
    let hold = stage.cluster.node(0).hold("getBlock");
    let (late, ()) = tokio::join!(stage.call("getBlock", params.clone()), async {
        hold.arrived(1).await;
        stage.front().cache.purger().clear();
        hold.release();
    });
    assert_eq!((late.status, late.cache()), (200, "fwd=miss"));
    assert_eq!(stage.call("getBlock", params).await.cache(), "fwd=miss; stored");
}

#[tokio::test]
async fn absurd_slots_replace_nothing() {
    let stage = Stage::of(2, |_| {}).await;
    let params = base64(&stage.cluster.examples().wallets[0].to_string());
    let mut lie = stage.call("getAccountInfo", params.clone()).await.result();
    stage.front().cache.purger().clear();
    lie["context"]["slot"] = json!(u64::MAX / 2);
    lie["value"]["lamports"] = json!(1);
    for node in stage.cluster.nodes() {
        node.fault_on("getAccountInfo", Fault::Result(lie.clone()), Some(1));
    }
    assert_eq!(stage.call("getAccountInfo", params.clone()).await.cache(), "fwd=miss");
    stage.cluster.nodes().iter().for_each(|node| node.clear_faults());
    let well = stage.call("getAccountInfo", params.clone()).await;
    assert_eq!(
        (slot_of(&well), well.cache()),
        (stage.cluster.slot(Commitment::Finalized), "fwd=miss; stored")
    );
    assert!(stage.call("getAccountInfo", params).await.cache().starts_with("hit"));
}

#[tokio::test]
async fn malformed_answers_are_retried_at_another_node() {
    let stage = Stage::of(2, |config| config.upstreams[1].tier = 1).await;
    let there = stage.cluster.examples();
    let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    let context = json!({"slot": stage.cluster.slot(Commitment::Finalized)});
    for value in [json!([]), json!([null, {"lamports": 1}]), json!([null, null, null])] {
        stage.front().cache.purger().clear();
        let lie = Fault::Result(json!({"context": context, "value": value}));
        stage.cluster.node(0).fault_on("getMultipleAccounts", lie, Some(1));
        let reply = stage.call("getMultipleAccounts", json!([[a, b]])).await;
        assert_eq!(reply.result()["value"].as_array().map(Vec::len), Some(2), "{value}");
        assert!(reply.result()["value"].as_array().unwrap().iter().all(|value| value["owner"].is_string()));
    }
    assert_eq!(stage.cluster.node(1).calls("getMultipleAccounts"), 3);
}

#[tokio::test]
async fn too_large_accounts_are_fetched_as_slices() {
    let stage = Stage::of(1, |config| {
        short_lived(config);
        // The answer with the whole token account exceeds this, and one with a slice does not.
        config.pool.max_response = 460;
    })
    .await;
    let token = stage.cluster.examples().token_accounts[0].to_string();
    for call in 0..4 {
        let reply = stage.call("getAccountInfo", slice(&token, None)).await;
        assert_eq!(reply.status, 200, "call {call}: {}", reply.text);
        stage.step_by(1).await;
    }
    assert!(stage.upstream_calls() <= 5, "{} calls: it was tried once", stage.upstream_calls());
}

#[tokio::test]
async fn held_processed_slots_order_the_node_choice() {
    let stage = Stage::of(2, |config| {
        config.upstreams[1].tier = 1;
        config.cache.max_lag_slots = PerCommitment::uniform(12);
        config.cache.ttl.account = PerCommitment::uniform(Duration::ZERO);
    })
    .await;
    let params = json!([stage.cluster.examples().wallets[0].to_string(), {"encoding": "base64", "commitment": "processed"}]);
    let first = stage.call("getAccountInfo", params.clone()).await;
    stage.cluster.node(0).set_lag(5);
    let lags = || stage.front().frontier.lag(0, Commitment::Processed) == Some(5);
    stage.until("the lag is known", lags).await;
    let second = stage.call("getAccountInfo", params).await;
    assert!(slot_of(&second) >= slot_of(&first), "the node at the slot is preferred, whatever its tier");
}

#[tokio::test]
async fn expired_entries_are_counted_once() {
    let stage = Stage::with(short_lived).await;
    let params = base64(&stage.cluster.examples().wallets[0].to_string());
    stage.call("getAccountInfo", params.clone()).await;
    stage.step_by(1).await;
    stage.call("getAccountInfo", params).await;
    let metrics = stage.admin("/metrics").await.text;
    assert!(metrics.contains(r#"slotfront_cache_stale_total{cause="lag"} 1"#), "{metrics}");
    let empty = json!([[], {"encoding": "jsonParsed"}]);
    stage.call("getMultipleAccounts", empty.clone()).await;
    assert!(stage.call("getMultipleAccounts", empty).await.cache().starts_with("hit"));
}

#[tokio::test]
async fn served_lag_is_observed_for_slot_bound_classes() {
    let stage = Stage::of(1, |_| {}).await;
    let lags = || {
        let lags = &stage.front().metrics.cache_served_lag;
        lags.used().map(|(_, lag)| lag.counts().sum::<u64>()).sum::<u64>()
    };
    let wallet = stage.cluster.examples().wallets[0].to_string();
    for (method, params, told) in [
        // Vote accounts have no context. The node's own slot replaces it, and bounds nothing.
        ("getVoteAccounts", json!([]), 0),
        ("getClusterNodes", json!([]), 0),
        ("getAccountInfo", json!([wallet, {"encoding": "base64"}]), 1),
        ("getTokenAccountBalance", json!([stage.cluster.examples().token_accounts[0].to_string()]), 1),
    ] {
        let before = lags();
        stage.call(method, params.clone()).await;
        assert_eq!(lags(), before, "{method}: a miss is not behind");
        assert!(stage.call(method, params).await.cache().contains("hit"), "{method}");
        assert_eq!(lags() - before, told, "{method}");
    }
}

/// Returns the calls that show an account, each with its method.
fn shown_by(account: &str, other: &str) -> Vec<(&'static str, Value)> {
    let slice = json!({"offset": 0, "length": 8});
    vec![
        ("getAccountInfo", json!([account, {"encoding": "base64"}])),
        ("getAccountInfo", json!([account, {"encoding": "jsonParsed"}])),
        ("getAccountInfo", json!([account, {"encoding": "base64", "dataSlice": slice}])),
        ("getTokenAccountBalance", json!([account])),
        ("getMultipleAccounts", json!([[account, other], {"encoding": "base64"}])),
        ("getMultipleAccounts", json!([[other, account], {"encoding": "jsonParsed"}])),
    ]
}

#[tokio::test]
async fn no_form_shows_an_account_behind_another() {
    let stage = Stage::of(1, |_| {}).await;
    let there = stage.cluster.examples();
    let (account, other) = (there.token_accounts[0].to_string(), there.wallets[0].to_string());
    let ways = shown_by(&account, &other);
    for (later, params) in &ways {
        stage.front().cache.purger().clear();
        for (method, params) in &ways {
            stage.call(method, params.clone()).await;
        }
        stage.step_by(2).await;
        // The call past the cache shows the account at the present slot.
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": later, "params": params}).to_string();
        let past = stage.client.post(&stage.url).header("content-type", "application/json");
        let first = stage.send(past.header("cache-control", "no-cache").body(body)).await;
        assert_eq!(first.cache(), "fwd=request; stored");
        for (method, params) in &ways {
            let second = stage.call(method, params.clone()).await;
            assert!(
                slot_of(&second) >= slot_of(&first),
                "{method} {params}: {} after {} by {later}: {}",
                slot_of(&second),
                slot_of(&first),
                second.cache()
            );
        }
    }
}

#[tokio::test]
async fn list_behind_its_accounts_is_assembled_from_them() {
    let stage = Stage::of(1, |_| {}).await;
    let there = stage.cluster.examples();
    let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    let list = || json!([[a, b]]);
    stage.call("getMultipleAccounts", list()).await;
    stage.step_by(2).await;
    let slot = stage.cluster.slot(Commitment::Finalized);
    let newer = |key: &str| json!([key, {"encoding": "base64", "minContextSlot": slot}]);
    stage.call("getAccountInfo", newer(&a)).await;
    let calls = stage.upstream_calls();
    stage.call("getAccountInfo", newer(&b)).await;
    let assembled = stage.call("getMultipleAccounts", list()).await;
    assert_eq!((slot_of(&assembled), stage.upstream_calls()), (slot, calls + 1));
    assert!(assembled.cache().ends_with("detail=derived"), "{}", assembled.cache());
}

#[tokio::test]
async fn list_requires_its_accounts_highest_slot() {
    let stage = Stage::of(2, |config| config.upstreams[1].tier = 1).await;
    let there = stage.cluster.examples();
    let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    // The node that is asked first is behind, but not far enough to be avoided.
    stage.cluster.node(0).set_lag(2);
    let lags = || stage.front().frontier.lag(0, Commitment::Finalized) == Some(2);
    stage.until("the lag is known", lags).await;
    let slot = stage.cluster.slot(Commitment::Finalized);
    let parsed = json!([a, {"encoding": "jsonParsed", "minContextSlot": slot}]);
    assert_eq!(slot_of(&stage.call("getAccountInfo", parsed).await), slot);
    let list = stage.call("getMultipleAccounts", json!([[b, a]])).await;
    assert_eq!((slot_of(&list), list.cache()), (slot, "fwd=miss; stored"));
}

/// A list is fetched from a node that is behind, while another node shows one of its accounts at a higher
/// slot.
#[tokio::test]
async fn list_overtaken_by_an_account_is_fetched_again() {
    let stage = Stage::of(2, |config| config.upstreams[1].tier = 1).await;
    let there = stage.cluster.examples();
    let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    let [laggard, other] = [0, 1].map(|node| stage.cluster.node(node));
    laggard.set_lag(2);
    let lags = || stage.front().frontier.lag(0, Commitment::Finalized) == Some(2);
    stage.until("the lag is known", lags).await;
    let slot = stage.cluster.slot(Commitment::Finalized);
    let hold = laggard.hold("getMultipleAccounts");
    let (list, single) = tokio::join!(stage.call("getMultipleAccounts", json!([[b, a]])), async {
        hold.arrived(1).await;
        let parsed = json!([a, {"encoding": "jsonParsed", "minContextSlot": slot}]);
        let single = stage.call("getAccountInfo", parsed).await;
        hold.release();
        single
    });
    assert_eq!((slot_of(&single), slot_of(&list), list.cache()), (slot, slot, "fwd=miss; stored"));
    let calls = [laggard, other].map(|node| node.calls("getMultipleAccounts"));
    assert_eq!(calls, [1, 1], "the node that has reached the slot is asked, once");
}

#[tokio::test]
async fn unreachable_floor_is_reset_and_counted() {
    let stage = Stage::of(1, short_lived).await;
    let there = stage.cluster.examples();
    let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    let parsed = json!([a, {"encoding": "jsonParsed"}]);
    let first = stage.call("getAccountInfo", parsed.clone()).await;
    let node = stage.cluster.node(0);
    node.set_lag(3);
    let list = stage.call("getMultipleAccounts", json!([[a, b]])).await;
    assert_eq!(list.status, 200, "no error: {}", list.text);
    assert_eq!(slot_of(&list) + 3, slot_of(&first), "the highest there is");
    let metrics = stage.admin("/metrics").await.text;
    assert!(metrics.contains("\nslotfront_cache_floor_resets_total 1\n"), "it is counted");
    // The held entry above the floor is shown, and becomes the floor again.
    let held = stage.call("getAccountInfo", parsed).await;
    assert_eq!(
        (slot_of(&held), held.cache().starts_with("hit")),
        (slot_of(&first), true),
        "{}",
        held.cache()
    );
}

#[tokio::test]
async fn held_entry_stands_in_below_a_floor() {
    let stage = Stage::of(1, short_lived).await;
    let there = stage.cluster.examples();
    let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    let list = json!([[a, b]]);
    let first = stage.call("getMultipleAccounts", list.clone()).await;
    stage.step_by(1).await;
    stage.call("getAccountInfo", json!([a, {"encoding": "jsonParsed"}])).await;
    stage.cluster.node(0).fault(Fault::Status(500));
    let held = stage.call("getMultipleAccounts", list).await;
    assert_eq!((held.status, slot_of(&held)), (200, slot_of(&first)));
    assert!(held.cache().ends_with("stale-if-error"), "{}", held.cache());
}
