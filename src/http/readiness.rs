//! Whether a balancer should send calls here, which `/readyz` of the admin listener and `/health` of the public one answer.

use std::sync::Arc;

use tokio::time::Instant;

use super::Front;
use crate::methods::Commitment;
use crate::pool::member::Member;
use crate::telemetry::Unusable;

/// Why a balancer should send no calls. Both listeners answer 503.
pub(crate) enum Unready {
    /// Whatever the upstreams are.
    Here(&'static str),
    /// No upstream was ever heard, or nobody knows which of their clusters is the right one.
    NoUpstream,
}

impl Front {
    /// Returns why the gateway is not ready at `now`, when its nodes have this `standing`. `None` if it is ready or
    /// degraded.
    pub(crate) fn unready(
        &self,
        standing: &[(Arc<Member>, Option<Unusable>)],
        now: Instant,
    ) -> Option<Unready> {
        if self.draining.is_triggered() {
            return Some(Unready::Here("draining before a stop"));
        }
        if !self.frontier.is_settled(now) {
            let reason =
                "the newest slot is not certain yet: no two upstreams report slots close to each other";
            return Some(Unready::Here(reason));
        }
        let is_usable = standing.iter().any(|(_, unusable)| unusable.is_none());
        let never_heard = |(_, unusable): &(_, Option<Unusable>)| {
            matches!(
                unusable,
                Some(Unusable::Unprobed | Unusable::Unreachable | Unusable::Unidentified | Unusable::Foreign)
            )
        };
        let known = self.frontier.slot(Commitment::Processed) > 0;
        // Before any node has answered there is nothing to serve. Later the cache or an unhealthy node can answer.
        let is_mute = self.pool.undecided_cluster().is_some() || (standing.iter().all(never_heard) && !known);
        (!is_usable && is_mute).then_some(Unready::NoUpstream)
    }
}
