//! The gauges among the metrics. Their values are computed at each scrape.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use crate::breaker::BreakerState;
use crate::http::Front;
use crate::methods::Commitment;
use crate::telemetry::Metrics;

/// Registers a hook that sets all gauges before each scrape of the metrics.
pub(super) fn feed_metrics(front: &Arc<Front>) {
    // A strong reference would form a cycle: the front holds the metrics, and the metrics hold the hook.
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
    metrics.incoming_bytes.set(gauge(front.incoming.used() as u64));
    metrics.ws_connections.set(gauge(front.subscriptions.clients() as u64));
    metrics.ws_slot_age.at(()).set(front.subscriptions.slot_age(now).as_secs_f64());
    metrics.ws_queued_bytes.set(gauge(front.subscriptions.queued_bytes() as u64));
    metrics.cache_bytes.set(gauge(bytes));
    metrics.cache_entries.set(gauge(entries));
    metrics.cache_capacity.set(gauge(front.config.now().cache.capacity));
    for commitment in Commitment::ALL {
        metrics.frontier_slot.at(commitment).set(gauge(front.frontier.slot(commitment)));
        metrics.frontier_age.at(commitment).set(front.frontier.age(commitment, now).as_secs_f64());
    }
    metrics.follow_state.set(front.followed.state().number());
    metrics.follow_contradicted.set(i64::from(front.followed.is_contradicted()));
    if let Some(chain) = front.followed.current().as_deref() {
        let tip = chain.tip().slot;
        metrics.follow_tip_slot.at(()).set(gauge(tip));
        let lag = front.frontier.slot(Commitment::Confirmed).saturating_sub(tip);
        metrics.follow_lag_slots.at(()).set(gauge(lag));
    }
    metrics.slot_time.at(()).set(front.frontier.slot_time().as_secs_f64());
    metrics.set_keys(|id| front.gateway.key_state(id));
    let resets = metrics.frontier_resets.at(());
    resets.inc_by(front.frontier.resets().saturating_sub(resets.get()));
    for (member, unusable) in front.pool.standing(now) {
        // Looking up the metrics by the node's name could bring back the series of a removed node.
        let upstream = &member.metrics;
        for commitment in Commitment::ALL {
            if let Some(slot) = member.slot(commitment) {
                upstream.slot.at(commitment).set(gauge(slot));
            }
        }
        if let Some(lag) = front.frontier.lag(&member.slots, Commitment::Processed) {
            upstream.slot_lag.at(()).set(gauge(lag));
        }
        upstream.up.set(i64::from(unusable.is_none()));
        upstream.breaker_state.set(match member.breaker(now) {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        });
        upstream.requests_in_flight.set(gauge(member.in_flight() as u64));
        if let Some(first) = member.first_available() {
            upstream.first_available_block.at(()).set(gauge(first));
        }
    }
}
