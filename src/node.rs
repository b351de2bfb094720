//! One upstream node: its client, its limits, and its parsed answers.
//!
//! This module knows nothing of other nodes. It sends a read again if a kept connection was closed under it, and leaves the
//! consequences of all other faults to the pool. Every failure is a [`Fault`], which never holds an address, because an upstream's URL may be a secret.

pub mod answer;
mod body;
pub mod client;
pub mod code;
pub mod rent_epoch;
pub mod shape;
pub mod version;
pub mod websocket;
pub mod words;

use std::time::Duration;

pub use answer::{NodeReply, RawAnswer};
pub use body::BufferBudget;
pub use client::{CallBounds, Client, Resend};
pub use shape::Contextual;

use crate::telemetry::AttemptResult;

/// The length in bytes above which a text is parsed on a blocking thread. Parsing 256 KiB of JSON takes about 200 µs.
pub const OFF_WORKER_BYTES: usize = 256 * 1024;

/// The reason why an attempt brought no usable answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}", self.result())]
pub enum Fault {
    /// The connection could not be opened. Holds the reason, where it has a word of its own.
    NoConnection(AttemptResult),
    /// The connection could not be opened for another reason, or broke before the first byte of the answer.
    Connect,
    /// The connection broke after the first byte of the answer.
    Truncated,
    /// The answer was not complete in time.
    Timeout,
    /// The node refused the call by a rate limit: with HTTP 429, or in [words](words::ROWS) that mean the same. Holds the waiting time of `Retry-After`, at most an hour; `None` if
    /// that header is missing or invalid. Does not count against the node.
    TooManyRequests(Option<Duration>),
    /// The status was neither 2xx nor 429, and the body is no JSON-RPC error.
    Status(u16),
    /// The body is not a JSON-RPC response, or its result does not fit the call.
    BadJson,
    /// The response has another id than the request.
    WrongId,
    /// The node reported an internal error, or rejected the call as malformed.
    UnknownCode,
    /// The node returned [`code::NODE_UNHEALTHY`]: it reports that it is unhealthy.
    Unhealthy,
    /// The body is longer than the limit of the call. Does not count against the node.
    TooLarge,
    /// The limit `pool.max_buffered` is reached, or the caller's share of it. Does not count against the node.
    BuffersFull,
    /// The node was not known to belong to the pool's cluster when the answer came. Does not count against the node.
    Foreign,
    /// The call's own deadline passed before the timeout of the attempt. Does not count against the node.
    GivenUp,
}

impl Fault {
    /// Returns the name of the fault in metrics, logs and `data.attempts`. A status outside of 300 to 399 and of 500 to
    /// 599 counts as 4xx, except those that have words of their own.
    pub const fn result(self) -> AttemptResult {
        match self {
            Self::NoConnection(why) => why,
            Self::Connect => AttemptResult::Connect,
            Self::Truncated => AttemptResult::Reset,
            Self::Timeout => AttemptResult::Timeout,
            Self::TooManyRequests(_) => AttemptResult::Status429,
            Self::Status(300..=399) => AttemptResult::Status3xx,
            Self::Status(500..=599) => AttemptResult::Status5xx,
            Self::Status(401) => AttemptResult::Status401,
            Self::Status(403) => AttemptResult::Status403,
            Self::Status(404) => AttemptResult::Status404,
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_named_by_their_class() {
        for (status, name) in [
            (300, "status_3xx"),
            (301, "status_3xx"),
            (302, "status_3xx"),
            (307, "status_3xx"),
            (308, "status_3xx"),
            (399, "status_3xx"),
            (400, "status_4xx"),
            (401, "status_401"),
            (403, "status_403"),
            (404, "status_404"),
            (499, "status_4xx"),
            (500, "status_5xx"),
            (599, "status_5xx"),
            (600, "status_4xx"),
        ] {
            assert_eq!(Fault::Status(status).result().as_str(), name, "{status}");
        }
    }
}
