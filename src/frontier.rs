//! The newest slot seen at each commitment, per node and for the pool.
//!
//! Does not ask anybody: probes and answers report here, and every freshness decision reads from here. The surprise
//! is that a node's word is not always taken: one that is far ahead of all others alone is believed only once a second
//! node confirms it, or once it has kept advancing, and stays believed as long as it goes on from there; and a frontier
//! that no node reaches any more falls back. Nodes come and go; each has a number that is never given twice.

mod pace;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::methods::{Commitment, Slot};
use pace::Pace;

/// The length of a slot until it has been measured for a minute.
pub const ASSUMED_SLOT_TIME: Duration = Duration::from_millis(400);

/// A report that is further above every other usable node than the slots of this time wants a second voice.
const LONELY_LEAD: Duration = Duration::from_millis(25_600);
/// The least and the most slots that such a lead is, whatever was measured: those of a second, and of 100 ms.
const LONELY_LEAD_SLOTS: (u64, u64) = (26, 256);
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
    /// A word up to `lead` slots above the one before continues it.
    fn decide(&mut self, slot: Slot, confirmed: bool, lead: u64, now: Instant) -> bool {
        let continues = self.believed.is_some_and(|believed| slot <= believed.saturating_add(lead));
        let (since, from) = *self.doubted_since.get_or_insert((now, slot));
        let advancing = slot > from && now.duration_since(since) >= LONELY_LEAD_BELIEVED_AFTER;
        let believed = confirmed || continues || advancing;
        if believed {
            (self.believed, self.doubted_since) = (Some(slot), None);
        }
        believed
    }
}

/// What one node has shown, for reads without a lock; by [`Commitment::index`].
#[derive(Debug)]
pub struct Shown {
    /// Its newest slot.
    slots: [AtomicU64; 3],
    /// When an answer of its last told it, in milliseconds after the frontier was made.
    told_ms: [AtomicU64; 3],
}

/// No slot, or no time: before the first report.
const NO_SLOT: u64 = u64::MAX;

impl Default for Shown {
    fn default() -> Self {
        let unknown = || std::array::from_fn(|_| AtomicU64::new(NO_SLOT));
        Self { slots: unknown(), told_ms: unknown() }
    }
}

impl Shown {
    /// The newest slot that the node is known to have reached; `None` before its first report.
    pub fn slot(&self, commitment: Commitment) -> Option<Slot> {
        let slot = self.slots[commitment.index()].load(Ordering::Acquire);
        (slot != NO_SLOT).then_some(slot)
    }

    fn set(&self, commitment: Commitment, slot: Option<Slot>) {
        self.slots[commitment.index()].store(slot.unwrap_or(NO_SLOT), Ordering::Release);
    }
}

/// A node as the frontier knows it.
#[derive(Debug)]
struct Voice {
    node: usize,
    usable: bool,
    shown: Arc<Shown>,
}

impl Voice {
    fn new(node: usize) -> Self {
        Self { node, usable: true, shown: Arc::default() }
    }
}

/// The decision state of one commitment: pure, all inputs are arguments.
#[derive(Debug)]
struct Level {
    /// In the order of the voices.
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

    /// Takes the reports as they stand; the voices say whose word counts, and `lead` how far one may be ahead alone.
    fn decide(&mut self, voices: &[Voice], lead: u64, now: Instant) -> Moved {
        let mut reset = false;
        if let Some(Word { slot, believed }) = self.weigh(voices, lead, now) {
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
    fn weigh(&mut self, nodes: &[Voice], lead: u64, now: Instant) -> Option<Word> {
        let mut voices: Vec<(usize, Slot)> = (0..self.reports.len())
            .filter(|&i| nodes[i].usable)
            .filter_map(|i| Some((i, self.reports[i].slot?)))
            .collect();
        voices.sort_unstable_by_key(|(_, slot)| std::cmp::Reverse(*slot));
        for (report, _) in self.reports.iter_mut().zip(nodes).filter(|(_, node)| !node.usable) {
            report.doubted_since = None;
        }
        let pool_of_one = self.reports.len() == 1;
        let close = |a: usize, b: usize| voices[a].1 - voices[b].1 <= lead;
        let words: Vec<Word> = (0..voices.len())
            .map(|at| {
                let confirmed = pool_of_one
                    || (at > 0 && close(at - 1, at))
                    || (at + 1 < voices.len() && close(at, at + 1));
                let (node, slot) = voices[at];
                Word { slot, believed: self.reports[node].decide(slot, confirmed, lead, now) }
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
    /// In the order in which they joined.
    voices: Vec<Voice>,
    /// The number of the next one to join.
    next: usize,
    /// How fast the frontier at processed moves.
    pace: Pace,
}

impl Inner {
    /// Where a node stands among the voices; `None` once it has left.
    fn position(&self, node: usize) -> Option<usize> {
        self.voices.iter().position(|voice| voice.node == node)
    }
}

/// A time between two moments at which everything was forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Era(u64);

/// The pool's view of the chain's head; shared by probes, pool and cache.
#[derive(Debug)]
pub struct Frontier {
    inner: Mutex<Inner>,
    /// Published for lock-free reads, by [`Commitment::index`]; 0 is unknown.
    published: [AtomicU64; 3],
    /// When each frontier last moved, in milliseconds after `started`.
    moved_ms: [AtomicU64; 3],
    /// When a node last named each frontier, in milliseconds after `started`.
    heard_ms: [AtomicU64; 3],
    /// The measured length of a slot, in microseconds; 0 is unknown.
    slot_us: AtomicU64,
    started: Instant,
    /// How often everything was forgotten; changed under the lock.
    era: AtomicU64,
    resets: AtomicU64,
    advanced: watch::Sender<()>,
}

impl Frontier {
    /// A frontier over `nodes` nodes, numbered from 0, none of which has reported yet.
    pub fn new(nodes: usize) -> Self {
        Self {
            inner: Mutex::new(Inner {
                levels: std::array::from_fn(|_| Level::new(nodes)),
                voices: (0..nodes).map(Voice::new).collect(),
                next: nodes,
                pace: Pace::default(),
            }),
            published: Default::default(),
            moved_ms: Default::default(),
            heard_ms: Default::default(),
            slot_us: AtomicU64::new(0),
            started: Instant::now(),
            era: AtomicU64::new(0),
            resets: AtomicU64::new(0),
            advanced: watch::Sender::new(()),
        }
    }

    /// A further node, and its number.
    pub fn join(&self) -> usize {
        let mut inner = self.lock();
        let node = inner.next;
        inner.next += 1;
        inner.voices.push(Voice::new(node));
        inner.levels.iter_mut().for_each(|level| level.reports.push(Report::default()));
        node
    }

    /// A node is no longer of the pool: its word counts no more, and what it still reports is not heard.
    pub fn leave(&self, node: usize, now: Instant) {
        let mut inner = self.lock();
        let Some(position) = inner.position(node) else { return };
        inner.voices.remove(position);
        for commitment in Commitment::ALL {
            inner.levels[commitment.index()].reports.remove(position);
            self.decide(&mut inner, commitment, now);
        }
    }

    /// What a node has shown, to be kept beside it and read without a lock.
    pub fn shown(&self, node: usize) -> Arc<Shown> {
        let inner = self.lock();
        inner.position(node).map(|position| Arc::clone(&inner.voices[position].shown)).unwrap_or_default()
    }

    /// The pool's newest slot at `commitment`; 0 before the first report.
    pub fn slot(&self, commitment: Commitment) -> Slot {
        self.published[commitment.index()].load(Ordering::Acquire)
    }

    /// Whether an answer of `slot` may be believed: not if it is further ahead than a lonely leader may be.
    pub fn believes(&self, commitment: Commitment, slot: Slot) -> bool {
        let frontier = self.slot(commitment);
        frontier == 0 || slot <= frontier.saturating_add(self.lonely_lead())
    }

    /// The length of a slot, as the frontier at processed moved over the last minute; [`ASSUMED_SLOT_TIME`] until a
    /// minute is known. A frontier that stands still leaves it as it was.
    pub fn slot_time(&self) -> Duration {
        match self.slot_us.load(Ordering::Relaxed) {
            0 => ASSUMED_SLOT_TIME,
            us => Duration::from_micros(us),
        }
    }

    /// The time that so many slots take.
    pub fn time_of(&self, slots: u64) -> Duration {
        self.slot_time().saturating_mul(u32::try_from(slots).unwrap_or(u32::MAX))
    }

    /// How far one node alone may be ahead of all others, in slots.
    fn lonely_lead(&self) -> u64 {
        let (least, most) = LONELY_LEAD_SLOTS;
        let slots = LONELY_LEAD.as_micros() / self.slot_time().as_micros().max(1);
        u64::try_from(slots).unwrap_or(u64::MAX).clamp(least, most)
    }

    /// The newest slot that `node` is known to have reached; `None` before its first report.
    pub fn node_slot(&self, node: usize, commitment: Commitment) -> Option<Slot> {
        self.shown(node).slot(commitment)
    }

    /// How far `node` is behind the frontier, in slots; `None` before its first report.
    pub fn lag(&self, node: usize, commitment: Commitment) -> Option<u64> {
        self.lag_of(&self.shown(node), commitment)
    }

    /// How far the node that has `shown` this is behind the frontier, in slots; `None` before its first report.
    pub fn lag_of(&self, shown: &Shown, commitment: Commitment) -> Option<u64> {
        Some(self.slot(commitment).saturating_sub(shown.slot(commitment)?))
    }

    /// How long the frontier has stood where it is.
    pub fn age(&self, commitment: Commitment, now: Instant) -> Duration {
        let moved = self.moved_ms[commitment.index()].load(Ordering::Relaxed);
        now.duration_since(self.started).saturating_sub(Duration::from_millis(moved))
    }

    /// How long ago a node last named the frontier, also where it stands still.
    pub fn heard(&self, commitment: Commitment, now: Instant) -> Duration {
        let heard = self.heard_ms[commitment.index()].load(Ordering::Relaxed);
        now.duration_since(self.started).saturating_sub(Duration::from_millis(heard))
    }

    /// How often a frontier that no node reached any more has fallen.
    pub fn resets(&self) -> u64 {
        self.resets.load(Ordering::Relaxed)
    }

    /// A probe's word: it may lower a node's slot, as after a restart.
    pub fn probed(&self, node: usize, commitment: Commitment, slot: Slot, now: Instant) {
        self.probed_in(self.era(), node, commitment, slot, now);
    }

    /// The era that lasts until everything is forgotten. Who asks a node notes the era first: what the node said of an
    /// earlier cluster does not count in a later era.
    pub fn era(&self) -> Era {
        Era(self.era.load(Ordering::Acquire))
    }

    /// A probe's word, as [`Self::probed`], from a question of `era`.
    pub fn probed_in(&self, era: Era, node: usize, commitment: Commitment, slot: Slot, now: Instant) {
        self.report(era, (node, commitment, slot), now, false);
    }

    /// An answer's context slot, as [`Self::answered`], to a question of `era`.
    pub fn answered_in(&self, era: Era, node: usize, commitment: Commitment, slot: Slot, now: Instant) {
        self.report(era, (node, commitment, slot), now, true);
    }

    /// An answer's context slot: answers overtake each other, so it only ever raises a node's slot.
    pub fn answered(&self, node: usize, commitment: Commitment, slot: Slot, now: Instant) {
        self.answered_in(self.era(), node, commitment, slot, now);
    }

    /// Whether an answer of the node has told its newest slot within the last `period`. One that told less than was known
    /// has not: it was overtaken, or the node has fallen back.
    pub fn told_within(&self, shown: &Shown, commitment: Commitment, period: Duration, now: Instant) -> bool {
        let told = shown.told_ms[commitment.index()].load(Ordering::Relaxed);
        told != NO_SLOT && self.ms(now).saturating_sub(told) < millis(period)
    }

    /// Says whether a node's word counts: whether it answers its probes, is healthy and of this cluster.
    pub fn set_usable(&self, node: usize, usable: bool, now: Instant) {
        let mut inner = self.lock();
        let Some(position) = inner.position(node) else { return };
        if std::mem::replace(&mut inner.voices[position].usable, usable) != usable {
            for commitment in Commitment::ALL {
                self.decide(&mut inner, commitment, now);
            }
        }
    }

    /// Forgets everything: the cluster behind the pool is another one.
    pub fn forget(&self) {
        let mut inner = self.lock();
        self.era.fetch_add(1, Ordering::AcqRel);
        inner.pace = Pace::default();
        self.slot_us.store(0, Ordering::Relaxed);
        for commitment in Commitment::ALL {
            let level = &mut inner.levels[commitment.index()];
            *level = Level::new(level.reports.len());
            for voice in &inner.voices {
                voice.shown.set(commitment, None);
                voice.shown.told_ms[commitment.index()].store(NO_SLOT, Ordering::Relaxed);
            }
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

    fn report(&self, era: Era, (node, c, said): (usize, Commitment, Slot), now: Instant, by_answer: bool) {
        let mut inner = self.lock();
        if era != self.era() {
            return;
        }
        let Some(position) = inner.position(node) else { return };
        let report = &mut inner.levels[c.index()].reports[position];
        // `None` is the least.
        report.slot = if by_answer { report.slot.max(Some(said)) } else { Some(said) };
        let slot = report.slot;
        let shown = &inner.voices[position].shown;
        shown.set(c, slot);
        if by_answer && slot == Some(said) {
            shown.told_ms[c.index()].store(self.ms(now), Ordering::Relaxed);
        }
        self.decide(&mut inner, c, now);
        if said == self.slot(c) {
            self.heard_ms[c.index()].store(self.ms(now), Ordering::Relaxed);
        }
    }

    fn decide(&self, inner: &mut Inner, commitment: Commitment, now: Instant) {
        let Inner { levels, voices, pace, .. } = inner;
        let Moved { frontier, reset } = levels[commitment.index()].decide(voices, self.lonely_lead(), now);
        if reset {
            self.resets.fetch_add(1, Ordering::Relaxed);
        }
        let published = &self.published[commitment.index()];
        if published.swap(frontier, Ordering::AcqRel) != frontier {
            self.moved_ms[commitment.index()].store(self.ms(now), Ordering::Relaxed);
            if commitment == Commitment::Processed {
                pace.moved(frontier, now);
                let us = pace.slot_time().map_or(0, |time| time.as_micros());
                self.slot_us.store(u64::try_from(us).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
            self.advanced.send_replace(());
        }
    }

    /// A moment in milliseconds after the frontier was made.
    fn ms(&self, now: Instant) -> u64 {
        millis(now.duration_since(self.started))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
