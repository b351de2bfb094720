//! Carrying: a stored account is served at a later slot than the one at which it was read, because no block
//! has written it since.
//!
//! The followed chain proves this. The chain is the run of blocks that the gateway has read one by one, without a
//! gap. A carried entry is a copy with the later slot in its context, and replaces the original entry. Its age
//! counts from the last poll in which a node named the newest slot of the chain as its own newest slot. The limits
//! of age and lag apply to the entry as to a node's answer. A fresh entry is replaced at most once for each slot.
//!
//! An account that no block writes is not carried for ever. Once it was read longer ago than `follow.max_carry`, it
//! ages and is fetched again like any other, and the new answer is compared with the carried one (`cache/verify.rs`).
//! This bounds the life of a node's wrong answer. Mode `shadow` is mode `on` with a `max_carry` of zero: each fetch
//! that `on` would spare takes place, and is counted and compared.
//!
//! An account that was read at confirmed may also serve callers at finalized, and the other way round. The
//! chain must prove that the account is the same at the later slot. At processed nothing is carried, because
//! a block there may be on a fork that is dropped.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::basis::Tolerance;
use super::class::Class;
use super::derive::list;
use super::entry::{CompressedForms, Entry, EntryBody, EntryMeta, Payload, TextParts};
use super::follow_stamp::FollowStamp;
use super::forms;
use super::freshness::{Freshness, FreshnessPolicy};
use super::generation::GenerationGuard;
use super::key::{Key, LookupPlan};
use super::stored_entries::StoredEntries;
use crate::config::{FollowMode, FollowSettings};
use crate::follow::{Carry, Chain, FollowedChain, Tip};
use crate::methods::{Commitment, Query, Slot};
use crate::telemetry::Metrics;

/// The longest wait for the followed chain to reach a slot.
pub(super) const TIP_WAIT: Duration = Duration::from_millis(200);
/// The longest distance, in slots, from the newest block of the followed chain to a slot for which a caller waits.
/// If the slot is further away, the caller does not wait.
const NEAR_SLOTS: u64 = 2;

/// Carries stored entries along the followed chain, if the settings allow it: serves them at later slots,
/// because no block has written their accounts.
pub(super) struct Carrier {
    followed: Arc<FollowedChain>,
    mode: FollowMode,
    /// The time after which a carried account is fetched again. Zero in shadow mode.
    max_carry: Duration,
    freshness: Arc<FreshnessPolicy>,
    metrics: Arc<Metrics>,
}

impl Carrier {
    pub(super) fn new(
        followed: Arc<FollowedChain>,
        settings: &FollowSettings,
        freshness: Arc<FreshnessPolicy>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let mode = settings.mode;
        let max_carry = if mode == FollowMode::Shadow { Duration::ZERO } else { settings.max_carry };
        Self { followed, mode, max_carry, freshness, metrics }
    }

    /// Returns the followed chain.
    pub(super) fn followed(&self) -> &Arc<FollowedChain> {
        &self.followed
    }

    /// Returns true if carried answers are served. No carried answer is served in shadow mode, or once one has proved
    /// wrong.
    fn is_serving(&self) -> bool {
        self.mode == FollowMode::On && !self.followed.is_contradicted()
    }

    /// Returns a copy of `stored` at the newest slot up to which the followed chain proves the accounts unchanged.
    /// The copy replaces `stored` in the cache. Returns `stored` itself if nothing is proved. `key_of` returns the
    /// key under which `stored` is found: `key`, or the key of another form of the same accounts.
    pub(super) fn carry_to_tip(
        &self,
        entries: &StoredEntries,
        key: &Key,
        stored: Arc<Entry>,
        now: Instant,
        key_of: impl FnOnce(&Arc<Entry>) -> Key,
    ) -> Arc<Entry> {
        if stored.stamp.is_none() || !self.is_serving() {
            return stored;
        }
        let Some((_, commitment)) = key.accounts() else { return stored };
        let carried = self.carry_target(entries, key, &stored, commitment, now);
        let Some(carried) = carried.and_then(|tip| show_at(&stored, tip, commitment)) else { return stored };
        let carried = Arc::new(carried);
        self.followed.touch();
        // A purge or a new answer that came meanwhile stays in effect.
        entries.replace(key_of(&stored), &stored, &carried);
        carried
    }

    /// Makes an entry for `key` from the entry for the same accounts at the other commitment, confirmed or
    /// finalized. Stores the new entry and returns it. The guard keeps a purge from running in between. Without
    /// the guard, an entry that was read before a purge could be stored after it.
    pub(super) fn carry_across(
        &self,
        entries: &StoredEntries,
        key: &Key,
        now: Instant,
        _: &GenerationGuard<'_>,
    ) -> Option<Arc<Entry>> {
        let (_, commitment) = key.accounts().filter(|_| self.is_serving())?;
        let source_key = key.at(other_commitment(commitment)?)?;
        let source = entries.get(&source_key)?;
        let tip = self.carry_target(entries, &source_key, &source, commitment, now)?;
        let carried = Arc::new(show_at(&source, tip, commitment)?);
        entries.insert(key.clone(), &carried);
        Some(carried)
    }

    /// Returns a fresh entry for the look-up `plan`, made from a stored entry for the same accounts at another
    /// commitment. The entry's slot is at least `min_slot` and at least the floor of each account.
    pub(super) fn find_across(
        &self,
        entries: &StoredEntries,
        plan: &LookupPlan,
        min_slot: Option<Slot>,
        now: Instant,
    ) -> Option<Arc<Entry>> {
        if !self.is_serving() {
            return None;
        }
        let carried = {
            let guard = entries.lock_generation();
            let mut keys = [Some(&plan.key), plan.alternate_key.as_ref()].into_iter().flatten();
            keys.find_map(|key| self.carry_across(entries, key, now, &guard))?
        };
        let (lowest, floor) = entries.floors_under(&plan.key, now);
        let meta = &carried.meta;
        let serves = meta.reaches(min_slot)
            && meta.slot >= floor
            && self.freshness.allows(meta, Tolerance::Fresh, now);
        serves.then(|| {
            entries.raise_fallen_floors(plan, carried.meta.slot, lowest);
            carried
        })
    }

    /// Counts a carried answer to `query`.
    pub(super) fn count_carried(&self, query: &Query) {
        self.metrics.follow_carried.at((Some(query.method()), query.commitment())).inc();
    }

    /// Returns the stored answer to the look-up `plan` that a node's new answer must equal: no block has written its
    /// accounts, and it was fetched again only because it was read longer ago than `follow.max_carry`. `asked_at` is
    /// the moment at which the node was asked. In shadow mode, counts the fetch as one that mode `on` would spare.
    pub(super) fn outlived(
        &self,
        entries: &StoredEntries,
        plan: &LookupPlan,
        asked_at: Instant,
    ) -> Option<Arc<Entry>> {
        let stored = entries.candidates(plan).into_iter().flatten().next()?;
        let stamp = stored.stamp.as_deref().filter(|stamp| self.is_too_old(stamp, asked_at))?;
        let current = self.followed.current();
        let chain = current.as_deref().filter(|chain| chain.number() == stamp.chain)?;
        let is_outlived = stamp.buckets.iter().all(|bucket| chain.last_write(*bucket) <= stored.meta.slot)
            && self.freshness.assess(&stored.meta, asked_at) != Freshness::Fresh
            && is_of_known_owner(entries, &plan.key, stamp, chain);
        if is_outlived && self.mode == FollowMode::Shadow {
            self.count_carried(&plan.upstream);
        }
        is_outlived.then_some(stored)
    }

    /// Returns true if an answer was read too long ago to be carried at `now`.
    fn is_too_old(&self, stamp: &FollowStamp, now: Instant) -> bool {
        now.saturating_duration_since(stamp.read_at) > self.max_carry
    }

    /// Returns true if a block above the slot of `stored` may have written one of its accounts, so that `stored`
    /// is out of date. False at other commitments than confirmed, and if no carried answers are served.
    pub(super) fn is_overwritten(&self, stored: &Entry) -> bool {
        let Some(stamp) = stored.stamp.as_deref().filter(|_| self.is_serving()) else { return false };
        stored.meta.class == Class::Account(Commitment::Confirmed)
            && self.followed.current().as_deref().is_some_and(|chain| {
                chain.number() == stamp.chain
                    && stamp.buckets.iter().any(|bucket| chain.last_write(*bucket) > stored.meta.slot)
            })
    }

    /// Returns the slot of the last followed block that may have written one of the accounts in the look-up
    /// `plan`. `None` at other commitments than confirmed, or if no stored answer was read while this chain was
    /// followed.
    pub(super) fn last_write(&self, entries: &StoredEntries, plan: &LookupPlan) -> Option<Slot> {
        let (_, commitment) = plan.key.accounts()?;
        let current = self.followed.current();
        let chain = current.as_deref().filter(|_| commitment == Commitment::Confirmed)?;
        let stamps = entries.candidates(plan).into_iter().flatten().filter_map(|stored| stored.stamp.clone());
        let stamps = stamps.filter(|stamp| stamp.chain == chain.number());
        stamps.filter_map(|stamp| stamp.buckets.iter().map(|bucket| chain.last_write(*bucket)).max()).max()
    }

    /// Waits for the followed chain to reach the floor of the accounts in the look-up `plan`, the highest slot at
    /// which one was shown. Does not wait if no stored answer can be carried there. Returns true if the chain has
    /// reached that slot.
    pub(super) async fn await_floor(&self, entries: &StoredEntries, plan: &LookupPlan) -> bool {
        let floor = entries.floor(&plan.key, Instant::now());
        let Some(chain) = self.chain_that_carries(entries, plan, floor) else { return false };
        matches!(timeout(TIP_WAIT, self.followed.reached(chain, floor)).await, Ok(Some(_)))
    }

    /// Returns the identifying number of the followed chain, if a stored answer to the look-up `plan` can be
    /// carried to the chain's newest block. `None` if no answer can, or if that block is too far below `slot` to
    /// wait for.
    pub(super) fn chain_that_carries(
        &self,
        entries: &StoredEntries,
        plan: &LookupPlan,
        slot: Slot,
    ) -> Option<u64> {
        let (_, commitment) = plan.key.accounts().filter(|_| self.is_serving())?;
        if commitment != Commitment::Confirmed {
            return None;
        }
        let current = self.followed.current();
        let chain = current.as_deref().filter(|chain| is_near(chain, slot))?;
        let now = Instant::now();
        let is_unwritten = |stored: Arc<Entry>| {
            stored.stamp.as_deref().filter(|stamp| !self.is_too_old(stamp, now)).is_some_and(|stamp| {
                stamp.chain == chain.number() && unchanged_until(chain, stamp, commitment).is_some()
            })
        };
        let mut candidates = entries.candidates(plan).into_iter().flatten();
        candidates.any(is_unwritten).then(|| chain.number())
    }

    /// Returns the slot at which `stored` may be served to callers at `commitment` instead of its own slot.
    /// `None` if the followed chain proves nothing for a later slot or another commitment.
    fn carry_target(
        &self,
        entries: &StoredEntries,
        key: &Key,
        stored: &Entry,
        commitment: Commitment,
        now: Instant,
    ) -> Option<Tip> {
        let stamp = stored.stamp.as_deref().filter(|stamp| !self.is_too_old(stamp, now))?;
        let current = self.followed.current();
        let chain = current.as_deref().filter(|chain| chain.number() == stamp.chain)?;
        let newest = match commitment {
            Commitment::Processed => return None,
            Commitment::Confirmed => chain.tip().slot,
            Commitment::Finalized => chain.target()?,
        };
        let is_same_commitment = stored.meta.class == Class::Account(commitment);
        // At the same slot, carrying only lowers the age of the entry, which matters once the entry is no longer
        // fresh.
        let is_fresh = || self.freshness.assess(&stored.meta, now) == Freshness::Fresh;
        if is_same_commitment && (newest < stored.meta.slot || (newest == stored.meta.slot && is_fresh())) {
            return None;
        }
        let tip = unchanged_until(chain, stamp, commitment)?;
        let gains =
            !is_same_commitment || (tip.slot, tip.polled_at) > (stored.meta.slot, stored.meta.sent_at);
        (gains && is_of_known_owner(entries, key, stamp, chain)).then_some(tip)
    }
}

/// Returns true if the newest block of `chain` is at most [`NEAR_SLOTS`] below `slot`, so that waiting is
/// worth it.
fn is_near(chain: &Chain, slot: Slot) -> bool {
    slot.saturating_sub(chain.tip().slot) <= NEAR_SLOTS
}

/// Returns true if `key` is not a token balance, or if the classic token program is known to own the account.
/// Balances of other programs may change without a block that writes the account.
fn is_of_known_owner(entries: &StoredEntries, key: &Key, stamp: &FollowStamp, chain: &Chain) -> bool {
    let Key::Balance(account, _) = key else { return true };
    let is_unwritten = |stamp: &FollowStamp| {
        stamp.chain == chain.number() && unchanged_until(chain, stamp, Commitment::Confirmed).is_some()
    };
    let shows_owner = |key: Key| {
        let stored = entries.get(&key).and_then(|stored| stored.stamp.clone());
        stored.is_some_and(|stored| stored.is_token && is_unwritten(&stored))
    };
    stamp.is_token
            // No block has written the account between the two answers.
            || is_unwritten(stamp)
                && [Commitment::Confirmed, Commitment::Finalized].into_iter().any(|commitment| {
                    forms::owner_forms().any(|form| shows_owner(Key::Account(*account, form, commitment)))
                })
}

/// Returns the newest slot, for callers at `commitment`, up to which `chain` proves that the accounts of
/// `stamp` are unchanged. `None` if `chain` proves nothing.
fn unchanged_until(chain: &Chain, stamp: &FollowStamp, commitment: Commitment) -> Option<Tip> {
    let carry = match commitment {
        Commitment::Processed => return None,
        Commitment::Confirmed => Carry::ToTip,
        Commitment::Finalized => Carry::ToTarget { may_be_newer: stamp.may_be_newer },
    };
    if chain.tip().slot < stamp.newest_data {
        return None;
    }
    let slots = stamp.buckets.iter().map(|bucket| chain.unchanged_until(*bucket, stamp.read, carry));
    // The tip may move between the look-ups of two accounts, so the lowest slot counts.
    let slots = slots.collect::<Option<Vec<_>>>()?;
    slots.into_iter().min_by_key(|tip| (tip.slot, tip.polled_at))
}

/// Returns the commitment whose answers also serve callers at `commitment`.
fn other_commitment(commitment: Commitment) -> Option<Commitment> {
    match commitment {
        Commitment::Processed => None,
        Commitment::Confirmed => Some(Commitment::Finalized),
        Commitment::Finalized => Some(Commitment::Confirmed),
    }
}

/// Returns a copy of `stored` for callers at `commitment`, with the slot of `tip` in its context. `None` if
/// the text of `stored` is not in the format that nodes write.
fn show_at(stored: &Entry, tip: Tip, commitment: Commitment) -> Option<Entry> {
    let body = match &stored.body {
        EntryBody::Account { result, context: (from, to), value, asked } => {
            let context = list::context_at(&result[*from as usize..*to as usize], tip.slot)?;
            let (result, context, value) = list::alone(&context, value)?;
            EntryBody::Account { result, context, value, asked: *asked }
        }
        EntryBody::Accounts { context, values, asked } => EntryBody::Accounts {
            context: list::context_at(context, tip.slot)?,
            values: Arc::clone(values),
            asked: *asked,
        },
        EntryBody::Verbatim(Payload::Result(TextParts::One(result))) => {
            EntryBody::Verbatim(Payload::Result(TextParts::One(list::result_at(result, tip.slot)?)))
        }
        EntryBody::Verbatim(_) => return None,
    };
    let class = Class::Account(commitment);
    let meta = EntryMeta { slot: tip.slot, sent_at: tip.polled_at, class, carried: true, ..stored.meta };
    let stamp = stored.stamp.as_ref().map(|stamp| match body {
        // A balance is carried only if the classic token program owns the account.
        EntryBody::Verbatim(_) if !stamp.is_token => Arc::new(stamp.of_token()),
        _ => Arc::clone(stamp),
    });
    Some(Entry { body, meta, stamp, compressed: CompressedForms::default() })
}
