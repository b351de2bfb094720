//! The comparison of a block's hash with the hash that a second node gives for the block's slot, in the
//! background.

use futures_util::FutureExt;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::fetch::{self, BlockNode};
use crate::methods::Slot;

/// The check that a second node has the same block at a slot. Nodes other than the one that gave the block
/// are asked for its hash, until one of them gives a hash.
pub(super) struct CrossCheck {
    slot: Slot,
    hash: String,
    /// The node that gave the block. `None` if another replica read the block.
    given_by: Option<usize>,
    /// The number of times that a node was asked for the block's hash and gave none.
    attempts: usize,
    answer: Option<AbortOnDropHandle<Option<String>>>,
}

/// The state of the comparison of a block's hash with that of a second node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckState {
    /// No second node has given its hash of the block yet.
    Open,
    /// A second node has the same block hash.
    Agreed,
    /// A second node has a different block hash.
    Disagreed,
}

impl CrossCheck {
    /// Creates the check of the block at `slot` with the hash `hash`. `given_by` is the node that gave this
    /// block. `None` if another replica read the block.
    pub(super) fn new(slot: Slot, hash: String, given_by: Option<usize>) -> Self {
        Self { slot, hash, given_by, attempts: 0, answer: None }
    }

    /// Asks a node other than the block's source for the block's hash, unless such a call is in flight.
    /// Returns the state of the comparison.
    pub(super) fn advance<N: BlockNode>(&mut self, nodes: &[N], tasks: &TaskTracker) -> CheckState {
        if let Some(answer) = &mut self.answer {
            match answer.now_or_never() {
                None => return CheckState::Open,
                Some(Ok(Some(theirs))) if theirs == self.hash => return CheckState::Agreed,
                Some(Ok(Some(_))) => return CheckState::Disagreed,
                Some(Ok(None) | Err(_)) => {
                    self.attempts += 1;
                    self.answer = None;
                }
            }
        }
        let others: Vec<_> = nodes.iter().filter(|node| Some(node.id()) != self.given_by).collect();
        if !others.is_empty() {
            let (node, slot) = (others[self.attempts % others.len()].clone(), self.slot);
            let asked = tasks.spawn(async move { fetch::blockhash(&node, slot).await });
            self.answer = Some(AbortOnDropHandle::new(asked));
        }
        CheckState::Open
    }
}
