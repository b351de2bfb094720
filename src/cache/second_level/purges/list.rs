//! The purges of one Solana cluster, in a list that stays short.
//!
//! A purge is superfluous once later purges match all that it matches. If the list is still too long, its
//! oldest purges become one summary for each method that they concern. A summary has a digest of the purges
//! that it replaces. A gateway that knew exactly those purges has applied them, and ignores the summary.

use std::collections::HashSet;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::super::value::ValueMac;
use super::LIST_VALID_FOR;
use crate::cache::purge::Filter;
use crate::methods::{Method, Pubkey};
use crate::redis_store::{StoreTime, micros};

/// The length above which a list of purges is too long. One summary for each method then replaces its oldest
/// purges, and the newest half stays.
pub(super) const MAX_PURGES: usize = 128;
/// The least age of purges that may be replaced by one purge, called a summary. By then, every gateway that
/// still reads the store has seen them in the list.
const SETTLED: Duration = LIST_VALID_FOR;
/// The number of digits with which the time of a purge is written.
const DIGITS: usize = 20;

/// A purge and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Purge {
    /// The time of the purge by the store's clock.
    pub(super) time: StoreTime,
    pub(super) filter: Filter,
    /// The digest of the purges that this purge replaces, if it is a summary. `None` for a plain purge.
    pub(super) summary: Option<u64>,
}

impl Purge {
    pub(super) fn order(&self) -> impl Ord + use<> {
        let Filter { method, account, slot } = &self.filter;
        (self.time, method.map(Method::index), account.map(|account| account.0), *slot, self.summary)
    }

    /// Returns the purge as a line of the list: its time and the fields of its filter. The line of a summary
    /// also has the digest of the purges that it replaces. A dash stands for a field that is not set.
    pub(super) fn text(&self) -> String {
        let Filter { method, account, slot } = &self.filter;
        let word = |word: Option<String>| word.unwrap_or_else(|| "-".to_owned());
        format!(
            "{:0DIGITS$} {} {} {}{}",
            self.time,
            word(method.map(|method| method.as_str().to_owned())),
            word(account.map(|account| account.to_string())),
            word(slot.map(|slot| slot.to_string())),
            self.summary.map(|digest| format!(" {digest:016x}")).unwrap_or_default(),
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
        let summary = match words.next() {
            Some(digest) => Some(u64::from_str_radix(digest, 16).ok()?),
            None => None,
        };
        Some(Self { time, filter: Filter { method, account, slot }, summary })
    }

    /// Returns the digest of a plain purge, or that of all purges that a summary replaces. The order in which
    /// digests are combined does not change the result. A summary of summaries thus has the digest of all
    /// purges that they replaced.
    fn digest(&self) -> u64 {
        self.summary.unwrap_or_else(|| {
            let mut first = [0; 8];
            first.copy_from_slice(&Sha256::digest(self.text())[..8]);
            u64::from_be_bytes(first)
        })
    }
}

/// Parses a list of lines. Lines with a wrong signature are left out.
pub(super) fn read(text: &[u8], genesis: &str, mac: &ValueMac) -> Vec<Purge> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    text.lines().filter_map(|line| Purge::read(mac.verify_line(genesis, line)?)).collect()
}

/// Sorts the purges by time. Drops purges from before `from`, and purges that later ones make superfluous.
pub(super) fn sort_and_prune(purges: &mut Vec<Purge>, from: StoreTime) {
    purges.retain(|purge| purge.time >= from);
    purges.sort_unstable_by_key(Purge::order);
    let mut later = HashSet::new();
    purges.reverse();
    purges.retain(|purge| {
        let method_by_method = || {
            let methods = purge.filter.methods();
            !methods.is_empty() && methods.iter().all(|method| later.contains(&Filter::of(*method)))
        };
        let is_needed = !purge.filter.wider().any(|filter| later.contains(&filter)) && !method_by_method();
        if is_needed {
            later.insert(purge.filter);
        }
        is_needed
    });
    purges.reverse();
}

/// Returns the summary for `method`: one purge that replaces all purges up to `until` that concern the
/// method. `None` if no purge concerns the method.
pub(super) fn summary(purges: &[Purge], method: Method, until: StoreTime) -> Option<Purge> {
    let concern = |purge: &&Purge| purge.time <= until && purge.filter.methods().contains(&method);
    let concern: Vec<_> = purges.iter().filter(concern).collect();
    let time = concern.iter().map(|purge| purge.time).max()?;
    let digest = concern.iter().fold(0, |digest, purge| digest ^ purge.digest());
    Some(Purge { time, filter: Filter::of(method), summary: Some(digest) })
}

/// Returns true if `purge`, a summary that replaces earlier purges of one method, was made from exactly the
/// purges in `known`. Only purges of that method, up to the time of the summary, count.
pub(super) fn is_summary_of(purge: &Purge, known: &[Purge]) -> bool {
    let own = purge.filter.method.and_then(|method| summary(known, method, purge.time));
    own.is_some_and(|own| own.summary == purge.summary)
}

/// Replaces the oldest purges of a sorted list by one summary for each method, if the list is too long.
/// `read_at` is the time at which the list was read.
pub(super) fn sum_up(purges: &mut Vec<Purge>, read_at: StoreTime) {
    if purges.len() <= MAX_PURGES {
        return;
    }
    let last = purges.len() - MAX_PURGES / 2 - 1;
    let until = purges[last].time.min(read_at.saturating_sub(micros(SETTLED)));
    let summaries: Vec<_> =
        Method::ALL.into_iter().filter_map(|method| summary(purges, method, until)).collect();
    purges.retain(|purge| purge.time > until || purge.filter.is_everything());
    purges.extend(summaries);
    purges.sort_unstable_by_key(Purge::order);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    const LATER: StoreTime = 1_000_000_000;

    fn purge(time: StoreTime, filter: Filter) -> Purge {
        Purge { time, filter, summary: None }
    }

    fn slot(slot: u64) -> Filter {
        Filter { slot: Some(slot), ..Filter::default() }
    }

    fn account(byte: u8) -> Filter {
        Filter { account: Some(Pubkey([byte; 32])), ..Filter::default() }
    }

    #[test]
    fn purge_lines_round_trip_and_are_signed() {
        let (mac, other) = (ValueMac::new(None), ValueMac::new(Some(&Secret::new("secret"))));
        for (filter, summary) in [
            (Filter::default(), None),
            (slot(u64::MAX), None),
            (Filter { method: Some(Method::GetBlock), ..account(7) }, None),
            (Filter::of(Method::GetBlock), Some(u64::MAX)),
            (Filter::of(Method::GetBlock), Some(0)),
        ] {
            let purge = Purge { time: 1_700_000_000_000_000, filter, summary };
            let line = mac.sign_line("genesis", &purge.text());
            assert_eq!(read(line.as_bytes(), "genesis", &mac), [purge]);
            assert_eq!(read(line.as_bytes(), "genesis", &other), []);
            assert_eq!(read(line.as_bytes(), "another", &mac), []);
        }
        for odd in ["", "\n", "1 - - -", "00000000000000000001 - - - 00", "\u{e9}"] {
            assert_eq!(read(odd.as_bytes(), "genesis", &mac), [], "{odd}");
        }
    }

    #[test]
    fn later_purges_make_earlier_ones_superfluous() {
        let one = Filter { method: Some(Method::GetTokenAccountBalance), ..account(1) };
        let rows: [(Filter, &[Filter], bool); 8] = [
            (account(1), &[account(1)], true),
            (account(1), &[account(2)], false),
            (one, &[account(1)], true),
            (account(1), &[one], false),
            (slot(5), &[Filter::default()], true),
            (account(1), &[Filter::of(Method::GetAccountInfo)], false),
            (
                account(1),
                &[Filter::of(Method::GetAccountInfo), Filter::of(Method::GetTokenAccountBalance)],
                true,
            ),
            (slot(5), &[Filter::of(Method::GetBlock)], true),
        ];
        for (first, later, is_superfluous) in rows {
            let first = purge(1, first);
            let mut purges: Vec<_> = (2..).zip(later).map(|(time, filter)| purge(time, *filter)).collect();
            purges.push(first);
            sort_and_prune(&mut purges, 0);
            assert_eq!(!purges.contains(&first), is_superfluous, "{first:?} {later:?}");
            assert_eq!(purges.len(), later.len() + usize::from(!is_superfluous), "{first:?} {later:?}");
            sort_and_prune(&mut purges, 2);
            assert!(!purges.contains(&first), "it is over");
        }
    }

    #[test]
    fn too_many_purges_become_one_per_method() {
        let everything = purge(1, Filter::default());
        let mut purges = vec![everything];
        purges.extend((2..=MAX_PURGES as u64).map(|time| purge(time, slot(time))));
        let whole = purges.clone();
        sum_up(&mut purges, LATER);
        assert_eq!(purges, whole, "as many as there may be");
        purges.push(purge(MAX_PURGES as u64 + 1, account(1)));
        let whole = purges.clone();
        sum_up(&mut purges, micros(SETTLED));
        assert_eq!(purges, whole, "they are too young");
        sum_up(&mut purges, LATER);
        assert_eq!(purges.len(), MAX_PURGES / 2 + 2);
        let last = (MAX_PURGES / 2 + 1) as u64;
        assert_eq!(purges[0], everything, "it stays what it is");
        assert_eq!((purges[1].time, purges[1].filter), (last, Filter::of(Method::GetBlock)));
        assert_eq!(purges[2], purge(last + 1, slot(last + 1)));
    }

    #[test]
    fn summaries_of_summaries_cover_all_purges() {
        let all: Vec<_> = (1..=9).map(|time| purge(time, account(u8::try_from(time).unwrap()))).collect();
        let method = Method::GetAccountInfo;
        let early = summary(&all, method, 4).unwrap();
        let stepwise: Vec<_> = std::iter::once(early).chain(all[4..].iter().copied()).collect();
        assert_eq!(summary(&stepwise, method, 9), summary(&all, method, 9));
        assert!(is_summary_of(&early, &all));
        assert!(!is_summary_of(&early, &all[1..]), "one was missed");
        assert!(!is_summary_of(&Purge { time: 5, ..early }, &all), "it does not stand for all");
        assert_eq!(summary(&all, Method::GetBlock, 9), None);
    }
}
