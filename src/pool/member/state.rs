//! The changing state of one node: health, breaker, load, capabilities, and counts.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::time::Instant;

use super::in_flight::SlowCalls;
use super::quiet::QuietCalls;
use crate::breaker::Breaker;
use crate::config;
use crate::fair::CallerHoldings;
use crate::methods::AnyMethod;
use crate::pool::cluster::ClusterMark;
use crate::pool::health::Health;
use crate::pool::lock;
use crate::pool::peak_ewma::PeakEwma;
use crate::telemetry::AttemptResult;

/// The state of one node. A reload that only changes the node's settings keeps this state.
pub(in crate::pool) struct NodeState {
    pub(in crate::pool) in_flight: AtomicUsize,
    pub(in crate::pool) by_caller: CallerHoldings,
    pub(in crate::pool) slow_calls: SlowCalls,
    pub(in crate::pool) latency: Mutex<PeakEwma>,
    breaker: Mutex<Breaker>,
    pub(in crate::pool) health: ArcSwap<Health>,
    /// The methods that the node does not serve, as a set with one bit for each
    /// [`Method::index`](crate::methods::Method::index).
    pub(in crate::pool) incapable: AtomicU8,
    /// The other methods that the node does not serve, as a set with one bit for each.
    pub(in crate::pool) incapable_others: AtomicU64,
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
    pub(in crate::pool) cluster: Mutex<ClusterMark>,
    pub(in crate::pool) requests: AtomicU64,
    pub(in crate::pool) failures: AtomicU64,
    pub(in crate::pool) last_failure: Mutex<Option<(AttemptResult, Instant)>>,
    /// True once there is a task that probes the node.
    pub(in crate::pool) probed: AtomicBool,
}

impl NodeState {
    pub(in crate::pool) fn new(breaker: config::BreakerSettings) -> Self {
        Self {
            in_flight: AtomicUsize::new(0),
            by_caller: CallerHoldings::default(),
            slow_calls: SlowCalls::default(),
            latency: Mutex::default(),
            breaker: Mutex::new(Breaker::new(breaker)),
            health: ArcSwap::from_pointee(Health::Unprobed),
            incapable: AtomicU8::new(0),
            incapable_others: AtomicU64::new(0),
            refuses_blocks: AtomicBool::new(false),
            lists_writes: AtomicBool::new(false),
            first_available: AtomicU64::new(0),
            quiet: QuietCalls::new(Duration::from_millis(250), Duration::from_secs(5)),
            quiet_for_follower: QuietCalls::new(Duration::from_secs(1), Duration::from_mins(1)),
            drained: AtomicBool::new(false),
            version: ArcSwapOption::empty(),
            cluster: Mutex::default(),
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            last_failure: Mutex::default(),
            probed: AtomicBool::new(false),
        }
    }

    pub(in crate::pool) fn breaker(&self) -> MutexGuard<'_, Breaker> {
        lock(&self.breaker)
    }
}
