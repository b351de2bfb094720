//! What `/api/upstreams` shows: every node's standing, and how the last choice of each method fell.
//!
//! Plain values, as [`status`](super::status) has them; no address and no text of a transport, only names and words.

use serde::Serialize;

use super::status::Breaker;
use crate::methods::{PerCommitment, Slot};

/// The whole answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Upstreams {
    /// The newest slot that a usable node reports; `None` before the first report.
    pub frontier: PerCommitment<Option<Slot>>,
    /// Each configured upstream, in the order of the configuration.
    pub upstreams: Vec<Standing>,
    /// The last choice of each method that was called, as far as it was kept: at most ten a second are.
    pub choices: Vec<Choice>,
}

/// How one upstream stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Standing {
    /// Its configured name.
    pub name: String,
    /// Lower tiers are asked first.
    pub tier: u8,
    /// Whether calls go to it.
    pub usable: bool,
    /// Every reason why they do not, for people.
    pub reasons: Vec<String>,
    /// Its newest slots; `None` before the first report.
    pub slots: PerCommitment<Option<Slot>>,
    /// Slots behind the frontier; `None` before the first report.
    pub lag_slots: PerCommitment<Option<u64>>,
    /// The version that it reports.
    pub version: Option<String>,
    /// The oldest block that it holds; 0 is everything.
    pub first_available_block: Slot,
    /// Its circuit breaker.
    pub breaker: Breaker,
    /// Attempts under way, and how many may be.
    pub in_flight: usize,
    /// As configured.
    pub max_in_flight: usize,
    /// Peak-EWMA of its answers, in milliseconds.
    pub latency_ms: f64,
    /// How many of its own calls a second are left; `None` where it has no such limit.
    pub rps_left: Option<f64>,
    /// Methods that it has said it does not serve.
    pub lacks: Vec<&'static str>,
    /// Whether an operator has taken it out.
    pub drained: bool,
    /// Attempts since start, probes left out.
    pub requests: u64,
    /// Of these, failed.
    pub failures: u64,
    /// What last went wrong, in the words of `upstream_requests_total`.
    pub last_failure: Option<Failure>,
}

/// A failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Its kind.
    pub kind: &'static str,
    /// How long ago, in milliseconds.
    pub age_ms: u64,
}

/// How a call came to its node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choice {
    /// Of which method.
    pub method: &'static str,
    /// How long ago, in milliseconds.
    pub age_ms: u64,
    /// Who was asked.
    pub chosen: String,
    /// Why, for people.
    pub why: String,
    /// Every node as it stood then.
    pub candidates: Vec<Candidate>,
}

/// A node as it stood for a call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// Its configured name.
    pub name: String,
    /// Why it was not usable for this call, the worst reason.
    pub unusable: Option<&'static str>,
    /// Whether it was within `cache.max_lag_slots` of the frontier at the asked commitment.
    pub near: bool,
    /// Lower tiers are asked first.
    pub tier: u8,
    /// Peak-EWMA in milliseconds × (calls under way + 1).
    pub load: f64,
}
