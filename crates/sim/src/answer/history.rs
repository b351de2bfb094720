//! The history of the chain: getBlockTime, getBlocks, getBlocksWithLimit, getSignaturesForAddress and getInflationReward.

use serde_json::{Value, json};
use slotfront_rpc::methods::{Commitment, Pubkey, Slot};

use super::{Refusal, View, block, public_key, signature, transaction};
use crate::chain::address;
use crate::chain::block::{Block, RewardKind};
use crate::chain::transaction::Transaction;

/// The maximum difference between the first and the last slot of a getBlocks call.
const MAX_BLOCKS: u64 = 500_000;

/// Answers getBlockTime. Above the finalized slot, a node knows the time of each block that it has.
pub(super) fn block_time(view: &View<'_>, slot: Slot) -> Result<Value, Refusal> {
    let found = if slot <= view.tip.finalized {
        block::rooted(view, slot)?
    } else {
        let block = view.block(slot).filter(|block| block.slot <= view.tip.slot);
        block.ok_or_else(|| Refusal::new(-32_004, format!("Block not available for slot {slot}")))?
    };
    Ok(found.time.into())
}

/// Answers getBlocks: the slots of a range that have a block. The range ends at the given slot, or at the node's slot. Blocks
/// that the node has dropped are left out, without an error.
pub(super) fn blocks(
    view: &View<'_>,
    newest: Slot,
    first: Slot,
    last: Option<Slot>,
) -> Result<Value, Refusal> {
    let last = last.unwrap_or_else(|| first.saturating_add(MAX_BLOCKS)).min(newest);
    if last.saturating_sub(first) > MAX_BLOCKS {
        return Err(Refusal::param(format!("Slot range too large; max {MAX_BLOCKS}")));
    }
    Ok(slots(view, first, last).into())
}

pub(super) fn blocks_with_limit(view: &View<'_>, newest: Slot, first: Slot, limit: usize) -> Value {
    let mut slots = slots(view, first, newest);
    slots.truncate(limit);
    slots.into()
}

fn slots(view: &View<'_>, first: Slot, last: Slot) -> Vec<Slot> {
    let first = first.max(view.first_available());
    let slots = view.chain.blocks_back_from(last).map(|block| block.slot);
    let mut slots: Vec<_> =
        slots.take_while(|slot| *slot >= first).filter(|slot| view.block(*slot).is_some()).collect();
    slots.reverse();
    slots
}

/// Answers getSignaturesForAddress: the transactions that name an account, newest first.
pub(super) fn signatures(view: &View<'_>, newest: Slot, params: &[Value]) -> Result<Value, Refusal> {
    if !view.node.keeps_history() {
        return Err(block::no_history());
    }
    let address = public_key(params, 0)?;
    let member = |name| params.get(1).and_then(|config| config.get(name));
    let bound = |name| member(name).map(signature).transpose();
    let (before, until) = (bound("before")?, bound("until")?);
    let limit = member("limit").and_then(Value::as_u64).and_then(|limit| usize::try_from(limit).ok());
    for bound in [before, until].into_iter().flatten() {
        if view.chain.landed(&bound, newest).is_none_or(|(block, _)| !view.keeps(block.slot)) {
            let text = transaction::signature(&bound);
            return Err(Refusal::new(-32_020, format!("Transaction {text} not found")));
        }
    }
    let blocks = view.chain.blocks_back_from(newest).take_while(|block| view.keeps(block.slot));
    let all = blocks.flat_map(|block| {
        let transactions = block.transactions.iter().enumerate().rev();
        transactions.map(move |(index, each)| (block, index, each))
    });
    let after = all.skip_while(|(.., each)| before.is_some_and(|before| each.signatures[0] != before));
    let page = after.skip(usize::from(before.is_some()));
    let page = page.take_while(|(.., each)| until.is_none_or(|until| each.signatures[0] != until));
    let named = page.filter(|(.., each)| each.accounts().any(|account| *account == address));
    let entries = named.take(limit.unwrap_or(usize::MAX)).map(|(block, index, each)| {
        let is_final = block.slot <= view.slot(Commitment::Finalized);
        let level = if is_final { Commitment::Finalized } else { Commitment::Confirmed };
        json!({
            "blockTime": block.time,
            "confirmationStatus": level.as_str(),
            "err": each.failure.map_or(Value::Null, transaction::error),
            "memo": memo(each),
            "signature": transaction::signature(&each.signatures[0]),
            "slot": block.slot,
            "transactionIndex": index,
        })
    });
    Ok(entries.collect())
}

/// Returns the texts of a transaction's memos with their lengths, `null` without one.
fn memo(transaction: &Transaction) -> Value {
    let calls = transaction.message.calls().filter(|(program, _)| *program == address::MEMO);
    let memos = calls.map(|(_, text)| format!("[{}] {}", text.len(), String::from_utf8_lossy(text)));
    let memos: Vec<String> = memos.collect();
    if memos.is_empty() { Value::Null } else { memos.join("; ").into() }
}

/// Answers getInflationReward. The first block of an epoch pays the votes of the epoch before, and the next one the stakes.
pub(super) fn inflation_reward(view: &View<'_>, newest: Slot, params: &[Value]) -> Result<Value, Refusal> {
    let epochs = view.chain.genesis.epochs;
    let current = epochs.of(newest);
    let epoch = params.get(1).and_then(|config| config.get("epoch")).and_then(Value::as_u64);
    let epoch = epoch.unwrap_or_else(|| current.number.saturating_sub(1));
    let next = epochs.first_slot(epoch.saturating_add(1));
    if epoch >= current.number {
        return Err(Refusal::new(-32_004, format!("Block not available for slot {next}")));
    }
    if next < view.first_available() {
        return Err(block::cleaned_up(view, next));
    }
    let mut paying: Vec<_> =
        view.chain.blocks_back_from(newest).take_while(|block| block.slot >= next).collect();
    paying.reverse();
    let (first, then) = paying.split_first().ok_or_else(|| block::cleaned_up(view, next))?;
    let reward = |address: &Value| {
        let address = address.as_str().and_then(|text| Pubkey::parse(text).ok());
        let paid = |block: &Block, kind| {
            let reward = block.rewards.iter().find(|r| Some(r.pubkey) == address && r.kind == kind)?;
            Some(json!({
                "amount": reward.lamports,
                "commission": null,
                "commissionBps": reward.commission_bps,
                "effectiveSlot": block.slot,
                "epoch": epoch,
                "postBalance": reward.post_balance,
            }))
        };
        if let Some(voting) = paid(first, RewardKind::Voting) {
            return Ok(voting);
        }
        // There is one partition, so the next block pays all stakes.
        let partition = then.first().ok_or_else(|| is_paying(first, newest, paying.len()))?;
        Ok(paid(partition, RewardKind::Staking).unwrap_or_default())
    };
    let addresses = params.first().and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    addresses.iter().map(reward).collect()
}

/// The refusal while the blocks that pay an epoch's rewards are not there yet.
fn is_paying(first: &Block, newest: Slot, blocks: usize) -> Refusal {
    let height = first.height + blocks as u64 - 1;
    let data = json!({ "currentBlockHeight": height, "rewardsCompleteBlockHeight": first.height + 2, "slot": newest });
    let refusal = Refusal::new(-32_017, format!("Epoch rewards period still active at slot {newest}"));
    Refusal { data: Some(data), ..refusal }
}
