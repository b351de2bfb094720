//! Accounts with their recent versions, so that the state of any recent slot can be read.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use slotfront_rpc::methods::{Pubkey, Slot};

/// The state of an account after a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The balance. An account with 0 lamports does not exist.
    pub lamports: u64,
    /// The data, in the layout of the owner program.
    pub data: Bytes,
    /// The program that owns the account. Only this program can change the data or take lamports away.
    pub owner: Pubkey,
    /// True if the account is a program.
    pub executable: bool,
    /// The rent epoch: 2^64 − 1 for rent-exempt accounts, 0 for sysvars and builtin programs.
    pub rent_epoch: u64,
}

/// Returns the lamports that make `space` bytes rent-exempt: (128 + space) × 3,480 lamports per byte and year × 2
/// years.
pub(crate) const fn rent_exempt(space: usize) -> u64 {
    (128 + space as u64) * 6_960
}

impl Account {
    /// Creates an account of the program `owner`, with the lamports that make its data rent-exempt.
    pub(crate) fn exempt(owner: Pubkey, data: impl Into<Bytes>) -> Self {
        let data = data.into();
        Self { lamports: rent_exempt(data.len()), data, owner, executable: false, rent_epoch: u64::MAX }
    }

    /// Creates a wallet: a system account without data.
    pub(crate) fn wallet(lamports: u64) -> Self {
        Self { lamports, ..Self::exempt(super::address::SYSTEM, Bytes::new()) }
    }
}

/// The slot of a write, and the account's state from this slot on. `None` means that the write removed the account.
type AccountVersion = (Slot, Option<Arc<Account>>);

/// The recent versions of every account, oldest first.
#[derive(Clone, Default)]
pub(crate) struct AccountHistory {
    versions: BTreeMap<Pubkey, VecDeque<AccountVersion>>,
}

impl AccountHistory {
    /// Returns an account's state after `slot`, or `None` if the account does not exist then.
    pub(crate) fn at(&self, key: &Pubkey, slot: Slot) -> Option<&Arc<Account>> {
        self.version(key, slot)?.1.as_ref()
    }

    /// Returns the slot of the last write of an account up to `slot`.
    pub(crate) fn last_write(&self, key: &Pubkey, slot: Slot) -> Option<Slot> {
        Some(self.version(key, slot)?.0)
    }

    fn version(&self, key: &Pubkey, slot: Slot) -> Option<&AccountVersion> {
        let versions = self.versions.get(key)?;
        let newer = versions.partition_point(|(written, _)| *written <= slot);
        versions.get(newer.checked_sub(1)?)
    }

    /// Writes an account at `slot`, which must not be older than the account's newest version.
    pub(crate) fn write(&mut self, key: Pubkey, slot: Slot, account: Account) {
        let version = (slot, (account.lamports > 0).then(|| Arc::new(account)));
        let versions = self.versions.entry(key).or_default();
        match versions.back_mut() {
            Some(last) if last.0 == slot => *last = version,
            _ => versions.push_back(version),
        }
    }

    /// Drops the versions that newer versions had replaced by the slot `oldest`. The states at `oldest` and at
    /// later slots stay readable.
    pub(crate) fn forget_before(&mut self, oldest: Slot) {
        self.versions.retain(|_, versions| {
            while versions.get(1).is_some_and(|(written, _)| *written <= oldest) {
                versions.pop_front();
            }
            versions.len() > 1 || versions.front().is_some_and(|(_, account)| account.is_some())
        });
    }

    /// Returns the addresses of all accounts that have a state, in order.
    pub(crate) fn addresses(&self) -> impl ExactSizeIterator<Item = &Pubkey> {
        self.versions.keys()
    }

    /// Returns the address and the state of every account that exists at `slot`, in the order of addresses.
    pub(crate) fn all_at(&self, slot: Slot) -> impl Iterator<Item = (&Pubkey, &Arc<Account>)> {
        self.versions.keys().filter_map(move |key| Some((key, self.at(key, slot)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_sees_the_newest_version_up_to_itself() {
        let key = Pubkey([1; 32]);
        let mut accounts = AccountHistory::default();
        for (slot, lamports) in [(10, 5), (12, 6), (12, 7), (15, 0), (20, 9)] {
            accounts.write(key, slot, Account::wallet(lamports));
        }
        let seen = |accounts: &AccountHistory| {
            [9, 10, 11, 12, 14, 15, 19, 20, 99].map(|slot| accounts.at(&key, slot).map(|a| a.lamports))
        };
        let whole = [None, Some(5), Some(5), Some(7), Some(7), None, None, Some(9), Some(9)];
        assert_eq!(seen(&accounts), whole);
        accounts.forget_before(13);
        assert_eq!(seen(&accounts)[3..], whole[3..], "slots from the pruned one on see what they saw");
    }
}
