//! Placing: how answers get into the cache, and out of it again.
//!
//! An answer replaces a stored one of a higher slot only once that one may not be served any more. What was asked for
//! before a purge is not stored after it.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::derive::block::BlockShape;
use super::entry::{Class, Entry, EntryBody, EntryMeta, Payload, TextParts};
use super::fetched::ParsedAnswer;
use super::forms::SizeClass;
use super::freshness::{Limit, ServeRule};
use super::key::{Finality, Key, LookupPlan, class_until_final, is_final};
use super::lookup::{Lookup, Stored};
use super::purge::Filter;
use super::store::Insert;
use crate::methods::{AccountForm, BlocksQuery, Commitment, EpochSchedule, PlainQuery, Query, Slot};
use crate::node::shape::{BlockList, LONGEST_SKIP, member, parent_slot};
use crate::node::{Contextual, NodeReply, code};
use crate::pool::PoolReply;
use crate::telemetry::UncacheableReason;

type Placement = Result<(Key, Class), UncacheableReason>;

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

impl Lookup {
    /// Returns the state of the cache that a fetch for `plan` needs when it begins.
    pub(super) fn begin_fetch(&self, plan: &LookupPlan) -> FetchStart {
        let account_floor = self.floor(&plan.key, Instant::now());
        let slots = self.candidates(plan).map(|stored| stored.entry.meta.slot);
        let newest_slot = slots.chain(Some(account_floor).filter(|slot| *slot > 0)).max();
        let followed = &self.carrier.followed;
        followed.touch();
        let chain = followed.number();
        let last_write = self.last_write(plan);
        FetchStart { generation: self.generation.number(), account_floor, newest_slot, chain, last_write }
    }

    /// Returns a stored entry that may still be served and whose slot is above `slot`, the slot of a node's
    /// answer. The caller gets this entry instead of the node's answer. `account_floor` is the highest slot at
    /// which one of the answer's accounts was shown before the node was asked.
    pub(super) fn find_newer(&self, plan: &LookupPlan, slot: Slot, account_floor: Slot) -> Option<Stored> {
        if !is_of_a_slot(plan.class) || is_at_processed(plan.class) {
            return None;
        }
        let now = Instant::now();
        let rule = ServeRule::within(Limit::InFault).at_least(slot.saturating_add(1));
        let may_serve = |stored: &Stored| self.freshness.serves(&rule, &stored.entry.meta, now).is_yes();
        let newest = self.candidates(plan).filter(may_serve).max_by_key(|stored| stored.entry.meta.slot);
        let newest_slot = newest.as_ref().map_or(slot, |stored| stored.entry.meta.slot);
        // If neither the node's answer nor the newest entry reaches the floor, a list assembled from single
        // accounts may reach it.
        let list = (newest_slot < account_floor)
            .then(|| self.assemble(&plan.upstream, rule.at_least(account_floor)))
            .flatten();
        let found = list.map(Stored::assembled).or(newest)?;
        let shown = found.entry.meta.slot;
        self.lower_floors(&plan.key, account_floor, shown);
        if shown > self.floors_under(&plan.key, now).0 {
            self.raise_fallen_floors(plan, shown);
        }
        Some(found)
    }

    /// Stores a fetched answer under `key`, or returns the reason why it is not stored. Notes the sizes of accounts in any
    /// case. `account_floor` is the highest slot at which one of the answer's accounts was shown before the node was
    /// asked, and `generation` the number of purges then. Except at processed, the node was asked for at least this slot.
    /// Calls `on_insert` if the answer was inserted.
    pub(super) fn insert_fetched(
        &self,
        plan: &LookupPlan,
        key: Result<Key, UncacheableReason>,
        answer: ParsedAnswer,
        (account_floor, generation): (Slot, u64),
        on_insert: impl FnOnce(&Key),
    ) -> Result<Insert, UncacheableReason> {
        let ParsedAnswer { entry, singles, spaces, .. } = answer;
        for (pubkey, space) in spaces {
            self.sizes.note(&pubkey, space);
        }
        let key = key?;
        let slot = entry.meta.slot;
        let believed = |c| !plan.upstream.has_context() || self.frontier.believes(c, slot);
        // The generation check and the insert happen under one lock. Otherwise a purge between them would be undone.
        let guard = self.generation.lock();
        if guard.number() != generation {
            return Err(UncacheableReason::Purged);
        }
        if !plan.upstream.commitment().is_none_or(believed) {
            return Err(UncacheableReason::Unbelieved);
        }
        if !matches!(entry.body, EntryBody::Verbatim(Payload::Error { .. })) {
            self.lower_floors(&plan.key, account_floor, slot);
        }
        // The floors rise before any caller gets the answer, and even if the answer is too large to store.
        // Lower slots are hidden from now on.
        self.raise_floors(&plan.key, slot, Instant::now());
        let inserted = self.insert(key.clone(), &entry);
        if matches!(inserted, Insert::Stored | Insert::ReplacedNewer) {
            on_insert(&key);
        }
        if !matches!(inserted, Insert::KeptNewer(_)) {
            for (key, single) in singles {
                self.insert(key, &Arc::new(single));
            }
        }
        Ok(inserted)
    }

    /// Stores a derived answer. `generation` is the number of purges when the derivation began. `None` if the cache was
    /// purged since.
    pub(super) fn insert_derived(
        &self,
        plan: &LookupPlan,
        entry: &Arc<Entry>,
        generation: u64,
    ) -> Option<Insert> {
        let guard = self.generation.lock();
        // What is final serves callers of all commitments.
        let key = match (&plan.key, &plan.alternate_key) {
            (Key::Plain(..), Some(key)) if entry.meta.class == Class::BlockFinal => key,
            (key, _) => key,
        };
        (guard.number() == generation).then(|| self.insert(key.clone(), entry))
    }

    /// Stores `entry`, unless the entry stored under `key` is newer and may still be served, or says of a block that its
    /// slot was skipped where `entry` only says that no node has it at this moment.
    pub(super) fn insert(&self, key: Key, entry: &Arc<Entry>) -> Insert {
        let stays = |stored: &EntryMeta| {
            let rule = if stored.slot > entry.meta.slot {
                ServeRule::within(Limit::InFault)
            } else if is_absence(entry.meta.class) && is_skip(stored.class) {
                ServeRule::within(Limit::Fresh)
            } else {
                return false;
            };
            self.freshness.serves(&rule, stored, Instant::now()).is_yes()
        };
        let inserted = self.store.insert(key, entry, stays);
        if matches!(inserted, Insert::ReplacedNewer) && !is_at_processed(entry.meta.class) {
            self.metrics.cache_floor_resets.at(()).inc();
        }
        inserted
    }

    /// Returns true if a stored final block proves that `slot` was skipped: the next block after the slot, whose parent
    /// is before the slot.
    pub(super) fn proves_skip(&self, slot: Slot) -> bool {
        let parent_of = |slot| {
            BlockShape::usual().find_map(|shape| {
                match &self.store.get(&Key::Block(slot, shape, Finality::Final))?.body {
                    EntryBody::Verbatim(Payload::Result(text)) => parent_slot(&text.whole()),
                    _ => None,
                }
            })
        };
        let mut later = slot.saturating_add(1)..=slot.saturating_add(LONGEST_SKIP);
        later.find_map(parent_of).is_some_and(|parent| parent < slot)
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
                // An account that is known to be small is not the reason, unless all of them are.
                let all = self.sizes.of_all(&asked.pubkeys) == SizeClass::Small;
                let blamed = asked.pubkeys.iter().filter(|key| all || self.sizes.of(key) != SizeClass::Small);
                blamed.for_each(|pubkey| self.sizes.note_large(pubkey));
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
            self.store.replace(key, entry, entry);
        }
    }

    /// Returns the payload of `reply`, a node's answer to the upstream call of the look-up `plan`. The second value is the
    /// key and class under which it is stored, or the reason why it is not. Accounts are stored under the key of the form
    /// that the answer has (`cache/forms.rs`). If the node says that a block is missing, the key and class depend on the
    /// newest known slots and the stored blocks.
    pub(super) fn cache_policy(&self, plan: &LookupPlan, reply: &PoolReply) -> (Payload, Placement) {
        let keep = |class| Ok((plan.key.clone(), class));
        let absent = |class| Ok((plan.alternate_key.clone().unwrap_or_else(|| plan.key.clone()), class));
        let is_told_absent = |code| plan.upstream.method().rules().absences.contains(&code);
        match &reply.body {
            NodeReply::Result(result) => {
                let placement = match (&plan.upstream, &plan.key) {
                    // A fee's null may become a number at any slot.
                    (Query::Fee(_), _)
                        if Contextual::split(result).is_none_or(|fee| fee.value.as_ref() == b"null") =>
                    {
                        Err(UncacheableReason::Null)
                    }
                    (Query::Block(_), _) if reply.is_short => absent(self.class_of_absence(&plan.upstream)),
                    (Query::Blocks(_) | Query::Page(_), _) => self.place_plain(plan, reply, result),
                    (_, Key::Plain(..)) if reply.is_short => keep(self.class_of_absence(&plan.upstream)),
                    (_, Key::Plain(..)) => self.place_plain(plan, reply, result),
                    _ => keep(plan.class),
                };
                (Payload::Result(TextParts::One(result.clone())), placement)
            }
            NodeReply::Error { code, body } => {
                let placement = match (&plan.upstream, *code) {
                    // An error that depends on an account or a block is stored for as long as the account or block
                    // would be.
                    (Query::Account(_) | Query::Accounts(_), code::INVALID_REQUEST)
                    | (Query::Balance(_) | Query::Supply(_), code::INVALID_PARAMS)
                    | (Query::Block(_), code::UNSUPPORTED_TRANSACTION_VERSION) => keep(plan.class),
                    (Query::Transaction(_), code::UNSUPPORTED_TRANSACTION_VERSION) => {
                        self.place_plain(plan, reply, body)
                    }
                    (Query::Block(q), code::SLOT_SKIPPED | code::LONG_TERM_STORAGE_SLOT_SKIPPED)
                        if matches!(plan.alternate_key, Some(Key::NoBlock(_))) =>
                    {
                        // All nodes may have lost the same block, and long-term storage is filled with a delay.
                        absent(if self.proves_skip(q.slot) {
                            Class::Skipped
                        } else {
                            Class::SkippedUnconfirmed
                        })
                    }
                    // At or below the frontier the block exists or the slot was skipped, so a node's "not yet" is
                    // out of date.
                    (Query::Block(q), code::BLOCK_NOT_AVAILABLE)
                        if matches!(plan.alternate_key, Some(Key::NotYet(..)))
                            && q.slot > self.frontier.slot(q.commitment) =>
                    {
                        absent(Class::NotYet(q.slot, q.commitment))
                    }
                    (Query::Block(_), code) if is_told_absent(code) => {
                        absent(self.class_of_absence(&plan.upstream))
                    }
                    (query, code) if is_told_absent(code) => keep(self.class_of_absence(query)),
                    _ => Err(UncacheableReason::Transient),
                };
                (Payload::Error { code: *code, body: body.clone() }, placement)
            }
        }
    }

    /// Returns the key and class of `result`, which `reply` has brought for the call of `plan`, and which is kept as it is.
    fn place_plain(&self, plan: &LookupPlan, reply: &PoolReply, result: &Bytes) -> Placement {
        let (key, query, slot) = (plan.key.clone(), &plan.upstream, reply.slot);
        if let Key::Plain(.., Some(epoch)) = &key {
            // At the border of two epochs, a node may still answer of the last one.
            let is_current = self.epoch_schedule().is_some_and(|schedule| schedule.epoch(slot) == *epoch)
                && member(result, "epoch").is_none_or(|shown: u64| shown == *epoch);
            let class = if is_current { Class::BlockFinal } else { class_until_final(query, Some(result)) };
            return Ok((key, class));
        }
        let finalized = self.frontier.slot(Commitment::Finalized);
        // What could not be final when the node was asked may have been read from a fork.
        let may_be_final = plan.class == Class::BlockFinal;
        if may_be_final && is_final(query, finalized, Some((reply, result))) == Some(true) {
            return match query {
                Query::Blocks(blocks) if !self.is_proven_whole(blocks, reply.blocks) => {
                    Ok((key, self.class_of_absence(query)))
                }
                _ => Ok((plan.alternate_key.clone().unwrap_or(key), Class::BlockFinal)),
            };
        }
        match class_until_final(query, Some(result)) {
            Class::Uncached => Err(UncacheableReason::Transient),
            // The key of the plan is that of a final answer, and the node's is none.
            _ if may_be_final && plan.alternate_key.is_none() => Err(UncacheableReason::Transient),
            class => Ok((key, class)),
        }
    }

    /// Returns the class of what no node has, or may have told completely, at this moment.
    fn class_of_absence(&self, query: &Query) -> Class {
        let commitment = query.commitment().unwrap_or_default();
        Class::Absent(self.frontier.slot(commitment), commitment)
    }

    /// Returns true if a list of final blocks is proven to leave out none: no more slots in a row are missing than may be
    /// without a block, and the list ends with the last slot that was asked for, or the slots after its end are known to be
    /// without one. A node leaves out what it no longer holds, and what it does not know yet.
    fn is_proven_whole(&self, query: &BlocksQuery, list: Option<BlockList>) -> bool {
        let Some((list, end)) = list.and_then(|list| Some((list, list.end?))) else { return false };
        let mut after = end.saturating_add(1)..=query.last.unwrap_or(end);
        list.is_whole(query.last) && after.all(|slot| self.proves_skip(slot))
    }

    /// Returns the cluster's epochs, if somebody has asked for them.
    pub(super) fn epoch_schedule(&self) -> Option<EpochSchedule> {
        let PlainQuery { method, params, .. } = PlainQuery::epoch_schedule();
        match &self.store.get(&Key::Plain(method, params, None, None))?.body {
            EntryBody::Verbatim(Payload::Result(text)) => EpochSchedule::parse(&text.whole()),
            _ => None,
        }
    }

    /// Returns true if an answer from the shared store may be used here: it must be fresh, at least at `min_slot`, not
    /// behind a stored or shown answer, and not implausibly far above the newest known slot.
    pub(super) fn accepts_shared(&self, plan: &LookupPlan, reply: &PoolReply, min_slot: Slot) -> bool {
        let now = Instant::now();
        let known = |c| self.frontier.slot(c) > 0 && self.frontier.believes(c, reply.slot);
        let (_, Ok((_, class))) = self.cache_policy(plan, reply) else { return false };
        let stored = self.candidates(plan).map(|stored| stored.entry.meta.slot).max().unwrap_or(0);
        let meta = EntryMeta::of(reply, class);
        let rule = ServeRule::within(Limit::Fresh).at_least(min_slot).at_least(stored);
        plan.upstream.commitment().is_none_or(known)
            && self.freshness.serves(&rule.above(self.floor(&plan.key, now)), &meta, now).is_yes()
    }

    /// Notes that the accounts under `key` are shown at `slot`, and are not served below that slot from now on.
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

    /// Raises the floors of the accounts in `plan` to `slot`, at which a stored entry for `plan` is served. `slot` is above
    /// one of these floors, which has fallen.
    pub(super) fn raise_fallen_floors(&self, plan: &LookupPlan, slot: Slot) {
        // An entry from before a purge raises no floor.
        let _held = self.generation.lock();
        if self.candidates(plan).any(|stored| stored.entry.meta.slot == slot) {
            self.raise_floors(&plan.key, slot, Instant::now());
        }
    }

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

    /// Removes the blocks above `slot`, the errors that such blocks are missing, and the other answers at finalized and the
    /// scans above `slot`. Transactions and lists of blocks do not tell their slots here, so all of them are removed. Returns the
    /// number of removed entries. Answers of fetches that are under way will not be stored.
    pub(super) fn purge_above(&self, slot: Slot) -> u64 {
        use Commitment::Finalized;
        self.generation.advance();
        self.store.purge(|key, meta| match (key.block_slot(), meta.class) {
            (Some(block), _) => block > slot,
            (None, Class::BlockFinal | Class::BlockConfirmed) => true,
            (
                None,
                Class::Account(Finalized) | Class::Fee(Finalized) | Class::Votes(Finalized) | Class::Scan,
            ) => meta.slot > slot,
            _ => false,
        })
    }
}

fn is_skip(class: Class) -> bool {
    matches!(class, Class::Skipped | Class::SkippedUnconfirmed)
}

fn is_absence(class: Class) -> bool {
    matches!(class, Class::Absent(..))
}

pub(super) fn is_of_a_slot(class: Class) -> bool {
    matches!(class, Class::Account(_) | Class::Fee(_) | Class::Votes(_))
}

/// Returns true if answers of the class are at processed, where a fork may be dropped with its slots. A lower slot is
/// normal there.
pub(super) fn is_at_processed(class: Class) -> bool {
    use Commitment::Processed;
    matches!(class, Class::Account(Processed) | Class::Fee(Processed) | Class::Votes(Processed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::frontier::Frontier;
    use crate::methods::{AccountEncoding, AccountsQuery, DataSlice, Pubkey};
    use crate::telemetry::Metrics;

    fn no_entries() -> Lookup {
        let any = ([127, 0, 0, 1], 0).into();
        let config = Config::dev(any, any, Vec::new());
        Lookup::new(&config, Arc::default(), Arc::new(Frontier::new(1)), Metrics::new())
    }

    fn entry(slot: Slot, class: Class, sent_at: Instant) -> Arc<Entry> {
        let meta = EntryMeta { slot, sent_at, class, derived: false, carried: false, node: None };
        let body =
            EntryBody::Verbatim(Payload::Error { code: -32602, body: bytes::Bytes::from_static(b"{}") });
        Arc::new(Entry::new(body, meta, None))
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

    #[tokio::test(start_paused = true)]
    async fn what_nobody_has_replaces_no_skipped_slot() {
        let entries = no_entries();
        for (slot, class) in [(7, Class::Skipped), (8, Class::SkippedUnconfirmed)] {
            let absent = Class::Absent(0, Commitment::Confirmed);
            entries.insert(Key::NoBlock(slot), &entry(5, class, Instant::now()));
            // It was placed before the other answer came.
            let kept = entries.insert(Key::NoBlock(slot), &entry(6, absent, Instant::now()));
            assert!(matches!(kept, Insert::KeptNewer(stored) if stored.meta.class == class));
            tokio::time::advance(std::time::Duration::from_hours(25)).await;
            let replaced = entries.insert(Key::NoBlock(slot), &entry(6, absent, Instant::now()));
            assert!(matches!(replaced, Insert::Stored), "{class:?} is out of date");
        }
    }

    #[tokio::test]
    async fn a_fall_takes_what_is_kept_of_dropped_slots() {
        let entries = no_entries();
        let key = |n: u8| Key::Balance(Pubkey([n; 32]), Commitment::Finalized);
        let classes = [Class::Account(Commitment::Finalized), Class::Scan];
        for (n, class) in (0..).zip(classes) {
            for slot in [5, 6] {
                let n = 2 * n + u8::from(slot == 6);
                entries.insert(key(n), &entry(slot, class, Instant::now()));
            }
        }
        assert_eq!(entries.purge_above(5), 2);
        assert_eq!([0, 1, 2, 3].map(|n| entries.store.get(&key(n)).is_some()), [true, false, true, false]);
    }

    #[tokio::test]
    async fn a_list_that_is_too_large_is_not_blamed_on_its_small_accounts() {
        let entries = no_entries();
        let form = AccountForm {
            encoding: AccountEncoding::JsonParsed,
            slice: Some(DataSlice { offset: 0, length: 1 }),
        };
        let list = |pubkeys: [Pubkey; 2]| {
            let (commitment, min_context_slot) = (Commitment::Confirmed, None);
            Query::Accounts(AccountsQuery { pubkeys: pubkeys.into(), form, commitment, min_context_slot })
        };
        // Each account has a cell of its own in the table of sizes.
        let [one, two, unknown] = [1, 2, 3].map(|n| {
            let mut bytes = [0; 32];
            bytes[31] = n;
            Pubkey(bytes)
        });
        let sizes = || [one, two, unknown].map(|key| entries.sizes.of(&key));
        entries.sizes.note(&one, 165);
        entries.sizes.note(&two, 165);
        for (query, expected) in [
            (list([one, unknown]), [SizeClass::Small, SizeClass::Small, SizeClass::Large]),
            (list([one, two]), [SizeClass::Large; 3]),
        ] {
            assert!(entries.note_too_large(&query, &entries.plan(&query)));
            assert_eq!(sizes(), expected);
            assert_eq!(entries.plan(&query).upstream, query, "the next fetch is in the caller's form");
        }
    }

    #[tokio::test]
    async fn purge_ends_a_generation_and_empties_usage() {
        let entries = no_entries();
        assert_eq!(entries.store.usage(), (0, 0));
        for slot in 1..=3 {
            entries.insert(Key::NoBlock(slot), &entry(5, Class::Skipped, Instant::now()));
        }
        let (bytes, count) = entries.store.usage();
        assert!(bytes > 3 && count == 3, "{bytes} bytes, {count} entries");
        let first = entries.generation.number();
        assert_eq!(entries.purge(&[Filter { slot: Some(2), ..Filter::default() }]), 1);
        let second = entries.generation.number();
        assert_eq!(entries.purge(&[Filter::default()]), 2);
        assert!(first < second && second < entries.generation.number());
        assert_eq!(entries.store.usage(), (0, 0));
    }
}
