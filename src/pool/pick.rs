//! Who is asked: every node as it stands for one call, and the choice among them.
//!
//! Gathers what [`select`] decides on. Each choice reads the members anew, so that a call whose first node was removed
//! meanwhile goes on to those that there are.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::member::Member;
use super::select::{self, Candidate, Drawn, Unusable};
use super::{Ask, Members, Pool};
use crate::error::Attempt;
use crate::methods::{Commitment, Query, Slot};

impl Pool {
    /// The node to ask, by selection, or the one that this method stays with, in no worse standing than `worst`; where
    /// there is none, all of them as they stand. Takes one of the node's calls a second.
    pub(super) fn pick(
        &self,
        ask: &Ask,
        tried: &[usize],
        worst: Option<Unusable>,
    ) -> Result<Arc<Member>, Vec<Attempt>> {
        let members = self.members.load();
        let now = Instant::now();
        let mut candidates = self.candidates(&members, ask, tried, now);
        let sticky = is_sticky(&ask.query).then(|| &self.sticky[ask.query.method().index()]);
        loop {
            let stays = sticky.and_then(|sticky| {
                let id = sticky.load(Ordering::Relaxed);
                let stays =
                    |candidate: &&Candidate| members[candidate.node].id == id && candidate.unusable.is_none();
                candidates.iter().find(stays).map(|candidate| candidate.node)
            });
            let chosen = match stays {
                Some(node) => Some(Drawn { node, rival: None }),
                None => select::choose(&candidates, self.draw()),
            };
            let chosen = chosen.filter(|chosen| candidates[chosen.node].unusable <= worst);
            let Some(Drawn { node, rival }) = chosen else { return Err(reasons(&members, &candidates)) };
            let member = &members[node];
            if member.take_turn(now) {
                let choice = (node, rival, stays.is_some());
                self.choices.keep(ask.query.method(), now, &members, &candidates, choice);
                if let Some(sticky) = sticky {
                    sticky.store(member.id, Ordering::Relaxed);
                }
                return Ok(Arc::clone(member));
            }
            candidates[node].unusable = Some(Unusable::Busy);
        }
    }

    /// The node that `ask` goes to first; takes one of its calls a second. For benches.
    pub fn first_choice(&self, ask: &Ask) -> Option<Arc<Member>> {
        self.pick(ask, &[], None).ok()
    }

    /// The node that has come furthest at the asked commitment, of those that are usable but for the floor; else the
    /// least bad. Takes one of the node's calls a second.
    pub(super) fn pick_highest(&self, ask: &Ask) -> Option<Arc<Member>> {
        let members = self.members.load();
        let now = Instant::now();
        let mut candidates = self.candidates(&members, ask, &[], now);
        candidates.retain(|candidate| candidate.unusable.is_none_or(Unusable::askable));
        let slot = |candidate: &Candidate| {
            ask.query.commitment().and_then(|commitment| members[candidate.node].slot(commitment))
        };
        candidates.sort_by(|a, b| {
            let doubt = |candidate: &Candidate| candidate.unusable.max(Some(Unusable::BelowFloor));
            doubt(a).cmp(&doubt(b)).then(slot(b).cmp(&slot(a))).then(a.load.total_cmp(&b.load))
        });
        candidates.into_iter().map(|c| &members[c.node]).find(|member| member.take_turn(now)).cloned()
    }

    /// Whether a node beside `member` is usable for the call.
    pub(super) fn another_usable(&self, ask: &Ask, member: &Member) -> bool {
        let candidates = self.candidates(&self.members.load(), ask, &[member.id], Instant::now());
        candidates.iter().any(|candidate| candidate.unusable.is_none())
    }

    /// Every node as it stands for one call, in the order of the configuration.
    fn candidates(&self, members: &Members, ask: &Ask, tried: &[usize], now: Instant) -> Vec<Candidate> {
        let commitment = ask.query.commitment();
        let candidate = |(node, member): (usize, &Arc<Member>)| {
            let below =
                |floor: Slot| commitment.and_then(|c| member.slot(c)).is_some_and(|slot| slot < floor);
            let no_history = match &ask.query {
                // Final blocks come from nodes that have reached them: final by construction.
                Query::Block(q) => member.first_available() > q.slot || self.below_final(q.slot, member),
                _ => false,
            };
            let unusable = [
                member.unusable(ask.query.method(), now),
                member.over_share(ask.caller),
                self.lagging(members, member),
                self.unidentified(member),
                no_history.then_some(Unusable::NoHistory),
                ask.floor.max(ask.prefer).is_some_and(below).then_some(Unusable::BelowFloor),
                tried.contains(&member.id).then_some(Unusable::Tried),
            ];
            let near = commitment.is_none_or(|c| {
                self.frontier.lag_of(&member.shown, c).is_none_or(|lag| lag <= *self.near_lag.get(c))
            });
            Candidate {
                node,
                unusable: unusable.into_iter().flatten().max(),
                near,
                trial: member.is_on_trial(now),
                tier: member.tier,
                load: member.load(now),
            }
        };
        members.iter().enumerate().map(candidate).collect()
    }

    pub(super) fn lagging(&self, members: &Members, member: &Member) -> Option<Unusable> {
        let lag = self.frontier.lag_of(&member.shown, Commitment::Processed);
        lag.is_some_and(|lag| lag > members.settings.max_slot_lag).then_some(Unusable::Lagging)
    }

    /// Whether the cluster has finalized `slot` but this node is not known to have.
    fn below_final(&self, slot: Slot, member: &Member) -> bool {
        slot <= self.frontier.slot(Commitment::Finalized)
            && member.slot(Commitment::Finalized).is_some_and(|reached| reached < slot)
    }
}

/// Cluster nodes and samples are a node's own view: they stay with one while it is usable.
pub(super) fn is_sticky(query: &Query) -> bool {
    matches!(query, Query::ClusterNodes | Query::Samples(_))
}

/// Why nobody could even be asked.
pub(super) fn reasons(members: &Members, candidates: &[Candidate]) -> Vec<Attempt> {
    candidates
        .iter()
        .map(|c| Attempt {
            upstream: members[c.node].name.clone(),
            reason: c.unusable.map_or("usable", Unusable::as_str).to_owned(),
        })
        .collect()
}
