//! The callers of the pool, and the context of a call. Callers are told apart to share a node fairly, and to find the
//! cause of slow calls.

use std::collections::HashMap;
use std::sync::Mutex;

use tokio::time::Instant;

use super::lock;
use crate::fair::may_hold_more;
use crate::methods::Method;
use crate::telemetry::Trace;

/// A caller, identified by a number that no other caller has at the same time. The default stands for no
/// particular caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CallerId(usize);

impl CallerId {
    /// Returns the caller with this number. 0 stands for no particular caller.
    pub fn numbered(number: usize) -> Self {
        Self(number)
    }
}

/// The context of a call: its caller, and that caller's deadline and trace.
#[derive(Debug, Clone)]
pub struct CallContext {
    /// The time at which the caller stops waiting.
    pub deadline: Instant,
    /// The caller. If several callers share the call, this is the caller that has waited longest.
    pub caller: CallerId,
    /// The caller's trace, to which every attempt adds a span.
    pub trace: Trace,
}

impl CallContext {
    /// Returns the context of a call that the gateway makes on its own, with this deadline.
    pub fn own(deadline: Instant) -> Self {
        Self { deadline, caller: CallerId::default(), trace: Trace::default() }
    }
}

/// The calls in flight at one node, by caller. Callers without a call in flight are not listed.
#[derive(Debug, Default)]
pub(super) struct CallerCounts(Mutex<HashMap<CallerId, usize>>);

impl CallerCounts {
    /// Counts one more call of `caller`.
    pub(super) fn add(&self, caller: CallerId) {
        *lock(&self.0).entry(caller).or_default() += 1;
    }

    /// Counts one call of `caller` less.
    pub(super) fn remove(&self, caller: CallerId) {
        let mut counts = lock(&self.0);
        if let Some(count) = counts.get_mut(&caller) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&caller);
            }
        }
    }

    /// Returns true if `caller` may send the node one more call. `in_flight` calls are under way at the node, and
    /// `free` more are allowed. Calls of no particular caller are not limited to a share.
    pub(super) fn may_add(&self, caller: CallerId, in_flight: usize, free: usize) -> bool {
        // The total is compared first, without the lock. If all calls in flight together fit into one share, the
        // caller's own calls do, too.
        let own = || lock(&self.0).get(&caller).copied().unwrap_or_default();
        free > 0
            && (caller == CallerId::default() || may_hold_more(in_flight, free) || may_hold_more(own(), free))
    }
}

/// The last caller and method for which a node was slow.
///
/// A slow call counts against its node only if the previous slow call had another caller or method. Without this rule,
/// one caller's heavy calls could make a node look dead.
#[derive(Debug, Default)]
pub(super) struct SlowCalls(Mutex<Option<(CallerId, Option<Method>)>>);

impl SlowCalls {
    /// Notes a slow call, and returns true if it counts against the node.
    pub(super) fn counts(&self, caller: CallerId, method: Option<Method>) -> bool {
        let before = lock(&self.0).replace((caller, method));
        before.is_some_and(|before| before != (caller, method))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowness_counts_by_turns_only() {
        let (slow_calls, block) = (SlowCalls::default(), Some(Method::GetBlock));
        let (one, other) = (CallerId::numbered(1), CallerId::numbered(2));
        for (caller, method, expected) in [
            (one, block, false),
            (one, block, false),
            (other, block, true),
            (other, block, false),
            (other, None, true),
            (one, None, true),
        ] {
            assert_eq!(slow_calls.counts(caller, method), expected, "{caller:?}, {method:?}");
        }
    }

    #[test]
    fn caller_takes_its_share() {
        let (counts, hog, other) = (CallerCounts::default(), CallerId::numbered(1), CallerId::numbered(2));
        let all = 9;
        let mut taken = 0;
        while counts.may_add(hog, taken, all - taken) {
            counts.add(hog);
            taken += 1;
        }
        assert_eq!(taken, 8, "one of nine is left");
        assert!(counts.may_add(other, taken, all - taken) && counts.may_add(CallerId::default(), taken, 1));
        counts.remove(hog);
        assert_eq!(lock(&counts.0)[&hog], 7);
        counts.add(other);
        for _ in 0..7 {
            counts.remove(hog);
        }
        assert_eq!(lock(&counts.0).keys().collect::<Vec<_>>(), [&other]);
        assert!(!counts.may_add(other, all, 0));
    }
}
