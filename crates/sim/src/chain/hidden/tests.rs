//! Checks that each block names every account that it changes, except for the accounts that `hidden::all` lists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::{Cluster, Settings};

/// The number of slots that the test checks. It is below the number of slots whose states are kept.
const WALKED: u64 = 300;

/// Makes a cluster with these settings and enough history, so that all blocks to check are final.
fn cluster(settings: &Settings) -> Arc<Cluster> {
    Cluster::new(Settings { slot_time: None, history_slots: WALKED + 60, ..settings.clone() })
}

/// Returns the accounts that a block names in the node's answer: writable accounts of transactions, and accounts of
/// rewards.
fn write_set(cluster: &Cluster, slot: Slot) -> BTreeSet<String> {
    let config = json!({
        "commitment": "confirmed", "transactionDetails": "accounts", "rewards": true,
        "maxSupportedTransactionVersion": 0,
    });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "getBlock", "params": [slot, config] });
    let answer: Value = serde_json::from_slice(&cluster.node(0).answer(call.to_string().as_bytes())).unwrap();
    let block = &answer["result"];
    let list = |value: &Value| value.as_array().unwrap().clone();
    let transactions = list(&block["transactions"]).into_iter();
    let keys = transactions.flat_map(|t| list(&t["transaction"]["accountKeys"]));
    let writable = keys.filter(|key| key["writable"] == true);
    writable.chain(list(&block["rewards"])).map(|key| key["pubkey"].as_str().unwrap().to_owned()).collect()
}

/// Returns the accounts whose states after `before` and after `slot` differ.
fn changed(chain: &Chain, before: Slot, slot: Slot) -> BTreeSet<Pubkey> {
    let state = |slot| chain.accounts.all_at(slot).collect::<BTreeMap<_, _>>();
    let (old, new) = (state(before), state(slot));
    old.keys().chain(new.keys()).filter(|key| old.get(*key) != new.get(*key)).map(|key| **key).collect()
}

/// Checks that blocks name every account that they change, except for the accounts that `hidden::all` lists.
///
/// Returns the reasons for the unnamed changes, with the positions in an epoch of the blocks that made them. The
/// position is 0 for the first block, 1 for the second, and 2 for any later block.
fn walk(settings: &Settings) -> BTreeMap<HiddenRule, BTreeSet<u64>> {
    let cluster = cluster(settings);
    let rules: BTreeMap<Pubkey, HiddenRule> =
        cluster.hidden_writes().iter().map(|write| (write.address, write.rule)).collect();
    let mut seen: BTreeMap<HiddenRule, BTreeSet<u64>> = BTreeMap::new();
    let (mut failed, mut newest_opening) = (0, 0);
    let first = cluster.read(|chain| chain.first_block().slot);
    for slot in first + 1..=first + WALKED {
        let (changed, block) =
            cluster.read(|chain| (changed(chain, slot - 1, slot), chain.block(slot).map(Arc::clone)));
        let Some(block) = block else {
            assert!(changed.is_empty(), "{slot} has no block and changes {changed:?}");
            continue;
        };
        failed += block.transactions.iter().filter(|t| t.failure.is_some()).count();
        if cluster.read(|chain| chain.epoch(slot) > chain.epoch(block.parent_slot)) {
            newest_opening = block.height;
        }
        let named = write_set(&cluster, slot);
        for key in changed.iter().filter(|key| !named.contains(&key.to_string())) {
            let rule = rules.get(key).unwrap_or_else(|| panic!("{slot} changes {key} unnamed"));
            seen.entry(*rule).or_default().insert((block.height - newest_opening).min(2));
        }
    }
    assert!(failed > 10, "only {failed} transactions failed");
    seen
}

#[test]
fn blocks_name_all_writes_but_the_hidden_ones() {
    use HiddenRule::{Alpenglow, BuiltIn, EpochStart, Feature, Incinerator, Stake, Sysvar, Vote};
    let warmup = Settings { first_slot: 0, slots_per_epoch: 64, warmup: true, ..Settings::default() };
    let short = Settings { slots_per_epoch: 32, first_slot: 6_400, seed: 5, ..Settings::default() };
    for settings in [warmup, short] {
        let seen = walk(&settings);
        for rule in [Sysvar, Vote, Incinerator, Alpenglow] {
            assert!(seen[&rule].contains(&2), "{rule:?} {seen:?}");
        }
        assert_eq!(seen[&Stake], BTreeSet::from([1, 2]));
        for rule in [BuiltIn, Feature, EpochStart] {
            assert_eq!(seen[&rule], BTreeSet::from([0]), "{rule:?}");
        }
    }
}

#[test]
fn nodes_tell_the_epochs_of_the_chain() {
    let settings = Settings { first_slot: 0, slots_per_epoch: 64, warmup: true, ..Settings::default() };
    let cluster = cluster(&settings);
    let ask = |method: &str, params: Value| {
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer = cluster.node(0).answer(call.to_string().as_bytes());
        serde_json::from_slice::<Value>(&answer).unwrap()["result"].take()
    };
    let schedule = ask("getEpochSchedule", json!([]));
    let expected = json!({
        "firstNormalEpoch": 1, "firstNormalSlot": 32, "leaderScheduleSlotOffset": 64, "slotsPerEpoch": 64,
        "warmup": true,
    });
    assert_eq!(schedule, expected);
    let parsed = json!([address::EPOCH_SCHEDULE.to_string(), { "encoding": "jsonParsed" }]);
    assert_eq!(ask("getAccountInfo", parsed)["value"]["data"]["parsed"]["info"], expected);
    let info = ask("getEpochInfo", json!([]));
    let slot = info["absoluteSlot"].as_u64().unwrap();
    assert_eq!(
        [&info["epoch"], &info["slotIndex"]],
        [&json!(1 + (slot - 32) / 64), &json!((slot - 32) % 64)]
    );
}
