//! The stored entries, with everything that decides whether an entry may still serve: slots, ages, floors and
//! the generation.

use std::sync::Arc;

use tokio::time::Instant;

use super::basis::{Basis, Tolerance};
use super::class::Class;
use super::entry::{Entry, EntryBody, EntryMeta, Payload};
use super::floors::{AccountFloors, NO_ACCOUNTS};
use super::freshness::FreshnessPolicy;
use super::generation::{Generation, GenerationGuard};
use super::key::{Key, LookupPlan};
use super::purge::Filter;
use super::store::{EntryStore, Insert};
use crate::config::{self, Assemble};
use crate::methods::{Commitment, Pubkey, Slot};
use crate::telemetry::Metrics;

/// The stored entries and the rules for serving them.
pub(super) struct StoredEntries {
    store: EntryStore,
    /// The slots below which accounts are not shown.
    floors: AccountFloors,
    /// The number of purges so far.
    generation: Generation,
    freshness: Arc<FreshnessPolicy>,
    metrics: Arc<Metrics>,
}

impl StoredEntries {
    /// Creates a cache without entries.
    pub(super) fn new(
        config: &config::CacheSettings,
        freshness: Arc<FreshnessPolicy>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            store: EntryStore::new(config.capacity, config.max_entry, Arc::clone(&metrics)),
            floors: AccountFloors::new(config.capacity),
            generation: Generation::default(),
            freshness,
            metrics,
        }
    }

    /// Returns the entry stored under `key`, fresh or not.
    pub(super) fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.store.get(key)
    }

    /// Replaces `stored` by `entry`, if `stored` is still the entry under `key`.
    pub(super) fn replace(&self, key: Key, stored: &Arc<Entry>, entry: &Arc<Entry>) {
        self.store.replace(key, stored, entry);
    }

    /// Computes the weight of `entry` again, if this entry is still stored under `key`.
    pub(super) fn update_weight(&self, key: Key, entry: &Arc<Entry>) {
        self.store.update_weight(key, entry);
    }

    /// Holds the present generation while an answer is inserted.
    pub(super) fn lock_generation(&self) -> GenerationGuard<'_> {
        self.generation.lock()
    }

    /// Returns the bytes stored and the number of entries.
    pub(super) fn usage(&self) -> (u64, u64) {
        self.store.usage()
    }

    /// Begins the next generation. Answers that are being fetched will not be stored.
    pub(super) fn end_generation(&self) {
        self.generation.advance();
    }

    /// Removes all entries and floors.
    pub(super) fn clear(&self) {
        self.store.clear();
        self.floors.clear();
    }

    /// Removes the entries that any of `filters` matches, and returns their number.
    pub(super) fn purge(&self, filters: &[Filter]) -> u64 {
        self.generation.advance();
        if !filters.iter().any(Filter::is_everything) {
            let entries = self.store.purge(|key| filters.iter().any(|filter| filter.takes(key)));
            filters.iter().filter_map(Filter::all_of).for_each(|account| self.floors.forget(account));
            return entries;
        }
        let (_, entries) = self.store.usage();
        self.clear();
        entries
    }

    /// Removes all floors.
    pub(super) fn forget_floors(&self) {
        self.floors.clear();
    }

    /// Returns the number of the present generation.
    pub(super) fn generation(&self) -> u64 {
        self.generation.number()
    }

    /// Returns the entries stored under the keys of `plan`. If an account is stored under both keys, only the
    /// entry of the higher slot is returned, because that one was shown last. A block comes before its
    /// absence.
    pub(super) fn candidates(&self, plan: &LookupPlan) -> [Option<Arc<Entry>>; 2] {
        let first = self.store.get(&plan.key);
        let alternate = plan.alternate_key.as_ref().and_then(|key| self.store.get(key));
        match (first, alternate) {
            (Some(first), Some(alternate)) if matches!(plan.class, Class::Account(_)) => {
                let rank = |entry: &Entry| (entry.meta.slot, entry.meta.sent_at);
                [Some(if rank(&alternate) > rank(&first) { alternate } else { first }), None]
            }
            both => [both.0, both.1],
        }
    }

    /// Returns the alternate key of `plan`, unless the candidate `stored` is the entry under the plan's first
    /// key.
    pub(super) fn alternate_key(&self, plan: &LookupPlan, stored: &Arc<Entry>) -> Option<Key> {
        let is_first = || self.store.get(&plan.key).is_some_and(|first| Arc::ptr_eq(&first, stored));
        plan.alternate_key.clone().filter(|_| !is_first())
    }

    /// Returns the entry stored under `key`, if `tolerance` allows it and its slot is at least `min_slot`.
    pub(super) fn get_usable(
        &self,
        key: &Key,
        tolerance: Tolerance,
        min_slot: Option<Slot>,
        now: Instant,
    ) -> Option<Arc<Entry>> {
        self.store.get(key).filter(|stored| self.is_usable(key, stored, tolerance, min_slot, now))
    }

    /// Returns true if `tolerance` allows `stored`, the entry under `key`, and if the entry's slot is at
    /// least `min_slot`.
    pub(super) fn is_usable(
        &self,
        key: &Key,
        stored: &Entry,
        tolerance: Tolerance,
        min_slot: Option<Slot>,
        now: Instant,
    ) -> bool {
        let behind = tolerance != Tolerance::LastResort && stored.meta.slot < self.floor(key, now);
        let usable = self.freshness.allows(&stored.meta, tolerance, now) && !behind;
        usable && stored.meta.reaches(min_slot)
    }

    /// Stores `entry`, unless the entry stored under `key` is newer and may still be served.
    pub(super) fn insert(&self, key: Key, entry: &Arc<Entry>) -> Insert {
        let inserted = self.store.insert(key, entry, |stored| self.freshness.may_serve(stored));
        // At processed a fork may be dropped with its slots, so a lower slot is not counted as a reset.
        let processed = matches!(
            entry.meta.class,
            Class::Account(Commitment::Processed)
                | Class::Fee(Commitment::Processed)
                | Class::Votes(Commitment::Processed)
        );
        if matches!(inserted, Insert::ReplacedNewer) && !processed {
            self.metrics.cache_floor_resets.at(()).inc();
        }
        inserted
    }

    /// Returns true if a newer answer than `entry` was shown. An error that a node has just given shows no
    /// account, so it cannot be overtaken.
    pub(super) fn is_overtaken(&self, plan: &LookupPlan, entry: &Entry, basis: Basis) -> bool {
        let is_error = matches!(entry.body, EntryBody::Verbatim(Payload::Error { .. }));
        (!is_error || basis.is_stored()) && self.is_behind(plan, &entry.meta, basis)
    }

    /// Returns true if a newer answer is stored, or if an account was shown above the slot of `meta`. At
    /// processed only answers from the cache are checked.
    pub(super) fn is_behind(&self, plan: &LookupPlan, meta: &EntryMeta, basis: Basis) -> bool {
        let has_floor = match plan.class {
            Class::Account(c) | Class::Fee(c) | Class::Votes(c) => {
                basis.is_stored() || c != Commitment::Processed
            }
            _ => false,
        };
        let newer =
            |stored: Arc<Entry>| stored.meta.slot > meta.slot && self.freshness.may_serve(&stored.meta);
        // A list that was just assembled of several slots has the lowest of them. Its accounts were checked
        // against their floors one by one. The accounts of a list that was assembled earlier were not.
        let is_just_assembled = meta.derived && matches!(basis, Basis::LookedUp | Basis::SharedFetch(..));
        let is_mixed = is_just_assembled && self.freshness.assemble() == Assemble::WithinBound;
        let is_below = || !is_mixed && meta.slot < self.floor(&plan.key, Instant::now());
        has_floor && (is_below() || self.candidates(plan).into_iter().flatten().any(newer))
    }

    /// Returns the highest slot at which an account under `key` was shown, or 0. No answer below that slot is
    /// shown.
    pub(super) fn floor(&self, key: &Key, now: Instant) -> Slot {
        self.floors_under(key, now).1
    }

    /// Returns the lowest and the highest floor of the accounts under `key`.
    pub(super) fn floors_under(&self, key: &Key, now: Instant) -> (Slot, Slot) {
        let span = |(accounts, commitment): (&[Pubkey], _)| self.floors.span(accounts, commitment, now);
        key.accounts().map_or(NO_ACCOUNTS, span)
    }

    /// Raises the floors of the accounts under `key`, which are shown at `slot`.
    pub(super) fn raise_floors(&self, key: &Key, slot: Slot, now: Instant) {
        if let Some((accounts, commitment)) = key.accounts() {
            self.floors.raise(accounts, commitment, slot, self.freshness.longest_life(commitment), now);
        }
    }

    /// Lowers the floors of the accounts under `key` from at most `floor` to `slot`, because no node reaches
    /// them any more. Counts the reset.
    pub(super) fn lower_floors(&self, key: &Key, floor: Slot, slot: Slot) {
        let Some((accounts, commitment)) = key.accounts().filter(|_| slot < floor) else { return };
        let life = self.freshness.longest_life(commitment);
        if self.floors.lower(accounts, commitment, (floor, slot), life, Instant::now()) {
            self.metrics.cache_floor_resets.at(()).inc();
        }
    }

    /// Raises floors that have fallen below `slot`, at which an entry for `plan` is shown. `lowest` is the
    /// lowest of these floors.
    pub(super) fn raise_fallen_floors(&self, plan: &LookupPlan, slot: Slot, lowest: Slot) {
        if slot <= lowest {
            return;
        }
        // An entry from before a purge raises no floor.
        let _held = self.generation.lock();
        if self.candidates(plan).into_iter().flatten().any(|stored| stored.meta.slot == slot) {
            self.raise_floors(&plan.key, slot, Instant::now());
        }
    }
}
