//! The properties of a single simulated node that affect its answers, such as its health. All nodes share one chain.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use slotfront_rpc::methods::{Commitment, Slot};

/// The version that simulated nodes report.
pub(crate) const VERSION: &str = "4.0.0";
/// The version that simulated Firedancer nodes report.
const FIREDANCER_VERSION: &str = "0.806.40000";

/// The properties of a node. The setters of [`Node`](super::Node) change them for tests.
pub(crate) struct NodeTraits {
    index: usize,
    /// The addresses of the cluster's nodes, once they listen.
    addresses: Arc<[OnceLock<SocketAddr>]>,
    pub(crate) first_available: AtomicU64,
    /// The slots whose blocks the node has lost. Empty by default.
    pub(crate) hole: RwLock<Range<Slot>>,
    pub(crate) healthy: AtomicBool,
    pub(crate) full_api: AtomicBool,
    pub(crate) history: AtomicBool,
    pub(crate) reads_ahead: AtomicBool,
    pub(crate) firedancer: AtomicBool,
    pub(crate) version: RwLock<&'static str>,
    /// The number of subscriptions that clients have made.
    subscriptions: AtomicU64,
}

impl NodeTraits {
    /// Returns the properties of a healthy node.
    pub(crate) fn new(index: usize, addresses: Arc<[OnceLock<SocketAddr>]>) -> Self {
        Self {
            index,
            addresses,
            first_available: AtomicU64::new(0),
            hole: RwLock::new(0..0),
            healthy: AtomicBool::new(true),
            full_api: AtomicBool::new(true),
            history: AtomicBool::new(true),
            reads_ahead: AtomicBool::new(false),
            firedancer: AtomicBool::new(false),
            version: RwLock::new(VERSION),
            subscriptions: AtomicU64::new(0),
        }
    }

    /// Returns the position of the node in the cluster, from 0.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Returns the addresses of the cluster's nodes, by position.
    pub(crate) fn peers(&self) -> &[OnceLock<SocketAddr>] {
        &self.addresses
    }

    /// Returns the id of a new subscription.
    pub(crate) fn next_subscription(&self) -> u64 {
        self.subscriptions.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn first_available(&self) -> Slot {
        self.first_available.load(Ordering::Relaxed)
    }

    /// Returns true if the node has lost the block of `slot`.
    pub(crate) fn has_lost(&self, slot: Slot) -> bool {
        self.hole.read().unwrap_or_else(PoisonError::into_inner).contains(&slot)
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

    /// Returns true if the node behaves like a Firedancer node.
    pub(crate) fn is_firedancer(&self) -> bool {
        self.firedancer.load(Ordering::Relaxed)
    }

    /// Returns the version that the node reports.
    pub(crate) fn version(&self) -> &'static str {
        if self.is_firedancer() {
            return FIREDANCER_VERSION;
        }
        *self.version.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the slot at which the node reads the account at `position` of a list. `slot` is the context slot of
    /// the answer. The two slots differ only after [`Node::set_reads_ahead`](super::Node::set_reads_ahead).
    pub(crate) fn reads_at(&self, slot: Slot, commitment: Commitment, position: usize) -> Slot {
        let ahead = commitment == Commitment::Finalized
            && position.is_multiple_of(2)
            && self.reads_ahead.load(Ordering::Relaxed);
        slot + u64::from(ahead)
    }
}
