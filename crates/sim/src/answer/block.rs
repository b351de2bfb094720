//! getBlock: the errors for slots without a block to return, and the members of a block other than its transactions.

use serde_json::{Value, json};
use slotfront_rpc::methods::{BlockDetails, BlockQuery, Commitment, Pubkey, Slot};

use super::{Refusal, View, transaction};
use crate::chain::block::{Block, Reward};

/// Answers getBlock. The checks are made in the same order as in a node.
pub(super) fn answer(view: &View<'_>, query: &BlockQuery) -> Result<Value, Refusal> {
    if !view.node.keeps_history() {
        return Err(no_history());
    }
    let slot = query.slot;
    let not_available = || Refusal::new(-32_004, format!("Block not available for slot {slot}"));
    if slot <= view.tip.finalized {
        return render(view, rooted(view, slot)?, query);
    }
    match view.block(slot) {
        Some(block) if query.commitment == Commitment::Confirmed && slot <= view.tip.confirmed => {
            render(view, block, query)
        }
        _ => Err(not_available()),
    }
}

pub(super) fn rooted<'a>(view: &'a View<'_>, slot: Slot) -> Result<&'a Block, Refusal> {
    if slot < view.first_available() {
        return Err(cleaned_up(view, slot));
    }
    let skipped = || format!("Slot {slot} was skipped, or missing due to ledger jump to recent snapshot");
    Ok(view.block(slot).ok_or_else(|| Refusal::new(-32_007, skipped()))?)
}

/// Returns the error for a slot below the first whose block the node has.
pub(super) fn cleaned_up(view: &View<'_>, slot: Slot) -> Refusal {
    let first = view.first_available();
    let words = format!("Block {slot} cleaned up, does not exist on node. First available block: {first}");
    Refusal::new(-32_001, words)
}

/// Returns the error of a node without transaction history.
pub(super) fn no_history() -> Refusal {
    Refusal::new(-32_011, "Transaction history is not available from this node")
}

/// Returns the error for a version 0 transaction that the caller does not accept.
pub(super) fn unsupported_version() -> Refusal {
    let words = "Transaction version (0) is not supported by the requesting client. Please try the request \
                 again with the following configuration parameter: \"maxSupportedTransactionVersion\": 0";
    Refusal::new(-32_015, words)
}

fn render(view: &View<'_>, block: &Block, query: &BlockQuery) -> Result<Value, Refusal> {
    // A node reads `previousBlockhash` from the parent.
    if view.node.has_lost(block.parent_slot) {
        return Ok(Value::Null);
    }
    let with_transactions = matches!(query.details, BlockDetails::Full | BlockDetails::Accounts);
    if with_transactions && query.max_version.is_none() && block.transactions.iter().any(|t| t.message.v0) {
        return Err(unsupported_version());
    }
    let mut answer = json!({
        "blockHeight": block.height,
        "blockTime": block.time,
        "blockhash": Pubkey(block.hash).to_string(),
        "parentSlot": block.parent_slot,
        "previousBlockhash": Pubkey(block.previous_hash).to_string(),
    });
    if let Some(partitions) = block.reward_partitions {
        answer["numRewardPartitions"] = partitions.into();
    }
    if query.rewards {
        answer["rewards"] = block.rewards.iter().map(reward).collect();
    }
    let transactions = block.transactions.iter();
    match query.details {
        BlockDetails::Full => {
            answer["transactions"] = transactions.map(|t| transaction::full(t, query)).collect();
        }
        BlockDetails::Accounts => {
            answer["transactions"] = transactions.map(|t| transaction::accounts(t, query)).collect();
        }
        BlockDetails::Signatures => {
            answer["signatures"] = transactions.map(|t| transaction::signature(&t.signatures[0])).collect();
        }
        BlockDetails::None => {}
    }
    Ok(answer)
}

fn reward(reward: &Reward) -> Value {
    let mut answer = json!({
        "commission": null,
        "lamports": reward.lamports,
        "postBalance": reward.post_balance,
        "pubkey": reward.pubkey.to_string(),
        "rewardType": reward.kind.as_str(),
    });
    if let Some(bps) = reward.commission_bps {
        answer["commissionBps"] = bps.into();
    }
    answer
}
