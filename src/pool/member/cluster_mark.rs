//! The cluster check of one node, by the genesis hash that the node has shown.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::pool::lock;

/// The state of one node's cluster check.
#[derive(Debug, Default)]
pub(in crate::pool) struct ClusterMark {
    /// True if the node showed the pool's genesis hash when it was last asked.
    identified: AtomicBool,
    /// True if the genesis hash that the node last reported is the pool's, however long ago.
    reported_ours: AtomicBool,
    /// The calls and connections of the node at the time when it was last asked for its genesis hash.
    at: Mutex<NodeUsage>,
}

/// The numbers of a node's calls and connections up to some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::pool) struct NodeUsage {
    pub(super) calls: u64,
    /// The number of connections. `None` if the node must be asked again in any case.
    pub(super) connections: Option<u64>,
}

impl ClusterMark {
    /// Returns true if the node has shown the pool's genesis hash.
    pub(in crate::pool) fn is_identified(&self) -> bool {
        self.identified.load(Ordering::SeqCst)
    }

    /// Returns true if the genesis hash that the node last reported is the pool's.
    pub(in crate::pool) fn reported_ours(&self) -> bool {
        self.reported_ours.load(Ordering::SeqCst)
    }

    /// Notes that the node has shown the pool's genesis hash. `used` counts the node's calls and connections when the
    /// node was asked.
    pub(in crate::pool) fn set_identified(&self, used: NodeUsage) {
        *lock(&self.at) = used;
        self.reported_ours.store(true, Ordering::SeqCst);
        self.identified.store(true, Ordering::SeqCst);
    }

    /// Notes that the node no longer shows the pool's genesis hash.
    pub(in crate::pool) fn set_unidentified(&self) {
        self.identified.store(false, Ordering::SeqCst);
    }

    /// Notes that the node's genesis hash is not the pool's.
    pub(in crate::pool) fn set_not_ours(&self) {
        self.reported_ours.store(false, Ordering::SeqCst);
        self.set_unidentified();
    }

    /// Notes that the node did not report its genesis hash over these connections. The node is asked again once there
    /// are new connections.
    pub(in crate::pool) fn set_asked_over(&self, used: NodeUsage) {
        lock(&self.at).connections = used.connections;
    }

    /// Returns true if the node had this number of connections when it was last asked for its genesis hash.
    pub(super) fn was_asked_over(&self, connections: u64) -> bool {
        lock(&self.at).connections == Some(connections)
    }

    /// Makes [`Self::was_asked_over`] return false until the node has reported its genesis hash.
    pub(in crate::pool) fn ask_again(&self) {
        lock(&self.at).connections = None;
    }

    /// Returns true if the node had been sent fewer than `calls` calls when it last showed the pool's genesis hash.
    /// Notes `calls`, so that the next call of this function with the same number returns false.
    pub(super) fn take_unidentified_calls(&self, calls: u64) -> bool {
        std::mem::replace(&mut lock(&self.at).calls, calls) != calls
    }
}
