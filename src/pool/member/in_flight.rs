//! One call's place at a node, and what its end says of the node.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::super::caller::Caller;
use super::super::lock;
use super::Member;
use crate::breaker::Breaker;
use crate::methods::Method;
use crate::node::Fault;
use crate::telemetry::AttemptResult;

impl Member {
    /// Takes one call's place at this node.
    pub(in crate::pool) fn start(
        &self,
        method: Option<Method>,
        caller: Caller,
        now: Instant,
    ) -> InFlight<'_> {
        self.standing.in_flight.fetch_add(1, Ordering::Relaxed);
        self.standing.places.take(caller);
        // Before its cluster is looked at once more when the call has ended.
        self.standing.requests.fetch_add(1, Ordering::SeqCst);
        let trial = self.standing.breaker(|breaker| breaker.started(now));
        InFlight { member: self, method, caller, trial, settled: false, ended: false }
    }
}

/// One call's place at a node; dropping it before the call has ended (nobody waits any more) says nothing of the node's
/// health.
pub(in crate::pool) struct InFlight<'a> {
    member: &'a Member,
    /// `None` for one that is forwarded.
    method: Option<Method>,
    caller: Caller,
    /// It is the half-open breaker's probe.
    trial: bool,
    /// The breaker knows how it went.
    settled: bool,
    ended: bool,
}

impl InFlight<'_> {
    /// Whether it finds out for the half-open breaker if the node is back.
    pub(in crate::pool) fn is_trial(&self) -> bool {
        self.trial
    }

    /// The call has outlasted `pool.breaker.slow`: a hang is a fault, and counts from now on, unless it may be the call's
    /// own weight. Returns whether this has opened the breaker.
    pub(in crate::pool) fn hangs(&mut self, now: Instant) -> bool {
        if self.settled || !self.member.standing.slowness.counts(self.caller, self.method) {
            return false;
        }
        self.settled = true;
        self.member.standing.breaker(|breaker| breaker.failed(now))
    }

    /// The call has ended in a way that is neither for the node nor against it.
    pub(in crate::pool) fn says_nothing(mut self) {
        self.ended = true;
    }

    /// The call has ended, well or not. Returns whether this has opened the breaker.
    pub(in crate::pool) fn ended(mut self, fault: Option<Fault>, latency: Duration, now: Instant) -> bool {
        let member = self.member;
        self.ended = true;
        if matches!(fault, None | Some(Fault::Timeout)) {
            lock(&member.standing.latency).observe(latency, now);
        }
        if let Some(fault) = fault.filter(|fault| *fault != Fault::GivenUp) {
            member.standing.failures.fetch_add(1, Ordering::Relaxed);
            *lock(&member.standing.last_failure) = Some((fault.result(), now));
        }
        if std::mem::replace(&mut self.settled, true) {
            return false;
        }
        member.standing.breaker(|breaker| match fault {
            None => {
                if !breaker.is_closed() {
                    lock(&member.standing.latency).restart(latency, now);
                }
                breaker.succeeded();
                false
            }
            Some(fault) if fault.counts_against_node() => breaker.failed(now),
            Some(_) => {
                breaker.released();
                false
            }
        })
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.member.standing.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.member.standing.places.give_back(self.caller);
        if !self.ended {
            self.member.metrics.requests.at((self.method, AttemptResult::Cancelled)).inc();
        }
        if !self.settled {
            self.member.standing.breaker(Breaker::released);
        }
    }
}
