//! The current nodes of the pool, and the choice of the node for each attempt.
//!
//! The rules are in [`select`]. Each choice reads the nodes again, so a call whose first node was removed continues with
//! the remaining nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use tokio::sync::watch;
use tokio::time::Instant;

use super::cluster::ClusterIdentity;
use super::health::Health;
use super::member::Member;
use super::members::Members;
use super::question::{BlocksRead, Question};
use super::select::{self, Candidate};
use crate::error::{FailedAttempt, Reason};
use crate::frontier::Frontier;
use crate::methods::{AnyMethod, Commitment, Method, PerCommitment, Slot};
use crate::telemetry::Unusable;

/// The nodes, the Solana cluster that they must belong to, and the newest known slots (the frontier) over all nodes.
pub(super) struct Nodes {
    /// The current nodes and settings. Each choice of a node reads them again.
    pub(super) members: ArcSwap<Members>,
    pub(super) cluster: ClusterIdentity,
    pub(super) frontier: Arc<Frontier>,
    /// The setting `cache.max_lag_slots`. Usable nodes that are at most this number of slots behind the newest
    /// known slot are preferred.
    near_lag: PerCommitment<u64>,
    /// Notifies receivers that a probe has changed the health of a node, or asked for its identity.
    pub(super) probed: watch::Sender<()>,
    /// Notifies receivers that a reload has changed the nodes or the settings of a node.
    pub(super) reloaded: watch::Sender<()>,
    /// For each method, by [`Method::index`](crate::methods::Method::index), the id of the node that the method stays
    /// with. `usize::MAX` before the first choice, or if the method stays with no node.
    sticky: [AtomicUsize; Method::ALL.len()],
    draws: AtomicU64,
}

enum Pick {
    /// The node to ask. The call counts against its rate limit.
    Node(Arc<Member>),
    /// All usable nodes are at their rate limit. This one is expected to take the call first.
    Full(Arc<Member>),
    /// No node may be asked. Lists every node with the reason.
    Nothing(Vec<FailedAttempt>),
}

impl Nodes {
    pub(super) fn new(
        members: Members,
        cluster: ClusterIdentity,
        frontier: Arc<Frontier>,
        near_lag: PerCommitment<u64>,
    ) -> Self {
        Self {
            members: ArcSwap::from_pointee(members),
            cluster,
            frontier,
            near_lag,
            probed: watch::Sender::new(()),
            reloaded: watch::Sender::new(()),
            sticky: std::array::from_fn(|_| AtomicUsize::new(usize::MAX)),
            // Gateways that start at the same time must not draw the same numbers.
            draws: AtomicU64::new(getrandom::u64().unwrap_or(1)),
        }
    }

    /// Returns the current nodes and settings. The guard must not be held across an await.
    pub(super) fn load(&self) -> Guard<Arc<Members>> {
        self.members.load()
    }

    /// Replaces the list of nodes and the settings. Notifies the receivers of [`Self::reloaded`] if a node or
    /// its settings have changed.
    pub(super) fn replace(&self, members: &Arc<Members>) {
        let before = self.members.swap(Arc::clone(members));
        if !members.has_nodes_of(&before) {
            self.reloaded.send_replace(());
        }
    }

    /// Rates every node for one call, in the order of the configuration. `tried` has the ids of nodes that were
    /// already asked for this call.
    pub(super) fn candidates(
        &self,
        members: &Members,
        call: &Question<'_>,
        tried: &[usize],
        now: Instant,
    ) -> Vec<Candidate> {
        // A call that has failed once, or whose errors may be its own, does not find out if a node is back.
        let may_be_trial = tried.is_empty() && call.counts();
        // A node that answers no probe may hold more, which nobody gets from it.
        let answers = |member: &&Arc<Member>| {
            member.reasons(now).max() < Some(Unusable::Unprobed) && !member.lacks(call.method)
        };
        let oldest = members.iter().filter(answers).filter_map(|member| member.first_available()).min();
        let candidate = |(node, member): (usize, &Arc<Member>)| {
            let commitment = call.commitment;
            let quiet = member.state.quiet.left(call.method, now);
            let reached = commitment.and_then(|commitment| member.slot(commitment));
            let is_below = call.wanted_slot.is_some_and(|wanted| reached.is_some_and(|slot| slot < wanted));
            let unusable = [
                member.reasons(now).max(),
                (!member.admits(call.part(), now)).then_some(Unusable::BreakerOpen),
                (!may_be_trial && !member.has_closed_breaker(call.part())).then_some(Unusable::BreakerOpen),
                quiet.map(|_| Unusable::Quiet),
                member.lacks(call.method).then_some(Unusable::Incapable),
                member.over_share(call.context.caller),
                self.lagging(members, member),
                self.cluster.unidentified(member),
                lacks_history(call, member, oldest, &self.frontier).then_some(Unusable::NoHistory),
                is_below.then_some(Unusable::BelowFloor),
                tried.contains(&member.id).then_some(Unusable::Tried),
            ];
            let is_near = |commitment| {
                let lag = self.frontier.lag(&member.slots, commitment);
                lag.is_none_or(|lag| lag <= *self.near_lag.get(commitment))
            };
            Candidate {
                node,
                unusable: unusable.into_iter().flatten().max(),
                near: commitment.is_none_or(is_near),
                quiet,
                tier: member.upstream.tier,
                load: member.load(call.part(), now),
            }
        };
        members.iter().enumerate().map(candidate).collect()
    }

    /// Returns for each of `nodes` that is not among the `attempts` why it was not asked.
    pub(super) fn why_not(
        &self,
        call: &Question<'_>,
        nodes: &[Arc<Member>],
        attempts: &[FailedAttempt],
    ) -> Vec<FailedAttempt> {
        let members = self.load();
        let mut candidates = self.candidates(&members, call, &[], Instant::now());
        candidates.retain(|candidate| {
            let member = &members[candidate.node];
            nodes.iter().any(|node| node.id == member.id)
                && !attempts.iter().any(|attempt| attempt.upstream == member.name)
        });
        reasons(&members, &candidates)
    }

    /// Returns the nodes that are usable for the call and not among the `tried` ones.
    pub(super) fn usable(&self, call: &Question<'_>, tried: &[usize]) -> Vec<Arc<Member>> {
        let members = self.load();
        let candidates = self.candidates(&members, call, tried, Instant::now());
        let usable = candidates.iter().filter(|candidate| candidate.unusable.is_none());
        usable.map(|candidate| Arc::clone(&members[candidate.node])).collect()
    }

    /// Returns true if a node that is not among the `tried` ones is usable for the call, and usually answers sooner than
    /// after `waited`.
    pub(super) fn has_faster(&self, call: &Question<'_>, tried: &[usize], waited: Duration) -> bool {
        let now = Instant::now();
        self.usable(call, tried).iter().any(|member| member.is_faster(call.part(), waited, now))
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

    pub(super) fn lagging(&self, members: &Members, member: &Member) -> Option<Unusable> {
        let lag = self.frontier.lag(&member.slots, Commitment::Processed);
        lag.is_some_and(|lag| lag > members.settings.max_slot_lag).then_some(Unusable::Lagging)
    }

    /// Returns the node to ask, as [`Self::pick`] does. If all usable nodes are at their rate limit, waits for the one
    /// that is expected to take the call first.
    ///
    /// # Errors
    /// As for [`Self::pick`].
    pub(super) async fn pick_or_wait(
        &self,
        call: &Question<'_>,
        tried: &[usize],
        worst: Option<Unusable>,
    ) -> Result<Arc<Member>, Vec<FailedAttempt>> {
        loop {
            let awaited = match self.look_for(call, tried, worst, true) {
                Pick::Node(member) => return Ok(member),
                Pick::Nothing(reasons) => return Err(reasons),
                Pick::Full(member) => member,
            };
            let mut reloaded = self.reloaded.subscribe();
            let in_turn = tokio::select! {
                in_turn = awaited.wait_for_rate(call.context) => in_turn,
                // The node may have left the pool, or have another limit.
                _ = reloaded.changed() => continue,
            };
            if !in_turn {
                return self.pick(call, tried, worst);
            }
            if let Some(member) = self.usable(call, tried).into_iter().find(|usable| usable.id == awaited.id)
            {
                self.stay_with(call, &member);
                return Ok(member);
            }
            awaited.give_back_rate();
        }
    }

    /// Returns the node to ask, and counts the call against that node's rate limit. The node is usable, or
    /// unusable for `worst` or a milder reason. If `worst` is `None`, the node is usable.
    ///
    /// # Errors
    /// No such node may be asked. The error lists every node with the reason why it is not asked.
    pub(super) fn pick(
        &self,
        call: &Question<'_>,
        tried: &[usize],
        worst: Option<Unusable>,
    ) -> Result<Arc<Member>, Vec<FailedAttempt>> {
        match self.look_for(call, tried, worst, false) {
            Pick::Node(member) | Pick::Full(member) => Ok(member),
            Pick::Nothing(reasons) => Err(reasons),
        }
    }

    /// Looks for the node to ask. Returns [`Pick::Full`] only if `may_wait`.
    fn look_for(
        &self,
        call: &Question<'_>,
        tried: &[usize],
        worst: Option<Unusable>,
        may_wait: bool,
    ) -> Pick {
        let members = self.load();
        let now = Instant::now();
        let mut candidates = self.candidates(&members, call, tried, now);
        let sticky = self.sticky_of(call);
        let mut full: Option<(Duration, usize)> = None;
        loop {
            let stays = sticky.and_then(|sticky| {
                let id = sticky.load(Ordering::Relaxed);
                let stays =
                    |candidate: &&Candidate| members[candidate.node].id == id && candidate.unusable.is_none();
                candidates.iter().find(stays).map(|candidate| candidate.node)
            });
            let chosen = stays.or_else(|| select::choose(&candidates, self.draw()));
            let chosen = chosen.filter(|node| candidates[*node].unusable <= worst);
            // A short wait for a usable node is better than a node in a bad state.
            if let Some((_, node)) = full
                && chosen.is_none_or(|chosen| candidates[chosen].unusable.is_some())
            {
                return Pick::Full(Arc::clone(&members[node]));
            }
            let Some(node) = chosen else { return Pick::Nothing(reasons(&members, &candidates)) };
            let (member, usable) = (&members[node], candidates[node].unusable.is_none());
            if member.take_rate(call.context) {
                self.stay_with(call, member);
                return Pick::Node(Arc::clone(member));
            }
            let wait = member.rate_wait(call.context, now).filter(|_| may_wait && usable);
            full = full.into_iter().chain(wait.map(|wait| (wait, node))).min();
            candidates[node].unusable = Some(Unusable::Busy);
        }
    }

    fn stay_with(&self, call: &Question<'_>, member: &Member) {
        if let Some(sticky) = self.sticky_of(call) {
            sticky.store(member.id, Ordering::Relaxed);
        }
    }

    /// Returns the place of the node that the call's method stays with. `None` if it stays with none.
    fn sticky_of(&self, call: &Question<'_>) -> Option<&AtomicUsize> {
        let AnyMethod::Own(method) = call.method else { return None };
        call.is_sticky.then(|| &self.sticky[method.index()])
    }

    /// Returns a cheap random number (`SplitMix64`). It must be evenly distributed, but need not be secret.
    pub(super) fn draw(&self) -> u64 {
        let mut z = self.draws.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns the node with the highest slot at the call's commitment among the usable nodes. A node below the minimum
    /// slot counts as usable here. If no node is usable, returns the least bad node. `None` if no node may be asked. The
    /// call counts against the node's rate limit, and waits for it if all nodes are at their limits.
    pub(super) async fn pick_highest(&self, call: &Question<'_>) -> Option<Arc<Member>> {
        let by_slot = self.highest_first(call);
        if let Some(member) = by_slot.iter().find(|member| member.take_rate(call.context)) {
            return Some(Arc::clone(member));
        }
        let highest = by_slot.into_iter().next()?;
        highest.wait_for_rate(call.context).await.then_some(highest)
    }

    /// Returns the nodes that may be asked, in the order of [`Self::pick_highest`].
    fn highest_first(&self, call: &Question<'_>) -> Vec<Arc<Member>> {
        let members = self.load();
        let mut candidates = self.candidates(&members, call, &[], Instant::now());
        candidates.retain(|candidate| candidate.unusable.is_none_or(Unusable::askable));
        let slot = |candidate: &Candidate| {
            call.commitment.and_then(|commitment| members[candidate.node].slot(commitment))
        };
        candidates.sort_by(|a, b| {
            let doubt = |candidate: &Candidate| candidate.unusable.max(Some(Unusable::BelowFloor));
            doubt(a).cmp(&doubt(b)).then(slot(b).cmp(&slot(a))).then(a.load.total_cmp(&b.load))
        });
        candidates.into_iter().map(|candidate| Arc::clone(&members[candidate.node])).collect()
    }
}

/// Returns true if the node is known not to hold the history that the call reads, or has not finalized the block although
/// another node has. A block is certainly final only if its node has finalized the block's slot. `oldest` is the first
/// block that a node of the pool holds. `None` if no node has told it. What is unknown may be young.
pub(super) fn lacks_history(
    call: &Question<'_>,
    member: &Member,
    oldest: Option<Slot>,
    frontier: &Frontier,
) -> bool {
    let is_younger = |slot: Slot| match member.first_available() {
        Some(first) => first > slot,
        None => oldest.is_some_and(|oldest| oldest <= slot),
    };
    match call.reads {
        BlocksRead::Nothing => false,
        BlocksRead::Block(slot) => {
            let is_final = slot <= frontier.slot(Commitment::Finalized);
            let reached = member.slot(Commitment::Finalized);
            is_younger(slot) || is_final && reached.is_some_and(|reached| reached < slot)
        }
        // Where all nodes have forgotten the start of the list, those with the longest memory leave out the least.
        BlocksRead::BlocksFrom(first) => oldest.is_some_and(|oldest| is_younger(oldest.max(first))),
        BlocksRead::All => oldest.is_some_and(is_younger),
    }
}

/// Returns every node with the reason why it is not asked.
fn reasons(members: &Members, candidates: &[Candidate]) -> Vec<FailedAttempt> {
    let not_asked = |candidate: &Candidate| {
        let (member, unusable) = (&members[candidate.node], candidate.unusable?);
        let reason = match (unusable, &*member.health()) {
            (Unusable::Unreachable | Unusable::Unidentified, Health::Unreachable(why)) => {
                Reason::Attempt(*why)
            }
            _ => Reason::NotAsked(unusable),
        };
        Some(FailedAttempt::new(member.name.clone(), reason))
    };
    candidates.iter().filter_map(not_asked).collect()
}
