//! The price of a call. A caller who hangs up pays as if it had stayed.
//!
//! A call is booked once, when its [`Charge`] is dropped: by its answer, or by the result of the flight that
//! its caller left. A call that joined no flight owes nothing, and a flight that fails costs nothing.

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
    fn book(&self, is_hit: bool) {
        self.payer.book(if is_hit { self.price.hit } else { self.price.miss });
    }
}

/// Books one call when it is dropped, even if the caller did not wait for the answer.
pub struct Charge {
    bill: Option<Bill>,
    owed: Mutex<Owed>,
}

/// The present debt of a call.
enum Owed {
    Nothing,
    Hit,
    Miss,
    /// The price that the result of this flight has.
    Flight(FlightHandle<FlightResult>),
}

impl Charge {
    /// Creates the charge of a call.
    pub fn new(payer: Arc<dyn Payer>, price: Price) -> Self {
        Self { bill: Some(Bill { payer, price }), owed: Mutex::new(Owed::Nothing) }
    }

    /// Creates the charge of a call that is not booked.
    pub fn free() -> Self {
        Self { bill: None, owed: Mutex::new(Owed::Nothing) }
    }

    /// Notes that the call has an answer.
    pub(super) fn answered(&self, hit: bool) {
        *self.owed() = if hit { Owed::Hit } else { Owed::Miss };
    }

    /// Notes that the call waits for a flight.
    pub(super) fn joined(&self, flight: &FlightHandle<FlightResult>) {
        *self.owed() = Owed::Flight(flight.clone());
    }

    /// Notes the result of the flight. From now on the caller owes its price.
    pub(super) fn landed(&self, landing: &FlightResult) {
        *self.owed() = landing.as_ref().map_or(Owed::Nothing, owed);
    }

    /// Notes that the call has failed.
    pub(super) fn failed(&self) {
        *self.owed() = Owed::Nothing;
    }

    fn owed(&self) -> MutexGuard<'_, Owed> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the price of a flight's result.
fn owed(landed: &Fetched) -> Owed {
    match landed {
        Fetched::New(..) => Owed::Miss,
        Fetched::KeptNewer(..) | Fetched::AlreadyFresh(..) => Owed::Hit,
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Some(bill) = self.bill.take() else { return };
        match std::mem::replace(&mut *self.owed(), Owed::Nothing) {
            Owed::Nothing => {}
            Owed::Hit => bill.book(true),
            Owed::Miss => bill.book(false),
            Owed::Flight(flight) => flight.leave(move |landing| {
                if let Ok(landed) = landing {
                    bill.book(matches!(owed(landed), Owed::Hit));
                }
            }),
        }
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
        Arc::new(Entry { body, meta, follow: None, coded: CompressedForms::default() })
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
            let landing = result.clone();
            let flight = Flights::<u8, _>::new(TaskTracker::new()).alone(async { landing });
            charge.joined(&flight);
            charge.landed(&flight.landed().await.unwrap());
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
            let (land, lands) = tokio::sync::oneshot::channel();
            let flight = flights.alone(async { lands.await.unwrap() });
            let [(before, early_payer), (after, late_payer)] = [charge(), charge()];
            before.joined(&flight);
            drop(before);
            early_payer.has_paid(&[], "the price is not known yet");
            after.joined(&flight);
            land.send(result.clone()).unwrap();
            tasks.close();
            tasks.wait().await;
            early_payer.has_paid(cost, &format!("left before the landing: {result:?}"));
            drop(after);
            late_payer.has_paid(cost, &format!("left after the landing: {result:?}"));
        }
    }

    #[test]
    fn last_outcome_of_a_call_is_booked() {
        for (answered, has_failed, cost) in [
            (None, false, &[][..]),
            (Some(true), false, &[PRICE.hit]),
            (Some(false), false, &[PRICE.miss]),
            (Some(true), true, &[]),
        ] {
            let (charge, payer) = charge();
            if let Some(is_hit) = answered {
                charge.answered(is_hit);
            }
            if has_failed {
                charge.failed();
            }
            drop(charge);
            payer.has_paid(cost, &format!("{answered:?}"));
        }
    }
}
