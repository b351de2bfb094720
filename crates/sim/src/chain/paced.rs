//! Token accounts that transactions write at even intervals, for measurements of caches.

use slotfront_rpc::methods::{Pubkey, Slot};

use super::accounts::{Account, AccountHistory};
use super::address;
use super::instruction::TypedInstruction;
use super::keyring::Keyring;
use super::token::{Mint, TokenAccount};
use super::transaction::Draft;
use crate::draw::Draw;

/// The tokens in the account from which all paced accounts are paid.
const TREASURY_TOKENS: u64 = 1 << 62;
/// The lamports of the wallet that pays the transaction fees.
const PAYER_LAMPORTS: u64 = 1 << 55;
/// The maximum number of accounts that one transaction pays. With more accounts, the transaction would exceed the size
/// of a packet.
const PAID_AT_ONCE: usize = 20;

/// The size of a group of token accounts, and the interval at which each of these accounts is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacedAccounts {
    pub accounts: u64,
    /// The number of slots from one write of an account to the next, at least 1. `None` if no transaction writes
    /// the accounts.
    pub every_slots: Option<u64>,
}

/// The addresses of all paced accounts, of their mint, and of the accounts from which tokens and fees are paid.
#[derive(Debug, Clone)]
pub(crate) struct PacedAddresses {
    /// The accounts of each group, and the number of slots between two writes of an account. `None` means no writes.
    pub(crate) groups: Vec<(Vec<Pubkey>, Option<u64>)>,
    mint: Pubkey,
    payer: Pubkey,
    treasury: Pubkey,
}

impl PacedAddresses {
    /// Returns the addresses for `seed`, with one group for each element of `paced`.
    pub(crate) fn new(seed: u64, paced: &[PacedAccounts], keyring: &mut Keyring) -> Self {
        let key = |label: &str, n: u64| Pubkey(Draw::new(seed, label, n).bytes());
        let group = |(at, group): (u64, &PacedAccounts)| {
            let accounts = (0..group.accounts).map(|n| key("paced account", at << 32 | n)).collect();
            (accounts, group.every_slots)
        };
        Self {
            groups: (0..).zip(paced).map(group).collect(),
            mint: key("paced mint", 0),
            payer: keyring.add(seed, "paced payer", 0),
            treasury: key("paced treasury", 0),
        }
    }

    /// Writes the initial states of the accounts of all groups at `slot`. Writes nothing if no group is configured.
    pub(crate) fn write(&self, accounts: &mut AccountHistory, slot: Slot) {
        if self.groups.is_empty() {
            return;
        }
        let mut put = |key: Pubkey, account: Account| accounts.write(key, slot, account);
        let supply = TREASURY_TOKENS;
        let mint = Mint { authority: Some(self.payer), supply, decimals: 6, freeze_authority: None };
        put(self.mint, Account::exempt(address::TOKEN, mint.encode()));
        put(self.payer, Account::wallet(PAYER_LAMPORTS));
        let holder = |amount| {
            let state = TokenAccount::new(self.mint, self.payer, amount);
            Account::exempt(address::TOKEN, state.encode())
        };
        put(self.treasury, holder(TREASURY_TOKENS));
        self.groups.iter().flat_map(|(keys, _)| keys).for_each(|key| put(*key, holder(0)));
    }

    /// Returns the transactions for the block at `slot`, after its parent block at `parent`. Each transaction pays one
    /// token to each of several accounts that are due to be written.
    pub(crate) fn drafts(&self, parent: Slot, slot: Slot) -> Vec<Draft> {
        let pay = |to: &Pubkey| TypedInstruction::TokenTransfer {
            program: address::TOKEN,
            source: self.treasury,
            destination: *to,
            authority: self.payer,
            amount: 1,
            checked: None,
        };
        let due: Vec<Pubkey> = self.due(parent, slot).collect();
        let draft = |paid: &[Pubkey]| Draft {
            payer: self.payer,
            instructions: paid.iter().map(pay).collect(),
            table: None,
        };
        due.chunks(PAID_AT_ONCE).map(draft).collect()
    }

    /// Returns the accounts that must be written in one of the slots after `parent`, up to `slot`. The accounts of a
    /// group take turns, so that the writes are spread evenly.
    fn due(&self, parent: Slot, slot: Slot) -> impl Iterator<Item = Pubkey> {
        let paced = self.groups.iter().filter_map(|(keys, every)| Some((keys, (*every)?.max(1))));
        paced.flat_map(move |(keys, every)| {
            let turn = move |slot: Slot, n: u64| (slot + every - n % every) / every;
            let keys = (0..).zip(keys).filter(move |(n, _)| turn(slot, *n) > turn(parent, *n));
            keys.map(|(_, key)| *key)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn skipped_writes_are_made_up_for() {
        let group = |every_slots| PacedAccounts { accounts: 7, every_slots };
        let addresses =
            PacedAddresses::new(1, &[group(Some(1)), group(Some(3)), group(None)], &mut Keyring::default());
        let mut writes = BTreeMap::<Pubkey, u64>::new();
        // At most two slots in a row have no block.
        for slots in [100, 101, 103, 104, 107, 109, 110, 113].windows(2) {
            addresses.due(slots[0], slots[1]).for_each(|key| *writes.entry(key).or_default() += 1);
        }
        for (n, key) in addresses.groups[0].0.iter().enumerate() {
            assert_eq!(writes[key], 7, "{n} is written by each block");
        }
        for (n, key) in addresses.groups[1].0.iter().enumerate() {
            assert!((4..=5).contains(&writes[key]), "{n} is written {} times in 13 slots", writes[key]);
        }
        assert_eq!(writes.len(), 14);
    }
}
