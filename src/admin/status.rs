//! The state that the status page and `/api/status` show, and the trait that provides it.
//!
//! The members of the JSON have the names of the fields here.

use std::pin::Pin;

use serde::Serialize;

use super::node_view::{NodeView, UpstreamsView, serialize_summaries};
use crate::breaker::BreakerState;
use crate::cache::purge::Filter;
use crate::methods::{PerCommitment, Slot};

/// The access of the admin listener to the gateway. The gateway's state is read several times a second while a page is
/// open, and by each readiness probe.
pub(crate) trait StatusSource: Send + Sync + 'static {
    fn status(&self) -> Status;
    /// Returns the state of every upstream node, and for each method the latest recorded choice of a node for a
    /// call.
    fn upstreams(&self) -> UpstreamsView;
    fn readiness(&self) -> Readiness;
    /// Removes the cached answers that `filter` matches, and returns their number. May block for long.
    fn purge(&self, filter: &Filter) -> u64;
    /// Writes to the shared store the purges that this gateway has begun. Returns true if the store has all of
    /// them. `None` if no shared store is configured.
    fn share_purges(&self) -> Pin<Box<dyn Future<Output = Option<bool>> + Send>>;
    /// Drains the upstream with the name `upstream`, or restores it if `drained` is false. Returns false if no upstream
    /// has that name.
    fn set_drained(&self, upstream: &str, drained: bool) -> bool;
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(crate) enum Readiness {
    /// At least one upstream is usable. `/readyz` answers 200.
    Ready,
    /// No upstream is usable. Calls get stale answers, or go to the least bad node. `/readyz` answers 200, because
    /// a balancer would otherwise remove all replicas for a fault of the nodes behind them.
    Degraded { reasons: Vec<String> },
    /// The gateway is starting, or draining before a stop. `/readyz` answers 503.
    Unready { reasons: Vec<String> },
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Status {
    pub version: &'static str,
    pub uptime_s: u64,
    /// The newest slot that a usable node reports, at each commitment. `None` before the first report.
    pub frontier: PerCommitment<Option<Slot>>,
    /// The state of following the cluster's blocks, which lets accounts be served at later slots. `None` if
    /// `follow.mode` is off.
    pub follow: Option<FollowView>,
    /// The mean duration of a slot over the last minute, in milliseconds. 400 until a minute has been measured.
    pub slot_time_ms: f64,
    /// The configured upstreams, in the order of the configuration.
    #[serde(serialize_with = "serialize_summaries")]
    pub upstreams: Vec<NodeView>,
    pub cache: CacheView,
}

/// The health of a node, in three values: true if the node answers probes; true if the node gets calls; the state
/// of its circuit breaker. Open status pages are updated soon after the health has changed.
pub(super) type NodeHealth = (bool, bool, BreakerState);

impl Status {
    /// Returns the health of each node, in the order of the configuration.
    pub(super) fn health(&self) -> Vec<NodeHealth> {
        self.upstreams.iter().map(|node| (node.up, node.usable, node.breaker)).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct CacheView {
    /// The bytes that the cache holds, including keys and overhead.
    pub bytes: u64,
    pub entries: u64,
    pub capacity_bytes: u64,
}

/// The state of following the cluster's blocks, which lets cached answers be served at newer slots while their
/// accounts are unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct FollowView {
    /// True if cached answers are served at a newer slot than they were fetched at (carried). False if
    /// `follow.mode` is `shadow`, and after a carried answer was found wrong.
    pub serves: bool,
    /// True from the time at which an answer carried to a newer slot was found wrong, until a restart.
    pub contradicted: bool,
    /// The state: `starting`, `following`, `parked` or `paused`. Following is parked while no account has been
    /// requested for five minutes.
    pub state: &'static str,
    /// The reason for a pause. `None` unless the state is `paused`.
    pub reason: Option<&'static str>,
    /// The newest followed slot. Cached answers at confirmed can be served at this slot if they are unchanged.
    /// `None` while no blocks are followed.
    pub tip: Option<Slot>,
    /// The newest followed slot that is final. Cached answers at finalized can be served at this slot if they are
    /// unchanged. `None` before a slot is known to be final, and while too many blocks are not final yet.
    pub finalized: Option<Slot>,
    /// The number of slots by which the newest followed slot is behind the newest confirmed slot. `None` while no
    /// blocks are followed.
    pub lag_slots: Option<u64>,
}
