//! The state of the followed chain while the reader adds blocks to it.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::follow::block::BlockWrites;
use crate::follow::chain::ChainWriter;
use crate::follow::cross_check::CrossCheck;
use crate::follow::fetch::BlockNode;
use crate::follow::heads::HeadsWriter;
use crate::follow::state::PauseReason;
use crate::methods::{EpochSchedule, Slot};
use crate::telemetry::RestartReason;

/// The time for which the next node is polled instead of a node whose poll failed or gave no slot.
const PASSED_OVER_FOR: Duration = Duration::from_secs(10);
/// The maximum number of slots by which the chain may stay behind the newest confirmed slot.
pub(super) const LATE_SLOTS: u64 = 16;
/// The longest time for which the chain may be more than [`LATE_SLOTS`] behind the newest confirmed slot. Nodes
/// that are fast enough close any gap in less time.
const LATE_FOR: Duration = Duration::from_secs(10);

pub(super) struct ReadBlock {
    pub(super) slot: Slot,
    pub(super) writes: BlockWrites,
    /// The node that gave the block. `None` if another replica read the block.
    pub(super) node: Option<usize>,
    pub(super) read_at: Instant,
}

/// The chain that is being followed, and the state of its polls.
pub(super) struct ChainInProgress {
    pub(super) writer: ChainWriter,
    pub(super) tip_hash: String,
    pub(super) heads: HeadsWriter,
    pub(super) schedule: EpochSchedule,
    /// The blocks that are read and not added to the chain yet, in order. The first one may wait for its
    /// rewards, or until its slot is known to be confirmed.
    pub(super) queue: VecDeque<ReadBlock>,
    /// The time of the poll that found the newest block.
    pub(super) found_at: Instant,
    pub(super) polled_at: Instant,
    pub(super) known_at_poll: Slot,
    pub(super) added: u64,
    pub(super) without_fees: u64,
    pub(super) check: Option<CrossCheck>,
    /// The time since which each added block was more than [`LATE_SLOTS`] behind the newest confirmed slot.
    /// `None` if the last added block was not that late.
    pub(super) late_since: Option<Instant>,
    /// The time since which every node that answered a poll was behind the chain's newest block. `None` if
    /// the node that answered last was not behind.
    pub(super) behind_since: Option<Instant>,
    /// The position, among the usable nodes, of the node to poll next.
    pub(super) turn: usize,
    /// The time until which the node at `turn` is polled, because a poll of another node failed or gave no slot.
    pub(super) kept_until: Instant,
}

impl ChainInProgress {
    /// Returns true if the parent of `block`, by slot and by hash, is the newest block of the chain.
    pub(super) fn is_continued_by(&self, block: &BlockWrites) -> bool {
        block.parent_slot == self.writer.chain().tip().slot && block.previous_blockhash == self.tip_hash
    }

    pub(super) fn newest(&self) -> Slot {
        self.queue.back().map_or_else(|| self.writer.chain().tip().slot, |block| block.slot)
    }

    /// Records that the newest block of the chain is `behind` slots behind the newest confirmed slot.
    ///
    /// # Errors
    /// The chain has been too far behind for too long. Answers about accounts cannot be served as fresh then, and
    /// reading blocks takes bandwidth from callers.
    pub(super) fn check_pace(&mut self, behind: u64) -> Result<(), PauseReason> {
        if behind <= LATE_SLOTS {
            self.late_since = None;
        } else if self.late_since.get_or_insert_with(Instant::now).elapsed() > LATE_FOR {
            return Err(PauseReason::TooSlow);
        }
        Ok(())
    }

    /// Returns the node to poll. `nodes` are the usable nodes, lower tiers first. Outside the lowest tier, a
    /// node is polled only until `kept_until`.
    pub(super) fn node_in_turn<'n, N: BlockNode>(&mut self, nodes: &'n [N]) -> Option<&'n N> {
        let first = nodes.first()?;
        if nodes[self.turn % nodes.len()].tier() > first.tier() && self.polled_at >= self.kept_until {
            self.turn = 0;
        }
        Some(&nodes[self.turn % nodes.len()])
    }

    /// Moves polls to the next node for a while, because a poll failed or gave no slot.
    pub(super) fn pass_over(&mut self) {
        self.turn += 1;
        self.kept_until = self.polled_at + PASSED_OVER_FOR;
    }

    /// Moves polls to the next node of the lowest tier, because a node has a newer block than the polled node.
    /// Does nothing before `kept_until`.
    pub(super) fn prefer_peer<N: BlockNode>(&mut self, nodes: &[N]) {
        if self.polled_at >= self.kept_until {
            let peers = nodes.iter().take_while(|node| node.tier() == nodes[0].tier()).count();
            self.turn = (self.turn + 1) % peers;
        }
    }

    /// Continues the comparison of a block's hash with a second node's hash for the same slot. Does nothing if no
    /// comparison is in progress.
    ///
    /// # Errors
    /// The second node has a different block at the slot.
    pub(super) fn cross_check<N: BlockNode>(
        &mut self,
        nodes: &[N],
        tasks: &TaskTracker,
    ) -> Result<(), RestartReason> {
        if let Some(check) = &mut self.check
            && check.advance(nodes, tasks)?
        {
            self.check = None;
        }
        Ok(())
    }
}
