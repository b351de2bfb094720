//! The state of every node, as `/api/status` and `/api/upstreams` show it.
//!
//! No text in the answer contains an upstream's address or the text of a transport error, because these may hold
//! secrets. The order of the JSON members is part of the API.

use serde::Serialize;

use crate::breaker::BreakerState;
use crate::methods::{PerCommitment, Slot};

/// The answer of `/api/upstreams`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct UpstreamsView {
    /// The newest slot that a usable node reports, at each commitment. `None` before the first report.
    pub frontier: PerCommitment<Option<Slot>>,
    /// The configured upstreams, in the order of the configuration.
    pub upstreams: Vec<NodeView>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct NodeView {
    /// The configured name. The address is not shown, because it may hold a secret.
    pub name: String,
    /// The configured tier. Lower tiers are asked first.
    pub tier: u8,
    /// Why the node does not answer its probes, as in the label `result` of `slotfront_upstream_requests_total`. `None` if
    /// it answers.
    pub why: Option<&'static str>,
    /// The time since which the node answers its probes, or does not, as it does now.
    pub since: String,
    /// True if the node answers probes.
    pub up: bool,
    /// True if the node gets calls, because it has no `reasons` against it.
    pub usable: bool,
    /// The reasons why the node gets no calls, as text, the most severe first. Empty if it gets calls.
    pub reasons: Vec<String>,
    /// The newest slot that the node has reported, at each commitment. `None` before the first report.
    pub slots: PerCommitment<Option<Slot>>,
    /// The number of slots by which the node is behind the newest known slot, at each commitment. `None` before the
    /// node's first report.
    pub lag_slots: PerCommitment<Option<u64>>,
    /// The software version that the node reports. `None` if it reports none.
    pub version: Option<String>,
    /// The slot of the oldest block that the node holds: 0 if it holds all blocks. `None` if its oldest block is unknown.
    pub first_available_block: Option<Slot>,
    /// The state of the node's circuit breaker, which keeps calls off a failing node. `None` if the node was never reached.
    pub breaker: Option<BreakerState>,
    pub in_flight: usize,
    pub max_in_flight: usize,
    /// The latency of the node in milliseconds, as a moving average that rises at once with a slow answer (peak
    /// EWMA). `None` as long as it has answered no call.
    pub latency_ms: Option<f64>,
    /// The number of calls that the node's rate limit still allows now. `None` without a limit.
    pub rps_left: Option<u32>,
    /// The methods that the node has reported as unsupported.
    pub lacks: Vec<&'static str>,
    /// True if an operator has drained the node, so that it gets no new calls.
    pub drained: bool,
    /// The number of calls to the node since it joined the pool, excluding probes.
    pub requests: u64,
    /// The number of failed calls to the node since it joined the pool.
    pub failures: u64,
    /// The last failed call to the node. `None` if no call has failed.
    pub last_failure: Option<FailureView>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct FailureView {
    /// The kind of failure, as in the label `result` of the metric `slotfront_upstream_requests_total`.
    pub kind: &'static str,
    pub age_ms: u64,
}
