//! No account goes back: what somebody was shown of it is a floor for whoever asks after, in whatever form.

use super::*;

/// One account that somebody was shown, or the fall of its floor to what no node is above.
#[derive(Debug)]
pub(super) struct AccountShown {
    n: u8,
    commitment: Commitment,
    slot: Slot,
    step: usize,
    era: u32,
    /// How long an answer of a lower slot may be held.
    until: Instant,
}

impl Play {
    /// No node is above `slot`: the floors of these accounts fall to it.
    pub(super) fn falls_to(&mut self, wish: &Wish, slot: Slot) {
        let (commitment, step, era, until) =
            (wish.commitment, self.scene.step, self.scene.era, Instant::now());
        self.falls.extend(wish.accounts.iter().map(|n| AccountShown {
            n: *n,
            commitment,
            slot,
            step,
            era,
            until,
        }));
    }

    /// The slot at which an account was shown before somebody asked, as long as an answer of a lower slot may be held.
    pub(super) fn floor_of_account(&self, n: u8, commitment: Commitment, asked_in: usize) -> Option<Slot> {
        let same = |shown: &&AccountShown| {
            shown.n == n && shown.commitment == commitment && shown.era == self.scene.era
        };
        let shown = self.accounts_shown.iter().filter(same);
        let shown = shown.filter(|shown| shown.step <= asked_in && shown.until >= Instant::now());
        let fallen = |shown: &AccountShown| {
            let falls = self.falls.iter().filter(same).filter(|fall| fall.step >= shown.step);
            falls.map(|fall| fall.slot).chain([shown.slot]).min()
        };
        shown.filter_map(fallen).max()
    }

    /// No account is shown below a slot at which it was shown before, in whatever form; where nodes are `down`, what is
    /// held may stand in.
    pub(super) fn no_account_is_behind(
        &mut self,
        caller: &Caller<Wish>,
        answer: &Answer,
        shown: &[(u8, usize)],
        down: bool,
    ) -> Result<(), TestCaseError> {
        let commitment = caller.wish.commitment;
        let given_up = caller.asked_at.elapsed() >= Duration::from_secs(30);
        let at = |n: u8, mark: usize| {
            // Of a list that mixes slots, each account has its own.
            let of_call = self.scene.calls[mark].said.as_ref().map(|said| said.slot);
            of_call.filter(|_| n != NONE).unwrap_or(answer.stamp.slot)
        };
        let behind: Vec<_> = shown
            .iter()
            .filter(|(n, mark)| {
                let floor = self.floor_of_account(*n, commitment, caller.asked_in);
                floor.is_some_and(|floor| at(*n, *mark) < floor)
            })
            .collect();
        // At processed it holds between held entries only: for what is at hand, not for what stands in for a node's answer
        // that is lower still.
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
            Some(AccountShown { n: *n, commitment, slot: at(*n, *mark), step, era, until })
        });
        let of_calls: Vec<_> = of_calls.collect();
        if !behind.is_empty() && holds && !mixes {
            prop_assert!(down || given_up, "{:?} goes back: {:?} {:?}", caller.wish, behind, answer);
            self.falls_to(&caller.wish.clone(), answer.stamp.slot);
        }
        self.accounts_shown.extend(of_calls);
        Ok(())
    }
}
