//! What requests in flight may hold: permits, which `server.max_in_flight` limits, and the bytes of answers that are not
//! sent yet, which `server.max_outgoing` limits.
//!
//! An answer stays in memory until it is written or its connection ends. Without a budget, clients that send requests
//! and read no answers could exhaust the memory.
//!
//! Answers may contain the same long piece of cached text. The piece is in memory once, so the budget counts it
//! once. Each key may hold a share of the budget: at most eight times as many bytes as are left. Towards the key's
//! share, a piece counts once for each of the key's answers that contain it. So the answers of other keys do not
//! change the count.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};

use super::Front;
use super::reply::{BodyParts, JOINED_BYTES};
use crate::fair::{ByteBudget, Held};
use crate::gateway::Principal;

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
        let held = principal.hold(front.config.now().server.max_in_flight.saturating_sub(before))?;
        let parts = Mutex::new(Some((counted, held)));
        Some(Self { reserved: Mutex::default(), parts, shared: OnceLock::new() })
    }

    /// Shares the permit with a call that may outlive the request. The permit is freed once both the request and the
    /// call have dropped it.
    pub(super) fn share(&self) -> SharedPermit {
        let take = || Arc::new(self.parts.lock().take());
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
        self.reserved.lock()
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

/// The length of a request's body, and the total length of its answers, in bytes, up to which nothing is reserved.
/// `server.max_in_flight` bounds the number of such requests.
pub(super) const FREE_BYTES: usize = 4 * 1024;
/// The memory of one entry in a list of pieces, in bytes. It includes the list's spare capacity.
const PIECE_BYTES: usize = 2 * size_of::<Bytes>();
/// The memory address of a piece, and its length in bytes.
type PieceAddress = (usize, usize);

/// The budget of the process for the bytes of unsent answers, and the bytes reserved from it.
pub struct Outgoing {
    budget: ByteBudget,
    /// The number of unsent answers that contain each long piece of text. The address identifies a piece, because
    /// memory is not reused while an answer refers to it.
    shared: Mutex<HashMap<PieceAddress, usize>>,
}

impl Outgoing {
    /// Creates a budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { budget: ByteBudget::new(limit), shared: Mutex::default() })
    }

    /// Returns the number of bytes that unsent answers have reserved.
    pub fn used(&self) -> usize {
        self.budget.used()
    }

    /// Counts one more answer that contains `piece`. The first such answer reserves the piece's bytes. Returns false,
    /// and counts nothing, if the reserved bytes would exceed `limit`.
    fn share(&self, piece: &Bytes, limit: usize) -> bool {
        let address = address_of(piece);
        let mut shared = self.shared.lock();
        if let Some(answers) = shared.get_mut(&address) {
            *answers += 1;
            return true;
        }
        let fits = self.budget.take(piece.len(), limit);
        if fits {
            shared.insert(address, 1);
        }
        fits
    }

    /// Counts one answer less that contains `piece`. The last such answer releases the piece's bytes.
    fn unshare(&self, piece: &Bytes) {
        let address = address_of(piece);
        let mut shared = self.shared.lock();
        if let Some(answers) = shared.get_mut(&address) {
            *answers -= 1;
            if *answers == 0 {
                shared.remove(&address);
                self.budget.give_back(piece.len());
            }
        }
    }
}

fn address_of(piece: &Bytes) -> PieceAddress {
    (piece.as_ptr() as usize, piece.len())
}

/// The bytes reserved for one answer. Dropping the value releases them.
pub(super) struct Reservation {
    outgoing: Arc<Outgoing>,
    /// The reserved bytes that are not in `pieces`: those of short pieces, of the list of pieces, of earlier
    /// answers of the request, or of text that is not rendered yet.
    own: usize,
    /// The long pieces of the answer, which other answers may contain as well.
    pieces: Vec<Bytes>,
    /// The bytes counted towards the key's share. `None` if they are not counted.
    _held: Option<Held>,
}

impl Reservation {
    /// Reserves the bytes of `body` for `principal`, and `more` bytes for earlier answers of the request or for text
    /// that is not rendered yet. `None` if the bytes exceed the budget or the caller's share.
    pub(super) fn within(
        outgoing: &Arc<Outgoing>,
        principal: &Principal,
        body: &BodyParts,
        more: usize,
    ) -> Option<Self> {
        let held = principal.hold_bytes(body.len() + more, outgoing.budget.free())?;
        Self::new(outgoing, body, more, Some(held), outgoing.budget.limit())
    }

    /// Reserves the bytes of `body`, the compressed form of answers that were reserved before. Neither the budget nor
    /// the share of `principal` is checked.
    pub(super) fn anyway(outgoing: &Arc<Outgoing>, principal: &Principal, body: &BodyParts) -> Option<Self> {
        Self::new(outgoing, body, 0, principal.hold_bytes(body.len(), usize::MAX), usize::MAX)
    }

    /// Reserves the bytes of `body`, and `more` bytes that are not in `body`. `None` if the reserved bytes of all
    /// requests would exceed `limit`.
    fn new(
        outgoing: &Arc<Outgoing>,
        body: &BodyParts,
        more: usize,
        held: Option<Held>,
        limit: usize,
    ) -> Option<Self> {
        let mut reservation =
            Self { outgoing: Arc::clone(outgoing), own: 0, pieces: Vec::new(), _held: held };
        let short = body.iter().filter(|piece| piece.len() <= JOINED_BYTES);
        let own = short.map(Bytes::len).sum::<usize>() + body.iter().count() * PIECE_BYTES + more;
        // If a piece does not fit, dropping `reservation` releases the bytes reserved before it.
        if !outgoing.budget.take(own, limit) {
            return None;
        }
        reservation.own = own;
        for piece in body.iter().filter(|piece| piece.len() > JOINED_BYTES) {
            if !outgoing.share(piece, limit) {
                return None;
            }
            reservation.pieces.push(piece.clone());
        }
        Some(reservation)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.outgoing.budget.give_back(self.own);
        self.pieces.iter().for_each(|piece| self.outgoing.unshare(piece));
    }
}

/// Reserves `bytes` bytes for text that is to be rendered for the caller `principal`. Dropping the result releases
/// the bytes. `None` if the bytes exceed the budget or the caller's share.
pub(super) fn reserve(
    outgoing: &Arc<Outgoing>,
    principal: &Principal,
    bytes: usize,
) -> Option<Box<dyn Send + Sync>> {
    let reservation = Reservation::within(outgoing, principal, &BodyParts::default(), bytes)?;
    Some(Box::new(reservation))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(pieces: &[&Bytes]) -> BodyParts {
        pieces.iter().map(|piece| (*piece).clone()).collect()
    }

    fn reserve_body(outgoing: &Arc<Outgoing>, pieces: &[&Bytes]) -> Option<Reservation> {
        Reservation::new(outgoing, &body(pieces), 0, None, outgoing.budget.limit())
    }

    #[test]
    fn shared_pieces_count_once_until_the_last_leaves() {
        let outgoing = Outgoing::new(100_000);
        let (kept, own) = (Bytes::from(vec![b'k'; 50_000]), Bytes::from_static(b"own"));
        let first = reserve_body(&outgoing, &[&own, &kept]);
        let second = reserve_body(&outgoing, &[&own, &kept]);
        assert!(first.is_some() && second.is_some());
        assert_eq!(outgoing.used(), 50_000 + 2 * (3 + 2 * PIECE_BYTES));
        drop(first);
        assert_eq!(outgoing.used(), 50_000 + 3 + 2 * PIECE_BYTES);
        drop(second);
        assert_eq!(outgoing.used(), 0);
    }

    #[test]
    fn what_does_not_fit_takes_nothing() {
        let outgoing = Outgoing::new(100_000);
        let long = |bytes| Bytes::from(vec![b'x'; bytes]);
        let held = reserve_body(&outgoing, &[&long(60_000)]);
        let used = outgoing.used();
        assert!(held.is_some() && reserve_body(&outgoing, &[&long(20_000), &long(30_000)]).is_none());
        assert_eq!(outgoing.used(), used);
        assert!(reserve_body(&outgoing, &[&long(30_000)]).is_some());
    }
}
