//! A rate limiter and its clock. The limiter is GCRA (generic cell rate algorithm), which lets `burst` calls pass in one
//! burst, and `rate` calls a second on average.
//!
//! The crate governor implements the algorithm. Its limiters read a clock, which here shows the `now` that the caller
//! passes. A decision therefore depends on its inputs only. A limiter that a reload creates shares the state of the old
//! one if the rate is the same. Otherwise it starts with the used calls of the old one, because the state is a time: at
//! another rate it would stand for other calls.

use std::cell::Cell;
use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed, StateStore};
use governor::{Quota, RateLimiter};

/// The rate of a plan, in the terms of GCRA.
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

    /// Returns the time until the whole burst is free again, for a rate that replaces `old`. `full_in` is this time at
    /// the rate `old`. The used calls carry over, but at most the new burst.
    pub(crate) fn full_in(self, old: Self, full_in: Duration) -> Duration {
        let nanos = full_in.as_nanos().saturating_mul(self.cell.as_nanos()) / old.cell.as_nanos().max(1);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            .min(self.cell.saturating_mul(self.burst))
    }
}

/// The state of a limiter. Clones share one state.
#[derive(Debug, Clone, Default)]
pub(crate) struct LimiterState(Arc<LimiterTimes>);

#[derive(Debug, Default)]
struct LimiterTimes {
    /// The time at which the whole burst is free again.
    rest: InMemoryState,
    /// The latest time of a call, in nanoseconds.
    latest: AtomicU64,
}

impl LimiterState {
    /// Returns the state of a limiter whose whole burst is free again at this time.
    fn resting_at(time: Duration) -> Self {
        let state = Self::default();
        let Ok(()) =
            state.0.rest.measure_and_replace(&NotKeyed::NonKey, |_| Ok::<_, Infallible>(((), time.into())));
        state
    }

    /// Returns the time at which the whole burst is free again, counted from the start of the gateway's clock.
    /// Zero before the first call.
    fn at_rest(&self) -> Duration {
        // The state is not changed, because the function that is passed to governor returns an `Err`.
        let rest = self.0.rest.measure_and_replace(&NotKeyed::NonKey, Err::<((), Nanos), _>);
        rest.err().flatten().map_or(Duration::ZERO, Duration::from)
    }
}

impl StateStore for LimiterState {
    type Key = NotKeyed;

    /// Judges a call at the latest time of a call, if that is later than its own.
    ///
    /// A thread may be suspended between reading the clock and taking its call, for longer than a short burst lasts. What
    /// others have taken meanwhile would lie in the future of its call, which would be refused although the rate is hardly
    /// used.
    fn measure_and_replace<T, F, E>(&self, key: &Self::Key, f: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let LimiterTimes { rest, latest } = &*self.0;
        let now = Nanos::from(NOW.get());
        latest.fetch_max(now.as_u64(), Ordering::AcqRel);
        rest.measure_and_replace(key, |rest| {
            // Read after `rest`, so that no call that is part of it is later.
            let late = Nanos::from(latest.load(Ordering::Acquire)).saturating_sub(now);
            let (passed, rest) = f(rest.map(|rest| rest.saturating_sub(late)))?;
            Ok((passed, rest + late))
        })
    }
}

thread_local! {
    /// The time that [`CallerClock`] returns on this thread.
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// A clock whose time the caller sets.
#[derive(Debug, Clone, Copy)]
struct CallerClock;

impl Clock for CallerClock {
    type Instant = Duration;

    fn now(&self) -> Duration {
        NOW.get()
    }
}

/// A limiter of one rate. Times are monotonic, and count from the start of the gateway's [`WallClock`].
///
/// [`WallClock`]: super::clock::WallClock
#[derive(Debug)]
pub(crate) struct Limiter {
    inner: RateLimiter<NotKeyed, LimiterState, CallerClock, NoOpMiddleware<Duration>>,
    state: LimiterState,
    rate: Rate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remaining {
    /// The number of calls that would pass now.
    pub(crate) calls: u32,
    /// The time until the whole burst is free again.
    pub(crate) full_in: Duration,
}

impl Limiter {
    pub(crate) fn new(rate: Rate) -> Self {
        Self::with(rate, LimiterState::default())
    }

    /// Creates the limiter that replaces `old` at the time `now`. Requests under way still take their calls from `old`.
    /// If the rate has changed, the new limiter does not see these: they are at most as many as `old` has left.
    pub(crate) fn after(old: &Self, rate: Rate, now: Duration) -> Self {
        if rate == old.rate {
            return Self::with(rate, old.state.clone());
        }
        Self::with(rate, LimiterState::resting_at(now + rate.full_in(old.rate, old.left(now).full_in)))
    }

    fn with(rate: Rate, state: LimiterState) -> Self {
        let burst = NonZeroU32::new(rate.burst).unwrap_or(NonZeroU32::MIN);
        // Infallible: a cell is not zero.
        let quota =
            Quota::with_period(rate.cell).unwrap_or(Quota::per_second(NonZeroU32::MIN)).allow_burst(burst);
        // A governor limiter counts from its creation. All limiters are created at time zero, so that they can share a
        // state.
        NOW.set(Duration::ZERO);
        let inner = RateLimiter::new(quota, state.clone(), CallerClock);
        Self { inner, state, rate }
    }

    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    /// Takes one call at the time `now`.
    ///
    /// # Errors
    /// The rate is used up. The error is the time until the next call may pass.
    pub(crate) fn take(&self, now: Duration) -> Result<(), Duration> {
        NOW.set(now);
        self.inner.check().map_err(|not_until| not_until.wait_time_from(now))
    }

    /// Returns the part of the rate that is left at the time `now`. Takes no call.
    pub(crate) fn left(&self, now: Duration) -> Remaining {
        let full_in = self.state.at_rest().saturating_sub(now);
        let Rate { cell, burst } = self.rate;
        let room = (cell * burst).saturating_sub(full_in);
        let calls = u32::try_from(room.as_nanos() / cell.as_nanos()).unwrap_or(u32::MAX);
        Remaining { calls, full_in }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn burst_passes_at_once_then_the_rate() {
        let limit = Limiter::new(Rate::new(10, SECOND, 5));
        let at = |ms| Duration::from_millis(ms);
        let passed = (0..20).filter(|_| limit.take(at(1000)).is_ok()).count();
        assert_eq!(passed, 5, "20 calls against a burst of 5");
        assert_eq!(limit.take(at(1000)), Err(at(100)));
        assert_eq!(limit.left(at(1000)), Remaining { calls: 0, full_in: at(500) });
        assert_eq!(limit.take(at(1099)), Err(at(1)));
        assert_eq!(limit.take(at(1100)), Ok(()));
        assert_eq!(limit.left(at(1350)), Remaining { calls: 2, full_in: at(250) });
        assert_eq!(limit.left(at(9000)), Remaining { calls: 5, full_in: Duration::ZERO });
    }

    #[test]
    fn successors_share_the_state_of_an_unchanged_rate() {
        let old = Limiter::new(Rate::new(1, SECOND, 5));
        old.take(SECOND).unwrap();
        let new = Limiter::after(&old, Rate::new(1, SECOND, 5), SECOND);
        assert_eq!((0..10).filter(|i| [&old, &new][i % 2].take(SECOND).is_ok()).count(), 4);
    }

    proptest! {
        /// At most `burst` calls plus `rate` calls a second pass, however the calls are spread over time.
        #[test]
        fn passes_at_most_burst_plus_rate(
            rate in 1_u32..50,
            burst in 1_u32..50,
            steps in prop::collection::vec(0_u64..200, 1..200),
        ) {
            let limit = Limiter::new(Rate::new(rate, SECOND, burst));
            let mut now = Duration::ZERO;
            let mut passed = 0_u128;
            for step in steps {
                now += Duration::from_millis(step);
                let left = limit.left(now).calls;
                let taken = limit.take(now).is_ok();
                prop_assert_eq!(taken, left > 0, "what was shown as left was there");
                passed += u128::from(taken);
                let cell = SECOND / rate;
                prop_assert!(passed <= u128::from(burst) + now.as_nanos() / cell.as_nanos());
            }
        }
    }
}
