//! Accounts in every form, alone and in lists, with many callers and calls at once.
//!
//! The tests do not predict which answer a caller gets. They check what every answer promises. It is made of
//! nodes' answers about these accounts at this commitment. It is no older than its status says, not from
//! before a purge, and not behind a shown one. A fresh entry that holds the form is served without a node.

mod named;
mod order;
mod written;

use super::scene::{SteppedCache, TestCaller, on_a_stepped_clock, options};
use super::*;
use crate::cache::CacheStatus;
use crate::config::Assemble;
use crate::error::Error;
use crate::methods::{AccountEncoding, AccountForm, DataSlice};
use order::{AccountShown, Fall};
use written::{ACCOUNTS, NONE, TestCall, call_of, holds, marks, query, text, value};

const LISTS: [&[u8]; 7] = [&[0, 1], &[1, 0], &[0, 0], &[0, 2], &[2, 3], &[0, 1, 2, 3], &[]];

/// The conditions of a caller: a minContextSlot and a floor as distances behind the frontier, and a call past
/// the cache.
#[derive(Debug, Clone, Default)]
struct Conditions {
    min: Option<i64>,
    floor: Option<i64>,
    bypass: bool,
}

#[derive(Debug, Clone)]
enum ModelStep {
    Wait(u64),
    Frontier(Commitment, Slot),
    Ask(TestCall, Conditions),
    /// A call under way gets an answer from this many slots behind the frontier, or fails.
    Lands(usize, Option<i64>),
    Clear,
}

#[derive(Debug, Clone, Copy)]
struct Settings {
    assemble: Assemble,
    merge: bool,
}

fn settings() -> impl Strategy<Value = Settings> {
    let assemble = prop_oneof![3 => Just(Assemble::SameSlot), 2 => Just(Assemble::WithinBound), 1 => Just(Assemble::Off)];
    (assemble, proptest::bool::weighted(0.2)).prop_map(|(assemble, merge)| Settings { assemble, merge })
}

/// A case uses few forms and commitments, so that later calls meet earlier entries.
fn steps() -> impl Strategy<Value = Vec<ModelStep>> {
    let slice = |offset, length| DataSlice { offset, length };
    let slices = vec![slice(1, 3), slice(0, 200), slice(150, u64::MAX)];
    let form = (
        proptest::sample::select(AccountEncoding::ALL.to_vec()),
        proptest::option::weighted(0.4, proptest::sample::select(slices)),
    );
    let form = form.prop_map(|(encoding, slice)| AccountForm { encoding, slice });
    let commitment = proptest::sample::select(Commitment::ALL.to_vec());
    let about = (proptest::collection::vec(form, 1..4), proptest::collection::vec(commitment, 1..3));
    about.prop_flat_map(|(forms, commitments)| steps_about(&forms, &commitments))
}

fn steps_about(
    forms: &[AccountForm],
    commitments: &[Commitment],
) -> impl Strategy<Value = Vec<ModelStep>> + use<> {
    let (form, commitments) = (proptest::sample::select(forms.to_vec()), commitments.to_vec());
    let commitment = || proptest::sample::select(commitments.clone());
    let accounts = prop_oneof![
        3 => (0..ACCOUNTS).prop_map(|n| (vec![n], false)),
        2 => proptest::sample::select(LISTS.to_vec()).prop_map(|list| (list.to_vec(), true)),
    ];
    let test_call = (accounts, form, commitment())
        .prop_map(|((accounts, list), form, commitment)| TestCall { accounts, list, form, commitment });
    let slot = |from: i64| proptest::option::weighted(0.1, from..16);
    // A key's floor was shown to it, so the frontier has been there.
    let conditions = (slot(-6), slot(0), proptest::bool::weighted(0.05))
        .prop_map(|(min, floor, bypass)| Conditions { min, floor, bypass });
    let behind = prop_oneof![12 => -2..6_i64, 2 => 6..40_i64, 1 => -80..-60_i64];
    let step = prop_oneof![
        3 => prop_oneof![0..300_u64, 0..1_000_u64, 0..6_000_u64, 0..70_000_u64].prop_map(ModelStep::Wait),
        2 => (commitment(), 0..4_u64).prop_map(|(c, slots)| ModelStep::Frontier(c, slots)),
        8 => (test_call, conditions).prop_map(|(test_call, conditions)| ModelStep::Ask(test_call, conditions)),
        7 => (any::<usize>(), proptest::option::weighted(0.85, behind)).prop_map(|(n, slot)| ModelStep::Lands(n, slot)),
        1 => Just(ModelStep::Clear),
    ];
    proptest::collection::vec(step, 1..60)
}

/// An answer that a caller got.
struct Shown {
    call: TestCall,
    slot: Slot,
    step: usize,
    era: u32,
}

struct Simulation {
    scene: SteppedCache<TestCall>,
    settings: Settings,
    shown: Vec<Shown>,
    accounts_shown: Vec<AccountShown>,
    falls: Vec<Fall>,
    /// True if a caller had conditions, so that several calls for one question may be under way.
    conditions: bool,
    failed: bool,
}

impl Simulation {
    fn new(settings: Settings) -> Self {
        let scene = SteppedCache::new(|config| {
            config.cache.assemble = settings.assemble;
            config.pool.merge = settings.merge;
        });
        let (shown, accounts_shown, falls) = (Vec::new(), Vec::new(), Vec::new());
        Self { scene, settings, shown, accounts_shown, falls, conditions: false, failed: false }
    }

    async fn plays(mut self, steps: Vec<ModelStep>) -> Result<(), TestCaseError> {
        for step in steps {
            let (mut at_hand, down) = (None, matches!(step, ModelStep::Lands(_, None)));
            match step {
                ModelStep::Wait(ms) => advance(Duration::from_millis(ms)).await,
                ModelStep::Frontier(c, slots) => self.scene.moves_on(c, slots),
                ModelStep::Ask(test_call, conditions) => at_hand = self.asks(test_call, &conditions),
                ModelStep::Lands(n, behind) => self.lands(n, behind),
                ModelStep::Clear => self.scene.clears(),
            }
            self.goes_on(at_hand, down).await?;
        }
        // Callers who still wait are answered soon after the nodes answer.
        for _ in 0..40 {
            for number in self.scene.under_way() {
                self.answers(number, 0);
            }
            self.goes_on(None, false).await?;
            if !self.scene.anybody_waits() {
                break;
            }
            advance(Duration::from_millis(100)).await;
        }
        prop_assert!(!self.scene.anybody_waits(), "somebody waits for ever");
        Ok(())
    }

    /// Starts a call. Returns its description if a held entry must answer it.
    fn asks(&mut self, test_call: TestCall, conditions: &Conditions) -> Option<TestCall> {
        let at = |behind: Option<i64>| behind.map(|behind| self.scene.at(test_call.commitment, behind));
        let (min, floor) = (at(conditions.min), at(conditions.floor));
        self.conditions |= min.is_some() || floor.is_some() || conditions.bypass;
        let at_hand = !conditions.bypass && self.is_at_hand(&test_call, min.max(floor));
        let query = query(&test_call, min);
        self.scene.ask(test_call.clone(), query, options(conditions.bypass, floor));
        at_hand.then_some(test_call)
    }

    fn lands(&mut self, n: usize, behind: Option<i64>) {
        let under_way = self.scene.under_way();
        let Some(number) = under_way.get(n % under_way.len().max(1)) else { return };
        if let Some(behind) = behind {
            self.answers(*number, behind);
        } else {
            self.failed = true;
            self.scene.lands(*number, None, true);
        }
    }

    /// Answers a call, at a slot this far behind the frontier.
    fn answers(&mut self, number: usize, behind: i64) {
        let query = &self.scene.calls[number].ask.query;
        let test_call = call_of(query);
        let slot = self.scene.at(test_call.commitment, behind);
        let body = if query.min_context_slot().is_some_and(|own| slot < own) {
            let body =
                format!(r#"{{"code":-32016,"message":"not reached","data":{{"contextSlot":{slot}}}}}"#);
            NodeReply::Error { code: -32016, body: body.into() }
        } else {
            let marks = vec![number; test_call.accounts.len()];
            NodeReply::Result(text(&test_call, number, slot, &marks).expect("base58 is not asked for").into())
        };
        if let Some(floor) = self.scene.calls[number].ask.floor.filter(|floor| slot < *floor) {
            self.falls_to(&test_call, floor, slot);
        }
        self.scene.lands(number, Some((body, slot)), true);
    }

    /// Runs all tasks and checks the answers. A node that is `down` fails second tries, too.
    async fn goes_on(&mut self, at_hand: Option<TestCall>, down: bool) -> Result<(), TestCaseError> {
        let asked = self.scene.step;
        let mut answered = self.scene.settles().await;
        if down {
            self.scene.just_sent().into_iter().for_each(|number| self.scene.lands(number, None, true));
            answered.extend(self.scene.settles().await);
        }
        if let Some(test_call) = at_hand {
            let hit = |(caller, answer): &(TestCaller<TestCall>, Result<CacheAnswer, Error>)| {
                let hit = matches!(answer, Ok(answer) if matches!(answer.status, CacheStatus::Hit { stale: false, .. }));
                caller.asked_in == asked && hit
            };
            prop_assert!(
                answered.iter().any(hit),
                "a node was asked for {:?}, which is kept and fresh",
                test_call
            );
        }
        for (caller, answer) in &answered {
            match answer {
                Ok(answer) => self.holds(caller, answer, down)?,
                Err(error) => self.may_fail(caller, error)?,
            }
        }
        self.one_call_each()
    }

    /// Checks what every answer promises.
    fn holds(
        &mut self,
        caller: &TestCaller<TestCall>,
        answer: &CacheAnswer,
        down: bool,
    ) -> Result<(), TestCaseError> {
        let TestCall { accounts, list, commitment, .. } = &caller.call;
        let told = || format!("{:?} wanted {:?}: {answer:?}", caller.call, caller.wanted);
        let body = match &answer.payload {
            Payload::Result(body) => String::from_utf8(body.whole().to_vec()).unwrap(),
            Payload::Error { code: -32016, body } => {
                let reached = crate::node::answer::error_context_slot(body).unwrap();
                prop_assert!(caller.min.is_some_and(|min| min > reached), "another's condition: {}", told());
                return Ok(());
            }
            Payload::Error { .. } => {
                self.may_fall(caller, answer, down);
                return self.is_refused_rightly(caller, answer);
            }
        };
        let (context, marks) = marks(&caller.call, &body);
        let expected = text(&caller.call, context, answer.meta.slot, &marks);
        prop_assert_eq!(Some(&body), expected.as_ref(), "not what a node writes");
        prop_assert_eq!(
            self.scene.calls[context].said.as_ref().map(|said| said.slot),
            Some(answer.meta.slot)
        );
        for (n, mark) in accounts.iter().zip(&marks).chain([(&NONE, &context)]) {
            let call = &self.scene.calls[*mark];
            let asked = call_of(&call.ask.query);
            let (said, slot) = (asked.commitment, call.said.as_ref().unwrap().slot);
            prop_assert!(said == *commitment, "of another commitment, {}: {}", said, told());
            // An account that does not exist carries no number. The context's number stands for it.
            prop_assert!(*n == NONE || asked.accounts.contains(n), "of another account: {}", told());
            prop_assert!(call.era >= caller.era, "from before a clearing: {}", told());
            let mixes = *list && self.settings.assemble == Assemble::WithinBound;
            prop_assert!(
                slot == answer.meta.slot || (mixes && slot > answer.meta.slot),
                "of another slot: {}",
                told()
            );
            self.is_not_too_old(caller, answer.status, *mark)?;
        }
        prop_assert!(self.wanted_is_met(caller, answer), "below what was wanted: {}", told());
        self.is_not_behind(caller, answer)?;
        let shown: Vec<_> = accounts.iter().copied().zip(marks.iter().copied()).collect();
        self.no_account_is_behind(caller, answer, &shown, down)?;
        let kept = marks.iter().all(|mark| self.scene.calls[*mark].said.as_ref().unwrap().keepable);
        if kept && !marks.is_empty() {
            let (step, era) = (self.scene.step, self.scene.era);
            self.shown.push(Shown { call: caller.call.clone(), slot: answer.meta.slot, step, era });
        }
        Ok(())
    }

    /// Returns true if the answer of a call is fresh by the table of docs/caching.md.
    fn is_fresh(&self, mark: usize, c: Commitment, halves: u32) -> bool {
        let call = &self.scene.calls[mark];
        let slot = call.said.as_ref().unwrap().slot;
        let behind = self.scene.frontier.slot(c).saturating_sub(slot);
        let (ms, slots) = [(400, 1), (800, 2), (5_000, 12)][c.index()];
        // Both bounds stretch by half at confirmed and finalized, and not at processed.
        let halves = if c == Commitment::Processed { 0 } else { halves };
        let stretched = |bound: u64| bound + bound * u64::from(halves) / 2;
        call.sent_at.elapsed() <= Duration::from_millis(stretched(ms)) && behind <= stretched(slots)
    }

    /// Returns true if an answer may still stand in for one that no node gives. Until then its floor is in
    /// force.
    fn is_held(&self, mark: usize, c: Commitment) -> bool {
        let held = Duration::from_secs([0, 10, 60][c.index()]);
        c != Commitment::Processed && self.scene.calls[mark].sent_at.elapsed() <= held
    }

    fn is_not_too_old(
        &self,
        caller: &TestCaller<TestCall>,
        status: CacheStatus,
        mark: usize,
    ) -> Result<(), TestCaseError> {
        let (c, call) = (caller.call.commitment, &self.scene.calls[mark]);
        let own = call.sent_at >= caller.asked_at;
        let fresh = |halves| self.is_fresh(mark, c, halves);
        let completed = caller.call.list && self.settings.assemble == Assemble::WithinBound;
        let may = match status {
            CacheStatus::Hit { stale, .. } => fresh(u32::from(stale)),
            CacheStatus::StaleIfError { .. } => self.is_held(mark, c),
            CacheStatus::Collapsed => own || fresh(0),
            CacheStatus::Forwarded { .. } => own || (completed && fresh(0)),
            CacheStatus::Bypassed | CacheStatus::Batch { .. } => false,
        };
        prop_assert!(may, "{:?} after {:?}: {}", caller.call, call.sent_at.elapsed(), status);
        Ok(())
    }

    /// A node itself refuses a minContextSlot that it has not reached. A floor refuses nothing, but no hit is
    /// below it.
    fn wanted_is_met(&self, caller: &TestCaller<TestCall>, answer: &CacheAnswer) -> bool {
        let at_once =
            matches!(answer.status, CacheStatus::Hit { .. }) && caller.asked_in + 1 == self.scene.step;
        let floor = caller.wanted.filter(|_| at_once);
        caller.min.max(floor).is_none_or(|wanted| answer.meta.slot >= wanted)
    }

    /// Returns the highest slot that callers with this question were shown before, while that answer may be
    /// held.
    fn floor(&self, caller: &TestCaller<TestCall>) -> Option<Slot> {
        let TestCall { commitment: c, .. } = caller.call;
        let before = self.shown.iter().filter(|shown| {
            shown.call == caller.call && shown.step <= caller.asked_in && shown.era == self.scene.era
        });
        // An entry is replaced by one of at least its slot, which may have been asked for earlier.
        let held = before.filter(|shown| {
            self.of_accounts(&shown.call).all(|(mark, slot)| slot < shown.slot || self.is_held(mark, c))
        });
        held.map(|shown| shown.slot).max()
    }

    fn is_not_behind(
        &self,
        caller: &TestCaller<TestCall>,
        answer: &CacheAnswer,
    ) -> Result<(), TestCaseError> {
        let floor = self.floor(caller);
        prop_assert!(
            floor.is_none_or(|floor| answer.meta.slot >= floor),
            "{:?} back from {:?}",
            answer,
            floor
        );
        Ok(())
    }

    /// Returns all answers about any of these accounts at this commitment that the cache may hold.
    fn of_accounts(&self, test_call: &TestCall) -> impl Iterator<Item = (usize, Slot)> {
        self.scene.calls.iter().enumerate().filter_map(|(mark, call)| {
            let (asked, said) = (call_of(&call.ask.query), call.said.as_ref()?);
            let same = asked.commitment == test_call.commitment
                && asked.accounts.iter().any(|n| test_call.accounts.contains(n));
            let kept = said.keepable && matches!(said.body, NodeReply::Result(_));
            (same && kept && call.era == self.scene.era).then_some((mark, said.slot))
        })
    }

    /// Checks that only data of more than 128 bytes in base58 is refused, as by a node.
    fn is_refused_rightly(
        &self,
        caller: &TestCaller<TestCall>,
        answer: &CacheAnswer,
    ) -> Result<(), TestCaseError> {
        let refuses = caller.call.accounts.iter().any(|n| value(*n, caller.call.form, 0).is_none());
        prop_assert!(refuses, "{:?}: {:?}", caller.call, answer);
        // A refusal carries no number, so some call must have brought a source for it.
        let mut calls = self.scene.calls.iter().enumerate();
        let made_of_one = calls.any(|(mark, call)| {
            let (asked, said) = (call_of(&call.ask.query), call.said.as_ref());
            asked.commitment == caller.call.commitment
                && asked.accounts.iter().any(|n| caller.call.accounts.contains(n))
                && call.era >= caller.era
                && said.is_some_and(|said| said.slot >= answer.meta.slot)
                && self.is_not_too_old(caller, answer.status, mark).is_ok()
        });
        prop_assert!(made_of_one, "{:?}: {:?}", caller.call, answer);
        self.is_not_behind(caller, answer)
    }

    /// Checks that a caller gets an error only if no shown answer may stand in.
    fn may_fail(&self, caller: &TestCaller<TestCall>, error: &Error) -> Result<(), TestCaseError> {
        prop_assert!(self.failed || matches!(error, Error::TimedOut(_)), "{:?}: {:?}", caller.call, error);
        let stands_in = self.floor(caller).filter(|slot| caller.min.is_none_or(|min| *slot >= min));
        prop_assert!(stands_in.is_none(), "{:?}: {:?} where {:?} is held", caller.call, error, stands_in);
        Ok(())
    }

    /// Returns true if the newest answer about each account is kept, fresh, and holds the form.
    fn is_at_hand(&self, test_call: &TestCall, wanted: Option<Slot>) -> bool {
        let newest = |n: u8| {
            let of = TestCall { accounts: vec![n], ..test_call.clone() };
            let parsed = |form: AccountForm| form.encoding == AccountEncoding::JsonParsed;
            let form = |mark: usize| call_of(&self.scene.calls[mark].ask.query).form;
            let highest = self.of_accounts(&of).map(|(_, slot)| slot).max()?;
            let said: Vec<_> = self
                .of_accounts(&of)
                .filter(|(mark, _)| parsed(form(*mark)) == parsed(test_call.form))
                .collect();
            // An answer of the other kind may have shown a higher slot.
            let newest = said.iter().map(|(_, slot)| *slot).max().filter(|newest| *newest == highest)?;
            let mut last = said.iter().filter(|(_, slot)| *slot == newest);
            let serves = |mark: usize| {
                self.is_fresh(mark, test_call.commitment, 0) && holds(n, form(mark), mark, test_call.form)
            };
            last.all(|(mark, _)| serves(*mark)).then_some(newest)
        };
        let slots: Option<Vec<_>> = test_call.accounts.iter().map(|n| newest(*n)).collect();
        let Some(slots) = slots.filter(|slots| !slots.is_empty()) else { return false };
        let one_slot = slots.iter().all(|slot| *slot == slots[0]);
        let possible = !test_call.list || (one_slot && self.settings.assemble != Assemble::Off);
        possible && slots.iter().all(|slot| wanted.is_none_or(|wanted| *slot >= wanted))
    }

    /// Checks that simultaneous calls for one question share one upstream call.
    fn one_call_each(&self) -> Result<(), TestCaseError> {
        // A call from before a purge that is tried again after it may run beside another caller's.
        let tried_again = self.failed && self.scene.era > 0;
        if self.conditions || self.settings.merge || tried_again {
            return Ok(());
        }
        let under_way: Vec<_> = self.scene.under_way().iter().map(|at| &self.scene.calls[*at]).collect();
        for (at, call) in under_way.iter().enumerate() {
            let again = under_way[..at]
                .iter()
                .any(|other| other.era == call.era && other.ask.query == call.ask.query);
            prop_assert!(!again, "two calls at once: {:?}", call.ask.query);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn account_answers_keep_their_promises(settings in settings(), steps in steps()) {
        on_a_stepped_clock(async { Simulation::new(settings).plays(steps).await })?;
    }
}
