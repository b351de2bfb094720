//! One budget for the bytes of answers that are made or on their way out: `server.max_outgoing`.
//!
//! Whoever asks without reading would otherwise take memory without end, since an answer stays until it is written or
//! its connection ends. A long piece that several answers share, as they share what the cache holds, counts once for all
//! of them, for it is in memory once. For a key's share it counts in each answer, so that no key is charged for what
//! another key leaves lying. A key may hold up to eight times as many bytes as are free, by the rule for places in flight.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::pieces::{JOINED_BYTES, Pieces};
use crate::gateway::{Principal, SharedBytes};

/// A request whose answers are no longer than this together is in no budget: the places in flight bound it.
pub(super) const FREE_BYTES: usize = 4 * 1024;
/// The memory that a list of pieces takes for each, its growth included.
const PIECE_BYTES: usize = 2 * size_of::<Bytes>();
/// Locks among which shared pieces are spread, so that answers rarely meet.
const SHARDS: usize = 64;

/// How many answers each long piece is in.
type Shared = HashMap<Place, usize>;

/// Where a piece begins in memory, and its length.
type Place = (usize, usize);

/// The budget, and what is taken of it.
pub struct Outgoing {
    limit: usize,
    used: AtomicUsize,
    /// A piece is known by its place in memory, which its holders keep.
    shared: Box<[Mutex<Shared>]>,
    hasher: RandomState,
}

impl Outgoing {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        let shared = (0..SHARDS).map(|_| Mutex::default()).collect();
        Arc::new(Self { limit, used: AtomicUsize::new(0), shared, hasher: RandomState::new() })
    }

    /// Bytes that are taken.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn free(&self) -> usize {
        self.limit.saturating_sub(self.used())
    }

    /// Takes `bytes`; `false` where that would pass `limit`.
    fn take(&self, bytes: usize, limit: usize) -> bool {
        let within = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit);
        self.used.try_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Notes one answer more that `piece` is in, and takes its bytes for the first; `false` where that would pass `limit`.
    fn share(&self, piece: &Bytes, limit: usize) -> bool {
        let known = place(piece);
        let mut shard = self.shard(known);
        if let Some(answers) = shard.get_mut(&known) {
            *answers += 1;
            return true;
        }
        let fits = self.take(piece.len(), limit);
        if fits {
            shard.insert(known, 1);
        }
        fits
    }

    /// Notes one answer fewer that `piece` is in, and gives its bytes back for the last.
    fn unshare(&self, piece: &Bytes) {
        let known = place(piece);
        let mut shard = self.shard(known);
        if let Some(answers) = shard.get_mut(&known) {
            *answers -= 1;
            if *answers == 0 {
                shard.remove(&known);
                self.give_back(piece.len());
            }
        }
    }

    fn shard(&self, known: Place) -> MutexGuard<'_, Shared> {
        #[expect(clippy::cast_possible_truncation, reason = "any of the shards will do")]
        let shard = self.hasher.hash_one(known) as usize % SHARDS;
        self.shared[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place(piece: &Bytes) -> Place {
    (piece.as_ptr() as usize, piece.len())
}

/// What one request has of the budget, given back on drop.
pub(super) struct Load {
    outgoing: Arc<Outgoing>,
    parts: Mutex<Vec<Part>>,
}

/// What was taken for one answer.
struct Part {
    outgoing: Arc<Outgoing>,
    /// Bytes that are in this answer alone, or are in no piece yet.
    own: usize,
    /// Long pieces, which others may have, too.
    pieces: Vec<Bytes>,
    /// Of the key's share; nothing where that was not asked.
    _held: Option<SharedBytes>,
}

impl Part {
    /// What `body` needs, and `more` bytes; `None` where that would pass `limit`.
    fn of(
        outgoing: &Arc<Outgoing>,
        body: &Pieces,
        more: usize,
        held: Option<SharedBytes>,
        limit: usize,
    ) -> Option<Self> {
        let mut part = Self { outgoing: Arc::clone(outgoing), own: 0, pieces: Vec::new(), _held: held };
        let short = body.iter().filter(|piece| piece.len() <= JOINED_BYTES);
        let own = short.map(Bytes::len).sum::<usize>() + body.iter().count() * PIECE_BYTES + more;
        // What was taken is given back where something does not fit.
        if !outgoing.take(own, limit) {
            return None;
        }
        part.own = own;
        for piece in body.iter().filter(|piece| piece.len() > JOINED_BYTES) {
            if !outgoing.share(piece, limit) {
                return None;
            }
            part.pieces.push(piece.clone());
        }
        Some(part)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.outgoing.give_back(self.own);
        self.pieces.iter().for_each(|piece| self.outgoing.unshare(piece));
    }
}

impl Load {
    /// Nothing yet, of `outgoing`.
    pub(super) fn new(outgoing: &Arc<Outgoing>) -> Self {
        Self { outgoing: Arc::clone(outgoing), parts: Mutex::default() }
    }

    /// Takes what `body` needs, and `more` bytes; `false` where that passes the budget or the share of `principal`.
    pub(super) fn add(&self, principal: &Principal, body: &Pieces, more: usize) -> bool {
        let outgoing = &self.outgoing;
        let needed = body.len() + more;
        let held = principal.hold_bytes(needed, outgoing.free());
        let part = held.and_then(|held| Part::of(outgoing, body, more, Some(held), outgoing.limit));
        let fits = part.is_some();
        self.parts().extend(part);
        fits
    }

    /// Holds what `body` needs in place of all that was taken: the same answers in fewer bytes, which nobody refuses.
    pub(super) fn replace(&self, principal: &Principal, body: &Pieces) {
        let mut parts = self.parts();
        parts.clear();
        let held = principal.hold_bytes(body.len(), usize::MAX);
        parts.extend(Part::of(&self.outgoing, body, 0, held, usize::MAX));
    }

    fn parts(&self) -> MutexGuard<'_, Vec<Part>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room for `bytes` that are to be written for `principal`, until it is dropped; `None` where there is none.
pub(super) fn room(
    outgoing: &Arc<Outgoing>,
    principal: &Principal,
    bytes: usize,
) -> Option<Box<dyn Send + Sync>> {
    let held = principal.hold_bytes(bytes, outgoing.free())?;
    let part = Part::of(outgoing, &Pieces::default(), bytes, Some(held), outgoing.limit)?;
    Some(Box::new(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(pieces: &[&Bytes]) -> Pieces {
        pieces.iter().map(|piece| (*piece).clone()).collect()
    }

    fn part(outgoing: &Arc<Outgoing>, pieces: &[&Bytes]) -> Option<Part> {
        Part::of(outgoing, &body(pieces), 0, None, outgoing.limit)
    }

    #[test]
    fn what_answers_share_counts_once_until_the_last_has_left() {
        let outgoing = Outgoing::new(100_000);
        let (kept, own) = (Bytes::from(vec![b'k'; 50_000]), Bytes::from_static(b"own"));
        let first = part(&outgoing, &[&own, &kept]);
        let second = part(&outgoing, &[&own, &kept]);
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
        let held = part(&outgoing, &[&long(60_000)]);
        let used = outgoing.used();
        assert!(held.is_some() && part(&outgoing, &[&long(20_000), &long(30_000)]).is_none());
        assert_eq!(outgoing.used(), used);
        assert!(part(&outgoing, &[&long(30_000)]).is_some());
    }
}
