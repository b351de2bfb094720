//! Making a slot: skip it, or let its leader execute votes and traffic, pay rewards and freeze the state.

use std::collections::BTreeMap;
use std::sync::Arc;

use slotfront_rpc::methods::{Pubkey, Slot};

use super::accounts::Account;
use super::address;
use super::bank::Bank;
use super::block::{Block, Reward, RewardKind};
use super::cast::{Role, Validator};
use super::genesis::{SLOT_HASHES, sysvar};
use super::instruction::Instruction;
use super::layout::{self, Clock, Stake};
use super::transaction::{Draft, Transaction, execute};
use super::vote::{TowerSync, VoteState};
use super::{Chain, FINAL_DEPTH, MAX_SKIPPED, STATE_SLOTS, traffic};
use crate::draw::Draw;

/// Entries of the recent blockhashes sysvar.
const RECENT_BLOCKHASHES: usize = 150;
/// Slots that a leader leads in a row.
const LEADER_SLOTS: u64 = 4;
/// The yield of a stake in an epoch: one part in this many, about 7 % in the 180 epochs of a year.
const EPOCH_YIELD: u64 = 2_600;
/// Epochs whose stakes are kept.
const STAKE_EPOCHS: usize = 4;
/// How often, in slots, old blocks and states are dropped.
const PRUNE_EVERY: u64 = 32;

/// Lets one slot pass.
pub(super) fn step(chain: &mut Chain) {
    chain.slot += 1;
    let mut draw = Draw::new(chain.genesis.seed, "slot", chain.slot);
    let skipped = chain.slot - chain.tip_at(chain.slot).slot - 1;
    if draw.chance(chain.genesis.skipped_per_mille) && skipped < MAX_SKIPPED {
        chain.samples.count(chain.slot, 0, 0);
    } else {
        let block = produce(chain, &mut draw);
        let votes = block.transactions.iter().filter(|transaction| transaction.is_vote()).count() as u64;
        let all = block.transactions.len() as u64;
        chain.samples.count(chain.slot, all, all - votes);
        chain.blocks.push_back(Arc::new(block));
    }
    if chain.slot.is_multiple_of(PRUNE_EVERY) {
        prune(chain);
    }
}

fn produce(chain: &mut Chain, draw: &mut Draw) -> Block {
    let slot = chain.slot;
    let parent = Arc::clone(chain.tip_at(slot));
    let opens_epoch = chain.epoch(slot) > chain.epoch(parent.slot);
    if opens_epoch {
        chain.epoch_start = chain.time(slot);
        let stakes =
            delegations(chain, parent.slot).map(|(_, vote, stake)| (vote, stake.delegated)).collect();
        chain.stakes.push_back((slot, stakes));
    }

    let mut bank = Bank::on(&chain.accounts, parent.slot);
    let mut rewards = Vec::new();
    if opens_epoch {
        pay_voting(chain, &mut bank, parent.slot, &mut rewards);
    }
    if chain.staking_due {
        pay_staking(chain, &mut bank, parent.slot, &mut rewards);
    }
    let mut transactions: Vec<Transaction> = Vec::new();
    let count = draw.range(3, 9);
    for validator in chain.cast.voting() {
        if let Some(draft) = vote(chain, &bank, validator, &parent) {
            transactions.push(execute(&mut bank, draft, None, parent.hash, draw));
        }
    }
    for _ in 0..count {
        let draft = traffic::draft(&chain.cast, &bank, draw);
        let table = draft.table.map(|n| &chain.cast.tables[n]).map(|(key, listed)| (key, &listed[..]));
        transactions.push(execute(&mut bank, draft, table, parent.hash, draw));
    }
    rewards.extend(pay_leader(chain, &mut bank, slot, &transactions));
    let changed = bank.freeze();
    commit(chain, slot, changed);
    chain.staking_due = opens_epoch;

    let block = Block {
        slot,
        parent_slot: parent.slot,
        height: parent.height + 1,
        time: chain.time(slot),
        hash: Draw::new(chain.genesis.seed, "blockhash", slot).bytes(),
        previous_hash: parent.hash,
        transaction_count: parent.transaction_count + transactions.len() as u64,
        transactions,
        rewards,
        reward_partitions: opens_epoch.then_some(1),
        // Votes for the parent are in this block; now and then too few of them arrive in time.
        confirmed: if draw.chance(80) { parent.confirmed } else { parent.slot },
        finalized: chain.blocks.iter().rev().nth(FINAL_DEPTH - 1).map_or(parent.finalized, |b| b.slot),
    };
    write_sysvars(chain, &block);
    block
}

/// The vote of `validator` on the parent block.
fn vote(chain: &Chain, bank: &Bank<'_>, validator: &Validator, parent: &Block) -> Option<Draft> {
    let mut tower = VoteState::decode(&bank.account(&validator.vote)?.data)?.tower;
    if tower.votes.back().is_some_and(|last| *last >= parent.slot) {
        return None;
    }
    tower.vote(parent.slot);
    let sync = TowerSync { tower, bank_hash: bank_hash(chain, parent.slot), now: parent.time };
    let (account, authority) = (validator.vote, validator.identity);
    let vote = Instruction::Vote { account, authority, sync, epoch: chain.epoch(parent.slot) };
    Some(Draft { payer: authority, instructions: vec![vote], table: None })
}

/// Pays the leader half of the base fees, whose other half is burned, and all priority fees.
fn pay_leader(
    chain: &Chain,
    bank: &mut Bank<'_>,
    slot: Slot,
    transactions: &[Transaction],
) -> Option<Reward> {
    let lamports = transactions.iter().map(|t| t.fee.base / 2 + t.fee.priority).sum();
    let pubkey = leader(chain, slot);
    (lamports > 0).then(|| Reward {
        kind: RewardKind::Fee,
        pubkey,
        lamports,
        post_balance: bank.credit(pubkey, lamports),
        commission_bps: None,
    })
}

fn leader(chain: &Chain, slot: Slot) -> Pubkey {
    let voting: Vec<&Validator> = chain.cast.voting().collect();
    Draw::new(chain.genesis.seed, "leader", slot / LEADER_SLOTS).pick(&voting).identity
}

/// Pays each voting validator its commission on the epoch that has ended.
fn pay_voting(chain: &Chain, bank: &mut Bank<'_>, parent: Slot, rewards: &mut Vec<Reward>) {
    for (validator, vote, stake) in delegations(chain, parent).filter(|(v, ..)| v.role == Role::Voting) {
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
fn pay_staking(chain: &Chain, bank: &mut Bank<'_>, parent: Slot, rewards: &mut Vec<Reward>) {
    for (validator, _, mut stake) in delegations(chain, parent).filter(|(v, ..)| v.role == Role::Voting) {
        let earned = stake.delegated / EPOCH_YIELD;
        let lamports = earned - commission(earned, validator);
        let Some(account) = bank.account(&validator.stake) else { continue };
        stake.delegated += lamports;
        let paid = Account { lamports: account.lamports + lamports, data: stake.encode(), ..account.clone() };
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
fn delegations(chain: &Chain, slot: Slot) -> impl Iterator<Item = (&Validator, Pubkey, Stake)> {
    chain.cast.validators.iter().filter_map(move |validator| {
        let stake = Stake::decode(&chain.account(&validator.stake, slot)?.data)?;
        Some((validator, validator.vote, stake))
    })
}

/// A hash of the state that `slot` left, in looks only.
fn bank_hash(chain: &Chain, slot: Slot) -> [u8; 32] {
    Draw::new(chain.genesis.seed, "bank", slot).bytes()
}

fn commit(chain: &mut Chain, slot: Slot, changed: BTreeMap<Pubkey, Account>) {
    for (key, account) in changed {
        chain.accounts.write(key, slot, account);
    }
}

/// Writes the sysvars that change with every block.
pub(super) fn write_sysvars(chain: &mut Chain, block: &Block) {
    let slot = block.slot;
    let epoch = chain.epoch(slot);
    let clock = Clock { slot, epoch_start: chain.epoch_start, epoch, now: block.time };
    let list = |key| chain.account(key, slot).map(|account| account.data.clone()).unwrap_or_default();
    let bank = [&block.parent_slot.to_le_bytes()[..], &bank_hash(chain, block.parent_slot)].concat();
    let slot_hashes = layout::prepend(&list(&address::SLOT_HASHES), &bank, SLOT_HASHES);
    let recent = [&block.hash[..], &super::fee::LAMPORTS_PER_SIGNATURE.to_le_bytes()].concat();
    let recent = layout::prepend(&list(&address::RECENT_BLOCKHASHES), &recent, RECENT_BLOCKHASHES);
    for (key, data) in [
        (address::CLOCK, clock.encode()),
        (address::SLOT_HASHES, slot_hashes),
        (address::RECENT_BLOCKHASHES, recent),
    ] {
        chain.accounts.write(key, slot, sysvar(data));
    }
}

/// Drops blocks and states that are older than is kept.
fn prune(chain: &mut Chain) {
    let oldest = chain.slot.saturating_sub(chain.genesis.retained_slots);
    while chain.blocks.len() > super::BLOCKHASH_QUEUE && chain.blocks[0].slot < oldest {
        chain.blocks.pop_front();
    }
    chain.accounts.forget_before(chain.slot.saturating_sub(STATE_SLOTS));
    while chain.stakes.len() > STAKE_EPOCHS {
        chain.stakes.pop_front();
    }
}

/// The validator's part of what a stake earned.
fn commission(earned: u64, validator: &Validator) -> u64 {
    earned * u64::from(validator.commission_bps) / 10_000
}
