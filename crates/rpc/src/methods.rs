//! The method table: eight methods, and how each one's params become one canonical, typed [`Query`].
//!
//! This module refuses what every node version refuses, in a node's order and words. A judgement that depends
//! on a node's state is left to the node. Two calls that mean the same become equal queries.

pub mod message;
pub mod openrpc;

mod commitment;
mod compat;
mod description;
mod encoding;
mod further;
mod get_account_info;
mod get_block;
mod get_cluster_nodes;
mod get_fee_for_message;
mod get_multiple_accounts;
mod get_recent_performance_samples;
mod get_token_account_balance;
mod get_vote_accounts;
mod params;
mod pubkey;

#[cfg(test)]
mod properties;

pub use commitment::{Commitment, PerCommitment, Slot};
pub use compat::{absent_block, shape_result};
pub use encoding::{AccountEncoding, AccountForm, BlockDetails, BlockEncoding, DataSlice};
pub use encoding::{BASE58_MAX, BASE58_TOO_LONG, BASE58_TOO_LONG_CODE};
pub use further::{AnyMethod, Forwarded, Further, write_method};
pub use get_account_info::AccountQuery;
pub use get_block::BlockQuery;
pub use get_fee_for_message::FeeQuery;
pub use get_multiple_accounts::{AccountsQuery, MAX_KEYS};
pub use get_recent_performance_samples::SamplesQuery;
pub use get_token_account_balance::BalanceQuery;
pub use get_vote_accounts::VotesQuery;
pub use params::ParamError;
pub use pubkey::{Pubkey, PubkeyError};

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

/// The behaviour to follow if the written interface and nodes differ (`compat.profile`).
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

impl Query {
    /// Validates `params` for `method`; defaults are filled in as `profile` says.
    ///
    /// # Errors
    /// What every node version refuses, in a node's order and words.
    pub fn parse(method: Method, params: &Params, profile: Profile) -> Result<Self, ParamError> {
        match method {
            Method::GetBlock => BlockQuery::parse(params, profile).map(Self::Block),
            Method::GetMultipleAccounts => AccountsQuery::parse(params).map(Self::Accounts),
            Method::GetAccountInfo => AccountQuery::parse(params).map(Self::Account),
            Method::GetVoteAccounts => VotesQuery::parse(params).map(Self::Votes),
            Method::GetTokenAccountBalance => BalanceQuery::parse(params).map(Self::Balance),
            Method::GetFeeForMessage => FeeQuery::parse(params).map(Self::Fee),
            Method::GetRecentPerformanceSamples => SamplesQuery::parse(params).map(Self::Samples),
            Method::GetClusterNodes => get_cluster_nodes::parse(params).map(|()| Self::ClusterNodes),
        }
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

    /// Returns true if the method's results carry a context with the slot that they show.
    pub fn has_context(&self) -> bool {
        matches!(self, Self::Account(_) | Self::Accounts(_) | Self::Balance(_) | Self::Fee(_))
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

    /// Returns the call with another condition on the answer's slot. Unchanged if the method honours none.
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
        match self {
            Self::Block(q) => q.params_json(),
            Self::Accounts(q) => q.params_json(),
            Self::Account(q) => q.params_json(),
            Self::Votes(q) => q.params_json(),
            Self::Balance(q) => q.params_json(),
            Self::Fee(q) => q.params_json(),
            Self::Samples(q) => q.params_json(),
            Self::ClusterNodes => get_cluster_nodes::params_json(),
        }
        .to_string()
    }
}
