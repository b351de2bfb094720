//! Settings: as written (file and environment) → read by name over the defaults → [`Config`].
//!
//! A `Config` exists only when every value is possible; all that is wrong is reported at once, each with its path,
//! its value (never a secret), the rule and the fix. Defaults live in [`defaults`], each with its reason.

mod bounds;
mod check;
pub mod defaults;
mod dev;
mod load;
mod problem;
mod raw;
mod reader;
pub mod reload;
mod secret;
mod sections;
#[cfg(test)]
mod tests;
mod value;
pub mod watch;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::methods::{AnyMethod, Commitment, Further, PerCommitment, Profile};

pub use bounds::{is_name, url_fault};
pub use load::{from_text, load};
pub use problem::{Origin, Problem, Problems};
pub use secret::Secret;

/// Every setting, valid.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `compat.profile`
    pub profile: Profile,
    /// `[server]`
    pub server: Server,
    /// `[auth]`
    pub auth: Auth,
    /// `[plans.NAME]`
    pub plans: BTreeMap<String, Plan>,
    /// `[units]`
    pub units: Units,
    /// `[[upstream]]`, at least one.
    pub upstreams: Vec<Upstream>,
    /// `[pool]`
    pub pool: Pool,
    /// `[cache]`
    pub cache: Cache,
    /// `passthrough.methods`: further read methods that are forwarded, without a cache.
    pub passthrough: Vec<Further>,
    /// `[shared]`; `None` is one machine alone.
    pub shared: Option<Shared>,
    /// `[verify]`
    pub verify: Verify,
    /// `[telemetry]`
    pub telemetry: Telemetry,
    /// What is valid, but can hardly be meant; to be told at the start.
    pub warnings: Vec<Problem>,
}

/// `[server]`: the listeners and their bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// Public listener.
    pub listen: SocketAddr,
    /// Admin listener: metrics, health, status page.
    pub admin_listen: SocketAddr,
    /// Largest request body, in bytes; a node's own default is 50 KiB.
    pub max_body: usize,
    /// Most calls in a batch.
    pub max_batch: usize,
    /// Most open connections on the public listener.
    pub max_connections: usize,
    /// Most requests in flight; past it -32094.
    pub max_in_flight: usize,
    /// Bytes of answers that are made or on their way out; past it -32094.
    pub max_outgoing: usize,
    /// How long a client may take to send its request head.
    pub header_timeout: Duration,
    /// How long a client may take to send its body.
    pub body_timeout: Duration,
    /// How long a client may take nothing of its answer.
    pub write_timeout: Duration,
    /// How long a call may take; past it -32096.
    pub request_timeout: Duration,
    /// How long calls in flight may finish after a stop signal.
    pub drain_timeout: Duration,
    /// Origins that browsers may call from; `["*"]` is every origin.
    pub cors_origins: Vec<String>,
    /// Proxies that are believed in what they say of their clients' addresses.
    pub trusted_proxies: Vec<ipnet::IpNet>,
    /// The header in which these proxies say it.
    pub client_ip_header: ClientIpHeader,
    /// Whether each connection begins with a PROXY protocol v2 header, by a trusted proxy.
    pub proxy_protocol: bool,
    /// TLS on the public listener; without it, plain HTTP.
    pub tls: Option<Tls>,
}

impl Server {
    /// Returns true for the address of a trusted proxy.
    pub fn trusts(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.trusted_proxies.iter().any(|network| network.contains(&ip))
    }
}

/// `server.client_ip_header`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientIpHeader {
    /// `X-Forwarded-For`
    XForwardedFor,
    /// `Forwarded` (RFC 7239)
    Forwarded,
}

/// `server.tls`: whose certificate the public listener shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// PEM, the server's own certificate first, resolved against the configuration file.
    pub cert: PathBuf,
    /// PEM: its private key, not encrypted.
    pub key: PathBuf,
}

/// `[auth]`: who may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Auth {
    /// Keys, or open to all.
    pub mode: AuthMode,
    /// The key file, resolved against the configuration file; it need not exist yet. `None` only where no keys are
    /// needed.
    pub keys_file: Option<PathBuf>,
    /// Where quotas are kept over a restart, resolved likewise; `None` forgets them.
    pub usage_file: Option<PathBuf>,
    /// Failed keys per client address and minute; keys that are used from a wrong origin or address are among them.
    pub failed_per_minute: u32,
    /// In open mode, the plan that holds per client address.
    pub open_plan: Option<String>,
    /// Bearer token of the admin API; without it the API only reads.
    pub admin_token: Option<Secret>,
    /// A key that holds without a file, on the plan of its own name. Only [`Config::dev`] sets it.
    pub dev_key: Option<String>,
}

/// `auth.mode`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMode {
    /// Every call carries a key of the key file.
    Keys,
    /// Any or no key, for a private network.
    Open,
}

/// `[plans.NAME]`: what a key may do, how often.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Calls a second; each element of a batch is one.
    pub rps: u32,
    /// Calls at once.
    pub burst: u32,
    /// Units a UTC day.
    pub daily_units: Option<u64>,
    /// Units a UTC month.
    pub monthly_units: Option<u64>,
    /// Methods allowed; `None` is all.
    pub methods: Option<Vec<AnyMethod>>,
    /// Commitments allowed; `None` is all.
    pub commitments: Option<Vec<Commitment>>,
    /// Most calls in a batch, where lower than the server's.
    pub max_batch: Option<usize>,
    /// Most accounts in a getMultipleAccounts.
    pub max_accounts: Option<usize>,
    /// Whether `Cache-Control: no-cache` is honoured.
    pub bypass_cache: bool,
    /// Whether a hit below a slot that the key has been shown is a miss to it.
    pub monotonic: bool,
}

/// `[units]`: one call's cost, and a full list's of accounts.
#[derive(Debug, Clone, PartialEq)]
pub struct Units {
    /// Cost by [`Method::index`](crate::methods::Method::index).
    pub by_method: [u64; 8],
    /// Cost by [`Further::index`].
    pub by_further: [u64; Further::COUNT],
    /// What a hit costs, as a factor.
    pub hit_factor: f64,
}

/// `[[upstream]]`: one node.
#[derive(Debug, Clone, PartialEq)]
pub struct Upstream {
    /// Its name in logs, metrics, pages and errors.
    pub name: String,
    /// Its address, which may hold a provider's key.
    pub url: Secret,
    /// Lower tiers are asked first.
    pub tier: u8,
    /// Headers sent with every call.
    pub headers: BTreeMap<String, Secret>,
    /// Calls a second that this node allows us.
    pub rps: Option<u32>,
    /// Most calls in flight to this node.
    pub max_in_flight: usize,
    /// A certificate authority of its own, PEM.
    pub ca_file: Option<PathBuf>,
    /// HTTP/2 instead of HTTP/1.1.
    pub http2: bool,
    /// How the node's cluster is made sure of.
    pub genesis: GenesisCheck,
}

/// `upstream.genesis`: how a node's cluster is made sure of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenesisCheck {
    /// By its genesis hash, which has to be the pool's where that is known.
    Checked,
    /// By the operator's word: the node is not asked for its genesis hash.
    Unchecked,
}

impl Upstream {
    /// An upstream of which only the name and address are known.
    pub fn plain(name: impl Into<String>, url: Secret) -> Self {
        Self {
            name: name.into(),
            url,
            tier: defaults::TIER,
            headers: BTreeMap::new(),
            rps: None,
            max_in_flight: defaults::UPSTREAM_MAX_IN_FLIGHT,
            ca_file: None,
            http2: defaults::HTTP2,
            genesis: defaults::GENESIS,
        }
    }
}

/// `[pool]`: how upstreams are asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// The cluster, by its genesis hash; else the first usable node's.
    pub genesis_hash: Option<String>,
    /// Between two probes of a node.
    pub probe_interval: Duration,
    /// Slots behind the frontier at processed past which a node is not usable.
    pub max_slot_lag: u64,
    /// To connect.
    pub connect_timeout: Duration,
    /// One attempt, by [`Method::index`](crate::methods::Method::index).
    pub attempt_timeout: [Duration; 8],
    /// One attempt of a forwarded method: `attempt_timeout.default`.
    pub forward_timeout: Duration,
    /// Further attempts on other nodes.
    pub retries: usize,
    /// Retries as a share of calls.
    pub retry_budget: f64,
    /// Whether misses of single accounts go up together while others are under way.
    pub merge: bool,
    /// A second call beside a slow first one; `None` is off.
    pub hedge: Option<Hedge>,
    /// When a node is left alone for a while.
    pub breaker: Breaker,
    /// Largest answer, in bytes after decompression.
    pub max_response: usize,
    /// All bodies in flight, in bytes.
    pub max_buffered: usize,
}

/// `pool.hedge`
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hedge {
    /// The share of a method's recent answers that must have been faster before a second call is sent.
    pub quantile: f64,
    /// Second calls as a share of calls.
    pub budget: f64,
}

/// `pool.breaker`
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Breaker {
    /// Consecutive failures that open it.
    pub failures: u32,
    /// Share of failures, over at least 20 calls, that opens it.
    pub failure_rate: f64,
    /// An attempt past this multiple of the method's p95 counts as failed.
    pub slow: f64,
    /// How long it stays open before one probe is let through.
    pub open: Duration,
}

/// `[cache]`: how long answers live, and how much is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Cache {
    /// All entries, in bytes.
    pub capacity: u64,
    /// One entry, in bytes.
    pub max_entry: u64,
    /// How a list of accounts is made from kept ones.
    pub assemble: Assemble,
    /// Slots that an answer may be behind the frontier at its commitment.
    pub max_lag_slots: PerCommitment<u64>,
    /// How far both bounds stretch while a fresh answer is fetched, as a factor; 0 at processed.
    pub stale_while_revalidate: PerCommitment<f64>,
    /// How old an answer may be when no node answers.
    pub stale_if_error: StaleIfError,
    /// `[cache.ttl]`
    pub ttl: Ttl,
}

/// `cache.assemble`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assemble {
    /// Only from entries of one slot.
    SameSlot,
    /// Missing keys are fetched alone; the lowest slot is the answer's.
    WithinBound,
    /// Never.
    Off,
}

/// `cache.stale_if_error`; none at processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaleIfError {
    /// At confirmed.
    pub confirmed: Duration,
    /// At finalized.
    pub finalized: Duration,
    /// Final blocks; `None` is for ever.
    pub block: Option<Duration>,
}

/// `[cache.ttl]`: the bound in time that always holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Ttl {
    /// Accounts and token balances.
    pub account: PerCommitment<Duration>,
    /// Fees.
    pub fee: PerCommitment<Duration>,
    /// Vote accounts.
    pub vote_accounts: PerCommitment<Duration>,
    /// A block that is confirmed only.
    pub block_confirmed: Duration,
    /// A final block.
    pub block_finalized: Duration,
    /// -32004.
    pub no_block_not_yet: Duration,
    /// -32007 of one voice, and recent -32009.
    pub no_block_unconfirmed: Duration,
    /// -32007 that a second node confirms.
    pub no_block_skipped: Duration,
    /// Performance samples.
    pub performance_samples: Duration,
    /// Cluster nodes.
    pub cluster_nodes: Duration,
}

/// `[shared]`: the store that several gateways have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared {
    /// Where it is, each with a user and a password where it wants them: one server; several of which one takes writes;
    /// or some nodes of a cluster.
    pub urls: Vec<Secret>,
    /// Whether it is a cluster.
    pub cluster: bool,
    /// What all keys there begin with.
    pub namespace: String,
    /// How long one operation may take.
    pub timeout: Duration,
    /// A certificate authority of its own, PEM.
    pub ca_file: Option<PathBuf>,
    /// What kept answers are signed with.
    pub secret: Option<Secret>,
}

/// `[verify]`: proof in production.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verify {
    /// The share of hits that is compared with a node afterwards.
    pub sample: f64,
}

/// `[telemetry]`
#[derive(Debug, Clone, PartialEq)]
pub struct Telemetry {
    /// A tracing filter, such as `info` or `slotfront::pool=debug`.
    pub log: String,
    /// How log lines are written.
    pub format: LogFormat,
    /// The base address of an OTLP collector (it may hold a key), in a build with the feature `otlp`; `None` is off.
    pub otlp: Option<Secret>,
    /// The share of requests whose caller sends no `traceparent` that is recorded.
    pub trace_sample: f64,
}

/// `telemetry.format`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, else JSON.
    Auto,
    /// For people.
    Pretty,
    /// One JSON object a line.
    Json,
}
