//! The places for scans, that is, for calls for which nodes walk over many accounts.
//!
//! There are few places, and a scan may take a minute. So one caller gets at most all places but one. In the queue of all
//! callers it has one scan at a time, and its further ones wait behind that, so callers get their places in turn.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::lock;
use crate::fair::CallerId;

/// The places of all scans, and those that each caller may have.
pub(super) struct Scans {
    places: Arc<Semaphore>,
    of_one: usize,
    callers: Mutex<HashMap<CallerId, Weak<OfCaller>>>,
}

/// The place of one scan. Dropping it gives the place back.
pub(super) struct ScanPlace {
    _place: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
    _of: Arc<OfCaller>,
}

struct OfCaller {
    places: Arc<Semaphore>,
    /// Locked by the caller's scan that stands in the queue of all callers.
    queue: tokio::sync::Mutex<()>,
}

impl Scans {
    pub(super) fn new(places: usize) -> Self {
        let of_one = places.saturating_sub(1).max(1);
        Self { places: Arc::new(Semaphore::new(places)), of_one, callers: Mutex::default() }
    }

    /// Waits for a place. `None` never comes, because the semaphores are never closed.
    pub(super) async fn place(&self, caller: CallerId) -> Option<ScanPlace> {
        let of = self.of(caller);
        let own = Arc::clone(&of.places).acquire_owned().await.ok()?;
        let turn = of.queue.lock().await;
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        drop(turn);
        Some(ScanPlace { _place: place, _own: own, _of: of })
    }

    /// Returns what one caller has. Callers that neither have nor want a place are forgotten.
    fn of(&self, caller: CallerId) -> Arc<OfCaller> {
        let mut callers = lock(&self.callers);
        callers.retain(|_, own| own.strong_count() > 0);
        if let Some(own) = callers.get(&caller).and_then(Weak::upgrade) {
            return own;
        }
        let places = Arc::new(Semaphore::new(self.of_one));
        let own = Arc::new(OfCaller { places, queue: tokio::sync::Mutex::default() });
        callers.insert(caller, Arc::downgrade(&own));
        own
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn callers_get_places_in_turn() {
        let scans = Scans::new(4);
        let [one, two, three] = [1, 2, 3].map(CallerId::numbered);
        let place = |caller| scans.place(caller).now_or_never().flatten();
        let mut of_one: Vec<_> = (0..5).map_while(|_| place(one)).collect();
        assert_eq!(of_one.len(), 3, "one caller gets all places but one");
        let _of_two = place(two).unwrap();
        let mut waiting = [two, two, three, one].map(|caller| Box::pin(scans.place(caller)));
        assert!(waiting.iter_mut().all(|place| place.now_or_never().is_none()));
        let [second, third, of_three, fourth] = &mut waiting;
        of_one.pop();
        let _second = second.now_or_never().flatten().unwrap();
        of_one.pop();
        assert!(third.now_or_never().is_none(), "the caller has just had its turn");
        let _of_three = of_three.now_or_never().flatten().unwrap();
        assert!(fourth.now_or_never().is_none());
    }

    #[test]
    fn a_caller_that_leaves_the_queue_holds_nobody_up() {
        let scans = Scans::new(2);
        let [one, two, three] = [1, 2, 3].map(CallerId::numbered);
        let place = |caller| scans.place(caller).now_or_never().flatten();
        let held = [place(one), place(two)];
        assert!(held.iter().all(Option::is_some) && place(three).is_none());
        drop(held);
        let _place = place(three).unwrap();
        assert_eq!(lock(&scans.callers).len(), 1, "callers without a place are forgotten");
    }
}
