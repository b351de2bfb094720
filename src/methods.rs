//! The method table: eight methods, and how each one's params become one canonical, typed [`Query`].
//!
//! What every node version refuses is refused here, in a node's order and words, and no node is asked. What depends
//! on a node's state is never judged here. Two calls that mean the same become equal queries.

pub mod commitment;
pub mod encoding;
pub mod pubkey;

use std::sync::Arc;

use bytes::Bytes;

pub use commitment::{Commitment, PerCommitment, Slot};
pub use encoding::{AccountEncoding, AccountForm, BlockDetails, BlockEncoding, DataSlice};
pub use pubkey::Pubkey;

use crate::jsonrpc::Params;

/// One of the eight methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// `getBlock [slot, config?]`
    GetBlock,
    /// `getMultipleAccounts [[pubkey…], config?]`
    GetMultipleAccounts,
    /// `getAccountInfo [pubkey, config?]`
    GetAccountInfo,
    /// `getVoteAccounts [config?]`
    GetVoteAccounts,
    /// `getTokenAccountBalance [pubkey, commitment?]`
    GetTokenAccountBalance,
    /// `getFeeForMessage [message, config?]`
    GetFeeForMessage,
    /// `getRecentPerformanceSamples [limit?]`
    GetRecentPerformanceSamples,
    /// `getClusterNodes []`
    GetClusterNodes,
}

impl Method {
    /// All eight; a method's position is [`Method::index`].
    pub const ALL: [Self; 8] = [
        Self::GetBlock,
        Self::GetMultipleAccounts,
        Self::GetAccountInfo,
        Self::GetVoteAccounts,
        Self::GetTokenAccountBalance,
        Self::GetFeeForMessage,
        Self::GetRecentPerformanceSamples,
        Self::GetClusterNodes,
    ];

    /// The name on the wire, in metrics and in settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GetBlock => "getBlock",
            Self::GetMultipleAccounts => "getMultipleAccounts",
            Self::GetAccountInfo => "getAccountInfo",
            Self::GetVoteAccounts => "getVoteAccounts",
            Self::GetTokenAccountBalance => "getTokenAccountBalance",
            Self::GetFeeForMessage => "getFeeForMessage",
            Self::GetRecentPerformanceSamples => "getRecentPerformanceSamples",
            Self::GetClusterNodes => "getClusterNodes",
        }
    }

    /// Position in a table of eight.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Reads the exact wire name (case matters, as on a node).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.as_str() == name)
    }
}

/// Where api-spec and nodes differ, which of the two is followed (`compat.profile`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// As a node answers: what client libraries are built on.
    #[default]
    Node,
    /// As the written interface says: rewards default to false, a missing account and an absent block are `null`.
    Spec,
}

/// A call's params, validated and in canonical form: two calls that mean the same are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// getBlock
    Block(BlockQuery),
    /// getMultipleAccounts
    Accounts(AccountsQuery),
    /// getAccountInfo
    Account(AccountQuery),
    /// getVoteAccounts
    Votes(VotesQuery),
    /// getTokenAccountBalance
    Balance(BalanceQuery),
    /// getFeeForMessage
    Fee(FeeQuery),
    /// getRecentPerformanceSamples
    Samples(SamplesQuery),
    /// getClusterNodes
    ClusterNodes,
}

/// getBlock: one block by its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockQuery {
    /// Which block.
    pub slot: Slot,
    /// How much of its transactions.
    pub details: BlockDetails,
    /// How transactions are written; canonical: `Json` unless details are `Full`, since others ignore it.
    pub encoding: BlockEncoding,
    /// Whether rewards are included.
    pub rewards: bool,
    /// The highest transaction version that the caller reads; `None` is legacy only. Canonical: `None` for details
    /// `Signatures` and `None`, which carry no version.
    pub max_version: Option<u8>,
    /// Confirmed or finalized; processed is refused.
    pub commitment: Commitment,
}

/// getAccountInfo: one account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AccountQuery {
    /// Whose account.
    pub pubkey: Pubkey,
    /// The form of its data. Canonical: as sent, a slice kept for every encoding.
    pub form: AccountForm,
    /// At which commitment.
    pub commitment: Commitment,
    /// The caller's condition on the answer's slot; never part of a cache key.
    pub min_context_slot: Option<Slot>,
}

/// getMultipleAccounts: up to 100 accounts, in the caller's order, duplicates kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountsQuery {
    /// Whose accounts.
    pub pubkeys: Arc<[Pubkey]>,
    /// The form of their data.
    pub form: AccountForm,
    /// At which commitment.
    pub commitment: Commitment,
    /// The caller's condition on the answer's slot; never part of a cache key.
    pub min_context_slot: Option<Slot>,
}

/// getVoteAccounts: the validators' vote accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VotesQuery {
    /// At which commitment.
    pub commitment: Commitment,
    /// Only this vote account.
    pub vote_pubkey: Option<Pubkey>,
    /// Whether unstaked delinquents are listed.
    pub keep_unstaked_delinquents: bool,
    /// Slots behind which a validator counts as delinquent; canonical default 128.
    pub delinquent_slot_distance: u64,
}

/// getTokenAccountBalance: one token account's balance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BalanceQuery {
    /// Which token account.
    pub pubkey: Pubkey,
    /// At which commitment.
    pub commitment: Commitment,
}

/// getFeeForMessage: the fee that the cluster would charge for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeeQuery {
    /// The message's bytes, decoded from base64.
    pub message: Bytes,
    /// At which commitment.
    pub commitment: Commitment,
    /// The caller's condition on the answer's slot; never part of a cache key.
    pub min_context_slot: Option<Slot>,
}

/// getRecentPerformanceSamples: the newest samples of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SamplesQuery {
    /// How many, 0 to 720; canonical default 720.
    pub limit: u16,
}

/// Why params are refused: a node's code, words and data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParamError {
    /// -32602 for all of today's methods.
    pub code: i32,
    /// The node's words.
    pub message: String,
    /// The node's `data`, a string where there is one.
    pub data: Option<String>,
}

impl Query {
    /// Validates `params` for `method`; defaults are filled in as `profile` says.
    ///
    /// # Errors
    /// What every node version refuses, in a node's order and words.
    pub fn parse(_method: Method, _params: &Params, _profile: Profile) -> Result<Self, ParamError> {
        unimplemented!()
    }

    /// The method that this is a call of.
    pub fn method(&self) -> Method {
        match self {
            Self::Block(_) => Method::GetBlock,
            Self::Accounts(_) => Method::GetMultipleAccounts,
            Self::Account(_) => Method::GetAccountInfo,
            Self::Votes(_) => Method::GetVoteAccounts,
            Self::Balance(_) => Method::GetTokenAccountBalance,
            Self::Fee(_) => Method::GetFeeForMessage,
            Self::Samples(_) => Method::GetRecentPerformanceSamples,
            Self::ClusterNodes => Method::GetClusterNodes,
        }
    }

    /// The commitment asked for; samples and cluster nodes have none.
    pub fn commitment(&self) -> Option<Commitment> {
        match self {
            Self::Block(q) => Some(q.commitment),
            Self::Accounts(q) => Some(q.commitment),
            Self::Account(q) => Some(q.commitment),
            Self::Votes(q) => Some(q.commitment),
            Self::Balance(q) => Some(q.commitment),
            Self::Fee(q) => Some(q.commitment),
            Self::Samples(_) | Self::ClusterNodes => None,
        }
    }

    /// The caller's condition on the answer's slot, where the method honours one.
    pub fn min_context_slot(&self) -> Option<Slot> {
        match self {
            Self::Accounts(q) => q.min_context_slot,
            Self::Account(q) => q.min_context_slot,
            Self::Fee(q) => q.min_context_slot,
            _ => None,
        }
    }

    /// The same call with another condition on the answer's slot; unchanged where the method honours none.
    #[must_use]
    pub fn with_min_context_slot(mut self, slot: Option<Slot>) -> Self {
        match &mut self {
            Self::Accounts(q) => q.min_context_slot = slot,
            Self::Account(q) => q.min_context_slot = slot,
            Self::Fee(q) => q.min_context_slot = slot,
            _ => {}
        }
        self
    }

    /// The params in canonical form as JSON text, as they are sent upstream: every default spelt out.
    pub fn params_json(&self) -> String {
        unimplemented!()
    }
}
