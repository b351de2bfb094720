//! Every refusal by slotfront itself, mapped once to HTTP status, JSON-RPC code, message and metric reason.
//!
//! Nodes use -32001 to -32022 for their own errors. Those pass through byte for byte and are not created here. The
//! codes of slotfront are -32090 to -32096. They lie within JSON-RPC's range for server errors, and no node uses them.

use std::time::Duration;

use crate::config::AnswerLimit;
use crate::jsonrpc::envelope::EnvelopeError;
use crate::jsonrpc::{Id, reply};
use crate::methods::ParamError;
use crate::telemetry::{AttemptResult, Outcome, Unusable};

/// The JSON-RPC codes with which slotfront itself answers.
pub mod code {
    /// The method is unknown, writes to the cluster, or is in no `[methods]`.
    pub const METHOD_NOT_FOUND: i32 = -32601;
    /// The key is unknown, expired or revoked.
    pub const UNAUTHORIZED: i32 = -32090;
    /// The key has no permission for the call.
    pub const FORBIDDEN: i32 = -32091;
    /// A rate limit or a quota is exceeded.
    pub const TOO_MANY_REQUESTS: i32 = -32092;
    /// A batch has too many calls, or its answers have too many bytes together.
    pub const TOO_LARGE: i32 = -32093;
    /// Too many requests are in flight, too many bytes of bodies or answers are in memory, or nodes work on too many scans.
    pub const OVERLOADED: i32 = -32094;
    pub const NO_UPSTREAM: i32 = -32095;
    /// The call's deadline has passed.
    pub const TIMED_OUT: i32 = -32096;
}

const TWO_KEYS: &str = "Unauthorized: the request names two API keys that differ, in its path or header";

/// A refusal by slotfront itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The request is not JSON, or not a JSON-RPC 2.0 call that a node would carry out.
    Envelope(EnvelopeError),
    /// The method is none that slotfront answers, and that no operator has listed.
    MethodNotFound,
    /// The method writes to the cluster, as `sendTransaction` does. Holds the method's name.
    Write(&'static str),
    /// The subscription needs the WebSocket of a node. Holds the method's name.
    NoSocket(&'static str),
    /// The params are refused by every node version. Holds the node's error.
    Params(ParamError),
    /// The key is unknown, expired or revoked. The answer does not say which of the three it is.
    Unauthorized,
    /// The request names two keys that differ.
    TwoKeys,
    /// The key has no permission. Holds what was refused, such as a method.
    Forbidden(String),
    /// A limit of the key or of the caller's address is exceeded.
    Limited {
        /// The limit, as text for people: `"100 calls a second"`.
        limit: String,
        /// The metric reason: `rate`, `method`, `day`, `month`, `connections` or `failed_keys`.
        reason: &'static str,
        /// The time after which the call may succeed.
        retry_after: Duration,
    },
    /// The batch has more calls than allowed.
    BatchTooLarge {
        calls: usize,
        /// The maximum number of calls in a batch.
        limit: usize,
    },
    /// The answers of the batch are too long together. Holds their limit.
    AnswersTooLarge(AnswerLimit),
    /// Too many requests are in flight, too many bytes of bodies or answers are in memory, or nodes work on too many scans.
    Overloaded,
    /// No upstream could answer. Holds every failed attempt. If all were refused by rate limits, the caller gets the
    /// shortest time after which a node may answer.
    NoUpstream(Vec<FailedAttempt>),
    /// The call took longer than allowed. Holds the allowed time.
    TimedOut(Duration),
}

impl From<EnvelopeError> for Error {
    fn from(error: EnvelopeError) -> Self {
        Self::Envelope(error)
    }
}

/// A failed attempt at one node, as an element of `data.attempts`. The element does not show the node's address.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct FailedAttempt {
    pub upstream: String,
    pub reason: Reason,
    #[serde(flatten)]
    pub limit: Option<AnswerLimit>,
    /// The time after which the call may succeed, if the node refused it by a rate limit. `None` for other reasons.
    #[serde(skip)]
    pub retry_after: Option<Duration>,
}

/// The reason why a node gave no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// What the attempt came to, such as `connect` or `status_429`.
    Attempt(AttemptResult),
    /// Why the node was not asked, such as `busy`.
    NotAsked(Unusable),
}

impl From<AttemptResult> for Reason {
    fn from(result: AttemptResult) -> Self {
        Self::Attempt(result)
    }
}

impl From<Unusable> for Reason {
    fn from(why: Unusable) -> Self {
        Self::NotAsked(why)
    }
}

impl serde::Serialize for Reason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Attempt(result) => result.as_str(),
            Self::NotAsked(why) => why.as_str(),
        })
    }
}

impl FailedAttempt {
    /// Returns an attempt at `upstream` that tells nothing but its reason.
    pub fn new(upstream: String, reason: impl Into<Reason>) -> Self {
        Self { upstream, reason: reason.into(), limit: None, retry_after: None }
    }

    /// Returns true if the attempt ended at a limit while its node may have been at work.
    pub fn is_at_limit(&self) -> bool {
        matches!(self.reason, Reason::Attempt(result) if result.is_limit())
    }

    /// Returns true if the attempt came to `result`.
    pub fn is(&self, result: AttemptResult) -> bool {
        self.reason == Reason::Attempt(result)
    }
}

/// A refusal in the form in which the caller gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorReply {
    /// The HTTP status of a single call. Within a batch the status is 200.
    pub status: u16,
    pub code: i32,
    pub message: String,
    /// The JSON-RPC `data`, as JSON text. `None` leaves the member out.
    pub data: Option<String>,
    /// The value of `Retry-After`, in whole seconds. `None` leaves the header out.
    pub retry_after_s: Option<u64>,
    pub reason: &'static str,
}

impl Error {
    /// Appends to `out` the JSON-RPC response to the refused call with the id `id`.
    pub fn write_response(&self, out: &mut Vec<u8>, id: &Id) {
        if let Self::Envelope(error) = self {
            return reply::envelope_refusal(out, id, *error);
        }
        let ErrorReply { code, message, data, .. } = self.to_reply();
        reply::refusal(out, id, code, &message, data.as_deref());
    }

    /// Returns the outcome under which the metrics count the refused call.
    #[deny(clippy::wildcard_enum_match_arm)]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Envelope(_)
            | Self::MethodNotFound
            | Self::Write(_)
            | Self::NoSocket(_)
            | Self::Params(_)
            | Self::BatchTooLarge { .. }
            | Self::AnswersTooLarge(_) => Outcome::Invalid,
            Self::Unauthorized | Self::TwoKeys | Self::Forbidden(_) => Outcome::Denied,
            Self::Limited { .. } => Outcome::Limited,
            Self::Overloaded | Self::NoUpstream(_) | Self::TimedOut(_) => Outcome::Error,
        }
    }

    /// Returns the status, code and message that the caller gets. No other function maps refusals.
    #[deny(clippy::wildcard_enum_match_arm)]
    pub fn to_reply(&self) -> ErrorReply {
        let wire = |status, code, message: &str, reason| ErrorReply {
            status,
            code,
            message: message.to_owned(),
            data: None,
            retry_after_s: None,
            reason,
        };
        match self {
            Self::Envelope(error) => {
                let reason = match error {
                    EnvelopeError::Parse => "not_json",
                    EnvelopeError::InvalidRequest => "not_a_call",
                    EnvelopeError::UnsupportedVersion => "version",
                };
                wire(200, error.code(), error.message(), reason)
            }
            Self::MethodNotFound => wire(200, code::METHOD_NOT_FOUND, "Method not found", "unknown_method"),
            Self::Write(method) => wire(
                200,
                code::METHOD_NOT_FOUND,
                &format!(
                    "Method not found: {method} writes, and this endpoint only reads; send it to an RPC node directly"
                ),
                "write_method",
            ),
            Self::NoSocket(method) => wire(
                200,
                code::METHOD_NOT_FOUND,
                &format!(
                    "Method not found: {method} needs the WebSocket of a node, and no upstream has a ws_url"
                ),
                "no_socket",
            ),
            Self::Params(e) => ErrorReply {
                data: e.data.as_ref().map(|d| serde_json::Value::from(d.as_str()).to_string()),
                ..wire(200, e.code, &e.message, "params")
            },
            Self::Unauthorized => wire(
                401,
                code::UNAUTHORIZED,
                "Unauthorized: unknown, expired or revoked API key",
                "unauthorized",
            ),
            Self::TwoKeys => wire(401, code::UNAUTHORIZED, TWO_KEYS, "two_keys"),
            Self::Forbidden(what) => wire(
                403,
                code::FORBIDDEN,
                &format!("Forbidden: {what} is not allowed for this API key"),
                "forbidden",
            ),
            Self::Limited { limit, reason, retry_after } => ErrorReply {
                data: Some(format!(r#"{{"retryAfterMs":{}}}"#, millis(*retry_after))),
                retry_after_s: Some(whole_seconds(*retry_after)),
                ..wire(429, code::TOO_MANY_REQUESTS, &format!("Too many requests: {limit}"), reason)
            },
            Self::BatchTooLarge { calls, limit } => wire(
                413,
                code::TOO_LARGE,
                &format!("Request too large: a batch of {calls} calls, the limit is {limit}"),
                "batch",
            ),
            Self::AnswersTooLarge(limit) => ErrorReply {
                data: Some(serde_json::json!(limit).to_string()),
                ..wire(
                    413,
                    code::TOO_LARGE,
                    &format!(
                        "Request too large: the answers of this batch exceed {limit}; send fewer calls in a batch"
                    ),
                    "batch_answers",
                )
            },
            Self::Overloaded => ErrorReply {
                retry_after_s: Some(1),
                ..wire(503, code::OVERLOADED, "Overloaded", "overloaded")
            },
            Self::NoUpstream(attempts) => {
                let mut data = serde_json::json!({ "attempts": attempts });
                let wait = shortest_wait(attempts);
                if let Some(wait) = wait {
                    data["retryAfterMs"] = serde_json::json!(millis(wait));
                }
                // Client libraries wait and call again after status 429 only.
                let status = if wait.is_some() { 429 } else { 502 };
                let limit = attempts.iter().find_map(|attempt| attempt.limit);
                let cause =
                    limit.map(|limit| format!(": the answer is longer than {limit}")).unwrap_or_default();
                let message = format!("No upstream could answer{cause}");
                ErrorReply {
                    data: Some(data.to_string()),
                    retry_after_s: wait.map(whole_seconds),
                    ..wire(status, code::NO_UPSTREAM, &message, "no_upstream")
                }
            }
            Self::TimedOut(after) => {
                wire(504, code::TIMED_OUT, &format!("Timed out after {} ms", after.as_millis()), "timed_out")
            }
        }
    }
}

/// Returns the shortest time after which a node may answer. `None` unless every node that was asked refused the call by a
/// rate limit.
fn shortest_wait(attempts: &[FailedAttempt]) -> Option<Duration> {
    let waits: Option<Vec<Duration>> = attempts.iter().map(|attempt| attempt.retry_after).collect();
    waits?.into_iter().min()
}

/// Returns whole milliseconds for `data.retryAfterMs`, where 0 would mean "at once".
fn millis(wait: Duration) -> u64 {
    wait.as_millis().max(1).try_into().unwrap_or(u64::MAX)
}

/// Rounds up to whole seconds for `Retry-After`, where 0 would mean "at once".
fn whole_seconds(wait: Duration) -> u64 {
    wait.as_millis().div_ceil(1000).max(1).try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::AnyMethod;

    #[test]
    fn errors_match_the_table() {
        let attempt = |upstream: &str, result: AttemptResult, retry_after_s: Option<u64>| {
            let retry_after = retry_after_s.map(Duration::from_secs);
            FailedAttempt { retry_after, ..FailedAttempt::new(upstream.to_owned(), result) }
        };
        let refusal = |upstream, after_s| attempt(upstream, AttemptResult::Status429, Some(after_s));
        let pool = crate::config::Config::dev(
            "127.0.0.1:0".parse().unwrap(),
            "127.0.0.1:0".parse().unwrap(),
            vec![],
        )
        .pool;
        let limit = pool.longest_answer(AnyMethod::Send);
        let long = FailedAttempt { limit: Some(limit), ..attempt("a", AttemptResult::TooLarge, None) };
        let (refused, soon) = (refusal("a", 60), refusal("b", 2));
        let table: Vec<String> = [
            Error::Envelope(EnvelopeError::Parse),
            Error::Envelope(EnvelopeError::InvalidRequest),
            Error::Envelope(EnvelopeError::UnsupportedVersion),
            Error::MethodNotFound,
            Error::Write("sendTransaction"),
            Error::NoSocket("logsSubscribe"),
            Error::Params(ParamError {
                code: -32602,
                message: "Invalid params".to_owned(),
                data: Some("why".to_owned()),
            }),
            Error::Unauthorized,
            Error::Forbidden("getBlock".to_owned()),
            Error::Limited {
                limit: "2 calls a second".to_owned(),
                reason: "rate",
                retry_after: Duration::from_millis(1001),
            },
            Error::BatchTooLarge { calls: 4, limit: 3 },
            Error::AnswersTooLarge(limit),
            Error::Overloaded,
            Error::NoUpstream(vec![refused.clone(), attempt("b", AttemptResult::Timeout, None)]),
            Error::NoUpstream(vec![refused, soon]),
            Error::NoUpstream(vec![long]),
            Error::NoUpstream(Vec::new()),
            Error::TimedOut(Duration::from_secs(30)),
        ]
        .iter()
        .map(|error| {
            let ErrorReply { status, code, message, data, retry_after_s, reason } = error.to_reply();
            let data = data.map(|data| format!(" {data}")).unwrap_or_default();
            let wait = retry_after_s.map(|seconds| format!(" Retry-After: {seconds}")).unwrap_or_default();
            format!("{status} {code} {reason}: {message}{data}{wait}")
        })
        .collect();
        insta::assert_snapshot!(table.join("\n"), @r#"
        200 -32700 not_json: Parse error
        200 -32600 not_a_call: Invalid request
        200 -32600 version: Unsupported JSON-RPC protocol version
        200 -32601 unknown_method: Method not found
        200 -32601 write_method: Method not found: sendTransaction writes, and this endpoint only reads; send it to an RPC node directly
        200 -32601 no_socket: Method not found: logsSubscribe needs the WebSocket of a node, and no upstream has a ws_url
        200 -32602 params: Invalid params "why"
        401 -32090 unauthorized: Unauthorized: unknown, expired or revoked API key
        403 -32091 forbidden: Forbidden: getBlock is not allowed for this API key
        429 -32092 rate: Too many requests: 2 calls a second {"retryAfterMs":1001} Retry-After: 2
        413 -32093 batch: Request too large: a batch of 4 calls, the limit is 3
        413 -32093 batch_answers: Request too large: the answers of this batch exceed 67108864 bytes (pool.max_response); send fewer calls in a batch {"limit":67108864,"setting":"pool.max_response"}
        503 -32094 overloaded: Overloaded Retry-After: 1
        502 -32095 no_upstream: No upstream could answer {"attempts":[{"reason":"status_429","upstream":"a"},{"reason":"timeout","upstream":"b"}]}
        429 -32095 no_upstream: No upstream could answer {"attempts":[{"reason":"status_429","upstream":"a"},{"reason":"status_429","upstream":"b"}],"retryAfterMs":2000} Retry-After: 2
        502 -32095 no_upstream: No upstream could answer: the answer is longer than 67108864 bytes (pool.max_response) {"attempts":[{"limit":67108864,"reason":"too_large","setting":"pool.max_response","upstream":"a"}]}
        502 -32095 no_upstream: No upstream could answer {"attempts":[]}
        504 -32096 timed_out: Timed out after 30000 ms
        "#);
    }
}
