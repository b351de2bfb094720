//! All metrics. Each metric is a struct field, and the doc comment of the field is its help text in `/metrics`.
//!
//! Each upstream and each key has a registry of its own. Dropping the registry ends the series of a removed upstream.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, IntGaugeVec, Registry, TextEncoder};

use super::events::Events;
use super::family::{Counters, FloatGauges, Gauges, Histograms, Register};
use super::labels::{
    AttemptResult, AuthFailure, AuthFile, BlockResult, CloseReason, Compression, EvictionCause, LimitReason,
    NodeCode, Outcome, QuotaPeriod, ReloadResult, RestartReason, RetryReason,
};
use super::labels::{SharedOperation, SharedResult, SpanResult, StaleCause, UncacheableReason, VerifyResult};
use super::sharded::{HotCounters, HotFloatCounters, HotHistograms};
use crate::methods::{AnyMethod, Commitment, Method, SubscriptionMethod};

const PREFIX: &str = "slotfront";

/// The default number of keys with series of their own. Further keys share the series of key `other`.
pub(crate) const KEYS_WITH_SERIES: usize = 200;

/// The number of keys that may have series of their own (`telemetry.key_series`).
struct KeyPlaces(AtomicUsize);

impl Default for KeyPlaces {
    fn default() -> Self {
        Self(AtomicUsize::new(KEYS_WITH_SERIES))
    }
}

/// The bucket bounds of durations, in seconds. They are dense from 50 to 300 µs, which is typical of hits. Above 1 ms,
/// which is typical of nodes, there are three in each decade. 30 s is the default deadline of a call that is no scan.
pub(super) const LATENCY: [f64; 20] = [
    0.000_05, 0.000_1, 0.000_15, 0.000_2, 0.000_3, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
    0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
];

/// The bucket bounds of lags, in slots. 1, 2 and 12 are the default lag bounds of the three commitments. Finalized
/// trails processed by 32 slots.
const LAG: [f64; 10] = [0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 18.0, 32.0, 64.0];

/// Declares a struct of metrics. Each field has a help text, a type, a metric name without prefix, and bucket bounds
/// if it is a histogram. Fields after `with` are not metrics; they start with their default value.
macro_rules! metrics {
    (@buckets) => { &[] };
    (@buckets $buckets:expr) => { &$buckets };
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[doc = $help:literal])+ $field:ident: $type:ty = $metric:literal $([$buckets:expr])?,)+
            $(with $(#[$extra_meta:meta])* $extra_vis:vis $extra:ident: $extra_type:ty,)*
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[doc = $help])+ pub $field: $type,)+
            $($(#[$extra_meta])* $extra_vis $extra: $extra_type,)*
            registry: Registry,
        }

        impl $name {
            const NAMES: &'static [&'static str] = &[$($metric),+];

            /// Returns each metric: its name, help text and labels, and whether it is a histogram.
            #[cfg(test)]
            fn described() -> Vec<tests::Described> {
                vec![$((
                    $metric, concat!($($help),+).trim(), <$type>::labels(), tests::is_some(metrics!(@buckets $($buckets)?)),
                ),)+]
            }

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
    /// The metrics of the process, and the registries of its upstreams and keys.
    pub struct Metrics {
        /// Calls answered or refused, by method, commitment and outcome. Each element of a batch is a call, and so is
        /// subscribing over a WebSocket, by the name of its method; unsubscribing is none. Method `other` stands for names
        /// that no node knows, and for requests without a readable one.
        requests: HotCounters<(Option<AnyMethod>, Option<Commitment>, Outcome)> = "requests_total",
        /// Time from the arrival of a request's head until the answer to the call is ready. Each call of a batch counts.
        request_duration: HotHistograms<(Option<AnyMethod>, Outcome)> = "request_duration_seconds" [LATENCY],
        /// Errors returned by nodes and passed on to callers, by method and JSON-RPC error code.
        node_errors: Counters<(AnyMethod, NodeCode)> = "node_errors_total",
        /// HTTP requests in progress.
        requests_in_flight: IntGauge = "requests_in_flight",
        /// Bytes of answers held in memory until they are sent. `server.max_outgoing` limits them. An answer sent to
        /// several callers counts once.
        outgoing_bytes: IntGauge = "outgoing_bytes",
        /// Bytes of request bodies that are arriving, or whose calls are being answered. `server.max_incoming` limits them.
        incoming_bytes: IntGauge = "incoming_bytes",
        /// Open connections on the public listener.
        connections: IntGauge = "connections",
        /// Open WebSockets. `slotfront_connections` counts them, too.
        ws_connections: IntGauge = "ws_connections",
        /// Subscriptions over WebSockets, by method.
        ws_subscriptions: Gauges<SubscriptionMethod> = "ws_subscriptions",
        /// Notifications handed to WebSockets, by the method of their subscription.
        ws_notifications: Counters<SubscriptionMethod> = "ws_notifications_total",
        /// Time since the newest slot that WebSockets were notified of, or would have been: how far notifications are behind
        /// the chain.
        ws_slot_age: FloatGauges<()> = "ws_slot_age_seconds",
        /// Bytes of notifications that are not sent yet. A notification for several clients counts once.
        ws_queued_bytes: IntGauge = "ws_queued_bytes",
        /// Closed WebSockets, by reason.
        ws_closes: Counters<CloseReason> = "ws_closes_total",
        /// Times that the WebSocket of a node was lost while subscriptions depended on it. Their clients are closed with
        /// code 1012 and subscribe anew.
        ws_node_losses: Counters<()> = "ws_node_losses_total",
        /// Tasks of the async runtime that have not finished.
        tasks: IntGauge = "tasks",
        /// Bytes of answers sent to callers, before compression.
        response_bytes: HotCounters<Option<AnyMethod>> = "response_bytes_total",
        /// Answers to callers that accept compression, by result: compressed (done), or sent plain because too many
        /// were being compressed (skipped).
        compressions: Counters<Compression> = "compressions_total",

        /// Bytes held by the cache, including keys and overhead.
        cache_bytes: IntGauge = "cache_bytes",
        /// Entries held by the cache.
        cache_entries: IntGauge = "cache_entries",
        /// Capacity of the cache in bytes.
        cache_capacity: IntGauge = "cache_capacity_bytes",
        /// Entries removed from the cache, by cause: the cache was full, the entry was idle, or the entry was purged.
        cache_evictions: Counters<EvictionCause> = "cache_evictions_total",
        /// Cached entries not served as fresh, by cause: older than their time to live, too far behind the frontier, or
        /// below the caller's minimum slot.
        cache_stale: Counters<StaleCause> = "cache_stale_total",
        /// Answers of nodes that were not cached, by reason.
        uncacheable: Counters<(Method, UncacheableReason)> = "uncacheable_total",
        /// Slots by which a cached answer was behind the frontier when it was served. Recorded for accounts and
        /// fees.
        cache_served_lag: HotHistograms<Option<Commitment>> = "cache_served_lag_slots" [LAG],
        /// Times that a floor (the minimum slot of answers to callers) was lowered, because no node had reached it.
        cache_floor_resets: Counters<()> = "cache_floor_resets_total",
        /// Pauses of the machine or jumps of its clock by more than a second. Each empties the cache.
        clock_pauses: Counters<()> = "clock_pauses_total",
        /// Cached answers compared with a later answer of a node, by method and result: sampled hits, and accounts that
        /// are fetched again although no followed block has written them. A mismatch means that slotfront or the node
        /// was wrong.
        verify: Counters<(Method, VerifyResult)> = "verify_total",

        /// Operations on the shared store, by operation and result.
        shared_requests: Counters<(SharedOperation, SharedResult)> = "shared_requests_total",
        /// Time from sending a request to the shared store until its answer is complete.
        shared_request_duration: Histograms<(SharedOperation, SharedResult)> = "shared_request_duration_seconds" [LATENCY],

        /// The frontier: the newest slot reported by a usable node, by commitment.
        frontier_slot: Gauges<Commitment> = "frontier_slot",
        /// Time since the frontier last advanced, by commitment.
        frontier_age: FloatGauges<Commitment> = "frontier_age_seconds",
        /// Mean duration of a slot over the last minute. 0.4 until a minute has been measured.
        slot_time: FloatGauges<()> = "slot_time_seconds",
        /// Times that the frontier was lowered, because no usable node had reached it.
        frontier_resets: Counters<()> = "frontier_resets_total",

        /// Newest slot of the followed chain. At confirmed, accounts that no block has changed are served as of this
        /// slot. Absent until a chain is followed; keeps its last value while following pauses.
        follow_tip_slot: Gauges<()> = "follow_tip_slot",
        /// Slots by which the followed chain is behind the newest confirmed slot.
        follow_lag_slots: Gauges<()> = "follow_lag_slots",
        /// State of following: 0 off, 1 starting, 2 following, 3 parked because no account was asked for, 4 paused
        /// because no upstream gives blocks that can be followed.
        follow_state: IntGauge = "follow_state",
        /// 1 if an account was found changed although no followed block wrote it, otherwise 0. While 1, cached answers
        /// are not served at newer slots. A restart of slotfront resets it.
        follow_contradicted: IntGauge = "follow_contradicted",
        /// Blocks asked of nodes, or taken from the shared store, in order to follow the chain, by result.
        follow_blocks: Counters<BlockResult> = "follow_blocks_total",
        /// Bytes of the blocks that were read in order to follow the chain, after decompression.
        follow_block_bytes: Counters<()> = "follow_block_bytes_total",
        /// Accounts that the followed blocks may have changed. An account counts once in each block.
        follow_writes: Counters<()> = "follow_writes_total",
        /// Times that slotfront dropped the followed chain and began another, by reason. Each account is then fetched
        /// once more.
        follow_restarts: Counters<RestartReason> = "follow_restarts_total",
        /// Answers served at a newer slot than they were fetched at, because no block has changed their accounts.
        /// If follow.mode is "shadow", upstream calls that "on" would have saved.
        follow_carried: HotCounters<(Method, Option<Commitment>)> = "follow_carried_total",

        /// Attempts on upstreams that repeat a failed attempt, by the result of the failed one.
        upstream_retries: Counters<RetryReason> = "upstream_retries_total",

        /// Spans of recorded traces: exported, failed, or dropped because the queue was full.
        trace_spans: Counters<SpanResult> = "trace_spans_total",

        /// Requests that came through a trusted proxy and had no readable client address. Keys with an address
        /// list refuse them.
        client_addresses_unknown: Counters<()> = "client_addresses_unknown_total",
        /// Requests that came from a trusted proxy without X-Forwarded-For. They count as the proxy's own.
        client_addresses_missing: Counters<()> = "client_addresses_missing_total",
        /// Requests refused, by reason: the key is unknown, expired or revoked; it may not be used from the request's
        /// web origin or client address; or the client address sent too many refused keys.
        auth_failures: Counters<AuthFailure> = "auth_failures_total",
        /// Reloads of the key file after a change, by result: applied, or rejected (only its revocations take effect).
        key_file_reads: Counters<ReloadResult> = "key_file_reads_total",
        /// 1 if the usage file cannot be written, or work on it or on the key file has lasted for five seconds; otherwise 0.
        file_failing: Gauges<AuthFile> = "file_failing",
        /// Reloads of the configuration, by result: applied, or rejected as a whole.
        config_reloads: Counters<ReloadResult> = "config_reloads_total",
        /// Unix time at which the configuration in force was loaded.
        config_last_reload_success: FloatGauges<()> = "config_last_reload_success_timestamp_seconds",
        /// Unix time at which the certificate of `server.tls` in force expires, or another one of its chain if that is
        /// earlier. Absent without `server.tls`.
        tls_certificate_expiry: Gauges<()> = "tls_certificate_expiry_seconds",
        /// Always 1. The labels hold the version and the source revision.
        build_info: BuildInfo = "build_info",

        with
        /// The metrics of the upstreams, by configured name.
        upstreams: RwLock<BTreeMap<String, Arc<UpstreamMetrics>>>,
        with
        /// The metrics of the keys, by id: at most as many keys as there are places, and `other`.
        keys: RwLock<BTreeMap<Arc<str>, Arc<KeyMetrics>>>,
        with
        key_places: KeyPlaces,
        with
        /// What has happened lately.
        pub events: Events,
        with
        /// The hooks that run before each scrape.
        hooks: RwLock<Vec<Hook>>,
    }
}

metrics! {
    /// The metrics of one upstream. The label `upstream` is its configured name.
    pub struct UpstreamMetrics {
        /// Calls sent to the upstream, by method and result. Retries count; probes do not.
        requests: Counters<(AnyMethod, AttemptResult)> = "upstream_requests_total",
        /// Time from sending a request to the upstream until the last byte of its answer, by method.
        request_duration: Histograms<AnyMethod> = "upstream_request_duration_seconds" [LATENCY],
        /// Newest slot reported by the upstream, by commitment.
        slot: Gauges<Commitment> = "upstream_slot",
        /// Slots by which the upstream is behind the frontier, at commitment processed.
        slot_lag: Gauges<()> = "upstream_slot_lag",
        /// 1 if the upstream can take calls, otherwise 0.
        up: IntGauge = "upstream_up",
        /// State of the upstream's circuit breaker: 0 closed, 1 half-open, 2 open.
        breaker_state: IntGauge = "upstream_breaker_state",
        /// Calls sent to the upstream that have not ended yet.
        requests_in_flight: IntGauge = "upstream_requests_in_flight",
        /// Slot of the oldest block that the upstream holds. 0 means complete history.
        first_available_block: Gauges<()> = "upstream_first_available_block",
    }
}

metrics! {
    /// The metrics of one key. The label `key` is its id, which is not secret.
    pub struct KeyMetrics {
        /// Calls made with the key, by outcome.
        requests: HotCounters<Outcome> = "key_requests_total",
        /// Units charged to the key: the sum of the prices of its calls.
        units: HotFloatCounters<()> = "key_units_total",
        /// Calls refused by a limit of the key's plan, by reason: the rate, or the quota of the day or month.
        limited: Counters<LimitReason> = "key_limited_total",
        /// Share of a quota of the key's plan that is used, by period: the UTC day or month. Absent without that quota.
        quota_used: FloatGauges<QuotaPeriod> = "key_quota_used_ratio",
        /// Always 1. The labels hold the owner's name and the key's current plan. Join this series with the key's other
        /// series.
        plan: KeyPlan = "key_info",
    }
}

/// A function that sets gauges before a scrape.
type Hook = Box<dyn Fn(&Metrics) + Send + Sync>;

impl Metrics {
    /// Creates all metrics at zero. Instances in one process are independent.
    pub fn new() -> Arc<Self> {
        Arc::new(infallible(Self::register(registry(None))))
    }

    /// Counts a finished call in `requests_total`, `request_duration_seconds` and `response_bytes_total`.
    pub fn call(
        &self,
        method: Option<AnyMethod>,
        commitment: Option<Commitment>,
        outcome: Outcome,
        took: Duration,
        bytes: usize,
    ) {
        self.requests.at((method, commitment, outcome)).inc();
        self.request_duration.at((method, outcome)).observe(took.as_secs_f64());
        self.response_bytes.at(method).inc_by(bytes as u64);
    }

    /// Returns the metrics of the upstream `name`, and creates them on the first call. Takes a lock, so callers keep
    /// the result.
    pub fn upstream(&self, name: &str) -> Arc<UpstreamMetrics> {
        let mut upstreams = self.upstreams.write();
        if let Some(known) = upstreams.get(name) {
            return Arc::clone(known);
        }
        let made = Arc::new(infallible(UpstreamMetrics::register(registry(Some(("upstream", name))))));
        upstreams.insert(name.to_owned(), Arc::clone(&made));
        made
    }

    /// Removes the series of upstreams for which `keep` returns false.
    pub fn retain_upstreams(&self, keep: impl Fn(&str) -> bool) {
        self.upstreams.write().retain(|name, _| keep(name));
    }

    /// Sets the number of keys that may have series of their own.
    pub(crate) fn set_key_places(&self, places: usize) {
        self.key_places.0.store(places, Ordering::Relaxed);
    }

    /// Returns the metrics of the key `id`, and creates them on the first call. Keys for which no place is left share the
    /// metrics of the key `other`. Takes a lock, so callers keep the result.
    pub fn key(&self, id: &str) -> Arc<KeyMetrics> {
        if let Some(known) = self.keys.read().get(id) {
            return Arc::clone(known);
        }
        let mut keys = self.keys.write();
        let named = keys.len() - usize::from(keys.contains_key(OTHER_KEY));
        let own = keys.contains_key(id) || named < self.key_places.0.load(Ordering::Relaxed);
        let id = if own { id } else { OTHER_KEY };
        Arc::clone(
            keys.entry(Arc::from(id))
                .or_insert_with(|| Arc::new(infallible(KeyMetrics::register(registry(Some(("key", id))))))),
        )
    }

    /// Registers a hook that runs before each scrape.
    pub fn before_render(&self, hook: impl Fn(&Self) + Send + Sync + 'static) {
        self.hooks.write().push(Box::new(hook));
    }

    /// Runs the hooks, and returns all series in the Prometheus text format 0.0.4.
    pub fn render(&self) -> String {
        for hook in self.hooks.read().iter() {
            hook(self);
        }
        let mut families = BTreeMap::new();
        merge(&mut families, self.registry.gather());
        for upstream in self.upstreams.read().values() {
            merge(&mut families, upstream.registry.gather());
        }
        for key in self.keys.read().values() {
            merge(&mut families, key.registry.gather());
        }
        #[cfg(target_os = "linux")]
        merge(&mut families, super::process::families());
        let families: Vec<_> = families.into_values().collect();
        infallible(TextEncoder::new().encode_to_string(&families))
    }

    /// Returns the names of all metrics with their prefix, including metrics that have no series.
    pub fn names() -> impl Iterator<Item = String> {
        [Self::NAMES, UpstreamMetrics::NAMES, KeyMetrics::NAMES]
            .into_iter()
            .flatten()
            .map(|name| format!("{PREFIX}_{name}"))
    }

    /// Sets the name, the plan and the used quotas of each key that has series, which `of` returns by its id. A key for
    /// which it returns `None` is gone, and gives its place back.
    pub(crate) fn set_keys(&self, of: impl Fn(&str) -> Option<KeyState>) {
        self.keys.write().retain(|id, key| {
            let state = of(id);
            let stays = state.is_some() || **id == *OTHER_KEY;
            let KeyState { name, plan, used } = state.unwrap_or_default();
            key.plan.set(&name, plan.as_deref().unwrap_or("none"));
            for (period, used) in QuotaPeriod::ALL.into_iter().zip(used) {
                if let Some(used) = used {
                    key.quota_used.at(period).set(used);
                }
            }
            stays
        });
    }

    pub(super) fn each_key(&self, mut see: impl FnMut(&Arc<str>, &KeyMetrics)) {
        for (id, key) in self.keys.read().iter() {
            see(id, key);
        }
    }

    pub(super) fn each_upstream(&self, mut see: impl FnMut(&UpstreamMetrics)) {
        for upstream in self.upstreams.read().values() {
            see(upstream);
        }
    }
}

/// The id under which keys are counted for which no place is left.
const OTHER_KEY: &str = "other";

/// What the metrics tell of a key, beside its counters.
#[derive(Debug, Default)]
pub(crate) struct KeyState {
    pub(crate) name: String,
    /// The plan. `None` for a caller without one.
    pub(crate) plan: Option<String>,
    /// The shares of the quotas of the day and the month that are used. `None` without that quota.
    pub(crate) used: [Option<f64>; 2],
}

/// Unwraps a result of the prometheus crate. An error can come only from the names in this file, and every test run
/// registers all of them.
pub(super) fn infallible<T>(made: prometheus::Result<T>) -> T {
    made.expect("names are distinct and well-formed, a String takes every write, and no family is empty")
}

/// Creates a registry that adds [`PREFIX`] to all names, and `label` (name and value) to all series.
fn registry(label: Option<(&str, &str)>) -> Registry {
    let labels = label.map(|(name, value)| HashMap::from([(name.to_owned(), value.to_owned())]));
    infallible(Registry::new_custom(Some(PREFIX.to_owned()), labels))
}

/// Adds the families of `more` to `families`. If both have a family of the same name, joins their series.
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

/// A gauge that is always 1 and has the labels `version` and `revision`.
pub struct BuildInfo;

impl Register for BuildInfo {
    #[cfg(test)]
    fn labels() -> Vec<&'static str> {
        vec!["revision", "version"]
    }

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

/// A gauge that is always 1 and has the labels `name` and `plan`. New ones replace the series of the old ones.
pub struct KeyPlan(IntGaugeVec, Mutex<String>);

impl KeyPlan {
    fn set(&self, name: &str, plan: &str) {
        name.clone_into(&mut self.1.lock());
        // A scrape between the two calls finds no plan. The other order would show two plans.
        self.0.reset();
        self.0.with_label_values(&[name, plan]).set(1);
    }

    /// Returns the name of the key's owner. Empty until the first scrape.
    pub(super) fn name(&self) -> String {
        self.1.lock().clone()
    }
}

impl Register for KeyPlan {
    #[cfg(test)]
    fn labels() -> Vec<&'static str> {
        vec!["name", "plan"]
    }

    fn register(registry: &Registry, name: &str, help: &str, _: &[f64]) -> prometheus::Result<Self> {
        let gauges = IntGaugeVec::new(prometheus::Opts::new(name, help), &["name", "plan"])?;
        registry.register(Box::new(gauges.clone()))?;
        Ok(Self(gauges, Mutex::default()))
    }
}

#[cfg(test)]
mod tests;
