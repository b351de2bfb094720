//! One upstream node: its client, its limits, and its parsed answers.
//!
//! This module knows nothing of other nodes and never retries: the pool decides the consequences of a fault.
//! Every failure is a [`Fault`], which never holds an address, because an upstream's URL may be a secret.

pub mod answer;
pub mod client;
pub mod shape;

use std::time::Duration;

pub use answer::{Contextual, NodeReply, RawAnswer};
pub use client::{BufferBudget, Client};

use crate::telemetry::AttemptResult;

/// Work on longer texts leaves the async workers: checking 256 KiB of JSON takes some 200 µs.
pub const OFF_WORKER_BYTES: usize = 256 * 1024;

/// The reason why an attempt brought no answer of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}", self.result())]
pub enum Fault {
    /// No connection, or it broke before the first byte of the answer.
    Connect,
    /// The connection broke within the answer.
    Truncated,
    /// No complete answer in time.
    Timeout,
    /// Status 429, with its `Retry-After` if there was one.
    TooManyRequests(Option<Duration>),
    /// Any other status than 2xx.
    Status(u16),
    /// A 200 whose body is not a JSON-RPC response.
    BadJson,
    /// A response to another id.
    WrongId,
    /// An error that only means that something broke, or that the node could not parse the call.
    UnknownCode,
    /// The error -32005: the node reports that it is unhealthy.
    Unhealthy,
    /// More bytes than `pool.max_response`. Does not count against the node.
    TooLarge,
    /// The limit `pool.max_buffered` is reached. Does not count against the node.
    BuffersFull,
    /// The node belonged to another or an unknown cluster when the answer came. Does not count against the
    /// node.
    Foreign,
    /// The call's own deadline passed before that of the attempt. Does not count against the node.
    GivenUp,
}

impl Fault {
    /// Returns the name of the fault in metrics, logs and `data.attempts`. Statuses are grouped into classes.
    pub const fn result(self) -> AttemptResult {
        match self {
            Self::Connect => AttemptResult::Connect,
            Self::Truncated => AttemptResult::Reset,
            Self::Timeout => AttemptResult::Timeout,
            Self::TooManyRequests(_) => AttemptResult::Status429,
            Self::Status(500..=599) => AttemptResult::Status5xx,
            Self::Status(_) => AttemptResult::Status4xx,
            Self::BadJson => AttemptResult::BadJson,
            Self::WrongId => AttemptResult::WrongId,
            Self::UnknownCode => AttemptResult::UnknownCode,
            Self::Unhealthy => AttemptResult::Unhealthy,
            Self::TooLarge => AttemptResult::TooLarge,
            Self::BuffersFull => AttemptResult::BuffersFull,
            Self::Foreign => AttemptResult::Foreign,
            Self::GivenUp => AttemptResult::Cancelled,
        }
    }

    /// Returns true if the breaker counts the fault, because it says something about the node's health.
    pub const fn counts_against_node(self) -> bool {
        !matches!(self, Self::TooLarge | Self::BuffersFull | Self::Foreign | Self::GivenUp)
    }

    /// Returns true if another node may do better. The buffers are shared by all nodes.
    pub const fn may_retry(self) -> bool {
        !matches!(self, Self::TooLarge | Self::BuffersFull | Self::GivenUp)
    }
}
