//! The state of the gateway that the status page and `/api/status` show, and the trait that tells it.
//!
//! Plain values. The names in JSON are the names of the fields here.

use std::pin::Pin;

use serde::Serialize;

use super::node_view::{NodeView, summaries};
use super::upstreams::Upstreams;
use crate::breaker::BreakerState;
use crate::cache::purge::Filter;
use crate::methods::{PerCommitment, Slot};

/// The gateway as the admin listener sees it. Its state is read a few times a second, and by each probe of a balancer.
pub trait Source: Send + Sync + 'static {
    /// Returns the state now.
    fn status(&self) -> Status;
    /// Returns every upstream, and the last choices among them.
    fn upstreams(&self) -> Upstreams;
    /// Returns the readiness for calls.
    fn readiness(&self) -> Readiness;
    /// Removes the kept answers that `filter` takes, and returns their number. May take long.
    fn purge(&self, filter: &Filter) -> u64;
    /// Brings purges to the shared store, and returns true if it has them all; `None` without such a store.
    fn share_purges(&self) -> Pin<Box<dyn Future<Output = Option<bool>> + Send>>;
    /// Takes an upstream out, or puts it back in; returns false if none has this name.
    fn set_drained(&self, upstream: &str, drained: bool) -> bool;
}

/// The readiness for calls, and the reasons against it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Readiness {
    /// At least one upstream is usable: 200.
    Ready,
    /// No upstream is usable, so the least bad one is asked or the cache serves stale answers. 200, so that a balancer does
    /// not take every replica away because of one fault behind all of them.
    Degraded {
        /// The reasons, each a sentence for people.
        reasons: Vec<String>,
    },
    /// The gateway is starting, or draining before a stop: 503.
    Unready {
        /// The reasons, each a sentence for people.
        reasons: Vec<String>,
    },
}

/// The state of the gateway at a moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// The version of slotfront.
    pub version: &'static str,
    /// The seconds since the start.
    pub uptime_s: u64,
    /// The newest slot that a usable node reports; `None` before the first report.
    pub frontier: PerCommitment<Option<Slot>>,
    /// The length of a slot in milliseconds, measured over the last minute; 400 until a minute is known.
    pub slot_time_ms: f64,
    /// Each configured upstream, in the order of the configuration.
    #[serde(serialize_with = "summaries")]
    pub upstreams: Vec<NodeView>,
    /// The content of the cache.
    pub cache: Cache,
}

/// The part of a node's state whose changes are told at once: it answers probes, it takes calls, and its breaker.
pub(super) type NodeSigns = (bool, bool, BreakerState);

impl Status {
    /// Returns the part that is told at once, for each node in order.
    pub(super) fn signs(&self) -> Vec<NodeSigns> {
        self.upstreams.iter().map(|node| (node.up, node.is_usable(), node.breaker)).collect()
    }
}

/// The content of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// The bytes held, with keys and overhead.
    pub bytes: u64,
    /// The number of entries.
    pub entries: u64,
    /// The bytes that may be held.
    pub capacity_bytes: u64,
}
