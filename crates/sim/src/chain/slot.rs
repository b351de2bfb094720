//! The production of a slot. The slot is skipped, or gets a block: votes and traffic are executed, rewards are paid,
//! and the state is completed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use slotfront_rpc::methods::{Pubkey, Slot};

use super::accounts::Account;
use super::bank::Bank;
use super::block::{Block, Reward, RewardKind};
use super::cluster_addresses::{Validator, ValidatorRole};
use super::hidden;
use super::instruction::TypedInstruction;
use super::layout::Stake;
use super::signed::SignedTransaction;
use super::transaction::{Draft, Transaction, execute};
use super::vote::{TowerSync, VoteState};
use super::{Chain, FINAL_DEPTH, MAX_SKIPPED, STATE_SLOTS, traffic};
use crate::draw::Draw;

const LEADER_SLOTS: u64 = 4;
/// The number of staked lamports that earn one lamport in an epoch. The 180 epochs of a year thus earn about 7 %.
const EPOCH_YIELD: u64 = 2_600;
/// The number of newest epochs whose stakes are kept.
const STAKE_EPOCHS: usize = 4;
/// The interval, in slots, at which old blocks and states are dropped.
const PRUNE_EVERY: u64 = 32;

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
        chain.mempool.land(&block);
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
    let sign = |draft| SignedTransaction::sign(draft, &chain.addresses, parent.hash);
    for validator in chain.addresses.voting() {
        if let Some(draft) = vote(chain, &bank, validator, &parent) {
            transactions.push(execute(&mut bank, sign(draft)));
        }
    }
    for _ in 0..count {
        let draft = traffic::draft(&chain.addresses, &bank, draw);
        transactions.push(execute(&mut bank, sign(draft)));
    }
    for draft in chain.addresses.paced.drafts(parent.slot, slot) {
        transactions.push(execute(&mut bank, sign(draft)));
    }
    for signed in chain.mempool.take() {
        if chain.admit(&signed, &bank, parent.slot).is_ok() {
            transactions.push(execute(&mut bank, signed));
        }
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
        // This block contains the votes for the parent. Sometimes too few of them arrive in time.
        confirmed: if draw.chance(80) { parent.confirmed } else { parent.slot },
        finalized: chain.blocks.iter().rev().nth(FINAL_DEPTH - 1).map_or(parent.finalized, |b| b.slot),
    };
    hidden::write(chain, &block);
    block
}

/// Returns the vote of `validator` for the block `parent`. `None` if the validator has already voted for that
/// block or a later one.
fn vote(chain: &Chain, bank: &Bank<'_>, validator: &Validator, parent: &Block) -> Option<Draft> {
    let mut tower = VoteState::decode(&bank.account(&validator.vote)?.data)?.tower;
    if tower.votes.back().is_some_and(|last| *last >= parent.slot) {
        return None;
    }
    tower.vote(parent.slot);
    let sync = TowerSync { tower, bank_hash: chain.bank_hash(parent.slot), now: parent.time };
    let (account, authority) = (validator.vote, validator.identity);
    let vote = TypedInstruction::Vote { account, authority, sync, epoch: chain.epoch(parent.slot) };
    Some(Draft { payer: authority, instructions: vec![vote], table: None })
}

/// Pays half of the base fees and all priority fees to the leader of `slot`. The other half of the base fees is burned.
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

pub(crate) fn leader(chain: &Chain, slot: Slot) -> Pubkey {
    let voting: Vec<&Validator> = chain.addresses.voting().collect();
    Draw::new(chain.genesis.seed, "leader", slot / LEADER_SLOTS).pick(&voting).identity
}

/// Returns consecutive slots, each with its leader. Each leader is drawn once for all its slots in a row, because an
/// epoch has many.
pub(crate) fn leaders(chain: &Chain, slots: Range<Slot>) -> impl Iterator<Item = (Slot, Pubkey)> {
    let mut drawn = None;
    slots.map(move |slot| {
        let turn = slot / LEADER_SLOTS;
        let (_, identity) =
            drawn.filter(|(of, _)| *of == turn).unwrap_or_else(|| (turn, leader(chain, slot)));
        drawn = Some((turn, identity));
        (slot, identity)
    })
}

/// Pays each voting validator its commission on the rewards of the ended epoch.
fn pay_voting(chain: &Chain, bank: &mut Bank<'_>, parent: Slot, rewards: &mut Vec<Reward>) {
    for (validator, vote, stake) in
        delegations(chain, parent).filter(|(v, ..)| v.role == ValidatorRole::Voting)
    {
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

/// Pays each stake of a voting validator its reward for the ended epoch, minus the commission. The reward is staked,
/// too.
fn pay_staking(chain: &Chain, bank: &mut Bank<'_>, parent: Slot, rewards: &mut Vec<Reward>) {
    for (validator, _, mut stake) in
        delegations(chain, parent).filter(|(v, ..)| v.role == ValidatorRole::Voting)
    {
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

/// Returns each staked validator with its vote account and its stake, as they are after `slot`.
fn delegations(chain: &Chain, slot: Slot) -> impl Iterator<Item = (&Validator, Pubkey, Stake)> {
    chain.addresses.validators.iter().filter_map(move |validator| {
        let stake = Stake::decode(&chain.account(&validator.stake, slot)?.data)?;
        Some((validator, validator.vote, stake))
    })
}

fn commit(chain: &mut Chain, slot: Slot, changed: BTreeMap<Pubkey, Account>) {
    for (key, account) in changed {
        chain.accounts.write(key, slot, account);
    }
}

/// Drops old blocks and states.
fn prune(chain: &mut Chain) {
    let oldest = chain.slot.saturating_sub(chain.genesis.retained_slots);
    while chain.blocks.len() > super::BLOCKHASH_QUEUE
        && (chain.blocks[0].slot < oldest || chain.mempool.is_full())
    {
        if let Some(block) = chain.blocks.pop_front() {
            chain.mempool.forget(&block);
        }
    }
    chain.accounts.forget_before(chain.slot.saturating_sub(STATE_SLOTS));
    while chain.stakes.len() > STAKE_EPOCHS {
        chain.stakes.pop_front();
    }
}

fn commission(earned: u64, validator: &Validator) -> u64 {
    earned * u64::from(validator.commission_bps) / 10_000
}
