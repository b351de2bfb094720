//! The methods beside the eight: which answers are shared and kept, which nodes are asked, and which plans open them.

use std::time::Duration;

use serde_json::{Value, json};
use slotfront::config::{AuthMode, Config};
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront::methods::{AnyMethod, Commitment, Group, Method, PerCommitment, Pubkey};
use slotfront_sim::Fault;
use slotfront_testkit::{FORWARDED, TestGateway, forwarded_params};

/// Sets the methods that the plan of the key names. `None` is a plan that names none.
fn plan(methods: Option<Vec<AnyMethod>>) -> impl FnOnce(&mut Config) {
    move |config| config.plans.get_mut("dev").unwrap().methods = methods
}

/// Lets answers about the newest state expire at once.
fn without_state(config: &mut Config) {
    config.cache.ttl.account = PerCommitment::uniform(Duration::ZERO);
    config.cache.stale_while_revalidate = PerCommitment::uniform(0.0);
}

#[tokio::test]
async fn answers_equal_a_nodes() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let (there, node) = (gateway.cluster.examples(), gateway.cluster.node(0));
    let wallet = there.wallets[0].to_string();
    let (token, mint) = (there.token_accounts[0].to_string(), there.mints[0].to_string());
    let slot = gateway.cluster.slot(Commitment::Finalized) - 9;
    let program = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA";
    let mut met = Vec::new();
    for (method, params) in [
        ("getBalance", json!([wallet])),
        ("getTokenSupply", json!([mint])),
        ("getTokenSupply", json!([wallet])),
        ("getGenesisHash", json!([])),
        ("getEpochSchedule", json!([])),
        ("getInflationGovernor", json!([{ "commitment": "confirmed" }])),
        ("getInflationRate", json!([])),
        ("getInflationReward", json!([[wallet]])),
        ("getInflationReward", json!([[there.stake_accounts[0].to_string()], { "epoch": 3 }])),
        ("getStakeMinimumDelegation", json!([])),
        ("getMinimumBalanceForRentExemption", json!([165])),
        ("getLeaderSchedule", json!([])),
        ("getLeaderSchedule", json!([slot, { "identity": wallet }])),
        ("getLeaderSchedule", json!([slot * 1000])),
        ("getSlotLeaders", json!([slot, 7])),
        ("getSlotLeader", json!([])),
        ("getHealth", json!([])),
        ("getVersion", json!([])),
        ("getFirstAvailableBlock", json!([])),
        ("minimumLedgerSlot", json!([])),
        ("getRecentPrioritizationFees", json!([[wallet]])),
        ("getTransactionCount", json!([])),
        ("getBlockProduction", json!([])),
        ("getBlockCommitment", json!([slot])),
        ("getHighestSnapshotSlot", json!([])),
        ("getMaxRetransmitSlot", json!([])),
        ("getMaxShredInsertSlot", json!([])),
        ("getIdentity", json!([])),
        ("getBlockTime", json!([slot])),
        ("getBlockTime", json!([slot + 1_000_000])),
        ("getBlocks", json!([slot - 9, slot])),
        ("getBlocks", json!([slot, slot - 9])),
        ("getBlocks", json!([slot, slot + 500_001, { "commitment": "confirmed" }])),
        ("getBlocksWithLimit", json!([slot - 9, 5])),
        (
            "getTransaction",
            json!([
                "5VERv8NMvzbJMEkV8xnrLkEaWRtSz9CosKDYjCJjBRnbJLgp8uirBgmQpjKhoR4tjF3ZpRzrFmBV6UjKdiSZkQUW"
            ]),
        ),
        ("getSignaturesForAddress", json!([wallet, { "limit": 3 }])),
        ("getTokenAccountsByOwner", json!([wallet, { "programId": program }, { "encoding": "jsonParsed" }])),
        ("getTokenAccountsByDelegate", json!([wallet, { "mint": mint }])),
        ("getProgramAccounts", json!([program, { "encoding": "base64", "filters": [{ "dataSize": 82 }] }])),
        ("getTokenLargestAccounts", json!([mint])),
        ("getTokenLargestAccounts", json!([token])),
        ("getLargestAccounts", json!([])),
        ("getSupply", json!([{ "excludeNonCirculatingAccountsList": true }])),
    ] {
        let call = gateway.call(method, params);
        let reply = call.send().await;
        assert_eq!(reply.json(), call.answer_of(node), "{}", call.body());
        met.push(Method::from_name(method).unwrap());
    }
    let missing: Vec<_> =
        Method::ALL[Method::GetBalance.index()..].iter().filter(|method| !met.contains(method)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[tokio::test]
async fn balance_and_account_share_one_entry() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let (cluster, node) = (&gateway.cluster, gateway.cluster.node(0));
    let wallet = cluster.examples().wallets[0];
    let balance = |key: String| gateway.call("getBalance", json!([key])).confirmed();
    let first = balance(wallet.to_string()).send().await;
    let lamports = cluster.account_at(&wallet, first.slot()).unwrap().lamports;
    assert_eq!((first.value(), first.cache_status()), (json!(lamports), "fwd=miss; stored"));
    // The account has no data, so all of it is known.
    let account = gateway.get_account(wallet).confirmed().base64().send().await;
    assert!(account.is_hit() && account.value()["lamports"] == json!(lamports), "{}", account.text);
    assert_eq!((node.calls("getBalance"), node.calls("getAccountInfo")), (0, 1));

    // Every form of an account shows its lamports.
    for (n, encoding) in ["jsonParsed", "base64+zstd", "base64", "base58"].into_iter().enumerate() {
        let token = cluster.examples().token_accounts[n];
        let account = gateway.get_account(token).confirmed().encoding(encoding).send().await;
        let balance = balance(token.to_string()).send().await;
        assert!(balance.is_hit(), "{encoding}: {}", balance.cache_status());
        // The account is too long for base58, but was read.
        if encoding != "base58" {
            assert_eq!(balance.slot(), account.slot(), "{encoding}");
        }
        let lamports = cluster.account_at(&token, balance.slot()).unwrap().lamports;
        assert_eq!(balance.value(), json!(lamports), "{encoding}");
    }
    let absent = balance(Pubkey([7; 32]).to_string()).send().await;
    assert_eq!(absent.value(), json!(0), "{}", absent.text);
    let beyond = balance(wallet.to_string()).min_context_slot(cluster.slot(Commitment::Confirmed) + 1000);
    assert_eq!(beyond.send().await.code(), -32016);
}

#[tokio::test]
async fn minimum_slot_of_a_list_is_one_of_its_commitment() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let [confirmed, finalized] =
        [Commitment::Confirmed, Commitment::Finalized].map(|commitment| gateway.cluster.slot(commitment));
    assert!(confirmed > finalized);
    let list = gateway.call("getBlocks", json!([finalized - 9, finalized - 3]));
    let expected = list.result_of(gateway.cluster.node(0));
    // The list is the same at both commitments, but only one of them has reached the slot.
    for _ in 0..2 {
        let reply = list.clone().confirmed().min_context_slot(confirmed).send().await;
        assert_eq!(reply.result(), expected, "{}", reply.text);
        let ahead = list.clone().min_context_slot(confirmed).send().await;
        assert_eq!(ahead.code(), -32016, "{}", ahead.text);
    }
    let reached = list.clone().min_context_slot(finalized).send().await;
    assert!(reached.is_hit(), "{}", reached.cache_status());
    gateway.cluster.node(0).set_down(true);
    assert_eq!(list.min_context_slot(confirmed).send().await.code(), -32095, "no node tells the slot");
}

#[tokio::test]
async fn refusals_of_a_list_name_the_slot_of_its_commitment() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let slots = [Commitment::Finalized, Commitment::Confirmed].map(|c| gateway.cluster.slot(c));
    let list =
        gateway.call("getBlocks", json!([slots[0] - 9, slots[0] - 3])).min_context_slot(slots[1] + 1000);
    let hold = gateway.cluster.node(0).hold("getBlocks");
    let waits = async {
        hold.arrived(2).await;
        hold.release();
    };
    let (finalized, confirmed, ()) = tokio::join!(list.clone().send(), list.confirmed().send(), waits);
    let told = [finalized, confirmed].map(|refused| refused.error()["data"]["contextSlot"].clone());
    assert_eq!(told, slots.map(|slot| json!(slot)));
}

#[tokio::test]
async fn slot_of_the_largest_accounts_is_not_the_nodes() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let (node, frontier) = (gateway.cluster.node(0), &gateway.front().frontier);
    let finalized = gateway.cluster.slot(Commitment::Finalized);
    // The node has found the accounts for a caller at processed, or an hour ago.
    for (filter, slot) in [("circulating", finalized + 31), ("nonCirculating", finalized - 5000)] {
        let found = json!({ "context": { "apiVersion": "4.0.0", "slot": slot }, "value": [] });
        node.fault_on("getLargestAccounts", Fault::Result(found.clone()), Some(1));
        let largest = gateway.call("getLargestAccounts", json!([{ "filter": filter }])).send().await;
        assert_eq!((largest.status, largest.result()), (200, found), "{}", largest.text);
        let known = (frontier.slot(Commitment::Finalized), frontier.slots_of(0).slot(Commitment::Finalized));
        assert_eq!(known, (finalized, Some(finalized)));
    }
    assert_eq!(node.calls("getLargestAccounts"), 2);
}

#[tokio::test]
async fn scans_are_counted_by_their_method() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    gateway.call("getSupply", json!([])).send().await;
    let series = r#"slotfront_upstream_requests_total{method="getSupply",result="ok",upstream="node-0"}"#;
    gateway.until_metric(series, 1).await;
}

#[tokio::test]
async fn lists_with_a_limit_stay_once_they_are_full_and_final() {
    let gateway = TestGateway::builder().nodes(1).config(without_state).start().await;
    let newest = gateway.cluster.slot(Commitment::Finalized);
    let blocks = |first: u64, limit: u64| gateway.call("getBlocksWithLimit", json!([first, limit]));
    let list: Vec<u64> = (newest - 9..newest).collect();
    for (limit, is_kept) in [(9, true), (10, false)] {
        gateway.cluster.node(0).fault_on("getBlocksWithLimit", Fault::Result(json!(list)), Some(1));
        let first = blocks(newest - 9, limit).send().await;
        assert_eq!(first.result(), json!(list), "{}", first.text);
        gateway.step_by(4).await;
        gateway.cluster.node(0).fault_on("getBlocksWithLimit", Fault::Result(json!([])), Some(1));
        let later = blocks(newest - 9, limit).confirmed().send().await;
        assert_eq!(later.is_hit(), is_kept, "a list of {limit}: {}", later.cache_status());
        gateway.cluster.clear_faults();
    }
}

#[tokio::test]
async fn times_are_kept_once_their_block_is_final() {
    let gateway = TestGateway::builder().nodes(2).start().await;
    let finalized = gateway.cluster.slot(Commitment::Finalized);
    for (slot, is_kept) in [(finalized, true), (finalized + 1, false)] {
        gateway.cluster.fault_everywhere("getBlockTime", &Fault::Result(json!(17)));
        for is_again in [false, true] {
            let reply = gateway.call("getBlockTime", json!([slot])).send().await;
            assert_eq!(reply.result(), json!(17));
            assert_eq!(reply.is_hit(), is_kept && is_again, "{slot}: {}", reply.cache_status());
        }
    }
    // A kept block shows its time, whatever its shape.
    let block = gateway.get_block(finalized - 20).details("none").send().await;
    let time = gateway.call("getBlockTime", json!([finalized - 20])).send().await;
    assert_eq!((time.is_derived(), time.result()), (true, block.result()["blockTime"].clone()));
    // A node without the block's time proves nothing.
    gateway.cluster.clear_faults();
    gateway.cluster.node(0).fault_on("getBlockTime", Fault::Result(Value::Null), None);
    gateway.cluster.node(1).fault_on("getBlockTime", Fault::Result(json!(18)), None);
    for slot in finalized - 8..finalized {
        assert_eq!(gateway.call("getBlockTime", json!([slot])).send().await.result(), json!(18));
    }
}

const SIGNATURE: &str =
    "5VERv8NMvzbJMEkV8xnrLkEaWRtSz9CosKDYjCJjBRnbJLgp8uirBgmQpjKhoR4tjF3ZpRzrFmBV6UjKdiSZkQUW";

fn page(slot: u64) -> Value {
    json!([{ "signature": SIGNATURE, "slot": slot }, { "signature": SIGNATURE, "slot": 4 }])
}

#[tokio::test]
async fn pages_of_signatures_stay_once_they_are_full() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(without_state)
        .config(|config| config.cache.ttl.block_confirmed = Duration::from_mins(1))
        .start()
        .await;
    gateway.cluster.fault_everywhere("getSignaturesForAddress", &Fault::Result(page(5)));
    let key = gateway.cluster.examples().wallets[0].to_string();
    for (config, is_kept) in [
        // At confirmed such a page is kept as a block is.
        (json!({ "limit": 2, "before": SIGNATURE, "commitment": "confirmed" }), true),
        (json!({ "limit": 3, "before": SIGNATURE, "commitment": "confirmed" }), false),
        (json!({ "limit": 2, "commitment": "confirmed" }), false),
        (json!({ "limit": 2, "before": SIGNATURE }), true),
        (json!({ "limit": 3, "before": SIGNATURE }), false),
        (json!({ "limit": 2 }), false),
    ] {
        let call = gateway.call("getSignaturesForAddress", json!([key, config]));
        assert_eq!(call.send().await.cache_status(), "fwd=miss; stored");
        gateway.step_by(20).await;
        assert_eq!(call.send().await.is_hit(), is_kept, "{config}");
    }
}

#[tokio::test]
async fn only_final_answers_at_finalized_serve_callers_at_confirmed() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| config.cache.ttl.account = PerCommitment::uniform(Duration::from_mins(1)))
        .start()
        .await;
    let key = gateway.cluster.examples().wallets[0].to_string();
    let newest = gateway.cluster.slot(Commitment::Finalized);
    let list = |first: u64| (newest - first..newest).collect::<Vec<_>>();
    let pages = "getSignaturesForAddress";
    let with_limit = "getBlocksWithLimit";
    for (method, params, first, later, is_shared) in [
        (pages, json!([key, { "limit": 2, "before": SIGNATURE }]), page(5), page(6), true),
        (pages, json!([key, { "limit": 3, "before": SIGNATURE }]), page(5), page(6), false),
        (pages, json!([key, { "limit": 2 }]), page(5), page(6), false),
        (with_limit, json!([newest - 9, 9, {}]), json!(list(9)), json!(list(8)), true),
        (with_limit, json!([newest - 8, 10, {}]), json!(list(8)), json!(list(7)), false),
    ] {
        let call = gateway.call(method, params.clone());
        gateway.cluster.node(0).fault_on(method, Fault::Result(first.clone()), None);
        assert_eq!(call.send().await.result(), first, "{params}");
        gateway.cluster.clear_faults();
        gateway.cluster.node(0).fault_on(method, Fault::Result(later.clone()), None);
        assert_eq!(call.send().await.result(), first, "the answer is kept: {params}");
        let mut at_confirmed = params.clone();
        at_confirmed.as_array_mut().unwrap().last_mut().unwrap()["commitment"] = "confirmed".into();
        let confirmed = gateway.call(method, at_confirmed).send().await;
        assert_eq!(confirmed.result(), if is_shared { first } else { later }, "{params}");
        gateway.cluster.clear_faults();
    }
}

#[tokio::test]
async fn pool_answers_for_its_nodes() {
    let gateway = TestGateway::builder()
        .nodes(3)
        .prepare(|cluster| {
            cluster.node(0).set_version("4.10.1");
            cluster.node(1).set_version("4.9.2");
            cluster.node(2).set_version("0.708.40000");
            let newest = cluster.slot(Commitment::Finalized);
            cluster.node(0).prune_below(newest - 10);
            cluster.node(1).prune_below(newest - 20);
            cluster.node(2).prune_below(newest - 10);
        })
        .start()
        .await;
    let oldest = json!(gateway.cluster.slot(Commitment::Finalized) - 20);
    let ask = |method: &'static str| gateway.call(method, json!([]));
    let result = async |method| ask(method).send().await.result();
    assert_eq!(result("getHealth").await, json!("ok"));
    assert_eq!(result("getVersion").await["solana-core"], "4.9.2");
    assert_eq!(result("getFirstAvailableBlock").await, oldest);
    assert_eq!(result("minimumLedgerSlot").await, oldest);
    assert_eq!(gateway.upstream_calls(), 0);
    for node in gateway.cluster.nodes() {
        node.set_healthy(false);
    }
    gateway.until("no node is usable", || (0..3).all(|node| gateway.unusable(node).is_some())).await;
    let unhealthy = ask("getHealth").send().await;
    assert_eq!((unhealthy.status, unhealthy.code()), (200, -32005));
    let answer = ask("getHealth").answer_of(gateway.cluster.node(0));
    assert_eq!(unhealthy.error(), answer["error"]);
}

#[tokio::test]
async fn plans_open_methods_by_group() {
    let groups = |groups: &[Group]| Some(groups.iter().flat_map(|group| group.methods()).collect());
    for (methods, allowed) in [
        (None, ["getAccountInfo", "getHealth", "getSlot", "getBlocks", "getTokenAccountsByOwner"].as_slice()),
        (groups(&[Group::Core]), &["getAccountInfo", "getHealth"]),
        (groups(&[Group::Core, Group::History]), &["getAccountInfo", "getHealth", "getBlocks"]),
        (groups(&[Group::Owners]), &["getTokenAccountsByOwner"]),
        (groups(&[Group::Tip, Group::Scans]), &["getSlot", "getSupply"]),
        (groups(&[Group::Simulation]), &[FORWARDED]),
    ] {
        let gateway = TestGateway::builder().nodes(1).config(plan(methods)).start().await;
        let key = json!(gateway.cluster.examples().wallets[0].to_string());
        let mint = json!({"programId": "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"});
        for (method, params) in [
            ("getAccountInfo", json!([key])),
            ("getHealth", json!([])),
            ("getSlot", json!([])),
            ("getBlocks", json!([1, 2])),
            ("getTokenAccountsByOwner", json!([key, mint])),
            ("getSupply", json!([])),
            (FORWARDED, forwarded_params()),
        ] {
            let reply = gateway.call(method, params).send().await;
            let expected = if allowed.contains(&method) { 200 } else { 403 };
            assert_eq!(reply.status, expected, "{method} with {allowed:?}: {}", reply.text);
        }
    }
}

/// Whoever may send a transaction may try it first.
#[tokio::test]
async fn senders_may_simulate() {
    for (send, own, expected) in [
        (false, None, 403),
        (true, None, 200),
        (true, Some(vec![AnyMethod::Send]), 403),
        (true, Some(vec![AnyMethod::Send, AnyMethod::from_name(FORWARDED).unwrap()]), 200),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let file = KeyFile::new(dir.path().join("keys.toml"));
        let mut new = NewKey::of("a", "dev");
        new.scope.methods = own;
        let key = file.create(&new, jiff::Timestamp::now()).unwrap();
        let path = file.path().to_owned();
        let gateway = TestGateway::builder()
            .nodes(1)
            .config(|config| {
                plan(Some(vec![AnyMethod::Own(Method::GetHealth)]))(config);
                config.plans.get_mut("dev").unwrap().send = send;
                config.plans.get_mut("dev").unwrap().daily_units = Some(100);
                config.auth.keys_file = Some(path);
            })
            .start()
            .await;
        let call = gateway.call(FORWARDED, forwarded_params()).key(key.key.expose());
        let reply = call.send().await;
        assert_eq!(reply.status, expected, "{send}: {}", reply.text);
        let left = if expected == 200 { "\"day\";r=95" } else { "\"day\";r=100" };
        assert!(reply.header("ratelimit").contains(left), "{:?}", reply.headers);
    }
}

/// Without a plan, everybody may what a plan opens that names no methods.
#[tokio::test]
async fn nobody_needs_a_plan_for_usual_methods() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| (config.auth.mode, config.auth.open_plan) = (AuthMode::Open, None))
        .start()
        .await;
    let key = json!(gateway.cluster.examples().wallets[0].to_string());
    for (method, params, expected) in [
        ("getBlocks", json!([1, 2]), 200),
        ("getTokenAccountsByDelegate", json!([key, {"mint": key}]), 200),
        ("getSupply", json!([]), 403),
        (FORWARDED, forwarded_params(), 403),
    ] {
        let reply = gateway.call(method, params).send().await;
        assert_eq!(reply.status, expected, "{method}: {}", reply.text);
    }
}

#[tokio::test]
async fn scans_are_kept_shared_and_limited() {
    let gateway = TestGateway::builder()
        .nodes(2)
        .config(|config| {
            config.pool.max_scans = 1;
            config.upstreams[0].methods = Some(Group::Core.methods().collect());
        })
        .start()
        .await;
    let programs: Vec<_> = gateway.cluster.examples().wallets[..2].iter().map(ToString::to_string).collect();
    let scan = |n: usize, filters: Value| {
        gateway.call("getProgramAccounts", json!([programs[n], { "filters": filters }]))
    };
    gateway.cluster.fault_everywhere("getProgramAccounts", &Fault::Result(json!([])));
    let memcmp = json!({ "memcmp": { "offset": 4, "bytes": "1" } });
    let first = scan(0, json!([{ "dataSize": 9 }, memcmp])).send().await;
    assert_eq!(first.cache_status(), "fwd=miss; stored");
    assert!(scan(0, json!([memcmp, { "dataSize": 9 }])).send().await.is_hit(), "the order does not matter");
    assert_eq!(gateway.cluster.node(0).calls("getProgramAccounts"), 0, "it does not get them");

    let node = gateway.cluster.node(1);
    let hold = node.hold("getProgramAccounts");
    let waits = async {
        hold.arrived(1).await;
        gateway.until_in_flight(2).await;
        assert_eq!(node.calls("getProgramAccounts"), 2, "the second one waits");
        hold.release();
    };
    let (one, two, ()) = tokio::join!(scan(0, json!([])).send(), scan(1, json!([])).send(), waits);
    assert_eq!((one.status, two.status), (200, 200));
}
