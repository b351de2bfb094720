//! Where an answer is kept, and how it is fetched: a [`Query`] as the frontier stands becomes a [`Plan`].
//!
//! `minContextSlot` is a condition of one caller and never part of a key. A block's place depends on its finality:
//! at or under the finalized frontier all commitments share one place, above it the confirmed one is kept apart.

use std::sync::Arc;

use bytes::Bytes;

use super::freshness::Class;
use crate::frontier::Frontier;
use crate::methods::{
    AccountForm, BlockDetails, BlockEncoding, BlockQuery, Commitment, Pubkey, Query, SamplesQuery, Slot,
    VotesQuery,
};

/// The most samples a node keeps for getRecentPerformanceSamples: asked for once, every smaller limit is its head.
pub const ALL_SAMPLES: u16 = 720;

/// Where an answer is kept: equal keys mean the same question.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// One account in one form.
    Account(Pubkey, AccountForm, Commitment),
    /// A list of accounts in one form, in order.
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
    Block(BlockShape, Finality),
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

/// A block and everything that changes its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockShape {
    slot: Slot,
    details: BlockDetails,
    encoding: BlockEncoding,
    rewards: bool,
    max_version: Option<u8>,
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
}

/// How one query is answered: where to look, what to ask upstream, and how long the answer lives.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where the answer is kept.
    pub key: Key,
    /// Where its absence is kept (blocks only).
    pub absent: Option<Key>,
    /// The call as it goes upstream, without the caller's own conditions.
    pub upstream: Query,
    /// How long a result lives.
    pub class: Class,
}

impl Plan {
    /// The plan for `query` as the frontier stands.
    pub fn new(query: &Query, frontier: &Frontier) -> Self {
        let upstream = query.clone().with_min_context_slot(None);
        let (key, class) = match query {
            Query::Block(block) => return Self::block(*block, frontier.slot(Commitment::Finalized)),
            Query::Account(q) => (Key::Account(q.pubkey, q.form, q.commitment), Class::Account(q.commitment)),
            Query::Accounts(q) => {
                (Key::Accounts(Arc::clone(&q.pubkeys), q.form, q.commitment), Class::Account(q.commitment))
            }
            Query::Balance(q) => (Key::Balance(q.pubkey, q.commitment), Class::Account(q.commitment)),
            Query::Fee(q) => (Key::Fee(q.message.clone(), q.commitment), Class::Fee(q.commitment)),
            Query::Votes(q) => (Key::Votes(*q), Class::Votes(q.commitment)),
            Query::ClusterNodes => (Key::ClusterNodes, Class::ClusterNodes),
            Query::Samples(_) => {
                let upstream = Query::Samples(SamplesQuery { limit: ALL_SAMPLES });
                return Self { key: Key::Samples, absent: None, upstream, class: Class::Samples };
            }
        };
        Self { key, absent: None, upstream, class }
    }

    fn block(block: BlockQuery, finalized: Slot) -> Self {
        let BlockQuery { slot, details, encoding, rewards, max_version, commitment } = block;
        let shape = BlockShape { slot, details, encoding, rewards, max_version };
        let is_final = slot <= finalized;
        let (asked, finality, class) = match commitment {
            Commitment::Processed | Commitment::Confirmed if !is_final => {
                (Commitment::Confirmed, Finality::Confirmed, Class::BlockConfirmed)
            }
            // Final by construction: a node gives a block at finalized only once it is.
            _ => (Commitment::Finalized, Finality::Final, Class::BlockFinal),
        };
        Self {
            key: Key::Block(shape, finality),
            absent: Some(if is_final { Key::NoBlock(slot) } else { Key::NotYet(slot, asked) }),
            upstream: Query::Block(BlockQuery { commitment: asked, ..block }),
            class,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

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
        let plan = |slot, commitment| Plan::new(&block(slot, commitment), &frontier);
        let (confirmed, finalized) = (plan(100, Commitment::Confirmed), plan(100, Commitment::Finalized));
        assert_eq!((&confirmed.key, confirmed.class), (&finalized.key, Class::BlockFinal));
        assert_eq!(confirmed.upstream.commitment(), Some(Commitment::Finalized), "goes up at finalized");
        let (confirmed, finalized) = (plan(101, Commitment::Confirmed), plan(101, Commitment::Finalized));
        assert_ne!(confirmed.key, finalized.key);
        assert_eq!((confirmed.class, finalized.class), (Class::BlockConfirmed, Class::BlockFinal));
        assert_eq!(confirmed.absent, Some(Key::NotYet(101, Commitment::Confirmed)));
        assert_eq!(finalized.absent, Some(Key::NotYet(101, Commitment::Finalized)));
    }
}
