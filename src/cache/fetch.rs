//! Fetching what is not kept: one flight for all who want the same, and what becomes of the answer.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::class::Class;
use super::derive::{Use, list};
use super::entry::{CodedForms, Entry, Kept, Payload, Stamp};
use super::flight::Seat;
use super::forms;
use super::freshness::Freshness;
use super::judge::judge;
use super::key::{Key, Plan};
use super::serve::Role;
use super::store::Insert;
use super::{Asked, Cache, CacheAnswer, CallOptions, Missed};
use crate::error::{Attempt, Error};
use crate::methods::{AccountEncoding, Commitment, Pubkey, Query, Slot};
use crate::node::{NodeReply, OFF_WORKER_BYTES};
use crate::pool::{Reply, UpstreamRequest};
use crate::telemetry::{AttemptResult, UncacheableReason};

/// What a flight brings to all who wait for it.
pub(super) type Landing = Result<Landed, Error>;

/// What a fetch came back with.
#[derive(Debug, Clone)]
pub(super) enum Landed {
    /// A node's answer, and whether it is kept.
    Fetched(Arc<Entry>, bool),
    /// What is held, since no node gives anything newer, and its key if that is the other one of the caller who led.
    Held(Arc<Entry>, Option<Key>),
    /// What was kept and fresh when the flight began, or was made of it: no node was asked. The key is as above.
    Found(Arc<Entry>, Option<Key>),
}

impl Landed {
    pub(super) fn entry(&self) -> &Arc<Entry> {
        match self {
            Self::Fetched(entry, _) | Self::Held(entry, _) | Self::Found(entry, _) => entry,
        }
    }

    /// Returns true if it has what the caller of `plan` asks for. Callers of different parts of an account share a call
    /// for the whole of it; an entry that holds one part serves only those who asked for that.
    pub(super) fn serves(&self, plan: &Plan) -> bool {
        match self {
            Self::Held(_, Some(key)) | Self::Found(_, Some(key)) => plan.other.as_ref() == Some(key),
            _ => true,
        }
    }
}

/// Where an answer that is taken in comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// From a node: others may want it, too.
    Node,
    /// From the shared store.
    Shared,
}

/// What callers who share a flight have in common: the place, the slot that they want beyond what is held, and the
/// generation, since what was asked for before the cache was emptied is no answer to whoever asks after.
pub(super) type FlightKey = (Key, Demand, u64);

/// Which answer a caller wants, as far as its slot goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Demand {
    /// Whatever a usable node says.
    Any,
    /// One of this slot at least, which the frontier has reached.
    Reached(Slot),
    /// The caller's own number, sent as minContextSlot: a node's word on it passes through.
    Own(Slot),
}

impl Cache {
    /// Joins the flight for `plan` and `demand`, or leads one, which then has the caller's `options`.
    pub(super) fn board(
        self: &Arc<Self>,
        plan: &Plan,
        demand: Demand,
        options: &CallOptions,
    ) -> Seat<Landing> {
        let (cache, lead, leader) = (Arc::clone(self), plan.clone(), options.clone());
        let fly = move || {
            let (cache, plan) = (Arc::clone(&cache), lead.clone());
            // The flight's own deadline: callers who came late may wait as long as the one who led.
            let deadline = Instant::now() + cache.request_timeout;
            let options = CallOptions { deadline, ..leader.clone() };
            async move {
                if demand == Demand::Any
                    && let Some(found) = cache.without_a_node(&plan).await
                {
                    return Ok(found);
                }
                if let Some(entry) = cache.second_level(&plan, demand).await
                    && cache.may_be_used(&entry.stamp, Use::Fresh, Instant::now())
                {
                    return Ok(Landed::Found(entry, None));
                }
                cache.fetch(&plan, demand, options).await
            }
        };
        self.flights.join(&(plan.key.clone(), demand, self.generation.number()), fly, worth_another_try)
    }

    /// Waits for a flight; `None` where the answer does not serve this caller: below `wanted`, or too old.
    pub(super) async fn by_flight(
        self: &Arc<Self>,
        call: &Asked<'_>,
        demand: Demand,
        wanted: Option<Slot>,
    ) -> Result<Option<CacheAnswer>, Missed> {
        let (landed, leads) = self.flown(call, demand).await?;
        let entry = landed.entry();
        // A joiner takes what a hit of that age and slot would be; the leader's answer was asked for after it came.
        let fresh = || self.rules.judge(&entry.stamp, &self.frontier, Instant::now()) == Freshness::Fresh;
        let meets = landed.serves(&call.plan) && entry.stamp.reaches(wanted) && (leads || fresh());
        let role = if leads { Role::Leader } else { Role::Joiner { asked_since: false } };
        if meets { self.land(call, &landed, role).await.map(Some) } else { Ok(None) }
    }

    /// Waits for a flight, and takes what lands; what another's brings too late, once more.
    pub(super) async fn last_flight(
        self: &Arc<Self>,
        call: &Asked<'_>,
        demand: Demand,
    ) -> Result<CacheAnswer, Missed> {
        let since = Instant::now();
        // The next flight begins after the first has landed, and so is in time.
        let too_old = |entry: &Entry| {
            entry.stamp.sent_at < since
                && self.rules.judge(&entry.stamp, &self.frontier, Instant::now()) != Freshness::Fresh
        };
        let (mut landed, mut leads) = self.flown(call, demand).await?;
        let is_late = matches!(&landed, Landed::Fetched(entry, _) if too_old(entry));
        if !leads && (is_late || !landed.serves(&call.plan)) {
            (landed, leads) = self.flown(call, demand).await?;
        }
        let asked_since = landed.entry().stamp.sent_at >= since;
        self.land(call, &landed, if leads { Role::Leader } else { Role::Joiner { asked_since } }).await
    }

    async fn flown(self: &Arc<Self>, call: &Asked<'_>, demand: Demand) -> Result<(Landed, bool), Error> {
        let seat = self.board(&call.plan, demand, &call.options);
        let leads = seat.leads;
        Ok((Self::aboard(call, seat).await?, leads))
    }

    /// Asks the pool in a flight of this caller's own, past what is kept.
    pub(super) async fn flown_alone(self: &Arc<Self>, call: &Asked<'_>, demand: Demand) -> Landing {
        let (cache, plan, options) = (Arc::clone(self), call.plan.clone(), call.options.clone());
        let fly = async move { cache.fetch(&plan, demand, options).await };
        Self::aboard(call, self.flights.alone(fly)).await
    }

    /// Waits for what a flight brings. A caller who goes meanwhile owes its price.
    async fn aboard(call: &Asked<'_>, seat: Seat<Landing>) -> Landing {
        call.charge.boarded(&seat);
        let landing = seat.landed().await.unwrap_or_else(|| Err(Error::NoUpstream(Vec::new())));
        call.charge.landed(&landing);
        landing
    }

    /// Asks the pool, judges the answer and keeps it.
    pub(super) async fn fetch(&self, plan: &Plan, demand: Demand, options: CallOptions) -> Landing {
        let commitment = plan.upstream.commitment();
        let shown = self.floor(&plan.key, Instant::now());
        let held = self.candidates(plan).into_iter().flatten().map(|held| held.stamp.slot);
        let held = held.chain(Some(shown).filter(|slot| *slot > 0)).max();
        // At processed a fork may be dropped with its slots: there what is held only orders the choice.
        let (held, prefer) = match commitment {
            Some(Commitment::Confirmed | Commitment::Finalized) => (held, None),
            _ => (None, held),
        };
        let (floor, own) = match demand {
            Demand::Any => (None, None),
            Demand::Reached(slot) => (Some(slot), None),
            Demand::Own(slot) => (Some(slot), Some(slot)),
        };
        // A wish above what the pool has reached goes to one node alone, which says so itself.
        let alone = own.zip(commitment).is_some_and(|(slot, c)| slot > self.frontier.slot(c));
        let query = plan.upstream.clone().with_min_context_slot(own);
        let generation = self.generation.number();
        let CallOptions { deadline, caller, trace, .. } = options;
        let ask = UpstreamRequest { query, floor: held.max(floor), prefer, alone, deadline, caller, trace };
        let reply = match &plan.upstream {
            Query::Account(account) if demand == Demand::Any && self.pool.merges() => {
                let space = self.sizes.space(&account.pubkey);
                self.merger.call(&self.pool, &self.tasks, ask, space).await?
            }
            _ => self.pool.call(&ask).await?,
        };
        let floor = if commitment == Some(Commitment::Processed) { 0 } else { shown };
        self.take_in(plan, &reply, floor, generation, Origin::Node).await
    }

    /// Judges an answer: keeps it where it may be kept, and never lets it move a held one backwards. `floor` is the slot
    /// at which its accounts were shown before, and which nodes were asked for.
    pub(super) async fn take_in(
        &self,
        plan: &Plan,
        reply: &Reply,
        floor: Slot,
        generation: u64,
        origin: Origin,
    ) -> Landing {
        let not_kept = |reason| {
            self.metrics.uncacheable.at((Some(plan.upstream.method()), reason)).inc();
        };
        if let Some((held, key)) = self.held_ahead(plan, reply, floor) {
            not_kept(UncacheableReason::Older);
            self.falls(&plan.key, floor, held.stamp.slot);
            self.shows(plan, held.stamp.slot, self.floors_under(&plan.key, Instant::now()).0);
            return Ok(Landed::Held(held, key));
        }
        let (said, place) = judge(plan, reply, &self.frontier);
        let class = place.as_ref().map_or(plan.class, |(_, class)| *class);
        let taken = self.take_apart(plan, reply, said).await.ok_or_else(|| {
            let upstream = self.pool.name_of(reply.node);
            Error::NoUpstream(vec![Attempt { upstream, reason: AttemptResult::BadJson.to_string() }])
        })?;
        let Taken { kept, home, singles } = taken;
        let entry = Entry {
            kept,
            stamp: Stamp { slot: reply.slot, sent_at: reply.sent_at, class, derived: false },
            coded: CodedForms::default(),
        };
        let entry = Arc::new(entry);
        let believed = |c| !plan.upstream.has_context() || self.frontier.believes(c, reply.slot);
        let held = self.generation.hold();
        let place = match place {
            Ok(_) if held.number() != generation => Err(UncacheableReason::Purged),
            Ok(_) if !plan.upstream.commitment().is_none_or(believed) => Err(UncacheableReason::Unbelieved),
            place => place,
        };
        let key = match place {
            Ok((key, _)) => home.unwrap_or(key),
            Err(reason) => {
                not_kept(reason);
                return Ok(Landed::Fetched(entry, false));
            }
        };
        if matches!(reply.body, NodeReply::Result(_)) {
            self.falls(&plan.key, floor, reply.slot);
        }
        // Before anybody is told: from then on no account of it is shown lower, also where this is too large to be kept.
        self.raises(&plan.key, reply.slot, Instant::now());
        let placed = self.keep(key.clone(), &entry);
        if origin == Origin::Node && matches!(placed, Insert::Stored | Insert::ReplacedNewer) {
            self.offer(&key, reply, class);
        }
        if !matches!(placed, Insert::KeptNewer(_)) {
            for (key, kept) in singles {
                self.keep(key, &Arc::new(Entry { kept, stamp: entry.stamp, coded: CodedForms::default() }));
            }
        }
        match placed {
            Insert::Stored | Insert::ReplacedNewer => Ok(Landed::Fetched(entry, true)),
            Insert::TooLarge => {
                not_kept(UncacheableReason::TooLarge);
                Ok(Landed::Fetched(entry, false))
            }
            Insert::KeptNewer(held) => {
                not_kept(UncacheableReason::Older);
                Ok(Landed::Held(held, None))
            }
        }
    }

    /// Keeps `entry` unless what is held for `key` is newer and may be served.
    pub(super) fn keep(&self, key: Key, entry: &Arc<Entry>) -> Insert {
        let placed = self.store.keep(key, entry, |held| self.serves(held));
        // At processed there is no floor to fall.
        let processed = matches!(
            entry.stamp.class,
            Class::Account(Commitment::Processed)
                | Class::Fee(Commitment::Processed)
                | Class::Votes(Commitment::Processed)
        );
        if matches!(placed, Insert::ReplacedNewer) && !processed {
            self.metrics.cache_floor_resets.at(()).inc();
        }
        placed
    }

    /// What is held of a higher slot than `reply` and may still be served: the answer does not go back behind it, also
    /// where it would not be kept.
    fn held_ahead(&self, plan: &Plan, reply: &Reply, floor: Slot) -> Option<(Arc<Entry>, Option<Key>)> {
        let floored = match plan.class {
            Class::Account(c) | Class::Fee(c) | Class::Votes(c) => c != Commitment::Processed,
            _ => false,
        };
        // Whoever asked for more than is held gets the node's own word that it has less.
        let refused = matches!(reply.body, NodeReply::Error { code: -32016, .. });
        if !floored || refused {
            return None;
        }
        let held = self.candidates(plan).into_iter().flatten();
        let ahead = held.filter(|held| held.stamp.slot > reply.slot && self.serves(&held.stamp));
        let held = ahead.max_by_key(|held| held.stamp.slot);
        let reached = held.as_ref().map_or(reply.slot, |held| held.stamp.slot);
        let held = held.map(|held| (Arc::clone(&held), self.elsewhere(plan, &held)));
        match &plan.upstream {
            // Where neither reaches the floor, the single accounts may.
            Query::Accounts(query) if reached < floor => {
                self.assembled(query, Use::InFault, Some(floor)).map(|list| (list, None)).or(held)
            }
            _ => held,
        }
    }

    /// What is kept of an answer: of accounts, what other forms can be made of; `None` where they are not what a node
    /// writes.
    async fn take_apart(&self, plan: &Plan, reply: &Reply, said: Payload) -> Option<Taken> {
        let (NodeReply::Result(result), Query::Account(_) | Query::Accounts(_)) =
            (&reply.body, &plan.upstream)
        else {
            return Some(Taken { kept: Kept::Said(said), home: None, singles: Vec::new() });
        };
        let (query, asked) = (plan.upstream.clone(), plan.asked);
        let read = if result.len() > OFF_WORKER_BYTES {
            let result = result.clone();
            tokio::task::spawn_blocking(move || Taken::read(&query, asked, &result)).await.ok()?
        } else {
            Taken::read(&query, asked, result)
        };
        let (taken, spaces) = read?;
        for (pubkey, space) in spaces {
            self.sizes.note(&pubkey, space);
        }
        Some(taken)
    }
}

/// An answer as it is kept.
struct Taken {
    kept: Kept,
    /// The key of accounts by the form under which they are kept.
    home: Option<Key>,
    /// The single accounts of a list.
    singles: Vec<(Key, Kept)>,
}

/// The sizes that an answer tells.
type Spaces = Vec<(Pubkey, u64)>;

impl Taken {
    /// Takes the answer to an account method apart; `None` where it is not what a node writes.
    fn read(query: &Query, asked: Option<AccountEncoding>, result: &Bytes) -> Option<(Self, Spaces)> {
        match query {
            Query::Account(q) => {
                let single = list::read_single(result, q.form)?;
                let spaces = single.space.map(|space| (q.pubkey, space)).into_iter().collect();
                let form = forms::kept(q.form, single.value.kind());
                let home = Some(Key::Account(q.pubkey, form, q.commitment));
                Some((Self { kept: single.kept(asked), home, singles: Vec::new() }, spaces))
            }
            Query::Accounts(q) => {
                let (context, singles) = list::read_list(result, q.form, q.pubkeys.len())?;
                let values: Arc<[_]> = singles.iter().map(|single| single.value.clone()).collect();
                let form = forms::kept_list(q.form, &values);
                let home = Some(Key::Accounts(Arc::clone(&q.pubkeys), form, q.commitment));
                let mut spaces = Spaces::new();
                let singles = q.pubkeys.iter().zip(singles).map(|(pubkey, single)| {
                    spaces.extend(single.space.map(|space| (*pubkey, space)));
                    let form = forms::kept(q.form, single.value.kind());
                    (Key::Account(*pubkey, form, q.commitment), single.kept(asked))
                });
                let singles = singles.collect();
                let kept = Kept::Accounts { context, values, asked };
                Some((Self { kept, home, singles }, spaces))
            }
            _ => None,
        }
    }
}

/// Whether a failed flight is worth a second try: an answer over the limit would be as large again.
fn worth_another_try(landing: &Landing) -> bool {
    let too_large = AttemptResult::TooLarge.as_str();
    match landing {
        Err(Error::NoUpstream(attempts)) => attempts.iter().all(|attempt| attempt.reason != too_large),
        Err(_) => true,
        Ok(_) => false,
    }
}

#[cfg(test)]
mod model;
