//! Which cluster each node is of, by its genesis hash: a node that has not shown the pool's is not asked.
//!
//! The configured hash is the pool's, otherwise the first that a node tells; before any is known, every node is asked.
//! A node that was asked and turns out to be of another cluster costs the pool all that it knows: nobody can tell what
//! came from it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::time::Instant;

use super::member::{Health, Member};
use super::probe::{Genesis, report};
use super::select::Unusable;
use super::{Members, Pool, lock};
use crate::config::GenesisCheck;

/// What is known of one node's cluster.
#[derive(Debug, Default)]
pub(super) struct ClusterMark {
    /// The node has shown the pool's genesis hash when it was last asked for its own.
    identified: AtomicBool,
    /// The genesis hash that the node last told is the pool's, however long ago.
    told_ours: AtomicBool,
    /// How far the node had been used before it last showed it.
    at: Mutex<Used>,
}

/// How far a node had been used at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Used {
    calls: u64,
    /// `None` where the node is to be asked again however it is connected.
    connections: Option<u64>,
}

impl Member {
    /// Whether the genesis hash decides if the node is of the pool's cluster.
    pub(super) fn is_checked(&self) -> bool {
        self.upstream.genesis == GenesisCheck::Checked
    }

    /// Whether the node has shown the pool's genesis hash, or need not.
    pub(super) fn is_vouched_for(&self) -> bool {
        !self.is_checked() || self.cluster().identified.load(Ordering::SeqCst)
    }

    /// How far the node has been used by now.
    pub(super) fn used(&self) -> Used {
        Used { calls: self.counts().0, connections: Some(self.client.connections()) }
    }

    /// Notes that the node has shown the pool's genesis hash, asked for its own when it had been used so far.
    fn identified(&self, used: Used) {
        *lock(&self.cluster().at) = used;
        self.cluster().told_ours.store(true, Ordering::SeqCst);
        self.cluster().identified.store(true, Ordering::SeqCst);
    }

    /// Notes that the node does not show the pool's genesis hash any more.
    fn unidentified(&self) {
        self.cluster().identified.store(false, Ordering::SeqCst);
    }

    /// Notes that the node's genesis hash is another than the pool's.
    fn not_ours(&self) {
        self.cluster().told_ours.store(false, Ordering::SeqCst);
        self.unidentified();
    }

    /// Whether the node has connections that are younger than the genesis hash that it has shown, or may have.
    pub(super) fn has_new_connections(&self) -> bool {
        lock(&self.cluster().at).connections != Some(self.client.connections())
    }

    /// Makes [`Self::has_new_connections`] hold until the node has told its genesis hash.
    pub(super) fn ask_cluster_again(&self) {
        lock(&self.cluster().at).connections = None;
    }

    /// Whether calls were sent to the node since it last showed the pool's genesis hash. Tells it once.
    pub(super) fn take_doubtful_calls(&self) -> bool {
        let calls = self.counts().0;
        std::mem::replace(&mut lock(&self.cluster().at).calls, calls) != calls
    }
}

impl Pool {
    /// Why `member` may not be asked however it stands otherwise: the pool's cluster is known, and its own is not.
    pub(super) fn unidentified(&self, member: &Member) -> Option<Unusable> {
        (!member.is_vouched_for() && lock(&self.genesis).is_some()).then_some(Unusable::Unidentified)
    }

    /// Takes in which cluster a node says it is of, asked when it had been `used` so far. `Some` says why the node is
    /// asked for nothing else. The first node that tells names the pool's.
    pub(super) fn identify(&self, member: &Member, used: Used, theirs: Genesis) -> Option<Health> {
        if !member.is_checked() {
            return None;
        }
        let mut genesis = lock(&self.genesis);
        match theirs {
            Genesis::Told(theirs) => {
                let ours = genesis.get_or_insert_with(|| theirs.clone());
                if *ours == theirs {
                    member.identified(used);
                    return None;
                }
                member.not_ours();
                return Some(Health::Foreign { theirs, ours: ours.clone() });
            }
            // On the connections on which it has told, the same node refuses, for whatever reason.
            Genesis::Untold if member.is_vouched_for() && !member.has_new_connections() => {}
            Genesis::Untold => {
                member.unidentified();
                // The answer would be the same until another node stands there.
                lock(&member.cluster().at).connections = used.connections;
            }
            Genesis::Refused => {}
        }
        (genesis.is_some() && !member.is_vouched_for()).then_some(Health::Silent)
    }

    /// Waits until a probe has changed how a node stands, where one that was not probed yet may be asked afterwards;
    /// `false` at once where there is none, and at `deadline`.
    pub(super) async fn first_probe(&self, standings: &mut watch::Receiver<()>, deadline: Instant) -> bool {
        let awaited = |member: &Arc<Member>| {
            *member.health() == Health::Unprobed
                && self.unidentified(member).is_some()
                && !member.is_drained()
        };
        self.members.load().iter().any(awaited)
            && tokio::time::timeout_at(deadline, standings.changed()).await.is_ok()
    }

    /// Forgets all that nodes have said so far: some of it was of another cluster.
    pub(super) fn forget(&self) {
        self.frontier.forget();
        self.clusters.send_modify(|clusters| *clusters += 1);
    }

    /// Another cluster is configured: the nodes that were of the old one are refused from now on, and what was kept is of
    /// no use.
    pub(super) fn set_genesis(&self, members: &Members, ours: &str) {
        let before = {
            let mut genesis = lock(&self.genesis);
            if genesis.as_deref() != Some(ours) {
                members.iter().for_each(|member| member.not_ours());
            }
            genesis.replace(ours.to_owned())
        };
        let Some(theirs) = before.filter(|before| before != ours) else { return };
        tracing::warn!(genesis = ours, "another cluster is configured: the cache is emptied");
        for member in members.iter().filter(|member| member.is_checked()) {
            let health = match &*member.health() {
                Health::Unprobed => Health::Unprobed,
                Health::Silent => Health::Silent,
                Health::Foreign { theirs, .. } if theirs == ours => Health::Unprobed,
                _ => Health::Foreign { theirs: theirs.clone(), ours: ours.to_owned() },
            };
            self.frontier.set_usable(member.id, health == Health::Unprobed, Instant::now());
            if let Some(before) = member.set_health(health) {
                report(&member.name, &before, &member.health());
            }
        }
        self.forget();
    }

    /// When every node agrees on another cluster (a test cluster that was restarted), that one becomes the pool's.
    pub(super) fn follow_the_cluster(&self) {
        let members = self.members.load();
        if members.settings.genesis_hash.is_some() {
            return;
        }
        // Who need not tell, or never did, has no say. A node that was of the pool's cluster when it last told still is.
        let has_say = |member: &&Arc<Member>| {
            let told_ours = member.cluster().told_ours.load(Ordering::SeqCst);
            member.is_checked() && (told_ours || *member.health() != Health::Silent)
        };
        let agreed = members.iter().filter(has_say).map(|member| match &*member.health() {
            Health::Foreign { theirs, .. } => Some(theirs.clone()),
            _ => None,
        });
        let Some(theirs) = all_equal(agreed) else { return };
        tracing::warn!(genesis = theirs, "every upstream is of another cluster now: the cache is emptied");
        *lock(&self.genesis) = Some(theirs);
        self.forget();
    }
}

/// The value that all have; `None` where one has none or another.
fn all_equal(mut values: impl Iterator<Item = Option<String>>) -> Option<String> {
    let first = values.next()??;
    values.all(|value| value.as_ref() == Some(&first)).then_some(first)
}
