//! Converts monotonic time to wall time, so that a decision needs only one `now`, and tests can set both clocks.
//!
//! Rates use the monotonic clock, which cannot be set back. Only calendar times use the wall clock: the expiry of
//! a key, and the end of a UTC day or month.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// The relation of monotonic time to wall time. It changes when a machine sleeps or its clock is set, so the gateway
/// calls [`Self::set`] each second.
#[derive(Debug)]
pub(crate) struct WallClock {
    started: Instant,
    /// The wall time at the monotonic time `started`, in microseconds since 1970.
    wall_us: AtomicI64,
}

impl WallClock {
    pub(crate) fn new(wall: Timestamp) -> Self {
        let clock = Self { started: Instant::now(), wall_us: AtomicI64::new(0) };
        clock.set(wall);
        clock
    }

    pub(crate) fn set(&self, wall: Timestamp) {
        let since = i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX);
        self.wall_us.store(wall.as_microsecond().saturating_sub(since), Ordering::Relaxed);
    }

    /// Returns the monotonic time from the creation of this clock to `now`.
    pub(crate) fn steady(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

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
    async fn wall_clock_follows_the_steady_clock_until_set() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let clock = WallClock::new(at("2026-11-21T23:59:58Z"));
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock.wall(Instant::now()), at("2026-11-22T00:00:01Z"));
        clock.set(at("2026-11-21T00:00:00Z"));
        assert_eq!(clock.wall(Instant::now()), at("2026-11-21T00:00:00Z"));
        assert_eq!(clock.steady(Instant::now()), Duration::from_secs(3), "no jump");
    }
}
