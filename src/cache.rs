//! The read-through cache: look up, derive, join or lead a flight, judge what landed and keep it.
//!
//! Never asks twice at once for the same, never replaces an answer by an older one, never answers for a stronger
//! commitment than the one that was asked. What it serves past its bounds says so in its [`CacheStatus`].

pub mod derive;
pub mod entry;
pub mod flight;
pub mod freshness;
pub mod key;
pub mod status;
pub mod store;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use entry::{Body, Entry, Payload};
use flight::{Flights, Seat};
use freshness::{Class, Freshness, Rules};
use key::{Key, Plan};
pub use status::{CacheStatus, Why};
use store::{Kept, Store};

use crate::config;
use crate::error::Error;
use crate::frontier::Frontier;
use crate::methods::{Commitment, Query, Slot};
use crate::node::NodeReply;
use crate::pool::{Ask, Pool, Reply};
use crate::telemetry::{Metrics, Outcome, UncacheableReason};

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

/// What a flight brings to all who wait for it.
type Landing = Result<Landed, Error>;

/// A node's answer, judged.
#[derive(Debug, Clone)]
struct Landed {
    entry: Arc<Entry>,
    /// Whether it is kept.
    stored: bool,
}

/// The cache over a pool.
pub struct Cache {
    store: Store,
    flights: Arc<Flights<Key, Landing>>,
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
                    drop(self.board(&plan));
                    return Ok(self.hit(query, &entry, Outcome::Stale));
                }
                Found::Expired => why = Why::Stale,
                Found::Nothing => {
                    if let Some(entry) = self.derive(query, wanted) {
                        return Ok(self.hit(query, &entry, Outcome::Derived));
                    }
                }
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
        if why == Why::Request {
            return self.ask_alone(query, plan, why, terms).await;
        }
        if let (Some(slot), Some(commitment)) = (query.min_context_slot(), query.commitment())
            && !self.frontier_reaches(slot, commitment).await
        {
            return self.ask_alone(query, plan, why, terms).await;
        }
        self.by_flight(query, plan, why, terms).await
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
            let Some(entry) = self.store.get(key).filter(|entry| entry.reaches(wanted)) else { continue };
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

    /// Joins the flight for `plan`, or leads one.
    fn board(self: &Arc<Self>, plan: &Plan) -> Seat<Landing> {
        let (cache, lead) = (Arc::clone(self), plan.clone());
        let fetch = move || {
            let (cache, plan) = (Arc::clone(&cache), lead.clone());
            // The flight's own deadline: callers who came late may wait as long as the one who led.
            let deadline = Instant::now() + cache.request_timeout;
            async move { cache.fetch(&plan, None, deadline).await }
        };
        self.flights.join(&plan.key, fetch, Result::is_err)
    }

    /// Waits for a flight, and once more for a second one where what landed does not meet this caller's terms.
    async fn by_flight(
        self: &Arc<Self>,
        query: &Query,
        plan: &Plan,
        why: Why,
        terms: Terms,
    ) -> Result<Answer, Error> {
        let wanted = query.min_context_slot();
        for last in [false, true] {
            let seat = self.board(plan);
            let leads = seat.leads;
            let landed = seat.landed().await.unwrap_or_else(|| Err(Error::NoUpstream(Vec::new())))?;
            if !landed.entry.reaches(wanted) {
                break;
            }
            // A joiner takes what a hit of that age and slot would be; the leader's answer was asked for after it came.
            let fresh =
                || self.rules.judge(&landed.entry, &self.frontier, Instant::now()) == Freshness::Fresh;
            if leads || last || fresh() {
                let status = CacheStatus::forwarded(why, landed.stored);
                let (status, outcome) = if leads {
                    (status, Outcome::Miss)
                } else {
                    (CacheStatus::Collapsed, Outcome::Collapsed)
                };
                return Ok(self.deliver(query, &landed.entry, status, outcome));
            }
        }
        self.ask_alone(query, plan, why, terms).await
    }

    /// One call of this caller's own, with its own condition: a node's word on that condition passes through.
    async fn ask_alone(&self, query: &Query, plan: &Plan, why: Why, terms: Terms) -> Result<Answer, Error> {
        let landed = self.fetch(plan, query.min_context_slot(), terms.deadline).await?;
        let outcome = if why == Why::Request { Outcome::Bypass } else { Outcome::Miss };
        Ok(self.deliver(query, &landed.entry, CacheStatus::forwarded(why, landed.stored), outcome))
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

    /// Asks the pool, judges the answer and keeps it.
    async fn fetch(&self, plan: &Plan, wanted: Option<Slot>, deadline: Instant) -> Landing {
        let held = self.store.get(&plan.key);
        let floor = match plan.upstream.commitment() {
            Some(Commitment::Confirmed | Commitment::Finalized) => held.as_ref().map(|entry| entry.slot),
            _ => None,
        };
        // A wish above what the pool has reached goes to one node alone, which says so itself.
        let alone = wanted.is_some_and(|slot| {
            plan.upstream.commitment().is_some_and(|commitment| slot > self.frontier.slot(commitment))
        });
        let ask = Ask {
            query: plan.upstream.clone().with_min_context_slot(wanted),
            floor: floor.max(wanted),
            alone,
            deadline,
        };
        let reply = self.pool.call(&ask).await?;
        Ok(self.take_in(plan, &reply))
    }

    /// Judges an answer: keeps it where it may be kept, and never lets it move a held one backwards.
    fn take_in(&self, plan: &Plan, reply: &Reply) -> Landed {
        let method = plan.upstream.method();
        let (payload, place) = judge(plan, reply);
        let class = place.as_ref().map_or(plan.class, |(_, class)| *class);
        let entry = Arc::new(Entry { payload, slot: reply.slot, sent_at: reply.sent_at, class });
        let not_kept = |reason| {
            self.metrics.uncacheable.at((Some(method), reason)).inc();
            Landed { entry: Arc::clone(&entry), stored: false }
        };
        let key = match place {
            Ok((key, _)) => key,
            Err(reason) => return not_kept(reason),
        };
        match self.store.keep(key, &entry) {
            Kept::Stored => {
                self.keep_singles(&plan.upstream, &entry);
                Landed { entry, stored: true }
            }
            Kept::TooLarge => not_kept(UncacheableReason::TooLarge),
            Kept::Behind(held) if self.rules.in_fault(&held, Instant::now()) => {
                self.metrics.uncacheable.at((Some(method), UncacheableReason::Older)).inc();
                Landed { entry: held, stored: false }
            }
            Kept::Behind(_) => not_kept(UncacheableReason::Older),
        }
    }

    /// A list answer fills the entries of its accounts, which share its bytes.
    fn keep_singles(&self, query: &Query, list: &Entry) {
        let (Query::Accounts(query), Payload::Result(body)) = (query, &list.payload) else { return };
        for (pubkey, body) in query.pubkeys.iter().zip(derive::account::singles(body)) {
            let entry = Entry { payload: Payload::Result(body), ..list.clone() };
            self.store.keep(Key::Account(*pubkey, query.form, query.commitment), &Arc::new(entry));
        }
    }

    /// What may stand in for an answer that no node gives.
    fn in_fault(&self, query: &Query, plan: &Plan, error: Error) -> Result<Answer, Error> {
        let now = Instant::now();
        let held = std::iter::once(&plan.key).chain(&plan.absent).find_map(|key| {
            let entry = self.store.get(key)?;
            (entry.reaches(query.min_context_slot()) && self.rules.in_fault(&entry, now)).then_some(entry)
        });
        let Some(entry) = held else { return Err(error) };
        let status = CacheStatus::StaleIfError { ttl_s: self.rules.ttl_left_s(&entry, now) };
        Ok(self.deliver(query, &entry, status, Outcome::Stale))
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

/// Where a node's answer is kept and how long it lives, or why it is not kept: the Freshness table, row by row.
fn judge(plan: &Plan, reply: &Reply) -> (Payload, Result<(Key, Class), UncacheableReason>) {
    let keep = |class| Ok((plan.key.clone(), class));
    let absent = |class| Ok((plan.absent.clone().unwrap_or_else(|| plan.key.clone()), class));
    match &reply.body {
        NodeReply::Result(result) => {
            let payload = Payload::Result(Body::One(result.clone()));
            let place = match plan.upstream {
                // Null from getBlock proves nothing, and a fee's null may become a number at any slot.
                Query::Block(_) if result.as_ref() == b"null" => Err(UncacheableReason::Null),
                Query::Fee(_) if result.ends_with(b"\"value\":null}") => Err(UncacheableReason::Null),
                _ => keep(plan.class),
            };
            (payload, place)
        }
        NodeReply::Error { code, body } => {
            let place = match (&plan.upstream, code) {
                // Errors that depend on an account live as long as the account.
                (Query::Account(_) | Query::Accounts(_), -32600) | (Query::Balance(_), -32602) => {
                    keep(plan.class)
                }
                (Query::Block(_), -32015) => keep(plan.class),
                (Query::Block(_), -32007 | -32009) if matches!(plan.absent, Some(Key::NoBlock(_))) => {
                    absent(if reply.confirmed { Class::Skipped } else { Class::SkippedUnconfirmed })
                }
                (Query::Block(q), -32004) => match plan.absent {
                    Some(Key::NotYet(..)) => absent(Class::NotYet(q.slot, q.commitment)),
                    _ => Err(UncacheableReason::Transient),
                },
                _ => Err(UncacheableReason::Transient),
            };
            (Payload::Error { code: *code, body: body.clone() }, place)
        }
    }
}
