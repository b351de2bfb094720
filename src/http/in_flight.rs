//! Permits for requests in flight. `server.max_in_flight` limits their number.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::Front;
use super::outgoing::RequestReservation;
use super::pieces::Pieces;
use crate::gateway::{Principal, SharePermit};

/// The permit of a request. Dropping it frees the permit, unless a call still shares it.
pub(super) struct InFlightPermit {
    /// The bytes reserved for long answers. Declared first, so that they are released before the permit.
    reservation: OnceLock<Box<RequestReservation>>,
    parts: Mutex<Option<PermitParts>>,
    /// The content of `parts`, moved here when a call first shares the permit.
    shared: OnceLock<SharedPermit>,
}

/// A request's count towards the limit, and towards its key's share of the limit.
pub(super) struct PermitParts {
    _counted: Counted,
    _held: SharePermit,
}

/// A permit that a request shares with calls that continue after the caller has disconnected.
pub(super) type SharedPermit = Arc<Option<PermitParts>>;

impl InFlightPermit {
    /// Takes a permit for a request of `principal`. `None` if no permit is free or `principal` already holds its share.
    pub(super) fn take(front: &Front, principal: &Principal) -> Option<Self> {
        let (counted, before) = Counted::add(&front.in_flight);
        let held = principal.hold(front.config.server.max_in_flight.saturating_sub(before))?;
        let parts = Mutex::new(Some(PermitParts { _counted: counted, _held: held }));
        Some(Self { reservation: OnceLock::new(), parts, shared: OnceLock::new() })
    }

    /// Shares the permit with a call that may outlive the request. The permit is freed when both have dropped it.
    pub(super) fn share(&self) -> SharedPermit {
        let take = || Arc::new(self.parts.lock().unwrap_or_else(PoisonError::into_inner).take());
        Arc::clone(self.shared.get_or_init(take))
    }

    /// Returns the request's reservation of outgoing bytes, which is empty at first.
    pub(super) fn reservation(&self, front: &Front) -> &RequestReservation {
        self.reservation.get_or_init(|| Box::new(RequestReservation::new(&front.outgoing)))
    }

    /// Replaces the bytes reserved for the answers by those of `body`, their compressed form.
    pub(super) fn replace_reservation(&self, principal: &Principal, body: &Pieces) {
        if let Some(reservation) = self.reservation.get() {
            reservation.replace(principal, body);
        }
    }
}

/// A count of one towards the requests in flight, until it is dropped.
///
/// One counter serves all cores, because the limit is exact. The permit holds the counter's own `Arc`. With the `Arc`
/// of [`Front`], all cores would also contend for a reference count.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// Adds a request. Returns its count, and the number of other requests in flight.
    fn add(in_flight: &Arc<AtomicUsize>) -> (Self, usize) {
        let before = in_flight.fetch_add(1, Ordering::Relaxed);
        (Self(Arc::clone(in_flight)), before)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
