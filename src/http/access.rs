//! The access log: one line for each HTTP request, at debug level. Slow and failed requests are logged at info
//! level, at most a few a second.
//!
//! A batch has one line that sums up its calls. The line never contains the API key itself, the params of a call, or
//! text from a node.

use std::net::IpAddr;
use std::time::Duration;

use hyper::StatusCode;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::client::RequestId;
use super::reply::Explained;
use crate::methods::{AnyMethod, Commitment};
use crate::telemetry::trace::RequestSpan;
use crate::telemetry::{Outcome, StaleCause, Trace, method_name};

/// The duration from which a request counts as slow. Even five attempts to get an answer from a usual node take
/// less time.
const SLOW: Duration = Duration::from_secs(1);
/// The maximum number of lines a second at info level. In an outage every request may fail, and the log must not add
/// load.
const PER_SECOND: u32 = 5;

/// The rate limit on the lines of the access log at info level.
#[derive(Debug, Default)]
pub struct LogSampler(Mutex<SampledSecond>);

#[derive(Debug, Default)]
struct SampledSecond {
    began: Option<Instant>,
    lines: u32,
    /// The number of lines suppressed at info level since the last line was written at this level.
    left_out: u64,
}

impl LogSampler {
    /// Returns the number of lines suppressed since the last written line. `None` if the line at `now` is suppressed,
    /// too.
    fn take(&self, now: Instant) -> Option<u64> {
        let mut second = self.0.lock();
        if second.began.is_none_or(|began| now.duration_since(began) >= Duration::from_secs(1)) {
            second.began = Some(now);
            second.lines = 0;
        }
        if second.lines == PER_SECOND {
            second.left_out += 1;
            return None;
        }
        second.lines += 1;
        Some(std::mem::take(&mut second.left_out))
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct CallOutcome {
    pub(super) method: Option<AnyMethod>,
    pub(super) commitment: Option<Commitment>,
    pub(super) outcome: Outcome,
}

/// The summary of the calls of one HTTP request, as texts for the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Calls {
    method: &'static str,
    commitment: &'static str,
    outcome: &'static str,
    count: usize,
    /// The number of calls that ended with [`Outcome::Error`].
    failed: usize,
}

/// The text for a property in which the calls of a batch differ.
const MIXED: &str = "mixed";

impl Calls {
    pub(super) const NONE: Self =
        Self { method: "none", commitment: "none", outcome: "none", count: 0, failed: 0 };

    #[must_use]
    pub(super) fn and(self, call: CallOutcome) -> Self {
        let [method, commitment, outcome] = [
            method_name(call.method),
            call.commitment.map_or("none", Commitment::as_str),
            call.outcome.as_str(),
        ];
        let same = |all: &'static str, one| if self.count == 0 || all == one { one } else { MIXED };
        Self {
            method: same(self.method, method),
            commitment: same(self.commitment, commitment),
            outcome: same(self.outcome, outcome),
            count: self.count + 1,
            failed: self.failed + usize::from(call.outcome == Outcome::Error),
        }
    }
}

pub(super) struct AccessLine<'a> {
    pub(super) request: &'a RequestId,
    pub(super) trace: &'a Trace,
    /// The id of the key. `none` if the request was not authenticated.
    pub(super) key: &'a str,
    /// The name of the key's owner. Empty if the request was not authenticated.
    pub(super) name: &'a str,
    /// The reason for which the whole HTTP request was refused. `None` if it was not refused as a whole.
    pub(super) reason: Option<&'static str>,
    pub(super) status: StatusCode,
    pub(super) calls: Calls,
    pub(super) bytes: usize,
    pub(super) client: Option<IpAddr>,
    /// What a line at debug level tells of the answer beside its outcome.
    pub(super) explained: Option<&'a Explained>,
    pub(super) started: Instant,
    pub(super) ended: Instant,
}

impl AccessLine<'_> {
    /// Writes the line, and ends the request's span.
    pub(super) fn write(&self, sampler: &LogSampler, span: RequestSpan) {
        let Calls { method, commitment, outcome, count: calls, failed } = self.calls;
        let now = self.ended;
        let took = now.duration_since(self.started);
        let failed_here = failed > 0 || self.status.is_server_error();
        let left_out = if failed_here || took >= SLOW { sampler.take(now) } else { None };
        macro_rules! say {
            ($level:ident $(, $more:ident . $field:ident = $value:expr)?) => {
                tracing::$level!(
                    rpc.method = method,
                    rpc.commitment = commitment,
                    rpc.calls = calls,
                    cache.outcome = outcome,
                    reason = self.reason,
                    http.status = self.status.as_u16(),
                    key.id = self.key,
                    key.name = self.name,
                    client.address = self.client.map(tracing::field::display),
                    upstream.name = self.explained.and_then(|explained| explained.upstream.as_deref()),
                    cache.bound = self.explained.and_then(|explained| explained.bound).map(StaleCause::as_str),
                    request.id = self.request.as_str(),
                    trace.id = self.trace.id().map(tracing::field::display),
                    duration_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
                    response_bytes = self.bytes,
                    $($more.$field = $value,)?
                    "request"
                )
            };
        }
        if let Some(left_out) = left_out {
            say!(info, log.left_out = left_out);
        } else {
            say!(debug);
        }
        span.end(
            method,
            failed_here,
            &[
                ("rpc.method", method),
                ("rpc.commitment", commitment),
                ("cache.outcome", outcome),
                ("key.id", self.key),
                ("request.id", self.request.as_str()),
            ],
            &[
                ("rpc.calls", i64::try_from(calls).unwrap_or(i64::MAX)),
                ("http.response.status_code", self.status.as_u16().into()),
            ],
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_above_the_rate_are_counted() {
        let (sampler, start) = (LogSampler::default(), Instant::now());
        let taken: Vec<_> = (0..20).map(|_| sampler.take(start)).collect();
        assert_eq!(taken.iter().filter(|taken| **taken == Some(0)).count(), 5);
        assert_eq!(taken[5..], [None; 15]);
        assert_eq!(sampler.take(start + Duration::from_millis(999)), None);
        assert_eq!(sampler.take(start + Duration::from_secs(1)), Some(16));
        assert_eq!(sampler.take(start + Duration::from_secs(1)), Some(0));
    }

    #[test]
    fn calls_are_summed_up_in_words() {
        let call = |method, outcome| CallOutcome { method, commitment: Some(Commitment::Confirmed), outcome };
        let words = |calls: &[CallOutcome]| {
            let sum = calls.iter().fold(Calls::NONE, |sum, call| sum.and(*call));
            (sum.method, sum.commitment, sum.outcome, sum.count, sum.failed)
        };
        let [block, account] = ["getBlock", "getAccountInfo"].map(AnyMethod::from_name);
        assert_eq!(words(&[]), ("none", "none", "none", 0, 0));
        assert_eq!(words(&[call(block, Outcome::Hit)]), ("getBlock", "confirmed", "hit", 1, 0));
        assert_eq!(words(&[call(None, Outcome::Invalid)]).0, "other");
        let two = [call(block, Outcome::Hit), call(account, Outcome::Error)];
        assert_eq!(words(&two), ("mixed", "confirmed", "mixed", 2, 1));
    }
}
