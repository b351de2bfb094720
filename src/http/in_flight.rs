//! What requests in flight may hold: permits, which `server.max_in_flight` limits, and the bytes of answers that are not
//! sent yet, which `server.max_outgoing` limits.
//!
//! An answer stays in memory until it is written or its connection ends. Without a budget, clients that send requests
//! and read no answers could exhaust the memory.
//!
//! Many answers may send the text of the same entry. That is in memory once, so the entry takes it from the budget once.
//! Each key may hold a share of the budget: at most eight times as many bytes as are left. Towards the key's share, a text
//! counts for each of the key's answers. So the answers of other keys do not change the count.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};

use super::Front;
use super::body_parts::BodyParts;
use crate::coding::CompressedText;
use crate::fair::{ByteBudget, Held, Taken, TakenOnce};
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

    /// Keeps the bytes of one more answer until the request is written.
    pub(super) fn keep(&self, reservation: Reservation) {
        self.reserved().push(reservation);
    }

    /// Replaces the reservations for the request's answers by one for `body`, the compressed form of these answers.
    /// Neither the budget nor the share of `principal` is checked, because the answers were within them.
    pub(super) fn keep_compressed(
        &self,
        front: &Front,
        principal: &Principal,
        body: &BodyParts,
        texts: &[Arc<CompressedText>],
    ) {
        let mut reserved = self.reserved();
        if !reserved.is_empty() {
            let shared = texts.iter().map(|text| (&text.unsent, text.bytes()));
            let held = principal.hold_bytes(body.len(), usize::MAX);
            *reserved =
                Reservation::new(&front.outgoing, body, 0, shared, held, usize::MAX).into_iter().collect();
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

/// The bytes reserved for one answer. Dropping the value releases them.
pub(super) struct Reservation {
    _own: Taken,
    /// Those of the texts that other answers may send as well.
    _shared: Vec<Arc<Taken>>,
    /// Those that count towards the key's share. `None` if they are not counted.
    _held: Option<Held>,
}

impl Reservation {
    /// Reserves the bytes of `body` for `principal`, and `more` bytes for earlier answers of the request or for text that
    /// is not written yet. `shared` are those bytes of `body` that are an entry's. `None` if the bytes exceed the budget
    /// or the caller's share.
    pub(super) fn within(
        front: &Front,
        principal: &Principal,
        body: &BodyParts,
        more: usize,
        shared: Option<(&TakenOnce, usize)>,
    ) -> Option<Self> {
        let outgoing = &front.outgoing;
        let held = principal.hold_bytes(body.len() + more, outgoing.free())?;
        Self::new(outgoing, body, more, shared.into_iter(), Some(held), outgoing.limit())
    }

    /// Reserves as [`within`](Self::within), if all requests then have reserved at most `limit` bytes.
    fn new<'a>(
        outgoing: &Arc<ByteBudget>,
        body: &BodyParts,
        more: usize,
        shared: impl Iterator<Item = (&'a TakenOnce, usize)> + Clone,
        held: Option<Held>,
        limit: usize,
    ) -> Option<Self> {
        let of_others: usize = shared.clone().map(|(_, bytes)| bytes).sum();
        let own = body.len().saturating_sub(of_others) + body.iter().count() * PIECE_BYTES + more;
        let own = Taken::of(outgoing, own, limit)?;
        let shared = shared.map(|(text, bytes)| text.take(outgoing, bytes, limit));
        Some(Self { _own: own, _shared: shared.collect::<Option<_>>()?, _held: held })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reserves an answer of `own` bytes and the whole of `texts`.
    fn reserve(outgoing: &Arc<ByteBudget>, own: usize, texts: &[(&TakenOnce, usize)]) -> Option<Reservation> {
        let text = |bytes| Bytes::from(vec![b'x'; bytes]);
        let body = texts.iter().map(|(_, bytes)| text(*bytes)).chain([text(own)]).collect();
        Reservation::new(outgoing, &body, 0, texts.iter().copied(), None, outgoing.limit())
    }

    #[test]
    fn shared_texts_count_once_until_the_last_leaves() {
        let (outgoing, entry) = (Arc::new(ByteBudget::new(100_000)), TakenOnce::default());
        let first = reserve(&outgoing, 3, &[(&entry, 50_000)]);
        let second = reserve(&outgoing, 3, &[(&entry, 50_000)]);
        assert!(first.is_some() && second.is_some());
        assert_eq!(outgoing.used(), 50_000 + 2 * (3 + 2 * PIECE_BYTES));
        drop(first);
        assert_eq!(outgoing.used(), 50_000 + 3 + 2 * PIECE_BYTES);
        drop(second);
        assert_eq!(outgoing.used(), 0);
        // An entry that was sent before counts again, and its clone for itself.
        let (again, other) = (reserve(&outgoing, 0, &[(&entry, 50_000)]), entry.clone());
        assert!(again.is_some() && reserve(&outgoing, 0, &[(&other, 50_000)]).is_none());
    }

    #[test]
    fn what_does_not_fit_takes_nothing() {
        let outgoing = Arc::new(ByteBudget::new(100_000));
        let [held, fits, too_long] = [TakenOnce::default(), TakenOnce::default(), TakenOnce::default()];
        let held = reserve(&outgoing, 0, &[(&held, 60_000)]);
        let used = outgoing.used();
        assert!(held.is_some() && reserve(&outgoing, 0, &[(&fits, 20_000), (&too_long, 30_000)]).is_none());
        assert_eq!(outgoing.used(), used);
        assert!(reserve(&outgoing, 30_000, &[]).is_some());
    }
}
