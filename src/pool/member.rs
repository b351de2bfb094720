//! One node of the pool: its settings, its client and its state.
//!
//! State that changes is atomic, or behind a lock that is held for nanoseconds and never across an await.

mod state;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::MutexGuard;
use tokio::time::Instant;

use super::call_context::CallContext;
use super::cluster_mark::{ClusterMark, NodeUsage};
use super::health::Health;
use super::lock;
use super::peak_ewma::PeakEwma;
use super::rate::NodeRate;
use crate::breaker::BreakerState;
use crate::config::{self, Secret};
use crate::fair::CallerId;
use crate::frontier::{Frontier, NodeSlots};
use crate::methods::{AnyMethod, Commitment, Method, Part, Slot};
use crate::node::Client;
use crate::node::shape::member;
use crate::node::words::quoted;
use crate::telemetry::{AttemptResult, Metrics, Unusable, UpstreamMetrics};
pub(super) use state::NodeState;
use state::UNKNOWN;

/// The number of bytes in which the words of a refusal are looked for.
const MAX_WORDS: usize = 512;
/// The time between two log lines about words of a node that are not known.
const WORDS_INTERVAL: Duration = Duration::from_mins(1);

/// One node of the pool.
///
/// A reload that changes the settings of a node creates a new member with the same state. Calls in flight end
/// on the member with which they began.
#[derive(Clone)]
pub struct Member {
    /// The id of the node in the pool and in [`Frontier`], which tracks the nodes' slots. Ids are never reused.
    pub id: usize,
    pub name: String,
    pub(crate) upstream: config::Upstream,
    pub(crate) client: Arc<Client>,
    pub(crate) metrics: Arc<UpstreamMetrics>,
    pub(crate) slots: Arc<NodeSlots>,
    /// The limit of the setting `upstream.rps`. `None` without a limit.
    rate: Option<Arc<NodeRate>>,
    pub(super) state: Arc<NodeState>,
}

impl Member {
    pub(super) fn new(
        id: usize,
        upstream: config::Upstream,
        client: Arc<Client>,
        breaker: config::BreakerSettings,
        frontier: &Frontier,
        metrics: &Metrics,
    ) -> Self {
        Self {
            id,
            name: upstream.name.clone(),
            client,
            metrics: metrics.upstream(&upstream.name),
            slots: frontier.slots_of(id),
            rate: rate_of(&upstream),
            state: Arc::new(NodeState::new(breaker, upstream.drained)),
            upstream,
        }
    }

    /// Returns the node with other settings, but the same name, and with the client for them. Both members share one
    /// state.
    pub(super) fn reconfigured(&self, upstream: config::Upstream, client: Arc<Client>) -> Self {
        let is_same_rate = upstream.rps == self.upstream.rps;
        if upstream.drained != self.upstream.drained {
            self.set_drained(upstream.drained);
        }
        let rate = if is_same_rate { self.rate.clone() } else { rate_of(&upstream) };
        Self { upstream, client, rate, ..self.clone() }
    }

    /// Returns true on the first call only. The caller that gets true must probe the node.
    pub(super) fn begin_probing(&self) -> bool {
        !self.state.probed.swap(true, Ordering::Relaxed)
    }

    /// Returns the newest slot at `commitment` that the node is known to have reached. `None` before the
    /// node's first report.
    pub fn slot(&self, commitment: Commitment) -> Option<Slot> {
        self.slots.slot(commitment)
    }

    /// Logs the words in which the node has refused a call, at most once a minute.
    pub(super) fn log_unknown_words(&self, method: AnyMethod, body: &[u8]) {
        let now = Instant::now();
        let mut logged = lock(&self.state.words_logged);
        if logged.is_some_and(|at| now < at + WORDS_INTERVAL) {
            return;
        }
        *logged = Some(now);
        let message = member::<Cow<'_, str>>(body, "message");
        let words = message.unwrap_or_else(|| String::from_utf8_lossy(&body[..body.len().min(MAX_WORDS)]));
        let upstream = &self.upstream;
        let urls = std::iter::once(&upstream.url).chain(&upstream.ws_url).chain(upstream.headers.values());
        tracing::warn!(
            upstream.name = self.name,
            rpc.method = method.as_str(),
            upstream.words = quoted(&words, urls.map(Secret::expose)),
            "an upstream has refused a call in words that are not known, so others are asked"
        );
    }

    /// Returns the reasons why the node is not usable now for any call, by its health, breaker, limits and draining.
    pub(super) fn reasons(&self, now: Instant) -> impl Iterator<Item = Unusable> + use<> {
        let health = match **self.state.health.load() {
            Health::Healthy => None,
            Health::Unhealthy(_) => Some(Unusable::Unhealthy),
            Health::Unprobed => Some(Unusable::Unprobed),
            Health::Unreachable(_) => Some(Unusable::Unreachable),
            Health::NoGenesisHash | Health::Disputed { .. } => Some(Unusable::Unidentified),
            Health::Foreign { .. } => Some(Unusable::Foreign),
        };
        [
            health,
            (!self.admits_any(now)).then_some(Unusable::BreakerOpen),
            (self.in_flight() >= self.upstream.max_in_flight).then_some(Unusable::Busy),
            self.is_drained().then_some(Unusable::Drained),
        ]
        .into_iter()
        .flatten()
    }

    /// Returns [`Unusable::Busy`] if `caller` already has its full share of the node's calls in flight.
    pub(super) fn over_share(&self, caller: CallerId) -> Option<Unusable> {
        let in_flight = self.in_flight();
        let free = self.upstream.max_in_flight.saturating_sub(in_flight);
        (!self.state.by_caller.may_add(caller, 1, in_flight, free)).then_some(Unusable::Busy)
    }

    pub(super) fn has_closed_breaker(&self, part: Part) -> bool {
        self.state.breaker().is_closed() && self.state.part(part).breaker().is_closed()
    }

    /// Returns true if the breaker of this part of the node lets a call pass.
    pub(super) fn admits(&self, part: Part, now: Instant) -> bool {
        self.state.part(part).breaker().admits(now)
    }

    /// Returns true if the node may get calls. It may not if its breaker is open, or those of two of its parts.
    fn admits_any(&self, now: Instant) -> bool {
        let is_out = |part: &Part| !self.admits(*part, now);
        self.state.breaker().admits(now) && Part::ALL.iter().filter(|part| is_out(part)).count() < 2
    }

    /// Returns true if the node is known not to serve `method`, or not asked for it by the setting `upstream.methods`.
    pub fn lacks(&self, method: AnyMethod) -> bool {
        let is_subscription = |method: &AnyMethod| matches!(method, AnyMethod::Subscription(_));
        // A list without subscriptions is about calls.
        let concerns = |list: &Vec<AnyMethod>| !is_subscription(&method) || list.iter().any(is_subscription);
        let list = self.upstream.methods.as_ref().filter(|list| concerns(list));
        let may_ask = list.is_none_or(|list| list.contains(&method));
        !may_ask || self.state.lacks[method.index()].load(Ordering::Relaxed)
    }

    /// Records that the node does not serve `method`.
    pub fn set_lacking(&self, method: AnyMethod) {
        self.state.lacks[method.index()].store(true, Ordering::Relaxed);
    }

    /// Forgets which methods the node does not serve, because it may have been restarted with other settings.
    pub(super) fn forget_lacking(&self) {
        self.state.lacks.iter().for_each(|lacks| lacks.store(false, Ordering::Relaxed));
        self.state.refuses_blocks.store(false, Ordering::Relaxed);
    }

    /// Returns true if this node's blocks can be followed: read to learn which accounts each block writes.
    pub(super) fn gives_blocks(&self) -> bool {
        let refuses =
            self.state.refuses_blocks.load(Ordering::Relaxed) || self.lacks(AnyMethod::Own(Method::GetBlock));
        self.lists_writes() && self.is_of_cluster() && !refuses
    }

    /// Returns true if the node is of a kind and version whose blocks list every write of an account.
    pub(super) fn lists_writes(&self) -> bool {
        self.state.lists_writes.load(Ordering::Relaxed)
    }

    /// Returns true if the node may answer `method`, now or later. False if the node is drained, is known to lack
    /// the method, or does not report the pool's genesis hash.
    pub(super) fn serves(&self, method: AnyMethod) -> bool {
        let foreign = matches!(**self.state.health.load(), Health::Foreign { .. } | Health::NoGenesisHash);
        !foreign && !self.is_drained() && !self.lacks(method)
    }

    /// Returns true if an operator has drained the node.
    pub fn is_drained(&self) -> bool {
        self.state.drained.load(Ordering::Relaxed)
    }

    /// Drains the node for an operator, or lets it take calls again.
    pub fn set_drained(&self, drained: bool) {
        self.state.drained.store(drained, Ordering::Relaxed);
    }

    /// Returns the result of the last failed call, and the time of the failure. `None` before the first failure.
    pub fn last_failure(&self) -> Option<(AttemptResult, Instant)> {
        *lock(&self.state.last_failure)
    }

    pub fn health(&self) -> Arc<Health> {
        self.state.health.load_full()
    }

    /// Sets the health that a probe has found. Returns the previous health, or `None` if it is the same.
    pub(super) fn set_health(&self, health: Health) -> Option<Arc<Health>> {
        let state = &self.state;
        let before = state.health.load_full();
        if *before == health {
            return None;
        }
        // A node that reports every other second by how many slots it is behind has been unhealthy all the time.
        if health.is_news(&before) || matches!(health, Health::Unreachable(_)) {
            state.since.store(Timestamp::now().as_second(), Ordering::Relaxed);
        }
        state.health.store(Arc::new(health));
        Some(before)
    }

    pub fn since(&self) -> Timestamp {
        Timestamp::from_second(self.state.since.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// Returns true if the node has ever reported a slot.
    pub fn was_reached(&self) -> bool {
        Commitment::ALL.into_iter().any(|at| self.slot(at).is_some())
    }

    /// Returns true if the node must report the pool's genesis hash, by the setting `upstream.genesis`.
    pub(super) fn is_checked(&self) -> bool {
        self.upstream.genesis == config::GenesisCheck::Checked
    }

    /// Returns true if the node has reported the pool's genesis hash, or need not report it.
    pub(super) fn is_of_cluster(&self) -> bool {
        !self.is_checked() || self.cluster().is_identified
    }

    /// Returns what is known of the node's genesis hash. The guard must be dropped before the next call of this function.
    pub(super) fn cluster(&self) -> MutexGuard<'_, ClusterMark> {
        lock(&self.state.cluster)
    }

    /// Returns the number of calls sent to the node so far, and the number of connections that have brought an answer.
    pub(super) fn used(&self) -> NodeUsage {
        NodeUsage { calls: self.counts().0, connections: Some(self.client.connections()) }
    }

    /// Returns true if the node may have new connections since its last answer about its genesis hash.
    pub(super) fn has_new_connections(&self) -> bool {
        self.cluster().used.connections != Some(self.client.connections())
    }

    /// Returns true if calls were sent to the node since the last call of this function. Only calls after the
    /// node's last report of the pool's genesis hash count.
    pub(super) fn take_unidentified_calls(&self) -> bool {
        let calls = self.counts().0;
        std::mem::replace(&mut self.cluster().used.calls, calls) != calls
    }

    /// Counts a call against the node's rate limit. Returns false if the limit is reached.
    pub(super) fn take_rate(&self, context: &CallContext) -> bool {
        self.rate.as_ref().is_none_or(|rate| rate.take(context))
    }

    /// Returns the time after which the node's rate limit would allow the call, if the call waited now. `None` if it may
    /// not wait.
    pub(super) fn rate_wait(&self, context: &CallContext, now: Instant) -> Option<Duration> {
        self.rate.as_ref().and_then(|rate| rate.time_to_wait(context, now))
    }

    /// Waits until the node's rate limit allows the call, and counts the call. Returns false if the call may not wait any
    /// longer.
    pub(super) async fn wait_for_rate(&self, context: &CallContext) -> bool {
        match &self.rate {
            Some(rate) => rate.wait(context).await,
            None => true,
        }
    }

    /// Gives back what a call that is not sent after all has taken of the node's rate limit.
    pub(super) fn give_back_rate(&self) {
        if let Some(rate) = &self.rate {
            rate.give_back();
        }
    }

    /// Counts a request that the gateway makes for itself against the node's rate limit. If a call waits for the limit, or
    /// at most half of it is left, returns false and counts nothing.
    pub(super) fn take_spare_rate(&self) -> bool {
        let half = self.upstream.rps.unwrap_or_default() / 2;
        self.rate.as_ref().is_none_or(|rate| rate.take_spare(half))
    }

    /// Returns the number of calls that the node's rate limit allows now. `None` without a limit.
    pub fn rate_left(&self) -> Option<u32> {
        self.rate.as_ref().map(|rate| rate.left())
    }

    pub fn in_flight(&self) -> usize {
        self.state.in_flight.load(Ordering::Relaxed)
    }

    /// Returns the cost of choosing this node for a call to `part`: the peak-EWMA latency of that part in seconds, times
    /// the node's calls in flight plus one. While a breaker is not closed, the part counts as not measured yet. Otherwise
    /// its latency from before the failure would keep away the trial that closes the breaker.
    pub(super) fn load(&self, part: Part, now: Instant) -> f64 {
        let is_closed = self.has_closed_breaker(part);
        let latency = if is_closed { *lock(&self.state.part(part).latency) } else { PeakEwma::default() };
        latency.load(self.in_flight(), now)
    }

    /// Returns true if this part of the node has lately answered sooner than after `waited`.
    pub(super) fn is_faster(&self, part: Part, waited: Duration, now: Instant) -> bool {
        lock(&self.state.part(part).latency).seconds(now) < waited.as_secs_f64()
    }

    /// Returns the peak-EWMA latency of the node's slowest part as of now. `None` as long as no call has been answered.
    pub fn latency(&self) -> Option<Duration> {
        let now = Instant::now();
        let latencies = Part::ALL.map(|part| *lock(&self.state.part(part).latency));
        let measured = latencies.iter().filter(|latency| latency.is_measured());
        measured.map(|latency| latency.seconds(now)).reduce(f64::max).map(Duration::from_secs_f64)
    }

    pub(super) fn set_breaker(&self, settings: config::BreakerSettings) {
        self.state.breaker().set(settings);
        for part in Part::ALL {
            self.state.part(part).breaker().set(settings);
        }
    }

    /// Returns the state at `now` of the breaker of the whole node, or the worst one of its parts if that is worse.
    pub fn breaker(&self, now: Instant) -> BreakerState {
        let parts = Part::ALL.map(|part| self.state.part(part).breaker().state(now));
        parts.into_iter().fold(self.state.breaker().state(now), BreakerState::max)
    }

    /// Returns the number of calls sent to the node since it joined the pool, and how many of them failed.
    pub fn counts(&self) -> (u64, u64) {
        (self.state.requests.load(Ordering::SeqCst), self.state.failures.load(Ordering::Relaxed))
    }

    /// Returns the slot of the oldest block that the node holds. 0 if the node holds all blocks, and `None` if it has not
    /// told.
    pub fn first_available(&self) -> Option<Slot> {
        Some(self.state.first_available.load(Ordering::Relaxed)).filter(|first| *first != UNKNOWN)
    }

    pub(super) fn set_first_available(&self, first: Slot) {
        self.state.first_available.store(first, Ordering::Relaxed);
    }

    /// Returns the number of the node's set of features. `None` until the node has reported it.
    pub fn feature_set(&self) -> Option<u64> {
        Some(self.state.feature_set.load(Ordering::Relaxed)).filter(|set| *set > 0)
    }

    /// Returns the node's software version. `None` until the node has reported it.
    pub fn version(&self) -> Option<Arc<String>> {
        self.state.version.load_full()
    }
}

/// Returns the limit of the setting `upstream.rps`, with nothing taken of it. `None` without a limit.
fn rate_of(upstream: &config::Upstream) -> Option<Arc<NodeRate>> {
    upstream.rps.map(|rps| Arc::new(NodeRate::new(rps)))
}
