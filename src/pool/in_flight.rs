//! One call under way at a node, whose end changes the state of the node.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::lock;
use super::meaning::Effect;
use super::member::Member;
use super::question::Question;
use crate::fair::CallerId;
use crate::methods::{AnyMethod, Part};
use crate::node::Fault;
use crate::telemetry::AttemptResult;

/// One call under way at a node. Dropping it before the call has ended does not affect the node's health,
/// because the attempt was given up.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct InFlight<'a> {
    pub(super) member: &'a Member,
    /// The method under which metrics count the call.
    method: AnyMethod,
    part: Part,
    caller: CallerId,
    /// True if what becomes of the call says something about the node's health.
    counts: bool,
    /// True while the call is the trial of the node's half-open breaker.
    pub(super) node_trial: bool,
    /// True while the call is the trial of the half-open breaker of the part.
    pub(super) part_trial: bool,
    sent_at: Instant,
    /// True once the call has taken many times its usual time.
    pub(super) is_slow: bool,
    settled: bool,
    ended: bool,
}

impl<'a> InFlight<'a> {
    /// Begins a call at `member`.
    pub(super) fn begin(member: &'a Member, question: &Question<'_>, now: Instant) -> Self {
        let (state, caller, part) = (&member.state, question.context.caller, question.part());
        state.in_flight.fetch_add(1, Ordering::Relaxed);
        state.by_caller.add(caller, 1);
        // The call is counted before it is sent, so that the cluster check cannot miss it.
        state.requests.fetch_add(1, Ordering::SeqCst);
        let counts = question.counts();
        Self {
            member,
            method: question.method,
            part,
            caller,
            counts,
            node_trial: counts && state.breaker().started(now),
            part_trial: counts && state.part(part).breaker().started(now),
            sent_at: now,
            is_slow: false,
            settled: false,
            ended: false,
        }
    }

    /// Notes that the call hangs: it takes longer than `pool.breaker.slow` times the method's p95 latency. A hang
    /// counts as a failure if the node's previous slow call had another caller. Returns true if this failure opened the
    /// breaker.
    pub(super) fn note_hang(&mut self, now: Instant) -> bool {
        if self.settled || !self.member.state.slow_calls.counts(self.caller) {
            return false;
        }
        self.settled = true;
        self.part_trial = false;
        self.member.state.part(self.part).breaker().failed(now)
    }

    /// Ends the call with this `effect` on the node's health. `fault` is `None` for an answer. Returns true if the effect has
    /// opened a breaker.
    pub(super) fn ended(
        mut self,
        effect: Effect,
        fault: Option<Fault>,
        latency: Duration,
        now: Instant,
    ) -> bool {
        let state = &self.member.state;
        let part = state.part(self.part);
        self.ended = true;
        if !self.counts {
            return false;
        }
        if matches!(effect, Effect::Well | Effect::Refused) || fault == Some(Fault::Timeout) {
            lock(&part.latency).observe(latency, now);
        }
        if let Some(fault) = fault.filter(|fault| *fault != Fault::GivenUp) {
            state.failures.fetch_add(1, Ordering::Relaxed);
            *lock(&state.last_failure) = Some((fault.result(), now));
        }
        // A breaker already has the result of a call that hung.
        if self.settled || matches!(effect, Effect::Refused | Effect::Nothing) {
            return false;
        }
        self.settled = true;
        if effect == Effect::NodeFailed {
            self.node_trial = false;
            return state.breaker().failed(now);
        }
        self.part_trial = false;
        if effect == Effect::PartFailed {
            return part.breaker().failed(now);
        }
        self.node_trial = false;
        if !self.member.has_closed_breaker(self.part) {
            lock(&part.latency).restart(latency, now);
        }
        state.breaker().succeeded();
        part.breaker().succeeded();
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
        // Another node has answered first. Without its time, the slow one would look fast again.
        if !self.ended && self.is_slow && self.counts {
            let now = Instant::now();
            lock(&state.part(self.part).latency).observe(now.duration_since(self.sent_at), now);
        }
        if self.node_trial {
            state.breaker().trial_was_vain(Instant::now());
        }
        if self.part_trial {
            state.part(self.part).breaker().trial_was_vain(Instant::now());
        }
    }
}
