//! Checks that every answer of a simulated node has the shape of a real node's answer: the same members, with
//! values of the same types.
//!
//! `tests/fixtures/node-answers.jsonl` has recorded answers of an Agave 4.0.0 node, each with the name of its
//! shape.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use slotfront_sim::Cluster;

use super::{cluster, result};

/// The types of the values at one place in recorded answers. `objects` has the shapes of the members separately
/// for each set of member names.
#[derive(Default)]
struct Shape {
    scalars: BTreeSet<&'static str>,
    objects: BTreeMap<Vec<String>, BTreeMap<String, Shape>>,
    elements: Option<Box<Shape>>,
}

fn scalar(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

impl Shape {
    fn learn(&mut self, value: &Value) {
        self.scalars.insert(scalar(value));
        match value {
            Value::Array(elements) => {
                let shape = self.elements.get_or_insert_default();
                for element in elements {
                    shape.learn(element);
                }
            }
            Value::Object(members) => {
                let variant = self.objects.entry(members.keys().cloned().collect()).or_default();
                for (name, member) in members {
                    variant.entry(name.clone()).or_default().learn(member);
                }
            }
            _ => {}
        }
    }

    /// Describes each place at which `value` has a type or members that no recorded value has there. `at` is the
    /// place of `value` in the answer.
    fn differences(&self, value: &Value, at: &str) -> Vec<String> {
        // `uiAmount` is null for a mint of 20 decimals. The recorded blocks have no such mint.
        let no_ui_amount = value.is_null() && self.scalars.contains("float");
        if !no_ui_amount && !self.scalars.contains(scalar(value)) {
            return vec![format!("{at}: {value:.60}, but a node gives {:?}", self.scalars)];
        }
        match value {
            // If a list is always empty in the recordings, its elements have no known type and are not checked.
            Value::Array(elements) => {
                let known = self.elements.as_ref().filter(|shape| !shape.scalars.is_empty());
                let differences = known.iter().flat_map(|shape| {
                    elements.iter().enumerate().flat_map(|(n, e)| shape.differences(e, &format!("{at}[{n}]")))
                });
                differences.collect()
            }
            Value::Object(members) => {
                let names: Vec<String> = members.keys().cloned().collect();
                let Some(variant) = self.objects.get(&names) else {
                    return vec![format!("{at}: members {names:?}")];
                };
                members.iter().flat_map(|(n, m)| variant[n].differences(m, &format!("{at}.{n}"))).collect()
            }
            _ => vec![],
        }
    }
}

/// Returns the shapes of recorded answers by name. A name begins with the method, as in `getBlock json`.
fn recorded() -> BTreeMap<String, Shape> {
    let mut shapes: BTreeMap<String, Shape> = BTreeMap::new();
    for line in include_str!("../../../../tests/fixtures/node-answers.jsonl").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let answer: Value = serde_json::from_str(line["response"].as_str().unwrap()).unwrap();
        shapes.entry(line["shape"].as_str().unwrap().to_owned()).or_default().learn(&answer["result"]);
    }
    shapes
}

#[track_caller]
fn check(shapes: &BTreeMap<String, Shape>, name: &str, value: &Value) {
    let differences = shapes[name].differences(value, name);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Returns the finalized slots that have a block, beginning `count` slots before the newest finalized slot.
fn finalized_blocks(cluster: &Cluster, count: u64) -> impl Iterator<Item = u64> {
    let last = cluster.slot(slotfront_rpc::methods::Commitment::Finalized);
    (last - count..=last).filter(|slot| cluster.has_block(*slot))
}

#[test]
fn blocks_have_a_nodes_shapes() {
    let (cluster, shapes) = (cluster(), recorded());
    let node = cluster.node(0);
    for name in shapes.keys().filter(|name| name.starts_with("getBlock ")) {
        let kind = name.trim_start_matches("getBlock ");
        let (mut seen, enough) = (0, if kind == "json" { 58 } else { 6 });
        for slot in finalized_blocks(&cluster, 70) {
            let answer = result(node, "getBlock", &json!([slot, config(kind)]));
            let text = answer.to_string();
            // The recordings have no unchecked token transfers. They have blocks with an epoch's rewards only as
            // json, and only with legacy transactions.
            let unchecked = text.contains(r#""type":"transfer"},"program":"spl-token""#);
            let pays_epoch = text.contains("commissionBps");
            if !unchecked && (!pays_epoch || kind == "json" && !text.contains(r#""version":0"#)) {
                check(&shapes, name, &answer);
                seen += 1;
            }
            if seen == enough {
                break;
            }
        }
        assert_eq!(seen, enough, "{name}");
    }
}

/// Returns a getBlock config with `kind` as the details or the encoding.
fn config(kind: &str) -> Value {
    match kind {
        "accounts" | "signatures" | "none" => {
            json!({ "transactionDetails": kind, "maxSupportedTransactionVersion": 0 })
        }
        encoding => json!({ "encoding": encoding, "maxSupportedTransactionVersion": 0 }),
    }
}

/// Changes each element of a block's `transactions`, if there are any.
fn each_transaction(block: &mut Value, change: impl Fn(&mut Value)) {
    if let Some(transactions) = block.get_mut("transactions").and_then(Value::as_array_mut) {
        transactions.iter_mut().for_each(change);
    }
}

fn drop_member(object: &mut Value, name: &str) {
    object.as_object_mut().unwrap().remove(name);
}

/// Checks that a block requested without rewards lacks only its rewards, as on a node. Also checks that a block
/// requested without a maximum transaction version lacks only the versions.
#[test]
fn leaving_out_rewards_and_versions_changes_nothing_else() {
    let cluster = cluster();
    let node = cluster.node(0);
    let slot = cluster.examples().legacy_block.unwrap();
    for kind in ["json", "jsonParsed", "base64", "base58", "binary", "accounts", "signatures", "none"] {
        let ask = |config: &Value| result(node, "getBlock", &json!([slot, config]));
        let whole = ask(&config(kind));
        let (mut unversioned, mut unrewarded) = (config(kind), config(kind));
        drop_member(&mut unversioned, "maxSupportedTransactionVersion");
        unrewarded["rewards"] = false.into();

        let mut expected = whole.clone();
        each_transaction(&mut expected, |transaction| drop_member(transaction, "version"));
        assert_eq!(ask(&unversioned), expected, "{kind} without version");

        let mut expected = whole;
        drop_member(&mut expected, "rewards");
        each_transaction(&mut expected, |transaction| match kind {
            "accounts" => drop_member(&mut transaction["meta"], "rewards"),
            _ => transaction["meta"]["rewards"] = Value::Null,
        });
        assert_eq!(ask(&unrewarded), expected, "{kind} without rewards");
    }
}

#[test]
fn accounts_have_a_nodes_shapes() {
    let (cluster, shapes) = (cluster(), recorded());
    let (node, examples) = (cluster.node(0), cluster.examples());
    let token = |n: usize| examples.token_account_of_mint[n].to_string();
    let accounts = [
        ("lookup_table", examples.lookup_tables[0].to_string()),
        ("mint_2022_plain", examples.mints[4].to_string()),
        ("mint_6", examples.mints[0].to_string()),
        ("mint_native", examples.mints[5].to_string()),
        ("nonce", examples.nonce_account.to_string()),
        ("payer", examples.wallets[0].to_string()),
        ("program_token_2022", "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb".to_owned()),
        ("stake", examples.stake_accounts[0].to_string()),
        ("sysvar_clock", "SysvarC1ock11111111111111111111111111111111".to_owned()),
        ("sysvar_epoch_schedule", "SysvarEpochSchedu1e111111111111111111111111".to_owned()),
        ("sysvar_recent_blockhashes", "SysvarRecentB1ockHashes11111111111111111111".to_owned()),
        ("sysvar_rent", "SysvarRent111111111111111111111111111111111".to_owned()),
        ("sysvar_stake_history", "SysvarStakeHistory1111111111111111111111111".to_owned()),
        ("token_20", token(3)),
        ("token_2022_plain", token(4)),
        ("token_6", token(0)),
        ("token_6_alice", examples.token_accounts[1].to_string()),
        ("token_6_frozen", examples.frozen_token_account.to_string()),
        ("token_uninitialized", examples.uninitialized_token_account.to_string()),
        ("token_wrapped_sol", token(5)),
        ("unknown", "3uWi9x2SRpmjztkpkr2WWeBoVq3exjXG2YfDWLvm8KsQ".to_owned()),
        ("vote", examples.vote_accounts[0].to_string()),
        ("vote_unstaked_1", examples.unstaked_vote_account.to_string()),
    ];
    let parsed = shapes.keys().filter(|name| name.starts_with("getAccountInfo jsonParsed ")).count();
    assert_eq!(parsed, accounts.len(), "every recorded kind is compared");
    for (kind, key) in &accounts {
        let answer = result(node, "getAccountInfo", &json!([key, { "encoding": "jsonParsed" }]));
        // A BLS key is optional. The recorded validator has one, which is a string. A simulated validator has
        // none.
        let mut answer = answer;
        if *kind == "vote" {
            answer["value"]["data"]["parsed"]["info"]["blsPubkeyCompressed"] = "".into();
        }
        check(&shapes, &format!("getAccountInfo jsonParsed {kind}"), &answer);
    }
    for encoding in ["binary", "base58", "base64", "base64+zstd"] {
        let params = json!(["SysvarC1ock11111111111111111111111111111111", { "encoding": encoding }]);
        check(&shapes, &format!("getAccountInfo {encoding}"), &result(node, "getAccountInfo", &params));
    }
    let keys: Vec<&String> = accounts.iter().map(|(_, key)| key).collect();
    check(&shapes, "getMultipleAccounts", &result(node, "getMultipleAccounts", &json!([keys])));
    for n in [0, 3, 5] {
        let answer = result(node, "getTokenAccountBalance", &json!([token(n)]));
        check(&shapes, "getTokenAccountBalance", &answer);
    }
}

#[test]
fn the_other_methods_have_a_nodes_shapes() {
    let (cluster, shapes) = (cluster(), recorded());
    let node = cluster.node(1);
    for (method, params) in [
        ("getVoteAccounts", json!([{ "keepUnstakedDelinquents": true }])),
        ("getRecentPerformanceSamples", json!([])),
        ("getClusterNodes", json!([])),
        ("getFeeForMessage", json!([cluster.examples().fee_message])),
    ] {
        check(&shapes, method, &result(node, method, &params));
    }
}

/// Checks that members are sorted and no whitespace is added: parsing into sorted maps and writing again changes
/// nothing.
#[test]
fn answers_are_sorted_and_compact() {
    let cluster = cluster();
    let slot = cluster.examples().block_with_v0;
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "getBlock",
        "params": [slot, { "encoding": "jsonParsed", "maxSupportedTransactionVersion": 0 }] });
    let answer = String::from_utf8(cluster.node(0).answer(body.to_string().as_bytes())).unwrap();
    let result = answer.strip_prefix(r#"{"jsonrpc":"2.0","result":"#).unwrap();
    let result = result.strip_suffix(",\"id\":1}\n").unwrap();
    let mut value: Value = serde_json::from_str(result).unwrap();
    value.sort_all_objects();
    assert_eq!(value.to_string(), result);
}
