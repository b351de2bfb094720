//! The answer of `/api/upstreams`: the state of every node, and the latest choice of a node for each method.
//!
//! No text in the answer contains an upstream's address or the text of a transport error, because these may hold
//! secrets.

use serde::Serialize;

use super::node_view::{NodeView, serialize_details};
use crate::methods::{PerCommitment, Slot};

/// The answer of `/api/upstreams`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Upstreams {
    /// The newest slot that a usable node reports, at each commitment. `None` before the first report.
    pub frontier: PerCommitment<Option<Slot>>,
    /// The configured upstreams, in the order of the configuration.
    #[serde(serialize_with = "serialize_details")]
    pub upstreams: Vec<NodeView>,
    /// The latest recorded choice of a node, for each method. At most ten choices per second are recorded for a
    /// method.
    pub choices: Vec<ChoiceView>,
}

/// The choice of one node for a call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ChoiceView {
    /// The method of the call.
    pub method: &'static str,
    /// The time since the choice, in milliseconds.
    pub age_ms: u64,
    /// The name of the chosen node.
    pub chosen: String,
    /// The reason for the choice, as text.
    pub why: String,
    /// The state of every node at the time of the choice.
    pub candidates: Vec<CandidateView>,
}

/// The state of a node at the time of a choice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct CandidateView {
    /// The name of the node in the configuration.
    pub name: String,
    /// The most severe reason why the node was unusable for the call. `None` if it was usable.
    pub unusable: Option<&'static str>,
    /// True if the node was at most `cache.max_lag_slots` behind the newest known slot, at the call's commitment.
    /// Always true for a call without a commitment.
    pub near: bool,
    /// The configured tier of the node. Nodes of lower tiers are asked first.
    pub tier: u8,
    /// The load of the node: its peak-EWMA latency in milliseconds × (its calls in flight + 1).
    pub load: f64,
}
