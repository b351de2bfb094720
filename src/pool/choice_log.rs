//! The last choice of a node for each method, for operators to inspect.
//!
//! At most ten choices a second are recorded for each method, and only if the lock is free, so that calls are
//! not slowed.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::members::Members;
use super::select::{Candidate, Selection};
use crate::methods::Method;

/// The shortest time between two recorded choices of a node for one method.
const EVERY: Duration = Duration::from_millis(100);

/// A recorded choice of the node for a call.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The time of the choice.
    pub at: Instant,
    /// Every node with its name, as it was rated for the call. The field `node` of a candidate is the
    /// candidate's position in this list.
    pub candidates: Vec<(String, Candidate)>,
    /// The position of the chosen node in `candidates`.
    pub node: usize,
    /// The position in `candidates` of the other node that was drawn at random. `None` if the node was chosen
    /// without a comparison.
    pub rival: Option<usize>,
    /// True if the node was chosen because the method stays with one node while that node is usable.
    pub stays: bool,
}

/// The last recorded choice of a node for each method.
#[derive(Debug, Default)]
pub(super) struct ChoiceLog([Mutex<Option<Choice>>; 8]);

impl ChoiceLog {
    /// Records a choice. Does nothing if the last recorded choice is too recent, or if the lock is taken.
    pub(super) fn keep(
        &self,
        method: Method,
        now: Instant,
        members: &Members,
        candidates: &[Candidate],
        Selection { node, rival, stays }: Selection,
    ) {
        let Ok(mut last) = self.0[method.index()].try_lock() else { return };
        if last.as_ref().is_some_and(|last| now < last.at + EVERY) {
            return;
        }
        let named = |candidate: &Candidate| (members[candidate.node].name.clone(), *candidate);
        let candidates = candidates.iter().map(named).collect();
        *last = Some(Choice { at: now, candidates, node, rival, stays });
    }

    /// Returns the last recorded choice of a node for `method`. `None` before the first choice.
    pub(super) fn of(&self, method: Method) -> Option<Choice> {
        super::lock(&self.0[method.index()]).clone()
    }
}

impl Choice {
    /// Returns the reason for the choice, as text for operators.
    pub fn reason(&self) -> String {
        let name = |position: usize| self.candidates[position].0.as_str();
        let (chosen, candidate) = &self.candidates[self.node];
        if let Some(unusable) = candidate.unusable {
            return format!("no node is usable, {chosen} is the least bad: {}", unusable.as_str());
        }
        if self.stays {
            return format!("the method stays with {chosen} while it is usable");
        }
        let usable = || self.candidates.iter().map(|(_, c)| c).filter(|c| c.unusable.is_none());
        if usable().count() == 1 {
            return match self.candidates.len() {
                1 => "the only node".to_owned(),
                _ => "the only usable node".to_owned(),
            };
        }
        let mut why = String::new();
        if usable().any(|c| c.near != candidate.near) {
            why.push_str("near the frontier, ");
        }
        if usable().any(|c| c.near == candidate.near && c.tier != candidate.tier) {
            why.push_str("lowest tier of the usable nodes, ");
        }
        // Writing to a String does not fail.
        let _ = match self.rival {
            Some(rival) => write!(why, "the lower load of {chosen} and {}", name(rival)),
            None => write!(why, "chosen without a comparison of loads"),
        };
        why
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::select::Unusable;

    #[tokio::test]
    async fn choice_records_its_reason() {
        use Unusable::{BreakerOpen, Lagging};
        let candidate =
            |node, unusable, near, tier| Candidate { node, unusable, near, quiet: None, tier, load: 0.001 };
        for (candidates, node, rival, stays, expected) in [
            (vec![candidate(0, None, true, 0)], 0, None, false, "the only node"),
            (
                vec![candidate(0, Some(Lagging), true, 0), candidate(1, None, true, 0)],
                1,
                None,
                false,
                "the only usable node",
            ),
            (
                vec![candidate(0, None, true, 0), candidate(1, None, true, 0)],
                1,
                Some(0),
                false,
                "the lower load of node-1 and node-0",
            ),
            (
                vec![candidate(0, None, false, 0), candidate(1, None, true, 1), candidate(2, None, true, 2)],
                1,
                None,
                false,
                "near the frontier, lowest tier of the usable nodes, chosen without a comparison of loads",
            ),
            (
                vec![candidate(0, None, true, 0), candidate(1, None, true, 0)],
                0,
                None,
                true,
                "the method stays with node-0 while it is usable",
            ),
            (
                vec![candidate(0, Some(BreakerOpen), true, 0), candidate(1, Some(Lagging), true, 0)],
                1,
                None,
                false,
                "no node is usable, node-1 is the least bad: lagging",
            ),
        ] {
            let candidates = candidates.into_iter().map(|c| (format!("node-{}", c.node), c)).collect();
            let choice = Choice { at: Instant::now(), candidates, node, rival, stays };
            assert_eq!(choice.reason(), expected);
        }
    }
}
