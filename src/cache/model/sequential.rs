//! A test of the cache against a reference model, with random slots, answers, times and conditions of callers.
//!
//! The reference model predicts which stored answer may be served, which answer replaces a stored one, and
//! which answers from the shared store are accepted. Events happen one at a time, and no node is simulated.
//! [`super::accounts`] and [`super::blocks`] test many callers at once.

use super::reference::{Arrival, ReferenceCache, StoredAnswer};
use super::*;
use crate::cache::answer::serve_fetched;
use crate::cache::derive::list::joined;
use crate::cache::fetched::Fetched;
use crate::cache::fetcher::AnswerSource;
use crate::cache::freshness::{Limit, ServeRule};
use Question::{Account, Balance, Fee, List, Votes};

/// One event in a random sequence, for the cache and the reference model.
#[derive(Debug, Clone)]
enum ModelStep {
    /// Time passes.
    Wait { ms: u64 },
    /// The newest known slot of a commitment rises by `slots`.
    AdvanceFrontier { commitment: Commitment, slots: Slot },
    /// A caller asks. If `wanted_behind` is set, the caller wants an answer at most that many slots below the
    /// newest known slot. If no stored answer is suitable, the node answers at once, `node_behind` slots
    /// below the newest known slot.
    Ask { query: TestQuery, wanted_behind: Option<i64>, node_behind: i64 },
    /// A node's answer to an earlier call arrives.
    NodeReply(DelayedReply),
    /// A call is sent, the cache is purged, and then the node's answer to the call arrives.
    NodeReplyAfterPurge(DelayedReply),
    /// Another gateway has written an answer to the shared store, and this gateway reads it.
    SharedReply(DelayedReply),
}

/// An answer to a call that was sent some time ago.
#[derive(Debug, Clone, Copy)]
struct DelayedReply {
    query: TestQuery,
    /// The number of slots by which the answer is below the newest known slot.
    behind: i64,
    /// The time since the call was sent.
    age_ms: u64,
}

fn steps() -> impl Strategy<Value = Vec<ModelStep>> {
    let question =
        prop_oneof![Just(Account(0)), Just(Account(1)), Just(List), Just(Balance), Just(Fee), Just(Votes)];
    let commitment = || proptest::sample::select(Commitment::ALL.to_vec());
    let query = (question, commitment()).prop_map(|(question, commitment)| question.at(commitment)).boxed();
    // Most slots are near the frontier. A few are too far ahead to be believed.
    let behind = || prop_oneof![8 => -2..16_i64, 1 => -80..-60_i64];
    let reply = |age_ms: BoxedStrategy<u64>| {
        let parts = (query.clone(), behind(), age_ms);
        parts.prop_map(|(query, behind, age_ms)| DelayedReply { query, behind, age_ms })
    };
    let wanted_behind = proptest::option::weighted(0.3, -6..16_i64);
    let step = prop_oneof![
        2 => prop_oneof![0..500_u64, 0..9_000_u64, 0..70_000_u64].prop_map(|ms| ModelStep::Wait { ms }),
        3 => (commitment(), 0..8_u64)
            .prop_map(|(commitment, slots)| ModelStep::AdvanceFrontier { commitment, slots }),
        6 => (query.clone(), wanted_behind, behind()).prop_map(|(query, wanted_behind, node_behind)| {
            ModelStep::Ask { query, wanted_behind, node_behind }
        }),
        3 => reply((0..3_000_u64).boxed()).prop_map(ModelStep::NodeReply),
        1 => reply((0..3_000_u64).boxed()).prop_map(ModelStep::NodeReplyAfterPurge),
        2 => reply(prop_oneof![0..900_u64, 0..9_000_u64].boxed()).prop_map(ModelStep::SharedReply),
    ];
    proptest::collection::vec(step, 1..60)
}

/// The slot and text of an answer, as its caller gets them.
#[derive(Debug, PartialEq)]
struct ShownAnswer {
    slot: Slot,
    text: String,
}

impl ShownAnswer {
    fn new(answer: &CacheAnswer) -> Self {
        let Payload::Result(body) = &answer.payload else { panic!("{answer:?}") };
        Self { slot: answer.meta.slot, text: String::from_utf8(body.whole().to_vec()).unwrap() }
    }
}

/// The state of the cache when an upstream call was sent: the slot that the call asked for, and the number of
/// purges.
#[derive(Debug, Clone, Copy)]
struct SentUnder {
    floor: Slot,
    generation: u64,
}

/// The real cache, and the newest slots that it knows.
struct CacheUnderTest {
    cache: Arc<Cache>,
    frontier: Arc<Frontier>,
}

impl CacheUnderTest {
    fn new() -> Self {
        let config = bounds::CONFIG.clone();
        let (metrics, frontier) = (Metrics::new(), Arc::new(Frontier::new(1)));
        let pool = Arc::new(Pool::new(&config, Arc::clone(&frontier), Arc::clone(&metrics)).unwrap());
        let cache = Cache::new(
            &config,
            Arc::clone(&frontier),
            pool,
            Arc::default(),
            metrics,
            TaskTracker::new(),
            None,
        );
        for (c, slot) in Commitment::ALL.into_iter().zip([FIRST, FIRST - 2, FIRST - 32]) {
            frontier.probed(frontier.era(), 0, c, slot, Instant::now());
        }
        Self { cache, frontier }
    }

    fn slot_behind(&self, commitment: Commitment, behind: i64) -> Slot {
        self.frontier.slot(commitment).saturating_add_signed(-behind)
    }

    /// Returns the state of the cache with which a call for `query` is sent now.
    fn sent_now(&self, query: TestQuery) -> SentUnder {
        let stored = &self.cache.lookup;
        let floor = match query.commitment {
            Commitment::Processed => 0,
            _ => stored.floor(&self.cache.lookup.plan(&query.query()).key, Instant::now()),
        };
        SentUnder { floor, generation: stored.generation.number() }
    }

    /// Gives the cache a reply to a call that was sent in the given state of the cache. Returns the answer
    /// that the call's caller gets.
    async fn accept(
        &self,
        query: TestQuery,
        reply: &crate::pool::PoolReply,
        sent_under: SentUnder,
        source: AnswerSource,
    ) -> ShownAnswer {
        let SentUnder { floor, generation } = sent_under;
        let (query, charge) = (query.query(), Charge::free());
        let arrived_at = reply.sent_at;
        let call = PlannedCall { arrived_at, ..planned(&self.cache, &query, &charge) };
        let fetched =
            self.cache.fetcher.store_answer(&call.plan, reply, floor, generation, source).await.unwrap();
        let rule = call.rule(Limit::InFault);
        let answer = serve_fetched(&self.cache, &call, &fetched, rule, None, false).await;
        ShownAnswer::new(&answer.unwrap().unwrap())
    }

    /// Gives the cache a node's answer, as if its call were sent now. Only the answer's age counts from
    /// `sent_at`.
    async fn accept_from_node(&self, query: TestQuery, slot: Slot, sent_at: Instant) -> ShownAnswer {
        let reply = query.reply_at(slot, sent_at);
        self.accept(query, &reply, self.sent_now(query), AnswerSource::Node { chain: 0 }).await
    }

    /// Gives the cache an answer from the shared store. `None` if the cache refuses it.
    async fn accept_shared(&self, query: TestQuery, slot: Slot, sent_at: Instant) -> Option<ShownAnswer> {
        let reply = query.reply_at(slot, sent_at);
        let plan = self.cache.lookup.plan(&query.query());
        if !self.cache.lookup.accepts_shared(&plan, &reply, 0) {
            return None;
        }
        let sent_under = SentUnder { floor: 0, ..self.sent_now(query) };
        Some(self.accept(query, &reply, sent_under, AnswerSource::Shared).await)
    }

    /// Returns the stored answer if it may be served.
    async fn look_up(&self, query: TestQuery, min_slot: Option<Slot>) -> Option<ShownAnswer> {
        let (query, charge) = (query.query(), Charge::free());
        let call = planned(&self.cache, &query, &charge);
        let rule = ServeRule::within(Limit::Stale).at_least(min_slot.unwrap_or(0));
        let found = self.cache.lookup.find_planned(&call.plan, &rule);
        let (stored, _) = found.filter(|(_, verdict)| verdict.is_yes())?;
        let found = Fetched::AlreadyFresh(stored.entry, None);
        let answer = serve_fetched(&self.cache, &call, &found, call.rule(Limit::Stale), None, false).await;
        Some(ShownAnswer::new(&answer.unwrap().unwrap()))
    }
}

fn planned<'a>(cache: &Cache, query: &'a Query, charge: &'a Charge) -> PlannedCall<'a> {
    let plan = cache.lookup.plan(query);
    let (options, _) = options(false, None);
    PlannedCall { query, plan, options, charge, conditions: &NoConditions, arrived_at: Instant::now() }
}

/// An answer that a caller was shown, and the slot that the reference model predicts.
struct Outcome {
    query: TestQuery,
    shown: ShownAnswer,
    predicted: Slot,
    /// True if no node was asked.
    is_hit: bool,
}

/// The real cache, the reference model, and the answers that callers were shown.
struct SequentialModel {
    real: CacheUnderTest,
    reference: ReferenceCache,
    /// The slot that was last shown for each query. `sent_at` is the time of the oldest call whose answer may
    /// still be served for the query.
    last_shown: BTreeMap<TestQuery, StoredAnswer>,
    /// The slot at which each account was shown last, and the time at which that happened.
    accounts_shown: BTreeMap<(u8, Commitment), (Slot, Instant)>,
}

impl SequentialModel {
    fn new() -> Self {
        let (last_shown, accounts_shown) = (BTreeMap::new(), BTreeMap::new());
        Self { real: CacheUnderTest::new(), reference: ReferenceCache::default(), last_shown, accounts_shown }
    }

    async fn run(mut self, steps: Vec<ModelStep>) -> Result<(), TestCaseError> {
        for step in steps {
            let now = Instant::now();
            if let Some(outcome) = self.apply(step, now).await? {
                self.check(&outcome, now)?;
            }
        }
        Ok(())
    }

    /// Applies a step to the cache and to the reference model. Returns the answer that a caller is shown.
    /// `None` if the step shows no caller an answer.
    async fn apply(&mut self, step: ModelStep, now: Instant) -> Result<Option<Outcome>, TestCaseError> {
        match step {
            ModelStep::Wait { ms } => {
                advance(Duration::from_millis(ms)).await;
                Ok(None)
            }
            ModelStep::AdvanceFrontier { commitment, slots } => {
                let slot = self.real.frontier.slot(commitment) + slots;
                self.real.frontier.probed(self.real.frontier.era(), 0, commitment, slot, now);
                Ok(None)
            }
            ModelStep::Ask { query, wanted_behind, node_behind } => {
                self.ask(query, wanted_behind, node_behind, now).await.map(Some)
            }
            ModelStep::NodeReply(reply) => {
                let (query, arrival) = (reply.query, self.arrival(reply, now));
                let shown = self.real.accept_from_node(query, arrival.slot, arrival.sent_at).await;
                let predicted = self.reference.accept(query, arrival);
                Ok(Some(Outcome { query, shown, predicted, is_hit: false }))
            }
            ModelStep::NodeReplyAfterPurge(reply) => self.accept_after_purge(reply, now).await.map(|()| None),
            ModelStep::SharedReply(reply) => {
                let (query, arrival) = (reply.query, Arrival { floor: 0, ..self.arrival(reply, now) });
                let accepts = self.reference.accepts_shared(query, arrival);
                let shown = self.real.accept_shared(query, arrival.slot, arrival.sent_at).await;
                prop_assert_eq!(shown.is_some(), accepts, "shared: {:?}", query);
                let outcome = shown.map(|shown| {
                    let predicted = self.reference.accept(query, arrival);
                    Outcome { query, shown, predicted, is_hit: false }
                });
                Ok(outcome)
            }
        }
    }

    fn arrival(&self, reply: DelayedReply, now: Instant) -> Arrival {
        let DelayedReply { query, behind, age_ms } = reply;
        let slot = self.real.slot_behind(query.commitment, behind);
        let sent_at = now.checked_sub(Duration::from_millis(age_ms)).unwrap_or(now);
        let frontier = self.real.frontier.slot(query.commitment);
        Arrival { slot, sent_at, frontier, floor: self.reference.floor_to_ask_for(query, now), now }
    }

    async fn ask(
        &mut self,
        query: TestQuery,
        wanted_behind: Option<i64>,
        node_behind: i64,
        now: Instant,
    ) -> Result<Outcome, TestCaseError> {
        let frontier = self.real.frontier.slot(query.commitment);
        let min_slot = wanted_behind.map(|behind| self.real.slot_behind(query.commitment, behind));
        let least = min_slot.max(Some(self.reference.floor(query, now)));
        let usable = self.reference.usability(query, frontier, now);
        let predicted =
            usable.filter(|stored| stored.serves && Some(stored.slot) >= least).map(|stored| stored.slot);
        let found = self.real.look_up(query, min_slot).await;
        prop_assert_eq!(found.as_ref().map(|found| found.slot), predicted, "{:?}", query);
        if let (Some(shown), Some(predicted)) = (found, predicted) {
            self.reference.show_stored(query, predicted, now);
            return Ok(Outcome { query, shown, predicted, is_hit: true });
        }
        let arrival = self.arrival(DelayedReply { query, behind: node_behind, age_ms: 0 }, now);
        let shown = self.real.accept_from_node(query, arrival.slot, now).await;
        Ok(Outcome { query, shown, predicted: self.reference.accept(query, arrival), is_hit: false })
    }

    /// Sends a call, purges the cache, and then lets the node's answer to the call arrive.
    async fn accept_after_purge(&mut self, reply: DelayedReply, now: Instant) -> Result<(), TestCaseError> {
        let (query, arrival) = (reply.query, self.arrival(reply, now));
        let sent_under = self.real.sent_now(query);
        self.real.cache.purger().clear();
        self.reference = ReferenceCache::default();
        self.last_shown.clear();
        self.accounts_shown.clear();
        let node_reply = query.reply_at(arrival.slot, arrival.sent_at);
        let shown = self.real.accept(query, &node_reply, sent_under, AnswerSource::Node { chain: 0 }).await;
        // The callers who waited for the answer get it. Later callers do not.
        let text = query.result_at(arrival.slot);
        prop_assert_eq!(shown, ShownAnswer { slot: arrival.slot, text });
        Ok(())
    }

    /// Checks an answer against the reference model's prediction, and against earlier answers.
    fn check(&mut self, outcome: &Outcome, now: Instant) -> Result<(), TestCaseError> {
        let Outcome { query, shown, predicted, is_hit } = outcome;
        let (query, slot) = (*query, shown.slot);
        prop_assert_eq!(slot, *predicted, "{:?}", query);
        let expected = query.result_at(slot);
        prop_assert_eq!(&shown.text, &expected, "another question's answer, or another commitment's");
        // The answer's slot must not be below that of a shown answer that may still be served, whatever the
        // model predicts.
        let before = self.last_shown.get(&query).filter(|_| ReferenceCache::never_goes_back(query));
        if let Some(before) = before {
            let is_over = !query.bounds().may_stand_in(now - before.sent_at);
            prop_assert!(slot >= before.slot || is_over, "{:?} goes back from {}", query, before.slot);
        }
        // An answer at an implausibly high slot raises no floor.
        if slot <= bounds::highest_believed(self.real.frontier.slot(query.commitment)) {
            self.check_accounts(query, slot, *is_hit)?;
        }
        // An answer that is not stored cannot be served again, so it counts as expired.
        let over = StoredAnswer { slot, sent_at: now - Duration::from_mins(2) };
        let stored = self.reference.stored(query).filter(|stored| stored.slot == slot);
        self.last_shown.insert(query, stored.unwrap_or(over));
        // An answer of a higher slot may replace the shown one. If the call of the new answer is older, the
        // new answer expires earlier.
        for entry in query.stored_under() {
            if let (Some(shown), Some(stored)) =
                (self.last_shown.get_mut(&entry), self.reference.stored(entry))
            {
                shown.sent_at = stored.sent_at.min(shown.sent_at);
            }
        }
        Ok(())
    }

    /// Checks that a hit is not behind the slot at which any of its accounts was shown last.
    fn check_accounts(&mut self, query: TestQuery, slot: Slot, is_hit: bool) -> Result<(), TestCaseError> {
        let life = AnswerBounds::of_accounts(query.commitment).longest_life();
        for n in query.accounts() {
            let before = self.accounts_shown.insert((*n, query.commitment), (slot, Instant::now()));
            let before = before.filter(|(_, at)| is_hit && at.elapsed() <= life);
            let is_behind = before.is_some_and(|(before, _)| slot < before);
            prop_assert!(!is_behind, "{:?}: account {} goes back from {:?}", query, n, before);
        }
        Ok(())
    }
}

/// Returns proptest's settings with twice the usual number of cases, which `PROPTEST_CASES` sets.
fn twice_as_many_as_usual() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases * 2, ..usual }
}

proptest! {
    #![proptest_config(twice_as_many_as_usual())]

    #[test]
    fn cache_matches_its_model(steps in steps()) {
        on_a_stepped_clock(async { SequentialModel::new().run(steps).await })?;
    }
}

#[test]
fn assembled_list_never_replaces_a_newer_one() {
    on_a_stepped_clock(async {
        let (real, c, now) = (CacheUnderTest::new(), Commitment::Finalized, Instant::now());
        real.frontier.probed(real.frontier.era(), 0, c, FIRST, now);
        for n in [0, 1] {
            real.accept_from_node(Account(n).at(c), FIRST, now).await;
        }
        let query = List.at(c).query();
        let Query::Accounts(query) = &query else { panic!("{query:?}") };
        let list = || {
            let singles = {
                let guard = real.cache.lookup.generation.lock();
                real.cache.lookup.find_singles(query, ServeRule::within(Limit::Fresh), &guard)
            };
            joined(&singles.into_iter().collect::<Option<Vec<_>>>().unwrap()).unwrap()
        };
        let made = list();
        assert!(!real.cache.lookup.holds_newer(query, &made));
        // Another call brings a newer list between the check and the insert.
        real.accept_from_node(List.at(c), FIRST + 1, now).await;
        assert!(real.cache.lookup.insert_list(query, made).is_none());
        assert_eq!(real.cache.lookup.insert_list(query, list()).unwrap().meta.slot, FIRST + 1);
    });
}

#[test]
fn expired_list_gives_way_to_assembled_one() {
    let confirmed = |question| TestQuery { question, commitment: Commitment::Confirmed };
    let ask = |question, node_behind| ModelStep::Ask {
        query: confirmed(question),
        wanted_behind: None,
        node_behind,
    };
    let steps = vec![
        ask(Question::List, 0),
        // A confirmed answer may be served for ten seconds while no node answers.
        ModelStep::Wait { ms: 10_001 },
        ask(Question::Account(0), 9),
        ModelStep::AdvanceFrontier { commitment: Commitment::Confirmed, slots: 1 },
        ask(Question::Account(1), 10),
        ask(Question::List, 11),
    ];
    on_a_stepped_clock(async { SequentialModel::new().run(steps).await }).unwrap();
}
