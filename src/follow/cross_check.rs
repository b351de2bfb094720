//! The comparison of a block's hash with the hash that a second node gives for the block's slot, in the background.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::fetch::{self, BlockNode};
use crate::methods::Slot;
use crate::telemetry::RestartReason;

/// The maximum number of times that nodes are asked for a block's hash. A node that lags gives it a moment later,
/// and one that lacks the block never does.
const ATTEMPTS: u32 = 4;
/// The first pause after a node has given no hash. Each further pause is twice as long.
const PAUSE: Duration = Duration::from_secs(1);

/// The check that a second node has the same block at a slot. Nodes other than the one that gave the block are asked
/// for its hash in turn, until one of them gives a hash, [`ATTEMPTS`] times at most. If none does, nothing is compared.
pub(super) struct CrossCheck {
    slot: Slot,
    hash: String,
    /// The node that gave the block. `None` if another replica read the block.
    given_by: Option<usize>,
    /// The number of times that a node was asked for the block's hash and gave none.
    attempts: u32,
    ask_at: Instant,
    answer: Option<AbortOnDropHandle<Option<String>>>,
}

impl CrossCheck {
    /// Creates the check of the block at `slot` with the hash `hash`. `given_by` is the node that gave this
    /// block. `None` if another replica read the block.
    pub(super) fn new(slot: Slot, hash: String, given_by: Option<usize>) -> Self {
        Self { slot, hash, given_by, attempts: 0, ask_at: Instant::now(), answer: None }
    }

    /// Asks a node other than the block's source for the block's hash, unless such a call is in flight or it is too
    /// early. Returns true once a second node has the same hash, or no second node gives one.
    ///
    /// # Errors
    /// A second node has a different block at the slot.
    pub(super) fn advance<N: BlockNode>(
        &mut self,
        nodes: &[N],
        tasks: &TaskTracker,
    ) -> Result<bool, RestartReason> {
        if let Some(answer) = &mut self.answer {
            match answer.now_or_never() {
                None => return Ok(false),
                Some(Ok(Some(theirs))) if theirs == self.hash => return Ok(true),
                Some(Ok(Some(_))) => return Err(RestartReason::Disagreement),
                Some(Ok(None) | Err(_)) => {
                    self.ask_at = Instant::now() + PAUSE * (1 << self.attempts);
                    self.attempts += 1;
                    self.answer = None;
                }
            }
        }
        if self.attempts == ATTEMPTS {
            return Ok(true);
        }
        let others: Vec<_> = nodes.iter().filter(|node| Some(node.id()) != self.given_by).collect();
        if !others.is_empty() && self.ask_at <= Instant::now() {
            let (node, slot) = (others[self.attempts as usize % others.len()].clone(), self.slot);
            let asked = tasks.spawn(async move { fetch::blockhash(&node, slot).await.map(|(hash, _)| hash) });
            self.answer = Some(AbortOnDropHandle::new(asked));
        }
        Ok(false)
    }
}
