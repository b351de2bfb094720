//! The fetcher asks nodes for answers that are not stored.
//!
//! Callers with the same question at the same time share one fetch, called a flight. A flight looks into the
//! cache again, unless its answer must reach a given slot. It then looks into the shared store, if one is
//! configured, and asks a node last. The caching rules decide whether a node's answer is stored. A flight for most
//! shapes of a block waits for another one, which fetches the block in base64.
//!
//! Misses of single accounts are not merged into lists, in which every caller would wait for the slowest account.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

use super::CallOptions;
use super::carry::TIP_WAIT;
use super::derive::block::places;
use super::entry::{Class, Entry, EntryBody, EntryMeta, Payload, TextParts};
use super::fetched::{Fetched, FlightEnd, FlightResult, ParsedAnswer, SlotRequirement, is_too_large};
use super::flight::{FlightHandle, Flights};
use super::follow_stamp::StampInput;
use super::freshness::{Limit, ServeRule, Verdict};
use super::key::{Key, LookupPlan};
use super::lookup::Lookup;
use super::placing::FetchStart;
use super::render::Renderer;
use super::second_level::{SecondLevel, SharedAnswers};
use super::store::Insert;
use super::verify::Verifier;
use crate::error::{Error, FailedAttempt};
use crate::methods::{BlockDetails, Commitment, Query, Slot};
use crate::node::{NodeReply, OFF_WORKER_BYTES, code};
use crate::pool::{CallContext, LongestRead, Pool, PoolReply, UpstreamRequest};
use crate::telemetry::{AttemptResult, UncacheableReason};

/// The longest time that a shared fetch waits for a permit to make its answer from a long stored text. After that
/// the fetch asks a node.
pub(super) const RENDER_PERMIT_WAIT: Duration = Duration::from_millis(50);

/// The longest wait for a node to reach a minContextSlot that is slightly above the newest known slot. The
/// usual wait is the duration of one slot.
const LONGEST_FRONTIER_WAIT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerSource {
    /// A node. The answer is offered to the other gateways that use the shared store.
    Node {
        /// The unique number of the run of blocks that the gateway followed when the node was asked. 0 if it
        /// followed none.
        chain: u64,
    },
    Shared,
}

/// The key of a flight, that is, of a fetch that callers share. Callers share it if cache key, commitment, required slot
/// and number of purges match. The cache key of what is final has no commitment, but a node compares the required slot
/// with its slot at one. Because of the number of purges, a caller after a purge never joins a fetch from before the
/// purge.
type FlightKey = (Key, Option<Commitment>, SlotRequirement, u64);

pub(super) struct Fetcher {
    lookup: Arc<Lookup>,
    renderer: Arc<Renderer>,
    flights: Arc<Flights<FlightKey, FlightEnd>>,
    verifier: Arc<Verifier>,
    /// The shared store, which is the second level of the cache, if one is configured.
    second_level: Option<Arc<SecondLevel>>,
    pool: Arc<Pool>,
}

impl Fetcher {
    pub(super) fn new(
        (lookup, renderer, verifier): (Arc<Lookup>, Arc<Renderer>, Arc<Verifier>),
        second_level: Option<Arc<SecondLevel>>,
        pool: Arc<Pool>,
        tasks: TaskTracker,
    ) -> Self {
        Self { lookup, renderer, flights: Flights::new(tasks), verifier, second_level, pool }
    }

    /// Joins the shared fetch for `plan` and `requirement`, or starts one with the caller's `options`. If `is_background`,
    /// the caller does not wait for it.
    pub(super) fn join_or_start_flight(
        self: &Arc<Self>,
        plan: &LookupPlan,
        requirement: SlotRequirement,
        options: &CallOptions,
        is_background: bool,
    ) -> FlightHandle<FlightEnd> {
        let (fetcher, flight_plan, options) = (Arc::clone(self), plan.clone(), options.clone());
        let fetch = async move {
            let read = LongestRead::default();
            let result = fetcher.fly(&flight_plan, requirement, options, is_background, &read).await;
            FlightEnd { result, read: read.bytes() }
        };
        let (commitment, generation) = (plan.upstream.commitment(), self.lookup.generation.number());
        let key = (plan.key.clone(), commitment, requirement, generation);
        self.flights.join(&key, fetch)
    }

    /// Finds or makes the answer of a shared fetch, or asks a node.
    async fn fly(
        self: &Arc<Self>,
        plan: &LookupPlan,
        requirement: SlotRequirement,
        options: CallOptions,
        is_background: bool,
        read: &LongestRead,
    ) -> FlightResult {
        // The flight has a time of its own, so that callers who join late may wait as long as the leader.
        let timeout = self.pool.time_of(plan.upstream.method().into());
        let options = CallOptions { asked_at: Instant::now(), timeout, ..options };
        if requirement == SlotRequirement::None
            && let Some(found) = self.find_without_node(plan).await
        {
            return Ok(found);
        }
        if let Some(made) = self.fetch_source(plan, requirement, &options, is_background, read).await {
            return made;
        }
        if let Some(found) = self.find_shared(plan, requirement).await {
            return Ok(found);
        }
        self.fetch(plan, requirement, options, is_background, read).await
    }

    /// Starts a fetch for this caller alone, which asks a node even if an answer is stored.
    pub(super) fn fetch_unshared(
        self: &Arc<Self>,
        plan: &LookupPlan,
        requirement: SlotRequirement,
        options: &CallOptions,
    ) -> FlightHandle<FlightEnd> {
        let (fetcher, plan, options) = (Arc::clone(self), plan.clone(), options.clone());
        self.flights.start_unshared(async move {
            let read = LongestRead::default();
            let result = fetcher.fetch(&plan, requirement, options, false, &read).await;
            FlightEnd { result, read: read.bytes() }
        })
    }

    /// Waits about the duration of one slot for a usable node to reach `slot`. Returns true if a node has
    /// reached it. In that case, if a stored answer to the call of `plan` can be carried, first waits for the
    /// followed chain to reach `slot`, too. That wait does not change the result.
    pub(super) async fn await_frontier(&self, plan: &LookupPlan, slot: Slot, commitment: Commitment) -> bool {
        let frontier = &self.lookup.frontier;
        let max_lag = self.lookup.freshness.max_lag_slots(commitment);
        if slot > frontier.slot(commitment).saturating_add(max_lag) {
            return false;
        }
        let until = Instant::now() + frontier.slot_time().min(LONGEST_FRONTIER_WAIT);
        if timeout_at(until, frontier.reached(commitment, slot)).await.is_err() {
            return false;
        }
        if let Some(chain) = self.lookup.chain_that_carries(plan, slot) {
            // The followed chain reaches a slot later than the frontier. If the chain is late, a node is asked.
            let _ = timeout_at(until + TIP_WAIT, self.lookup.carrier.followed.reached(chain, slot)).await;
        }
        true
    }

    /// Returns an answer that needs no node. An earlier fetch may have stored it since the caller's look-up.
    /// Otherwise waits for the followed chain, if a stored answer can then be carried to the floor of its
    /// accounts. If that fails, derives the answer from another entry, if possible.
    async fn find_without_node(&self, plan: &LookupPlan) -> Option<Fetched> {
        let find = || {
            let found = self.lookup.look_up(&plan.upstream, plan, &ServeRule::within(Limit::Stale));
            found.filter(|(_, verdict)| *verdict == Verdict::Fresh).map(|(stored, _)| stored)
        };
        let mut fresh = find();
        if fresh.is_none() && self.lookup.await_floor(plan).await {
            fresh = find();
        }
        if let Some(stored) = fresh {
            let key = stored.alternate_key(plan).cloned();
            return Some(Fetched::AlreadyFresh(stored.entry, key));
        }
        if let Some(list) = self.lookup.list_followed(plan) {
            return Some(Fetched::AlreadyFresh(Arc::new(list), None));
        }
        let rule = ServeRule::within(Limit::Fresh);
        let derived = self.renderer.derive(plan, rule, Instant::now() + RENDER_PERMIT_WAIT).await?;
        Some(Fetched::AlreadyFresh(derived, None))
    }

    /// Fetches the block or transaction from which the asked one can be made, in a flight that callers of all shapes share,
    /// and makes the asked one. `None` if that has to be fetched itself: it is made from no other, it cannot be made from the
    /// one that was fetched, or that one is too large while the asked one may be shorter.
    async fn fetch_source(
        self: &Arc<Self>,
        plan: &LookupPlan,
        requirement: SlotRequirement,
        options: &CallOptions,
        is_background: bool,
        read: &LongestRead,
    ) -> Option<FlightResult> {
        let (source, derivation) =
            plan.fetched_source().filter(|(_, made)| self.renderer.knows_to_make(made))?;
        let generation = self.lookup.generation.number();
        let flight = self.join_or_start_flight(&source, requirement, options, is_background);
        let is_leader = flight.is_leader;
        let end = flight.result().await?;
        read.note(end.read);
        let fetched = match end.result {
            Ok(Fetched::New(entry, _)) if !is_leader => Fetched::Joined(entry),
            Ok(fetched) => fetched,
            // Only with details `accounts` is a block shorter than in base64.
            Err(error) if is_too_large(&error) && asks_for_accounts(plan) => return None,
            Err(error) => return Some(Err(error)),
        };
        match &fetched.entry().body {
            EntryBody::Verbatim(body) if body.refuses_version() => None,
            // What a node says about a block that it does not have is the same for all shapes.
            EntryBody::Verbatim(Payload::Error { .. }) => Some(Ok(fetched)),
            EntryBody::Verbatim(Payload::Result(text)) if text.pieces() == ["null"] => Some(Ok(fetched)),
            _ => {
                let (mut entry, _) =
                    self.renderer.make(fetched.entry(), derivation, options.deadline()).await?;
                entry.meta.derived = matches!(fetched, Fetched::KeptNewer(..) | Fetched::AlreadyFresh(..));
                let entry = Arc::new(entry);
                let inserted = self.lookup.insert_derived(plan, &entry, generation);
                let is_stored = matches!(inserted, Some(Insert::Stored | Insert::ReplacedNewer));
                Some(Ok(match fetched {
                    Fetched::New(..) => Fetched::New(entry, is_stored),
                    Fetched::Joined(_) => Fetched::Joined(entry),
                    Fetched::KeptNewer(..) => Fetched::KeptNewer(entry, None),
                    Fetched::AlreadyFresh(..) => Fetched::AlreadyFresh(entry, None),
                }))
            }
        }
    }

    /// Returns an answer that another gateway has written to the shared store. The answer must pass the rules
    /// for a node's answer. `None` if a node must be asked.
    async fn find_shared(&self, plan: &LookupPlan, requirement: SlotRequirement) -> Option<Fetched> {
        let second_level = self.second_level.as_ref()?;
        let SharedAnswers { candidate, foreign, took, generation } =
            second_level.find(&self.pool, plan, requirement).await?;
        let mut taken = None;
        if let Some((plan, reply)) = candidate {
            taken = self.store_answer(&plan, &reply, 0, generation, AnswerSource::Shared).await.ok();
        }
        second_level.count(taken.is_some(), foreign, took);
        let entry = Arc::clone(taken?.entry());
        let rule = ServeRule::within(Limit::Fresh);
        let is_fresh = self.lookup.freshness.serves(&rule, &entry.meta, Instant::now()).is_yes();
        is_fresh.then_some(Fetched::AlreadyFresh(entry, None))
    }

    /// Asks the pool, and stores the answer if the caching rules allow it.
    async fn fetch(
        &self,
        plan: &LookupPlan,
        requirement: SlotRequirement,
        options: CallOptions,
        is_background: bool,
        read: &LongestRead,
    ) -> FlightResult {
        let commitment = plan.upstream.commitment();
        let start = self.lookup.begin_fetch(plan);
        let FetchStart { generation, chain, .. } = start;
        // At processed a fork may be dropped with its slots, so the newest slot is only a preference there.
        let (newest_slot, prefer) = match commitment {
            // Nodes that have reached the last write are preferred. Another node would only repeat the stored answer.
            Some(Commitment::Confirmed | Commitment::Finalized) => (start.newest_slot, start.last_write),
            _ => (None, start.newest_slot),
        };
        let (required, min_context_slot) = match requirement {
            SlotRequirement::None => (None, None),
            SlotRequirement::AtLeast(slot) => (Some(slot), None),
            SlotRequirement::CallerMinimum(slot) => (Some(slot), Some(slot)),
        };
        // A minContextSlot that no node of the pool has reached goes to one node, which refuses the call in
        // its own words.
        let one_node =
            min_context_slot.zip(commitment).is_some_and(|(slot, c)| slot > self.lookup.frontier.slot(c));
        let query = plan.upstream.clone().with_min_context_slot(min_context_slot);
        let deadline = options.deadline();
        let CallOptions { caller, trace, .. } = options;
        let context = CallContext { deadline, caller, trace, is_background, read: read.clone() };
        // A list of blocks ends at the newest one of the node.
        let last = match &query {
            Query::Blocks(query) => query.last.filter(|_| plan.class == Class::BlockFinal),
            _ => None,
        };
        let min_slot = newest_slot.max(required).max(last);
        let request = UpstreamRequest { query, min_slot, prefer, one_node, context };
        let reply = self.pool.call(&request).await?;
        let account_floor = if commitment == Some(Commitment::Processed) { 0 } else { start.account_floor };
        self.store_answer(plan, &reply, account_floor, generation, AnswerSource::Node { chain }).await
    }

    /// Returns the data from which the answer's stamp is made. `None` if the answer is never served
    /// at slots other than its own.
    fn stamp_input(&self, plan: &LookupPlan, reply: &PoolReply, source: AnswerSource) -> Option<StampInput> {
        let AnswerSource::Node { chain } = source else { return None };
        let shows_accounts = plan.key.accounts().is_some_and(|(_, c)| c != Commitment::Processed);
        if chain == 0 || !shows_accounts || !self.pool.is_followable(reply.node) {
            return None;
        }
        let confirmed = self.lookup.frontier.slot(Commitment::Confirmed);
        let followed = Arc::clone(&self.lookup.carrier.followed);
        Some(StampInput { followed, chain, confirmed, read_at: reply.sent_at })
    }

    /// Notes where `entry`, which was just stored for `plan`, has its transactions, if it is a block from which others
    /// are made.
    async fn note_transactions(&self, plan: &LookupPlan, entry: &Entry) {
        let (Key::Block(slot, shape, _), EntryBody::Verbatim(Payload::Result(TextParts::One(text)))) =
            (&plan.key, &entry.body)
        else {
            return;
        };
        if !plan.key.has_places() {
            return;
        }
        let is_long = text.len() > OFF_WORKER_BYTES;
        let (lookup, text, slot, encoding) = (Arc::clone(&self.lookup), text.clone(), *slot, shape.encoding);
        let note = move || lookup.transactions.note(encoding, &places(&text, slot, encoding));
        if is_long {
            let _ = tokio::task::spawn_blocking(note).await;
        } else {
            note();
        }
    }

    /// Stores an answer if the caching rules allow it, unless a newer one is stored. `account_floor` is the
    /// highest slot at which one of the answer's accounts had been shown when the node was asked.
    pub(super) async fn store_answer(
        &self,
        plan: &LookupPlan,
        reply: &PoolReply,
        account_floor: Slot,
        generation: u64,
        source: AnswerSource,
    ) -> FlightResult {
        let not_stored = |reason| {
            self.lookup.metrics.uncacheable.at((plan.upstream.method(), reason)).inc();
        };
        // A node that has not reached the caller's minContextSlot refuses the call. This refusal is the answer.
        let refused = matches!(reply.body, NodeReply::Error { code: code::MIN_CONTEXT_SLOT_NOT_REACHED, .. });
        if !refused && let Some(stored) = self.lookup.find_newer(plan, reply.slot, account_floor) {
            not_stored(UncacheableReason::Older);
            let key = stored.alternate_key(plan).cloned();
            return Ok(Fetched::KeptNewer(stored.entry, key));
        }
        let (payload, mut placement) = self.lookup.cache_policy(plan, reply);
        if let (Query::Blocks(query), AnswerSource::Node { .. }) = (&plan.upstream, source)
            && self.pool.first_available(reply.node).is_some_and(|oldest| oldest > query.first)
        {
            // The node has left out the first blocks of the list.
            placement = Err(UncacheableReason::Transient);
        }
        let class = placement.as_ref().map_or(plan.class, |(_, class)| *class);
        let meta = EntryMeta::of(reply, class);
        let stamp_input = self.stamp_input(plan, reply, source);
        let parsed = ParsedAnswer::of(plan, reply, payload, meta, stamp_input).await.ok_or_else(|| {
            let upstream = self.pool.name_of(reply.node);
            Error::NoUpstream(vec![FailedAttempt::new(upstream, AttemptResult::BadJson)])
        })?;
        let entry = Arc::clone(&parsed.entry);
        let key = placement.map(|(key, _)| parsed.form_key.clone().unwrap_or(key));
        if entry.stamp.is_some()
            && let Some(stored) = self.lookup.outlived(plan, reply.sent_at)
        {
            if self.lookup.carrier.is_shadow() {
                self.lookup.count_carried(&plan.upstream);
            }
            self.verifier.compare_refetched(&plan.upstream, stored, reply);
        }
        let inserted = self.lookup.insert_fetched(plan, key, parsed, (account_floor, generation), |key| {
            if let (AnswerSource::Node { .. }, Some(second_level)) = (source, &self.second_level) {
                second_level.queue_write_back(&self.pool, key, reply, class);
            }
        });
        let (fetched, reason) = match inserted {
            Ok(Insert::Stored | Insert::ReplacedNewer) => {
                self.note_transactions(plan, &entry).await;
                return Ok(Fetched::New(entry, true));
            }
            Ok(Insert::KeptNewer(stored)) => (Fetched::KeptNewer(stored, None), UncacheableReason::Older),
            Ok(Insert::TooLarge) => (Fetched::New(entry, false), UncacheableReason::TooLarge),
            Err(reason) => (Fetched::New(entry, false), reason),
        };
        not_stored(reason);
        Ok(fetched)
    }
}

fn asks_for_accounts(plan: &LookupPlan) -> bool {
    matches!(&plan.upstream, Query::Block(block) if block.details == BlockDetails::Accounts)
}
