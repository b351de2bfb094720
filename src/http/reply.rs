//! The reply to a request: its status, its header fields, and its body.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use hyper::body::{Frame, SizeHint};
use hyper::header::{CONNECTION, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::time::Instant;

use super::in_flight::InFlightPermit;
use crate::cache::CacheStatus;
use crate::coding::Coding;
use crate::error::{Error, ErrorReply};
use crate::gateway::Principal;
use crate::telemetry::StaleCause;

/// The header field with the code and reason of a refusal. Callers may see only this field, because client
/// libraries drop the body of a response that is not 2xx.
pub(super) const ERROR: &str = "x-slotfront-error";
/// The header field with the name of the node that gave the answer.
pub(super) const UPSTREAM: &str = "x-slotfront-upstream";
/// The value of `WWW-Authenticate`, which status 401 requires (RFC 9110, 11.6.1). No registered scheme fits, because most
/// clients have the key in their URL.
pub(super) const CHALLENGE: &str = "ApiKey realm=\"slotfront\"";

pub(super) const JSON: &str = "application/json; charset=utf-8";

/// A reply to a request. Either hyper or the module `h1` writes it to the connection.
pub(super) struct HttpReply {
    pub(super) status: StatusCode,
    pub(super) body: BodyParts,
    media: &'static str,
    /// The value of `Cache-Status`. `None` for a refusal by slotfront.
    pub(super) cache: Option<CacheStatus>,
    pub(super) retry_after: Option<u64>,
    /// The JSON-RPC code and the reason of a refusal that is not sent with status 200.
    pub(super) error: Option<(i32, &'static str)>,
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

#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Text(&'a str),
    Number(u64),
    /// The status, and the bound that it was beyond, if the caller may know it.
    Cache(&'a CacheStatus, Option<StaleCause>),
    RateLimit(&'a Principal, Instant),
    Error(i32, &'a str),
}

impl Value<'_> {
    pub(super) fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => out.extend_from_slice(text.as_bytes()),
            Self::Number(number) => out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
            Self::Cache(status, bound) => {
                status.write(out);
                if let Some(bound) = bound {
                    out.extend_from_slice(b"; detail=");
                    out.extend_from_slice(bound.as_str().as_bytes());
                }
            }
            Self::RateLimit(principal, now) => principal.write_left(out, now),
            Self::Error(code, reason) => {
                out.extend_from_slice(itoa::Buffer::new().format(code).as_bytes());
                out.push(b' ');
                out.extend_from_slice(reason.as_bytes());
            }
        }
    }
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

    /// Creates the refusal of a request that carries no call, in plain text.
    pub(super) fn refusal(error: &Error) -> Self {
        let wire = error.to_reply();
        let mut reply = Self::text(StatusCode::OK, wire.message.clone() + "\n");
        reply.refuse(&wire);
        reply
    }

    /// Sets the status and the header fields for `wire`, the refusal of the whole request.
    pub(super) fn refuse(&mut self, wire: &ErrorReply) {
        self.status = StatusCode::from_u16(wire.status).unwrap_or_default();
        self.retry_after = wire.retry_after_s;
        self.error = (!self.status.is_success()).then_some((wire.code, wire.reason));
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

    fn bound(&self) -> Option<StaleCause> {
        self.explained.as_ref()?.bound
    }

    fn upstream(&self) -> Option<&str> {
        self.explained.as_ref()?.upstream.as_deref()
    }

    /// Returns the header fields in the order of writing. The writer adds `Connection`, `Content-Length`, `Date` and
    /// the request id.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&'static str, Value<'_>)> {
        let limits =
            self.limits.as_ref().and_then(|(principal, now)| Some((principal, principal.policy()?, *now)));
        [
            Some(("content-type", Value::Text(self.media))),
            self.retry_after.map(|seconds| ("retry-after", Value::Number(seconds))),
            self.error.map(|(code, reason)| (ERROR, Value::Error(code, reason))),
            (self.status == StatusCode::UNAUTHORIZED).then_some(("www-authenticate", Value::Text(CHALLENGE))),
            self.cache.as_ref().map(|status| ("cache-status", Value::Cache(status, self.bound()))),
            self.upstream().map(|name| (UPSTREAM, Value::Text(name))),
            limits.map(|(_, policy, _)| ("ratelimit-policy", Value::Text(policy))),
            limits.map(|(principal, _, now)| ("ratelimit", Value::RateLimit(principal, now))),
            self.varies.then_some(("vary", Value::Text("accept-encoding"))),
            self.coding.map(|coding| ("content-encoding", Value::Text(coding.as_str()))),
        ]
        .into_iter()
        .flatten()
    }

    /// Converts the reply into a hyper response. The permit becomes an extension of the response.
    pub(super) fn into_response(mut self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        for (name, value) in self.fields() {
            let mut text = Vec::with_capacity(64);
            value.write(&mut text);
            // Cannot fail: slotfront makes the values from visible ASCII.
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

/// The longest body, in bytes, that is copied into one buffer. For a longer body, writing the pieces costs less
/// than copying them.
pub(super) const JOINED_BYTES: usize = 16 * 1024;

/// The pieces of one body, in order. A long answer is sent as slices of the cached text, without a copy. Bytes that were
/// sent are removed from the front.
#[derive(Debug, Clone, Default)]
pub(super) struct BodyParts {
    pieces: VecDeque<Bytes>,
    left: usize,
}

impl BodyParts {
    pub(super) fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.left += piece.len();
            self.pieces.push_back(piece);
        }
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.left += other.left;
        self.pieces.append(&mut other.pieces);
    }

    /// Returns the length of the remaining pieces in bytes.
    pub(super) fn len(&self) -> usize {
        self.left
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Converts the pieces into a body of known length. A body of up to 16 KiB becomes one buffer.
    pub(super) fn into_body(self) -> Body {
        if self.left > JOINED_BYTES { Body::new(self) } else { Body::from(self.joined()) }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.pieces.iter()
    }

    /// Returns the first and the last piece. `None` if there are fewer than two pieces.
    pub(super) fn first_and_last(&self) -> Option<(Bytes, Bytes)> {
        let (first, last) = (self.pieces.front()?, self.pieces.back()?);
        (self.pieces.len() > 1).then(|| (first.clone(), last.clone()))
    }

    /// Returns the remaining bytes in one piece. Copies them unless there is only one piece.
    pub(super) fn joined(&self) -> Bytes {
        if let (Some(only), 1) = (self.pieces.front(), self.pieces.len()) {
            return only.clone();
        }
        let mut joined = BytesMut::with_capacity(self.left);
        for piece in &self.pieces {
            joined.extend_from_slice(piece);
        }
        joined.freeze()
    }

    /// Removes `bytes` bytes from the front.
    ///
    /// # Panics
    /// Fewer than `bytes` bytes remain.
    pub(super) fn advance(&mut self, mut bytes: usize) {
        self.left -= bytes;
        while bytes > 0 {
            let front = &mut self.pieces[0];
            if bytes < front.len() {
                bytes::Buf::advance(front, bytes);
                return;
            }
            bytes -= front.len();
            self.pieces.pop_front();
        }
    }
}

impl From<Bytes> for BodyParts {
    fn from(piece: Bytes) -> Self {
        std::iter::once(piece).collect()
    }
}

impl FromIterator<Bytes> for BodyParts {
    fn from_iter<I: IntoIterator<Item = Bytes>>(all: I) -> Self {
        let mut pieces = Self::default();
        all.into_iter().for_each(|piece| pieces.push(piece));
        pieces
    }
}

impl hyper::body::Body for BodyParts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.pieces.pop_front();
        self.left -= piece.as_ref().map_or(0, Bytes::len);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use hyper::body::Body as _;

    use super::*;

    #[tokio::test]
    async fn long_bodies_keep_their_pieces() {
        for (size, frames) in [(100, 1), (JOINED_BYTES, 3)] {
            let mut pieces = BodyParts::default();
            for piece in [vec![b'a'; 10], vec![b'b'; size], vec![b'c'; 10]] {
                pieces.push(piece.into());
            }
            let mut body = pieces.into_body();
            assert_eq!(body.size_hint().exact(), Some(size as u64 + 20));
            let mut seen = Vec::new();
            while let Some(frame) = body.frame().await {
                seen.push(frame.unwrap().into_data().unwrap());
            }
            assert_eq!((seen.len(), seen.concat().len()), (frames, size + 20));
        }
    }
}
