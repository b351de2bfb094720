//! Carrying: a stored account is served at a later slot than the one at which it was read, because no block
//! has written it since.
//!
//! The followed chain proves this. The chain is the run of blocks that the gateway has read one by one, without a
//! gap. A carried entry is a copy with the later slot in its context, and replaces the original entry: to raise the slot
//! in place would need a lock, and a second rule wherever a slot or an age is compared. Its age
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

use bytes::Bytes;
use tokio::time::{Instant, timeout};

use super::derive::list;
use super::entry::{Class, Entry, EntryBody, EntryMeta, Payload, TextParts};
use super::flight::GenerationGuard;
use super::follow_stamp::FollowStamp;
use super::forms;
use super::freshness::{Limit, ServeRule, Verdict};
use super::key::{Key, LookupPlan};
use super::lookup::{Lookup, Stored};
use crate::config::{FollowMode, FollowSettings};
use crate::follow::{Carry, Chain, ChainTip, FollowedChain};
use crate::methods::{BlocksQuery, Commitment, Query, Slot};

/// The longest wait for the followed chain to reach a slot.
pub(super) const TIP_WAIT: Duration = Duration::from_millis(200);
/// The longest distance, in slots, from the newest block of the followed chain to a slot for which a caller waits.
/// If the slot is further away, the caller does not wait.
const NEAR_SLOTS: u64 = 2;

/// The followed chain, and the settings for carrying along it.
pub(super) struct Carrier {
    pub(super) followed: Arc<FollowedChain>,
    mode: FollowMode,
    /// The time after which a carried account is fetched again. Zero in shadow mode.
    max_carry: Duration,
}

impl Carrier {
    pub(super) fn new(followed: Arc<FollowedChain>, settings: &FollowSettings) -> Self {
        let mode = settings.mode;
        let max_carry = if mode == FollowMode::Shadow { Duration::ZERO } else { settings.max_carry };
        Self { followed, mode, max_carry }
    }

    pub(super) fn is_shadow(&self) -> bool {
        self.mode == FollowMode::Shadow
    }

    /// Returns true if carried answers are served. No carried answer is served in shadow mode, or once one has proved
    /// wrong.
    pub(super) fn is_serving(&self) -> bool {
        self.mode == FollowMode::On && !self.followed.is_contradicted()
    }

    /// Returns true if an answer was read too long ago to be carried at `now`.
    fn is_too_old(&self, stamp: &FollowStamp, now: Instant) -> bool {
        now.saturating_duration_since(stamp.read_at) > self.max_carry
    }
}

impl Lookup {
    /// Returns a copy of `stored` at the newest slot up to which the followed chain proves the accounts unchanged.
    /// The copy replaces `stored` in the cache, under `key`. Returns `stored` itself if nothing is proved.
    pub(super) fn carry_to_tip(&self, key: &Key, stored: Arc<Entry>, now: Instant) -> Arc<Entry> {
        if stored.stamp.is_none() || !self.carrier.is_serving() {
            return stored;
        }
        let Some((_, commitment)) = key.accounts() else { return stored };
        let carried = self.carry_target(key, &stored, commitment, now);
        let Some(carried) = carried.and_then(|tip| show_at(&stored, tip, commitment)) else { return stored };
        let carried = Arc::new(carried);
        self.carrier.followed.touch();
        // A purge or a new answer that came meanwhile stays in effect.
        self.store.replace(key.clone(), &stored, &carried);
        carried
    }

    /// Makes an entry for `key` from the entry for the same accounts at the other commitment, confirmed or
    /// finalized. Stores the new entry and returns it. The guard keeps a purge from running in between. Without
    /// the guard, an entry that was read before a purge could be stored after it.
    pub(super) fn carry_across(
        &self,
        key: &Key,
        now: Instant,
        _: &GenerationGuard<'_>,
    ) -> Option<Arc<Entry>> {
        let (_, commitment) = key.accounts().filter(|_| self.carrier.is_serving())?;
        let source_key = key.at(other_commitment(commitment)?)?;
        let source = self.store.get(&source_key)?;
        let tip = self.carry_target(&source_key, &source, commitment, now)?;
        let carried = Arc::new(show_at(&source, tip, commitment)?);
        self.insert(key.clone(), &carried);
        Some(carried)
    }

    pub(super) fn count_carried(&self, query: &Query) {
        self.metrics.follow_carried.at((query.method(), query.commitment())).inc();
    }

    /// Returns the stored answer to the look-up `plan` that a node's new answer must equal: no block has written its
    /// accounts, and it was fetched again only because it was read longer ago than `follow.max_carry`. `asked_at` is
    /// the moment at which the node was asked.
    pub(super) fn outlived(&self, plan: &LookupPlan, asked_at: Instant) -> Option<Arc<Entry>> {
        let stored = self.candidates(plan).next()?.entry;
        let stamp = stored.stamp.as_deref().filter(|stamp| self.carrier.is_too_old(stamp, asked_at))?;
        let current = self.carrier.followed.current();
        let chain = current.as_deref().filter(|chain| chain.number() == stamp.chain)?;
        let is_outlived = stamp.buckets.iter().all(|bucket| chain.last_write(*bucket) <= stored.meta.slot)
            && !self.is_fresh(&stored, asked_at)
            && self.is_of_known_owner(&plan.key, stamp, chain);
        is_outlived.then_some(stored)
    }

    /// Returns the answer to the look-up `plan` if it is a list of blocks that the followed chain has, and that is fresh.
    pub(super) fn list_followed(&self, plan: &LookupPlan) -> Option<Entry> {
        let Query::Blocks(BlocksQuery { first, last, limit, call }) = &plan.upstream else { return None };
        let commitment = call.commitment.unwrap_or_default();
        let current = self.carrier.followed.current();
        let chain = current.as_deref().filter(|_| self.carrier.is_serving())?;
        let tip = chain.tip();
        let newest = if commitment == Commitment::Confirmed { tip.slot } else { chain.target()? };
        if plan.class == Class::BlockFinal && last.is_some_and(|last| last > newest) {
            return None;
        }
        // A node's list, too, ends with its newest block.
        let end = last.map_or(newest, |last| last.min(newest));
        let most = limit.unwrap_or(u64::MAX);
        let slots = chain.blocks(*first, end)?.take(usize::try_from(most).unwrap_or(usize::MAX));
        let text = Bytes::from(serde_json::to_vec(&slots.collect::<Vec<Slot>>()).ok()?);
        let is_final = limit.is_none() && plan.class == Class::BlockFinal;
        let class = if is_final { Class::BlockFinal } else { Class::OneSlot(commitment) };
        let meta = EntryMeta {
            slot: newest,
            sent_at: tip.polled_at,
            class,
            derived: true,
            carried: false,
            node: None,
        };
        let list = Entry::new(EntryBody::Verbatim(Payload::Result(TextParts::One(text))), meta, None);
        // Behind a poll that is late, a node may know newer blocks.
        self.is_fresh(&list, Instant::now()).then_some(list)
    }

    fn is_fresh(&self, stored: &Entry, now: Instant) -> bool {
        self.freshness.serves(&ServeRule::within(Limit::Fresh), &stored.meta, now) == Verdict::Fresh
    }

    /// Returns true if a block above the slot of `stored` may have written one of its accounts, so that `stored`
    /// is out of date. False at other commitments than confirmed, and if no carried answers are served.
    pub(super) fn is_overwritten(&self, stored: &Entry) -> bool {
        let Some(stamp) = stored.stamp.as_deref().filter(|_| self.carrier.is_serving()) else { return false };
        stored.meta.class == Class::Account(Commitment::Confirmed)
            && self.carrier.followed.current().as_deref().is_some_and(|chain| {
                chain.number() == stamp.chain
                    && stamp.buckets.iter().any(|bucket| chain.last_write(*bucket) > stored.meta.slot)
            })
    }

    /// Returns the slot of the last followed block that may have written one of the accounts in the look-up `plan`.
    /// `None` at other commitments than confirmed, or if no stored answer was read while this chain was followed.
    pub(super) fn last_write(&self, plan: &LookupPlan) -> Option<Slot> {
        let (_, commitment) = plan.key.accounts()?;
        let current = self.carrier.followed.current();
        let chain = current.as_deref().filter(|_| commitment == Commitment::Confirmed)?;
        let stamps = self.candidates(plan).filter_map(|stored| stored.entry.stamp.clone());
        let stamps = stamps.filter(|stamp| stamp.chain == chain.number());
        stamps.filter_map(|stamp| stamp.buckets.iter().map(|bucket| chain.last_write(*bucket)).max()).max()
    }

    /// Waits for the followed chain to reach the floor of the accounts in the look-up `plan`, the highest slot at
    /// which one was shown. Does not wait if no stored answer can be carried there. Returns true if the chain has
    /// reached that slot.
    pub(super) async fn await_floor(&self, plan: &LookupPlan) -> bool {
        let floor = self.floor(&plan.key, Instant::now());
        let Some(chain) = self.chain_that_carries(plan, floor) else { return false };
        matches!(timeout(TIP_WAIT, self.carrier.followed.reached(chain, floor)).await, Ok(Some(_)))
    }

    /// Returns the identifying number of the followed chain, if a stored answer to the look-up `plan` can be carried to
    /// the chain's newest block. `None` if no answer can, or if that block is too far below `slot` to wait for.
    pub(super) fn chain_that_carries(&self, plan: &LookupPlan, slot: Slot) -> Option<u64> {
        let (_, commitment) = plan.key.accounts().filter(|_| self.carrier.is_serving())?;
        if commitment != Commitment::Confirmed {
            return None;
        }
        let current = self.carrier.followed.current();
        let chain = current.as_deref().filter(|chain| is_near(chain, slot))?;
        let now = Instant::now();
        let is_unwritten = |stored: Stored| {
            stored.entry.stamp.as_deref().filter(|stamp| !self.carrier.is_too_old(stamp, now)).is_some_and(
                |stamp| stamp.chain == chain.number() && unchanged_until(chain, stamp, commitment).is_some(),
            )
        };
        self.candidates(plan).any(is_unwritten).then(|| chain.number())
    }

    /// Returns the slot at which `stored` may be served to callers at `commitment` instead of its own slot.
    /// `None` if the followed chain proves nothing for a later slot or another commitment.
    fn carry_target(
        &self,
        key: &Key,
        stored: &Entry,
        commitment: Commitment,
        now: Instant,
    ) -> Option<ChainTip> {
        let stamp = stored.stamp.as_deref().filter(|stamp| !self.carrier.is_too_old(stamp, now))?;
        let current = self.carrier.followed.current();
        let chain = current.as_deref().filter(|chain| chain.number() == stamp.chain)?;
        let newest = match commitment {
            Commitment::Processed => return None,
            Commitment::Confirmed => chain.tip().slot,
            Commitment::Finalized => chain.target()?,
        };
        let is_same_commitment = stored.meta.class == Class::Account(commitment);
        // At the same slot, carrying only lowers the age of the entry, which matters once the entry is no longer fresh.
        let is_fresh = || self.is_fresh(stored, now);
        if is_same_commitment && (newest < stored.meta.slot || (newest == stored.meta.slot && is_fresh())) {
            return None;
        }
        let tip = unchanged_until(chain, stamp, commitment)?;
        let gains =
            !is_same_commitment || (tip.slot, tip.polled_at) > (stored.meta.slot, stored.meta.sent_at);
        (gains && self.is_of_known_owner(key, stamp, chain)).then_some(tip)
    }

    /// Returns true if `key` is no amount of tokens, or if the classic token program is known to own the account.
    /// Amounts of other programs may change without a block that writes the account.
    fn is_of_known_owner(&self, key: &Key, stamp: &FollowStamp, chain: &Chain) -> bool {
        let (Key::Balance(account, _) | Key::Supply(account, _)) = key else { return true };
        let is_unwritten = |stamp: &FollowStamp| {
            stamp.chain == chain.number() && unchanged_until(chain, stamp, Commitment::Confirmed).is_some()
        };
        let shows_owner = |key: Key| {
            let stored = self.store.get(&key).and_then(|stored| stored.stamp.clone());
            stored.is_some_and(|stored| stored.is_token && is_unwritten(&stored))
        };
        stamp.is_token
                // No block has written the account between the two answers.
                || is_unwritten(stamp)
                    && [Commitment::Confirmed, Commitment::Finalized].into_iter().any(|commitment| {
                        forms::owner_forms().any(|form| shows_owner(Key::Account(*account, form, commitment)))
                    })
    }
}

/// Returns true if the newest block of `chain` is at most [`NEAR_SLOTS`] below `slot`, so that waiting is worth it.
fn is_near(chain: &Chain, slot: Slot) -> bool {
    slot.saturating_sub(chain.tip().slot) <= NEAR_SLOTS
}

/// Returns the newest slot, for callers at `commitment`, up to which `chain` proves that the accounts of
/// `stamp` are unchanged. `None` if `chain` proves nothing.
fn unchanged_until(chain: &Chain, stamp: &FollowStamp, commitment: Commitment) -> Option<ChainTip> {
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
fn show_at(stored: &Entry, tip: ChainTip, commitment: Commitment) -> Option<Entry> {
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
    Some(Entry::new(body, meta, stamp))
}
