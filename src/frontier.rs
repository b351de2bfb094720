//! The frontier: the newest slot at each commitment, for each node and for the pool.
//!
//! Probes and answers report slots here, and every freshness decision reads the frontier, so one node that invents a
//! slot could make all answers look old. A node far ahead of all others is therefore believed only
//!
//! - once a second node is close to it, or
//! - once it has kept advancing for some time while no two others advanced together, or sooner, as long as no slot is
//!   believed yet and all others stand still.
//!
//! It stays believed while each of its reports is close above the last. A frontier that no node reaches any more falls
//! back to a slot that nodes report. Nodes may join and leave, and their ids are never reused.

mod commitment_state;
mod pace;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::methods::{Commitment, Slot};
use commitment_state::{CommitmentState, FrontierChange, Report};
use pace::SlotPace;

pub const ASSUMED_SLOT_TIME: Duration = Duration::from_millis(400);

/// The longest lead over all other usable nodes at which a single node's slot is believed. The lead is a time,
/// which the measured slot time converts into slots.
pub(crate) const SINGLE_NODE_LEAD: Duration = Duration::from_millis(25_600);
/// The lowest and the highest value of [`SINGLE_NODE_LEAD`] in slots. These are its values for slots of 1 s and of
/// 100 ms.
const SINGLE_NODE_LEAD_SLOTS: (u64, u64) = (26, 256);
/// The highest slot that is believed, even if the pool has only one node. Slots of 400 ms take 100 million years
/// to get there.
const HIGHEST_SLOT: Slot = 1 << 53;

/// The reports of all nodes, and the newest known slots that follow from them, under one lock.
#[derive(Debug)]
struct FrontierState {
    commitments: [CommitmentState; 3],
    nodes: Vec<FrontierNode>,
    next: usize,
    /// The measured duration of a slot, from the moves of the newest known slot at commitment processed.
    pace: SlotPace,
}

impl FrontierState {
    /// Returns the position of the node `id` in `nodes`. `None` if the node has left.
    fn position(&self, id: usize) -> Option<usize> {
        self.nodes.iter().position(|node| node.node == id)
    }
}

/// One node of the pool, with the slots that it has reported.
#[derive(Debug)]
struct FrontierNode {
    node: usize,
    /// True while the slots that the node reports count. A usable node answers its probes, is healthy and belongs
    /// to the same Solana cluster as the pool.
    usable: bool,
    slots: Arc<NodeSlots>,
}

impl FrontierNode {
    fn new(node: usize) -> Self {
        Self { node, usable: true, slots: Arc::default() }
    }
}

/// The newest slots that one node has reported, by [`Commitment::index`], for reads without a lock.
#[derive(Debug)]
pub struct NodeSlots([AtomicU64; 3]);

/// The stored value of a slot that is not known.
const NONE: u64 = u64::MAX;

impl Default for NodeSlots {
    fn default() -> Self {
        Self([const { AtomicU64::new(NONE) }; 3])
    }
}

impl NodeSlots {
    /// Returns the newest slot that the node is known to have reached. `None` if the node has reported no slot since
    /// [`Frontier::forget`].
    pub fn slot(&self, commitment: Commitment) -> Option<Slot> {
        Some(self.0[commitment.index()].load(Ordering::Acquire)).filter(|slot| *slot != NONE)
    }

    fn set(&self, commitment: Commitment, slot: Option<Slot>) {
        self.0[commitment.index()].store(slot.unwrap_or(NONE), Ordering::Release);
    }
}

/// A period between two calls of [`Frontier::forget`], which discards all reports of slots. An answer counts only if
/// the node was asked in the current period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Era(u64);

/// The newest known slots of the Solana cluster, by the reports of the pool's nodes. Probes, pool and cache share
/// this state.
#[derive(Debug)]
pub struct Frontier {
    inner: Mutex<FrontierState>,
    /// The newest known slot at each commitment, by [`Commitment::index`], for reads without a lock. 0 is unknown.
    published: [AtomicU64; 3],
    /// The time at which each of the `published` slots last changed, in milliseconds after `started`.
    moved_ms: [AtomicU64; 3],
    /// The measured length of a slot, in microseconds. 0 is unknown.
    slot_us: AtomicU64,
    started: Instant,
    /// The number of calls of [`Frontier::forget`]. Changed only while `inner` is locked.
    era: AtomicU64,
    resets: AtomicU64,
    /// True once [`Self::is_settled`] has returned true for slots that nodes have reported.
    settled: AtomicBool,
    advanced: watch::Sender<()>,
    /// The slot that [`Self::final_slots_abandoned`] returns next.
    abandoned_above: watch::Sender<Option<Slot>>,
}

impl Frontier {
    /// Creates the state for `nodes` nodes, whose ids count from 0. No node has reported a slot yet.
    pub fn new(nodes: usize) -> Self {
        Self {
            inner: Mutex::new(FrontierState {
                commitments: std::array::from_fn(|_| CommitmentState::new(nodes)),
                nodes: (0..nodes).map(FrontierNode::new).collect(),
                next: nodes,
                pace: SlotPace::default(),
            }),
            published: Default::default(),
            moved_ms: Default::default(),
            slot_us: AtomicU64::new(0),
            started: Instant::now(),
            era: AtomicU64::new(0),
            resets: AtomicU64::new(0),
            settled: AtomicBool::new(false),
            advanced: watch::Sender::new(()),
            abandoned_above: watch::Sender::new(None),
        }
    }

    pub fn join(&self) -> usize {
        let mut inner = self.lock();
        let node = inner.next;
        inner.next += 1;
        inner.nodes.push(FrontierNode::new(node));
        inner.commitments.iter_mut().for_each(|state| state.reports.push(Report::default()));
        node
    }

    /// Removes a node that has left the pool. The node's reports no longer count.
    pub fn leave(&self, node: usize, now: Instant) {
        let mut inner = self.lock();
        let Some(position) = inner.position(node) else { return };
        inner.nodes.remove(position);
        for commitment in Commitment::ALL {
            inner.commitments[commitment.index()].reports.remove(position);
            self.decide(&mut inner, commitment, now);
        }
    }

    /// Returns a handle to the newest slots that a node has reported. The caller may keep the handle and read the
    /// slots without a lock. For an unknown id, the slots stay unknown.
    pub fn slots_of(&self, node: usize) -> Arc<NodeSlots> {
        let inner = self.lock();
        inner.position(node).map(|position| Arc::clone(&inner.nodes[position].slots)).unwrap_or_default()
    }

    /// Returns the newest known slot at `commitment`. 0 if no usable node has reported a slot since [`Self::forget`].
    pub fn slot(&self, commitment: Commitment) -> Slot {
        self.published[commitment.index()].load(Ordering::Acquire)
    }

    /// Returns true if a single node's answer at `slot` is believed, because `slot` is not too far above the newest
    /// known slot. Always true while the newest known slot is unknown.
    pub fn believes(&self, commitment: Commitment, slot: Slot) -> bool {
        let frontier = self.slot(commitment);
        frontier == 0 || slot <= frontier.saturating_add(self.single_node_lead())
    }

    /// Returns the duration of a slot, measured at commitment processed over the last minute. [`ASSUMED_SLOT_TIME`]
    /// until a minute has been measured. While the newest known slot stands still, the result does not change.
    pub fn slot_time(&self) -> Duration {
        match self.slot_us.load(Ordering::Relaxed) {
            0 => ASSUMED_SLOT_TIME,
            us => Duration::from_micros(us),
        }
    }

    /// Returns the time that `slots` slots take.
    pub fn time_of(&self, slots: u64) -> Duration {
        self.slot_time().saturating_mul(u32::try_from(slots).unwrap_or(u32::MAX))
    }

    /// Returns the maximum number of slots by which one node may be ahead of all others and be believed.
    fn single_node_lead(&self) -> u64 {
        let (least, most) = SINGLE_NODE_LEAD_SLOTS;
        let slots = SINGLE_NODE_LEAD.as_micros() / self.slot_time().as_micros().max(1);
        u64::try_from(slots).unwrap_or(u64::MAX).clamp(least, most)
    }

    /// Returns the number of slots by which a node is behind the newest known slot. `slots` are the slots that the
    /// node has reported. `None` if the node has reported no slot since [`Self::forget`].
    pub fn lag(&self, slots: &NodeSlots, commitment: Commitment) -> Option<u64> {
        Some(self.slot(commitment).saturating_sub(slots.slot(commitment)?))
    }

    /// Returns the time since the newest known slot at `commitment` last changed.
    pub fn age(&self, commitment: Commitment, now: Instant) -> Duration {
        let moved = self.moved_ms[commitment.index()].load(Ordering::Relaxed);
        now.duration_since(self.started).saturating_sub(Duration::from_millis(moved))
    }

    /// Returns the number of times that a newest known slot was lowered. This happens if no usable node reaches
    /// the slot for a while, or if the slot did not come from a believed report.
    pub fn resets(&self) -> u64 {
        self.resets.load(Ordering::Relaxed)
    }

    /// Returns true if calls can rely on the newest known slots: they are believed, or waiting is unlikely to bring better
    /// ones. Once true, this stays true, so that it only delays the start.
    pub fn is_settled(&self, now: Instant) -> bool {
        if self.settled.load(Ordering::Relaxed) {
            return true;
        }
        let FrontierState { commitments, nodes, .. } = &*self.lock();
        let is_settled = commitments.iter().all(|state| state.is_settled(nodes, now));
        self.settled.store(is_settled && self.slot(Commitment::Processed) > 0, Ordering::Relaxed);
        is_settled
    }

    /// Returns the current [`Era`]. Callers must read the era before they ask a node, because an answer does not
    /// count if [`Self::forget`] is called meanwhile.
    pub fn era(&self) -> Era {
        Era(self.era.load(Ordering::Acquire))
    }

    /// Records that a probe found `node` at `slot`. A probe may lower the node's slot, for example after the node has
    /// restarted. Does nothing if [`Self::forget`] was called after `era` was read.
    pub fn probed(&self, era: Era, node: usize, commitment: Commitment, slot: Slot, now: Instant) {
        self.report(era, (node, commitment, slot), now, false);
    }

    /// Records the context slot of an answer from `node`. An answer never lowers the node's slot, because a later
    /// answer may arrive earlier. Does nothing if [`Self::forget`] was called after `era` was read.
    pub fn answered(&self, era: Era, node: usize, commitment: Commitment, slot: Slot, now: Instant) {
        self.report(era, (node, commitment, slot), now, true);
    }

    /// Sets whether the slots that a node reports count. A usable node answers its probes, is healthy and belongs
    /// to the same Solana cluster as the pool.
    pub fn set_usable(&self, node: usize, usable: bool, now: Instant) {
        let mut inner = self.lock();
        let Some(position) = inner.position(node) else { return };
        if std::mem::replace(&mut inner.nodes[position].usable, usable) != usable {
            for commitment in Commitment::ALL {
                self.decide(&mut inner, commitment, now);
            }
        }
    }

    /// Discards all reported slots and begins a new [`Era`], because the cluster has changed or the machine was
    /// suspended.
    pub fn forget(&self) {
        let mut inner = self.lock();
        self.era.fetch_add(1, Ordering::AcqRel);
        inner.pace = SlotPace::default();
        self.slot_us.store(0, Ordering::Relaxed);
        for commitment in Commitment::ALL {
            let state = &mut inner.commitments[commitment.index()];
            *state = CommitmentState::new(state.reports.len());
            for node in &inner.nodes {
                node.slots.set(commitment, None);
            }
            self.published[commitment.index()].store(0, Ordering::Release);
        }
    }

    /// Waits until the newest known slot at `commitment` is `slot` or above, without a deadline.
    pub async fn reached(&self, commitment: Commitment, slot: Slot) {
        let mut advanced = self.advanced.subscribe();
        while self.slot(commitment) < slot {
            if advanced.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until a believed finalized slot has been lowered. Returns the slot above which final slots are no longer
    /// final: the nodes were there meanwhile, and may have gone on to other blocks. One task may wait at a time.
    pub async fn final_slots_abandoned(&self) -> Slot {
        loop {
            let _ = self.abandoned_above.subscribe().wait_for(Option::is_some).await;
            if let Some(slot) = self.abandoned_above.send_replace(None) {
                return slot;
            }
        }
    }

    fn report(
        &self,
        era: Era,
        (node, c, reported): (usize, Commitment, Slot),
        now: Instant,
        by_answer: bool,
    ) {
        let mut inner = self.lock();
        if era != self.era() || reported > HIGHEST_SLOT {
            return;
        }
        let Some(position) = inner.position(node) else { return };
        let report = &mut inner.commitments[c.index()].reports[position];
        report.note(reported, by_answer, self.single_node_lead(), now);
        inner.nodes[position].slots.set(c, inner.commitments[c.index()].reports[position].slot);
        self.decide(&mut inner, c, now);
    }

    fn decide(&self, inner: &mut FrontierState, commitment: Commitment, now: Instant) {
        let FrontierState { commitments, nodes, pace, .. } = inner;
        let FrontierChange { frontier, reset, abandoned_above } =
            commitments[commitment.index()].decide(nodes, self.single_node_lead(), now);
        if reset {
            self.resets.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(slot) = abandoned_above.filter(|_| commitment == Commitment::Finalized) {
            self.abandoned_above
                .send_modify(|lowest| *lowest = Some(lowest.map_or(slot, |lowest| lowest.min(slot))));
        }
        let published = &self.published[commitment.index()];
        if published.swap(frontier, Ordering::AcqRel) != frontier {
            self.moved_ms[commitment.index()].store(self.ms(now), Ordering::Relaxed);
            if commitment == Commitment::Processed {
                pace.moved(frontier, now);
                let us = pace.slot_time().map_or(0, |time| time.as_micros());
                self.slot_us.store(u64::try_from(us).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
            self.advanced.send_replace(());
        }
    }

    fn ms(&self, now: Instant) -> u64 {
        millis(now.duration_since(self.started))
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, FrontierState> {
        self.inner.lock()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
