//! The look-up: the choice of a stored entry that may serve a call.
//!
//! [`Lookup`] owns everything that decides this choice: the stored entries, the slots at which accounts were shown to
//! callers, the number of purges, and the known sizes of accounts. The look-up is synchronous and does no I/O.
//! `cache/placing.rs` puts answers into the cache.

use std::sync::Arc;

use tokio::time::Instant;

use super::carry::Carrier;
use super::derive::block::{BlockShape, SingleTransaction};
use super::derive::{Derivation, list};
use super::entry::{Class, Entry, EntryBody};
use super::flight::{Generation, GenerationGuard};
use super::floors::{AccountFloors, NO_ACCOUNTS};
use super::forms::{self, Sizes};
use super::freshness::{FreshnessPolicy, Limit, ServeRule, Verdict};
use super::key::{Finality, Key, LookupPlan};
use super::placing::is_of_a_slot;
use super::store::{EntryStore, Insert};
use super::transaction_index::TransactionIndex;
use crate::config::{self, Assemble};
use crate::follow::FollowedChain;
use crate::frontier::Frontier;
use crate::methods::{
    AccountsQuery, BlockQuery, BlockTimeQuery, Life, Method, Pubkey, Query, Slot, TransactionQuery,
    VotesQuery,
};
use crate::telemetry::Metrics;

/// The stored entries, and the data that decide if one may be served.
pub(super) struct Lookup {
    pub(super) store: EntryStore,
    /// For each account, the lowest slot at which an answer may still be served.
    pub(super) floors: AccountFloors,
    pub(super) generation: Generation,
    pub(super) freshness: FreshnessPolicy,
    pub(super) carrier: Carrier,
    pub(super) sizes: Sizes,
    pub(super) transactions: TransactionIndex,
    pub(super) frontier: Arc<Frontier>,
    pub(super) metrics: Arc<Metrics>,
}

/// An entry that a plan finds.
#[derive(Clone)]
pub(super) struct Stored {
    pub(super) entry: Arc<Entry>,
    /// True if the entry is stored under the [`LookupPlan::alternate_key`].
    is_alternate: bool,
}

impl Stored {
    pub(super) fn assembled(entry: Arc<Entry>) -> Self {
        Self { entry, is_alternate: false }
    }

    fn key<'a>(&self, plan: &'a LookupPlan) -> &'a Key {
        self.alternate_key(plan).unwrap_or(&plan.key)
    }

    /// Returns the alternate key of `plan`, if the entry is stored under it.
    pub(super) fn alternate_key<'a>(&self, plan: &'a LookupPlan) -> Option<&'a Key> {
        plan.alternate_key.as_ref().filter(|_| self.is_alternate)
    }
}

impl Lookup {
    pub(super) fn new(
        config: &config::Config,
        followed: Arc<FollowedChain>,
        frontier: Arc<Frontier>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let settings = &config.cache;
        Self {
            store: EntryStore::new(settings.capacity, settings.max_entry, Arc::clone(&metrics)),
            floors: AccountFloors::new(settings.capacity),
            generation: Generation::default(),
            freshness: FreshnessPolicy::new(settings.clone(), Arc::clone(&frontier)),
            carrier: Carrier::new(followed, &config.follow),
            sizes: Sizes::default(),
            transactions: TransactionIndex::new(settings.capacity),
            frontier,
            metrics,
        }
    }

    /// Returns the look-up plan for `query`. This plan depends on the newest known slots, the known sizes of accounts and
    /// the cluster's epochs.
    pub(super) fn plan(&self, query: &Query) -> LookupPlan {
        // Whoever accepts a version and more gets the same answer, unless one for that version was refused.
        let is_refused = |stored: Stored| matches!(&stored.entry.body, EntryBody::Verbatim(body) if body.refuses_version());
        let mut shared = query.up_to_lower_versions().map(|lower| self.plan_as_asked(&lower));
        if let Some(plan) = shared.find(|plan| !self.candidates(plan).any(is_refused)) {
            return plan;
        }
        match query {
            Query::Page(page) => self.plan_as_asked(&Query::Page(page.clone().longer())),
            _ => self.plan_as_asked(query),
        }
    }

    /// Returns the look-up plan for `query` with the version of transactions after that of `refused`.
    pub(super) fn plan_above(&self, query: &Query, refused: &LookupPlan) -> LookupPlan {
        let lower = query.up_to_lower_versions().map(|lower| self.plan_as_asked(&lower));
        let mut above = lower.skip_while(|plan| plan.key != refused.key).skip(1);
        above.next().unwrap_or_else(|| self.plan_as_asked(query))
    }

    /// Returns the look-up plan for `query` with the highest transaction version that the caller accepts, or a page of no
    /// more than the caller's own length.
    pub(super) fn plan_as_asked(&self, query: &Query) -> LookupPlan {
        let plan = |query: &Query| LookupPlan::new(query, &self.frontier, &self.sizes);
        let Query::Plain(call) = query else { return plan(query) };
        let schedule = if call.is_of_epoch() { self.epoch_schedule() } else { None };
        let Some(schedule) = schedule else { return plan(query) };
        let newest = Some(self.frontier.slot(call.commitment.unwrap_or_default())).filter(|slot| *slot > 0);
        match (schedule.named(call, newest), newest.map(|newest| schedule.epoch(newest))) {
            (Some(named), _) => plan(&named.into()),
            (None, Some(epoch)) if call.life == Life::Epoch => plan(query).of_epoch(epoch),
            _ => plan(query),
        }
    }

    /// Returns the best entry for `query`, and whether it may be served now: a fresh one, a list put together from
    /// fresh ones, or one that is served while a fresh one is fetched. `None` if no entry is stored.
    pub(super) fn look_up(
        &self,
        query: &Query,
        plan: &LookupPlan,
        rule: &ServeRule,
    ) -> Option<(Stored, Verdict)> {
        if !self.may_reach(plan, rule.min_slot) {
            return None;
        }
        let found = self.find_planned(plan, rule);
        if matches!(found, Some((_, Verdict::Fresh))) {
            return found;
        }
        if let Some(account) = self.find_lamports(query, rule) {
            return Some((account, Verdict::Fresh));
        }
        let list = self.assemble(query, ServeRule { limit: Limit::Fresh, ..*rule });
        list.map(|list| (Stored::assembled(list), Verdict::Fresh)).or(found)
    }

    /// Returns true if stored answers to `plan` may serve a caller who asks for at least `slot`. What is final is kept for
    /// all commitments, so its own slot may be one that only another commitment has reached.
    fn may_reach(&self, plan: &LookupPlan, slot: Slot) -> bool {
        let is_reached = |commitment| slot <= self.frontier.slot(commitment);
        plan.class != Class::BlockFinal || plan.upstream.commitment().is_none_or(is_reached)
    }

    /// Returns a fresh entry of the account whose lamports `query` asks for, in a form that only these are read from.
    fn find_lamports(&self, query: &Query, rule: &ServeRule) -> Option<Stored> {
        let Query::Lamports(query) = query else { return None };
        forms::lamport_forms().find_map(|form| {
            let plan = self.plan(&Query::Account(query.account_in(form)));
            let (stored, verdict) = self.find_planned(&plan, rule)?;
            (verdict == Verdict::Fresh).then_some(Stored::assembled(stored.entry))
        })
    }

    /// Returns the best of the entries under the keys of `plan`, by `rule` within [`Limit::Stale`].
    pub(super) fn find_planned(&self, plan: &LookupPlan, rule: &ServeRule) -> Option<(Stored, Verdict)> {
        let now = Instant::now();
        let candidates = self.candidates(plan);
        // Another answer may have shown one of the accounts at a higher slot.
        let (lowest, floor) = self.floors_under(&plan.key, now);
        let rule = rule.at_least(floor);
        let mut best = None;
        for mut stored in candidates {
            if stored.entry.stamp.is_some() {
                stored.entry = self.carry_to_tip(stored.key(plan), stored.entry, now);
            }
            let meta = &stored.entry.meta;
            let mut verdict = self.freshness.serves(&rule, meta, now);
            // Only an answer that may still be right is served while a fresh one is fetched.
            if matches!(verdict, Verdict::Stale(_)) && self.is_overwritten(&stored.entry) {
                verdict = self.freshness.serves(&ServeRule { limit: Limit::Fresh, ..rule }, meta, now);
            }
            if best.as_ref().is_none_or(|(_, best)| verdict < *best) {
                best = Some((stored, verdict));
            }
            if verdict == Verdict::Fresh {
                break;
            }
        }
        if !matches!(best, Some((_, Verdict::Fresh)))
            && let Some(carried) = self.find_across(plan, &rule, now)
        {
            best = Some((carried, Verdict::Fresh));
        }
        if let Some((stored, verdict)) = &best
            && verdict.is_yes()
            && stored.entry.meta.slot > lowest
        {
            self.raise_fallen_floors(plan, stored.entry.meta.slot);
        }
        best
    }

    /// Returns a fresh entry for `plan`, made from a stored entry for the same accounts at another commitment.
    fn find_across(&self, plan: &LookupPlan, rule: &ServeRule, now: Instant) -> Option<Stored> {
        if !self.carrier.is_serving() {
            return None;
        }
        let found = {
            let guard = self.generation.lock();
            let carry = |key| self.carry_across(key, now, &guard);
            let first = carry(&plan.key).map(|entry| Stored { entry, is_alternate: false });
            let alternate = || plan.alternate_key.as_ref().and_then(carry);
            first.or_else(|| alternate().map(|entry| Stored { entry, is_alternate: true }))?
        };
        let is_fresh = self.freshness.serves(rule, &found.entry.meta, now) == Verdict::Fresh;
        is_fresh.then_some(found)
    }

    /// Returns the entries that `plan` finds. Of two entries about the same accounts, that is only the one of the
    /// higher slot. For a block, they are the block and the error that it is missing.
    pub(super) fn candidates(&self, plan: &LookupPlan) -> impl Iterator<Item = Stored> + use<> {
        let stored = |key, is_alternate| Some(Stored { entry: self.store.get(key)?, is_alternate });
        let first = stored(&plan.key, false);
        let alternate = plan.alternate_key.as_ref().and_then(|key| stored(key, true));
        let both = match (first, alternate) {
            (Some(first), Some(alternate)) if matches!(plan.class, Class::Account(_)) => {
                let age = |stored: &Stored| (stored.entry.meta.slot, stored.entry.meta.sent_at);
                [Some(if age(&alternate) > age(&first) { alternate } else { first }), None]
            }
            (first, alternate) => [first, alternate],
        };
        both.into_iter().flatten()
    }

    /// Returns the entry stored under `key`, if `rule` allows it, and its accounts were not shown at a higher slot.
    pub(super) fn get_usable(&self, key: &Key, rule: &ServeRule, now: Instant) -> Option<Arc<Entry>> {
        self.store.get(key).filter(|stored| self.is_usable(key, stored, rule, now))
    }

    /// Returns true if `rule` allows `stored`, the entry under `key`, and its accounts were not shown at a higher slot.
    pub(super) fn is_usable(&self, key: &Key, stored: &Entry, rule: &ServeRule, now: Instant) -> bool {
        self.freshness.serves(&rule.above(self.floor(key, now)), &stored.meta, now).is_yes()
    }

    /// Returns the slot below which an answer to `plan` would go back: the highest at which an account was shown, or
    /// the slot of an answer that is stored and may still be served. 0 for answers that do not belong to one slot.
    pub(super) fn newest_slot(&self, plan: &LookupPlan, now: Instant) -> Slot {
        if !is_of_a_slot(plan.class) {
            return 0;
        }
        let rule = ServeRule::within(Limit::InFault);
        let stored = self.candidates(plan).map(|stored| stored.entry.meta);
        let stored = stored.filter(|meta| self.freshness.serves(&rule, meta, now).is_yes());
        stored.map(|meta| meta.slot).max().unwrap_or(0).max(self.floor(&plan.key, now))
    }

    /// Returns the entry that may be served under `rule` because no node gives a better answer.
    pub(super) fn find_stand_in(
        &self,
        query: &Query,
        plan: &LookupPlan,
        rule: ServeRule,
    ) -> Option<Arc<Entry>> {
        if !self.may_reach(plan, rule.min_slot) {
            return None;
        }
        let now = Instant::now();
        let stands_in = |stored: &Stored| self.is_usable(&plan.key, &stored.entry, &rule, now);
        if let Some(Stored { entry, .. }) = self.candidates(plan).find(stands_in) {
            // The entry is shown now, so floors that have fallen below its slot rise again.
            if entry.meta.slot > self.floors_under(&plan.key, now).0 {
                self.raise_fallen_floors(plan, entry.meta.slot);
            }
            return Some(entry);
        }
        self.assemble(query, rule)
    }

    /// Returns a stored entry from which the answer to `plan` can be derived, and how to derive it. Only
    /// blocks, their times and transactions, and single vote accounts are derived.
    pub(super) fn find_source(&self, plan: &LookupPlan, rule: ServeRule) -> Option<(Arc<Entry>, Derivation)> {
        let now = Instant::now();
        match &plan.key {
            Key::Votes(query @ VotesQuery { vote_pubkey: Some(pubkey), .. }) => {
                let all = Key::Votes(VotesQuery { vote_pubkey: None, ..*query });
                Some((self.get_usable(&all, &rule, now)?, Derivation::VoteAccount(*pubkey)))
            }
            Key::Block(slot, asked, finality) => {
                let key = Key::Block(*slot, asked.source()?, *finality);
                Some((self.get_usable(&key, &rule, now)?, Derivation::Block(*asked)))
            }
            Key::Plain(Method::GetLeaderSchedule, ..) => {
                let Query::Plain(call) = &plan.upstream else { return None };
                let (all, leader) = call.of_all_leaders()?;
                Some((self.get_usable(&self.plan(&all.into()).key, &rule, now)?, Derivation::Leader(leader)))
            }
            Key::Plain(Method::GetProgramAccounts, ..) => {
                let Query::Plain(call) = &plan.upstream else { return None };
                let key = self.plan(&call.in_context()?.into()).key;
                Some((self.get_usable(&key, &rule, now)?, Derivation::Value))
            }
            Key::Plain(Method::GetSupply, ..) => {
                let (source, derivation) = plan.fetched_source()?;
                Some((self.get_usable(&source.key, &rule, now)?, derivation))
            }
            Key::Plain(Method::GetBlockTime, ..) => {
                let Query::BlockTime(BlockTimeQuery { slot, .. }) = plan.upstream else { return None };
                let kept = |shape| self.get_usable(&Key::Block(slot, shape, Finality::Final), &rule, now);
                Some((BlockShape::usual().find_map(kept)?, Derivation::BlockTime))
            }
            Key::Plain(Method::GetTransaction, ..) => {
                let Query::Transaction(query @ TransactionQuery { signature, .. }) = &plan.upstream else {
                    return None;
                };
                if let Some((source, derivation)) = plan.fetched_source()
                    && let Some(kept) = source.keys().find_map(|key| self.get_usable(key, &rule, now))
                {
                    return Some((kept, derivation));
                }
                let (signature, asked) = (*signature, BlockShape::of_transactions(query));
                let BlockShape { details, encoding, rewards, max_version } = asked.source().unwrap_or(asked);
                let place = self.transactions.find(encoding, &signature)?;
                let (slot, commitment) = (place.slot, plan.upstream.commitment().unwrap_or_default());
                let block = BlockQuery { slot, details, encoding, rewards, max_version, commitment };
                let kept = self.get_usable(&self.plan(&Query::Block(block)).key, &rule, now)?;
                Some((kept, Derivation::Transaction(SingleTransaction { signature, asked, place })))
            }
            _ => None,
        }
    }

    /// Returns the highest slot at which an account under `key` was shown, or 0. Answers below that slot are
    /// not served.
    pub(super) fn floor(&self, key: &Key, now: Instant) -> Slot {
        self.floors_under(key, now).1
    }

    /// Returns the lowest and the highest floor among the accounts under `key`. The floor of an account is
    /// the highest slot at which it was shown, or 0.
    pub(super) fn floors_under(&self, key: &Key, now: Instant) -> (Slot, Slot) {
        let span = |(accounts, commitment): (&[Pubkey], _)| self.floors.span(accounts, commitment, now);
        key.accounts().map_or(NO_ACCOUNTS, span)
    }

    /// Returns a list put together from the entries of single accounts, if all of them are of one slot and may be
    /// used. The list is stored, so that later answers to the same call are not at a lower slot.
    pub(super) fn assemble(&self, query: &Query, rule: ServeRule) -> Option<Arc<Entry>> {
        let Query::Accounts(query) = query else { return None };
        if self.freshness.assemble() == Assemble::Off {
            return None;
        }
        // Without the guard, a purge could come between reading the entries and storing the list.
        let guard = self.generation.lock();
        let singles = self.find_singles(query, rule, &guard);
        let singles = singles.into_iter().collect::<Option<Vec<_>>>()?;
        let list = list::joined(&singles)?;
        if self.holds_newer(query, &list) { None } else { self.insert_list(query, list) }
    }

    /// Returns true if a stored list of the same accounts is newer than `list` and may still be served. The stored
    /// list must also be writable in the form of `query`.
    pub(super) fn holds_newer(&self, query: &AccountsQuery, list: &Entry) -> bool {
        let key = |form| Key::Accounts(Arc::clone(&query.pubkeys), form, query.commitment);
        let mut stored = forms::serving_forms(query.form).filter_map(|form| self.store.get(&key(form)));
        let rule = ServeRule::within(Limit::InFault).at_least(list.meta.slot.saturating_add(1));
        let now = Instant::now();
        stored.any(|stored| self.freshness.serves(&rule, &stored.meta, now).is_yes())
    }

    /// Inserts `list` and returns it. `None` if a list of a higher slot is stored under the same key and may
    /// still be served.
    pub(super) fn insert_list(&self, query: &AccountsQuery, list: Entry) -> Option<Arc<Entry>> {
        let EntryBody::Accounts { values, .. } = &list.body else { return None };
        let form = forms::stored_assembled_form(query.form, values);
        let (key, list) = (Key::Accounts(Arc::clone(&query.pubkeys), form, query.commitment), Arc::new(list));
        let now = Instant::now();
        if self.floors_under(&key, now).0 < list.meta.slot {
            // The list is sent to a caller, so a floor below the slot of the list rises to that slot.
            self.raise_floors(&key, list.meta.slot, now);
        }
        (!matches!(self.insert(key, &list), Insert::KeptNewer(_))).then_some(list)
    }

    /// Returns the newest usable entry of each account of `list`, or `None` for an account without a usable entry.
    /// An entry is usable only if the account can be written from it in the form that `list` asks for.
    pub(super) fn find_singles(
        &self,
        list: &AccountsQuery,
        rule: ServeRule,
        guard: &GenerationGuard<'_>,
    ) -> Vec<Option<Arc<Entry>>> {
        let now = Instant::now();
        let usable = |key: &Key, stored: &Arc<Entry>| self.is_usable(key, stored, &rule, now);
        let single = |pubkey: &Pubkey| {
            let keys =
                || forms::serving_forms(list.form).map(|form| Key::Account(*pubkey, form, list.commitment));
            let stored = keys().filter_map(|key| {
                let stored = self.carry_to_tip(&key, self.store.get(&key)?, now);
                usable(&key, &stored).then_some(stored)
            });
            let newest = stored.max_by_key(|single| (single.meta.slot, single.meta.sent_at));
            let carried =
                |key: Key| self.carry_across(&key, now, guard).filter(|carried| usable(&key, carried));
            newest.or_else(|| keys().find_map(carried))
        };
        list.pubkeys.iter().map(single).collect()
    }
}
