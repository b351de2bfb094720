//! The state that the status page and `/api/status` show, and the readiness that `/readyz` answers.
//!
//! The members of the JSON have the names of the fields here.

use std::sync::Arc;

use serde::Serialize;
use tokio::time::Instant;

use super::node_view::NodeView;
use super::{AdminState, nodes};
use crate::config::FollowMode;
use crate::follow::{Chain, FollowState};
use crate::http::Front;
use crate::http::readiness::Unready;
use crate::methods::{Commitment, PerCommitment, Slot};
use crate::pool::member::Member;
use crate::telemetry::Unusable;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(crate) enum Readiness {
    /// At least one upstream is usable. `/readyz` answers 200.
    Ready,
    /// No upstream is usable, so calls get stale answers, or go to the least bad node. Or the key file or the usage file
    /// fails. `/readyz` answers 200, because a balancer would otherwise remove all replicas for a fault that they share.
    Degraded { reasons: Vec<String> },
    /// The gateway is starting, or draining before a stop. `/readyz` answers 503.
    Unready { reasons: Vec<String> },
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Status {
    pub version: &'static str,
    pub uptime_s: u64,
    /// The newest slot that a usable node reports, at each commitment. `None` before the first report.
    pub frontier: PerCommitment<Option<Slot>>,
    /// The state of following the cluster's blocks, which lets accounts be served at later slots. `None` if
    /// `follow.mode` is off.
    pub follow: Option<FollowView>,
    /// The mean duration of a slot over the last minute, in milliseconds. 400 until a minute has been measured.
    pub slot_time_ms: f64,
    /// The configured upstreams, in the order of the configuration.
    pub upstreams: Vec<NodeView>,
    /// The number of open WebSockets.
    pub sockets: usize,
    pub cache: CacheView,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct CacheView {
    /// The bytes that the cache holds, including keys and overhead.
    pub bytes: u64,
    pub entries: u64,
    pub capacity_bytes: u64,
}

/// The state of following the cluster's blocks, which lets cached answers be served at newer slots while their
/// accounts are unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct FollowView {
    /// True if cached answers are served at a newer slot than they were fetched at (carried). False if
    /// `follow.mode` is `shadow`, and after a carried answer was found wrong.
    pub serves: bool,
    /// True from the time at which an answer carried to a newer slot was found wrong, until a restart.
    pub contradicted: bool,
    /// The state: `starting`, `following`, `parked` or `paused`. Following is parked while no account has been
    /// requested for five minutes.
    pub state: &'static str,
    /// The reason for a pause. `None` unless the state is `paused`.
    pub reason: Option<&'static str>,
    /// The newest followed slot. Cached answers at confirmed can be served at this slot if they are unchanged.
    /// `None` while no blocks are followed.
    pub tip: Option<Slot>,
    /// The newest followed slot that is final. Cached answers at finalized can be served at this slot if they are
    /// unchanged. `None` before a slot is known to be final, and while too many blocks are not final yet.
    pub finalized: Option<Slot>,
    /// The number of slots by which the newest followed slot is behind the newest confirmed slot. `None` while no
    /// blocks are followed.
    pub lag_slots: Option<u64>,
}

impl AdminState {
    pub(super) fn status(&self) -> Status {
        let front = &self.front;
        let (bytes, entries) = front.cache.usage();
        Status {
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: self.started.elapsed().as_secs(),
            frontier: nodes::frontier(front),
            follow: follow_view(front),
            slot_time_ms: front.frontier.slot_time().as_secs_f64() * 1000.0,
            upstreams: nodes::node_views(front, Instant::now()),
            sockets: front.subscriptions.clients(),
            cache: CacheView { bytes, entries, capacity_bytes: front.config.now().cache.capacity },
        }
    }

    pub(super) fn readiness(&self) -> Readiness {
        let now = Instant::now();
        let standing = self.front.pool.standing(now);
        let unready = self.front.unready(&standing, now);
        if let Some(Unready::Here(reason)) = unready {
            return Readiness::Unready { reasons: vec![reason.to_owned()] };
        }
        let failing: Vec<_> = self.front.gateway.failing_files().collect();
        if standing.iter().any(|(_, unusable)| unusable.is_none()) {
            let is_well = failing.is_empty();
            return if is_well { Readiness::Ready } else { Readiness::Degraded { reasons: failing } };
        }
        let reason = |(member, unusable): &(Arc<Member>, Option<Unusable>)| {
            let why = unusable.map_or("usable".to_owned(), |why| nodes::describe(&self.front, member, why));
            format!("upstream {}: {why}", member.name)
        };
        let undecided = self.front.pool.undecided_cluster();
        let reasons =
            standing.iter().map(reason).chain(undecided.map(str::to_owned)).chain(failing).collect();
        match unready {
            Some(_) => Readiness::Unready { reasons },
            None => Readiness::Degraded { reasons },
        }
    }
}

/// Returns the state of following the cluster's blocks, for the status page. `None` if `follow.mode` is off.
fn follow_view(front: &Front) -> Option<FollowView> {
    let (mode, followed) = (front.config.now().follow.mode, &front.followed);
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
