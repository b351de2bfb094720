//! What the pool knows of the cluster of one node.

/// What is known of one node's genesis hash.
#[derive(Debug, Default)]
pub(super) struct ClusterMark {
    /// True if the node has reported the pool's genesis hash, and no later answer puts that in doubt.
    pub(super) is_identified: bool,
    /// True once the node was asked for its genesis hash and has answered, or did not answer in time.
    pub(super) is_asked: bool,
    /// The valid genesis hash that the node reported last, however long ago.
    pub(super) reported: Option<String>,
    /// The calls up to the last report of the pool's hash, or up to the last check for new calls. The connections up to
    /// the last report, or up to the last answer that the node does not serve `getGenesisHash`.
    pub(super) used: NodeUsage,
}

/// The numbers, up to some time, of the calls sent to a node and of the node's connections that have brought an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct NodeUsage {
    pub(super) calls: u64,
    /// The number of connections. `None` if the node must be asked for its genesis hash even without a new connection.
    pub(super) connections: Option<u64>,
}

impl ClusterMark {
    /// Notes that the node has reported the pool's genesis hash. `used` counts the calls and connections of the
    /// node up to the request for the hash.
    pub(super) fn identify(&mut self, used: NodeUsage) {
        (self.is_identified, self.used) = (true, used);
    }
}
