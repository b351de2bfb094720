//! The pauses of the follower's own calls to nodes that have answered 429.
//!
//! Callers are not affected: a node that limits the follower may still have calls left for them. Following may
//! pause for long, and calls may not.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The first pause after a 429. Each further 429 doubles the pause.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause, whatever the node asks for. A node that was well for this long begins with [`FIRST`] again.
const LONGEST: Duration = Duration::from_mins(1);

/// The nodes to which the follower sends no calls for a while, by their ids.
#[derive(Default)]
pub(super) struct QuietNodes(Mutex<HashMap<usize, Quiet>>);

struct Quiet {
    /// The last pause without what the node asked for.
    step: Duration,
    until: Instant,
}

impl QuietNodes {
    /// Returns true if the follower may not ask the node now.
    pub(super) fn contains(&self, node: usize) -> bool {
        let quiet = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        quiet.get(&node).is_some_and(|quiet| quiet.until > Instant::now())
    }

    /// Begins a pause, because the node has answered 429 and asked for the pause `wanted`.
    pub(super) fn add(&self, node: usize, wanted: Option<Duration>) {
        let now = Instant::now();
        let mut quiet = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        quiet.retain(|_, quiet| quiet.until + LONGEST > now);
        let step = quiet.get(&node).map_or(FIRST, |quiet| (quiet.step * 2).min(LONGEST));
        let until = now + wanted.unwrap_or_default().clamp(step, LONGEST);
        quiet.insert(node, Quiet { step, until });
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_and_end() {
        let (second, quiet) = (Duration::from_secs(1), QuietNodes::default());
        for (wanted, well_for, expected) in [
            (None, 0, 1),
            (Some(0), 0, 2),
            (Some(20), 0, 20),
            (None, 0, 8),
            (Some(31_536_000), 0, 60),
            (None, 0, 32),
            (None, 0, 60),
            (None, 59, 60),
            (None, 61, 1),
        ] {
            advance(second * well_for).await;
            quiet.add(7, wanted.map(Duration::from_secs));
            advance(second * (expected - 1)).await;
            assert!(quiet.contains(7) && !quiet.contains(8), "{wanted:?} {expected}");
            advance(second).await;
            assert!(!quiet.contains(7), "{wanted:?} {expected}");
        }
    }
}
