//! What a call owes while its answer is on the way, so that a caller who hangs up pays as if it had stayed.
//!
//! A call is booked once, when its [`Charge`] is dropped: by the answer, or by what the flight brings that its caller has
//! left. Nothing is owed before a flight is boarded, and nothing for a flight that fails.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::fetched::{Fetched, Landing};
use super::flight::FlightHandle;

/// Books a call, as a hit or as a miss.
type Book = Box<dyn FnOnce(bool) + Send + Sync>;

/// Books one call, whether or not its caller waits for the answer.
pub struct Charge {
    book: Option<Book>,
    owed: Mutex<Owed>,
}

/// What a call owes.
enum Owed {
    Nothing,
    Hit,
    Miss,
    /// Whatever this flight's landing costs.
    Flight(FlightHandle<Landing>),
}

impl Charge {
    /// A call that `book` books: it is told whether the answer is a hit.
    pub fn new(book: impl FnOnce(bool) + Send + Sync + 'static) -> Self {
        Self { book: Some(Box::new(book)), owed: Mutex::new(Owed::Nothing) }
    }

    /// A call that nobody pays for.
    pub fn nobody() -> Self {
        Self { book: None, owed: Mutex::new(Owed::Nothing) }
    }

    /// The call has an answer.
    pub(super) fn answered(&self, hit: bool) {
        *self.owed() = if hit { Owed::Hit } else { Owed::Miss };
    }

    /// The call waits for a flight.
    pub(super) fn boarded(&self, seat: &FlightHandle<Landing>) {
        *self.owed() = Owed::Flight(seat.clone());
    }

    /// The flight has landed: from now on its caller owes what it brought.
    pub(super) fn landed(&self, landing: &Landing) {
        *self.owed() = landing.as_ref().map_or(Owed::Nothing, owed);
    }

    /// The call has come to nothing.
    pub(super) fn failed(&self) {
        *self.owed() = Owed::Nothing;
    }

    fn owed(&self) -> MutexGuard<'_, Owed> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one who waited for this owes.
fn owed(landed: &Fetched) -> Owed {
    match landed {
        Fetched::New(..) => Owed::Miss,
        Fetched::KeptNewer(..) | Fetched::AlreadyFresh(..) => Owed::Hit,
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Some(book) = self.book.take() else { return };
        match std::mem::replace(&mut *self.owed(), Owed::Nothing) {
            Owed::Nothing => {}
            Owed::Hit => book(true),
            Owed::Miss => book(false),
            Owed::Flight(seat) => seat.leave(move |landing| {
                if let Ok(landed) = landing {
                    book(matches!(owed(landed), Owed::Hit));
                }
            }),
        }
    }
}
