//! Hidden writes: the changes that a block makes to accounts which its transactions and rewards do not name. The
//! blocks of real nodes make such changes, too.
//!
//! A program that reads blocks cannot see these writes, so it must know which accounts they can change.
//! `lab/store_sites/sites.toml` has the places in a node's source. The simulation makes hidden writes for each variant
//! of [`HiddenRule`].

use bytes::Bytes;
use slotfront_rpc::methods::{Pubkey, Slot};

use super::Chain;
use super::accounts::Account;
use super::address;
use super::block::Block;
use super::cluster_addresses::{ClusterAddresses, ValidatorRole};
use super::genesis::{SLOT_HASHES, sysvar};
use super::layout::{self, Clock, Stake};

/// The number of entries of the recent blockhashes sysvar.
const RECENT_BLOCKHASHES: usize = 150;
/// The number of slots at the beginning of an epoch in which stake rewards are paid. Real clusters need some hundred
/// slots.
const PAYING_SLOTS: u64 = 16;
/// The lamports that a block adds to an account without naming the account.
const GIFT: u64 = 1_000;

/// The reason why an account may change although no transaction and no reward of a block names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HiddenRule {
    /// Sysvars change with every block.
    Sysvar,
    /// Vote accounts get fees from the runtime, and rewards of Alpenglow. Blocks list neither.
    Vote,
    /// Blocks that pay an epoch's rewards also write the stake accounts whose reward is 0. The `rewards` of these
    /// blocks do not name the accounts.
    Stake,
    /// The incinerator is emptied. A real node empties it at the end of the block that filled it. The simulation
    /// empties it in the next block, so that callers can read a balance above 0.
    Incinerator,
    /// Alpenglow writes accounts of its own, which belong to the system program.
    Alpenglow,
    /// Built-in programs are added and removed at the first block of an epoch.
    BuiltIn,
    /// Features become active at the first block of an epoch.
    Feature,
    /// Any account may change at the first block of an epoch, because nodes then migrate programs.
    EpochStart,
}

/// An account that blocks write without naming it in a transaction or a reward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HiddenWrite {
    /// The account.
    pub address: Pubkey,
    /// The reason why blocks write the account.
    pub rule: HiddenRule,
}

/// Returns the accounts that blocks write without naming them in a transaction or a reward.
pub(crate) fn all(addresses: &ClusterAddresses) -> Vec<HiddenWrite> {
    let silent = addresses.validators.iter().filter(|validator| validator.role == ValidatorRole::Delinquent);
    let silent = silent.flat_map(|v| [(v.vote, HiddenRule::Vote), (v.stake, HiddenRule::Stake)]);
    let fixed = [
        (address::CLOCK, HiddenRule::Sysvar),
        (address::SLOT_HASHES, HiddenRule::Sysvar),
        (address::RECENT_BLOCKHASHES, HiddenRule::Sysvar),
        (address::INCINERATOR, HiddenRule::Incinerator),
        (address::NANOSECOND_CLOCK, HiddenRule::Alpenglow),
        (address::VOTE_REWARD, HiddenRule::Alpenglow),
        (address::LOADER_4, HiddenRule::BuiltIn),
        (addresses.feature, HiddenRule::Feature),
        (addresses.program_data[1], HiddenRule::EpochStart),
    ];
    let all = fixed.into_iter().chain(silent);
    all.map(|(address, rule)| HiddenWrite { address, rule }).collect()
}

/// Makes the hidden writes of `block`. The writes by its transactions and rewards must have been made already.
pub(super) fn write(chain: &mut Chain, block: &Block) {
    write_sysvars(chain, block);
    write_incinerator(chain, block);
    write_alpenglow(chain, block);
    if block.reward_partitions.is_some() {
        begin_epoch(chain, block.slot);
    }
    let is_early = chain.genesis.epochs.of(block.slot).index < PAYING_SLOTS;
    pay_silent_validators(chain, block.slot, is_early && block.reward_partitions.is_none());
}

pub(super) fn write_sysvars(chain: &mut Chain, block: &Block) {
    let slot = block.slot;
    let epoch = chain.epoch(slot);
    let clock = Clock { slot, epoch_start: chain.epoch_start, epoch, now: block.time };
    let list = |key| chain.account(key, slot).map(|account| account.data.clone()).unwrap_or_default();
    let bank = [&block.parent_slot.to_le_bytes()[..], &chain.bank_hash(block.parent_slot)].concat();
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

/// Adds lamports to the incinerator in every fourth block, and burns these lamports in the next block.
fn write_incinerator(chain: &mut Chain, block: &Block) {
    match block.height % 4 {
        0 => chain.accounts.write(address::INCINERATOR, block.slot, Account::wallet(GIFT)),
        1 => chain.accounts.write(address::INCINERATOR, block.slot, Account::wallet(0)),
        _ => {}
    }
}

/// Writes Alpenglow's clock, and its account of vote rewards. That account exists for two blocks, and then is
/// closed for two blocks.
fn write_alpenglow(chain: &mut Chain, block: &Block) {
    let nanoseconds = block.time.wrapping_mul(1_000_000_000).to_le_bytes().to_vec();
    let clock = Account::exempt(address::SYSTEM, [&block.slot.to_le_bytes()[..], &nanoseconds].concat());
    let reward = Account::exempt(address::SYSTEM, block.slot.to_le_bytes().to_vec());
    let lamports = if block.height % 4 < 2 { reward.lamports } else { 0 };
    chain.accounts.write(address::NANOSECOND_CLOCK, block.slot, clock);
    chain.accounts.write(address::VOTE_REWARD, block.slot, Account { lamports, ..reward });
}

/// Pays a fee to the vote accounts of staked validators that do not vote. No transaction names these accounts. If
/// `pays_stakes`, also writes the stake accounts of these validators, with a reward of 0.
fn pay_silent_validators(chain: &mut Chain, slot: Slot, pays_stakes: bool) {
    let silent =
        chain.addresses.validators.iter().filter(|validator| validator.role == ValidatorRole::Delinquent);
    for (vote, stake) in silent.map(|validator| (validator.vote, validator.stake)).collect::<Vec<_>>() {
        if let Some(account) = chain.account(&vote, slot).map(|account| (**account).clone()) {
            let paid = Account { lamports: account.lamports + GIFT, ..account };
            chain.accounts.write(vote, slot, paid);
        }
        let account = chain.account(&stake, slot).filter(|_| pays_stakes).map(|account| (**account).clone());
        if let Some(account) = account
            && let Some(mut state) = Stake::decode(&account.data)
        {
            state.credits_observed += 1;
            chain.accounts.write(stake, slot, Account { data: state.encode(), ..account });
        }
    }
}

/// Activates a feature, adds or removes a built-in program, and replaces the code of a program.
fn begin_epoch(chain: &mut Chain, slot: Slot) {
    let active = [&[1][..], &slot.to_le_bytes()].concat();
    chain.accounts.write(chain.addresses.feature, slot, Account::exempt(address::FEATURE, active));
    let loader = Account {
        lamports: u64::from(chain.account(&address::LOADER_4, slot).is_none()),
        data: Bytes::from_static(b"loader_v4"),
        owner: address::NATIVE_LOADER,
        executable: true,
        rent_epoch: 0,
    };
    chain.accounts.write(address::LOADER_4, slot, loader);
    let key = chain.addresses.program_data[1];
    if let Some(account) = chain.account(&key, slot).map(|account| (**account).clone()) {
        let mut data = account.data.to_vec();
        data[4..12].copy_from_slice(&slot.to_le_bytes());
        chain.accounts.write(key, slot, Account { data: data.into(), ..account });
    }
}

#[cfg(test)]
mod tests;
