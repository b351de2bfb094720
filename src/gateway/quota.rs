//! Quotas: the units used in the current UTC day and month, which a file keeps over restarts.
//!
//! A call reserves its highest price before anything is asked for it, because its price is known only afterwards. So
//! calls in flight exceed no quota. Reserved units belong to no day or month: they become used, or are given back, in
//! the window in which the call ends.
//!
//! No task resets the usage of a day or month that has ended. Each access compares the stored number of the day or
//! month with the current number instead.

mod ledger;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::Offset;

use crate::redis_store::limits::{Booked, Booker, Booking};
pub(crate) use ledger::Ledger;
pub use ledger::UsageError;

/// The number of parts into which a unit is divided. Usage is counted in these parts, because a hit may cost a fraction
/// of a unit.
const THOUSANDTHS: f64 = 1000.0;

/// The number of a day or month since 1970. The type has room for the days until 2149.
type WindowNumber = u16;

/// The UTC day and month that contain a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Period {
    day: WindowNumber,
    month: WindowNumber,
    date: Date,
}

impl Period {
    pub(crate) fn of(wall: Timestamp) -> Self {
        let date = Offset::UTC.to_datetime(wall).date();
        let months = i32::from(date.year() - 1970) * 12 + i32::from(date.month()) - 1;
        let is_known = is_clock_set(wall);
        let number =
            |n: i64| if is_known { WindowNumber::try_from(n).unwrap_or(WindowNumber::MAX) } else { 0 };
        Self { day: number(wall.as_second().div_euclid(86_400)), month: number(months.into()), date }
    }

    fn windows(self) -> [WindowNumber; 2] {
        [self.day, self.month]
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

/// The usage in one window, a day or a month. The upper 16 bits are the window's number. The lower 48 bits are the
/// usage in thousandths of units, up to 2.8e11 units.
#[derive(Debug, Default)]
struct Window(AtomicU64);

/// The mask of the lower 48 bits, which is also the highest usage.
const USED: u64 = (1 << 48) - 1;

impl Window {
    fn at(number: WindowNumber, used: u64) -> Self {
        Self(AtomicU64::new(u64::from(number) << 48 | used.min(USED)))
    }

    fn used(&self, number: WindowNumber) -> u64 {
        Self::seen(self.0.load(Ordering::Acquire), number).1
    }

    /// Adds `thousandths`, a number of thousandths of a unit, to the usage of window `number`.
    fn add(&self, number: WindowNumber, thousandths: u64) {
        let add = |word| {
            let (number, used) = Self::seen(word, number);
            Some(u64::from(number) << 48 | used.saturating_add(thousandths).min(USED))
        };
        // Infallible: the closure always returns a value.
        let _ = self.0.fetch_update(Ordering::Release, Ordering::Relaxed, add);
    }

    /// Sets the usage to 0. Returns the usage of window `number` before.
    fn take(&self, number: WindowNumber) -> u64 {
        Self::seen(self.0.swap(u64::from(number) << 48, Ordering::AcqRel), number).1
    }

    /// Raises the usage of window `number` to `used`, in thousandths of units, unless the usage is already higher. Does
    /// nothing if a later window has begun. `now` is the number of the current window.
    fn at_least(&self, number: WindowNumber, used: u64, now: WindowNumber) {
        let raise = |word| {
            let (stored, known) = Self::seen(word, number);
            // A later window than the current one is left from a clock that was wrong, and counts as the current one.
            let is_open = stored == number || now == number;
            is_open.then(|| u64::from(stored) << 48 | known.max(used).min(USED))
        };
        // An error means that a later window has begun.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
    }

    /// Reads `word`, the content of a [`Window`]. Returns the window's number, and the usage in this window.
    /// `number` is the current window. If the window of `word` has ended, returns `number` and a usage of 0.
    ///
    /// If the clock goes back by one window, the window of `word` stays, so that the quota is not restored. If the
    /// clock goes back further, `number` is trusted, because the clock must have been wrong before. `number` is 0 while
    /// the clock was never set, and then any window stays.
    fn seen(word: u64, number: WindowNumber) -> (WindowNumber, u64) {
        // Truncation to the upper 16 bits is intended.
        let known = (word >> 48) as WindowNumber;
        if known == number || number == 0 || known.checked_sub(1) == Some(number) {
            (known, word & USED)
        } else {
            (number, 0)
        }
    }
}

/// The usage in the current day and in the current month, in thousandths of units.
#[derive(Debug, Default)]
struct UsedUnits([Window; 2]);

impl UsedUnits {
    fn add(&self, period: Period, thousandths: [u64; 2]) {
        for ((window, number), thousandths) in self.0.iter().zip(period.windows()).zip(thousandths) {
            window.add(number, thousandths);
        }
    }

    fn used(&self, period: Period) -> [u64; 2] {
        let [day, month] = period.windows();
        [self.0[0].used(day), self.0[1].used(month)]
    }

    /// Sets the usage to 0. Returns the usage of the day and the month before.
    fn take(&self, period: Period) -> [u64; 2] {
        let [day, month] = period.windows();
        [self.0[0].take(day), self.0[1].take(month)]
    }

    /// Returns true if there is no usage, in these windows or in earlier ones.
    fn is_zero(&self) -> bool {
        self.0.iter().all(|window| window.0.load(Ordering::Acquire) & USED == 0)
    }
}

/// The used units of one key that the shared store has not counted yet. Units of a day or month that has ended are
/// forgotten.
#[derive(Debug, Default)]
struct PendingUnits {
    /// The units of all bookings, including those that are not finished. Each booking adds to this before it adds to
    /// [`Used::usage`], which then holds no unit that is missing here.
    begun: UsedUnits,
    /// The units to send with the next request to the store. Each booking adds to this last.
    waiting: UsedUnits,
    /// The request to the shared store that is in flight or was answered last.
    attempt: Mutex<BookingAttempt>,
    /// True if the next request to the store must read the key's totals over all gateways.
    totals_requested: AtomicBool,
}

/// A request that adds units to the totals in the shared store. The request is repeated with the same windows, units and
/// number until the store has answered, so that the units count once.
#[derive(Debug, Default)]
struct BookingAttempt {
    /// The period of the request. `None` once the store has answered.
    open: Option<Period>,
    number: u64,
    /// The units to add to the totals, in thousandths of units.
    units: [u64; 2],
    /// The units of all answered requests.
    counted: UsedUnits,
}

impl PendingUnits {
    fn attempt(&self) -> MutexGuard<'_, BookingAttempt> {
        self.attempt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The usage of one key or client address. A [`Ledger`] stores the usage of keys.
#[derive(Debug, Default)]
pub(crate) struct Used {
    usage: UsedUnits,
    /// The units that calls in flight have reserved, in thousandths of units.
    reserved: AtomicU64,
    /// True if units were used since the usage file was last written. All keys of a ledger share the flag.
    dirty: Arc<AtomicBool>,
    /// The units that the shared store has not counted yet. Empty if no shared store is configured.
    pending: OnceLock<Arc<PendingUnits>>,
}

/// A quota that leaves too little for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OverQuota {
    /// True for the quota of the month, false for that of the day.
    pub(crate) is_monthly: bool,
    /// True if the units that calls in flight have reserved would suffice.
    pub(crate) may_pass_soon: bool,
}

impl Used {
    /// Reserves `units` for a call, unless the used and the reserved units would then exceed one of the `quotas` of the
    /// day and the month in `period`.
    ///
    /// # Errors
    /// The quota that would be exceeded: that of the month, if it is both.
    pub(crate) fn reserve(
        &self,
        period: Period,
        units: f64,
        quotas: [Option<u64>; 2],
    ) -> Result<(), OverQuota> {
        let price = thousandths(units);
        // The call reserves first, and reads the used units afterwards, so no two calls get the same rest. A call that
        // ends in between is seen twice, and never missed, because it is booked before its reservation is released.
        let reserved = self.reserved.fetch_add(price, Ordering::AcqRel);
        let used = self.usage.used(period);
        let exceeds = |at: usize, others: u64| {
            let units = used[at].saturating_add(others).saturating_add(price);
            quotas[at].is_some_and(|quota| units > quota.saturating_mul(1000))
        };
        let Some(at) = [1, 0].into_iter().find(|at| exceeds(*at, reserved)) else { return Ok(()) };
        self.release(units);
        Err(OverQuota { is_monthly: at == 1, may_pass_soon: !exceeds(at, 0) })
    }

    /// Returns the quota that is used up: that of the month, if it is both. `None` if something is left of each.
    pub(crate) fn used_up(&self, period: Period, quotas: [Option<u64>; 2]) -> Option<OverQuota> {
        let used = self.usage.used(period);
        let is_used_up =
            |at: &usize| quotas[*at].is_some_and(|quota| used[*at] >= quota.saturating_mul(1000));
        let at = [1, 0].into_iter().find(is_used_up)?;
        Some(OverQuota { is_monthly: at == 1, may_pass_soon: false })
    }

    pub(crate) fn release(&self, units: f64) {
        self.reserved.fetch_sub(thousandths(units), Ordering::AcqRel);
    }

    /// Adds `units` to the usage of the day and of the month in `period`.
    pub(crate) fn book(&self, period: Period, units: f64) {
        let (thousandths, pending) = (thousandths(units), self.pending.get());
        if let Some(pending) = pending {
            pending.begun.add(period, [thousandths; 2]);
        }
        self.usage.add(period, [thousandths; 2]);
        if let Some(pending) = pending {
            pending.waiting.add(period, [thousandths; 2]);
        }
        if !self.dirty.load(Ordering::Relaxed) {
            self.dirty.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the next request to the shared store: the last request if it is unanswered, otherwise a new request with
    /// all pending units. `gateway` is the sender.
    pub(crate) fn booking(&self, period: Period, gateway: &Booker) -> Booking {
        let who = gateway.id;
        let Some(pending) = self.pending.get() else {
            return Booking { windows: period.windows(), units: [0; 2], known: [0; 2], who, number: 0 };
        };
        let mut attempt = pending.attempt();
        if attempt.open.is_none() {
            attempt.number = gateway.next_number();
            attempt.units = pending.waiting.take(period);
        }
        let period = *attempt.open.get_or_insert(period);
        // The totals that the store should already have. A store that has lost its data takes them from this request.
        let used = self.usage.used(period);
        let (begun, counted) = (pending.begun.used(period), attempt.counted.used(period));
        let known = [0, 1].map(|at| used[at].saturating_sub(begun[at].saturating_sub(counted[at])));
        Booking { windows: period.windows(), units: attempt.units, known, who, number: attempt.number }
    }

    /// Applies the totals in the store's answer to `booking`. The totals include the units of other gateways. `now` is
    /// the current period.
    pub(crate) fn booked(&self, booking: &Booking, booked: &Booked, now: Period) {
        let Some(pending) = self.pending.get() else { return };
        let mut attempt = pending.attempt();
        if let Some(period) = attempt.open.take() {
            attempt.counted.add(period, attempt.units);
        }
        let waiting = pending.waiting.used(now);
        for (at, (window, now)) in self.usage.0.iter().zip(now.windows()).enumerate() {
            let number = booked.windows[at];
            if number == booking.windows[at] {
                window.at_least(number, booked.units[at].saturating_add(waiting[at]), now);
            }
        }
        if booking.units != [0; 2] {
            self.dirty.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if a request to the shared store is due: to add units, or to read this key's totals over all
    /// gateways after [`Self::request_totals`]. Clears the flag that [`Self::request_totals`] sets.
    fn needs_booking(&self) -> bool {
        self.pending.get().is_some_and(|pending| {
            pending.totals_requested.swap(false, Ordering::Relaxed)
                || !pending.waiting.is_zero()
                || pending.attempt().open.is_some()
        })
    }

    /// Makes the next request to the shared store read this key's totals over all gateways.
    pub(crate) fn request_totals(&self) {
        if let Some(pending) = self.pending.get() {
            pending.totals_requested.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if nothing was used in the day and month of `period`, and the shared store has counted all units.
    pub(crate) fn is_over(&self, period: Period) -> bool {
        let is_booked =
            |pending: &Arc<PendingUnits>| pending.waiting.is_zero() && pending.attempt().open.is_none();
        self.usage.used(period) == [0; 2] && self.pending.get().is_none_or(is_booked)
    }

    pub(crate) fn reserved(&self) -> f64 {
        units(self.reserved.load(Ordering::Relaxed))
    }

    pub(crate) fn units(&self, period: Period) -> [f64; 2] {
        self.usage.used(period).map(units)
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
mod tests;
