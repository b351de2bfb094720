//! How much: units used in this UTC day and month, one word each, kept over a restart in a file.
//!
//! Booked after the answer, so a quota may be overshot by the calls in flight. A window that ended is not reset by
//! anybody: it is seen to be another one by whoever looks next.

mod ledger;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::Offset;

use crate::shared::limits::{Booked, Booking};
pub(crate) use ledger::Ledger;
pub use ledger::UsageError;

/// Units are counted in thousandths, since a hit may cost a fraction.
const THOUSANDTHS: f64 = 1000.0;

/// A day or a month, numbered from 1970; 65,536 days reach to 2149.
type Number = u16;

/// The day and the month of a moment, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Period {
    day: Number,
    month: Number,
    date: Date,
}

impl Period {
    /// The period that `wall` lies in.
    pub(crate) fn of(wall: Timestamp) -> Self {
        let date = Offset::UTC.to_datetime(wall).date();
        let months = i32::from(date.year() - 1970) * 12 + i32::from(date.month()) - 1;
        let number = |n: i64| Number::try_from(n.max(0)).unwrap_or(Number::MAX);
        Self { day: number(wall.as_second().div_euclid(86_400)), month: number(months.into()), date }
    }

    /// Until the day ends, and until the month ends.
    pub(crate) fn ends_in(wall: Timestamp) -> (Duration, Duration) {
        let date = Offset::UTC.to_datetime(wall).date();
        let until = |end: Option<Date>| {
            let end = end.and_then(|date| {
                Offset::UTC.to_timestamp(date.to_datetime(jiff::civil::Time::midnight())).ok()
            });
            end.and_then(|end| Duration::try_from(end.duration_since(wall)).ok()).unwrap_or_default()
        };
        (until(date.tomorrow().ok()), until(date.last_of_month().tomorrow().ok()))
    }
}

/// The use in one window: its number in the upper 16 bits, thousandths of units in the lower 48 (2.8e11 units).
#[derive(Debug, Default)]
struct Window(AtomicU64);

const USED: u64 = (1 << 48) - 1;

impl Window {
    fn at(number: Number, used: u64) -> Self {
        Self(AtomicU64::new(u64::from(number) << 48 | used.min(USED)))
    }

    /// What was used in window `number`.
    fn used(&self, number: Number) -> u64 {
        Self::seen(self.0.load(Ordering::Relaxed), number).1
    }

    /// Adds to window `number`.
    fn add(&self, number: Number, thousandths: u64) {
        let add = |word| {
            let (number, used) = Self::seen(word, number);
            Some(u64::from(number) << 48 | used.saturating_add(thousandths).min(USED))
        };
        // Infallible: the closure always gives a value.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Raises window `number` to `used`, if it is lower.
    fn at_least(&self, number: Number, used: u64) {
        let raise = |word| {
            let (number, known) = Self::seen(word, number);
            Some(u64::from(number) << 48 | known.max(used).min(USED))
        };
        // Infallible: the closure always gives a value.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
    }

    /// The window that `word` stands for when it is `number` by the clock. A clock that went back by one window does
    /// not give a quota away a second time; one that is further off was wrong before, and is believed now.
    fn seen(word: u64, number: Number) -> (Number, u64) {
        // Truncation is the point: the upper 16 bits alone.
        let known = (word >> 48) as Number;
        if known == number || known.checked_sub(1) == Some(number) {
            (known, word & USED)
        } else {
            (number, 0)
        }
    }
}

/// What of a key's use the shared store has still to hear of.
#[derive(Debug, Default)]
struct Unshared {
    /// Thousandths of units that wait.
    waiting: AtomicU64,
    /// The booking under way.
    attempt: Mutex<Attempt>,
    /// Whether somebody wants to know what others have booked.
    wanted: AtomicBool,
}

/// A booking: the same until the store has answered, so that it counts once however often it is sent.
#[derive(Debug, Default)]
struct Attempt {
    open: bool,
    number: u64,
    units: u64,
}

impl Unshared {
    fn attempt(&self) -> MutexGuard<'_, Attempt> {
        self.attempt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one key has used; by itself in a ledger of its own, as of an address, which is not kept.
#[derive(Debug, Default)]
pub(crate) struct Used {
    day: Window,
    month: Window,
    /// Set by every booking; shared by all keys of a ledger.
    dirty: Arc<AtomicBool>,
    /// What the shared store does not know yet, where there is one.
    unshared: OnceLock<Arc<Unshared>>,
}

impl Used {
    /// Adds to both windows.
    pub(crate) fn book(&self, period: Period, units: f64) {
        let thousandths = thousandths(units);
        self.day.add(period.day, thousandths);
        self.month.add(period.month, thousandths);
        if let Some(unshared) = self.unshared.get() {
            unshared.waiting.fetch_add(thousandths, Ordering::AcqRel);
        }
        if !self.dirty.load(Ordering::Relaxed) {
            self.dirty.store(true, Ordering::Relaxed);
        }
    }

    /// What is to be booked in the shared store: what an earlier attempt may or may not have, else all that waits.
    pub(crate) fn booking(&self, period: Period, who: u64) -> Booking {
        let mut booking =
            Booking { windows: [period.day, period.month], units: 0, known: [0; 2], who, number: 0 };
        let Some(unshared) = self.unshared.get() else { return booking };
        let mut attempt = unshared.attempt();
        if !attempt.open {
            *attempt = Attempt {
                open: true,
                number: attempt.number + 1,
                units: unshared.waiting.swap(0, Ordering::AcqRel),
            };
        }
        (booking.units, booking.number) = (attempt.units, attempt.number);
        // What the store has been told: it may have forgotten it.
        let (day, month) = (self.day.used(period.day), self.month.used(period.month));
        let untold = attempt.units + unshared.waiting.load(Ordering::Acquire);
        booking.known = [day.saturating_sub(untold), month.saturating_sub(untold)];
        booking
    }

    /// It is booked: what others have booked counts here, too.
    pub(crate) fn booked(&self, booking: &Booking, booked: &Booked) {
        let Some(unshared) = self.unshared.get() else { return };
        let mut attempt = unshared.attempt();
        attempt.open = false;
        let waiting = unshared.waiting.load(Ordering::Acquire);
        for (at, window) in [&self.day, &self.month].into_iter().enumerate() {
            if booked.windows[at] == booking.windows[at] {
                window.at_least(booked.windows[at], booked.units[at].saturating_add(waiting));
            }
        }
        if booking.units > 0 {
            self.dirty.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the store is to hear of it, or it of the store.
    fn is_untold(&self) -> bool {
        self.unshared.get().is_some_and(|unshared| {
            unshared.wanted.swap(false, Ordering::Relaxed)
                || unshared.waiting.load(Ordering::Relaxed) > 0
                || unshared.attempt().open
        })
    }

    /// Somebody looks: the next look should see what others have booked meanwhile.
    pub(crate) fn wanted(&self) {
        if let Some(unshared) = self.unshared.get() {
            unshared.wanted.store(true, Ordering::Relaxed);
        }
    }

    /// Whether nothing of it counts any more: its last day and month have ended, and the shared store knows all of it.
    pub(crate) fn is_over(&self, period: Period) -> bool {
        let told = |unshared: &Arc<Unshared>| {
            unshared.waiting.load(Ordering::Acquire) == 0 && !unshared.attempt().open
        };
        self.day.used(period.day) == 0
            && self.month.used(period.month) == 0
            && self.unshared.get().is_none_or(told)
    }

    /// Units used in this day and this month.
    pub(crate) fn units(&self, period: Period) -> (f64, f64) {
        (units(self.day.used(period.day)), units(self.month.used(period.month)))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, which is meant"
)]
fn thousandths(units: f64) -> u64 {
    (units * THOUSANDTHS).round() as u64
}

#[expect(clippy::cast_precision_loss, reason = "48 bits fit an f64")]
fn units(thousandths: u64) -> f64 {
    thousandths as f64 / THOUSANDTHS
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[track_caller]
    pub(super) fn check(used: &Used, wall: &str, day: f64, month: f64) {
        let (d, m) = used.units(Period::of(at(wall)));
        assert!((d - day).abs() < 1e-9 && (m - month).abs() < 1e-9, "{wall}: {d} a day, {m} a month");
    }

    #[test]
    fn windows_roll_over_at_utc_midnight_and_month() {
        let used = Used::default();
        used.book(Period::of(at("2026-11-29T23:59:59.999Z")), 2.5);
        check(&used, "2026-11-29T00:00:00Z", 2.5, 2.5);
        check(&used, "2026-11-30T00:00:00Z", 0.0, 2.5);
        used.book(Period::of(at("2026-11-30T12:00:00Z")), 1.0);
        check(&used, "2026-11-30T23:59:59Z", 1.0, 3.5);
        check(&used, "2026-12-01T00:00:00Z", 0.0, 0.0);
        used.book(Period::of(at("2026-12-01T00:00:00Z")), 1.0);
        check(&used, "2026-12-01T00:00:00Z", 1.0, 1.0);
    }

    #[test]
    fn a_clock_that_jumps_gives_no_quota_twice() {
        let used = Used::default();
        used.book(Period::of(at("2026-11-30T00:00:01Z")), 5.0);
        check(&used, "2026-11-29T23:59:59Z", 5.0, 5.0);
        used.book(Period::of(at("2036-01-01T00:00:00Z")), 7.0);
        check(&used, "2026-11-30T00:00:02Z", 0.0, 0.0);
        used.book(Period::of(at("2026-11-30T00:00:02Z")), 1.0);
        check(&used, "2026-11-30T00:00:02Z", 1.0, 1.0);
    }

    #[test]
    fn the_end_of_a_window_is_known_before() {
        let (day, month) = Period::ends_in(at("2028-02-28T23:00:00Z"));
        assert_eq!((day.as_secs(), month.as_secs()), (3600, 3600 + 86_400));
    }
}
