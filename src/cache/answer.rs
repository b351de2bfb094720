//! The way of one call through the cache: look up, fetch, and serve an older stored entry if the fetch fails.
//!
//! The answer of a flight may be no good for this caller, because the flight began before the caller arrived, or
//! because another caller was shown a higher slot meanwhile. Then another flight follows: at most three in all, four
//! with minContextSlot.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::entry::{Entry, EntryBody, EntryMeta, Payload};
use super::fetched::{Fetched, FlightEnd, SlotRequirement, is_too_large};
use super::flight::FlightHandle;
use super::freshness::{Limit, ServeRule, Verdict};
use super::key::LookupPlan;
use super::lookup::Stored;
use super::placing::is_at_processed;
use super::render::{is_long_work, is_stored_form};
use super::status::{CacheStatus, ForwardReason};
use super::{Cache, CacheAnswer, JOINED_BYTES, PlannedCall};
use crate::error::Error;
use crate::methods::{Query, Slot};
use crate::telemetry::StaleCause;

/// The longest time that a fetched answer may wait to be written. If the time to live of the answer is longer, it is
/// the limit instead.
const LONGEST_RENDER_WAIT: Duration = Duration::from_millis(400);

/// The highest number of flights for one call, and for one with minContextSlot. A call that shares no flight, or whose
/// minContextSlot no node has reached, has no first flight. The last flight has the requirement of the one before it, so it
/// always begins after the call, and its answer is new enough.
const FLIGHTS: [usize; 2] = [3, 4];

pub(super) async fn answer_call(cache: &Cache, call: &PlannedCall<'_>) -> Result<CacheAnswer, Error> {
    match look_up_or_fetch(cache, call).await {
        Ok(answer) => Ok(answer),
        Err(error) => serve_stand_in(cache, call).await.ok_or(error),
    }
}

async fn look_up_or_fetch(cache: &Cache, call: &PlannedCall<'_>) -> Result<CacheAnswer, Error> {
    let mut reason = ForwardReason::Request;
    if !call.options.bypass {
        let found = cache.lookup.look_up(call.query, &call.plan, &call.stored_rule());
        let cause = found.as_ref().and_then(|(_, verdict)| verdict.cause());
        if let Some(cause) = cause {
            cache.lookup.metrics.cache_stale.at(cause).inc();
        }
        // An entry without a bound that it is beyond could not be written.
        reason = match (&found, cause) {
            (None, _) => ForwardReason::Miss,
            (Some(_), cause) => ForwardReason::Stale(cause.unwrap_or(StaleCause::Ttl)),
        };
        if let Some((Stored { entry, .. }, verdict)) = &found
            && verdict.is_yes()
            && let Some(answer) = serve_stored(cache, call, entry, *verdict).await?
        {
            return Ok(answer);
        }
    }
    // The fetch is boxed, so that the future of a hit is small. For the same reason this timer covers only the fetch.
    let fetched = timeout_at(call.options.deadline(), Box::pin(fetch_as_shared(cache, call, reason))).await;
    fetched.map_err(|_| Error::TimedOut(call.options.timeout))??.ok_or(Error::Overloaded)
}

/// Serves `entry`, which the look-up found. `None` if it may not be served any more once it is written.
async fn serve_stored(
    cache: &Cache,
    call: &PlannedCall<'_>,
    entry: &Arc<Entry>,
    verdict: Verdict,
) -> Result<Option<CacheAnswer>, Error> {
    if matches!(verdict, Verdict::Stale(_)) {
        // The refetch begins before the entry is written, because writing may wait, fail or lose its caller.
        start_flight(cache, call, SlotRequirement::None, true);
    }
    let rule = |now| {
        let newest = cache.lookup.newest_slot(&call.plan, now);
        call.stored_rule().at_least(newest)
    };
    let serving = serve(cache, call, entry, verdict, rule, None);
    let served = if is_long_work(call.query, entry) {
        let in_time = timeout_at(call.options.deadline(), serving).await;
        in_time.unwrap_or(Err(Error::TimedOut(call.options.timeout)))
    } else {
        serving.await
    };
    match served {
        // An entry that cannot be written counts as no entry.
        Err(Error::NoUpstream(_)) => Ok(None),
        served => served,
    }
}

/// Fetches an answer. The node may be asked for a larger form of the answer than the caller wants, or for one without
/// transactions of a higher version, because other callers share it. If the larger form is too large, there is such a
/// transaction, or nobody can tell whether a longer page is whole, the node is asked once more, in the caller's words or for
/// the next version.
async fn fetch_as_shared(
    cache: &Cache,
    call: &PlannedCall<'_>,
    reason: ForwardReason,
) -> Result<Option<CacheAnswer>, Error> {
    let mut answer = fetch(cache, call, reason).await;
    let mut asked = call.plan.clone();
    while let Some(plan) = plan_after(cache, call.query, &asked, &answer) {
        asked = plan.clone();
        answer = fetch(cache, &PlannedCall { plan, ..call.clone() }, reason).await;
    }
    answer
}

/// Returns the plan for what is fetched after `answer`, which was fetched as in `asked`. `None` if it is the answer to
/// `query`.
fn plan_after(
    cache: &Cache,
    query: &Query,
    asked: &LookupPlan,
    answer: &Result<Option<CacheAnswer>, Error>,
) -> Option<LookupPlan> {
    let lookup = &cache.lookup;
    let plan = match answer {
        Err(error) if is_too_large(error) && lookup.note_too_large(query, asked) => lookup.plan(query),
        Ok(Some(refusal)) if refusal.payload.refuses_version() => lookup.plan_above(query, asked),
        Err(Error::NoUpstream(_)) if matches!(query, Query::Page(_)) => lookup.plan_as_asked(query),
        _ => return None,
    };
    (plan.key != asked.key).then_some(plan)
}

/// Fetches an answer. `None` if each answer came too late to be served.
async fn fetch(
    cache: &Cache,
    call: &PlannedCall<'_>,
    reason: ForwardReason,
) -> Result<Option<CacheAnswer>, Error> {
    let (min_context_slot, commitment) = (call.query.min_context_slot(), call.query.commitment());
    // The slot that the caller's key has seen is ignored while it is above the frontier, because no node is known
    // to have reached it.
    let is_reached = |slot: &Slot| commitment.is_some_and(|c| cache.lookup.frontier.slot(c) >= *slot);
    let known_slot = call.conditions.known_slot().filter(is_reached);
    let shares = !call.options.bypass
        && match min_context_slot.zip(commitment) {
            Some((slot, commitment)) => cache.fetcher.await_frontier(&call.plan, slot, commitment).await,
            None => true,
        };
    let (first, flights) = (usize::from(!shares), FLIGHTS[usize::from(shares && min_context_slot.is_some())]);
    let mut is_last = false;
    for number in first..flights {
        is_last |= number + 1 == flights;
        let (requirement, min_slot, known) = match (number, min_context_slot, commitment) {
            // Any answer serves the caller if it happens to reach the caller's slots.
            (0, ..) => (SlotRequirement::None, min_context_slot, known_slot),
            // All callers for whom the slot of the first answer was too low share the second flight.
            (1, Some(_), Some(c)) if shares => {
                (SlotRequirement::AtLeast(cache.lookup.frontier.slot(c)), min_context_slot, None)
            }
            // The answer serves the caller at any slot, because no node gives a higher one, and a node that has not
            // reached minContextSlot refuses the call itself.
            (_, Some(slot), _) => (SlotRequirement::CallerMinimum(slot), None, None),
            (_, None, _) => (SlotRequirement::at_least(known_slot), None, None),
        };
        let flight = start_flight(cache, call, requirement, false);
        let is_leader = flight.is_leader;
        let fetched = flight.result().await.map_or(Err(Error::NoUpstream(Vec::new())), |end| end.result)?;
        let limit = match &fetched {
            Fetched::AlreadyFresh(..) => Limit::Stale,
            Fetched::KeptNewer(..) if is_leader || number > first => Limit::InFault,
            Fetched::New(..) | Fetched::Joined(_) | Fetched::KeptNewer(..) => Limit::Fresh,
        };
        let rule = call.rule(limit).at_least(min_slot.unwrap_or(0)).knowing(call.query, known);
        if !fetched.fits(&call.plan) || !is_served(cache, &rule, &fetched.entry().meta) {
            continue;
        }
        let status = match fetched {
            Fetched::New(_, stored) if is_leader => Some(CacheStatus::forwarded(reason, stored)),
            Fetched::New(..) | Fetched::Joined(_) => Some(CacheStatus::Collapsed),
            Fetched::KeptNewer(..) | Fetched::AlreadyFresh(..) => None,
        };
        if let Some(answer) = serve_fetched(cache, call, &fetched, rule, status, is_last).await? {
            return Ok(Some(answer));
        }
        // The answer was overtaken, or waited too long to be written. A node is asked once more, and not a third
        // time, because under load every answer may come too late.
        if is_last {
            break;
        }
        is_last = true;
    }
    Ok(None)
}

fn is_served(cache: &Cache, rule: &ServeRule, meta: &EntryMeta) -> bool {
    cache.lookup.freshness.serves(rule, meta, Instant::now()).is_yes()
}

/// Joins the flight that meets `requirement`, or starts one. The call owes its price, even if its caller leaves or
/// gives up. Of all callers who are served while a flight runs in the background, only the one who started it owes its
/// price.
fn start_flight(
    cache: &Cache,
    call: &PlannedCall<'_>,
    requirement: SlotRequirement,
    is_background: bool,
) -> FlightHandle<FlightEnd> {
    let flight = if call.options.bypass {
        cache.fetcher.fetch_unshared(&call.plan, requirement, &call.options)
    } else {
        cache.fetcher.join_or_start_flight(&call.plan, requirement, &call.options, is_background)
    };
    if flight.is_leader || !is_background {
        call.charge.share(&flight);
    }
    flight
}

/// Serves the result of a flight. Meanwhile another caller may have got an answer about the same accounts at a higher
/// slot. Then `None` is returned. On the last try, a stored entry is served instead, if one may be. Otherwise the
/// result is served, because slots shown to other callers never cause an error.
pub(super) async fn serve_fetched(
    cache: &Cache,
    call: &PlannedCall<'_>,
    fetched: &Fetched,
    rule: ServeRule,
    status: Option<CacheStatus>,
    is_last: bool,
) -> Result<Option<CacheAnswer>, Error> {
    let entry = fetched.entry();
    let has_floor = match fetched {
        Fetched::AlreadyFresh(..) => true,
        // An error that a node has just given shows no account.
        Fetched::New(..) if matches!(entry.body, EntryBody::Verbatim(Payload::Error { .. })) => false,
        Fetched::New(..) | Fetched::Joined(_) | Fetched::KeptNewer(..) => !is_at_processed(call.plan.class),
    };
    let newest = |now| if has_floor { cache.lookup.newest_slot(&call.plan, now) } else { 0 };
    let is_overtaken = entry.meta.slot < newest(Instant::now());
    if is_overtaken && !is_last {
        return Ok(None);
    }
    if is_overtaken && let Some(stored) = find_stand_in(cache, call, Limit::InFault).await {
        return write_stand_in(cache, call, &stored).await;
    }
    let verdict = cache.lookup.freshness.serves(&rule, &entry.meta, Instant::now());
    let rule = |now| rule.at_least(if is_last { 0 } else { newest(now) });
    serve(cache, call, entry, verdict, rule, status).await
}

/// Serves a stored entry because the call has failed. An entry below the floor of one of its accounts is served
/// only if no other entry may be. The floors of the entry's accounts then fall to the entry's slot.
async fn serve_stand_in(cache: &Cache, call: &PlannedCall<'_>) -> Option<CacheAnswer> {
    let mut entry = find_stand_in(cache, call, Limit::InFault).await;
    if entry.is_none() {
        entry = find_stand_in(cache, call, Limit::LastResort).await;
        if let Some(entry) = &entry {
            let floor = cache.lookup.floor(&call.plan.key, Instant::now());
            cache.lookup.lower_floors(&call.plan.key, floor, entry.meta.slot);
        }
    }
    write_stand_in(cache, call, &entry?).await.ok().flatten()
}

/// Returns the stored entry that may be served instead of a node's answer. If there is none, makes one from a
/// stored entry of another form.
async fn find_stand_in(cache: &Cache, call: &PlannedCall<'_>, limit: Limit) -> Option<Arc<Entry>> {
    let rule = ServeRule::within(limit).at_least(call.query.min_context_slot().unwrap_or(0));
    match cache.lookup.find_stand_in(call.query, &call.plan, rule) {
        Some(entry) => Some(entry),
        None => cache.renderer.derive(&call.plan, rule, call.options.deadline()).await,
    }
}

async fn write_stand_in(
    cache: &Cache,
    call: &PlannedCall<'_>,
    entry: &Arc<Entry>,
) -> Result<Option<CacheAnswer>, Error> {
    let rule = ServeRule::within(Limit::InFault);
    let verdict = cache.lookup.freshness.serves(&rule, &entry.meta, Instant::now());
    serve(cache, call, entry, verdict, |_| rule, None).await
}

/// Writes `entry` for the caller, and returns it as the answer. `verdict` says why it may be served. If writing takes
/// a while, `rule` decides again: `None` if the entry may not be served any more. `status` is that of a node's answer,
/// which must not wait long, and `None` for a stored entry.
async fn serve(
    cache: &Cache,
    call: &PlannedCall<'_>,
    entry: &Arc<Entry>,
    mut verdict: Verdict,
    rule: impl Fn(Instant) -> ServeRule,
    status: Option<CacheStatus>,
) -> Result<Option<CacheAnswer>, Error> {
    let (query, freshness, renderer) = (call.query, &cache.lookup.freshness, &cache.renderer);
    let judge = |now| freshness.serves(&rule(now), &entry.meta, now);
    let mut permit = None;
    if is_long_work(query, entry) {
        let (began_at, longest) = (Instant::now(), freshness.ttl(entry.meta.class).max(LONGEST_RENDER_WAIT));
        permit = Some(renderer.permit(call, entry).await?);
        // An entry that has become too old during the wait is not worth the work.
        let is_late = status.is_some() && began_at.elapsed() > longest;
        if is_late || !judge(Instant::now()).is_yes() {
            return Ok(None);
        }
    }
    let mut waited = permit.is_some();
    let (payload, derived, memory) = renderer.write(query, entry, permit).await?;
    let (compressed, waited_for_compression) = renderer.compress(call, entry, &payload).await;
    waited |= waited_for_compression;
    let now = Instant::now();
    if waited {
        verdict = judge(now);
        if !verdict.is_yes() {
            return Ok(None);
        }
    }
    // From here on the code that receives the answer accounts for its memory.
    drop(memory);
    let status = status.unwrap_or_else(|| freshness.hit_status(verdict, &entry.meta, derived, now));
    if status.is_hit() {
        cache.count_hit(query, entry, &payload, status);
    }
    let is_shared = payload.len() > JOINED_BYTES && is_stored_form(query, entry);
    let shared = is_shared.then(|| Arc::clone(entry));
    Ok(Some(CacheAnswer { payload, meta: entry.meta, status, compressed, shared }))
}
