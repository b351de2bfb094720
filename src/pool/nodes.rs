//! The current nodes of the pool, and the rating of each node for a call.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use tokio::sync::watch;
use tokio::time::Instant;

use super::cluster::ClusterIdentity;
use super::health::Health;
use super::member::Member;
use super::members::Members;
use super::select::{Candidate, Unusable};
use super::upstream_call::UpstreamCall;
use crate::frontier::Frontier;
use crate::methods::{Commitment, PerCommitment};

/// The nodes, the Solana cluster that they must belong to, and the newest known slots (the frontier) over all
/// nodes.
pub(super) struct Nodes {
    /// The current nodes and settings. Each choice of a node reads them again.
    members: ArcSwap<Members>,
    pub(super) cluster: ClusterIdentity,
    pub(super) frontier: Arc<Frontier>,
    /// The setting `cache.max_lag_slots`. Usable nodes that are at most this number of slots behind the newest
    /// known slot are preferred.
    near_lag: PerCommitment<u64>,
    /// Notifies receivers that a probe has changed the health of a node.
    probed: watch::Sender<()>,
    /// Notifies receivers that a reload has changed the nodes or the settings of a node.
    reloaded: watch::Sender<()>,
}

impl Nodes {
    pub(super) fn new(
        members: Members,
        cluster: ClusterIdentity,
        frontier: Arc<Frontier>,
        near_lag: PerCommitment<u64>,
    ) -> Self {
        let members = ArcSwap::from_pointee(members);
        let (probed, reloaded) = (watch::Sender::new(()), watch::Sender::new(()));
        Self { members, cluster, frontier, near_lag, probed, reloaded }
    }

    /// Returns the current nodes and settings. The guard must not be held across an await.
    pub(super) fn load(&self) -> Guard<Arc<Members>> {
        self.members.load()
    }

    /// Returns the current nodes and settings, for use across an await.
    pub(super) fn snapshot(&self) -> Arc<Members> {
        self.members.load_full()
    }

    /// Replaces the list of nodes and the settings. Notifies the receivers of [`Self::reloaded()`] if a node or
    /// its settings have changed.
    pub(super) fn replace(&self, members: &Arc<Members>) {
        let before = self.members.swap(Arc::clone(members));
        if !members.has_nodes_of(&before) {
            self.reloaded.send_replace(());
        }
    }

    /// Returns a receiver that is notified when a reload has changed the nodes or the settings of a node.
    pub(super) fn reloaded(&self) -> watch::Receiver<()> {
        self.reloaded.subscribe()
    }

    /// Returns every reason why a node is not usable. Reasons that depend on a call, such as its method, are
    /// left out.
    pub(super) fn reasons(&self, member: &Member, now: Instant) -> Vec<Unusable> {
        let mut reasons: Vec<_> = member.reasons(now).chain(self.lagging(&self.load(), member)).collect();
        reasons.extend(self.cluster.unidentified(member).filter(|reason| !reasons.contains(reason)));
        reasons
    }

    /// Rates every node for one call, in the order of the configuration. `tried` has the ids of nodes that were
    /// already asked for this call.
    pub(super) fn candidates<C: UpstreamCall>(
        &self,
        members: &Members,
        call: &C,
        tried: &[usize],
        now: Instant,
    ) -> Vec<Candidate> {
        // A call that has failed once, or whose errors may be its own, does not find out if a node is back.
        let may_be_trial = tried.is_empty() && call.own_method().is_some();
        let candidate = |(node, member): (usize, &Arc<Member>)| {
            let commitment = call.commitment();
            let quiet = member.quiet_left(call.method(), now);
            let reached = commitment.and_then(|commitment| member.slot(commitment));
            let is_below =
                call.preferred_slot().is_some_and(|wanted| reached.is_some_and(|slot| slot < wanted));
            let unusable = [
                member.reasons(now).max(),
                (!may_be_trial && !member.has_closed_breaker()).then_some(Unusable::BreakerOpen),
                quiet.map(|_| Unusable::Quiet),
                member.lacks_any(call.method()).then_some(Unusable::Incapable),
                member.over_share(call.context().caller),
                self.lagging(members, member),
                self.cluster.unidentified(member),
                call.lacks_history(member, &self.frontier).then_some(Unusable::NoHistory),
                is_below.then_some(Unusable::BelowFloor),
                tried.contains(&member.id).then_some(Unusable::Tried),
            ];
            let is_near = |commitment| {
                let lag = self.frontier.lag_of(&member.slots, commitment);
                lag.is_none_or(|lag| lag <= *self.near_lag.get(commitment))
            };
            Candidate {
                node,
                unusable: unusable.into_iter().flatten().max(),
                near: commitment.is_none_or(is_near),
                quiet,
                tier: member.tier,
                load: member.load(now),
            }
        };
        members.iter().enumerate().map(candidate).collect()
    }

    /// Returns true if another node than `member` is usable for the call.
    pub(super) fn another_usable<C: UpstreamCall>(&self, call: &C, member: &Member) -> bool {
        let candidates = self.candidates(&self.load(), call, &[member.id], Instant::now());
        candidates.iter().any(|candidate| candidate.unusable.is_none())
    }

    /// Returns a receiver that is notified when a probe has changed the health of a node, or asked for its identity.
    pub(super) fn probed(&self) -> watch::Receiver<()> {
        self.probed.subscribe()
    }

    /// Notifies the receivers of [`Self::probed()`].
    pub(super) fn note_probed(&self) {
        self.probed.send_replace(());
    }

    /// Waits until a probe has changed the health of a node, and then returns true. Returns false at
    /// `deadline`, or at once if no node can become usable by its first probe.
    pub(super) async fn first_probe(&self, probed: &mut watch::Receiver<()>, deadline: Instant) -> bool {
        let awaited = |member: &Arc<Member>| {
            *member.health() == Health::Unprobed
                && self.cluster.unidentified(member).is_some()
                && !member.is_drained()
        };
        self.load().iter().any(awaited) && tokio::time::timeout_at(deadline, probed.changed()).await.is_ok()
    }

    fn lagging(&self, members: &Members, member: &Member) -> Option<Unusable> {
        let lag = self.frontier.lag_of(&member.slots, Commitment::Processed);
        lag.is_some_and(|lag| lag > members.settings.max_slot_lag).then_some(Unusable::Lagging)
    }
}
