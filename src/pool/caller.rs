//! The callers of the pool, and the context of a call. Callers are told apart to share a node fairly, and to find the
//! cause of slow calls.

use std::sync::Mutex;

use tokio::time::Instant;

use super::lock;
use crate::fair::CallerId;
use crate::telemetry::Trace;

/// The context of a call: its caller, and that caller's deadline and trace.
#[derive(Debug, Clone)]
pub struct CallContext {
    /// The time at which the caller stops waiting.
    pub deadline: Instant,
    /// The caller. If several callers share the call, this is the caller that has waited longest.
    pub caller: CallerId,
    /// The caller's trace, to which every attempt adds a span.
    pub trace: Trace,
    /// True if no caller waits for the answer. The call then uses a node's rate limit only while no caller's call wants
    /// it.
    pub is_background: bool,
}

impl CallContext {
    /// Returns the context of a call that the gateway makes on its own, with this deadline. No caller waits for it.
    pub fn own(deadline: Instant) -> Self {
        Self { deadline, caller: CallerId::default(), trace: Trace::default(), is_background: true }
    }
}

/// The last caller for which a node was slow.
///
/// A slow call counts against its node only if the previous slow call had another caller. Without this rule, one
/// caller's heavy calls could make a node look dead.
#[derive(Debug, Default)]
pub(super) struct SlowCalls(Mutex<Option<CallerId>>);

impl SlowCalls {
    /// Notes a slow call, and returns true if it counts against the node.
    pub(super) fn counts(&self, caller: CallerId) -> bool {
        let before = lock(&self.0).replace(caller);
        before.is_some_and(|before| before != caller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowness_counts_by_turns_only() {
        let slow_calls = SlowCalls::default();
        let (one, other) = (CallerId::numbered(1), CallerId::numbered(2));
        let slow = [one, one, other, other, one];
        assert_eq!(slow.map(|caller| slow_calls.counts(caller)), [false, false, true, false, true]);
    }
}
