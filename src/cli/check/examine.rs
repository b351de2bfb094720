//! The calls that `check --probe` sends to an upstream, to find its identity, state, latency and rate limit.

use std::time::Duration;

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tokio::time::Instant;

use crate::follow::block_params;
use crate::methods::{Commitment, Slot};
use crate::node::client::MAX_BLOCK_BYTES;
use crate::node::{Client, Fault, NodeReply};
use crate::pool::probe::{self, Identity, Pulse};

/// The number of getSlot calls that are timed one after the other. The latency is their median, because the first
/// call may open the connection.
const TIMED: usize = 5;
/// The maximum number of calls that are sent at the same time. They show if the node refuses some calls
/// because of a rate limit.
const AT_ONCE: u32 = 30;

const MEASURED_BLOCKS: usize = 10;
/// The number of slots, up to the newest finalized one, among which the blocks to measure are chosen.
const BLOCK_RANGE: u64 = 100;
/// The time limit for reading one block in order to measure its size.
const BLOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The results of probing an upstream.
#[derive(Debug, Clone)]
pub(super) struct Examined {
    pub(super) identity: Identity,
    pub(super) pulse: Pulse,
    /// The median duration of a getSlot call.
    pub(super) latency: Duration,
    /// The number of calls that were sent at the same time to find out about a rate limit.
    pub(super) sent: u32,
    /// The number of these simultaneous calls that the node refused with HTTP 429.
    pub(super) refused: u32,
    /// The longest `Retry-After` among the answers with HTTP 429. `None` if none of them had that header.
    pub(super) retry_after: Option<Duration>,
    /// The time by which the node's clock is ahead of this machine's, accurate to a second. `None` if the
    /// node sends no `Date` header.
    pub(super) skew: Option<SignedDuration>,
    /// The duration of a slot, from the node's performance samples. `None` without samples.
    pub(super) slot_time: Option<Duration>,
    /// The JSON-RPC error code with which the node refuses its newest finalized block. `None` if it returns the block.
    pub(super) no_block: Option<i32>,
    /// The mean length of the newest blocks in bytes, in the form in which the gateway would request them for
    /// following. `None` if the node's blocks cannot be followed or read.
    pub(super) block_bytes: Option<f64>,
}

impl Examined {
    /// Returns the newest slot that the node reports at `commitment`. `None` if it reports none.
    pub(super) fn slot(&self, commitment: Commitment) -> Option<Slot> {
        *self.pulse.slots.get(commitment)
    }
}

/// Probes an upstream. `rps` is its configured number of calls a second, which bounds the number of simultaneous calls.
///
/// # Errors
/// A required call gets no valid answer. The error is the fault of the first such call. The calls for performance
/// samples, the calls that measure blocks, and the simultaneous calls are not required.
pub(super) async fn examine(client: &Client, rps: Option<u32>) -> Result<Examined, Fault> {
    let identity = probe::identity(client).await?;
    let pulse = probe::pulse(client).await?;
    let skew = skew(client).await?;
    // A failure is ignored, because a provider may disable this method.
    let slot_time = probe::slot_time(client).await.ok().flatten();
    let slot = pulse.slots.get(Commitment::Finalized).unwrap_or(0);
    let shape =
        json!([slot, {"transactionDetails": "none", "rewards": false, "maxSupportedTransactionVersion": 0}]);
    let no_block = match probe::question(client, "getBlock", &shape).await? {
        NodeReply::Error { code, .. } => Some(code),
        NodeReply::Result(_) => None,
    };
    let can_be_followed = identity.lists_writes && no_block.is_none();
    let block_bytes = if can_be_followed { block_bytes(client, slot).await } else { None };
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
        block_bytes,
    })
}

/// Returns the mean length in bytes of the newest blocks up to the slot `last`. `None` if the node does not return
/// them.
async fn block_bytes(client: &Client, last: Slot) -> Option<f64> {
    let range = json!([last.saturating_sub(BLOCK_RANGE), last]);
    let slots = match probe::question(client, "getBlocks", &range).await {
        Ok(NodeReply::Result(slots)) => serde_json::from_slice::<Vec<Slot>>(&slots).ok()?,
        Ok(NodeReply::Error { .. }) | Err(_) => return None,
    };
    let (mut blocks, mut bytes) = (0_u32, 0.0);
    for slot in slots.into_iter().rev().take(MEASURED_BLOCKS) {
        let call = json!({"jsonrpc": "2.0", "id": 0, "method": "getBlock", "params": block_params(slot)});
        let answer = client.ask(call.to_string().into(), BLOCK_TIMEOUT, MAX_BLOCK_BYTES).await.ok()?;
        if let NodeReply::Result(block) = answer.reply(0).ok()? {
            blocks += 1;
            bytes += f64::from(u32::try_from(block.len()).unwrap_or(u32::MAX));
        }
    }
    (blocks > 0).then(|| bytes / f64::from(blocks))
}

/// Returns the time by which the node's clock is ahead of this machine's. The node's `Date` is compared with the
/// middle of the request. `None` if the response has no valid `Date`.
async fn skew(client: &Client) -> Result<Option<SignedDuration>, Fault> {
    let (before, began) = (Timestamp::now(), Instant::now());
    let Some(date) = probe::date(client).await? else { return Ok(None) };
    let half = SignedDuration::try_from(began.elapsed() / 2).unwrap_or_default();
    // The header has whole seconds, rounded down, so half a second is added.
    let told =
        jiff::fmt::rfc2822::parse(&date).ok().map(|date| date.timestamp() + SignedDuration::from_millis(500));
    Ok(told.map(|told| told.duration_since(before + half)))
}
