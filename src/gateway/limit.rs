//! How often: one GCRA (generic cell rate algorithm) limiter, which lets `burst` calls through at once and `rate`
//! calls a second on average.
//!
//! governor has the algorithm. Its limiters ask a clock; ours shows the `now` that the caller decided with, so that a
//! decision is a function of its inputs. The state is shared: a limiter made anew on a reload goes on where its
//! predecessor was.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed, StateStore};
use governor::{Quota, RateLimiter};

/// A rate, as a plan has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    /// The time that one call takes to be forgotten.
    pub(crate) cell: Duration,
    /// Calls at once.
    pub(crate) burst: u32,
}

/// The state of a limiter: the steady time at which all calls of its burst are free again. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct State(Arc<InMemoryState>);

impl State {
    /// Returns the time at which the limiter is at rest again, or zero before its first call.
    fn at_rest(&self) -> Duration {
        // An error leaves the state as it is, and carries it out.
        let rest = self.measure_and_replace(&NotKeyed::NonKey, Err::<((), Nanos), _>);
        rest.err().flatten().map_or(Duration::ZERO, Duration::from)
    }
}

impl StateStore for State {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, key: &Self::Key, f: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        self.0.measure_and_replace(key, f)
    }
}

thread_local! {
    /// The time that the limiter asked on this thread is to see.
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Shows the caller's own `now`.
#[derive(Debug, Clone, Copy)]
struct Given;

impl Clock for Given {
    type Instant = Duration;

    fn now(&self) -> Duration {
        NOW.get()
    }
}

/// One limit. Times are steady, since any start that its predecessors shared.
#[derive(Debug)]
pub(crate) struct Limit {
    limiter: RateLimiter<NotKeyed, State, Given, NoOpMiddleware<Duration>>,
    state: State,
    rate: Rate,
}

/// What is left of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    /// Calls that would be let through at once.
    pub(crate) calls: u32,
    /// Until `burst` calls would be.
    pub(crate) full_in: Duration,
}

impl Limit {
    /// `rate` calls in each `period`, `burst` at once; all at least 1 of their units. Starts from `state`.
    pub(crate) fn new(rate: u32, period: Duration, burst: u32, state: State) -> Self {
        let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
        let cell = (period / rate.max(1)).max(Duration::from_nanos(1));
        // Infallible: `cell` is not zero.
        let quota = Quota::with_period(cell).unwrap_or(Quota::per_second(NonZeroU32::MIN)).allow_burst(burst);
        // The limiter counts from its birth; all are born at zero, so that they can share a state.
        NOW.set(Duration::ZERO);
        let limiter = RateLimiter::new(quota, state.clone(), Given);
        Self { limiter, state, rate: Rate { cell, burst: burst.get() } }
    }

    /// Returns the state, for a successor to start from.
    pub(crate) fn state(&self) -> State {
        self.state.clone()
    }

    /// Returns the rate that it lets through.
    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    /// Takes one call, or says how long until one is free.
    pub(crate) fn take(&self, now: Duration) -> Result<(), Duration> {
        NOW.set(now);
        self.limiter.check().map_err(|not_until| not_until.wait_time_from(now))
    }

    /// What is left, without taking any.
    pub(crate) fn left(&self, now: Duration) -> Left {
        let full_in = self.state.at_rest().saturating_sub(now);
        let Rate { cell, burst } = self.rate;
        let room = (cell * burst).saturating_sub(full_in);
        let calls = u32::try_from(room.as_nanos() / cell.as_nanos()).unwrap_or(u32::MAX);
        Left { calls, full_in }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_then_the_rate() {
        let limit = Limit::new(10, SECOND, 5, State::default());
        let at = |ms| Duration::from_millis(ms);
        let passed = (0..20).filter(|_| limit.take(at(1000)).is_ok()).count();
        assert_eq!(passed, 5, "20 calls against a burst of 5");
        assert_eq!(limit.take(at(1000)), Err(at(100)));
        assert_eq!(limit.left(at(1000)), Left { calls: 0, full_in: at(500) });
        assert_eq!(limit.take(at(1099)), Err(at(1)));
        assert_eq!(limit.take(at(1100)), Ok(()));
        assert_eq!(limit.left(at(1350)), Left { calls: 2, full_in: at(250) });
        assert_eq!(limit.left(at(9000)), Left { calls: 5, full_in: Duration::ZERO });
    }

    #[test]
    fn a_successor_goes_on_where_its_predecessor_was() {
        let old = Limit::new(1, SECOND, 5, State::default());
        while old.take(SECOND).is_ok() {}
        let new = Limit::new(1, SECOND, 10, old.state());
        assert_eq!(new.left(SECOND).calls, 5, "the five that were taken count against the ten");
        assert!(old.take(SECOND).is_err());
    }

    proptest! {
        /// Never more than burst + rate × time, whatever the pattern of calls.
        #[test]
        fn never_above_burst_and_rate(
            rate in 1_u32..50,
            burst in 1_u32..50,
            steps in prop::collection::vec(0_u64..200, 1..200),
        ) {
            let limit = Limit::new(rate, SECOND, burst, State::default());
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
