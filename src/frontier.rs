//! The frontier: the newest slot at each commitment, for each node and for the pool.
//!
//! Probes and answers report slots here, and every freshness decision reads them. Not every report is
//! believed. A node far ahead of all others is believed once a second node confirms it, or once it has kept
//! advancing while no two others advanced together. It stays believed while it continues from there. A frontier
//! that no node reaches any more falls back. Nodes may join and leave, and their numbers are never reused.

mod commitment_state;
mod node_slots;
mod pace;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::methods::{Commitment, Slot};
use commitment_state::{CommitmentState, FrontierChange, Report};
use node_slots::FrontierNode;
pub use node_slots::NodeSlots;
use pace::SlotPace;

/// The length of a slot before it has been measured for a minute.
pub const ASSUMED_SLOT_TIME: Duration = Duration::from_millis(400);

/// A report further above every other usable node than this time's slots needs confirmation.
pub(crate) const UNCONFIRMED_LEAD: Duration = Duration::from_millis(25_600);
/// The bounds of such a lead in slots, whatever slot time was measured: slots of a second, and of 100 ms.
const UNCONFIRMED_LEAD_SLOTS: (u64, u64) = (26, 256);
/// The state that is changed under one lock.
#[derive(Debug)]
struct FrontierState {
    commitments: [CommitmentState; 3],
    /// The nodes in the order in which they joined.
    nodes: Vec<FrontierNode>,
    /// The number of the next node to join.
    next: usize,
    /// The pace of the frontier at processed.
    pace: SlotPace,
}

impl FrontierState {
    /// Returns the position of a node in the list. `None` once it has left.
    fn position(&self, id: usize) -> Option<usize> {
        self.nodes.iter().position(|node| node.node == id)
    }
}

/// The period between two moments at which all reports were discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Era(u64);

/// The pool's view of the chain's head, shared by probes, pool and cache.
#[derive(Debug)]
pub struct Frontier {
    inner: Mutex<FrontierState>,
    /// The frontiers by [`Commitment::index`], for reads without a lock. 0 is unknown.
    published: [AtomicU64; 3],
    /// The time at which each frontier last moved, in milliseconds after `started`.
    moved_ms: [AtomicU64; 3],
    /// The time at which a node last reported each frontier, in milliseconds after `started`.
    last_report_ms: [AtomicU64; 3],
    /// The measured length of a slot, in microseconds. 0 is unknown.
    slot_us: AtomicU64,
    started: Instant,
    /// The number of times that all reports were discarded. Changed under the lock.
    era: AtomicU64,
    resets: AtomicU64,
    advanced: watch::Sender<()>,
}

impl Frontier {
    /// Creates a frontier over `nodes` nodes, numbered from 0, before their first reports.
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
            last_report_ms: Default::default(),
            slot_us: AtomicU64::new(0),
            started: Instant::now(),
            era: AtomicU64::new(0),
            resets: AtomicU64::new(0),
            advanced: watch::Sender::new(()),
        }
    }

    /// Adds a node, and returns its number.
    pub fn join(&self) -> usize {
        let mut inner = self.lock();
        let node = inner.next;
        inner.next += 1;
        inner.nodes.push(FrontierNode::new(node));
        inner.commitments.iter_mut().for_each(|state| state.reports.push(Report::default()));
        node
    }

    /// Removes a node that has left the pool. Its reports no longer count.
    pub fn leave(&self, node: usize, now: Instant) {
        let mut inner = self.lock();
        let Some(position) = inner.position(node) else { return };
        inner.nodes.remove(position);
        for commitment in Commitment::ALL {
            inner.commitments[commitment.index()].reports.remove(position);
            self.decide(&mut inner, commitment, now);
        }
    }

    /// Returns the slots of a node, to be kept beside it and read without a lock.
    pub fn slots_of(&self, node: usize) -> Arc<NodeSlots> {
        let inner = self.lock();
        inner.position(node).map(|position| Arc::clone(&inner.nodes[position].slots)).unwrap_or_default()
    }

    /// Returns the pool's newest slot at `commitment`, or 0 before the first report.
    pub fn slot(&self, commitment: Commitment) -> Slot {
        self.published[commitment.index()].load(Ordering::Acquire)
    }

    /// Returns true if an answer at `slot` is believed: it is no further ahead than one node alone may be.
    pub fn believes(&self, commitment: Commitment, slot: Slot) -> bool {
        let frontier = self.slot(commitment);
        frontier == 0 || slot <= frontier.saturating_add(self.unconfirmed_lead())
    }

    /// Returns the length of a slot, by the moves of the frontier at processed over the last minute, or
    /// [`ASSUMED_SLOT_TIME`] until a minute is known. A frontier that stands still does not change it.
    pub fn slot_time(&self) -> Duration {
        match self.slot_us.load(Ordering::Relaxed) {
            0 => ASSUMED_SLOT_TIME,
            us => Duration::from_micros(us),
        }
    }

    /// Returns the time that this many slots take.
    pub fn time_of(&self, slots: u64) -> Duration {
        self.slot_time().saturating_mul(u32::try_from(slots).unwrap_or(u32::MAX))
    }

    /// Returns the most slots by which one node alone may be ahead of all others.
    fn unconfirmed_lead(&self) -> u64 {
        let (least, most) = UNCONFIRMED_LEAD_SLOTS;
        let slots = UNCONFIRMED_LEAD.as_micros() / self.slot_time().as_micros().max(1);
        u64::try_from(slots).unwrap_or(u64::MAX).clamp(least, most)
    }

    /// Returns the newest slot that `node` is known to have reached. `None` before its first report.
    pub fn node_slot(&self, node: usize, commitment: Commitment) -> Option<Slot> {
        self.slots_of(node).slot(commitment)
    }

    /// Returns how far `node` is behind the frontier, in slots. `None` before its first report.
    pub fn lag(&self, node: usize, commitment: Commitment) -> Option<u64> {
        self.lag_of(&self.slots_of(node), commitment)
    }

    /// Returns how far a node with these slots is behind the frontier, in slots. `None` before its first
    /// report.
    pub fn lag_of(&self, slots: &NodeSlots, commitment: Commitment) -> Option<u64> {
        Some(self.slot(commitment).saturating_sub(slots.slot(commitment)?))
    }

    /// Returns the time since the frontier last moved.
    pub fn age(&self, commitment: Commitment, now: Instant) -> Duration {
        let moved = self.moved_ms[commitment.index()].load(Ordering::Relaxed);
        now.duration_since(self.started).saturating_sub(Duration::from_millis(moved))
    }

    /// Returns the time since a node last reported the frontier, even one that stands still.
    pub fn since_last_report(&self, commitment: Commitment, now: Instant) -> Duration {
        let heard = self.last_report_ms[commitment.index()].load(Ordering::Relaxed);
        now.duration_since(self.started).saturating_sub(Duration::from_millis(heard))
    }

    /// Returns the number of times that a frontier has fallen because no node reached it any more.
    pub fn resets(&self) -> u64 {
        self.resets.load(Ordering::Relaxed)
    }

    /// Reports the slot of a probe, which may lower a node's slot, as after a restart.
    pub fn probed(&self, node: usize, commitment: Commitment, slot: Slot, now: Instant) {
        self.probed_in(self.era(), node, commitment, slot, now);
    }

    /// Returns the era, which lasts until all reports are discarded. It must be read before a node is asked,
    /// because a report from an earlier era does not count.
    pub fn era(&self) -> Era {
        Era(self.era.load(Ordering::Acquire))
    }

    /// Reports the slot of a probe, as [`Self::probed`], for a request that was sent in `era`.
    pub fn probed_in(&self, era: Era, node: usize, commitment: Commitment, slot: Slot, now: Instant) {
        self.report(era, (node, commitment, slot), now, false);
    }

    /// Reports the context slot of an answer, as [`Self::answered`], for a request that was sent in `era`.
    pub fn answered_in(&self, era: Era, node: usize, commitment: Commitment, slot: Slot, now: Instant) {
        self.report(era, (node, commitment, slot), now, true);
    }

    /// Reports the context slot of an answer. Answers overtake each other, so this only ever raises a node's
    /// slot.
    pub fn answered(&self, node: usize, commitment: Commitment, slot: Slot, now: Instant) {
        self.answered_in(self.era(), node, commitment, slot, now);
    }

    /// Returns true if an answer has reported the node's newest slot within the last `period`. An answer with
    /// a lower slot does not count: it was overtaken, or the node has fallen back.
    pub fn reported_within(
        &self,
        slots: &NodeSlots,
        commitment: Commitment,
        period: Duration,
        now: Instant,
    ) -> bool {
        slots
            .reported_ms(commitment)
            .is_some_and(|reported| self.ms(now).saturating_sub(reported) < millis(period))
    }

    /// Sets if the reports of a node count. It must answer its probes, be healthy and belong to the pool's
    /// cluster.
    pub fn set_usable(&self, node: usize, usable: bool, now: Instant) {
        let mut inner = self.lock();
        let Some(position) = inner.position(node) else { return };
        if std::mem::replace(&mut inner.nodes[position].usable, usable) != usable {
            for commitment in Commitment::ALL {
                self.decide(&mut inner, commitment, now);
            }
        }
    }

    /// Discards all reports, because the cluster behind the pool is another one.
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
                node.slots.set_reported_ms(commitment, None);
            }
            self.published[commitment.index()].store(0, Ordering::Release);
        }
    }

    /// Waits until the frontier at `commitment` has reached `slot`. Callers must bring a deadline of their
    /// own.
    pub async fn reached(&self, commitment: Commitment, slot: Slot) {
        let mut advanced = self.advanced.subscribe();
        while self.slot(commitment) < slot {
            if advanced.changed().await.is_err() {
                return;
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
        if era != self.era() {
            return;
        }
        let Some(position) = inner.position(node) else { return };
        let report = &mut inner.commitments[c.index()].reports[position];
        // `None` compares as the least.
        report.slot = if by_answer { report.slot.max(Some(reported)) } else { Some(reported) };
        let slot = report.slot;
        let slots = &inner.nodes[position].slots;
        slots.set(c, slot);
        if by_answer && slot == Some(reported) {
            slots.set_reported_ms(c, Some(self.ms(now)));
        }
        self.decide(&mut inner, c, now);
        if reported == self.slot(c) {
            self.last_report_ms[c.index()].store(self.ms(now), Ordering::Relaxed);
        }
    }

    fn decide(&self, inner: &mut FrontierState, commitment: Commitment, now: Instant) {
        let FrontierState { commitments, nodes, pace, .. } = inner;
        let FrontierChange { frontier, reset } =
            commitments[commitment.index()].decide(nodes, self.unconfirmed_lead(), now);
        if reset {
            self.resets.fetch_add(1, Ordering::Relaxed);
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

    /// Returns a time in milliseconds after the frontier was created.
    fn ms(&self, now: Instant) -> u64 {
        millis(now.duration_since(self.started))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FrontierState> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
