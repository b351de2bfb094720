//! The methods that slotfront answers, and the parsing of their params into one canonical, typed [`Query`].
//!
//! This module refuses params that every node version refuses, with a node's order of checks and error texts. Errors
//! that depend on the state of a node are left to the node. Calls with the same meaning become equal queries.

pub mod message;
pub mod openrpc;

mod any_method;
mod commitment;
mod compat;
mod constants;
mod description;
mod encoding;
mod extended;
mod forwarded;
mod get_account_info;
mod get_balance;
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
mod history;
mod is_blockhash_valid;
mod leaders;
mod of_nodes;
mod params;
mod plain;
mod program_scan;
mod pubkey;
mod reserved_keys;
pub mod rules;
mod scans;
mod send_transaction;
mod signature;
mod subscription;
mod tip;

#[cfg(test)]
mod properties;

pub use any_method::{AnyMethod, ListedMethod, write_method};
pub use commitment::{Commitment, PerCommitment, Slot};
pub use compat::{absent_block, shape_result};
pub use constants::EpochSchedule;
pub use encoding::{AccountEncoding, AccountForm, BlockDetails, BlockEncoding, DataSlice};
pub use encoding::{BASE58_MAX, BASE58_TOO_LONG, BASE58_TOO_LONG_CODE};
pub use extended::{ExtendedQuery, UnknownMembers};
pub use forwarded::ForwardedCall;
pub use get_account_info::AccountQuery;
pub use get_balance::LamportsQuery;
pub use get_block::BlockQuery;
pub use get_epoch_info::EpochInfo;
pub use get_fee_for_message::FeeQuery;
pub use get_latest_blockhash::LatestBlockhash;
pub use get_multiple_accounts::{AccountsQuery, MAX_KEYS};
pub use get_recent_performance_samples::SamplesQuery;
pub use get_signature_statuses::{MAX_SIGNATURES, SignatureStatus};
pub use get_token_account_balance::BalanceQuery;
pub use get_vote_accounts::VotesQuery;
pub use history::{BlockTimeQuery, BlocksQuery, PageQuery, TransactionQuery};
pub use params::ParamError;
pub use plain::{Life, PlainQuery, ResultKind};
pub use program_scan::ProgramScan;
pub use pubkey::{Pubkey, PubkeyError};
pub use reserved_keys::is_reserved;
pub use rules::{Answerer, Part, Rules};
pub use send_transaction::SendQuery;
pub use signature::Signature;
pub use subscription::{
    Subscription, SubscriptionMethod, invalid_subscription_id, subscription_limit_reached, unsubscribed_id,
};
pub use tip::{ReadAt, TipMethod, TipQuery};

use crate::jsonrpc::Params;
use description::Description;

named! {
    /// A group of methods, by which a plan opens them.
    pub enum Group {
        /// The methods about the state of accounts, of the cluster and of its nodes, and single blocks.
        Core = "core",
        /// The methods whose answers never go back.
        Tip = "tip",
        /// The methods about past blocks and transactions.
        History = "history",
        /// The methods that find the token accounts of an owner or a delegate, as every wallet asks for them.
        Owners = "owners",
        /// The methods for which a node walks over many accounts.
        Scans = "scans",
        /// The subscriptions over a WebSocket.
        Subscriptions = "subscriptions",
        /// The simulation of transactions.
        Simulation = "simulation",
        /// The methods that the operator lists, unless they are listed in another group.
        Provider = "provider",
    }
}

impl Group {
    /// Returns the methods of the group.
    pub fn methods(self) -> impl Iterator<Item = AnyMethod> {
        AnyMethod::all().filter(move |method| method.group() == Some(self))
    }

    /// Returns the rules of a method that is listed in this group.
    const fn rules_of_listed(self) -> &'static Rules {
        match self {
            Self::Core => &rules::AMOUNT,
            Self::History => &rules::LISTED_HISTORY,
            Self::Owners => &rules::OWNERS,
            Self::Scans => &rules::SCAN,
            _ => &rules::PROVIDER,
        }
    }
}

/// What the table says of a method.
struct Row {
    group: Group,
    rules: Rules,
    parse: fn(&Params, Profile) -> Result<Query, ParamError>,
    describe: fn() -> Description,
}

/// Makes the enum of the methods from their table: the name, the group, the rules, the parser of the params, and the
/// description.
macro_rules! methods {
    ($($method:ident, $name:literal, $group:ident, $rules:ident, $parse:expr, $describe:path;)+) => {
        named! {
            /// A method that slotfront answers through its cache.
            pub enum Method { $(#[doc = concat!("`", $name, "`")] $method = $name,)+ }
        }

        /// The rows of the table, by [`Method::index`].
        static ROWS: [Row; Method::ALL.len()] =
            [$(Row { group: Group::$group, rules: rules::$rules, parse: $parse, describe: $describe },)+];
    };
}

methods! {
    GetBlock, "getBlock", Core, BLOCK, |p, profile| BlockQuery::parse(p, profile).map(Query::Block), get_block::describe;
    GetMultipleAccounts, "getMultipleAccounts", Core, ACCOUNTS, |p, _| AccountsQuery::parse(p).map(Query::Accounts), get_multiple_accounts::describe;
    GetAccountInfo, "getAccountInfo", Core, ACCOUNT, |p, _| AccountQuery::parse(p).map(Query::Account), get_account_info::describe;
    GetVoteAccounts, "getVoteAccounts", Core, VOTES, |p, _| VotesQuery::parse(p).map(Query::Votes), get_vote_accounts::describe;
    GetTokenAccountBalance, "getTokenAccountBalance", Core, AMOUNT, |p, _| BalanceQuery::parse(p).map(Query::Balance), get_token_account_balance::describe;
    GetFeeForMessage, "getFeeForMessage", Core, AMOUNT, |p, _| FeeQuery::parse(p).map(Query::Fee), get_fee_for_message::describe;
    GetRecentPerformanceSamples, "getRecentPerformanceSamples", Core, OF_NODE, |p, _| SamplesQuery::parse(p).map(Query::Samples), get_recent_performance_samples::describe;
    GetClusterNodes, "getClusterNodes", Core, OF_NODE, |p, _| get_cluster_nodes::parse(p).map(|()| Query::ClusterNodes), get_cluster_nodes::describe;
    GetBalance, "getBalance", Core, ACCOUNT, |p, _| LamportsQuery::parse(p).map(Query::Lamports), get_balance::describe;
    GetTokenSupply, "getTokenSupply", Core, AMOUNT, |p, _| BalanceQuery::parse(p).map(Query::Supply), get_token_account_balance::describe_supply;
    GetGenesisHash, "getGenesisHash", Core, STATE, |p, _| plain::bare(Method::GetGenesisHash, p, ResultKind::Text, Life::Cluster), constants::describe_genesis_hash;
    GetEpochSchedule, "getEpochSchedule", Core, STATE, |p, _| constants::epoch_schedule(p), constants::describe_epoch_schedule;
    GetInflationGovernor, "getInflationGovernor", Core, STATE, |p, _| constants::inflation_governor(p), constants::describe_inflation_governor;
    GetInflationRate, "getInflationRate", Core, STATE, |p, _| plain::bare(Method::GetInflationRate, p, ResultKind::Object, Life::Epoch), constants::describe_inflation_rate;
    GetStakeMinimumDelegation, "getStakeMinimumDelegation", Core, STATE, |p, _| plain::within_context(Method::GetStakeMinimumDelegation, p, ResultKind::Context, Life::Epoch), constants::describe_stake_minimum_delegation;
    GetMinimumBalanceForRentExemption, "getMinimumBalanceForRentExemption", Core, STATE, |p, _| constants::rent_exemption(p), constants::describe_rent_exemption;
    GetLeaderSchedule, "getLeaderSchedule", Core, LEADERS, |p, _| leaders::leader_schedule(p), leaders::describe_leader_schedule;
    GetSlotLeaders, "getSlotLeaders", Core, STATE, |p, _| leaders::slot_leaders(p), leaders::describe_slot_leaders;
    GetSlotLeader, "getSlotLeader", Core, STATE, |p, _| plain::within_context(Method::GetSlotLeader, p, ResultKind::Text, Life::OneSlot), leaders::describe_slot_leader;
    GetHealth, "getHealth", Core, OF_POOL, |p, _| plain::bare(Method::GetHealth, p, ResultKind::Text, Life::Never), of_nodes::describe_health;
    GetVersion, "getVersion", Core, OF_POOL, |p, _| plain::bare(Method::GetVersion, p, ResultKind::Object, Life::Never), of_nodes::describe_version;
    GetFirstAvailableBlock, "getFirstAvailableBlock", Core, OF_POOL, |p, _| plain::bare(Method::GetFirstAvailableBlock, p, ResultKind::Number, Life::Never), of_nodes::describe_first_available_block;
    MinimumLedgerSlot, "minimumLedgerSlot", Core, OF_POOL, |p, _| plain::bare(Method::MinimumLedgerSlot, p, ResultKind::Number, Life::Never), of_nodes::describe_minimum_ledger_slot;
    GetRecentPrioritizationFees, "getRecentPrioritizationFees", Core, OF_NODE, |p, _| of_nodes::prioritization_fees(p), of_nodes::describe_prioritization_fees;
    GetTransactionCount, "getTransactionCount", Core, STATE, |p, _| plain::within_context(Method::GetTransactionCount, p, ResultKind::Number, Life::OneSlot), of_nodes::describe_transaction_count;
    GetBlockProduction, "getBlockProduction", Core, STATE, |p, _| of_nodes::block_production(p), of_nodes::describe_block_production;
    GetBlockCommitment, "getBlockCommitment", Core, STATE, |p, _| of_nodes::block_commitment(p), of_nodes::describe_block_commitment;
    GetHighestSnapshotSlot, "getHighestSnapshotSlot", Core, OF_NODE, |p, _| plain::bare(Method::GetHighestSnapshotSlot, p, ResultKind::Object, Life::Never), of_nodes::describe_highest_snapshot_slot;
    GetMaxRetransmitSlot, "getMaxRetransmitSlot", Core, OF_NODE, |p, _| plain::bare(Method::GetMaxRetransmitSlot, p, ResultKind::Number, Life::Never), of_nodes::describe_max_retransmit_slot;
    GetMaxShredInsertSlot, "getMaxShredInsertSlot", Core, OF_NODE, |p, _| plain::bare(Method::GetMaxShredInsertSlot, p, ResultKind::Number, Life::Never), of_nodes::describe_max_shred_insert_slot;
    GetIdentity, "getIdentity", Core, OF_NODE, |p, _| plain::bare(Method::GetIdentity, p, ResultKind::Object, Life::Never), of_nodes::describe_identity;
    GetBlockTime, "getBlockTime", History, BLOCK_TIME, |p, _| history::block_time(p), history::describe_block_time;
    GetBlocks, "getBlocks", History, BLOCKS, |p, _| history::blocks(p), history::describe_blocks;
    GetBlocksWithLimit, "getBlocksWithLimit", History, BLOCKS, |p, _| history::blocks_with_limit(p), history::describe_blocks_with_limit;
    GetTransaction, "getTransaction", History, TRANSACTION, |p, _| history::transaction(p), history::describe_transaction;
    GetSignaturesForAddress, "getSignaturesForAddress", History, PAGE, |p, _| history::signatures(p), history::describe_signatures;
    GetInflationReward, "getInflationReward", History, REWARD, |p, _| constants::inflation_reward(p), constants::describe_inflation_reward;
    GetTokenAccountsByOwner, "getTokenAccountsByOwner", Owners, OWNERS, |p, _| scans::by_owner(p), scans::describe_by_owner;
    GetTokenAccountsByDelegate, "getTokenAccountsByDelegate", Owners, OWNERS, |p, _| scans::by_delegate(p), scans::describe_by_delegate;
    GetProgramAccounts, "getProgramAccounts", Scans, SCAN, |p, _| scans::program_accounts(p), scans::describe_program_accounts;
    GetTokenLargestAccounts, "getTokenLargestAccounts", Scans, SCAN, |p, _| scans::token_largest(p), scans::describe_token_largest;
    GetLargestAccounts, "getLargestAccounts", Scans, SCAN, |p, _| scans::largest(p), scans::describe_largest;
    GetSupply, "getSupply", Scans, SCAN, |p, _| scans::supply(p), scans::describe_supply;
}

impl Method {
    /// Returns the group by which a plan opens the method.
    pub const fn group(self) -> Group {
        ROWS[self.index()].group
    }

    /// Returns the rules of the method.
    pub const fn rules(self) -> &'static Rules {
        &ROWS[self.index()].rules
    }

    /// Returns the part of the `OpenRPC` document about the method.
    fn describe(self) -> Description {
        (ROWS[self.index()].describe)()
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
    /// A call of getTokenSupply: the amount of a mint.
    Supply(BalanceQuery),
    /// A call of getBalance.
    Lamports(LamportsQuery),
    /// A call of getFeeForMessage.
    Fee(FeeQuery),
    /// A call of getRecentPerformanceSamples.
    Samples(SamplesQuery),
    /// A call of getClusterNodes.
    ClusterNodes,
    /// A call of getTransaction.
    Transaction(TransactionQuery),
    /// A call of getBlocks or getBlocksWithLimit.
    Blocks(BlocksQuery),
    /// A call of getBlockTime.
    BlockTime(BlockTimeQuery),
    /// A call of getSignaturesForAddress.
    Page(PageQuery),
    /// A call of any other method.
    Plain(PlainQuery),
    /// A call with members that slotfront does not know.
    Extended(ExtendedQuery),
}

/// The versions of transactions that there are, or that are planned.
const VERSIONS: [u8; 2] = [0, 1];

/// The call of a query that is kept as a node gets it, borrowed as the query is.
macro_rules! plain {
    ($query:expr) => {
        match $query {
            Query::Plain(call)
            | Query::Extended(ExtendedQuery { call, .. })
            | Query::Transaction(TransactionQuery { call, .. })
            | Query::Blocks(BlocksQuery { call, .. })
            | Query::BlockTime(BlockTimeQuery { call, .. })
            | Query::Page(PageQuery { call, .. }) => Some(call),
            _ => None,
        }
    };
}

impl Query {
    /// Validates the `params` of `method`, and fills in the defaults of `profile`.
    ///
    /// # Errors
    /// Every node version refuses the params. The returned error is the one that a node returns.
    pub fn parse(method: Method, params: &Params, profile: Profile) -> Result<Self, ParamError> {
        let query = (ROWS[method.index()].parse)(params, profile)?;
        Ok(extended::with_unknown_members(query, params))
    }

    /// Returns the call as a node gets it, if an answer is kept as the node has written it. `None` for the methods with a
    /// type of their own.
    pub fn plain(&self) -> Option<&PlainQuery> {
        plain!(self)
    }

    /// Returns the call with each of the versions of transactions that there are as the highest one that it accepts, if it
    /// accepts higher ones.
    pub fn up_to_lower_versions(&self) -> impl Iterator<Item = Self> {
        VERSIONS.into_iter().filter_map(|version| match self {
            Self::Block(q) if q.max_version > Some(version) => {
                Some(Self::Block(BlockQuery { max_version: Some(version), ..*q }))
            }
            Self::Transaction(q) if q.max_version > Some(version) => {
                Some(Self::Transaction(q.written(q.encoding, Some(version))))
            }
            _ => None,
        })
    }

    fn plain_mut(&mut self) -> Option<&mut PlainQuery> {
        plain!(self)
    }

    /// Returns what the call asks for, apart from members that slotfront does not know.
    pub fn known(&self) -> &Self {
        if let Self::Extended(extended) = self { &extended.known } else { self }
    }

    /// Returns the method of the call.
    pub fn method(&self) -> Method {
        match self {
            Self::Block(_) => Method::GetBlock,
            Self::Accounts(_) => Method::GetMultipleAccounts,
            Self::Account(_) => Method::GetAccountInfo,
            Self::Votes(_) => Method::GetVoteAccounts,
            Self::Balance(_) => Method::GetTokenAccountBalance,
            Self::Supply(_) => Method::GetTokenSupply,
            Self::Lamports(_) => Method::GetBalance,
            Self::Fee(_) => Method::GetFeeForMessage,
            Self::Samples(_) => Method::GetRecentPerformanceSamples,
            Self::ClusterNodes => Method::GetClusterNodes,
            Self::Transaction(_) => Method::GetTransaction,
            Self::BlockTime(_) => Method::GetBlockTime,
            Self::Page(_) => Method::GetSignaturesForAddress,
            Self::Blocks(BlocksQuery { call, .. })
            | Self::Extended(ExtendedQuery { call, .. })
            | Self::Plain(call) => call.method,
        }
    }

    /// Returns the requested commitment. `None` for a method that has none, such as getClusterNodes.
    pub fn commitment(&self) -> Option<Commitment> {
        match self {
            Self::Block(q) => Some(q.commitment),
            Self::Accounts(q) => Some(q.commitment),
            Self::Account(q) => Some(q.commitment),
            Self::Votes(q) => Some(q.commitment),
            Self::Balance(q) | Self::Supply(q) => Some(q.commitment),
            Self::Lamports(q) => Some(q.commitment),
            Self::Fee(q) => Some(q.commitment),
            _ => self.plain()?.commitment,
        }
    }

    /// Returns true if a result of the method has a `context`, which holds the slot of the result.
    pub fn has_context(&self) -> bool {
        match self {
            Self::Account(_)
            | Self::Accounts(_)
            | Self::Balance(_)
            | Self::Supply(_)
            | Self::Lamports(_)
            | Self::Fee(_) => true,
            _ => self.plain().is_some_and(|call| call.result == ResultKind::Context),
        }
    }

    /// Returns the caller's `minContextSlot`, if the method supports it.
    pub fn min_context_slot(&self) -> Option<Slot> {
        match self {
            Self::Accounts(q) => q.min_context_slot,
            Self::Account(q) => q.min_context_slot,
            Self::Fee(q) => q.min_context_slot,
            Self::Lamports(q) => q.min_context_slot,
            _ => self.plain()?.min_context_slot,
        }
    }

    /// Returns the call with `slot` as its `minContextSlot`. A call whose method supports none is returned unchanged.
    #[must_use]
    pub fn with_min_context_slot(mut self, slot: Option<Slot>) -> Self {
        match &mut self {
            Self::Accounts(q) => q.min_context_slot = slot,
            Self::Account(q) => q.min_context_slot = slot,
            Self::Fee(q) => q.min_context_slot = slot,
            Self::Lamports(q) => q.min_context_slot = slot,
            _ => {
                if let Some(call) = self.plain_mut().filter(|call| call.takes_min_slot) {
                    call.min_context_slot = slot;
                }
            }
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
            Self::Balance(q) | Self::Supply(q) => q.params_json(),
            Self::Lamports(q) => q.params_json(),
            Self::Fee(q) => q.params_json(),
            Self::Samples(q) => q.params_json(),
            Self::ClusterNodes => get_cluster_nodes::params_json(),
            _ => return self.plain().map(PlainQuery::params_json).unwrap_or_default(),
        }
        .to_string()
    }
}
