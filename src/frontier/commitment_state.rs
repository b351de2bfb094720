//! The rules by which the reports of nodes set the frontier of one commitment. The rules take nodes and time as
//! arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::node_slots::FrontierNode;
use crate::methods::Slot;

/// The time after which a node that leads alone and keeps advancing is believed. Such a node is not believed while two
/// other nodes advance together, because it is the exception then.
const LEAD_BELIEVED_AFTER: Duration = Duration::from_secs(10);
/// The time after which a frontier that no usable node has reached falls to the slot that the reports give.
const UNREACHED_FALLS_AFTER: Duration = Duration::from_secs(30);

/// The reports of one node at one commitment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Report {
    /// The newest slot. `None` before the first report.
    pub(super) slot: Option<Slot>,
    /// The slot at which the node was last believed. A report close above this slot needs no second node.
    believed: Option<Slot>,
    /// The first of the node's latest reports that were not believed. `None` if the last one was believed, and while
    /// the node has no report or is not usable.
    doubt: Option<Doubt>,
}

/// The first report of a node that was not believed. A later report takes its place when two other nodes have advanced
/// together.
#[derive(Debug, Clone, Copy)]
struct Doubt {
    since: Instant,
    slot: Slot,
    /// The highest slot on which two other nodes agreed at that time.
    others: Option<Slot>,
}

impl Report {
    /// Returns true if `slot` is believed. `is_shared` is true if another node is close to this slot, or if there is no
    /// other node. A slot at most `lead` above the last believed one is believed, too. `others` is the highest slot on
    /// which two other nodes agree. While `others` advances, a node is not believed for its own advance alone.
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

/// The reports of all nodes at one commitment, and the resulting frontier.
#[derive(Debug)]
pub(super) struct CommitmentState {
    /// The reports in the order of the nodes.
    pub(super) reports: Vec<Report>,
    frontier: Slot,
    /// True if the frontier came from a believed report. Any candidate replaces an untrusted frontier. A frontier is
    /// untrusted until the second node of a pool has reported, for example.
    trusted: bool,
    reached_at: Option<Instant>,
}

/// The slot to which the reports would set the frontier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FrontierCandidate {
    slot: Slot,
    believed: bool,
}

/// The frontier after a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrontierChange {
    pub(super) frontier: Slot,
    /// True if the frontier has fallen.
    pub(super) reset: bool,
}

impl CommitmentState {
    pub(super) fn new(nodes: usize) -> Self {
        let reports = vec![Report::default(); nodes];
        Self { reports, frontier: 0, trusted: false, reached_at: None }
    }

    /// Decides the frontier from the reports of the usable `nodes`. `lead` is the most slots by which one node may lead
    /// and be believed without a second node.
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

    /// Returns the highest report if it is believed, otherwise the second highest. A single report is used,
    /// believed or not. `None` without a report.
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
