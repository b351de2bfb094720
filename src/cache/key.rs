//! Cache keys and look-up plans. A [`LookupPlan`] is made from a [`Query`], the newest known slots and the
//! known sizes of accounts.
//!
//! `minContextSlot` is a condition of one caller and never part of a key. The key of a block depends on its
//! finality. At or below the newest known finalized slot, all commitments share one key. Above that slot the
//! confirmed block has a key of its own.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::derive::Derivation;
use super::derive::block::BlockShape;
use super::entry::Class;
use super::forms::{self, Sizes};
use crate::frontier::Frontier;
use crate::methods::{
    AccountEncoding, AccountForm, AccountQuery, BlockQuery, BlockTimeQuery, BlocksQuery, Commitment, Life,
    Method, PageQuery, PlainQuery, Pubkey, Query, SamplesQuery, Slot, VotesQuery,
};
use crate::node::shape::{elements, member};
use crate::pool::PoolReply;

/// The number of samples that a node keeps for getRecentPerformanceSamples. All samples are fetched, and each
/// caller gets as many as it asks for.
pub const ALL_SAMPLES: u16 = 720;

/// The key of an answer. Equal keys mean the same question.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    Account(Pubkey, AccountForm, Commitment),
    Accounts(Arc<[Pubkey]>, AccountForm, Commitment),
    Balance(Pubkey, Commitment),
    Supply(Pubkey, Commitment),
    Fee(Bytes, Commitment),
    /// The vote accounts that one filter selects.
    Votes(VotesQuery),
    Samples,
    ClusterNodes,
    /// A method with its canonical params and commitment, and the epoch of the newest slot if the answer depends on it.
    /// No commitment if the method has none, or if the answer is final.
    Plain(Method, Arc<str>, Option<Commitment>, Option<u64>),
    Block(Slot, BlockShape, Finality),
    NoBlock(Slot),
    NotYet(Slot, Commitment),
}

/// The commitment at which a stored block was fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finality {
    /// Fetched at finalized, so the block cannot change any more.
    Final,
    /// Fetched at confirmed, above the newest known finalized slot.
    Confirmed,
}

impl Key {
    /// Returns the heap memory of the key in bytes. The size of the type itself is not counted.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Accounts(keys, ..) => keys.len() * size_of::<Pubkey>(),
            Self::Fee(message, _) => message.len(),
            Self::Plain(_, params, ..) => params.len(),
            _ => 0,
        }
    }

    /// Returns true if calls of `method` are answered from this key. The key of a single account or of a list
    /// answers both account methods.
    pub fn answers(&self, method: Method) -> bool {
        match self {
            Self::Account(..) | Self::Accounts(..) => {
                matches!(method, Method::GetAccountInfo | Method::GetMultipleAccounts | Method::GetBalance)
            }
            Self::Balance(..) => method == Method::GetTokenAccountBalance,
            Self::Supply(..) => method == Method::GetTokenSupply,
            Self::Plain(of, ..) => method == *of,
            Self::Fee(..) => method == Method::GetFeeForMessage,
            Self::Votes(_) => method == Method::GetVoteAccounts,
            Self::Samples => method == Method::GetRecentPerformanceSamples,
            Self::ClusterNodes => method == Method::GetClusterNodes,
            Self::Block(..) | Self::NoBlock(_) | Self::NotYet(..) => method == Method::GetBlock,
        }
    }

    /// Returns true if an answer under this key shows `account`, alone or in a list, or its token balance or supply.
    pub fn concerns(&self, account: &Pubkey) -> bool {
        match self {
            Self::Account(pubkey, ..) | Self::Balance(pubkey, _) | Self::Supply(pubkey, _) => {
                pubkey == account
            }
            Self::Accounts(pubkeys, ..) => pubkeys.contains(account),
            _ => false,
        }
    }

    /// Returns the accounts that an answer under this key shows, and their commitment. `None` if the answer
    /// shows no account.
    pub fn accounts(&self) -> Option<(&[Pubkey], Commitment)> {
        match self {
            Self::Account(pubkey, _, commitment)
            | Self::Balance(pubkey, commitment)
            | Self::Supply(pubkey, commitment) => Some((std::slice::from_ref(pubkey), *commitment)),
            Self::Accounts(pubkeys, _, commitment) => Some((pubkeys, *commitment)),
            _ => None,
        }
    }

    /// Returns the key of the same accounts at another commitment. `None` if the key is neither for accounts
    /// nor for a token balance.
    pub fn at(&self, commitment: Commitment) -> Option<Self> {
        match self {
            Self::Account(account, form, _) => Some(Self::Account(*account, *form, commitment)),
            Self::Accounts(accounts, form, _) => {
                Some(Self::Accounts(Arc::clone(accounts), *form, commitment))
            }
            Self::Balance(account, _) => Some(Self::Balance(*account, commitment)),
            Self::Supply(mint, _) => Some(Self::Supply(*mint, commitment)),
            _ => None,
        }
    }

    /// Returns true if it is noted where the block under this key has its transactions: other shapes are made from it.
    pub fn has_places(&self) -> bool {
        matches!(self, Self::Block(_, shape, _) if shape.source().is_none())
    }

    /// Returns the slot of the block, or of the missing block, that this key is about. `None` for other keys.
    pub fn block_slot(&self) -> Option<Slot> {
        match self {
            Self::Block(slot, ..) | Self::NoBlock(slot) | Self::NotYet(slot, _) => Some(*slot),
            _ => None,
        }
    }
}

/// The plan for one query: the keys to look up, the upstream call, and the class of the answer.
#[derive(Debug, Clone)]
pub struct LookupPlan {
    pub key: Key,
    /// A second key under which the answer may be stored. For a block, it is the key of the error that the block
    /// is missing. For accounts, it is the key of another form that serves the caller. If an account is stored in
    /// both forms, the entry of the higher slot is served. For other methods, it is the key of an answer that proves to
    /// be final.
    pub alternate_key: Option<Key>,
    /// The upstream call, without the caller's minContextSlot.
    pub upstream: Query,
    /// The class of an answer. The error that a block is missing gets another class.
    pub class: Class,
    /// The encoding that the caller asked for. `None` for a slice, and for queries that are not about accounts.
    pub asked: Option<AccountEncoding>,
}

impl LookupPlan {
    /// Creates the plan for `query`. `frontier` has the newest known slots, and `sizes` the known sizes of accounts.
    pub fn new(query: &Query, frontier: &Frontier, sizes: &Sizes) -> Self {
        let mut upstream = query.clone().with_min_context_slot(None);
        let (key, class) = match &mut upstream {
            Query::Block(block) => return Self::block(*block, frontier.slot(Commitment::Finalized)),
            Query::Account(q) => {
                let AccountQuery { pubkey, form, commitment, .. } = *q;
                q.form = forms::fetch_form(form, sizes.of(&pubkey));
                let keys = account_keys(form, q.form, |form| Key::Account(pubkey, form, commitment));
                return Self::accounts(upstream, keys, form, commitment);
            }
            Query::Accounts(q) => {
                let (pubkeys, form, commitment) = (&q.pubkeys, q.form, q.commitment);
                let fetched = forms::fetch_form(form, sizes.of_all(pubkeys));
                let key_of = |form| Key::Accounts(Arc::clone(pubkeys), form, commitment);
                let keys = account_keys(form, fetched, key_of);
                q.form = fetched;
                return Self::accounts(upstream, keys, form, commitment);
            }
            Query::Balance(q) => (Key::Balance(q.pubkey, q.commitment), Class::Account(q.commitment)),
            Query::Supply(q) => (Key::Supply(q.pubkey, q.commitment), Class::Account(q.commitment)),
            // The account itself serves further calls.
            Query::Lamports(q) => return Self::new(&Query::Account(q.account()), frontier, sizes),
            Query::Fee(q) => (Key::Fee(q.message.clone(), q.commitment), Class::Fee(q.commitment)),
            Query::Votes(q) => (Key::Votes(*q), Class::Votes(q.commitment)),
            Query::ClusterNodes => (Key::ClusterNodes, Class::ClusterNodes),
            Query::Samples(samples) => {
                *samples = SamplesQuery { limit: ALL_SAMPLES };
                (Key::Samples, Class::Samples)
            }
            Query::Plain(call) => {
                if let Some((set, _)) = call.of_address_set() {
                    *call = set;
                }
                return Self::plain(upstream, frontier.slot(Commitment::Finalized));
            }
            _ => return Self::plain(upstream, frontier.slot(Commitment::Finalized)),
        };
        Self { key, alternate_key: None, upstream, class, asked: None }
    }

    /// Returns the plan for an answer that is kept as a node has written it. What is final is the same at every commitment,
    /// and stored without one.
    fn plain(upstream: Query, finalized: Slot) -> Self {
        let params = upstream.plain().map(|call| Arc::clone(&call.params)).unwrap_or_default();
        let (method, commitment) = (upstream.method(), upstream.commitment());
        let key = |at| Key::Plain(method, Arc::clone(&params), at, None);
        let (key, alternate_key, class) = match is_final(&upstream, finalized, None) {
            Some(true) => (key(None), None, Class::BlockFinal),
            Some(false) => (key(commitment), None, class_until_final(&upstream, None)),
            None => (key(commitment), Some(key(None)), Class::BlockFinal),
        };
        Self { key, alternate_key, upstream, class, asked: None }
    }

    pub(super) fn of_epoch(mut self, current: u64) -> Self {
        if let Key::Plain(.., epoch) = &mut self.key {
            (*epoch, self.class) = (Some(current), Class::BlockFinal);
        }
        self
    }

    fn block(block: BlockQuery, finalized: Slot) -> Self {
        let BlockQuery { slot, commitment, .. } = block;
        let is_final = slot <= finalized;
        let (asked, finality, class) = match commitment {
            Commitment::Processed | Commitment::Confirmed if !is_final => {
                (Commitment::Confirmed, Finality::Confirmed, Class::BlockConfirmed)
            }
            // A node returns a block at finalized only once the block is final.
            _ => (Commitment::Finalized, Finality::Final, Class::BlockFinal),
        };
        Self {
            key: Key::Block(slot, BlockShape::from(&block), finality),
            alternate_key: Some(if is_final { Key::NoBlock(slot) } else { Key::NotYet(slot, asked) }),
            upstream: Query::Block(BlockQuery { commitment: asked, ..block }),
            class,
            asked: None,
        }
    }

    /// Returns the keys under which an answer may be stored.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        std::iter::once(&self.key).chain(&self.alternate_key)
    }

    /// Returns the plan for what is fetched instead, because what is asked for can be made from it, and the derivation.
    /// `None` if the answer is fetched as it is asked for.
    pub(super) fn fetched_source(&self) -> Option<(Self, Derivation)> {
        let (slot, asked, finality, query) = match (&self.key, &self.upstream) {
            (Key::Block(slot, asked, finality), Query::Block(query)) => (slot, asked, finality, query),
            (_, Query::Transaction(query)) => {
                let asked = BlockShape::of_transactions(query);
                let BlockShape { encoding, max_version, .. } = asked.source()?;
                let source = Query::Transaction(query.written(encoding, max_version));
                // Whether a transaction is final, only the answer tells.
                return Some((Self::plain(source, 0), Derivation::Rewritten(asked)));
            }
            (_, Query::Plain(call)) => {
                let source = Query::Plain(call.with_all_accounts()?);
                return Some((Self::plain(source, 0), Derivation::SupplyAlone));
            }
            _ => return None,
        };
        let shape = asked.fetched_source()?;
        let BlockShape { details, encoding, rewards, max_version } = shape;
        let upstream = Query::Block(BlockQuery { details, encoding, rewards, max_version, ..*query });
        let source = Self { key: Key::Block(*slot, shape, *finality), upstream, ..self.clone() };
        Some((source, Derivation::Block(*asked)))
    }

    fn accounts(
        upstream: Query,
        (key, alternate_key): (Key, Option<Key>),
        asked: AccountForm,
        commitment: Commitment,
    ) -> Self {
        let asked = asked.slice.is_none().then_some(asked.encoding);
        Self { key, alternate_key, upstream, class: Class::Account(commitment), asked }
    }
}

/// Returns true if the answer to `query` can't change any more: it was read at finalized, or is about slots that its node
/// has finalized. `finalized` is the newest known finalized slot, and `answer` a node's reply with its text. `None` if the
/// answer alone tells.
pub(super) fn is_final(query: &Query, finalized: Slot, answer: Option<(&PoolReply, &Bytes)>) -> Option<bool> {
    let is_at_finalized = query.commitment().unwrap_or_default() == Commitment::Finalized;
    let has_finalized =
        |slot: Slot| slot <= finalized && answer.is_none_or(|(reply, _)| slot <= reply.finalized);
    match query {
        Query::Plain(PlainQuery { life: Life::Cluster, .. }) if is_at_finalized => Some(true),
        Query::Plain(PlainQuery { life: Life::Cluster, .. }) => answer.map(|_| false),
        Query::BlockTime(BlockTimeQuery { slot, .. }) => Some(has_finalized(*slot)),
        // A node that has not finalized the end leaves out what it does not know yet.
        Query::Blocks(BlocksQuery { last: Some(last), .. }) => Some(has_finalized(*last)),
        Query::Blocks(BlocksQuery { limit: Some(limit), .. }) => answer.map(|(reply, _)| {
            reply.blocks.is_some_and(|list| list.count == *limit && list.end.is_some_and(has_finalized))
        }),
        // A node may complete a confirmed transaction later.
        Query::Transaction(_) => answer.map(|(_, text)| {
            let is_complete = || {
                let meta = member::<&RawValue>(text, "meta").is_some_and(|meta| meta.get() != "null");
                meta && member::<i64>(text, "blockTime").is_some()
            };
            is_at_finalized || member(text, "slot").is_some_and(has_finalized) && is_complete()
        }),
        // At finalized a node knows the transaction before which the page begins only once that is final. At confirmed
        // the page does not tell whether it is.
        Query::Page(PageQuery { limit, has_before: true, .. }) => {
            answer.map(|(_, page)| is_at_finalized && is_full(page, *limit))
        }
        _ => Some(false),
    }
}

/// Returns the class of an answer to `query` that may still change. `result` is a node's result, if it has come.
pub(super) fn class_until_final(query: &Query, result: Option<&Bytes>) -> Class {
    let commitment = query.commitment().unwrap_or_default();
    match query {
        Query::BlockTime(_) => return Class::Uncached,
        Query::Transaction(_) => return Class::BlockConfirmed,
        // Like a block, the page changes only if confirmed blocks are dropped.
        Query::Page(PageQuery { limit, has_before: true, .. })
            if result.is_some_and(|page| is_full(page, *limit)) =>
        {
            return Class::BlockConfirmed;
        }
        _ => {}
    }
    match query.plain().map_or(Life::Never, |call| call.life) {
        Life::State => Class::Account(commitment),
        Life::Scan => Class::Scan,
        Life::Never => Class::Uncached,
        // The cache knows the epoch later, if it knows it at all.
        Life::Cluster | Life::Epoch | Life::OneSlot | Life::Final => Class::OneSlot(commitment),
    }
}

fn is_full(page: &Bytes, limit: usize) -> bool {
    elements(page).is_some_and(|page| page.len() == limit)
}

/// Returns the keys under which accounts may be stored that are fetched in the form `fetched`, for a caller who asks
/// for `asked`. `key_of` makes the key of a form.
fn account_keys(
    asked: AccountForm,
    fetched: AccountForm,
    key_of: impl Fn(AccountForm) -> Key,
) -> (Key, Option<Key>) {
    let alternate = forms::serving_forms(asked).find(|form| *form != fetched);
    (key_of(fetched), alternate.map(key_of))
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
    async fn final_and_confirmed_blocks_have_different_keys() {
        let frontier = Frontier::new(1);
        frontier.probed(frontier.era(), 0, Commitment::Finalized, 100, Instant::now());
        let plan = |slot, commitment| LookupPlan::new(&block(slot, commitment), &frontier, &Sizes::default());
        let (confirmed, finalized) = (plan(100, Commitment::Confirmed), plan(100, Commitment::Finalized));
        assert_eq!((&confirmed.key, confirmed.class), (&finalized.key, Class::BlockFinal));
        assert_eq!(confirmed.upstream.commitment(), Some(Commitment::Finalized), "goes up at finalized");
        let (confirmed, finalized) = (plan(101, Commitment::Confirmed), plan(101, Commitment::Finalized));
        assert_ne!(confirmed.key, finalized.key);
        assert_eq!((confirmed.class, finalized.class), (Class::BlockConfirmed, Class::BlockFinal));
        assert_eq!(confirmed.alternate_key, Some(Key::NotYet(101, Commitment::Confirmed)));
        assert_eq!(finalized.alternate_key, Some(Key::NotYet(101, Commitment::Finalized)));
    }
}
