//! A block of the ledger.

use slotfront_rpc::methods::{Pubkey, Slot};

use super::transaction::Transaction;

/// A block: the result of one leader in one slot.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) slot: Slot,
    pub(crate) parent_slot: Slot,
    /// The block height: the number of earlier blocks. Before the simulation began, one slot in 20 counts as skipped.
    pub(crate) height: u64,
    /// The Unix time in seconds.
    pub(crate) time: i64,
    pub(crate) hash: [u8; 32],
    pub(crate) previous_hash: [u8; 32],
    pub(crate) transactions: Vec<Transaction>,
    pub(crate) rewards: Vec<Reward>,
    /// The number of partitions in which an epoch's rewards are paid. `None` unless the block is the first of an epoch.
    pub(crate) reward_partitions: Option<u64>,
    /// The newest confirmed slot while this block is the newest processed one.
    pub(crate) confirmed: Slot,
    /// The newest finalized slot while this block is the newest processed one.
    pub(crate) finalized: Slot,
    /// The number of transactions in the ledger up to and including this block.
    pub(crate) transaction_count: u64,
}

/// A reward that the block paid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reward {
    pub(crate) kind: RewardKind,
    pub(crate) pubkey: Pubkey,
    pub(crate) lamports: u64,
    pub(crate) post_balance: u64,
    /// The commission of the vote account, in hundredths of a percent. `None` for a reward of fees.
    pub(crate) commission_bps: Option<u16>,
}

/// The reason for which an account gets a reward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RewardKind {
    /// The leader's share of the fees.
    Fee,
    /// A validator's share of an epoch's rewards.
    Voting,
    /// A delegator's share of an epoch's rewards.
    Staking,
}

impl RewardKind {
    /// Returns the `rewardType` in the answers to getBlock.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Fee => "Fee",
            Self::Voting => "Voting",
            Self::Staking => "Staking",
        }
    }
}
