//! The look-up: the choice of a stored entry that may serve a call.
//!
//! [`Lookup`] owns everything that decides this choice: the stored entries with the rules for serving them
//! ([`StoredEntries`]), and the known sizes of accounts. The look-up is synchronous and does no I/O.

use std::sync::Arc;

use tokio::time::Instant;

use super::assembled_lists::AssembledLists;
use super::basis::Tolerance;
use super::carry::Carrier;
use super::class::Class;
use super::derive::{Derivation, block};
use super::entry::{CompressedForms, Entry, EntryBody, EntryMeta, Payload};
use super::follow_stamp::FollowStamp;
use super::freshness::{Freshness, FreshnessPolicy};
use super::key::{Finality, Key, LookupPlan};
use super::policy::{Placement, cache_policy};
use super::sizes::Sizes;
use super::store::Insert;
use super::stored_entries::StoredEntries;
use crate::config;
use crate::frontier::Frontier;
use crate::methods::{AccountForm, Commitment, Pubkey, Query, Slot, VotesQuery};
use crate::pool::PoolReply;
use crate::telemetry::{Metrics, StaleCause, UncacheableReason};

/// The stored entries, and the rules for serving them.
pub(super) struct Lookup {
    pub(super) entries: StoredEntries,
    pub(super) freshness: Arc<FreshnessPolicy>,
    pub(super) carrier: Carrier,
    sizes: Sizes,
    frontier: Arc<Frontier>,
    metrics: Arc<Metrics>,
}

/// The result of a look-up.
pub(super) enum CacheLookup {
    /// No stored entry can serve the call: there is none, or its slot is too low.
    Miss,
    /// A fresh entry.
    Hit(Arc<Entry>),
    /// An entry that is served while a fresh answer is fetched.
    Stale(Arc<Entry>),
    /// There is an entry, which is served only if no node answers.
    Expired,
}

/// A stored entry. The key is set if the entry is stored under the [`LookupPlan::alternate_key`].
pub(super) type KeyedEntry = (Arc<Entry>, Option<Key>);

/// The state of the cache when a fetch begins.
pub(super) struct FetchStart {
    /// The number of purges so far. An answer to a call from before a purge is not stored.
    pub(super) generation: u64,
    /// The highest slot at which one of the call's accounts was shown. 0 if none was shown.
    pub(super) account_floor: Slot,
    /// The highest slot of the stored answers to the call, or `account_floor` if that is higher. `None` if no
    /// answer is stored and no account was shown.
    pub(super) newest_slot: Option<Slot>,
    /// The unique number of the run of blocks that the gateway follows. 0 if it follows none.
    pub(super) chain: u64,
    /// The slot of the last block that may have written one of the call's accounts. `None` if the followed blocks
    /// do not tell, or at other commitments than confirmed.
    pub(super) last_write: Option<Slot>,
}

/// One account of a fetched list.
pub(super) struct SingleEntry {
    pub(super) key: Key,
    pub(super) body: EntryBody,
    pub(super) stamp: Option<Arc<FollowStamp>>,
}

/// A fetched answer, with everything needed to store it.
pub(super) struct InsertRequest<'a> {
    pub(super) plan: &'a LookupPlan,
    /// The key under which the answer is stored, or the reason why it is not stored.
    pub(super) key: Result<Key, UncacheableReason>,
    pub(super) entry: &'a Arc<Entry>,
    /// The accounts of a list, each as an entry of its own. Empty for other answers.
    pub(super) singles: Vec<SingleEntry>,
    /// The sizes of accounts in bytes, as the answer states them.
    pub(super) spaces: Vec<(Pubkey, u64)>,
    /// The highest slot at which one of the answer's accounts was shown before the node was asked. Except at
    /// processed, the node was asked for at least this slot.
    pub(super) account_floor: Slot,
    pub(super) generation: u64,
}

impl Lookup {
    /// Creates a look-up over an empty cache.
    pub(super) fn new(
        config: &config::CacheSettings,
        carrier: Carrier,
        freshness: Arc<FreshnessPolicy>,
        frontier: Arc<Frontier>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            entries: StoredEntries::new(config, Arc::clone(&freshness), Arc::clone(&metrics)),
            carrier,
            freshness,
            sizes: Sizes::default(),
            frontier,
            metrics,
        }
    }

    /// Returns the look-up plan for `query`. This plan depends on the newest known slots and the known sizes of
    /// accounts.
    pub(super) fn plan(&self, query: &Query) -> LookupPlan {
        LookupPlan::new(query, &self.frontier, &self.sizes)
    }

    /// Returns the stored entry for the look-up `plan`, if the entry's slot is at least `min_slot`. Each entry
    /// that was found but is not fresh is counted in the metrics.
    pub(super) fn look_up(&self, plan: &LookupPlan, min_slot: Option<Slot>) -> CacheLookup {
        self.assess(plan, min_slot, |cause| self.metrics.cache_stale.at(cause).inc())
    }

    /// Returns the entry for `plan` if it is fresh. Unlike [`Self::look_up`], counts nothing in the metrics.
    pub(super) fn find_fresh(&self, plan: &LookupPlan) -> Option<KeyedEntry> {
        let CacheLookup::Hit(entry) = self.assess(plan, None, |_| ()) else { return None };
        let key = self.entries.alternate_key(plan, &entry);
        Some((entry, key))
    }

    /// Returns true if a stored entry may serve a call of `plan` now, fresh or while it is fetched again.
    pub(super) fn holds(&self, plan: &LookupPlan) -> bool {
        matches!(self.assess(plan, None, |_| ()), CacheLookup::Hit(_) | CacheLookup::Stale(_))
    }

    /// Looks `plan` up, and calls `not_fresh` with the reason for each entry that is not fresh.
    fn assess(
        &self,
        plan: &LookupPlan,
        min_slot: Option<Slot>,
        mut not_fresh: impl FnMut(StaleCause),
    ) -> CacheLookup {
        let now = Instant::now();
        let mut found = CacheLookup::Miss;
        for entry in self.entries.candidates(plan).into_iter().flatten() {
            let key_of = |entry: &Arc<Entry>| {
                self.entries.alternate_key(plan, entry).unwrap_or_else(|| plan.key.clone())
            };
            let entry = self.carrier.carry_to_tip(&self.entries, &plan.key, entry, now, key_of);
            // Another answer may have shown one of the accounts at a higher slot.
            let (lowest, floor) = self.entries.floors_under(&plan.key, now);
            if !entry.meta.reaches(min_slot) || entry.meta.slot < floor {
                not_fresh(StaleCause::Floor);
                continue;
            }
            match self.freshness.assess(&entry.meta, now) {
                Freshness::Fresh => {
                    self.entries.raise_fallen_floors(plan, entry.meta.slot, lowest);
                    return CacheLookup::Hit(entry);
                }
                // Only an answer that may still be right is served while a fresh one is fetched.
                Freshness::Stale(cause) if !self.carrier.is_overwritten(&entry) => {
                    not_fresh(cause);
                    self.entries.raise_fallen_floors(plan, entry.meta.slot, lowest);
                    found = CacheLookup::Stale(entry);
                }
                Freshness::Stale(cause) | Freshness::Expired(cause) => {
                    not_fresh(cause);
                    if !matches!(found, CacheLookup::Stale(_)) {
                        found = CacheLookup::Expired;
                    }
                }
            }
        }
        match self.carrier.find_across(&self.entries, plan, min_slot, now) {
            Some(carried) => CacheLookup::Hit(carried),
            None => found,
        }
    }

    /// Returns the assembler of lists from stored accounts.
    pub(super) fn lists(&self) -> AssembledLists<'_> {
        AssembledLists { entries: &self.entries, carrier: &self.carrier, freshness: &self.freshness }
    }

    /// Returns the entry that may be served because no node answers. `tolerance` says if the entry may be
    /// below a slot at which one of its accounts was shown.
    pub(super) fn find_stand_in(
        &self,
        query: &Query,
        plan: &LookupPlan,
        tolerance: Tolerance,
    ) -> Option<Arc<Entry>> {
        let min_slot = query.min_context_slot();
        let floor = if tolerance == Tolerance::LastResort {
            0
        } else {
            self.entries.floor(&plan.key, Instant::now())
        };
        let stands_in = |entry: &Arc<Entry>| {
            entry.meta.reaches(min_slot) && entry.meta.slot >= floor && self.freshness.may_serve(&entry.meta)
        };
        if let Some(entry) = self.entries.candidates(plan).into_iter().flatten().find(stands_in) {
            // The entry is shown now, so floors that have fallen below its slot rise again.
            let (lowest, _) = self.entries.floors_under(&plan.key, Instant::now());
            self.entries.raise_fallen_floors(plan, entry.meta.slot, lowest);
            return Some(entry);
        }
        self.lists().assemble(query, tolerance, min_slot)
    }

    /// Lowers the floors of the accounts of `plan` to the slot of `meta`, because an entry with this `meta` is
    /// served below them.
    pub(super) fn lower_floors_to(&self, plan: &LookupPlan, meta: &EntryMeta) {
        self.entries.lower_floors(&plan.key, self.entries.floor(&plan.key, Instant::now()), meta.slot);
    }

    /// Returns a stored entry from which the answer to `plan` can be derived, and how to derive it. Only
    /// blocks and single vote accounts are derived.
    pub(super) fn find_source(
        &self,
        plan: &LookupPlan,
        tolerance: Tolerance,
    ) -> Option<(Arc<Entry>, Derivation)> {
        let now = Instant::now();
        match &plan.key {
            Key::Votes(query @ VotesQuery { vote_pubkey: Some(pubkey), .. }) => {
                let all = Key::Votes(VotesQuery { vote_pubkey: None, ..*query });
                Some((self.entries.get_usable(&all, tolerance, None, now)?, Derivation::VoteAccount(*pubkey)))
            }
            Key::Block(slot, asked, finality) => {
                let source = |shape| {
                    let entry =
                        self.entries.get_usable(&Key::Block(*slot, shape, *finality), tolerance, None, now);
                    entry.filter(|entry| matches!(entry.body, EntryBody::Verbatim(Payload::Result(_))))
                };
                let found = block::sources(*asked).find_map(|shape| Some((source(shape)?, shape)));
                let (entry, shape) = found?;
                Some((entry, Derivation::Block(shape, *asked)))
            }
            _ => None,
        }
    }

    /// Stores a derived answer. `generation` is the number of purges when the derivation began. Returns false
    /// if the cache was purged since, or if a newer answer is stored.
    pub(super) fn insert_derived(&self, plan: &LookupPlan, entry: &Arc<Entry>, generation: u64) -> bool {
        let guard = self.entries.lock_generation();
        guard.number() == generation
            && !matches!(self.entries.insert(plan.key.clone(), entry), Insert::KeptNewer(_))
    }

    /// Returns the state of the cache that a fetch for `plan` needs when it begins.
    pub(super) fn begin_fetch(&self, plan: &LookupPlan) -> FetchStart {
        let account_floor = self.entries.floor(&plan.key, Instant::now());
        let slots = self.entries.candidates(plan).into_iter().flatten().map(|entry| entry.meta.slot);
        let newest_slot = slots.chain(Some(account_floor).filter(|slot| *slot > 0)).max();
        let followed = self.carrier.followed();
        followed.touch();
        let chain = followed.number();
        let last_write = self.carrier.last_write(&self.entries, plan);
        FetchStart { generation: self.entries.generation(), account_floor, newest_slot, chain, last_write }
    }

    /// Returns a stored entry that may still be served and whose slot is above `slot`, the slot of a node's
    /// answer. The caller gets this entry instead of the node's answer. `account_floor` is the highest slot at
    /// which one of the answer's accounts was shown before the node was asked.
    pub(super) fn find_newer(
        &self,
        plan: &LookupPlan,
        slot: Slot,
        account_floor: Slot,
    ) -> Option<KeyedEntry> {
        let has_floor = match plan.class {
            Class::Account(c) | Class::Fee(c) | Class::Votes(c) => c != Commitment::Processed,
            _ => false,
        };
        if !has_floor {
            return None;
        }
        let entries = self.entries.candidates(plan).into_iter().flatten();
        let newer = entries.filter(|entry| entry.meta.slot > slot && self.freshness.may_serve(&entry.meta));
        let newest = newer.max_by_key(|entry| entry.meta.slot);
        let newest_slot = newest.as_ref().map_or(slot, |entry| entry.meta.slot);
        // If neither the node's answer nor the newest entry reaches the floor, a list assembled from single
        // accounts may reach it.
        let list = if newest_slot < account_floor {
            self.lists().assemble(&plan.upstream, Tolerance::InFault, Some(account_floor))
        } else {
            None
        };
        let found = match list {
            Some(list) => (list, None),
            None => newest.map(|entry| (Arc::clone(&entry), self.entries.alternate_key(plan, &entry)))?,
        };
        let shown = found.0.meta.slot;
        self.entries.lower_floors(&plan.key, account_floor, shown);
        let (lowest, _) = self.entries.floors_under(&plan.key, Instant::now());
        self.entries.raise_fallen_floors(plan, shown, lowest);
        Some(found)
    }

    /// Stores a fetched answer, or returns the reason why it is not stored. Calls `on_insert` if the answer
    /// was inserted. Notes the sizes of accounts in any case.
    pub(super) fn insert_fetched(
        &self,
        answer: InsertRequest<'_>,
        on_insert: impl FnOnce(&Key),
    ) -> Result<Insert, UncacheableReason> {
        let InsertRequest { plan, key, entry, singles, spaces, account_floor, generation } = answer;
        for (pubkey, space) in spaces {
            self.sizes.note(&pubkey, space);
        }
        let key = key?;
        let slot = entry.meta.slot;
        let believed = |c| !plan.upstream.has_context() || self.frontier.believes(c, slot);
        // The generation check and the insert happen under one lock. Otherwise a purge between them would be
        // undone.
        let guard = self.entries.lock_generation();
        if guard.number() != generation {
            return Err(UncacheableReason::Purged);
        }
        if !plan.upstream.commitment().is_none_or(believed) {
            return Err(UncacheableReason::Unbelieved);
        }
        if !matches!(entry.body, EntryBody::Verbatim(Payload::Error { .. })) {
            self.entries.lower_floors(&plan.key, account_floor, slot);
        }
        // The floors rise before any caller gets the answer, and even if the answer is too large to store.
        // Lower slots are hidden from now on.
        self.entries.raise_floors(&plan.key, slot, Instant::now());
        let inserted = self.entries.insert(key.clone(), entry);
        if matches!(inserted, Insert::Stored | Insert::ReplacedNewer) {
            on_insert(&key);
        }
        if !matches!(inserted, Insert::KeptNewer(_)) {
            for SingleEntry { key, body, stamp } in singles {
                let meta = entry.meta;
                self.entries.insert(
                    key,
                    &Arc::new(Entry { body, meta, stamp, compressed: CompressedForms::default() }),
                );
            }
        }
        Ok(inserted)
    }

    /// Notes that the answer to `plan` was too large to fetch. Returns true if `plan` asks the node for a
    /// larger form than `query` wants. In that case the next plan asks for the form of `query`.
    pub(super) fn note_too_large(&self, query: &Query, plan: &LookupPlan) -> bool {
        let wider = |asked: AccountForm, sent: AccountForm| asked != sent && sent.slice.is_none();
        match (query, &plan.upstream) {
            (Query::Account(asked), Query::Account(sent)) if wider(asked.form, sent.form) => {
                self.sizes.note_large(&asked.pubkey);
                true
            }
            (Query::Accounts(asked), Query::Accounts(sent)) if wider(asked.form, sent.form) => {
                asked.pubkeys.iter().for_each(|pubkey| self.sizes.note_large(pubkey));
                true
            }
            _ => false,
        }
    }

    /// Counts the size of `entry` again, because its text was compressed and the compressed text is kept with
    /// it. `entry` may be stored under any key of `query`.
    pub(super) fn update_weight(&self, query: &Query, entry: &Arc<Entry>) {
        let LookupPlan { key, alternate_key, .. } = self.plan(query);
        // The block may have become final since the entry was stored.
        let before = match &key {
            Key::Block(slot, shape, Finality::Final) => Some(Key::Block(*slot, *shape, Finality::Confirmed)),
            _ => None,
        };
        for key in [Some(key), alternate_key, before].into_iter().flatten() {
            self.entries.update_weight(key, entry);
        }
    }

    /// Returns the payload of a node's answer, and the key and class under which it is stored, or the reason why it is
    /// not stored.
    pub(super) fn cache_policy(&self, plan: &LookupPlan, reply: &PoolReply) -> (Payload, Placement) {
        cache_policy(plan, reply, &self.frontier, |slot| self.entries.proves_skip(slot))
    }

    /// Returns true if an answer from the shared store may be used here. The answer must be fresh. Its slot must
    /// not be below `min_slot`, below a stored answer's slot, or below a slot at which one of its accounts was
    /// shown. The slot must not be implausibly far above the newest known slot, either.
    pub(super) fn accepts_shared(
        &self,
        plan: &LookupPlan,
        reply: &PoolReply,
        min_slot: Option<Slot>,
    ) -> bool {
        let stored = self.entries.candidates(plan).into_iter().flatten().map(|entry| entry.meta.slot).max();
        let account_floor = self.entries.floor(&plan.key, Instant::now());
        if stored.max(min_slot).max(Some(account_floor)).is_some_and(|lowest| reply.slot < lowest) {
            return false;
        }
        let known = |c| self.frontier.slot(c) > 0 && self.frontier.believes(c, reply.slot);
        if !plan.upstream.commitment().is_none_or(known) {
            return false;
        }
        let (_, Ok((_, class))) = self.cache_policy(plan, reply) else { return false };
        let meta =
            EntryMeta { slot: reply.slot, sent_at: reply.sent_at, class, derived: false, carried: false };
        self.freshness.allows(&meta, Tolerance::Fresh, Instant::now())
    }
}
