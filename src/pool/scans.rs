//! The places for scans, that is, for calls for which nodes walk over many accounts.
//!
//! There are few places, and a scan may take a minute. So one caller gets at most all places but one, and its further
//! scans wait apart from the queue of all callers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::lock;
use crate::fair::CallerId;

/// The places of all scans, and those that each caller may have.
pub(super) struct Scans {
    places: Arc<Semaphore>,
    of_one: usize,
    callers: Mutex<HashMap<CallerId, Weak<Semaphore>>>,
}

/// The place of one scan. Dropping it gives the place back.
pub(super) struct ScanPlace {
    _place: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
}

impl Scans {
    pub(super) fn new(places: usize) -> Self {
        let of_one = places.saturating_sub(1).max(1);
        Self { places: Arc::new(Semaphore::new(places)), of_one, callers: Mutex::default() }
    }

    /// Waits for a place. `None` never comes, because the semaphores are never closed.
    pub(super) async fn place(&self, caller: CallerId) -> Option<ScanPlace> {
        let own = self.of(caller).acquire_owned().await.ok()?;
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        Some(ScanPlace { _place: place, _own: own })
    }

    /// Returns the places of one caller. Callers that neither have nor want one are forgotten.
    fn of(&self, caller: CallerId) -> Arc<Semaphore> {
        let mut callers = lock(&self.callers);
        callers.retain(|_, own| own.strong_count() > 0);
        if let Some(own) = callers.get(&caller).and_then(Weak::upgrade) {
            return own;
        }
        let own = Arc::new(Semaphore::new(self.of_one));
        callers.insert(caller, Arc::downgrade(&own));
        own
    }
}
