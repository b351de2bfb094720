//! Every metric as a documented field; the first lines of a field's doc comment are its help text in `/metrics`.
//!
//! Keeps no time and decides nothing: callers say what happened. Upstreams and keys have a registry each, labelled
//! as a whole, so that a series' owner can go and take its series with it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};
use std::time::Duration;

use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, IntGaugeVec, Registry, TextEncoder};

use super::family::{Counters, FloatGauges, Gauges, Histograms, Register};
use super::labels::{
    AttemptResult, AuthFailure, Compression, EvictionCause, HedgeResult, LimitReason, NodeCode, Outcome,
    ReloadResult, RetryReason,
};
use super::labels::{SharedOperation, SharedResult, SpanResult, StaleCause, UncacheableReason, VerifyResult};
use super::sharded::{HotCounters, HotFloatCounters, HotHistograms};
use crate::methods::{Commitment, Further, Method};

/// What all names begin with.
const PREFIX: &str = "slotfront";

/// So many keys have series of their own; whoever comes later shares those of key `other`.
pub const KEYS_WITH_SERIES: usize = 200;

/// Seconds. A hit takes 50 to 300 µs, so buckets are dense there; above 1 ms, where nodes and networks answer, three a
/// decade tell enough. 30 s is the default deadline of a call.
pub(super) const LATENCY: [f64; 20] = [
    0.000_05, 0.000_1, 0.000_15, 0.000_2, 0.000_3, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
    0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
];

/// Slots. 1, 2 and 12 are the default bounds at the three commitments, 32 is how far finalized trails processed.
const LAG: [f64; 10] = [0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 18.0, 32.0, 64.0];

/// Declares a struct of metrics: per field its help, its type, its name without prefix, and buckets where it has some.
/// Fields after `with` are not metrics and start at their default.
macro_rules! metrics {
    (@buckets) => { &[] };
    (@buckets $buckets:expr) => { &$buckets };
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[doc = $help:literal])+ $field:ident: $type:ty = $metric:literal $([$buckets:expr])?,)+
            $(with $(#[$extra_meta:meta])* $extra:ident: $extra_type:ty,)*
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[doc = $help])+ pub $field: $type,)+
            $($(#[$extra_meta])* $extra: $extra_type,)*
            registry: Registry,
        }

        impl $name {
            const NAMES: &'static [&'static str] = &[$($metric),+];

            fn register(registry: Registry) -> prometheus::Result<Self> {
                Ok(Self {
                    $($field: <$type>::register(
                        &registry, $metric, concat!($($help),+).trim(), metrics!(@buckets $($buckets)?),
                    )?,)+
                    $($extra: Default::default(),)*
                    registry,
                })
            }
        }
    };
}

metrics! {
    /// The metrics of the process as a whole, and the way to those of each upstream and key.
    pub struct Metrics {
        /// Calls answered or refused; an element of a batch is a call.
        requests: HotCounters<(Option<Method>, Option<Commitment>, Outcome)> = "requests_total",
        /// From the first byte of the request's head to the last of its answer's head, per call.
        request_duration: HotHistograms<(Option<Method>, Outcome)> = "request_duration_seconds" [LATENCY],
        /// Errors of a node's own that were passed on, by JSON-RPC code.
        node_errors: Counters<(Option<Method>, NodeCode)> = "node_errors_total",
        /// Calls of methods that `[passthrough]` forwards; `requests_total` has them as method `other`.
        passthrough_requests: Counters<(Further, Outcome)> = "passthrough_requests_total",
        /// From the first byte of the request's head to the last of its answer's head, per forwarded call.
        passthrough_duration: Histograms<Further> = "passthrough_request_duration_seconds" [LATENCY],
        /// HTTP requests being served.
        requests_in_flight: IntGauge = "requests_in_flight",
        /// Bytes of answers that are made or on their way to callers; `server.max_outgoing` bounds them. What answers share
        /// counts once.
        outgoing_bytes: IntGauge = "outgoing_bytes",
        /// Open connections on the public listener.
        connections: IntGauge = "connections",
        /// Tasks of the async runtime that have not ended.
        tasks: IntGauge = "tasks",
        /// Bytes of answers before compression.
        response_bytes: HotCounters<Option<Method>> = "response_bytes_total",
        /// Texts to be compressed, by what became of them: one that finds every place taken goes out plain.
        compressions: Counters<Compression> = "compressions_total",

        /// Bytes that the cache holds, keys and overhead included.
        cache_bytes: IntGauge = "cache_bytes",
        /// Entries that the cache holds.
        cache_entries: IntGauge = "cache_entries",
        /// Bytes that the cache may hold.
        cache_capacity: IntGauge = "cache_capacity_bytes",
        /// Entries dropped from the cache.
        cache_evictions: Counters<EvictionCause> = "cache_evictions_total",
        /// Entries found but not fresh.
        cache_stale: Counters<StaleCause> = "cache_stale_total",
        /// Answers that were not kept.
        uncacheable: Counters<(Option<Method>, UncacheableReason)> = "uncacheable_total",
        /// Slots that an answer from the cache was behind the frontier, where that is bounded: accounts and fees.
        cache_served_lag: HotHistograms<Option<Commitment>> = "cache_served_lag_slots" [LAG],
        /// Floors given up because no node reaches them.
        cache_floor_resets: Counters<()> = "cache_floor_resets_total",
        /// Times the machine stood still (asleep, or its virtual machine stopped) or its clock was set ahead by more than a second; the cache was emptied then.
        clock_pauses: Counters<()> = "clock_pauses_total",
        /// Hits compared with a node afterwards, by what came of it; any mismatch is a wrong answer of somebody's.
        verify: Counters<(Option<Method>, VerifyResult)> = "verify_total",

        /// Operations on the shared store, by what became of them.
        shared_requests: Counters<(SharedOperation, SharedResult)> = "shared_requests_total",
        /// From asking the shared store to its whole answer.
        shared_request_duration: Histograms<(SharedOperation, SharedResult)> = "shared_request_duration_seconds" [LATENCY],

        /// Newest slot that a usable node reports.
        frontier_slot: Gauges<Commitment> = "frontier_slot",
        /// Since the frontier last moved.
        frontier_age: FloatGauges<Commitment> = "frontier_age_seconds",
        /// Length of a slot, measured over the last minute; 0.4 until a minute is known.
        slot_time: FloatGauges<()> = "slot_time_seconds",
        /// Times that the frontier fell because no usable node had reached it.
        frontier_resets: Counters<()> = "frontier_resets_total",

        /// Further attempts on an upstream, by what went wrong with the one before.
        upstream_retries: Counters<RetryReason> = "upstream_retries_total",
        /// Second calls beside a slow first one, by what became of them.
        upstream_hedges: Counters<HedgeResult> = "upstream_hedges_total",

        /// Spans of recorded traces, by what became of them on the way to the collector.
        trace_spans: Counters<SpanResult> = "trace_spans_total",

        /// Requests through trusted proxies whose client's address could not be read, so that no address list holds it.
        client_addresses_unknown: Counters<()> = "client_addresses_unknown_total",
        /// Keys not accepted, also good ones where they do not hold (`origin`, `address`).
        auth_failures: Counters<AuthFailure> = "auth_failures_total",
        /// Contents of the key file that were taken or refused while the gateway ran.
        key_file_reads: Counters<ReloadResult> = "key_file_reads_total",
        /// Changes of the configuration.
        config_reloads: Counters<ReloadResult> = "config_reloads_total",
        /// When the configuration in force was loaded, in Unix time.
        config_last_reload_success: FloatGauges<()> = "config_last_reload_success_timestamp_seconds",
        /// 1, labelled with what is running.
        build_info: BuildInfo = "build_info",

        with
        /// By configured name.
        upstreams: RwLock<BTreeMap<String, Arc<UpstreamMetrics>>>,
        with
        /// By key id, at most [`KEYS_WITH_SERIES`] and `other`.
        keys: RwLock<BTreeMap<Arc<str>, Arc<KeyMetrics>>>,
        with
        /// Run before each scrape.
        hooks: RwLock<Vec<Hook>>,
    }
}

metrics! {
    /// The metrics of one upstream; label `upstream`, its configured name.
    pub struct UpstreamMetrics {
        /// Attempts on the upstream; probes are not counted.
        requests: Counters<(Option<Method>, AttemptResult)> = "upstream_requests_total",
        /// From sending an attempt to its last byte.
        request_duration: Histograms<Option<Method>> = "upstream_request_duration_seconds" [LATENCY],
        /// Newest slot that the upstream reports.
        slot: Gauges<Commitment> = "upstream_slot",
        /// Slots behind the frontier at processed.
        slot_lag: Gauges<()> = "upstream_slot_lag",
        /// Whether the upstream is usable: 1 or 0.
        up: IntGauge = "upstream_up",
        /// Circuit breaker: 0 closed, 1 half-open, 2 open.
        breaker_state: IntGauge = "upstream_breaker_state",
        /// Attempts under way.
        requests_in_flight: IntGauge = "upstream_requests_in_flight",
        /// Oldest block that the upstream holds.
        first_available_block: Gauges<()> = "upstream_first_available_block",
    }
}

metrics! {
    /// The metrics of one key; label `key`, its id, which is no secret.
    pub struct KeyMetrics {
        /// Calls with the key.
        requests: HotCounters<Outcome> = "key_requests_total",
        /// Units that the key's calls cost.
        units: HotFloatCounters<()> = "key_units_total",
        /// Calls over a limit of the key's plan.
        limited: Counters<LimitReason> = "key_limited_total",
        /// 1, labelled with the plan that the key has now: to be joined, so that no count is split when the plan changes.
        plan: KeyPlan = "key_info",
    }
}

/// Sets gauges that are cheaper to read now and then than to keep.
type Hook = Box<dyn Fn(&Metrics) + Send + Sync>;

impl Metrics {
    /// All metrics, at zero, under registries of their own: two in one process do not disturb each other.
    pub fn new() -> Arc<Self> {
        Arc::new(sound(Self::register(registry(None))))
    }

    /// Counts one call that has ended: in `requests_total`, `request_duration_seconds` and `response_bytes_total`.
    pub fn call(
        &self,
        method: Option<Method>,
        commitment: Option<Commitment>,
        outcome: Outcome,
        took: Duration,
        bytes: usize,
    ) {
        self.requests.at((method, commitment, outcome)).inc();
        self.request_duration.at((method, outcome)).observe(took.as_secs_f64());
        self.response_bytes.at(method).inc_by(bytes as u64);
    }

    /// The metrics of the upstream `name`. To be kept by its owner: this takes a lock.
    pub fn upstream(&self, name: &str) -> Arc<UpstreamMetrics> {
        let mut upstreams = self.upstreams.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = upstreams.get(name) {
            return Arc::clone(known);
        }
        let made = Arc::new(sound(UpstreamMetrics::register(registry(Some(("upstream", name))))));
        upstreams.insert(name.to_owned(), Arc::clone(&made));
        made
    }

    /// Forgets the series of upstreams that are no longer configured.
    pub fn retain_upstreams(&self, keep: impl Fn(&str) -> bool) {
        self.upstreams.write().unwrap_or_else(PoisonError::into_inner).retain(|name, _| keep(name));
    }

    /// The metrics of the key with this id, or those of `other` once [`KEYS_WITH_SERIES`] keys have theirs. To be
    /// asked for on a key's first call, not when it is loaded, and kept beside the key.
    pub fn key(&self, id: &str) -> Arc<KeyMetrics> {
        if let Some(known) = self.keys.read().unwrap_or_else(PoisonError::into_inner).get(id) {
            return Arc::clone(known);
        }
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let own = keys.contains_key(id) || keys.len() < KEYS_WITH_SERIES;
        let id = if own { id } else { OTHER_KEY };
        Arc::clone(
            keys.entry(Arc::from(id))
                .or_insert_with(|| Arc::new(sound(KeyMetrics::register(registry(Some(("key", id))))))),
        )
    }

    /// Runs `hook` before each scrape, to set gauges that are cheaper to compute then.
    pub fn before_render(&self, hook: impl Fn(&Self) + Send + Sync + 'static) {
        self.hooks.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(hook));
    }

    /// All series in Prometheus' text format 0.0.4.
    pub fn render(&self) -> String {
        for hook in self.hooks.read().unwrap_or_else(PoisonError::into_inner).iter() {
            hook(self);
        }
        let mut families = BTreeMap::new();
        merge(&mut families, self.registry.gather());
        for upstream in self.upstreams.read().unwrap_or_else(PoisonError::into_inner).values() {
            merge(&mut families, upstream.registry.gather());
        }
        for key in self.keys.read().unwrap_or_else(PoisonError::into_inner).values() {
            merge(&mut families, key.registry.gather());
        }
        merge(&mut families, PROCESS.gather());
        let families: Vec<_> = families.into_values().collect();
        sound(TextEncoder::new().encode_to_string(&families))
    }

    /// The name of every metric of ours, with its prefix, whether it has series yet or not.
    pub fn names() -> impl Iterator<Item = String> {
        [Self::NAMES, UpstreamMetrics::NAMES, KeyMetrics::NAMES]
            .into_iter()
            .flatten()
            .map(|name| format!("{PREFIX}_{name}"))
    }

    /// Labels each key that has series with its plan; `plan_of` gives it by the key's id, `None` for `other` and for
    /// keys that are gone or have none.
    pub fn tell_plans(&self, plan_of: impl Fn(&str) -> Option<String>) {
        self.each_key(|id, key| key.plan.set(plan_of(id).as_deref().unwrap_or("none")));
    }

    /// Each key's metrics by its id, for the status page.
    pub(super) fn each_key(&self, mut see: impl FnMut(&Arc<str>, &KeyMetrics)) {
        for (id, key) in self.keys.read().unwrap_or_else(PoisonError::into_inner).iter() {
            see(id, key);
        }
    }

    /// Each upstream's metrics, for the status page.
    pub(super) fn each_upstream(&self, mut see: impl FnMut(&UpstreamMetrics)) {
        for upstream in self.upstreams.read().unwrap_or_else(PoisonError::into_inner).values() {
            see(upstream);
        }
    }
}

/// The key label of those that came after [`KEYS_WITH_SERIES`] others.
const OTHER_KEY: &str = "other";

/// Process metrics have no prefix and belong to the process, however many [`Metrics`] there are. Empty where there is
/// no /proc.
static PROCESS: LazyLock<Registry> = LazyLock::new(|| {
    let registry = Registry::new();
    #[cfg(target_os = "linux")]
    sound(registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self())));
    registry
});

/// What prometheus makes of names and labels that are written in this file: never an error, as every test run sees.
fn sound<T>(made: prometheus::Result<T>) -> T {
    made.expect("names are distinct and well-formed, a String takes every write, and no family is empty")
}

/// A registry under our prefix, with a label on all that is in it.
fn registry(label: Option<(&str, &str)>) -> Registry {
    let labels = label.map(|(name, value)| HashMap::from([(name.to_owned(), value.to_owned())]));
    sound(Registry::new_custom(Some(PREFIX.to_owned()), labels))
}

/// Adds families to those there are; families of one name become one.
fn merge(families: &mut BTreeMap<String, MetricFamily>, more: Vec<MetricFamily>) {
    for mut family in more {
        match families.get_mut(family.name()) {
            Some(known) => known.mut_metric().append(family.mut_metric()),
            None => {
                families.insert(family.name().to_owned(), family);
            }
        }
    }
}

/// A gauge that is 1 and says what is running in its labels: `version`, and `revision` if the build was told.
pub struct BuildInfo;

impl Register for BuildInfo {
    fn register(registry: &Registry, name: &str, help: &str, _: &[f64]) -> prometheus::Result<Self> {
        let opts = prometheus::Opts::new(name, help)
            .const_label("version", env!("CARGO_PKG_VERSION"))
            .const_label("revision", env!("SLOTFRONT_REVISION"));
        let gauge = IntGauge::with_opts(opts)?;
        gauge.set(1);
        registry.register(Box::new(gauge))?;
        Ok(Self)
    }
}

/// A gauge that is 1 and names a plan in its label: one series, which another replaces when the plan changes.
pub struct KeyPlan(IntGaugeVec);

impl KeyPlan {
    fn set(&self, plan: &str) {
        // A scrape between the two finds no plan for once; a count of both would be found twice.
        self.0.reset();
        self.0.with_label_values(&[plan]).set(1);
    }
}

impl Register for KeyPlan {
    fn register(registry: &Registry, name: &str, help: &str, _: &[f64]) -> prometheus::Result<Self> {
        let gauges = IntGaugeVec::new(prometheus::Opts::new(name, help), &["plan"])?;
        registry.register(Box::new(gauges.clone()))?;
        Ok(Self(gauges))
    }
}

#[cfg(test)]
mod tests;
