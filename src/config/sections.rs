//! The sections of the file, one function each: which settings there are, their bounds and their defaults.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::methods::{Further, Method, PerCommitment};

use super::raw::Raw;
use super::reader::Reader;
use super::value::{OrForever, OrOff, Size};
use super::{
    Auth, Breaker, Cache, Config, Hedge, Plan, Pool, Secret, Server, StaleIfError, Telemetry, Tls, Ttl,
    Units, Verify, defaults, shared, upstreams,
};

/// Timeouts: a millisecond is the least that a timer tells apart, and an hour is for ever to a client.
pub(super) const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_hours(1);
/// Times to live: past ten years nothing is meant.
const TTL: RangeInclusive<OrOff> = OrOff(Duration::ZERO)..=OrOff(Duration::from_hours(87600));
/// Counts that are a resource each: none would be a closed door, and a million is past one machine.
const COUNT: RangeInclusive<usize> = 1..=1_000_000;
/// A share of something.
const SHARE: RangeInclusive<f64> = 0.0..=1.0;
/// Names that are labels, too, are kept short and plain.
const MAX_NAME: usize = 64;

/// Reads every section. The result is a valid [`Config`] only if no problem was noted.
pub(super) fn read(root: &Reader<'_>) -> Config {
    let compat = root.table("compat");
    Config {
        profile: compat.get("profile", defaults::PROFILE),
        server: server(&root.table("server")),
        auth: auth(&root.table("auth")),
        plans: plans(&root.table("plans")),
        units: units(&root.table("units")),
        upstreams: upstreams::read(root),
        pool: pool(&root.table("pool")),
        cache: cache(&root.table("cache")),
        passthrough: root.table("passthrough").list("methods").unwrap_or_default(),
        shared: shared::read(&root.table("shared")),
        verify: Verify { sample: root.table("verify").within("sample", defaults::VERIFY_SAMPLE, SHARE) },
        telemetry: telemetry(&root.table("telemetry")),
        warnings: Vec::new(),
    }
}

/// Whether `name` may name a plan or an upstream: it will stand in metrics, logs and errors.
pub fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(plain)
}

/// A size that also is a `usize` on every machine that we run on.
fn size(r: &Reader<'_>, key: &str, default: u64, bounds: RangeInclusive<u64>) -> usize {
    let bounds = Size(*bounds.start())..=Size(*bounds.end());
    usize::try_from(r.within(key, Size(default), bounds).0).unwrap_or(usize::MAX)
}

fn server(r: &Reader<'_>) -> Server {
    let trusted_proxies = r.list("trusted_proxies").unwrap_or_default();
    let proxy_protocol = r.get("proxy_protocol", defaults::PROXY_PROTOCOL);
    if proxy_protocol && trusted_proxies.is_empty() {
        let rule = "expected trusted_proxies beside it: who may say whose connection it is";
        r.problem("proxy_protocol", Some("true".to_owned()), rule, "list the balancer's addresses there");
    }
    Server {
        listen: r.get("listen", defaults::LISTEN),
        admin_listen: r.get("admin_listen", defaults::ADMIN_LISTEN),
        max_body: size(r, "max_body", defaults::MAX_BODY, 256..=64 << 20),
        max_batch: r.within("max_batch", defaults::MAX_BATCH, 1..=10_000),
        max_connections: r.within("max_connections", defaults::MAX_CONNECTIONS, COUNT),
        max_in_flight: r.within("max_in_flight", defaults::MAX_IN_FLIGHT, COUNT),
        max_outgoing: size(r, "max_outgoing", defaults::MAX_OUTGOING, 1 << 20..=1 << 40),
        header_timeout: r.within("header_timeout", defaults::HEADER_TIMEOUT, TIMEOUT),
        body_timeout: r.within("body_timeout", defaults::BODY_TIMEOUT, TIMEOUT),
        write_timeout: r.within("write_timeout", defaults::WRITE_TIMEOUT, TIMEOUT),
        request_timeout: r.within("request_timeout", defaults::REQUEST_TIMEOUT, TIMEOUT),
        drain_timeout: r.within("drain_timeout", defaults::DRAIN_TIMEOUT, TIMEOUT),
        cors_origins: cors_origins(r),
        trusted_proxies,
        client_ip_header: r.get("client_ip_header", defaults::CLIENT_IP_HEADER),
        proxy_protocol,
        tls: tls(&r.table("tls")),
    }
}

/// A certificate and its key: both or none. Whether they are good is seen where they are read.
fn tls(r: &Reader<'_>) -> Option<Tls> {
    let (cert, key) = (r.file("cert"), r.file("key"));
    let lonely = match (&cert, &key) {
        (Some(_), None) => "key",
        (None, Some(_)) => "cert",
        _ => return cert.zip(key).map(|(cert, key)| Tls { cert, key }),
    };
    let rule = "expected a certificate and its key, or neither";
    r.problem(lonely, None, rule, "name both files, in PEM");
    None
}

/// `*`, or origins as a browser writes them: scheme, host, port where it is not the scheme's own; no path.
fn cors_origins(r: &Reader<'_>) -> Vec<String> {
    const KEY: &str = "cors_origins";
    let origins: Vec<String> = r.list(KEY).unwrap_or_else(|| vec![defaults::CORS_ORIGIN.to_owned()]);
    for origin in &origins {
        let as_browser = |url: &url::Url| url.origin().ascii_serialization() == *origin;
        let fine = origin == "*" || url::Url::parse(origin).is_ok_and(|url| as_browser(&url));
        if !fine {
            let rule = "expected \"*\" or an origin as a browser sends it: scheme and host, no path";
            r.problem(KEY, Some(format!("{origin:?}")), rule, "write it like \"https://app.example\"");
        }
    }
    origins
}

fn auth(r: &Reader<'_>) -> Auth {
    Auth {
        mode: r.get("mode", defaults::AUTH_MODE),
        keys_file: r.file_or_off("keys_file", defaults::KEYS_FILE),
        usage_file: r.file_or_off("usage_file", defaults::USAGE_FILE),
        failed_per_minute: r.within("failed_per_minute", defaults::FAILED_PER_MINUTE, 1..=1_000_000),
        open_plan: r.optional("open_plan"),
        admin_token: r.secret("admin_token"),
        dev_key: None,
    }
}

fn plans(r: &Reader<'_>) -> BTreeMap<String, Plan> {
    let mut names = r.names();
    names.insert(defaults::PLAN.to_owned());
    let mut plans = BTreeMap::new();
    for name in names {
        if !is_name(&name) {
            let rule = format!("expected a name of letters, digits, '-', '_' and '.', at most {MAX_NAME}");
            r.problem(&name, None, rule, "rename the plan");
        }
        let plan = plan(&r.table(&name));
        plans.insert(name, plan);
    }
    plans
}

fn plan(r: &Reader<'_>) -> Plan {
    const MAX_RATE: u32 = 1_000_000;
    let rps = r.within("rps", defaults::RPS, 1..=MAX_RATE);
    Plan {
        rps,
        burst: r.within("burst", rps.saturating_mul(defaults::BURST_SECONDS), 1..=MAX_RATE),
        daily_units: r.optional_within("daily_units", 1..=u64::MAX),
        monthly_units: r.optional_within("monthly_units", 1..=u64::MAX),
        methods: r.list("methods"),
        commitments: r.list("commitments"),
        max_batch: r.optional_within("max_batch", 1..=10_000),
        max_accounts: r.optional_within("max_accounts", 1..=100),
        bypass_cache: r.get("bypass_cache", defaults::BYPASS_CACHE),
        monotonic: r.get("monotonic", defaults::MONOTONIC),
    }
}

/// A price in units.
const COST: RangeInclusive<u64> = 0..=1_000_000;

fn units(r: &Reader<'_>) -> Units {
    let default = r.within("default", defaults::UNITS, COST);
    Units {
        by_method: Method::ALL.map(|method| {
            // `default` is for the methods that cost a plain call.
            let own = defaults::units(method);
            r.within(method.as_str(), if own == defaults::UNITS { default } else { own }, COST)
        }),
        by_further: further_units(r, default),
        hit_factor: r.within("hit_factor", defaults::HIT_FACTOR, SHARE),
    }
}

fn further_units(r: &Reader<'_>, default: u64) -> [u64; Further::COUNT] {
    let mut prices = [default; Further::COUNT];
    for method in Further::all() {
        prices[method.index()] = r.within(method.as_str(), default, COST);
    }
    prices
}

fn pool(r: &Reader<'_>) -> Pool {
    let timeouts = r.table("attempt_timeout");
    let default = timeouts.within("default", defaults::ATTEMPT_TIMEOUT, TIMEOUT);
    let attempt = |method: Method| {
        let own = defaults::attempt_timeout(method);
        timeouts.within(
            method.as_str(),
            if own == defaults::ATTEMPT_TIMEOUT { default } else { own },
            TIMEOUT,
        )
    };
    let breaker = r.table("breaker");
    Pool {
        genesis_hash: genesis_hash(r),
        probe_interval: r.within(
            "probe_interval",
            defaults::PROBE_INTERVAL,
            Duration::from_millis(10)..=Duration::from_mins(1),
        ),
        max_slot_lag: r.within("max_slot_lag", defaults::MAX_SLOT_LAG, 0..=432_000),
        connect_timeout: r.within("connect_timeout", defaults::CONNECT_TIMEOUT, TIMEOUT),
        attempt_timeout: Method::ALL.map(attempt),
        forward_timeout: default,
        merge: r.get("merge", defaults::MERGE),
        retries: r.within("retries", defaults::RETRIES, 0..=10),
        retry_budget: r.within("retry_budget", defaults::RETRY_BUDGET, SHARE),
        hedge: hedge(r),
        breaker: Breaker {
            failures: breaker.within("failures", defaults::BREAKER_FAILURES, 1..=10_000),
            failure_rate: breaker.within("failure_rate", defaults::BREAKER_FAILURE_RATE, 0.01..=1.0),
            slow: breaker.within("slow", defaults::BREAKER_SLOW, 1.0..=1000.0),
            open: breaker.within("open", defaults::BREAKER_OPEN, TIMEOUT),
        },
        max_response: size(r, "max_response", defaults::MAX_RESPONSE, 1 << 10..=4 << 30),
        max_buffered: size(r, "max_buffered", defaults::MAX_BUFFERED, 1 << 10..=1 << 40),
    }
}

/// `"off"`, or how a second call is sent.
fn hedge(r: &Reader<'_>) -> Option<Hedge> {
    const KEY: &str = "hedge";
    let written = r.written(KEY).map(|written| written.raw);
    match &written {
        Some(raw) if raw.text() == Some("off") => return None,
        None | Some(Raw::Table(_)) => {}
        Some(other) => {
            let fix = "write hedge = { quantile = 0.95, budget = 0.05 }";
            r.problem(KEY, Some(other.show()), "expected \"off\" or a table", fix);
            return None;
        }
    }
    let table = r.table(KEY);
    // Below the median most calls would be doubled, and past 0.99 the window of answers knows nothing.
    let quantile = table.optional_within("quantile", 0.5..=0.99);
    let budget = table.optional_within("budget", 0.001..=1.0);
    let on = written.is_some() || quantile.is_some() || budget.is_some();
    on.then(|| Hedge {
        quantile: quantile.unwrap_or(defaults::HEDGE_QUANTILE),
        budget: budget.unwrap_or(defaults::HEDGE_BUDGET),
    })
}

fn genesis_hash(r: &Reader<'_>) -> Option<String> {
    const KEY: &str = "genesis_hash";
    let hash: String = r.optional(KEY)?;
    if bs58::decode(&hash).into_vec().is_ok_and(|bytes| bytes.len() == 32) {
        return Some(hash);
    }
    let fix = "write what getGenesisHash of your cluster answers";
    r.problem(KEY, Some(format!("{hash:?}")), "expected 32 bytes in base58", fix);
    None
}

fn cache(r: &Reader<'_>) -> Cache {
    let lag = r.table("max_lag_slots");
    let lags = defaults::MAX_LAG_SLOTS;
    let revalidate = r.table("stale_while_revalidate");
    let factors = defaults::STALE_WHILE_REVALIDATE;
    Cache {
        capacity: r.within("capacity", Size(defaults::CAPACITY), Size(1 << 20)..=Size(1 << 40)).0,
        max_entry: r.within("max_entry", Size(defaults::MAX_ENTRY), Size(1 << 10)..=Size(1 << 40)).0,
        assemble: r.get("assemble", defaults::ASSEMBLE),
        max_lag_slots: PerCommitment {
            processed: lag.within("processed", lags.processed, 0..=432_000),
            confirmed: lag.within("confirmed", lags.confirmed, 0..=432_000),
            finalized: lag.within("finalized", lags.finalized, 0..=432_000),
        },
        stale_while_revalidate: PerCommitment {
            processed: factors.processed,
            confirmed: revalidate.within("confirmed", factors.confirmed, 0.0..=10.0),
            finalized: revalidate.within("finalized", factors.finalized, 0.0..=10.0),
        },
        stale_if_error: stale_if_error(&r.table("stale_if_error")),
        ttl: ttl(&r.table("ttl")),
    }
}

fn stale_if_error(r: &Reader<'_>) -> StaleIfError {
    StaleIfError {
        confirmed: lifetime(r, "confirmed", defaults::STALE_IF_ERROR_CONFIRMED),
        finalized: lifetime(r, "finalized", defaults::STALE_IF_ERROR_FINALIZED),
        block: r.get("block", OrForever(defaults::STALE_IF_ERROR_BLOCK)).0,
    }
}

fn ttl(r: &Reader<'_>) -> Ttl {
    let per_commitment = |key: &str, default: PerCommitment<Duration>| {
        let r = r.table(key);
        PerCommitment {
            processed: lifetime(&r, "processed", default.processed),
            confirmed: lifetime(&r, "confirmed", default.confirmed),
            finalized: lifetime(&r, "finalized", default.finalized),
        }
    };
    let block = r.table("block");
    let no_block = r.table("no_block");
    Ttl {
        account: per_commitment("account", defaults::TTL_STATE),
        fee: per_commitment("fee", defaults::TTL_STATE),
        vote_accounts: per_commitment("vote_accounts", defaults::TTL_VOTE_ACCOUNTS),
        block_confirmed: lifetime(&block, "confirmed", defaults::TTL_BLOCK_CONFIRMED),
        block_finalized: lifetime(&block, "finalized", defaults::TTL_BLOCK_FINALIZED),
        no_block_not_yet: lifetime(&no_block, "not_yet", defaults::TTL_NO_BLOCK_NOT_YET),
        no_block_unconfirmed: lifetime(&no_block, "unconfirmed", defaults::TTL_NO_BLOCK_UNCONFIRMED),
        no_block_skipped: lifetime(&no_block, "skipped", defaults::TTL_NO_BLOCK_SKIPPED),
        performance_samples: lifetime(r, "performance_samples", defaults::TTL_PERFORMANCE_SAMPLES),
        cluster_nodes: lifetime(r, "cluster_nodes", defaults::TTL_CLUSTER_NODES),
    }
}

/// How long something is kept; `"off"` is not at all.
fn lifetime(r: &Reader<'_>, key: &str, default: Duration) -> Duration {
    r.within(key, OrOff(default), TTL).0
}

fn telemetry(r: &Reader<'_>) -> Telemetry {
    let log = r.get("log", defaults::LOG.to_owned());
    if let Err(e) = tracing_subscriber::EnvFilter::try_new(&log) {
        let fix = "write a level, or parts of the program with levels: \"info,slotfront::pool=debug\"";
        r.problem("log", Some(format!("{log:?}")), format!("is no log filter: {e}"), fix);
    }
    Telemetry {
        log,
        format: r.get("format", defaults::LOG_FORMAT),
        otlp: otlp(r),
        trace_sample: r.within("trace_sample", defaults::TRACE_SAMPLE, SHARE),
    }
}

/// Where traces go. A build that cannot send them refuses it: to be silent would look like a collector without spans.
fn otlp(r: &Reader<'_>) -> Option<Secret> {
    const KEY: &str = "otlp";
    let url = r.secret(KEY)?;
    if !cfg!(feature = "otlp") {
        let rule = "sends traces, which this build cannot";
        r.problem(KEY, None, rule, "build with it: cargo build --release --features otlp; or remove it");
    } else if let Some(rule) = upstreams::url_fault(&url) {
        r.problem(KEY, Some("***".to_owned()), rule, "write it like \"http://127.0.0.1:4318\"");
    }
    Some(url)
}
