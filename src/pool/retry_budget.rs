//! The budget for retries. Without one, retries would triple the load of a pool that is down.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::limiter::{Limiter, Rate};

/// The number of retries a second that are always allowed, so that a quiet pool can retry at all.
const PER_SECOND: u32 = 10;
/// The highest number of retries that can be saved up. A busy pool uses up this number in about a second.
const MOST: u32 = 100;

/// A limit on retries, to which each call adds a share of one.
#[derive(Debug)]
pub(super) struct RetryBudget {
    limiter: Limiter,
    /// The part of a retry that each call adds, as the bits of an `f64`.
    share: AtomicU64,
}

impl RetryBudget {
    pub(super) fn new(share: f64) -> Self {
        let rate = Rate::new(PER_SECOND, Duration::from_secs(1), MOST);
        Self { limiter: Limiter::with_used(rate, MOST - PER_SECOND), share: AtomicU64::new(share.to_bits()) }
    }

    pub(super) fn set_share(&self, share: f64) {
        self.share.store(share.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn deposit(&self) {
        self.limiter.give_back(f64::from_bits(self.share.load(Ordering::Relaxed)));
    }

    /// Takes one retry. If less than one is left, returns false and takes nothing.
    pub(super) fn withdraw(&self) -> bool {
        self.limiter.take().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn retries_are_a_share_with_a_minimum() {
        let budget = RetryBudget::new(0.25);
        let take = || std::iter::from_fn(|| budget.withdraw().then_some(())).count();
        assert_eq!(take(), 10, "what is always there");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(take(), 10, "a second later again");
        (0..40).for_each(|_| budget.deposit());
        assert_eq!(take(), 10, "a quarter of forty calls");
        budget.set_share(0.05);
        (0..1000).for_each(|_| budget.deposit());
        assert_eq!(take(), 50);
        (0..100_000).for_each(|_| budget.deposit());
        assert_eq!(take(), 100, "no more than that is saved up");
    }
}
