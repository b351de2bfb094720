//! The Solana cluster of the pool, identified by its genesis hash. A node gets no calls until it has reported this
//! hash, unless its setting `genesis` is `unchecked`.
//!
//! The pool's hash is the configured one, or the first that a node reports. Until the pool's hash is known, every
//! node is asked. A node that was asked may turn out to belong to another cluster. All reports and answers of
//! nodes are then discarded, because nobody can tell which of them came from that node.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::time::Instant;

use super::health::Health;
use super::lock;
use super::member::{Member, NodeUsage};
use super::members::Members;
use super::probe::Genesis;
use super::select::Unusable;
use crate::frontier::Frontier;
use crate::methods::Pubkey;

/// The identity of the Solana cluster that the nodes of the pool must belong to.
pub(super) struct ClusterIdentity {
    genesis: Mutex<Option<String>>,
    /// The number of times that all reports of nodes were discarded, because a node may belong to another
    /// cluster.
    changes: watch::Sender<u64>,
    frontier: Arc<Frontier>,
}

impl ClusterIdentity {
    /// Creates the identity of the Solana cluster with this genesis hash. With `None`, the first hash that a node
    /// reports becomes the cluster's.
    pub(super) fn new(genesis: Option<String>, frontier: Arc<Frontier>) -> Self {
        Self { genesis: Mutex::new(genesis), changes: watch::Sender::new(0), frontier }
    }

    /// Returns the genesis hash. `None` until it is known.
    pub(super) fn genesis(&self) -> Option<String> {
        lock(&self.genesis).clone()
    }

    /// Returns a receiver of the number of times that all reports of nodes were discarded.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns [`Unusable::Unidentified`] if the node must report the pool's genesis hash and has not done
    /// so. `None` while the pool's genesis hash is unknown.
    pub(super) fn unidentified(&self, member: &Member) -> Option<Unusable> {
        (!member.is_of_cluster() && lock(&self.genesis).is_some()).then_some(Unusable::Unidentified)
    }

    /// Compares the genesis hash that a node reported, `theirs`, with the pool's, and notes the result.
    /// `used` counts the node's calls and connections before it was asked for the hash. Returns the reason
    /// why the node must get no calls, or `None` if no such reason was found. A pool without a genesis hash
    /// adopts the reported one.
    pub(super) fn identify(&self, member: &Member, used: NodeUsage, theirs: Genesis) -> Option<Health> {
        if !member.is_checked() {
            return None;
        }
        let mut genesis = lock(&self.genesis);
        match theirs {
            // An invalid hash is not adopted, because the genesis hash is a part of keys in the shared store.
            Genesis::Hash(theirs) if genesis.is_none() && !is_hash(&theirs) => return None,
            Genesis::Hash(theirs) => {
                let ours = genesis.get_or_insert_with(|| theirs.clone());
                if *ours == theirs {
                    member.cluster().set_identified(used);
                    return None;
                }
                member.cluster().set_not_ours();
                return Some(Health::Foreign { theirs, ours: ours.clone() });
            }
            // The node has reported its hash over these connections before, so the node is the same and only
            // refuses now.
            Genesis::Unsupported if member.is_of_cluster() && !member.has_new_connections() => {}
            Genesis::Unsupported => {
                member.cluster().set_unidentified();
                // The node would answer the same again. Only another node at its address may answer otherwise, and
                // that takes new connections.
                member.cluster().set_asked_over(used);
            }
            Genesis::Refused => {}
        }
        (genesis.is_some() && !member.is_of_cluster()).then_some(Health::NoGenesisHash)
    }

    /// Discards all reports and answers of nodes, because some may come from another cluster.
    pub(super) fn forget(&self) {
        self.frontier.forget();
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Puts a newly configured genesis hash in force. Nodes of the old cluster are refused from now on, and
    /// all their reports are discarded.
    pub(super) fn configure(&self, members: &Members, ours: &str) {
        let before = {
            let mut genesis = lock(&self.genesis);
            if genesis.as_deref() != Some(ours) {
                members.iter().for_each(|member| member.cluster().set_not_ours());
            }
            genesis.replace(ours.to_owned())
        };
        let Some(before) = before.filter(|before| before != ours) else { return };
        tracing::warn!(
            genesis = ours,
            "pool.genesis_hash now names a different cluster: the cache is emptied"
        );
        for member in members.iter().filter(|member| member.is_checked()) {
            let health = match &*member.health() {
                Health::Unprobed => Health::Unprobed,
                Health::NoGenesisHash => Health::NoGenesisHash,
                Health::Foreign { theirs, .. } if theirs == ours => Health::Unprobed,
                Health::Foreign { theirs, .. } => {
                    Health::Foreign { theirs: theirs.clone(), ours: ours.to_owned() }
                }
                _ => Health::Foreign { theirs: before.clone(), ours: ours.to_owned() },
            };
            self.frontier.set_usable(member.id, health == Health::Unprobed, Instant::now());
            if let Some(before) = member.set_health(health) {
                member.health().report(&member.name, &before);
            }
        }
        self.forget();
    }

    /// Adopts the genesis hash of another Solana cluster if all nodes report it and no hash is configured. All
    /// nodes report a new hash after the restart of a test cluster.
    pub(super) fn follow(&self, members: &Members) {
        if members.settings.genesis_hash.is_some() {
            return;
        }
        // A node that need not report a hash, or does not report one, is left out. But a node stays in if the last
        // hash that it reported is the pool's: it then still belongs to the pool's cluster.
        let has_say = |member: &&Arc<Member>| {
            member.is_checked()
                && (member.cluster().reported_ours() || *member.health() != Health::NoGenesisHash)
        };
        let agreed = members.iter().filter(has_say).map(|member| match &*member.health() {
            Health::Foreign { theirs, .. } => Some(theirs.clone()),
            _ => None,
        });
        let Some(theirs) = all_equal(agreed).filter(|theirs| is_hash(theirs)) else { return };
        tracing::warn!(
            genesis = theirs,
            "all upstreams report the same new genesis hash: slotfront adopts it, and the cache is emptied"
        );
        *lock(&self.genesis) = Some(theirs);
        self.forget();
    }
}

/// Returns true if the text is a genesis hash: 32 bytes in base58.
fn is_hash(genesis: &str) -> bool {
    Pubkey::parse(genesis).is_ok()
}

/// Returns the value that all of `values` have. `None` if two values differ, if a value is `None`, or if
/// there are no values.
fn all_equal(mut values: impl Iterator<Item = Option<String>>) -> Option<String> {
    let first = values.next()??;
    values.all(|value| value.as_ref() == Some(&first)).then_some(first)
}
