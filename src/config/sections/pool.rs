//! `[pool]`: the use of upstreams.

use std::time::Duration;

use serde_json::json;

use super::{SHARE, TIMEOUT};
use crate::config::setting::{Field, section};
use crate::config::value::ByteSize;
use crate::methods::{AnyMethod, Part};

section! {
    /// The use of the nodes: probes, timeouts, retries and circuit breakers.
    pub struct PoolSettings {
        /// The genesis hash of the cluster, as getGenesisHash returns it. Nodes with another one get no calls. Default:
        /// the one that all nodes report. If they report different ones, no node gets calls.
        genesis_hash: Option<String> = live.with(genesis_hash),
        /// Interval between two probes of a node.
        // Two to three slots. A stopped node is noticed before clients notice it.
        probe_interval: Duration = live.within("1s", "10ms"..="1m"),
        /// Maximum lag of a node behind the newest slot of the pool at processed, in slots. A node further behind gets no
        /// calls while another is usable.
        // Five seconds at 250 ms a slot. Busy nodes lag less, and clients hardly notice a state of this age.
        max_slot_lag: u64 = live.within(20, 0..=432_000),
        /// Maximum time to open a connection. A probe may take a second longer.
        // Enough for one lost packet to be sent again. After a second loss another node is faster.
        connect_timeout: Duration = live.within("1s", TIMEOUT),
        /// Maximum time for an attempt on a node, for all methods without a time of their own.
        // Ten times the highest p99 of the small methods on a healthy node.
        default_timeout["attempt_timeout.default"]: Duration = live.within("10s", TIMEOUT),
        /// Maximum time for an attempt of one method.
        attempt_timeout: Box<[Duration; AnyMethod::COUNT]> = live.with(|f| attempt_timeouts(f, default_timeout)),
        /// Maximum retries on other nodes after a failure.
        // A call is tried on three nodes in all. If all three fail, a single node is rarely the cause.
        retries: usize = live.within(2, 0..=10),
        /// Maximum retries, as a share of all calls, so that nodes that are down get no flood of them.
        // While a node fails, retries add about a fifth to the load. Ten retries a second are allowed in any case.
        retry_budget: f64 = live.within(0.2, SHARE),
        /// Maximum answer of a node, after decompression.
        // Several times the largest mainnet block in its largest encoding.
        max_response: usize = live.size("64MiB", "1KiB"..="4GiB"),
        /// Maximum answer of a node to the methods of one group, where it is not `pool.max_response`: accounts, history (past
        /// blocks and transactions), scans (also of one owner's token accounts), `of_nodes`, tip.
        max_response_of: [Option<usize>; Part::ALL.len()] = live.with(responses_of_parts),
        /// Maximum size of all answers of nodes being read. The answers of one key may take up to eight times as much
        /// as is free.
        // Eight of the largest answers at once, and half of a small server's memory.
        max_buffered: usize = live.size("512MiB", "1KiB"..="1024GiB"),
        /// Maximum scans at the nodes: calls for which a node walks over many accounts, such as getProgramAccounts. Further
        /// ones wait for `server.request_timeout`, then get -32094 with Retry-After. A scan keeps its place while its node may
        /// still work on it, even if its caller has left.
        // A node has few threads for them, and other calls wait behind them.
        max_scans: usize = live.within(4, 1..=10_000),
        breaker: BreakerSettings = each.section(),
    }
}

section! {
    /// The circuit breaker of each node.
    #[derive(Copy)]
    pub struct BreakerSettings {
        /// Consecutive failures that open the breaker.
        // Few enough that a dead node is avoided after half a second of traffic.
        failures: u32 = live.within(5, 1..=10_000),
        /// Share of failures that opens the breaker, counted over at least 20 calls.
        // A node that fails every second call costs more than it gives.
        failure_rate: f64 = live.within(0.5, 0.01..=1.0),
        /// An answer so many times slower than the pool's p95 of the method counts as a failure, if the slow answer
        /// before it was for another key or method.
        // Four times the 95th percentile is a hang, not variance.
        slow: f64 = live.within(4.0, 1.0..=1000.0),
        /// Time for which the breaker stays open before one call passes as a trial.
        // Long enough for a node to restart, and short enough that the node is soon used again.
        open: Duration = live.within("5s", TIMEOUT),
    }
}

/// The longest answer of a node to a call, and the setting that says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerLimit {
    pub bytes: usize,
    /// The part of a node that has a limit of its own. `None` for `pool.max_response`.
    part: Option<Part>,
}

impl AnswerLimit {
    /// Returns the setting's name.
    pub fn setting(&self) -> String {
        self.part
            .map_or("pool.max_response".to_owned(), |part| format!("pool.max_response_of.{}", part.as_str()))
    }
}

impl std::fmt::Display for AnswerLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes ({})", self.bytes, self.setting())
    }
}

impl serde::Serialize for AnswerLimit {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([("limit", json!(self.bytes)), ("setting", json!(self.setting()))])
    }
}

impl PoolSettings {
    /// Returns the limit on a node's answer to a call of `method`.
    pub fn longest_answer(&self, method: AnyMethod) -> AnswerLimit {
        let part = method.rules().part;
        match self.max_response_of[part.index()] {
            Some(bytes) => AnswerLimit { bytes, part: Some(part) },
            None => AnswerLimit { bytes: self.max_response, part: None },
        }
    }
}

fn responses_of_parts(f: &Field<'_, '_>) -> [Option<usize>; Part::ALL.len()] {
    let table = f.r.table(f.key);
    Part::ALL.map(|part| {
        // One group shows how it is written.
        let (help, example) = if part == Part::Scans { (f.help, json!("256MiB")) } else { ("", json!(null)) };
        let size = table.field(part.as_str(), help).optional_within::<ByteSize>(example, "1KiB"..="4GiB");
        size.map(|ByteSize(bytes)| usize::try_from(bytes).unwrap_or(usize::MAX))
    })
}

/// Returns true if `attempt_timeout.default` applies to `method`.
pub(in crate::config) fn has_default_timeout(method: AnyMethod) -> bool {
    method.rules().timeout.is_none()
}

fn attempt_timeouts(f: &Field<'_, '_>, default: Duration) -> Box<[Duration; AnyMethod::COUNT]> {
    let table = f.r.table(f.key);
    let mut times = Box::new([default; AnyMethod::COUNT]);
    let has_own = |method: &AnyMethod| matches!(method, AnyMethod::Own(_) | AnyMethod::Listed(_));
    for method in f.r.methods().into_iter().filter(has_own) {
        times[method.index()] = match method.rules().timeout {
            Some(usual) => table.field(method.as_str(), f.help).within(usual, TIMEOUT),
            None => table.field(method.as_str(), "").optional_within((), TIMEOUT).unwrap_or(default),
        };
    }
    times
}

fn genesis_hash(f: &Field<'_, '_>) -> Option<String> {
    let hash: String = f.optional("5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d")?;
    if bs58::decode(&hash).into_vec().is_ok_and(|bytes| bytes.len() == 32) {
        return Some(hash);
    }
    let fix = "set it to the answer of getGenesisHash in your cluster";
    f.problem(Some(format!("{hash:?}")), "expected 32 bytes in base58", fix);
    None
}
