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
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::Offset;
use parking_lot::{Mutex, MutexGuard};

use crate::redis_store::limits::{Booker, Booking};
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

/// The usage in the current window, a day or a month, and in the one that was current before it, each as a word. The
/// upper 16 bits are the window's number. The lower 48 bits are the usage in thousandths of units, up to 2.8e11 units.
#[derive(Debug, Default)]
struct Window {
    now: AtomicU64,
    before: AtomicU64,
}

/// The mask of the lower 48 bits, which is also the highest usage.
const USED: u64 = (1 << 48) - 1;

/// Held while a window ends. That is rare, so all share it.
static ENDING: Mutex<()> = Mutex::new(());

fn word(number: WindowNumber, used: u64) -> u64 {
    u64::from(number) << 48 | used.min(USED)
}

/// Splits a word of a [`Window`] into the window's number and the usage.
fn parts(word: u64) -> (WindowNumber, u64) {
    // Truncation to the upper 16 bits is intended.
    ((word >> 48) as WindowNumber, word & USED)
}

impl Window {
    fn at(number: WindowNumber, used: u64) -> Self {
        Self { now: AtomicU64::new(word(number, used)), before: AtomicU64::default() }
    }

    /// Makes `number` the current window, and returns its word.
    ///
    /// A later window begins with no usage. A clock that goes back was wrong before, or is wrong now, or a caller is late
    /// who has read it before the end of a window. In each case what was used goes along, and is still there if the clock
    /// returns. `number` is 0 while the clock was never set, and then any window stays.
    fn current(&self, number: WindowNumber) -> u64 {
        loop {
            let now = self.now.load(Ordering::Acquire);
            let (known, used) = parts(now);
            if known == number || number == 0 {
                return now;
            }
            let _one = ENDING.lock();
            let (before, left) = parts(self.before.load(Ordering::Relaxed));
            let used = match number {
                _ if number < known || known == 0 => used + if before >= number { left } else { 0 },
                _ if number == before => left,
                _ => 0,
            };
            let next = word(number, used);
            if self.now.compare_exchange(now, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.before.store(now, Ordering::Relaxed);
                return next;
            }
        }
    }

    /// Returns the usage of window `number`, which need not be the current one.
    fn used_in(&self, number: WindowNumber) -> u64 {
        let words = [&self.now, &self.before].map(|word| parts(word.load(Ordering::Acquire)));
        words.into_iter().find(|(known, _)| *known == number).map_or(0, |(_, used)| used)
    }

    /// Changes the usage of window `number`, or of the one that has just begun. `next` gets the window's number and its
    /// usage. Returns the usage before.
    fn change(&self, number: WindowNumber, next: impl Fn(WindowNumber, u64) -> u64) -> u64 {
        self.current(number);
        let change = |now| {
            let (number, used) = parts(now);
            Some(word(number, next(number, used)))
        };
        // Infallible: the closure always returns a value.
        parts(self.now.fetch_update(Ordering::AcqRel, Ordering::Relaxed, change).unwrap_or_default()).1
    }
}

/// The usage in the current day and in the current month, in thousandths of units.
#[derive(Debug, Default)]
struct UsedUnits([Window; 2]);

impl UsedUnits {
    fn add(&self, period: Period, thousandths: [u64; 2]) {
        for ((window, number), thousandths) in self.0.iter().zip(period.windows()).zip(thousandths) {
            window.change(number, |_, used| used.saturating_add(thousandths));
        }
    }

    fn used(&self, period: Period) -> [u64; 2] {
        let windows = period.windows();
        [0, 1].map(|at| self.0[at].current(windows[at]) & USED)
    }

    /// Returns the usage in a period that need not be the current one.
    fn used_in(&self, period: Period) -> [u64; 2] {
        let windows = period.windows();
        [0, 1].map(|at| self.0[at].used_in(windows[at]))
    }

    /// Sets the usage to 0. Returns the usage of the day and the month before.
    fn take(&self, period: Period) -> [u64; 2] {
        let windows = period.windows();
        [0, 1].map(|at| self.0[at].change(windows[at], |_, _| 0))
    }

    /// Returns true if there is no usage, in these windows or in earlier ones.
    fn is_zero(&self) -> bool {
        self.0.iter().all(|window| window.now.load(Ordering::Acquire) & USED == 0)
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
        self.attempt.lock()
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
        let used = self.usage.used_in(period);
        let (begun, counted) = (pending.begun.used_in(period), attempt.counted.used_in(period));
        let known = [0, 1].map(|at| used[at].saturating_sub(begun[at].saturating_sub(counted[at])));
        Booking { windows: period.windows(), units: attempt.units, known, who, number: attempt.number }
    }

    /// Applies `totals`, the store's answer to `booking`, in thousandths of units. They include the units of other
    /// gateways, and count unless their window has ended. `now` is the current period.
    pub(crate) fn booked(&self, booking: &Booking, totals: [u64; 2], now: Period) {
        let Some(pending) = self.pending.get() else { return };
        let mut attempt = pending.attempt();
        if let Some(period) = attempt.open.take() {
            attempt.counted.add(period, attempt.units);
        }
        let waiting = pending.waiting.used(now);
        for (at, (window, now)) in self.usage.0.iter().zip(now.windows()).enumerate() {
            let total = totals[at].saturating_add(waiting[at]);
            window.change(now, |now, used| if now == booking.windows[at] { used.max(total) } else { used });
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
