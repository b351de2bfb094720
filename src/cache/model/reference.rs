//! The reference model of [`super::sequential`]: the stored answers, the slots at which accounts were shown,
//! and the rules of docs/caching.md.

use super::*;
use Question::{Account, Fee, List, Votes};

/// A stored answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredAnswer {
    pub(super) slot: Slot,
    pub(super) sent_at: Instant,
}

/// The slot of a stored answer, and the ways in which the answer may be used at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usability {
    pub(super) slot: Slot,
    /// True if the answer is fresh, or may be served while a fresh one is fetched.
    pub(super) serves: bool,
    /// True if the answer may be served when no node gives a newer answer.
    pub(super) serves_in_fault: bool,
}

/// The slot below which an account is not shown, and the time until which this holds.
#[derive(Debug, Clone, Copy)]
struct AccountFloor {
    slot: Slot,
    until: Instant,
}

/// The number of an account, and a commitment.
type AccountAt = (u8, Commitment);

/// An answer that arrives from a node or from the shared store, with the time of arrival and the newest known slot
/// at that time.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) slot: Slot,
    pub(super) sent_at: Instant,
    pub(super) frontier: Slot,
    /// The highest slot at which one of the answer's accounts was shown before the call was sent. 0 if none was
    /// shown.
    pub(super) floor: Slot,
    pub(super) now: Instant,
}

/// The stored answers that the real cache is expected to hold, and for each account the slot below which it
/// is not shown.
#[derive(Default)]
pub(super) struct ReferenceCache {
    stored: BTreeMap<TestQuery, StoredAnswer>,
    floors: BTreeMap<AccountAt, AccountFloor>,
}

impl ReferenceCache {
    /// Returns the answer that is stored for a query.
    pub(super) fn stored(&self, query: TestQuery) -> Option<StoredAnswer> {
        self.stored.get(&query).copied()
    }

    /// Returns the slot of the stored answer and the ways in which it may be used. `None` if no answer is
    /// stored.
    pub(super) fn usability(&self, query: TestQuery, frontier: Slot, now: Instant) -> Option<Usability> {
        let StoredAnswer { slot, sent_at } = self.stored(query)?;
        let (age, lag, bounds) = (now - sent_at, frontier.saturating_sub(slot), query.bounds());
        let serves = bounds.may_serve_stale(age, lag);
        Some(Usability { slot, serves, serves_in_fault: serves || bounds.may_stand_in(age) })
    }

    /// Returns true if an answer of another gateway may be used. The answer must be fresh and not null. Its slot
    /// must not be below a stored answer's slot, or below a slot at which one of its accounts was shown. The slot
    /// must not be implausibly far above the newest known slot, either.
    pub(super) fn accepts_shared(&self, query: TestQuery, arrival: Arrival) -> bool {
        let Arrival { slot, sent_at, frontier, now, .. } = arrival;
        let is_fresh = query.bounds().is_fresh(now - sent_at, frontier.saturating_sub(slot));
        let is_below =
            self.stored(query).is_some_and(|stored| stored.slot > slot) || self.floor(query, now) > slot;
        is_fresh && !is_below && !query.is_null_at(slot) && slot <= bounds::highest_believed(frontier)
    }

    /// Returns the highest slot at which one of the query's accounts was shown. 0 if none was shown.
    pub(super) fn floor(&self, query: TestQuery, now: Instant) -> Slot {
        let floor = |n: &u8| self.floor_of_account((*n, query.commitment), now);
        query.accounts().iter().map(floor).max().unwrap_or(0)
    }

    fn floor_of_account(&self, account: AccountAt, now: Instant) -> Slot {
        self.floors.get(&account).filter(|floor| floor.until >= now).map_or(0, |floor| floor.slot)
    }

    /// Returns the lowest slot that a call sent at `now` asks for: the highest slot at which one of its accounts
    /// was shown. At processed a call asks for no slot, so the result is 0.
    pub(super) fn floor_to_ask_for(&self, query: TestQuery, now: Instant) -> Slot {
        if query.commitment == Commitment::Processed { 0 } else { self.floor(query, now) }
    }

    /// Sets the floor of each account of the query to `slot`, if `changes` returns true for the account's
    /// present floor.
    fn change_floors(&mut self, query: TestQuery, slot: Slot, now: Instant, changes: impl Fn(Slot) -> bool) {
        let until = now + AnswerBounds::of_accounts(query.commitment).longest_life();
        for n in query.accounts() {
            let account = (*n, query.commitment);
            if changes(self.floor_of_account(account, now)) {
                self.floors.insert(account, AccountFloor { slot, until });
            }
        }
    }

    /// Notes that the query's accounts are shown at `slot`, and not below that slot from now on.
    fn raise_floors(&mut self, query: TestQuery, slot: Slot, now: Instant) {
        self.change_floors(query, slot, now, |floor| floor <= slot);
    }

    /// Lowers the floors of the query's accounts to `slot`, because no node reaches the higher floors.
    fn lower_floors(&mut self, query: TestQuery, slot: Slot, now: Instant) {
        self.change_floors(query, slot, now, |floor| floor > slot);
    }

    /// Notes that a stored answer is shown at `slot`, so that its accounts are not shown below that slot from
    /// now on.
    pub(super) fn show_stored(&mut self, query: TestQuery, slot: Slot, now: Instant) {
        let is_below = |n: &u8| self.floor_of_account((*n, query.commitment), now) < slot;
        if query.accounts().iter().any(is_below) {
            self.raise_floors(query, slot, now);
        }
    }

    /// Returns the slot of the answer stored for the query. `None` if that slot is not above the slot of the
    /// arriving answer, or if the stored answer may no longer be served.
    fn newer_stored(&self, query: TestQuery, arrival: &Arrival) -> Option<Slot> {
        let stored = self.usability(query, arrival.frontier, arrival.now)?;
        (stored.slot > arrival.slot && stored.serves_in_fault).then_some(stored.slot)
    }

    /// Assembles the list of accounts 0 and 1 from their single entries, and returns its slot. `None` if an entry
    /// is missing, too old or below `arrival.floor`, or if the entries have different slots. Also `None` if a
    /// newer list is stored and may still be served.
    fn assemble_list(&mut self, commitment: Commitment, arrival: &Arrival) -> Option<Slot> {
        let single = |n| {
            let query = Account(n).at(commitment);
            let usable = self.usability(query, arrival.frontier, arrival.now)?;
            self.stored(query).filter(|stored| usable.serves_in_fault && stored.slot >= arrival.floor)
        };
        let (one, other) = (single(0)?, single(1)?);
        let list = List.at(commitment);
        let newer = self.usability(list, arrival.frontier, arrival.now);
        let holds_newer = newer.is_some_and(|stored| stored.slot > one.slot && stored.serves_in_fault);
        if one.slot != other.slot || holds_newer {
            return None;
        }
        self.show_stored(list, one.slot, arrival.now);
        self.stored.insert(list, StoredAnswer { sent_at: one.sent_at.min(other.sent_at), ..one });
        Some(one.slot)
    }

    /// Processes an arriving answer, and returns the slot that its callers are shown.
    pub(super) fn accept(&mut self, query: TestQuery, arrival: Arrival) -> Slot {
        let TestQuery { question, commitment } = query;
        let Arrival { slot, sent_at, frontier, floor, now } = arrival;
        if commitment != Commitment::Processed {
            let mut stored = self.newer_stored(query, &arrival);
            if question == List && stored.unwrap_or(slot) < floor {
                stored = self.assemble_list(commitment, &arrival).or(stored);
            }
            if let Some(stored) = stored {
                if stored < floor {
                    self.lower_floors(query, stored, now);
                }
                self.show_stored(query, stored, now);
                return stored;
            }
        }
        let is_believed = question == Votes || slot <= bounds::highest_believed(frontier);
        if !is_believed || query.is_null_at(slot) {
            return slot;
        }
        if slot < floor {
            self.lower_floors(query, slot, now);
        }
        self.raise_floors(query, slot, now);
        for entry in query.stored_under() {
            let newer = self.newer_stored(entry, &arrival);
            // At processed, an answer is compared with the entry of its own question only.
            if let Some(newer) = newer.filter(|_| entry == query) {
                return newer;
            }
            if newer.is_none() {
                self.stored.insert(entry, StoredAnswer { slot, sent_at });
            }
        }
        slot
    }

    /// Returns true if the query must not be answered at a lower slot than before while the earlier answer may
    /// still be served. Returns false at processed. Returns false for fees, too, because a null answer between two
    /// fees is not stored.
    pub(super) fn never_goes_back(query: TestQuery) -> bool {
        query.commitment != Commitment::Processed && query.question != Fee
    }
}
