//! Purges that reach the shared store, and so every gateway that reads it: those that run, those that are restarted, and
//! new ones.
//!
//! The store keeps a list of purges for each cluster, each with its moment by the store's clock. No gateway takes what was
//! asked for before a purge that names it, and none reads the store while it does not know the list. Each second a gateway
//! reads the list, does here what others have purged, and adds what the list lacks: its own purges that did not reach the
//! store before, and those that a store lost with its memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::Cache;
use super::super::freshness::Class;
use super::super::key::Key;
use super::super::purge::Filter;
use super::value::Seal;
use crate::methods::{Commitment, Method, Pubkey};
use crate::shared::purges::Listed;
use crate::shared::{Failed, Store, StoreTime, micros};

/// Between two looks at the list.
const LOOK: Duration = Duration::from_secs(1);
/// A part whose list was not read for so long is not read from either.
const KNOWN_FOR: Duration = Duration::from_secs(10);
/// More are made fewer: the oldest become one purge of everything before.
const MOST: usize = 128;
/// Purges are kept for as long as an answer may be that was shared before, by whichever gateway.
const KEPT_AT_LEAST: Duration = Duration::from_hours(7 * 24);
/// The digits of a moment.
const DIGITS: usize = 20;

/// A purge and its moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Purge {
    /// By the store's clock.
    time: StoreTime,
    filter: Filter,
}

/// The purges that are known here.
pub(super) struct Purges {
    inner: Mutex<Inner>,
    /// The parts of the store.
    parts: usize,
    /// One look at a time.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Inner {
    /// By the genesis hash of their cluster: the pool's, and those before it whose lists lack a purge that was done here.
    lists: HashMap<String, List>,
    /// Own purges from before any cluster was known.
    early: Vec<(Instant, Filter)>,
}

/// The purges of one cluster.
struct List {
    /// Ordered by time.
    known: Vec<Purge>,
    /// Own purges that have no time yet, since the store has not been asked for it.
    pending: Vec<(Instant, Filter)>,
    /// When the list of each part was asked for last.
    read: Vec<Option<Instant>>,
    /// All parts of the store have all that is known here.
    is_shared: bool,
}

impl List {
    fn new(parts: usize) -> Self {
        Self { known: Vec::new(), pending: Vec::new(), read: vec![None; parts], is_shared: true }
    }

    fn is_known(&self, part: usize) -> bool {
        self.read[part].is_some_and(|read| read.elapsed() < KNOWN_FOR)
    }
}

/// Adds an own purge to those that have no time yet.
fn begin(pending: &mut Vec<(Instant, Filter)>, filter: Filter, now: Instant) {
    if pending.len() < MOST {
        pending.push((now, filter));
    } else {
        *pending = vec![(now, Filter::default())];
    }
}

impl Purges {
    pub(super) fn new(parts: usize) -> Self {
        Self { inner: Mutex::default(), parts, turn: tokio::sync::Mutex::default() }
    }

    /// From now on nothing of this cluster is taken that was asked for before `now` and that `filter` takes.
    pub(super) fn begin(&self, genesis: Option<&str>, filter: Filter, now: Instant) {
        let mut inner = self.lock();
        let pending = match genesis {
            Some(genesis) => {
                let lists = inner.lists.entry(genesis.to_owned());
                &mut lists.or_insert_with(|| List::new(self.parts)).pending
            }
            None => &mut inner.early,
        };
        begin(pending, filter, now);
    }

    /// From now on nothing is taken that was asked for before `now`, of any cluster whose purges were followed here.
    pub(super) fn begin_everywhere(&self, now: Instant) {
        for list in self.lock().lists.values_mut() {
            begin(&mut list.pending, Filter::default(), now);
        }
    }

    /// Returns true if what lies under `key` was purged since it was asked for, at `sent_at` and at `asked_for` by the
    /// store's clock.
    pub(super) fn take(&self, genesis: &str, key: &Key, asked_for: StoreTime, sent_at: Instant) -> bool {
        let inner = self.lock();
        // A cluster that the pool has left.
        let Some(list) = inner.lists.get(genesis) else { return true };
        list.known.iter().any(|purge| asked_for <= purge.time && purge.filter.takes(key))
            || list.pending.iter().any(|(at, filter)| sent_at <= *at && filter.takes(key))
    }

    /// Returns true if the purges of this cluster are known in this part of the store.
    pub(super) fn are_known(&self, genesis: &str, part: usize) -> bool {
        self.lock().lists.get(genesis).is_some_and(|list| list.is_known(part))
    }

    /// Returns true if the purges of any cluster are known in any part.
    pub(super) fn are_known_somewhere(&self) -> bool {
        self.lock().lists.values().any(|list| (0..self.parts).any(|part| list.is_known(part)))
    }

    /// Reads the lists of this cluster, and of those before it that lack a purge, learns from them, and adds what they lack.
    /// Returns the purges of others in this cluster that were not known here, and whether the store has all purges now.
    async fn look(
        &self,
        store: &Store,
        seal: &Seal,
        genesis: Option<&str>,
        life: Duration,
    ) -> (Vec<Filter>, bool) {
        let _turn = self.turn.lock().await;
        let followed = self.follow(genesis);
        if !store.is_there() {
            return (Vec::new(), false);
        }
        let (mut new, mut all_have_all) = (Vec::new(), genesis.is_some() || self.lock().early.is_empty());
        for followed in followed {
            let (learnt, is_shared) = self.look_at(&followed, store, seal, life).await;
            if Some(&*followed) == genesis {
                new = learnt;
            }
            all_have_all &= is_shared;
        }
        (new, all_have_all)
    }

    /// Lets go of clusters to which no purge is owed, but for this one. Returns those that are left.
    fn follow(&self, genesis: Option<&str>) -> Vec<String> {
        let mut inner = self.lock();
        let Inner { lists, early } = &mut *inner;
        lists.retain(|of, list| genesis == Some(of) || !list.is_shared || !list.pending.is_empty());
        if let Some(genesis) = genesis {
            let list = lists.entry(genesis.to_owned()).or_insert_with(|| List::new(self.parts));
            early.drain(..).for_each(|(at, filter)| begin(&mut list.pending, filter, at));
        }
        lists.keys().cloned().collect()
    }

    /// The same for the lists of one cluster.
    async fn look_at(
        &self,
        genesis: &str,
        store: &Store,
        seal: &Seal,
        life: Duration,
    ) -> (Vec<Filter>, bool) {
        let lists = join_all((0..self.parts).map(|part| store.purges(genesis, part))).await;
        let lists: Vec<_> = lists
            .into_iter()
            .map(|listed| listed.map(|listed| (read(&listed.text, genesis, seal), listed)))
            .collect();
        let (new, known, from) = self.learn(genesis, &lists, store.clocks_differ_by(), life);
        let added = lists.iter().enumerate().map(async |(part, listed)| {
            let Ok((held, Listed { asked_at, .. })) = listed else { return false };
            let missing = known.iter().filter(|purge| !held.contains(purge));
            let missing: Vec<_> = missing.map(|purge| seal.line(genesis, &purge.text())).collect();
            let added =
                missing.is_empty() || store.add_purges(genesis, part, &missing, from, life).await.is_ok();
            self.of(genesis, |list| list.read[part] = Some(*asked_at));
            added
        });
        let is_shared = join_all(added).await.into_iter().all(|added| added);
        self.of(genesis, |list| list.is_shared = is_shared);
        (new, is_shared)
    }

    /// Does something with the list of this cluster.
    fn of<T>(&self, genesis: &str, act: impl FnOnce(&mut List) -> T) -> Option<T> {
        self.lock().lists.get_mut(genesis).map(act)
    }

    /// Takes the lists in, and gives own purges their time. Returns the purges of others that were not known, all that are
    /// known now, and the moment before which none counts any more.
    fn learn(
        &self,
        genesis: &str,
        lists: &[Result<(Vec<Purge>, Listed), Failed>],
        clocks_differ_by: Duration,
        life: Duration,
    ) -> (Vec<Filter>, Vec<Purge>, StoreTime) {
        let read_at = lists.iter().flatten().map(|(_, listed)| listed.read_at).max();
        let asked_at = lists.iter().flatten().map(|(_, listed)| listed.asked_at).min();
        let listed = lists.iter().flatten().flat_map(|(purges, _)| purges.iter().copied());
        let mut inner = self.lock();
        let Some(list) = inner.lists.get_mut(genesis) else { return (Vec::new(), Vec::new(), 0) };
        let Some((read_at, asked_at)) = read_at.zip(asked_at) else {
            return (Vec::new(), list.known.clone(), 0);
        };
        let mut new: Vec<Purge> = listed.filter(|purge| !list.known.contains(purge)).collect();
        new.sort_unstable_by_key(Purge::order);
        new.dedup();
        // What was asked for until the purge was asked for no later than this by the store's clock.
        let time = read_at.saturating_add(micros(clocks_differ_by));
        let own = list.pending.extract_if(.., |(begun, _)| *begun <= asked_at);
        let own: Vec<_> = own.map(|(_, filter)| Purge { time, filter }).collect();
        list.known.extend(own.into_iter().chain(new.iter().copied()));
        let from = read_at.saturating_sub(micros(life));
        tidy(&mut list.known, from);
        (new.into_iter().map(|purge| purge.filter).collect(), list.known.clone(), from)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Orders the purges, and drops those that are over, or that a later one of everything has made superfluous. Where they are
/// too many, the oldest become one of everything.
fn tidy(purges: &mut Vec<Purge>, from: StoreTime) {
    purges.sort_unstable_by_key(Purge::order);
    purges.dedup();
    if let Some(last) = purges.len().checked_sub(MOST).and_then(|over| over.checked_sub(1)) {
        purges[last].filter = Filter::default();
    }
    let everything = purges.iter().rposition(|purge| purge.filter.is_everything());
    purges.drain(..everything.unwrap_or(0));
    purges.retain(|purge| purge.time >= from);
}

/// The purges in a list of lines; what is not signed as ours is left out.
fn read(text: &[u8], genesis: &str, seal: &Seal) -> Vec<Purge> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    text.lines().filter_map(|line| Purge::read(seal.read_line(genesis, line)?)).collect()
}

impl Purge {
    fn order(&self) -> (StoreTime, Option<usize>, Option<[u8; 32]>, Option<u64>) {
        let Filter { method, account, slot } = &self.filter;
        (self.time, method.map(Method::index), account.map(|account| account.0), *slot)
    }

    /// The purge in words: its time, and a dash for each part of the filter that is any.
    fn text(&self) -> String {
        let Filter { method, account, slot } = &self.filter;
        let word = |word: Option<String>| word.unwrap_or_else(|| "-".to_owned());
        format!(
            "{:0DIGITS$} {} {} {}",
            self.time,
            word(method.map(|method| method.as_str().to_owned())),
            word(account.map(|account| account.to_string())),
            word(slot.map(|slot| slot.to_string())),
        )
    }

    fn read(text: &str) -> Option<Self> {
        fn word<T>(word: &str, read: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, ()> {
            if word == "-" { Ok(None) } else { read(word).ok_or(()).map(Some) }
        }
        let mut words = text.split(' ');
        let time = words.next()?.parse().ok()?;
        let method = word(words.next()?, Method::from_name).ok()?;
        let account = word(words.next()?, |account| Pubkey::parse(account).ok()).ok()?;
        let slot = word(words.next()?, |slot| slot.parse().ok()).ok()?;
        Some(Self { time, filter: Filter { method, account, slot } })
    }
}

impl Cache {
    /// Keeps the purges of all gateways known here, until `stop`.
    pub fn watch_purges(self: &Arc<Self>, tasks: &TaskTracker, stop: &CancellationToken) {
        let (cache, stop) = (Arc::clone(self), stop.clone());
        tasks.spawn(async move {
            let watching = async {
                let Some(second) = &cache.second else { return };
                loop {
                    cache.share_purges().await;
                    let _ = tokio::time::timeout(LOOK, second.store.connected()).await;
                }
            };
            stop.run_until_cancelled(watching).await;
        });
    }

    /// Brings purges to the shared store, and does here what others have purged. Returns whether the store has all of this
    /// gateway's, or `None` where there is no such store.
    pub async fn share_purges(self: &Arc<Self>) -> Option<bool> {
        let second = self.second.as_ref()?;
        let genesis = self.pool.genesis();
        let (store, life) = (&second.store, self.longest_shared());
        let (new, all_there) = second.purges.look(store, &second.seal, genesis.as_deref(), life).await;
        for filter in new {
            let cache = Arc::clone(self);
            // A million entries take their time.
            let purged = tokio::task::spawn_blocking(move || cache.purge_here(&filter)).await;
            tracing::info!(
                purge.method = filter.method.map(Method::as_str),
                purge.account = filter.account.map(|account| account.to_string()),
                purge.slot = filter.slot,
                purge.entries = purged.unwrap_or_default(),
                "kept answers were purged, as at another gateway of the same store"
            );
        }
        Some(all_there)
    }

    /// How long an answer may be in the shared store, and so a purge has to be known.
    fn longest_shared(&self) -> Duration {
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
        classes.map(|class| self.rules.ttl(class)).max().unwrap_or_default().max(KEPT_AT_LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    fn purge(time: StoreTime, slot: Option<u64>) -> Purge {
        Purge { time, filter: Filter { slot, ..Filter::default() } }
    }

    #[test]
    fn a_purge_is_read_as_it_was_written_and_by_whom_it_was() {
        let (seal, other) = (Seal::new(None), Seal::new(Some(&Secret::new("secret"))));
        let account = Pubkey::parse("SysvarC1ock11111111111111111111111111111111").ok();
        for filter in [
            Filter::default(),
            Filter { slot: Some(u64::MAX), ..Filter::default() },
            Filter { method: Some(Method::GetBlock), account, slot: Some(0) },
        ] {
            let purge = Purge { time: 1_700_000_000_000_000, filter };
            let line = seal.line("genesis", &purge.text());
            assert_eq!(read(line.as_bytes(), "genesis", &seal), [purge]);
            assert_eq!(read(line.as_bytes(), "genesis", &other), []);
            assert_eq!(read(line.as_bytes(), "another", &seal), []);
            let all = purge.text().contains(" - - -");
            assert_eq!(all, filter.is_everything(), "what the store's script goes by");
        }
        for odd in ["", "\n", "1 - - -", "00000000000000000001 - - - 00", "\u{e9}"] {
            assert_eq!(read(odd.as_bytes(), "genesis", &seal), [], "{odd}");
        }
    }

    #[test]
    fn each_cluster_has_purges_of_its_own() {
        let (purges, now) = (Purges::new(1), Instant::now());
        let key = Key::NoBlock(5);
        let takes = |genesis| purges.take(genesis, &key, 0, now);
        assert_eq!(purges.follow(Some("one")), ["one"]);
        assert!(!takes("one") && takes("other"), "nothing is known of the other");
        purges.begin_everywhere(now);
        let mut followed = purges.follow(Some("other"));
        followed.sort();
        assert_eq!(followed, ["one", "other"], "a purge is owed to the cluster that the pool has left");
        assert!(takes("one") && !takes("other"));
        purges.of("one", |list| list.pending.clear());
        assert_eq!(purges.follow(Some("other")), ["other"]);
        purges.begin(None, Filter::default(), now);
        assert!(!takes("other"));
        purges.follow(Some("other"));
        assert!(takes("other"), "purged before a cluster was known");
    }

    #[test]
    fn purges_that_are_too_many_become_one_of_everything() {
        let mut purges: Vec<_> = (1..=MOST as u64 + 3).rev().map(|at| purge(at, Some(at))).collect();
        tidy(&mut purges, 0);
        assert_eq!(purges.len(), MOST + 1);
        assert_eq!((purges[0], purges[1]), (purge(3, None), purge(4, Some(4))));
        purges.push(purge(100, None));
        tidy(&mut purges, 0);
        assert_eq!(purges[0], purge(100, None), "all before it is superfluous");
        assert!(purges.iter().all(|purge| purge.time >= 100));
        tidy(&mut purges, 120);
        assert_eq!(purges.first().map(|purge| purge.time), Some(120));
    }
}
