//! The stored entries, and the data that decide if an entry may still be served. These are slots, ages,
//! purges, and the slots at which accounts were shown to callers.

use std::sync::Arc;

use tokio::time::Instant;

use super::basis::{Basis, Tolerance};
use super::class::Class;
use super::derive::block::{self, BlockShape};
use super::entry::{Entry, EntryBody, EntryMeta, Payload};
use super::floors::{AccountFloors, NO_ACCOUNTS};
use super::freshness::FreshnessPolicy;
use super::generation::{Generation, GenerationGuard};
use super::key::{Finality, Key, LookupPlan};
use super::purge::Filter;
use super::store::{EntryStore, Insert};
use crate::config;
use crate::methods::{BlockDetails, BlockEncoding, Commitment, Pubkey, Slot};
use crate::node::shape::parent_slot;
use crate::telemetry::Metrics;

/// The number of slots after a skipped one that are searched for a stored block. A leader has four slots in a row, and
/// may miss all of them.
const LONGEST_SKIP: u64 = 8;

/// The stored entries and the rules for serving them.
pub(super) struct StoredEntries {
    store: EntryStore,
    /// For each account, the lowest slot at which an answer may still be served.
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

    /// Stores `entry` under `key`, if `stored` is still the entry under `key`.
    pub(super) fn replace(&self, key: Key, stored: &Arc<Entry>, entry: &Arc<Entry>) {
        self.store.replace(key, stored, entry);
    }

    /// Tells the store the present weight of `entry` in bytes, if this entry is still stored under `key`.
    pub(super) fn update_weight(&self, key: Key, entry: &Arc<Entry>) {
        self.store.update_weight(key, entry);
    }

    /// Returns a guard that keeps purges from beginning while an answer is inserted.
    pub(super) fn lock_generation(&self) -> GenerationGuard<'_> {
        self.generation.lock()
    }

    /// Returns the size of the stored entries in bytes, and their number.
    pub(super) fn usage(&self) -> (u64, u64) {
        self.store.usage()
    }

    /// Counts a purge. The answers of fetches that are under way will not be stored.
    pub(super) fn end_generation(&self) {
        self.generation.advance();
    }

    /// Removes all entries, and forgets the slots at which accounts were shown.
    pub(super) fn clear(&self) {
        self.store.clear();
        self.floors.clear();
    }

    /// Removes the entries that any of `filters` matches, and returns their number. Answers of fetches that
    /// are under way will not be stored.
    pub(super) fn purge(&self, filters: &[Filter]) -> u64 {
        self.generation.advance();
        if !filters.iter().any(Filter::is_everything) {
            let entries = self.store.purge(|key, _| filters.iter().any(|filter| filter.takes(key)));
            filters.iter().filter_map(Filter::all_of).for_each(|account| self.floors.forget(account));
            return entries;
        }
        let (_, entries) = self.store.usage();
        self.clear();
        entries
    }

    /// Removes the blocks above `slot`, the errors that such blocks are missing, and the other answers at finalized above
    /// `slot`. Returns their number. Answers of fetches that are under way will not be stored.
    pub(super) fn purge_above(&self, slot: Slot) -> u64 {
        use Commitment::Finalized;
        self.generation.advance();
        self.store.purge(|key, meta| match (key.block_slot(), meta.class) {
            (Some(block), _) => block > slot,
            (None, Class::Account(Finalized) | Class::Fee(Finalized) | Class::Votes(Finalized)) => {
                meta.slot > slot
            }
            _ => false,
        })
    }

    /// Returns the number of purges so far.
    pub(super) fn generation(&self) -> u64 {
        self.generation.number()
    }

    /// Returns the entries stored under the two keys of `plan`. If both keys have an entry about accounts,
    /// only the one of the higher slot is returned. For a block, the first element is the block, and the
    /// second is the error that the block is missing.
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

    /// Returns the second key of `plan` if `stored`, one of the entries for `plan`, is stored under that key.
    /// `None` if `stored` is under the first key.
    pub(super) fn alternate_key(&self, plan: &LookupPlan, stored: &Arc<Entry>) -> Option<Key> {
        let is_first = || self.store.get(&plan.key).is_some_and(|first| Arc::ptr_eq(&first, stored));
        plan.alternate_key.clone().filter(|_| !is_first())
    }

    /// Returns the entry stored under `key`, if it is young enough for `tolerance` and its slot is at least
    /// `min_slot`.
    pub(super) fn get_usable(
        &self,
        key: &Key,
        tolerance: Tolerance,
        min_slot: Option<Slot>,
        now: Instant,
    ) -> Option<Arc<Entry>> {
        self.store.get(key).filter(|stored| self.is_usable(key, stored, tolerance, min_slot, now))
    }

    /// Returns true if a stored final block proves that `slot` was skipped: the next block after the slot, whose parent
    /// is before the slot.
    pub(super) fn proves_skip(&self, slot: Slot) -> bool {
        let parent_of = |slot| {
            let header = BlockShape {
                details: BlockDetails::None,
                encoding: BlockEncoding::Json,
                rewards: false,
                max_version: None,
            };
            let mut shapes = std::iter::once(header).chain(block::sources(header));
            shapes.find_map(|shape| match &self.store.get(&Key::Block(slot, shape, Finality::Final))?.body {
                EntryBody::Verbatim(Payload::Result(text)) => parent_slot(&text.whole()),
                _ => None,
            })
        };
        let mut later = slot.saturating_add(1)..=slot.saturating_add(LONGEST_SKIP);
        later.find_map(parent_of).is_some_and(|parent| parent < slot)
    }

    /// Returns true if `stored`, the entry under `key`, is young enough for `tolerance` and its slot is at
    /// least `min_slot`. Unless `tolerance` is the last resort, its accounts must not have been shown at a
    /// higher slot.
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
        // At processed a fork may be dropped with its slots. A lower slot is normal there, and not counted as
        // a reset.
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

    /// Returns true if `entry` must not be sent because a newer answer is stored or was sent to a caller. An
    /// error that a node has just given shows no account, so the slots of other answers do not matter for it.
    pub(super) fn is_overtaken(&self, plan: &LookupPlan, entry: &Entry, basis: Basis) -> bool {
        let is_error = matches!(entry.body, EntryBody::Verbatim(Payload::Error { .. }));
        (!is_error || basis.is_stored()) && self.is_behind(plan, &entry.meta, basis)
    }

    /// Returns true if a newer answer is stored, or if an account was shown above the slot of `meta`. At
    /// processed only answers that were found without asking a node are checked.
    fn is_behind(&self, plan: &LookupPlan, meta: &EntryMeta, basis: Basis) -> bool {
        let has_floor = match plan.class {
            Class::Account(c) | Class::Fee(c) | Class::Votes(c) => {
                basis.is_stored() || c != Commitment::Processed
            }
            _ => false,
        };
        let newer =
            |stored: Arc<Entry>| stored.meta.slot > meta.slot && self.freshness.may_serve(&stored.meta);
        let is_below = || meta.slot < self.floor(&plan.key, Instant::now());
        has_floor && (is_below() || self.candidates(plan).into_iter().flatten().any(newer))
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

    /// Notes that the accounts under `key` are shown at `slot`, and are not served below that slot from now
    /// on.
    pub(super) fn raise_floors(&self, key: &Key, slot: Slot, now: Instant) {
        if let Some((accounts, commitment)) = key.accounts() {
            self.floors.raise(accounts, commitment, slot, self.freshness.longest_life(commitment), now);
        }
    }

    /// Lets the accounts under `key` be served from `slot` on, although they were shown at a higher slot.
    /// Accounts that were shown above `floor` are left out. Counts the change in the metrics.
    pub(super) fn lower_floors(&self, key: &Key, floor: Slot, slot: Slot) {
        let Some((accounts, commitment)) = key.accounts().filter(|_| slot < floor) else { return };
        let life = self.freshness.longest_life(commitment);
        if self.floors.lower(accounts, commitment, (floor, slot), life, Instant::now()) {
            self.metrics.cache_floor_resets.at(()).inc();
        }
    }

    /// Raises the floors of the accounts in `plan` to `slot`, at which a stored entry for `plan` is served.
    /// `lowest` is the lowest of these floors. Does nothing if `slot` is not above `lowest`.
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

#[cfg(test)]
mod tests {
    use super::super::entry::CompressedForms;
    use super::*;
    use crate::config::Config;
    use crate::frontier::Frontier;

    fn no_entries() -> StoredEntries {
        let any = ([127, 0, 0, 1], 0).into();
        let settings = Config::dev(any, any, Vec::new()).cache;
        let freshness = Arc::new(FreshnessPolicy::new(settings.clone(), Arc::new(Frontier::new(1))));
        StoredEntries::new(&settings, freshness, Metrics::new())
    }

    fn entry(slot: Slot, class: Class, sent_at: Instant) -> Arc<Entry> {
        let meta = EntryMeta { slot, sent_at, class, derived: false, carried: false };
        let body =
            EntryBody::Verbatim(Payload::Error { code: -32602, body: bytes::Bytes::from_static(b"{}") });
        Arc::new(Entry { body, meta, stamp: None, compressed: CompressedForms::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn only_replaced_higher_slots_count_as_resets() {
        let entries = no_entries();
        let resets = || entries.metrics.cache_floor_resets.at(()).get();
        let started = Instant::now();
        tokio::time::advance(std::time::Duration::from_hours(1)).await;
        // In each round, the entry at slot 9 is too old to be served.
        for (commitment, expected) in [(Commitment::Processed, 0), (Commitment::Confirmed, 1)] {
            let (key, class) = (Key::Balance(Pubkey([1; 32]), commitment), Class::Account(commitment));
            entries.insert(key.clone(), &entry(9, class, started));
            assert_eq!(resets(), 0);
            entries.insert(key.clone(), &entry(5, class, Instant::now()));
            assert_eq!(resets(), expected, "{commitment}");
            entries.insert(key, &entry(4, class, Instant::now()));
            assert_eq!(resets(), expected, "the higher slot stays");
        }
    }

    #[tokio::test]
    async fn purge_ends_a_generation_and_empties_usage() {
        let entries = no_entries();
        assert_eq!(entries.usage(), (0, 0));
        for slot in 1..=3 {
            entries.insert(Key::NoBlock(slot), &entry(5, Class::Skipped, Instant::now()));
        }
        let (bytes, count) = entries.usage();
        assert!(bytes > 3 && count == 3, "{bytes} bytes, {count} entries");
        let first = entries.generation();
        assert_eq!(entries.purge(&[Filter { slot: Some(2), ..Filter::default() }]), 1);
        let second = entries.generation();
        assert_eq!(entries.purge(&[Filter::default()]), 2);
        assert!(first < second && second < entries.generation());
        assert_eq!(entries.usage(), (0, 0));
    }
}
