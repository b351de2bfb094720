//! Answers for lists of accounts, put together from the cached answers for single accounts.

use std::sync::Arc;

use tokio::time::Instant;

use super::derive::list;
use super::entry::{Entry, EntryBody};
use super::forms;
use super::freshness::{Limit, ServeRule};
use super::generation::GenerationGuard;
use super::key::Key;
use super::lookup::Lookup;
use super::store::Insert;
use crate::config::Assemble;
use crate::methods::{AccountsQuery, Pubkey, Query};

impl Lookup {
    /// Returns a list put together from the entries of single accounts, if all of them are of one slot and may be
    /// used. The list is stored, so that later answers to the same call are not at a lower slot.
    pub(super) fn assemble(&self, query: &Query, rule: ServeRule) -> Option<Arc<Entry>> {
        let Query::Accounts(query) = query else { return None };
        if self.freshness.assemble() == Assemble::Off {
            return None;
        }
        // Without the guard, a purge could come between reading the entries and storing the list.
        let guard = self.generation.lock();
        let singles = self.find_singles(query, rule, &guard);
        let singles = singles.into_iter().collect::<Option<Vec<_>>>()?;
        let list = list::joined(&singles)?;
        if self.holds_newer(query, &list) { None } else { self.insert_list(query, list) }
    }

    /// Returns true if a stored list of the same accounts is newer than `list` and may still be served. The stored
    /// list must also be writable in the form of `query`.
    pub(super) fn holds_newer(&self, query: &AccountsQuery, list: &Entry) -> bool {
        let key = |form| Key::Accounts(Arc::clone(&query.pubkeys), form, query.commitment);
        let mut stored = forms::serving_forms(query.form).filter_map(|form| self.store.get(&key(form)));
        let rule = ServeRule::within(Limit::InFault).at_least(list.meta.slot.saturating_add(1));
        let now = Instant::now();
        stored.any(|stored| self.freshness.serves(&rule, &stored.meta, now).is_yes())
    }

    /// Inserts `list` and returns it. `None` if a list of a higher slot is stored under the same key and may
    /// still be served.
    pub(super) fn insert_list(&self, query: &AccountsQuery, list: Entry) -> Option<Arc<Entry>> {
        let EntryBody::Accounts { values, .. } = &list.body else { return None };
        let form = forms::stored_assembled_form(query.form, values);
        let (key, list) = (Key::Accounts(Arc::clone(&query.pubkeys), form, query.commitment), Arc::new(list));
        let now = Instant::now();
        if self.floors_under(&key, now).0 < list.meta.slot {
            // The list is sent to a caller, so a floor below the slot of the list rises to that slot.
            self.raise_floors(&key, list.meta.slot, now);
        }
        (!matches!(self.insert(key, &list), Insert::KeptNewer(_))).then_some(list)
    }

    /// Returns the newest usable entry of each account of `list`, or `None` for an account without a usable entry.
    /// An entry is usable only if the account can be written from it in the form that `list` asks for.
    pub(super) fn find_singles(
        &self,
        list: &AccountsQuery,
        rule: ServeRule,
        guard: &GenerationGuard<'_>,
    ) -> Vec<Option<Arc<Entry>>> {
        let now = Instant::now();
        let usable = |key: &Key, stored: &Arc<Entry>| self.is_usable(key, stored, &rule, now);
        let single = |pubkey: &Pubkey| {
            let keys =
                || forms::serving_forms(list.form).map(|form| Key::Account(*pubkey, form, list.commitment));
            let stored = keys().filter_map(|key| {
                let stored = self.carry_to_tip(&key, self.store.get(&key)?, now);
                usable(&key, &stored).then_some(stored)
            });
            let newest = stored.max_by_key(|single| (single.meta.slot, single.meta.sent_at));
            let carried =
                |key: Key| self.carry_across(&key, now, guard).filter(|carried| usable(&key, carried));
            newest.or_else(|| keys().find_map(carried))
        };
        list.pubkeys.iter().map(single).collect()
    }
}
