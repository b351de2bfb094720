//! The reader: polls nodes for new confirmed blocks, and adds them to the chain in order.
//!
//! Each poll asks one node for its confirmed slots, beginning with the newest slot whose block was read (`getBlocks`).
//! Its own slot in the answer proves that the node has the same chain. A WebSocket would not do: `slotSubscribe` reports
//! slots that are only processed, and `blockSubscribe` is off by default. New blocks are fetched four at a time. A block
//! is added once its parent, by slot and by hash, is the newest block of the chain. A block that another replica has
//! already read is taken from the shared store. A chain that cannot go on ends with a [`RestartReason`], and the follower
//! begins a new one.

mod chain_in_progress;

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::task::TaskTracker;

use chain_in_progress::{ChainInProgress, ReadBlock};

use super::FollowedChain;
use super::chain::ChainWriter;
use super::cross_check::CrossCheck;
use super::fetch::{self, BlockNode, BlockNodes, FetchedBlock};
use super::heads::HeadsWriter;
use super::shared_blocks::{BlockStore, SharedBlocks};
use super::state::{FollowEnd, FollowState, PauseReason};
use crate::frontier::Frontier;
use crate::methods::{Commitment, Slot};
use crate::telemetry::{BlockResult, Metrics, RestartReason};

const FETCHES: usize = 4;
/// The first pause before nodes are asked again for a block that they do not have yet. Each further pause is half as
/// long again, because a node that always fails must not be asked 20 times a second.
const NOT_YET_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause before nodes are asked again for a block.
const LONGEST_NOT_YET_PAUSE: Duration = Duration::from_secs(1);
/// The time after which the followed chain ends because no node gives a block that a node has listed.
const GAP_AFTER: Duration = Duration::from_secs(5);
/// The time after which a second node is asked for a block whose fee reward is missing.
const REWARDS_AFTER: Duration = Duration::from_secs(2);
/// The time after which the followed chain ends because all nodes are behind its newest block.
const BEHIND_FOR: Duration = Duration::from_secs(2);
/// The time without a new block after which the followed chain ends and a new one begins.
const STALLED_AFTER: Duration = Duration::from_mins(1);
/// The number of slots above the newest block in which a poll looks for blocks. Even if all of these slots
/// are skipped, the followed chain ends as stalled before they have passed.
const LISTED_SLOTS: u64 = 1024;
/// The fraction of a slot's duration for which no poll is sent after a new block. A poll is sent earlier if a
/// node is known to have a newer block.
const QUIET_PART: f64 = 0.6;
/// The number of blocks after which the hash of the newest block is again compared with a second node's hash.
const CROSS_CHECK_EVERY: u64 = 64;
/// The maximum number of successive blocks that have transactions but no fee reward. After one more such
/// block, following pauses.
const BLOCKS_WITHOUT_FEES: u64 = 32;

/// Returns the number of calls to nodes for each slot: the polls, the block, and the hashes that are compared
/// now and then. `poll` is the time between two polls.
#[expect(clippy::cast_precision_loss, reason = "the number of blocks between two comparisons is small")]
pub fn calls_per_slot(slot_time: Duration, poll: Duration) -> f64 {
    let polls = 1.0 + (slot_time.mul_f64(1.0 - QUIET_PART).as_secs_f64() / poll.as_secs_f64()).ceil();
    polls + 1.0 + 1.0 / CROSS_CHECK_EVERY as f64
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ReaderSettings {
    pub(super) poll: Duration,
    /// The maximum number of blocks that the reader reads to catch up. If more blocks are missing, the
    /// followed chain ends and a new one begins.
    pub(super) max_gap: usize,
}

/// Reads new blocks from the nodes, and adds them to the followed chain.
pub(super) struct Reader<'a, N, S> {
    pub(super) nodes: N,
    pub(super) shared: &'a SharedBlocks<S>,
    pub(super) frontier: &'a Frontier,
    pub(super) followed: &'a Arc<FollowedChain>,
    pub(super) metrics: &'a Metrics,
    pub(super) tasks: &'a TaskTracker,
    pub(super) settings: ReaderSettings,
}

impl<N: BlockNodes, S: BlockStore> Reader<'_, N, S> {
    /// Follows one chain from its beginning to its end. Returns the reason for its end.
    pub(super) async fn follow(&self) -> FollowEnd {
        let mut chain = match self.begin().await {
            Ok(chain) => chain,
            Err(reason) => return reason.into(),
        };
        let _published = self.followed.publish(chain.writer.chain());
        self.followed.set_state(FollowState::Following);
        self.publish_heads(&chain);
        loop {
            if let Err(end) = self.advance(&mut chain).await {
                return end;
            }
            if let Err(end) = self.await_next_poll(&mut chain).await {
                return end;
            }
        }
    }

    /// Waits until the next poll is due, or until some node is known to have a newer block. Meanwhile records
    /// newly finalized slots in the chain.
    async fn await_next_poll(&self, chain: &mut ChainInProgress) -> Result<(), FollowEnd> {
        // A poll soon after a block seldom finds the next one, and some nodes charge for each call.
        let early = chain.found_at + self.frontier.slot_time().mul_f64(QUIET_PART);
        let mut due = pin!(sleep_until((chain.polled_at + self.settings.poll).max(early)));
        let known = chain.newest().max(chain.known_at_poll);
        let mut newer = pin!(self.frontier.reached(Commitment::Confirmed, known.saturating_add(1)));
        loop {
            let finalized = self.frontier.slot(Commitment::Finalized);
            self.finalize(chain)?;
            tokio::select! {
                () = &mut due => return Ok(()),
                () = &mut newer => return Ok(()),
                () = self.frontier.reached(Commitment::Finalized, finalized.saturating_add(1)) => {}
            }
        }
    }

    /// Begins a chain at the newest confirmed slot of a node. Takes the first node that gives the epoch
    /// schedule, this slot and the block at this slot.
    async fn begin(&self) -> Result<ChainInProgress, PauseReason> {
        let mut reason = PauseReason::NoNode;
        for (turn, node) in self.nodes.usable().into_iter().enumerate() {
            match self.begin_at(&node, turn).await {
                Ok(chain) => return Ok(chain),
                Err(why) => reason = why,
            }
        }
        Err(reason)
    }

    /// Begins a chain at the newest confirmed slot of `node`. `turn` is the node's position among the usable nodes.
    async fn begin_at(&self, node: &N::Node, turn: usize) -> Result<ChainInProgress, PauseReason> {
        let schedule = fetch::epoch_schedule(node).await.ok_or(PauseReason::NoEpochs)?;
        let (polled_at, era) = (Instant::now(), self.frontier.era());
        let slot = fetch::newest_slot(node).await.ok_or(PauseReason::NoNode)?;
        self.frontier.answered(era, node.id(), Commitment::Confirmed, slot, Instant::now());
        let first = async {
            self.frontier.reached(Commitment::Confirmed, slot).await;
            let mut pause = NOT_YET_PAUSE;
            // A node that refuses blocks is no longer among the usable nodes, which ends the loop.
            while self.nodes.usable().iter().any(|usable| usable.id() == node.id()) {
                if let Some(hash) = fetch::blockhash(node, slot).await {
                    return Some(hash);
                }
                sleep_longer(&mut pause).await;
            }
            None
        };
        let (tip_hash, height) = timeout(GAP_AFTER, first).await.ok().flatten().ok_or(PauseReason::NoNode)?;
        Ok(ChainInProgress {
            writer: ChainWriter::new(self.followed.next_number(), slot, polled_at),
            heads: HeadsWriter::new(slot, height, &tip_hash),
            tip_hash,
            schedule,
            queue: VecDeque::new(),
            found_at: polled_at,
            polled_at,
            known_at_poll: slot,
            added: 0,
            without_fees: 0,
            check: None,
            late_since: None,
            behind_since: None,
            turn,
            kept_until: polled_at,
        })
    }

    /// Polls one node for the slots of its blocks, and adds the new blocks to the followed chain.
    async fn advance(&self, chain: &mut ChainInProgress) -> Result<(), FollowEnd> {
        let nodes = self.nodes.usable();
        let newest = chain.newest();
        let (polled_at, era) = (Instant::now(), self.frontier.era());
        chain.polled_at = polled_at;
        chain.known_at_poll = self.frontier.slot(Commitment::Confirmed);
        let listed = match chain.node_in_turn(&nodes) {
            Some(node) => {
                let last = newest.saturating_add(LISTED_SLOTS);
                fetch::slots(node, newest, last).await.map(|slots| (node, slots))
            }
            None => None,
        };
        match listed.as_ref().map(|(node, slots)| (node, &slots[..])) {
            // The poll failed. The chain goes on if a later poll succeeds before the chain counts as stalled.
            None => chain.pass_over(),
            Some((_, [])) => {
                chain.pass_over();
                if chain.behind_since.get_or_insert(polled_at).elapsed() > BEHIND_FOR {
                    return Err(RestartReason::Behind.into());
                }
            }
            Some((_, [first, ..])) if *first != newest => return Err(FollowEnd::FORK),
            Some((_, [_, new @ ..])) if chain.queue.len() + new.len() > self.settings.max_gap => {
                return Err(RestartReason::TooFar.into());
            }
            Some((node, [_, new @ ..])) => {
                chain.behind_since = None;
                let last = *new.last().unwrap_or(&newest);
                self.frontier.answered(era, node.id(), Commitment::Confirmed, last, Instant::now());
                self.read_blocks(chain, &nodes, new).await?;
                if chain.queue.is_empty() {
                    chain.writer.renew(polled_at);
                }
                if last < self.frontier.slot(Commitment::Confirmed) {
                    chain.prefer_peer(&nodes);
                }
            }
        }
        self.finalize(chain)?;
        chain.cross_check(&nodes, self.tasks)?;
        if chain.found_at.elapsed() > STALLED_AFTER {
            return Err(RestartReason::Stalled.into());
        }
        Ok(())
    }

    /// Reads the blocks at the slots `new`, which a node has listed. Adds each block as soon as all earlier
    /// ones are added.
    async fn read_blocks(
        &self,
        chain: &mut ChainInProgress,
        nodes: &[N::Node],
        new: &[Slot],
    ) -> Result<(), FollowEnd> {
        let turn = chain.turn;
        let fetches = new.iter().copied().map(|slot| self.read_block(nodes, turn, slot));
        let mut read = pin!(stream::iter(fetches).buffered(FETCHES));
        while let Some(block) = read.next().await {
            chain.queue.push_back(block?);
            self.add_ready(chain, nodes).await?;
        }
        self.add_ready(chain, nodes).await
    }

    /// Reads the block at `slot` from the shared store, or from the nodes if the store does not give it.
    async fn read_block(&self, nodes: &[N::Node], turn: usize, slot: Slot) -> Result<ReadBlock, FollowEnd> {
        match self.shared.find(slot).await {
            Some(writes) => Ok(ReadBlock { slot, writes, node: None, read_at: Instant::now() }),
            None => self.ask_for_block(nodes, turn, slot).await,
        }
    }

    /// Reads the block at `slot` from the nodes in turn, beginning with the node at the position `turn`.
    /// Publishes the block for other replicas.
    async fn ask_for_block(
        &self,
        nodes: &[N::Node],
        turn: usize,
        slot: Slot,
    ) -> Result<ReadBlock, FollowEnd> {
        let began = Instant::now();
        let (mut attempt, mut pause) = (turn, NOT_YET_PAUSE);
        let mut end = PauseReason::TooSlow.into();
        loop {
            let node = &nodes[attempt % nodes.len()];
            match fetch::block(node, slot, self.metrics).await? {
                FetchedBlock::Read(writes) => {
                    self.shared.publish(slot, node.id(), &writes).await;
                    return Ok(ReadBlock { slot, writes, node: Some(node.id()), read_at: Instant::now() });
                }
                FetchedBlock::Absent => end = FollowEnd::GAP,
                // If every attempt times out like this one, the nodes count as too slow.
                FetchedBlock::TimedOut => {}
            }
            if began.elapsed() > GAP_AFTER {
                return Err(end);
            }
            attempt += 1;
            sleep_longer(&mut pause).await;
        }
    }

    /// Adds queued blocks to the chain, up to the newest slot that is known to be confirmed. Stops at a block
    /// whose rewards are missing.
    async fn add_ready(&self, chain: &mut ChainInProgress, nodes: &[N::Node]) -> Result<(), FollowEnd> {
        while let Some(block) = chain.queue.front() {
            if block.slot > self.frontier.slot(Commitment::Confirmed) {
                return Ok(());
            }
            if block.node.is_none() && !chain.is_continued_by(&block.writes) {
                let own = self.ask_for_block(nodes, chain.turn, block.slot).await?;
                chain.queue[0] = own;
                continue;
            }
            if block.writes.lacks_fee_reward && !self.complete_rewards(chain, nodes).await? {
                return Ok(());
            }
            if let Some(block) = chain.queue.pop_front() {
                self.add(chain, block)?;
            }
        }
        Ok(())
    }

    /// Reads the fee reward that the first block of the queue lacks, from the shared store or from a node.
    /// Returns false if the block must wait for its fee reward. If a node's second answer has no fee reward
    /// either, the block counts as one without fees.
    async fn complete_rewards(
        &self,
        chain: &mut ChainInProgress,
        nodes: &[N::Node],
    ) -> Result<bool, FollowEnd> {
        let Some(block) = chain.queue.front() else { return Ok(false) };
        let complete = self.shared.find_now(block.slot).await;
        if let Some(writes) = complete.filter(|complete| chain.is_continued_by(complete)) {
            chain.queue[0] = ReadBlock { slot: block.slot, writes, node: None, read_at: block.read_at };
            return Ok(true);
        }
        // A node writes the rewards of its blocks in order. If a later block of the same node has rewards,
        // the node has written the rewards of this block, too.
        let from_same_node = |later: &ReadBlock| later.node == block.node && !later.writes.lacks_fee_reward;
        let is_written = chain.queue.iter().skip(1).any(from_same_node);
        let is_late = block.read_at.elapsed() >= REWARDS_AFTER;
        let same_node = || nodes.iter().find(|node| Some(node.id()) == block.node);
        let other_node = || nodes.iter().find(|node| Some(node.id()) != block.node).or(nodes.first());
        let node = is_written.then(same_node).flatten().or_else(|| is_late.then(other_node).flatten());
        let Some(node) = node else { return Ok(false) };
        match fetch::block(node, block.slot, self.metrics).await? {
            FetchedBlock::Read(again) => {
                self.shared.publish(block.slot, node.id(), &again).await;
                if let Some(block) = chain.queue.front_mut() {
                    block.writes = again;
                }
                Ok(true)
            }
            _ if block.read_at.elapsed() > GAP_AFTER => Err(FollowEnd::GAP),
            FetchedBlock::Absent | FetchedBlock::TimedOut => Ok(false),
        }
    }

    fn finalize(&self, chain: &mut ChainInProgress) -> Result<(), FollowEnd> {
        let before = chain.writer.chain().target();
        chain.writer.finalize(self.frontier.slot(Commitment::Finalized))?;
        if chain.writer.chain().target() != before {
            self.publish_heads(chain);
        }
        Ok(())
    }

    fn publish_heads(&self, chain: &ChainInProgress) {
        self.followed.heads.send_replace(Some(chain.heads.of(chain.writer.chain())));
    }

    fn add(&self, chain: &mut ChainInProgress, block: ReadBlock) -> Result<(), FollowEnd> {
        let ReadBlock { slot, writes, node, .. } = block;
        let tip = chain.writer.chain().tip().slot;
        if !chain.is_continued_by(&writes) {
            return Err(FollowEnd::GAP);
        }
        if chain.schedule.epoch(slot) != chain.schedule.epoch(tip) {
            return Err(RestartReason::Epoch.into());
        }
        if writes.begins_rewards {
            return Err(FollowEnd::GAP);
        }
        chain.without_fees = if writes.lacks_fee_reward { chain.without_fees + 1 } else { 0 };
        if chain.without_fees > BLOCKS_WITHOUT_FEES {
            return Err(PauseReason::NoFees.into());
        }
        if node.is_none() {
            self.metrics.follow_blocks.at(BlockResult::Shared).inc();
        }
        self.metrics.follow_writes.at(()).inc_by(writes.writes.len() as u64);
        let buckets = writes.writes.iter().map(|write| self.followed.buckets.of_fingerprint(*write));
        chain.writer.add(slot, buckets.collect())?;
        self.followed.note_move();
        chain.heads.add(slot, &writes.blockhash);
        self.publish_heads(chain);
        (chain.tip_hash, chain.found_at) = (writes.blockhash, chain.polled_at);
        chain.added += 1;
        if chain.added.is_multiple_of(CROSS_CHECK_EVERY) {
            chain.check = Some(CrossCheck::new(slot, chain.tip_hash.clone(), node));
        }
        let frontier = self.frontier.slot(Commitment::Confirmed);
        chain.check_pace(frontier.saturating_sub(slot)).map_err(FollowEnd::from)
    }
}

/// Sleeps for `pause`, and makes the next pause half as long again, up to [`LONGEST_NOT_YET_PAUSE`].
async fn sleep_longer(pause: &mut Duration) {
    sleep(*pause).await;
    *pause = pause.mul_f64(1.5).min(LONGEST_NOT_YET_PAUSE);
}

#[cfg(test)]
mod tests;
