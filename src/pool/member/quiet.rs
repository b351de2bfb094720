//! The methods for which a node wants no calls for a while, because it has refused them with a 429.
//!
//! Hosted nodes limit by method, so the refusal of one method says nothing about the others.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::methods::AnyMethod;
use crate::pool::lock;

/// The time for which a node gets no calls of a method after its first refusal, unless the node asks for a longer one.
/// Each further refusal doubles this time.
const FIRST: Duration = Duration::from_millis(250);
/// The longest time for which one refusal keeps calls away. A node may ask for an hour because of one caller's burst,
/// and one early call costs less than an hour without the node.
const LONGEST: Duration = Duration::from_secs(5);

/// The methods that a node has refused. There are as many as slotfront knows, so their number is bounded.
#[derive(Debug, Default)]
pub(super) struct QuietMethods {
    /// True if a method is listed. Ratings of nodes read this first, without the lock.
    any: AtomicBool,
    methods: Mutex<HashMap<AnyMethod, Quiet>>,
}

#[derive(Debug)]
struct Quiet {
    /// The time of the last refusal. Only the answer to a later call shows that the node has changed its mind.
    since: Instant,
    until: Instant,
    /// The time for which the node stays quiet after the last refusal, if the node asks for none.
    backoff: Duration,
}

impl Quiet {
    /// Returns true until some time after the node's quiet. A refusal after that time does not count as a repetition.
    fn is_remembered(&self, now: Instant) -> bool {
        now < self.until + LONGEST
    }
}

impl QuietMethods {
    /// Notes that the node has refused the call of `method` that was sent at `sent_at`. `asked` is the waiting time of
    /// `Retry-After`; 0 asks for none.
    pub(super) fn refused(&self, method: AnyMethod, asked: Option<Duration>, sent_at: Instant, now: Instant) {
        let mut methods = lock(&self.methods);
        let backoff = match methods.get(&method).filter(|quiet| quiet.is_remembered(now)) {
            None => FIRST,
            // Calls that were under way together are refused together, which is one refusal.
            Some(quiet) if sent_at < quiet.since => quiet.backoff,
            Some(quiet) => (quiet.backoff * 2).min(LONGEST),
        };
        let wait = asked.unwrap_or_default().clamp(backoff, LONGEST);
        methods.insert(method, Quiet { since: now, until: now + wait, backoff });
        self.any.store(true, Ordering::Release);
    }

    /// Notes that the node has answered the call of `method` that was sent at `sent_at`.
    pub(super) fn answered(&self, method: AnyMethod, sent_at: Instant) {
        if self.any.load(Ordering::Acquire) {
            lock(&self.methods).retain(|of, quiet| *of != method || sent_at < quiet.since);
        }
    }

    /// Returns the time for which the node still wants no calls of `method`. `None` if it gets them.
    pub(super) fn left(&self, method: AnyMethod, now: Instant) -> Option<Duration> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut methods = lock(&self.methods);
        methods.retain(|_, quiet| quiet.is_remembered(now));
        self.any.store(!methods.is_empty(), Ordering::Release);
        let left = methods.get(&method)?.until.saturating_duration_since(now);
        Some(left).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::{Method, PassthroughMethod};

    const BLOCK: AnyMethod = AnyMethod::Own(Method::GetBlock);
    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn refusal_concerns_its_method_for_seconds() {
        let (quiet, now) = (QuietMethods::default(), Instant::now());
        let other = AnyMethod::Passthrough(PassthroughMethod::from_name("getBalance").unwrap());
        assert_eq!(quiet.left(BLOCK, now), None);
        for (asked, expected) in [
            (None, FIRST),
            (Some(Duration::ZERO), FIRST),
            (Some(2 * SECOND), 2 * SECOND),
            (Some(3600 * SECOND), LONGEST),
        ] {
            let quiet = QuietMethods::default();
            quiet.refused(BLOCK, asked, now, now);
            assert_eq!(quiet.left(BLOCK, now), Some(expected), "{asked:?}");
            assert_eq!(quiet.left(BLOCK, now + expected), None, "{asked:?}");
            assert_eq!(quiet.left(other, now), None, "{asked:?}");
        }
    }

    #[tokio::test]
    async fn quiet_lengthens_with_each_refusal() {
        let (quiet, mut now) = (QuietMethods::default(), Instant::now());
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
        let (quiet, now) = (QuietMethods::default(), Instant::now());
        let votes = AnyMethod::Own(Method::GetVoteAccounts);
        for method in [BLOCK, votes] {
            quiet.refused(method, None, now, now);
        }
        quiet.answered(BLOCK, now);
        assert_eq!((quiet.left(BLOCK, now), quiet.left(votes, now)), (None, Some(FIRST)));
        quiet.refused(BLOCK, None, now, now);
        assert_eq!(quiet.left(BLOCK, now), Some(FIRST), "it begins anew");
    }
}
