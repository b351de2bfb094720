//! The simulated chain. Each slot has a block of its leader, or no block. Every account has a state after each slot.
//!
//! The chain knows no nodes and no JSON. It depends only on its settings and on the transactions that clients send, so
//! without those, chains with equal settings are equal at equal slots. Transactions are executed on the state of the parent block. Balances, fees, rewards and
//! accounts therefore always agree.

pub(crate) mod accounts;
pub(crate) mod address;
pub(crate) mod bank;
pub(crate) mod block;
pub(crate) mod cluster_addresses;
pub(crate) mod epochs;
pub(crate) mod error;
pub(crate) mod fee;
mod genesis;
pub(crate) mod hidden;
pub(crate) mod instruction;
pub(crate) mod keyring;
pub(crate) mod layout;
pub(crate) mod mempool;
pub(crate) mod message;
pub(crate) mod paced;
pub(crate) mod samples;
pub(crate) mod signed;
pub(crate) mod slot;
#[cfg(test)]
mod tests;
pub(crate) mod token;
mod traffic;
pub(crate) mod transaction;
pub(crate) mod vote;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use accounts::{Account, AccountHistory};
use block::Block;
use cluster_addresses::ClusterAddresses;
use epochs::Epochs;
use mempool::Mempool;
use paced::PacedAccounts;
use samples::Samples;
use slotfront_rpc::methods::{Pubkey, Slot};

use crate::draw::Draw;

/// The distance, in blocks, from the newest block to the newest finalized one: a full tower of votes.
const FINAL_DEPTH: usize = 31;
/// The number of newest blocks whose hashes getFeeForMessage accepts as the blockhash of a message.
pub(crate) const BLOCKHASH_QUEUE: usize = 300;
/// The number of newest slots for which the states of all accounts are kept. It covers the maximum lag of a node, the
/// distance to its finalized slot, and a margin.
pub(crate) const STATE_SLOTS: u64 = 384;
/// The maximum number of consecutive slots without a block.
const MAX_SKIPPED: u64 = 4;

/// The settings of a chain.
#[derive(Debug, Clone)]
pub(crate) struct GenesisConfig {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) first_slot: Slot,
    pub(crate) epochs: Epochs,
    pub(crate) slot_ms: u64,
    pub(crate) skipped_per_mille: u64,
    pub(crate) retained_slots: u64,
    /// The Unix time of the first slot, in seconds.
    pub(crate) unix_time: i64,
    pub(crate) paced: Vec<PacedAccounts>,
}

/// A simulated chain: its blocks, and the accounts after each recent slot.
#[derive(Clone)]
pub(crate) struct Chain {
    pub(crate) genesis: GenesisConfig,
    pub(crate) addresses: Arc<ClusterAddresses>,
    accounts: AccountHistory,
    blocks: VecDeque<Arc<Block>>,
    /// The newest slot, with or without a block.
    slot: Slot,
    epoch_start: i64,
    /// The lamports staked to each vote account in the newest epochs, by the first slot of each epoch.
    stakes: VecDeque<(Slot, BTreeMap<Pubkey, u64>)>,
    /// True if the next block pays the epoch's staking rewards.
    staking_due: bool,
    pub(crate) samples: Samples,
    mempool: Mempool,
}

impl Chain {
    /// Creates a chain with only its first block.
    pub(crate) fn new(genesis: GenesisConfig) -> Self {
        let addresses = Arc::new(ClusterAddresses::new(genesis.seed, genesis.nodes, &genesis.paced));
        let slots_per_period = (samples::PERIOD_S * 1_000).div_ceil(genesis.slot_ms.max(1));
        let (seed, first) = (genesis.seed, genesis.first_slot);
        let mut chain = Self {
            samples: Samples::new(seed, genesis.nodes, slots_per_period, first),
            accounts: AccountHistory::default(),
            blocks: VecDeque::new(),
            slot: first,
            epoch_start: genesis.unix_time,
            stakes: VecDeque::new(),
            staking_due: false,
            mempool: Mempool::default(),
            addresses,
            genesis,
        };
        genesis::write(&mut chain.accounts, &chain.addresses, &chain.genesis);
        let stakes =
            chain.addresses.validators.iter().filter(|v| v.delegated > 0).map(|v| (v.vote, v.delegated));
        chain.stakes.push_back((first, stakes.collect()));
        let hash = |n: u64| Draw::new(seed, "blockhash", n).bytes();
        let parent_slot = first.saturating_sub(1);
        let block = Block {
            slot: first,
            parent_slot,
            height: first - first / 20,
            time: chain.genesis.unix_time,
            hash: hash(first),
            previous_hash: hash(parent_slot),
            transactions: vec![],
            rewards: vec![],
            reward_partitions: None,
            confirmed: first,
            finalized: first,
            transaction_count: first * 12,
        };
        hidden::write_sysvars(&mut chain, &block);
        chain.blocks.push_back(Arc::new(block));
        chain
    }

    /// Advances the chain by one slot.
    pub(crate) fn step(&mut self) {
        slot::step(self);
    }

    /// Returns the newest slot, with or without a block.
    pub(crate) fn slot(&self) -> Slot {
        self.slot
    }

    /// Returns the newest block at or before `slot`, or the oldest block if `slot` is before all kept blocks.
    pub(crate) fn tip_at(&self, slot: Slot) -> &Arc<Block> {
        &self.blocks[self.count_up_to(slot).saturating_sub(1)]
    }

    pub(crate) fn block(&self, slot: Slot) -> Option<&Arc<Block>> {
        let at = self.count_up_to(slot).checked_sub(1)?;
        Some(&self.blocks[at]).filter(|block| block.slot == slot)
    }

    /// Returns the oldest block that is kept.
    pub(crate) fn first_block(&self) -> &Arc<Block> {
        &self.blocks[0]
    }

    /// Returns the number of kept blocks up to `slot`, which is the position of the first block after `slot`.
    fn count_up_to(&self, slot: Slot) -> usize {
        self.blocks.partition_point(|block| block.slot <= slot)
    }

    /// Returns the blocks up to `slot`, newest first.
    pub(crate) fn blocks_back_from(&self, slot: Slot) -> impl Iterator<Item = &Arc<Block>> {
        self.blocks.range(..self.count_up_to(slot)).rev()
    }

    /// Returns an account's state after `slot`, which must be one of the newest [`STATE_SLOTS`] slots.
    pub(crate) fn account(&self, key: &Pubkey, slot: Slot) -> Option<&Arc<Account>> {
        self.accounts.at(key, slot)
    }

    pub(crate) fn addresses_of_accounts(&self) -> Vec<Pubkey> {
        self.accounts.addresses().copied().collect()
    }

    /// Returns all accounts as of `slot`, which must be one of the newest [`STATE_SLOTS`] slots, in any order.
    pub(crate) fn accounts_at(&self, slot: Slot) -> impl Iterator<Item = (&Pubkey, &Arc<Account>)> {
        self.accounts.all_at(slot)
    }

    /// Returns the slot of the last write of an account up to `slot`, which must be one of the newest [`STATE_SLOTS`]
    /// slots.
    pub(crate) fn last_write(&self, key: &Pubkey, slot: Slot) -> Option<Slot> {
        self.accounts.last_write(key, slot)
    }

    /// Returns the accounts that were written in `slot`, which must be one of the newest [`STATE_SLOTS`] slots, and that
    /// exist after it.
    pub(crate) fn written_in(&self, slot: Slot) -> impl Iterator<Item = (&Pubkey, &Arc<Account>)> {
        let written = self.accounts.addresses().filter(move |key| self.last_write(key, slot) == Some(slot));
        written.filter_map(move |key| Some((key, self.account(key, slot)?)))
    }

    /// Returns the lamports staked to each vote account in the epoch of `slot`.
    pub(crate) fn stakes(&self, slot: Slot) -> &BTreeMap<Pubkey, u64> {
        let known = self.stakes.partition_point(|(from, _)| *from <= slot);
        &self.stakes[known.saturating_sub(1)].1
    }

    pub(crate) fn epoch(&self, slot: Slot) -> u64 {
        self.genesis.epochs.of(slot).number
    }

    /// Returns bytes that stand for the hash of the state after `slot`. They depend only on the seed and the slot.
    fn bank_hash(&self, slot: Slot) -> [u8; 32] {
        Draw::new(self.genesis.seed, "bank", slot).bytes()
    }

    /// Returns the Unix time of `slot`, in seconds.
    fn time(&self, slot: Slot) -> i64 {
        let ms = (slot - self.genesis.first_slot) * self.genesis.slot_ms;
        self.genesis.unix_time + i64::try_from(ms / 1_000).unwrap_or(0)
    }
}
