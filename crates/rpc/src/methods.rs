//! The eight methods that slotfront caches, and the parsing of their params into one canonical, typed [`Query`].
//!
//! This module refuses params that every node version refuses, with a node's order of checks and error texts. Errors
//! that depend on the state of a node are left to the node. Calls with the same meaning become equal queries.

pub mod message;
pub mod openrpc;

mod commitment;
mod compat;
mod description;
mod encoding;
mod get_account_info;
mod get_block;
mod get_block_height;
mod get_cluster_nodes;
mod get_epoch_info;
mod get_fee_for_message;
mod get_latest_blockhash;
mod get_multiple_accounts;
mod get_recent_performance_samples;
mod get_signature_statuses;
mod get_slot;
mod get_token_account_balance;
mod get_vote_accounts;
mod is_blockhash_valid;
mod params;
mod passthrough;
mod pubkey;
mod reserved_keys;
mod send_transaction;
mod signature;
mod subscription;
mod tip;

#[cfg(test)]
mod properties;

pub use commitment::{Commitment, PerCommitment, Slot};
pub use compat::{absent_block, shape_result};
pub use encoding::{AccountEncoding, AccountForm, BlockDetails, BlockEncoding, DataSlice};
pub use encoding::{BASE58_MAX, BASE58_TOO_LONG, BASE58_TOO_LONG_CODE};
pub use get_account_info::AccountQuery;
pub use get_block::BlockQuery;
pub use get_epoch_info::EpochInfo;
pub use get_fee_for_message::FeeQuery;
pub use get_latest_blockhash::LatestBlockhash;
pub use get_multiple_accounts::{AccountsQuery, MAX_KEYS};
pub use get_recent_performance_samples::SamplesQuery;
pub use get_signature_statuses::{MAX_SIGNATURES, SignatureStatus};
pub use get_token_account_balance::BalanceQuery;
pub use get_vote_accounts::VotesQuery;
pub use params::ParamError;
pub use passthrough::{AnyMethod, PassthroughCall, PassthroughMethod, write_method};
pub use pubkey::{Pubkey, PubkeyError};
pub use reserved_keys::is_reserved;
pub use send_transaction::SendQuery;
pub use signature::Signature;
pub use subscription::{
    Subscription, SubscriptionMethod, invalid_subscription_id, subscription_limit_reached, unsubscribed_id,
};
pub use tip::{ReadAt, TipMethod, TipQuery};

use crate::jsonrpc::Params;

/// One of the eight methods that slotfront caches.
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
    /// All eight methods, in the order of [`Method::index`].
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

    /// Returns the name in calls, metrics and settings.
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

    /// Returns the position of the method in [`Method::ALL`], for tables with one element for each method.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the method of this name. Names are case-sensitive, as on a node.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.as_str() == name)
    }
}

/// The interface to follow where Solana's documentation and nodes differ (`compat.profile`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// The behaviour of nodes, which client libraries expect.
    #[default]
    Node,
    /// The documented interface: rewards default to false, and missing accounts and blocks are `null`.
    Spec,
}

/// The validated params of a call in canonical form. Calls with the same meaning have equal queries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// A call of getBlock.
    Block(BlockQuery),
    /// A call of getMultipleAccounts.
    Accounts(AccountsQuery),
    /// A call of getAccountInfo.
    Account(AccountQuery),
    /// A call of getVoteAccounts.
    Votes(VotesQuery),
    /// A call of getTokenAccountBalance.
    Balance(BalanceQuery),
    /// A call of getFeeForMessage.
    Fee(FeeQuery),
    /// A call of getRecentPerformanceSamples.
    Samples(SamplesQuery),
    /// A call of getClusterNodes.
    ClusterNodes,
}

impl Query {
    /// Validates the `params` of `method`, and fills in the defaults of `profile`.
    ///
    /// # Errors
    /// Every node version refuses the params. The returned error is the one that a node returns.
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

    /// Returns the method of the call.
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

    /// Returns the requested commitment. `None` for getRecentPerformanceSamples and getClusterNodes, which have no
    /// commitment.
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

    /// Returns true if a result of the method has a `context`, which holds the slot of the result.
    pub fn has_context(&self) -> bool {
        matches!(self, Self::Account(_) | Self::Accounts(_) | Self::Balance(_) | Self::Fee(_))
    }

    /// Returns the caller's `minContextSlot`, if the method supports it.
    pub fn min_context_slot(&self) -> Option<Slot> {
        match self {
            Self::Accounts(q) => q.min_context_slot,
            Self::Account(q) => q.min_context_slot,
            Self::Fee(q) => q.min_context_slot,
            _ => None,
        }
    }

    /// Returns the call with `slot` as its `minContextSlot`. A call whose method supports none is returned unchanged.
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

    /// Returns the canonical params as JSON text for upstream calls, with every default written out.
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
