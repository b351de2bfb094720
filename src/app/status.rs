//! The status of the running gateway for the admin listener.

use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;

use super::nodes;
use crate::admin::node_view::UpstreamsView;
use crate::admin::status::{self, FollowView, Readiness, Status};
use crate::cache::purge::Filter;
use crate::config::FollowMode;
use crate::follow::{Chain, FollowState};
use crate::http::Front;
use crate::http::shutdown::Signal;
use crate::methods::Commitment;
use crate::pool::member::Member;
use crate::pool::select::Unusable;

/// The running gateway, as the admin listener sees it.
pub(super) struct AppStatus {
    front: Arc<Front>,
    draining: Signal,
    started: Instant,
}

impl AppStatus {
    pub(super) fn new(front: Arc<Front>, draining: Signal) -> Self {
        Self { front, draining, started: Instant::now() }
    }
}

/// Returns the state of following the cluster's blocks, for the status page. `None` if `follow.mode` is off.
fn follow_view(front: &Front) -> Option<FollowView> {
    let (mode, followed) = (front.config.follow.mode, &front.followed);
    let (state, contradicted) = (followed.state(), followed.is_contradicted());
    let chain = followed.current();
    let tip = chain.as_deref().map(|chain| chain.tip().slot);
    (mode != FollowMode::Off).then(|| FollowView {
        serves: mode == FollowMode::On && !contradicted,
        contradicted,
        state: state.as_str(),
        reason: if let FollowState::Paused(reason) = state { Some(reason.as_str()) } else { None },
        tip,
        finalized: chain.as_deref().and_then(Chain::target),
        lag_slots: tip.map(|tip| front.frontier.slot(Commitment::Confirmed).saturating_sub(tip)),
    })
}

impl status::StatusSource for AppStatus {
    fn status(&self) -> Status {
        let front = &self.front;
        let (bytes, entries) = front.cache.usage();
        Status {
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: self.started.elapsed().as_secs(),
            frontier: nodes::frontier(front),
            follow: follow_view(front),
            slot_time_ms: front.frontier.slot_time().as_secs_f64() * 1000.0,
            upstreams: nodes::node_views(front, Instant::now()),
            cache: status::CacheView { bytes, entries, capacity_bytes: front.config.cache.capacity },
        }
    }

    fn upstreams(&self) -> UpstreamsView {
        nodes::upstreams(&self.front)
    }

    fn purge(&self, filter: &Filter) -> u64 {
        self.front.cache.purger().purge(filter)
    }

    fn share_purges(&self) -> Pin<Box<dyn Future<Output = Option<bool>> + Send>> {
        let purger = Arc::clone(self.front.cache.purger());
        Box::pin(async move { purger.share().await })
    }

    fn set_drained(&self, upstream: &str, drained: bool) -> bool {
        let members = self.front.pool.members();
        members.named(upstream).map(|member| member.set_drained(drained)).is_some()
    }

    fn readiness(&self) -> Readiness {
        if self.draining.is_triggered() {
            return Readiness::Unready { reasons: vec!["draining before a stop".to_owned()] };
        }
        let now = Instant::now();
        if !self.front.frontier.is_settled(now) {
            let reason =
                "the newest slot is not certain yet: no two upstreams report slots close to each other";
            return Readiness::Unready { reasons: vec![reason.to_owned()] };
        }
        let standing = self.front.pool.standing(now);
        if standing.iter().any(|(_, unusable)| unusable.is_none()) {
            return Readiness::Ready;
        }
        let reason = |(member, unusable): &(Arc<Member>, Option<Unusable>)| {
            format!("upstream {}: {}", member.name, unusable.map_or("usable", Unusable::as_str))
        };
        let undecided = self.front.pool.undecided_cluster();
        let reasons = standing.iter().map(reason).chain(undecided.map(str::to_owned)).collect();
        let never_heard = |(_, unusable): &(Arc<Member>, Option<Unusable>)| {
            matches!(
                unusable,
                Some(Unusable::Unprobed | Unusable::Unreachable | Unusable::Unidentified | Unusable::Foreign)
            )
        };
        let known = self.front.frontier.slot(Commitment::Processed) > 0;
        // Before any node has answered there is nothing to serve. Later the cache or an unhealthy node can answer.
        if undecided.is_some() || (standing.iter().all(never_heard) && !known) {
            Readiness::Unready { reasons }
        } else {
            Readiness::Degraded { reasons }
        }
    }
}
