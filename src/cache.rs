//! The read-through cache: look up, derive, join or lead a flight, judge what landed and keep it.
//!
//! Never asks twice at once for the same, never replaces an answer by an older one, never answers for a stronger
//! commitment than the one that was asked. What it serves past its bounds says so in its [`CacheStatus`].

pub mod derive;
pub mod entry;
mod fetch;
pub mod flight;
pub mod freshness;
mod judge;
pub mod key;
pub mod status;
pub mod store;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use entry::{Body, Entry, Payload};
use fetch::{Demand, FlightKey, Landed, Landing};
use flight::Flights;
use freshness::{Class, Freshness, Rules};
use key::{Key, Plan};
pub use status::{CacheStatus, Why};
use store::Store;

use crate::config;
use crate::error::Error;
use crate::frontier::Frontier;
use crate::methods::{Commitment, Query, Slot};
use crate::pool::Pool;
use crate::telemetry::{Metrics, Outcome, StaleCause};

/// A minContextSlot this little above the frontier is waited for: a slot takes about 400 ms.
const FRONTIER_WAIT: Duration = Duration::from_millis(400);

/// What a caller asks of the cache beside the query.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Go past the cache (the answer is kept all the same).
    pub bypass: bool,
    /// When the caller stops waiting.
    pub deadline: Instant,
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
}

/// The cache over a pool.
pub struct Cache {
    store: Store,
    flights: Arc<Flights<FlightKey, Landing>>,
    rules: Rules,
    frontier: Arc<Frontier>,
    pool: Arc<Pool>,
    metrics: Arc<Metrics>,
    request_timeout: Duration,
}

/// What the store has for a plan.
enum Found {
    Nothing,
    Fresh(Arc<Entry>),
    Stale(Arc<Entry>),
    Expired,
}

impl Cache {
    /// An empty cache over `pool`; fetches run as tasks of `tasks`.
    pub fn new(
        config: &config::Config,
        frontier: Arc<Frontier>,
        pool: Arc<Pool>,
        metrics: Arc<Metrics>,
        tasks: TaskTracker,
    ) -> Arc<Self> {
        Arc::new(Self {
            store: Store::new(config.cache.capacity, config.cache.max_entry, Arc::clone(&metrics)),
            flights: Flights::new(tasks),
            rules: Rules(config.cache.clone()),
            frontier,
            pool,
            metrics,
            request_timeout: config.server.request_timeout,
        })
    }

    /// Answers `query` from what is kept, or from a node.
    ///
    /// # Errors
    /// [`Error::NoUpstream`] where no node answers, [`Error::TimedOut`] where none does in time, and nothing kept may
    /// stand in.
    pub async fn answer(self: &Arc<Self>, query: &Query, terms: Terms) -> Result<Answer, Error> {
        let plan = Plan::new(query, &self.frontier);
        let wanted = query.min_context_slot();
        let mut why = Why::Miss;
        if terms.bypass {
            why = Why::Request;
        } else {
            match self.look_up(&plan, wanted) {
                Found::Fresh(entry) => return Ok(self.hit(query, &entry, Outcome::Hit)),
                Found::Stale(entry) => {
                    drop(self.board(&plan, Demand::Any));
                    return Ok(self.hit(query, &entry, Outcome::Stale));
                }
                Found::Expired => why = Why::Stale,
                Found::Nothing => {}
            }
            if let Some(entry) = self.derive(query, wanted) {
                return Ok(self.hit(query, &entry, Outcome::Derived));
            }
        }
        match tokio::time::timeout_at(terms.deadline, self.from_node(query, &plan, why, terms)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => self.in_fault(query, &plan, error),
            Err(_) => self.in_fault(query, &plan, Error::TimedOut(self.request_timeout)),
        }
    }

    /// The answer of a node: by a flight shared with others, or by a call of this caller's own.
    async fn from_node(
        self: &Arc<Self>,
        query: &Query,
        plan: &Plan,
        why: Why,
        terms: Terms,
    ) -> Result<Answer, Error> {
        let wanted = query.min_context_slot();
        if why == Why::Request {
            let landed = self.fetch(plan, wanted.map_or(Demand::Any, Demand::Own), terms.deadline).await?;
            return Ok(self.land(query, &landed, why, true));
        }
        let (Some(slot), Some(commitment)) = (wanted, query.commitment()) else {
            let by_flight = self.by_flight(query, plan, why, Demand::Any).await?;
            // A joiner for whom the answer was too old asks once more, and takes what comes.
            return match by_flight {
                Some(answer) => Ok(answer),
                None => self.last_flight(query, plan, why, Demand::Any).await,
            };
        };
        if self.frontier_reaches(slot, commitment).await {
            if let Some(answer) = self.by_flight(query, plan, why, Demand::Any).await? {
                return Ok(answer);
            }
            // All for whom the first answer was too low share the next, from a node at the frontier.
            let reached = Demand::Reached(self.frontier.slot(commitment));
            if let Some(answer) = self.by_flight(query, plan, why, reached).await? {
                return Ok(answer);
            }
        }
        self.last_flight(query, plan, why, Demand::Own(slot)).await
    }

    /// Bytes held, and entries.
    pub fn usage(&self) -> (u64, u64) {
        self.store.usage()
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.store.clear();
    }

    /// What is kept for `plan`, as far as it reaches the slot that the caller wants.
    fn look_up(&self, plan: &Plan, wanted: Option<Slot>) -> Found {
        let now = Instant::now();
        let mut found = Found::Nothing;
        for key in std::iter::once(&plan.key).chain(&plan.absent) {
            let Some(entry) = self.store.get(key) else { continue };
            if !entry.reaches(wanted) {
                self.metrics.cache_stale.at(StaleCause::Floor).inc();
                continue;
            }
            match self.rules.judge(&entry, &self.frontier, now) {
                Freshness::Fresh => return Found::Fresh(entry),
                Freshness::Stale(cause) => {
                    self.metrics.cache_stale.at(cause).inc();
                    return Found::Stale(entry);
                }
                Freshness::Expired(cause) => {
                    self.metrics.cache_stale.at(cause).inc();
                    found = Found::Expired;
                }
            }
        }
        found
    }

    /// A list of accounts, from kept single ones.
    fn derive(&self, query: &Query, wanted: Option<Slot>) -> Option<Arc<Entry>> {
        let Query::Accounts(list) = query else { return None };
        if self.rules.0.assemble == config::Assemble::Off {
            return None;
        }
        let now = Instant::now();
        derive::account::assemble(&list.pubkeys, |pubkey| {
            let entry = self.store.get(&Key::Account(*pubkey, list.form, list.commitment))?;
            let fresh = self.rules.judge(&entry, &self.frontier, now) == Freshness::Fresh;
            (fresh && entry.reaches(wanted)).then_some(entry)
        })
    }

    /// What a fetch came back with, as the answer of one who led it or waited for it.
    fn land(&self, query: &Query, landed: &Landed, why: Why, leads: bool) -> Answer {
        match landed {
            Landed::Held(entry) => self.held(query, entry),
            Landed::Fetched(entry, _) if !leads => {
                self.deliver(query, entry, CacheStatus::Collapsed, Outcome::Collapsed)
            }
            Landed::Fetched(entry, stored) => {
                let outcome = if why == Why::Request { Outcome::Bypass } else { Outcome::Miss };
                self.deliver(query, entry, CacheStatus::forwarded(why, *stored), outcome)
            }
        }
    }

    /// What is held, said to be what it is: a hit, or what stands in where no node gives better.
    fn held(&self, query: &Query, entry: &Arc<Entry>) -> Answer {
        let now = Instant::now();
        match self.rules.judge(entry, &self.frontier, now) {
            Freshness::Fresh => self.hit(query, entry, Outcome::Hit),
            Freshness::Stale(_) => self.hit(query, entry, Outcome::Stale),
            Freshness::Expired(_) => {
                let status = CacheStatus::StaleIfError { ttl_s: self.rules.ttl_left_s(entry, now).min(0) };
                self.deliver(query, entry, status, Outcome::Stale)
            }
        }
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

    /// Whether `entry` may still be served, if only in a fault: as long as it may, it holds its floor.
    fn serves(&self, entry: &Entry) -> bool {
        let now = Instant::now();
        self.rules.in_fault(entry, now)
            || !matches!(self.rules.judge(entry, &self.frontier, now), Freshness::Expired(_))
    }

    /// What may stand in for an answer that no node gives.
    fn in_fault(&self, query: &Query, plan: &Plan, error: Error) -> Result<Answer, Error> {
        let stands_in = std::iter::once(&plan.key).chain(&plan.absent).find_map(|key| {
            let entry = self.store.get(key)?;
            let serves = entry.reaches(query.min_context_slot()) && self.serves(&entry);
            serves.then_some(entry)
        });
        stands_in.map(|entry| self.held(query, &entry)).ok_or(error)
    }

    fn hit(&self, query: &Query, entry: &Arc<Entry>, outcome: Outcome) -> Answer {
        let left = self.rules.ttl_left_s(entry, Instant::now());
        // Past its bound in slots alone, what is left of its time does not count.
        let ttl_s = if outcome == Outcome::Stale { left.min(0) } else { left };
        let derived = outcome == Outcome::Derived || shortened(query);
        self.deliver(query, entry, CacheStatus::Hit { ttl_s, derived }, outcome)
    }

    /// The answer as this caller gets it.
    fn deliver(&self, query: &Query, entry: &Arc<Entry>, status: CacheStatus, outcome: Outcome) -> Answer {
        if let (true, Some(commitment)) = (outcome.is_hit(), query.commitment())
            && matches!(entry.class, Class::Account(_) | Class::Fee(_) | Class::Votes(_))
        {
            let lag = self.frontier.slot(commitment).saturating_sub(entry.slot);
            #[expect(clippy::cast_precision_loss, reason = "a histogram of slots")]
            self.metrics.cache_served_lag.at(Some(commitment)).observe(lag as f64);
        }
        let payload = match (query, &entry.payload) {
            (Query::Samples(samples), Payload::Result(Body::One(all))) if shortened(query) => {
                Payload::Result(
                    derive::samples::head(all, samples.limit).unwrap_or_else(|| all.clone()).into(),
                )
            }
            (_, payload) => payload.clone(),
        };
        let outcome = if outcome == Outcome::Hit && shortened(query) { Outcome::Derived } else { outcome };
        Answer { payload, status, outcome }
    }
}

/// Whether the caller wants fewer samples than are kept.
fn shortened(query: &Query) -> bool {
    matches!(query, Query::Samples(samples) if samples.limit < key::ALL_SAMPLES)
}
