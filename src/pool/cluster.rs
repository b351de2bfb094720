//! The Solana cluster of the pool, identified by its genesis hash. A node gets no calls until it has reported this
//! hash, unless its setting `genesis` is `unchecked`.
//!
//! The pool's hash is the configured one. Without it, the pool adopts the hash that all nodes report, once each of them
//! was asked. If they report different hashes, only an operator knows which one is right, and no node gets calls. If
//! none reports a hash, all nodes get calls. A node that was asked may then turn out to belong to another cluster. All
//! reports and answers of nodes are then discarded, because nobody can tell which of them came from that node.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::cluster_mark::NodeUsage;
use super::health::Health;
use super::lock;
use super::member::Member;
use super::members::Members;
use super::probe::Genesis;
use crate::frontier::Frontier;
use crate::methods::Pubkey;
use crate::telemetry::Unusable;

#[derive(Debug, Clone, PartialEq, Eq)]
enum PoolGenesis {
    /// Some node has not been asked yet. No node gets calls.
    Unasked,
    /// No node reports a hash. All nodes get calls.
    Unreported,
    /// The nodes report different hashes. No node gets calls.
    Disputed,
    Known(String),
}

/// What an operator reads of [`PoolGenesis::Disputed`].
const DISPUTED: &str = "upstreams report different genesis hashes, so none of them gets calls; \
                        set pool.genesis_hash to the hash of the cluster that you want";

/// The identity of the Solana cluster that the nodes of the pool must belong to.
pub(super) struct ClusterIdentity {
    genesis: Mutex<PoolGenesis>,
    /// The number of times that all reports of nodes were discarded, because a node may belong to another cluster.
    pub(super) changes: watch::Sender<u64>,
    frontier: Arc<Frontier>,
}

impl ClusterIdentity {
    /// Creates the identity of the Solana cluster with this genesis hash. With `None`, the nodes have to agree on one.
    pub(super) fn new(genesis: Option<String>, frontier: Arc<Frontier>) -> Self {
        let genesis = genesis.map_or(PoolGenesis::Unasked, PoolGenesis::Known);
        Self { genesis: Mutex::new(genesis), changes: watch::Sender::new(0), frontier }
    }

    pub(super) fn genesis(&self) -> Option<String> {
        if let PoolGenesis::Known(genesis) = &*lock(&self.genesis) { Some(genesis.clone()) } else { None }
    }

    /// Returns the reason why no node that must report a genesis hash gets calls. `None` if nodes get calls.
    pub(super) fn undecided(&self) -> Option<&'static str> {
        match *lock(&self.genesis) {
            PoolGenesis::Unasked => Some("not every upstream was asked for its genesis hash yet"),
            PoolGenesis::Disputed => Some(DISPUTED),
            PoolGenesis::Unreported | PoolGenesis::Known(_) => None,
        }
    }

    /// Returns [`Unusable::Unidentified`] if the node must report the pool's genesis hash and has not done
    /// so. `None` if no node reports a hash.
    pub(super) fn unidentified(&self, member: &Member) -> Option<Unusable> {
        (!member.is_of_cluster() && *lock(&self.genesis) != PoolGenesis::Unreported)
            .then_some(Unusable::Unidentified)
    }

    /// Notes the genesis hash that a node reported, `theirs`, and compares it with the pool's. `used` counts the node's
    /// calls and connections before it was asked for the hash. Returns the reason why the node must get no calls, or
    /// `None` if no such reason was found.
    pub(super) fn identify(
        &self,
        members: &Members,
        member: &Member,
        used: NodeUsage,
        theirs: Genesis,
    ) -> Option<Health> {
        if !member.is_checked() {
            return None;
        }
        let mut genesis = lock(&self.genesis);
        // An invalid hash is never adopted, because the genesis hash is a part of keys in the shared store.
        if let Some(theirs) = theirs.hash().filter(|theirs| is_hash(theirs)) {
            member.cluster().reported = Some(theirs.clone());
        }
        member.cluster().is_asked = true;
        self.decide_locked(&mut genesis, members);
        match (theirs, &*genesis) {
            (Genesis::Hash(theirs), PoolGenesis::Known(ours)) if *ours == theirs => {
                member.cluster().identify(used);
                return None;
            }
            (Genesis::Hash(theirs), PoolGenesis::Known(ours)) => {
                member.cluster().is_identified = false;
                return Some(Health::Foreign { theirs, ours: ours.clone() });
            }
            (Genesis::Hash(theirs), PoolGenesis::Disputed) => return Some(Health::Disputed { theirs }),
            // The node has reported its hash over these connections before, so the node is the same and only
            // refuses now.
            (Genesis::Unsupported, _) if member.is_of_cluster() && !member.has_new_connections() => {}
            (Genesis::Unsupported, _) => {
                member.cluster().is_identified = false;
                // The node would answer the same again. Only another node at its address may answer otherwise, and
                // that takes new connections.
                member.cluster().used.connections = used.connections;
            }
            _ => {}
        }
        let is_silent =
            matches!(*genesis, PoolGenesis::Known(_) | PoolGenesis::Disputed) && !member.is_of_cluster();
        is_silent.then_some(Health::NoGenesisHash)
    }

    /// Adopts the genesis hash that the nodes report, unless it is configured or known, or some node was not asked yet.
    pub(super) fn decide(&self, members: &Members) {
        self.decide_locked(&mut lock(&self.genesis), members);
    }

    fn decide_locked(&self, genesis: &mut PoolGenesis, members: &Members) {
        let checked = || members.iter().filter(|member| member.is_checked());
        if matches!(genesis, PoolGenesis::Known(_)) || checked().any(|member| !member.cluster().is_asked) {
            return;
        }
        let reports: Vec<_> =
            checked().filter_map(|member| Some((member, member.cluster().reported.clone()?))).collect();
        let decided = match reports.as_slice() {
            [] => PoolGenesis::Unreported,
            [(_, first), others @ ..] if others.iter().all(|(_, other)| other == first) => {
                PoolGenesis::Known(first.clone())
            }
            _ => PoolGenesis::Disputed,
        };
        let before = std::mem::replace(genesis, decided);
        match &*genesis {
            PoolGenesis::Known(ours) => {
                let (what, fix) = no_genesis_hash(Some(ours));
                tracing::warn!(setting = "pool.genesis_hash", genesis = ours, fix, "{what}");
                // The nodes were asked some time ago, so their next probes ask again.
                for (member, _) in &reports {
                    member.cluster().identify(NodeUsage::default());
                }
            }
            PoolGenesis::Disputed if before != PoolGenesis::Disputed => {
                let reported = reports.iter().map(|(member, theirs)| format!("{}: {theirs}", member.name));
                tracing::error!(genesis.reported = reported.collect::<Vec<_>>().join(", "), "{DISPUTED}");
            }
            _ => return,
        }
        // Before, slots of nodes of both clusters may have been reported.
        if [&before, genesis].contains(&&PoolGenesis::Disputed) {
            self.forget();
        }
    }

    /// Discards all reports and answers of nodes, because some may come from another cluster.
    pub(super) fn forget(&self) {
        self.frontier.forget();
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Puts a newly configured genesis hash in force. Nodes of the old cluster are refused from now on, and
    /// all their reports are discarded.
    pub(super) fn configure(&self, members: &Members, ours: &str) {
        let ours = ours.to_owned();
        let before = std::mem::replace(&mut *lock(&self.genesis), PoolGenesis::Known(ours.clone()));
        if before == PoolGenesis::Known(ours.clone()) {
            return;
        }
        members.iter().for_each(|member| member.cluster().is_identified = false);
        match before {
            PoolGenesis::Unasked | PoolGenesis::Unreported => return,
            PoolGenesis::Disputed => {}
            PoolGenesis::Known(_) => tracing::warn!(
                genesis = ours,
                "pool.genesis_hash now names a different cluster: the cache is emptied"
            ),
        }
        for member in members.iter().filter(|member| member.is_checked()) {
            let reported = member.cluster().reported.clone();
            let health = match (&*member.health(), reported) {
                (Health::Unprobed | Health::NoGenesisHash, _) | (_, None) => continue,
                (_, Some(theirs)) if theirs == ours => Health::Unprobed,
                (_, Some(theirs)) => Health::Foreign { theirs, ours: ours.clone() },
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
        let mut genesis = lock(&self.genesis);
        let PoolGenesis::Known(ours) = &*genesis else { return };
        // A node that need not report a hash, or does not report one, is left out. But a node stays in if the last
        // hash that it reported is the pool's: it then still belongs to the pool's cluster.
        let has_say = |member: &&Arc<Member>| {
            let reported_ours = || member.cluster().reported.as_ref() == Some(ours);
            member.is_checked() && (*member.health() != Health::NoGenesisHash || reported_ours())
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
        *genesis = PoolGenesis::Known(theirs);
        drop(genesis);
        self.forget();
    }
}

/// Returns what it means that `pool.genesis_hash` is not set, and the line that sets it to the hash that the nodes report.
/// `None` if they were not asked, or do not agree.
pub(crate) fn no_genesis_hash(reported: Option<&str>) -> (&'static str, String) {
    let what = "pool.genesis_hash is not set, so slotfront believes what all upstreams agree on, and one of another \
                cluster stops every call";
    let fix = match reported {
        Some(hash) => format!("write under [pool], if it is that of your cluster: genesis_hash = \"{hash}\""),
        None => "run slotfront check --probe, which shows the line to write".to_owned(),
    };
    (what, fix)
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
