//! The filter of a purge.
//!
//! A filter reads keys only, never answers. An answer that is being fetched during a purge reaches its
//! callers and is not stored.

use super::key::Key;
use crate::methods::{Method, Pubkey, Slot};

/// The entries that a purge removes. An entry must match every field that is set. With no field set, all
/// entries match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Filter {
    /// The entries that answer this method. Single accounts and lists of accounts match both getAccountInfo
    /// and getMultipleAccounts.
    pub method: Option<Method>,
    /// The entries of this account: its data, alone and in lists, and its token balance.
    pub account: Option<Pubkey>,
    /// The entries about the block of this slot: the block in every encoding and level of detail, and the
    /// errors that it is missing.
    pub slot: Option<Slot>,
}

impl Filter {
    /// Creates a filter for all entries that answer `method`.
    pub fn of(method: Method) -> Self {
        Self { method: Some(method), ..Self::default() }
    }

    /// Returns true if the filter matches all entries.
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the filter's account if the filter matches all entries of that account.
    pub fn all_of(&self) -> Option<&Pubkey> {
        self.account.as_ref().filter(|_| self.method.is_none() && self.slot.is_none())
    }

    /// Returns true if the filter matches the entry under `key`.
    pub fn takes(&self, key: &Key) -> bool {
        self.method.is_none_or(|method| key.answers(method))
            && self.account.is_none_or(|account| key.concerns(&account))
            && self.slot.is_none_or(|slot| key.block_slot() == Some(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::LookupPlan;
    use super::super::sizes::Sizes;
    use super::*;
    use crate::frontier::Frontier;
    use crate::jsonrpc::Params;
    use crate::methods::{Commitment, Profile, Query};

    const A: &str = "11111111111111111111111111111111";
    const B: &str = "SysvarC1ock11111111111111111111111111111111";

    fn key(method: Method, params: &str) -> Key {
        let params = Params::Array(bytes::Bytes::copy_from_slice(params.as_bytes()));
        LookupPlan::new(
            &Query::parse(method, &params, Profile::Node).unwrap(),
            &Frontier::new(1),
            &Sizes::default(),
        )
        .key
    }

    #[test]
    fn filter_matches_all_fields_that_are_set() {
        let [one, list] = [format!(r#"["{A}"]"#), format!(r#"[["{B}","{A}"]]"#)];
        let keys = [
            ("account", key(Method::GetAccountInfo, &one)),
            ("list", key(Method::GetMultipleAccounts, &list)),
            ("balance", key(Method::GetTokenAccountBalance, &one)),
            ("fee", Key::Fee(bytes::Bytes::from_static(b"message"), Commitment::Confirmed)),
            ("votes", key(Method::GetVoteAccounts, "[]")),
            ("samples", key(Method::GetRecentPerformanceSamples, "[]")),
            ("nodes", key(Method::GetClusterNodes, "[]")),
            ("block", key(Method::GetBlock, "[5]")),
            ("skipped", Key::NoBlock(5)),
            ("not yet", Key::NotYet(6, Commitment::Confirmed)),
        ];
        let (a, b) = (Pubkey::parse(A).ok(), Pubkey::parse(B).ok());
        let all = Filter::default();
        let method = |method| Filter { method: Some(method), ..all };
        let slot = |slot| Filter { slot: Some(slot), ..all };
        let everything = &[
            "account", "list", "balance", "fee", "votes", "samples", "nodes", "block", "skipped", "not yet",
        ];
        let rows: [(Filter, &[&str]); 15] = [
            (all, everything),
            (method(Method::GetAccountInfo), &["account", "list"]),
            (method(Method::GetMultipleAccounts), &["account", "list"]),
            (method(Method::GetTokenAccountBalance), &["balance"]),
            (method(Method::GetFeeForMessage), &["fee"]),
            (method(Method::GetVoteAccounts), &["votes"]),
            (method(Method::GetRecentPerformanceSamples), &["samples"]),
            (method(Method::GetClusterNodes), &["nodes"]),
            (method(Method::GetBlock), &["block", "skipped", "not yet"]),
            (Filter { account: a, ..all }, &["account", "list", "balance"]),
            (Filter { account: b, ..all }, &["list"]),
            (slot(5), &["block", "skipped"]),
            (slot(6), &["not yet"]),
            (Filter { account: a, ..method(Method::GetTokenAccountBalance) }, &["balance"]),
            (Filter { account: a, ..slot(5) }, &[]),
        ];
        for (filter, expected) in rows {
            let taken: Vec<_> = keys.iter().filter(|(_, k)| filter.takes(k)).map(|(name, _)| *name).collect();
            assert_eq!(taken, expected, "{filter:?}");
            assert_eq!(filter.is_everything(), expected == everything, "{filter:?}");
        }
    }
}
