//! A model-based test of accounts in every form, alone and in lists, with many callers and calls at once.
//!
//! The model does not predict which answer a caller gets. It checks the promises that every answer must keep.
//! An answer is made from nodes' answers about the call's accounts at the call's commitment. It is no older
//! than its status says. It is not from before a purge, and not at a lower slot than an answer sent before. If
//! a fresh entry serves the call, no node is asked.

mod account_floors;
mod answers;
mod named;
mod steps;

use super::stepped_cache::AnsweredCaller;
use super::*;
use crate::cache::CacheStatus;
use crate::config::Assemble;
use crate::error::Error;
use crate::methods::{AccountEncoding, AccountForm, DataSlice};
use account_floors::{AccountShown, FloorFall, Purges};
use answers::{
    ABSENT, ACCOUNTS, AnswerMarks, TestCall, account_text, answer_marks, answer_text, described, pubkey,
    query, serves_form,
};
use steps::{Conditions, ModelStep, Settings, settings, steps};

const LISTS: [&[u8]; 7] = [&[0, 1], &[1, 0], &[0, 0], &[0, 2], &[2, 3], &[0, 1, 2, 3], &[]];

/// An answer that a caller got.
struct ShownAnswer {
    call: TestCall,
    slot: Slot,
    step: usize,
    generation: u32,
}

struct AccountModel {
    cache: SteppedCache<TestCall>,
    settings: Settings,
    shown: Vec<ShownAnswer>,
    accounts_shown: Vec<AccountShown>,
    falls: Vec<FloorFall>,
    purges: Purges,
    /// True once a caller has set a minContextSlot or a lowest slot for stored answers, or has bypassed the
    /// cache. Equal calls may then run side by side.
    has_conditions: bool,
    has_failed: bool,
}

impl AccountModel {
    fn new(settings: Settings) -> Self {
        let cache = SteppedCache::new(|config| {
            config.cache.assemble = settings.assemble;
        });
        let (shown, accounts_shown, falls) = (Vec::new(), Vec::new(), Vec::new());
        let (purges, has_conditions, has_failed) = (Purges::default(), false, false);
        Self { cache, settings, shown, accounts_shown, falls, purges, has_conditions, has_failed }
    }

    /// Runs the steps, and then answers upstream calls until no caller waits.
    async fn run(mut self, steps: Vec<ModelStep>) -> Result<(), TestCaseError> {
        for step in steps {
            let node_is_down = matches!(step, ModelStep::NodeFailure { .. });
            let must_hit = self.apply(step).await;
            self.settle_and_check(must_hit, node_is_down).await?;
        }
        for _ in 0..40 {
            for number in self.cache.calls_under_way() {
                self.answer_call(number, 0);
            }
            self.settle_and_check(None, false).await?;
            if !self.cache.has_waiting_callers() {
                break;
            }
            advance(Duration::from_millis(100)).await;
        }
        prop_assert!(!self.cache.has_waiting_callers(), "a caller waits for ever");
        Ok(())
    }

    /// Applies a step. Returns the caller's call if a stored entry must answer it.
    async fn apply(&mut self, step: ModelStep) -> Option<TestCall> {
        match step {
            ModelStep::Wait { ms } => advance(Duration::from_millis(ms)).await,
            ModelStep::AdvanceFrontier { commitment, slots } => {
                self.cache.advance_frontier(commitment, slots);
            }
            ModelStep::Ask { call, conditions } => return self.ask(call, &conditions),
            ModelStep::NodeReply { choice, behind } => {
                if let Some(number) = self.cache.call_under_way(choice) {
                    self.answer_call(number, behind);
                }
            }
            ModelStep::NodeFailure { choice } => {
                if let Some(number) = self.cache.call_under_way(choice) {
                    self.has_failed = true;
                    self.cache.fail_call(number);
                }
            }
            ModelStep::PurgeAll => {
                self.purges.note(None);
                self.cache.purge_all();
            }
            ModelStep::PurgeAccount { account } => {
                self.purges.note(Some(account));
                self.cache.purge_account(pubkey(account));
            }
        }
        None
    }

    /// Starts a caller's call. Returns the call if a stored entry must answer it.
    fn ask(&mut self, call: TestCall, conditions: &Conditions) -> Option<TestCall> {
        let slot = |behind: Option<i64>| behind.map(|behind| self.cache.slot_behind(call.commitment, behind));
        let (min_context_slot, floor) = (slot(conditions.min_behind), slot(conditions.floor_behind));
        self.has_conditions |= min_context_slot.is_some() || floor.is_some() || conditions.bypass;
        let must_hit = !conditions.bypass && self.is_served_by_cache(&call, min_context_slot.max(floor));
        let query = query(&call, min_context_slot);
        self.cache.ask(call.clone(), query, options(conditions.bypass, floor));
        must_hit.then_some(call)
    }

    /// Answers the upstream call with this number at the slot that is `behind` slots below the newest known
    /// one. If that slot is below the call's minContextSlot, answers with an error.
    fn answer_call(&mut self, number: usize, behind: i64) {
        let request = &self.cache.calls[number].request;
        let (query, call) = (&request.query, described(&request.query));
        let slot = self.cache.slot_behind(call.commitment, behind);
        let body = if query.min_context_slot().is_some_and(|own| slot < own) {
            let body =
                format!(r#"{{"code":-32016,"message":"not reached","data":{{"contextSlot":{slot}}}}}"#);
            NodeReply::Error { code: -32016, body: body.into() }
        } else {
            let marks = vec![number; call.accounts.len()];
            let text = answer_text(&call, number, slot, &marks).expect("base58 is not asked for");
            NodeReply::Result(text.into())
        };
        if let Some(floor) = request.min_slot.filter(|floor| slot < *floor) {
            self.lower_floors(&call, floor, slot);
        }
        self.cache.answer_call(number, body, slot);
    }

    /// Runs all tasks, and checks the answers that callers got. `node_is_down` is true if the step was a failure
    /// of the node. Calls that the cache then repeats also fail.
    async fn settle_and_check(
        &mut self,
        must_hit: Option<TestCall>,
        node_is_down: bool,
    ) -> Result<(), TestCaseError> {
        let asked_in = self.cache.step;
        let mut answered = self.cache.settle().await;
        if node_is_down {
            self.cache.calls_sent_now().into_iter().for_each(|number| self.cache.fail_call(number));
            answered.extend(self.cache.settle().await);
        }
        if let Some(call) = must_hit {
            let is_hit = |AnsweredCaller { caller, answer }: &AnsweredCaller<TestCall>| {
                let status = answer.as_ref().map(|answer| answer.status);
                caller.asked_in == asked_in && matches!(status, Ok(CacheStatus::Hit { stale: false, .. }))
            };
            prop_assert!(
                answered.iter().any(is_hit),
                "a node was asked for {:?}, which is stored and fresh",
                call
            );
        }
        for AnsweredCaller { caller, answer } in &answered {
            match answer {
                Ok(answer) => self.check_answer(caller, answer, node_is_down)?,
                Err(error) => self.check_error(caller, error)?,
            }
        }
        self.check_single_flight()
    }

    /// Checks the text, sources, age and slot of an answer. Checks also that no purge came between its upstream
    /// calls and the caller's call.
    fn check_answer(
        &mut self,
        caller: &TestCaller<TestCall>,
        answer: &CacheAnswer,
        node_is_down: bool,
    ) -> Result<(), TestCaseError> {
        let call = &caller.call;
        let case = || format!("{call:?} min_slot {:?}: {answer:?}", caller.min_slot);
        let body = match &answer.payload {
            Payload::Result(body) => String::from_utf8(body.whole().to_vec()).unwrap(),
            Payload::Error { code: -32016, body } => {
                let reached = crate::node::answer::error_context_slot(body).unwrap();
                let is_own = caller.min_context_slot.is_some_and(|min| min > reached);
                prop_assert!(is_own, "an error for another caller's minContextSlot: {}", case());
                return Ok(());
            }
            Payload::Error { .. } => {
                self.may_stand_in_below_floors(caller, answer, node_is_down);
                return self.check_refusal(caller, answer);
            }
        };
        let marks = answer_marks(call, &body);
        let expected = answer_text(call, marks.context, answer.meta.slot, &marks.accounts);
        prop_assert_eq!(Some(&body), expected.as_ref(), "not the text of a node");
        let context_slot = self.cache.calls[marks.context].answer.as_ref().map(|answer| answer.slot);
        prop_assert_eq!(context_slot, Some(answer.meta.slot));
        for (n, mark) in call.accounts.iter().zip(&marks.accounts) {
            // The text about an account that does not exist contains no call's number. The check of the context
            // covers it.
            if *n != ABSENT {
                let sent = &self.cache.calls[*mark];
                let is_about = described(&sent.request.query).accounts.contains(n);
                prop_assert!(is_about, "an answer about another account: {}", case());
                let is_purged = self.purges.has_removed(*n, sent.generation, caller.generation);
                prop_assert!(!is_purged, "from before a purge of account {}: {}", n, case());
            }
            self.check_source(caller, answer, *mark)?;
        }
        let generation = self.cache.calls[marks.context].generation;
        let is_purged = |n: &u8| self.purges.has_removed(*n, generation, caller.generation);
        let all_purged = match call.accounts.as_slice() {
            [] => self.purges.has_removed_all(generation, caller.generation),
            accounts => accounts.iter().all(is_purged),
        };
        prop_assert!(!all_purged, "the context is from before a purge: {}", case());
        self.check_source(caller, answer, marks.context)?;
        prop_assert!(self.meets_conditions(caller, answer), "below the minimum slot: {}", case());
        self.check_question_floor(caller, answer)?;
        self.check_account_floors(caller, answer, &marks, node_is_down)?;
        let is_kept = |mark: &usize| self.cache.calls[*mark].stored_answer().is_some();
        if !marks.accounts.is_empty() && marks.accounts.iter().all(is_kept) {
            let (step, generation) = (self.cache.step, self.cache.generation);
            self.shown.push(ShownAnswer { call: call.clone(), slot: answer.meta.slot, step, generation });
        }
        Ok(())
    }

    /// Checks the commitment, slot and age of one account of `answer`. Upstream call number `mark` fetched this
    /// account.
    fn check_source(
        &self,
        caller: &TestCaller<TestCall>,
        answer: &CacheAnswer,
        mark: usize,
    ) -> Result<(), TestCaseError> {
        let case = || format!("{:?}: {answer:?}", caller.call);
        let sent = &self.cache.calls[mark];
        let (commitment, slot) =
            (described(&sent.request.query).commitment, sent.answer.as_ref().unwrap().slot);
        prop_assert!(
            commitment == caller.call.commitment,
            "a source of another commitment, {}: {}",
            commitment,
            case()
        );
        prop_assert!(slot == answer.meta.slot, "a source of another slot: {}", case());
        self.check_age(caller, answer.status, mark)
    }

    /// Returns true if the answer to the upstream call with the number `mark` is fresh according to the table in
    /// docs/caching.md. If `stale` is true, the limits are those of an answer that is served while a fresh one is
    /// fetched.
    fn is_fresh(&self, mark: usize, commitment: Commitment, stale: bool) -> bool {
        let call = &self.cache.calls[mark];
        let (age, slot) = (call.sent_at.elapsed(), call.answer.as_ref().unwrap().slot);
        let lag = self.cache.frontier.slot(commitment).saturating_sub(slot);
        let bounds = AnswerBounds::of_accounts(commitment);
        if stale { bounds.may_serve_stale(age, lag) } else { bounds.is_fresh(age, lag) }
    }

    /// Returns true if the answer to the upstream call with the number `mark` may still be served when no node
    /// answers.
    fn may_stand_in(&self, mark: usize, commitment: Commitment) -> bool {
        AnswerBounds::of_accounts(commitment).may_stand_in(self.cache.calls[mark].sent_at.elapsed())
    }

    fn check_age(
        &self,
        caller: &TestCaller<TestCall>,
        status: CacheStatus,
        mark: usize,
    ) -> Result<(), TestCaseError> {
        let (commitment, call) = (caller.call.commitment, &self.cache.calls[mark]);
        let is_own = call.sent_at >= caller.asked_at;
        let is_fresh = |stale| self.is_fresh(mark, commitment, stale);
        let is_in_time = match status {
            CacheStatus::Hit { stale, .. } => is_fresh(stale),
            CacheStatus::StaleIfError { .. } => self.may_stand_in(mark, commitment),
            CacheStatus::Collapsed => is_own || is_fresh(false),
            CacheStatus::Forwarded { .. } => is_own,
            CacheStatus::Bypassed | CacheStatus::Batch { .. } | CacheStatus::Carried => false,
        };
        prop_assert!(
            is_in_time,
            "too old, after {:?}: {:?}: {}",
            call.sent_at.elapsed(),
            caller.call,
            status
        );
        Ok(())
    }

    /// Returns true if the answer reaches the slots that the caller wants. Every answer must reach the
    /// minContextSlot. Only a hit must reach the highest slot that was shown to the caller's key.
    fn meets_conditions(&self, caller: &TestCaller<TestCall>, answer: &CacheAnswer) -> bool {
        let is_hit =
            matches!(answer.status, CacheStatus::Hit { .. }) && caller.asked_in + 1 == self.cache.step;
        let floor = caller.min_slot.filter(|_| is_hit);
        caller.min_context_slot.max(floor).is_none_or(|min_slot| answer.meta.slot >= min_slot)
    }

    /// Returns the highest slot at which an earlier caller got an answer to the same call, while the cache may
    /// hold that answer.
    fn question_floor(&self, caller: &TestCaller<TestCall>) -> Option<Slot> {
        let call = &caller.call;
        let before = self.shown.iter().filter(|shown| {
            let is_purged = call.accounts.iter().any(|n| self.is_purged(*n, shown.generation));
            shown.call == *call && shown.step <= caller.asked_in && !is_purged
        });
        // An entry is replaced only by an answer of the same or a higher slot. The upstream call for that answer
        // may be older, so the new entry may expire earlier.
        let stored = before.filter(|shown| {
            self.stored_answers(call)
                .all(|(mark, slot)| slot < shown.slot || self.may_stand_in(mark, call.commitment))
        });
        stored.map(|shown| shown.slot).max()
    }

    fn check_question_floor(
        &self,
        caller: &TestCaller<TestCall>,
        answer: &CacheAnswer,
    ) -> Result<(), TestCaseError> {
        let floor = self.question_floor(caller);
        let is_behind = floor.is_some_and(|floor| answer.meta.slot < floor);
        prop_assert!(!is_behind, "{:?} goes back from {:?}", answer, floor);
        Ok(())
    }

    /// Returns the answers of nodes that the cache may hold about one of the call's accounts, at the call's
    /// commitment. Each answer is given as the number of its upstream call and the slot of the answer.
    fn stored_answers(&self, call: &TestCall) -> impl Iterator<Item = (usize, Slot)> {
        self.cache.calls.iter().enumerate().filter_map(|(mark, sent)| {
            let (asked, answer) = (described(&sent.request.query), sent.stored_answer()?);
            let is_stored = |n: &u8| call.accounts.contains(n) && !self.is_purged(*n, sent.generation);
            let is_same = asked.commitment == call.commitment && asked.accounts.iter().any(is_stored);
            (is_same && matches!(answer.body, NodeReply::Result(_))).then_some((mark, answer.slot))
        })
    }

    /// Checks that a caller gets a refusal only if nodes would refuse the call, too: for more than 128 bytes in
    /// base58.
    fn check_refusal(
        &self,
        caller: &TestCaller<TestCall>,
        answer: &CacheAnswer,
    ) -> Result<(), TestCaseError> {
        let call = &caller.call;
        let is_refused = call.accounts.iter().any(|n| account_text(*n, call.form, 0).is_none());
        prop_assert!(is_refused, "a refusal of data that nodes give: {:?}: {:?}", call, answer);
        // A refusal does not show from which upstream call it comes, so one call that may be its source
        // suffices.
        let mut sources = self.cache.calls.iter().enumerate();
        let has_source = sources.any(|(mark, sent)| {
            let asked = described(&sent.request.query);
            let is_purged = |n: &u8| self.purges.has_removed(*n, sent.generation, caller.generation);
            asked.commitment == call.commitment
                && asked.accounts.iter().any(|n| call.accounts.contains(n) && !is_purged(n))
                && sent.answer.as_ref().is_some_and(|source| source.slot >= answer.meta.slot)
                && self.check_age(caller, answer.status, mark).is_ok()
        });
        prop_assert!(
            has_source,
            "a refusal that no call since the last purge explains: {:?}: {:?}",
            call,
            answer
        );
        self.check_question_floor(caller, answer)
    }

    /// Checks that a caller gets an error only after a failure or a timeout. Checks also that the cache holds no
    /// earlier answer that may be served instead of the error.
    fn check_error(&self, caller: &TestCaller<TestCall>, error: &Error) -> Result<(), TestCaseError> {
        let is_explained = self.has_failed || matches!(error, Error::TimedOut(_));
        prop_assert!(is_explained, "an error although no node failed: {:?}: {:?}", caller.call, error);
        let min = caller.min_context_slot;
        let stands_in = self.question_floor(caller).filter(|slot| min.is_none_or(|min| *slot >= min));
        prop_assert!(
            stands_in.is_none(),
            "{:?}: {:?} although an answer of slot {:?} is stored",
            caller.call,
            error,
            stands_in
        );
        Ok(())
    }

    /// Returns true if the cache must answer the call without a node. The newest answer about each account
    /// must be stored and fresh, reach the minimum slot, and serve the form.
    fn is_served_by_cache(&self, call: &TestCall, min_slot: Option<Slot>) -> bool {
        let newest = |n: u8| {
            let single = TestCall { accounts: vec![n], ..call.clone() };
            let is_parsed = |form: AccountForm| form.encoding == AccountEncoding::JsonParsed;
            let form = |mark: usize| described(&self.cache.calls[mark].request.query).form;
            let highest = self.stored_answers(&single).map(|(_, slot)| slot).max()?;
            let of_kind: Vec<_> = self
                .stored_answers(&single)
                .filter(|(mark, _)| is_parsed(form(*mark)) == is_parsed(call.form))
                .collect();
            // An answer of the other kind (parsed or raw) may have shown a higher slot.
            let newest = of_kind.iter().map(|(_, slot)| *slot).max().filter(|newest| *newest == highest)?;
            let mut last = of_kind.iter().filter(|(_, slot)| *slot == newest);
            let serves = |mark: usize| {
                self.is_fresh(mark, call.commitment, false) && serves_form(n, form(mark), mark, call.form)
            };
            last.all(|(mark, _)| serves(*mark)).then_some(newest)
        };
        let slots: Option<Vec<_>> = call.accounts.iter().map(|n| newest(*n)).collect();
        let Some(slots) = slots.filter(|slots| !slots.is_empty()) else { return false };
        let one_slot = slots.iter().all(|slot| *slot == slots[0]);
        let is_possible = !call.list || (one_slot && self.settings.assemble != Assemble::Off);
        is_possible && slots.iter().all(|slot| min_slot.is_none_or(|min_slot| *slot >= min_slot))
    }

    /// Checks that simultaneous calls for one question share one upstream call.
    fn check_single_flight(&self) -> Result<(), TestCaseError> {
        // A call that is repeated after a purge may run beside another caller's.
        let is_tried_again = self.has_failed && self.cache.generation > 0;
        if self.has_conditions || is_tried_again {
            return Ok(());
        }
        let under_way: Vec<_> =
            self.cache.calls_under_way().iter().map(|number| &self.cache.calls[*number]).collect();
        for (at, call) in under_way.iter().enumerate() {
            let is_repeated = under_way[..at].iter().any(|other| {
                other.generation == call.generation && other.request.query == call.request.query
            });
            prop_assert!(!is_repeated, "two calls at once: {:?}", call.request.query);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn account_answers_keep_their_promises(settings in settings(), steps in steps()) {
        on_a_stepped_clock(async { AccountModel::new(settings).run(steps).await })?;
    }
}
