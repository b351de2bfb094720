//! The rate limiter of everything that has a rate: GCRA (generic cell rate algorithm) by the crate governor, with tokio's
//! clock. It lets `burst` calls pass in one burst, and a number of calls a second on average.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{NotKeyed, StateStore};
use governor::{Quota, RateLimiter};
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    /// The time in which one call becomes free again: one second divided by the rate.
    pub(crate) cell: Duration,
    pub(crate) burst: u32,
}

impl Rate {
    /// Describes `calls` calls in each `period`, and `burst` calls in one burst. 0 calls count as 1.
    pub(crate) fn new(calls: u32, period: Duration, burst: u32) -> Self {
        Self { cell: (period / calls.max(1)).max(Duration::from_nanos(1)), burst: burst.max(1) }
    }
}

/// The time since the creation of a limiter.
#[derive(Debug, Clone, Copy)]
struct SinceStart(Instant);

impl Clock for SinceStart {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// The time at which the whole burst is free again, in nanoseconds since the creation of the limiter. This is all that a
/// limiter remembers; governor's own store does not show it.
#[derive(Debug, Clone, Default)]
struct FullAt(Arc<AtomicU64>);

impl StateStore for FullAt {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, _: &NotKeyed, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut before = self.0.load(Ordering::Acquire);
        loop {
            let (decision, after) = decide(Some(before.into()))?;
            match self.0.compare_exchange(before, after.into(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(decision),
                Err(other) => before = other,
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Limiter {
    inner: RateLimiter<NotKeyed, FullAt, SinceStart, NoOpMiddleware<Duration>>,
    full_at: FullAt,
    clock: SinceStart,
    rate: Rate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remaining {
    pub(crate) calls: u32,
    pub(crate) full_in: Duration,
}

impl Limiter {
    pub(crate) fn new(rate: Rate) -> Self {
        let (clock, full_at) = (SinceStart(Instant::now()), FullAt::default());
        let burst = NonZeroU32::new(rate.burst).unwrap_or(NonZeroU32::MIN);
        // Infallible: a cell is not zero.
        let quota =
            Quota::with_period(rate.cell).unwrap_or(Quota::per_second(NonZeroU32::MIN)).allow_burst(burst);
        Self { inner: RateLimiter::new(quota, full_at.clone(), clock), full_at, clock, rate }
    }

    /// Creates a limiter of which this number of calls is used, at most the whole burst.
    pub(crate) fn with_used(rate: Rate, used: u32) -> Self {
        let limiter = Self::new(rate);
        if let Some(used) = NonZeroU32::new(used.min(rate.burst)) {
            // Infallible: nothing else has been used.
            let _ = limiter.inner.check_n(used);
        }
        limiter
    }

    /// Returns the limiter that replaces `old`. If the rate has changed, the used calls carry over, not their time, and at
    /// most the new burst. Requests under way still take their calls from `old`, and the new limiter does not see these:
    /// they are at most as many as `old` has left.
    pub(crate) fn after(old: &Arc<Self>, rate: Rate) -> Arc<Self> {
        if rate == old.rate {
            return Arc::clone(old);
        }
        Arc::new(Self::with_used(rate, old.rate.burst - old.left().calls))
    }

    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    /// Takes one call.
    ///
    /// # Errors
    /// The rate is used up. The error is the time until the next call may pass.
    pub(crate) fn take(&self) -> Result<(), Duration> {
        self.inner.check().map_err(|not_until| not_until.wait_time_from(self.clock.now()))
    }

    /// Makes this number of calls free again, which may be a part of one.
    pub(crate) fn give_back(&self, calls: f64) {
        let nanos = self.rate.cell.mul_f64(calls).as_nanos();
        let earlier = |at: u64| Some(at.saturating_sub(u64::try_from(nanos).unwrap_or(u64::MAX)));
        // Infallible: the closure always returns a value.
        let _ = self.full_at.0.try_update(Ordering::AcqRel, Ordering::Acquire, earlier);
    }

    /// Returns the part of the rate that is left. Takes no call.
    pub(crate) fn left(&self) -> Remaining {
        let full_in = self.full_in();
        let Rate { cell, burst } = self.rate;
        let room = cell.saturating_mul(burst).saturating_sub(full_in);
        let calls = u32::try_from(room.as_nanos() / cell.as_nanos()).unwrap_or(u32::MAX);
        Remaining { calls, full_in }
    }

    /// Returns the time after which this number of calls would have passed, if each passes as soon as it may.
    pub(crate) fn time_for(&self, calls: u32) -> Duration {
        let Rate { cell, burst } = self.rate;
        (self.full_in() + cell.saturating_mul(calls)).saturating_sub(cell.saturating_mul(burst))
    }

    fn full_in(&self) -> Duration {
        Duration::from_nanos(self.full_at.0.load(Ordering::Acquire)).saturating_sub(self.clock.now())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[tokio::test(start_paused = true)]
    async fn burst_passes_at_once_then_the_rate() {
        let limit = Limiter::new(Rate::new(10, SECOND, 5));
        advance(SECOND).await;
        let passed = (0..20).filter(|_| limit.take().is_ok()).count();
        assert_eq!(passed, 5, "20 calls against a burst of 5");
        assert_eq!(limit.take(), Err(MS(100)));
        assert_eq!(limit.left(), Remaining { calls: 0, full_in: MS(500) });
        assert_eq!([0, 1, 2, 9].map(|calls| limit.time_for(calls)), [MS(0), MS(100), MS(200), MS(900)]);
        advance(MS(99)).await;
        assert_eq!(limit.take(), Err(MS(1)));
        advance(MS(1)).await;
        assert_eq!(limit.take(), Ok(()));
        advance(MS(250)).await;
        assert_eq!(limit.left(), Remaining { calls: 2, full_in: MS(250) });
        advance(9 * SECOND).await;
        assert_eq!(limit.left(), Remaining { calls: 5, full_in: Duration::ZERO });
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_given_back_can_be_taken_and_no_more() {
        let limit = Limiter::with_used(Rate::new(10, SECOND, 5), 99);
        assert_eq!(limit.left().calls, 0);
        limit.give_back(1.0);
        assert_eq!((limit.take(), limit.take()), (Ok(()), Err(MS(100))));
        (0..4).for_each(|_| limit.give_back(0.25));
        assert_eq!((limit.take(), limit.take()), (Ok(()), Err(MS(100))));
        (0..100).for_each(|_| limit.give_back(1.0));
        assert_eq!((0..20).filter(|_| limit.take().is_ok()).count(), 5, "at most the burst");
    }

    #[tokio::test(start_paused = true)]
    async fn successors_of_an_unchanged_rate_are_the_same_limiter() {
        let old = Arc::new(Limiter::new(Rate::new(1, SECOND, 5)));
        old.take().unwrap();
        let new = Limiter::after(&old, Rate::new(1, SECOND, 5));
        assert_eq!((0..10).filter(|i| [&old, &new][i % 2].take().is_ok()).count(), 4);
    }

    proptest! {
        /// At most `burst` calls plus `rate` calls a second pass, however the calls are spread over time.
        #[test]
        fn passes_at_most_burst_plus_rate(
            rate in 1_u32..50,
            burst in 1_u32..50,
            steps in prop::collection::vec(0_u64..200, 1..200),
        ) {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let limit = Limiter::new(Rate::new(rate, SECOND, burst));
                let (started, mut passed) = (Instant::now(), 0_u128);
                for step in steps {
                    advance(MS(step)).await;
                    let left = limit.left().calls;
                    let taken = limit.take().is_ok();
                    prop_assert_eq!(taken, left > 0, "what was shown as left was there");
                    passed += u128::from(taken);
                    let cell = SECOND / rate;
                    prop_assert!(passed <= u128::from(burst) + started.elapsed().as_nanos() / cell.as_nanos());
                }
                Ok(())
            })?;
        }
    }
}
