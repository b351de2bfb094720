//! The read-through cache: look up, derive, join or lead a flight, judge what landed and keep it.
//!
//! Never asks twice at once for the same, never replaces an answer by an older one, never answers for a stronger
//! commitment than the one that was asked. What it serves past its bounds says so in its [`CacheStatus`].

mod coded;
pub mod derive;
pub mod entry;
mod fetch;
pub mod flight;
pub mod freshness;
mod generation;
mod judge;
pub mod key;
mod merge;
pub mod purge;
mod serve;
mod shared;
pub mod sizes;
pub mod status;
pub mod store;
pub mod verify;

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

pub use coded::WORTH_BYTES;
use derive::Use;
use entry::{Entry, Payload, Stamp};
use fetch::{Demand, FlightKey, Landing};
use flight::Flights;
use freshness::{Class, Freshness, Rules};
use generation::Generation;
use key::{Key, Plan};
use merge::Merger;
use shared::Second;
use sizes::Sizes;
pub use status::{CacheStatus, Why};
use store::{Held, Store};
use verify::Verifier;

use crate::config;
use crate::error::Error;
use crate::frontier::Frontier;
use crate::methods::{AccountForm, Commitment, Query, Slot};
use crate::pool::Pool;
use crate::shared as shared_store;
use crate::telemetry::{AttemptResult, Metrics, Outcome, StaleCause, Trace};

/// A minContextSlot this little above the frontier is waited for: a slot takes about 400 ms.
const FRONTIER_WAIT: Duration = Duration::from_millis(400);

/// What a caller asks of the cache beside the query.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Go past the cache (the answer is kept all the same).
    pub bypass: bool,
    /// The slot that this caller must not fall behind: a hit below is a miss to this caller; never an error.
    pub floor: Option<Slot>,
    /// When the caller stops waiting.
    pub deadline: Instant,
    /// Its place in a trace.
    pub trace: Trace,
}

/// An answer on its way to a caller.
#[derive(Debug, Clone)]
pub struct Answer {
    /// What a node said.
    pub payload: Payload,
    /// Where it came from, for the `Cache-Status` header.
    pub status: CacheStatus,
    /// The same, for metrics.
    pub outcome: Outcome,
    /// The slot that it stands for.
    pub slot: Slot,
    /// The entry whose text it is, where that is long enough to be worth compressing.
    pub source: Option<Arc<Entry>>,
}

/// The cache over a pool.
pub struct Cache {
    store: Store,
    sizes: Sizes,
    /// How often the cache was emptied.
    generation: Generation,
    /// Bounds the work on long texts that runs beside the async workers.
    makers: Arc<Semaphore>,
    merger: Arc<Merger>,
    flights: Arc<Flights<FlightKey, Landing>>,
    /// The level that other gateways share, if there is one.
    second: Option<Second>,
    rules: Rules,
    frontier: Arc<Frontier>,
    pool: Arc<Pool>,
    metrics: Arc<Metrics>,
    request_timeout: Duration,
    verifier: Arc<Verifier>,
    tasks: TaskTracker,
}

/// What the store has for a plan.
enum Found {
    Nothing,
    Fresh(Held),
    Stale(Held),
    Expired,
}

/// A call whose answer is not at hand: how it is planned, and what was found.
pub struct Left {
    plan: Plan,
    terms: Terms,
    found: Found,
}

/// One caller's call, planned.
struct Asked<'a> {
    query: &'a Query,
    plan: Plan,
    why: Why,
    terms: Terms,
}

impl Asked<'_> {
    /// The slot that an answer should stand for: the caller's condition, or the floor that its plan keeps.
    fn wanted(&self) -> Option<Slot> {
        self.query.min_context_slot().max(self.terms.floor)
    }
}

impl Cache {
    /// An empty cache over `pool`; fetches run as tasks of `tasks`.
    pub fn new(
        config: &config::Config,
        frontier: Arc<Frontier>,
        pool: Arc<Pool>,
        metrics: Arc<Metrics>,
        tasks: TaskTracker,
        shared: Option<&Arc<shared_store::Store>>,
    ) -> Arc<Self> {
        let second = shared.map(|store| Second::new(config, Arc::clone(store), &metrics, &tasks));
        Arc::new(Self {
            second,
            store: Store::new(config.cache.capacity, config.cache.max_entry, Arc::clone(&metrics)),
            sizes: Sizes::default(),
            generation: Generation::default(),
            merger: Arc::default(),
            makers: Arc::new(Semaphore::new(
                std::thread::available_parallelism().map_or(1, NonZero::get) * 2,
            )),
            flights: Flights::new(tasks.clone()),
            rules: Rules(config.cache.clone()),
            frontier,
            pool,
            request_timeout: config.server.request_timeout,
            verifier: Verifier::new(
                config.verify.sample,
                config.server.request_timeout,
                Arc::clone(&metrics),
            ),
            metrics,
            tasks,
        })
    }

    /// Answers `query` from what is kept, or from a node.
    ///
    /// # Errors
    /// [`Error::NoUpstream`] where no node answers, [`Error::TimedOut`] where none does in time, and nothing kept may
    /// stand in.
    pub async fn answer(self: &Arc<Self>, query: &Query, terms: Terms) -> Result<Answer, Error> {
        match self.at_hand(query, terms) {
            Ok(answer) => Ok(answer),
            Err(left) => self.go_on(query, left).await,
        }
    }

    /// The first half of [`Self::answer`]: the answer where it is kept and takes no work. Most answers are, and then no
    /// future is made.
    ///
    /// # Errors
    /// No error of the call's: what [`Self::go_on`] goes on from.
    pub fn at_hand(&self, query: &Query, terms: Terms) -> Result<Answer, Box<Left>> {
        let plan = Plan::new(query, &self.frontier, &self.sizes);
        let call = Asked { query, plan, why: Why::Miss, terms };
        let found = if call.terms.bypass { Found::Nothing } else { self.look_up(&call.plan, call.wanted()) };
        if let Found::Fresh(entry) = &found
            && let Some(answer) = self.hit_at_once(query, entry)
        {
            return Ok(answer);
        }
        let Asked { plan, terms, .. } = call;
        Err(Box::new(Left { plan, terms, found }))
    }

    /// The second half of [`Self::answer`], for the same `query`.
    ///
    /// # Errors
    /// As there.
    pub async fn go_on(self: &Arc<Self>, query: &Query, left: Box<Left>) -> Result<Answer, Error> {
        let Left { plan, terms, found } = *left;
        self.answer_in_time(Asked { query, plan, why: Why::Miss, terms }, found).await
    }

    /// The answer where it is not at hand.
    async fn answer_in_time(self: &Arc<Self>, mut call: Asked<'_>, found: Found) -> Result<Answer, Error> {
        let (query, deadline) = (call.query, call.terms.deadline);
        if call.terms.bypass {
            call.why = Why::Request;
        } else {
            // What is kept but cannot be read is as good as nothing.
            if let Some(Ok(answer)) = self.from_kept(&call, &found).await {
                return Ok(answer);
            }
            if matches!(found, Found::Expired) {
                call.why = Why::Stale;
            }
        }
        let mut answer = tokio::time::timeout_at(deadline, self.from_node(&call)).await;
        if let Ok(Err(Error::NoUpstream(attempts))) = &answer
            && attempts.iter().any(|attempt| attempt.reason == AttemptResult::TooLarge.as_str())
            && self.asks_too_much(&call)
        {
            call.plan = Plan::new(query, &self.frontier, &self.sizes);
            answer = tokio::time::timeout_at(deadline, self.from_node(&call)).await;
        }
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => self.in_fault(&call, error).await,
            Err(_) => self.in_fault(&call, Error::TimedOut(self.request_timeout)).await,
        }
    }

    /// An answer from what was found, or from what it can be made of at once; `None` where a node is to be asked.
    async fn from_kept(self: &Arc<Self>, call: &Asked<'_>, found: &Found) -> Option<Result<Answer, Error>> {
        if let Found::Fresh(held) = found {
            return Some(self.hit(call.query, &held.entry(), Outcome::Hit).await);
        }
        if let Some(list) = self.assembled(call, Use::Fresh) {
            return Some(self.hit(call.query, &list, Outcome::Derived).await);
        }
        if let Found::Stale(held) = found {
            drop(self.board(&call.plan, Demand::Any, &call.terms.trace));
            return Some(self.hit(call.query, &held.entry(), Outcome::Stale).await);
        }
        None
    }

    /// Whether more was asked of a node than the caller wants, which then is not done again.
    fn asks_too_much(&self, call: &Asked<'_>) -> bool {
        let wider = |asked: AccountForm, sent: AccountForm| asked != sent && sent.slice.is_none();
        match (call.query, &call.plan.upstream) {
            (Query::Account(asked), Query::Account(sent)) if wider(asked.form, sent.form) => {
                self.sizes.note_large(&asked.pubkey);
                true
            }
            (Query::Accounts(asked), Query::Accounts(sent)) if wider(asked.form, sent.form) => {
                asked.pubkeys.iter().for_each(|pubkey| self.sizes.note_large(pubkey));
                true
            }
            _ => false,
        }
    }

    /// The answer of a node: by a flight shared with others, or by a call of this caller's own.
    async fn from_node(self: &Arc<Self>, call: &Asked<'_>) -> Result<Answer, Error> {
        let (own, commitment) = (call.query.min_context_slot(), call.query.commitment());
        // No node is known to be at a floor above the frontier: there, what lands first is taken.
        let reached = |floor: &Slot| commitment.is_some_and(|c| self.frontier.slot(c) >= *floor);
        let floor = call.terms.floor.filter(reached);
        let last = floor.map_or(Demand::Any, Demand::Reached);
        if call.why == Why::Request {
            let landed = self
                .fetch(
                    &call.plan,
                    own.map_or(last, Demand::Own),
                    call.terms.deadline,
                    call.terms.trace.clone(),
                )
                .await?;
            return self.land(call, &landed, true).await;
        }
        if let Some(answer) = self.completed(call).await {
            return Ok(answer);
        }
        let (Some(slot), Some(commitment)) = (own, commitment) else {
            // Whoever got an answer below the floor, or joined and got one too old, asks once more, and takes what comes.
            return match self.by_flight(call, Demand::Any, floor).await? {
                Some(answer) => Ok(answer),
                None => self.last_flight(call, last).await,
            };
        };
        if self.frontier_reaches(slot, commitment).await {
            if let Some(answer) = self.by_flight(call, Demand::Any, own.max(floor)).await? {
                return Ok(answer);
            }
            // All for whom the first answer was too low share the next, from a node at the frontier.
            let reached = Demand::Reached(self.frontier.slot(commitment));
            if let Some(answer) = self.by_flight(call, reached, own).await? {
                return Ok(answer);
            }
        }
        self.last_flight(call, Demand::Own(slot)).await
    }

    /// Bytes held, and entries.
    pub fn usage(&self) -> (u64, u64) {
        self.store.usage()
    }

    /// Whether there is a shared store, and it answers.
    pub fn shares(&self) -> bool {
        self.second.as_ref().is_some_and(Second::is_there)
    }

    /// Forgets everything, and does not keep what nodes are being asked just now, nor give it to whoever asks from now on.
    pub fn clear(&self) {
        self.empties();
        self.store.clear();
    }

    /// Forgets what `filter` takes, and says how many entries that were; no work for an async worker.
    pub fn purge(&self, filter: &purge::Filter) -> u64 {
        self.empties();
        if !filter.is_everything() {
            return self.store.purge(|key| filter.takes(key));
        }
        let (_, entries) = self.store.usage();
        self.store.clear();
        entries
    }

    /// What was asked for until now is not kept any more, and not taken from the shared store either.
    fn empties(&self) {
        self.generation.ends();
        if let Some(second) = &self.second {
            second.nothing_before(Instant::now());
        }
    }

    /// What is kept for `plan`, as far as it reaches the slot that the caller wants.
    fn look_up(&self, plan: &Plan, wanted: Option<Slot>) -> Found {
        self.judged(plan, wanted, |cause| self.metrics.cache_stale.at(cause).inc())
    }

    /// The same, with a word for each entry that may not serve as it is.
    fn judged(&self, plan: &Plan, wanted: Option<Slot>, mut not_fresh: impl FnMut(StaleCause)) -> Found {
        let now = Instant::now();
        let mut found = Found::Nothing;
        for held in self.candidates(plan).into_iter().flatten() {
            if !held.stamp().reaches(wanted) {
                not_fresh(StaleCause::Floor);
                continue;
            }
            match self.rules.judge(held.stamp(), &self.frontier, now) {
                Freshness::Fresh => return Found::Fresh(held),
                Freshness::Stale(cause) => {
                    not_fresh(cause);
                    found = Found::Stale(held);
                }
                Freshness::Expired(cause) => {
                    not_fresh(cause);
                    if !matches!(found, Found::Stale(_)) {
                        found = Found::Expired;
                    }
                }
            }
        }
        found
    }

    /// What is held for `plan`. Where an account is held in two places, the higher slot is what was shown last, and
    /// the other would go back behind it; a block comes before its absence.
    fn candidates(&self, plan: &Plan) -> [Option<Held>; 2] {
        let own = self.store.get(&plan.key);
        let other = plan.other.as_ref().and_then(|key| self.store.get(key));
        match (own, other) {
            (Some(own), Some(other)) if matches!(plan.class, Class::Account(_)) => {
                let rank = |held: &Held| (held.slot(), held.stamp().sent_at);
                [Some(if rank(&other) > rank(&own) { other } else { own }), None]
            }
            both => [both.0, both.1],
        }
    }

    /// The entry held for `key`, if it may be used so and reaches the slot that the caller wants.
    fn usable(&self, key: &Key, usage: Use, wanted: Option<Slot>, now: Instant) -> Option<Held> {
        let held = self.store.get(key)?;
        let usable = match usage {
            Use::Fresh => self.rules.judge(held.stamp(), &self.frontier, now) == Freshness::Fresh,
            Use::InFault => self.serves(held.stamp()),
        };
        (usable && held.stamp().reaches(wanted)).then_some(held)
    }

    /// Whether the frontier is at `slot`, or arrives there within a moment.
    async fn frontier_reaches(&self, slot: Slot, commitment: Commitment) -> bool {
        let frontier = self.frontier.slot(commitment);
        let near = *self.rules.0.max_lag_slots.get(commitment);
        if slot > frontier.saturating_add(near) {
            return false;
        }
        tokio::time::timeout(FRONTIER_WAIT, self.frontier.reached(commitment, slot)).await.is_ok()
    }

    /// Whether an entry may still be served, if only in a fault: as long as it may, it holds its floor.
    fn serves(&self, stamp: &Stamp) -> bool {
        let now = Instant::now();
        self.rules.in_fault(stamp, now)
            || !matches!(self.rules.judge(stamp, &self.frontier, now), Freshness::Expired(_))
    }

    /// What may stand in for an answer that no node gives.
    async fn in_fault(&self, call: &Asked<'_>, error: Error) -> Result<Answer, Error> {
        let wanted = call.query.min_context_slot();
        let held = self.candidates(&call.plan).into_iter().flatten();
        let stands_in = |held: &Held| held.stamp().reaches(wanted) && self.serves(held.stamp());
        let mut stands_in = held.into_iter().find(stands_in).map(|held| held.entry());
        if stands_in.is_none() {
            stands_in = self.assembled(call, Use::InFault);
        }
        if stands_in.is_none() {
            stands_in = self.derive_kept(&call.plan, Use::InFault).await;
        }
        match stands_in {
            Some(entry) => self.held(call.query, &entry).await,
            None => Err(error),
        }
    }
}
