//! The rules that derive the newest known slot at one commitment from the slots that nodes report. The rules take
//! nodes and time as arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::FrontierNode;
use crate::methods::Slot;

/// The time after which a node that is far ahead of all others and keeps advancing is believed, although others advance,
/// too. While two other nodes advance together, such a node counts as faulty and is not believed.
const LEAD_BELIEVED_AFTER: Duration = Duration::from_secs(10);
/// The time over which a node must have reported one and the same slot to count as standing still. A healthy node may
/// stand still for four slots, because each leader has four, and a leader that is down skips all of them.
const STANDS_STILL_AFTER: Duration = Duration::from_millis(4 * 400);
/// The time after which the newest known slot is lowered, if usable nodes report only lower slots meanwhile. The nodes'
/// reports then give the lower value.
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
    /// The node's reports since the first one. `None` before the first report, and if the node is not usable.
    course: Option<Course>,
}

/// The course of a node's reports since its first one. A slot that falls, or rises farther than a node advances between
/// two reports, begins a new course.
#[derive(Debug, Clone, Copy)]
struct Course {
    began: Instant,
    last: Instant,
    has_risen: bool,
}

impl Course {
    fn lasted(&self) -> bool {
        self.last.duration_since(self.began) >= STANDS_STILL_AFTER
    }
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
    /// Records that the node has reported the slot `reported`. An answer never lowers the slot, because a later answer
    /// may arrive earlier.
    pub(super) fn note(&mut self, reported: Slot, by_answer: bool, lead: u64, now: Instant) {
        let before = self.slot;
        let slot = before.filter(|before| by_answer && *before > reported).unwrap_or(reported);
        self.slot = Some(slot);
        let risen = before.and_then(|before| slot.checked_sub(before)).filter(|risen| *risen <= lead);
        self.course = Some(match (self.course, risen) {
            (Some(course), Some(risen)) => {
                Course { last: now, has_risen: course.has_risen || risen > 0, ..course }
            }
            _ => Course { began: now, last: now, has_risen: false },
        });
    }

    fn has_risen(&self) -> bool {
        self.course.is_some_and(|course| course.has_risen)
    }

    fn stands_still(&self) -> bool {
        self.course.is_some_and(|course| !course.has_risen && course.lasted())
    }

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

/// The newest slots that all nodes have reported at one commitment, and the newest known slot that follows from them.
#[derive(Debug)]
pub(super) struct CommitmentState {
    /// The report of each node, in the order of the nodes in [`Frontier`](super::Frontier).
    pub(super) reports: Vec<Report>,
    frontier: Slot,
    /// True if the slot in `frontier` came from a believed report. An untrusted slot is replaced even by a lower slot.
    /// For example, the slot is untrusted until the second node of a pool has reported.
    trusted: bool,
    heard_at: Option<Instant>,
    /// The time since which usable nodes report only slots below `frontier`. `None` while a node reaches it.
    unreached: Option<Unreached>,
}

/// A time in which all usable nodes report slots below the newest known slot.
#[derive(Debug, Clone, Copy)]
struct Unreached {
    since: Instant,
    lowest: Slot,
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
    /// The lowest slot from which the nodes may have gone on, if the slot that was lowered had been believed.
    pub(super) abandoned_above: Option<Slot>,
}

impl CommitmentState {
    pub(super) fn new(nodes: usize) -> Self {
        let reports = vec![Report::default(); nodes];
        Self { reports, frontier: 0, trusted: false, heard_at: None, unreached: None }
    }

    /// Decides the newest known slot from the reports of the usable `nodes`. `lead` is the maximum number of slots
    /// by which a single node may be ahead of all others and be believed.
    pub(super) fn decide(&mut self, nodes: &[FrontierNode], lead: u64, now: Instant) -> FrontierChange {
        let (mut reset, mut abandoned_above) = (false, None);
        if let Some(FrontierCandidate { slot, believed }) = self.candidate(nodes, lead, now) {
            self.heard_at.get_or_insert(now);
            self.unreached = (slot < self.frontier).then(|| {
                let Unreached { since, lowest } =
                    self.unreached.unwrap_or(Unreached { since: now, lowest: slot });
                Unreached { since, lowest: lowest.min(slot) }
            });
            let may_fall =
                |unreached: &Unreached| now.duration_since(unreached.since) >= UNREACHED_FALLS_AFTER;
            if !self.trusted || self.unreached.as_ref().is_none_or(may_fall) {
                if let Some(Unreached { lowest, .. }) = self.unreached.take() {
                    reset = true;
                    abandoned_above = self.trusted.then_some(lowest);
                }
                self.trusted = believed || (self.trusted && slot == self.frontier);
                self.frontier = slot;
            }
        }
        FrontierChange { frontier: self.frontier, reset, abandoned_above }
    }

    /// Returns true if the newest known slot is believed, or if waiting is unlikely to bring a better one: a single node
    /// reports slots, no node advances, or nodes far apart have been advancing for long. True without a report.
    pub(super) fn is_settled(&self, nodes: &[FrontierNode], now: Instant) -> bool {
        let reports = || {
            self.reports
                .iter()
                .zip(nodes)
                .filter(|(_, node)| node.usable)
                .filter_map(|(report, _)| report.course)
        };
        let has_waited = self.heard_at.is_some_and(|heard| now.duration_since(heard) >= LEAD_BELIEVED_AFTER);
        let none_to_wait_for = || {
            reports().all(|course| course.lasted()) && reports().filter(|course| course.has_risen).count() < 2
        };
        self.trusted || has_waited || none_to_wait_for()
    }

    /// Returns the only one of the `usable` nodes that advances, if it is not the only node and all others stand still.
    fn only_one_that_advances(&self, usable: &[(usize, Slot)]) -> Option<usize> {
        let (mut risen, still): (Vec<usize>, Vec<usize>) =
            usable.iter().map(|(node, _)| *node).partition(|node| self.reports[*node].has_risen());
        let only = risen.pop().filter(|_| risen.is_empty() && !still.is_empty())?;
        still.iter().all(|node| self.reports[*node].stands_still()).then_some(only)
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
            (report.doubt, report.course) = (None, None);
        }
        // Until a slot is believed, a node that advances is believed before those that stand still.
        let advances = if self.trusted { None } else { self.only_one_that_advances(&usable) };
        let pool_of_one = self.reports.len() == 1;
        let close = |a: usize, b: usize| usable[a].1 - usable[b].1 <= lead;
        let candidates: Vec<FrontierCandidate> = (0..usable.len())
            .map(|at| {
                let is_shared = pool_of_one
                    || (at > 0 && close(at - 1, at))
                    || (at + 1 < usable.len() && close(at, at + 1));
                let (node, slot) = usable[at];
                let is_shared = is_shared || advances == Some(node);
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
