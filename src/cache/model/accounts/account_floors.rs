//! The floors of accounts. The slot at which an account was shown is a floor: later callers get the account
//! at that slot or above, whatever form they ask for.

use super::*;

/// The purges of a generated test case, numbered from 1. A call's generation is the number of the last purge
/// before it.
#[derive(Debug, Default)]
pub(super) struct Purges {
    /// The account that each purge removed. `None` if a purge removed all accounts.
    accounts: Vec<Option<u8>>,
}

impl Purges {
    pub(super) fn note(&mut self, account: Option<u8>) {
        self.accounts.push(account);
    }

    /// Returns the number of the last purge of `account` among the purges up to number `until`. 0 if there is
    /// none. If `account` is `None`, only purges of all accounts count.
    fn last_of(&self, account: Option<u8>, until: u32) -> u32 {
        let takes = |purged: &Option<u8>| purged.is_none() || *purged == account;
        let purges = (1..=until).zip(&self.accounts);
        purges.filter(|(_, purged)| takes(purged)).map(|(generation, _)| generation).max().unwrap_or(0)
    }

    /// Returns true if `account` was purged after an upstream call and before a caller's call. `generation` and
    /// `caller_generation` are the numbers of purges before these two calls.
    pub(super) fn has_removed(&self, account: u8, generation: u32, caller_generation: u32) -> bool {
        generation < self.last_of(Some(account), caller_generation)
    }

    /// Returns true if all accounts were purged after an upstream call and before a caller's call. `generation`
    /// and `caller_generation` are the numbers of purges before these two calls.
    pub(super) fn has_removed_all(&self, generation: u32, caller_generation: u32) -> bool {
        generation < self.last_of(None, caller_generation)
    }
}

/// One account in an answer that a caller got.
#[derive(Debug)]
pub(super) struct AccountShown {
    n: u8,
    commitment: Commitment,
    slot: Slot,
    step: usize,
    generation: u32,
    /// The time until which the cache may hold an answer of a lower slot.
    until: Instant,
}

/// The fall of an account's floor to `slot`, because no node reached the floor. A floor above `from` did not
/// fall.
#[derive(Debug)]
pub(super) struct FloorFall {
    n: u8,
    commitment: Commitment,
    from: Slot,
    slot: Slot,
    /// The number of accounts that were shown before. The floors of those fall, and later ones may rise again.
    shown_before: usize,
    generation: u32,
}

impl AccountModel {
    /// Returns true if account `n` was purged after the first `generation` purges.
    pub(super) fn is_purged(&self, n: u8, generation: u32) -> bool {
        self.purges.has_removed(n, generation, self.cache.generation)
    }

    /// Notes that the floors of the accounts of `call` fall to `slot`, because no node reaches them. Floors above
    /// `from` do not fall.
    pub(super) fn lower_floors(&mut self, call: &TestCall, from: Slot, slot: Slot) {
        let (commitment, shown_before) = (call.commitment, self.accounts_shown.len());
        let generation = self.cache.generation;
        let fall = |n: &u8| FloorFall { n: *n, commitment, from, slot, shown_before, generation };
        self.falls.extend(call.accounts.iter().map(fall));
    }

    /// Returns the floor of an account: the highest slot at which earlier steps showed it, or the lower slot to
    /// which the floor fell. `None` if no step showed the account since its last purge, or if no answer of a lower
    /// slot can be stored any more.
    fn floor_of_account(&self, n: u8, commitment: Commitment) -> Option<Slot> {
        let shown = self.accounts_shown.iter().enumerate().filter(|(_, shown)| {
            let is_same = shown.n == n && shown.commitment == commitment;
            let is_in_force = shown.step < self.cache.step && shown.until >= Instant::now();
            is_same && is_in_force && !self.is_purged(n, shown.generation)
        });
        // A floor may fall several times, each time from the slot to which it fell before.
        let fallen = |(number, shown): (usize, &AccountShown)| {
            let falls = self.falls.iter().filter(|fall| {
                let is_same = fall.n == n && fall.commitment == commitment;
                is_same && number < fall.shown_before && !self.is_purged(n, fall.generation)
            });
            falls.fold(shown.slot, |slot, fall| if fall.from >= slot { slot.min(fall.slot) } else { slot })
        };
        shown.map(fallen).max()
    }

    /// Returns true if no node answers in time. In that case `answer` may be below the floors of the caller's
    /// accounts, and floors that are higher are lowered to the answer's slot.
    pub(super) fn may_stand_in_below_floors(
        &mut self,
        caller: &TestCaller<TestCall>,
        answer: &CacheAnswer,
        node_is_down: bool,
    ) -> bool {
        let stands_in = node_is_down || caller.asked_at.elapsed() >= bounds::request_timeout();
        if stands_in {
            self.lower_floors(&caller.call, Slot::MAX, answer.meta.slot);
        }
        stands_in
    }

    /// Returns true if two upstream calls for the caller's question were answered since the caller asked. The
    /// caller gets the second answer whatever its slot is.
    fn was_asked_twice(&self, caller: &TestCaller<TestCall>) -> bool {
        let parsed = |form: AccountForm| form.encoding == AccountEncoding::JsonParsed;
        let answered = self.cache.calls.iter().filter(|sent| {
            let (asked, call) = (described(&sent.request.query), &caller.call);
            let is_same = asked.list == call.list && asked.accounts == call.accounts;
            let is_since = sent.answer.is_some() && sent.answered_in >= Some(caller.asked_in);
            is_since
                && is_same
                && asked.commitment == call.commitment
                && parsed(asked.form) == parsed(call.form)
        });
        answered.count() > 1
    }

    /// Checks that no account is shown below a slot at which it was shown before, and notes the slots of this
    /// answer. While the node is down, a stored answer may be at a lower slot.
    pub(super) fn check_account_floors(
        &mut self,
        caller: &TestCaller<TestCall>,
        answer: &CacheAnswer,
        marks: &AnswerMarks,
        node_is_down: bool,
    ) -> Result<(), TestCaseError> {
        let commitment = caller.call.commitment;
        let shown: Vec<_> = caller.call.accounts.iter().copied().zip(&marks.accounts).collect();
        let slot_of = |n: u8, mark: usize| {
            // In a list that mixes slots, each account has a slot of its own.
            let of_call = self.cache.calls[mark].answer.as_ref().map(|answer| answer.slot);
            of_call.filter(|_| n != ABSENT).unwrap_or(answer.meta.slot)
        };
        let is_behind = shown.iter().any(|(n, mark)| {
            self.floor_of_account(*n, commitment).is_some_and(|floor| slot_of(*n, **mark) < floor)
        });
        // At processed only hits must reach the floors. A stored entry that is given instead of a node's lower
        // answer need not reach them.
        let is_hit =
            caller.asked_in + 1 == self.cache.step && matches!(answer.status, CacheStatus::Hit { .. });
        let is_promised = commitment != Commitment::Processed || is_hit;
        let life = AnswerBounds::of_accounts(commitment).longest_life();
        let (step, generation) = (self.cache.step, self.cache.generation);
        let newly_shown = shown.iter().filter_map(|(n, mark)| {
            let call = &self.cache.calls[**mark];
            let until = call.answered_at.filter(|_| call.stored_answer().is_some())? + life;
            // The context slot of a list that mixes slots is the lowest slot of its accounts.
            Some(AccountShown { n: *n, commitment, slot: answer.meta.slot, step, generation, until })
        });
        let newly_shown: Vec<_> = newly_shown.collect();
        // A stand-in may be below a floor that the model does not know: a refusal raises floors, too, and so does
        // another caller's stand-in in the same step. Whatever its status, it lowers them.
        let stands_in = self.may_stand_in_below_floors(caller, answer, node_is_down);
        if is_behind && is_promised {
            let is_excused = stands_in || self.was_asked_twice(caller);
            prop_assert!(is_excused, "an account goes back: {:?} {:?}", caller.call, answer);
        }
        self.accounts_shown.extend(newly_shown);
        Ok(())
    }
}
