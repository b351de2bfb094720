//! Makes the views of the upstream nodes.

use std::cmp::Reverse;
use std::time::Duration;

use tokio::time::Instant;

use super::node_view::{FailureView, NodeView, UpstreamsView};
use crate::http::Front;
use crate::methods::{AnyMethod, Commitment, Method, PerCommitment, Slot};
use crate::pool::health::Health;
use crate::pool::member::Member;
use crate::telemetry::Unusable;

/// Returns the newest known slots and the state of every node.
pub(super) fn upstreams(front: &Front) -> UpstreamsView {
    UpstreamsView { frontier: frontier(front), upstreams: node_views(front, Instant::now()) }
}

/// Returns the newest slot that a usable node has reported, at each commitment. `None` before the first report.
pub(super) fn frontier(front: &Front) -> PerCommitment<Option<Slot>> {
    PerCommitment::from_fn(|c| Some(front.frontier.slot(c)).filter(|slot| *slot > 0))
}

/// Returns the state of every node, in the order of the configuration.
pub(super) fn node_views(front: &Front, now: Instant) -> Vec<NodeView> {
    front.pool.members().iter().map(|member| node_view(front, member, now)).collect()
}

fn node_view(front: &Front, member: &Member, now: Instant) -> NodeView {
    let (requests, failures) = member.counts();
    let mut reasons = front.pool.reasons(member, now);
    reasons.sort_unstable_by_key(|reason| Reverse(*reason));
    NodeView {
        name: member.name.clone(),
        tier: member.upstream.tier,
        why: if let Health::Unreachable(why) = *member.health() { Some(why.as_str()) } else { None },
        since: member.since().to_string(),
        up: matches!(*member.health(), Health::Healthy | Health::Unhealthy(_)),
        usable: reasons.is_empty(),
        reasons: reasons.iter().map(|reason| describe(front, member, *reason)).collect(),
        slots: PerCommitment::from_fn(|c| member.slot(c)),
        lag_slots: PerCommitment::from_fn(|c| front.frontier.lag(&member.slots, c)),
        version: member.version().map(|version| version.to_string()),
        first_available_block: member.first_available(),
        breaker: member.was_reached().then(|| member.breaker(now)),
        in_flight: member.in_flight(),
        max_in_flight: member.upstream.max_in_flight,
        latency_ms: member.latency().map(|latency| latency.as_secs_f64() * 1000.0),
        rps_left: member.rate_left(),
        lacks: Method::ALL.iter().filter(|m| member.lacks(AnyMethod::Own(**m))).map(|m| m.as_str()).collect(),
        drained: member.is_drained(),
        requests,
        failures,
        last_failure: member.last_failure().map(|(kind, at)| FailureView {
            kind: kind.as_str(),
            age_ms: millis(now.saturating_duration_since(at)),
        }),
    }
}

/// Describes in words why a node is not usable. A node that does not answer its probes has the word that logs and metrics
/// have, too.
pub(super) fn describe(front: &Front, member: &Member, reason: Unusable) -> String {
    match (reason, &*member.health()) {
        (Unusable::Unhealthy, Health::Unhealthy(why)) => format!("unhealthy: {why}"),
        (Unusable::Unreachable, Health::Unreachable(why)) => {
            let what = if member.was_reached() { "gives no usable answer" } else { "not reached" };
            format!("{what}: {why}, since {}", member.since())
        }
        (Unusable::Foreign, Health::Foreign { theirs, ours }) => {
            format!("belongs to another cluster: its genesis hash is {theirs}, the pool's is {ours}")
        }
        (Unusable::Unidentified, Health::NoGenesisHash) => {
            "does not report its genesis hash; if it belongs to \
             the pool's cluster, set genesis = \"unchecked\" for it"
                .to_owned()
        }
        (Unusable::Unidentified, Health::Disputed { theirs }) => format!(
            "reports the genesis hash {theirs}, and another upstream another one; \
             set pool.genesis_hash to the hash of the cluster that you want"
        ),
        (Unusable::Unidentified, _) => {
            front.pool.undecided_cluster().unwrap_or("has not reported its genesis hash yet").to_owned()
        }
        (Unusable::Unprobed, _) => "has not answered a probe yet".to_owned(),
        (Unusable::Lagging, _) => {
            let lag = front.frontier.lag(&member.slots, Commitment::Processed).unwrap_or_default();
            let seconds = front.frontier.time_of(lag).as_secs_f64();
            format!("{lag} slots ({seconds:.1} s) behind the frontier, more than pool.max_slot_lag")
        }
        (Unusable::BreakerOpen, _) => "its circuit breaker is open".to_owned(),
        (Unusable::Busy, _) => format!("at its limit of {} calls in flight", member.upstream.max_in_flight),
        (Unusable::Drained, _) if member.upstream.drained => {
            "drained by the configuration: upstream.drained = true".to_owned()
        }
        (Unusable::Drained, _) => "drained by an operator until the next restart".to_owned(),
        (other, _) => other.as_str().replace('_', " "),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
