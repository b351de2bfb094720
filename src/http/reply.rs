//! The reply to a request: its status, its header fields, and its body.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use hyper::header::{CONNECTION, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::time::Instant;

use super::in_flight::InFlightPermit;
use super::pieces::Pieces;
use crate::cache::CacheStatus;
use crate::coding::Coding;
use crate::error::ErrorReply;
use crate::gateway::Principal;

/// The field that tells why slotfront refused, since client libraries drop the body of every answer that is not 2xx.
pub(super) const ERROR: &str = "x-slotfront-error";
/// The way in which a key is to be shown (RFC 9110, 11.6.1): nodes have none, and the path has it here.
pub(super) const CHALLENGE: &str = "ApiKey realm=\"slotfront\"";

/// An answer on the hot route, whoever writes it: hyper or the fast path.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: Pieces,
    /// The body's media type.
    media: &'static str,
    /// Where the answer came from; refusals of ours have no such place.
    pub(super) cache: Option<CacheStatus>,
    /// In so many seconds the caller may come back.
    pub(super) retry_after: Option<u64>,
    /// Code and reason of a refusal of ours that has a status of its own.
    pub(super) error: Option<(i32, &'static str)>,
    /// Whose limits are shown, as they are then.
    pub(super) limits: Option<(Arc<Principal>, Instant)>,
    /// Whether another client's coding may differ.
    pub(super) varies: bool,
    /// The body's coding, if it is in one.
    pub(super) coding: Option<Coding>,
    /// The connection ends with it.
    pub(super) last: bool,
    /// The permit of the request, held until the reply is written.
    pub(super) permit: Option<InFlightPermit>,
}

/// The value of a header field, not yet written.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Text(&'a str),
    Number(u64),
    Cache(&'a CacheStatus),
    Left(&'a Principal, Instant),
    Error(i32, &'a str),
}

impl Value<'_> {
    /// Writes it at the end of `out`.
    pub(super) fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => out.extend_from_slice(text.as_bytes()),
            Self::Number(number) => out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
            Self::Cache(status) => status.write(out),
            Self::Left(principal, now) => principal.write_left(out, now),
            Self::Error(code, reason) => {
                out.extend_from_slice(itoa::Buffer::new().format(code).as_bytes());
                out.push(b' ');
                out.extend_from_slice(reason.as_bytes());
            }
        }
    }
}

impl Reply {
    /// JSON.
    pub(super) fn json(status: StatusCode, body: Pieces) -> Self {
        Self {
            status,
            body,
            media: "application/json; charset=utf-8",
            cache: None,
            retry_after: None,
            error: None,
            limits: None,
            varies: false,
            coding: None,
            last: false,
            permit: None,
        }
    }

    /// A node's refusals below JSON-RPC are plain text.
    pub(super) fn text(status: StatusCode, text: impl Into<Bytes>) -> Self {
        let media = "text/plain; charset=utf-8";
        Self { media, ..Self::json(status, Pieces::from(text.into())) }
    }

    /// Takes the status and the fields of a refusal that stands alone.
    pub(super) fn refuse(&mut self, wire: &ErrorReply) {
        self.status = StatusCode::from_u16(wire.status).unwrap_or_default();
        self.retry_after = wire.retry_after_s;
        self.error = (!self.status.is_success()).then_some((wire.code, wire.reason));
    }

    /// The same body in `coding`.
    pub(super) fn packed(&mut self, coding: Coding, body: impl IntoIterator<Item = Bytes>) {
        self.body = body.into_iter().collect();
        (self.varies, self.coding) = (true, Some(coding));
    }

    /// When it was made: one reading of the clock serves all who ask for it at the end of a call.
    pub(super) fn made(&self) -> Instant {
        self.limits.as_ref().map_or_else(Instant::now, |(_, now)| *now)
    }

    /// The same, after which the connection ends.
    pub(super) fn last(mut self) -> Self {
        self.last = true;
        self
    }

    /// Its header fields but those of the connection and of the body's length, in the order in which they are written.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&'static str, Value<'_>)> {
        let limits =
            self.limits.as_ref().and_then(|(principal, now)| Some((principal, principal.policy()?, *now)));
        [
            Some(("content-type", Value::Text(self.media))),
            self.retry_after.map(|seconds| ("retry-after", Value::Number(seconds))),
            self.error.map(|(code, reason)| (ERROR, Value::Error(code, reason))),
            (self.status == StatusCode::UNAUTHORIZED).then_some(("www-authenticate", Value::Text(CHALLENGE))),
            self.cache.as_ref().map(|status| ("cache-status", Value::Cache(status))),
            limits.map(|(_, policy, _)| ("ratelimit-policy", Value::Text(policy))),
            limits.map(|(principal, _, now)| ("ratelimit", Value::Left(principal, now))),
            self.varies.then_some(("vary", Value::Text("accept-encoding"))),
            self.coding.map(|coding| ("content-encoding", Value::Text(coding.as_str()))),
        ]
        .into_iter()
        .flatten()
    }

    /// Returns the reply as hyper takes it. The permit goes along as an extension.
    pub(super) fn into_response(mut self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        for (name, value) in self.fields() {
            let mut text = Vec::with_capacity(64);
            value.write(&mut text);
            // All of them are made here, of visible ASCII.
            if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(text)) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        if self.last {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(permit) = self.permit.take() {
            response.extensions_mut().insert(Arc::new(permit));
        }
        *response.body_mut() = self.body.into_body();
        response
    }
}
