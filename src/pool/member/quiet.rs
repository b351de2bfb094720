//! The calls that a node wants no more of for a while, because it has refused them with a 429.
//!
//! Hosted nodes limit by method, so the refusal of one method says nothing about the others. The follower's own requests
//! are quiet by themselves: a node that limits them may still have calls left for callers.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::pool::lock;

/// The calls that a node has refused, by their method. There are as many as slotfront knows, so their number is bounded.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::{AnyMethod, Method, PassthroughMethod};

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
        let other = AnyMethod::Passthrough(PassthroughMethod::from_name("getBalance").unwrap());
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
}
