//! The questions that `check --probe` asks an upstream: identity, state, latency and rate limit.

use std::time::Duration;

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tokio::time::Instant;

use crate::methods::{Commitment, Slot};
use crate::node::{Client, Fault, NodeReply};
use crate::pool::probe::{self, Identity, Pulse};

/// The number of timed calls. Their median counts, because the first may have opened the connection.
const TIMED: usize = 5;
/// The number of simultaneous calls that look for a rate limit.
const AT_ONCE: u32 = 30;

/// The answers of an upstream.
#[derive(Debug, Clone)]
pub(super) struct Examined {
    pub(super) identity: Identity,
    pub(super) pulse: Pulse,
    /// The median duration of a getSlot.
    pub(super) latency: Duration,
    /// The number of simultaneous calls, and how many of them were refused with 429.
    pub(super) sent: u32,
    pub(super) refused: u32,
    /// The longest `Retry-After` of the refusals.
    pub(super) retry_after: Option<Duration>,
    /// The node's clock minus ours, within a second.
    pub(super) skew: Option<SignedDuration>,
    /// The duration of a slot, from the performance samples.
    pub(super) slot_time: Option<Duration>,
    /// The JSON-RPC error code if the node refuses its newest finalized block.
    pub(super) no_block: Option<i32>,
}

impl Examined {
    /// Returns the newest slot at `commitment`.
    pub(super) fn slot(&self, commitment: Commitment) -> Option<Slot> {
        *self.pulse.slots.get(commitment)
    }
}

/// Asks an upstream all questions. `rps` bounds the number of simultaneous calls.
///
/// # Errors
/// The fault of the first question without an answer.
pub(super) async fn examine(client: &Client, rps: Option<u32>) -> Result<Examined, Fault> {
    let identity = probe::identity(client).await?;
    let pulse = probe::pulse(client).await?;
    let skew = skew(client).await?;
    // Ignored on failure, because a provider may disable this one method.
    let slot_time = probe::slot_time(client).await.ok().flatten();
    let slot = pulse.slots.get(Commitment::Finalized).unwrap_or(0);
    let shape =
        json!([slot, {"transactionDetails": "none", "rewards": false, "maxSupportedTransactionVersion": 0}]);
    let no_block = match probe::question(client, "getBlock", &shape).await? {
        NodeReply::Error { code, .. } => Some(code),
        NodeReply::Result(_) => None,
    };
    let none = json!([]);
    let mut times = Vec::with_capacity(TIMED);
    for _ in 0..TIMED {
        let sent = Instant::now();
        probe::question(client, "getSlot", &none).await?;
        times.push(sent.elapsed());
    }
    times.sort_unstable();
    let sent = rps.unwrap_or(AT_ONCE).min(AT_ONCE);
    let answers = join_all((0..sent).map(|_| probe::question(client, "getSlot", &none))).await;
    let waits: Vec<Option<Duration>> = answers
        .into_iter()
        .filter_map(|answer| match answer {
            Err(Fault::TooManyRequests(wait)) => Some(wait),
            _ => None,
        })
        .collect();
    Ok(Examined {
        identity,
        pulse,
        latency: times[TIMED / 2],
        sent,
        refused: u32::try_from(waits.len()).unwrap_or(sent),
        retry_after: waits.into_iter().flatten().max(),
        skew,
        slot_time,
        no_block,
    })
}

/// Returns how far the node's clock is ahead of ours, measured at the middle of the exchange.
async fn skew(client: &Client) -> Result<Option<SignedDuration>, Fault> {
    let (before, began) = (Timestamp::now(), Instant::now());
    let Some(date) = probe::date(client).await? else { return Ok(None) };
    let half = SignedDuration::try_from(began.elapsed() / 2).unwrap_or_default();
    // The header cuts off fractions of a second, which are half a second on average.
    let told =
        jiff::fmt::rfc2822::parse(&date).ok().map(|date| date.timestamp() + SignedDuration::from_millis(500));
    Ok(told.map(|told| told.duration_since(before + half)))
}
