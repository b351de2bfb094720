//! Purges that reach every gateway of the shared store, whether it runs, restarts or joins later.
//!
//! The store has one number for each Solana cluster, its generation. Every purge raises it, and every value carries the
//! generation that its writer knew. A value of an older generation is a miss, so a purge of one account costs the shared
//! copies of all answers: they are fetched again once, and in return nothing has to be remembered about any of them.
//!
//! Each second a gateway reads the generation. If it has risen, the gateway removes what the purges since then name from
//! its own cache, or everything if the store no longer lists them. It sends the highest generation that it knows, so a
//! store that has lost its memory gets it back. A gateway reads no value while it does not know the generation: a missing
//! generation never counts as the first one, because an evicted key or an old snapshot would bring purged values back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::super::entry::Class;
use super::super::freshness::FreshnessPolicy;
use super::super::lookup::Lookup;
use super::super::purge::Filter;
use super::value::ValueMac;
use crate::methods::{Commitment, Method, Pubkey};
use crate::redis_store::Store;
use crate::redis_store::generation::StoreGeneration;

/// The time for which a generation counts as known after it was read.
const KNOWN_FOR: Duration = Duration::from_secs(10);
/// The highest number of this gateway's purges for one cluster that wait for the store. One more replaces them all by a
/// purge of everything.
const MAX_PENDING: usize = 64;
/// The least time for which a store keeps a generation. Gateways with other settings may share answers that live longer
/// than those of this gateway.
const KEPT_AT_LEAST: Duration = Duration::from_hours(7 * 24);

#[derive(Default)]
pub(in crate::cache) struct Generations {
    clusters: Mutex<Clusters>,
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Clusters {
    /// By genesis hash. Earlier clusters of the pool are kept while a purge of this gateway waits for the store.
    known: HashMap<String, ClusterGeneration>,
    /// The purges that this gateway began before the pool's cluster was known.
    early: Vec<PendingPurge>,
    next: u64,
}

/// A purge of this gateway, with its number among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PendingPurge(u64, Filter);

#[derive(Default)]
struct ClusterGeneration {
    number: Option<u64>,
    /// The time at which `number` was last asked for.
    read_at: Option<Instant>,
    /// This gateway's purges that have not raised the generation yet.
    pending: Vec<PendingPurge>,
}

impl ClusterGeneration {
    /// Returns the generation if it is known, was read lately, and no purge of this gateway is missing in it.
    fn current(&self) -> Option<u64> {
        let is_known = self.read_at.is_some_and(|at| at.elapsed() < KNOWN_FOR) && self.pending.is_empty();
        self.number.filter(|_| is_known)
    }
}

impl Generations {
    /// Begins a purge. Until the store knows of it, this gateway neither reads nor writes values of the cluster. Without
    /// a genesis hash the purge counts for the first cluster that becomes known.
    pub(in crate::cache) fn purge(&self, genesis: Option<&str>, filter: Filter) {
        let mut clusters = self.lock();
        clusters.next += 1;
        let number = clusters.next;
        let pending = match genesis {
            Some(genesis) => &mut clusters.known.entry(genesis.to_owned()).or_default().pending,
            None => &mut clusters.early,
        };
        if pending.len() < MAX_PENDING {
            pending.push(PendingPurge(number, filter));
        } else {
            *pending = vec![PendingPurge(number, Filter::default())];
        }
    }

    /// Begins a purge of everything in each cluster whose generation this gateway knows.
    pub(in crate::cache) fn purge_all_clusters(&self) {
        let mut clusters = self.lock();
        clusters.next += 1;
        let everything = PendingPurge(clusters.next, Filter::default());
        clusters.known.values_mut().for_each(|cluster| cluster.pending = vec![everything]);
    }

    /// Returns the generation whose values may be read and written now. `None` if it is not known.
    pub(super) fn current(&self, genesis: &str) -> Option<u64> {
        self.lock().known.get(genesis)?.current()
    }

    pub(super) fn is_any_known(&self) -> bool {
        self.lock().known.values().any(|cluster| cluster.current().is_some())
    }

    /// Sends this gateway's purges to the store, and applies those of other gateways here. Returns true if the store
    /// has all of this gateway's purges.
    pub(super) async fn exchange(
        &self,
        store: &Store,
        mac: &ValueMac,
        genesis: Option<&str>,
        lookup: &Arc<Lookup>,
    ) -> bool {
        let _turn = self.turn.lock().await;
        let clusters = self.clusters_to_ask(genesis);
        if !store.is_there() {
            return false;
        }
        let life = longest_shared(&lookup.freshness);
        let mut all_sent = genesis.is_some() || self.lock().early.is_empty();
        for cluster in clusters {
            let here = (genesis == Some(&*cluster)).then_some(lookup);
            all_sent &= self.exchange_cluster(&cluster, store, mac, life, here).await;
        }
        all_sent
    }

    /// Forgets earlier clusters without waiting purges. Returns the clusters that are left.
    fn clusters_to_ask(&self, genesis: Option<&str>) -> Vec<String> {
        let mut clusters = self.lock();
        let Clusters { known, early, .. } = &mut *clusters;
        known.retain(|of, cluster| genesis == Some(of) || !cluster.pending.is_empty());
        if let Some(genesis) = genesis {
            known.entry(genesis.to_owned()).or_default().pending.append(early);
        }
        known.keys().cloned().collect()
    }

    /// Sends the purges of one cluster that wait, one after the other, or reads its generation if there are none. `here`
    /// is the look-up if this is the pool's cluster. Returns true if no purge is left.
    async fn exchange_cluster(
        &self,
        genesis: &str,
        store: &Store,
        mac: &ValueMac,
        life: Duration,
        here: Option<&Arc<Lookup>>,
    ) -> bool {
        loop {
            let (number, sent) = {
                let clusters = self.lock();
                let cluster = clusters.known.get(genesis);
                (cluster.and_then(|c| c.number), cluster.and_then(|c| c.pending.first().copied()))
            };
            let text = sent.map(|PendingPurge(_, filter)| mac.sign_line(genesis, &write(&filter)));
            let asked_at = Instant::now();
            let known = number.unwrap_or(0);
            let Ok(found) = store.generation(genesis, known, life, text.as_deref()).await else {
                return false;
            };
            if let Some(lookup) = here
                && number != Some(found.number)
            {
                // Until this gateway's own cache is purged and the new number is published, nothing is read or written. A
                // value of the old number could be read after the purge otherwise, and stay in the purged cache.
                self.lock().known.entry(genesis.to_owned()).or_default().read_at = None;
                // The purge that this call has sent was applied here when it began.
                let (found, from) = (without_own(&found, text.is_some()), number);
                apply(lookup, &found, from, |line| mac.verify_line(genesis, line).and_then(read)).await;
            }
            let mut clusters = self.lock();
            let Some(cluster) = clusters.known.get_mut(genesis) else { return false };
            (cluster.number, cluster.read_at) = (Some(found.number), Some(asked_at));
            cluster.pending.retain(|pending| Some(*pending) != sent);
            if cluster.pending.is_empty() || sent.is_none() {
                return cluster.pending.is_empty();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Clusters> {
        self.clusters.lock()
    }
}

/// Returns `found` as it was before this gateway's own purge raised it, if there was one.
fn without_own(found: &StoreGeneration, has_own: bool) -> StoreGeneration {
    let mut before = found.clone();
    if has_own && !before.purges.is_empty() {
        before.number = before.purges.remove(0).ended;
    }
    before
}

/// Removes from this gateway's cache what the purges between the generation `from` and `found` name. If not all of them
/// are known, removes everything.
async fn apply(
    lookup: &Arc<Lookup>,
    found: &StoreGeneration,
    from: Option<u64>,
    parse: impl Fn(&str) -> Option<Filter>,
) {
    if from == Some(found.number) {
        // Only this gateway's purge raised the generation. An answer that was asked for before must not be written with
        // the number after it.
        lookup.generation.advance();
        return;
    }
    let listed = from.and_then(|from| found.purges_since(from));
    let filters: Option<Vec<Filter>> = listed.and_then(|listed| listed.into_iter().map(parse).collect());
    let filters = filters.unwrap_or_else(|| vec![Filter::default()]);
    let (lookup, count) = (Arc::clone(lookup), filters.len());
    // A walk over a million entries would block an async worker.
    let purging = tokio::task::spawn_blocking(move || lookup.purge(&filters));
    let entries = purging.await.unwrap_or_default();
    if from.is_some() {
        tracing::info!(
            purge.count = count,
            purge.entries = entries,
            "entries were purged, because other replicas requested it through the shared store"
        );
    }
}

/// Returns the filter as text: method, account and slot. A dash stands for a field that is not set.
fn write(filter: &Filter) -> String {
    let Filter { method, account, slot } = filter;
    let word = |word: Option<String>| word.unwrap_or_else(|| "-".to_owned());
    let (method, account) = (method.map(|m| m.as_str().to_owned()), account.map(|a| a.to_string()));
    format!("{} {} {}", word(method), word(account), word(slot.map(|slot| slot.to_string())))
}

/// Parses what [`write()`] has written.
fn read(text: &str) -> Option<Filter> {
    fn word<T>(word: &str, read: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, ()> {
        if word == "-" { Ok(None) } else { read(word).ok_or(()).map(Some) }
    }
    let mut words = text.split(' ');
    let method = word(words.next()?, Method::from_name).ok()?;
    let account = word(words.next()?, |account| Pubkey::parse(account).ok()).ok()?;
    let slot = word(words.next()?, |slot| slot.parse().ok()).ok()?;
    words.next().is_none().then_some(Filter { method, account, slot })
}

/// Returns the longest time for which an answer in the shared store may be used, but at least [`KEPT_AT_LEAST`]. The
/// store must keep the generation for that long.
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
mod tests {
    use super::*;

    #[test]
    fn filters_round_trip() {
        let account = Some(Pubkey([7; 32]));
        for filter in [
            Filter::default(),
            Filter::of(Method::GetBlock),
            Filter { account, ..Filter::default() },
            Filter { method: Some(Method::GetAccountInfo), account, slot: Some(u64::MAX) },
        ] {
            assert_eq!(read(&write(&filter)), Some(filter));
        }
        for odd in ["", "-", "- -", "- - - -", "getSlot - -", "- x -", "- - x"] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }

    #[test]
    fn too_many_waiting_purges_become_one() {
        let generations = Generations::default();
        for slot in 0..=MAX_PENDING as u64 {
            generations.purge(Some("genesis"), Filter { slot: Some(slot), ..Filter::default() });
        }
        assert_eq!(generations.lock().known["genesis"].pending, [PendingPurge(65, Filter::default())]);
    }

    #[test]
    fn early_purges_count_for_the_first_cluster() {
        let generations = Generations::default();
        generations.purge(None, Filter::of(Method::GetBlock));
        assert_eq!(generations.clusters_to_ask(None), Vec::<String>::new());
        assert_eq!(generations.clusters_to_ask(Some("genesis")), ["genesis"]);
        assert_eq!(
            generations.lock().known["genesis"].pending,
            [PendingPurge(1, Filter::of(Method::GetBlock))]
        );
        assert_eq!(generations.current("genesis"), None);
    }
}
