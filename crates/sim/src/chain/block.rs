//! A block as the ledger keeps it.

use slotfront_rpc::methods::{Pubkey, Slot};

use super::transaction::Transaction;

/// A block: what one leader made of one slot.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) slot: Slot,
    pub(crate) parent_slot: Slot,
    /// Blocks before it; smaller than the slot by the number of skipped slots.
    pub(crate) height: u64,
    /// Unix time in seconds.
    pub(crate) time: i64,
    pub(crate) hash: [u8; 32],
    pub(crate) previous_hash: [u8; 32],
    pub(crate) transactions: Vec<Transaction>,
    pub(crate) rewards: Vec<Reward>,
    /// In how many parts an epoch's rewards are paid; only in the first block of an epoch.
    pub(crate) reward_partitions: Option<u64>,
    /// The newest confirmed slot while this block is the newest processed one.
    pub(crate) confirmed: Slot,
    /// The newest finalized slot while this block is the newest processed one.
    pub(crate) finalized: Slot,
    /// Transactions of the whole ledger up to and with this block.
    pub(crate) transaction_count: u64,
}

/// A reward that a block paid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reward {
    pub(crate) kind: RewardKind,
    pub(crate) pubkey: Pubkey,
    pub(crate) lamports: u64,
    pub(crate) post_balance: u64,
    /// The vote account's commission, for rewards of an epoch.
    pub(crate) commission_bps: Option<u16>,
}

/// The reason of a reward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RewardKind {
    /// The leader's part of the fees.
    Fee,
    /// A validator's part of an epoch's rewards.
    Voting,
    /// A delegator's part of an epoch's rewards.
    Staking,
}

impl RewardKind {
    /// The name on the wire.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Fee => "Fee",
            Self::Voting => "Voting",
            Self::Staking => "Staking",
        }
    }
}
