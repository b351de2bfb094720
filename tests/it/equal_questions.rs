//! Calls that mean the same share one entry, one fetch and one upstream call, and get the answer of a node each.

use serde_json::{Value, json};
use slotfront::methods::Commitment;
use slotfront_sim::{Cluster, Fault, Settings};
use slotfront_testkit::{TestCall, TestCluster, TestGateway};

async fn one_node() -> TestGateway {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let versions = || gateway.front().pool.members().iter().all(|member| member.version().is_some());
    gateway.until("the versions are known", versions).await;
    gateway
}

/// Sends the calls one after the other, and asserts that each gets what a node says, for `expected` calls of this method.
async fn assert_asked(gateway: &TestGateway, calls: Vec<TestCall>, expected: u64) {
    let node = gateway.cluster.node(0);
    let method = calls[0].method().to_owned();
    let before = node.calls(&method);
    for call in calls {
        assert_eq!(call.send().await.json(), call.answer_of(node), "{}", call.body());
    }
    assert_eq!(node.calls(&method) - before, expected, "{method}");
}

#[tokio::test]
async fn a_schedule_is_asked_for_once_an_epoch() {
    let gateway = one_node().await;
    let slot = gateway.cluster.slot(Commitment::Finalized) - 9;
    let call = |params: Value| gateway.call("getLeaderSchedule", params);
    let leaders = call(json!([slot])).result_of(gateway.cluster.node(0));
    let (some, slots) = leaders.as_object().unwrap().iter().next().unwrap();
    let mut calls: Vec<_> = (slot..slot + 10).map(|slot| call(json!([slot]))).collect();
    calls.extend([json!([]), json!([null, { "commitment": "confirmed" }])].map(call));
    calls.extend(["processed", "confirmed"].map(|at| call(json!([slot, { "commitment": at }]))));
    for call in calls {
        assert!(call.send().await.result() == leaders, "{}", call.body());
    }
    let nobody = "11111111111111111111111111111111";
    for (leader, expected) in [(&**some, json!({ some: slots })), (nobody, json!({}))] {
        let one = call(json!([slot + 3, { "identity": leader }])).send().await;
        assert_eq!(one.result(), expected, "{leader}");
    }
    assert_eq!(gateway.cluster.node(0).calls("getLeaderSchedule"), 1);
    assert_eq!(call(json!([slot * 1000])).send().await.result(), Value::Null);
}

#[tokio::test]
async fn a_schedule_needs_no_epochs() {
    let gateway = one_node().await;
    let method_not_found = Fault::Error { code: -32601, message: "Method not found".to_owned() };
    gateway.cluster.node(0).fault_on("getEpochSchedule", method_not_found, None);
    let slot = gateway.cluster.slot(Commitment::Finalized) - 9;
    let schedule = json!({ "8VjqqZcYo6drjcVUEnfvFkhy1bLrqFxzYpc5zpAANEjU": [0] });
    gateway.cluster.node(0).fault_on("getLeaderSchedule", Fault::Result(schedule.clone()), None);
    for slot in [slot, slot, slot + 1] {
        let told = gateway.call("getLeaderSchedule", json!([slot])).send().await;
        assert_eq!(told.result(), schedule);
    }
    assert_eq!(gateway.cluster.node(0).calls("getLeaderSchedule"), 2);
}

#[tokio::test]
async fn the_default_epoch_is_an_epoch() {
    let gateway = one_node().await;
    let stake = gateway.cluster.examples().stake_accounts[0].to_string();
    let schedule = gateway.call("getEpochSchedule", json!([])).send().await.result();
    let epoch = gateway.cluster.slot(Commitment::Finalized) / schedule["slotsPerEpoch"].as_u64().unwrap() - 1;
    let call = |config: Value| gateway.call("getInflationReward", json!([[stake], config]));
    let calls = [Value::Null, json!({ "epoch": epoch }), json!({ "epoch": null })].map(call);
    assert_asked(&gateway, calls.into(), 1).await;
}

#[tokio::test]
async fn a_block_is_one_in_all_versions() {
    let gateway = one_node().await;
    let slot = gateway.cluster.slot(Commitment::Finalized) - 9;
    for encoding in ["json", "jsonParsed"] {
        let call = |version: u64| {
            let config = json!({ "encoding": encoding, "maxSupportedTransactionVersion": version });
            gateway.call("getBlock", json!([slot, config]))
        };
        assert_asked(&gateway, (0..60).chain([255]).map(call).collect(), 1).await;
        assert!(gateway.front().cache.usage().1 < 10, "{:?}", gateway.front().cache.usage());
    }
}

#[tokio::test]
async fn a_transaction_is_one_in_all_versions_and_encodings() {
    let gateway = one_node().await;
    let (newest, node) = (gateway.cluster.slot(Commitment::Finalized), gateway.cluster.node(0));
    let blocks = (newest - 60..newest).map(|slot| {
        let block = gateway.get_block(slot).version_0().answer_of(node);
        block["result"]["transactions"].as_array().cloned().unwrap_or_default()
    });
    let mut kinds = Vec::new();
    for transaction in blocks.flatten() {
        if kinds.contains(&transaction["version"]) {
            continue;
        }
        kinds.push(transaction["version"].clone());
        let signature = &transaction["transaction"]["signatures"][0];
        let call = |encoding: &&str, version: Option<u64>, commitment: &str| {
            let mut config = json!({ "encoding": encoding, "commitment": commitment });
            if let Some(version) = version {
                config["maxSupportedTransactionVersion"] = version.into();
            }
            gateway.call("getTransaction", json!([signature, config]))
        };
        for (encodings, expected) in [(&["json", "base64", "base58", "binary"][..], 1), (&["jsonParsed"], 1)]
        {
            let mut calls = Vec::new();
            for commitment in ["confirmed", "finalized"] {
                for version in [Some(7), None, Some(0), Some(1)] {
                    calls.extend(encodings.iter().map(|encoding| call(encoding, version, commitment)));
                }
            }
            assert_asked(&gateway, calls, expected).await;
        }
    }
    assert!(kinds.len() > 1, "{kinds:?}");
}

/// A transaction of a version above 0 makes the callers' versions differ.
#[tokio::test]
async fn a_higher_version_is_told_to_who_accepts_it() {
    let gateway = one_node().await;
    let (slot, node) = (gateway.cluster.slot(Commitment::Finalized) - 9, gateway.cluster.node(0));
    let refusal = |version: u64| Fault::Error {
        code: -32015,
        message: format!("Transaction version ({version}) is not supported by the requesting client."),
    };
    let block = gateway.get_block(slot).encoding("base64").version_0().result_of(node);
    let signature = gateway.get_block(slot).details("signatures").result_of(node)["signatures"][0].clone();
    for (method, first) in [("getBlock", json!(slot)), ("getTransaction", signature)] {
        let call = |version: Option<u64>| {
            let mut config = json!({ "encoding": "base64" });
            if let Some(version) = version {
                config["maxSupportedTransactionVersion"] = version.into();
            }
            gateway.call(method, json!([first, config]))
        };
        let new = if method == "getBlock" { block.clone() } else { call(Some(0)).result_of(node) };
        for round in 0..2 {
            let refused = if round == 0 { vec![Some(0), None] } else { vec![None, Some(0)] };
            for version in refused {
                node.fault_on(method, refusal(1), Some(1));
                assert_eq!(call(version).send().await.code(), -32015, "{method} {version:?}");
                node.clear_faults();
            }
            // Who accepts more is asked for in his own words.
            node.fault_on(method, Fault::Result(new.clone()), Some(1));
            let told = call(Some(1)).send().await;
            assert_eq!(told.result(), new, "{method}: {}", told.text);
            node.clear_faults();
            assert!(call(Some(1)).send().await.is_hit() && call(Some(0)).send().await.code() == -32015);
        }
    }
    // Nobody has asked for version 0 yet.
    let call = gateway.get_block(slot - 1).encoding("base64").with("maxSupportedTransactionVersion", 2);
    node.fault_on("getBlock", refusal(1), Some(1));
    assert_eq!(call.send().await.json(), call.answer_of(node));
}

#[tokio::test]
async fn close_limits_of_pages_are_one() {
    let gateway = one_node().await;
    let wallet = gateway.cluster.examples().wallets[0].to_string();
    let call = |limit: u64| gateway.call("getSignaturesForAddress", json!([wallet, { "limit": limit }]));
    assert_asked(&gateway, (981..=1000).map(call).collect(), 1).await;
    assert_asked(&gateway, (3..=5).rev().map(call).collect(), 1).await;
    let first = call(1).send().await.result()[0]["signature"].clone();
    let before = |limit: u64| {
        let config = json!({ "limit": limit, "before": first, "until": null });
        gateway.call("getSignaturesForAddress", json!([wallet, config]))
    };
    assert_asked(&gateway, (3..=5).map(before).collect(), 1).await;
}

#[tokio::test]
async fn a_page_that_is_full_for_its_caller_needs_no_node_that_fails() {
    // The first node has less history than the other one, so its short page does not decide.
    let first = TestCluster::settings(2).first_slot;
    let gateway = TestGateway::builder()
        .nodes(2)
        .in_tiers()
        .prepare(|cluster| cluster.node(0).prune_below(first + 1))
        .start()
        .await;
    let wallet = gateway.cluster.examples().wallets[0].to_string();
    let call = |limit: usize| gateway.call("getSignaturesForAddress", json!([wallet, { "limit": limit }]));
    let node = gateway.cluster.node(0);
    gateway
        .until("the first blocks are known", || {
            gateway.front().pool.members().iter().all(|member| member.first_available().is_some())
        })
        .await;
    let all = call(1000).result_of(node).as_array().unwrap().len();
    assert!(![1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].contains(&all), "a limit that is rounded up: {all}");
    gateway.cluster.node(1).fault_on("getSignaturesForAddress", Fault::Status(503), None);
    let page = call(all).send().await;
    assert_eq!(page.result().as_array().map(Vec::len), Some(all), "{}", page.text);
    assert_eq!(call(all + 1).send().await.code(), -32095, "the other one may have more");
}

#[tokio::test]
async fn filters_and_slices_are_one_by_what_they_mean() {
    let gateway = one_node().await;
    let wallet = gateway.cluster.examples().wallets[0];
    let program = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA";
    let scan = |filters: Value, more: Value| {
        let mut config = json!({ "encoding": "base64", "filters": filters });
        config.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        gateway.call("getProgramAccounts", json!([program, config]))
    };
    let base64 = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, wallet.0);
    let [size, plain, named, other] = [
        json!({ "dataSize": 165 }),
        json!({ "memcmp": { "offset": 32, "bytes": wallet.to_string() } }),
        json!({ "memcmp": { "bytes": wallet.to_string(), "encoding": "base58", "offset": 32 } }),
        json!({ "memcmp": { "offset": 32, "bytes": base64, "encoding": "base64" } }),
    ];
    let calls = [
        scan(json!([size, plain]), json!({ "sortResults": false })),
        scan(json!([named, size]), json!({ "dataSlice": null, "withContext": false })),
        scan(json!([other, size, plain]), Value::Null),
    ];
    let expected = calls[0].send().await.result();
    assert!(!expected.as_array().unwrap().is_empty());
    for call in &calls {
        assert_eq!(call.send().await.result(), expected, "{}", call.body());
    }
    for slice in [json!({ "offset": 0, "length": 0 }), json!({ "offset": 70, "length": 0 })] {
        assert!(scan(json!([size]), json!({ "dataSlice": slice })).send().await.result().is_array());
    }
    let owned = |slice: Value| {
        let config = json!({ "encoding": "jsonParsed", "dataSlice": slice });
        gateway.call("getTokenAccountsByOwner", json!([wallet.to_string(), { "programId": program }, config]))
    };
    let parsed = [Value::Null, json!({ "offset": 0, "length": 8 })].map(owned);
    for call in &parsed {
        assert_eq!(call.send().await.result()["value"], parsed[0].send().await.result()["value"]);
    }
    let asked =
        ["getProgramAccounts", "getTokenAccountsByOwner"].map(|method| gateway.cluster.node(0).calls(method));
    assert_eq!(asked, [2, 1]);
}

#[tokio::test]
async fn a_list_is_taken_out_of_its_context() {
    let gateway = one_node().await;
    let call = |config: Value| {
        gateway.call("getProgramAccounts", json!(["TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA", config]))
    };
    let whole = call(json!({ "encoding": "base64", "withContext": true })).send().await;
    assert!(whole.slot() > 0 && whole.value().as_array().is_some_and(|list| !list.is_empty()));
    for config in [json!({ "encoding": "base64", "withContext": false }), json!({ "encoding": "base64" })] {
        let list = call(config).send().await;
        assert!(list.is_hit() && list.result() == whole.value(), "{}", list.cache_status());
    }
    assert_eq!(gateway.cluster.node(0).calls("getProgramAccounts"), 1);
}

#[tokio::test]
async fn the_supply_is_one_with_and_without_its_accounts() {
    let gateway = one_node().await;
    let node = gateway.cluster.node(0);
    let value =
        json!({ "circulating": 5, "nonCirculating": 2, "nonCirculatingAccounts": ["a", "b"], "total": 7 });
    let supply = json!({ "context": { "apiVersion": "4.0.0", "slot": gateway.cluster.slot(Commitment::Confirmed) }, "value": value });
    node.fault_on("getSupply", Fault::Result(supply.clone()), None);
    let mut alone = supply.clone();
    alone["value"]["nonCirculatingAccounts"] = json!([]);
    let call = |config: Value| gateway.call("getSupply", json!([config]));
    for commitment in ["processed", "confirmed"] {
        let without = json!({ "commitment": commitment, "excludeNonCirculatingAccountsList": true });
        let mut calls = [(without, &alone), (json!({ "commitment": commitment }), &supply)];
        if commitment == "confirmed" {
            calls.reverse();
        }
        for (config, expected) in &calls {
            assert_eq!(call(config.clone()).send().await.result(), **expected, "{config}");
        }
    }
    assert_eq!(node.calls("getSupply"), 2);
}

#[tokio::test]
async fn rewards_are_one_in_any_order_of_addresses() {
    let gateway = one_node().await;
    let there = gateway.cluster.examples();
    let [one, two, none] = [there.stake_accounts[0], there.stake_accounts[1], there.wallets[0]];
    let call = |addresses: &[_]| {
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        gateway.call("getInflationReward", json!([addresses, { "commitment": "confirmed" }]))
    };
    let calls = [&[one, two, none][..], &[none, two, one], &[two, one, one, none, two]].map(call);
    assert!(calls[0].answer_of(gateway.cluster.node(0))["result"][0].is_object());
    assert_asked(&gateway, calls.into(), 1).await;
    assert_asked(&gateway, [&[one, two][..], &[two, one]].map(call).into(), 1).await;
    assert_asked(&gateway, vec![call(&[])], 1).await;
}

/// Epochs that still double have names, too.
#[tokio::test]
async fn a_schedule_is_asked_for_once_a_short_epoch() {
    let cluster = Cluster::new(Settings {
        warmup: true,
        first_slot: 0,
        history_slots: 240,
        slots_per_epoch: 8_192,
        ..TestCluster::settings(1)
    });
    let gateway = TestGateway::builder().cluster(&TestCluster::serve(cluster).await).start().await;
    // The epochs begin with the slots 0, 32, 96, 224 …
    for slots in [0..32, 32..96, 96..224] {
        let call = |slot: u64| gateway.call("getLeaderSchedule", json!([slot]));
        assert_asked(&gateway, slots.step_by(9).map(call).collect(), 1).await;
    }
}

#[tokio::test]
async fn a_block_of_version_1_is_one_for_all_who_accept_it() {
    let gateway = one_node().await;
    let (slot, node) = (gateway.cluster.slot(Commitment::Finalized) - 9, gateway.cluster.node(0));
    let call = |version: u64| {
        gateway.get_block(slot).encoding("base64").with("maxSupportedTransactionVersion", version)
    };
    let block = call(0).result_of(node);
    let message = "Transaction version (1) is not supported by the requesting client.".to_owned();
    node.fault_on("getBlock", Fault::Error { code: -32015, message }, Some(1));
    node.fault_on("getBlock", Fault::Result(block.clone()), None);
    for version in (1..60).rev() {
        assert!(call(version).send().await.result() == block, "{version}");
    }
    assert_eq!((call(0).send().await.code(), node.calls("getBlock")), (-32015, 2));
}
