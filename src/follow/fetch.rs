//! The questions that the reader asks of nodes, and the meaning of their answers.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::block::{BlockWrites, UnreadableBlock};
use super::epochs::EpochSchedule;
use super::state::{FollowEnd, PauseReason};
use crate::methods::Slot;
use crate::node::{Fault, NodeReply, OFF_WORKER_BYTES, code};
use crate::telemetry::{BlockResult, Metrics};

/// The highest transaction version that the reader accepts in a block.
const MAX_TRANSACTION_VERSION: u8 = 0;
/// The longest time for a short answer.
const SHORT_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest time for a block. It is short enough to ask another node before the block counts as a gap.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// A node that serves blocks.
pub(super) trait BlockNode: Clone + Send + Sync + 'static {
    /// Returns the node's number in the frontier.
    fn id(&self) -> usize;

    /// Returns the node's tier. Nodes of a higher tier are asked only if others do not help.
    fn tier(&self) -> u8;

    /// Asks the node. An answer above the node's size bound is a fault.
    fn ask(
        &self,
        method: &'static str,
        params: Value,
        timeout: Duration,
    ) -> impl Future<Output = Result<NodeReply, Fault>> + Send;
}

/// The nodes of the pool that may be followed now.
pub(super) trait BlockNodes: Sync {
    /// The type of one node.
    type Node: BlockNode;

    /// Returns the nodes that may be followed now, lower tiers first.
    fn usable(&self) -> Vec<Self::Node>;
}

/// Asks a node for its newest confirmed slot.
pub(super) async fn newest_slot(node: &impl BlockNode) -> Option<Slot> {
    let params = json!([{ "commitment": "confirmed" }]);
    serde_json::from_slice(&result(node.ask("getSlot", params, SHORT_TIMEOUT).await)?).ok()
}

/// Asks a node for the slots at which epochs begin.
pub(super) async fn epoch_schedule(node: &impl BlockNode) -> Option<EpochSchedule> {
    EpochSchedule::parse(&result(node.ask("getEpochSchedule", json!([]), SHORT_TIMEOUT).await)?)
}

/// Asks a node for its confirmed slots with a block, from `first` to `last`.
pub(super) async fn slots(node: &impl BlockNode, first: Slot, last: Slot) -> Option<Vec<Slot>> {
    let params = json!([first, last, { "commitment": "confirmed" }]);
    serde_json::from_slice(&result(node.ask("getBlocks", params, SHORT_TIMEOUT).await)?).ok()
}

/// Asks a node for the hash of a block. `None` if the node does not give it, or not yet.
pub(super) async fn blockhash(node: &impl BlockNode, slot: Slot) -> Option<String> {
    #[derive(Deserialize)]
    struct HashOnly {
        blockhash: String,
    }
    let config = json!({
        "commitment": "confirmed",
        "transactionDetails": "none",
        "rewards": false,
        "maxSupportedTransactionVersion": MAX_TRANSACTION_VERSION,
    });
    let block = result(node.ask("getBlock", json!([slot, config]), SHORT_TIMEOUT).await)?;
    serde_json::from_slice::<HashOnly>(&block).ok().map(|block| block.blockhash)
}

/// Returns the params of the getBlock call that asks for the accounts that a block may write.
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

/// The answer of a node that was asked for a block.
pub(super) enum FetchedBlock {
    /// The accounts that the block may write.
    Read(BlockWrites),
    /// The node does not give the block, or not yet.
    Absent,
    /// The block did not come in time.
    TimedOut,
}

/// Asks a node for the accounts that a block may write.
///
/// # Errors
/// The block, as the node gives it, ends the chain.
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
                Err(UnreadableBlock::UnknownForm) => {
                    (BlockResult::Unreadable, Err(PauseReason::UnknownForm.into()))
                }
                Err(UnreadableBlock::NoMeta | UnreadableBlock::BadAddress) => {
                    (BlockResult::Unreadable, Err(FollowEnd::GAP))
                }
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
        // Another answer would be as long.
        Err(Fault::TooLarge) => (BlockResult::Unreadable, Err(FollowEnd::GAP)),
        Err(Fault::Timeout) => (BlockResult::Failed, Ok(FetchedBlock::TimedOut)),
        Ok(NodeReply::Error { .. }) | Err(_) => (BlockResult::Failed, Ok(FetchedBlock::Absent)),
    };
    metrics.follow_blocks.at(result).inc();
    found
}

/// Returns the result of an answer. `None` for an error or a fault.
fn result(answer: Result<NodeReply, Fault>) -> Option<bytes::Bytes> {
    match answer {
        Ok(NodeReply::Result(text)) => Some(text),
        Ok(NodeReply::Error { .. }) | Err(_) => None,
    }
}
