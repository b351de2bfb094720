//! The way of one call through the three owners: look up, fetch, and fall back to an entry that may stand in.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::Cache;
use super::basis::{Basis, Tolerance};
use super::entry::Entry;
use super::fetched::{Fetched, FlightResult, SlotRequirement};
use super::flight::FlightHandle;
use super::lookup::CacheLookup;
use super::options::{CacheAnswer, CallOptions};
use super::planned_call::PlannedCall;
use super::render::is_long_work;
use super::status::{CacheStatus, ForwardReason};
use crate::error::Error;
use crate::methods::{AccountsQuery, Query, Slot};
use crate::telemetry::{AttemptResult, Outcome};

/// The reason why a fetch gave this caller no answer.
pub(super) enum FetchError {
    /// The answer passed its bounds on its way, a newer one was shown meanwhile, or its form serves only the
    /// caller who led the flight.
    Unusable,
    /// The fetch failed.
    Failed(Error),
}

impl From<Error> for FetchError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A caller's part in a flight.
#[derive(Debug, Clone, Copy)]
pub(super) enum Role {
    /// The flight started for this caller.
    Leader,
    /// The caller joined a flight under way.
    Joiner {
        /// True if the node was asked after this caller arrived.
        asked_since: bool,
    },
}

/// Answers `call`.
pub(super) async fn answer(cache: &Cache, mut call: PlannedCall<'_>) -> Result<CacheAnswer, Error> {
    let answer = match answer_in_bounds(cache, &mut call).await {
        Ok(answer) => Ok(answer),
        Err(error) => {
            call.is_retry = true;
            answer_in_fault(cache, &call, error).await
        }
    };
    match &answer {
        Ok(answer) => call.charge.answered(answer.outcome.is_hit()),
        Err(_) => call.charge.failed(),
    }
    answer
}

/// Looks the call up, and fetches what is not stored. If the fetched answer is unusable, starts over once.
/// There is no third try: under load every answer may come too late, and the nodes would be asked without
/// end.
async fn answer_in_bounds(cache: &Cache, call: &mut PlannedCall<'_>) -> Result<CacheAnswer, Error> {
    loop {
        if !call.options.bypass {
            let found = cache.lookup.look_up(&call.plan, call.min_slot());
            if let Some(answer) = answer_from_entry(cache, call, &found).await? {
                return Ok(answer);
            }
            call.charge.failed();
            // A hit, too, may have expired before it was rendered.
            if !matches!(found, CacheLookup::Miss) {
                call.reason = ForwardReason::Stale;
            }
        }
        // Boxed, so that the future of a hit is small. For the same reason the timer is set for a fetch only.
        let fetched = timeout_at(call.options.deadline, Box::pin(fetch_answer(cache, call))).await;
        match fetched.map_err(|_| Error::TimedOut(cache.request_timeout))? {
            Ok(answer) => return Ok(answer),
            Err(FetchError::Failed(error)) => return Err(error),
            Err(FetchError::Unusable) if call.is_retry => return Err(Error::Overloaded),
            Err(FetchError::Unusable) => call.is_retry = true,
        }
        call.options.monotonic_slot = call.options.monotonic_slot.max(call.conditions.monotonic_slot());
    }
}

/// Returns an answer from the entry that was found, or from one assembled of other entries. `None` if a node
/// is to be asked.
async fn answer_from_entry(
    cache: &Cache,
    call: &PlannedCall<'_>,
    found: &CacheLookup,
) -> Result<Option<CacheAnswer>, Error> {
    let assembled = || cache.lookup.lists().assemble(call.query, Tolerance::Fresh, call.min_slot());
    let entry = match found {
        CacheLookup::Hit(entry) => Arc::clone(entry),
        CacheLookup::Stale(entry) => assembled().unwrap_or_else(|| {
            // Refetched before the entry is rendered, because rendering may wait, fail or lose its caller.
            drop(cache.fetcher.join_flight(&call.plan, SlotRequirement::None, &call.options));
            Arc::clone(entry)
        }),
        CacheLookup::Expired | CacheLookup::Miss => {
            let Some(list) = assembled() else { return Ok(None) };
            list
        }
    };
    call.charge.answered(true);
    let answer = cache.renderer.render(call, &entry, Basis::Kept);
    let answer = if is_long_work(call.query, &entry) {
        let in_time = timeout_at(call.options.deadline, answer).await;
        in_time.unwrap_or(Err(Error::TimedOut(cache.request_timeout)))
    } else {
        answer.await
    };
    match answer {
        // An entry that cannot be read counts as no entry.
        Err(Error::NoUpstream(_)) => Ok(None),
        answer => answer,
    }
}

/// Fetches an answer. If the node was asked for more than the caller wants and that was too large, asks once
/// for less.
async fn fetch_answer(cache: &Cache, call: &mut PlannedCall<'_>) -> Result<CacheAnswer, FetchError> {
    let answer = answer_from_node(cache, call).await;
    if let Err(FetchError::Failed(Error::NoUpstream(attempts))) = &answer
        && attempts.iter().any(|attempt| attempt.reason == AttemptResult::TooLarge.as_str())
        && cache.lookup.note_too_large(call.query, &call.plan)
    {
        call.plan = cache.lookup.plan(call.query);
        return answer_from_node(cache, call).await;
    }
    answer
}

/// Returns a node's answer, by a flight that is shared with others or by a call for this caller alone.
async fn answer_from_node(cache: &Cache, call: &PlannedCall<'_>) -> Result<CacheAnswer, FetchError> {
    let (own, commitment) = (call.query.min_context_slot(), call.query.commitment());
    let frontier = &cache.frontier;
    // No node is known to have reached a floor above the frontier. In that case the first answer is taken.
    let reached = |floor: &Slot| commitment.is_some_and(|c| frontier.slot(c) >= *floor);
    let floor = call.options.monotonic_slot.filter(reached);
    let last = floor.map_or(SlotRequirement::None, SlotRequirement::AtLeast);
    if call.reason == ForwardReason::Request {
        let requirement = own.map_or(last, SlotRequirement::CallerMinimum);
        let flight = cache.fetcher.fetch_alone(&call.plan, requirement, &call.options);
        let landed = await_flight(call, flight).await?;
        return answer_from_fetch(cache, call, &landed, Role::Leader).await;
    }
    if let Some(answer) = complete_list(cache, call).await? {
        return Ok(answer);
    }
    let (Some(slot), Some(commitment)) = (own, commitment) else {
        // An answer below the floor, or one that was too old for a joiner, is asked for once more. The second
        // one is taken.
        return match answer_by_flight(cache, call, SlotRequirement::None, floor).await? {
            Some(answer) => Ok(answer),
            None => answer_by_last_flight(cache, call, last).await,
        };
    };
    if cache.fetcher.frontier_reaches(&call.plan, slot, commitment).await {
        if let Some(answer) = answer_by_flight(cache, call, SlotRequirement::None, own.max(floor)).await? {
            return Ok(answer);
        }
        // All callers for whom the first answer was too low share the next one, from a node at the frontier.
        let reached = SlotRequirement::AtLeast(frontier.slot(commitment));
        if let Some(answer) = answer_by_flight(cache, call, reached, own).await? {
            return Ok(answer);
        }
    }
    answer_by_last_flight(cache, call, SlotRequirement::CallerMinimum(slot)).await
}

/// Waits for a flight. `None` if its answer does not serve this caller, because it is below `min_slot` or too
/// old.
async fn answer_by_flight(
    cache: &Cache,
    call: &PlannedCall<'_>,
    requirement: SlotRequirement,
    min_slot: Option<Slot>,
) -> Result<Option<CacheAnswer>, FetchError> {
    let (landed, leads) = join_flight(cache, call, requirement).await?;
    let entry = landed.entry();
    // A joiner takes the answer only if a hit of that age and slot would do. The leader's was asked for after
    // it arrived.
    let fresh = || cache.rules.allows(&entry.meta, Tolerance::Fresh, Instant::now());
    let meets = landed.serves(&call.plan) && entry.meta.reaches(min_slot) && (leads || fresh());
    let role = if leads { Role::Leader } else { Role::Joiner { asked_since: false } };
    if meets { answer_from_fetch(cache, call, &landed, role).await.map(Some) } else { Ok(None) }
}

/// Waits for a flight and takes its answer. Joins one more flight if the answer of another caller is too old.
async fn answer_by_last_flight(
    cache: &Cache,
    call: &PlannedCall<'_>,
    requirement: SlotRequirement,
) -> Result<CacheAnswer, FetchError> {
    let since = Instant::now();
    // The next flight begins after the first has landed, so its answer is young enough.
    let too_old = |entry: &Entry| {
        entry.meta.sent_at < since && !cache.rules.allows(&entry.meta, Tolerance::Fresh, Instant::now())
    };
    let (mut landed, mut leads) = join_flight(cache, call, requirement).await?;
    let is_late = matches!(&landed, Fetched::New(entry, _) if too_old(entry));
    if !leads && (is_late || !landed.serves(&call.plan)) {
        (landed, leads) = join_flight(cache, call, requirement).await?;
    }
    let asked_since = landed.entry().meta.sent_at >= since;
    answer_from_fetch(cache, call, &landed, if leads { Role::Leader } else { Role::Joiner { asked_since } })
        .await
}

async fn join_flight(
    cache: &Cache,
    call: &PlannedCall<'_>,
    requirement: SlotRequirement,
) -> Result<(Fetched, bool), Error> {
    let flight = cache.fetcher.join_flight(&call.plan, requirement, &call.options);
    let leads = flight.leads;
    Ok((await_flight(call, flight).await?, leads))
}

/// Waits for the result of a flight. A caller who leaves while waiting still owes its price.
async fn await_flight(call: &PlannedCall<'_>, flight: FlightHandle<FlightResult>) -> FlightResult {
    call.charge.joined(&flight);
    let landing = flight.landed().await.unwrap_or_else(|| Err(Error::NoUpstream(Vec::new())));
    call.charge.landed(&landing);
    landing
}

/// Returns a list of which some accounts are stored and fresh. The other accounts are fetched, and the lowest slot
/// becomes the list's slot. `None` if the `assemble` mode forbids this, or the list cannot be completed.
async fn complete_list(cache: &Cache, call: &PlannedCall<'_>) -> Result<Option<CacheAnswer>, FetchError> {
    let Query::Accounts(query) = call.query else { return Ok(None) };
    let Some(missing) = cache.lookup.lists().missing_accounts(query, call.min_slot()) else {
        return Ok(None);
    };
    let rest = Query::Accounts(AccountsQuery { pubkeys: missing.into(), ..query.clone() });
    let plan = cache.lookup.plan(&rest);
    let options = CallOptions { coding: None, ..call.options.clone() };
    let rest = PlannedCall { query: &rest, plan, options, ..*call };
    let fetched = match Box::pin(answer_from_node(cache, &rest)).await {
        Ok(fetched) => fetched,
        Err(FetchError::Unusable) => return Err(FetchError::Unusable),
        Err(FetchError::Failed(Error::Overloaded)) => return Err(Error::Overloaded.into()),
        Err(FetchError::Failed(_)) => return Ok(None),
    };
    cache.lookup.carrier.await_carried(query, fetched.meta.slot).await;
    let Some(list) = cache.lookup.lists().complete_list(query, call.min_slot()) else { return Ok(None) };
    let basis = match fetched.outcome {
        Outcome::Collapsed => Basis::Joined(CacheStatus::Collapsed, Outcome::Collapsed),
        _ => Basis::Joined(CacheStatus::forwarded(call.reason, true), Outcome::Miss),
    };
    cache.renderer.render(call, &list, basis).await?.ok_or(FetchError::Unusable).map(Some)
}

/// Turns the result of a fetch into this caller's answer. The cache's floors never become a caller's error.
/// If an answer of the last try is below a slot that was shown meanwhile, a stored one replaces it. If none is
/// stored, it is given.
pub(super) async fn answer_from_fetch(
    cache: &Cache,
    call: &PlannedCall<'_>,
    landed: &Fetched,
    role: Role,
) -> Result<CacheAnswer, FetchError> {
    let basis = match (landed, role) {
        (Fetched::KeptNewer(..), _) => Basis::StandIn,
        (Fetched::AlreadyFresh(..), _) => Basis::Found,
        (Fetched::New(..), Role::Joiner { asked_since: false }) => {
            Basis::Joined(CacheStatus::Collapsed, Outcome::Collapsed)
        }
        (Fetched::New(..), Role::Joiner { asked_since: true }) => {
            Basis::Own(CacheStatus::Collapsed, Outcome::Collapsed)
        }
        (Fetched::New(_, stored), Role::Leader) => {
            let outcome = if call.reason == ForwardReason::Request { Outcome::Bypass } else { Outcome::Miss };
            Basis::Own(CacheStatus::forwarded(call.reason, *stored), outcome)
        }
    };
    if !landed.serves(&call.plan) {
        return Err(FetchError::Unusable);
    }
    let entry = landed.entry();
    if call.is_retry
        && cache.lookup.entries.is_overtaken(&call.plan, entry, basis)
        && let Some(stored) = find_stand_in(cache, call, Tolerance::InFault).await
    {
        return cache.renderer.render(call, &stored, Basis::StandIn).await?.ok_or(FetchError::Unusable);
    }
    cache.renderer.render(call, entry, basis).await?.ok_or(FetchError::Unusable)
}

/// Returns an entry in place of an answer that no node gives. If no stored entry reaches the floor, the floor
/// falls to the stored one, because the cache's floors never become a caller's error.
async fn answer_in_fault(cache: &Cache, call: &PlannedCall<'_>, error: Error) -> Result<CacheAnswer, Error> {
    let mut entry = find_stand_in(cache, call, Tolerance::InFault).await;
    if entry.is_none() {
        entry = find_stand_in(cache, call, Tolerance::LastResort).await;
        if let Some(entry) = &entry {
            cache.lookup.lower_floors_to(&call.plan, &entry.meta);
        }
    }
    let Some(entry) = entry else { return Err(error) };
    call.charge.answered(true);
    cache.renderer.render(call, &entry, Basis::StandIn).await.ok().flatten().ok_or(error)
}

/// Returns the entry that may stand in, derived from other entries if necessary.
async fn find_stand_in(cache: &Cache, call: &PlannedCall<'_>, tolerance: Tolerance) -> Option<Arc<Entry>> {
    match cache.lookup.find_stand_in(call.query, &call.plan, tolerance) {
        Some(entry) => Some(entry),
        None => cache.renderer.derive(&call.plan, tolerance, call.options.deadline).await,
    }
}
