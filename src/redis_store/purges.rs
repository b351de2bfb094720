//! The list of purges (removals of cached answers) that all gateways in front of one Solana cluster share.
//!
//! Each part of the store has a copy of the list. A gateway reads no answers from a part whose list it does not
//! know, so a failed part affects only itself.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::StoreTime;

/// The list of purges as it was read.
#[derive(Debug)]
pub struct PurgeList {
    /// The lines of the list; empty if there are none.
    pub text: Bytes,
    /// The store's time of the read.
    pub read_at: StoreTime,
    /// The time at which the request was sent.
    pub asked_at: Instant,
}

/// A change of a list of purges. Each line begins with a time of the store in microseconds, in 20 digits.
#[derive(Debug)]
pub struct PurgeListChange {
    /// The lines to add.
    pub add: Vec<String>,
    /// The lines to remove.
    pub drop: Vec<String>,
    /// Lines with an earlier time than this are removed as well.
    pub from: StoreTime,
    /// The lifetime of the list.
    pub life: Duration,
}
