//! Purges: which entries a purge removes, from this gateway's cache and from those of the other gateways of a shared
//! store.
//!
//! A filter reads keys only, never answers. An answer that is being fetched during a purge reaches its
//! callers and is not stored.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::key::Key;
use super::lookup::Lookup;
use super::second_level::SecondLevel;
use crate::methods::{Method, Pubkey, Slot};
use crate::pool::Pool;

/// The interval between two reads of the generation in the shared store, which every purge raises.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The interval between two checks of the pool for the genesis hash of its cluster.
const GENESIS_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The entries that a purge removes. An entry must match every field that is set. With no field set, all entries match.
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

/// Removes entries from this gateway's cache and from the shared store.
pub struct Purger {
    lookup: Arc<Lookup>,
    second_level: Option<Arc<SecondLevel>>,
    pool: Arc<Pool>,
}

impl Purger {
    /// Creates a purger of the entries that `lookup` finds, and of those in `second_level`.
    pub(super) fn new(lookup: Arc<Lookup>, second_level: Option<Arc<SecondLevel>>, pool: Arc<Pool>) -> Self {
        Self { lookup, second_level, pool }
    }

    /// Returns true if a shared store is configured and connected, and its generation is known, so that answers can be
    /// read from it.
    pub fn shares(&self) -> bool {
        self.second_level.as_ref().is_some_and(|second_level| second_level.is_available())
    }

    /// Removes all entries. The answers of fetches under way are not stored and not given to later callers.
    /// Answers in the shared store that were asked for before this moment are ignored from now on.
    pub fn clear(&self) {
        self.lookup.generation.advance();
        if let Some(second_level) = &self.second_level {
            second_level.ignore_before(Instant::now());
        }
        self.lookup.clear();
    }

    /// Removes the entries that match `filter`, and returns their number. Walks over all entries, so an async
    /// worker must not call this. All answers that the shared store has of this cluster are ignored from now on, so that
    /// nothing has to be remembered about single ones. [`Self::share`] informs the other gateways.
    pub fn purge(&self, filter: &Filter) -> u64 {
        if let Some(second_level) = &self.second_level {
            second_level.generations.purge(self.pool.genesis().as_deref(), *filter);
        }
        self.lookup.purge(&[*filter])
    }

    /// Removes what was stored as final above `slot`, and returns the number of entries. Needed after the nodes went back
    /// to `slot`, because the cluster may go on with other blocks from there. Walks over all entries, so an async worker
    /// must not call this. The shared store forgets all answers, and the other replicas their blocks.
    pub fn purge_above(&self, slot: Slot) -> u64 {
        if let Some(second_level) = &self.second_level {
            second_level.generations.purge(self.pool.genesis().as_deref(), Filter::of(Method::GetBlock));
        }
        self.lookup.purge_above(slot)
    }

    /// Removes all entries, and purges the answers of this pool's clusters in the shared store. Needed after a node of
    /// another Solana cluster was asked, because its answers may have been shared as answers of the pool's cluster.
    pub fn purge_all_clusters(&self) {
        if let Some(second_level) = &self.second_level {
            second_level.generations.purge_all_clusters();
        }
        self.lookup.purge(&[Filter::default()]);
    }

    /// Writes this gateway's purges to the shared store and applies those of other gateways. Returns true if
    /// the store has all of this gateway's purges, and `None` if no store is configured.
    pub async fn share(&self) -> Option<bool> {
        let genesis = self.pool.genesis();
        Some(self.second_level.as_ref()?.share_purges(genesis.as_deref()).await)
    }

    /// Exchanges purges with the other gateways until `stop` is cancelled.
    pub fn watch(self: &Arc<Self>, tasks: &TaskTracker, stop: &CancellationToken) {
        let (purger, stop) = (Arc::clone(self), stop.clone());
        tasks.spawn(async move {
            let watching = async {
                let Some(second_level) = &purger.second_level else { return };
                loop {
                    let is_identified = purger.pool.genesis().is_some();
                    purger.share().await;
                    // This gateway reads no answers from the store before it knows the cluster's generation. It
                    // therefore asks for that of a newly identified cluster at once.
                    let reason_to_look = async {
                        tokio::select! {
                            () = second_level.connected() => {}
                            () = purger.identified(), if !is_identified => {}
                        }
                    };
                    let _ = tokio::time::timeout(POLL_INTERVAL, reason_to_look).await;
                }
            };
            stop.run_until_cancelled(watching).await;
        });
    }

    async fn identified(&self) {
        while self.pool.genesis().is_none() {
            tokio::time::sleep(GENESIS_POLL_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::forms::Sizes;
    use super::super::key::LookupPlan;
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
