//! The six methods whose answers never go back, the signatures that are watched, and sending.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use serde_json::{Value, json};
use slotfront::config::{Config, FollowMode};
use slotfront::methods::{AnyMethod, Commitment, Signature, Slot, TipMethod};
use slotfront::tip::Tip;
use slotfront_sim::{Cluster, Fault, Settings};
use slotfront_testkit::{LoopbackTap, PATIENCE, Reply, TestCluster, TestGateway};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

pub(crate) const SIGNATURE: &str =
    "5VERv8NMvzbJMEkV8xnrLkEaWRtSz9CosKDYjCJjBRnbJLgp8uirBgmQpjKhoR4tjF3ZpRzrFmBV6UjKdiSZkQUW";

fn signature() -> Signature {
    Signature::parse(SIGNATURE).unwrap()
}

fn tip(gateway: &TestGateway) -> &Arc<Tip> {
    &gateway.front().tip
}

pub(crate) fn at(commitment: Commitment) -> Value {
    json!({ "commitment": commitment.as_str() })
}

/// Returns the slot of an answer: the number itself, or that in its context or its bank.
fn slot_of(reply: &Reply) -> Slot {
    let result = reply.result();
    let slot = result.as_u64().or_else(|| result["context"]["slot"].as_u64());
    slot.or_else(|| result["absoluteSlot"].as_u64()).unwrap_or_else(|| panic!("no slot in {}", reply.text))
}

/// Returns a status for every signature of a call with one.
pub(crate) fn status(context: Slot, status: &Value) -> Fault {
    Fault::Result(json!({ "context": { "slot": context }, "value": [status] }))
}

pub(crate) fn landed(slot: Slot, commitment: Commitment) -> Value {
    json!({ "slot": slot, "confirmations": null, "err": null, "status": { "Ok": null },
        "confirmationStatus": commitment.as_str() })
}

#[tokio::test]
async fn reads_of_one_commitment_agree_with_a_node() {
    let gateway = TestGateway::start().await;
    for commitment in Commitment::ALL {
        let node = gateway.cluster.node(0);
        let config = json!([at(commitment)]);
        for method in ["getSlot", "getBlockHeight", "getEpochInfo", "getLatestBlockhash"] {
            let call = gateway.call(method, config.clone());
            let reply = call.send().await;
            assert_eq!(reply.result(), call.result_of(node), "{method} {commitment}");
        }
        assert_eq!(tip(&gateway).slot(commitment), gateway.cluster.slot(commitment));
        let hash = gateway.call("getLatestBlockhash", config).send().await.value()["blockhash"].clone();
        for (hash, expected) in [(hash, true), (json!("11111111111111111111111111111111"), false)] {
            let reply = gateway.call("isBlockhashValid", json!([hash, at(commitment)])).send().await;
            assert_eq!(reply.value(), expected, "{commitment}");
        }
    }
}

#[tokio::test]
async fn a_thousand_callers_cost_one_call() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let node = gateway.cluster.node(0);
    for (method, upstream) in [("getSlot", "getEpochInfo"), ("getLatestBlockhash", "getLatestBlockhash")] {
        let before = node.calls(upstream);
        let hold = node.hold(upstream);
        let call = gateway.call(method, json!([at(Commitment::Confirmed)]));
        let batch = gateway.batch((0..100).map(|_| call.clone()));
        let callers = TaskTracker::new().spawn(join_all((0..10).map(|_| batch.clone().send())));
        gateway.until_in_flight(10).await;
        drop(hold);
        for reply in callers.await.unwrap() {
            let answers = reply.json();
            let first = answers[0]["result"].clone();
            assert!(answers.as_array().unwrap().iter().all(|answer| answer["result"] == first), "{answers}");
            assert!(!first.is_null());
        }
        // Who came a slot later on a busy machine has asked once more.
        let calls = node.calls(upstream) - before;
        assert!((1..=2).contains(&calls), "{method}: {calls}");
    }
}

#[tokio::test]
async fn no_answer_goes_back() {
    let gateway = TestGateway::start().await;
    let nodes = gateway.cluster.nodes();
    nodes[1].set_lag(100);
    let mut highest = [0; 3];
    let mut answered = 0;
    for step in 0..60 {
        gateway.cluster.step_by(1);
        // One of the newest nodes goes back by 200 slots, the other one hangs, and both come back.
        let is_back = (20..25).contains(&step);
        nodes[0].set_lag(if is_back { 200 } else { 0 });
        let methods = if is_back { &["getEpochInfo", "getLatestBlockhash"][..] } else { &[] };
        let _holds: Vec<_> = methods.iter().map(|method| nodes[2].hold(method)).collect();
        for commitment in Commitment::ALL {
            for method in ["getSlot", "getLatestBlockhash", "getEpochInfo"] {
                let call = gateway.call(method, json!([at(commitment)])).send();
                // If no node is there, nothing is answered.
                let reply = tokio::select! {
                    reply = call => reply,
                    () = gateway.round_trips(), if is_back => continue,
                };
                if reply.json()["error"].is_null() {
                    let slot = slot_of(&reply);
                    assert!(slot >= highest[commitment.index()], "{method} {commitment} step {step}: {slot}");
                    highest[commitment.index()] = slot;
                    answered += 1;
                }
            }
        }
    }
    assert!(answered > 100, "{answered}");
}

#[tokio::test]
async fn a_height_waits_for_the_signatures_that_are_watched() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let node = gateway.cluster.node(0);
    let newest = gateway.cluster.slot(Commitment::Processed);
    let confirmed = gateway.cluster.slot(Commitment::Confirmed);
    let hold = node.hold("getSignatureStatuses");
    node.fault_on("getSignatureStatuses", status(newest, &landed(confirmed, Commitment::Confirmed)), None);
    let mut socket = gateway.socket().await;
    socket.subscribe("signatureSubscribe", json!([SIGNATURE, at(Commitment::Confirmed)])).await;
    let call = gateway.call("getBlockHeight", json!([at(Commitment::Confirmed)]));
    let height = TaskTracker::new().spawn(call.send());
    hold.arrived(1).await;
    gateway.until("the height was asked for", || node.calls("getEpochInfo") > 0).await;
    // Slots and blockhashes prove no expiry.
    for method in ["getSlot", "getLatestBlockhash"] {
        let reply = gateway.call(method, json!([at(Commitment::Confirmed)])).send().await;
        assert_eq!(reply.status, 200, "{method}: {}", reply.text);
    }
    assert!(!height.is_finished(), "the height was shown first");
    drop(hold);
    let landed = socket.notification().await;
    assert_eq!(landed["result"], json!({ "context": { "slot": confirmed }, "value": { "err": null } }));
    assert_eq!(height.await.unwrap().status, 200);
}

#[tokio::test]
async fn null_ends_no_watch_and_shows_the_height() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let node = gateway.cluster.node(0);
    let newest = || gateway.cluster.slot(Commitment::Processed);
    let asked = || node.calls("getSignatureStatuses");
    // Each new slot is a reason to ask, and the node answers as of that slot.
    let next_slot = async |told: &Value| {
        gateway.step_by(1).await;
        node.clear_faults();
        node.fault_on("getSignatureStatuses", status(newest(), told), None);
        gateway.round_trips().await;
    };
    node.fault_on("getSignatureStatuses", status(newest(), &Value::Null), None);
    let mut watch = tip(&gateway).watch(signature(), Commitment::Finalized, None);
    let call = gateway.call("getBlockHeight", json!([at(Commitment::Finalized)]));
    // The height waits for the status, so this one is known.
    assert_eq!(call.send().await.status, 200);
    assert_eq!(watch.landed().now_or_never(), None);
    let landed_at = gateway.cluster.slot(Commitment::Finalized);
    let confirmed = landed(landed_at, Commitment::Confirmed);
    next_slot(&confirmed).await;
    let before = asked();
    // There is one question at a time for the newest ones, and one for the history, so that one answer is known.
    timeout(PATIENCE, async {
        while asked() <= before + 2 {
            next_slot(&confirmed).await;
        }
    })
    .await
    .expect("it is asked for again");
    assert_eq!(watch.landed().now_or_never(), None, "it is confirmed, but not final");
    let failed = json!({ "slot": landed_at, "err": { "InstructionError": [0, "Custom"] }, "confirmationStatus": "finalized" });
    let slots = async {
        loop {
            next_slot(&failed).await;
        }
    };
    let landed = tokio::select! {
        landed = timeout(PATIENCE, watch.landed()) => landed.unwrap().unwrap(),
        () = slots => unreachable!("slots never end"),
    };
    assert_eq!(serde_json::from_slice::<Value>(&landed.err).unwrap(), failed["err"]);
    drop(watch);
    let before = asked();
    for _ in 0..5 {
        next_slot(&failed).await;
    }
    assert!(asked() <= before + 1, "nobody watches any more");
}

#[tokio::test]
async fn questions_for_statuses_are_merged() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let node = gateway.cluster.node(0);
    let newest = gateway.cluster.slot(Commitment::Processed);
    node.fault_on("getSignatureStatuses", status(newest, &landed(newest - 1, Commitment::Processed)), None);
    let hold = node.hold("getSignatureStatuses");
    let call = gateway.call("getSignatureStatuses", json!([[SIGNATURE]]));
    let first = TaskTracker::new().spawn(call.send());
    gateway.until("the first call is at the node", || node.calls("getSignatureStatuses") == 1).await;
    let batch = gateway.batch((0..100).map(|_| call.clone()));
    let others = TaskTracker::new().spawn(join_all((0..3).map(|_| batch.clone().send())));
    gateway.until_in_flight(4).await;
    drop(hold);
    for reply in others.await.unwrap() {
        let answers = reply.json();
        let is_found = |answer: &Value| answer["result"]["value"][0]["slot"] == newest - 1;
        assert!(answers.as_array().unwrap().iter().all(is_found), "{answers}");
    }
    // The first one may have waited for longer than a read of the tip does.
    first.await.unwrap();
    let before = node.calls("getSignatureStatuses");
    assert!((2..=6).contains(&before), "{before} calls for 301 questions");
    // History is asked for apart.
    let history = json!([[SIGNATURE], { "searchTransactionHistory": true }]);
    assert_eq!(gateway.call("getSignatureStatuses", history).send().await.status, 200);
    assert_eq!(node.calls("getSignatureStatuses"), before + 1);
    assert_eq!(gateway.call("getSignatureStatuses", json!([["x"]])).send().await.code(), -32602);
}

#[tokio::test]
async fn many_signatures_of_one_caller_make_nobody_wait_for_many_calls() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let hold = gateway.cluster.node(0).hold("getSignatureStatuses");
    let ask = |signatures: Vec<String>| {
        TaskTracker::new().spawn(gateway.call("getSignatureStatuses", json!([signatures])).send())
    };
    let first = ask(vec![SIGNATURE.to_owned()]);
    hold.arrived(1).await;
    let many =
        |of: u8| (0..=255).map(move |n| Signature([[of, n]; 32].concat().try_into().unwrap()).to_string());
    let others = [1, 2].map(|of| ask(many(of).collect()));
    // Whichever came first has no room for the other one.
    hold.arrived(2).await;
    hold.release();
    for reply in join_all(others.into_iter().chain([first])).await {
        assert!(reply.unwrap().value()[0].is_null());
    }
}

#[tokio::test]
async fn statuses_behind_the_tip_are_asked_elsewhere() {
    let gateway = TestGateway::builder().nodes(2).in_tiers().start().await;
    let newest = gateway.cluster.slot(Commitment::Processed);
    let slot = slot_of(&gateway.call("getSlot", json!([at(Commitment::Confirmed)])).send().await);
    // The first node has the block, but does not know yet that it is confirmed.
    let [behind, current] =
        [Commitment::Processed, Commitment::Confirmed].map(|c| status(newest, &landed(slot, c)));
    gateway.cluster.node(0).fault_on("getSignatureStatuses", behind, None);
    gateway.cluster.node(1).fault_on("getSignatureStatuses", current, None);
    let reply = gateway.call("getSignatureStatuses", json!([[SIGNATURE]])).send().await;
    assert_eq!(reply.value()[0]["confirmationStatus"], "confirmed");
}

fn follow(config: &mut Config) {
    config.follow.mode = FollowMode::On;
    config.follow.poll = Duration::from_millis(20);
}

#[tokio::test]
async fn the_followed_chain_has_the_block_of_every_slot_that_is_shown() {
    let gateway = TestGateway::builder().config(follow).start().await;
    let wallet = gateway.cluster.examples().wallets[0];
    gateway.get_account(wallet).confirmed().send().await;
    let front = gateway.front();
    let heads = front.followed.heads();
    gateway.until("a chain is followed", || heads.borrow().is_some()).await;
    for _ in 0..40 {
        gateway.step_by(1).await;
    }
    gateway
        .until("a block of the chain is final", || {
            heads.borrow().as_ref().is_some_and(|heads| heads.at(Commitment::Finalized).is_some())
        })
        .await;
    for commitment in [Commitment::Confirmed, Commitment::Finalized] {
        let config = json!([at(commitment)]);
        // The window of a hash is learned from a node by the first call.
        let learned = gateway.call("getLatestBlockhash", config.clone()).send().await;
        let slot = slot_of(&gateway.call("getSlot", config.clone()).send().await);
        let block = gateway.get_block(slot).commitment(commitment).version_0().send().await;
        let height = gateway.call("getBlockHeight", config.clone()).send().await;
        assert_eq!(block.result()["blockHeight"], height.result(), "{commitment}");
        let latest = gateway.call("getLatestBlockhash", config.clone()).send().await;
        assert_eq!(latest.value(), learned.value());
        assert_eq!(latest.value()["blockhash"], block.result()["blockhash"]);
        let info = gateway.call("getEpochInfo", config.clone()).send().await;
        assert_eq!(
            (info.result()["absoluteSlot"].as_u64(), &info.result()["blockHeight"]),
            (Some(slot), &height.result())
        );
        let hash = json!([latest.value()["blockhash"], at(commitment)]);
        let before: u64 = gateway.cluster.nodes().iter().map(|node| node.calls("isBlockhashValid")).sum();
        assert_eq!(gateway.call("isBlockhashValid", hash).send().await.value(), true);
        let other = json!(["11111111111111111111111111111111", at(commitment)]);
        assert_eq!(gateway.call("isBlockhashValid", other).send().await.value(), false);
        let after: u64 = gateway.cluster.nodes().iter().map(|node| node.calls("isBlockhashValid")).sum();
        assert!(after - before <= 2, "a hash of another chain is asked of a node");
    }
}

#[tokio::test]
async fn no_answer_makes_blockhashes_valid_for_ever() {
    let gateway = TestGateway::builder().nodes(1).config(follow).start().await;
    let heads = gateway.front().followed.heads();
    let newest = || gateway.cluster.slot(Commitment::Confirmed);
    let head = || heads.borrow().as_ref()?.at(Commitment::Confirmed).map(|head| head.slot);
    gateway.get_account(gateway.cluster.examples().wallets[0]).confirmed().send().await;
    gateway.until("the newest block is followed", || head() == Some(newest())).await;
    let config = json!([at(Commitment::Confirmed)]);
    let block = gateway.get_block(newest()).confirmed().version_0().send().await.result();
    let value = json!({ "blockhash": block["blockhash"], "lastValidBlockHeight": u64::MAX });
    let wrong = json!({ "context": { "slot": newest() }, "value": value });
    gateway.cluster.fault_everywhere("getLatestBlockhash", &Fault::Result(wrong));
    gateway.call("getLatestBlockhash", config.clone()).send().await;
    gateway.cluster.clear_faults();
    gateway.step_by(3).await;
    gateway.until("the newest block is followed", || head() == Some(newest())).await;
    // From here on nobody is shown the wrong answer itself, which is of an earlier slot.
    let height = gateway.call("getBlockHeight", config.clone()).send().await.result().as_u64().unwrap();
    let latest = gateway.call("getLatestBlockhash", config).send().await;
    assert_eq!(latest.value()["lastValidBlockHeight"], height + 150, "{}", latest.text);
}

#[tokio::test]
async fn epochs_may_begin() {
    let settings =
        Settings { slots_per_epoch: 32, first_slot: 320, history_slots: 50, ..TestCluster::settings(2) };
    let cluster = TestCluster::serve(Cluster::new(settings)).await;
    let gateway = TestGateway::builder().cluster(&cluster).config(follow).start().await;
    let wallet = gateway.cluster.examples().wallets[0];
    gateway.get_account(wallet).confirmed().send().await;
    let mut last = (0, 0);
    for _ in 0..70 {
        gateway.step_by(1).await;
        let info = gateway.call("getEpochInfo", json!([at(Commitment::Confirmed)])).send().await;
        let number = |name: &str| info.result()[name].as_u64().unwrap();
        let slot = number("absoluteSlot");
        assert_eq!((number("epoch"), number("slotIndex")), (slot / 32, slot % 32));
        assert!((slot, number("blockHeight")) >= last);
        last = (slot, number("blockHeight"));
    }
}

#[tokio::test]
async fn callers_minimum_is_a_nodes_refusal() {
    let gateway = TestGateway::builder().nodes(2).start().await;
    let above = gateway.cluster.slot(Commitment::Processed) + 1_000;
    for method in ["getSlot", "getBlockHeight", "getEpochInfo", "getLatestBlockhash"] {
        let reply = gateway.call(method, json!([{ "minContextSlot": above }])).send().await;
        assert_eq!((reply.status, reply.code()), (200, -32016), "{method}");
        assert!(reply.error()["data"]["contextSlot"].is_u64());
        assert_eq!(gateway.call(method, json!([{ "minContextSlot": 1 }])).send().await.status, 200);
    }
}

#[tokio::test]
async fn plans_and_metrics_know_the_six() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.units.by_method[AnyMethod::Tip(TipMethod::GetSlot).index()] = 7;
            let plan = config.plans.get_mut("dev").unwrap();
            plan.methods = Some(vec![AnyMethod::Tip(TipMethod::GetSlot)]);
            plan.commitments = Some(vec![Commitment::Confirmed]);
            plan.daily_units = Some(100);
        })
        .start()
        .await;
    let slot = gateway.call("getSlot", json!([at(Commitment::Confirmed)]));
    let reply = slot.send().await;
    assert_eq!((reply.status, reply.cache_status()), (200, "fwd=miss; stored"));
    assert!(reply.header("ratelimit").contains("\"day\";r=93"), "{:?}", reply.headers);
    assert_eq!(gateway.call("getSlot", json!([])).send().await.code(), -32091);
    assert_eq!(gateway.call("getBlockHeight", json!([])).send().await.code(), -32091);
    let metrics = gateway.admin("/metrics").await.text;
    for line in [
        r#"slotfront_requests_total{commitment="confirmed",method="getSlot",outcome="miss"} 1"#,
        r#"slotfront_requests_total{commitment="finalized",method="getSlot",outcome="denied"} 1"#,
        r#"slotfront_request_duration_seconds_count{method="getSlot",outcome="miss"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    let batch = gateway.batch([slot.clone(), slot]).send().await.json();
    assert_eq!(batch[0]["result"], batch[1]["result"]);
}

/// Returns a transaction that no simulated node reads, with the signature that it is known by.
fn transaction(length: usize) -> (String, String) {
    let message = [&[1, 0, 0, 0][..], &[8; 32], &[0]].concat();
    let mut wire = [&[1][..], &signature().0, &message].concat();
    wire.resize(length.max(wire.len()), 0);
    (bs58::encode(wire).into_string(), SIGNATURE.to_owned())
}

/// Returns a transaction with this recent blockhash.
fn transaction_of(blockhash: &str) -> String {
    let hash = bs58::decode(blockhash).into_vec().unwrap();
    let message = [&[1, 0, 0, 0][..], &hash, &[0]].concat();
    bs58::encode([&[1][..], &signature().0, &message].concat()).into_string()
}

fn sending(config: &mut Config) {
    config.send.enabled = true;
    let plan = config.plans.get_mut("dev").unwrap();
    (plan.send, plan.explain) = (true, true);
}

#[tokio::test]
async fn transactions_are_sent_where_it_is_allowed() {
    for (enabled, allowed) in [(false, true), (true, false)] {
        let gateway = TestGateway::builder()
            .nodes(1)
            .config(|config| {
                config.send.enabled = enabled;
                config.plans.get_mut("dev").unwrap().send = allowed;
            })
            .start()
            .await;
        let (text, _) = transaction(0);
        let reply = gateway.call("sendTransaction", json!([text])).send().await;
        assert_eq!(reply.code(), if enabled { -32091 } else { -32601 }, "{}", reply.text);
        assert_eq!(gateway.cluster.node(0).calls("sendTransaction"), 0);
    }
    let gateway =
        TestGateway::builder().nodes(3).config(sending).config(|config| config.send.fanout = 1).start().await;
    gateway.cluster.fault_everywhere("sendTransaction", &Fault::Result(json!(SIGNATURE)));
    let (text, signature) = transaction(0);
    let reply = gateway.call("sendTransaction", json!([text])).send().await;
    assert_eq!(reply.result(), json!(signature));
    assert!(reply.header("x-slotfront-upstream").starts_with("node-"), "{:?}", reply.headers);
    let sent = || gateway.cluster.nodes().iter().map(|node| node.calls("sendTransaction")).sum::<u64>();
    gateway.until("a copy was sent", || sent() == 2).await;
    assert!(gateway.cluster.nodes().iter().all(|node| node.calls("sendTransaction") <= 1));
    let too_long = transaction(1233).0;
    let reply = gateway.call("sendTransaction", json!([too_long])).send().await;
    assert_eq!((reply.code(), sent()), (-32602, 2));
    assert!(reply.text.contains("too large"), "{}", reply.text);
}

#[tokio::test]
async fn a_transaction_is_not_sent_again_on_a_new_connection() {
    let tap = LoopbackTap::start().await;
    tap.close_at(|number, seen| number > 1 && seen.body.contains("sendTransaction"));
    let gateway = TestGateway::builder().nodes(1).tap(&tap).config(sending).start().await;
    gateway.cluster.fault_everywhere("sendTransaction", &Fault::Result(json!(SIGNATURE)));
    let (text, _) = transaction(0);
    for calls in 1..100 {
        let reply = gateway.call("sendTransaction", json!([text])).send().await;
        assert_eq!(tap.seen("sendTransaction").len(), calls);
        // On a new connection it is answered.
        if reply.status != 200 {
            assert_eq!((reply.status, reply.code()), (502, -32095), "{}", reply.text);
            return;
        }
    }
    panic!("no call came on a kept connection");
}

#[tokio::test]
async fn a_second_attempt_that_comes_too_late_is_a_success() {
    let processed = || Fault::Error {
        code: -32002,
        message: "Transaction simulation failed: This transaction has already been processed".to_owned(),
    };
    let gateway = TestGateway::builder()
        .nodes(3)
        .in_tiers()
        .config(sending)
        .config(|config| {
            // An attempt at the node that hangs, which the next one outlives on a busy machine, too.
            config.pool.attempt_timeout.fill(Duration::from_secs(3));
            config.send.upstreams = vec!["node-0".to_owned(), "node-1".to_owned()];
        })
        .start()
        .await;
    let nodes = gateway.cluster.nodes();
    let (text, signature) = transaction(0);
    let call = gateway.call("sendTransaction", json!([text]));
    nodes[0].fault_on("sendTransaction", processed(), None);
    assert_eq!(call.send().await.code(), -32002, "the first answer is that of the node");
    nodes[0].clear_faults();
    nodes[0].fault_on("sendTransaction", Fault::Hang, None);
    nodes[1].fault_on("sendTransaction", processed(), None);
    assert_eq!(call.send().await.result(), json!(signature));
    // A transaction lands once, so another node is asked after whatever is no answer, as often as it happens.
    nodes[1].clear_faults();
    nodes[1].fault_on("sendTransaction", Fault::Result(json!(signature)), None);
    for fault in [
        Fault::Status(401),
        Fault::Status(413),
        Fault::Status(500),
        Fault::Status429 { retry_after_s: 0 },
        Fault::Truncated,
        Fault::Reset,
        Fault::Unhealthy,
    ] {
        nodes[0].clear_faults();
        nodes[0].fault_on("sendTransaction", fault.clone(), None);
        for _ in 0..5 {
            assert_eq!(call.send().await.result(), json!(signature), "{fault:?}");
        }
    }
    assert_eq!(nodes[2].calls("sendTransaction"), 0);
}

#[tokio::test]
async fn a_node_that_does_not_have_the_blockhash_yet_is_passed_over() {
    for mode in [FollowMode::Off, FollowMode::On] {
        let gateway = TestGateway::builder()
            .nodes(2)
            .in_tiers()
            .config(sending)
            .config(follow)
            .config(|config| config.follow.mode = mode)
            .start()
            .await;
        passes_over_a_node_without_the_blockhash(&gateway).await;
    }
}

async fn passes_over_a_node_without_the_blockhash(gateway: &TestGateway) {
    let wallet = gateway.cluster.examples().wallets[0];
    gateway.get_account(wallet).confirmed().send().await;
    gateway.step_by(1).await;
    let latest = gateway.call("getLatestBlockhash", json!([at(Commitment::Confirmed)])).send().await;
    let hash = latest.value()["blockhash"].as_str().unwrap().to_owned();
    gateway.until("the block is known", || tip(gateway).slot_of(&hash).is_some()).await;
    let message = "Transaction simulation failed: Blockhash not found".to_owned();
    let nodes = gateway.cluster.nodes();
    nodes[0].fault_on("sendTransaction", Fault::Error { code: -32002, message }, None);
    nodes[1].fault_on("sendTransaction", Fault::Result(json!(SIGNATURE)), None);
    let config = json!({"preflightCommitment": "confirmed"});
    let send = async |hash: &str| {
        gateway.call("sendTransaction", json!([transaction_of(hash), config])).send().await
    };
    assert_eq!(send(&hash).await.result(), json!(SIGNATURE));
    // Nobody has the hash of another fork, so the node is right.
    assert_eq!(send("4vJ9JU1bJJE96FWSJKvHsmmFADCg4gpZQff4P3bkLKi").await.code(), -32002);
    assert_eq!((nodes[0].calls("sendTransaction"), nodes[1].calls("sendTransaction")), (2, 1));
}

/// What such a member means, only the node knows. Its answer goes back no more than others.
#[tokio::test]
async fn members_that_are_unknown_go_to_a_node() {
    let tap = LoopbackTap::start().await;
    let gateway = TestGateway::builder().nodes(1).tap(&tap).config(sending).start().await;
    let node = gateway.cluster.node(0);
    node.fault_on("sendTransaction", Fault::Result(json!(SIGNATURE)), None);
    let config = json!({ "commitment": "confirmed", "new": 7 });
    let hash = gateway.call("getLatestBlockhash", json!([])).send().await.value()["blockhash"].clone();
    for (method, params) in [
        ("getSlot", json!([config])),
        ("getBlockHeight", json!([config])),
        ("getLatestBlockhash", json!([config])),
        ("getEpochInfo", json!([config])),
        ("isBlockhashValid", json!([hash, config])),
        ("getSignatureStatuses", json!([[SIGNATURE], { "searchTransactionHistory": false, "new": 7 }])),
    ] {
        let call = gateway.call(method, params);
        assert_eq!(call.send().await.result(), call.result_of(node), "{method}");
        let of_method = |seen: &slotfront_testkit::TappedRequest| seen.body.contains(method);
        assert_eq!(tap.seen(r#""new":7"#).iter().filter(|seen| of_method(seen)).count(), 1, "{method}");
    }
    let (text, _) = transaction(0);
    assert_eq!(gateway.call("sendTransaction", json!([text, { "new": 7 }])).send().await.status, 200);
    assert_eq!(tap.seen(r#""new":7"#).len(), 7);
}

#[tokio::test]
async fn answers_with_unknown_members_do_not_go_back() {
    let gateway = TestGateway::builder().nodes(2).start().await;
    let config = json!({ "commitment": "confirmed", "new": 7 });
    for step in 0..12 {
        gateway.cluster.step_to_block();
        gateway.settled().await;
        gateway.cluster.node(step % 2).set_lag(3);
        gateway.cluster.node((step + 1) % 2).set_lag(0);
        let [slot, height] = ["getSlot", "getBlockHeight"]
            .map(|method| gateway.call(method, json!([at(Commitment::Confirmed)])).send());
        let (slot, height) = (slot.await.result().as_u64(), height.await.result().as_u64());
        for (method, shown) in [("getSlot", slot), ("getBlockHeight", height)] {
            let told = gateway.call(method, json!([config])).send().await;
            assert!(told.result().as_u64() >= shown, "{method}: {} below {shown:?}", told.text);
        }
    }
}

/// A height with such a member waits for the payment, too.
#[tokio::test]
async fn a_height_with_an_unknown_member_waits_for_watched_signatures() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let (node, confirmed) = (gateway.cluster.node(0), gateway.cluster.slot(Commitment::Confirmed));
    let hold = node.hold("getSignatureStatuses");
    let newest = gateway.cluster.slot(Commitment::Processed);
    node.fault_on("getSignatureStatuses", status(newest, &landed(confirmed, Commitment::Confirmed)), None);
    let mut socket = gateway.socket().await;
    socket.subscribe("signatureSubscribe", json!([SIGNATURE, at(Commitment::Confirmed)])).await;
    let call = gateway.call("getBlockHeight", json!([{ "commitment": "confirmed", "new": 7 }]));
    let height = TaskTracker::new().spawn(call.send());
    hold.arrived(1).await;
    gateway.until("the height was asked for", || node.calls("getBlockHeight") > 0).await;
    gateway.round_trips().await;
    assert!(!height.is_finished(), "the height was shown first");
    drop(hold);
    socket.notification().await;
    assert_eq!(height.await.unwrap().status, 200);
}
