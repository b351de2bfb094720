//! The time of the gateway: the wall clock by which quotas count and keys expire, and the UTC days and months.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::Offset;
use jiff::{Timestamp, ToSpan};
use parking_lot::Mutex;
use tokio::time::Instant;

/// The number of a day or month since 1970, which has room until 2149. 0 while the clock of the machine was never set.
pub(super) type WindowNumber = u16;

const EPOCH: Date = Date::constant(1970, 1, 1);

/// The UTC day and month that contain a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Period {
    pub(super) day: WindowNumber,
    pub(super) month: WindowNumber,
}

impl Period {
    pub(crate) fn of(wall: Timestamp) -> Self {
        if !is_clock_set(wall) {
            return Self { day: 0, month: 0 };
        }
        Self::of_date(Offset::UTC.to_datetime(wall).date())
    }

    pub(super) fn of_date(date: Date) -> Self {
        let months = i32::from(date.year() - 1970) * 12 + i32::from(date.month()) - 1;
        let days = date.duration_since(EPOCH).as_hours() / 24;
        let number = |n: i64| WindowNumber::try_from(n).unwrap_or(WindowNumber::MAX);
        Self { day: number(days), month: number(months.into()) }
    }

    pub(super) fn windows(self) -> [WindowNumber; 2] {
        [self.day, self.month]
    }

    pub(super) fn date_of(day: WindowNumber) -> Date {
        EPOCH.saturating_add(i64::from(day).days())
    }

    /// Returns the time from `wall` to the end of its UTC day, and to the end of its UTC month.
    pub(crate) fn ends_in(wall: Timestamp) -> [Duration; 2] {
        let date = Offset::UTC.to_datetime(wall).date();
        let until = |end: Option<Date>| {
            let end = end.and_then(|date| {
                Offset::UTC.to_timestamp(date.to_datetime(jiff::civil::Time::midnight())).ok()
            });
            end.and_then(|end| Duration::try_from(end.duration_since(wall)).ok()).unwrap_or_default()
        };
        [until(date.tomorrow().ok()), until(date.last_of_month().tomorrow().ok())]
    }
}

/// Returns false for a time before this version was written: the clock of the machine was never set.
pub(crate) fn is_clock_set(wall: Timestamp) -> bool {
    const START_OF_2026: i64 = 1_767_225_600;
    wall.as_second() >= START_OF_2026
}

/// The largest step of the machine's clock against the steady one that is no jump, in microseconds.
const MAX_STEP_US: u64 = 60_000_000;
/// The time after which a jump counts.
const JUMP_LASTS: Duration = Duration::from_mins(10);

/// Converts monotonic time to wall time, so that a decision needs only one `now`, and tests can set both clocks. Rates use
/// the monotonic time, which cannot be set back. Only calendar times use the wall clock: the expiry of a key, and the end
/// of a UTC day or month.
///
/// The relation of the two changes when a machine sleeps or its clock is set, so the gateway calls [`Self::set`] each
/// second. A machine's clock may also be wrong for a while, so quotas follow a jump only once it has lasted.
#[derive(Debug)]
pub(crate) struct WallClock {
    started: Instant,
    /// The wall times at the monotonic time `started`, in microseconds since 1970: by which quotas count, and as the
    /// machine's clock tells it.
    counted_us: AtomicI64,
    told_us: AtomicI64,
    /// The monotonic time of the first reading after the last jump, and the reading, as `told_us`.
    jumped: Mutex<(Duration, i64)>,
}

impl WallClock {
    pub(crate) fn new(wall: Timestamp) -> Self {
        let told = wall.as_microsecond();
        Self {
            started: Instant::now(),
            counted_us: AtomicI64::new(told),
            told_us: AtomicI64::new(told),
            jumped: Mutex::default(),
        }
    }

    /// Notes `wall`, which the machine's clock tells now.
    pub(crate) fn set(&self, wall: Timestamp) {
        let steady = self.started.elapsed();
        let told = wall.as_microsecond().saturating_sub(micros(steady));
        self.told_us.store(told, Ordering::Relaxed);
        let is_near = |other: i64| told.abs_diff(other) <= MAX_STEP_US;
        let mut jumped = self.jumped.lock();
        let counted = self.counted_us.load(Ordering::Relaxed);
        if !is_near(counted) {
            if !is_near(jumped.1) {
                *jumped = (steady, told);
                tracing::warn!(now = %wall, "the clock of this machine has jumped; quotas follow once that has lasted ten minutes");
            }
            // A clock that was never set is no time to count by.
            if steady.saturating_sub(jumped.0) < JUMP_LASTS && is_clock_set(self.wall(Instant::now())) {
                return;
            }
        }
        *jumped = (steady, counted);
        self.counted_us.store(told, Ordering::Relaxed);
    }

    /// Returns the monotonic time from the creation of this clock to `now`.
    pub(crate) fn steady(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    pub(crate) fn wall(&self, now: Instant) -> Timestamp {
        self.at(now, self.counted_us.load(Ordering::Relaxed))
    }

    /// Returns the time for dates after which something is not valid: what has ended by either clock has ended.
    pub(crate) fn latest(&self, now: Instant) -> Timestamp {
        self.at(now, self.counted_us.load(Ordering::Relaxed).max(self.told_us.load(Ordering::Relaxed)))
    }

    fn at(&self, now: Instant, start_us: i64) -> Timestamp {
        let wall = start_us.saturating_add(micros(self.steady(now)));
        Timestamp::from_microsecond(wall).unwrap_or(Timestamp::MAX)
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl WallClock {
        /// Lets quotas count from `wall` now.
        pub(in crate::gateway) fn count_from(&self, wall: Timestamp) {
            let start_us = wall.as_microsecond() - micros(self.started.elapsed());
            self.counted_us.store(start_us, Ordering::Relaxed);
            self.set(wall);
        }
    }

    const START: &str = "2026-11-30T23:00:00Z";

    /// Sets the machine's clock to a number of seconds beside the right time. Returns by how many the clock of quotas and
    /// that of dates are beside it.
    fn told(clock: &WallClock, beside: i64) -> (i64, i64) {
        let now = Instant::now();
        let right = START.parse::<Timestamp>().unwrap() + clock.steady(now);
        clock.set(right + jiff::SignedDuration::from_secs(beside));
        let by = |time: Timestamp| time.duration_since(right).as_secs();
        (by(clock.wall(now)), by(clock.latest(now)))
    }

    #[tokio::test(start_paused = true)]
    async fn jumps_count_for_quotas_once_they_have_lasted() {
        let minutes = |count| tokio::time::advance(Duration::from_mins(count));
        for day in [86_400, -86_400, 70, -70] {
            let clock = WallClock::new(START.parse().unwrap());
            let not_yet = (0, day.max(0));
            assert_eq!(told(&clock, day), not_yet, "a jump, which makes no date valid that was not");
            minutes(9).await;
            assert_eq!(told(&clock, day + 5).0, 0, "the same jump");
            assert_eq!(told(&clock, 0), (0, 0), "it was wrong");
            assert_eq!(told(&clock, day), not_yet);
            minutes(9).await;
            assert_eq!(told(&clock, 3 * day).0, 0, "another jump begins anew");
            minutes(9).await;
            assert_eq!(told(&clock, 3 * day).0, 0);
            minutes(1).await;
            assert_eq!(told(&clock, 3 * day), (3 * day, 3 * day), "it has lasted");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn small_steps_are_followed_at_once() {
        let clock = WallClock::new(START.parse().unwrap());
        for beside in [60, 0, -60, -1, 30] {
            assert_eq!(told(&clock, beside), (beside, beside));
        }
        tokio::time::advance(Duration::from_hours(1)).await;
        let later = "2026-12-01T00:00:30Z".parse::<Timestamp>().unwrap();
        assert_eq!(clock.wall(Instant::now()), later, "between two rounds");
    }

    #[tokio::test(start_paused = true)]
    async fn clock_that_is_set_for_the_first_time_counts_at_once() {
        let clock = WallClock::new("1970-01-01T00:00:05Z".parse().unwrap());
        assert_eq!(told(&clock, 0), (0, 0));
    }
}
