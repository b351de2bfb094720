//! The changing state of one node: health, breaker, load, capabilities, counts, and the calls that it has refused for a
//! while.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::breaker::Breaker;
use crate::config;
use crate::fair::{CallerHoldings, CallerId};
use crate::methods::{AnyMethod, Part, Slot};
use crate::pool::cluster_mark::ClusterMark;
use crate::pool::health::Health;
use crate::pool::lock;
use crate::pool::peak_ewma::{Latencies, PeakEwma};
use crate::telemetry::AttemptResult;

/// The state of one node. A reload that only changes the node's settings keeps this state.
pub(in crate::pool) struct NodeState {
    pub(in crate::pool) in_flight: AtomicUsize,
    pub(in crate::pool) by_caller: CallerHoldings,
    pub(in crate::pool) slow_calls: SlowCalls,
    breaker: Mutex<Breaker>,
    parts: [PartState; Part::ALL.len()],
    pub(in crate::pool) latencies: Latencies,
    pub(in crate::pool) health: ArcSwap<Health>,
    /// The time of the last change of the health, in seconds of the epoch.
    pub(in crate::pool) since: AtomicI64,
    /// True for each method that the node does not serve, by [`AnyMethod::index`].
    pub(in crate::pool) lacks: [AtomicBool; AnyMethod::COUNT],
    /// True if the node has refused a method that is needed to follow the blocks.
    pub(in crate::pool) refuses_blocks: AtomicBool,
    /// True if the node is of a kind and version whose blocks list every write of an account.
    pub(in crate::pool) lists_writes: AtomicBool,
    pub(in crate::pool) first_available: AtomicU64,
    /// The methods that the node has refused with a 429, and gets no calls of while another node is usable.
    pub(in crate::pool) quiet: QuietCalls<AnyMethod>,
    pub(in crate::pool) quiet_for_follower: QuietCalls<()>,
    pub(in crate::pool) drained: AtomicBool,
    pub(in crate::pool) version: ArcSwapOption<String>,
    /// The member `feature-set` of the answer to `getVersion`. 0 if it is unknown.
    pub(in crate::pool) feature_set: AtomicU64,
    pub(in crate::pool) cluster: Mutex<ClusterMark>,
    pub(in crate::pool) requests: AtomicU64,
    pub(in crate::pool) failures: AtomicU64,
    pub(in crate::pool) last_failure: Mutex<Option<(AttemptResult, Instant)>>,
    /// The time of the last log line about words of the node that are not known.
    pub(in crate::pool) words_logged: Mutex<Option<Instant>>,
    /// True once there is a task that probes the node.
    pub(in crate::pool) probed: AtomicBool,
}

impl NodeState {
    pub(in crate::pool) fn new(breaker: config::BreakerSettings, drained: bool) -> Self {
        Self {
            in_flight: AtomicUsize::new(0),
            by_caller: CallerHoldings::default(),
            slow_calls: SlowCalls::default(),
            breaker: Mutex::new(Breaker::new(breaker)),
            parts: Part::ALL.map(|_| PartState::new(breaker)),
            latencies: Latencies::default(),
            health: ArcSwap::from_pointee(Health::Unprobed),
            since: AtomicI64::new(Timestamp::now().as_second()),
            lacks: [const { AtomicBool::new(false) }; AnyMethod::COUNT],
            refuses_blocks: AtomicBool::new(false),
            lists_writes: AtomicBool::new(false),
            first_available: AtomicU64::new(UNKNOWN),
            quiet: QuietCalls::new(Duration::from_millis(250), Duration::from_secs(5)),
            quiet_for_follower: QuietCalls::new(Duration::from_secs(1), Duration::from_mins(1)),
            drained: AtomicBool::new(drained),
            version: ArcSwapOption::empty(),
            feature_set: AtomicU64::new(0),
            cluster: Mutex::default(),
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            last_failure: Mutex::default(),
            words_logged: Mutex::default(),
            probed: AtomicBool::new(false),
        }
    }

    /// Returns the breaker of the whole node, which counts what concerns all of its parts.
    pub(in crate::pool) fn breaker(&self) -> MutexGuard<'_, Breaker> {
        lock(&self.breaker)
    }

    pub(in crate::pool) fn part(&self, part: Part) -> &PartState {
        &self.parts[part.index()]
    }
}

/// The oldest block of a node that has not told it.
pub(super) const UNKNOWN: Slot = Slot::MAX;

pub(in crate::pool) struct PartState {
    pub(in crate::pool) latency: Mutex<PeakEwma>,
    breaker: Mutex<Breaker>,
}

impl PartState {
    fn new(breaker: config::BreakerSettings) -> Self {
        Self { latency: Mutex::default(), breaker: Mutex::new(Breaker::new(breaker)) }
    }

    pub(in crate::pool) fn breaker(&self) -> MutexGuard<'_, Breaker> {
        lock(&self.breaker)
    }
}

/// The calls that a node wants no more of for a while, because it has refused them with a 429, by their method. There are
/// as many methods as slotfront knows, so their number is bounded.
///
/// Hosted nodes limit by method, so the refusal of one method says nothing about the others. The follower's own requests
/// are quiet by themselves: a node that limits them may still have calls left for callers.
#[derive(Debug)]
pub(in crate::pool) struct QuietCalls<M> {
    /// The time for which the node gets no calls after its first refusal, unless it asks for a longer one. Each further
    /// refusal doubles this time.
    first: Duration,
    /// The longest time for which one refusal keeps calls away. A node may ask for an hour because of one caller's burst,
    /// and one early call costs less than an hour without the node.
    longest: Duration,
    /// True if a method is listed. Ratings of nodes read this first, without the lock.
    any: AtomicBool,
    methods: Mutex<HashMap<M, Quiet>>,
}

#[derive(Debug)]
struct Quiet {
    /// The time of the last refusal. Only the answer to a later call shows that the node has changed its mind.
    since: Instant,
    until: Instant,
    /// The time for which the node stays quiet after the last refusal, if the node asks for none.
    backoff: Duration,
}

impl<M: Copy + Eq + Hash> QuietCalls<M> {
    /// Returns the calls of a node that has refused none. See the fields `first` and `longest`.
    pub(super) fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, any: AtomicBool::new(false), methods: Mutex::default() }
    }

    /// Returns true until some time after the node's quiet. A refusal after that time does not count as a repetition.
    fn is_remembered(&self, quiet: &Quiet, now: Instant) -> bool {
        now < quiet.until + self.longest
    }

    /// Notes that the node has refused the call of `method` that was sent at `sent_at`. `asked` is the waiting time of
    /// `Retry-After`; 0 asks for none.
    pub(in crate::pool) fn refused(
        &self,
        method: M,
        asked: Option<Duration>,
        sent_at: Instant,
        now: Instant,
    ) {
        let mut methods = lock(&self.methods);
        let backoff = match methods.get(&method).filter(|quiet| self.is_remembered(quiet, now)) {
            None => self.first,
            // Calls that were under way together are refused together, which is one refusal.
            Some(quiet) if sent_at < quiet.since => quiet.backoff,
            Some(quiet) => (quiet.backoff * 2).min(self.longest),
        };
        let wait = asked.unwrap_or_default().clamp(backoff, self.longest);
        methods.insert(method, Quiet { since: now, until: now + wait, backoff });
        self.any.store(true, Ordering::Release);
    }

    /// Notes that the node has answered the call of `method` that was sent at `sent_at`.
    pub(in crate::pool) fn answered(&self, method: M, sent_at: Instant) {
        if self.any.load(Ordering::Acquire) {
            lock(&self.methods).retain(|of, quiet| *of != method || sent_at < quiet.since);
        }
    }

    /// Returns the time for which the node still wants no calls of `method`. `None` if it gets them.
    pub(in crate::pool) fn left(&self, method: M, now: Instant) -> Option<Duration> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut methods = lock(&self.methods);
        methods.retain(|_, quiet| self.is_remembered(quiet, now));
        self.any.store(!methods.is_empty(), Ordering::Release);
        let left = methods.get(&method)?.until.saturating_duration_since(now);
        Some(left).filter(|left| !left.is_zero())
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
    use crate::methods::Method;

    const BLOCK: AnyMethod = AnyMethod::Own(Method::GetBlock);
    const SECOND: Duration = Duration::from_secs(1);
    const FIRST: Duration = Duration::from_millis(250);
    const LONGEST: Duration = Duration::from_secs(5);

    fn quiet_calls<M: Copy + Eq + Hash>() -> QuietCalls<M> {
        QuietCalls::new(FIRST, LONGEST)
    }

    #[tokio::test]
    async fn refusal_concerns_its_method_for_seconds() {
        let (quiet, now) = (quiet_calls(), Instant::now());
        let other = AnyMethod::Simulate;
        assert_eq!(quiet.left(BLOCK, now), None);
        for (asked, expected) in [
            (None, FIRST),
            (Some(Duration::ZERO), FIRST),
            (Some(2 * SECOND), 2 * SECOND),
            (Some(3600 * SECOND), LONGEST),
        ] {
            let quiet = quiet_calls();
            quiet.refused(BLOCK, asked, now, now);
            assert_eq!(quiet.left(BLOCK, now), Some(expected), "{asked:?}");
            assert_eq!(quiet.left(BLOCK, now + expected), None, "{asked:?}");
            assert_eq!(quiet.left(other, now), None, "{asked:?}");
        }
    }

    #[tokio::test]
    async fn quiet_lengthens_with_each_refusal() {
        let (quiet, mut now) = (quiet_calls(), Instant::now());
        let refused = |sent_at, now| {
            quiet.refused(BLOCK, None, sent_at, now);
            quiet.left(BLOCK, now).unwrap().as_millis()
        };
        for expected in [250, 500, 1000, 2000, 4000, 5000, 5000] {
            let sent_at = now;
            now += Duration::from_millis(1);
            assert_eq!(refused(sent_at, now), expected);
            // Calls that were sent before the refusal are part of it.
            assert_eq!(refused(sent_at, now), expected);
            quiet.answered(BLOCK, sent_at);
            now += quiet.left(BLOCK, now).unwrap();
        }
        assert_eq!(refused(now + LONGEST, now + LONGEST), 250, "the earlier refusals are forgotten");
    }

    #[tokio::test]
    async fn an_answer_ends_the_quiet() {
        let (quiet, now) = (quiet_calls(), Instant::now());
        let votes = AnyMethod::Own(Method::GetVoteAccounts);
        for method in [BLOCK, votes] {
            quiet.refused(method, None, now, now);
        }
        quiet.answered(BLOCK, now);
        assert_eq!((quiet.left(BLOCK, now), quiet.left(votes, now)), (None, Some(FIRST)));
        quiet.refused(BLOCK, None, now, now);
        assert_eq!(quiet.left(BLOCK, now), Some(FIRST), "it begins anew");
    }

    #[tokio::test]
    async fn quiet_of_the_follower_lasts_up_to_a_minute() {
        let (quiet, mut now) = (QuietCalls::new(SECOND, 60 * SECOND), Instant::now());
        for (asked, well_for, expected) in [
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
            now += well_for * SECOND;
            quiet.refused((), asked.map(Duration::from_secs), now, now);
            assert_eq!(quiet.left((), now), Some(expected * SECOND), "{asked:?} {expected}");
            now += expected * SECOND;
            assert_eq!(quiet.left((), now), None, "{asked:?} {expected}");
        }
    }

    #[test]
    fn slowness_counts_by_turns_only() {
        let slow_calls = SlowCalls::default();
        let (one, other) = (CallerId::numbered(1), CallerId::numbered(2));
        let slow = [one, one, other, other, one];
        assert_eq!(slow.map(|caller| slow_calls.counts(caller)), [false, false, true, false, true]);
    }
}
