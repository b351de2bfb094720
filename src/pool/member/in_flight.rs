//! One call under way at a node, and the effect of its end on the node's state.

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Member;
use crate::fair::CallerId;
use crate::methods::Method;
use crate::node::Fault;
use crate::pool::lock;
use crate::telemetry::AttemptResult;

/// One call under way at a node. Dropping it before the call has ended does not affect the node's health,
/// because the attempt was given up.
pub(in crate::pool) struct InFlight<'a> {
    member: &'a Member,
    /// The method of the call. `None` for a passthrough method.
    method: Option<Method>,
    caller: CallerId,
    /// True if the call is the trial of a half-open breaker.
    trial: bool,
    /// True once the breaker has the result of the call.
    settled: bool,
    ended: bool,
}

impl<'a> InFlight<'a> {
    /// Begins a call at `member`. `method` is `None` for a passthrough method, whose calls are never trials: nobody
    /// knows how long they take, and their errors may be about the call.
    pub(in crate::pool) fn begin(
        member: &'a Member,
        method: Option<Method>,
        caller: CallerId,
        now: Instant,
    ) -> Self {
        let state = &member.state;
        state.in_flight.fetch_add(1, Ordering::Relaxed);
        state.by_caller.add(caller, 1);
        // The call is counted before it is sent, so that the cluster check cannot miss it.
        state.requests.fetch_add(1, Ordering::SeqCst);
        let trial = method.is_some() && state.breaker().started(now);
        Self { member, method, caller, trial, settled: false, ended: false }
    }

    pub(in crate::pool) fn member(&self) -> &'a Member {
        self.member
    }

    #[cfg(test)]
    pub(in crate::pool) fn is_trial(&self) -> bool {
        self.trial
    }

    /// Notes that the call hangs: it takes longer than `pool.breaker.slow` times the method's p95 latency. A hang
    /// counts as a failure if the node's previous slow call had another caller. Returns true if this failure opened the
    /// breaker.
    pub(in crate::pool) fn note_hang(&mut self, now: Instant) -> bool {
        if self.settled || !self.member.state.slow_calls.counts(self.caller) {
            return false;
        }
        self.settled = true;
        self.member.state.breaker().failed(now)
    }

    /// Ends the call without an effect on the node's health. A trial opens the breaker again.
    pub(in crate::pool) fn end_without_result(mut self) {
        self.ended = true;
    }

    /// Ends the call and records its result. `fault` is `None` for a success. Returns true if the fault opened the
    /// breaker.
    pub(in crate::pool) fn ended(mut self, fault: Option<Fault>, latency: Duration, now: Instant) -> bool {
        let state = &self.member.state;
        self.ended = true;
        if matches!(fault, None | Some(Fault::Timeout)) {
            lock(&state.latency).observe(latency, now);
        }
        if let Some(fault) = fault.filter(|fault| *fault != Fault::GivenUp) {
            state.failures.fetch_add(1, Ordering::Relaxed);
            *lock(&state.last_failure) = Some((fault.result(), now));
        }
        // The breaker already has the result of a call that hung.
        if self.settled || fault.is_some_and(|fault| !fault.counts_against_node()) {
            return false;
        }
        self.settled = true;
        let mut breaker = state.breaker();
        if fault.is_some() {
            return breaker.failed(now);
        }
        if !breaker.is_closed() {
            lock(&state.latency).restart(latency, now);
        }
        breaker.succeeded();
        false
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let state = &self.member.state;
        state.in_flight.fetch_sub(1, Ordering::Relaxed);
        state.by_caller.remove(self.caller, 1);
        if !self.ended {
            self.member.metrics.requests.at((self.method, AttemptResult::Cancelled)).inc();
        }
        if self.trial && !self.settled {
            state.breaker().trial_was_vain(Instant::now());
        }
    }
}

/// The last caller for which a node was slow.
///
/// A slow call counts against its node only if the previous slow call had another caller. Without this rule, one
/// caller's heavy calls could make a node look dead.
#[derive(Debug, Default)]
pub(in crate::pool) struct SlowCalls(Mutex<Option<CallerId>>);

impl SlowCalls {
    /// Notes a slow call, and returns true if it counts against the node.
    pub(in crate::pool) fn counts(&self, caller: CallerId) -> bool {
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
