//! The state of the chain that the reader is reading.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::follow::block::BlockWrites;
use crate::follow::chain::ChainWriter;
use crate::follow::cross_check::{CheckState, CrossCheck};
use crate::follow::epochs::EpochSchedule;
use crate::follow::fetch::BlockNode;
use crate::follow::state::{FollowEnd, PauseReason};
use crate::methods::Slot;
use crate::telemetry::RestartReason;

/// The time for which another node is polled after a poll of one node brought nothing.
const PASSED_OVER_FOR: Duration = Duration::from_secs(10);
/// The number of slots by which the tip may be behind the confirmed frontier for any length of time.
pub(super) const LATE_SLOTS: u64 = 16;
/// The longest time for which the tip may be more than [`LATE_SLOTS`] behind. Nodes that keep up close a gap
/// in less time.
const LATE_FOR: Duration = Duration::from_secs(10);

/// A block that is read and not added yet.
pub(super) struct ReadBlock {
    pub(super) slot: Slot,
    pub(super) writes: BlockWrites,
    /// The node that gave the block. `None` if another replica read the block.
    pub(super) node: Option<usize>,
    pub(super) read_at: Instant,
}

/// The chain that is being followed.
pub(super) struct ChainInProgress {
    pub(super) writer: ChainWriter,
    pub(super) tip_hash: String,
    pub(super) schedule: EpochSchedule,
    /// Blocks above the tip, in order. The first one may wait for its rewards or for the frontier.
    pub(super) queue: VecDeque<ReadBlock>,
    /// The time of the poll that found the newest block.
    pub(super) found_at: Instant,
    /// The time of the last poll.
    pub(super) polled_at: Instant,
    /// The confirmed frontier at the last poll.
    pub(super) known_at_poll: Slot,
    pub(super) added: u64,
    pub(super) without_fees: u64,
    pub(super) check: Option<CrossCheck>,
    /// The time since which each new tip was more than [`LATE_SLOTS`] behind the confirmed frontier. `None`
    /// if the last one was not.
    pub(super) late_since: Option<Instant>,
    /// The time since which every node that answered was behind the tip. `None` if the last one that answered
    /// was not.
    pub(super) behind_since: Option<Instant>,
    /// The node to poll next, as a position among the usable ones.
    pub(super) turn: usize,
    /// The time until which the node in turn is polled, because another one did not help.
    pub(super) kept_until: Instant,
}

impl ChainInProgress {
    /// Returns true if the parent of a block is the tip, by slot and by hash.
    pub(super) fn is_continued_by(&self, block: &BlockWrites) -> bool {
        block.parent_slot == self.writer.chain().tip().slot && block.previous_blockhash == self.tip_hash
    }

    /// Returns the slot of the newest block that was read.
    pub(super) fn newest(&self) -> Slot {
        self.queue.back().map_or_else(|| self.writer.chain().tip().slot, |block| block.slot)
    }

    /// Notes by how many slots a new tip is behind the confirmed frontier.
    ///
    /// # Errors
    /// The tip has been far behind for too long. Nothing can be carried then, and blocks take bandwidth from
    /// callers.
    pub(super) fn check_pace(&mut self, behind: u64) -> Result<(), PauseReason> {
        if behind <= LATE_SLOTS {
            self.late_since = None;
        } else if self.late_since.get_or_insert_with(Instant::now).elapsed() > LATE_FOR {
            return Err(PauseReason::TooSlow);
        }
        Ok(())
    }

    /// Returns the node to poll. A node of a higher tier is polled only for a while.
    pub(super) fn node_in_turn<'n, N: BlockNode>(&mut self, nodes: &'n [N]) -> Option<&'n N> {
        let first = nodes.first()?;
        if nodes[self.turn % nodes.len()].tier() > first.tier() && self.polled_at >= self.kept_until {
            self.turn = 0;
        }
        Some(&nodes[self.turn % nodes.len()])
    }

    /// Lets another node be polled for a while, because the polled one did not help.
    pub(super) fn pass_over(&mut self) {
        self.turn += 1;
        self.kept_until = self.polled_at + PASSED_OVER_FOR;
    }

    /// Lets another node of the same tier be polled, because some node has a newer block.
    pub(super) fn prefer_peer<N: BlockNode>(&mut self, nodes: &[N]) {
        if self.polled_at >= self.kept_until {
            let peers = nodes.iter().take_while(|node| node.tier() == nodes[0].tier()).count();
            self.turn = (self.turn + 1) % peers;
        }
    }

    /// Compares the hash of a block with a second node's, if a comparison is under way.
    ///
    /// # Errors
    /// The second node has another block.
    pub(super) fn cross_check<N: BlockNode>(
        &mut self,
        nodes: &[N],
        tasks: &TaskTracker,
    ) -> Result<(), FollowEnd> {
        match self.check.as_mut().map(|check| check.advance(nodes, tasks)) {
            None | Some(CheckState::Open) => Ok(()),
            Some(CheckState::Agreed) => {
                self.check = None;
                Ok(())
            }
            Some(CheckState::Disagreed) => Err(RestartReason::Disagreement.into()),
        }
    }
}
