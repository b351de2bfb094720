//! The check that one node belongs to the pool's Solana cluster, by the genesis hash that the node reports.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::pool::lock;

/// The state of the check that one node belongs to the pool's Solana cluster.
#[derive(Debug, Default)]
pub(in crate::pool) struct ClusterMark {
    /// True if the node has reported the pool's genesis hash, and no later answer puts that in doubt.
    identified: AtomicBool,
    /// True if the last genesis hash that the node reported, however long ago, is the pool's.
    reported_ours: AtomicBool,
    /// The counts noted last. Calls are noted when the node reports the pool's genesis hash, and at each check for
    /// new calls. Connections are noted when the node reports that hash, or answers without a hash.
    at: Mutex<NodeUsage>,
}

/// The use of a node up to some time: the calls sent to it, and the connections that have brought an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::pool) struct NodeUsage {
    pub(super) calls: u64,
    /// The number of connections. `None` if the node must be asked for its genesis hash in any case.
    pub(super) connections: Option<u64>,
}

impl ClusterMark {
    /// Returns true if the node has reported the pool's genesis hash, and no later answer puts that in doubt.
    pub(in crate::pool) fn is_identified(&self) -> bool {
        self.identified.load(Ordering::SeqCst)
    }

    /// Returns true if the genesis hash that the node last reported is the pool's.
    pub(in crate::pool) fn reported_ours(&self) -> bool {
        self.reported_ours.load(Ordering::SeqCst)
    }

    /// Notes that the node has reported the pool's genesis hash. `used` counts the node's calls and connections before
    /// the node was asked.
    pub(in crate::pool) fn set_identified(&self, used: NodeUsage) {
        *lock(&self.at) = used;
        self.reported_ours.store(true, Ordering::SeqCst);
        self.identified.store(true, Ordering::SeqCst);
    }

    /// Notes that the node has to report the pool's genesis hash anew.
    pub(in crate::pool) fn set_unidentified(&self) {
        self.identified.store(false, Ordering::SeqCst);
    }

    /// Notes that the node's genesis hash is not the pool's.
    pub(in crate::pool) fn set_not_ours(&self) {
        self.reported_ours.store(false, Ordering::SeqCst);
        self.set_unidentified();
    }

    /// Notes that the node has answered without its genesis hash. `used` counts the node's calls and connections before
    /// the node was asked. The node is asked again after a new connection.
    pub(in crate::pool) fn set_asked_over(&self, used: NodeUsage) {
        lock(&self.at).connections = used.connections;
    }

    /// Returns true if the node has no new connections since it last reported the pool's genesis hash or answered
    /// without a hash. `connections` is the number of the node's connections so far.
    pub(super) fn was_asked_over(&self, connections: u64) -> bool {
        lock(&self.at).connections == Some(connections)
    }

    /// Makes [`Self::was_asked_over`] return false until the node has reported the pool's genesis hash, or answered
    /// without a hash.
    pub(in crate::pool) fn ask_again(&self) {
        lock(&self.at).connections = None;
    }

    /// Notes `calls`, the number of calls sent to the node so far. Returns true if it differs from the number noted
    /// before, here or by [`Self::set_identified`].
    pub(super) fn take_unidentified_calls(&self, calls: u64) -> bool {
        std::mem::replace(&mut lock(&self.at).calls, calls) != calls
    }
}
