//! The model: the held answers, the floors of accounts, and the table of docs/caching.md.

use super::*;

/// Returns the questions under which an answer is held. A list is also held as its single accounts.
pub(super) fn places(question: Question) -> Vec<Question> {
    if question == List { vec![List, Account(0), Account(1)] } else { vec![question] }
}

/// Returns the accounts that an answer shows.
pub(super) fn accounts(question: Question) -> &'static [u8] {
    match question {
        Account(0) | Balance => &[0],
        Account(_) => &[1],
        List => &[0, 1],
        Fee | Votes => &[],
    }
}

/// Returns the longest time for which an answer that shows an account may be served.
pub(super) fn life(c: Commitment) -> Duration {
    Duration::from_millis([400, 10_000, 60_000][c.index()])
}

/// The model: the held answers, the floors of accounts, and the table of docs/caching.md.
#[derive(Default)]
pub(super) struct Model {
    pub(super) held: BTreeMap<(Question, Commitment), (Slot, Instant)>,
    floors: BTreeMap<(u8, Commitment), (Slot, Instant)>,
}

/// The arrival of an answer, with the conditions of its call.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) slot: Slot,
    pub(super) sent: Instant,
    pub(super) frontier: Slot,
    /// The slot at which its accounts had been shown.
    pub(super) floor: Slot,
    pub(super) now: Instant,
}

impl Model {
    /// Returns the held slot, whether it may serve while a fresh one is fetched, and whether it may serve in
    /// a fault.
    pub(super) fn may(
        &self,
        q: Question,
        c: Commitment,
        frontier: Slot,
        now: Instant,
    ) -> Option<(Slot, bool, bool)> {
        let (slot, sent) = *self.held.get(&(q, c))?;
        let (age, behind) = (now - sent, if q == Votes { 0 } else { frontier.saturating_sub(slot) });
        let ms = |[a, b]: [[u64; 3]; 2]| Duration::from_millis(if q == Votes { b } else { a }[c.index()]);
        // Both bounds stretch by half at confirmed and finalized, and not at processed.
        let stretched =
            age <= ms([[400, 1_200, 7_500], [1_000, 3_000, 15_000]]) && behind <= [1, 3, 18][c.index()];
        let in_fault = c != Commitment::Processed && age <= ms([[0, 10_000, 60_000]; 2]);
        Some((slot, stretched, stretched || in_fault))
    }

    /// Returns true if another gateway's answer may be used: it is fresh, believed, and not below a held or
    /// shown slot.
    pub(super) fn takes(
        &self,
        q: Question,
        c: Commitment,
        slot: Slot,
        age: Duration,
        frontier: Slot,
    ) -> bool {
        let ms = if q == Votes { [1_000, 2_000, 10_000] } else { [400, 800, 5_000] };
        let near = q == Votes || frontier.saturating_sub(slot) <= [1, 2, 12][c.index()];
        let fresh = near && age <= Duration::from_millis(ms[c.index()]);
        let null = q == Fee && slot.is_multiple_of(3);
        let below = self.held.get(&(q, c)).is_some_and(|held| held.0 > slot)
            || self.floor(q, c, Instant::now()) > slot;
        fresh && !below && !null && slot <= frontier + 64
    }

    /// Returns the highest slot at which an account of the answer was shown, while a lower one may be held.
    pub(super) fn floor(&self, q: Question, c: Commitment, now: Instant) -> Slot {
        let floors = accounts(q).iter().filter_map(|n| self.floors.get(&(*n, c)));
        floors.filter(|(_, until)| *until >= now).map(|(slot, _)| *slot).max().unwrap_or(0)
    }

    /// Returns the floor of an upstream call. There is none at processed.
    pub(super) fn asked_floor(&self, q: Question, c: Commitment, now: Instant) -> Slot {
        if c == Commitment::Processed { 0 } else { self.floor(q, c, now) }
    }

    fn raises(&mut self, q: Question, c: Commitment, slot: Slot, now: Instant) {
        for n in accounts(q) {
            let floor = self.floors.entry((*n, c)).or_insert((0, now));
            if floor.0 <= slot || floor.1 < now {
                *floor = (slot, now + life(c));
            }
        }
    }

    /// Notes that a held answer is shown.
    pub(super) fn shows(&mut self, q: Question, c: Commitment, slot: Slot, now: Instant) {
        let floor =
            |n: &u8| self.floors.get(&(*n, c)).filter(|floor| floor.1 >= now).map_or(0, |floor| floor.0);
        if accounts(q).iter().any(|n| floor(n) < slot) {
            self.raises(q, c, slot, now);
        }
    }

    /// Notes that no node reaches the required floor.
    fn falls(&mut self, q: Question, c: Commitment, slot: Slot, now: Instant) {
        for n in accounts(q) {
            if let Some(floor) =
                self.floors.get_mut(&(*n, c)).filter(|floor| floor.0 > slot && floor.1 >= now)
            {
                *floor = (slot, now + life(c));
            }
        }
    }

    /// Returns the held slot above `slot` that may still be served.
    fn ahead(&self, q: Question, c: Commitment, at: &Arrival) -> Option<Slot> {
        let held = self.may(q, c, at.frontier, at.now).filter(|(held, _, serves)| *held > at.slot && *serves);
        held.map(|held| held.0)
    }

    /// Assembles the list of both accounts, if both are held at the floor.
    fn assembled(&mut self, c: Commitment, at: &Arrival) -> Option<Slot> {
        let single = |q| {
            let serves = self
                .may(q, c, at.frontier, at.now)
                .is_some_and(|(slot, _, serves)| serves && slot >= at.floor);
            self.held.get(&(q, c)).filter(|_| serves).copied()
        };
        let ((slot, sent), (other, other_sent)) = (single(Account(0))?, single(Account(1))?);
        let newer = self.held.get(&(List, c)).is_some_and(|held| held.0 > slot);
        if slot != other || newer {
            return None;
        }
        self.shows(List, c, slot, at.now);
        self.held.insert((List, c), (slot, sent.min(other_sent)));
        Some(slot)
    }

    /// Processes an arriving answer, and returns the slot that its callers are shown.
    pub(super) fn lands(&mut self, q: Question, c: Commitment, at: Arrival) -> Slot {
        let Arrival { slot, sent, frontier, floor, now } = at;
        if c != Commitment::Processed {
            let mut held = self.ahead(q, c, &at);
            if q == List && held.unwrap_or(slot) < floor {
                held = self.assembled(c, &at).or(held);
            }
            if let Some(held) = held {
                if held < floor {
                    self.falls(q, c, held, now);
                }
                self.shows(q, c, held, now);
                return held;
            }
        }
        if (q != Votes && slot > frontier + 64) || (q == Fee && slot.is_multiple_of(3)) {
            return slot;
        }
        if slot < floor {
            self.falls(q, c, slot, now);
        }
        self.raises(q, c, slot, now);
        for place in places(q) {
            let ahead = self.ahead(place, c, &at);
            // At processed, an answer is compared with the entry of its own question only.
            if let Some(held) = ahead.filter(|_| place == q) {
                return held;
            }
            if ahead.is_none() {
                self.held.insert((place, c), (slot, sent));
            }
        }
        slot
    }
}
