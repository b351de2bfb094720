//! Permits for requests in flight. `server.max_in_flight` limits their number.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::Front;
use super::body_parts::BodyParts;
use super::outgoing::Reservation;
use crate::gateway::{Held, Principal};

/// A request's permit to be in flight. There are `server.max_in_flight` such permits. Dropping the value frees the
/// permit, unless a call that outlives the request shares it.
pub(super) struct InFlightPermit {
    /// The bytes reserved for the request's long answers. This field is declared first, so that the bytes are released
    /// before the permit.
    reserved: Mutex<Vec<Reservation>>,
    parts: Mutex<Option<PermitParts>>,
    /// The content of `parts`, moved here when a call first shares the permit.
    shared: OnceLock<SharedPermit>,
}

/// One request, counted towards `server.max_in_flight` and towards its key's share of this limit.
pub(super) type PermitParts = (Counted, Held);

/// A permit that a request shares with calls that continue after the caller has disconnected.
pub(super) type SharedPermit = Arc<Option<PermitParts>>;

impl InFlightPermit {
    /// Takes a permit for a request of the caller `principal`. `None` if no permit is free or the caller already holds
    /// its share.
    pub(super) fn take(front: &Front, principal: &Principal) -> Option<Self> {
        let before = front.in_flight.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(&front.in_flight));
        let held = principal.hold(front.config.server.max_in_flight.saturating_sub(before))?;
        let parts = Mutex::new(Some((counted, held)));
        Some(Self { reserved: Mutex::default(), parts, shared: OnceLock::new() })
    }

    /// Shares the permit with a call that may outlive the request. The permit is freed once both the request and the
    /// call have dropped it.
    pub(super) fn share(&self) -> SharedPermit {
        let take = || Arc::new(self.parts.lock().unwrap_or_else(PoisonError::into_inner).take());
        Arc::clone(self.shared.get_or_init(take))
    }

    /// Reserves the bytes of `body`, and `more` bytes for earlier answers of the request. Returns false, and reserves
    /// nothing, if the bytes exceed the budget for unsent answers or the share of `principal`, the caller.
    pub(super) fn reserve(
        &self,
        front: &Front,
        principal: &Principal,
        body: &BodyParts,
        more: usize,
    ) -> bool {
        let reservation = Reservation::within(&front.outgoing, principal, body, more);
        let fits = reservation.is_some();
        self.reserved().extend(reservation);
        fits
    }

    /// Replaces the reservations for the request's answers by one for `body`, the compressed form of these answers.
    pub(super) fn reserve_instead(&self, front: &Front, principal: &Principal, body: &BodyParts) {
        let mut reserved = self.reserved();
        if !reserved.is_empty() {
            *reserved = Reservation::anyway(&front.outgoing, principal, body).into_iter().collect();
        }
    }

    fn reserved(&self) -> MutexGuard<'_, Vec<Reservation>> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request in flight, counted until this value is dropped.
///
/// One counter serves all cores, because the limit is exact. The value holds an `Arc` of the counter instead of an
/// `Arc` of [`Front`]. The counter and the reference count of its `Arc` are side by side in memory. The reference
/// count of [`Front`] would be a second place in memory for which all cores contend.
pub(super) struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
