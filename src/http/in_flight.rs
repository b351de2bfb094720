//! The permits of the requests in flight, whose number `server.max_in_flight` bounds.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::Front;
use super::outgoing::Load;
use super::pieces::Pieces;
use crate::gateway::{Principal, SharePermit};

/// The permit of a request that is being served, until it is dropped.
pub(super) struct InFlightPermit {
    /// The bytes of a long answer, given back before the permit is.
    load: OnceLock<Box<Load>>,
    taken: Mutex<Option<Taken>>,
    /// The value of `taken`, once calls that may outlive the request hold it, too.
    lasting: OnceLock<Lasting>,
}

/// The request's part of all that may be in flight, and of its caller's share.
pub(super) struct Taken {
    _counted: Counted,
    _held: SharePermit,
}

/// A request's permit for a call that goes on when its caller has gone.
pub(super) type Lasting = Arc<Option<Taken>>;

impl InFlightPermit {
    /// Takes a permit, if one is free and `principal` may have it.
    pub(super) fn take(front: &Front, principal: &Principal) -> Option<Self> {
        let (counted, taken) = Counted::add(&front.in_flight);
        let held = principal.hold(front.config.server.max_in_flight.saturating_sub(taken))?;
        let taken = Mutex::new(Some(Taken { _counted: counted, _held: held }));
        Some(Self { load: OnceLock::new(), taken, lasting: OnceLock::new() })
    }

    /// Shares the permit with a call that may outlive the request. Both hold it.
    pub(super) fn lasting(&self) -> Lasting {
        let take = || Arc::new(self.taken.lock().unwrap_or_else(PoisonError::into_inner).take());
        Arc::clone(self.lasting.get_or_init(take))
    }

    /// Returns the request's part of the budget for answers.
    pub(super) fn load(&self, front: &Front) -> &Load {
        self.load.get_or_init(|| Box::new(Load::new(&front.outgoing)))
    }

    /// Holds the bytes of `body` instead of those that its answers needed before.
    pub(super) fn holds_instead(&self, principal: &Principal, body: &Pieces) {
        if let Some(load) = self.load.get() {
            load.replace(principal, body);
        }
    }
}

/// One of the requests in flight. Their number is one for all cores, as its bound is. A permit points at the number itself,
/// so that a request writes nothing else that is shared.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// Adds a request, and returns how many there were before.
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
