//! The answers of nodes: the state at each commitment, the order of a node's errors, and the differences between
//! nodes.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use slotfront_rpc::methods::{Commitment, Pubkey};
use slotfront_sim::{Cluster, Fault, Settings};

use super::{call, cluster, code, result};

const CLOCK: &str = "SysvarC1ock11111111111111111111111111111111";
const UNUSED: &str = "3uWi9x2SRpmjztkpkr2WWeBoVq3exjXG2YfDWLvm8KsQ";

#[test]
fn equal_settings_make_equal_answers() {
    let settings = Settings { slot_time: None, seed: 77, ..Settings::default() };
    let (a, b) = (Cluster::new(settings.clone()), Cluster::new(settings));
    let slot = a.examples().block_with_v0;
    for body in [
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"getBlock","params":[{slot},{{"maxSupportedTransactionVersion":0}}]}}"#
        ),
        r#"{"jsonrpc":"2.0","id":1,"method":"getVoteAccounts"}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"method":"getRecentPerformanceSamples"}"#.to_owned(),
    ] {
        assert_eq!(a.node(2).answer(body.as_bytes()), b.node(2).answer(body.as_bytes()));
    }
}

#[test]
fn accounts_are_read_at_the_answers_slot() {
    let cluster = cluster();
    let examples = cluster.examples();
    for commitment in Commitment::ALL {
        let slot = cluster.slot(commitment);
        let keys: Vec<Pubkey> = examples.wallets.iter().chain(&examples.token_accounts).copied().collect();
        let names: Vec<String> = keys.iter().map(Pubkey::to_string).collect();
        let config = json!({ "commitment": commitment.as_str(), "encoding": "base64" });
        let answer = result(cluster.node(0), "getMultipleAccounts", &json!([names, config]));
        assert_eq!(answer["context"]["slot"], slot);
        for (key, value) in keys.iter().zip(answer["value"].as_array().unwrap()) {
            let truth = cluster.account_at(key, slot).unwrap();
            assert_eq!(value["lamports"], truth.lamports);
            assert_eq!(value["data"][0], BASE64.encode(&truth.data));
        }
        let single = result(cluster.node(0), "getAccountInfo", &json!([names[0], config]));
        assert_eq!(single["value"], answer["value"][0], "one account is an element of several");
    }
    let slots = Commitment::ALL.map(|commitment| cluster.slot(commitment));
    assert!(slots[0] > slots[1] && slots[1] > slots[2], "{slots:?}");
}

#[test]
fn base58_limit_applies_to_the_sliced_length() {
    let cluster = cluster();
    let node = cluster.node(0);
    let token = cluster.examples().token_accounts[0].to_string();
    let zeros = cluster.examples().uninitialized_token_account.to_string();
    let data = |key: &str, config: Value| {
        result(node, "getAccountInfo", &json!([key, config]))["value"]["data"].take()
    };
    let whole = BASE64.decode(data(&token, json!({ "encoding": "base64" }))[0].as_str().unwrap()).unwrap();
    let slice = |offset: u64, length: u64| json!({ "offset": offset, "length": length });
    let sliced = data(&token, json!({ "encoding": "base64", "dataSlice": slice(64, 8) }));
    assert_eq!(sliced, json!([BASE64.encode(&whole[64..72]), "base64"]));
    let bare = data(&token, json!({ "dataSlice": slice(0, 128) }));
    assert_eq!(bare, bs58::encode(&whole[..128]).into_string());
    assert_eq!(code(node, "getAccountInfo", &json!([token, { "dataSlice": slice(0, 129) }])), -32_600);
    assert_eq!(code(node, "getAccountInfo", &json!([token])), -32_600);
    let zstd = data(&token, json!({ "encoding": "base64+zstd" }));
    let packed = BASE64.decode(zstd[0].as_str().unwrap()).unwrap();
    assert_eq!(zstd::stream::decode_all(&packed[..]).unwrap(), whole);
    let parsed = |config: Value| data(&token, config);
    assert_eq!(
        parsed(json!({ "encoding": "jsonParsed", "dataSlice": slice(0, 4) })),
        parsed(json!({ "encoding": "jsonParsed" })),
        "what can be parsed is not sliced"
    );
    let fallback = data(&zeros, json!({ "encoding": "jsonParsed", "dataSlice": slice(0, 4) }));
    assert_eq!(fallback, json!([BASE64.encode([0; 165]), "base64"]), "neither is what a token program owns");
    let memo = data(
        "MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr",
        json!({ "encoding": "jsonParsed", "dataSlice": slice(0, 4) }),
    );
    assert_eq!(memo, json!([BASE64.encode(b"\x7fELF"), "base64"]), "other fallbacks are");
}

#[test]
fn token_balance_equals_the_parsed_accounts() {
    let cluster = cluster();
    let node = cluster.node(0);
    let examples = cluster.examples();
    for token in &examples.token_account_of_mint {
        let parsed = json!([token.to_string(), { "encoding": "jsonParsed", "commitment": "confirmed" }]);
        let parsed = result(node, "getAccountInfo", &parsed);
        let balance = json!([token.to_string(), { "commitment": "confirmed" }]);
        let balance = result(node, "getTokenAccountBalance", &balance);
        assert_eq!(balance["value"], parsed["value"]["data"]["parsed"]["info"]["tokenAmount"]);
    }
    for (key, words) in [
        (UNUSED.to_owned(), "Invalid param: could not find account"),
        (CLOCK.to_owned(), "Invalid param: not a Token account"),
        (examples.mints[0].to_string(), "Invalid param: not a Token account"),
        (examples.uninitialized_token_account.to_string(), "Invalid param: not a Token account"),
    ] {
        let answer = call(node, "getTokenAccountBalance", &json!([key]));
        assert_eq!(answer["error"], json!({ "code": -32_602, "message": words }));
    }
}

#[test]
fn blocks_are_refused_in_a_nodes_order() {
    let cluster = Cluster::new(Settings { slot_time: None, history_slots: 110, ..Settings::default() });
    let node = cluster.node(0);
    let [processed, confirmed, finalized] = Commitment::ALL.map(|commitment| cluster.slot(commitment));
    let first = Settings::default().first_slot;
    let at = |slot: u64, commitment: &str| json!([slot, { "commitment": commitment, "maxSupportedTransactionVersion": 0, "transactionDetails": "none" }]);
    assert!(call(node, "getBlock", &at(confirmed, "confirmed"))["result"].is_object());
    assert!(call(node, "getBlock", &at(finalized, "finalized"))["result"].is_object());
    assert_eq!(code(node, "getBlock", &at(confirmed, "finalized")), -32_004);
    assert_eq!(code(node, "getBlock", &at(processed, "confirmed")), -32_004);
    assert_eq!(code(node, "getBlock", &at(processed, "processed")), -32_602);
    assert_eq!(code(node, "getBlock", &at(u64::MAX, "confirmed")), -32_004);
    let skipped = cluster.examples().skipped_slot.unwrap();
    assert_eq!(code(node, "getBlock", &at(skipped, "confirmed")), -32_007);
    let answer = call(node, "getBlock", &at(first - 1, "finalized"));
    let words =
        format!("Block {} cleaned up, does not exist on node. First available block: {first}", first - 1);
    assert_eq!(answer["error"], json!({ "code": -32_001, "message": words }));
    node.prune_below(finalized);
    assert_eq!(code(node, "getBlock", &at(skipped, "finalized")), -32_001);
    assert_eq!(result(node, "getFirstAvailableBlock", &json!([])), finalized);
    let v0 = cluster.examples().block_with_v0;
    let other = cluster.node(1);
    let parent = result(other, "getBlock", &at(v0, "finalized"))["parentSlot"].as_u64().unwrap();
    other.set_hole(parent..v0);
    assert_eq!(code(other, "getBlock", &at(parent, "finalized")), -32_007, "a lost block looks skipped");
    assert_eq!(result(other, "getBlock", &at(v0, "finalized")), json!(null), "its parent is lost");
    assert_eq!(result(other, "getBlocks", &json!([parent, v0])), json!([v0]));
    other.set_hole(0..0);
    assert_eq!(code(other, "getBlock", &json!([v0])), -32_015);
    assert_eq!(code(other, "getBlock", &json!([v0, { "transactionDetails": "accounts" }])), -32_015);
    assert!(
        call(other, "getBlock", &json!([v0, { "transactionDetails": "signatures" }]))["result"].is_object()
    );
    other.set_history(false);
    assert_eq!(code(other, "getBlock", &at(processed, "processed")), -32_602, "params come first");
    assert_eq!(code(other, "getBlock", &at(v0, "finalized")), -32_011);
    other.set_full_api(false);
    assert_eq!(code(other, "getBlock", &at(v0, "finalized")), -32_601);
    assert!(call(other, "getVoteAccounts", &json!([]))["result"].is_object());
}

/// Checks that answers for one block in several encodings and levels of detail agree in every transaction.
#[test]
fn the_shapes_of_a_block_agree() {
    let cluster = cluster();
    let slot = cluster.examples().block_with_v0;
    let shape = |config: Value| {
        let mut config = config;
        config["maxSupportedTransactionVersion"] = 0.into();
        result(cluster.node(0), "getBlock", &json!([slot, config]))
    };
    let json = shape(json!({}));
    let parsed = shape(json!({ "encoding": "jsonParsed" }));
    let base64 = shape(json!({ "encoding": "base64" }));
    let accounts = shape(json!({ "transactionDetails": "accounts" }));
    let signatures = shape(json!({ "transactionDetails": "signatures" }));
    for (n, transaction) in json["transactions"].as_array().unwrap().iter().enumerate() {
        assert_eq!(signatures["signatures"][n], transaction["transaction"]["signatures"][0]);
        let keys = &parsed["transactions"][n]["transaction"]["message"]["accountKeys"];
        assert_eq!(accounts["transactions"][n]["transaction"]["accountKeys"], *keys);
        let wire = BASE64.decode(base64["transactions"][n]["transaction"][0].as_str().unwrap()).unwrap();
        let signed = usize::from(wire[0]);
        let message = slotfront_rpc::methods::message::Message::decode(&wire[1 + 64 * signed..]).unwrap();
        message.sanitize().unwrap();
        let expected = &transaction["transaction"]["message"];
        let keys: Vec<String> = message.account_keys.iter().map(|key| Pubkey(*key).to_string()).collect();
        assert_eq!(expected["accountKeys"], json!(keys));
        assert_eq!(expected["header"]["numRequiredSignatures"], signed);
        for (instruction, expected) in
            message.instructions.iter().zip(expected["instructions"].as_array().unwrap())
        {
            assert_eq!(expected["data"], bs58::encode(instruction.data).into_string());
            assert_eq!(expected["accounts"], json!(instruction.accounts));
        }
        assert_eq!(
            message.lookups.len(),
            expected.get("addressTableLookups").map_or(0, |l| l.as_array().unwrap().len())
        );
    }
}

#[test]
fn a_block_reads_the_same_confirmed_and_finalized() {
    let cluster = cluster();
    let slot = cluster.slot(Commitment::Confirmed);
    let ask = |commitment: &str| {
        let config = json!({ "commitment": commitment, "maxSupportedTransactionVersion": 0 });
        call(cluster.node(0), "getBlock", &json!([slot, config]))
    };
    let confirmed = ask("confirmed");
    cluster.step_by(40);
    assert_eq!(confirmed, ask("confirmed"));
    assert_eq!(confirmed, ask("finalized"));
}

#[test]
fn fees_depend_on_the_blockhash_at_the_commitment() {
    let cluster = cluster();
    let node = cluster.node(0);
    let examples = cluster.examples();
    let fee = |message: &str, commitment: &str| {
        result(node, "getFeeForMessage", &json!([message, { "commitment": commitment }]))["value"].take()
    };
    assert_eq!(fee(&examples.fee_message, "finalized"), 5_000);
    assert_eq!(fee(&examples.fee_message_v0, "processed"), 5_000);
    let fresh = &examples.fee_message_processed;
    assert_eq!(fee(fresh, "processed"), 5_000);
    assert_eq!([fee(fresh, "confirmed"), fee(fresh, "finalized")], [Value::Null, Value::Null]);
    cluster.step_by(45);
    assert_eq!(fee(fresh, "finalized"), 5_000, "null until the blockhash is final");
    cluster.step_by(450);
    assert_eq!(fee(fresh, "finalized"), Value::Null, "null once 300 blocks have passed");
    let mut missing = BASE64.decode(&examples.fee_message_v0).unwrap();
    let table = examples.lookup_tables[0].0;
    let at = missing.windows(32).position(|window| window == table).unwrap();
    missing[at] ^= 1;
    let refused = call(node, "getFeeForMessage", &json!([BASE64.encode(missing)]));
    let words = "invalid transaction message: Attempted to lookup addresses from a table that does not exist";
    assert_eq!(refused["error"], json!({ "code": -32_602, "message": words }));
}

/// Checks a durable-nonce message. Its blockhash is stored in the nonce account, so the message never
/// expires.
#[test]
fn nonce_message_has_a_fee_at_any_age() {
    let cluster = cluster();
    let examples = cluster.examples();
    let account = cluster.account_at(&examples.nonce_account, cluster.slot(Commitment::Finalized)).unwrap();
    let (authority, blockhash) = (&account.data[8..40], &account.data[40..72]);
    let sysvar = Pubkey::parse("SysvarRecentB1ockHashes11111111111111111111").unwrap();
    let message = |authority: &[u8]| {
        let keys = [&[4][..], authority, &examples.nonce_account.0, &sysvar.0, &[0; 32]].concat();
        let advance = [1, 3, 3, 1, 2, 0, 4, 4, 0, 0, 0];
        BASE64.encode([&[1, 0, 2][..], &keys, blockhash, &advance].concat())
    };
    let fee = |message: &str| result(cluster.node(0), "getFeeForMessage", &json!([message]))["value"].take();
    assert_eq!(fee(&message(authority)), 5_000);
    assert_eq!(fee(&message(&[9; 32])), Value::Null, "only its authority may advance it");
}

#[test]
fn unreached_minimum_slot_is_refused_with_the_slot() {
    let cluster = cluster();
    let finalized = cluster.slot(Commitment::Finalized);
    let ask = |minimum: u64| {
        call(cluster.node(0), "getAccountInfo", &json!([CLOCK, { "minContextSlot": minimum }]))
    };
    assert!(ask(finalized)["result"].is_object());
    let refused = json!({ "code": -32_016, "message": "Minimum context slot has not been reached",
        "data": { "contextSlot": finalized } });
    assert_eq!(ask(finalized + 1)["error"], refused);
}

#[test]
fn vote_accounts_are_current_delinquent_or_unstaked() {
    let cluster = cluster();
    let examples = cluster.examples();
    let votes = |node: usize, config: Value| {
        let answer = result(cluster.node(node), "getVoteAccounts", &json!([config]));
        ["current", "delinquent"].map(|list| {
            let list = answer[list].as_array().unwrap();
            list.iter().map(|entry| entry["votePubkey"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        })
    };
    let set = |list: &[String]| list.iter().cloned().collect::<BTreeSet<_>>();
    let names = |keys: &[Pubkey]| keys.iter().map(Pubkey::to_string).collect::<BTreeSet<_>>();
    let [current, delinquent] = votes(0, json!({}));
    assert_eq!(set(&current), names(&examples.vote_accounts));
    assert_eq!(set(&delinquent), names(&[examples.delinquent_vote_account]));
    let [_, delinquent] = votes(0, json!({ "keepUnstakedDelinquents": true }));
    assert_eq!(set(&delinquent), names(&[examples.delinquent_vote_account, examples.unstaked_vote_account]));
    assert_eq!(votes(0, json!({ "delinquentSlotDistance": 0 }))[0], [""; 0]);
    assert_eq!(votes(0, json!({ "votePubkey": UNUSED })), [Vec::<String>::new(), vec![]]);
    let one = examples.vote_accounts[1].to_string();
    assert_eq!(votes(0, json!({ "votePubkey": one })), [vec![one], vec![]]);
    let orders: BTreeSet<_> = (0..3).map(|node| votes(node, json!({}))[0].clone()).collect();
    assert!(orders.len() > 1, "each node has its own order");
    let entry = result(cluster.node(0), "getVoteAccounts", &json!([]))["current"][0].take();
    assert_eq!(
        entry["rootSlot"].as_u64().unwrap().cmp(&entry["lastVote"].as_u64().unwrap()),
        std::cmp::Ordering::Less
    );
}

#[test]
fn limit_takes_each_nodes_newest_samples() {
    let cluster = Cluster::new(Settings { slot_time: None, history_slots: 330, ..Settings::default() });
    let samples =
        |node: usize, params: Value| result(cluster.node(node), "getRecentPerformanceSamples", &params);
    let all = samples(0, json!([]));
    let all = all.as_array().unwrap();
    assert!(all.len() >= 30);
    assert_eq!(samples(0, json!([2])), json!(all[..2]));
    assert_eq!(samples(0, json!([0])), json!([]));
    assert!(all.windows(2).all(|pair| pair[0]["slot"].as_u64() > pair[1]["slot"].as_u64()));
    assert_ne!(samples(0, json!([1])), samples(1, json!([1])));
}

#[test]
fn a_lagging_node_answers_for_its_own_slots() {
    let cluster = cluster();
    let (fresh, lagging) = (cluster.node(0), cluster.node(1));
    lagging.set_lag(50);
    let slot = |node: usize, commitment| cluster.node(node).slot(commitment);
    for commitment in Commitment::ALL {
        let behind = slot(0, commitment) - slot(1, commitment);
        assert!((45..=55).contains(&behind), "{behind} slots behind at {commitment}");
        let config = json!({ "commitment": commitment.as_str(), "encoding": "jsonParsed" });
        let clock = result(lagging, "getAccountInfo", &json!([CLOCK, config]));
        assert_eq!(clock["value"]["data"]["parsed"]["info"]["slot"], slot(1, commitment));
    }
    let newest = slot(0, Commitment::Finalized);
    assert_eq!(code(lagging, "getBlock", &json!([newest])), -32_004);
    assert_eq!(result(lagging, "getHealth", &json!([])), "ok");
    cluster.step_by(80);
    lagging.set_lag(150);
    let refused = call(lagging, "getHealth", &json!([]))["error"].take();
    assert_eq!(refused["code"], -32_005);
    assert!(refused["data"]["numSlotsBehind"].as_u64().unwrap() >= 150);
    fresh.set_healthy(false);
    let refused = call(fresh, "getHealth", &json!([]))["error"].take();
    assert_eq!(
        refused,
        json!({ "code": -32_005, "message": "Node is unhealthy", "data": { "numSlotsBehind": null } })
    );
}

#[test]
fn a_node_stands_still_until_it_goes_on() {
    let cluster = cluster();
    let (other, node) = (cluster.node(0), cluster.node(1));
    let slot = node.slot(Commitment::Processed);
    node.stand_still_at(Some(slot));
    cluster.step_to_block();
    assert_eq!(node.slot(Commitment::Processed), slot);
    node.stand_still_at(None);
    assert_eq!(node.slot(Commitment::Processed), other.slot(Commitment::Processed));
}

#[test]
fn probes_and_clients_get_the_small_methods() {
    let cluster = cluster();
    let node = cluster.node(0);
    let [processed, _, finalized] = Commitment::ALL.map(|commitment| cluster.slot(commitment));
    assert_eq!(result(node, "getSlot", &json!([])), finalized);
    assert_eq!(result(node, "getSlot", &json!([{ "commitment": "processed" }])), processed);
    assert_eq!(result(node, "getVersion", &json!([]))["solana-core"], "4.0.0");
    let info = result(node, "getEpochInfo", &json!([{ "commitment": "processed" }]));
    assert_eq!(
        (&info["absoluteSlot"], &info["epoch"], &info["slotsInEpoch"]),
        (&processed.into(), &800.into(), &432_000.into())
    );
    assert_eq!(info["blockHeight"], result(node, "getBlockHeight", &json!([{ "commitment": "processed" }])));
    let latest = result(node, "getLatestBlockhash", &json!([]));
    let block = result(node, "getBlock", &json!([finalized, { "transactionDetails": "none" }]));
    assert_eq!(latest["value"]["blockhash"], block["blockhash"]);
    let valid = result(node, "isBlockhashValid", &json!([block["blockhash"]]));
    assert_eq!(valid["value"], true);
    assert!(Pubkey::parse(result(node, "getGenesisHash", &json!([])).as_str().unwrap()).is_ok());
    assert_eq!(result(node, "minimumLedgerSlot", &json!([])), Settings::default().first_slot);
    assert_eq!(code(node, "getNothing", &json!([])), -32_601);
}

#[test]
fn nodes_report_their_version_everywhere() {
    let cluster = cluster();
    let node = cluster.node(0);
    let reported = || {
        let version = result(node, "getVersion", &json!([]));
        assert_eq!(version.as_object().unwrap().keys().collect::<Vec<_>>(), ["feature-set", "solana-core"]);
        let account = result(node, "getAccountInfo", &json!([CLOCK]));
        assert_eq!(account["context"]["apiVersion"], version["solana-core"]);
        version["solana-core"].as_str().unwrap().to_owned()
    };
    assert_eq!(reported(), "4.0.0");
    node.set_version("4.3.1");
    assert_eq!(reported(), "4.3.1");
    node.set_firedancer(true);
    assert_eq!(reported(), "0.806.40000");
}

#[test]
fn a_chain_may_end_now() {
    let settings =
        Settings { slot_time: None, history_slots: 50, skipped_per_mille: 0, ..Settings::default() };
    let cluster = Cluster::new(settings.with_newest_slot_at(1_800_000_000));
    let config = json!({ "encoding": "jsonParsed", "commitment": "processed" });
    let clock = result(cluster.node(0), "getAccountInfo", &json!([CLOCK, config]));
    assert_eq!(clock["value"]["data"]["parsed"]["info"]["unixTimestamp"], 1_800_000_000);
}

#[test]
fn a_chain_may_begin_at_slot_0() {
    let settings = Settings { slot_time: None, first_slot: 0, slots_per_epoch: 64, ..Settings::default() };
    let cluster = Cluster::new(settings);
    let genesis = result(cluster.node(0), "getBlock", &json!([0]));
    assert_eq!(genesis["blockhash"], genesis["previousBlockhash"]);
    assert_eq!([&genesis["blockHeight"], &genesis["parentSlot"]], [&json!(0), &json!(0)]);
}

#[test]
fn batches_keep_their_order_and_drop_notifications() {
    let cluster = cluster();
    let answer = |body: &str| String::from_utf8(cluster.node(0).answer(body.as_bytes())).unwrap();
    let slot = cluster.slot(Commitment::Finalized);
    let batch = r#"[{"jsonrpc":"2.0","method":"getSlot"},{"jsonrpc":"2.0","id":"b","method":"getSlot"},{}]"#;
    let expected = format!(
        "[{{\"jsonrpc\":\"2.0\",\"result\":{slot},\"id\":\"b\"}},{{\"jsonrpc\":\"2.0\",\"error\":{{\"code\":-32600,\"message\":\"Invalid request\"}},\"id\":null}}]\n"
    );
    assert_eq!(answer(batch), expected);
    assert_eq!(answer(r#"[{"jsonrpc":"2.0","method":"getSlot"}]"#), "");
    assert_eq!(answer("[]"), "");
}

#[test]
fn in_place_answers_skip_faults_and_counters() {
    let cluster = cluster();
    cluster.node(0).fault(Fault::Hang);
    assert!(result(cluster.node(0), "getSlot", &json!([])).is_u64());
    assert_eq!(cluster.node(0).calls_total(), 0);
}
