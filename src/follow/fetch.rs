//! The calls with which the follower reads blocks from nodes, and the meaning of the answers.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::block::BlockWrites;
use super::state::{FollowEnd, PauseReason};
use crate::methods::{EpochSchedule, Slot};
use crate::node::{Fault, NodeReply, OFF_WORKER_BYTES, code};
use crate::telemetry::{BlockResult, Metrics};

const MAX_TRANSACTION_VERSION: u8 = 0;
const SHORT_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest wait for a block. Enough time remains to ask another node before the block counts as missing.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) trait BlockNode: Clone + Send + Sync + 'static {
    /// Returns the id under which the node's slots are reported to the
    /// [`Frontier`](crate::frontier::Frontier).
    fn id(&self) -> usize;

    /// Returns the node's tier. A node is asked only if no node of a lower tier helps.
    fn tier(&self) -> u8;

    /// Calls `method` with `params`. An answer that takes longer than `timeout`, or exceeds the node's limit
    /// on answer lengths, is a fault.
    fn ask(
        &self,
        method: &'static str,
        params: Value,
        timeout: Duration,
    ) -> impl Future<Output = Result<NodeReply, Fault>> + Send;
}

pub(super) trait BlockNodes: Sync {
    type Node: BlockNode;

    /// Returns the nodes that may be asked for blocks now, lower tiers first.
    fn usable(&self) -> Vec<Self::Node>;
}

pub(super) async fn newest_slot(node: &impl BlockNode) -> Option<Slot> {
    let params = json!([{ "commitment": "confirmed" }]);
    serde_json::from_slice(&result(node.ask("getSlot", params, SHORT_TIMEOUT).await)?).ok()
}

pub(super) async fn epoch_schedule(node: &impl BlockNode) -> Option<EpochSchedule> {
    EpochSchedule::parse(&result(node.ask("getEpochSchedule", json!([]), SHORT_TIMEOUT).await)?)
}

/// Asks a node for the slots from `first` to `last` at which the node has a confirmed block. `None` if the node
/// names slots above `last`, or does not name them in ascending order.
pub(super) async fn slots(node: &impl BlockNode, first: Slot, last: Slot) -> Option<Vec<Slot>> {
    let params = json!([first, last, { "commitment": "confirmed" }]);
    let answer = result(node.ask("getBlocks", params, SHORT_TIMEOUT).await)?;
    let slots: Vec<Slot> = serde_json::from_slice(&answer).ok()?;
    let is_ascending = slots.is_sorted_by(|slot, next| slot < next);
    (is_ascending && slots.last().is_none_or(|newest| *newest <= last)).then_some(slots)
}

/// Asks a node for the hash and the height of the block at `slot`. `None` if the node does not give the block now.
pub(super) async fn blockhash(node: &impl BlockNode, slot: Slot) -> Option<(String, Option<u64>)> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct HashOnly {
        blockhash: String,
        block_height: Option<u64>,
    }
    let config = json!({
        "commitment": "confirmed",
        "transactionDetails": "none",
        "rewards": false,
        "maxSupportedTransactionVersion": MAX_TRANSACTION_VERSION,
    });
    let block = result(node.ask("getBlock", json!([slot, config]), SHORT_TIMEOUT).await)?;
    serde_json::from_slice::<HashOnly>(&block).ok().map(|block| (block.blockhash, block.block_height))
}

pub fn block_params(slot: Slot) -> Value {
    let config = json!({
        "commitment": "confirmed",
        "encoding": "json",
        "transactionDetails": "accounts",
        "rewards": true,
        "maxSupportedTransactionVersion": MAX_TRANSACTION_VERSION,
    });
    json!([slot, config])
}

pub(super) enum FetchedBlock {
    Read(BlockWrites),
    /// The node does not give the block now, but may give it later.
    Absent,
    TimedOut,
}

/// Asks a node for the accounts that the block at `slot` may write.
///
/// # Errors
/// The node's answer shows that the block cannot be read, so the chain ends.
pub(super) async fn block(
    node: &impl BlockNode,
    slot: Slot,
    metrics: &Metrics,
) -> Result<FetchedBlock, FollowEnd> {
    let (result, found) = match node.ask("getBlock", block_params(slot), BLOCK_TIMEOUT).await {
        Ok(NodeReply::Result(text)) if &*text != b"null" => {
            metrics.follow_block_bytes.at(()).inc_by(text.len() as u64);
            let long = text.len() > OFF_WORKER_BYTES;
            let read = move || BlockWrites::parse(&text);
            let read = if long {
                tokio::task::spawn_blocking(read).await.map_err(|_| FollowEnd::GAP)?
            } else {
                read()
            };
            match read {
                Ok(writes) => (BlockResult::Read, Ok(FetchedBlock::Read(writes))),
                Err(end) => (BlockResult::Unreadable, Err(end)),
            }
        }
        Ok(NodeReply::Error { code: code::UNSUPPORTED_TRANSACTION_VERSION, .. }) => {
            (BlockResult::Unreadable, Err(PauseReason::UnknownForm.into()))
        }
        Ok(
            NodeReply::Result(_)
            | NodeReply::Error {
                code: code::BLOCK_NOT_AVAILABLE | code::BLOCK_STATUS_NOT_AVAILABLE_YET, ..
            },
        ) => (BlockResult::NotYet, Ok(FetchedBlock::Absent)),
        // Another node's answer would be as long, so no other node is asked.
        Err(Fault::TooLarge) => (BlockResult::Unreadable, Err(FollowEnd::GAP)),
        Err(Fault::Timeout) => (BlockResult::Failed, Ok(FetchedBlock::TimedOut)),
        Ok(NodeReply::Error { .. }) | Err(_) => (BlockResult::Failed, Ok(FetchedBlock::Absent)),
    };
    metrics.follow_blocks.at(result).inc();
    found
}

/// Returns the JSON-RPC result of a node's answer. `None` for a JSON-RPC error, and for a fault of the node.
fn result(answer: Result<NodeReply, Fault>) -> Option<bytes::Bytes> {
    match answer {
        Ok(NodeReply::Result(text)) => Some(text),
        Ok(NodeReply::Error { .. }) | Err(_) => None,
    }
}
