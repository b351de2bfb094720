//! Purges that reach the shared store, and so every gateway that reads it: those that run, those that are restarted, and
//! new ones.
//!
//! The store keeps a list of purges, each with its moment by the store's clock. No gateway takes what was asked for before
//! a purge that names it, and none reads the store while it does not know the list. Each second a gateway reads the list,
//! does here what others have purged, and adds what the list lacks: its own purges that did not reach the store before,
//! and those that a store lost with its memory.

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
    /// One look at a time.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Inner {
    /// Ordered by time.
    known: Vec<Purge>,
    /// Own purges that have no time yet, since the store has not been asked for it.
    pending: Vec<(Instant, Filter)>,
    /// When the list of each part was asked for last.
    read: Vec<Option<Instant>>,
}

impl Purges {
    pub(super) fn new(parts: usize) -> Self {
        let inner = Mutex::new(Inner { read: vec![None; parts], ..Inner::default() });
        Self { inner, turn: tokio::sync::Mutex::default() }
    }

    /// From now on nothing is taken that was asked for before `now` and that `filter` takes.
    pub(super) fn begin(&self, filter: Filter, now: Instant) {
        let pending = &mut self.lock().pending;
        if pending.len() < MOST {
            pending.push((now, filter));
        } else {
            *pending = vec![(now, Filter::default())];
        }
    }

    /// Returns true if what lies under `key` was purged since it was asked for, at `sent_at` and at `asked_for` by the
    /// store's clock.
    pub(super) fn take(&self, key: &Key, asked_for: StoreTime, sent_at: Instant) -> bool {
        let inner = self.lock();
        inner.known.iter().any(|purge| asked_for <= purge.time && purge.filter.takes(key))
            || inner.pending.iter().any(|(at, filter)| sent_at <= *at && filter.takes(key))
    }

    /// Returns true if the purges of this part of the store are known.
    pub(super) fn are_known(&self, part: usize) -> bool {
        self.lock().read[part].is_some_and(|read| read.elapsed() < KNOWN_FOR)
    }

    /// Returns true if the purges of any part are known.
    pub(super) fn are_known_somewhere(&self) -> bool {
        let parts = self.lock().read.len();
        (0..parts).any(|part| self.are_known(part))
    }

    /// Reads the lists, learns from them, and adds what they lack. Returns the purges of others that were not known here,
    /// and whether all parts have all purges now.
    async fn look(&self, store: &Store, seal: &Seal, life: Duration) -> (Vec<Filter>, bool) {
        let _turn = self.turn.lock().await;
        if !store.is_there() {
            return (Vec::new(), false);
        }
        let lists = join_all((0..store.parts()).map(|part| store.purges(part))).await;
        let (new, known, from) = self.learn(&lists, seal, store.clocks_differ_by(), life);
        let added = lists.iter().enumerate().map(async |(part, listed)| {
            let Ok(Listed { text, asked_at, .. }) = listed else { return false };
            let held = read(text, seal);
            let missing = known.iter().filter(|purge| !held.contains(purge));
            let missing: Vec<_> = missing.map(|purge| seal.line(&purge.text())).collect();
            let added = missing.is_empty() || store.add_purges(part, &missing, from, life).await.is_ok();
            self.lock().read[part] = Some(*asked_at);
            added
        });
        let all_have_all = join_all(added).await.into_iter().all(|added| added);
        (new, all_have_all)
    }

    /// Takes the lists in, and gives own purges their time. Returns the purges of others that were not known, all that are
    /// known now, and the moment before which none counts any more.
    fn learn(
        &self,
        lists: &[Result<Listed, Failed>],
        seal: &Seal,
        clocks_differ_by: Duration,
        life: Duration,
    ) -> (Vec<Filter>, Vec<Purge>, StoreTime) {
        let read_at = lists.iter().flatten().map(|listed| listed.read_at).max();
        let asked_at = lists.iter().flatten().map(|listed| listed.asked_at).min();
        let listed = lists.iter().flatten().flat_map(|listed| read(&listed.text, seal));
        let mut inner = self.lock();
        let Some((read_at, asked_at)) = read_at.zip(asked_at) else {
            return (Vec::new(), inner.known.clone(), 0);
        };
        let mut new: Vec<Purge> = listed.filter(|purge| !inner.known.contains(purge)).collect();
        new.sort_unstable_by_key(Purge::order);
        new.dedup();
        // What was asked for until the purge was asked for no later than this by the store's clock.
        let time = read_at.saturating_add(micros(clocks_differ_by));
        let own = inner.pending.extract_if(.., |(begun, _)| *begun <= asked_at);
        let own: Vec<_> = own.map(|(_, filter)| Purge { time, filter }).collect();
        inner.known.extend(own.into_iter().chain(new.iter().copied()));
        let from = read_at.saturating_sub(micros(life));
        tidy(&mut inner.known, from);
        (new.into_iter().map(|purge| purge.filter).collect(), inner.known.clone(), from)
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
fn read(text: &[u8], seal: &Seal) -> Vec<Purge> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    text.lines().filter_map(|line| Purge::read(seal.read_line(line)?)).collect()
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
        let (new, all_there) = second.purges.look(&second.store, &second.seal, self.longest_shared()).await;
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
            let line = seal.line(&purge.text());
            assert_eq!(read(line.as_bytes(), &seal), [purge]);
            assert_eq!(read(line.as_bytes(), &other), []);
            let all = purge.text().contains(" - - -");
            assert_eq!(all, filter.is_everything(), "what the store's script goes by");
        }
        for odd in ["", "\n", "1 - - -", "00000000000000000001 - - - 00", "\u{e9}"] {
            assert_eq!(read(odd.as_bytes(), &seal), [], "{odd}");
        }
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
