//! Faults under load: sixteen callers without a pause, three nodes, the first of them faulty.
//!
//! The tests compare callers' answers with the simulated chain, and count the calls at the nodes. They check
//! the table "What a fault costs" of docs/operations.md.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use slotfront::breaker::BreakerState;
use slotfront::config::Config;
use slotfront::methods::{Commitment, Pubkey, Slot};
use slotfront::telemetry::Unusable;
use slotfront_sim::Fault;
use slotfront_testkit::{Reply, TestGateway};
use tokio::time::Instant;

const CALLERS: u64 = 16;
/// The highest number of failed calls at a node before its breaker opens: five, and one for each caller already
/// waiting at the node.
const UNTIL_OPEN: u64 = 5 + CALLERS;

fn settings(config: &mut Config) {
    // These are longer than a good answer takes on a busy machine, and some callers wait so long for a node that hangs. A
    // probe may take a second more than a connection.
    config.pool.attempt_timeout.fill(Duration::from_secs(4));
    config.pool.connect_timeout = Duration::from_secs(4);
    // All callers may meet the faulty node at once, and the default budget starts with ten retries.
    config.pool.retry_budget = 1.0;
    config.pool.breaker.open = Duration::from_millis(300);
}

/// Reads account `n` past the cache, and compares it with the simulated account at the answer's slot. Returns that
/// slot, or a text that says what is wrong.
async fn read(gateway: &TestGateway, n: u64, commitment: Commitment) -> Result<Slot, String> {
    Ok(ask(gateway, n, commitment).await?.slot())
}

/// Reads account `n` as [`read`] does, from a node. If no node answers a call, it may get an answer from the cache, which
/// counts as wrong here.
async fn fetch(gateway: &TestGateway, n: u64, commitment: Commitment) -> Result<Slot, String> {
    let reply = ask(gateway, n, commitment).await?;
    if reply.cache_status().starts_with("fwd=") {
        Ok(reply.slot())
    } else {
        Err(reply.cache_status().to_owned())
    }
}

async fn ask(gateway: &TestGateway, n: u64, commitment: Commitment) -> Result<Reply, String> {
    let wallets = gateway.cluster.examples().wallets;
    let key = wallets[usize::try_from(n).unwrap() % wallets.len()];
    let reply = gateway.get_account(key).commitment(commitment).base64().no_cache().send().await;
    if reply.status != 200 || reply.json().get("result").is_none() {
        return Err(format!("{} {}", reply.status, reply.text));
    }
    let truth = gateway.cluster.account_at(&key, reply.slot()).map(|account| account.lamports);
    if reply.result()["value"]["lamports"].as_u64() == truth {
        Ok(reply)
    } else {
        Err(format!("wrong at {}, not {truth:?}: {}", reply.slot(), reply.text))
    }
}

/// Runs `each` for every number below `calls`, from sixteen callers at once. Returns the duration of the
/// slowest run.
async fn load<F: Future<Output = ()>>(calls: u64, each: impl Fn(u64) -> F) -> Duration {
    let next = AtomicU64::new(0);
    let caller = async || {
        let mut slowest = Duration::ZERO;
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= calls {
                return slowest;
            }
            let began = Instant::now();
            each(n).await;
            slowest = slowest.max(began.elapsed());
        }
    };
    let callers = (0..CALLERS).map(|_| caller());
    futures_util::future::join_all(callers).await.into_iter().max().unwrap()
}

/// Returns the highest number of trial calls that a breaker admits in the time `took`, with one trial per `every`.
fn trials(took: Duration, every: Duration) -> u64 {
    u64::try_from(took.as_millis() / every.as_millis()).unwrap() + 1
}

async fn single_fault_fails_no_call_and_costs_little(name: &str, fault: Fault) {
    let gateway = TestGateway::builder().config(settings).start().await;
    gateway.cluster.node(0).fault_on("getAccountInfo", fault, None);
    let began = Instant::now();
    let calls = 160;
    load(calls, async |n| {
        let fetched = fetch(&gateway, n, Commitment::Finalized).await;
        assert!(fetched.is_ok(), "{name}: {fetched:?}");
    })
    .await;
    let took = began.elapsed();
    let extra = gateway.upstream_calls() - calls;
    let open = gateway.front().config.now().pool.breaker.open;
    let failed = gateway.cluster.node(0).calls("getAccountInfo");
    assert!(failed <= UNTIL_OPEN + trials(took, open), "{name}: {failed} calls failed in {took:?}");
    assert!((1..=extra).contains(&failed), "{name}: {failed} calls failed, {extra} further ones");
}

async fn single_faults_fail_no_call_and_cost_little(faults: impl IntoIterator<Item = (&str, Fault)>) {
    let each =
        faults.into_iter().map(|(name, fault)| single_fault_fails_no_call_and_costs_little(name, fault));
    join_all(each).await;
}

#[tokio::test]
async fn single_faults_without_an_answer_fail_no_call_and_cost_little() {
    single_faults_fail_no_call_and_cost_little([
        ("cut", Fault::Reset),
        ("hang", Fault::Hang),
        ("truncation", Fault::Truncated),
        ("trickle", Fault::Trickle(Duration::from_secs(1))),
    ])
    .await;
}

#[tokio::test]
async fn single_faults_with_an_answer_fail_no_call_and_cost_little() {
    let internal = Fault::Error { code: -32603, message: "Internal error".to_owned() };
    single_faults_fail_no_call_and_cost_little([
        ("429", Fault::Status429 { retry_after_s: 1 }),
        ("503", Fault::Status(503)),
        ("403", Fault::Status(403)),
        ("internal error", internal),
        ("HTML", Fault::Html),
        ("wrong id", Fault::WrongId),
    ])
    .await;
}

#[tokio::test]
async fn answers_far_from_known_slots_are_doubted() {
    let tiers = |config: &mut Config| {
        settings(config);
        config.upstreams[1].tier = 1;
        config.upstreams[2].tier = 1;
    };
    let gateway = TestGateway::builder().config(tiers).start().await;
    let node = gateway.cluster.node(0);
    let wallet = gateway.cluster.examples().wallets[0];
    for commitment in Commitment::ALL {
        node.set_lag(100);
        let old = gateway.get_account(wallet).commitment(commitment).base64().result_of(node);
        node.set_lag(0);
        for (name, fault) in [("old", Fault::Result(old)), ("ahead", Fault::Ahead(100_000))] {
            let asked = node.calls("getAccountInfo");
            node.fault_on("getAccountInfo", fault, Some(1));
            let slot = read(&gateway, 0, commitment).await;
            assert_eq!(slot, Ok(gateway.cluster.slot(commitment)), "{name} at {commitment:?}");
            assert_eq!(node.calls("getAccountInfo"), asked + 1, "{name} at {commitment:?}");
            let is_back = || {
                gateway.front().frontier.slots_of(0).slot(commitment)
                    == Some(gateway.cluster.slot(commitment))
            };
            gateway.until("a probe has reported the node's slot", is_back).await;
        }
    }
}

#[tokio::test]
async fn old_answers_are_replaced_beyond_the_retry_budget() {
    // The retry budget has fewer tokens than this, even with those that it gains while the callers wait.
    const CALLERS: u8 = 60;
    let scarce = |config: &mut Config| {
        settings(config);
        config.pool.retry_budget = 0.0;
        config.upstreams[1].tier = 1;
    };
    let gateway = TestGateway::builder().nodes(2).config(scarce).start().await;
    let node = gateway.cluster.node(0);
    let hold = node.hold("getAccountInfo");
    let callers = (0..CALLERS).map(|n| gateway.get_account(Pubkey([n; 32])).processed().base64().send());
    let (replies, ()) = tokio::join!(join_all(callers), async {
        hold.arrived(usize::from(CALLERS)).await;
        node.set_lag(100);
        hold.release();
    });
    let newest = gateway.cluster.slot(Commitment::Processed);
    let old: Vec<_> = replies.iter().map(Reply::slot).filter(|slot| *slot < newest).collect();
    assert!(old.is_empty(), "{} of {CALLERS} answers are old: {old:?}", old.len());
}

#[tokio::test]
async fn two_faulty_nodes_fail_no_call() {
    let gateway = TestGateway::builder().config(settings).start().await;
    let mixture = [
        Fault::Reset,
        Fault::WrongId,
        Fault::Latency(Duration::from_millis(30)),
        Fault::Truncated,
        Fault::Html,
        Fault::Status(500),
        Fault::Status429 { retry_after_s: 0 },
        Fault::Trickle(Duration::from_millis(300)),
    ];
    for round in 0..6 {
        for (n, fault) in mixture.iter().enumerate() {
            let node = gateway.cluster.node((n + round) % 2);
            node.fault_on("getAccountInfo", fault.clone(), Some(1 + (n * 7 + round * 3) % 4));
        }
    }
    gateway.cluster.node(2).set_lag(2);
    let calls = 400;
    load(calls, async |n| {
        let read = read(&gateway, n, Commitment::Confirmed).await;
        assert!(read.is_ok(), "call {n}: {read:?}");
    })
    .await;
    let extra = gateway.upstream_calls() - calls;
    println!("mixed: {extra} further calls of {calls}");
    assert!((1..=2 * UNTIL_OPEN + 60).contains(&extra), "{extra} further calls");
}

#[tokio::test]
async fn known_lag_and_history_gaps_cost_nothing() {
    let gateway = TestGateway::builder().config(settings).start().await;
    gateway.cluster.node(0).set_lag(200);
    let standing = || gateway.unusable(0);
    gateway.until("the lag is known", || standing() >= Some(Unusable::Lagging)).await;
    load(160, async |n| {
        let read = read(&gateway, n, Commitment::Finalized).await;
        assert_eq!(read, Ok(gateway.cluster.slot(Commitment::Finalized)));
    })
    .await;
    assert_eq!((gateway.upstream_calls(), gateway.cluster.node(0).calls("getAccountInfo")), (160, 0));

    gateway.cluster.node(0).set_lag(0);
    let newest = gateway.cluster.slot(Commitment::Finalized);
    gateway.cluster.node(0).prune_below(newest);
    let blocks: Vec<Slot> =
        (newest - 60..newest - 1).filter(|slot| gateway.cluster.has_block(*slot)).collect();
    gateway.until("the node is usable again", || standing().is_none()).await;
    let before = gateway.upstream_calls();
    load(160, async |n| {
        let slot = blocks[usize::try_from(n).unwrap() % blocks.len()];
        let block = gateway.get_block(slot).details("signatures").version_0().no_cache();
        let truth = block.result_of(gateway.cluster.node(1));
        assert_eq!(block.send().await.result(), truth, "{slot}");
    })
    .await;
    let extra = gateway.upstream_calls() - before - 160;
    println!("history gap: {extra} further calls of 160");
    assert!(extra <= CALLERS, "{extra} further calls until the node's first block is known");
}

/// Nodes that were restored from one snapshot lack the same blocks.
#[tokio::test]
async fn a_block_that_one_node_holds_is_found() {
    for second_is_down in [false, true] {
        let gateway = TestGateway::builder()
            .in_tiers()
            .config(|config| {
                settings(config);
                config.pool.retries = 0;
            })
            .start()
            .await;
        let [first, second, holder] = gateway.cluster.nodes() else { panic!("three nodes") };
        let newest = gateway.cluster.slot(Commitment::Finalized);
        let lost = newest - 60..newest - 10;
        first.set_hole(lost.clone());
        if second_is_down {
            second.fault_on("getBlock", Fault::Status(503), None);
        } else {
            second.set_hole(lost.clone());
        }
        // The slots above the lost ones show what becomes of the first block whose parent is lost: null.
        for slot in lost.start..=newest {
            let block = gateway.get_block(slot).details("signatures").version_0();
            let truth = block.answer_of(holder);
            for reply in [block.send().await, block.send().await] {
                assert!(reply.json() == truth, "{slot}, second down {second_is_down}: {}", reply.text);
            }
        }
    }
}

/// A node that failed before, or says that it is behind, may be the only one that has the block.
#[tokio::test]
async fn a_node_in_a_bad_state_is_asked_for_a_block() {
    for its_breaker_is_open in [false, true] {
        let gateway = TestGateway::builder()
            .config(settings)
            .breakers_open_at_once(Duration::from_hours(1))
            .start()
            .await;
        let [first, second, holder] = gateway.cluster.nodes() else { panic!("three nodes") };
        let state = || gateway.unusable(2);
        if its_breaker_is_open {
            holder.fault_on("getAccountInfo", Fault::Reset, None);
            let mut accounts = 0..;
            while state() != Some(Unusable::BreakerOpen) {
                read(&gateway, accounts.next().unwrap(), Commitment::Processed).await.unwrap();
            }
        } else {
            holder.set_healthy(false);
            gateway.until("its health is known", || state() == Some(Unusable::Unhealthy)).await;
        }
        let newest = gateway.cluster.slot(Commitment::Finalized);
        let lost = newest - 30..newest - 10;
        first.set_hole(lost.clone());
        second.set_hole(lost.clone());
        for slot in lost {
            let block = gateway.get_block(slot).details("signatures").version_0();
            let truth = block.answer_of(holder);
            let reply = block.send().await;
            assert!(reply.json() == truth, "{slot}, breaker open {its_breaker_is_open}: {}", reply.text);
        }
    }
}

#[tokio::test]
async fn a_node_that_hangs_does_not_delay_a_skipped_slot() {
    let gateway = TestGateway::builder()
        .breakers_open_at_once(Duration::from_hours(1))
        .config(|config| {
            config.server.request_timeout = Duration::from_mins(5);
            config.pool.attempt_timeout.fill(Duration::from_mins(5));
            config.pool.breaker.slow = 4.0;
        })
        .start()
        .await;
    let newest = gateway.cluster.slot(Commitment::Finalized);
    let block = |slot| gateway.get_block(slot).details("signatures").version_0();
    // The usual duration of the method must be known.
    join_all((newest - 60..newest).map(async |slot| block(slot).send().await)).await;
    let node = gateway.cluster.node(2);
    node.fault_on("getAccountInfo", Fault::Reset, None);
    let mut accounts = 0..;
    while gateway.unusable(2) != Some(Unusable::BreakerOpen) {
        read(&gateway, accounts.next().unwrap(), Commitment::Processed).await.unwrap();
    }
    node.fault_on("getBlock", Fault::Hang, None);
    let (asked, began) = (node.calls("getBlock"), Instant::now());
    let skipped = gateway.cluster.examples().skipped_slot.expect("some slot is skipped");
    assert_eq!(gateway.get_block(skipped).details("none").no_cache().send().await.code(), -32007);
    assert!(began.elapsed() < Duration::from_mins(1), "{:?}", began.elapsed());
    assert!(node.calls("getBlock") > asked, "it was asked");
}

#[tokio::test]
async fn a_flapping_node_fails_no_call() {
    let gateway = TestGateway::builder().config(settings).start().await;
    let (node, began, calls) = (gateway.cluster.node(0), Instant::now(), 400);
    load(calls, async |n| {
        match n % 40 {
            0 => node.fault_on("getAccountInfo", Fault::Status(500), None),
            20 => node.clear_faults(),
            _ => {}
        }
        let read = fetch(&gateway, n, Commitment::Confirmed).await;
        assert!(read.is_ok(), "{read:?}");
    })
    .await;
    let extra = gateway.upstream_calls() - calls;
    println!("flapping: {extra} further calls of {calls} in {:?}", began.elapsed());
    assert!(extra <= calls / 4, "{extra} further calls");
}

#[tokio::test]
async fn total_outage_fails_fast_and_recovers() {
    let gateway = TestGateway::builder()
        .config(|config| {
            settings(config);
            // The attempt timeout exceeds the deadline of a call. A call that waited for the timeout would
            // therefore end with another error.
            config.pool.attempt_timeout.fill(Duration::from_mins(1));
        })
        .start()
        .await;
    let down = || gateway.cluster.nodes().iter().for_each(|node| node.fault(Fault::Reset));
    down();
    let calls = 160;
    let slowest = load(calls, async |n| {
        let read = read(&gateway, n, Commitment::Processed).await;
        assert!(read.is_err_and(|told| told.starts_with("502") && told.contains("-32095")));
    })
    .await;
    let asked = gateway.upstream_calls();
    println!("all down: {asked} upstream calls for {calls}, slowest answer {slowest:?}");
    assert!(asked <= calls * 3, "{asked}");
    gateway
        .until("all are known to be down", || {
            let standing = gateway.front().pool.standing(Instant::now());
            standing.iter().all(|(_, unusable)| *unusable == Some(Unusable::Unreachable))
        })
        .await;
    let readiness = gateway.admin("/readyz").await;
    assert_eq!(readiness.json()["state"], "degraded");
    // A node is asked although its probes fail and its breaker is open, because no better one is left.
    gateway.cluster.nodes().iter().for_each(|node| node.clear_faults());
    assert!(read(&gateway, 0, Commitment::Processed).await.is_ok(), "the first call after they are back");
    load(calls, async |n| {
        let read = read(&gateway, n, Commitment::Processed).await;
        assert!(read.is_ok(), "{read:?}");
    })
    .await;
}

/// Checks that no caller notices the phases of a node: cut off, hanging, lagging, and sending one thing after another
/// that is no answer. Before each of them the node is well, and in use again.
async fn phases_of_faults_harm_no_caller(phases: impl IntoIterator<Item = (&str, Option<Fault>)>) {
    // The node is asked first, so each of its faults meets callers.
    let gateway = TestGateway::builder().in_tiers().config(settings).start().await;
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    // Each caller has an account of its own. Otherwise another one's fetch could answer a call that has failed.
    let caller = async |wallet: u64| {
        let mut seen = 0;
        while !over.load(Ordering::Relaxed) {
            match fetch(&gateway, wallet, Commitment::Finalized).await {
                Ok(slot) if slot < seen => panic!("backwards from {seen} to {slot}"),
                Ok(slot) => seen = slot,
                Err(told) => panic!("{told}"),
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    let node = gateway.cluster.node(0);
    let asked = || node.calls("getAccountInfo");
    let director = async {
        let (mut met, mut of) = (0, 0);
        for (phase, fault) in phases {
            node.clear_faults();
            node.set_lag(0);
            let well = asked();
            let in_use = || gateway.unusable(0).is_none() && asked() > well;
            gateway.until(&format!("the node is in use before it is {phase}"), in_use).await;
            match fault {
                Some(fault) => node.fault(fault),
                None => node.set_lag(200),
            }
            let (calls, at_node) = (done.load(Ordering::Relaxed), asked());
            for step in 1..=4 {
                gateway.cluster.step_by(2);
                let some = || done.load(Ordering::Relaxed) >= calls + step * 30;
                gateway.until(&format!("calls were made while it is {phase}"), some).await;
            }
            (met, of) = (met + asked() - at_node, of + 1);
        }
        // A probe may see a fault first, but not each time.
        assert!(met > of, "{met} calls met {of} phases");
        node.clear_faults();
        let closed = || gateway.front().pool.members()[0].breaker(Instant::now()) == BreakerState::Closed;
        gateway.until("its breaker has closed", closed).await;
        over.store(true, Ordering::Relaxed);
    };
    let callers = futures_util::future::join_all((0..CALLERS).map(caller));
    futures_util::future::join(callers, director).await;
}

#[tokio::test]
async fn phases_without_an_answer_harm_no_caller() {
    phases_of_faults_harm_no_caller([
        ("cut", Some(Fault::Reset)),
        ("hanging", Some(Fault::Hang)),
        ("lagging", None),
        ("a bad gateway", Some(Fault::Html)),
        ("cut short", Some(Fault::Truncated)),
        ("half said", Some(Fault::Half)),
        ("a web page", Some(Fault::Body { content_type: "text/html", text: "<p>Back soon</p>" })),
    ])
    .await;
}

#[tokio::test]
async fn phases_of_wrong_answers_harm_no_caller() {
    phases_of_faults_harm_no_caller([
        ("silent", Some(Fault::Body { content_type: "application/json", text: "" })),
        ("null", Some(Fault::NullResult)),
        ("deep", Some(Fault::Nested(200_000))),
        ("long", Some(Fault::Huge(4 << 20))),
        (
            "of other types",
            Some(Fault::Result(json!({ "context": { "slot": "7" }, "value": { "data": 0 } }))),
        ),
        ("far ahead", Some(Fault::Ahead(100_000))),
        ("two machines", Some(Fault::TwoMachines)),
    ])
    .await;
}

#[tokio::test]
async fn open_breakers_are_tried_before_far_nodes() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(settings)
        .breakers_open_at_once(Duration::from_hours(1))
        .start()
        .await;
    gateway.cluster.node(1).set_lag(200);
    gateway.until("the lag is known", || gateway.unusable(1) >= Some(Unusable::Lagging)).await;
    gateway.cluster.node(0).fault_on("getAccountInfo", Fault::Status(500), Some(1));
    assert!(read(&gateway, 0, Commitment::Processed).await.is_ok(), "an old answer is better than none");
    assert_eq!(gateway.front().pool.members()[0].breaker(Instant::now()), BreakerState::Open);
    let newest = gateway.cluster.slot(Commitment::Processed);
    for n in 1..8 {
        assert_eq!(read(&gateway, n, Commitment::Processed).await, Ok(newest));
    }
}
