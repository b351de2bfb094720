//! Fetching what is not kept: one flight for all who want the same, and what becomes of the answer.

use std::sync::Arc;

use tokio::time::Instant;

use super::derive;
use super::entry::{Body, Entry, Payload};
use super::flight::Seat;
use super::freshness::Freshness;
use super::judge::judge;
use super::key::{Key, Plan};
use super::status::Why;
use super::store::Kept;
use super::{Answer, Cache, Found};
use crate::error::Error;
use crate::methods::{Commitment, Query, Slot};
use crate::node::NodeReply;
use crate::pool::{Ask, Reply};
use crate::telemetry::{AttemptResult, UncacheableReason};

/// What a flight brings to all who wait for it.
pub(super) type Landing = Result<Landed, Error>;

/// What a fetch came back with.
#[derive(Debug, Clone)]
pub(super) enum Landed {
    /// A node's answer, and whether it is kept.
    Fetched(Arc<Entry>, bool),
    /// What is held, since no node gives anything newer.
    Held(Arc<Entry>),
}

impl Landed {
    pub(super) fn entry(&self) -> &Arc<Entry> {
        match self {
            Self::Fetched(entry, _) | Self::Held(entry) => entry,
        }
    }
}

/// What callers who share a flight have in common: the place, and the slot that they want beyond what is held.
pub(super) type FlightKey = (Key, Demand);

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
    /// Joins the flight for `plan` and `demand`, or leads one.
    pub(super) fn board(self: &Arc<Self>, plan: &Plan, demand: Demand) -> Seat<Landing> {
        let (cache, lead) = (Arc::clone(self), plan.clone());
        let fetch = move || {
            let (cache, plan) = (Arc::clone(&cache), lead.clone());
            // The flight's own deadline: callers who came late may wait as long as the one who led.
            let deadline = Instant::now() + cache.request_timeout;
            async move {
                // An earlier flight may have landed between this caller's look-up and its boarding.
                if demand == Demand::Any
                    && let Found::Fresh(entry) = cache.look_up(&plan, None)
                {
                    return Ok(Landed::Held(entry));
                }
                cache.fetch(&plan, demand, deadline).await
            }
        };
        self.flights.join(&(plan.key.clone(), demand), fetch, worth_another_try)
    }

    /// Waits for a flight; `None` where what landed does not meet this caller's terms.
    pub(super) async fn by_flight(
        self: &Arc<Self>,
        query: &Query,
        plan: &Plan,
        why: Why,
        demand: Demand,
    ) -> Result<Option<Answer>, Error> {
        let seat = self.board(plan, demand);
        let leads = seat.leads;
        let landed = seat.landed().await.unwrap_or_else(|| Err(Error::NoUpstream(Vec::new())))?;
        let entry = landed.entry();
        // A joiner takes what a hit of that age and slot would be; the leader's answer was asked for after it came.
        let fresh = || self.rules.judge(entry, &self.frontier, Instant::now()) == Freshness::Fresh;
        let meets = entry.reaches(query.min_context_slot()) && (leads || fresh());
        Ok(meets.then(|| self.land(query, &landed, why, leads)))
    }

    /// Waits for a flight, and takes what lands.
    pub(super) async fn last_flight(
        self: &Arc<Self>,
        query: &Query,
        plan: &Plan,
        why: Why,
        demand: Demand,
    ) -> Result<Answer, Error> {
        let seat = self.board(plan, demand);
        let leads = seat.leads;
        let landed = seat.landed().await.unwrap_or_else(|| Err(Error::NoUpstream(Vec::new())))?;
        Ok(self.land(query, &landed, why, leads))
    }

    /// Asks the pool, judges the answer and keeps it.
    pub(super) async fn fetch(&self, plan: &Plan, demand: Demand, deadline: Instant) -> Landing {
        let commitment = plan.upstream.commitment();
        let held = match commitment {
            Some(Commitment::Confirmed | Commitment::Finalized) => {
                self.store.get(&plan.key).map(|held| held.slot)
            }
            _ => None,
        };
        let (floor, own) = match demand {
            Demand::Any => (None, None),
            Demand::Reached(slot) => (Some(slot), None),
            Demand::Own(slot) => (Some(slot), Some(slot)),
        };
        // A wish above what the pool has reached goes to one node alone, which says so itself.
        let alone = own.zip(commitment).is_some_and(|(slot, c)| slot > self.frontier.slot(c));
        let query = plan.upstream.clone().with_min_context_slot(own);
        let reply = self.pool.call(&Ask { query, floor: held.max(floor), alone, deadline }).await?;
        Ok(self.take_in(plan, &reply))
    }

    /// Judges an answer: keeps it where it may be kept, and never lets it move a held one backwards.
    fn take_in(&self, plan: &Plan, reply: &Reply) -> Landed {
        let (mut payload, place) = judge(plan, reply, self.frontier.slot(Commitment::Finalized));
        let class = place.as_ref().map_or(plan.class, |(_, class)| *class);
        let mut singles = Vec::new();
        if let (Query::Accounts(_), NodeReply::Result(list)) = (&plan.upstream, &reply.body)
            && let Some((list, parts)) = derive::account::take_apart(list)
        {
            (payload, singles) = (Payload::Result(list), parts);
        }
        let entry = Arc::new(Entry { payload, slot: reply.slot, sent_at: reply.sent_at, class });
        let not_kept = |reason| {
            self.metrics.uncacheable.at((Some(plan.upstream.method()), reason)).inc();
        };
        let key = match place {
            Ok((key, _)) => key,
            Err(reason) => {
                not_kept(reason);
                return Landed::Fetched(entry, false);
            }
        };
        match self.store.keep(key, &entry, |held| self.serves(held)) {
            // At processed a fork may be dropped with its slots: there is no floor to fall.
            Kept::FloorFell if plan.upstream.commitment() != Some(Commitment::Processed) => {
                self.metrics.cache_floor_resets.at(()).inc();
            }
            Kept::Stored | Kept::FloorFell => {}
            Kept::TooLarge => {
                not_kept(UncacheableReason::TooLarge);
                return Landed::Fetched(entry, false);
            }
            Kept::Behind(held) => {
                not_kept(UncacheableReason::Older);
                return Landed::Held(held);
            }
        }
        self.keep_singles(&plan.upstream, &entry, singles);
        Landed::Fetched(entry, true)
    }

    /// A list's answer fills the entries of its accounts.
    fn keep_singles(&self, query: &Query, list: &Entry, singles: Vec<Body>) {
        let Query::Accounts(query) = query else { return };
        for (pubkey, single) in query.pubkeys.iter().zip(singles) {
            let entry = Arc::new(Entry { payload: Payload::Result(single), ..list.clone() });
            let key = Key::Account(*pubkey, query.form, query.commitment);
            self.store.keep(key, &entry, |held| self.serves(held));
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
