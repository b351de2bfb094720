//! Carrying: a kept account is shown at a later slot, because no block has written it since it was read.
//!
//! A carried entry is a new entry with the same value, the later slot in its context, and the time of the poll
//! that named this slot. It replaces the entry that it was made of. All rules of slots and ages then hold for
//! it as for a node's answer. An entry is replaced at most once for each slot while it is fresh.
//!
//! An account that was read at one commitment also serves the other one, if the chain proves that it was the
//! same at the slot that is shown there. At processed nothing is carried, because forks are dropped there.

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
use super::held_entries::HeldEntries;
use super::key::{Key, LookupPlan};
use crate::config::FollowMode;
use crate::follow::{Carry, Chain, FollowedChain, Tip};
use crate::methods::{AccountsQuery, Commitment, Query, Slot};
use crate::telemetry::Metrics;

/// The longest wait for the followed chain, once a node has shown a slot.
pub(super) const TIP_WAIT: Duration = Duration::from_millis(200);

/// The followed chain, and the rule whether its proofs are used.
pub(super) struct Carrier {
    followed: Arc<FollowedChain>,
    mode: FollowMode,
    rules: Arc<FreshnessPolicy>,
    metrics: Arc<Metrics>,
}

impl Carrier {
    pub(super) fn new(
        followed: Arc<FollowedChain>,
        mode: FollowMode,
        rules: Arc<FreshnessPolicy>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { followed, mode, rules, metrics }
    }

    /// Returns the followed chain.
    pub(super) fn followed(&self) -> &Arc<FollowedChain> {
        &self.followed
    }

    /// Returns true if carried answers are served. In shadow mode they are only counted.
    fn serves(&self) -> bool {
        self.mode == FollowMode::On && !self.followed.is_contradicted()
    }

    /// Returns `held` at the newest slot at which its accounts are known to be unchanged. The entry is kept
    /// under `key` or under another form of the same accounts, which `place` returns.
    pub(super) fn carried(
        &self,
        entries: &HeldEntries,
        key: &Key,
        held: Arc<Entry>,
        now: Instant,
        place: impl FnOnce(&Arc<Entry>) -> Key,
    ) -> Arc<Entry> {
        if held.follow.is_none() || !self.serves() {
            return held;
        }
        let Some((_, commitment)) = key.accounts() else { return held };
        let carried = self.carried_slot(entries, key, &held, commitment, now);
        let Some(carried) = carried.and_then(|tip| carry(&held, tip, commitment)) else { return held };
        let carried = Arc::new(carried);
        self.followed.touch();
        // A purge, or an answer that came meanwhile, is not undone.
        entries.replace(place(&held), &held, &carried);
        carried
    }

    /// Returns an entry for `key` that is made of the entry of the other commitment, and keeps it. The guard
    /// is held, because an entry that was read before a purge could be kept after it otherwise.
    pub(super) fn carried_across(
        &self,
        entries: &HeldEntries,
        key: &Key,
        now: Instant,
        _: &GenerationGuard<'_>,
    ) -> Option<Arc<Entry>> {
        let (_, commitment) = key.accounts().filter(|_| self.serves())?;
        let source_key = key.at(other(commitment)?)?;
        let source = entries.get(&source_key)?;
        let tip = self.carried_slot(entries, &source_key, &source, commitment, now)?;
        let carried = Arc::new(carry(&source, tip, commitment)?);
        entries.keep(key.clone(), &carried);
        Some(carried)
    }

    /// Returns a fresh entry that is made of the entry of another commitment.
    pub(super) fn find_across(
        &self,
        entries: &HeldEntries,
        plan: &LookupPlan,
        wanted: Option<Slot>,
        now: Instant,
    ) -> Option<Arc<Entry>> {
        if !self.serves() {
            return None;
        }
        let carried = {
            let guard = entries.hold();
            let mut keys = [Some(&plan.key), plan.other.as_ref()].into_iter().flatten();
            keys.find_map(|key| self.carried_across(entries, key, now, &guard))?
        };
        let (lowest, floor) = entries.floors_under(&plan.key, now);
        let meta = &carried.meta;
        let serves =
            meta.reaches(wanted) && meta.slot >= floor && self.rules.allows(meta, Tolerance::Fresh, now);
        serves.then(|| {
            entries.raise_fallen_floors(plan, carried.meta.slot, lowest);
            carried
        })
    }

    /// Counts an answer to `query` that was carried, or would be in shadow mode.
    pub(super) fn count(&self, query: &Query) {
        self.metrics.follow_carried.at((Some(query.method()), query.commitment())).inc();
    }

    /// Returns the slot of the last block that wrote an account of the kept answer to `plan`, as far as that is
    /// known.
    pub(super) fn last_write(&self, entries: &HeldEntries, plan: &LookupPlan) -> Option<Slot> {
        let (_, commitment) = plan.key.accounts()?;
        let chain = self.followed.current().filter(|_| commitment == Commitment::Confirmed)?;
        let stamps = entries.candidates(plan).into_iter().flatten().filter_map(|held| held.follow.clone());
        let stamps = stamps.filter(|stamp| stamp.chain == chain.number());
        stamps.filter_map(|stamp| stamp.buckets.iter().map(|bucket| chain.last_write(*bucket)).max()).max()
    }

    /// Waits until the followed chain is at `slot`, at which the missing accounts of a list were fetched, if
    /// carried accounts would complete the list there.
    pub(super) async fn await_carried(&self, list: &AccountsQuery, slot: Slot) {
        let is_carried = self.serves() && list.commitment == Commitment::Confirmed;
        if let Some(chain) = self.followed.current().filter(|_| is_carried) {
            // If the chain does not arrive in time, the list is fetched as a whole.
            let _ = timeout(TIP_WAIT, self.followed.reached(chain.number(), slot)).await;
        }
    }

    /// Waits for the followed chain if the kept answer to `plan` is carried, but one of its accounts was shown
    /// above the tip. This is usual for lists that share accounts. Returns true if the chain has arrived.
    pub(super) async fn await_floor(&self, entries: &HeldEntries, plan: &LookupPlan) -> bool {
        let Some(chain) = self.carried_by(entries, plan) else { return false };
        let floor = entries.floor(&plan.key, Instant::now());
        matches!(timeout(TIP_WAIT, self.followed.reached(chain, floor)).await, Ok(Some(_)))
    }

    /// Returns the number of the chain along which the kept answer to `plan` is carried to the tip. `None` if
    /// it is not.
    pub(super) fn carried_by(&self, entries: &HeldEntries, plan: &LookupPlan) -> Option<u64> {
        let (_, commitment) = plan.key.accounts().filter(|_| self.serves())?;
        if commitment != Commitment::Confirmed {
            return None;
        }
        let chain = self.followed.current()?;
        let is_unwritten = |held: Arc<Entry>| {
            held.follow.as_deref().is_some_and(|stamp| {
                stamp.chain == chain.number() && unchanged_until(&chain, stamp, commitment).is_some()
            })
        };
        let mut candidates = entries.candidates(plan).into_iter().flatten();
        candidates.any(is_unwritten).then(|| chain.number())
    }

    /// Returns true if an answer to `plan` would be carried if following were on and not only observed.
    pub(super) fn would_carry(&self, entries: &HeldEntries, plan: &LookupPlan, now: Instant) -> bool {
        self.mode == FollowMode::Shadow && {
            let keys = [Some(&plan.key), plan.other.as_ref()].into_iter().flatten();
            keys.filter_map(|key| Some((key, key.accounts()?.1))).any(|(key, commitment)| {
                let carries = |key: &Key| {
                    let held = entries.get(key);
                    held.is_some_and(|held| self.carried_slot(entries, key, &held, commitment, now).is_some())
                };
                let across = other(commitment).and_then(|other| key.at(other));
                carries(key) || across.is_some_and(|key| carries(&key))
            })
        }
    }

    /// Returns the slot to which `held` is carried for callers at `commitment`. `None` if it stays as it is.
    fn carried_slot(
        &self,
        entries: &HeldEntries,
        key: &Key,
        held: &Entry,
        commitment: Commitment,
        now: Instant,
    ) -> Option<Tip> {
        let stamp = held.follow.as_deref()?;
        let chain = self.followed.current().filter(|chain| chain.number() == stamp.chain)?;
        let newest = match commitment {
            Commitment::Processed => return None,
            Commitment::Confirmed => chain.tip().slot,
            Commitment::Finalized => chain.target()?,
        };
        let is_own = held.meta.class == Class::Account(commitment);
        // At the same slot, the time of a later poll matters only once the entry has aged.
        let is_fresh = || self.rules.assess(&held.meta, now) == Freshness::Fresh;
        if is_own && (newest < held.meta.slot || (newest == held.meta.slot && is_fresh())) {
            return None;
        }
        let tip = unchanged_until(&chain, stamp, commitment)?;
        let gains = !is_own || (tip.slot, tip.polled_at) > (held.meta.slot, held.meta.sent_at);
        (gains && is_of_known_owner(entries, key, stamp, &chain)).then_some(tip)
    }
}

/// Returns true unless `key` is a balance whose account may belong to a program other than the classic token
/// program. Balances of other programs may change with the clock.
fn is_of_known_owner(entries: &HeldEntries, key: &Key, stamp: &FollowStamp, chain: &Chain) -> bool {
    let Key::Balance(account, _) = key else { return true };
    let is_unwritten = |stamp: &FollowStamp| {
        stamp.chain == chain.number() && unchanged_until(chain, stamp, Commitment::Confirmed).is_some()
    };
    let shows_owner = |key: Key| {
        let kept = entries.get(&key).and_then(|kept| kept.follow.clone());
        kept.is_some_and(|kept| kept.is_token && is_unwritten(&kept))
    };
    stamp.is_token
            // No block has written the account between the two answers.
            || is_unwritten(stamp)
                && [Commitment::Confirmed, Commitment::Finalized].into_iter().any(|commitment| {
                    forms::owner_forms().any(|form| shows_owner(Key::Account(*account, form, commitment)))
                })
}

/// Returns the slot up to which all accounts of `stamp` are known to be unchanged, for callers at
/// `commitment`.
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
    // Between two accounts the tip may move.
    let slots = slots.collect::<Option<Vec<_>>>()?;
    slots.into_iter().min_by_key(|tip| (tip.slot, tip.polled_at))
}

/// Returns the commitment whose answers also serve callers at `commitment`.
fn other(commitment: Commitment) -> Option<Commitment> {
    match commitment {
        Commitment::Processed => None,
        Commitment::Confirmed => Some(Commitment::Finalized),
        Commitment::Finalized => Some(Commitment::Confirmed),
    }
}

/// Returns `held` at another slot. `None` if its text is not in the format that nodes write.
fn carry(held: &Entry, tip: Tip, commitment: Commitment) -> Option<Entry> {
    let kept = match &held.kept {
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
    let meta = EntryMeta { slot: tip.slot, sent_at: tip.polled_at, class, carried: true, ..held.meta };
    let follow = held.follow.as_ref().map(|stamp| match kept {
        // The owner of a balance is known by now.
        EntryBody::Verbatim(_) if !stamp.is_token => Arc::new(stamp.of_token()),
        _ => Arc::clone(stamp),
    });
    Some(Entry { kept, meta, follow, coded: CompressedForms::default() })
}
