//! The access log: one line for each HTTP request, at debug level. Slow and failed requests are logged at info
//! level, at most a few a second.
//!
//! A batch has one line that sums up its calls. The line never contains the API key itself, the params of a call, or
//! text from a node.

use std::time::Duration;

use tokio::time::Instant;

use super::client::ClientInfo;
use super::log_sampler::LogSampler;
use super::reply::HttpReply;
use crate::gateway::Principal;
use crate::methods::{AnyMethod, Commitment};
use crate::telemetry::trace::RequestSpan;
use crate::telemetry::{Outcome, StaleCause, Trace, method_name};

/// The duration from which a request counts as slow. Even five attempts to get an answer from a usual node take
/// less time.
const SLOW: Duration = Duration::from_secs(1);

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

/// What a line says of a request.
pub(super) struct AccessLine<'a> {
    pub(super) client: &'a ClientInfo,
    pub(super) trace: &'a Trace,
    /// `None` if the request was not authenticated.
    pub(super) principal: Option<&'a Principal>,
    pub(super) reply: &'a HttpReply,
    pub(super) calls: Calls,
    pub(super) bytes: usize,
    pub(super) started: Instant,
}

impl AccessLine<'_> {
    pub(super) fn write(&self, sampler: &LogSampler, span: RequestSpan) {
        let Calls { method, commitment, outcome, count: calls, failed } = self.calls;
        let Self { client, reply, principal, .. } = self;
        let (now, status) = (reply.made_at(), reply.status);
        let took = now.duration_since(self.started);
        let failed_here = failed > 0 || status.is_server_error();
        let (key, name) = principal.map_or(("none", ""), |principal| (principal.id(), principal.name()));
        let explained = reply.explained.as_ref();
        let left_out = if failed_here || took >= SLOW { sampler.take(now) } else { None };
        macro_rules! say {
            ($level:ident $(, $more:ident . $field:ident = $value:expr)?) => {
                tracing::$level!(
                    rpc.method = method,
                    rpc.commitment = commitment,
                    rpc.calls = calls,
                    cache.outcome = outcome,
                    reason = reply.reason(),
                    http.status = status.as_u16(),
                    key.id = key,
                    key.name = name,
                    client.address = client.address.map(tracing::field::display),
                    upstream.name = explained.and_then(|explained| explained.upstream.as_deref()),
                    cache.bound = explained.and_then(|explained| explained.bound).map(StaleCause::as_str),
                    request.id = client.id.as_str(),
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
                ("key.id", key),
                ("request.id", client.id.as_str()),
            ],
            &[
                ("rpc.calls", i64::try_from(calls).unwrap_or(i64::MAX)),
                ("http.response.status_code", status.as_u16().into()),
            ],
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
