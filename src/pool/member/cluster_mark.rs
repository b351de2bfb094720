//! The check that one node belongs to the pool's Solana cluster, by the genesis hash that the node reports.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::pool::lock;

/// The state of the check that one node belongs to the pool's Solana cluster.
#[derive(Debug, Default)]
pub(in crate::pool) struct ClusterMark {
    /// True if the node has reported the pool's genesis hash, and no later answer puts that in doubt.
    identified: AtomicBool,
    /// True once the node was asked for its genesis hash and has answered, or did not answer in time.
    asked: AtomicBool,
    /// The valid genesis hash that the node reported last, however long ago.
    reported: Mutex<Option<String>>,
    /// The numbers of calls and connections that were noted last. Calls are noted when the node reports the pool's
    /// genesis hash, and at each check for new calls. Connections are noted when the node reports that hash, or
    /// answers that it does not serve `getGenesisHash`.
    at: Mutex<NodeUsage>,
}

/// The numbers, up to some time, of the calls sent to a node and of the node's connections that have brought an
/// answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::pool) struct NodeUsage {
    pub(super) calls: u64,
    /// The number of connections. `None` if the node must be asked for its genesis hash even without a new
    /// connection.
    pub(super) connections: Option<u64>,
}

impl ClusterMark {
    pub(in crate::pool) fn is_identified(&self) -> bool {
        self.identified.load(Ordering::SeqCst)
    }

    pub(in crate::pool) fn reported(&self) -> Option<String> {
        lock(&self.reported).clone()
    }

    pub(in crate::pool) fn set_reported(&self, theirs: &str) {
        *lock(&self.reported) = Some(theirs.to_owned());
    }

    pub(in crate::pool) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    pub(in crate::pool) fn set_asked(&self) {
        self.asked.store(true, Ordering::SeqCst);
    }

    /// Notes that the node has reported the pool's genesis hash. `used` counts the calls and connections of the
    /// node up to the request for the hash.
    pub(in crate::pool) fn set_identified(&self, used: NodeUsage) {
        *lock(&self.at) = used;
        self.identified.store(true, Ordering::SeqCst);
    }

    /// Notes that the node has to report the pool's genesis hash again.
    pub(in crate::pool) fn set_unidentified(&self) {
        self.identified.store(false, Ordering::SeqCst);
    }

    /// Notes that the node has answered that it does not serve `getGenesisHash`. `used` counts the calls and
    /// connections of the node up to that request. The node is asked again after a new connection.
    pub(in crate::pool) fn set_asked_over(&self, used: NodeUsage) {
        lock(&self.at).connections = used.connections;
    }

    /// Returns true if the node has no new connections since it reported the pool's genesis hash, or answered that
    /// it does not serve `getGenesisHash`. `connections` is the number of the node's connections so far.
    pub(super) fn was_asked_over(&self, connections: u64) -> bool {
        lock(&self.at).connections == Some(connections)
    }

    /// Makes [`Self::was_asked_over`] return false until the node reports the pool's genesis hash, or answers that
    /// it does not serve `getGenesisHash`.
    pub(in crate::pool) fn ask_again(&self) {
        lock(&self.at).connections = None;
    }

    /// Notes `calls`, the number of calls sent to the node so far. Returns true if it differs from the number noted
    /// before, here or by [`Self::set_identified`].
    pub(super) fn take_unidentified_calls(&self, calls: u64) -> bool {
        std::mem::replace(&mut lock(&self.at).calls, calls) != calls
    }
}
