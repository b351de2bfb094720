//! Purges that reach every gateway of the shared store, whether it runs, restarts or joins later.
//!
//! The store has a list of purges for each Solana cluster. Each purge in the list has its time by the store's
//! clock. No gateway uses an answer that was asked for before a matching purge. A gateway that does not know
//! the list does not read the store.
//!
//! Each second a gateway reads the list, applies the purges of others, and drops superfluous purges from the
//! list. It adds the purges that the list lacks. These are the gateway's own purges that did not reach the
//! store before, and purges that a store lost with its memory.

mod list;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::super::class::Class;
use super::super::freshness::FreshnessPolicy;
use super::super::key::Key;
use super::super::lookup::Lookup;
use super::super::purge::Filter;
use super::value::ValueMac;
use crate::methods::{Commitment, Method};
use crate::redis_store::purges::{PurgeList, PurgeListChange};
use crate::redis_store::{Failed, Store, StoreTime, micros};
use list::Purge;

/// The time for which a purge list counts as known after it was read. Each part of the store has its own
/// list. Without a known list, no answers are read from the part.
const LIST_VALID_FOR: Duration = Duration::from_secs(10);
/// The highest number of this gateway's purges for one Solana cluster that wait for the store. One more purge
/// replaces them all by a purge of everything.
const MAX_PENDING: usize = 512;
/// The least time for which purges stay in the list. Gateways with other settings may share answers that live
/// longer than those of this gateway.
const KEPT_AT_LEAST: Duration = Duration::from_hours(7 * 24);

/// The purges that this gateway knows.
pub(super) struct Purges {
    inner: Mutex<PurgeLists>,
    /// The number of parts of the shared store, which fail independently of each other. Each part has purge
    /// lists of its own.
    parts: usize,
    /// Allows one synchronization of the purge lists at a time.
    sync_lock: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct PurgeLists {
    /// The purges of each cluster, by its genesis hash. Earlier clusters of the pool are kept while their
    /// lists in the store lack a purge of this gateway.
    lists: HashMap<String, ClusterPurges>,
    /// The purges that this gateway began before the pool's cluster was known.
    early: Vec<(Instant, Filter)>,
}

/// The purges of one Solana cluster.
struct ClusterPurges {
    /// The purges that this gateway knows, ordered by time.
    known: Vec<Purge>,
    /// This gateway's purges that have no time by the store's clock yet. Each has the time by this gateway's
    /// clock.
    pending: Vec<(Instant, Filter)>,
    /// The time at which the list of each part of the store was last requested. `None` if it never was.
    read: Vec<Option<Instant>>,
    /// This gateway's purges that the list of some part of the store may lack.
    unshared: Vec<Purge>,
    /// True if the lists of all parts of the store have all purges that this gateway knows.
    is_shared: bool,
}

/// The known purges after a synchronization.
struct MergedPurges {
    /// The purges of other gateways that this gateway has yet to apply.
    new: Vec<Purge>,
    /// All purges that are in force.
    known: Vec<Purge>,
    /// The time before which purges are no longer in force, because all answers from before it have expired.
    from: StoreTime,
}

impl ClusterPurges {
    fn new(parts: usize) -> Self {
        let (known, pending, unshared) = (Vec::new(), Vec::new(), Vec::new());
        Self { known, pending, read: vec![None; parts], unshared, is_shared: true }
    }

    fn is_known(&self, part: usize) -> bool {
        self.read[part].is_some_and(|read| read.elapsed() < LIST_VALID_FOR)
    }
}

/// Adds a purge of this gateway to `pending`, which holds the purges without a time by the store's clock.
fn begin(pending: &mut Vec<(Instant, Filter)>, filter: Filter, now: Instant) {
    if pending.len() < MAX_PENDING {
        pending.push((now, filter));
    } else {
        *pending = vec![(now, Filter::default())];
    }
}

impl Purges {
    pub(super) fn new(parts: usize) -> Self {
        Self { inner: Mutex::default(), parts, sync_lock: tokio::sync::Mutex::default() }
    }

    /// Begins a purge: answers that match `filter` and were asked for before `now` are ignored. Without a
    /// genesis hash, the purge counts for the first cluster that becomes known.
    pub(super) fn begin(&self, genesis: Option<&str>, filter: Filter, now: Instant) {
        let mut inner = self.lock();
        let pending = match genesis {
            Some(genesis) => {
                let lists = inner.lists.entry(genesis.to_owned());
                &mut lists.or_insert_with(|| ClusterPurges::new(self.parts)).pending
            }
            None => &mut inner.early,
        };
        begin(pending, filter, now);
    }

    /// Begins a purge of everything in each cluster whose list this gateway keeps. Answers that were asked
    /// for before `now` are ignored.
    pub(super) fn begin_in_all_lists(&self, now: Instant) {
        for list in self.lock().lists.values_mut() {
            begin(&mut list.pending, Filter::default(), now);
        }
    }

    /// Returns true if the answer under `key` was asked for before it was purged. `asked_for` is the time of
    /// its upstream call by the store's clock, and `sent_at` the same time by this gateway's clock. Also true
    /// if this gateway keeps no purges of the cluster.
    pub(super) fn is_purged(&self, genesis: &str, key: &Key, asked_for: StoreTime, sent_at: Instant) -> bool {
        let inner = self.lock();
        // An unknown list belongs to a cluster that the pool has left.
        let Some(list) = inner.lists.get(genesis) else { return true };
        list.known.iter().any(|purge| asked_for <= purge.time && purge.filter.takes(key))
            || list.pending.iter().any(|(at, filter)| sent_at <= *at && filter.takes(key))
    }

    /// Returns true if this gateway knows the purges of the cluster for this part of the store.
    pub(super) fn are_known(&self, genesis: &str, part: usize) -> bool {
        self.lock().lists.get(genesis).is_some_and(|list| list.is_known(part))
    }

    /// Returns true if this gateway knows the purges of any cluster for any part of the store.
    pub(super) fn are_known_somewhere(&self) -> bool {
        self.lock().lists.values().any(|list| (0..self.parts).any(|part| list.is_known(part)))
    }

    /// Writes this gateway's purges to the shared store and applies those of other gateways. Returns true if
    /// the store has all of this gateway's purges.
    pub(super) async fn share(
        &self,
        store: &Store,
        mac: &ValueMac,
        genesis: Option<&str>,
        freshness: &FreshnessPolicy,
        lookup: &Arc<Lookup>,
    ) -> bool {
        let (new, all_there) = self.sync(store, mac, genesis, longest_shared(freshness)).await;
        if !new.is_empty() {
            apply_remote(lookup, new).await;
        }
        all_there
    }

    /// Synchronizes the purge lists of this cluster, and of earlier clusters whose lists lack a purge.
    /// Returns two values: the purges of other gateways in this cluster that were unknown here; and true if
    /// all lists have all purges now.
    async fn sync(
        &self,
        store: &Store,
        mac: &ValueMac,
        genesis: Option<&str>,
        life: Duration,
    ) -> (Vec<Purge>, bool) {
        let _turn = self.sync_lock.lock().await;
        let followed = self.clusters_to_sync(genesis);
        if !store.is_there() {
            return (Vec::new(), false);
        }
        let (mut new, mut all_have_all) = (Vec::new(), genesis.is_some() || self.lock().early.is_empty());
        for followed in followed {
            let (new_here, is_shared) = self.sync_cluster(&followed, store, mac, life).await;
            if Some(&*followed) == genesis {
                new = new_here;
            }
            all_have_all &= is_shared;
        }
        (new, all_have_all)
    }

    /// Forgets earlier clusters whose lists in the store have all purges. Returns the clusters that are left.
    fn clusters_to_sync(&self, genesis: Option<&str>) -> Vec<String> {
        let mut inner = self.lock();
        let PurgeLists { lists, early } = &mut *inner;
        lists.retain(|of, list| genesis == Some(of) || !list.is_shared || !list.pending.is_empty());
        if let Some(genesis) = genesis {
            let list = lists.entry(genesis.to_owned()).or_insert_with(|| ClusterPurges::new(self.parts));
            early.drain(..).for_each(|(at, filter)| begin(&mut list.pending, filter, at));
        }
        lists.keys().cloned().collect()
    }

    /// Synchronizes the lists of one cluster. Returns two values: the purges of other gateways that were
    /// unknown here; and true if the cluster's lists have all purges now.
    async fn sync_cluster(
        &self,
        genesis: &str,
        store: &Store,
        mac: &ValueMac,
        life: Duration,
    ) -> (Vec<Purge>, bool) {
        let lists = join_all((0..self.parts).map(|part| store.purges(genesis, part))).await;
        let lists: Vec<_> = lists
            .into_iter()
            .map(|listed| listed.map(|listed| (list::read(&listed.text, genesis, mac), listed)))
            .collect();
        let MergedPurges { new, known, from } = self.merge(genesis, &lists, store.clocks_differ_by(), life);
        let lines =
            |purges: Vec<&Purge>| purges.iter().map(|purge| mac.sign_line(genesis, &purge.text())).collect();
        let changed = lists.iter().enumerate().map(async |(part, listed)| {
            let Ok((listed, PurgeList { asked_at, .. })) = listed else { return false };
            let (missing, useless) = differences(listed, &known, from);
            let is_done = (missing.is_empty() && useless.is_empty()) || {
                let change = PurgeListChange { add: lines(missing), drop: lines(useless), from, life };
                store.change_purges(genesis, part, &change).await.is_ok()
            };
            self.with_list(genesis, |list| list.read[part] = Some(*asked_at));
            is_done
        });
        let is_shared = join_all(changed).await.into_iter().all(|is_done| is_done);
        self.with_list(genesis, |list| {
            list.is_shared = is_shared;
            if is_shared {
                list.unshared.clear();
            }
        });
        (new, is_shared)
    }

    /// Calls `act` with the purges of this cluster. `None` if this gateway keeps no purges of the cluster.
    fn with_list<T>(&self, genesis: &str, act: impl FnOnce(&mut ClusterPurges) -> T) -> Option<T> {
        self.lock().lists.get_mut(genesis).map(act)
    }

    /// Merges `lists`, which were read from the store, into the purges that this gateway knows. This gateway's
    /// new purges get their time by the store's clock.
    fn merge(
        &self,
        genesis: &str,
        lists: &[Result<(Vec<Purge>, PurgeList), Failed>],
        clocks_differ_by: Duration,
        life: Duration,
    ) -> MergedPurges {
        let read_at = lists.iter().flatten().map(|(_, listed)| listed.read_at).max();
        let asked_at = lists.iter().flatten().map(|(_, listed)| listed.asked_at).min();
        let listed = lists.iter().flatten().flat_map(|(purges, _)| purges.iter().copied());
        let mut inner = self.lock();
        let Some(list) = inner.lists.get_mut(genesis) else {
            return MergedPurges { new: Vec::new(), known: Vec::new(), from: 0 };
        };
        let Some((read_at, asked_at)) = read_at.zip(asked_at) else {
            return MergedPurges { new: Vec::new(), known: list.known.clone(), from: 0 };
        };
        let from = read_at.saturating_sub(micros(life));
        let (mut new, mut known) = (Vec::new(), list.known.clone());
        let (summaries, plain): (Vec<Purge>, Vec<Purge>) =
            listed.filter(|purge| !known.contains(purge)).partition(|purge| purge.summary.is_some());
        known.extend(plain.iter().copied());
        list::sort_and_prune(&mut known, from);
        new.extend(plain.into_iter().filter(|purge| known.contains(purge)));
        let unshared: Vec<_> = list.unshared.iter().copied().filter(|own| known.contains(own)).collect();
        let is_obeyed = |purge: &Purge| list::is_summary_of(purge, &known);
        let (obeyed, disobeyed): (Vec<_>, Vec<_>) = summaries.into_iter().partition(is_obeyed);
        known.extend(obeyed.into_iter().chain(disobeyed.iter().copied()));
        list::sort_and_prune(&mut known, from);
        new.extend(disobeyed.iter().filter(|purge| known.contains(purge)));
        new.sort_unstable_by_key(Purge::order);
        new.dedup();
        // Another gateway's summary may displace a purge of this gateway that the other gateway may not have
        // seen. That purge would take effect nowhere else, so it begins again.
        let (unshared, unseen): (Vec<_>, Vec<_>) =
            unshared.into_iter().partition(|own| disobeyed.is_empty() || known.contains(own));
        list::sum_up(&mut known, read_at);
        // By the store's clock, every answer that was asked for before the purge has this time or an earlier
        // one.
        let time = read_at.saturating_add(micros(clocks_differ_by));
        let pending = list.pending.extract_if(.., |(begun, _)| *begun <= asked_at).map(|(_, filter)| filter);
        let own = pending.chain(unseen.into_iter().map(|purge| purge.filter));
        let own: Vec<_> = own.map(|filter| Purge { time, filter, summary: None }).collect();
        known.extend(own.iter().copied());
        list::sort_and_prune(&mut known, from);
        list.unshared = unshared.into_iter().chain(own).collect();
        list.known.clone_from(&known);
        MergedPurges { new, known, from }
    }

    fn lock(&self) -> MutexGuard<'_, PurgeLists> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns two values: the purges to add to `listed`, a list in the store; and the purges to drop from that
/// list. Purges in `known` that the list lacks are added. Purges since `from` that are not in `known` are
/// dropped, because later purges replace them.
fn differences<'a>(
    listed: &'a [Purge],
    known: &'a [Purge],
    from: StoreTime,
) -> (Vec<&'a Purge>, Vec<&'a Purge>) {
    let missing = known.iter().filter(|purge| !listed.contains(purge));
    // Older purges may still matter to a gateway that keeps answers for longer.
    let useless = listed.iter().filter(|purge| purge.time >= from && !known.contains(purge));
    (missing.collect(), useless.collect())
}

/// Applies the purges of other gateways all at once, because each single purge would walk over all entries.
/// Each would also keep the answers of fetches under way out of the cache.
async fn apply_remote(lookup: &Arc<Lookup>, purges: Vec<Purge>) {
    for Purge { filter, summary, .. } in &purges {
        tracing::debug!(
            purge.method = filter.method.map(Method::as_str),
            purge.account = filter.account.map(|account| account.to_string()),
            purge.slot = filter.slot,
            purge.summary = summary.is_some(),
            "applying a purge that another replica requested"
        );
    }
    let (lookup, count) = (Arc::clone(lookup), purges.len());
    let purging = move || {
        let filters: Vec<_> = purges.iter().map(|purge| purge.filter).collect();
        let entries = lookup.entries.purge(&filters);
        // A summary replaces purges whose accounts are unknown here, so all floors are removed.
        if purges.iter().any(|purge| purge.summary.is_some()) {
            lookup.entries.forget_floors();
        }
        entries
    };
    // A walk over a million entries would block an async worker.
    let entries = tokio::task::spawn_blocking(purging).await.unwrap_or_default();
    tracing::info!(
        purge.count = count,
        purge.entries = entries,
        "entries were purged, because other replicas requested it through the shared store"
    );
}

/// Returns the longest time for which an answer in the shared store may be used, but at least
/// [`KEPT_AT_LEAST`]. A purge must be kept for that long.
fn longest_shared(freshness: &FreshnessPolicy) -> Duration {
    let classes = [
        Class::BlockFinal,
        Class::BlockConfirmed,
        Class::Skipped,
        Class::SkippedUnconfirmed,
        Class::Samples,
        Class::ClusterNodes,
    ];
    let by_commitment = Commitment::ALL.map(|c| [Class::Account(c), Class::Fee(c), Class::Votes(c)]);
    let classes = classes.into_iter().chain(by_commitment.into_iter().flatten());
    classes.map(|class| freshness.ttl(class)).max().unwrap_or_default().max(KEPT_AT_LEAST)
}

#[cfg(test)]
mod tests;
