//! The list of purges, which all gateways of one cluster add to and read.
//!
//! Each part of the store has a copy. A part that is gone costs only what it held, and no answer is read from a part whose
//! purges are not known.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::StoreTime;

/// The list as it was read.
#[derive(Debug)]
pub struct Listed {
    /// Its lines; empty if there are none.
    pub text: Bytes,
    /// When it was read, by the store.
    pub read_at: StoreTime,
    /// When it was asked for.
    pub asked_at: Instant,
}

/// A change of a list. Each line begins with a moment by the store's clock in 20 digits.
#[derive(Debug)]
pub struct Change {
    /// Lines that the list lacks.
    pub add: Vec<String>,
    /// Lines that are of no use.
    pub drop: Vec<String>,
    /// Lines from before are dropped, too.
    pub from: StoreTime,
    /// How long the list is kept.
    pub life: Duration,
}
