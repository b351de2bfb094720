//! The floors of accounts: the slot at which an account was shown is a floor for later callers, in whatever
//! form.

use super::*;

/// The purges of a case. Each has a number, from 1, and each later call belongs to its generation.
#[derive(Debug, Default)]
pub(super) struct Purges {
    /// The account that each purge removed. `None` for all accounts.
    accounts: Vec<Option<u8>>,
}

impl Purges {
    pub(super) fn note(&mut self, account: Option<u8>) {
        self.accounts.push(account);
    }

    /// Returns the generation that began with the last purge of an account, among those up to `until`.
    fn last_of(&self, account: Option<u8>, until: u32) -> u32 {
        let takes = |purged: &Option<u8>| purged.is_none() || *purged == account;
        let purges = (1..=until).zip(&self.accounts);
        purges.filter(|(_, purged)| takes(purged)).map(|(generation, _)| generation).max().unwrap_or(0)
    }

    /// Returns true if an answer about an account, from a call of `generation`, is purged for callers of
    /// `caller_generation`.
    pub(super) fn has_removed(&self, account: u8, generation: u32, caller_generation: u32) -> bool {
        generation < self.last_of(Some(account), caller_generation)
    }

    /// Returns true if everything from a call of `generation` is purged for callers of `caller_generation`.
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
    /// The time until which an answer of a lower slot may be held.
    until: Instant,
}

/// A fall of a floor, because no node reaches it any more.
#[derive(Debug)]
pub(super) struct FloorFall {
    n: u8,
    commitment: Commitment,
    from: Slot,
    slot: Slot,
    step: usize,
    generation: u32,
}

impl AccountModel {
    /// Returns true if the account was purged since `generation`.
    pub(super) fn is_purged(&self, n: u8, generation: u32) -> bool {
        self.purges.has_removed(n, generation, self.cache.generation)
    }

    /// Notes that no node is above `slot`, so that floors of these accounts up to `from` fall to it.
    pub(super) fn lower_floors(&mut self, call: &TestCall, from: Slot, slot: Slot) {
        let (commitment, step, generation) = (call.commitment, self.cache.step, self.cache.generation);
        let fall = |n: &u8| FloorFall { n: *n, commitment, from, slot, step, generation };
        self.falls.extend(call.accounts.iter().map(fall));
    }

    /// Returns the slot at which an account was shown in an earlier step, while an answer of a lower slot may
    /// be held.
    fn floor_of_account(&self, n: u8, commitment: Commitment) -> Option<Slot> {
        let shown = self.accounts_shown.iter().filter(|shown| {
            let is_same = shown.n == n && shown.commitment == commitment;
            let is_in_force = shown.step < self.cache.step && shown.until >= Instant::now();
            is_same && is_in_force && !self.is_purged(n, shown.generation)
        });
        // A fall may begin where another one ended.
        let fallen = |shown: &AccountShown| {
            let falls = self.falls.iter().filter(|fall| {
                let is_same = fall.n == n && fall.commitment == commitment;
                is_same && fall.step >= shown.step && !self.is_purged(n, fall.generation)
            });
            falls.fold(shown.slot, |slot, fall| if fall.from >= slot { slot.min(fall.slot) } else { slot })
        };
        shown.map(fallen).max()
    }

    /// Returns true if an answer of any slot may stand in because no node answers in time. Floors then fall
    /// to its slot.
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

    /// Returns true if two calls for this question were answered since the caller asked. An answer that is
    /// behind after both is given.
    fn was_asked_twice(&self, caller: &TestCaller<TestCall>) -> bool {
        let parsed = |form: AccountForm| form.encoding == AccountEncoding::JsonParsed;
        let answered = self.cache.calls.iter().filter(|sent| {
            let (asked, call) = (described(&sent.request.query), &caller.call);
            let holds = |n: &u8| asked.accounts.contains(n);
            let is_merged = self.settings.merge && !call.list && call.accounts.iter().all(holds);
            let is_rest = self.settings.assemble == Assemble::WithinBound
                && asked.accounts.iter().all(|n| call.accounts.contains(n));
            let is_same =
                is_merged || (asked.list == call.list && (is_rest || asked.accounts == call.accounts));
            let is_since = sent.answer.is_some() && sent.answered_in >= Some(caller.asked_in);
            is_since
                && is_same
                && asked.commitment == call.commitment
                && parsed(asked.form) == parsed(call.form)
        });
        answered.count() > 1
    }

    /// Checks that no account is shown below a slot at which it was shown before. While the node is down, a
    /// held answer may stand in.
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
            // A list that mixes slots has a slot of its own for each account.
            let of_call = self.cache.calls[mark].answer.as_ref().map(|answer| answer.slot);
            of_call.filter(|_| n != ABSENT).unwrap_or(answer.meta.slot)
        };
        let is_behind = shown.iter().any(|(n, mark)| {
            self.floor_of_account(*n, commitment).is_some_and(|floor| slot_of(*n, **mark) < floor)
        });
        // At processed this holds between held entries only. It does not hold for an entry that stands in for
        // a node's lower answer.
        let is_hit =
            caller.asked_in + 1 == self.cache.step && matches!(answer.status, CacheStatus::Hit { .. });
        let is_promised = commitment != Commitment::Processed || is_hit;
        let is_mixed =
            self.settings.assemble == Assemble::WithinBound && shown.iter().any(|(n, _)| *n == ABSENT);
        let life = AnswerBounds::of_accounts(commitment).longest_life();
        let (step, generation) = (self.cache.step, self.cache.generation);
        let newly_shown = shown.iter().filter_map(|(n, mark)| {
            let call = &self.cache.calls[**mark];
            let until = call.answered_at.filter(|_| call.kept_answer().is_some())? + life;
            // A list that mixes slots has the lowest of them.
            Some(AccountShown { n: *n, commitment, slot: answer.meta.slot, step, generation, until })
        });
        let newly_shown: Vec<_> = newly_shown.collect();
        if is_behind && is_promised && !is_mixed {
            let is_excused =
                self.may_stand_in_below_floors(caller, answer, node_is_down) || self.was_asked_twice(caller);
            prop_assert!(is_excused, "an account goes back: {:?} {:?}", caller.call, answer);
        }
        self.accounts_shown.extend(newly_shown);
        Ok(())
    }
}
