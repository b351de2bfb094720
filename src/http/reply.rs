//! The reply to a request: its status and its header fields.

use std::io::Write;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, VARY,
    WWW_AUTHENTICATE,
};
use tokio::time::Instant;

use super::body_parts::BodyParts;
use super::in_flight::InFlightPermit;
use crate::cache::CacheStatus;
use crate::coding::Coding;
use crate::error::{Error, ErrorReply};
use crate::gateway::Principal;
use crate::telemetry::StaleCause;

/// The header field with the code and reason of a refusal. Callers may see only this field, because client
/// libraries drop the body of a response that is not 2xx.
const ERROR: HeaderName = HeaderName::from_static("x-slotfront-error");
const UPSTREAM: HeaderName = HeaderName::from_static("x-slotfront-upstream");
const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// The value of `WWW-Authenticate`, which status 401 requires (RFC 9110, 11.6.1). No registered scheme fits, because most
/// clients have the key in their URL.
const CHALLENGE: HeaderValue = HeaderValue::from_static("ApiKey realm=\"slotfront\"");

pub(super) const JSON: &str = "application/json; charset=utf-8";

pub(super) struct HttpReply {
    pub(super) status: StatusCode,
    pub(super) body: BodyParts,
    media: &'static str,
    /// The value of `Cache-Status`. `None` for a refusal by slotfront.
    pub(super) cache: Option<CacheStatus>,
    retry_after: Option<u64>,
    error: Option<(i32, &'static str)>,
    /// The caller whose limits the `RateLimit` fields show, and the time for which the fields are computed.
    pub(super) limits: Option<(Arc<Principal>, Instant)>,
    /// True if the body's content coding depends on `Accept-Encoding`, so that the reply needs `Vary`.
    pub(super) varies: bool,
    pub(super) coding: Option<Coding>,
    pub(super) last: bool,
    /// What the caller is told of the answer beside its status.
    pub(super) explained: Option<Explained>,
    /// The permit of the request, held until the reply is written.
    pub(super) permit: Option<InFlightPermit>,
}

/// Where an answer came from, for callers whose plan allows it and for the log.
#[derive(Debug, Clone)]
pub(super) struct Explained {
    /// The name of the node that gave the answer, now or when it was stored.
    pub(super) upstream: Option<String>,
    /// The bound because of which a stored answer was not served.
    pub(super) bound: Option<StaleCause>,
}

impl HttpReply {
    pub(super) fn json(status: StatusCode, body: BodyParts) -> Self {
        Self {
            status,
            body,
            media: JSON,
            cache: None,
            retry_after: None,
            error: None,
            limits: None,
            varies: false,
            coding: None,
            last: false,
            explained: None,
            permit: None,
        }
    }

    /// Creates a reply in plain text, the form in which a node refuses invalid HTTP requests.
    pub(super) fn text(status: StatusCode, text: impl Into<Bytes>) -> Self {
        let media = "text/plain; charset=utf-8";
        Self { media, ..Self::json(status, BodyParts::from(text.into())) }
    }

    /// Sets the status and the header fields for `wire`, the refusal of the whole request.
    pub(super) fn refuse(&mut self, wire: &ErrorReply) {
        self.status = StatusCode::from_u16(wire.status).unwrap_or_default();
        self.retry_after = wire.retry_after_s;
        self.error = Some((wire.code, wire.reason));
    }

    /// Returns the reason for which the whole request was refused. `None` if it was not refused as a whole.
    pub(super) fn reason(&self) -> Option<&'static str> {
        self.error.map(|(_, reason)| reason)
    }

    /// Replaces the body by `body`, which is the same text compressed with `coding`.
    pub(super) fn set_compressed(&mut self, coding: Coding, body: impl IntoIterator<Item = Bytes>) {
        self.body = body.into_iter().collect();
        (self.varies, self.coding) = (true, Some(coding));
    }

    /// Returns the time at which the reply was made: the time in `limits` if there is one, otherwise the present time.
    /// Reusing a time saves a clock reading.
    pub(super) fn made_at(&self) -> Instant {
        self.limits.as_ref().map_or_else(Instant::now, |(_, now)| *now)
    }

    pub(super) fn last(mut self) -> Self {
        self.last = true;
        self
    }
}

/// The refusal of a request that carries no call, in plain text.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let wire = self.to_reply();
        let mut reply = HttpReply::text(StatusCode::OK, wire.message.clone() + "\n");
        reply.refuse(&wire);
        reply.into_response()
    }
}

impl IntoResponse for HttpReply {
    /// The permit, if there is one, is dropped: who keeps it until the response is written has taken it before.
    fn into_response(self) -> Response {
        // As many as most replies have. hyper keeps the memory for the head of the next request.
        let mut headers = HeaderMap::with_capacity(6);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.media));
        let mut text = Vec::new();
        let mut add = |name: HeaderName, write: &dyn Fn(&mut Vec<u8>)| {
            text.clear();
            write(&mut text);
            // Cannot fail: slotfront makes the values from visible ASCII.
            headers.extend(HeaderValue::from_bytes(&text).ok().map(|value| (name, value)));
        };
        if let Some((code, reason)) = self.error.filter(|_| !self.status.is_success()) {
            add(ERROR, &|out| _ = write!(out, "{code} {reason}"));
        }
        if let Some(status) = &self.cache {
            let bound = self.explained.as_ref().and_then(|explained| explained.bound);
            add(CACHE_STATUS, &|out| {
                status.write(out);
                _ = bound.map(|bound| write!(out, "; detail={}", bound.as_str()));
            });
        }
        if let Some(Explained { upstream: Some(name), .. }) = &self.explained {
            add(UPSTREAM, &|out| out.extend_from_slice(name.as_bytes()));
        }
        if let Some((principal, now)) = &self.limits
            && let Some(policy) = principal.policy()
        {
            add(POLICY, &|out| out.extend_from_slice(policy.as_bytes()));
            add(LIMIT, &|out| principal.write_left(out, *now));
        }
        headers.extend(self.retry_after.map(|seconds| (RETRY_AFTER, seconds.into())));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, CHALLENGE);
        }
        if self.varies {
            headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
        }
        if let Some(coding) = self.coding {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.as_str()));
        }
        if self.last {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let mut response = Response::new(self.body.into_body());
        (*response.status_mut(), *response.headers_mut()) = (self.status, headers);
        response
    }
}
