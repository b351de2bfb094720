//! The choice of the node for each attempt.
//!
//! The rules are in [`select`]. Each choice reads the nodes again, so a call whose first node was removed
//! continues with the remaining nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::choices::{Choice, Choices};
use super::member::Member;
use super::members::Members;
use super::nodes::Nodes;
use super::select::{self, Candidate, Selection, Unusable};
use super::upstream_call::UpstreamCall;
use crate::error::FailedAttempt;
use crate::methods::Method;

/// The state that the choice of nodes needs: the nodes that some methods stay with, and the source of random
/// numbers. Also holds the last choices, for operators to inspect.
pub(super) struct Selector {
    /// For each method, by [`Method::index`], the id of the node that the method stays with. `usize::MAX` before
    /// the first choice, or if the method stays with no node.
    sticky: [AtomicUsize; 8],
    choices: Choices,
    draws: AtomicU64,
}

/// The result of looking for a node.
enum Pick {
    /// The node to ask. The call counts against its rate limit.
    Node(Arc<Member>),
    /// All usable nodes are at their rate limit. This one is expected to take the call first.
    Full(Arc<Member>),
    /// No node may be asked. Lists every node with the reason.
    Nothing(Vec<FailedAttempt>),
}

impl Selector {
    pub(super) fn new() -> Self {
        Self {
            sticky: std::array::from_fn(|_| AtomicUsize::new(usize::MAX)),
            choices: Choices::new(),
            // Gateways that start at the same time must not draw the same numbers.
            draws: AtomicU64::new(getrandom::u64().unwrap_or(1)),
        }
    }

    /// Returns the node to ask, as [`Self::pick`] does. If all usable nodes are at their rate limit, waits for the one
    /// that is expected to take the call first.
    ///
    /// # Errors
    /// As for [`Self::pick`].
    pub(super) async fn pick_or_wait<C: UpstreamCall>(
        &self,
        nodes: &Nodes,
        call: &C,
        tried: &[usize],
        worst: Option<Unusable>,
    ) -> Result<Arc<Member>, Vec<FailedAttempt>> {
        loop {
            let awaited = match self.look_for(nodes, call, tried, worst, true) {
                Pick::Node(member) => return Ok(member),
                Pick::Nothing(reasons) => return Err(reasons),
                Pick::Full(member) => member,
            };
            let mut reloaded = nodes.reloaded();
            let in_turn = tokio::select! {
                in_turn = awaited.wait_for_rate(call.context()) => in_turn,
                // The node may have left the pool, or have another limit.
                _ = reloaded.changed() => continue,
            };
            if !in_turn {
                return self.pick(nodes, call, tried, worst);
            }
            let (members, now) = (nodes.load(), Instant::now());
            let candidates = nodes.candidates(&members, call, tried, now);
            let usable =
                candidates.iter().find(|node| node.unusable.is_none() && members[node.node].id == awaited.id);
            if let Some(Candidate { node, .. }) = usable {
                return Ok(self.keep(call, now, &members, &candidates, (*node, None, false)));
            }
            awaited.give_back_rate(now);
        }
    }

    /// Returns the node to ask, and counts the call against that node's rate limit. The node is usable, or
    /// unusable for `worst` or a milder reason. If `worst` is `None`, the node is usable.
    ///
    /// # Errors
    /// No such node may be asked. The error lists every node with the reason why it is not asked.
    pub(super) fn pick<C: UpstreamCall>(
        &self,
        nodes: &Nodes,
        call: &C,
        tried: &[usize],
        worst: Option<Unusable>,
    ) -> Result<Arc<Member>, Vec<FailedAttempt>> {
        match self.look_for(nodes, call, tried, worst, false) {
            Pick::Node(member) | Pick::Full(member) => Ok(member),
            Pick::Nothing(reasons) => Err(reasons),
        }
    }

    /// Looks for the node to ask. Returns [`Pick::Full`] only if `may_wait`.
    fn look_for<C: UpstreamCall>(
        &self,
        nodes: &Nodes,
        call: &C,
        tried: &[usize],
        worst: Option<Unusable>,
        may_wait: bool,
    ) -> Pick {
        let members = nodes.load();
        let now = Instant::now();
        let mut candidates = nodes.candidates(&members, call, tried, now);
        let sticky = self.sticky_of(call);
        let mut full: Option<(Duration, usize)> = None;
        loop {
            let stays = sticky.and_then(|sticky| {
                let id = sticky.load(Ordering::Relaxed);
                let stays =
                    |candidate: &&Candidate| members[candidate.node].id == id && candidate.unusable.is_none();
                candidates.iter().find(stays).map(|candidate| candidate.node)
            });
            let chosen = match stays {
                Some(node) => Some(Selection { node, rival: None }),
                None => select::choose(&candidates, self.draw()),
            };
            let chosen = chosen.filter(|chosen| candidates[chosen.node].unusable <= worst);
            // A short wait for a usable node is better than a node in a bad state.
            if let Some((_, node)) = full
                && chosen.is_none_or(|chosen| candidates[chosen.node].unusable.is_some())
            {
                return Pick::Full(Arc::clone(&members[node]));
            }
            let Some(Selection { node, rival }) = chosen else {
                return Pick::Nothing(reasons(&members, &candidates));
            };
            let (member, usable) = (&members[node], candidates[node].unusable.is_none());
            if member.take_rate(call.context(), now) {
                return Pick::Node(self.keep(
                    call,
                    now,
                    &members,
                    &candidates,
                    (node, rival, stays.is_some()),
                ));
            }
            let wait = member.rate_wait(call.context(), now).filter(|_| may_wait && usable);
            full = full.into_iter().chain(wait.map(|wait| (wait, node))).min();
            candidates[node].unusable = Some(Unusable::Busy);
        }
    }

    /// Records the choice of a node for `call`, and returns the node.
    fn keep<C: UpstreamCall>(
        &self,
        call: &C,
        now: Instant,
        members: &Members,
        candidates: &[Candidate],
        (node, rival, stays): (usize, Option<usize>, bool),
    ) -> Arc<Member> {
        if let Some(method) = call.own_method() {
            self.choices.keep(method, now, members, candidates, (node, rival, stays));
        }
        if let Some(sticky) = self.sticky_of(call) {
            sticky.store(members[node].id, Ordering::Relaxed);
        }
        Arc::clone(&members[node])
    }

    /// Returns the place of the node that the call's method stays with. `None` if it stays with none.
    fn sticky_of<C: UpstreamCall>(&self, call: &C) -> Option<&AtomicUsize> {
        call.own_method().filter(|_| call.is_sticky()).map(|method| &self.sticky[method.index()])
    }

    /// Returns the last recorded choice of a node for `method`. `None` before the first choice.
    pub(super) fn last_choice(&self, method: Method) -> Option<Choice> {
        self.choices.of(method)
    }

    /// Returns a cheap random number (`SplitMix64`). It must be evenly distributed, but need not be secret.
    pub(super) fn draw(&self) -> u64 {
        let mut z = self.draws.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Returns the node with the highest slot at the call's commitment among the usable nodes. A node below the minimum
/// slot counts as usable here. If no node is usable, returns the least bad node. `None` if no node may be asked. The
/// call counts against the node's rate limit, and waits for it if all nodes are at their limits.
pub(super) async fn pick_highest<C: UpstreamCall>(nodes: &Nodes, call: &C) -> Option<Arc<Member>> {
    let by_slot = highest_first(nodes, call);
    let now = Instant::now();
    if let Some(member) = by_slot.iter().find(|member| member.take_rate(call.context(), now)) {
        return Some(Arc::clone(member));
    }
    let highest = by_slot.into_iter().next()?;
    highest.wait_for_rate(call.context()).await.then_some(highest)
}

/// Returns the nodes that may be asked, in the order of [`pick_highest`].
fn highest_first<C: UpstreamCall>(nodes: &Nodes, call: &C) -> Vec<Arc<Member>> {
    let members = nodes.load();
    let mut candidates = nodes.candidates(&members, call, &[], Instant::now());
    candidates.retain(|candidate| candidate.unusable.is_none_or(Unusable::askable));
    let slot = |candidate: &Candidate| {
        call.commitment().and_then(|commitment| members[candidate.node].slot(commitment))
    };
    candidates.sort_by(|a, b| {
        let doubt = |candidate: &Candidate| candidate.unusable.max(Some(Unusable::BelowFloor));
        doubt(a).cmp(&doubt(b)).then(slot(b).cmp(&slot(a))).then(a.load.total_cmp(&b.load))
    });
    candidates.into_iter().map(|candidate| Arc::clone(&members[candidate.node])).collect()
}

/// Returns every node with the reason why it is not asked.
fn reasons(members: &Members, candidates: &[Candidate]) -> Vec<FailedAttempt> {
    candidates
        .iter()
        .map(|c| FailedAttempt {
            upstream: members[c.node].name.clone(),
            reason: c.unusable.map_or("usable", Unusable::as_str).to_owned(),
            retry_after: None,
        })
        .collect()
}
