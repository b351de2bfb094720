//! What `check --probe` asks of an upstream: who it is, how it stands, how fast it answers and how often it may be asked.

use std::time::Duration;

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tokio::time::Instant;

use crate::methods::{Commitment, Slot};
use crate::node::{Client, Fault, NodeReply};
use crate::pool::probe::{self, Identity, Pulse};

/// Calls one after the other, of which the median is taken: one alone may have opened the connection.
const TIMED: usize = 5;
/// Calls at once, to meet a rate limit that many callers would meet: more than a page of a wallet sends.
const AT_ONCE: u32 = 30;

/// What an upstream said.
#[derive(Debug, Clone)]
pub(super) struct Examined {
    pub(super) identity: Identity,
    pub(super) pulse: Pulse,
    /// Of a getSlot, the median of a few.
    pub(super) latency: Duration,
    /// So many calls at once were tried, so many of them refused with 429.
    pub(super) sent: u32,
    pub(super) refused: u32,
    /// The longest `Retry-After` among them.
    pub(super) retry_after: Option<Duration>,
    /// Its clock less ours; it tells whole seconds.
    pub(super) skew: Option<SignedDuration>,
    /// How long a slot takes, by its performance samples.
    pub(super) slot_time: Option<Duration>,
    /// Whether it has its newest final block: the JSON-RPC code of its refusal.
    pub(super) no_block: Option<i32>,
}

impl Examined {
    /// The newest slot that it has reached.
    pub(super) fn slot(&self, commitment: Commitment) -> Option<Slot> {
        *self.pulse.slots.get(commitment)
    }
}

/// Asks everything; `rps` bounds how many calls are sent at once.
///
/// # Errors
/// Why it did not answer.
pub(super) async fn examine(client: &Client, rps: Option<u32>) -> Result<Examined, Fault> {
    let identity = probe::identity(client).await?;
    let pulse = probe::pulse(client).await?;
    let skew = skew(client).await?;
    // A provider may refuse this method alone.
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

/// How far its clock is ahead of ours, as the middle of the exchange tells it.
async fn skew(client: &Client) -> Result<Option<SignedDuration>, Fault> {
    let (before, began) = (Timestamp::now(), Instant::now());
    let Some(date) = probe::date(client).await? else { return Ok(None) };
    let half = SignedDuration::try_from(began.elapsed() / 2).unwrap_or_default();
    // The header's seconds are cut, not rounded: in the mean it is half a second later.
    let told =
        jiff::fmt::rfc2822::parse(&date).ok().map(|date| date.timestamp() + SignedDuration::from_millis(500));
    Ok(told.map(|told| told.duration_since(before + half)))
}
