//! The newest slot seen at each commitment, per node and for the pool.
//!
//! Does not ask anybody: probes and answers report here, and every freshness decision reads from here. The surprise
//! is that a node's word is not always taken: one that is far ahead of all others alone is believed only once a second
//! node confirms it, or once it has kept advancing, and stays believed as long as it goes on from there; and a frontier
//! that no node reaches any more falls back.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::methods::{Commitment, Slot};

/// A report further above every other usable node than this, in slots, wants a second voice (about 26 s of chain).
const LONELY_LEAD_SLOTS: u64 = 64;
/// A lonely leader that has kept advancing for this long is believed: the others are the ones that stand still.
const LONELY_LEAD_BELIEVED_AFTER: Duration = Duration::from_secs(10);
/// A frontier that no usable node has reached for this long falls to the highest report.
const UNREACHED_FALLS_AFTER: Duration = Duration::from_secs(30);

/// What one node says of one commitment.
#[derive(Debug, Clone, Copy, Default)]
struct Report {
    /// Its newest slot; `None` before its first report.
    slot: Option<Slot>,
    /// Its newest slot that was believed: a word that continues this one needs no second voice again.
    believed: Option<Slot>,
    /// Since when, and from which slot on, it has spoken without being believed.
    doubted_since: Option<(Instant, Slot)>,
}

impl Report {
    /// Whether the node's word is taken, given whether another node confirms it or there is none to ask.
    fn decide(&mut self, slot: Slot, confirmed: bool, now: Instant) -> bool {
        let continues =
            self.believed.is_some_and(|believed| slot <= believed.saturating_add(LONELY_LEAD_SLOTS));
        let (since, from) = *self.doubted_since.get_or_insert((now, slot));
        let advancing = slot > from && now.duration_since(since) >= LONELY_LEAD_BELIEVED_AFTER;
        let believed = confirmed || continues || advancing;
        if believed {
            (self.believed, self.doubted_since) = (Some(slot), None);
        }
        believed
    }
}

/// The decision state of one commitment: pure, all inputs are arguments.
#[derive(Debug)]
struct Level {
    reports: Vec<Report>,
    frontier: Slot,
    /// Whether the frontier came from a believed node. One that did not, as before the second node of a pool has
    /// spoken, is given up as soon as another word counts more.
    founded: bool,
    reached_at: Option<Instant>,
}

/// The slot that the reports speak for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word {
    slot: Slot,
    believed: bool,
}

/// What a new report did to a frontier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moved {
    frontier: Slot,
    reset: bool,
}

impl Level {
    fn new(nodes: usize) -> Self {
        let reports = vec![Report::default(); nodes];
        Self { reports, frontier: 0, founded: false, reached_at: None }
    }

    /// Takes the reports as they stand; `usable[i]` says whose word counts.
    fn decide(&mut self, usable: &[bool], now: Instant) -> Moved {
        let mut reset = false;
        if let Some(Word { slot, believed }) = self.weigh(usable, now) {
            let unreached = self.reached_at.is_none_or(|at| now.duration_since(at) >= UNREACHED_FALLS_AFTER);
            if slot >= self.frontier || !self.founded || unreached {
                reset = slot < self.frontier;
                self.founded = believed || (self.founded && slot == self.frontier);
                self.frontier = slot;
                self.reached_at = Some(now);
            }
        }
        Moved { frontier: self.frontier, reset }
    }

    /// The leader's slot if the leader is believed, else the next one's. A sole voice is all there is, believed or not.
    fn weigh(&mut self, usable: &[bool], now: Instant) -> Option<Word> {
        let mut voices: Vec<(usize, Slot)> = (0..self.reports.len())
            .filter(|&i| usable[i])
            .filter_map(|i| Some((i, self.reports[i].slot?)))
            .collect();
        voices.sort_unstable_by_key(|(_, slot)| std::cmp::Reverse(*slot));
        for (_, report) in self.reports.iter_mut().enumerate().filter(|(i, _)| !usable[*i]) {
            report.doubted_since = None;
        }
        let pool_of_one = self.reports.len() == 1;
        let close = |a: usize, b: usize| voices[a].1 - voices[b].1 <= LONELY_LEAD_SLOTS;
        let words: Vec<Word> = (0..voices.len())
            .map(|at| {
                let confirmed = pool_of_one
                    || (at > 0 && close(at - 1, at))
                    || (at + 1 < voices.len() && close(at, at + 1));
                let (node, slot) = voices[at];
                Word { slot, believed: self.reports[node].decide(slot, confirmed, now) }
            })
            .collect();
        match words.as_slice() {
            [leader, second, ..] if !leader.believed => Some(*second),
            words => words.first().copied(),
        }
    }
}

/// What is decided under one lock.
#[derive(Debug)]
struct Inner {
    levels: [Level; 3],
    usable: Vec<bool>,
}

/// The pool's view of the chain's head; shared by probes, pool and cache.
#[derive(Debug)]
pub struct Frontier {
    inner: Mutex<Inner>,
    /// Published for lock-free reads, by [`Commitment::index`]; 0 is unknown.
    published: [AtomicU64; 3],
    /// When each frontier last moved, in milliseconds after `started`.
    moved_ms: [AtomicU64; 3],
    started: Instant,
    resets: AtomicU64,
    advanced: watch::Sender<()>,
}

impl Frontier {
    /// A frontier over `nodes` nodes, none of which has reported yet.
    pub fn new(nodes: usize) -> Self {
        Self {
            inner: Mutex::new(Inner {
                levels: std::array::from_fn(|_| Level::new(nodes)),
                usable: vec![true; nodes],
            }),
            published: Default::default(),
            moved_ms: Default::default(),
            started: Instant::now(),
            resets: AtomicU64::new(0),
            advanced: watch::Sender::new(()),
        }
    }

    /// The pool's newest slot at `commitment`; 0 before the first report.
    pub fn slot(&self, commitment: Commitment) -> Slot {
        self.published[commitment.index()].load(Ordering::Acquire)
    }

    /// The newest slot that `node` is known to have reached; `None` before its first report.
    pub fn node_slot(&self, node: usize, commitment: Commitment) -> Option<Slot> {
        self.lock().levels[commitment.index()].reports[node].slot
    }

    /// How far `node` is behind the frontier, in slots; `None` before its first report.
    pub fn lag(&self, node: usize, commitment: Commitment) -> Option<u64> {
        Some(self.slot(commitment).saturating_sub(self.node_slot(node, commitment)?))
    }

    /// How long the frontier has stood where it is.
    pub fn age(&self, commitment: Commitment, now: Instant) -> Duration {
        let moved = self.moved_ms[commitment.index()].load(Ordering::Relaxed);
        now.duration_since(self.started).saturating_sub(Duration::from_millis(moved))
    }

    /// How often a frontier that no node reached any more has fallen.
    pub fn resets(&self) -> u64 {
        self.resets.load(Ordering::Relaxed)
    }

    /// A probe's word: it may lower a node's slot, as after a restart.
    pub fn probed(&self, node: usize, commitment: Commitment, slot: Slot, now: Instant) {
        self.report(node, commitment, now, |_| slot);
    }

    /// An answer's context slot: answers overtake each other, so it only ever raises a node's slot.
    pub fn answered(&self, node: usize, commitment: Commitment, slot: Slot, now: Instant) {
        self.report(node, commitment, now, |known| known.map_or(slot, |known| known.max(slot)));
    }

    /// Says whether a node's word counts: whether it answers its probes, is healthy and of this cluster.
    pub fn set_usable(&self, node: usize, usable: bool, now: Instant) {
        let mut inner = self.lock();
        if inner.usable[node] != usable {
            inner.usable[node] = usable;
            for commitment in Commitment::ALL {
                self.decide(&mut inner, commitment, now);
            }
        }
    }

    /// Forgets everything: the cluster behind the pool is another one.
    pub fn forget(&self) {
        let mut inner = self.lock();
        for commitment in Commitment::ALL {
            let level = &mut inner.levels[commitment.index()];
            *level = Level::new(level.reports.len());
            self.published[commitment.index()].store(0, Ordering::Release);
        }
    }

    /// Waits until the frontier at `commitment` has reached `slot`. Without end: callers bring a deadline.
    pub async fn reached(&self, commitment: Commitment, slot: Slot) {
        let mut advanced = self.advanced.subscribe();
        while self.slot(commitment) < slot {
            if advanced.changed().await.is_err() {
                return;
            }
        }
    }

    fn report(&self, node: usize, c: Commitment, now: Instant, next: impl FnOnce(Option<Slot>) -> Slot) {
        let mut inner = self.lock();
        let report = &mut inner.levels[c.index()].reports[node];
        report.slot = Some(next(report.slot));
        self.decide(&mut inner, c, now);
    }

    fn decide(&self, inner: &mut Inner, commitment: Commitment, now: Instant) {
        let Inner { levels, usable } = inner;
        let Moved { frontier, reset } = levels[commitment.index()].decide(usable, now);
        if reset {
            self.resets.fetch_add(1, Ordering::Relaxed);
        }
        let published = &self.published[commitment.index()];
        if published.swap(frontier, Ordering::AcqRel) != frontier {
            let ms = u64::try_from(now.duration_since(self.started).as_millis()).unwrap_or(u64::MAX);
            self.moved_ms[commitment.index()].store(ms, Ordering::Relaxed);
            self.advanced.send_replace(());
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: Commitment = Commitment::Processed;

    fn frontier(nodes: usize, reports: &[(usize, Slot, u64)]) -> (Frontier, Instant) {
        let frontier = Frontier::new(nodes);
        let start = frontier.started;
        for &(node, slot, at_s) in reports {
            frontier.probed(node, C, slot, start + Duration::from_secs(at_s));
        }
        (frontier, start)
    }

    #[test]
    fn the_frontier_is_the_highest_report_that_is_believed() {
        for (name, nodes, reports, expected) in [
            ("nothing reported", 3, &[][..], 0),
            ("a pool of one believes its node", 1, &[(0, 10, 0), (0, 5000, 1)][..], 5000),
            ("highest of several", 3, &[(0, 100, 0), (1, 103, 0), (2, 99, 0)][..], 103),
            ("a lonely jump waits", 2, &[(0, 100, 0), (1, 100, 0), (1, 1000, 1)][..], 100),
            ("a second voice confirms", 2, &[(0, 100, 0), (1, 100, 0), (1, 1000, 1), (0, 990, 2)][..], 1000),
            (
                "a lonely leader that advances for 10 s is believed",
                2,
                &[(0, 100, 0), (1, 100, 0), (1, 1000, 1), (1, 1010, 6), (1, 1020, 12)][..],
                1020,
            ),
            (
                "a lonely leader that stands still is not",
                2,
                &[(0, 100, 0), (1, 100, 0), (1, 1000, 1), (1, 1000, 12)][..],
                100,
            ),
            ("one falling back moves nothing", 2, &[(0, 100, 0), (1, 100, 0), (1, 50, 1)][..], 100),
            ("none reaches it for 30 s: it falls", 1, &[(0, 100, 0), (0, 50, 1), (0, 60, 31)][..], 60),
            ("a lonely first word counts while it is the only one", 2, &[(0, 9000, 0)][..], 9000),
            ("it is no voice for itself", 2, &[(0, 9000, 0), (1, 100, 1)][..], 100),
            (
                "nor does it become one by repetition",
                3,
                &[(0, 9000, 0), (1, 100, 1), (2, 101, 1), (0, 9000, 9), (2, 109, 10), (0, 9000, 20)][..],
                109,
            ),
            (
                "a first word that others then confirm stands",
                3,
                &[(0, 9000, 0), (1, 100, 1), (2, 8990, 1)][..],
                9000,
            ),
            (
                "a node that led alone for 10 s is believed when others come back far behind",
                2,
                &[(0, 1000, 0), (0, 1025, 10), (1, 900, 11), (0, 1030, 12)][..],
                1030,
            ),
            (
                "a believed leader stays believed while the others fall behind",
                3,
                &[(0, 100, 0), (1, 100, 0), (2, 99, 0), (0, 150, 5), (0, 200, 9), (1, 101, 9), (0, 250, 14)]
                    [..],
                250,
            ),
            (
                "a second who was confirmed is believed when it takes the lead",
                3,
                &[(0, 100, 0), (1, 90, 0), (2, 20, 0), (1, 140, 1), (0, 60, 1), (1, 190, 2)][..],
                190,
            ),
            (
                "a believed leader that jumps is doubted again",
                2,
                &[(0, 100, 0), (1, 100, 0), (0, 160, 1), (0, 9000, 2)][..],
                160,
            ),
            ("29 s are not enough", 1, &[(0, 100, 0), (0, 50, 1), (0, 60, 29)][..], 100),
        ] {
            assert_eq!(frontier(nodes, reports).0.slot(C), expected, "{name}");
        }
    }

    #[test]
    fn an_answer_never_lowers_a_node_but_a_probe_may() {
        let (frontier, now) = frontier(1, &[(0, 100, 0)]);
        frontier.answered(0, C, 90, now);
        assert_eq!(frontier.node_slot(0, C), Some(100));
        frontier.probed(0, C, 90, now);
        assert_eq!((frontier.node_slot(0, C), frontier.lag(0, C)), (Some(90), Some(10)));
    }

    #[test]
    fn an_unusable_node_has_no_voice() {
        let (frontier, now) = frontier(2, &[(0, 100, 0)]);
        frontier.set_usable(1, false, now);
        frontier.probed(1, C, 120, now);
        assert_eq!(frontier.slot(C), 100);
        frontier.set_usable(1, true, now);
        assert_eq!(frontier.slot(C), 120);
    }

    #[tokio::test]
    async fn a_waiter_wakes_when_the_frontier_arrives() {
        let (frontier, now) = frontier(1, &[(0, 100, 0)]);
        let waits = frontier.reached(C, 101);
        tokio::pin!(waits);
        assert!(futures_util::poll!(&mut waits).is_pending());
        frontier.answered(0, C, 101, now);
        waits.await;
    }
}
