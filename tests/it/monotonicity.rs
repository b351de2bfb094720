//! Monotonicity: at confirmed and finalized no answer is older than an earlier answer to the same question,
//! whichever cached entry it was made from. Malformed answers are never cached.

use std::time::Duration;

use serde_json::{Value, json};
use slotfront::config::Config;
use slotfront::methods::{Commitment, PerCommitment};
use slotfront_sim::Fault;
use slotfront_testkit::{TestCall, TestGateway};

/// Makes entries expire with the next slot, and serves no expired entry while a fresh answer is fetched.
fn short_lived(config: &mut Config) {
    config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
    config.cache.max_lag_slots = PerCommitment::uniform(0);
}

/// Returns a gateway over two nodes. The second one is asked only if the first fails, and is `slots` behind.
async fn first_and_laggard(slots: u64) -> TestGateway {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(|config| {
            short_lived(config);
            config.upstreams[1].tier = 1;
        })
        .start()
        .await;
    gateway.cluster.node(1).set_lag(slots);
    let lags = || gateway.lag(1, Commitment::Finalized) > Some(0);
    gateway.until("the lag is known", lags).await;
    gateway
}

/// Returns a call for the first eight bytes of an account. `minimum` is its minContextSlot.
fn slice(gateway: &TestGateway, key: &str, minimum: Option<u64>) -> TestCall {
    gateway.get_account(key).base64().slice(0, 8).with("minContextSlot", minimum)
}

#[tokio::test]
async fn assembled_list_sets_a_floor() {
    let gateway = first_and_laggard(4).await;
    let there = gateway.cluster.examples();
    let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    for key in [&a, &b] {
        gateway.get_account(key).base64().send().await;
    }
    let first = gateway.get_accounts([&a, &b]).send().await;
    assert!(first.is_derived(), "{}", first.cache_status());
    gateway.step_by(1).await;
    gateway.cluster.node(0).fault_on("getMultipleAccounts", Fault::Status(500), None);
    let second = gateway.get_accounts([&a, &b]).send().await;
    assert!(second.slot() >= first.slot(), "{} after {}", second.slot(), first.slot());
}

#[tokio::test]
async fn stored_list_does_not_hide_newer_accounts() {
    let gateway = TestGateway::start().await;
    let there = gateway.cluster.examples();
    let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    gateway.get_accounts([&a, &b]).send().await;
    gateway.step_by(4).await;
    let slot = gateway.cluster.slot(Commitment::Finalized);
    gateway.get_accounts([&b, &a]).min_context_slot(slot).send().await;
    let first = gateway.get_accounts([&a, &b]).min_context_slot(slot).send().await;
    let second = gateway.get_accounts([&a, &b]).send().await;
    assert_eq!((first.slot(), second.slot()), (slot, slot));
}

#[tokio::test]
async fn unheld_answers_do_not_go_back() {
    let gateway = TestGateway::builder().config(short_lived).start().await;
    let message = gateway.cluster.examples().fee_message_processed;
    gateway.step_by(3).await;
    let call = gateway.get_fee(&message).confirmed();
    let first = call.send().await;
    assert_eq!(first.value(), 5000);
    gateway.step_by(1).await;
    gateway.cluster.set_lag(50);
    // The nodes are now behind the slot of the message's blockhash, so each of them answers null. This null is
    // never cached.
    let second = call.send().await;
    assert_eq!((second.result(), second.cache_status().ends_with("stale-if-error")), (first.result(), true));
}

#[tokio::test]
async fn higher_slot_of_two_keys_wins() {
    let gateway = TestGateway::start().await;
    let account = gateway.cluster.examples().mints[0].to_string();
    // The answer for the slice has a cache entry of its own. The whole account, fetched at a later slot, shows a
    // large size. Slices of a large account are still fetched as slices.
    slice(&gateway, &account, None).send().await;
    gateway.step_by(4).await;
    let slot = gateway.cluster.slot(Commitment::Finalized);
    let whole = gateway.get_account(&account).base64().min_context_slot(slot);
    let mut large = whole.result_of(gateway.cluster.node(0));
    large["value"]["space"] = json!(100_000);
    gateway.cluster.fault_everywhere("getAccountInfo", &Fault::Result(large));
    whole.send().await;
    gateway.cluster.clear_faults();
    for minimum in [Some(slot), None] {
        assert_eq!(slice(&gateway, &account, minimum).send().await.slot(), slot, "{minimum:?}");
    }
    gateway.cluster.nodes().iter().for_each(|node| node.fault(Fault::Status(500)));
    gateway.cluster.step_by(30);
    for minimum in [Some(slot), None] {
        assert_eq!(slice(&gateway, &account, minimum).send().await.slot(), slot, "in a fault");
    }
}

#[tokio::test]
async fn list_is_assembled_of_stand_ins_during_faults() {
    let gateway = TestGateway::builder().config(short_lived).start().await;
    let there = gateway.cluster.examples();
    let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    for key in [&a, &b] {
        gateway.get_account(key).base64().send().await;
    }
    gateway.step_by(1).await;
    gateway.cluster.nodes().iter().for_each(|node| node.fault(Fault::Status(500)));
    let list = gateway.get_accounts([&b, &a]).send().await;
    assert_eq!(
        (list.status, list.cache_status().ends_with("stale-if-error")),
        (200, true),
        "{}",
        list.cache_status()
    );
}

#[tokio::test]
async fn fetches_from_before_a_purge_are_not_stored() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let call = gateway.get_block(gateway.cluster.examples().block_with_v0).details("none");
    let hold = gateway.cluster.node(0).hold("getBlock");
    let (late, ()) = tokio::join!(call.send(), async {
        hold.arrived(1).await;
        gateway.front().cache.purger().clear();
        hold.release();
    });
    assert_eq!((late.status, late.cache_status()), (200, "fwd=miss"));
    assert_eq!(call.send().await.cache_status(), "fwd=miss; stored");
}

#[tokio::test]
async fn absurd_slots_replace_nothing() {
    let gateway = TestGateway::builder().nodes(2).config(|config| config.upstreams[1].tier = 1).start().await;
    let call = gateway.get_account(gateway.cluster.examples().wallets[0]).base64();
    let mut lie = call.send().await.result();
    gateway.front().cache.purger().clear();
    lie["context"]["slot"] = json!(u64::MAX / 2);
    lie["value"]["lamports"] = json!(1);
    gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Result(lie.clone()), Some(1));
    // Node 1 fails, so no second node can confirm the slot of the answer. The caller gets the answer, but the
    // gateway does not cache it.
    gateway.cluster.node(1).fault_on("getAccountInfo", Fault::Status(500), Some(1));
    let doubtful = call.send().await;
    assert_eq!((doubtful.result(), doubtful.cache_status()), (lie, "fwd=miss"));
    let well = call.send().await;
    assert_eq!(
        (well.slot(), well.cache_status()),
        (gateway.cluster.slot(Commitment::Finalized), "fwd=miss; stored")
    );
    assert!(call.send().await.is_hit());
}

#[tokio::test]
async fn malformed_answers_are_retried_at_another_node() {
    let gateway = TestGateway::builder().nodes(2).config(|config| config.upstreams[1].tier = 1).start().await;
    let there = gateway.cluster.examples();
    let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    let context = json!({"slot": gateway.cluster.slot(Commitment::Finalized)});
    for value in [json!([]), json!([null, {"lamports": 1}]), json!([null, null, null])] {
        gateway.front().cache.purger().clear();
        let lie = Fault::Result(json!({"context": context, "value": value}));
        gateway.cluster.node(0).fault_on("getMultipleAccounts", lie, Some(1));
        let reply = gateway.get_accounts([&a, &b]).send().await;
        assert_eq!(reply.value().as_array().map(Vec::len), Some(2), "{value}");
        assert!(reply.value().as_array().unwrap().iter().all(|value| value["owner"].is_string()));
    }
    assert_eq!(gateway.cluster.node(1).calls("getMultipleAccounts"), 3);
}

#[tokio::test]
async fn too_large_accounts_are_fetched_as_slices() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            short_lived(config);
            // The answer with the whole token account exceeds this, and one with a slice does not.
            config.pool.max_response = 400;
        })
        .start()
        .await;
    let token = gateway.cluster.examples().token_accounts[0].to_string();
    for call in 0..4 {
        let reply = slice(&gateway, &token, None).send().await;
        assert_eq!(reply.status, 200, "call {call}: {}", reply.text);
        gateway.step_by(1).await;
    }
    assert_eq!(gateway.upstream_calls(), 5, "the whole account is tried once");
}

#[tokio::test]
async fn stored_processed_slots_order_the_node_choice() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(|config| {
            config.upstreams[1].tier = 1;
            config.cache.max_lag_slots = PerCommitment::uniform(12);
            config.cache.ttl.account = PerCommitment::uniform(Duration::ZERO);
        })
        .start()
        .await;
    let call = gateway.get_account(gateway.cluster.examples().wallets[0]).base64().processed();
    let first = call.send().await;
    gateway.cluster.node(0).set_lag(5);
    let lags = || gateway.lag(0, Commitment::Processed) == Some(5);
    gateway.until("the lag is known", lags).await;
    let second = call.send().await;
    assert!(second.slot() >= first.slot(), "the node at the slot is preferred, whatever its tier");
}

#[tokio::test]
async fn expired_entries_are_counted_once() {
    let gateway = TestGateway::builder().config(short_lived).start().await;
    let call = gateway.get_account(gateway.cluster.examples().wallets[0]).base64();
    call.send().await;
    gateway.step_by(1).await;
    call.send().await;
    assert_eq!(gateway.metric(r#"slotfront_cache_stale_total{cause="lag"}"#), 1);
    let empty = gateway.call("getMultipleAccounts", json!([[]])).json_parsed();
    empty.send().await;
    assert!(empty.send().await.is_hit());
}

#[tokio::test]
async fn served_lag_is_observed_for_slot_bound_classes() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let lags = || {
        let lags = &gateway.front().metrics.cache_served_lag;
        lags.used().map(|(_, lag)| lag.counts().sum::<u64>()).sum::<u64>()
    };
    let wallet = gateway.cluster.examples().wallets[0].to_string();
    for (method, params, told) in [
        // Answers about vote accounts have no context slot. The gateway takes the node's newest known slot
        // instead, but this slot does not limit the answer's age.
        ("getVoteAccounts", json!([]), 0),
        ("getClusterNodes", json!([]), 0),
        ("getAccountInfo", json!([wallet, {"encoding": "base64"}]), 1),
        ("getTokenAccountBalance", json!([gateway.cluster.examples().token_accounts[0].to_string()]), 1),
    ] {
        let before = lags();
        gateway.call(method, params.clone()).send().await;
        assert_eq!(lags(), before, "{method}: a miss is not behind");
        assert!(gateway.call(method, params).send().await.cache_status().contains("hit"), "{method}");
        assert_eq!(lags() - before, told, "{method}");
    }
}

/// Returns the methods and params of calls whose answers show an account.
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
    let gateway = TestGateway::builder().nodes(1).start().await;
    let there = gateway.cluster.examples();
    let (account, other) = (there.token_accounts[0].to_string(), there.wallets[0].to_string());
    let ways = shown_by(&account, &other);
    for (later, params) in &ways {
        gateway.front().cache.purger().clear();
        for (method, params) in &ways {
            gateway.call(method, params.clone()).send().await;
        }
        gateway.step_by(2).await;
        // The call that bypasses the cache shows the account at the newest slot.
        let first = gateway.call(later, params.clone()).no_cache().send().await;
        assert_eq!(first.cache_status(), "fwd=request; stored");
        for (method, params) in &ways {
            let second = gateway.call(method, params.clone()).send().await;
            assert!(
                second.slot() >= first.slot(),
                "{method} {params}: {} after {} by {later}: {}",
                second.slot(),
                first.slot(),
                second.cache_status()
            );
        }
    }
}

#[tokio::test]
async fn list_behind_its_accounts_is_assembled_from_them() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let there = gateway.cluster.examples();
    let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    let list = gateway.get_accounts([&a, &b]);
    list.send().await;
    gateway.step_by(2).await;
    let slot = gateway.cluster.slot(Commitment::Finalized);
    let newer = |key| gateway.get_account(key).base64().min_context_slot(slot).send();
    newer(&a).await;
    let calls = gateway.upstream_calls();
    newer(&b).await;
    let assembled = list.send().await;
    assert_eq!((assembled.slot(), gateway.upstream_calls()), (slot, calls + 1));
    assert!(assembled.is_derived(), "{}", assembled.cache_status());
}

#[tokio::test]
async fn list_requires_its_accounts_highest_slot() {
    let gateway = TestGateway::builder().nodes(2).config(|config| config.upstreams[1].tier = 1).start().await;
    let there = gateway.cluster.examples();
    let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    // The node that is asked first is behind, but not far enough to be avoided.
    gateway.cluster.node(0).set_lag(2);
    let lags = || gateway.lag(0, Commitment::Finalized) == Some(2);
    gateway.until("the lag is known", lags).await;
    let slot = gateway.cluster.slot(Commitment::Finalized);
    let call = gateway.get_account(&a).json_parsed().min_context_slot(slot);
    assert_eq!(call.send().await.slot(), slot);
    let list = gateway.get_accounts([&b, &a]).send().await;
    assert_eq!((list.slot(), list.cache_status()), (slot, "fwd=miss; stored"));
}

/// Checks a list from a node that is behind, while another node shows an account of this list at a higher slot.
#[tokio::test]
async fn list_overtaken_by_an_account_is_fetched_again() {
    let gateway = TestGateway::builder().nodes(2).config(|config| config.upstreams[1].tier = 1).start().await;
    let there = gateway.cluster.examples();
    let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    let [laggard, other] = [0, 1].map(|node| gateway.cluster.node(node));
    laggard.set_lag(2);
    let lags = || gateway.lag(0, Commitment::Finalized) == Some(2);
    gateway.until("the lag is known", lags).await;
    let slot = gateway.cluster.slot(Commitment::Finalized);
    let hold = laggard.hold("getMultipleAccounts");
    let (list, single) = tokio::join!(gateway.get_accounts([&b, &a]).send(), async {
        hold.arrived(1).await;
        let call = gateway.get_account(&a).json_parsed().min_context_slot(slot);
        let single = call.send().await;
        hold.release();
        single
    });
    assert_eq!((single.slot(), list.slot(), list.cache_status()), (slot, slot, "fwd=miss; stored"));
    let calls = [laggard, other].map(|node| node.calls("getMultipleAccounts"));
    assert_eq!(calls, [1, 1], "the node that has reached the slot is asked once");
}

#[tokio::test]
async fn unreachable_floor_is_reset_and_counted() {
    let gateway = TestGateway::builder().nodes(1).config(short_lived).start().await;
    let there = gateway.cluster.examples();
    let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    let call = gateway.get_account(&a).json_parsed();
    let first = call.send().await;
    let node = gateway.cluster.node(0);
    node.set_lag(3);
    let list = gateway.get_accounts([&a, &b]).send().await;
    assert_eq!(list.status, 200, "the list is no error: {}", list.text);
    assert_eq!(list.slot() + 3, first.slot(), "the node's own slot is the highest");
    assert_eq!(gateway.metric("slotfront_cache_floor_resets_total"), 1, "the reset is counted");
    // The cached answer is above the lowered floor. It is served, and its slot becomes the floor again.
    let held = call.send().await;
    assert_eq!((held.slot(), held.is_hit()), (first.slot(), true), "{}", held.cache_status());
}

#[tokio::test]
async fn stored_entry_stands_in_below_a_floor() {
    let gateway = TestGateway::builder().nodes(1).config(short_lived).start().await;
    let there = gateway.cluster.examples();
    let [a, b] = [there.wallets[0], there.wallets[1]].map(|key| key.to_string());
    let call = gateway.get_accounts([&a, &b]);
    let first = call.send().await;
    gateway.step_by(1).await;
    gateway.get_account(&a).json_parsed().send().await;
    gateway.cluster.node(0).fault(Fault::Status(500));
    let held = call.send().await;
    assert_eq!((held.status, held.slot()), (200, first.slot()));
    assert!(held.cache_status().ends_with("stale-if-error"), "{}", held.cache_status());
}
