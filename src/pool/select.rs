//! The selection rule. It keeps the usable nodes, of these the nodes near the newest known slot, and of these the nodes
//! of the lowest tier. Among them two nodes are drawn, and the one with the lower load is asked (power of two choices).
//!
//! A snapshot of the nodes and a random draw are arguments. Health, lag and breaker never empty the pool: if no
//! node is usable, the least bad one is asked.

use std::cmp::Ordering;
use std::time::Duration;

use crate::telemetry::Unusable;

/// The rating of one node for one call.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    pub node: usize,
    /// The worst reason why the node is not usable. `None` if it is usable.
    pub unusable: Option<Unusable>,
    /// True if the node is at most `cache.max_lag_slots` slots behind the newest known slot at the call's commitment.
    pub near: bool,
    /// The time for which the node still wants no calls of the method. `None` if it gets them.
    pub quiet: Option<Duration>,
    /// The tier. Lower tiers come first.
    pub tier: u8,
    /// The peak-EWMA latency in seconds, times the calls in flight plus one.
    pub load: f64,
}

/// Returns the position in the pool of the node to ask. `None` if no node may be asked. `draw` is any random number.
pub fn choose(candidates: &[Candidate], draw: u64) -> Option<usize> {
    let usable = || candidates.iter().filter(|c| c.unusable.is_none());
    let near = usable().any(|c| c.near);
    let Some(tier) = usable().filter(|c| c.near == near).map(|c| c.tier).min() else {
        let askable = candidates.iter().filter(|c| c.unusable.is_some_and(Unusable::askable));
        let by_reason = |a: &Candidate, b: &Candidate| (a.unusable, a.quiet).cmp(&(b.unusable, b.quiet));
        return askable.min_by(|a, b| by_reason(a, b).then(by_load(a, b))).map(|least_bad| least_bad.node);
    };
    let mut best = usable().filter(|c| c.near == near && c.tier == tier);
    let (first, second) = two_of(best.clone().count(), draw);
    let (one, two) = (best.clone().nth(first)?, best.nth(second)?);
    // If both loads are equal, the node that was drawn first is asked.
    Some(if by_load(one, two).is_le() { one.node } else { two.node })
}

fn by_load(a: &Candidate, b: &Candidate) -> Ordering {
    a.load.total_cmp(&b.load)
}

/// Returns two different positions below `len`, evenly distributed over all random draws. If `len` is 1, returns
/// position 0 twice.
#[expect(clippy::cast_possible_truncation, reason = "both results are below len")]
fn two_of(len: usize, draw: u64) -> (usize, usize) {
    let n = len as u64;
    let first = (draw >> 32) % n;
    let second = if n > 1 { (first + 1 + (draw & 0xffff_ffff) % (n - 1)) % n } else { first };
    (first as usize, second as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(node: usize, unusable: Option<Unusable>, near: bool, tier: u8, load: f64) -> Candidate {
        Candidate { node, unusable, near, quiet: None, tier, load }
    }

    fn quiet(id: usize, left_ms: u64, load: f64) -> Candidate {
        let quiet = Some(Duration::from_millis(left_ms));
        Candidate { quiet, ..node(id, Some(Unusable::Quiet), true, 0, load) }
    }

    /// Returns the nodes that [`choose`] picks over 64 different draws.
    fn chosen(candidates: &[Candidate]) -> Vec<usize> {
        let draws = (0..64u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut nodes: Vec<usize> = draws.filter_map(|draw| choose(candidates, draw)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    #[test]
    fn prefers_usable_then_near_tier_and_load() {
        use Unusable::{BelowFloor, BreakerOpen, Busy, Foreign, Incapable, Lagging, Tried, Unreachable};
        for (name, candidates, expected) in [
            ("no node", vec![], vec![]),
            ("one", vec![node(0, None, true, 0, 1.0)], vec![0]),
            (
                "each of equal load",
                vec![node(0, None, true, 0, 1.0), node(1, None, true, 0, 1.0), node(2, None, true, 0, 1.0)],
                vec![0, 1, 2],
            ),
            ("the lighter of two", vec![node(0, None, true, 0, 2.0), node(1, None, true, 0, 1.0)], vec![1]),
            (
                "of three, never the heaviest",
                vec![node(0, None, true, 0, 1.0), node(1, None, true, 0, 9.0), node(2, None, true, 0, 2.0)],
                vec![0, 2],
            ),
            ("near before tier", vec![node(0, None, false, 0, 1.0), node(1, None, true, 5, 9.0)], vec![1]),
            ("tier before load", vec![node(0, None, true, 1, 0.1), node(1, None, true, 0, 9.0)], vec![1]),
            (
                "usable before all",
                vec![node(0, Some(Lagging), true, 0, 0.1), node(1, None, false, 9, 9.0)],
                vec![1],
            ),
            (
                "else the least bad",
                vec![node(0, Some(Unreachable), true, 0, 0.1), node(1, Some(BelowFloor), true, 0, 9.0)],
                vec![1],
            ),
            (
                "one that lacks the method after all others",
                vec![node(0, Some(Incapable), true, 0, 0.1), node(1, Some(Unreachable), true, 0, 9.0)],
                vec![1],
            ),
            (
                "a far one after one that may fail",
                vec![node(0, Some(Lagging), true, 0, 0.1), node(1, Some(BreakerOpen), true, 0, 9.0)],
                vec![1],
            ),
            (
                "the quiet one that wants calls soonest",
                vec![quiet(0, 500, 0.1), quiet(1, 250, 9.0), quiet(2, 4000, 0.1)],
                vec![1],
            ),
            (
                "some are never asked",
                vec![
                    node(0, Some(Busy), true, 0, 0.1),
                    node(1, Some(Foreign), true, 0, 1.0),
                    node(2, Some(Tried), true, 0, 1.0),
                ],
                vec![],
            ),
        ] {
            assert_eq!(chosen(&candidates), expected, "{name}");
        }
    }

    #[test]
    fn draws_two_different_nodes() {
        for len in 2..6 {
            let pairs: Vec<_> =
                (0..500u64).map(|i| two_of(len, i.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
            assert!(pairs.iter().all(|(a, b)| a != b && *a < len && *b < len));
            assert!(
                (0..len).all(|n| pairs.iter().any(|(a, _)| *a == n) && pairs.iter().any(|(_, b)| *b == n))
            );
        }
    }
}
