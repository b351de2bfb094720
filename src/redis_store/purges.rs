//! The list of purges (removals of cached answers) that all gateways in front of one Solana cluster share.
//!
//! Each part of the store has a copy of the list. A gateway reads no answers from a part whose list it does not
//! know. If one part fails, the gateway still reads from the others.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::StoreTime;

/// The list of purges, as read from the store.
#[derive(Debug)]
pub struct PurgeList {
    /// The lines of the list; empty if there are none.
    pub text: Bytes,
    /// The time of the read, by the store's clock.
    pub read_at: StoreTime,
    /// The time at which the request was sent.
    pub asked_at: Instant,
}

/// A change to the list of purges in the store. Each purge is a line of text. The line begins with a time by the
/// store's clock, in microseconds with 20 digits.
#[derive(Debug)]
pub struct PurgeListChange {
    /// The purges to add, a line each.
    pub add: Vec<String>,
    /// The purges to remove, a line each.
    pub drop: Vec<String>,
    /// The time before which purges are removed as well.
    pub from: StoreTime,
    /// The time after the change at which the store deletes the list, unless it is changed again.
    pub life: Duration,
}
