//! One upstream node: its client, its limits, its answers taken apart and classified.
//!
//! Knows nothing of other nodes and never retries: what a fault means for the call is the pool's to say. Whatever
//! goes wrong here is named by a [`Fault`], which never holds an address: an upstream's URL may be a secret.

pub mod answer;
pub mod client;
pub mod shape;

use std::time::Duration;

pub use answer::{Arrived, Contextual, NodeReply};
pub use client::{BufferBudget, Client};

use crate::telemetry::AttemptResult;

/// Work on longer texts than this leaves the async workers: checking 256 KiB of JSON takes some 200 µs.
pub const OFF_WORKER_BYTES: usize = 256 * 1024;

/// Why an attempt brought no answer of the node's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}", self.result())]
pub enum Fault {
    /// No connection, or it broke before a byte of the answer came.
    Connect,
    /// The connection broke within the answer.
    Truncated,
    /// No whole answer in time.
    Timeout,
    /// 429, with its `Retry-After` where it was given.
    TooManyRequests(Option<Duration>),
    /// Any other status than 2xx.
    Status(u16),
    /// A 200 whose body is no JSON-RPC response.
    BadJson,
    /// A response to another id.
    WrongId,
    /// An error that says nothing but that something broke, or that the node could not read the call.
    UnknownCode,
    /// -32005: the node says that it is not well.
    Unhealthy,
    /// More bytes than `pool.max_response`; no mark against the node.
    TooLarge,
    /// `pool.max_buffered` is used up; no mark against the node.
    BuffersFull,
    /// When the answer came, the node was of another cluster or of none that is known; no mark against the node.
    Foreign,
    /// The call's own deadline passed before the attempt's did; no mark against the node.
    GivenUp,
}

impl Fault {
    /// The fault in the vocabulary of metrics, logs and `data.attempts`; statuses fold into classes.
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

    /// Whether the breaker counts it: what says something of the node's health.
    pub const fn counts_against_node(self) -> bool {
        !matches!(self, Self::TooLarge | Self::BuffersFull | Self::Foreign | Self::GivenUp)
    }

    /// Whether another node may do better; the buffers are those of all nodes.
    pub const fn may_retry(self) -> bool {
        !matches!(self, Self::TooLarge | Self::BuffersFull | Self::GivenUp)
    }
}
