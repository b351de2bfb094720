//! The rules that derive the newest known slot at one commitment from the slots that nodes report. The rules take
//! nodes and time as arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::node_slots::FrontierNode;
use crate::methods::Slot;

/// The time after which a node that is far ahead of all others and keeps advancing is believed. While two other nodes
/// advance together, such a node counts as faulty and is not believed.
const LEAD_BELIEVED_AFTER: Duration = Duration::from_secs(10);
/// The time after which the newest known slot is lowered, if no usable node has reached this slot meanwhile. The
/// nodes' reports then give the lower value.
const UNREACHED_FALLS_AFTER: Duration = Duration::from_secs(30);

/// The newest slot that one node has reported at one commitment, and the data that decide if this slot is believed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Report {
    /// The newest reported slot. `None` before the first report.
    pub(super) slot: Option<Slot>,
    /// The last reported slot at which the node was believed. A report close above this slot needs no second node.
    believed: Option<Slot>,
    /// The earliest report of the node that has not been believed. `None` if the newest report was believed, if the
    /// node has not reported, or if it is not usable.
    doubt: Option<Doubt>,
}

/// The first of a node's reports that were not believed. Once two other nodes have advanced together, the node's
/// next report is kept instead.
#[derive(Debug, Clone, Copy)]
struct Doubt {
    since: Instant,
    slot: Slot,
    /// The highest slot to which two other nodes were close at the time of the report.
    others: Option<Slot>,
}

impl Report {
    /// Returns true if the node's report of `slot` is believed. `is_shared` is true if another node is close to `slot`,
    /// or if there is no other node. `others` is the highest slot to which two other nodes are close.
    ///
    /// A slot is believed if it is shared, or at most `lead` above the node's last believed slot. A node that
    /// keeps advancing alone is believed after [`LEAD_BELIEVED_AFTER`], unless `others` rises meanwhile.
    fn decide(&mut self, slot: Slot, is_shared: bool, others: Option<Slot>, lead: u64, now: Instant) -> bool {
        let continues = self.believed.is_some_and(|believed| slot <= believed.saturating_add(lead));
        let fresh = Doubt { since: now, slot, others };
        let doubt = *self.doubt.insert(self.doubt.filter(|doubt| others <= doubt.others).unwrap_or(fresh));
        let advancing = slot > doubt.slot && now.duration_since(doubt.since) >= LEAD_BELIEVED_AFTER;
        let believed = is_shared || continues || advancing;
        if believed {
            (self.believed, self.doubt) = (Some(slot), None);
        }
        believed
    }
}

/// The newest slots that all nodes have reported at one commitment, and the newest known slot that follows from
/// them.
#[derive(Debug)]
pub(super) struct CommitmentState {
    /// The report of each node, in the order of the nodes in [`Frontier`](super::Frontier).
    pub(super) reports: Vec<Report>,
    frontier: Slot,
    /// True if the slot in `frontier` came from a believed report. An untrusted slot is replaced even by a lower slot.
    /// For example, the slot is untrusted until the second node of a pool has reported.
    trusted: bool,
    reached_at: Option<Instant>,
}

/// The newest slot according to the reports of all usable nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FrontierCandidate {
    slot: Slot,
    believed: bool,
}

/// The result of a decision about the newest known slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrontierChange {
    pub(super) frontier: Slot,
    /// True if the newest known slot was lowered.
    pub(super) reset: bool,
}

impl CommitmentState {
    pub(super) fn new(nodes: usize) -> Self {
        let reports = vec![Report::default(); nodes];
        Self { reports, frontier: 0, trusted: false, reached_at: None }
    }

    /// Decides the newest known slot from the reports of the usable `nodes`. `lead` is the maximum number of slots
    /// by which a single node may be ahead of all others and be believed.
    pub(super) fn decide(&mut self, nodes: &[FrontierNode], lead: u64, now: Instant) -> FrontierChange {
        let mut reset = false;
        if let Some(FrontierCandidate { slot, believed }) = self.candidate(nodes, lead, now) {
            let unreached = self.reached_at.is_none_or(|at| now.duration_since(at) >= UNREACHED_FALLS_AFTER);
            if slot >= self.frontier || !self.trusted || unreached {
                reset = slot < self.frontier;
                self.trusted = believed || (self.trusted && slot == self.frontier);
                self.frontier = slot;
                self.reached_at = Some(now);
            }
        }
        FrontierChange { frontier: self.frontier, reset }
    }

    /// Returns the highest reported slot if it is believed, otherwise the second highest. If only one usable node
    /// has reported a slot, returns this slot, believed or not. `None` without a report.
    fn candidate(&mut self, nodes: &[FrontierNode], lead: u64, now: Instant) -> Option<FrontierCandidate> {
        let mut usable: Vec<(usize, Slot)> = (0..self.reports.len())
            .filter(|&i| nodes[i].usable)
            .filter_map(|i| Some((i, self.reports[i].slot?)))
            .collect();
        usable.sort_unstable_by_key(|(_, slot)| std::cmp::Reverse(*slot));
        for (report, _) in self.reports.iter_mut().zip(nodes).filter(|(_, node)| !node.usable) {
            report.doubt = None;
        }
        let pool_of_one = self.reports.len() == 1;
        let close = |a: usize, b: usize| usable[a].1 - usable[b].1 <= lead;
        let candidates: Vec<FrontierCandidate> = (0..usable.len())
            .map(|at| {
                let is_shared = pool_of_one
                    || (at > 0 && close(at - 1, at))
                    || (at + 1 < usable.len() && close(at, at + 1));
                let (node, slot) = usable[at];
                let agree = |i: usize| i != at && i + 1 != at && close(i, i + 1);
                let others = (0..usable.len() - 1).find(|i| agree(*i)).map(|i| usable[i].1);
                let believed = self.reports[node].decide(slot, is_shared, others, lead, now);
                FrontierCandidate { slot, believed }
            })
            .collect();
        match candidates.as_slice() {
            [leader, second, ..] if !leader.believed => Some(*second),
            candidates => candidates.first().copied(),
        }
    }
}
