//! Where an answer is kept, and how it is fetched: a [`Query`] as the frontier stands becomes a [`LookupPlan`].
//!
//! `minContextSlot` is a condition of one caller and never part of a key. A block's place depends on its finality:
//! at or under the finalized frontier all commitments share one place, above it the confirmed one is kept apart.

use std::sync::Arc;

use bytes::Bytes;

use super::class::Class;
use super::derive::block::Shape;
use super::forms;
use super::sizes::{Size, Sizes};
use crate::frontier::Frontier;
use crate::methods::{
    AccountEncoding, AccountForm, BlockQuery, Commitment, Method, Pubkey, Query, SamplesQuery, Slot,
    VotesQuery,
};

/// The most samples a node keeps for getRecentPerformanceSamples: asked for once, every smaller limit is its head.
pub const ALL_SAMPLES: u16 = 720;

/// Where an answer is kept: equal keys mean the same question.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// One account, by the form in which it was fetched.
    Account(Pubkey, AccountForm, Commitment),
    /// A list of accounts in order, by the form in which it was fetched.
    Accounts(Arc<[Pubkey]>, AccountForm, Commitment),
    /// A token account's balance.
    Balance(Pubkey, Commitment),
    /// A message's fee.
    Fee(Bytes, Commitment),
    /// Vote accounts under one filter.
    Votes(VotesQuery),
    /// All performance samples.
    Samples,
    /// All cluster nodes.
    ClusterNodes,
    /// A block in one shape.
    Block(Slot, Shape, Finality),
    /// That a slot holds no block.
    NoBlock(Slot),
    /// That a block is not there yet.
    NotYet(Slot, Commitment),
}

/// Whether a kept block is final by construction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finality {
    /// Asked for at finalized.
    Final,
    /// Asked for at confirmed, above the finalized frontier.
    Confirmed,
}

impl Key {
    /// What the key itself weighs beyond its fixed size, in bytes.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Accounts(keys, ..) => keys.len() * size_of::<Pubkey>(),
            Self::Fee(message, _) => message.len(),
            _ => 0,
        }
    }

    /// Whether calls of `method` are answered from it; accounts, single and listed, answer both of their methods.
    pub fn answers(&self, method: Method) -> bool {
        match self {
            Self::Account(..) | Self::Accounts(..) => {
                matches!(method, Method::GetAccountInfo | Method::GetMultipleAccounts)
            }
            Self::Balance(..) => method == Method::GetTokenAccountBalance,
            Self::Fee(..) => method == Method::GetFeeForMessage,
            Self::Votes(_) => method == Method::GetVoteAccounts,
            Self::Samples => method == Method::GetRecentPerformanceSamples,
            Self::ClusterNodes => method == Method::GetClusterNodes,
            Self::Block(..) | Self::NoBlock(_) | Self::NotYet(..) => method == Method::GetBlock,
        }
    }

    /// Whether it holds data of `account`, or its balance: alone, or in a list.
    pub fn concerns(&self, account: &Pubkey) -> bool {
        match self {
            Self::Account(pubkey, ..) | Self::Balance(pubkey, _) => pubkey == account,
            Self::Accounts(pubkeys, ..) => pubkeys.contains(account),
            _ => false,
        }
    }

    /// The accounts that an answer under it shows, and at which commitment; `None` where it shows none.
    pub fn accounts(&self) -> Option<(&[Pubkey], Commitment)> {
        match self {
            Self::Account(pubkey, _, commitment) | Self::Balance(pubkey, commitment) => {
                Some((std::slice::from_ref(pubkey), *commitment))
            }
            Self::Accounts(pubkeys, _, commitment) => Some((pubkeys, *commitment)),
            _ => None,
        }
    }

    /// The slot whose block it holds, or the absence of one.
    pub fn block_slot(&self) -> Option<Slot> {
        match self {
            Self::Block(slot, ..) | Self::NoBlock(slot) | Self::NotYet(slot, _) => Some(*slot),
            _ => None,
        }
    }
}

/// How one query is answered: where to look, what to ask upstream, and how long the answer lives.
#[derive(Debug, Clone)]
pub struct LookupPlan {
    /// Where the answer is kept.
    pub key: Key,
    /// Where the same may be kept, too: a block's absence, which counts where there is no block; an account in the other
    /// of whole and slice, of which the one of the higher slot counts.
    pub other: Option<Key>,
    /// The call as it goes upstream, without the caller's own conditions.
    pub upstream: Query,
    /// How long a result lives.
    pub class: Class,
    /// The encoding that the caller asked for, if it is all that was asked of the form of accounts.
    pub asked: Option<AccountEncoding>,
}

impl LookupPlan {
    /// The plan for `query` as the frontier stands, by what is known of the accounts' sizes.
    pub fn new(query: &Query, frontier: &Frontier, sizes: &Sizes) -> Self {
        let mut upstream = query.clone().with_min_context_slot(None);
        let (key, class) = match &mut upstream {
            Query::Block(block) => return Self::block(*block, frontier.slot(Commitment::Finalized)),
            Query::Account(q) => {
                let (pubkey, commitment) = (q.pubkey, q.commitment);
                let place = |form| Key::Account(pubkey, form, commitment);
                let accounts = Accounts::new(&mut q.form, sizes.of(&pubkey), place);
                return accounts.plan(upstream, commitment);
            }
            Query::Accounts(q) => {
                let (pubkeys, commitment) = (Arc::clone(&q.pubkeys), q.commitment);
                let place = |form| Key::Accounts(Arc::clone(&pubkeys), form, commitment);
                let accounts = Accounts::new(&mut q.form, sizes.of_all(&pubkeys), place);
                return accounts.plan(upstream, commitment);
            }
            Query::Balance(q) => (Key::Balance(q.pubkey, q.commitment), Class::Account(q.commitment)),
            Query::Fee(q) => (Key::Fee(q.message.clone(), q.commitment), Class::Fee(q.commitment)),
            Query::Votes(q) => (Key::Votes(*q), Class::Votes(q.commitment)),
            Query::ClusterNodes => (Key::ClusterNodes, Class::ClusterNodes),
            Query::Samples(samples) => {
                *samples = SamplesQuery { limit: ALL_SAMPLES };
                (Key::Samples, Class::Samples)
            }
        };
        Self { key, other: None, upstream, class, asked: None }
    }

    fn block(block: BlockQuery, finalized: Slot) -> Self {
        let BlockQuery { slot, commitment, .. } = block;
        let is_final = slot <= finalized;
        let (asked, finality, class) = match commitment {
            Commitment::Processed | Commitment::Confirmed if !is_final => {
                (Commitment::Confirmed, Finality::Confirmed, Class::BlockConfirmed)
            }
            // Final by construction: a node gives a block at finalized only once it is.
            _ => (Commitment::Finalized, Finality::Final, Class::BlockFinal),
        };
        Self {
            key: Key::Block(slot, Shape::from(&block), finality),
            other: Some(if is_final { Key::NoBlock(slot) } else { Key::NotYet(slot, asked) }),
            upstream: Query::Block(BlockQuery { commitment: asked, ..block }),
            class,
            asked: None,
        }
    }
}

/// Where accounts are kept, one or a list, and what of their form was asked for.
struct Accounts {
    key: Key,
    other: Option<Key>,
    asked: Option<AccountEncoding>,
}

impl Accounts {
    /// Turns the form that was asked for into the one to fetch; `place` is where a form is kept.
    fn new(form: &mut AccountForm, size: Size, place: impl Fn(AccountForm) -> Key) -> Self {
        let asked = *form;
        *form = forms::fetched(asked, size);
        let other = forms::serving(asked).find(|source| source != form);
        let encoding = asked.slice.is_none().then_some(asked.encoding);
        Self { key: place(*form), other: other.map(place), asked: encoding }
    }

    fn plan(self, upstream: Query, commitment: Commitment) -> LookupPlan {
        let Self { key, other, asked } = self;
        LookupPlan { key, other, upstream, class: Class::Account(commitment), asked }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::methods::{BlockDetails, BlockEncoding};

    fn block(slot: Slot, commitment: Commitment) -> Query {
        Query::Block(BlockQuery {
            slot,
            details: BlockDetails::Full,
            encoding: BlockEncoding::Json,
            rewards: true,
            max_version: None,
            commitment,
        })
    }

    #[tokio::test]
    async fn a_final_block_has_one_place_and_a_confirmed_one_another() {
        let frontier = Frontier::new(1);
        frontier.probed(0, Commitment::Finalized, 100, Instant::now());
        let plan = |slot, commitment| LookupPlan::new(&block(slot, commitment), &frontier, &Sizes::default());
        let (confirmed, finalized) = (plan(100, Commitment::Confirmed), plan(100, Commitment::Finalized));
        assert_eq!((&confirmed.key, confirmed.class), (&finalized.key, Class::BlockFinal));
        assert_eq!(confirmed.upstream.commitment(), Some(Commitment::Finalized), "goes up at finalized");
        let (confirmed, finalized) = (plan(101, Commitment::Confirmed), plan(101, Commitment::Finalized));
        assert_ne!(confirmed.key, finalized.key);
        assert_eq!((confirmed.class, finalized.class), (Class::BlockConfirmed, Class::BlockFinal));
        assert_eq!(confirmed.other, Some(Key::NotYet(101, Commitment::Confirmed)));
        assert_eq!(finalized.other, Some(Key::NotYet(101, Commitment::Finalized)));
    }
}
