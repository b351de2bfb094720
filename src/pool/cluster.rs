//! The cluster that the pool is in front of, by its genesis hash. A node that has not shown this hash is not asked.
//!
//! The pool's hash is the configured one, or the first that a node tells. Until it is known, every node is asked. If a
//! node was asked and turns out to be of another cluster, everything that nodes have said is forgotten: nobody can tell
//! which of it came from that node.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::time::Instant;

use super::health::Health;
use super::lock;
use super::member::{Member, Used};
use super::members::Members;
use super::probe::Genesis;
use super::select::Unusable;
use crate::frontier::Frontier;
use crate::methods::Pubkey;

/// The cluster that the pool is in front of.
pub(super) struct Cluster {
    genesis: Mutex<Option<String>>,
    /// The number of times that everything was forgotten.
    changes: watch::Sender<u64>,
    frontier: Arc<Frontier>,
}

impl Cluster {
    /// Returns the cluster with this genesis hash, or the one that the first node tells.
    pub(super) fn new(genesis: Option<String>, frontier: Arc<Frontier>) -> Self {
        Self { genesis: Mutex::new(genesis), changes: watch::Sender::new(0), frontier }
    }

    /// Returns the genesis hash, once it is known.
    pub(super) fn genesis(&self) -> Option<String> {
        lock(&self.genesis).clone()
    }

    /// Returns a receiver that changes whenever everything that nodes have said was forgotten.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns [`Unusable::Unidentified`] if the pool's genesis hash is known and the node has not shown it.
    pub(super) fn unidentified(&self, member: &Member) -> Option<Unusable> {
        (!member.is_vouched_for() && lock(&self.genesis).is_some()).then_some(Unusable::Unidentified)
    }

    /// Takes in the genesis hash of a node, which was asked for it when it had been `used` so far. `Some` says why the
    /// node is asked nothing else. The first node that tells its hash names the pool's.
    pub(super) fn identify(&self, member: &Member, used: Used, theirs: Genesis) -> Option<Health> {
        if !member.is_checked() {
            return None;
        }
        let mut genesis = lock(&self.genesis);
        match theirs {
            // No cluster has this name. It would stand in the keys of the shared store.
            Genesis::Told(theirs) if genesis.is_none() && !is_hash(&theirs) => return None,
            Genesis::Told(theirs) => {
                let ours = genesis.get_or_insert_with(|| theirs.clone());
                if *ours == theirs {
                    member.cluster().set_identified(used);
                    return None;
                }
                member.cluster().set_not_ours();
                return Some(Health::Foreign { theirs, ours: ours.clone() });
            }
            // The node has told its hash over these connections, so the same node refuses now, for whatever reason.
            Genesis::Untold if member.is_vouched_for() && !member.has_new_connections() => {}
            Genesis::Untold => {
                member.cluster().set_unidentified();
                // The answer stays the same until another node has this address.
                member.cluster().set_asked_over(used);
            }
            Genesis::Refused => {}
        }
        (genesis.is_some() && !member.is_vouched_for()).then_some(Health::Silent)
    }

    /// Forgets everything that nodes have said so far: some of it was of another cluster.
    pub(super) fn forget(&self) {
        self.frontier.forget();
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Puts a newly configured genesis hash in force. Nodes of the old cluster are refused from now on, and everything
    /// that nodes have said is forgotten.
    pub(super) fn configure(&self, members: &Members, ours: &str) {
        let before = {
            let mut genesis = lock(&self.genesis);
            if genesis.as_deref() != Some(ours) {
                members.iter().for_each(|member| member.cluster().set_not_ours());
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
                member.health().report(&member.name, &before);
            }
        }
        self.forget();
    }

    /// Follows the nodes to another cluster if all of them agree on it, as after the restart of a test cluster.
    pub(super) fn follow(&self, members: &Members) {
        if members.settings.genesis_hash.is_some() {
            return;
        }
        // Nodes that never told a hash, or need not, have no say. A node that last told the pool's hash still counts as
        // one of the pool's cluster.
        let has_say = |member: &&Arc<Member>| {
            member.is_checked() && (member.cluster().told_ours() || *member.health() != Health::Silent)
        };
        let agreed = members.iter().filter(has_say).map(|member| match &*member.health() {
            Health::Foreign { theirs, .. } => Some(theirs.clone()),
            _ => None,
        });
        let Some(theirs) = all_equal(agreed).filter(|theirs| is_hash(theirs)) else { return };
        tracing::warn!(genesis = theirs, "every upstream is of another cluster now: the cache is emptied");
        *lock(&self.genesis) = Some(theirs);
        self.forget();
    }
}

/// Returns true if a genesis hash is written like this: 32 bytes in base58.
fn is_hash(genesis: &str) -> bool {
    Pubkey::parse(genesis).is_ok()
}

/// Returns the value that all have in common; `None` if one of them has none, or another.
fn all_equal(mut values: impl Iterator<Item = Option<String>>) -> Option<String> {
    let first = values.next()??;
    values.all(|value| value.as_ref() == Some(&first)).then_some(first)
}
