//! Token buckets: how many further attempts a pool may add to its calls, and how many calls a second a node allows.
//!
//! Without it a pool that is down is asked three times as much as one that is well, and one that is slow twice.

use std::sync::Mutex;

use tokio::time::Instant;

use super::lock;

/// Retries a second that are always allowed, so that a quiet pool can retry at all.
pub(super) const RETRIES_PER_SECOND: f64 = 10.0;
/// Unused budget is kept up to this many attempts, about a second of a busy pool.
pub(super) const KEPT: f64 = 100.0;

/// A token bucket that calls fill and further attempts empty.
#[derive(Debug)]
pub(super) struct Budget {
    /// What comes in by itself each second.
    per_second: f64,
    /// The most that is kept.
    kept: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    share: f64,
    tokens: f64,
    refilled: Option<Instant>,
}

impl Budget {
    /// A budget of `share` of the calls and `per_second` by itself, of which at most `kept` are kept.
    pub(super) fn new(share: f64, per_second: f64, kept: f64) -> Self {
        Self { per_second, kept, state: Mutex::new(State { share, tokens: per_second, refilled: None }) }
    }

    /// Another share from now on.
    pub(super) fn set_share(&self, share: f64) {
        lock(&self.state).share = share;
    }

    /// A call adds its share.
    pub(super) fn deposit(&self, now: Instant) {
        self.update(now, |state| state.tokens += state.share);
    }

    /// Takes one attempt, if there is one.
    pub(super) fn withdraw(&self, now: Instant) -> bool {
        self.update(now, |state| {
            let enough = state.tokens >= 1.0;
            state.tokens -= if enough { 1.0 } else { 0.0 };
            enough
        })
    }

    /// How many attempts are left.
    pub(super) fn left(&self, now: Instant) -> f64 {
        self.update(now, |state| state.tokens)
    }

    /// Gives back what was taken for an attempt that was not made.
    pub(super) fn give_back(&self, now: Instant) {
        self.update(now, |state| state.tokens += 1.0);
    }

    fn update<T>(&self, now: Instant, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.state);
        let since =
            state.refilled.replace(now).map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        state.tokens = (state.tokens + since * self.per_second).min(self.kept);
        let result = change(&mut state);
        state.tokens = state.tokens.min(self.kept);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn retries_are_a_share_of_calls_and_at_least_ten_a_second() {
        let budget = Budget::new(0.25, RETRIES_PER_SECOND, KEPT);
        let start = Instant::now();
        let take = |now| std::iter::from_fn(|| budget.withdraw(now).then_some(())).count();
        assert_eq!(take(start), 10, "what is always there");
        assert_eq!(take(start + Duration::from_secs(1)), 10, "a second later again");
        for _ in 0..40 {
            budget.deposit(start + Duration::from_secs(1));
        }
        assert_eq!(take(start + Duration::from_secs(1)), 10, "a quarter of forty calls");
    }

    #[tokio::test]
    async fn without_a_rate_of_its_own_it_is_the_share_alone() {
        let budget = Budget::new(0.05, 0.0, KEPT);
        let now = Instant::now();
        let mut taken = 0;
        for call in 1..=1000 {
            budget.deposit(now);
            taken += u32::from(budget.withdraw(now));
            assert!(f64::from(taken) <= f64::from(call) * 0.05);
        }
        assert!(taken >= 49, "{taken}");
        budget.give_back(now);
        assert!(budget.withdraw(now));
    }
}
