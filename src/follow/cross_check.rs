//! The comparison of a block's hash with that of a second node, in the background.

use futures_util::FutureExt;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::fetch::{self, BlockNode};
use crate::methods::Slot;

/// The check of one block's hash. Other nodes are asked for the hash until one of them gives it.
pub(super) struct CrossCheck {
    slot: Slot,
    hash: String,
    /// The node that gave the block. `None` if another replica read the block.
    given_by: Option<usize>,
    /// The number of times that a node was asked and did not give the hash.
    attempts: usize,
    answer: Option<AbortOnDropHandle<Option<String>>>,
}

/// The state of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckState {
    /// No second node has given the hash yet.
    Open,
    /// A second node has the same hash.
    Agreed,
    /// A second node has another hash.
    Disagreed,
}

impl CrossCheck {
    /// Creates the check of the block at `slot`, which the node `given_by` gave. If `given_by` is `None`,
    /// another replica read the block.
    pub(super) fn new(slot: Slot, hash: String, given_by: Option<usize>) -> Self {
        Self { slot, hash, given_by, attempts: 0, answer: None }
    }

    /// Asks a second node if none is being asked, and returns the state of the comparison.
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
