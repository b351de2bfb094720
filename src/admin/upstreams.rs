//! The answer of `/api/upstreams`: every node, and the last choice of a node for each method.
//!
//! Plain values. There is no address and no text of a transport in them, only names and words.

use serde::Serialize;

use super::node_view::{NodeView, details};
use crate::methods::{PerCommitment, Slot};

/// The whole answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Upstreams {
    /// The newest slot that a usable node reports; `None` before the first report.
    pub frontier: PerCommitment<Option<Slot>>,
    /// Each configured upstream, in the order of the configuration.
    #[serde(serialize_with = "details")]
    pub upstreams: Vec<NodeView>,
    /// The last choice for each method that was called, as far as it was kept: at most ten a second are.
    pub choices: Vec<ChoiceView>,
}

/// One choice of a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChoiceView {
    /// The method of the call.
    pub method: &'static str,
    /// The time since the choice, in milliseconds.
    pub age_ms: u64,
    /// The name of the node that was asked.
    pub chosen: String,
    /// The reason, for people.
    pub why: String,
    /// Every node as it stood then.
    pub candidates: Vec<CandidateView>,
}

/// A node as it stood for a call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CandidateView {
    /// The configured name.
    pub name: String,
    /// The worst reason why the node was not usable for this call.
    pub unusable: Option<&'static str>,
    /// True if the node was within `cache.max_lag_slots` of the frontier at the call's commitment.
    pub near: bool,
    /// The configured tier. Lower tiers are asked first.
    pub tier: u8,
    /// The peak-EWMA latency in milliseconds × (attempts in flight + 1).
    pub load: f64,
}
