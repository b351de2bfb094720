//! The wall clock, as a function of the steady one: so that a decision needs only one `now`, and tests set both.
//!
//! Rates run on the steady clock alone, which no operator can turn back. Only what people wrote as a date (when a key
//! ends, where a UTC day ends) asks the wall.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// Maps steady time to wall time. The two drift apart (a suspended machine, a corrected clock), so it is set anew each
/// second; between, it runs with the steady clock.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    /// The wall's time at `started`, in microseconds since 1970.
    wall_us: AtomicI64,
}

impl Clock {
    /// A clock whose wall shows `wall` now.
    pub(crate) fn new(wall: Timestamp) -> Self {
        let clock = Self { started: Instant::now(), wall_us: AtomicI64::new(0) };
        clock.set(wall);
        clock
    }

    /// Sets the wall, which shows `wall` now.
    pub(crate) fn set(&self, wall: Timestamp) {
        let since = i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX);
        self.wall_us.store(wall.as_microsecond().saturating_sub(since), Ordering::Relaxed);
    }

    /// Steady time since the start.
    pub(crate) fn steady(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    /// What the wall shows at `now`.
    pub(crate) fn wall(&self, now: Instant) -> Timestamp {
        let since = i64::try_from(self.steady(now).as_micros()).unwrap_or(i64::MAX);
        let wall = self.wall_us.load(Ordering::Relaxed).saturating_add(since);
        Timestamp::from_microsecond(wall).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_wall_runs_with_the_steady_clock_until_it_is_set() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let clock = Clock::new(at("2026-11-21T23:59:58Z"));
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock.wall(Instant::now()), at("2026-11-22T00:00:01Z"));
        clock.set(at("2026-11-21T00:00:00Z"));
        assert_eq!(clock.wall(Instant::now()), at("2026-11-21T00:00:00Z"));
        assert_eq!(clock.steady(Instant::now()), Duration::from_secs(3), "no jump");
    }
}
