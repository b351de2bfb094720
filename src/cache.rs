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
use tokio::time::{Instant, timeout_at};
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
use render::is_long_work;
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

/// The result of a look-up.
enum CacheLookup {
    Miss,
    Hit(Arc<Entry>),
    Stale(Arc<Entry>),
    Expired,
}

/// One caller's call, planned.
struct Asked<'a> {
    query: &'a Query,
    plan: Plan,
    why: Why,
    options: CallOptions,
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
        self.query.min_context_slot().max(self.options.floor)
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

    /// Answers `query` from what is kept, or from a node. The call is booked by `charge`, even if its caller goes meanwhile.
    ///
    /// # Errors
    /// [`Error::NoUpstream`] if no node answers, [`Error::TimedOut`] if none does in time, and [`Error::Overloaded`] if there
    /// is no room for the answer, unless a kept answer may stand in.
    pub async fn answer(
        self: &Arc<Self>,
        query: &Query,
        options: CallOptions,
        charge: Charge,
        conditions: &dyn Conditions,
    ) -> Result<CacheAnswer, Error> {
        let plan = Plan::new(query, &self.frontier, &self.sizes);
        let why = if options.bypass { Why::Request } else { Why::Miss };
        let (charge, came) = (&charge, Instant::now());
        let mut call = Asked { query, plan, why, options, charge, conditions, came, is_anew: false };
        let answer = match self.answer_in_bounds(&mut call).await {
            Ok(answer) => Ok(answer),
            Err(error) => {
                call.is_anew = true;
                self.in_fault(&call, error).await
            }
        };
        match &answer {
            Ok(answer) => charge.answered(answer.outcome.is_hit()),
            Err(_) => charge.failed(),
        }
        answer
    }

    /// Looks up, and asks a node for what is not held. Begins anew if the node's answer comes too late, once: under load
    /// every answer may, and nodes would be asked without end.
    async fn answer_in_bounds(self: &Arc<Self>, call: &mut Asked<'_>) -> Result<CacheAnswer, Error> {
        loop {
            if !call.options.bypass {
                let found = self.look_up(&call.plan, call.wanted());
                if let Some(answer) = self.from_kept(call, &found).await? {
                    return Ok(answer);
                }
                call.charge.failed();
                if matches!(found, CacheLookup::Expired) {
                    call.why = Why::Stale;
                }
            }
            // Boxed, so that the future of a hit is small. The clock of the deadline, too, is set for a fetch only.
            let fetched = timeout_at(call.options.deadline, Box::pin(self.fetched(call))).await;
            match fetched.map_err(|_| Error::TimedOut(self.request_timeout))? {
                Ok(answer) => return Ok(answer),
                Err(Missed::Failed(error)) => return Err(error),
                Err(Missed::Late) if call.is_anew => return Err(Error::Overloaded),
                Err(Missed::Late) => call.is_anew = true,
            }
            call.options.floor = call.options.floor.max(call.conditions.floor());
        }
    }

    /// Asks a node, and once more for less if it was asked for more than the caller wants and that was too large.
    async fn fetched(self: &Arc<Self>, call: &mut Asked<'_>) -> Result<CacheAnswer, Missed> {
        let answer = self.from_node(call).await;
        if let Err(Missed::Failed(Error::NoUpstream(attempts))) = &answer
            && attempts.iter().any(|attempt| attempt.reason == AttemptResult::TooLarge.as_str())
            && self.asks_too_much(call)
        {
            call.plan = Plan::new(call.query, &self.frontier, &self.sizes);
            return self.from_node(call).await;
        }
        answer
    }

    /// Returns an answer from the entry that was found, or from one that is made of others at once. `None` if a node is to be
    /// asked.
    async fn from_kept(
        self: &Arc<Self>,
        call: &Asked<'_>,
        found: &CacheLookup,
    ) -> Result<Option<CacheAnswer>, Error> {
        let assembled = || match call.query {
            Query::Accounts(query) => self.assembled(query, Use::Fresh, call.wanted()),
            _ => None,
        };
        let entry = match found {
            CacheLookup::Hit(entry) => Arc::clone(entry),
            CacheLookup::Stale(entry) => assembled().unwrap_or_else(|| {
                drop(self.board(&call.plan, Demand::Any, &call.options));
                Arc::clone(entry)
            }),
            CacheLookup::Expired | CacheLookup::Miss => {
                let Some(list) = assembled() else { return Ok(None) };
                list
            }
        };
        call.charge.answered(true);
        let answer = self.deliver(call, &entry, Basis::Kept);
        let answer = if is_long_work(call.query, &entry) {
            let in_time = timeout_at(call.options.deadline, answer).await;
            in_time.unwrap_or(Err(Error::TimedOut(self.request_timeout)))
        } else {
            answer.await
        };
        match answer {
            // An entry that cannot be read is as good as none.
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
        let floor = call.options.floor.filter(reached);
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
