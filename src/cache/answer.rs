//! The way of one call through the three owners: from what is held, else from a node, else from what may stand in.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::Cache;
use super::basis::{Basis, Use};
use super::entry::Entry;
use super::fetched::{Fetched, Landing, SlotRequirement};
use super::flight::FlightHandle;
use super::lookup::CacheLookup;
use super::options::{CacheAnswer, CallOptions};
use super::planned_call::PlannedCall;
use super::render::is_long_work;
use super::status::{CacheStatus, Why};
use crate::error::Error;
use crate::methods::{AccountsQuery, Query, Slot};
use crate::telemetry::{AttemptResult, Outcome};

/// The reason why a node's answer is not the caller's.
pub(super) enum Missed {
    /// The answer passed its bounds on its way, somebody was shown a newer one meanwhile, or it has only the form of the
    /// caller who led.
    Late,
    /// There is no answer.
    Failed(Error),
}

impl From<Error> for Missed {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The part that a caller had in a flight.
#[derive(Debug, Clone, Copy)]
pub(super) enum Role {
    /// The flight started for this caller.
    Leader,
    /// The caller joined it.
    Joiner {
        /// The node was asked after the caller had come.
        asked_since: bool,
    },
}

/// Answers `call`.
pub(super) async fn answer(cache: &Cache, mut call: PlannedCall<'_>) -> Result<CacheAnswer, Error> {
    let answer = match answer_in_bounds(cache, &mut call).await {
        Ok(answer) => Ok(answer),
        Err(error) => {
            call.is_anew = true;
            in_fault(cache, &call, error).await
        }
    };
    match &answer {
        Ok(answer) => call.charge.answered(answer.outcome.is_hit()),
        Err(_) => call.charge.failed(),
    }
    answer
}

/// Looks up, and asks a node for what is not held. Begins anew if the node's answer comes too late, once: under load
/// every answer may, and nodes would be asked without end.
async fn answer_in_bounds(cache: &Cache, call: &mut PlannedCall<'_>) -> Result<CacheAnswer, Error> {
    loop {
        if !call.options.bypass {
            let found = cache.lookup.look_up(&call.plan, call.wanted());
            if let Some(answer) = from_kept(cache, call, &found).await? {
                return Ok(answer);
            }
            call.charge.failed();
            if matches!(found, CacheLookup::Expired) {
                call.why = Why::Stale;
            }
        }
        // Boxed, so that the future of a hit is small. The clock of the deadline, too, is set for a fetch only.
        let fetched = timeout_at(call.options.deadline, Box::pin(fetched(cache, call))).await;
        match fetched.map_err(|_| Error::TimedOut(cache.request_timeout))? {
            Ok(answer) => return Ok(answer),
            Err(Missed::Failed(error)) => return Err(error),
            Err(Missed::Late) if call.is_anew => return Err(Error::Overloaded),
            Err(Missed::Late) => call.is_anew = true,
        }
        call.options.floor = call.options.floor.max(call.conditions.floor());
    }
}

/// Returns an answer from the entry that was found, or from one that is made of others at once. `None` if a node is to be
/// asked.
async fn from_kept(
    cache: &Cache,
    call: &PlannedCall<'_>,
    found: &CacheLookup,
) -> Result<Option<CacheAnswer>, Error> {
    let assembled = || cache.lookup.assembled(call.query, Use::Fresh, call.wanted());
    let entry = match found {
        CacheLookup::Hit(entry) => Arc::clone(entry),
        CacheLookup::Stale(entry) => assembled().unwrap_or_else(|| Arc::clone(entry)),
        CacheLookup::Expired | CacheLookup::Miss => {
            let Some(list) = assembled() else { return Ok(None) };
            list
        }
    };
    call.charge.answered(true);
    let answer = deliver(cache, call, &entry, Basis::Kept);
    let answer = if is_long_work(call.query, &entry) {
        let in_time = timeout_at(call.options.deadline, answer).await;
        in_time.unwrap_or(Err(Error::TimedOut(cache.request_timeout)))
    } else {
        answer.await
    };
    match answer {
        // An entry that cannot be read is as good as none.
        Err(Error::NoUpstream(_)) => Ok(None),
        answer => answer,
    }
}

/// Asks a node, and once more for less if it was asked for more than the caller wants and that was too large.
async fn fetched(cache: &Cache, call: &mut PlannedCall<'_>) -> Result<CacheAnswer, Missed> {
    let answer = from_node(cache, call).await;
    if let Err(Missed::Failed(Error::NoUpstream(attempts))) = &answer
        && attempts.iter().any(|attempt| attempt.reason == AttemptResult::TooLarge.as_str())
        && cache.lookup.note_too_large(call.query, &call.plan)
    {
        call.plan = cache.lookup.plan(call.query);
        return from_node(cache, call).await;
    }
    answer
}

/// Returns the answer of a node: by a flight shared with others, or by a call of this caller's own.
async fn from_node(cache: &Cache, call: &PlannedCall<'_>) -> Result<CacheAnswer, Missed> {
    let (own, commitment) = (call.query.min_context_slot(), call.query.commitment());
    let frontier = &cache.frontier;
    // No node is known to be at a floor above the frontier: there, what lands first is taken.
    let reached = |floor: &Slot| commitment.is_some_and(|c| frontier.slot(c) >= *floor);
    let floor = call.options.floor.filter(reached);
    let last = floor.map_or(SlotRequirement::None, SlotRequirement::AtLeast);
    if call.why == Why::Request {
        let requirement = own.map_or(last, SlotRequirement::CallerMinimum);
        let flight = cache.fetcher.fly_alone(&call.plan, requirement, &call.options);
        let landed = await_flight(call, flight).await?;
        return land(cache, call, &landed, Role::Leader).await;
    }
    if let Some(answer) = completed(cache, call).await? {
        return Ok(answer);
    }
    let (Some(slot), Some(commitment)) = (own, commitment) else {
        // A caller whose answer is below the floor, or who joined and got one too old, asks once more, and takes what comes.
        return match by_flight(cache, call, SlotRequirement::None, floor).await? {
            Some(answer) => Ok(answer),
            None => last_flight(cache, call, last).await,
        };
    };
    if cache.fetcher.frontier_reaches(slot, commitment).await {
        if let Some(answer) = by_flight(cache, call, SlotRequirement::None, own.max(floor)).await? {
            return Ok(answer);
        }
        // All for whom the first answer was too low share the next, from a node at the frontier.
        let reached = SlotRequirement::AtLeast(frontier.slot(commitment));
        if let Some(answer) = by_flight(cache, call, reached, own).await? {
            return Ok(answer);
        }
    }
    last_flight(cache, call, SlotRequirement::CallerMinimum(slot)).await
}

/// Waits for a flight; `None` if the answer does not serve this caller: below `wanted`, or too old.
async fn by_flight(
    cache: &Cache,
    call: &PlannedCall<'_>,
    requirement: SlotRequirement,
    wanted: Option<Slot>,
) -> Result<Option<CacheAnswer>, Missed> {
    let (landed, leads) = join_flight(cache, call, requirement).await?;
    let entry = landed.entry();
    // A joiner takes what a hit of that age and slot would be; the leader's answer was asked for after it came.
    let fresh = || cache.lookup.held.may_be_used(&entry.stamp, Use::Fresh, Instant::now());
    let meets = landed.serves(&call.plan) && entry.stamp.reaches(wanted) && (leads || fresh());
    let role = if leads { Role::Leader } else { Role::Joiner { asked_since: false } };
    if meets { land(cache, call, &landed, role).await.map(Some) } else { Ok(None) }
}

/// Waits for a flight, and takes what lands; what another's brings too late, once more.
async fn last_flight(
    cache: &Cache,
    call: &PlannedCall<'_>,
    requirement: SlotRequirement,
) -> Result<CacheAnswer, Missed> {
    let since = Instant::now();
    // The next flight begins after the first has landed, and so is in time.
    let too_old = |entry: &Entry| {
        entry.stamp.sent_at < since
            && !cache.lookup.held.may_be_used(&entry.stamp, Use::Fresh, Instant::now())
    };
    let (mut landed, mut leads) = join_flight(cache, call, requirement).await?;
    let is_late = matches!(&landed, Fetched::New(entry, _) if too_old(entry));
    if !leads && (is_late || !landed.serves(&call.plan)) {
        (landed, leads) = join_flight(cache, call, requirement).await?;
    }
    let asked_since = landed.entry().stamp.sent_at >= since;
    land(cache, call, &landed, if leads { Role::Leader } else { Role::Joiner { asked_since } }).await
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

/// Waits for what a flight brings. A caller who goes meanwhile owes its price.
async fn await_flight(call: &PlannedCall<'_>, flight: FlightHandle<Landing>) -> Landing {
    call.charge.boarded(&flight);
    let landing = flight.landed().await.unwrap_or_else(|| Err(Error::NoUpstream(Vec::new())));
    call.charge.landed(&landing);
    landing
}

/// Returns a list of which some accounts are kept and fresh: the others are fetched alone, and the lowest slot is the
/// list's. `None` if that is not the mode, or not possible.
async fn completed(cache: &Cache, call: &PlannedCall<'_>) -> Result<Option<CacheAnswer>, Missed> {
    let Query::Accounts(query) = call.query else { return Ok(None) };
    let Some(missing) = cache.lookup.missing(query, call.wanted()) else { return Ok(None) };
    let rest = Query::Accounts(AccountsQuery { pubkeys: missing.into(), ..query.clone() });
    let plan = cache.lookup.plan(&rest);
    let options = CallOptions { coding: None, ..call.options.clone() };
    let rest = PlannedCall { query: &rest, plan, options, ..*call };
    let fetched = match Box::pin(from_node(cache, &rest)).await {
        Ok(fetched) => fetched,
        Err(Missed::Late) => return Err(Missed::Late),
        Err(Missed::Failed(Error::Overloaded)) => return Err(Error::Overloaded.into()),
        Err(Missed::Failed(_)) => return Ok(None),
    };
    let Some(list) = cache.lookup.completed(query, call.wanted()) else { return Ok(None) };
    let basis = match fetched.outcome {
        Outcome::Collapsed => Basis::Joined(CacheStatus::Collapsed, Outcome::Collapsed),
        _ => Basis::Joined(CacheStatus::forwarded(call.why, true), Outcome::Miss),
    };
    deliver(cache, call, &list, basis).await?.ok_or(Missed::Late).map(Some)
}

/// Returns the answer that a fetch came back with. A floor of ours is never a caller's error: an answer of the last try
/// that is behind a slot which somebody was shown meanwhile gives way to a held one, and is given if none reaches it.
pub(super) async fn land(
    cache: &Cache,
    call: &PlannedCall<'_>,
    landed: &Fetched,
    role: Role,
) -> Result<CacheAnswer, Missed> {
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
            let outcome = if call.why == Why::Request { Outcome::Bypass } else { Outcome::Miss };
            Basis::Own(CacheStatus::forwarded(call.why, *stored), outcome)
        }
    };
    if !landed.serves(&call.plan) {
        return Err(Missed::Late);
    }
    let entry = landed.entry();
    if call.is_anew
        && cache.lookup.held.is_overtaken(&call.plan, entry, basis)
        && let Some(held) = stands_in(cache, call, Use::InFault).await
    {
        return deliver(cache, call, &held, Basis::StandIn).await?.ok_or(Missed::Late);
    }
    deliver(cache, call, entry, basis).await?.ok_or(Missed::Late)
}

/// Returns the answer that may stand in for one that no node gives. A floor of ours is never a caller's error: if nothing
/// held reaches it, it falls to what is held.
async fn in_fault(cache: &Cache, call: &PlannedCall<'_>, error: Error) -> Result<CacheAnswer, Error> {
    let mut entry = stands_in(cache, call, Use::InFault).await;
    if entry.is_none() {
        entry = stands_in(cache, call, Use::LastResort).await;
        if let Some(entry) = &entry {
            cache.lookup.falls_back_to(&call.plan, &entry.stamp);
        }
    }
    let Some(entry) = entry else { return Err(error) };
    call.charge.answered(true);
    deliver(cache, call, &entry, Basis::StandIn).await.ok().flatten().ok_or(error)
}

/// Returns the entry that may stand in, or one that can be made of what is held.
async fn stands_in(cache: &Cache, call: &PlannedCall<'_>, usage: Use) -> Option<Arc<Entry>> {
    match cache.lookup.stands_in(call.query, &call.plan, usage) {
        Some(entry) => Some(entry),
        None => cache.renderer.derive(&call.plan, usage, call.options.deadline).await,
    }
}

/// Returns an entry as the answer that this caller gets, and has a stale one fetched anew. `None` if the entry may not
/// serve the call any more by then.
pub(super) async fn deliver(
    cache: &Cache,
    call: &PlannedCall<'_>,
    entry: &Arc<Entry>,
    basis: Basis,
) -> Result<Option<CacheAnswer>, Error> {
    let answer = cache.renderer.render(call, entry, basis).await?;
    if basis.is_kept() && answer.as_ref().is_some_and(|answer| answer.outcome == Outcome::Stale) {
        drop(cache.fetcher.join_flight(&call.plan, SlotRequirement::None, &call.options));
    }
    Ok(answer)
}
