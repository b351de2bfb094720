//! All defaults, with a reason for each.
//!
//! `config/example.toml` repeats them, and a test keeps the two equal.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::methods::{Method, PerCommitment, Profile};

use super::{Assemble, AuthMode, ClientIpHeader, FollowMode, GenesisCheck, LogFormat};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const HOUR: Duration = Duration::from_hours(1);

/// Client libraries expect answers as nodes give them, so clients need no change.
pub const PROFILE: Profile = Profile::Node;

/// All interfaces, because a container that listens on loopback cannot be reached. Strangers have no access,
/// because callers need a key.
pub const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8080);
/// Loopback only, because metrics and the status page are not for strangers.
pub const ADMIN_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9899);
/// The limit that nodes have, so that no body is accepted that a node would refuse.
pub const MAX_BODY: u64 = 50 * KIB;
/// The number of accounts that getMultipleAccounts allows. Client libraries send much smaller batches.
pub const MAX_BATCH: usize = 100;
/// The buffers of that many connections take about 1 GiB at most. The number is a third of the usual limit on open
/// files of a service (65,536).
pub const MAX_CONNECTIONS: usize = 20_000;
/// Enough for 100,000 calls a second of 100 ms each. A longer queue only adds delay.
pub const MAX_IN_FLIGHT: usize = 10_000;
/// Eight of the largest answers at once, or more than a hundred blocks for clients that read slowly.
pub const MAX_OUTGOING: u64 = 512 * MIB;
/// A request head fits into one packet, so a slower client is broken or hostile.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Enough for a body of 50 KiB at 5 KiB/s.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// TCP resends a lost packet several times in this time.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// The default timeout of the Rust client library.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Less than the 30 s that Kubernetes waits before it kills a process.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Every origin is allowed, as a node allows it. Access depends on the API key, not on the origin.
pub const CORS_ORIGIN: &str = "*";

/// The header that nginx, Caddy and cloud balancers write.
pub const CLIENT_IP_HEADER: ClientIpHeader = ClientIpHeader::XForwardedFor;
/// Most balancers speak HTTP and give the client address in a header.
pub const PROXY_PROTOCOL: bool = false;

/// A gateway that is reachable from outside must not be open by accident.
pub const AUTH_MODE: AuthMode = AuthMode::Keys;
/// A file beside the configuration file.
pub const KEYS_FILE: &str = "keys.toml";
/// A file beside the configuration file.
pub const USAGE_FILE: &str = "usage.json";
/// A client with a typing error fails a few times a minute, a scanner thousands of times.
pub const FAILED_PER_MINUTE: u32 = 30;

/// The plan that always exists. Keys are created with this plan, unless another is named.
pub const PLAN: &str = "standard";
/// Enough for a busy service. One core serves a hundred clients at this rate.
pub const RPS: u32 = 100;
/// The default burst, as seconds of the plan's rate. A page load sends its calls at once.
pub const BURST_SECONDS: u32 = 2;
/// Bypassing the cache costs the nodes calls, so a plan must allow it explicitly.
pub const BYPASS_CACHE: bool = false;
/// A plan that never shows a caller a lower slot than before costs cache misses for callers that read many
/// accounts. Even without this, the slot of one account never decreases.
pub const MONOTONIC: bool = false;

/// The price of a simple call.
pub const UNITS: u64 = 1;
/// A hit costs the full price. An operator may pass the saving of hits on to callers.
pub const HIT_FACTOR: f64 = 1.0;

/// All upstreams are equal, unless the operator ranks them.
pub const TIER: u8 = 0;
/// Well below the queue length of a validator's RPC threads.
pub const UPSTREAM_MAX_IN_FLIGHT: usize = 512;
/// Several HTTP/1.1 connections avoid two limits of a single HTTP/2 connection: the one TCP window and the number of
/// streams.
pub const HTTP2: bool = false;
/// A node of another cluster gives wrong answers, so every node is checked.
pub const GENESIS: GenesisCheck = GenesisCheck::Checked;

/// Two to three slots. A stopped node is noticed before clients notice it.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Five seconds at 250 ms a slot. Busy nodes lag less, and clients hardly notice a state of this age.
pub const MAX_SLOT_LAG: u64 = 20;
/// Enough for one lost packet to be sent again. After a second loss another node is faster.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Ten times the highest p99 of the small methods on a healthy node.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// A full block is megabytes read from disk. Of the 30 s for a request, 5 s remain for another node.
pub const ATTEMPT_TIMEOUT_BLOCK: Duration = Duration::from_secs(25);
/// A call is tried on three nodes in all. If all three fail, a single node is rarely the cause.
pub const RETRIES: usize = 2;
/// While a node fails, retries add about a fifth to the load. Ten retries a second are allowed in any case.
pub const RETRY_BUDGET: f64 = 0.2;
/// Few enough that a dead node is avoided after half a second of traffic.
pub const BREAKER_FAILURES: u32 = 5;
/// A node that fails every second call costs more than it gives.
pub const BREAKER_FAILURE_RATE: f64 = 0.5;
/// One call in twenty is slower than this quantile, so at most one call in twenty is hedged.
pub const HEDGE_QUANTILE: f64 = 0.95;
/// The load that hedging may add to the nodes, as a share of calls.
pub const HEDGE_BUDGET: f64 = 0.05;
/// A latency of four times the pool's 95th percentile is a hang, not variance.
pub const BREAKER_SLOW: f64 = 4.0;
/// Long enough for a node to restart, and short enough that the node is soon used again.
pub const BREAKER_OPEN: Duration = Duration::from_secs(5);
/// Several times the largest mainnet block in its largest encoding.
pub const MAX_RESPONSE: u64 = 64 * MIB;
/// Eight of the largest answers at once, and half of a small server's memory.
pub const MAX_BUFFERED: u64 = 512 * MIB;

/// Room for about 250,000 accounts, or a few hundred full blocks.
pub const CAPACITY: u64 = 512 * MIB;
/// Larger than every known mainnet block. One entry takes at most 1/32 of the cache.
pub const MAX_ENTRY: u64 = 16 * MIB;
/// A list assembled from entries of one slot equals the list that a node gives at this slot.
pub const ASSEMBLE: Assemble = Assemble::SameSlot;
/// About as long as the TTLs of accounts, at 400 ms a slot. An answer expires by its lag or by its TTL, whichever comes
/// first.
pub const MAX_LAG_SLOTS: PerCommitment<u64> = PerCommitment { processed: 1, confirmed: 2, finalized: 12 };
/// Half a TTL more while a refresh runs. No extra time at processed, because callers choose processed for freshness.
pub const STALE_WHILE_REVALIDATE: PerCommitment<f64> =
    PerCommitment { processed: 0.0, confirmed: 0.5, finalized: 0.5 };
/// About the time that a failover to another node takes.
pub const STALE_IF_ERROR_CONFIRMED: Duration = Duration::from_secs(10);
/// The time until people notice that a node restarts.
pub const STALE_IF_ERROR_FINALIZED: Duration = Duration::from_mins(1);
/// A finalized block never changes, so it may be served at any age.
pub const STALE_IF_ERROR_BLOCK: Option<Duration> = None;
/// At 400 ms a slot, about one slot, two slots and 12 slots. A finalized state is some 32 slots old anyway.
pub const TTL_STATE: PerCommitment<Duration> = PerCommitment {
    processed: Duration::from_millis(400),
    confirmed: Duration::from_millis(800),
    finalized: Duration::from_secs(5),
};
/// The answer is a megabyte, and each slot changes it only by one vote of each validator. The answer is therefore
/// served at least twice as long as an account.
pub const TTL_VOTE_ACCOUNTS: PerCommitment<Duration> = PerCommitment {
    processed: Duration::from_secs(1),
    confirmed: Duration::from_secs(2),
    finalized: Duration::from_secs(10),
};
/// A confirmed block can still be dropped in theory.
pub const TTL_BLOCK_CONFIRMED: Duration = Duration::from_secs(2);
/// A finalized block never changes. A day limits the effect of a faulty node.
pub const TTL_BLOCK_FINALIZED: Duration = HOUR.saturating_mul(24);
/// Half a slot, because the block probably arrives soon.
pub const TTL_NO_BLOCK_NOT_YET: Duration = Duration::from_millis(200);
/// Nodes that lost a block call its slot skipped. A node that has the block may be added or come back at any time.
pub const TTL_NO_BLOCK_UNCONFIRMED: Duration = Duration::from_secs(5);
/// A proven skip never changes. A day limits the effect of a faulty node.
pub const TTL_NO_BLOCK_SKIPPED: Duration = HOUR.saturating_mul(24);
/// Reading every block costs bandwidth. That pays only for some nodes and callers.
pub const FOLLOW_MODE: FollowMode = FollowMode::Off;
/// A fraction of a slot, so that an answer is at most a slot older than the node's.
pub const FOLLOW_POLL: Duration = Duration::from_millis(100);
/// Some 15 to 25 seconds of blocks. After a longer break, most accounts that callers ask for have changed.
pub const FOLLOW_MAX_GAP: usize = 64;
/// A node's single wrong answer lives no longer than this. One fetch in ten minutes for each account in use is little
/// beside the fetches that following saves.
pub const FOLLOW_MAX_CARRY: Duration = Duration::from_mins(10);
/// A shared store exists so that one replica fetches for all. The store is trusted for blocks as it is for answers.
pub const FOLLOW_SHARE: bool = true;

/// A quarter of the minute that passes between two samples of a node.
pub const TTL_PERFORMANCE_SAMPLES: Duration = Duration::from_secs(15);
/// Gossip membership changes within hours.
pub const TTL_CLUSTER_NODES: Duration = Duration::from_mins(1);

/// Separates slotfront's keys from others in the same store.
pub const SHARED_NAMESPACE: &str = "slotfront";
/// The default timeout of an operation on the shared store. It is many times the latency of a store nearby, and
/// less than the latency of most nodes.
pub const SHARED_TIMEOUT: Duration = Duration::from_millis(20);
/// A single Redis server is the usual start, not a Redis Cluster.
pub const SHARED_CLUSTER: bool = false;

/// Logs starts, stops, reloads and failures that need a person, but no line for each request.
pub const LOG: &str = "info";
/// Terminals are read by people, pipes by machines.
pub const LOG_FORMAT: LogFormat = LogFormat::Auto;

/// Enough to see where time goes: 100 traces a second at 10,000 requests a second. Callers who send a trace decide
/// for themselves.
pub const TRACE_SAMPLE: f64 = 0.01;

/// The key of `slotfront dev`.
pub const DEV_KEY: &str = "dev";
/// The rate and burst of the key `dev`. A load test on a laptop should measure the cache, not the limit.
pub const DEV_RPS: u32 = 100_000;

/// Returns the default price of a call of `method`. A block costs a node as much as ten accounts. Vote accounts and a
/// full list of accounts lie between.
pub const fn units(method: Method) -> u64 {
    match method {
        Method::GetBlock => 10,
        Method::GetMultipleAccounts | Method::GetVoteAccounts => 5,
        Method::GetAccountInfo
        | Method::GetTokenAccountBalance
        | Method::GetFeeForMessage
        | Method::GetRecentPerformanceSamples
        | Method::GetClusterNodes => UNITS,
    }
}

/// Returns the default timeout of an attempt of `method`.
pub const fn attempt_timeout(method: Method) -> Duration {
    match method {
        Method::GetBlock => ATTEMPT_TIMEOUT_BLOCK,
        Method::GetMultipleAccounts
        | Method::GetAccountInfo
        | Method::GetVoteAccounts
        | Method::GetTokenAccountBalance
        | Method::GetFeeForMessage
        | Method::GetRecentPerformanceSamples
        | Method::GetClusterNodes => ATTEMPT_TIMEOUT,
    }
}
