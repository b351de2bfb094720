//! The fetcher asks nodes for answers that are not held, once for all callers with the same question.
//!
//! [`Fetcher`] owns the flights, the second level, the merger and the pool. Before a flight asks a node, it
//! looks into the cache once more and then into the second level. Each answer passes the caching rules before
//! it is kept.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::basis::Tolerance;
use super::derive::list;
use super::entry::{CompressedForms, Entry, EntryBody, EntryMeta, Payload};
use super::fetched::{Fetched, FlightResult, SlotRequirement};
use super::flight::{FlightHandle, Flights};
use super::forms;
use super::freshness::FreshnessPolicy;
use super::key::{Key, LookupPlan};
use super::lookup::{FetchStart, InsertRequest, Lookup};
use super::merge::Merger;
use super::options::CallOptions;
use super::policy::cache_policy;
use super::renderer::Renderer;
use super::second_level::{SecondLevel, SharedAnswers};
use super::store::Insert;
use crate::config;
use crate::error::{Error, FailedAttempt};
use crate::frontier::Frontier;
use crate::methods::{AccountEncoding, Commitment, Pubkey, Query, Slot};
use crate::node::{NodeReply, OFF_WORKER_BYTES};
use crate::pool::{CallContext, Pool, PoolReply, UpstreamRequest};
use crate::telemetry::{AttemptResult, Metrics, UncacheableReason};

/// The longest wait of a flight for a render permit to derive an answer. After that the flight asks a node.
pub(super) const RENDER_PERMIT_WAIT: Duration = Duration::from_millis(50);

/// The longest wait for the frontier to reach a minContextSlot that is slightly ahead of it. One slot is
/// usual.
const LONGEST_FRONTIER_WAIT: Duration = Duration::from_secs(1);

/// The source of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerSource {
    /// A node. The answer is offered to the other gateways.
    Node,
    /// The shared store.
    Shared,
}

/// Callers share a flight when key, required slot and cache generation match. The generation keeps callers
/// after a purge off fetches from before it.
type FlightKey = (Key, SlotRequirement, u64);

/// Fetches answers that are not held.
pub(super) struct Fetcher {
    lookup: Arc<Lookup>,
    renderer: Arc<Renderer>,
    rules: Arc<FreshnessPolicy>,
    flights: Arc<Flights<FlightKey, FlightResult>>,
    merger: Arc<Merger>,
    /// The level that gateways share, if one is configured.
    second: Option<Arc<SecondLevel>>,
    pool: Arc<Pool>,
    frontier: Arc<Frontier>,
    metrics: Arc<Metrics>,
    request_timeout: Duration,
    tasks: TaskTracker,
}

impl Fetcher {
    /// Creates a fetcher over `pool`. Fetches run as tasks of `tasks`.
    pub(super) fn new(
        config: &config::Config,
        (lookup, renderer): (Arc<Lookup>, Arc<Renderer>),
        second: Option<Arc<SecondLevel>>,
        frontier: Arc<Frontier>,
        pool: Arc<Pool>,
        metrics: Arc<Metrics>,
        tasks: TaskTracker,
    ) -> Self {
        Self {
            rules: Arc::clone(&lookup.rules),
            lookup,
            renderer,
            flights: Flights::new(tasks.clone()),
            merger: Arc::default(),
            second,
            pool,
            frontier,
            metrics,
            request_timeout: config.server.request_timeout,
            tasks,
        }
    }

    /// Joins the flight for `plan` and `requirement`, or starts one with the caller's `options`.
    pub(super) fn join_flight(
        self: &Arc<Self>,
        plan: &LookupPlan,
        requirement: SlotRequirement,
        options: &CallOptions,
    ) -> FlightHandle<FlightResult> {
        let (fetcher, lead, leader) = (Arc::clone(self), plan.clone(), options.clone());
        let fly = move || {
            let (fetcher, plan) = (Arc::clone(&fetcher), lead.clone());
            // The flight has a deadline of its own, so that callers who join late may wait as long as the
            // leader.
            let deadline = Instant::now() + fetcher.request_timeout;
            let options = CallOptions { deadline, ..leader.clone() };
            async move {
                if requirement == SlotRequirement::None
                    && let Some(found) = fetcher.find_without_node(&plan).await
                {
                    return Ok(found);
                }
                if let Some(found) = fetcher.find_shared(&plan, requirement).await {
                    return Ok(found);
                }
                fetcher.fetch(&plan, requirement, options).await
            }
        };
        let key = (plan.key.clone(), requirement, self.lookup.held.generation());
        self.flights.join(&key, fly, worth_another_try)
    }

    /// Asks the pool in a flight for this caller alone, past the cache.
    pub(super) fn fetch_alone(
        self: &Arc<Self>,
        plan: &LookupPlan,
        requirement: SlotRequirement,
        options: &CallOptions,
    ) -> FlightHandle<FlightResult> {
        let (fetcher, plan, options) = (Arc::clone(self), plan.clone(), options.clone());
        self.flights.alone(async move { fetcher.fetch(&plan, requirement, options).await })
    }

    /// Returns true if the frontier is at `slot`, or arrives there within about one slot.
    pub(super) async fn frontier_reaches(&self, slot: Slot, commitment: Commitment) -> bool {
        if slot > self.frontier.slot(commitment).saturating_add(self.rules.max_lag_slots(commitment)) {
            return false;
        }
        let wait = self.frontier.slot_time().min(LONGEST_FRONTIER_WAIT);
        tokio::time::timeout(wait, self.frontier.reached(commitment, slot)).await.is_ok()
    }

    /// Returns an answer that needs no node. An earlier flight may have landed since the caller's look-up,
    /// and the answer may be derivable from a held one.
    async fn find_without_node(&self, plan: &LookupPlan) -> Option<Fetched> {
        if let Some((held, key)) = self.lookup.find_fresh(plan) {
            return Some(Fetched::AlreadyFresh(held, key));
        }
        let derived =
            self.renderer.derive(plan, Tolerance::Fresh, Instant::now() + RENDER_PERMIT_WAIT).await?;
        Some(Fetched::AlreadyFresh(derived, None))
    }

    /// Returns an answer that another gateway has shared, accepted by the rules for a node's. `None` if a
    /// node is to be asked.
    async fn find_shared(&self, plan: &LookupPlan, requirement: SlotRequirement) -> Option<Fetched> {
        let second = self.second.as_ref()?;
        let SharedAnswers { candidate, foreign, took, generation } =
            second.find(&self.lookup, &self.pool, plan, requirement).await?;
        let mut taken = None;
        if let Some((plan, reply)) = candidate {
            taken = self.accept(&plan, &reply, 0, generation, AnswerSource::Shared).await.ok();
        }
        second.count(taken.is_some(), foreign, took);
        let entry = Arc::clone(taken?.entry());
        let is_fresh = self.rules.allows(&entry.meta, Tolerance::Fresh, Instant::now());
        is_fresh.then_some(Fetched::AlreadyFresh(entry, None))
    }

    /// Asks the pool, and keeps the answer if the caching rules allow it.
    async fn fetch(
        &self,
        plan: &LookupPlan,
        requirement: SlotRequirement,
        options: CallOptions,
    ) -> FlightResult {
        let commitment = plan.upstream.commitment();
        let FetchStart { generation, shown, held, space } = self.lookup.begin_fetch(plan);
        // At processed a fork may be dropped with its slots, so the held slot is only a preference there.
        let (held, prefer) = match commitment {
            Some(Commitment::Confirmed | Commitment::Finalized) => (held, None),
            _ => (None, held),
        };
        let (floor, own) = match requirement {
            SlotRequirement::None => (None, None),
            SlotRequirement::AtLeast(slot) => (Some(slot), None),
            SlotRequirement::CallerMinimum(slot) => (Some(slot), Some(slot)),
        };
        // A minContextSlot above all that the pool has reached goes to one node, which refuses it in its own
        // words.
        let alone = own.zip(commitment).is_some_and(|(slot, c)| slot > self.frontier.slot(c));
        let query = plan.upstream.clone().with_min_context_slot(own);
        let CallOptions { deadline, caller, trace, .. } = options;
        let context = CallContext { deadline, caller, trace };
        let request = UpstreamRequest { query, floor: held.max(floor), prefer, alone, context };
        let may_merge = requirement == SlotRequirement::None && self.pool.merges();
        let reply = match &plan.upstream {
            Query::Account(_) if may_merge => {
                self.merger.call(&self.pool, &self.tasks, request, space).await?
            }
            _ => self.pool.call(&request).await?,
        };
        let floor = if commitment == Some(Commitment::Processed) { 0 } else { shown };
        self.accept(plan, &reply, floor, generation, AnswerSource::Node).await
    }

    /// Keeps an answer if the rules allow it, unless a newer one is held. `floor` is the slot at which its
    /// accounts were shown before, and which was required of the node.
    pub(super) async fn accept(
        &self,
        plan: &LookupPlan,
        reply: &PoolReply,
        floor: Slot,
        generation: u64,
        origin: AnswerSource,
    ) -> FlightResult {
        let not_kept = |reason| {
            self.metrics.uncacheable.at((Some(plan.upstream.method()), reason)).inc();
        };
        // The caller asked for a slot that the node has not reached. The node's own refusal is the answer.
        let refused = matches!(reply.body, NodeReply::Error { code: -32016, .. });
        if !refused && let Some((held, key)) = self.lookup.find_newer(plan, reply.slot, floor) {
            not_kept(UncacheableReason::Older);
            return Ok(Fetched::KeptNewer(held, key));
        }
        let (payload, placement) = cache_policy(plan, reply, &self.frontier);
        let class = placement.as_ref().map_or(plan.class, |(_, class)| *class);
        let parsed = parse_body(plan, reply, payload).await.ok_or_else(|| {
            let upstream = self.pool.name_of(reply.node);
            Error::NoUpstream(vec![FailedAttempt { upstream, reason: AttemptResult::BadJson.to_string() }])
        })?;
        let ParsedAnswer { kept, form_key, singles, spaces } = parsed;
        let meta = EntryMeta { slot: reply.slot, sent_at: reply.sent_at, class, derived: false };
        let entry = Arc::new(Entry { kept, meta, coded: CompressedForms::default() });
        let key = placement.map(|(key, _)| form_key.unwrap_or(key));
        let answer = InsertRequest { plan, key, entry: &entry, singles, spaces, floor, generation };
        let inserted = self.lookup.keep_fetched(answer, |key| {
            if let (AnswerSource::Node, Some(second)) = (origin, &self.second) {
                second.queue_write_back(&self.pool, key, reply, class);
            }
        });
        match inserted {
            Ok(Insert::Stored | Insert::ReplacedNewer) => Ok(Fetched::New(entry, true)),
            Ok(Insert::TooLarge) => {
                not_kept(UncacheableReason::TooLarge);
                Ok(Fetched::New(entry, false))
            }
            Ok(Insert::KeptNewer(held)) => {
                not_kept(UncacheableReason::Older);
                Ok(Fetched::KeptNewer(held, None))
            }
            Err(reason) => {
                not_kept(reason);
                Ok(Fetched::New(entry, false))
            }
        }
    }
}

/// Returns the kept form of an answer. Accounts are parsed, so that other forms can be made of them. `None` if they
/// are not in the format that nodes write.
async fn parse_body(plan: &LookupPlan, reply: &PoolReply, payload: Payload) -> Option<ParsedAnswer> {
    let (NodeReply::Result(result), Query::Account(_) | Query::Accounts(_)) = (&reply.body, &plan.upstream)
    else {
        return Some(ParsedAnswer::verbatim(payload));
    };
    let (query, asked) = (plan.upstream.clone(), plan.asked);
    if result.len() > OFF_WORKER_BYTES {
        let result = result.clone();
        tokio::task::spawn_blocking(move || ParsedAnswer::read(&query, asked, &result)).await.ok()?
    } else {
        ParsedAnswer::read(&query, asked, result)
    }
}

/// A parsed answer in its kept form.
struct ParsedAnswer {
    kept: EntryBody,
    /// The key by the form under which accounts are kept.
    form_key: Option<Key>,
    /// The single accounts of a list.
    singles: Vec<(Key, EntryBody)>,
    /// The sizes of accounts in bytes, as the answer states them.
    spaces: Vec<(Pubkey, u64)>,
}

impl ParsedAnswer {
    /// Returns an answer that is kept as it is.
    fn verbatim(payload: Payload) -> Self {
        let (singles, spaces) = (Vec::new(), Vec::new());
        Self { kept: EntryBody::Verbatim(payload), form_key: None, singles, spaces }
    }

    /// Parses the answer to an account method. `None` if it is not in the format that nodes write.
    fn read(query: &Query, asked: Option<AccountEncoding>, result: &Bytes) -> Option<Self> {
        match query {
            Query::Account(q) => {
                let single = list::read_single(result, q.form)?;
                let spaces = single.space.map(|space| (q.pubkey, space)).into_iter().collect();
                let form = forms::kept_form(q.form, single.value.kind());
                let form_key = Some(Key::Account(q.pubkey, form, q.commitment));
                Some(Self { kept: single.kept(asked), form_key, singles: Vec::new(), spaces })
            }
            Query::Accounts(q) => {
                let (context, singles) = list::read_list(result, q.form, q.pubkeys.len())?;
                let values: Arc<[_]> = singles.iter().map(|single| single.value.clone()).collect();
                let form = forms::kept_list_form(q.form, &values);
                let form_key = Some(Key::Accounts(Arc::clone(&q.pubkeys), form, q.commitment));
                let mut spaces = Vec::new();
                let singles = q.pubkeys.iter().zip(singles).map(|(pubkey, single)| {
                    spaces.extend(single.space.map(|space| (*pubkey, space)));
                    let form = forms::kept_form(q.form, single.value.kind());
                    (Key::Account(*pubkey, form, q.commitment), single.kept(asked))
                });
                let singles = singles.collect();
                let kept = EntryBody::Accounts { context, values, asked };
                Some(Self { kept, form_key, singles, spaces })
            }
            _ => None,
        }
    }
}

/// Returns true if a failed flight is worth a second try. An answer over the size limit would be as large
/// again.
fn worth_another_try(landing: &FlightResult) -> bool {
    let too_large = AttemptResult::TooLarge.as_str();
    match landing {
        Err(Error::NoUpstream(attempts)) => attempts.iter().all(|attempt| attempt.reason != too_large),
        Err(_) => true,
        Ok(_) => false,
    }
}
