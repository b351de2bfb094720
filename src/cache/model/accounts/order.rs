//! The order of answers: the slot at which an account was shown is a floor for later callers, in whatever
//! form.

use super::*;

/// One account in an answer that a caller got.
#[derive(Debug)]
pub(super) struct AccountShown {
    n: u8,
    commitment: Commitment,
    slot: Slot,
    step: usize,
    era: u32,
    /// The time until which an answer of a lower slot may be held.
    until: Instant,
}

/// A fall of a floor, because no node reaches it any more.
#[derive(Debug)]
pub(super) struct Fall {
    n: u8,
    commitment: Commitment,
    from: Slot,
    slot: Slot,
    step: usize,
    era: u32,
}

impl Simulation {
    /// Notes that no node is above `slot`, so that floors of these accounts up to `from` fall to it.
    pub(super) fn falls_to(&mut self, test_call: &TestCall, from: Slot, slot: Slot) {
        let (commitment, step, era) = (test_call.commitment, self.scene.step, self.scene.era);
        let fall = |n: &u8| Fall { n: *n, commitment, from, slot, step, era };
        self.falls.extend(test_call.accounts.iter().map(fall));
    }

    /// Returns the slot at which an account was shown in an earlier step, while an answer of a lower slot may
    /// be held.
    pub(super) fn floor_of_account(&self, n: u8, commitment: Commitment) -> Option<Slot> {
        let shown = self.accounts_shown.iter().filter(|shown| {
            let same = shown.n == n && shown.commitment == commitment && shown.era == self.scene.era;
            same && shown.step < self.scene.step && shown.until >= Instant::now()
        });
        // A fall may begin where another one ended.
        let fallen = |shown: &AccountShown| {
            let falls = self.falls.iter().filter(|fall| {
                let same = fall.n == n && fall.commitment == commitment && fall.era == self.scene.era;
                same && fall.step >= shown.step
            });
            falls.fold(shown.slot, |slot, fall| if fall.from >= slot { slot.min(fall.slot) } else { slot })
        };
        shown.map(fallen).max()
    }

    /// Returns true if an answer of any slot may stand in because no node answers in time. Floors then fall
    /// to its slot.
    pub(super) fn may_fall(
        &mut self,
        caller: &TestCaller<TestCall>,
        answer: &CacheAnswer,
        down: bool,
    ) -> bool {
        let stands_in = down || caller.asked_at.elapsed() >= Duration::from_secs(30);
        if stands_in {
            self.falls_to(&caller.call, Slot::MAX, answer.meta.slot);
        }
        stands_in
    }

    /// Returns true if two calls for this question have landed since the caller asked. An answer that is
    /// behind after both is given.
    fn was_asked_anew(&self, caller: &TestCaller<TestCall>) -> bool {
        let parsed = |form: AccountForm| form.encoding == AccountEncoding::JsonParsed;
        let landed = self.scene.calls.iter().filter(|call| {
            let (asked, test_call) = (call_of(&call.ask.query), &caller.call);
            let holds = |n: &u8| asked.accounts.contains(n);
            let merged = self.settings.merge && !test_call.list && test_call.accounts.iter().all(holds);
            let rest = self.settings.assemble == Assemble::WithinBound
                && asked.accounts.iter().all(|n| test_call.accounts.contains(n));
            let same =
                merged || (asked.list == test_call.list && (rest || asked.accounts == test_call.accounts));
            let since = call.said.is_some() && call.landed_in >= Some(caller.asked_in);
            since
                && same
                && asked.commitment == test_call.commitment
                && parsed(asked.form) == parsed(test_call.form)
        });
        landed.count() > 1
    }

    /// Checks that no account is shown below a slot at which it was shown before. While nodes are `down`, a
    /// held answer may stand in.
    pub(super) fn no_account_is_behind(
        &mut self,
        caller: &TestCaller<TestCall>,
        answer: &CacheAnswer,
        shown: &[(u8, usize)],
        down: bool,
    ) -> Result<(), TestCaseError> {
        let commitment = caller.call.commitment;
        let at = |n: u8, mark: usize| {
            // A list that mixes slots has a slot of its own for each account.
            let of_call = self.scene.calls[mark].said.as_ref().map(|said| said.slot);
            of_call.filter(|_| n != NONE).unwrap_or(answer.meta.slot)
        };
        let behind: Vec<_> = shown
            .iter()
            .filter(|(n, mark)| {
                let floor = self.floor_of_account(*n, commitment);
                floor.is_some_and(|floor| at(*n, *mark) < floor)
            })
            .collect();
        // At processed this holds between held entries only. It does not hold for an entry that stands in for
        // a node's lower answer.
        let at_once =
            caller.asked_in + 1 == self.scene.step && matches!(answer.status, CacheStatus::Hit { .. });
        let holds = commitment != Commitment::Processed || at_once;
        let mixes = self.settings.assemble == Assemble::WithinBound && shown.iter().any(|(n, _)| *n == NONE);
        let life = Duration::from_millis([400, 10_000, 60_000][commitment.index()]);
        let (step, era) = (self.scene.step, self.scene.era);
        let of_calls = shown.iter().filter_map(|(n, mark)| {
            let call = &self.scene.calls[*mark];
            let until =
                call.landed_at.filter(|_| call.said.as_ref().is_some_and(|said| said.keepable))? + life;
            // A list that mixes slots has the lowest of them.
            Some(AccountShown { n: *n, commitment, slot: answer.meta.slot, step, era, until })
        });
        let of_calls: Vec<_> = of_calls.collect();
        if !behind.is_empty() && holds && !mixes {
            let excused = self.may_fall(caller, answer, down) || self.was_asked_anew(caller);
            prop_assert!(excused, "{:?} goes back: {:?} {:?}", caller.call, behind, answer);
        }
        self.accounts_shown.extend(of_calls);
        Ok(())
    }
}
