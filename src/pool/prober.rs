//! The probes: each node is asked for its health and slots once in each probe interval, and more rarely for its
//! identity.
//!
//! A probe ignores the pool's selection, limits and breakers, because only probes can discover that a failed node
//! has come back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::cluster_mark::NodeUsage;
use super::health::Health;
use super::member::Member;
use super::nodes::Nodes;
use super::probe::{self, Genesis, identity};
use crate::methods::Commitment;
use crate::node::Fault;

/// Every 30th probe also asks for the node's version, genesis hash and oldest block. All three change rarely.
const IDENTITY_EVERY: u64 = 30;
/// The divisor of the probe interval that gives the time over which the first probes are spread: 100 ms by default.
const FIRST_PART: u32 = 10;
/// The longest time over which the first probes are spread, so that a start is quick with rare probes, too.
const LONGEST_FIRST: Duration = Duration::from_millis(100);
/// The difference between a probe's slot and the node's slot known before, in either direction. If the difference
/// is larger than this, the node is asked for its genesis hash again.
const JUMP_SLOTS: u64 = 64;

pub(super) async fn probe_node(nodes: &Nodes, id: usize) {
    // Many gateways that start together, in front of many nodes, must not all ask at once.
    let first = (nodes.load().settings.probe_interval / FIRST_PART).min(LONGEST_FIRST);
    tokio::time::sleep(first.mul_f64(per_mille(nodes) / 1000.0)).await;
    for round in 0u64.. {
        let members = nodes.members.load_full();
        let Some(member) = members.of(id) else { return };
        let identity_due = round % IDENTITY_EVERY == 0 || *member.health() == Health::Unprobed;
        probe_once(nodes, member, identity_due).await;
        // Each pause is up to a tenth shorter or longer, so that the probes of many gateways do not synchronize.
        let jitter = 0.9 + per_mille(nodes) / 5000.0;
        tokio::time::sleep(members.settings.probe_interval.mul_f64(jitter)).await;
    }
}

/// Draws a number from 0 to 999.
fn per_mille(nodes: &Nodes) -> f64 {
    f64::from((nodes.draw() % 1000) as u16)
}

async fn probe_once(nodes: &Nodes, member: &Member, identity_due: bool) {
    let before = member.health();
    let found = find_health(nodes, member, &before, identity_due).await;
    let health = found.unwrap_or_else(|fault| Health::Unreachable(fault.result()));
    // Another cluster was configured during the probe, so the result of the probe is about the old cluster.
    if !Arc::ptr_eq(&before, &member.health()) {
        return;
    }
    nodes.frontier.set_usable(member.id, health == Health::Healthy, Instant::now());
    if let Some(before) = member.set_health(health) {
        nodes.probed.send_replace(());
        let now = member.health();
        if now.is_news(&before) {
            now.report(&member.name, &before);
        }
    }
    if nodes.cluster.unidentified(member).is_some() && member.take_unidentified_calls() {
        tracing::warn!(
            upstream.name = member.name,
            "upstream answered calls before its cluster was verified; its answers may be wrong, so the cache is emptied"
        );
        nodes.cluster.forget();
    }
    if matches!(*member.health(), Health::Foreign { .. }) {
        nodes.cluster.follow(&nodes.load());
    }
}

/// Asks a node for its identity if that is due, then for its health and slots, and records the slots. Returns
/// the health.
async fn find_health(
    nodes: &Nodes,
    member: &Member,
    before: &Health,
    identity_due: bool,
) -> Result<Health, Fault> {
    let used = member.used();
    let lost = matches!(before, Health::Foreign { .. } | Health::NoGenesisHash | Health::Unreachable(_));
    if identity_due || lost || nodes.cluster.unidentified(member).is_some() {
        let identity = identity(&member.client).await;
        let genesis = identity.as_ref().map_or(Genesis::Refused, |identity| identity.genesis.clone());
        let refused = nodes.cluster.identify(&nodes.load(), member, used, genesis);
        // The pool's cluster may be known now, so that another node gets the calls that wait.
        nodes.probed.send_replace(());
        let identity = identity?;
        if let Some(refused) = refused {
            return Ok(refused);
        }
        member.forget_lacking();
        member.state.lists_writes.store(identity.lists_writes, Ordering::Relaxed);
        if let Some(first) = identity.first_available {
            member.set_first_available(first);
        }
        if let Some(version) = identity.version {
            member.state.version.store(Some(Arc::new(version)));
            member.state.feature_set.store(identity.feature_set.unwrap_or(0), Ordering::Relaxed);
        }
    } else if member.is_checked() && member.has_new_connections() {
        // Another node may have this address by now.
        if let Some(refused) = ask_cluster_again(nodes, member, used).await {
            return Ok(refused);
        }
    }
    let era = nodes.frontier.era();
    let pulse = probe::pulse(&member.client).await?;
    let now = Instant::now();
    let jumps = |c| {
        let (before, told) = (member.slot(c), *pulse.slots.get(c));
        before.zip(told).is_some_and(|(before, told)| told.abs_diff(before) > JUMP_SLOTS)
    };
    if member.is_checked() && Commitment::ALL.into_iter().any(jumps) {
        let used = member.used();
        if let Some(refused) = ask_cluster_again(nodes, member, used).await {
            return Ok(refused);
        }
    }
    for commitment in Commitment::ALL {
        if let Some(slot) = pulse.slots.get(commitment) {
            nodes.frontier.probed(era, member.id, commitment, *slot, now);
        }
    }
    Ok(pulse.health.map_or_else(Health::Unhealthy, |()| Health::Healthy))
}

/// Asks a node for its genesis hash again. A failed request proves nothing, and the next probe asks again. Returns
/// the reason why the node gets no calls, or `None` if no such reason was found.
async fn ask_cluster_again(nodes: &Nodes, member: &Member, used: NodeUsage) -> Option<Health> {
    if let Ok(theirs) = probe::genesis(&member.client).await {
        return nodes.cluster.identify(&nodes.load(), member, used, theirs);
    }
    member.cluster().used.connections = None;
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn jitter_is_drawn_from_a_thousand() {
        let pool = crate::pool::tests::pool(1, |_| {});
        let draws: Vec<_> = (0..1000).map(|_| per_mille(&pool.nodes)).collect();
        assert!(draws.iter().all(|draw| (0.0..1000.0).contains(draw)));
        assert!(draws.iter().any(|draw| *draw < 250.0) && draws.iter().any(|draw| *draw >= 750.0));
    }
}
