//! The price of a call.
//!
//! The price is added to the usage of the caller's key once, when the call's [`Charge`] is dropped. The price
//! depends on the answer. If the caller hangs up while it waits for a fetch, the price depends on the result
//! of that fetch. A caller who leaves before a fetch begins owes nothing, and a fetch that fails costs
//! nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fetched::{Fetched, FlightResult};
use super::flight::FlightHandle;

/// The party that pays for calls, usually the owner of an API key.
pub trait Payer: Send + Sync {
    /// Adds `units` to the key's usage.
    fn book(&self, units: f64);
}

/// The price of a call in units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    /// The price of an answer from the cache.
    pub hit: f64,
    /// The price of an answer from a node.
    pub miss: f64,
}

/// A call's price, and the payer to whose usage the price is added.
struct Bill {
    payer: Arc<dyn Payer>,
    price: Price,
}

impl Bill {
    /// Adds the price of `debt` to the payer's usage. The price of a fetch is added once the result is known.
    fn pay(self, debt: Debt) {
        match debt {
            Debt::Nothing => {}
            Debt::Hit => self.payer.book(self.price.hit),
            Debt::Miss => self.payer.book(self.price.miss),
            Debt::Flight(flight) => flight.leave(move |result| self.pay(Debt::of(result))),
        }
    }
}

/// The price that the caller owes for one call. Dropping the charge adds the price to the usage of the
/// caller's key, even if the caller did not wait for the answer.
pub struct Charge {
    bill: Option<Bill>,
    debt: Mutex<Debt>,
}

/// The price that a call owes at present.
pub(super) enum Debt {
    Nothing,
    Hit,
    Miss,
    /// The price of the result of this fetch, which may not have ended yet.
    Flight(FlightHandle<FlightResult>),
}

impl Debt {
    /// Returns the price of a fetch with this result. A failed fetch costs nothing.
    pub(super) fn of(result: &FlightResult) -> Self {
        match result {
            Ok(Fetched::New(..)) => Self::Miss,
            Ok(Fetched::KeptNewer(..) | Fetched::AlreadyFresh(..)) => Self::Hit,
            Err(_) => Self::Nothing,
        }
    }
}

impl Charge {
    /// Creates a charge with nothing to pay yet. The price is added to the usage of `payer`.
    pub fn new(payer: Arc<dyn Payer>, price: Price) -> Self {
        Self { bill: Some(Bill { payer, price }), debt: Mutex::new(Debt::Nothing) }
    }

    /// Creates the charge of a call that costs nothing.
    pub fn free() -> Self {
        Self { bill: None, debt: Mutex::new(Debt::Nothing) }
    }

    /// Sets the price that the call owes, and replaces the price that was set before.
    pub(super) fn owe(&self, debt: Debt) {
        *self.debt() = debt;
    }

    fn debt(&self) -> MutexGuard<'_, Debt> {
        self.debt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Some(bill) = self.bill.take() else { return };
        let debt = std::mem::replace(&mut *self.debt(), Debt::Nothing);
        bill.pay(debt);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::time::Instant;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::cache::class::Class;
    use crate::cache::entry::{CompressedForms, Entry, EntryBody, EntryMeta, Payload, TextParts};
    use crate::cache::flight::Flights;
    use crate::error::Error;

    const PRICE: Price = Price { hit: 0.5, miss: 2.0 };

    /// A payer that records the units added to its usage.
    #[derive(Default)]
    struct TestPayer(Mutex<Vec<f64>>);

    impl Payer for TestPayer {
        fn book(&self, units: f64) {
            self.0.lock().unwrap().push(units);
        }
    }

    impl TestPayer {
        #[track_caller]
        fn has_paid(&self, expected: &[f64], case: &str) {
            assert_eq!(*self.0.lock().unwrap(), expected, "{case}");
        }
    }

    /// Returns a charge, and the payer to whose usage the price is added.
    fn charge() -> (Charge, Arc<TestPayer>) {
        let payer = Arc::<TestPayer>::default();
        (Charge::new(Arc::clone(&payer) as Arc<dyn Payer>, PRICE), payer)
    }

    fn entry() -> Arc<Entry> {
        let meta = EntryMeta {
            slot: 1,
            sent_at: Instant::now(),
            class: Class::Samples,
            derived: false,
            carried: false,
        };
        let text = TextParts::One(Bytes::from_static(b"[]"));
        let body = EntryBody::Verbatim(Payload::Result(text));
        Arc::new(Entry { body, meta, stamp: None, compressed: CompressedForms::default() })
    }

    /// Returns a result of each kind that a fetch may have, with the units that a caller pays for it.
    fn results() -> [(FlightResult, &'static [f64]); 4] {
        [
            (Ok(Fetched::New(entry(), true)), &[PRICE.miss]),
            (Ok(Fetched::KeptNewer(entry(), None)), &[PRICE.hit]),
            (Ok(Fetched::AlreadyFresh(entry(), None)), &[PRICE.hit]),
            (Err(Error::Overloaded), &[]),
        ]
    }

    #[tokio::test]
    async fn caller_who_waits_is_booked_once() {
        for (result, cost) in results() {
            let (charge, payer) = charge();
            let shared = result.clone();
            let flight = Flights::<u8, _>::new(TaskTracker::new()).start_unshared(async { shared });
            charge.owe(Debt::Flight(flight.clone()));
            charge.owe(Debt::of(&flight.result().await.unwrap()));
            payer.has_paid(&[], "a call is booked when it ends");
            drop(charge);
            payer.has_paid(cost, &format!("{result:?}"));
        }
    }

    #[tokio::test]
    async fn caller_who_leaves_is_booked_once() {
        for (result, cost) in results() {
            let tasks = TaskTracker::new();
            let flights = Flights::<u8, _>::new(tasks.clone());
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let flight = flights.start_unshared(async { receiver.await.unwrap() });
            let [(before, early_payer), (after, late_payer)] = [charge(), charge()];
            before.owe(Debt::Flight(flight.clone()));
            drop(before);
            early_payer.has_paid(&[], "the price is not known yet");
            after.owe(Debt::Flight(flight.clone()));
            sender.send(result.clone()).unwrap();
            tasks.close();
            tasks.wait().await;
            early_payer.has_paid(cost, &format!("left before the result: {result:?}"));
            drop(after);
            late_payer.has_paid(cost, &format!("left after the result: {result:?}"));
        }
    }

    #[test]
    fn last_debt_of_a_call_is_booked() {
        let cases: [(Vec<Debt>, &[f64]); 4] = [
            (vec![], &[]),
            (vec![Debt::Hit], &[PRICE.hit]),
            (vec![Debt::Hit, Debt::Miss], &[PRICE.miss]),
            (vec![Debt::Hit, Debt::Nothing], &[]),
        ];
        for (number, (debts, cost)) in cases.into_iter().enumerate() {
            let (charge, payer) = charge();
            for debt in debts {
                charge.owe(debt);
            }
            drop(charge);
            payer.has_paid(cost, &format!("case {number}"));
        }
    }
}
