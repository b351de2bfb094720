use bytes::Bytes;

use super::*;
use crate::methods::Pubkey;

#[test]
fn clusters_have_separate_purges() {
    let (purges, now) = (Purges::new(1), Instant::now());
    let key = Key::NoBlock(5);
    let takes = |genesis| purges.is_purged(genesis, &key, 0, now);
    assert_eq!(purges.clusters_to_sync(Some("one")), ["one"]);
    assert!(!takes("one") && takes("other"), "the other cluster has no purges");
    purges.begin_in_all_lists(now);
    let mut followed = purges.clusters_to_sync(Some("other"));
    followed.sort();
    assert_eq!(followed, ["one", "other"], "a purge is owed to the cluster that the pool has left");
    assert!(takes("one") && !takes("other"));
    purges.with_list("one", |list| list.pending.clear());
    assert_eq!(purges.clusters_to_sync(Some("other")), ["other"]);
    purges.begin(None, Filter::default(), now);
    assert!(!takes("other"));
    purges.clusters_to_sync(Some("other"));
    assert!(takes("other"), "a purge from before a cluster was known holds");
}

const SECOND: Duration = Duration::from_secs(1);
const LIFE: Duration = Duration::from_hours(1);

fn account(number: u64) -> Filter {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    Filter { account: Some(Pubkey(bytes)), ..Filter::default() }
}

/// A simulated store that holds one purge list and has its own clock.
struct OneList {
    started: Instant,
    passed: Duration,
    listed: Vec<Purge>,
}

impl OneList {
    fn new() -> Self {
        Self { started: Instant::now(), passed: 2 * LIFE, listed: Vec::new() }
    }

    fn now(&self) -> Instant {
        self.started + self.passed
    }

    fn gateway() -> Purges {
        let purges = Purges::new(1);
        purges.clusters_to_sync(Some("genesis"));
        purges
    }

    /// Synchronizes a gateway with the store, and returns the purges that the gateway must apply.
    fn look(&mut self, purges: &Purges) -> Vec<Purge> {
        let (text, read_at, asked_at) = (Bytes::new(), micros(self.passed), self.now());
        let lists = [Ok((self.listed.clone(), PurgeList { text, read_at, asked_at }))];
        let MergedPurges { new, known, from } = purges.merge("genesis", &lists, Duration::ZERO, LIFE);
        let listed = self.listed.clone();
        let (missing, useless) = differences(&listed, &known, from);
        self.listed.retain(|purge| !useless.contains(&purge));
        self.listed.extend(missing);
        purges.with_list("genesis", |list| list.unshared.clear());
        new
    }
}

#[test]
fn gateway_applies_each_purge_once() {
    let mut store = OneList::new();
    let [busy, follower, away] = [(); 3].map(|()| OneList::gateway());
    let (mut obeyed, mut missed) = (Vec::new(), Vec::new());
    let all: Vec<_> = (0..300).map(account).collect();
    for purged in all.chunks(3) {
        for filter in purged {
            busy.begin(Some("genesis"), *filter, store.now());
        }
        assert_eq!(store.look(&busy), []);
        obeyed.extend(store.look(&follower));
        if all[..150].contains(&purged[0]) {
            missed.extend(store.look(&away));
        }
        store.passed += SECOND;
    }
    let filters: Vec<_> = obeyed.iter().map(|purge| purge.filter).collect();
    assert_eq!(filters, all, "each purge is applied once, in order");
    assert!(store.listed.len() < 2 * 128, "{} purges are listed", store.listed.len());
    assert!(missed.iter().all(|purge| purge.summary.is_none()), "the gateway followed until then");
    let methods = |purges: Vec<Purge>| -> Vec<_> {
        purges.into_iter().filter(|purge| purge.summary.is_some()).map(|purge| purge.filter).collect()
    };
    let of_accounts = [Method::GetAccountInfo, Method::GetTokenAccountBalance].map(Filter::of);
    assert_eq!(methods(store.look(&away)), of_accounts, "the gateway missed some purges");
    let new = OneList::gateway();
    assert_eq!(methods(store.look(&new)), of_accounts);
    let (of_first, block) = (Key::Balance(all[0].account.unwrap(), Commitment::Finalized), Key::NoBlock(5));
    for gateway in [&busy, &follower, &away, &new] {
        let takes = |key| gateway.is_purged("genesis", key, micros(2 * LIFE), store.started);
        assert_eq!((takes(&of_first), takes(&block)), (true, false));
    }
}

#[test]
fn ended_and_covered_purges_are_not_applied_again() {
    let (mut store, follower) = (OneList::new(), OneList::gateway());
    let purge = |time: Duration, filter| Purge { time: micros(time), filter, summary: None };
    let (over, covered) = (purge(LIFE / 2, Filter::default()), purge(LIFE + SECOND, account(1)));
    let later = purge(2 * LIFE, account(1));
    store.listed = vec![over, covered, later];
    assert_eq!(store.look(&follower), [later]);
    // A part of the store that was unreachable for a while still has the old list.
    store.listed = vec![over, covered, later];
    assert_eq!(store.look(&follower), []);
}

#[test]
fn own_purge_lost_in_a_summary_begins_again() {
    let (mut store, own, other) = (OneList::new(), OneList::gateway(), OneList::gateway());
    own.begin(Some("genesis"), account(0), store.now());
    // The store does not get the purge for a while.
    let before = own.merge(
        "genesis",
        &[Ok((
            Vec::new(),
            PurgeList { text: Bytes::new(), read_at: micros(store.passed), asked_at: store.now() },
        ))],
        Duration::ZERO,
        LIFE,
    );
    assert_eq!(before.known.len(), 1);
    store.passed += SECOND;
    for number in 1..200 {
        other.begin(Some("genesis"), account(number), store.now());
    }
    store.look(&other);
    store.passed += LIST_VALID_FOR + SECOND;
    store.look(&other);
    assert!(store.listed.iter().any(|purge| purge.summary.is_some()), "the list has a summary");
    store.look(&own);
    let seen = store.look(&other);
    assert!(seen.iter().any(|purge| purge.filter == account(0)), "{seen:?}");
}
