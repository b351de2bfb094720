//! The state that the status page and `/api/status` show, and the trait that provides it.
//!
//! The JSON members have the names of the fields.

use std::pin::Pin;

use serde::Serialize;

use super::node_view::{NodeView, serialize_summaries};
use super::upstreams::Upstreams;
use crate::breaker::BreakerState;
use crate::cache::purge::Filter;
use crate::methods::{PerCommitment, Slot};

/// The gateway as the admin listener sees it. The state is read several times a second, and by each readiness
/// probe.
pub trait StatusSource: Send + Sync + 'static {
    /// Returns the current state.
    fn status(&self) -> Status;
    /// Returns every upstream and the latest choices among them.
    fn upstreams(&self) -> Upstreams;
    /// Returns the readiness to serve calls.
    fn readiness(&self) -> Readiness;
    /// Removes the cached answers that `filter` matches, and returns their number. May take long.
    fn purge(&self, filter: &Filter) -> u64;
    /// Writes purges to the shared store. Returns true if all are written; `None` without a shared store.
    fn share_purges(&self) -> Pin<Box<dyn Future<Output = Option<bool>> + Send>>;
    /// Drains or restores an upstream. Returns false if none has this name.
    fn set_drained(&self, upstream: &str, drained: bool) -> bool;
}

/// The readiness to serve calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Readiness {
    /// At least one upstream is usable: 200.
    Ready,
    /// No upstream is usable: calls get stale answers or go to the least bad node. Answers 200, so that a balancer
    /// does not remove all replicas because of one fault behind them.
    Degraded {
        /// The reasons, as sentences.
        reasons: Vec<String>,
    },
    /// The gateway is starting, or draining before a stop: 503.
    Unready {
        /// The reasons, as sentences.
        reasons: Vec<String>,
    },
}

/// The state of the gateway at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// The version of slotfront.
    pub version: &'static str,
    /// The time since the start, in seconds.
    pub uptime_s: u64,
    /// The newest slot that a usable node reports; `None` before the first report.
    pub frontier: PerCommitment<Option<Slot>>,
    /// The duration of a slot in milliseconds, measured over the last minute. 400 until a minute is measured.
    pub slot_time_ms: f64,
    /// The configured upstreams, in the order of the configuration.
    #[serde(serialize_with = "serialize_summaries")]
    pub upstreams: Vec<NodeView>,
    /// The fill level of the cache.
    pub cache: CacheView,
}

/// The health of a node: it answers probes, it takes calls, and the state of its breaker. Changes reach open pages
/// at once.
pub(super) type NodeHealth = (bool, bool, BreakerState);

impl Status {
    /// Returns the health of each node, in order.
    pub(super) fn health(&self) -> Vec<NodeHealth> {
        self.upstreams.iter().map(|node| (node.up, node.is_usable(), node.breaker)).collect()
    }
}

/// The fill level of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CacheView {
    /// The bytes held, including keys and overhead.
    pub bytes: u64,
    /// The number of entries.
    pub entries: u64,
    /// The capacity in bytes.
    pub capacity_bytes: u64,
}
