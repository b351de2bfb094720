//! The accounts at the beginning of a simulation, as if a node had started from a snapshot at the first slot.

use bytes::Bytes;
use slotfront_rpc::methods::{Pubkey, Slot};

use super::GenesisConfig;
use super::accounts::{Account, AccountHistory, rent_exempt};
use super::address;
use super::cluster_addresses::{ClusterAddresses, Coin, Validator, ValidatorRole};
use super::epochs::Epochs;
use super::fee::LAMPORTS_PER_SIGNATURE;
use super::layout::{self, LookupTable, Nonce, Stake};
use super::token::{ACCOUNT_LEN, FROZEN, Mint, TokenAccount};
use super::vote::{TOWER, Tower, VoteState};
use crate::draw::Draw;

/// The number of entries of the slot hashes sysvar.
pub(crate) const SLOT_HASHES: usize = 512;
/// The length of the stake history sysvar, which stays empty.
const STAKE_HISTORY_LEN: usize = 16_392;
/// The number of slots from the last vote of the delinquent validator to the first slot of the chain. A validator
/// that has not voted for 128 slots is delinquent.
const SILENT_SLOTS: u64 = 3_000;
/// The lamports for airdrops: 100 million SOL.
const FAUCET_LAMPORTS: u64 = 100_000_000 * 1_000_000_000;
/// The lamports of the developer: 1,000 SOL.
const DEVELOPER_LAMPORTS: u64 = 1_000 * 1_000_000_000;

/// Writes the programs, the sysvars and the accounts of `addresses` at the first slot.
pub(crate) fn write(accounts: &mut AccountHistory, addresses: &ClusterAddresses, genesis: &GenesisConfig) {
    let GenesisConfig { seed, first_slot: slot, epochs, .. } = *genesis;
    let mut put = |key: Pubkey, account: Account| accounts.write(key, slot, account);
    programs(&mut put, seed, addresses);
    sysvars(&mut put, seed, slot, epochs);
    for (n, wallet) in (0..).zip(&addresses.wallets) {
        put(*wallet, Account::wallet(Draw::new(seed, "balance", n).range(50, 2_000) * 1_000_000_000));
    }
    put(addresses.authority, Account::wallet(1_000_000_000));
    put(addresses.faucet, Account::wallet(FAUCET_LAMPORTS));
    put(addresses.developer, Account::wallet(DEVELOPER_LAMPORTS));
    for coin in &addresses.coins {
        tokens(&mut put, seed, coin, addresses.authority);
    }
    let (frozen, owner) = addresses.frozen_token;
    let state = TokenAccount { state: FROZEN, ..TokenAccount::new(addresses.coins[0].mint, owner, 0) };
    put(frozen, Account::exempt(address::TOKEN, state.encode()));
    put(addresses.uninitialized_token, Account::exempt(address::TOKEN, vec![0; ACCOUNT_LEN]));
    for validator in &addresses.validators {
        validators(&mut put, validator, genesis);
    }
    for (key, listed) in &addresses.tables {
        let table = LookupTable {
            authority: addresses.authority,
            last_extended_slot: slot.saturating_sub(9_000),
            addresses: listed.clone(),
        };
        put(*key, Account::exempt(address::LOOKUP_TABLE, table.encode()));
    }
    let nonce = Nonce {
        authority: addresses.wallets[0],
        blockhash: addresses.nonce_blockhash,
        lamports_per_signature: LAMPORTS_PER_SIGNATURE,
    };
    put(addresses.nonce, Account::exempt(address::SYSTEM, nonce.encode()));
    addresses.paced.write(accounts, slot);
}

fn programs(put: &mut impl FnMut(Pubkey, Account), seed: u64, addresses: &ClusterAddresses) {
    for (key, name) in address::BUILTINS {
        let data = Bytes::from_static(name.as_bytes());
        put(
            key,
            Account { lamports: 1, data, owner: address::NATIVE_LOADER, executable: true, rent_epoch: 0 },
        );
    }
    // A feature that becomes active at the first block of the next epoch.
    put(addresses.feature, Account::exempt(address::FEATURE, vec![0; 9]));
    let code = |n: u64| [&b"\x7fELF"[..], &Draw::new(seed, "code", n).bytes::<1_020>()].concat();
    put(address::MEMO, Account { executable: true, ..Account::exempt(address::LOADER_2, code(0)) });
    let upgradeable = (1..).zip([address::TOKEN, address::TOKEN_2022]).zip(addresses.program_data);
    for ((n, program), data_key) in upgradeable {
        let pointer = [&2u32.to_le_bytes()[..], &data_key.0].concat();
        let loader = address::LOADER_UPGRADEABLE;
        put(program, Account { executable: true, ..Account::exempt(loader, pointer) });
        // Program data begins with the account type 3, the deployment slot 0, and 33 zeros for no upgrade
        // authority. The code follows.
        let head = [&3u32.to_le_bytes()[..], &[0; 8 + 1 + 32]].concat();
        put(data_key, Account::exempt(loader, [head, code(n)].concat()));
    }
}

fn sysvars(put: &mut impl FnMut(Pubkey, Account), seed: u64, slot: Slot, epochs: Epochs) {
    let mut hashes = Bytes::new();
    for old in slot.saturating_sub(SLOT_HASHES as u64)..slot {
        let hash: [u8; 32] = Draw::new(seed, "old bank", old).bytes();
        hashes = layout::prepend(&hashes, &[&old.to_le_bytes()[..], &hash].concat(), SLOT_HASHES);
    }
    let mut put = |key, data| put(key, sysvar(data));
    put(address::RENT, layout::rent());
    put(address::EPOCH_SCHEDULE, layout::epoch_schedule(epochs));
    put(address::STAKE_HISTORY, vec![0; STAKE_HISTORY_LEN].into());
    put(address::SLOT_HASHES, hashes);
}

pub(crate) fn sysvar(data: Bytes) -> Account {
    Account { rent_epoch: 0, ..Account::exempt(address::SYSVAR_OWNER, data) }
}

fn tokens(put: &mut impl FnMut(Pubkey, Account), seed: u64, coin: &Coin, authority: Pubkey) {
    let native = coin.mint == address::NATIVE_MINT;
    let mut supply = 0;
    for (n, (key, owner)) in (0..).zip(&coin.holders) {
        let amount =
            Draw::new(seed, "tokens", n + 1_000 * u64::from(coin.decimals)).range(1_000, 9_000_000_000);
        supply += amount;
        let account = TokenAccount {
            delegate: (n == 1).then_some((authority, amount / 3)),
            native_reserve: native.then_some(rent_exempt(ACCOUNT_LEN)),
            immutable_owner: coin.program == address::TOKEN_2022,
            ..TokenAccount::new(coin.mint, *owner, amount)
        };
        let mut account = Account::exempt(coin.program, account.encode());
        account.lamports += if native { amount } else { 0 };
        put(*key, account);
    }
    let authority = (!native).then_some(authority);
    let freeze_authority = authority.filter(|_| coin.program == address::TOKEN);
    let supply = if native { 0 } else { supply };
    let mint = Mint { authority, supply, decimals: coin.decimals, freeze_authority };
    put(coin.mint, Account::exempt(coin.program, mint.encode()));
}

fn validators(put: &mut impl FnMut(Pubkey, Account), validator: &Validator, genesis: &GenesisConfig) {
    let GenesisConfig { first_slot: slot, epochs, slot_ms, unix_time: now, .. } = *genesis;
    let epoch = epochs.of(slot).number;
    let last_vote = match validator.role {
        ValidatorRole::Voting => slot.checked_sub(1),
        ValidatorRole::Delinquent => slot.checked_sub(SILENT_SLOTS),
        ValidatorRole::Unstaked => None,
    };
    // The tower is full, or empty if the last vote is too near to slot 0.
    let tower = last_vote.filter(|last| *last > TOWER as u64).map_or_else(Tower::default, |last| Tower {
        votes: (last - TOWER as u64 + 1..=last).collect(),
        root: Some(last - TOWER as u64),
    });
    let (mut credits, mut before) = (vec![], 0);
    for past in (epoch.saturating_sub(5)..epoch).filter(|_| validator.role != ValidatorRole::Unstaked) {
        let earned = epochs.slots * 15 + past % 7;
        credits.push((past, before + earned, before));
        before += earned;
    }
    let last_timestamp = tower.votes.back().map_or((0, 0), |last| {
        let ago = (slot - last) * slot_ms / 1_000;
        (*last, now - i64::try_from(ago).unwrap_or(0))
    });
    let vote_state = VoteState {
        node: validator.identity,
        withdrawer: validator.identity,
        collector: validator.vote,
        commission_bps: validator.commission_bps,
        last_timestamp,
        tower,
        authorized: (epoch, validator.identity),
        credits,
    };
    put(validator.vote, Account::exempt(address::VOTE, vote_state.encode()));
    put(validator.identity, Account::wallet(400_000_000_000));
    if validator.delegated > 0 {
        let stake = Stake {
            rent_exempt_reserve: rent_exempt(Stake::LEN),
            authority: validator.identity,
            voter: validator.vote,
            delegated: validator.delegated,
            activation_epoch: epoch.saturating_sub(30),
            credits_observed: before,
        };
        let mut account = Account::exempt(address::STAKE, stake.encode());
        account.lamports += validator.delegated;
        put(validator.stake, account);
    }
}
