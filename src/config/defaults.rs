//! Every default, named, with the reason for its value. Nothing else in the crate knows a default.
//!
//! `config/example.toml` repeats them, and a test keeps the two equal.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::methods::{Method, PerCommitment, Profile};

use super::{Assemble, AuthMode, ClientIpHeader, GenesisCheck, LogFormat};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const HOUR: Duration = Duration::from_hours(1);

/// Client libraries are built on what nodes answer, so that is what an unchanged client should meet.
pub const PROFILE: Profile = Profile::Node;

/// All interfaces: a container that listens on loopback cannot be reached. The keys guard the door.
pub const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8080);
/// Loopback only: metrics and the status page tell more than strangers should know.
pub const ADMIN_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9899);
/// A node's own limit, so that no body passes here that the node would refuse.
pub const MAX_BODY: u64 = 50 * KIB;
/// As many calls as getMultipleAccounts takes keys; client libraries batch far fewer.
pub const MAX_BATCH: usize = 100;
/// About 1 GiB of buffers at the worst; fits the file limit of a common service unit (65,536) twice.
pub const MAX_CONNECTIONS: usize = 20_000;
/// Past this a queue only adds delay: at 100 ms a call it is 100,000 calls a second.
pub const MAX_IN_FLIGHT: usize = 10_000;
/// Eight of the largest answers at once, which is a hundred blocks and more to clients that read slowly.
pub const MAX_OUTGOING: u64 = 512 * MIB;
/// A request head fits one packet; who needs longer than this is on a broken line or means harm.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// 50 KiB in this time is 5 KiB/s, slower than any line worth serving.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// TCP resends a lost packet several times within it.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// What the Rust client library itself waits for an answer.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Under the 30 s that Kubernetes waits before it kills.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// A node echoes any origin; the API key, not the origin, is what grants access.
pub const CORS_ORIGIN: &str = "*";

/// The header that nginx, Caddy and cloud balancers write.
pub const CLIENT_IP_HEADER: ClientIpHeader = ClientIpHeader::XForwardedFor;
/// Most balancers speak HTTP, and say whose request it is in a header.
pub const PROXY_PROTOCOL: bool = false;

/// A gateway that is reachable from outside must not be open by accident.
pub const AUTH_MODE: AuthMode = AuthMode::Keys;
/// Beside the configuration file.
pub const KEYS_FILE: &str = "keys.toml";
/// Beside the configuration file.
pub const USAGE_FILE: &str = "usage.json";
/// A client with a typo tries a few times a minute; a scanner tries thousands.
pub const FAILED_PER_MINUTE: u32 = 30;

/// The plan that exists without being written, and that a key without a plan has.
pub const PLAN: &str = "standard";
/// Enough for one busy service; a hundred such clients still fit one core.
pub const RPS: u32 = 100;
/// A plan's burst, where it names none, is this many seconds of its rate: a page load comes all at once.
pub const BURST_SECONDS: u32 = 2;
/// Going past the cache costs a node what the cache saves it, so it is given on purpose.
pub const BYPASS_CACHE: bool = false;
/// Whoever reads many accounts pays for it in misses; within one account no slot goes back anyway.
pub const MONOTONIC: bool = false;

/// A call that reads one thing.
pub const UNITS: u64 = 1;
/// The full price: an operator who passes the saving on lowers it.
pub const HIT_FACTOR: f64 = 1.0;

/// All upstreams are equal until told otherwise.
pub const TIER: u8 = 0;
/// Well under what a validator's RPC threads queue; protects the node from all of us together.
pub const UPSTREAM_MAX_IN_FLIGHT: usize = 512;
/// One HTTP/2 connection is one TCP window and one stream limit; several HTTP/1.1 connections have none of that.
pub const HTTP2: bool = false;
/// A node of another cluster gives wrong answers, so that every node has to show its own.
pub const GENESIS: GenesisCheck = GenesisCheck::Checked;

/// Two to three slots: a node that stops is noticed before clients do.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Five seconds at 250 ms a slot: past the jitter of a busy node, before a client sees old state.
pub const MAX_SLOT_LAG: u64 = 20;
/// One lost packet is resent within it; a second one means that another node is quicker.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Ten times the slowest p99 of the small methods on a healthy node.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// A full block is megabytes that a node reads from disk; still leaves 5 s of the request for another node.
pub const ATTEMPT_TIMEOUT_BLOCK: Duration = Duration::from_secs(25);
/// Three nodes asked in all: past that the fault is rarely the node's.
pub const RETRIES: usize = 2;
/// A fifth more load in a fault, never a multiple of it.
pub const RETRY_BUDGET: f64 = 0.2;
/// Consecutive failures: a node that is gone is left alone after half a second of traffic.
pub const BREAKER_FAILURES: u32 = 5;
/// A node that fails every second call costs more than it gives.
pub const BREAKER_FAILURE_RATE: f64 = 0.5;
/// One call in twenty is slower, and as many may be hedged.
pub const HEDGE_QUANTILE: f64 = 0.95;
/// A list waits for its slowest account: who is busy decides for it.
pub const MERGE: bool = false;
/// What hedging may add to the nodes' load.
pub const HEDGE_BUDGET: f64 = 0.05;
/// Four times the pool's p95 is no variance any more, it is a hang.
pub const BREAKER_SLOW: f64 = 4.0;
/// Long enough for a restarting process to listen, short enough to regain the node soon.
pub const BREAKER_OPEN: Duration = Duration::from_secs(5);
/// Several times the largest mainnet block in its largest encoding.
pub const MAX_RESPONSE: u64 = 64 * MIB;
/// Eight of the largest answers at once, and half of a small server's memory.
pub const MAX_BUFFERED: u64 = 512 * MIB;

/// About a quarter of a million accounts, or a few hundred full blocks.
pub const CAPACITY: u64 = 512 * MIB;
/// Every mainnet block seen fits; one entry can take at most 1/32 of the store.
pub const MAX_ENTRY: u64 = 16 * MIB;
/// A list made of one slot's entries is as good as a node's own.
pub const ASSEMBLE: Assemble = Assemble::SameSlot;
/// An answer goes by these or by its ttl, whichever ends first; they were chosen for slots of 400 ms, where both agree.
pub const MAX_LAG_SLOTS: PerCommitment<u64> = PerCommitment { processed: 1, confirmed: 2, finalized: 12 };
/// Half a ttl more while a fresh answer is on its way; none at processed, which is asked for its freshness.
pub const STALE_WHILE_REVALIDATE: PerCommitment<f64> =
    PerCommitment { processed: 0.0, confirmed: 0.5, finalized: 0.5 };
/// As long as a failover takes.
pub const STALE_IF_ERROR_CONFIRMED: Duration = Duration::from_secs(10);
/// As long as a node's restart takes to be noticed by people.
pub const STALE_IF_ERROR_FINALIZED: Duration = Duration::from_mins(1);
/// A final block never changes: for ever.
pub const STALE_IF_ERROR_BLOCK: Option<Duration> = None;
/// One slot, two slots, and the 12 slots by which finalized trails anyway.
pub const TTL_STATE: PerCommitment<Duration> = PerCommitment {
    processed: Duration::from_millis(400),
    confirmed: Duration::from_millis(800),
    finalized: Duration::from_secs(5),
};
/// The answer is a megabyte, and its members move by one vote a slot: twice the time of an account.
pub const TTL_VOTE_ACCOUNTS: PerCommitment<Duration> = PerCommitment {
    processed: Duration::from_secs(1),
    confirmed: Duration::from_secs(2),
    finalized: Duration::from_secs(10),
};
/// A confirmed block can still be dropped, if only in theory.
pub const TTL_BLOCK_CONFIRMED: Duration = Duration::from_secs(2);
/// Final by construction; a day bounds how long a fault of a node can be repeated.
pub const TTL_BLOCK_FINALIZED: Duration = HOUR.saturating_mul(24);
/// Half a slot: the block is probably on its way.
pub const TTL_NO_BLOCK_NOT_YET: Duration = Duration::from_millis(200);
/// One node's word alone: asked again within a minute.
pub const TTL_NO_BLOCK_UNCONFIRMED: Duration = Duration::from_mins(1);
/// A skipped slot stays skipped, as a final block stays.
pub const TTL_NO_BLOCK_SKIPPED: Duration = HOUR.saturating_mul(24);
/// A node takes a sample a minute: a quarter of that.
pub const TTL_PERFORMANCE_SAMPLES: Duration = Duration::from_secs(15);
/// Gossip membership changes by the hour.
pub const TTL_CLUSTER_NODES: Duration = Duration::from_mins(1);

/// Told apart from what else may be kept in the same store.
pub const SHARED_NAMESPACE: &str = "slotfront";
/// Many times what a store in the same place takes, and less than most nodes do.
pub const SHARED_TIMEOUT: Duration = Duration::from_millis(20);
/// One server is where everybody begins.
pub const SHARED_CLUSTER: bool = false;

/// Each comparison costs a node a call that nobody waits for, so it is given on purpose.
pub const VERIFY_SAMPLE: f64 = 0.0;

/// Starts, stops, reloads and what needs a person; nothing per request.
pub const LOG: &str = "info";
/// People read a terminal, machines read a pipe.
pub const LOG_FORMAT: LogFormat = LogFormat::Auto;

/// Enough to see where time goes, and little enough to forget: at 10,000 requests a second it is 100 traces. Callers
/// who record their own traces decide for themselves.
pub const TRACE_SAMPLE: f64 = 0.01;

/// The key that `slotfront dev` accepts.
pub const DEV_KEY: &str = "dev";
/// Calls a second, and at once, of the key `dev`: a load test on a laptop should meet the cache, not the limit.
pub const DEV_RPS: u32 = 100_000;

/// What a call of `method` costs, and a full list of accounts. A block is what ten accounts cost a node; the two lists
/// lie between.
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

/// How long one attempt of `method` may take.
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
