//! The usage of one key: what its quotas count, what the usage file does not have yet, and what the shared store has not
//! counted yet. One lock guards all of it, so that these agree at any time.
//!
//! A call reserves its highest price before anything is asked for it, because its price is known only afterwards. So
//! calls in flight exceed no quota. Reserved units belong to no day or month: they become used, or are given back, in
//! the window in which the call ends.
//!
//! Units are counted in thousandths, because a hit may cost a fraction of a unit.

mod ledger;

use parking_lot::{Mutex, MutexGuard};

use super::clock::{Period, WindowNumber};
use super::thousandths::{Thousandths, thousandths, units};
use super::usage_file::UsageLine;
use crate::redis_store::limits::{Booker, Booking, Totals};
pub(crate) use ledger::Ledger;
pub use ledger::UsageError;

/// The number of days, and of months, of which the units are known. A clock that jumps and returns finds what was used
/// before.
const KEPT: usize = 3;

/// The units of the days, or of the months, that were counted last. The newest of them is first.
#[derive(Debug, Default)]
struct Windows([(WindowNumber, u64); KEPT]);

impl Windows {
    /// Returns the units of a window. While the clock was never set, that is the last window.
    fn get(&self, number: WindowNumber) -> u64 {
        let [(first, units), ..] = self.0;
        if number == 0 || first == 0 {
            return units;
        }
        self.0.iter().find(|(known, _)| *known == number).map_or(0, |(_, units)| *units)
    }

    /// Returns the units of a window to change them. What was used before the clock was set counts in the first window after
    /// it.
    fn of(&mut self, number: WindowNumber) -> &mut u64 {
        if number != 0 && self.0[0].0 == 0 {
            self.0[0].0 = number;
        }
        if number != 0 && self.0[0].0 != number {
            let at = self.0.iter().position(|(known, _)| *known == number).unwrap_or(KEPT - 1);
            if self.0[at].0 != number {
                self.0[at] = (number, 0);
            }
            self.0[..=at].rotate_right(1);
        }
        &mut self.0[0].1
    }
}

#[derive(Debug, Default)]
struct Units([Windows; 2]);

impl Units {
    fn get(&self, period: Period) -> [u64; 2] {
        let windows = period.windows();
        [0, 1].map(|at| self.0[at].get(windows[at]))
    }

    fn add(&mut self, period: Period, thousandths: u64) {
        self.change(period.windows(), |_, units| units.saturating_add(thousandths));
    }

    fn set(&mut self, period: Period, thousandths: [u64; 2]) {
        self.change(period.windows(), |at, _| thousandths[at]);
    }

    /// Changes the units of a day and a month. `next` gets 0 for the day or 1 for the month, and the units so far.
    fn change(&mut self, windows: [WindowNumber; 2], next: impl Fn(usize, u64) -> u64) {
        for (at, number) in windows.into_iter().enumerate() {
            let units = self.0[at].of(number);
            *units = next(at, *units);
        }
    }
}

/// The units of a key that the shared store has not counted yet. Units of a day or month that has ended are forgotten.
#[derive(Debug, Default)]
struct Sharing {
    waiting: Units,
    /// The request that the store has not answered. It is repeated unchanged, so that it counts once.
    open: Option<Booking>,
    /// True if the next request must read the totals although no units wait.
    wants_totals: bool,
    /// The marks of the totals of the day and the month in the store, which change when an operator sets them.
    marks: [u32; 2],
}

/// The calls of a key on one day that the usage file does not have.
#[derive(Debug)]
struct UnsavedDay {
    day: WindowNumber,
    calls: Vec<(&'static str, u64, u64)>,
}

#[derive(Debug, Default)]
struct Record {
    /// The units that count for the quotas, of all replicas.
    used: Units,
    reserved: u64,
    /// `None` if no file keeps the usage.
    unsaved: Option<Vec<UnsavedDay>>,
    /// `None` without a shared store.
    sharing: Option<Box<Sharing>>,
}

impl Record {
    /// Returns the part of a day that the usage file does not have. `None` if no file keeps the usage.
    fn unsaved_of(&mut self, day: WindowNumber) -> Option<&mut UnsavedDay> {
        let days = self.unsaved.as_mut()?;
        let at = days.iter().position(|known| known.day == day).unwrap_or_else(|| {
            days.push(UnsavedDay { day, calls: Vec::new() });
            days.len() - 1
        });
        days.get_mut(at)
    }
}

/// The usage of one key or client address. A [`Ledger`] has those of all keys.
#[derive(Debug, Default)]
pub(crate) struct Used(Mutex<Record>);

/// What has been used for calls of a method, or for what follows from them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use {
    pub(crate) method: &'static str,
    pub(crate) calls: u64,
    pub(crate) units: f64,
    /// The units that the call had reserved, which are given back.
    pub(crate) reserved: f64,
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
    fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock()
    }

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
        let mut record = self.lock();
        let (price, used) = (thousandths(units), record.used.get(period));
        let exceeds = |at: usize, others: u64| {
            let units = used[at].saturating_add(others).saturating_add(price);
            quotas[at].is_some_and(|quota| units > quota.saturating_mul(1000))
        };
        if let Some(at) = [1, 0].into_iter().find(|at| exceeds(*at, record.reserved)) {
            return Err(OverQuota { is_monthly: at == 1, may_pass_soon: !exceeds(at, 0) });
        }
        record.reserved = record.reserved.saturating_add(price);
        Ok(())
    }

    /// Returns the quota that is used up: that of the month, if it is both. `None` if something is left of each.
    pub(crate) fn used_up(&self, period: Period, quotas: [Option<u64>; 2]) -> Option<OverQuota> {
        let used = self.lock().used.get(period);
        let is_used_up =
            |at: &usize| quotas[*at].is_some_and(|quota| used[*at] >= quota.saturating_mul(1000));
        let at = [1, 0].into_iter().find(is_used_up)?;
        Some(OverQuota { is_monthly: at == 1, may_pass_soon: false })
    }

    /// Gives back what a call had reserved that is refused after all.
    pub(crate) fn release(&self, units: f64) {
        let mut record = self.lock();
        record.reserved = record.reserved.saturating_sub(thousandths(units));
    }

    /// Adds what was used in `period`.
    pub(crate) fn book(&self, period: Period, what: Use) {
        let (units, mut record) = (thousandths(what.units), self.lock());
        record.reserved = record.reserved.saturating_sub(thousandths(what.reserved));
        if units > 0 {
            record.used.add(period, units);
            if let Some(sharing) = &mut record.sharing {
                sharing.waiting.add(period, units);
            }
        }
        if let Some(UnsavedDay { calls, .. }) = record.unsaved_of(period.day) {
            match calls.iter_mut().find(|(method, ..)| *method == what.method) {
                Some((_, number, sum)) => (*number, *sum) = (*number + what.calls, sum.saturating_add(units)),
                None => calls.push((what.method, what.calls, units)),
            }
        }
    }

    /// Sets the units of the day and the month in `period`, also in the shared store. `None` leaves one as it is.
    pub(crate) fn set(&self, period: Period, units: [Option<f64>; 2], booker: &Booker) {
        let mut record = self.lock();
        let before = record.used.get(period);
        let set = [0, 1].map(|at| units[at].map_or(before[at], thousandths));
        record.used.set(period, set);
        record.unsaved_of(period.day);
        if let Some(sharing) = &mut record.sharing {
            sharing.waiting.set(period, [0; 2]);
            sharing.open = Some(Booking {
                windows: period.windows(),
                units: [0; 2],
                known: set,
                marks: [booker.new_mark(); 2],
                sets: true,
                who: booker.id,
                number: booker.next_number(),
            });
        }
    }

    /// Returns the next request to the shared store: the last request if it is unanswered, otherwise a new request with
    /// all waiting units. `None` if there is nothing to send.
    fn booking(&self, period: Period, booker: &Booker) -> Option<Booking> {
        let mut record = self.lock();
        let used = record.used.get(period);
        let sharing = record.sharing.as_mut()?;
        if sharing.open.is_none() {
            let units = sharing.waiting.get(period);
            if units == [0; 2] && !std::mem::take(&mut sharing.wants_totals) {
                return None;
            }
            sharing.waiting.set(period, [0; 2]);
            sharing.open = Some(Booking {
                windows: period.windows(),
                units,
                // The totals that the store should already have. A store that has lost its data takes them from here.
                known: [0, 1].map(|at| used[at].saturating_sub(units[at])),
                marks: sharing.marks,
                sets: false,
                who: booker.id,
                number: booker.next_number(),
            });
        }
        sharing.open
    }

    /// Applies `totals`, the store's answer to `booking`. They include the units of other gateways.
    pub(crate) fn booked(&self, booking: &Booking, totals: Totals) {
        let mut record = self.lock();
        let Some(sharing) = &mut record.sharing else { return };
        if sharing.open.is_none_or(|open| open.number != booking.number) {
            // An operator has set the usage meanwhile.
            return;
        }
        sharing.open = None;
        let is_set = [0, 1].map(|at| sharing.marks[at] != totals.marks[at]);
        sharing.marks = totals.marks;
        let waiting = [0, 1].map(|at| sharing.waiting.0[at].get(booking.windows[at]));
        let total = [0, 1].map(|at| totals.units[at].saturating_add(waiting[at]));
        record
            .used
            .change(booking.windows, |at, used| if is_set[at] { total[at] } else { total[at].max(used) });
        if booking.units != [0; 2] {
            record.unsaved_of(booking.windows[0]);
        }
    }

    /// Makes the next request to the shared store read this key's totals over all gateways.
    pub(crate) fn request_totals(&self) {
        if let Some(sharing) = &mut self.lock().sharing {
            sharing.wants_totals = true;
        }
    }

    /// Appends a line to `out` for each day of which the usage file lacks something. `today` is the day of what was used
    /// before the clock was set.
    fn write_unsaved(&self, id: &str, name: &str, today: WindowNumber, out: &mut Vec<u8>) {
        let mut record = self.lock();
        let Some(unsaved) = &mut record.unsaved else { return };
        for UnsavedDay { day, calls } in std::mem::take(unsaved) {
            let date = Period::date_of(if day == 0 { today } else { day });
            let used = record.used.get(Period::of_date(date)).map(Thousandths);
            let mut line = UsageLine::new(date, id, name, used);
            for (method, number, units) in calls {
                line.add(method.to_owned(), number, Thousandths(units));
            }
            line.write(out);
        }
    }

    /// Returns true if nothing was used in the day and month of `period`, and the file and the shared store have all.
    fn is_over(&self, period: Period) -> bool {
        let record = self.lock();
        let is_booked = |sharing: &Sharing| sharing.open.is_none() && sharing.waiting.get(period) == [0; 2];
        record.used.get(period) == [0; 2]
            && record.sharing.as_deref().is_none_or(is_booked)
            && record.unsaved.as_ref().is_none_or(Vec::is_empty)
    }

    pub(crate) fn reserved(&self) -> f64 {
        units(self.lock().reserved)
    }

    pub(crate) fn units(&self, period: Period) -> [f64; 2] {
        self.lock().used.get(period).map(units)
    }
}

#[cfg(test)]
mod tests;
