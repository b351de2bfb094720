//! The read-through cache: look up, derive, join or lead a flight, judge what landed and keep it.
//!
//! Never asks twice at once for the same, never replaces an answer by an older one, never answers for a stronger
//! commitment than the one that was asked. What it serves past its bounds says so in its [`CacheStatus`].

mod charge;
pub mod class;
mod coded;
pub mod derive;
pub mod entry;
mod fetch;
pub mod flight;
mod floors;
mod forms;
pub mod freshness;
mod generation;
mod judge;
pub mod key;
mod lookup;
mod merge;
mod options;
pub mod purge;
mod render;
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

pub use charge::Charge;
pub use coded::Compressor;
use derive::Use;
use entry::Entry;
use fetch::{Demand, FlightKey, Landing};
use flight::Flights;
use floors::AccountFloors;
use freshness::Rules;
use generation::Generation;
use key::Plan;
use merge::Merger;
pub use options::{CacheAnswer, CallOptions, Conditions, NoConditions, Room};
use serve::{Basis, Missed, Role};
use shared::Second;
use sizes::Sizes;
pub use status::{CacheStatus, Why};
use store::Store;
use verify::Verifier;

use crate::config;
use crate::error::Error;
use crate::frontier::Frontier;
use crate::methods::{AccountForm, Commitment, Query, Slot};
use crate::pool::Pool;
use crate::shared as shared_store;
use crate::telemetry::{AttemptResult, Metrics};

/// A minContextSlot that is little above the frontier is waited for during one slot, and no longer than this.
const LONGEST_FRONTIER_WAIT: Duration = Duration::from_secs(1);

/// The cache over a pool.
pub struct Cache {
    store: Store,
    sizes: Sizes,
    /// The slots below which accounts are not shown.
    floors: AccountFloors,
    /// How often the cache was emptied.
    generation: Generation,
    /// Bounds the work on long texts that runs beside the async workers.
    makers: Arc<Semaphore>,
    compressor: Arc<Compressor>,
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
    Fresh(Arc<Entry>),
    Stale(Arc<Entry>),
    Expired,
}

/// A call whose answer is not at hand: how it is planned, and what was found.
pub struct Left {
    plan: Plan,
    terms: CallOptions,
    found: Found,
}

/// One caller's call, planned.
struct Asked<'a> {
    query: &'a Query,
    plan: Plan,
    why: Why,
    terms: CallOptions,
    charge: &'a Charge,
    conditions: &'a dyn Conditions,
    /// When the caller came.
    came: Instant,
    /// A node is asked anew, since an answer came too late. The next answer is the last.
    is_anew: bool,
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
            floors: AccountFloors::new(config.cache.capacity),
            generation: Generation::default(),
            merger: Arc::default(),
            makers: Arc::new(Semaphore::new(cores() * 2)),
            compressor: Arc::new(Compressor::new(cores(), Arc::clone(&metrics))),
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
    pub async fn answer(self: &Arc<Self>, query: &Query, terms: CallOptions) -> Result<CacheAnswer, Error> {
        match self.at_hand(query, terms) {
            Ok(answer) => Ok(answer),
            Err(left) => self.go_on(query, left, Charge::nobody(), &NoConditions).await,
        }
    }

    /// The first half of [`Self::answer`]: the answer where it is kept and takes no work. Most answers are, and then no
    /// future is made.
    ///
    /// # Errors
    /// No error of the call's: what [`Self::go_on`] goes on from.
    pub fn at_hand(&self, query: &Query, terms: CallOptions) -> Result<CacheAnswer, Box<Left>> {
        let plan = Plan::new(query, &self.frontier, &self.sizes);
        let wanted = query.min_context_slot().max(terms.floor);
        let found = if terms.bypass { Found::Nothing } else { self.look_up(&plan, wanted) };
        if let Found::Fresh(entry) = &found
            && let Some(answer) = self.hit_at_once(query, terms.coding, entry)
        {
            return Ok(answer);
        }
        Err(Box::new(Left { plan, terms, found }))
    }

    /// The second half of [`Self::answer`], for the same `query`. It is booked by `charge`, even where its caller goes.
    ///
    /// # Errors
    /// As there.
    pub async fn go_on(
        self: &Arc<Self>,
        query: &Query,
        left: Box<Left>,
        charge: Charge,
        conditions: &dyn Conditions,
    ) -> Result<CacheAnswer, Error> {
        let Left { plan, terms, found } = *left;
        let why = if terms.bypass { Why::Request } else { Why::Miss };
        let came = Instant::now();
        let call = Asked { query, plan, why, terms, charge: &charge, conditions, came, is_anew: false };
        let answer = self.answer_in_time(call, found).await;
        match &answer {
            Ok(answer) => charge.answered(answer.outcome.is_hit()),
            Err(_) => charge.failed(),
        }
        answer
    }

    /// The answer where it is not at hand, by the caller's deadline.
    async fn answer_in_time(
        self: &Arc<Self>,
        mut call: Asked<'_>,
        found: Found,
    ) -> Result<CacheAnswer, Error> {
        let deadline = call.terms.deadline;
        let answer = tokio::time::timeout_at(deadline, self.answer_in_bounds(&mut call, found)).await;
        let error = match answer {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(_) => Error::TimedOut(self.request_timeout),
        };
        call.is_anew = true;
        self.in_fault(&call, error).await
    }

    /// Answers a call whose answer is not at hand. Begins anew where a node's answer comes too late, once: under load
    /// every answer may, and nodes would be asked without end.
    async fn answer_in_bounds(
        self: &Arc<Self>,
        call: &mut Asked<'_>,
        mut found: Found,
    ) -> Result<CacheAnswer, Error> {
        loop {
            if !call.terms.bypass {
                if let Some(answer) = self.from_kept(call, &found).await? {
                    return Ok(answer);
                }
                call.charge.failed();
                if matches!(found, Found::Expired) {
                    call.why = Why::Stale;
                }
            }
            let mut answer = self.from_node(call).await;
            if let Err(Missed::Failed(Error::NoUpstream(attempts))) = &answer
                && attempts.iter().any(|attempt| attempt.reason == AttemptResult::TooLarge.as_str())
                && self.asks_too_much(call)
            {
                call.plan = Plan::new(call.query, &self.frontier, &self.sizes);
                answer = self.from_node(call).await;
            }
            match answer {
                Ok(answer) => return Ok(answer),
                Err(Missed::Failed(error)) => return Err(error),
                Err(Missed::Late) if call.is_anew => return Err(Error::Overloaded),
                Err(Missed::Late) => call.is_anew = true,
            }
            call.terms.floor = call.terms.floor.max(call.conditions.floor());
            if !call.terms.bypass {
                found = self.look_up(&call.plan, call.wanted());
            }
        }
    }

    /// An answer from what was found, or from what it can be made of at once; `None` where a node is to be asked.
    async fn from_kept(
        self: &Arc<Self>,
        call: &Asked<'_>,
        found: &Found,
    ) -> Result<Option<CacheAnswer>, Error> {
        let entry = match found {
            Found::Fresh(entry) => Some(Arc::clone(entry)),
            _ => match call.query {
                Query::Accounts(query) => self.assembled(query, Use::Fresh, call.wanted()),
                _ => None,
            },
        };
        let entry = match (entry, found) {
            (None, Found::Stale(held)) => {
                drop(self.board(&call.plan, Demand::Any, &call.terms));
                Some(Arc::clone(held))
            }
            (entry, _) => entry,
        };
        let Some(entry) = entry else { return Ok(None) };
        call.charge.answered(true);
        match self.deliver(call, &entry, Basis::Kept).await {
            // What is kept but cannot be read is as good as nothing.
            Err(Error::NoUpstream(_)) => Ok(None),
            answer => answer,
        }
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
    async fn from_node(self: &Arc<Self>, call: &Asked<'_>) -> Result<CacheAnswer, Missed> {
        let (own, commitment) = (call.query.min_context_slot(), call.query.commitment());
        // No node is known to be at a floor above the frontier: there, what lands first is taken.
        let reached = |floor: &Slot| commitment.is_some_and(|c| self.frontier.slot(c) >= *floor);
        let floor = call.terms.floor.filter(reached);
        let last = floor.map_or(Demand::Any, Demand::Reached);
        if call.why == Why::Request {
            let landed = self.flown_alone(call, own.map_or(last, Demand::Own)).await?;
            return self.land(call, &landed, Role::Leader).await;
        }
        if let Some(answer) = self.completed(call).await? {
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

    /// Where long texts are compressed.
    pub fn compressor(&self) -> &Arc<Compressor> {
        &self.compressor
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
    /// What was asked for until now is not taken from the shared store any more either.
    pub fn clear(&self) {
        self.generation.ends();
        if let Some(second) = &self.second {
            second.nothing_before(Instant::now());
        }
        self.store.clear();
        self.floors.clear();
    }

    /// Forgets what `filter` takes, and says how many entries that were; no work for an async worker. What of it is in the
    /// shared store is not taken any more; [`Self::share_purges`] tells the other gateways.
    pub fn purge(&self, filter: &purge::Filter) -> u64 {
        if let Some(second) = &self.second {
            second.purge(self.pool.genesis().as_deref(), filter, Instant::now());
        }
        self.purge_here(&[*filter])
    }

    /// Forgets everything, since a node of another cluster was asked, or the pool has become one: the shared store may have
    /// what such a node gave, in the name of any cluster that this gateway has been of.
    pub fn purge_all_clusters(&self) {
        if let Some(second) = &self.second {
            second.purge_all_clusters(Instant::now());
        }
        self.purge_here(&[purge::Filter::default()]);
    }

    /// Forgets what any of `filters` takes of what is kept here.
    fn purge_here(&self, filters: &[purge::Filter]) -> u64 {
        self.generation.ends();
        if !filters.iter().any(purge::Filter::is_everything) {
            let entries = self.store.purge(|key| filters.iter().any(|filter| filter.takes(key)));
            filters.iter().filter_map(purge::Filter::all_of).for_each(|account| self.floors.forget(account));
            return entries;
        }
        let (_, entries) = self.store.usage();
        self.store.clear();
        self.floors.clear();
        entries
    }

    /// Whether the frontier is at `slot`, or arrives there within a moment.
    async fn frontier_reaches(&self, slot: Slot, commitment: Commitment) -> bool {
        let frontier = self.frontier.slot(commitment);
        let near = *self.rules.0.max_lag_slots.get(commitment);
        if slot > frontier.saturating_add(near) {
            return false;
        }
        let wait = self.frontier.slot_time().min(LONGEST_FRONTIER_WAIT);
        tokio::time::timeout(wait, self.frontier.reached(commitment, slot)).await.is_ok()
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}
