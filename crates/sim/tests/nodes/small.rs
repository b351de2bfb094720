//! Small answers whose shape depends on the chain: votes on a block, snapshots, rewards.

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
