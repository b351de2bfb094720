//! Making a slot: skip it, or let its leader execute votes and traffic, pay rewards and freeze the state.

use std::collections::BTreeMap;
use std::sync::Arc;

use slotfront_rpc::methods::{Pubkey, Slot};

use super::accounts::Account;
use super::address;
use super::bank::{Bank, Draft, Transaction};
use super::block::{Block, Reward, RewardKind};
use super::cast::{Role, Validator};
use super::genesis::{SLOT_HASHES, sysvar};
use super::instruction::Instruction;
use super::layout::{self, Clock, Stake};
use super::vote::{TowerSync, VoteState};
use super::{Chain, FINAL_DEPTH, MAX_SKIPPED, STATE_SLOTS, traffic};
use crate::draw::Draw;

/// Entries of the recent blockhashes sysvar.
const RECENT_BLOCKHASHES: usize = 150;
/// Slots that a leader leads in a row.
const LEADER_SLOTS: u64 = 4;
/// What a stake earns in an epoch: one part in this many, about 7 % in the 180 epochs of a year.
const EPOCH_YIELD: u64 = 2_600;
/// Epochs whose stakes are kept.
const STAKE_EPOCHS: usize = 4;
/// How often, in slots, old blocks and states are dropped.
const PRUNE_EVERY: u64 = 32;

impl Chain {
    /// Lets one slot pass.
    pub(crate) fn step(&mut self) {
        self.slot += 1;
        let mut draw = Draw::new(self.genesis.seed, "slot", self.slot);
        let skipped = self.slot - self.tip_at(self.slot).slot - 1;
        if draw.chance(self.genesis.skipped_per_mille) && skipped < MAX_SKIPPED {
            self.samples.count(self.slot, 0, 0);
        } else {
            let block = self.produce(&mut draw);
            let votes = block.transactions.iter().filter(|transaction| transaction.is_vote()).count() as u64;
            let all = block.transactions.len() as u64;
            self.samples.count(self.slot, all, all - votes);
            self.blocks.push_back(Arc::new(block));
        }
        if self.slot.is_multiple_of(PRUNE_EVERY) {
            self.prune();
        }
    }

    fn produce(&mut self, draw: &mut Draw) -> Block {
        let slot = self.slot;
        let parent = Arc::clone(self.tip_at(slot));
        let opens_epoch = self.epoch(slot) > self.epoch(parent.slot);
        if opens_epoch {
            self.epoch_start = self.time(slot);
            let stakes =
                self.delegations(parent.slot).map(|(_, vote, stake)| (vote, stake.delegated)).collect();
            self.stakes.push_back((slot, stakes));
        }

        let mut bank = Bank::on(&self.accounts, parent.slot);
        let mut rewards = Vec::new();
        if opens_epoch {
            self.pay_voting(&mut bank, parent.slot, &mut rewards);
        }
        if self.staking_due {
            self.pay_staking(&mut bank, parent.slot, &mut rewards);
        }
        let mut transactions: Vec<Transaction> = Vec::new();
        let count = draw.range(3, 9);
        for validator in self.cast.voting() {
            if let Some(draft) = self.vote(&bank, validator, &parent) {
                transactions.push(bank.execute(draft, None, parent.hash, draw));
            }
        }
        for _ in 0..count {
            let draft = traffic::draft(&self.cast, &bank, draw);
            let table = draft.table.map(|n| &self.cast.tables[n]).map(|(key, listed)| (key, &listed[..]));
            transactions.push(bank.execute(draft, table, parent.hash, draw));
        }
        rewards.extend(self.pay_leader(&mut bank, slot, &transactions));
        let changed = bank.freeze();
        self.commit(slot, changed);
        self.staking_due = opens_epoch;

        let block = Block {
            slot,
            parent_slot: parent.slot,
            height: parent.height + 1,
            time: self.time(slot),
            hash: Draw::new(self.genesis.seed, "blockhash", slot).bytes(),
            previous_hash: parent.hash,
            transaction_count: parent.transaction_count + transactions.len() as u64,
            transactions,
            rewards,
            reward_partitions: opens_epoch.then_some(1),
            // Votes for the parent are in this block; now and then too few of them arrive in time.
            confirmed: if draw.chance(80) { parent.confirmed } else { parent.slot },
            finalized: self.blocks.iter().rev().nth(FINAL_DEPTH - 1).map_or(parent.finalized, |b| b.slot),
        };
        self.write_sysvars(&block);
        block
    }

    /// The vote of `validator` on the parent block.
    fn vote(&self, bank: &Bank<'_>, validator: &Validator, parent: &Block) -> Option<Draft> {
        let mut tower = VoteState::decode(&bank.account(&validator.vote)?.data)?.tower;
        if tower.votes.back().is_some_and(|last| *last >= parent.slot) {
            return None;
        }
        tower.vote(parent.slot);
        let sync = TowerSync { tower, bank_hash: self.bank_hash(parent.slot), now: parent.time };
        let (account, authority) = (validator.vote, validator.identity);
        let vote = Instruction::Vote { account, authority, sync, epoch: self.epoch(parent.slot) };
        Some(Draft { payer: authority, instructions: vec![vote], table: None })
    }

    /// Pays the leader half of the base fees, whose other half is burned, and all priority fees.
    fn pay_leader(&self, bank: &mut Bank<'_>, slot: Slot, transactions: &[Transaction]) -> Option<Reward> {
        let lamports = transactions.iter().map(|t| t.fee.base / 2 + t.fee.priority).sum();
        let pubkey = self.leader(slot);
        (lamports > 0).then(|| Reward {
            kind: RewardKind::Fee,
            pubkey,
            lamports,
            post_balance: bank.credit(pubkey, lamports),
            commission_bps: None,
        })
    }

    fn leader(&self, slot: Slot) -> Pubkey {
        let voting: Vec<&Validator> = self.cast.voting().collect();
        Draw::new(self.genesis.seed, "leader", slot / LEADER_SLOTS).pick(&voting).identity
    }

    /// Pays each voting validator its commission on the epoch that has ended.
    fn pay_voting(&self, bank: &mut Bank<'_>, parent: Slot, rewards: &mut Vec<Reward>) {
        for (validator, vote, stake) in self.delegations(parent).filter(|(v, ..)| v.role == Role::Voting) {
            let lamports = commission(stake.delegated / EPOCH_YIELD, validator);
            rewards.push(Reward {
                kind: RewardKind::Voting,
                pubkey: vote,
                lamports,
                post_balance: bank.credit(vote, lamports),
                commission_bps: Some(validator.commission_bps),
            });
        }
    }

    /// Pays each stake what its validator's commission left, and stakes it too.
    fn pay_staking(&self, bank: &mut Bank<'_>, parent: Slot, rewards: &mut Vec<Reward>) {
        for (validator, _, mut stake) in self.delegations(parent).filter(|(v, ..)| v.role == Role::Voting) {
            let earned = stake.delegated / EPOCH_YIELD;
            let lamports = earned - commission(earned, validator);
            let Some(account) = bank.account(&validator.stake) else { continue };
            stake.delegated += lamports;
            let paid =
                Account { lamports: account.lamports + lamports, data: stake.encode(), ..account.clone() };
            rewards.push(Reward {
                kind: RewardKind::Staking,
                pubkey: validator.stake,
                lamports,
                post_balance: paid.lamports,
                commission_bps: Some(validator.commission_bps),
            });
            bank.write(validator.stake, paid);
        }
    }

    /// Every validator's delegation, as `slot` left it.
    fn delegations(&self, slot: Slot) -> impl Iterator<Item = (&Validator, Pubkey, Stake)> {
        self.cast.validators.iter().filter_map(move |validator| {
            let stake = Stake::decode(&self.account(&validator.stake, slot)?.data)?;
            Some((validator, validator.vote, stake))
        })
    }

    /// A hash of the state that `slot` left, in looks only.
    fn bank_hash(&self, slot: Slot) -> [u8; 32] {
        Draw::new(self.genesis.seed, "bank", slot).bytes()
    }

    fn commit(&mut self, slot: Slot, changed: BTreeMap<Pubkey, Account>) {
        for (key, account) in changed {
            self.accounts.write(key, slot, account);
        }
    }

    /// Writes the sysvars that change with every block.
    pub(super) fn write_sysvars(&mut self, block: &Block) {
        let slot = block.slot;
        let epoch = self.epoch(slot);
        let clock = Clock { slot, epoch_start: self.epoch_start, epoch, now: block.time };
        let list = |key| self.account(key, slot).map(|account| account.data.clone()).unwrap_or_default();
        let bank = [&block.parent_slot.to_le_bytes()[..], &self.bank_hash(block.parent_slot)].concat();
        let slot_hashes = layout::prepend(&list(&address::SLOT_HASHES), &bank, SLOT_HASHES);
        let recent = [&block.hash[..], &super::fee::LAMPORTS_PER_SIGNATURE.to_le_bytes()].concat();
        let recent = layout::prepend(&list(&address::RECENT_BLOCKHASHES), &recent, RECENT_BLOCKHASHES);
        for (key, data) in [
            (address::CLOCK, clock.encode()),
            (address::SLOT_HASHES, slot_hashes),
            (address::RECENT_BLOCKHASHES, recent),
        ] {
            self.accounts.write(key, slot, sysvar(data));
        }
    }

    /// Drops blocks and states that are older than is kept.
    fn prune(&mut self) {
        let oldest = self.slot.saturating_sub(self.genesis.retained_slots);
        while self.blocks.len() > super::BLOCKHASH_QUEUE && self.blocks[0].slot < oldest {
            self.blocks.pop_front();
        }
        self.accounts.forget_before(self.slot.saturating_sub(STATE_SLOTS));
        while self.stakes.len() > STAKE_EPOCHS {
            self.stakes.pop_front();
        }
    }
}

/// The validator's part of what a stake earned.
fn commission(earned: u64, validator: &Validator) -> u64 {
    earned * u64::from(validator.commission_bps) / 10_000
}
