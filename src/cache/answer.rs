//! The way of one call through the cache. A call is looked up, and fetched if nothing stored may serve it. If the
//! fetch fails, an older stored entry may be served.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::Cache;
use super::basis::{Basis, NotServed, Tolerance};
use super::entry::Entry;
use super::fetched::{Fetched, FlightResult, SlotRequirement};
use super::flight::FlightHandle;
use super::lookup::CacheLookup;
use super::options::CacheAnswer;
use super::planned_call::PlannedCall;
use super::render::is_long_work;
use super::status::{CacheStatus, ForwardReason};
use crate::error::Error;
use crate::methods::{Commitment, Slot};
use crate::telemetry::{AttemptResult, Outcome};

/// Answers `call`. Its charge is shared with the fetches that are made for it.
pub(super) async fn answer_call(cache: &Cache, mut call: PlannedCall<'_>) -> Result<CacheAnswer, Error> {
    match look_up_or_fetch(cache, &mut call).await {
        Ok(answer) => Ok(answer),
        Err(error) => {
            call.is_retry = true;
            serve_stand_in(cache, &call, error).await
        }
    }
}

/// Looks the call up, and fetches an answer if none is stored. If the fetched answer is unusable, starts over
/// once. There is no third try, because under load every answer may come too late.
async fn look_up_or_fetch(cache: &Cache, call: &mut PlannedCall<'_>) -> Result<CacheAnswer, Error> {
    loop {
        if !call.options.bypass {
            let found = cache.lookup.look_up(&call.plan, call.min_slot());
            match serve_stored(cache, call, &found).await {
                Ok(answer) => return Ok(answer),
                Err(NotServed::Failed(error)) => return Err(error),
                Err(NotServed::Unusable) => {}
            }
            // An entry was found, but it may not be served any more. Even a hit may have expired before it was
            // rendered.
            if !matches!(found, CacheLookup::Miss) {
                call.reason = ForwardReason::Stale;
            }
        }
        // The fetch is boxed, so that the future of a hit is small. For the same reason this timer covers only the
        // fetch.
        let fetched = timeout_at(call.options.deadline, Box::pin(fetch_retrying_smaller(cache, call))).await;
        match fetched.map_err(|_| Error::TimedOut(cache.request_timeout))? {
            Ok(answer) => return Ok(answer),
            Err(NotServed::Failed(error)) => return Err(error),
            Err(NotServed::Unusable) if call.is_retry => return Err(Error::Overloaded),
            Err(NotServed::Unusable) => call.is_retry = true,
        }
        call.options.monotonic_slot = call.options.monotonic_slot.max(call.conditions.monotonic_slot());
    }
}

/// Serves a stored answer: the entry `found`, or a list put together from other entries.
async fn serve_stored(
    cache: &Cache,
    call: &PlannedCall<'_>,
    found: &CacheLookup,
) -> Result<CacheAnswer, NotServed> {
    let entry = choose_stored(cache, call, found).ok_or(NotServed::Unusable)?;
    let rendering = cache.renderer.render(call, &entry, Basis::LookedUp);
    let answer = if is_long_work(call.query, &entry) {
        let in_time = timeout_at(call.options.deadline, rendering).await;
        in_time.unwrap_or(Err(NotServed::Failed(Error::TimedOut(cache.request_timeout))))
    } else {
        rendering.await
    };
    // An entry that cannot be rendered counts as no entry.
    answer.map_err(|reason| match reason {
        NotServed::Failed(Error::NoUpstream(_)) => NotServed::Unusable,
        other => other,
    })
}

/// Returns the entry to serve: a fresh entry, a list put together from fresh entries, or a stale entry. A stale
/// entry is served while a new answer is fetched. `None` if a node must be asked first.
fn choose_stored(cache: &Cache, call: &PlannedCall<'_>, found: &CacheLookup) -> Option<Arc<Entry>> {
    if let CacheLookup::Hit(entry) = found {
        return Some(Arc::clone(entry));
    }
    let list = cache.lookup.lists().assemble(call.query, Tolerance::Fresh, call.min_slot());
    if list.is_some() {
        return list;
    }
    let CacheLookup::Stale(entry) = found else { return None };
    // The refetch begins before the entry is rendered, because rendering may wait, fail or lose its caller. Of all
    // callers who are served meanwhile, only the one who started it owes its price.
    let refetch = cache.fetcher.join_or_start_flight(&call.plan, SlotRequirement::None, &call.options, true);
    if refetch.is_leader {
        call.charge.share(&refetch);
    }
    Some(Arc::clone(entry))
}

/// Fetches an answer. The node may be asked for a larger form of the answer than the caller wants, because other
/// forms can be made from it. If the larger form is too large, the node is asked once more, for the caller's form.
async fn fetch_retrying_smaller(cache: &Cache, call: &mut PlannedCall<'_>) -> Result<CacheAnswer, NotServed> {
    let answer = fetch(cache, call).await;
    if let Err(NotServed::Failed(Error::NoUpstream(attempts))) = &answer
        && attempts.iter().any(|attempt| attempt.reason == AttemptResult::TooLarge.as_str())
        && cache.lookup.note_too_large(call.query, &call.plan)
    {
        call.plan = cache.lookup.plan(call.query);
        return fetch(cache, call).await;
    }
    answer
}

/// Fetches an answer, for this caller alone or in a fetch that callers share.
async fn fetch(cache: &Cache, call: &PlannedCall<'_>) -> Result<CacheAnswer, NotServed> {
    let commitment = call.query.commitment();
    // The slot that the caller's key has seen is ignored while it is above the frontier, because no node is known
    // to have reached it.
    let is_reached = |slot: &Slot| commitment.is_some_and(|c| cache.frontier.slot(c) >= *slot);
    let monotonic_slot = call.options.monotonic_slot.filter(is_reached);
    if call.reason == ForwardReason::Request {
        return fetch_past_cache(cache, call, monotonic_slot).await;
    }
    match (call.query.min_context_slot(), commitment) {
        (Some(slot), Some(commitment)) => {
            fetch_at_min_context_slot(cache, call, slot, commitment, monotonic_slot).await
        }
        _ => fetch_at_any_slot(cache, call, monotonic_slot).await,
    }
}

/// Fetches an answer past the cache, by an upstream call that no other caller shares.
async fn fetch_past_cache(
    cache: &Cache,
    call: &PlannedCall<'_>,
    monotonic_slot: Option<Slot>,
) -> Result<CacheAnswer, NotServed> {
    let min_context_slot = call.query.min_context_slot().map(SlotRequirement::CallerMinimum);
    let requirement = min_context_slot.unwrap_or(SlotRequirement::at_least(monotonic_slot));
    let flight = cache.fetcher.fetch_unshared(&call.plan, requirement, &call.options);
    let fetched = await_flight(call, flight).await?;
    render_fetched(cache, call, &fetched, FlightRole::Leader).await
}

/// Fetches an answer for a caller without minContextSlot. The answer of a shared fetch may be below
/// `monotonic_slot`, the slot that the caller's key has already seen. For a caller who joined the fetch, the
/// answer may also be too old or in the wrong form. In these cases a second answer is fetched, and taken at any
/// slot.
async fn fetch_at_any_slot(
    cache: &Cache,
    call: &PlannedCall<'_>,
    monotonic_slot: Option<Slot>,
) -> Result<CacheAnswer, NotServed> {
    let first = share_flight(cache, call, SlotRequirement::None).await?;
    if first.serves(cache, call, monotonic_slot) {
        return render_fetched(cache, call, &first.fetched, first.role(false)).await;
    }
    fetch_last(cache, call, SlotRequirement::at_least(monotonic_slot)).await
}

/// Fetches an answer for a caller with minContextSlot `slot`. Answers of shared fetches are tried first. The
/// minContextSlot itself is sent to a node in two cases: the newest known slot does not reach `slot` in time, or
/// neither of two shared answers may serve the caller.
async fn fetch_at_min_context_slot(
    cache: &Cache,
    call: &PlannedCall<'_>,
    slot: Slot,
    commitment: Commitment,
    monotonic_slot: Option<Slot>,
) -> Result<CacheAnswer, NotServed> {
    if cache.fetcher.await_frontier(&call.plan, slot, commitment).await {
        let first = share_flight(cache, call, SlotRequirement::None).await?;
        if first.serves(cache, call, monotonic_slot.max(Some(slot))) {
            return render_fetched(cache, call, &first.fetched, first.role(false)).await;
        }
        // All callers for whom the slot of the first answer was too low share a second answer, from a node that
        // has reached the frontier.
        let at_frontier = SlotRequirement::AtLeast(cache.frontier.slot(commitment));
        let second = share_flight(cache, call, at_frontier).await?;
        if second.serves(cache, call, Some(slot)) {
            return render_fetched(cache, call, &second.fetched, second.role(false)).await;
        }
    }
    fetch_last(cache, call, SlotRequirement::CallerMinimum(slot)).await
}

/// Fetches an answer in a shared fetch, and takes the answer at any slot. A caller who joined another
/// caller's fetch may get an answer that is too old, or in a form that does not fit the call. That caller joins or
/// starts one more shared fetch.
async fn fetch_last(
    cache: &Cache,
    call: &PlannedCall<'_>,
    requirement: SlotRequirement,
) -> Result<CacheAnswer, NotServed> {
    let since = Instant::now();
    // The second fetch begins after the first has ended, so the second answer is young enough.
    let too_old = |entry: &Entry| {
        entry.meta.sent_at < since && !cache.freshness.allows(&entry.meta, Tolerance::Fresh, Instant::now())
    };
    let mut flight = share_flight(cache, call, requirement).await?;
    let is_late = matches!(&flight.fetched, Fetched::New(entry, _) if too_old(entry));
    if !flight.is_leader && (is_late || !flight.fetched.serves(&call.plan)) {
        flight = share_flight(cache, call, requirement).await?;
    }
    let asked_since = flight.fetched.entry().meta.sent_at >= since;
    render_fetched(cache, call, &flight.fetched, flight.role(asked_since)).await
}

/// The role of a caller in a flight, which is a fetch that several callers share.
#[derive(Debug, Clone, Copy)]
pub(super) enum FlightRole {
    /// The fetch began for this caller.
    Leader,
    /// The caller joined a fetch that had begun for another caller.
    Joiner {
        /// True if the node was asked after this caller began its latest attempt to get an answer.
        asked_since: bool,
    },
}

/// The result of a shared fetch, as one of its callers gets it.
struct SharedFlight {
    fetched: Fetched,
    is_leader: bool,
}

impl SharedFlight {
    /// Returns true if the result fits the call, reaches `min_slot`, and is young enough for this caller. A caller
    /// who joined the fetch takes the result only if a stored answer of that age would count as fresh. The caller
    /// for whom the fetch began takes a result of any age.
    fn serves(&self, cache: &Cache, call: &PlannedCall<'_>, min_slot: Option<Slot>) -> bool {
        let meta = &self.fetched.entry().meta;
        let is_fresh = || cache.freshness.allows(meta, Tolerance::Fresh, Instant::now());
        self.fetched.serves(&call.plan) && meta.reaches(min_slot) && (self.is_leader || is_fresh())
    }

    fn role(&self, asked_since: bool) -> FlightRole {
        if self.is_leader { FlightRole::Leader } else { FlightRole::Joiner { asked_since } }
    }
}

/// Joins the shared fetch that meets `requirement`, or starts one, and waits for its result.
async fn share_flight(
    cache: &Cache,
    call: &PlannedCall<'_>,
    requirement: SlotRequirement,
) -> Result<SharedFlight, Error> {
    let flight = cache.fetcher.join_or_start_flight(&call.plan, requirement, &call.options, false);
    let is_leader = flight.is_leader;
    Ok(SharedFlight { fetched: await_flight(call, flight).await?, is_leader })
}

/// Waits for the result of a fetch, whose price the call owes even if its caller leaves or gives up.
async fn await_flight(call: &PlannedCall<'_>, flight: FlightHandle<FlightResult>) -> FlightResult {
    call.charge.share(&flight);
    flight.result().await.unwrap_or_else(|| Err(Error::NoUpstream(Vec::new())))
}

/// Renders the result of a fetch for this caller. Meanwhile another caller may have got an answer about the same
/// accounts at a higher slot. On the first try of the call, the result is then unusable. On the second try, a
/// stored entry is rendered instead, if one may be served. Otherwise the result is rendered, because slots shown
/// to other callers never cause an error.
pub(super) async fn render_fetched(
    cache: &Cache,
    call: &PlannedCall<'_>,
    fetched: &Fetched,
    role: FlightRole,
) -> Result<CacheAnswer, NotServed> {
    let basis = match (fetched, role) {
        (Fetched::KeptNewer(..), _) => Basis::StandIn,
        (Fetched::AlreadyFresh(..), _) => Basis::FoundByFlight,
        (Fetched::New(..), FlightRole::Joiner { asked_since: false }) => {
            Basis::SharedFetch(CacheStatus::Collapsed, Outcome::Collapsed)
        }
        (Fetched::New(..), FlightRole::Joiner { asked_since: true }) => {
            Basis::FetchedSinceArrival(CacheStatus::Collapsed, Outcome::Collapsed)
        }
        (Fetched::New(_, stored), FlightRole::Leader) => {
            let outcome = if call.reason == ForwardReason::Request { Outcome::Bypass } else { Outcome::Miss };
            Basis::FetchedSinceArrival(CacheStatus::forwarded(call.reason, *stored), outcome)
        }
    };
    if !fetched.serves(&call.plan) {
        return Err(NotServed::Unusable);
    }
    let entry = fetched.entry();
    if call.is_retry
        && cache.lookup.entries.is_overtaken(&call.plan, entry, basis)
        && let Some(stored) = find_or_derive_stand_in(cache, call, Tolerance::InFault).await
    {
        return cache.renderer.render(call, &stored, Basis::StandIn).await;
    }
    cache.renderer.render(call, entry, basis).await
}

/// Serves a stored entry because the call has failed. An entry below the floor of one of its accounts is served
/// only if no other entry may be. The floors of the entry's accounts then fall to the entry's slot.
async fn serve_stand_in(cache: &Cache, call: &PlannedCall<'_>, error: Error) -> Result<CacheAnswer, Error> {
    let mut entry = find_or_derive_stand_in(cache, call, Tolerance::InFault).await;
    if entry.is_none() {
        entry = find_or_derive_stand_in(cache, call, Tolerance::LastResort).await;
        if let Some(entry) = &entry {
            cache.lookup.lower_floors_to(&call.plan, &entry.meta);
        }
    }
    let Some(entry) = entry else { return Err(error) };
    cache.renderer.render(call, &entry, Basis::StandIn).await.map_err(|_| error)
}

/// Returns the stored entry that may be served instead of a node's answer. If there is none, makes one from a
/// stored entry of another form.
async fn find_or_derive_stand_in(
    cache: &Cache,
    call: &PlannedCall<'_>,
    tolerance: Tolerance,
) -> Option<Arc<Entry>> {
    match cache.lookup.find_stand_in(call.query, &call.plan, tolerance) {
        Some(entry) => Some(entry),
        None => cache.renderer.derive(&call.plan, tolerance, call.options.deadline).await,
    }
}
