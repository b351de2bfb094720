//! The classes of answers that the freshness rules distinguish.

use crate::methods::{Commitment, Slot};

/// The class of an answer, which decides how long it may be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Account data, token balances, and errors that depend on an account.
    Account(Commitment),
    /// The fee of a message. An answer without a fee is not stored.
    Fee(Commitment),
    /// Vote accounts.
    Votes(Commitment),
    /// Performance samples.
    Samples,
    /// Cluster nodes.
    ClusterNodes,
    /// A final block, or the error -32015 (unsupported transaction version) about a final block.
    BlockFinal,
    /// A block that is confirmed but not final, or the error -32015 (unsupported transaction version) about such a
    /// block.
    BlockConfirmed,
    /// The error -32004: the block does not exist yet at this commitment. The entry expires when the newest
    /// known slot reaches the block's slot.
    NotYet(Slot, Commitment),
    /// A slot that was certainly skipped: a later block names an earlier slot as its parent's.
    Skipped,
    /// A slot that nodes report as skipped. They may only have lost its block. Its TTL is `unconfirmed` in the setting
    /// `cache.ttl.no_block`.
    SkippedUnconfirmed,
}
