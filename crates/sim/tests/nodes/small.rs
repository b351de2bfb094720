//! Small answers whose shape depends on the chain: votes on a block, snapshots, rewards; and what every answer has.

use serde_json::{Value, json};
use slotfront_rpc::methods::Commitment;

use super::{cluster, result};

#[test]
fn votes_get_deeper_and_are_counted_for_the_newest_blocks_only() {
    let cluster = cluster();
    let node = cluster.node(0);
    let commitment = |slot: u64| result(node, "getBlockCommitment", &json!([slot]))["commitment"].clone();
    let depth = |slot: u64| {
        let stakes: Vec<u64> = serde_json::from_value(commitment(slot)).unwrap();
        assert_eq!(stakes.len(), 32);
        stakes.iter().position(|stake| *stake > 0)
    };
    let newest = node.slot(Commitment::Processed);
    assert_eq!(depth(newest), Some(0));
    let blocks = result(node, "getBlocks", &json!([newest - 60, { "commitment": "confirmed" }]));
    assert_eq!(depth(blocks[0].as_u64().unwrap()), Some(31), "the block is final");
    assert_eq!(commitment(newest + 1), Value::Null);
    assert_eq!(commitment(newest - 1000), Value::Null);
}

#[test]
fn incremental_snapshot_is_above_the_full_one_or_null() {
    let cluster = cluster();
    let snapshot = result(cluster.node(0), "getHighestSnapshotSlot", &json!([]));
    let full = snapshot["full"].as_u64().unwrap();
    let incremental = snapshot.get("incremental").expect("the member is there");
    assert!(incremental.is_null() || incremental.as_u64() > Some(full), "{snapshot}");
}

#[test]
fn stakes_are_paid_in_the_block_after_the_votes() {
    let cluster = cluster();
    let (node, examples) = (cluster.node(0), cluster.examples());
    let keys = [examples.vote_accounts[0], examples.stake_accounts[0]].map(|key| key.to_string());
    let rewards = result(node, "getInflationReward", &json!([keys]));
    let mut paid_at = Vec::new();
    for (key, reward, kind) in [(&keys[0], &rewards[0], "Voting"), (&keys[1], &rewards[1], "Staking")] {
        let block =
            result(node, "getBlock", &json!([reward["effectiveSlot"], { "transactionDetails": "none" }]));
        let listed = block["rewards"].as_array().unwrap();
        let listed = listed.iter().find(|one| one["pubkey"] == *key && one["rewardType"] == kind).unwrap();
        assert_eq!(reward["amount"], listed["lamports"]);
        assert_eq!(reward["commissionBps"], listed["commissionBps"]);
        paid_at.push(reward["effectiveSlot"].as_u64().unwrap());
    }
    assert!(paid_at[0] < paid_at[1], "{paid_at:?}");
}

/// Checks the members that the specifications leave open, and that Agave 4.0 always writes.
#[test]
fn optional_members_of_agave_4_are_there() {
    let cluster = cluster();
    let node = cluster.node(0);
    let versions = json!({ "maxSupportedTransactionVersion": 0 });
    let block = result(node, "getBlock", &json!([cluster.examples().block_with_v0, versions]));
    for transaction in block["transactions"].as_array().unwrap() {
        let meta = transaction["meta"].as_object().unwrap();
        for name in ["computeUnitsConsumed", "costUnits", "loadedAddresses"] {
            assert!(meta.contains_key(name), "{name}: {transaction}");
        }
    }
    for peer in result(node, "getClusterNodes", &json!([])).as_array().unwrap() {
        assert_eq!(peer["clientId"], "Agave");
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
