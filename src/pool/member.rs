//! One node as the pool knows it: what it may be asked for now, and how it has fared.
//!
//! Everything that changes is an atomic or sits behind a lock that is held for nanoseconds, never across an await.

mod in_flight;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::budget::Budget;
use super::caller::{Caller, Places, Slowness};
use super::cluster::ClusterMark;
use super::lock;
use super::peak_ewma::PeakEwma;
use super::select::Unusable;
use crate::breaker::{Breaker, BreakerState};
use crate::config;
use crate::frontier::{Frontier, Shown};
use crate::methods::{Commitment, Further, Method, Slot};
use crate::node::Client;
use crate::telemetry::{AttemptResult, Metrics, UpstreamMetrics};

/// What the probes last found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// No probe has come back yet.
    Unprobed,
    /// It says it is well.
    Healthy,
    /// It says it is not, in its own words.
    Unhealthy(String),
    /// It does not answer: why.
    Unreachable(&'static str),
    /// It does not tell its genesis hash, and that of the pool is known.
    Silent,
    /// It is of another cluster.
    Foreign {
        /// Its genesis hash.
        theirs: String,
        /// The pool's.
        ours: String,
    },
}

/// One node as the pool knows it: as it is configured, and how it stands.
///
/// A reload that changes how a node is asked makes another member of the same standing; calls in flight end on the one
/// that they began with.
pub struct Member {
    /// The node's number, as the frontier has it; never given twice.
    pub id: usize,
    /// Its configured name.
    pub name: String,
    /// Lower tiers are asked first.
    pub tier: u8,
    /// As it is configured.
    pub(super) upstream: config::Upstream,
    pub(super) client: Arc<Client>,
    pub(super) metrics: Arc<UpstreamMetrics>,
    pub(super) shown: Arc<Shown>,
    /// The node's own calls a second.
    rate: Option<Arc<Budget>>,
    standing: Arc<Standing>,
}

/// What a new node finds.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) frontier: &'a Frontier,
    pub(super) metrics: &'a Metrics,
    pub(super) breaker: config::Breaker,
}

/// How a node stands and has fared.
struct Standing {
    /// Which of the slower questions need asking: the bits below. None, for a node that is well.
    troubles: AtomicU8,
    in_flight: AtomicUsize,
    places: Places,
    slowness: Slowness,
    latency: Mutex<PeakEwma>,
    breaker: Mutex<Breaker>,
    health: ArcSwap<Health>,
    /// A bit per [`Method::index`] that the node does not serve.
    incapable: AtomicU8,
    /// The same, a bit per [`Further::index`].
    lacks_further: AtomicU64,
    first_available: AtomicU64,
    quiet_until: Mutex<Option<Instant>>,
    drained: AtomicBool,
    version: ArcSwapOption<String>,
    cluster: ClusterMark,
    requests: AtomicU64,
    failures: AtomicU64,
    last_failure: Mutex<Option<(AttemptResult, Instant)>>,
    /// A task probes it.
    probed: AtomicBool,
    /// Its confirmed slot is wanted before the next probe.
    slot_wanted: Notify,
}

/// Its health is anything but healthy.
const NOT_HEALTHY: u8 = 1;
/// Its breaker is not closed.
const BREAKER: u8 = 2;
/// It has asked to be left alone, and may still want to be.
const QUIET: u8 = 4;

impl Standing {
    fn trouble(&self, which: u8, is: bool) {
        if is {
            self.troubles.fetch_or(which, Ordering::Release);
        } else {
            self.troubles.fetch_and(!which, Ordering::Release);
        }
    }

    /// Changes the breaker, and notes whether it is closed.
    fn breaker<T>(&self, change: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut breaker = lock(&self.breaker);
        let was_closed = breaker.is_closed();
        let result = change(&mut breaker);
        if breaker.is_closed() != was_closed {
            self.trouble(BREAKER, was_closed);
        }
        result
    }
}

impl Member {
    /// The node `id`, not heard of yet.
    pub(super) fn new(id: usize, upstream: &config::Upstream, client: Arc<Client>, known: Known<'_>) -> Self {
        let standing = Standing {
            troubles: AtomicU8::new(NOT_HEALTHY),
            in_flight: AtomicUsize::new(0),
            places: Places::default(),
            slowness: Slowness::default(),
            latency: Mutex::default(),
            breaker: Mutex::new(Breaker::new(known.breaker)),
            health: ArcSwap::from_pointee(Health::Unprobed),
            incapable: AtomicU8::new(0),
            lacks_further: AtomicU64::new(0),
            first_available: AtomicU64::new(0),
            quiet_until: Mutex::new(None),
            drained: AtomicBool::new(false),
            version: ArcSwapOption::empty(),
            cluster: ClusterMark::default(),
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            last_failure: Mutex::default(),
            probed: AtomicBool::new(false),
            slot_wanted: Notify::new(),
        };
        Self {
            id,
            name: upstream.name.clone(),
            tier: upstream.tier,
            upstream: upstream.clone(),
            client,
            metrics: known.metrics.upstream(&upstream.name),
            shown: known.frontier.shown(id),
            rate: rate(upstream),
            standing: Arc::new(standing),
        }
    }

    /// The same node, asked as `upstream` says from now on; by the same client where there is no other.
    pub(super) fn again(&self, upstream: config::Upstream, client: Option<Arc<Client>>) -> Self {
        let same_rate = upstream.rps == self.upstream.rps;
        Self {
            id: self.id,
            name: upstream.name.clone(),
            tier: upstream.tier,
            client: client.unwrap_or_else(|| Arc::clone(&self.client)),
            metrics: Arc::clone(&self.metrics),
            shown: Arc::clone(&self.shown),
            rate: if same_rate { self.rate.clone() } else { rate(&upstream) },
            standing: Arc::clone(&self.standing),
            upstream,
        }
    }

    /// Whether nobody probes it yet; from now on the caller does.
    pub(super) fn begin_probing(&self) -> bool {
        !self.standing.probed.swap(true, Ordering::Relaxed)
    }

    /// What is counted of it.
    pub fn metrics(&self) -> &UpstreamMetrics {
        &self.metrics
    }

    /// The newest slot that it is known to have reached; `None` before its first report.
    pub fn slot(&self, commitment: Commitment) -> Option<Slot> {
        self.shown.slot(commitment)
    }

    /// Why it may not be asked for `method` now, apart from slots; the worst reason.
    pub(super) fn unusable(&self, method: Method, now: Instant) -> Option<Unusable> {
        self.reasons(now).max().max(self.lacks(method).then_some(Unusable::Incapable))
    }

    /// Every reason why it may not be asked now, apart from slots and methods.
    pub(super) fn reasons(&self, now: Instant) -> impl Iterator<Item = Unusable> + use<> {
        let troubles = self.standing.troubles.load(Ordering::Acquire);
        let has = |which: u8| troubles & which != 0;
        let health = || match **self.standing.health.load() {
            Health::Healthy => None,
            Health::Unhealthy(_) => Some(Unusable::Unhealthy),
            Health::Unprobed => Some(Unusable::Unprobed),
            Health::Unreachable(_) => Some(Unusable::Unreachable),
            Health::Silent => Some(Unusable::Unidentified),
            Health::Foreign { .. } => Some(Unusable::Foreign),
        };
        let rejects = has(BREAKER) && !lock(&self.standing.breaker).admits(now);
        let quiet = has(QUIET) && self.quiet_left(now).is_some();
        [
            if has(NOT_HEALTHY) { health() } else { None },
            rejects.then_some(Unusable::BreakerOpen),
            quiet.then_some(Unusable::Quiet),
            (self.in_flight() >= self.upstream.max_in_flight).then_some(Unusable::Busy),
            self.is_drained().then_some(Unusable::Drained),
        ]
        .into_iter()
        .flatten()
    }

    /// [`Unusable::Busy`] where `caller` holds its share of the node's places.
    pub(super) fn over_share(&self, caller: Caller) -> Option<Unusable> {
        let taken = self.in_flight();
        let free = self.max_in_flight().saturating_sub(taken);
        (!self.standing.places.may_take(caller, taken, free)).then_some(Unusable::Busy)
    }

    /// Whether its breaker is half-open: the next call finds out if it is back.
    pub(super) fn is_on_trial(&self, now: Instant) -> bool {
        self.standing.troubles.load(Ordering::Acquire) & BREAKER != 0
            && self.breaker(now) == BreakerState::HalfOpen
    }

    /// Whether it is known not to serve `method`.
    pub fn lacks(&self, method: Method) -> bool {
        self.standing.incapable.load(Ordering::Relaxed) & bit(method) != 0
    }

    /// Whether it is known not to serve `method`.
    pub(super) fn lacks_further(&self, method: Further) -> bool {
        self.standing.lacks_further.load(Ordering::Relaxed) & (1 << method.index()) != 0
    }

    /// Remembers that it does not serve `method`.
    pub(super) fn set_lacks_further(&self, method: Further) {
        self.standing.lacks_further.fetch_or(1 << method.index(), Ordering::Relaxed);
    }

    /// Whether an operator has taken it out.
    pub fn is_drained(&self) -> bool {
        self.standing.drained.load(Ordering::Relaxed)
    }

    /// What last went wrong with a call, and when.
    pub fn last_failure(&self) -> Option<(AttemptResult, Instant)> {
        *lock(&self.standing.last_failure)
    }

    /// What the probes last found.
    pub fn health(&self) -> Arc<Health> {
        self.standing.health.load_full()
    }

    /// Takes a probe's finding in; returns the one before it if it has changed.
    pub(super) fn set_health(&self, health: Health) -> Option<Arc<Health>> {
        let before = self.standing.health.load_full();
        (*before != health).then(|| {
            let healthy = health == Health::Healthy;
            let before = self.standing.health.swap(Arc::new(health));
            self.standing.trouble(NOT_HEALTHY, !healthy);
            before
        })
    }

    /// What is known of its cluster.
    pub(super) fn cluster(&self) -> &ClusterMark {
        &self.standing.cluster
    }

    /// Takes one of the node's own calls a second; `false` where none is left.
    pub(super) fn take_turn(&self, now: Instant) -> bool {
        self.rate.as_ref().is_none_or(|rate| rate.withdraw(now))
    }

    /// Takes one of the node's own calls a second for a question of ours; `false` where fewer than half are left.
    pub(super) fn take_spare_turn(&self, now: Instant) -> bool {
        let half = self.upstream.rps.map_or(0.0, f64::from) / 2.0;
        self.turns_left(now).is_none_or(|left| left > half) && self.take_turn(now)
    }

    /// Makes [`Self::slot_wanted`] return once.
    pub(super) fn want_slot(&self) {
        self.standing.slot_wanted.notify_one();
    }

    /// Waits until its confirmed slot is wanted.
    pub(super) async fn slot_wanted(&self) {
        self.standing.slot_wanted.notified().await;
    }

    /// How many of the node's own calls a second are left; `None` where it has no such limit.
    pub fn turns_left(&self, now: Instant) -> Option<f64> {
        self.rate.as_ref().map(|rate| rate.left(now))
    }

    /// Most calls in flight.
    pub fn max_in_flight(&self) -> usize {
        self.upstream.max_in_flight
    }

    /// Calls under way at this node.
    pub fn in_flight(&self) -> usize {
        self.standing.in_flight.load(Ordering::Relaxed)
    }

    /// Peak-EWMA × in-flight, in seconds.
    pub(super) fn load(&self, now: Instant) -> f64 {
        lock(&self.standing.latency).load(self.in_flight(), now)
    }

    /// A call that was given up for another node's answer would have taken at least this long.
    pub(super) fn took_at_least(&self, latency: Duration, now: Instant) {
        let mut known = lock(&self.standing.latency);
        if latency.as_secs_f64() > known.seconds(now) {
            known.observe(latency, now);
        }
    }

    /// Peak-EWMA latency as it counts now.
    pub fn latency(&self) -> Duration {
        Duration::from_secs_f64(lock(&self.standing.latency).seconds(Instant::now()))
    }

    /// Its breaker goes by other settings from now on.
    pub(super) fn set_breaker(&self, settings: config::Breaker) {
        self.standing.breaker(|breaker| breaker.set(settings));
    }

    /// Where its breaker stands.
    pub fn breaker(&self, now: Instant) -> BreakerState {
        lock(&self.standing.breaker).state(now)
    }

    /// Calls sent, and calls failed, since the start.
    pub fn counts(&self) -> (u64, u64) {
        (self.standing.requests.load(Ordering::SeqCst), self.standing.failures.load(Ordering::Relaxed))
    }

    /// The first block that it still has, as far as known; 0 is everything.
    pub fn first_available(&self) -> Slot {
        self.standing.first_available.load(Ordering::Relaxed)
    }

    pub(super) fn set_first_available(&self, slot: Slot) {
        self.standing.first_available.store(slot, Ordering::Relaxed);
    }

    /// Its software version.
    pub fn version(&self) -> Option<Arc<String>> {
        self.standing.version.load_full()
    }

    pub(super) fn set_version(&self, version: String) {
        self.standing.version.store(Some(Arc::new(version)));
    }

    /// Whether it may ever answer `method` as things stand: not out of the pool, and not known to lack the method.
    pub(super) fn serves(&self, method: Method) -> bool {
        let foreign = matches!(**self.standing.health.load(), Health::Foreign { .. } | Health::Silent);
        !foreign && !self.is_drained() && !self.lacks(method)
    }

    /// Remembers that it does not serve `method`.
    pub(super) fn set_incapable(&self, method: Method) {
        self.standing.incapable.fetch_or(bit(method), Ordering::Relaxed);
    }

    /// Forgets what it could not serve: it may have been restarted with another configuration.
    pub(super) fn forget_incapable(&self) {
        self.standing.incapable.store(0, Ordering::Relaxed);
        self.standing.lacks_further.store(0, Ordering::Relaxed);
    }

    /// Takes it out by an operator's wish, or back in.
    pub fn set_drained(&self, drained: bool) {
        self.standing.drained.store(drained, Ordering::Relaxed);
    }

    /// Leaves it alone for `wait`, as it asked with a 429.
    pub(super) fn quiet_for(&self, wait: Duration, now: Instant) {
        let until = now + wait;
        let mut quiet = lock(&self.standing.quiet_until);
        *quiet = Some(quiet.map_or(until, |before| before.max(until)));
        self.standing.trouble(QUIET, true);
    }

    /// How long it still wants to be left alone.
    pub fn quiet_left(&self, now: Instant) -> Option<Duration> {
        let mut quiet = lock(&self.standing.quiet_until);
        let left = quiet.map(|until| until.saturating_duration_since(now))?;
        if left.is_zero() {
            *quiet = None;
            self.standing.trouble(QUIET, false);
            return None;
        }
        Some(left)
    }
}

/// The limit on a node's calls a second, if it has one; a second's calls may come at once.
fn rate(upstream: &config::Upstream) -> Option<Arc<Budget>> {
    let rps = f64::from(upstream.rps?);
    Some(Arc::new(Budget::new(0.0, rps, rps)))
}

const fn bit(method: Method) -> u8 {
    1 << method.index()
}
