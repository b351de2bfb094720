//! What the status page and `/api/status` show of the moment, as plain values.
//!
//! Holds no live state: a [`Source`] fills it each second. Names in JSON are the field names here.

use std::pin::Pin;

use serde::Serialize;

use super::upstreams::Upstreams;
use crate::cache::purge::Filter;
use crate::methods::{PerCommitment, Slot};

/// Where the admin listener learns how things stand. Asked once a second, and by each probe of a balancer.
pub trait Source: Send + Sync + 'static {
    /// How things stand now.
    fn status(&self) -> Status;
    /// How each upstream stands, and how the last choices among them fell.
    fn upstreams(&self) -> Upstreams;
    /// Whether calls should come here.
    fn readiness(&self) -> Readiness;
    /// Forgets the kept answers that `filter` takes, and says how many entries those were. May take its time.
    fn purge(&self, filter: &Filter) -> u64;
    /// Brings purges to the shared store, and says whether it has them all now; `None` where there is no such store.
    fn share_purges(&self) -> Pin<Box<dyn Future<Output = Option<bool>> + Send>>;
    /// Takes an upstream out, or back in; `false` where none has this name.
    fn set_drained(&self, upstream: &str, drained: bool) -> bool;
}

/// Whether calls should come here, and if not quite, why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Readiness {
    /// At least one upstream is usable: 200.
    Ready,
    /// Answers, but not as it should: the least bad upstream is asked, or the cache serves stale. 200, so that a
    /// balancer does not take every replica away because of one fault behind all of them.
    Degraded {
        /// Each a sentence for people.
        reasons: Vec<String>,
    },
    /// Starting, or draining before a stop: 503.
    Unready {
        /// Each a sentence for people.
        reasons: Vec<String>,
    },
}

/// How things stand.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// Of slotfront.
    pub version: &'static str,
    /// Seconds since start.
    pub uptime_s: u64,
    /// The newest slot that a usable node reports; `None` before the first report.
    pub frontier: PerCommitment<Option<Slot>>,
    /// The length of a slot in milliseconds, measured over the last minute; 400 until a minute is known.
    pub slot_time_ms: f64,
    /// Each configured upstream, in the order of the configuration.
    pub upstreams: Vec<Upstream>,
    /// What the cache holds.
    pub cache: Cache,
}

/// What of a node is worth an event of its own when it changes: whether it answers, takes calls, and its breaker.
pub(super) type Light = (bool, bool, Breaker);

impl Status {
    /// Each node's, in the order of the nodes.
    pub(super) fn lights(&self) -> Vec<Light> {
        self.upstreams.iter().map(|node| (node.up, node.usable, node.breaker)).collect()
    }
}

/// How one upstream stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Upstream {
    /// Its configured name; never its address, which may hold a secret.
    pub name: String,
    /// Lower tiers are asked first.
    pub tier: u8,
    /// Whether it answers probes.
    pub up: bool,
    /// Whether calls go to it.
    pub usable: bool,
    /// Why calls do not go to it, for people; `None` when they do.
    pub reason: Option<String>,
    /// Its newest slots; `None` before the first report.
    pub slots: PerCommitment<Option<Slot>>,
    /// Slots behind the frontier at processed.
    pub lag_slots: Option<u64>,
    /// Peak-EWMA of its answers, in milliseconds; `None` before the first.
    pub latency_ms: Option<f64>,
    /// Attempts under way.
    pub in_flight: u64,
    /// Its circuit breaker.
    pub breaker: Breaker,
    /// The oldest block that it holds.
    pub first_available_block: Option<Slot>,
    /// The version that it reports.
    pub version: Option<String>,
    /// Attempts since start, probes left out.
    pub requests: u64,
    /// Of these, failed.
    pub failures: u64,
}

/// A circuit breaker's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Breaker {
    /// Passes calls.
    Closed,
    /// Lets one probe through.
    HalfOpen,
    /// Rejects calls.
    Open,
}

/// What the cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Bytes held, keys and overhead included.
    pub bytes: u64,
    /// Entries held.
    pub entries: u64,
    /// Bytes that may be held.
    pub capacity_bytes: u64,
}
