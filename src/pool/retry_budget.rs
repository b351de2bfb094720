//! How many retries a pool may add to its calls: a share of them, and never less than a few a second.
//!
//! Without it a pool that is down is asked three times as much as one that is well.

use std::sync::Mutex;

use tokio::time::Instant;

/// Retries a second that are always allowed, so that a quiet pool can retry at all.
const ALWAYS_PER_SECOND: f64 = 10.0;
/// Unused budget is kept up to this many retries, about a second of a busy pool.
const KEPT: f64 = 100.0;

/// A token bucket that calls fill and retries empty.
#[derive(Debug)]
pub(super) struct RetryBudget {
    share: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tokens: f64,
    refilled: Option<Instant>,
}

impl RetryBudget {
    /// A budget of `share` of the calls.
    pub(super) fn new(share: f64) -> Self {
        Self { share, state: Mutex::new(State { tokens: ALWAYS_PER_SECOND, refilled: None }) }
    }

    /// A call adds its share.
    pub(super) fn deposit(&self, now: Instant) {
        self.update(now, |tokens| (*tokens + self.share, ()));
    }

    /// Takes one retry, if there is one.
    pub(super) fn withdraw(&self, now: Instant) -> bool {
        self.update(now, |tokens| if *tokens >= 1.0 { (*tokens - 1.0, true) } else { (*tokens, false) })
    }

    fn update<T>(&self, now: Instant, change: impl FnOnce(&f64) -> (f64, T)) -> T {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let since = state.refilled.replace(now).map_or(0.0, |at| now.duration_since(at).as_secs_f64());
        let refilled = (state.tokens + since * ALWAYS_PER_SECOND).min(KEPT);
        let (tokens, result) = change(&refilled);
        state.tokens = tokens.min(KEPT);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn retries_are_a_share_of_calls_and_at_least_ten_a_second() {
        let budget = RetryBudget::new(0.25);
        let start = Instant::now();
        let take = |now| std::iter::from_fn(|| budget.withdraw(now).then_some(())).count();
        assert_eq!(take(start), 10, "what is always there");
        assert_eq!(take(start + Duration::from_secs(1)), 10, "a second later again");
        for _ in 0..40 {
            budget.deposit(start + Duration::from_secs(1));
        }
        assert_eq!(take(start + Duration::from_secs(1)), 10, "a quarter of forty calls");
    }
}
