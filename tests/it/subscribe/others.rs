//! What other clients do, and what each gets nevertheless: what it would get alone.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront::methods::Commitment::{Confirmed, Finalized};
use slotfront_sim::{Fault, HISTORY_SEARCH};
use slotfront_testkit::{TestGateway, TestSocket, node_answer};
use tokio_util::task::TaskTracker;

use super::signatures::land;
use super::{CLOCK, nothing_more, signature};

/// A gateway with several keys.
struct Tenants {
    gateway: TestGateway,
    keys: Vec<String>,
    _dir: tempfile::TempDir,
}

impl Tenants {
    async fn two() -> Self {
        Self::start(2).await
    }

    async fn start(count: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.toml"));
        let now = jiff::Timestamp::now();
        let key = |number: usize| {
            let created = file.create(&NewKey::of(format!("key-{number}"), "dev"), now);
            created.unwrap().key.expose().to_owned()
        };
        let keys = (0..count).map(key).collect();
        let path = file.path().to_owned();
        let gateway =
            TestGateway::builder().nodes(1).config(|config| config.auth.keys_file = Some(path)).start().await;
        Self { gateway, keys, _dir: dir }
    }

    async fn socket(&self, of: usize) -> TestSocket {
        self.gateway.try_socket(&format!("/v3/{}", self.keys[of]), "").await.unwrap()
    }

    /// Returns the status of a call with a key.
    async fn status(&self, of: usize, method: &str) -> u16 {
        self.gateway
            .call(method, json!([{"commitment": "confirmed"}]))
            .key(&self.keys[of])
            .send()
            .await
            .status
    }
}

fn watched(number: u64) -> Value {
    json!([signature(number), {"commitment": "confirmed"}])
}

/// A provider whose statuses fail fails those who wait for them, and nobody else.
#[tokio::test]
async fn statuses_that_nobody_answers_stop_nobody_else() {
    let keys = Tenants::two().await;
    let refusal = Fault::Error { code: -32603, message: "Internal error".to_owned() };
    keys.gateway.cluster.fault_everywhere("getSignatureStatuses", &refusal);
    let mut socket = keys.socket(0).await;
    socket.subscribe("signatureSubscribe", watched(1)).await;
    for method in ["getSlot", "getLatestBlockhash", "getBlockHeight", "getEpochInfo"] {
        assert_eq!(keys.status(1, method).await, 200, "{method} of another key");
    }
    for method in ["getSlot", "getLatestBlockhash"] {
        assert_eq!(keys.status(0, method).await, 200, "{method}");
    }
    socket.call("slotUnsubscribe", json!([0])).await;
    // Whoever waits for a payment is not told of a height as long as he may be told of the payment.
    assert_eq!(keys.status(0, "getBlockHeight").await, 200);
    assert_eq!(socket.closed().await, 1012);
    assert_eq!(keys.status(0, "getEpochInfo").await, 200);
}

/// A client library may lose a notification in the packet of its answer, so it comes a moment later, and no height before it.
#[tokio::test]
async fn no_height_comes_before_what_has_landed_was_told() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    land(&gateway, gateway.cluster.slot(Confirmed), Confirmed, &Value::Null);
    let told = || gateway.metric("slotfront_ws_notifications_total{method=\"signatureSubscribe\"}");
    for number in 0..20 {
        let mut socket = gateway.socket().await;
        socket.subscribe("signatureSubscribe", watched(number)).await;
        let height = gateway.call("getBlockHeight", json!([{"commitment": "confirmed"}])).send().await;
        assert_eq!((height.status, told()), (200, number + 1));
        assert_eq!(socket.notification().await["result"]["value"], json!({"err": null}));
    }
}

#[tokio::test]
async fn one_who_joins_and_leaves_delays_nobody() {
    let keys = Tenants::two().await;
    let (mut victim, mut other) = (keys.socket(0).await, keys.socket(1).await);
    victim.subscribe("signatureSubscribe", watched(1)).await;
    let subscribe = json!({"jsonrpc": "2.0", "id": 1, "method": "signatureSubscribe", "params": watched(1)});
    let storm = async {
        loop {
            other.send(subscribe.to_string()).await;
            let Ok(message) = other.next().await else { break };
            if let Some(id) = message["result"].as_u64() {
                let leave =
                    json!({"jsonrpc": "2.0", "id": 2, "method": "signatureUnsubscribe", "params": [id]});
                other.send(leave.to_string()).await;
            }
        }
        std::future::pending::<()>().await;
    };
    let landing = async {
        keys.gateway.step_by(1).await;
        land(&keys.gateway, keys.gateway.cluster.slot(Confirmed), Confirmed, &Value::Null);
        keys.gateway.cluster.step();
        victim.notification().await
    };
    let told = tokio::select! {
        told = landing => told,
        () = storm => unreachable!(),
    };
    assert_eq!(told["result"]["value"], json!({"err": null}));
}

/// No call of a connection waits for another one.
#[tokio::test]
async fn a_slow_first_look_delays_no_other_call() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let held = gateway.cluster.node(0).hold("getAccountInfo");
    let mut socket = gateway.socket().await;
    let slow = json!({"jsonrpc": "2.0", "id": "slow", "method": "accountSubscribe", "params": [CLOCK]});
    socket.send(slow.to_string()).await;
    held.arrived(1).await;
    land(&gateway, gateway.cluster.slot(Confirmed), Confirmed, &Value::Null);
    let id = socket.subscribe("signatureSubscribe", watched(1)).await;
    assert_eq!(socket.notification().await["subscription"], id);
    held.release();
    assert!(socket.next().await.unwrap()["result"].is_u64());
}

/// One account that takes a node long delays its own subscribers.
#[tokio::test]
async fn a_slow_form_delays_no_other_account() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let (mut waiting, mut victim) = (gateway.socket().await, gateway.socket().await);
    let of = |encoding: &str| json!([CLOCK, {"commitment": "confirmed", "encoding": encoding}]);
    waiting.subscribe("accountSubscribe", of("jsonParsed")).await;
    victim.subscribe("accountSubscribe", of("base64")).await;
    let held = gateway.cluster.node(0).hold("getAccountInfo");
    let mut last = 0;
    for _ in 0..4 {
        gateway.cluster.step_to_block();
        gateway.settled().await;
        let slot = victim.notification().await["result"]["context"]["slot"].as_u64().unwrap();
        assert!(slot > last);
        last = slot;
    }
    assert_eq!(held.waiting(), 1, "it is read once at a time");
    held.release();
    waiting.notification().await;
}

/// A form that no node gives is as unread as an account that no node gives.
#[tokio::test]
async fn a_form_that_stays_unread_ends_its_subscribers_alone() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let (mut parsed, mut plain) = (gateway.socket().await, gateway.socket().await);
    let of = |encoding: &str| json!([CLOCK, {"commitment": "confirmed", "encoding": encoding}]);
    parsed.subscribe("accountSubscribe", of("jsonParsed")).await;
    plain.subscribe("accountSubscribe", of("base64")).await;
    let refusal = Fault::Error { code: -32603, message: "Internal error".to_owned() };
    gateway.cluster.fault_everywhere("getAccountInfo", &refusal);
    let reading = async {
        loop {
            gateway.cluster.step_by(20);
            gateway.cluster.step_to_block();
            gateway.settled().await;
            plain.notification().await;
        }
    };
    let code = tokio::select! {
        code = parsed.closed() => code,
        () = reading => unreachable!(),
    };
    assert_eq!(code, 1012);
    nothing_more_than_changes(&mut plain).await;
}

/// Single failures between good reads end nothing.
#[tokio::test]
async fn failures_with_good_reads_between_them_end_nothing() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let stable = gateway.cluster.examples().lookup_tables[0].to_string();
    let mut socket = gateway.socket().await;
    let config = json!({"commitment": "confirmed", "encoding": "base64"});
    socket.subscribe("accountSubscribe", json!([stable, config])).await;
    let calls = || gateway.cluster.node(0).calls("getMultipleAccounts");
    let look = async || {
        for slots in [99, 1] {
            let before = calls();
            gateway.cluster.step_by(slots);
            gateway.cluster.step_to_block();
            gateway.settled().await;
            gateway.until("the account is looked at", || calls() > before).await;
        }
    };
    for _ in 0..4 {
        let refusal = Fault::Error { code: -32603, message: "Internal error".to_owned() };
        gateway.cluster.fault_everywhere("getMultipleAccounts", &refusal);
        gateway.cluster.fault_everywhere("getAccountInfo", &refusal);
        look().await;
        gateway.cluster.clear_faults();
        look().await;
    }
    nothing_more(&mut socket).await;
}

/// Looks are made once a slot although nobody else tells of new slots.
#[tokio::test]
async fn changes_between_probes_are_told() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut socket = gateway.socket().await;
    let config = json!({"commitment": "confirmed", "encoding": "base64"});
    socket.subscribe("accountSubscribe", json!([CLOCK, config])).await;
    let _held: Vec<_> =
        slotfront_sim::probe_methods().iter().map(|method| gateway.cluster.node(0).hold(method)).collect();
    let mut last = 0;
    for _ in 0..3 {
        gateway.cluster.step_to_block();
        gateway.cluster.step_to_block();
        let slot = socket.notification().await["result"]["context"]["slot"].as_u64().unwrap();
        assert!(slot > last);
        last = slot;
    }
}

/// A search of the history takes as long as its signatures are old, and each key has its own.
#[tokio::test]
async fn a_search_of_one_holds_up_nobody() {
    let keys = Tenants::two().await;
    let held = keys.gateway.cluster.node(0).hold(HISTORY_SEARCH);
    let (mut slow, mut other) = (keys.socket(0).await, keys.socket(1).await);
    slow.subscribe("signatureSubscribe", watched(1)).await;
    held.arrived(1).await;
    // The search of another key is under way at the same time.
    other.subscribe("signatureSubscribe", watched(2)).await;
    held.arrived(2).await;
    let search = json!([[signature(3)], {"searchTransactionHistory": true}]);
    let own = keys.gateway.call("getSignatureStatuses", search).key(&keys.keys[1]);
    let own = TaskTracker::new().spawn(own.send());
    held.arrived(3).await;
    held.release();
    assert_eq!(own.await.unwrap().status, 200);
}

/// Searches that never end, and a thousand signatures that nobody has sent, delay no payment of another key.
#[tokio::test]
async fn searches_of_ten_keys_and_a_thousand_joins_delay_no_payment() {
    let keys = Tenants::start(11).await;
    let (gateway, cluster) = (&keys.gateway, &keys.gateway.cluster);
    let held = cluster.node(0).hold(HISTORY_SEARCH);
    let searches = TaskTracker::new();
    let searching: Vec<_> = (1..=10)
        .map(|of| {
            let unknown: Vec<_> = (0..256).map(|at| signature(of * 1_000 + at)).collect();
            let search = json!([unknown, {"searchTransactionHistory": true}]);
            let key = &keys.keys[usize::try_from(of).unwrap()];
            searches.spawn(gateway.call("getSignatureStatuses", search).key(key).send())
        })
        .collect();
    held.arrived(10).await;
    let mut other = keys.socket(1).await;
    for number in 0..1_000 {
        other.subscribe("signatureSubscribe", watched(100_000 + number)).await;
    }
    let wallet = cluster.examples().wallets[0].to_string();
    let sent = node_answer(cluster.node(0), "requestAirdrop", &json!([wallet, 1]));
    let mut victim = keys.socket(0).await;
    let payment = json!([sent["result"], {"commitment": "confirmed"}]);
    let id = victim.subscribe("signatureSubscribe", payment).await;
    let landed = cluster.step_to_block();
    while cluster.slot(Confirmed) < landed {
        gateway.step_by(1).await;
    }
    assert_eq!(victim.notification().await["subscription"], id);
    for method in ["getSlot", "getBlockHeight"] {
        assert_eq!(keys.status(0, method).await, 200, "{method}");
    }
    held.release();
    for search in searching {
        assert_eq!(search.await.unwrap().status, 200);
    }
    assert!(other.call("slotUnsubscribe", json!([0])).await["error"].is_object(), "it is still open");
}

/// Who watches a few bytes of a long account costs the nodes a few bytes.
#[tokio::test]
async fn a_watched_slice_of_a_long_account_costs_a_slice() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let node = gateway.cluster.node(0);
    let reads = Arc::new(Mutex::new(Vec::new()));
    node.observe({
        let reads = Arc::clone(&reads);
        move |call| {
            if [&b"getMultipleAccounts"[..], b"getAccountInfo"].contains(&&call.method[..]) {
                reads.lock().unwrap().push(format!("{:?}", call.params));
            }
        }
    });
    let answer = |lamports: u64, is_list: bool| {
        let account = json!({ "data": ["AAAAAAAAAAA=", "base64"], "executable": false, "lamports": lamports, "owner": "11111111111111111111111111111111", "rentEpoch": u64::MAX, "space": 8 << 20 });
        let value = if is_list { json!([account]) } else { account };
        Fault::Result(json!({ "context": { "slot": gateway.cluster.slot(Confirmed) }, "value": value }))
    };
    node.fault_on("getAccountInfo", answer(1, false), None);
    let key = gateway.cluster.examples().wallets[0].to_string();
    let slice = json!({"offset": 0, "length": 8});
    let form = json!({"commitment": "confirmed", "encoding": "base64", "dataSlice": slice});
    let mut socket = gateway.socket().await;
    socket.subscribe("accountSubscribe", json!([key, form])).await;
    for lamports in 2..5 {
        gateway.cluster.step_to_block();
        node.clear_faults();
        node.fault_on("getMultipleAccounts", answer(lamports, true), None);
        gateway.settled().await;
        assert_eq!(socket.notification().await["result"]["value"]["lamports"], lamports);
    }
    let reads = reads.lock().unwrap();
    assert!(reads.len() >= 4 && reads.iter().all(|params| params.contains("dataSlice")), "{reads:?}");
}

/// Silence is the one wrong answer, also where no node lists blocks.
#[tokio::test]
async fn roots_that_no_node_lists_end_their_subscribers() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut socket = gateway.socket().await;
    socket.subscribe("rootSubscribe", json!([])).await;
    gateway.step_by(40).await;
    let refusal = Fault::Error { code: -32601, message: "Method not found".to_owned() };
    gateway.cluster.fault_everywhere("getBlocks", &refusal);
    gateway.step_by(200).await;
    assert_eq!(socket.closed().await, 1012);
}

/// Asserts that the connection is open. The clock has changed meanwhile.
async fn nothing_more_than_changes(socket: &mut TestSocket) {
    assert_eq!(socket.call("slotUnsubscribe", json!([0])).await["error"]["code"], -32602);
}

/// Accounts that are too long together are read in shorter lists from then on.
#[tokio::test]
async fn accounts_that_are_too_long_together_are_read_in_parts() {
    // Each block writes all of them, and a list of them is longer than the limit.
    let keys =
        [CLOCK, "SysvarS1otHashes111111111111111111111111111", "SysvarRecentB1ockHashes11111111111111111111"];
    let gateway =
        TestGateway::builder().nodes(1).config(|config| config.pool.max_response = 30_000).start().await;
    let mut socket = gateway.socket().await;
    let mut ids = Vec::new();
    for key in keys {
        let config = json!({"commitment": "confirmed", "encoding": "base64"});
        ids.push(socket.subscribe("accountSubscribe", json!([key, config])).await);
    }
    for _ in 0..3 {
        gateway.cluster.step_to_block();
        gateway.settled().await;
        let mut told = BTreeSet::new();
        while told.len() < ids.len() {
            told.insert(socket.notification().await["subscription"].as_u64());
        }
    }
}

/// An account as long as one may be is told of whole, whatever others do.
#[tokio::test]
async fn an_account_of_10_mib_is_told_of() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let key = gateway.cluster.examples().wallets[0].to_string();
    let mut socket = gateway.socket().await;
    socket
        .subscribe("accountSubscribe", json!([key, {"commitment": "confirmed", "encoding": "base64"}]))
        .await;
    let data = "A".repeat((10 << 20) / 3 * 4);
    for lamports in 1..3 {
        let slot = gateway.cluster.step_to_block();
        let account = json!({ "data": [data, "base64"], "executable": false, "lamports": lamports, "owner": "11111111111111111111111111111111", "rentEpoch": u64::MAX, "space": (10 << 20) / 3 * 3 });
        gateway.cluster.node(0).clear_faults();
        gateway.cluster.node(0).fault_on(
            "getMultipleAccounts",
            Fault::Result(json!({ "context": { "slot": slot }, "value": [account] })),
            None,
        );
        gateway.settled().await;
        let told = socket.notification().await;
        assert_eq!(told["result"]["value"]["lamports"], lamports);
        assert_eq!(told["result"]["value"]["data"][0].as_str().map(str::len), Some(data.len()));
    }
}

/// Joins and leaves of another key, as many as it can make, take nothing from anybody.
#[tokio::test]
async fn a_storm_of_joins_and_leaves_loses_nothing() {
    let keys = Tenants::two().await;
    let (gateway, cluster) = (&keys.gateway, &keys.gateway.cluster);
    let (mut victim, mut other) = (keys.socket(0).await, keys.socket(1).await);
    let account = json!([CLOCK, {"commitment": "confirmed", "encoding": "base64"}]);
    let roots = victim.subscribe("rootSubscribe", json!([])).await;
    let clock = victim.subscribe("accountSubscribe", account.clone()).await;
    let payment = victim.subscribe("signatureSubscribe", watched(1)).await;
    let before = cluster.slot(Finalized);
    let questions = [("account", account), ("root", json!([])), ("signature", watched(1))];
    let joins = Cell::new(0);
    let storm = async {
        for (kind, params) in questions.iter().cycle() {
            let id = other.subscribe(&format!("{kind}Subscribe"), params.clone()).await;
            other.call(&format!("{kind}Unsubscribe"), json!([id])).await;
            joins.set(joins.get() + 1);
        }
    };
    let mut seen = Vec::new();
    let watching = async {
        let mut last = 0;
        for _ in 0..20 {
            cluster.step_to_block();
            gateway.settled().await;
            let (newest, before) = ([Confirmed, Finalized].map(|at| cluster.slot(at)), last);
            while last < newest[0] || seen.last().is_some_and(|root| *root < newest[1]) {
                let params = victim.notification().await;
                if params["subscription"] == roots {
                    seen.push(params["result"].as_u64().unwrap());
                } else {
                    assert_eq!(params["subscription"], clock);
                    last = params["result"]["context"]["slot"].as_u64().unwrap();
                    assert!(last > before, "{params}");
                }
            }
        }
        while joins.get() < 100 {
            tokio::task::yield_now().await;
        }
        land(gateway, cluster.slot(Confirmed), Confirmed, &Value::Null);
        cluster.step();
        while victim.notification().await["subscription"] != payment {}
    };
    tokio::select! {
        () = watching => {}
        () = storm => unreachable!(),
    }
    let last = *seen.last().unwrap();
    let expected: Vec<_> = (before + 1..=last).filter(|slot| cluster.has_block(*slot)).collect();
    assert_eq!(seen, expected);
}

/// A list that is late is read again in shorter ones, so that an account that is slow by itself soon delays no other.
#[tokio::test]
async fn a_late_list_is_read_again_in_parts() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut socket = gateway.socket().await;
    for key in [CLOCK, "SysvarS1otHashes111111111111111111111111111"] {
        let config = json!({"commitment": "confirmed", "encoding": "base64"});
        socket.subscribe("accountSubscribe", json!([key, config])).await;
    }
    let held = gateway.cluster.node(0).hold("getMultipleAccounts");
    gateway.cluster.step_to_block();
    // Both together, both in a list of twelve at most, and each alone.
    held.arrived(4).await;
    held.release();
    assert_ne!(socket.notification().await["subscription"], socket.notification().await["subscription"]);
}
