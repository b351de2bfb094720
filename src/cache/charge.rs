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
