//! The price of a call. A caller who hangs up while waiting for a flight pays as if it had stayed.
//!
//! A call is booked once, when its [`Charge`] is dropped. The price depends on the answer, or on the result
//! of the flight that the caller left. A caller who leaves before it has an answer or a flight owes nothing,
//! and a flight that fails costs nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fetched::{Fetched, FlightResult};
use super::flight::FlightHandle;

/// The holder of an API key, who pays for calls.
pub trait Payer: Send + Sync {
    /// Books `units`.
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

/// A call's price and its payer.
struct Bill {
    payer: Arc<dyn Payer>,
    price: Price,
}

impl Bill {
    /// Books `debt`. The price of a flight is booked once its result is known.
    fn pay(self, debt: Debt) {
        match debt {
            Debt::Nothing => {}
            Debt::Hit => self.payer.book(self.price.hit),
            Debt::Miss => self.payer.book(self.price.miss),
            Debt::Flight(flight) => flight.leave(move |result| self.pay(Debt::of(result))),
        }
    }
}

/// The charge of one call. Dropping the charge books the call, even if the caller did not wait for the
/// answer.
pub struct Charge {
    bill: Option<Bill>,
    debt: Mutex<Debt>,
}

/// The price that a call owes at present.
pub(super) enum Debt {
    Nothing,
    Hit,
    Miss,
    /// The price of this flight's result, which may not be known yet.
    Flight(FlightHandle<FlightResult>),
}

impl Debt {
    /// Returns the price of a flight's result. A failed flight costs nothing.
    pub(super) fn of(result: &FlightResult) -> Self {
        match result {
            Ok(Fetched::New(..)) => Self::Miss,
            Ok(Fetched::KeptNewer(..) | Fetched::AlreadyFresh(..)) => Self::Hit,
            Err(_) => Self::Nothing,
        }
    }
}

impl Charge {
    /// Creates the charge of a call.
    pub fn new(payer: Arc<dyn Payer>, price: Price) -> Self {
        Self { bill: Some(Bill { payer, price }), debt: Mutex::new(Debt::Nothing) }
    }

    /// Creates the charge of a call that is not booked.
    pub fn free() -> Self {
        Self { bill: None, debt: Mutex::new(Debt::Nothing) }
    }

    /// Replaces the debt of the call.
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

    /// A payer that records the booked units.
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

    /// Returns the charge of a call, and its payer.
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

    /// Returns a flight result of each kind, with the units that a caller pays for it.
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
