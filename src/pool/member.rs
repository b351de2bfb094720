//! One node as the pool knows it: what it may be asked for now, and how it has fared.
//!
//! Everything that changes is an atomic or sits behind a lock that is held for nanoseconds, never across an await.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tokio::time::Instant;

use super::breaker::{Breaker, State};
use super::peak_ewma::PeakEwma;
use super::select::Unusable;
use crate::config;
use crate::methods::{Method, Slot};
use crate::node::{Client, Fault};
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
    /// It is of another cluster.
    Foreign {
        /// Its genesis hash.
        theirs: String,
        /// The pool's.
        ours: String,
    },
}

/// One node as the pool knows it.
pub struct Member {
    /// Its configured name.
    pub name: String,
    /// Lower tiers are asked first.
    pub tier: u8,
    pub(super) client: Client,
    pub(super) metrics: Arc<UpstreamMetrics>,
    max_in_flight: usize,
    rate: Option<DefaultDirectRateLimiter>,
    in_flight: AtomicUsize,
    latency: Mutex<PeakEwma>,
    breaker: Mutex<Breaker>,
    health: ArcSwap<Health>,
    /// A bit per [`Method::index`] that the node does not serve.
    incapable: AtomicU8,
    first_available: AtomicU64,
    quiet_until: Mutex<Option<Instant>>,
    drained: AtomicBool,
    version: ArcSwapOption<String>,
    requests: AtomicU64,
    failures: AtomicU64,
}

impl Member {
    pub(super) fn new(
        upstream: &config::Upstream,
        client: Client,
        breaker: config::Breaker,
        metrics: &Metrics,
    ) -> Self {
        let rate =
            upstream.rps.and_then(NonZeroU32::new).map(|rps| RateLimiter::direct(Quota::per_second(rps)));
        Self {
            name: upstream.name.clone(),
            tier: upstream.tier,
            client,
            metrics: metrics.upstream(&upstream.name),
            max_in_flight: upstream.max_in_flight,
            rate,
            in_flight: AtomicUsize::new(0),
            latency: Mutex::default(),
            breaker: Mutex::new(Breaker::new(breaker)),
            health: ArcSwap::from_pointee(Health::Unprobed),
            incapable: AtomicU8::new(0),
            first_available: AtomicU64::new(0),
            quiet_until: Mutex::new(None),
            drained: AtomicBool::new(false),
            version: ArcSwapOption::empty(),
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// Why it may not be asked for `method` now, apart from slots; the worst reason.
    pub(super) fn unusable(&self, method: Method, now: Instant) -> Option<Unusable> {
        let health = match **self.health.load() {
            Health::Healthy => None,
            Health::Unhealthy(_) => Some(Unusable::Unhealthy),
            Health::Unprobed => Some(Unusable::Unprobed),
            Health::Unreachable(_) => Some(Unusable::Unreachable),
            Health::Foreign { .. } => Some(Unusable::Foreign),
        };
        let incapable = self.incapable.load(Ordering::Relaxed) & bit(method) != 0;
        let busy = self.in_flight() >= self.max_in_flight;
        [
            health,
            (!lock(&self.breaker).admits(now)).then_some(Unusable::BreakerOpen),
            self.quiet_left(now).map(|_| Unusable::Quiet),
            busy.then_some(Unusable::Busy),
            incapable.then_some(Unusable::Incapable),
            self.drained.load(Ordering::Relaxed).then_some(Unusable::Drained),
        ]
        .into_iter()
        .flatten()
        .max()
    }

    /// What the probes last found.
    pub fn health(&self) -> Arc<Health> {
        self.health.load_full()
    }

    /// Takes a probe's finding in; returns the one before it if it has changed.
    pub(super) fn set_health(&self, health: Health) -> Option<Arc<Health>> {
        let before = self.health.load_full();
        (*before != health).then(|| self.health.swap(Arc::new(health)))
    }

    /// Takes one of the node's own calls a second; `false` where none is left. It cannot be looked at without taking.
    pub(super) fn take_turn(&self) -> bool {
        self.rate.as_ref().is_none_or(|rate| rate.check().is_ok())
    }

    /// Takes one call's place at this node.
    pub(super) fn start(&self, method: Method, now: Instant) -> InFlight<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        lock(&self.breaker).started(now);
        InFlight { member: self, method, settled: false, ended: false }
    }

    /// Calls under way at this node.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Peak-EWMA × in-flight, in seconds.
    pub(super) fn load(&self, now: Instant) -> f64 {
        lock(&self.latency).load(self.in_flight(), now)
    }

    /// Peak-EWMA latency as it counts now.
    pub fn latency(&self) -> Duration {
        Duration::from_secs_f64(lock(&self.latency).seconds(Instant::now()))
    }

    /// Where its breaker stands.
    pub fn breaker(&self, now: Instant) -> State {
        lock(&self.breaker).state(now)
    }

    /// Calls sent, and calls failed, since the start.
    pub fn counts(&self) -> (u64, u64) {
        (self.requests.load(Ordering::Relaxed), self.failures.load(Ordering::Relaxed))
    }

    /// The first block that it still has, as far as known; 0 is everything.
    pub fn first_available(&self) -> Slot {
        self.first_available.load(Ordering::Relaxed)
    }

    pub(super) fn set_first_available(&self, slot: Slot) {
        self.first_available.store(slot, Ordering::Relaxed);
    }

    /// Its software version.
    pub fn version(&self) -> Option<Arc<String>> {
        self.version.load_full()
    }

    pub(super) fn set_version(&self, version: String) {
        self.version.store(Some(Arc::new(version)));
    }

    /// Whether it may ever answer `method` as things stand: not out of the pool, and not known to lack the method.
    pub(super) fn serves(&self, method: Method) -> bool {
        let out =
            self.drained.load(Ordering::Relaxed) || matches!(**self.health.load(), Health::Foreign { .. });
        !out && self.incapable.load(Ordering::Relaxed) & bit(method) == 0
    }

    /// Remembers that it does not serve `method`.
    pub(super) fn set_incapable(&self, method: Method) {
        self.incapable.fetch_or(bit(method), Ordering::Relaxed);
    }

    /// Forgets what it could not serve: it may have been restarted with another configuration.
    pub(super) fn forget_incapable(&self) {
        self.incapable.store(0, Ordering::Relaxed);
    }

    /// Takes it out by an operator's wish, or back in.
    pub fn set_drained(&self, drained: bool) {
        self.drained.store(drained, Ordering::Relaxed);
    }

    /// Leaves it alone for `wait`, as it asked with a 429.
    pub(super) fn quiet_for(&self, wait: Duration, now: Instant) {
        let until = now + wait;
        let mut quiet = lock(&self.quiet_until);
        *quiet = Some(quiet.map_or(until, |before| before.max(until)));
    }

    /// How long it still wants to be left alone.
    pub(super) fn quiet_left(&self, now: Instant) -> Option<Duration> {
        let left = lock(&self.quiet_until).map(|until| until.saturating_duration_since(now))?;
        (!left.is_zero()).then_some(left)
    }
}

/// One call's place at a node; dropping it before the call has ended (nobody waits any more) says nothing of the node's
/// health.
pub(super) struct InFlight<'a> {
    member: &'a Member,
    method: Method,
    /// The breaker knows how it went.
    settled: bool,
    ended: bool,
}

impl InFlight<'_> {
    /// The call has outlasted `pool.breaker.slow`: a hang is a fault, and counts from now on.
    pub(super) fn hangs(&mut self, now: Instant) -> bool {
        if self.settled {
            return false;
        }
        self.settled = true;
        lock(&self.member.breaker).failed(now)
    }

    /// The call has ended in a way that is neither for the node nor against it.
    pub(super) fn says_nothing(mut self) {
        self.ended = true;
    }

    /// The call has ended, well or not. Returns whether this has opened the breaker.
    pub(super) fn ended(mut self, fault: Option<Fault>, latency: Duration, now: Instant) -> bool {
        let member = self.member;
        self.ended = true;
        if matches!(fault, None | Some(Fault::Timeout)) {
            lock(&member.latency).observe(latency, now);
        }
        if !matches!(fault, None | Some(Fault::GivenUp)) {
            member.failures.fetch_add(1, Ordering::Relaxed);
        }
        if std::mem::replace(&mut self.settled, true) {
            return false;
        }
        let mut breaker = lock(&member.breaker);
        match fault {
            None => breaker.succeeded(),
            Some(fault) if fault.counts_against_node() => return breaker.failed(now),
            Some(_) => breaker.released(),
        }
        false
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.member.in_flight.fetch_sub(1, Ordering::Relaxed);
        if !self.ended {
            self.member.metrics.requests.at((Some(self.method), AttemptResult::Cancelled)).inc();
        }
        if !self.settled {
            lock(&self.member.breaker).released();
        }
    }
}

const fn bit(method: Method) -> u8 {
    1 << method.index()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
