//! The changing state of one node: health, breaker, load, capabilities, and counts.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::cluster_mark::ClusterMark;
use super::quiet::QuietCalls;
use crate::breaker::Breaker;
use crate::config;
use crate::fair::CallerHoldings;
use crate::methods::AnyMethod;
use crate::pool::caller::SlowCalls;
use crate::pool::health::Health;
use crate::pool::lock;
use crate::pool::peak_ewma::PeakEwma;
use crate::telemetry::AttemptResult;

/// The state of one node. A reload that only changes the node's settings keeps this state.
pub(in crate::pool) struct NodeState {
    /// One bit for each kind of trouble that the node has: [`NOT_HEALTHY`] and [`BREAKER`]. When nodes are rated for
    /// a call, the details of a trouble are read only if its bit is set.
    troubles: AtomicU8,
    pub(in crate::pool) in_flight: AtomicUsize,
    pub(in crate::pool) by_caller: CallerHoldings,
    pub(in crate::pool) slow_calls: SlowCalls,
    pub(in crate::pool) latency: Mutex<PeakEwma>,
    breaker: Mutex<Breaker>,
    health: ArcSwap<Health>,
    /// The methods that the node does not serve, as a set with one bit for each
    /// [`Method::index`](crate::methods::Method::index).
    pub(in crate::pool) incapable: AtomicU8,
    /// The passthrough methods that the node does not serve, as a set with one bit for each
    /// [`PassthroughMethod::index`](crate::methods::PassthroughMethod::index).
    pub(in crate::pool) incapable_passthrough: AtomicU64,
    /// True if the node has refused a method that is needed to follow the blocks.
    pub(in crate::pool) refuses_blocks: AtomicBool,
    /// True if the node is of a kind and version whose blocks list every write of an account.
    pub(in crate::pool) lists_writes: AtomicBool,
    pub(in crate::pool) first_available: AtomicU64,
    /// The methods that the node has refused with a 429, and gets no calls of while another node is usable.
    pub(in crate::pool) quiet: QuietCalls<AnyMethod>,
    /// The requests of the follower.
    pub(in crate::pool) quiet_for_follower: QuietCalls<()>,
    pub(in crate::pool) drained: AtomicBool,
    pub(in crate::pool) version: ArcSwapOption<String>,
    pub(in crate::pool) cluster: ClusterMark,
    pub(in crate::pool) requests: AtomicU64,
    pub(in crate::pool) failures: AtomicU64,
    pub(in crate::pool) last_failure: Mutex<Option<(AttemptResult, Instant)>>,
    /// True once there is a task that probes the node.
    pub(in crate::pool) probed: AtomicBool,
    /// Notified when the node's confirmed slot is wanted before the next probe.
    pub(in crate::pool) slot_wanted: Notify,
}

/// The trouble bit that is set while the node is not healthy.
pub(super) const NOT_HEALTHY: u8 = 1;
/// The trouble bit that is set while the node's breaker is not closed.
pub(super) const BREAKER: u8 = 2;

impl NodeState {
    pub(in crate::pool) fn new(breaker: config::BreakerSettings) -> Self {
        Self {
            troubles: AtomicU8::new(NOT_HEALTHY),
            in_flight: AtomicUsize::new(0),
            by_caller: CallerHoldings::default(),
            slow_calls: SlowCalls::default(),
            latency: Mutex::default(),
            breaker: Mutex::new(Breaker::new(breaker)),
            health: ArcSwap::from_pointee(Health::Unprobed),
            incapable: AtomicU8::new(0),
            incapable_passthrough: AtomicU64::new(0),
            refuses_blocks: AtomicBool::new(false),
            lists_writes: AtomicBool::new(false),
            first_available: AtomicU64::new(0),
            quiet: QuietCalls::new(Duration::from_millis(250), Duration::from_secs(5)),
            quiet_for_follower: QuietCalls::new(Duration::from_secs(1), Duration::from_mins(1)),
            drained: AtomicBool::new(false),
            version: ArcSwapOption::empty(),
            cluster: ClusterMark::default(),
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            last_failure: Mutex::default(),
            probed: AtomicBool::new(false),
            slot_wanted: Notify::new(),
        }
    }

    pub(in crate::pool) fn troubles(&self) -> u8 {
        self.troubles.load(Ordering::Acquire)
    }

    pub(in crate::pool) fn set_trouble(&self, which: u8, is: bool) {
        if is {
            self.troubles.fetch_or(which, Ordering::Release);
        } else {
            self.troubles.fetch_and(!which, Ordering::Release);
        }
    }

    /// Changes the breaker by `change`, and updates the breaker's trouble bit.
    pub(in crate::pool) fn change_breaker<T>(&self, change: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut breaker = lock(&self.breaker);
        let was_closed = breaker.is_closed();
        let result = change(&mut breaker);
        if breaker.is_closed() != was_closed {
            self.set_trouble(BREAKER, was_closed);
        }
        result
    }

    pub(in crate::pool) fn read_breaker<T>(&self, read: impl FnOnce(&Breaker) -> T) -> T {
        read(&lock(&self.breaker))
    }

    pub(in crate::pool) fn health(&self) -> Guard<Arc<Health>> {
        self.health.load()
    }

    /// Sets the health that a probe has found. Returns the previous health, or `None` if it is the same.
    pub(in crate::pool) fn set_health(&self, health: Health) -> Option<Arc<Health>> {
        if **self.health.load() == health {
            return None;
        }
        let healthy = health == Health::Healthy;
        let before = self.health.swap(Arc::new(health));
        self.set_trouble(NOT_HEALTHY, !healthy);
        Some(before)
    }
}
