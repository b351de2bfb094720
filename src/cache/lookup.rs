//! The look-up: the held entries, and the calls that they may serve.
//!
//! [`Lookup`] owns everything that decides this: the held entries with their floors, generation and freshness
//! rules ([`HeldEntries`]), and the known sizes of accounts. It is synchronous and does no I/O.

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
use super::held_entries::HeldEntries;
use super::key::{Finality, Key, LookupPlan};
use super::policy::cache_policy;
use super::sizes::Sizes;
use super::store::Insert;
use crate::config;
use crate::frontier::Frontier;
use crate::methods::{AccountForm, Commitment, Pubkey, Query, Slot, VotesQuery};
use crate::pool::PoolReply;
use crate::telemetry::{Metrics, StaleCause, UncacheableReason};

/// The held entries, and the rules for serving them.
pub(super) struct Lookup {
    pub(super) held: HeldEntries,
    pub(super) rules: Arc<FreshnessPolicy>,
    pub(super) carrier: Carrier,
    sizes: Sizes,
    frontier: Arc<Frontier>,
    metrics: Arc<Metrics>,
}

/// The result of a look-up.
pub(super) enum CacheLookup {
    Miss,
    Hit(Arc<Entry>),
    Stale(Arc<Entry>),
    Expired,
}

/// A held entry, and the plan's other key if the entry is under that one.
pub(super) type HeldEntry = (Arc<Entry>, Option<Key>);

/// The state of the cache when a fetch begins.
pub(super) struct FetchStart {
    /// The cache generation. An answer of an earlier generation is not kept.
    pub(super) generation: u64,
    /// The slot at which the answer's accounts were shown.
    pub(super) shown: Slot,
    /// The highest slot that is held or was shown.
    pub(super) held: Option<Slot>,
    /// The account's size in bytes, if a single account is fetched and its size is known.
    pub(super) space: Option<u64>,
    /// The number of the chain that is followed. 0 if none is.
    pub(super) chain: u64,
    /// The slot of the last block that is known to have written one of the accounts.
    pub(super) written: Option<Slot>,
}

/// One account of a fetched list.
pub(super) struct SingleEntry {
    pub(super) key: Key,
    pub(super) kept: EntryBody,
    pub(super) follow: Option<Arc<FollowStamp>>,
}

/// A fetched answer that may be kept.
pub(super) struct InsertRequest<'a> {
    pub(super) plan: &'a LookupPlan,
    /// The key, or the reason why the answer is not kept.
    pub(super) key: Result<Key, UncacheableReason>,
    pub(super) entry: &'a Arc<Entry>,
    /// The single accounts of a list.
    pub(super) singles: Vec<SingleEntry>,
    /// The sizes of accounts in bytes, as the answer states them.
    pub(super) spaces: Vec<(Pubkey, u64)>,
    /// The slot at which the accounts were shown, and which was required of the node.
    pub(super) floor: Slot,
    pub(super) generation: u64,
}

impl Lookup {
    /// Creates a look-up over an empty cache.
    pub(super) fn new(
        config: &config::CacheSettings,
        carrier: Carrier,
        rules: Arc<FreshnessPolicy>,
        frontier: Arc<Frontier>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            held: HeldEntries::new(config, Arc::clone(&rules), Arc::clone(&metrics)),
            carrier,
            rules,
            sizes: Sizes::default(),
            frontier,
            metrics,
        }
    }

    /// Returns the plan for `query` at the present frontier.
    pub(super) fn plan(&self, query: &Query) -> LookupPlan {
        LookupPlan::new(query, &self.frontier, &self.sizes)
    }

    /// Returns the entry for `plan`, if it reaches the slot that the caller wants. Counts each entry that is
    /// not fresh.
    pub(super) fn look_up(&self, plan: &LookupPlan, wanted: Option<Slot>) -> CacheLookup {
        let found = self.assess(plan, wanted, |cause| self.metrics.cache_stale.at(cause).inc());
        if !matches!(found, CacheLookup::Hit(_)) && self.carrier.would_carry(&self.held, plan, Instant::now())
        {
            self.carrier.count(&plan.upstream);
        }
        found
    }

    /// Returns the entry for `plan` if it is fresh. Counts nothing.
    pub(super) fn find_fresh(&self, plan: &LookupPlan) -> Option<HeldEntry> {
        let CacheLookup::Hit(held) = self.assess(plan, None, |_| ()) else { return None };
        let key = self.held.other_key(plan, &held);
        Some((held, key))
    }

    /// Looks `plan` up, and calls `not_fresh` for each entry that is not fresh.
    fn assess(
        &self,
        plan: &LookupPlan,
        wanted: Option<Slot>,
        mut not_fresh: impl FnMut(StaleCause),
    ) -> CacheLookup {
        let now = Instant::now();
        let mut found = CacheLookup::Miss;
        for held in self.held.candidates(plan).into_iter().flatten() {
            let place =
                |held: &Arc<Entry>| self.held.other_key(plan, held).unwrap_or_else(|| plan.key.clone());
            let held = self.carrier.carried(&self.held, &plan.key, held, now, place);
            // Another answer may have shown one of the accounts at a higher slot.
            let (lowest, floor) = self.held.floors_under(&plan.key, now);
            if !held.meta.reaches(wanted) || held.meta.slot < floor {
                not_fresh(StaleCause::Floor);
                continue;
            }
            match self.rules.assess(&held.meta, now) {
                Freshness::Fresh => {
                    self.held.raise_fallen_floors(plan, held.meta.slot, lowest);
                    return CacheLookup::Hit(held);
                }
                Freshness::Stale(cause) => {
                    not_fresh(cause);
                    self.held.raise_fallen_floors(plan, held.meta.slot, lowest);
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
        match self.carrier.find_across(&self.held, plan, wanted, now) {
            Some(carried) => CacheLookup::Hit(carried),
            None => found,
        }
    }

    /// Returns the assembled lists.
    pub(super) fn lists(&self) -> AssembledLists<'_> {
        AssembledLists { held: &self.held, carrier: &self.carrier, rules: &self.rules }
    }

    /// Returns the entry that may stand in for an answer that no node gives.
    pub(super) fn find_stand_in(
        &self,
        query: &Query,
        plan: &LookupPlan,
        tolerance: Tolerance,
    ) -> Option<Arc<Entry>> {
        let wanted = query.min_context_slot();
        let floor =
            if tolerance == Tolerance::LastResort { 0 } else { self.held.floor(&plan.key, Instant::now()) };
        let stands_in = |held: &Arc<Entry>| {
            held.meta.reaches(wanted) && held.meta.slot >= floor && self.rules.may_serve(&held.meta)
        };
        let held = self.held.candidates(plan).into_iter().flatten().find(stands_in);
        if let Some(held) = held {
            // The entry is shown now, and its floor may have fallen below it.
            let (lowest, _) = self.held.floors_under(&plan.key, Instant::now());
            self.held.raise_fallen_floors(plan, held.meta.slot, lowest);
            return Some(held);
        }
        self.lists().assemble(query, tolerance, wanted)
    }

    /// Lowers the floors of the accounts under `plan` to the entry of `meta`, which stands in although it is
    /// below them.
    pub(super) fn lower_floors_to(&self, plan: &LookupPlan, meta: &EntryMeta) {
        self.held.lower_floors(&plan.key, self.held.floor(&plan.key, Instant::now()), meta.slot);
    }

    /// Returns the entry from which the answer to `plan` can be derived, and the derivation.
    pub(super) fn find_source(
        &self,
        plan: &LookupPlan,
        tolerance: Tolerance,
    ) -> Option<(Arc<Entry>, Derivation)> {
        let now = Instant::now();
        match &plan.key {
            Key::Votes(query @ VotesQuery { vote_pubkey: Some(pubkey), .. }) => {
                let all = Key::Votes(VotesQuery { vote_pubkey: None, ..*query });
                Some((self.held.get_usable(&all, tolerance, None, now)?, Derivation::VoteAccount(*pubkey)))
            }
            Key::Block(slot, asked, finality) => {
                let kept = |shape| {
                    let held =
                        self.held.get_usable(&Key::Block(*slot, shape, *finality), tolerance, None, now);
                    held.filter(|entry| matches!(entry.kept, EntryBody::Verbatim(Payload::Result(_))))
                };
                let found = block::sources(*asked).find_map(|shape| Some((kept(shape)?, shape)));
                let (entry, shape) = found?;
                Some((entry, Derivation::Block(shape, *asked)))
            }
            _ => None,
        }
    }

    /// Keeps a derived answer. Returns false if the cache was purged since `generation`, or if a newer answer
    /// is held. In that case a node is asked, under the newer answer's floor.
    pub(super) fn keep_derived(&self, plan: &LookupPlan, entry: &Arc<Entry>, generation: u64) -> bool {
        let held = self.held.hold();
        held.number() == generation
            && !matches!(self.held.keep(plan.key.clone(), entry), Insert::KeptNewer(_))
    }

    /// Returns the state of the cache that a fetch for `plan` needs.
    pub(super) fn begin_fetch(&self, plan: &LookupPlan) -> FetchStart {
        let shown = self.held.floor(&plan.key, Instant::now());
        let held = self.held.candidates(plan).into_iter().flatten().map(|held| held.meta.slot);
        let held = held.chain(Some(shown).filter(|slot| *slot > 0)).max();
        let space = match &plan.upstream {
            Query::Account(account) => self.sizes.space(&account.pubkey),
            _ => None,
        };
        let followed = self.carrier.followed();
        followed.touch();
        let chain = followed.number();
        let written = self.carrier.last_write(&self.held, plan);
        FetchStart { generation: self.held.generation(), shown, held, space, chain, written }
    }

    /// Returns the held entry that is above `slot`, at which a node has answered, and that may still be
    /// served. The caller gets it instead of the node's answer. `floor` is the slot at which the accounts
    /// were shown.
    pub(super) fn find_newer(&self, plan: &LookupPlan, slot: Slot, floor: Slot) -> Option<HeldEntry> {
        let floored = match plan.class {
            Class::Account(c) | Class::Fee(c) | Class::Votes(c) => c != Commitment::Processed,
            _ => false,
        };
        if !floored {
            return None;
        }
        let held = self.held.candidates(plan).into_iter().flatten();
        let ahead = held.filter(|held| held.meta.slot > slot && self.rules.may_serve(&held.meta));
        let held = ahead.max_by_key(|held| held.meta.slot);
        let reached = held.as_ref().map_or(slot, |held| held.meta.slot);
        let held = held.map(|held| (Arc::clone(&held), self.held.other_key(plan, &held)));
        // If neither reaches the floor, the single accounts may.
        let list = if reached < floor {
            self.lists().assemble(&plan.upstream, Tolerance::InFault, Some(floor))
        } else {
            None
        };
        let held = list.map(|list| (list, None)).or(held)?;
        self.held.lower_floors(&plan.key, floor, held.0.meta.slot);
        self.held.raise_fallen_floors(
            plan,
            held.0.meta.slot,
            self.held.floors_under(&plan.key, Instant::now()).0,
        );
        Some(held)
    }

    /// Keeps a fetched answer, or returns the reason against it. Calls `on_insert` if the answer was inserted.
    /// Notes the sizes of accounts in any case.
    pub(super) fn keep_fetched(
        &self,
        answer: InsertRequest<'_>,
        on_insert: impl FnOnce(&Key),
    ) -> Result<Insert, UncacheableReason> {
        let InsertRequest { plan, key, entry, singles, spaces, floor, generation } = answer;
        for (pubkey, space) in spaces {
            self.sizes.note(&pubkey, space);
        }
        let key = key?;
        let slot = entry.meta.slot;
        let believed = |c| !plan.upstream.has_context() || self.frontier.believes(c, slot);
        // The generation check and the insert happen under one lock. Otherwise a purge between them would be
        // undone.
        let held = self.held.hold();
        if held.number() != generation {
            return Err(UncacheableReason::Purged);
        }
        if !plan.upstream.commitment().is_none_or(believed) {
            return Err(UncacheableReason::Unbelieved);
        }
        if !matches!(entry.kept, EntryBody::Verbatim(Payload::Error { .. })) {
            self.held.lower_floors(&plan.key, floor, slot);
        }
        // Raised before any caller gets the answer, and even if the answer is too large to keep. Lower slots
        // are hidden from now on.
        self.held.raise_floors(&plan.key, slot, Instant::now());
        let inserted = self.held.keep(key.clone(), entry);
        if matches!(inserted, Insert::Stored | Insert::ReplacedNewer) {
            on_insert(&key);
        }
        if !matches!(inserted, Insert::KeptNewer(_)) {
            for SingleEntry { key, kept, follow } in singles {
                let meta = entry.meta;
                self.held
                    .keep(key, &Arc::new(Entry { kept, meta, follow, coded: CompressedForms::default() }));
            }
        }
        Ok(inserted)
    }

    /// Notes that the answer to `plan` was too large. Returns true if the node was asked for more than
    /// `query` wants, so that the next plan asks for less.
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

    /// Updates the weight of `entry`, whose compressed forms have grown, under each key where `query` may
    /// have found it.
    pub(super) fn update_weight(&self, query: &Query, entry: &Arc<Entry>) {
        let LookupPlan { key, other, .. } = self.plan(query);
        // The block may have become final meanwhile.
        let before = match &key {
            Key::Block(slot, shape, Finality::Final) => Some(Key::Block(*slot, *shape, Finality::Confirmed)),
            _ => None,
        };
        for key in [Some(key), other, before].into_iter().flatten() {
            self.held.update_weight(key, entry);
        }
    }

    /// Returns true if an answer from the shared store may be used here. It must be fresh, reach all slots
    /// shown, and lie no further ahead than is believed. `floor` is the slot that the caller wants.
    pub(super) fn accepts_shared(&self, plan: &LookupPlan, reply: &PoolReply, floor: Option<Slot>) -> bool {
        let held = self.held.candidates(plan).into_iter().flatten().map(|held| held.meta.slot).max();
        let shown = self.held.floor(&plan.key, Instant::now());
        if held.max(floor).max(Some(shown)).is_some_and(|floor| reply.slot < floor) {
            return false;
        }
        let known = |c| self.frontier.slot(c) > 0 && self.frontier.believes(c, reply.slot);
        if !plan.upstream.commitment().is_none_or(known) {
            return false;
        }
        let (_, Ok((_, class))) = cache_policy(plan, reply, &self.frontier) else { return false };
        let meta =
            EntryMeta { slot: reply.slot, sent_at: reply.sent_at, class, derived: false, carried: false };
        self.rules.allows(&meta, Tolerance::Fresh, Instant::now())
    }
}
