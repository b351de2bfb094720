//! How things stand, as the admin listener and the gauges see it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use crate::admin::status::{self, Readiness, Status};
use crate::admin::upstreams::Upstreams;
use crate::breaker::BreakerState;
use crate::cache::purge::Filter;
use crate::http::Front;
use crate::http::signal::Signal;
use crate::methods::{Commitment, PerCommitment, Slot};
use crate::pool::health::Health;
use crate::pool::member::Member;
use crate::pool::select::Unusable;
use crate::telemetry::Metrics;

/// The running gateway as a source of the status page.
pub(super) struct Source {
    front: Arc<Front>,
    draining: Signal,
    started: Instant,
}

impl Source {
    pub(super) fn new(front: Arc<Front>, draining: Signal) -> Self {
        Self { front, draining, started: Instant::now() }
    }
}

impl status::Source for Source {
    fn status(&self) -> Status {
        let front = &self.front;
        let now = Instant::now();
        let known = |slot: Slot| (slot > 0).then_some(slot);
        let (bytes, entries) = front.cache.usage();
        Status {
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: self.started.elapsed().as_secs(),
            frontier: per_commitment(|c| known(front.frontier.slot(c))),
            slot_time_ms: front.frontier.slot_time().as_secs_f64() * 1000.0,
            upstreams: front
                .pool
                .standing(now)
                .iter()
                .map(|(member, unusable)| upstream(front, member, *unusable))
                .collect(),
            cache: status::Cache { bytes, entries, capacity_bytes: front.config.cache.capacity },
        }
    }

    fn upstreams(&self) -> Upstreams {
        super::upstreams::upstreams(&self.front)
    }

    fn purge(&self, filter: &Filter) -> u64 {
        self.front.cache.purge(filter)
    }

    fn share_purges(&self) -> Pin<Box<dyn Future<Output = Option<bool>> + Send>> {
        let cache = Arc::clone(&self.front.cache);
        Box::pin(async move { cache.share_purges().await })
    }

    fn set_drained(&self, upstream: &str, drained: bool) -> bool {
        let members = self.front.pool.members();
        members.named(upstream).map(|member| member.set_drained(drained)).is_some()
    }

    fn readiness(&self) -> Readiness {
        if self.draining.is_given() {
            return Readiness::Unready { reasons: vec!["draining before a stop".to_owned()] };
        }
        let standing = self.front.pool.standing(Instant::now());
        if standing.iter().any(|(_, unusable)| unusable.is_none()) {
            return Readiness::Ready;
        }
        let reason = |(member, unusable): &(Arc<Member>, Option<Unusable>)| {
            format!("upstream {}: {}", member.name, unusable.map_or("usable", Unusable::as_str))
        };
        let reasons = standing.iter().map(reason).collect();
        let never_heard = |(_, unusable): &(Arc<Member>, Option<Unusable>)| {
            matches!(
                unusable,
                Some(Unusable::Unprobed | Unusable::Unreachable | Unusable::Unidentified | Unusable::Foreign)
            )
        };
        let known = self.front.frontier.slot(Commitment::Processed) > 0;
        // Before any node has answered there is nothing to give; afterwards the cache and a doubtful node still are.
        if standing.iter().all(never_heard) && !known {
            Readiness::Unready { reasons }
        } else {
            Readiness::Degraded { reasons }
        }
    }
}

fn upstream(front: &Front, member: &Member, unusable: Option<Unusable>) -> status::Upstream {
    let (requests, failures) = member.counts();
    let reason = unusable.map(|unusable| super::upstreams::words(front, member, unusable, Instant::now()));
    status::Upstream {
        name: member.name.clone(),
        tier: member.tier,
        up: matches!(*member.health(), Health::Healthy | Health::Unhealthy(_)),
        usable: unusable.is_none(),
        reason,
        slots: per_commitment(|c| member.slot(c)),
        lag_slots: front.frontier.lag(member.id, Commitment::Processed),
        latency_ms: (requests > 0).then(|| member.latency().as_secs_f64() * 1000.0),
        in_flight: member.in_flight() as u64,
        breaker: breaker(member.breaker(Instant::now())),
        first_available_block: Some(member.first_available()),
        version: member.version().map(|version| version.to_string()),
        requests,
        failures,
    }
}

pub(super) fn breaker(state: BreakerState) -> status::Breaker {
    match state {
        BreakerState::Closed => status::Breaker::Closed,
        BreakerState::HalfOpen => status::Breaker::HalfOpen,
        BreakerState::Open => status::Breaker::Open,
    }
}

pub(super) fn per_commitment<T>(value: impl Fn(Commitment) -> T) -> PerCommitment<T> {
    PerCommitment {
        processed: value(Commitment::Processed),
        confirmed: value(Commitment::Confirmed),
        finalized: value(Commitment::Finalized),
    }
}

/// Sets the gauges that are cheaper to read at each scrape than to keep.
pub(super) fn feed_metrics(front: &Arc<Front>) {
    // Weak: the hook lives in the metrics, which the front holds.
    let weak = Arc::downgrade(front);
    front.metrics.before_render(move |metrics| {
        if let Some(front) = weak.upgrade() {
            set_gauges(&front, metrics);
        }
    });
}

fn set_gauges(front: &Front, metrics: &Metrics) {
    let now = Instant::now();
    let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        metrics.tasks.set(gauge(runtime.metrics().num_alive_tasks() as u64));
    }
    let (bytes, entries) = front.cache.usage();
    metrics.requests_in_flight.set(gauge(front.in_flight.load(Ordering::Relaxed) as u64));
    metrics.outgoing_bytes.set(gauge(front.outgoing.used() as u64));
    metrics.cache_bytes.set(gauge(bytes));
    metrics.cache_entries.set(gauge(entries));
    metrics.cache_capacity.set(gauge(front.config.cache.capacity));
    for commitment in Commitment::ALL {
        metrics.frontier_slot.at(commitment).set(gauge(front.frontier.slot(commitment)));
        metrics.frontier_age.at(commitment).set(front.frontier.age(commitment, now).as_secs_f64());
    }
    metrics.slot_time.at(()).set(front.frontier.slot_time().as_secs_f64());
    metrics.tell_plans(|id| front.gateway.usage_of(id).map(|usage| usage.plan));
    let resets = metrics.frontier_resets.at(());
    resets.inc_by(front.frontier.resets().saturating_sub(resets.get()));
    for (member, unusable) in front.pool.standing(now) {
        // The node's own handles: one that has just been removed does not come back by being looked up.
        let upstream = member.metrics();
        for commitment in Commitment::ALL {
            if let Some(slot) = member.slot(commitment) {
                upstream.slot.at(commitment).set(gauge(slot));
            }
        }
        if let Some(lag) = front.frontier.lag(member.id, Commitment::Processed) {
            upstream.slot_lag.at(()).set(gauge(lag));
        }
        upstream.up.set(i64::from(unusable.is_none()));
        upstream.breaker_state.set(match member.breaker(now) {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        });
        upstream.requests_in_flight.set(gauge(member.in_flight() as u64));
        upstream.first_available_block.at(()).set(gauge(member.first_available()));
    }
}
