//! Token buckets: for retries, and for the [rate limit](super::rate) of a node.
//!
//! Without a budget, retries would triple the load of a pool that is down.

use std::sync::Mutex;

use tokio::time::Instant;

use super::lock;

/// The number of retries a second that are always allowed, so that a quiet pool can retry at all.
pub(super) const RETRIES_PER_SECOND: f64 = 10.0;
/// The highest number of tokens in a budget for retries. A busy pool uses up this number of tokens in
/// about a second.
pub(super) const MAX_TOKENS: f64 = 100.0;

/// A token bucket. Time and [`Budget::deposit`] add tokens, and [`Budget::withdraw`] takes them.
#[derive(Debug)]
pub(super) struct Budget {
    per_second: f64,
    max_tokens: f64,
    tokens: Mutex<Tokens>,
}

#[derive(Debug)]
struct Tokens {
    /// The part of a token that each call adds.
    share: f64,
    left: f64,
    refilled: Option<Instant>,
}

impl Budget {
    /// Creates a budget that starts with `per_second` tokens. Each call adds `share` tokens, and each second adds
    /// `per_second` tokens, up to `max_tokens` in total.
    pub(super) fn new(share: f64, per_second: f64, max_tokens: f64) -> Self {
        let tokens = Tokens { share, left: per_second, refilled: None };
        Self { per_second, max_tokens, tokens: Mutex::new(tokens) }
    }

    pub(super) fn set_share(&self, share: f64) {
        lock(&self.tokens).share = share;
    }

    pub(super) fn deposit(&self, now: Instant) {
        self.update(now, |tokens| tokens.left += tokens.share);
    }

    /// Takes one token. If less than one token is left, returns false and takes nothing.
    pub(super) fn withdraw(&self, now: Instant) -> bool {
        self.update(now, |tokens| {
            let enough = tokens.left >= 1.0;
            tokens.left -= if enough { 1.0 } else { 0.0 };
            enough
        })
    }

    pub(super) fn left(&self, now: Instant) -> f64 {
        self.update(now, |tokens| tokens.left)
    }

    /// Gives back the token of an attempt that was not made.
    pub(super) fn give_back(&self, now: Instant) {
        self.update(now, |tokens| tokens.left += 1.0);
    }

    fn update<T>(&self, now: Instant, change: impl FnOnce(&mut Tokens) -> T) -> T {
        let mut tokens = lock(&self.tokens);
        let since =
            tokens.refilled.replace(now).map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        tokens.left = (tokens.left + since * self.per_second).min(self.max_tokens);
        let result = change(&mut tokens);
        tokens.left = tokens.left.min(self.max_tokens);
        result
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn retries_are_a_share_with_a_minimum() {
        let budget = Budget::new(0.25, RETRIES_PER_SECOND, MAX_TOKENS);
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
    async fn without_a_minimum_the_share_decides() {
        let budget = Budget::new(0.05, 0.0, MAX_TOKENS);
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
