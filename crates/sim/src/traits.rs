//! The traits of one simulated node on which its answers depend, beside the chain.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use slotfront_rpc::methods::{Commitment, Slot};

/// The traits of one node. Those that a test may change are set by [`Node`](super::Node).
pub(crate) struct NodeTraits {
    index: usize,
    /// The address of each node of the cluster, once it listens.
    addresses: Arc<[OnceLock<SocketAddr>]>,
    pub(crate) first_available: AtomicU64,
    pub(crate) healthy: AtomicBool,
    pub(crate) full_api: AtomicBool,
    pub(crate) history: AtomicBool,
    pub(crate) reads_ahead: AtomicBool,
}

impl NodeTraits {
    /// Returns the traits of a good node.
    pub(crate) fn new(index: usize, addresses: Arc<[OnceLock<SocketAddr>]>) -> Self {
        Self {
            index,
            addresses,
            first_available: AtomicU64::new(0),
            healthy: AtomicBool::new(true),
            full_api: AtomicBool::new(true),
            history: AtomicBool::new(true),
            reads_ahead: AtomicBool::new(false),
        }
    }

    /// The position in the cluster, from 0.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// The addresses of the cluster's nodes, by their positions.
    pub(crate) fn peers(&self) -> &[OnceLock<SocketAddr>] {
        &self.addresses
    }

    pub(crate) fn first_available(&self) -> Slot {
        self.first_available.load(Ordering::Relaxed)
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    pub(crate) fn full_api(&self) -> bool {
        self.full_api.load(Ordering::Relaxed)
    }

    pub(crate) fn keeps_history(&self) -> bool {
        self.history.load(Ordering::Relaxed)
    }

    /// The slot at which the account at `position` of an answer is read.
    pub(crate) fn reads_at(&self, slot: Slot, commitment: Commitment, position: usize) -> Slot {
        let ahead = commitment == Commitment::Finalized
            && position.is_multiple_of(2)
            && self.reads_ahead.load(Ordering::Relaxed);
        slot + u64::from(ahead)
    }
}
