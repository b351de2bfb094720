//! The choice of the node for each attempt.
//!
//! The rules are in [`select`]. Each choice reads the nodes again, so a call whose first node was removed
//! continues with the remaining nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

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

impl Selector {
    pub(super) fn new() -> Self {
        Self {
            sticky: std::array::from_fn(|_| AtomicUsize::new(usize::MAX)),
            choices: Choices::new(),
            // Gateways that start at the same time must not draw the same numbers.
            draws: AtomicU64::new(getrandom::u64().unwrap_or(1)),
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
        let members = nodes.load();
        let now = Instant::now();
        let mut candidates = nodes.candidates(&members, call, tried, now);
        let method = call.own_method();
        let sticky = method.filter(|_| call.is_sticky()).map(|method| &self.sticky[method.index()]);
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
            let Some(Selection { node, rival }) = chosen else { return Err(reasons(&members, &candidates)) };
            let member = &members[node];
            if member.take_rate(now) {
                if let Some(method) = method {
                    self.choices.keep(method, now, &members, &candidates, (node, rival, stays.is_some()));
                }
                if let Some(sticky) = sticky {
                    sticky.store(member.id, Ordering::Relaxed);
                }
                return Ok(Arc::clone(member));
            }
            candidates[node].unusable = Some(Unusable::Busy);
        }
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
/// call counts against the node's rate limit.
pub(super) fn pick_highest<C: UpstreamCall>(nodes: &Nodes, call: &C) -> Option<Arc<Member>> {
    let members = nodes.load();
    let now = Instant::now();
    let mut candidates = nodes.candidates(&members, call, &[], now);
    candidates.retain(|candidate| candidate.unusable.is_none_or(Unusable::askable));
    let slot = |candidate: &Candidate| {
        call.commitment().and_then(|commitment| members[candidate.node].slot(commitment))
    };
    candidates.sort_by(|a, b| {
        let doubt = |candidate: &Candidate| candidate.unusable.max(Some(Unusable::BelowFloor));
        doubt(a).cmp(&doubt(b)).then(slot(b).cmp(&slot(a))).then(a.load.total_cmp(&b.load))
    });
    candidates.into_iter().map(|c| &members[c.node]).find(|member| member.take_rate(now)).cloned()
}

/// Returns every node with the reason why it is not asked.
fn reasons(members: &Members, candidates: &[Candidate]) -> Vec<FailedAttempt> {
    candidates
        .iter()
        .map(|c| FailedAttempt {
            upstream: members[c.node].name.clone(),
            reason: c.unusable.map_or("usable", Unusable::as_str).to_owned(),
        })
        .collect()
}
