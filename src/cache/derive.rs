//! Answers made from what is kept in another form, byte for byte as a node would write them.
//!
//! What is cheap is made anew for each caller: forms of accounts, fewer samples. What takes a pass over a long text is
//! made once, in the flight of those who ask for it, and kept: a block in a lesser shape, one vote account. A list that
//! was put together is kept, too, for it has a slot behind which the next answer must not go.

pub mod account;
pub mod block;
pub mod list;
mod object;
#[cfg(test)]
pub(crate) mod recorded;
pub mod samples;
pub mod votes;

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::entry::{Body, CodedForms, Entry, Kept, Payload, Stamp};
use super::forms;
use super::key::{Key, Plan};
use super::serve::Basis;
use super::status::CacheStatus;
use super::store::Insert;
use super::{Asked, Cache, CacheAnswer, CallOptions, Missed};
use crate::config::Assemble;
use crate::error::Error;
use crate::methods::{AccountsQuery, Pubkey, Query, Slot, VotesQuery};
use crate::node::OFF_WORKER_BYTES;
use crate::telemetry::Outcome;

/// What kept entries have to be to be used for another answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Fresh.
    Fresh,
    /// Such that they may stand in where no node answers.
    InFault,
    /// The same, also below a slot at which an account was shown.
    LastResort,
}

impl Cache {
    /// An answer to `plan` made from a kept one of another shape, and kept from now on; `None`, too, where its turn does not
    /// come by the deadline.
    pub(super) async fn derive_kept(&self, plan: &Plan, usage: Use, deadline: Instant) -> Option<Arc<Entry>> {
        let (now, generation) = (Instant::now(), self.generation.number());
        let (source, make) = match &plan.key {
            Key::Votes(query @ VotesQuery { vote_pubkey: Some(pubkey), .. }) => {
                let all = Key::Votes(VotesQuery { vote_pubkey: None, ..*query });
                (self.usable(&all, usage, None, now)?, Make::Votes(*pubkey))
            }
            Key::Block(slot, asked, finality) => {
                let kept = |shape| {
                    let held = self.usable(&Key::Block(*slot, shape, *finality), usage, None, now);
                    held.filter(|entry| matches!(entry.kept, Kept::Said(Payload::Result(_))))
                };
                let found = block::sources(*asked).find_map(|shape| Some((kept(shape)?, shape)));
                let (entry, shape) = found?;
                (entry, Make::Block(shape, *asked))
            }
            _ => return None,
        };
        let Kept::Said(Payload::Result(Body::One(text))) = &source.kept else { return None };
        let text = text.clone();
        let written = if text.len() > OFF_WORKER_BYTES {
            let turn = timeout_at(deadline, Arc::clone(&self.makers).acquire_owned()).await.ok()?.ok()?;
            let work = tokio::task::spawn_blocking(move || {
                // Held to the end of the work, which goes on where nobody waits for it any more.
                let _turn = turn;
                make.of(&text)
            });
            let text = work.await.ok().flatten();
            // It has aged meanwhile.
            text.filter(|_| self.may_be_used(&source.stamp, usage, Instant::now()))
        } else {
            make.of(&text)
        };
        let kept = Kept::Said(Payload::Result(Body::One(written?)));
        let entry = Arc::new(Entry {
            kept,
            stamp: Stamp { derived: true, ..source.stamp },
            coded: CodedForms::default(),
        });
        // What is held may be newer than the source: then a node is asked, under its floor.
        let held = self.generation.hold();
        let kept = held.number() == generation
            && !matches!(self.keep(plan.key.clone(), &entry), Insert::KeptNewer(_));
        (kept || usage != Use::Fresh).then_some(entry)
    }

    /// A list made of single accounts, if all that it takes may be used; kept from now on, so that it has a floor.
    pub(super) fn assembled(
        &self,
        query: &AccountsQuery,
        usage: Use,
        wanted: Option<Slot>,
    ) -> Option<Arc<Entry>> {
        let mode = self.rules.0.assemble;
        if mode == Assemble::Off {
            return None;
        }
        // Or what was read before the cache was emptied could be kept after.
        let _held = self.generation.hold();
        let singles = self.singles(query, usage, wanted);
        let singles = singles.into_iter().collect::<Option<Vec<_>>>()?;
        let one_slot = singles.iter().all(|single| single.stamp.slot == singles[0].stamp.slot);
        let list = (one_slot || mode == Assemble::WithinBound).then(|| list::joined(&singles))??;
        self.keep_list(query, list)
    }

    /// A list of which some accounts are kept and fresh: the others are fetched alone, and the lowest slot is the
    /// list's. `None` where that is not the mode, or not possible.
    pub(super) async fn completed(self: &Arc<Self>, call: &Asked<'_>) -> Result<Option<CacheAnswer>, Missed> {
        let Query::Accounts(query) = call.query else { return Ok(None) };
        if self.rules.0.assemble != Assemble::WithinBound {
            return Ok(None);
        }
        let kept = self.singles(query, Use::Fresh, call.wanted());
        let missing = query.pubkeys.iter().zip(&kept).filter(|(_, single)| single.is_none());
        let mut missing: Vec<_> = missing.map(|(pubkey, _)| *pubkey).collect();
        missing.sort_unstable();
        missing.dedup();
        if missing.is_empty() || kept.iter().all(Option::is_none) {
            return Ok(None);
        }
        let rest = Query::Accounts(AccountsQuery { pubkeys: missing.into(), ..query.clone() });
        let plan = Plan::new(&rest, &self.frontier, &self.sizes);
        let options = CallOptions { coding: None, ..call.options.clone() };
        let rest = Asked { query: &rest, plan, options, ..*call };
        let fetched = match Box::pin(self.from_node(&rest)).await {
            Ok(fetched) => fetched,
            Err(Missed::Late) => return Err(Missed::Late),
            Err(Missed::Failed(Error::Overloaded)) => return Err(Error::Overloaded.into()),
            Err(Missed::Failed(_)) => return Ok(None),
        };
        let list = {
            let _held = self.generation.hold();
            let singles = self.singles(query, Use::Fresh, call.wanted());
            let singles: Option<Vec<_>> = singles.into_iter().collect();
            singles.and_then(|singles| self.keep_list(query, list::joined(&singles)?))
        };
        let Some(list) = list else { return Ok(None) };
        let basis = match fetched.outcome {
            Outcome::Collapsed => Basis::Joined(CacheStatus::Collapsed, Outcome::Collapsed),
            _ => Basis::Joined(CacheStatus::forwarded(call.why, true), Outcome::Miss),
        };
        self.deliver(call, &list, basis).await?.ok_or(Missed::Late).map(Some)
    }

    /// Keeps a list that was made here; `None` where a newer one is held, behind which it would go back.
    fn keep_list(&self, query: &AccountsQuery, list: Entry) -> Option<Arc<Entry>> {
        if self.holds_newer(query, &list) {
            return None;
        }
        self.place_list(query, list)
    }

    /// Returns true if a list of the same accounts is held above the slot of `list`, in whichever form serves `query`.
    pub(super) fn holds_newer(&self, query: &AccountsQuery, list: &Entry) -> bool {
        let key = |form| Key::Accounts(Arc::clone(&query.pubkeys), form, query.commitment);
        let mut held = forms::serving(query.form).filter_map(|form| self.store.get(&key(form)));
        held.any(|held| held.stamp.slot > list.stamp.slot && self.serves(&held.stamp))
    }

    /// Places `list`; `None` where a newer one was placed since it was looked for.
    pub(super) fn place_list(&self, query: &AccountsQuery, list: Entry) -> Option<Arc<Entry>> {
        let Kept::Accounts { values, .. } = &list.kept else { return None };
        let form = forms::kept_assembled(query.form, values);
        let (key, list) = (Key::Accounts(Arc::clone(&query.pubkeys), form, query.commitment), Arc::new(list));
        let now = Instant::now();
        if self.floors_under(&key, now).0 < list.stamp.slot {
            // A floor has fallen, and what is held above it is shown again.
            self.raises(&key, list.stamp.slot, now);
        }
        (!matches!(self.keep(key, &list), Insert::KeptNewer(_))).then_some(list)
    }

    /// For each account of `list` what is kept from which its element can be made, the newest of it.
    pub(super) fn singles(
        &self,
        list: &AccountsQuery,
        usage: Use,
        wanted: Option<Slot>,
    ) -> Vec<Option<Arc<Entry>>> {
        let now = Instant::now();
        let single = |pubkey: &Pubkey| {
            let key = |form| Key::Account(*pubkey, form, list.commitment);
            let kept =
                forms::serving(list.form).filter_map(|form| self.usable(&key(form), usage, wanted, now));
            kept.max_by_key(|single| (single.stamp.slot, single.stamp.sent_at))
        };
        list.pubkeys.iter().map(single).collect()
    }
}

/// What is made of a kept text.
enum Make {
    /// One vote account of all.
    Votes(Pubkey),
    /// A block in another shape.
    Block(block::Shape, block::Shape),
}

impl Make {
    fn of(&self, text: &Bytes) -> Option<Bytes> {
        match self {
            Self::Votes(pubkey) => votes::only(text, pubkey),
            Self::Block(kept, asked) => block::reshape(text, *kept, *asked),
        }
    }
}
