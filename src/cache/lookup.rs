//! Looking up: what is held for a plan, and whether it may serve, fresh, stale, or in a fault.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::class::Class;
use super::derive::Use;
use super::entry::{Entry, Stamp};
use super::fetch::Landed;
use super::freshness::Freshness;
use super::key::{Key, Plan};
use super::serve::Basis;
use super::{Asked, Cache, CacheAnswer, CacheLookup};
use crate::error::Error;
use crate::methods::{Query, Slot};
use crate::telemetry::StaleCause;

/// A flight waits so long for its turn to make an answer of a kept one; then it asks a node.
const TURN_COMES_WITHIN: Duration = Duration::from_millis(50);

impl Cache {
    /// What is kept for `plan`, as far as it reaches the slot that the caller wants.
    pub(super) fn look_up(&self, plan: &Plan, wanted: Option<Slot>) -> CacheLookup {
        self.judged(plan, wanted, |cause| self.metrics.cache_stale.at(cause).inc())
    }

    /// The same, with a word for each entry that may not serve as it is.
    pub(super) fn judged(
        &self,
        plan: &Plan,
        wanted: Option<Slot>,
        mut not_fresh: impl FnMut(StaleCause),
    ) -> CacheLookup {
        let now = Instant::now();
        let mut found = CacheLookup::Miss;
        for held in self.candidates(plan).into_iter().flatten() {
            // Another answer may have shown one of its accounts at a higher slot.
            let (lowest, floor) = self.floors_under(&plan.key, now);
            if !held.stamp.reaches(wanted) || held.stamp.slot < floor {
                not_fresh(StaleCause::Floor);
                continue;
            }
            match self.rules.judge(&held.stamp, &self.frontier, now) {
                Freshness::Fresh => {
                    self.shows(plan, held.stamp.slot, lowest);
                    return CacheLookup::Hit(held);
                }
                Freshness::Stale(cause) => {
                    not_fresh(cause);
                    self.shows(plan, held.stamp.slot, lowest);
                    found = CacheLookup::Stale(held);
                }
                Freshness::Expired(cause) => {
                    not_fresh(cause);
                    if !matches!(found, CacheLookup::Stale(_)) {
                        found = CacheLookup::Expired;
                    }
                }
            }
        }
        found
    }

    /// What needs no node: an earlier flight may have landed between the caller's look-up and its boarding, and an
    /// answer may follow from a kept one.
    pub(super) async fn without_a_node(&self, plan: &Plan) -> Option<Landed> {
        if let CacheLookup::Hit(held) = self.judged(plan, None, |_| ()) {
            let key = self.elsewhere(plan, &held);
            return Some(Landed::Found(held, key));
        }
        let derived = self.derive_kept(plan, Use::Fresh, Instant::now() + TURN_COMES_WITHIN).await?;
        Some(Landed::Found(derived, None))
    }

    /// Returns the other key of `plan`, unless `held`, a candidate of it, is the entry under its own key.
    pub(super) fn elsewhere(&self, plan: &Plan, held: &Arc<Entry>) -> Option<Key> {
        let is_own = || self.store.get(&plan.key).is_some_and(|own| Arc::ptr_eq(&own, held));
        plan.other.clone().filter(|_| !is_own())
    }

    /// What is held for `plan`. Where an account is held in two places, the higher slot is what was shown last, and
    /// the other would go back behind it; a block comes before its absence.
    pub(super) fn candidates(&self, plan: &Plan) -> [Option<Arc<Entry>>; 2] {
        let own = self.store.get(&plan.key);
        let other = plan.other.as_ref().and_then(|key| self.store.get(key));
        match (own, other) {
            (Some(own), Some(other)) if matches!(plan.class, Class::Account(_)) => {
                let rank = |entry: &Entry| (entry.stamp.slot, entry.stamp.sent_at);
                [Some(if rank(&other) > rank(&own) { other } else { own }), None]
            }
            both => [both.0, both.1],
        }
    }

    /// The entry held for `key`, if it may be used so and reaches the slot that the caller wants.
    pub(super) fn usable(
        &self,
        key: &Key,
        usage: Use,
        wanted: Option<Slot>,
        now: Instant,
    ) -> Option<Arc<Entry>> {
        let held = self.store.get(key)?;
        let behind = usage != Use::LastResort && held.stamp.slot < self.floor(key, now);
        let usable = self.may_be_used(&held.stamp, usage, now) && !behind;
        (usable && held.stamp.reaches(wanted)).then_some(held)
    }

    /// Returns true if an entry of this stamp may be used so, as far as its age goes.
    pub(super) fn may_be_used(&self, stamp: &Stamp, usage: Use, now: Instant) -> bool {
        match usage {
            Use::Fresh => self.rules.judge(stamp, &self.frontier, now) == Freshness::Fresh,
            Use::InFault | Use::LastResort => self.serves(stamp),
        }
    }

    /// Whether an entry may still be served, if only in a fault: as long as it may, it holds its floor.
    pub(super) fn serves(&self, stamp: &Stamp) -> bool {
        let now = Instant::now();
        self.rules.in_fault(stamp, now)
            || !matches!(self.rules.judge(stamp, &self.frontier, now), Freshness::Expired(_))
    }

    /// What may stand in for an answer that no node gives. A floor of ours is never a caller's error: where nothing
    /// held reaches it, it falls to what is held.
    pub(super) async fn in_fault(
        self: &Arc<Self>,
        call: &Asked<'_>,
        error: Error,
    ) -> Result<CacheAnswer, Error> {
        let key = &call.plan.key;
        let mut stands_in = self.stands_in(call, Use::InFault).await;
        if stands_in.is_none() {
            stands_in = self.stands_in(call, Use::LastResort).await;
            if let Some(entry) = &stands_in {
                self.falls(key, self.floor(key, Instant::now()), entry.stamp.slot);
            }
        }
        let Some(entry) = stands_in else { return Err(error) };
        call.charge.answered(true);
        self.deliver(call, &entry, Basis::StandIn).await.ok().flatten().ok_or(error)
    }

    pub(super) async fn stands_in(&self, call: &Asked<'_>, usage: Use) -> Option<Arc<Entry>> {
        let wanted = call.query.min_context_slot();
        let floor = if usage == Use::LastResort { 0 } else { self.floor(&call.plan.key, Instant::now()) };
        let stands_in = |held: &Arc<Entry>| {
            held.stamp.reaches(wanted) && held.stamp.slot >= floor && self.serves(&held.stamp)
        };
        let held = self.candidates(&call.plan).into_iter().flatten().find(stands_in);
        if held.is_some() {
            return held;
        }
        if let Query::Accounts(query) = call.query
            && let Some(list) = self.assembled(query, usage, wanted)
        {
            return Some(list);
        }
        self.derive_kept(&call.plan, usage, call.options.deadline).await
    }
}
