//! One upstream node as the admin listener shows it.
//!
//! The status page and `/api/status` show a summary of a node, `/api/upstreams` shows everything. Both are written from the
//! same [`NodeView`]. The order of the members is part of the API.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::breaker::BreakerState;
use crate::methods::{PerCommitment, Slot};

/// One upstream node at a moment.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeView {
    /// The configured name, and never the address, which may hold a secret.
    pub name: String,
    /// The configured tier. Lower tiers are asked first.
    pub tier: u8,
    /// True if the node answers its probes.
    pub up: bool,
    /// Every reason why calls do not go to the node, for people. Calls go to it if there is none.
    pub reasons: Vec<String>,
    /// The position of the worst reason.
    pub worst: Option<usize>,
    /// The newest slots; `None` before the first report.
    pub slots: PerCommitment<Option<Slot>>,
    /// The slots behind the frontier; `None` before the first report.
    pub lag_slots: PerCommitment<Option<u64>>,
    /// The software version that the node reports.
    pub version: Option<String>,
    /// The oldest block that the node holds; 0 is everything.
    pub first_available_block: Slot,
    /// The state of the circuit breaker.
    pub breaker: BreakerState,
    /// The number of attempts in flight.
    pub in_flight: usize,
    /// The highest number of attempts in flight.
    pub max_in_flight: usize,
    /// The peak-EWMA latency in milliseconds.
    pub latency_ms: f64,
    /// The calls a second that are left; `None` without such a limit.
    pub rps_left: Option<f64>,
    /// The methods that the node has said it does not serve.
    pub lacks: Vec<&'static str>,
    /// True if an operator has taken the node out.
    pub drained: bool,
    /// The number of attempts since the start, without probes.
    pub requests: u64,
    /// The number of failed attempts since the start.
    pub failures: u64,
    /// The last failed attempt.
    pub last_failure: Option<FailureView>,
}

/// A failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FailureView {
    /// The kind, as `upstream_requests_total` has it.
    pub kind: &'static str,
    /// The time since the failure, in milliseconds.
    pub age_ms: u64,
}

impl NodeView {
    /// Returns true if calls go to the node.
    pub fn is_usable(&self) -> bool {
        self.reasons.is_empty()
    }
}

/// Writes nodes as `/api/status` has them.
pub(super) fn summaries<S: Serializer>(nodes: &[NodeView], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(nodes.iter().map(Summary))
}

/// Writes nodes as `/api/upstreams` has them.
pub(super) fn details<S: Serializer>(nodes: &[NodeView], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(nodes.iter().map(Detail))
}

struct Summary<'a>(&'a NodeView);

impl Serialize for Summary<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let node = self.0;
        let mut object = serializer.serialize_struct("Summary", 14)?;
        object.serialize_field("name", &node.name)?;
        object.serialize_field("tier", &node.tier)?;
        object.serialize_field("up", &node.up)?;
        object.serialize_field("usable", &node.is_usable())?;
        object.serialize_field("reason", &node.worst.and_then(|worst| node.reasons.get(worst)))?;
        object.serialize_field("slots", &node.slots)?;
        object.serialize_field("lag_slots", &node.lag_slots.processed)?;
        // Before the first attempt the latency is only assumed.
        object.serialize_field("latency_ms", &(node.requests > 0).then_some(node.latency_ms))?;
        object.serialize_field("in_flight", &node.in_flight)?;
        object.serialize_field("breaker", &node.breaker)?;
        object.serialize_field("first_available_block", &node.first_available_block)?;
        object.serialize_field("version", &node.version)?;
        object.serialize_field("requests", &node.requests)?;
        object.serialize_field("failures", &node.failures)?;
        object.end()
    }
}

struct Detail<'a>(&'a NodeView);

impl Serialize for Detail<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let node = self.0;
        let mut object = serializer.serialize_struct("Detail", 18)?;
        object.serialize_field("name", &node.name)?;
        object.serialize_field("tier", &node.tier)?;
        object.serialize_field("usable", &node.is_usable())?;
        object.serialize_field("reasons", &node.reasons)?;
        object.serialize_field("slots", &node.slots)?;
        object.serialize_field("lag_slots", &node.lag_slots)?;
        object.serialize_field("version", &node.version)?;
        object.serialize_field("first_available_block", &node.first_available_block)?;
        object.serialize_field("breaker", &node.breaker)?;
        object.serialize_field("in_flight", &node.in_flight)?;
        object.serialize_field("max_in_flight", &node.max_in_flight)?;
        object.serialize_field("latency_ms", &node.latency_ms)?;
        object.serialize_field("rps_left", &node.rps_left)?;
        object.serialize_field("lacks", &node.lacks)?;
        object.serialize_field("drained", &node.drained)?;
        object.serialize_field("requests", &node.requests)?;
        object.serialize_field("failures", &node.failures)?;
        object.serialize_field("last_failure", &node.last_failure)?;
        object.end()
    }
}
