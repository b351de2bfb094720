//! The state of a slot while its block is made: the state of its parent and the changes of its transactions.

use std::collections::BTreeMap;

use bytes::Bytes;
use slotfront_rpc::methods::{Pubkey, Slot};

use super::accounts::{Account, AccountHistory};

/// The state of an incomplete slot, on top of the state of its parent.
pub(crate) struct Bank<'a> {
    accounts: &'a AccountHistory,
    parent: Slot,
    changed: BTreeMap<Pubkey, Account>,
}

impl<'a> Bank<'a> {
    /// Creates the state of a new slot, on top of the state after `parent`.
    pub(crate) fn on(accounts: &'a AccountHistory, parent: Slot) -> Self {
        Self { accounts, parent, changed: BTreeMap::new() }
    }

    /// Returns an account's state so far in this slot, or `None` if the account does not exist.
    pub(crate) fn account(&self, key: &Pubkey) -> Option<&Account> {
        match self.changed.get(key) {
            Some(account) => Some(account).filter(|account| account.lamports > 0),
            None => self.accounts.at(key, self.parent).map(AsRef::as_ref),
        }
    }

    /// Returns an account's lamports so far in this slot, or 0 if the account does not exist.
    pub(crate) fn lamports(&self, key: &Pubkey) -> u64 {
        self.account(key).map_or(0, |account| account.lamports)
    }

    pub(crate) fn write(&mut self, key: Pubkey, account: Account) {
        self.changed.insert(key, account);
    }

    /// Adds a reward to an account, and returns the account's new balance.
    pub(crate) fn credit(&mut self, key: Pubkey, lamports: u64) -> u64 {
        let mut account = self.account(&key).cloned().unwrap_or_else(|| Account::wallet(0));
        account.lamports += lamports;
        let balance = account.lamports;
        self.write(key, account);
        balance
    }

    /// Begins a transaction. Its changes are not in the bank until [`Self::keep`] adds them.
    pub(crate) fn scratch(&self) -> Scratch<'_> {
        Scratch { bank: self, changed: BTreeMap::new() }
    }

    /// Adds the changed accounts of a transaction to the bank.
    pub(crate) fn keep(&mut self, changed: BTreeMap<Pubkey, Account>) {
        self.changed.extend(changed);
    }

    /// Returns the changed accounts of the complete block.
    pub(crate) fn freeze(self) -> BTreeMap<Pubkey, Account> {
        self.changed
    }
}

/// The changes that a transaction has made so far. All other accounts are as in the bank.
pub(crate) struct Scratch<'a> {
    bank: &'a Bank<'a>,
    changed: BTreeMap<Pubkey, Account>,
}

impl Scratch<'_> {
    /// Returns an account that the caller may change. A missing account begins as an empty system account.
    pub(crate) fn account(&mut self, key: &Pubkey) -> &mut Account {
        self.changed.entry(*key).or_insert_with(|| {
            let empty = || Account { data: Bytes::new(), ..Account::wallet(0) };
            self.bank.account(key).cloned().unwrap_or_else(empty)
        })
    }

    pub(crate) fn into_changed(self) -> BTreeMap<Pubkey, Account> {
        self.changed
    }
}
