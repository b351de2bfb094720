//! A model-based test of blocks and missing blocks in every level of detail, with many callers and calls at
//! once.
//!
//! The nodes of this model contradict themselves from call to call, unlike real nodes. The model does not
//! predict which answer counts. It checks where an answer comes from and how old it is, and that a stored
//! answer about a final slot needs no node.

mod answers;
mod named;
mod steps;

use super::stepped_cache::{AnsweredCaller, SentCall};
use super::*;
use crate::cache::CacheStatus;
use crate::cache::entry::Class;
use crate::error::Error;
use crate::methods::{BlockDetails, BlockEncoding, BlockQuery};
use answers::{block_text, parent_of, serves_shape};
use steps::{ModelStep, TestAnswer, steps};

/// The newest finalized slot at the beginning of a generated test case.
const FINAL: Slot = FIRST - 32;
/// The newest confirmed slot at the beginning of a generated test case.
const CONFIRMED: Slot = FIRST - 2;
/// The greatest distance, in slots, of a requested slot from the newest known finalized or confirmed slot.
const AROUND: i64 = 4;

const SKIPPED: i32 = -32007;
const NOT_IN_STORAGE: i32 = -32009;
const NOT_YET: i32 = -32004;
const VERSION: i32 = -32015;

/// Returns the query of an upstream call.
fn asked(call: &SentCall) -> BlockQuery {
    let Query::Block(query) = call.request.query else { panic!("{:?}", call.request) };
    query
}

/// A caller's call.
#[derive(Debug)]
struct TestCall {
    query: BlockQuery,
    /// True if the slot was final when the caller asked.
    was_final: bool,
}

/// An upstream call that has ended.
struct EndedCall {
    number: usize,
    answer: TestAnswer,
    /// True if a stored block could prove that the requested slot was skipped.
    is_proven: bool,
    /// True if the requested slot was above the newest known slot of the call's commitment.
    was_future: bool,
    step: usize,
}

struct BlockModel {
    cache: SteppedCache<TestCall>,
    /// The ended calls, in the order in which they ended.
    ended: Vec<EndedCall>,
}

impl BlockModel {
    fn new() -> Self {
        Self { cache: SteppedCache::new(|_| ()), ended: Vec::new() }
    }

    /// Runs the steps, and then answers upstream calls until no caller waits.
    async fn run(mut self, steps: Vec<ModelStep>) -> Result<(), TestCaseError> {
        for step in steps {
            let node_is_down = matches!(step, ModelStep::NodeReply { answer: TestAnswer::Fault, .. });
            let must_hit = self.apply(step).await;
            self.settle_and_check(must_hit, node_is_down).await?;
        }
        for _ in 0..8 {
            for number in self.cache.calls_under_way() {
                self.end_call(number, TestAnswer::Block);
            }
            self.settle_and_check(None, false).await?;
        }
        prop_assert!(!self.cache.has_waiting_callers(), "a caller waits for ever");
        Ok(())
    }

    /// Applies a step. Returns the caller's query if a stored entry must answer it.
    async fn apply(&mut self, step: ModelStep) -> Option<BlockQuery> {
        match step {
            ModelStep::Wait { ms } => advance(Duration::from_millis(ms)).await,
            ModelStep::AdvanceFrontier { commitment, slots } => {
                self.cache.advance_frontier(commitment, slots);
            }
            ModelStep::Ask { query, bypass } => return self.ask(query, bypass),
            ModelStep::NodeReply { choice, answer } => {
                if let Some(number) = self.cache.call_under_way(choice) {
                    self.end_call(number, answer);
                }
            }
            ModelStep::PurgeAll => self.cache.purge_all(),
        }
        None
    }

    /// Starts a caller's call. Returns its query if a stored entry must answer it.
    fn ask(&mut self, query: BlockQuery, bypass: bool) -> Option<BlockQuery> {
        // The caller may join a fetch under way for the slot, even if an answer that serves the call is stored
        // by then.
        let under_way = self.cache.calls_under_way();
        let joins = under_way.iter().any(|number| asked(&self.cache.calls[*number]).slot == query.slot);
        let must_hit = !bypass && !joins && self.is_served_by_cache(&query);
        let was_final = query.slot <= self.cache.frontier.slot(Commitment::Finalized);
        self.cache.ask(TestCall { query, was_final }, Query::Block(query), options(bypass, None));
        must_hit.then_some(query)
    }

    fn end_call(&mut self, number: usize, answer: TestAnswer) {
        let query = asked(&self.cache.calls[number]);
        let was_future = query.slot > self.cache.frontier.slot(query.commitment);
        let is_proven = self.may_prove_skip(query.slot);
        self.ended.push(EndedCall { number, answer, is_proven, was_future, step: self.cache.step });
        let body = match answer {
            TestAnswer::Block => NodeReply::Result(block_text(&query, number)),
            TestAnswer::Null => NodeReply::Result(Bytes::from_static(b"null")),
            TestAnswer::Error(code) => {
                let body = format!(r#"{{"code":{code},"message":"{number}"}}"#).into();
                NodeReply::Error { code, body }
            }
            TestAnswer::Fault => return self.cache.fail_call(number),
        };
        self.cache.answer_call(number, body, FIRST);
    }

    /// Runs all tasks, and checks the answers that callers got. If the step was a failure of the node, calls that
    /// the cache then repeats also fail.
    async fn settle_and_check(
        &mut self,
        must_hit: Option<BlockQuery>,
        node_is_down: bool,
    ) -> Result<(), TestCaseError> {
        let asked_in = self.cache.step;
        let mut answered = self.cache.settle().await;
        if node_is_down {
            for number in self.cache.calls_sent_now() {
                self.end_call(number, TestAnswer::Fault);
            }
            answered.extend(self.cache.settle().await);
        }
        if let Some(query) = must_hit {
            let is_hit = |AnsweredCaller { caller, answer }: &AnsweredCaller<TestCall>| {
                caller.asked_in == asked_in && answer.as_ref().is_ok_and(|answer| answer.status.is_hit())
            };
            prop_assert!(answered.iter().any(is_hit), "a node was asked for {:?}, which is stored", query);
        }
        for AnsweredCaller { caller, answer } in &answered {
            match answer {
                Ok(answer) => self.check_answer(caller, answer)?,
                Err(error) => self.check_error(caller, error)?,
            }
        }
        Ok(())
    }

    /// Returns the time for which the cache may serve the answer of an ended call. `None` if the answer is
    /// never stored.
    fn life(&self, ended: &EndedCall) -> Option<EntryLife> {
        let query = asked(&self.cache.calls[ended.number]);
        match ended.answer {
            TestAnswer::Block | TestAnswer::Error(VERSION) if query.commitment == Commitment::Finalized => {
                Some(EntryLife::of_final_block())
            }
            TestAnswer::Block | TestAnswer::Error(VERSION) => Some(EntryLife::of_confirmed_block()),
            TestAnswer::Error(SKIPPED | NOT_IN_STORAGE) if ended.is_proven && !ended.was_future => {
                Some(EntryLife::of_skipped_slot())
            }
            TestAnswer::Error(SKIPPED | NOT_IN_STORAGE) if !ended.was_future => {
                Some(EntryLife::of_unconfirmed_skip())
            }
            TestAnswer::Error(NOT_YET) if ended.was_future => {
                let is_reached = self.cache.frontier.slot(query.commitment) >= query.slot;
                (!is_reached).then(EntryLife::of_future_block)
            }
            TestAnswer::Null => Some(EntryLife::of_absence()),
            TestAnswer::Error(code) if Method::GetBlock.rules().absences.contains(&code) => {
                Some(EntryLife::of_absence())
            }
            _ => None,
        }
    }

    /// Checks the text, source, commitment and age of an answer. Checks also that an answer without a block
    /// does not hide a fresh stored block.
    fn check_answer(&self, caller: &TestCaller<TestCall>, answer: &CacheAnswer) -> Result<(), TestCaseError> {
        let case = || format!("{:?} {answer:?}", caller.call);
        let Some(ended) = self.source(answer) else {
            // Null proves nothing, so it is stored for a moment only.
            let is_right = match answer.status {
                CacheStatus::Forwarded { .. } | CacheStatus::Collapsed => true,
                CacheStatus::Hit { stale, .. } => !stale && matches!(answer.meta.class, Class::Absent(..)),
                _ => false,
            };
            prop_assert!(is_right, "{}", case());
            return Ok(());
        };
        let TestCall { query, was_final } = &caller.call;
        let call = &self.cache.calls[ended.number];
        let source = asked(call);
        prop_assert!(source.slot == query.slot, "an answer about another slot: {}", case());
        prop_assert!(call.generation >= caller.generation, "from before a purge: {}", case());
        match &answer.payload {
            Payload::Result(body) => {
                let expected = block_text(query, ended.number);
                prop_assert_eq!(body.whole(), expected, "not the text of a node");
            }
            Payload::Error { code: VERSION, .. } => {
                let is_same = BlockQuery { commitment: query.commitment, ..source } == *query;
                prop_assert!(is_same, "an answer in another shape: {}", case());
            }
            Payload::Error { .. } => {}
        }
        // An answer fetched at finalized serves all callers. An answer fetched at confirmed serves callers at
        // confirmed while the slot is not final. The finalized answer that a block does not exist yet does not
        // serve these callers.
        let is_final = source.commitment == Commitment::Finalized;
        let takes_confirmed = query.commitment == Commitment::Confirmed && !was_final;
        let is_right = if ended.answer == TestAnswer::Error(NOT_YET) {
            // A slot may become final between two fetches for one caller.
            is_final != takes_confirmed || query.slot <= self.cache.frontier.slot(Commitment::Finalized)
        } else {
            is_final || takes_confirmed
        };
        prop_assert!(is_right, "an answer of another commitment: {}", case());
        self.check_age(caller, answer, ended)?;
        let is_exact = |block: &BlockQuery| BlockQuery { commitment: query.commitment, ..*block } == *query;
        let hides_block = answer.status.is_hit()
            && ended.answer != TestAnswer::Block
            && self.holds_fresh_block(query.slot, caller.asked_in, is_exact);
        prop_assert!(!hides_block, "an absence hides a stored block: {}", case());
        Ok(())
    }

    fn check_age(
        &self,
        caller: &TestCaller<TestCall>,
        answer: &CacheAnswer,
        ended: &EndedCall,
    ) -> Result<(), TestCaseError> {
        let (age, life) = (self.age(ended), self.life(ended));
        let is_own = self.cache.calls[ended.number].sent_at >= caller.asked_at;
        let is_in_time = match answer.status {
            CacheStatus::Hit { stale, .. } => !stale && life.is_some_and(|life| age <= life.fresh),
            CacheStatus::StaleIfError { .. } => life.is_some_and(|life| age <= life.in_fault),
            // While a slot is not final, the answer that its block is missing is stored only for a moment. Its
            // age is not checked here.
            CacheStatus::Collapsed => {
                let is_early = ended.answer != TestAnswer::Block && caller.call.query.slot > FINAL;
                is_own || is_early || life.is_none_or(|life| age <= life.fresh)
            }
            CacheStatus::Forwarded { stored, .. } => is_own && (!stored || life.is_some()),
            CacheStatus::Bypassed | CacheStatus::Batch { .. } | CacheStatus::Carried => false,
        };
        prop_assert!(is_in_time, "too old, after {:?} of {:?}: {:?} {:?}", age, life, caller.call, answer);
        Ok(())
    }

    /// Returns the ended call that brought `answer`. `None` for the answer null, whose text contains no
    /// call's number.
    fn source(&self, answer: &CacheAnswer) -> Option<&EndedCall> {
        let text = match &answer.payload {
            Payload::Result(body) => body.whole(),
            Payload::Error { body, .. } => body.clone(),
        };
        let text: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let number = text["blockHeight"].as_u64().or_else(|| text["message"].as_str()?.parse().ok())?;
        self.ended.iter().find(|ended| ended.number as u64 == number)
    }

    /// Checks that a caller gets an error only after a failure or a timeout, and never while a block that
    /// serves the call is stored. A final block may be served at any age when no node answers.
    fn check_error(&self, caller: &TestCaller<TestCall>, error: &Error) -> Result<(), TestCaseError> {
        let has_failed = self.ended.iter().any(|ended| ended.answer == TestAnswer::Fault);
        let is_explained = has_failed || matches!(error, Error::TimedOut(_));
        prop_assert!(is_explained, "an error although no node failed: {:?}: {:?}", caller.call, error);
        let query = &caller.call.query;
        let life = EntryLife::of_final_block().in_fault;
        let is_stored =
            self.holds_block(query.slot, life, caller.asked_in, |block| serves_shape(block, query));
        prop_assert!(!is_stored, "{:?}: {:?} although a block that serves it is stored", caller.call, error);
        Ok(())
    }

    /// Returns the answers that the cache may hold about a slot, each with the query of its call. Returns none
    /// for a slot that was not final at the beginning of the generated test case.
    fn stored_answers(&self, slot: Slot) -> impl DoubleEndedIterator<Item = (&EndedCall, BlockQuery)> {
        self.ended.iter().filter_map(move |ended| {
            let call = &self.cache.calls[ended.number];
            let is_kept = call.generation == self.cache.generation && call.stored_answer().is_some();
            (is_kept && slot <= FINAL && asked(call).slot == slot).then(|| (ended, asked(call)))
        })
    }

    /// Returns true if a final block after `slot` that the cache may hold has its parent before `slot`.
    fn may_prove_skip(&self, slot: Slot) -> bool {
        self.ended.iter().any(|ended| {
            let (call, block) = (&self.cache.calls[ended.number], asked(&self.cache.calls[ended.number]));
            ended.answer == TestAnswer::Block
                && block.commitment == Commitment::Finalized
                && call.generation == self.cache.generation
                && (parent_of(block.slot) + 1..block.slot).contains(&slot)
        })
    }

    fn age(&self, ended: &EndedCall) -> Duration {
        self.cache.calls[ended.number].sent_at.elapsed()
    }

    /// Returns true if the cache holds a fresh final block of `slot` that was fetched before `step`. `shape`
    /// must return true for the query with which the block was fetched.
    fn holds_fresh_block(&self, slot: Slot, step: usize, shape: impl Fn(&BlockQuery) -> bool) -> bool {
        self.holds_block(slot, EntryLife::of_final_block().fresh, step, shape)
    }

    /// Returns true if the cache holds a final block of at most this age that was fetched before `step`.
    /// `shape` must return true for the query with which the block was fetched.
    fn holds_block(
        &self,
        slot: Slot,
        age: Duration,
        step: usize,
        shape: impl Fn(&BlockQuery) -> bool,
    ) -> bool {
        // An error about transaction versions replaces a stored block.
        let has_version_error =
            self.stored_answers(slot).any(|(ended, _)| ended.answer == TestAnswer::Error(VERSION));
        let mut blocks = self
            .stored_answers(slot)
            .filter(|(ended, _)| ended.answer == TestAnswer::Block && ended.step < step);
        !has_version_error && blocks.any(|(ended, block)| self.age(ended) <= age && shape(&block))
    }

    /// Returns true if a stored entry must answer the query without a node.
    fn is_served_by_cache(&self, query: &BlockQuery) -> bool {
        let is_absence = |answer| matches!(answer, TestAnswer::Error(SKIPPED | NOT_IN_STORAGE));
        let absence = self.stored_answers(query.slot).rfind(|(ended, _)| is_absence(ended.answer));
        let is_absent =
            absence.is_some_and(|(ended, _)| self.age(ended) <= EntryLife::of_unconfirmed_skip().fresh);
        is_absent || self.holds_fresh_block(query.slot, self.cache.step, |block| serves_shape(block, query))
    }
}

fn run(steps: Vec<ModelStep>) -> Result<(), TestCaseError> {
    on_a_stepped_clock(async { BlockModel::new().run(steps).await })
}

proptest! {
    #[test]
    fn block_answers_keep_their_promises(steps in steps()) {
        run(steps)?;
    }
}
