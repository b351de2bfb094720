//! Quotas: units used in the current UTC day and month, kept in a file over restarts.
//!
//! Units are booked after the answer, so calls in flight may exceed a quota. No task resets a window; a reader sees
//! from its number that it has ended.

mod ledger;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::Offset;

use crate::redis_store::limits::{Booked, Booking};
pub(crate) use ledger::Ledger;
pub use ledger::UsageError;

/// The resolution of units: thousandths, because a hit may cost a fraction.
const THOUSANDTHS: f64 = 1000.0;

/// The number of a day or month since 1970. Days fit until 2149.
type WindowNumber = u16;

/// The UTC day and month of a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Period {
    day: WindowNumber,
    month: WindowNumber,
    date: Date,
}

impl Period {
    /// Returns the period that contains `wall`.
    pub(crate) fn of(wall: Timestamp) -> Self {
        let date = Offset::UTC.to_datetime(wall).date();
        let months = i32::from(date.year() - 1970) * 12 + i32::from(date.month()) - 1;
        let number = |n: i64| WindowNumber::try_from(n.max(0)).unwrap_or(WindowNumber::MAX);
        Self { day: number(wall.as_second().div_euclid(86_400)), month: number(months.into()), date }
    }

    /// Returns the time until the day ends and until the month ends.
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

/// The usage in one window: the window's number in the upper 16 bits, thousandths of units in the lower 48 (2.8e11
/// units).
#[derive(Debug, Default)]
struct Window(AtomicU64);

const USED: u64 = (1 << 48) - 1;

impl Window {
    fn at(number: WindowNumber, used: u64) -> Self {
        Self(AtomicU64::new(u64::from(number) << 48 | used.min(USED)))
    }

    /// Returns the thousandths used in window `number`.
    fn used(&self, number: WindowNumber) -> u64 {
        Self::seen(self.0.load(Ordering::Relaxed), number).1
    }

    /// Adds `thousandths` to window `number`.
    fn add(&self, number: WindowNumber, thousandths: u64) {
        let add = |word| {
            let (number, used) = Self::seen(word, number);
            Some(u64::from(number) << 48 | used.saturating_add(thousandths).min(USED))
        };
        // Infallible: the closure always returns a value.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Raises the usage of window `number` to at least `used`.
    fn at_least(&self, number: WindowNumber, used: u64) {
        let raise = |word| {
            let (number, known) = Self::seen(word, number);
            Some(u64::from(number) << 48 | known.max(used).min(USED))
        };
        // Infallible: the closure always returns a value.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
    }

    /// Decodes `word` when the clock says `number`. A clock that went back by one window does not restore the
    /// quota. A clock that jumped further is believed, because it was wrong before.
    fn seen(word: u64, number: WindowNumber) -> (WindowNumber, u64) {
        // Truncation to the upper 16 bits is intended.
        let known = (word >> 48) as WindowNumber;
        if known == number || known.checked_sub(1) == Some(number) {
            (known, word & USED)
        } else {
            (number, 0)
        }
    }
}

/// The units of a key that are not booked in the shared store yet.
#[derive(Debug, Default)]
struct PendingUnits {
    /// The thousandths of units to book.
    waiting: AtomicU64,
    /// The booking in progress.
    attempt: Mutex<BookingAttempt>,
    /// True if a reader wants to know the totals of all gateways.
    wanted: AtomicBool,
}

/// A booking. Repeated unchanged until the store has answered, so that it counts once.
#[derive(Debug, Default)]
struct BookingAttempt {
    open: bool,
    number: u64,
    units: u64,
}

impl PendingUnits {
    fn attempt(&self) -> MutexGuard<'_, BookingAttempt> {
        self.attempt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The usage of one key, or of one client address, which no ledger keeps.
#[derive(Debug, Default)]
pub(crate) struct Used {
    day: Window,
    month: Window,
    /// Set by every booking and shared by all keys of a ledger.
    dirty: Arc<AtomicBool>,
    /// The units to book in the shared store, if one is configured.
    pending: OnceLock<Arc<PendingUnits>>,
}

impl Used {
    /// Adds `units` to both windows.
    pub(crate) fn book(&self, period: Period, units: f64) {
        let thousandths = thousandths(units);
        self.day.add(period.day, thousandths);
        self.month.add(period.month, thousandths);
        if let Some(pending) = self.pending.get() {
            pending.waiting.fetch_add(thousandths, Ordering::AcqRel);
        }
        if !self.dirty.load(Ordering::Relaxed) {
            self.dirty.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the next booking in the shared store: the unanswered one again, or all pending units.
    pub(crate) fn booking(&self, period: Period, who: u64) -> Booking {
        let mut booking =
            Booking { windows: [period.day, period.month], units: 0, known: [0; 2], who, number: 0 };
        let Some(pending) = self.pending.get() else { return booking };
        let mut attempt = pending.attempt();
        if !attempt.open {
            *attempt = BookingAttempt {
                open: true,
                number: attempt.number + 1,
                units: pending.waiting.swap(0, Ordering::AcqRel),
            };
        }
        (booking.units, booking.number) = (attempt.units, attempt.number);
        // The totals that the store should know. They restore a store that has lost them.
        let (day, month) = (self.day.used(period.day), self.month.used(period.month));
        let untold = attempt.units + pending.waiting.load(Ordering::Acquire);
        booking.known = [day.saturating_sub(untold), month.saturating_sub(untold)];
        booking
    }

    /// Applies the store's answer, which includes the units booked by other gateways.
    pub(crate) fn booked(&self, booking: &Booking, booked: &Booked) {
        let Some(pending) = self.pending.get() else { return };
        let mut attempt = pending.attempt();
        attempt.open = false;
        let waiting = pending.waiting.load(Ordering::Acquire);
        for (at, window) in [&self.day, &self.month].into_iter().enumerate() {
            if booked.windows[at] == booking.windows[at] {
                window.at_least(booked.windows[at], booked.units[at].saturating_add(waiting));
            }
        }
        if booking.units > 0 {
            self.dirty.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if there are units to book, or if a reader wants to know the totals of all gateways.
    fn is_untold(&self) -> bool {
        self.pending.get().is_some_and(|pending| {
            pending.wanted.swap(false, Ordering::Relaxed)
                || pending.waiting.load(Ordering::Relaxed) > 0
                || pending.attempt().open
        })
    }

    /// Requests the totals of all gateways with the next look.
    pub(crate) fn wanted(&self) {
        if let Some(pending) = self.pending.get() {
            pending.wanted.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if both windows have ended and the shared store knows all units.
    pub(crate) fn is_over(&self, period: Period) -> bool {
        let is_booked = |pending: &Arc<PendingUnits>| {
            pending.waiting.load(Ordering::Acquire) == 0 && !pending.attempt().open
        };
        self.day.used(period.day) == 0
            && self.month.used(period.month) == 0
            && self.pending.get().is_none_or(is_booked)
    }

    /// Returns the units used in this day and this month.
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
    fn windows_end_at_utc_midnight_and_month() {
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
    fn clock_jumps_restore_no_quota() {
        let used = Used::default();
        used.book(Period::of(at("2026-11-30T00:00:01Z")), 5.0);
        check(&used, "2026-11-29T23:59:59Z", 5.0, 5.0);
        used.book(Period::of(at("2036-01-01T00:00:00Z")), 7.0);
        check(&used, "2026-11-30T00:00:02Z", 0.0, 0.0);
        used.book(Period::of(at("2026-11-30T00:00:02Z")), 1.0);
        check(&used, "2026-11-30T00:00:02Z", 1.0, 1.0);
    }

    #[test]
    fn periods_know_their_end() {
        let (day, month) = Period::ends_in(at("2028-02-28T23:00:00Z"));
        assert_eq!((day.as_secs(), month.as_secs()), (3600, 3600 + 86_400));
    }
}
