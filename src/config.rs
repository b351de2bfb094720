//! The configuration. A value in the environment overrides one in the file, which overrides the default.
//!
//! A `Config` exists only if every value is valid. All problems are reported at once, each with its path, value (never
//! a secret), rule and fix. [`defaults`] holds the defaults and their reasons.

mod bounds;
mod check;
pub mod defaults;
mod dev;
mod load;
mod problem;
mod raw;
mod reader;
pub mod reload;
mod removed;
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

use crate::methods::{AnyMethod, Commitment, PassthroughMethod, PerCommitment, Profile};

pub use bounds::{is_name, url_fault};
pub use load::{from_text, load};
pub use problem::{Problem, Problems, ValueOrigin};
pub use secret::Secret;

/// All settings. Every value is valid.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The setting `compat.profile`: answers as real nodes give them, or as the written specification defines them.
    pub profile: Profile,
    /// The section `[server]`: the listeners and their limits.
    pub server: Server,
    /// The section `[auth]`: the authentication of callers.
    pub auth: Auth,
    /// The sections `[plans.NAME]`: the permissions and limits of keys, by name of the plan.
    pub plans: BTreeMap<String, Plan>,
    /// The section `[units]`: the prices of calls.
    pub units: Units,
    /// The sections `[[upstream]]`: the nodes. At least one.
    pub upstreams: Vec<Upstream>,
    /// The section `[pool]`: the use of the nodes.
    pub pool: PoolSettings,
    /// The section `[cache]`: the lifetimes of answers, and the capacity.
    pub cache: CacheSettings,
    /// The section `[follow]`: reading the blocks of the chain, to serve a cached account until a block writes it.
    pub follow: FollowSettings,
    /// The setting `passthrough.methods`: read methods that are forwarded to nodes without caching.
    pub passthrough: Vec<PassthroughMethod>,
    /// The section `[shared]`: the store that several gateways share. `None` without such a store.
    pub shared: Option<SharedSettings>,
    /// The section `[verify]`: the comparison of hits with a node.
    pub verify: Verify,
    /// The section `[telemetry]`: logs and traces.
    pub telemetry: Telemetry,
    /// The settings that are valid but probably unintended. Reported at the start.
    pub warnings: Vec<Problem>,
}

/// `[server]`: the listeners and their limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// The address of the public listener.
    pub listen: SocketAddr,
    /// The address of the admin listener: metrics, health, status page.
    pub admin_listen: SocketAddr,
    /// The maximum length of a request body, in bytes. A node's own default is 50 KiB.
    pub max_body: usize,
    /// The maximum number of calls in a batch.
    pub max_batch: usize,
    /// The maximum number of open connections on the public listener.
    pub max_connections: usize,
    /// The maximum number of requests in flight. Further requests get -32094.
    pub max_in_flight: usize,
    /// The maximum total length of answers that are not sent yet, in bytes. Above this length, calls get -32094.
    pub max_outgoing: usize,
    /// The longest time to receive a request head.
    pub header_timeout: Duration,
    /// The longest time to receive a request body.
    pub body_timeout: Duration,
    /// The longest time for which a client may accept no bytes of its answer.
    pub write_timeout: Duration,
    /// The longest time for a call. A call that takes longer gets -32096.
    pub request_timeout: Duration,
    /// The longest time for which requests in flight may finish after a stop signal.
    pub drain_timeout: Duration,
    /// The origins that browsers may call from; `["*"]` allows all.
    pub cors_origins: Vec<String>,
    /// The proxies whose statements about client addresses are trusted.
    pub trusted_proxies: Vec<ipnet::IpNet>,
    /// The header in which trusted proxies give the client address.
    pub client_ip_header: ClientIpHeader,
    /// True if every connection begins with a PROXY protocol v2 header from a trusted proxy.
    pub proxy_protocol: bool,
    /// TLS on the public listener. `None` means plain HTTP.
    pub tls: Option<TlsFiles>,
}

impl Server {
    /// Returns true for the address of a trusted proxy.
    pub fn trusts(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.trusted_proxies.iter().any(|network| network.contains(&ip))
    }
}

/// The setting `server.client_ip_header`: the header in which trusted proxies give the client address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientIpHeader {
    /// The header `X-Forwarded-For`.
    XForwardedFor,
    /// The header `Forwarded` (RFC 7239).
    Forwarded,
}

/// `server.tls`: the certificate of the public listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The path of the certificates in PEM, the server's own first.
    pub cert: PathBuf,
    /// The path of the unencrypted private key in PEM.
    pub key: PathBuf,
}

/// `[auth]`: the authentication of callers.
#[derive(Debug, Clone, PartialEq)]
pub struct Auth {
    /// The mode of authentication: by keys, or open.
    pub mode: AuthMode,
    /// The path of the key file, which may not exist yet. `None` if no keys are used.
    pub keys_file: Option<PathBuf>,
    /// The path of the file that keeps quota usage across restarts. `None` keeps no usage.
    pub usage_file: Option<PathBuf>,
    /// The maximum number of refused keys per client address and minute. A valid key from a wrong origin or
    /// address also counts as refused.
    pub failed_per_minute: u32,
    /// The plan of each client address in the mode `open`. `None` sets no limits.
    pub open_plan: Option<String>,
    /// The bearer token of the admin API. Without a token, the API allows only reading.
    pub admin_token: Option<Secret>,
    /// An API key that is valid without a key file. Its plan has the same name as the key. Only
    /// [`Config::dev`] sets it.
    pub dev_key: Option<String>,
}

/// The setting `auth.mode`: if requests need an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMode {
    /// Every request needs a key of the key file.
    Keys,
    /// A request may have any key or none. This mode is meant for private networks.
    Open,
}

/// `[plans.NAME]`: the permissions and limits of keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The average number of calls a second that a key may make. Each element of a batch counts as a call.
    pub rps: u32,
    /// The maximum number of calls that a key may make in one burst after a pause.
    pub burst: u32,
    /// The quota for a UTC day, in units. The price of a call is a number of units. `None` is unlimited.
    pub daily_units: Option<u64>,
    /// The quota for a UTC month, in units. The price of a call is a number of units. `None` is unlimited.
    pub monthly_units: Option<u64>,
    /// The allowed methods; `None` allows all.
    pub methods: Option<Vec<AnyMethod>>,
    /// The allowed commitments; `None` allows all.
    pub commitments: Option<Vec<Commitment>>,
    /// The maximum number of calls in a batch. `None` means the limit of the server.
    pub max_batch: Option<usize>,
    /// The maximum number of accounts in a getMultipleAccounts call. `None` means the limit of nodes.
    pub max_accounts: Option<usize>,
    /// True if `Cache-Control: no-cache` bypasses the cache.
    pub bypass_cache: bool,
    /// True if a key gets no answer below a slot that it saw at the same commitment, while a node can give a
    /// newer one.
    pub monotonic: bool,
}

/// `[units]`: the prices of calls. The price of getMultipleAccounts is that of a list of 100 accounts;
/// shorter lists cost less.
#[derive(Debug, Clone, PartialEq)]
pub struct Units {
    /// The prices of the eight cached methods, by [`Method::index`](crate::methods::Method::index).
    pub by_method: [u64; 8],
    /// The prices of the passthrough methods, by [`PassthroughMethod::index`].
    pub by_passthrough: [u64; PassthroughMethod::COUNT],
    /// The factor by which the price of a hit is multiplied.
    pub hit_factor: f64,
}

/// `[[upstream]]`: a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Upstream {
    /// The name in logs, metrics, pages and errors.
    pub name: String,
    /// The URL, which may hold a provider's key.
    pub url: Secret,
    /// The tier. Lower tiers are asked first.
    pub tier: u8,
    /// The headers sent with every request.
    pub headers: BTreeMap<String, Secret>,
    /// The maximum number of calls a second. `None` is unlimited.
    pub rps: Option<u32>,
    /// The maximum number of calls in flight.
    pub max_in_flight: usize,
    /// The path of a PEM file with the certificates of an additional certificate authority.
    pub ca_file: Option<PathBuf>,
    /// True for HTTP/2, false for HTTP/1.1.
    pub http2: bool,
    /// The check that the node belongs to the pool's cluster.
    pub genesis: GenesisCheck,
}

/// `upstream.genesis`: the check that a node belongs to the pool's cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenesisCheck {
    /// The node's genesis hash must equal the pool's.
    Checked,
    /// The node is not asked for its genesis hash. The operator asserts that the node belongs to the pool's cluster.
    Unchecked,
}

impl Upstream {
    /// Creates an upstream with a name and a URL, and defaults for the rest.
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

/// The section `[pool]`: probes, timeouts, retries, hedges and circuit breakers for calls to upstreams.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolSettings {
    /// The genesis hash of the cluster. `None` takes the first hash that a node reports.
    pub genesis_hash: Option<String>,
    /// The interval between two probes of a node.
    pub probe_interval: Duration,
    /// The maximum number of slots by which a usable node may be behind the newest known slot, at commitment processed.
    pub max_slot_lag: u64,
    /// The longest time to connect to a node.
    pub connect_timeout: Duration,
    /// The longest time for one attempt at one node, by [`Method::index`](crate::methods::Method::index).
    pub attempt_timeout: [Duration; 8],
    /// The longest time for an attempt of a passthrough method: `attempt_timeout.default`.
    pub forward_timeout: Duration,
    /// The maximum number of retries of a call on other nodes.
    pub retries: usize,
    /// The maximum number of retries of all calls, as a share of the number of calls.
    pub retry_budget: f64,
    /// Hedging: a second attempt beside a slow first one. `None` disables it.
    pub hedge: Option<Hedge>,
    /// The circuit breaker of each node.
    pub breaker: BreakerSettings,
    /// The maximum length of an answer, in bytes after decompression.
    pub max_response: usize,
    /// The maximum total length of the node answers that are being read, in bytes.
    pub max_buffered: usize,
}

/// The setting `pool.hedge`: second attempts beside slow first ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hedge {
    /// The quantile of a method's recent latencies after which a second attempt is sent.
    pub quantile: f64,
    /// The maximum number of second attempts, as a share of the number of calls.
    pub budget: f64,
}

/// The section `pool.breaker`: the circuit breaker of each node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BreakerSettings {
    /// The number of consecutive failures that open the breaker.
    pub failures: u32,
    /// The share of failed calls that opens the breaker, counted over at least 20 calls.
    pub failure_rate: f64,
    /// The factor on the pool's 95th-percentile latency of a method. An attempt that takes longer than the product
    /// counts as failed.
    pub slow: f64,
    /// The time for which the breaker stays open before one call passes as a trial.
    pub open: Duration,
}

/// `[cache]`: lifetimes and capacity.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheSettings {
    /// The capacity in bytes.
    pub capacity: u64,
    /// The maximum size of an entry, in bytes.
    pub max_entry: u64,
    /// The assembly of account lists from cached accounts.
    pub assemble: Assemble,
    /// The maximum number of slots by which an answer may be behind the newest known slot at its commitment.
    pub max_lag_slots: PerCommitment<u64>,
    /// The share by which an entry may exceed its TTL and the maximum lag while a refresh runs. Always 0 at
    /// processed.
    pub stale_while_revalidate: PerCommitment<f64>,
    /// The maximum age of an answer that is served while no node answers.
    pub stale_if_error: StaleIfError,
    /// The section `[cache.ttl]`: the time to live of answers.
    pub ttl: Ttl,
}

/// The setting `cache.assemble`: the entries from which a list of accounts is assembled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assemble {
    /// Lists are assembled only from entries of one slot.
    SameSlot,
    /// Lists are never assembled.
    Off,
}

/// `cache.stale_if_error`: the maximum age of answers that are served while no node answers. At commitment processed,
/// no stale answer is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaleIfError {
    /// The maximum age of confirmed answers.
    pub confirmed: Duration,
    /// The maximum age of finalized answers.
    pub finalized: Duration,
    /// The maximum age of finalized blocks. `None` is unlimited.
    pub block: Option<Duration>,
}

/// `[cache.ttl]`: the time to live of answers. It applies in addition to the maximum lag.
#[derive(Debug, Clone, PartialEq)]
pub struct Ttl {
    /// The TTL of accounts and token balances.
    pub account: PerCommitment<Duration>,
    /// The TTL of fees.
    pub fee: PerCommitment<Duration>,
    /// The TTL of vote accounts.
    pub vote_accounts: PerCommitment<Duration>,
    /// The TTL of blocks at confirmed.
    pub block_confirmed: Duration,
    /// The TTL of blocks at finalized.
    pub block_finalized: Duration,
    /// The TTL of error -32004: the block does not exist yet.
    pub no_block_not_yet: Duration,
    /// The TTL of errors -32007 and -32009: nodes say that the slot was skipped, but may only have lost its block.
    pub no_block_unconfirmed: Duration,
    /// The TTL of errors -32007 and -32009 for a slot that was certainly skipped.
    pub no_block_skipped: Duration,
    /// The TTL of performance samples.
    pub performance_samples: Duration,
    /// The TTL of cluster nodes.
    pub cluster_nodes: Duration,
}

/// `[follow]`: reading the blocks of the chain, to serve a cached account until a block writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowSettings {
    /// The setting `follow.mode`: read no blocks, read them for a comparison only, or use them to serve accounts.
    pub mode: FollowMode,
    /// The names of the upstreams that are asked for blocks. If the list is empty, every upstream that gives blocks is
    /// asked.
    pub upstreams: Vec<String>,
    /// The interval between two requests for new blocks.
    pub poll: Duration,
    /// The maximum number of missed blocks that the follower reads to catch up. If more are missing, following begins
    /// anew at the newest block.
    pub max_gap: usize,
    /// The time after which an account is fetched again although no block has written it. The new answer is compared
    /// with the cached one.
    pub max_carry: Duration,
    /// True if only one of the gateways that share a store reads each block, for all of them.
    pub share: bool,
}

/// The setting `follow.mode`: how the blocks of the chain are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowMode {
    /// Blocks are not read.
    Off,
    /// Blocks are read, but callers get the same answers as in mode `off`. The fetches that mode `on` would spare are
    /// counted, and their answers are compared with the cached ones.
    Shadow,
    /// Cached accounts are served until a block writes them.
    On,
}

/// `[shared]`: the Redis store that several gateways share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedSettings {
    /// The URLs, which may hold user and password. They name one server, several servers of which one accepts
    /// writes, or some nodes of a Redis cluster.
    pub urls: Vec<Secret>,
    /// True if the URLs belong to a Redis cluster.
    pub cluster: bool,
    /// The prefix of all keys in the store.
    pub namespace: String,
    /// The longest time for an operation on the store.
    pub timeout: Duration,
    /// The path of a PEM file with the certificates of an additional certificate authority.
    pub ca_file: Option<PathBuf>,
    /// The secret that authenticates the answers in the store. Without a secret, only accidental damage is
    /// detected.
    pub secret: Option<Secret>,
}

/// `[verify]`: the comparison of cache hits with a node's answers, in production.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verify {
    /// The share of hits to compare. If `None`, a small share of the carried answers is compared, and no other hit.
    pub sample: Option<f64>,
}

/// `[telemetry]`: logs and traces.
#[derive(Debug, Clone, PartialEq)]
pub struct Telemetry {
    /// The log filter, such as `info` or `slotfront::pool=debug`.
    pub log: String,
    /// The format of log lines.
    pub format: LogFormat,
    /// The base URL of an OTLP collector, which may hold a key. `None` disables traces.
    pub otlp: Option<Secret>,
    /// The share of traced requests, among those without a `traceparent` header.
    pub trace_sample: f64,
}

/// The setting `telemetry.format`: the format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// [`Self::Pretty`] on a terminal, [`Self::Json`] otherwise.
    Auto,
    /// Text with colours, for people.
    Pretty,
    /// One JSON object a line.
    Json,
}
