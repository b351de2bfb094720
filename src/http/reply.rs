//! The answer to a request: its header fields, and a body of the pieces that it is made of, so that a large answer leaves
//! as slices of what is kept.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::{Buf, Bytes, BytesMut};
use hyper::body::{Frame, SizeHint};
use hyper::header::{CONNECTION, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::time::Instant;

use super::exchange::Place;
use crate::cache::CacheStatus;
use crate::coding::Coding;
use crate::error::Wire;
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
    /// Where it is served from, until it is written.
    pub(super) place: Option<Place>,
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
            place: None,
        }
    }

    /// A node's refusals below JSON-RPC are plain text.
    pub(super) fn text(status: StatusCode, text: impl Into<Bytes>) -> Self {
        let media = "text/plain; charset=utf-8";
        Self { media, ..Self::json(status, Pieces::from(text.into())) }
    }

    /// Takes the status and the fields of a refusal that stands alone.
    pub(super) fn refuse(&mut self, wire: &Wire) {
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

    /// The same for hyper; the place goes along as an extension.
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
        if let Some(place) = self.place.take() {
            response.extensions_mut().insert(Arc::new(place));
        }
        *response.body_mut() = self.body.into_body();
        response
    }
}

/// Up to this length, copying into one buffer is cheaper than writing pieces one by one.
pub(super) const JOINED_BYTES: usize = 16 * 1024;

/// The pieces of one body, in order.
#[derive(Debug, Clone, Default)]
pub struct Pieces {
    pieces: VecDeque<Bytes>,
    left: usize,
}

impl Pieces {
    /// Adds a piece at the end.
    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.left += piece.len();
            self.pieces.push_back(piece);
        }
    }

    /// Adds all of `other` at the end.
    pub fn append(&mut self, mut other: Self) {
        self.left += other.left;
        self.pieces.append(&mut other.pieces);
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.left
    }

    /// Whether there is no byte in it.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// The body: one buffer if it is short, else the pieces as they are, under a Content-Length.
    pub fn into_body(self) -> Body {
        if self.left > JOINED_BYTES { Body::new(self) } else { Body::from(self.joined()) }
    }

    /// The pieces that are left, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.pieces.iter()
    }

    /// The first and the last piece, where there are two at least.
    pub fn around(&self) -> Option<(Bytes, Bytes)> {
        let (first, last) = (self.pieces.front()?, self.pieces.back()?);
        (self.pieces.len() > 1).then(|| (first.clone(), last.clone()))
    }

    /// All of it in one piece.
    pub fn joined(&self) -> Bytes {
        if let (Some(only), 1) = (self.pieces.front(), self.pieces.len()) {
            return only.clone();
        }
        let mut joined = BytesMut::with_capacity(self.left);
        for piece in &self.pieces {
            joined.extend_from_slice(piece);
        }
        joined.freeze()
    }

    /// Takes `bytes` off the front.
    ///
    /// # Panics
    /// There are fewer.
    pub fn advance(&mut self, mut bytes: usize) {
        self.left -= bytes;
        while bytes > 0 {
            let front = &mut self.pieces[0];
            if bytes < front.len() {
                front.advance(bytes);
                return;
            }
            bytes -= front.len();
            self.pieces.pop_front();
        }
    }
}

impl From<Bytes> for Pieces {
    fn from(piece: Bytes) -> Self {
        std::iter::once(piece).collect()
    }
}

impl FromIterator<Bytes> for Pieces {
    fn from_iter<I: IntoIterator<Item = Bytes>>(all: I) -> Self {
        let mut pieces = Self::default();
        all.into_iter().for_each(|piece| pieces.push(piece));
        pieces
    }
}

impl hyper::body::Body for Pieces {
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
    async fn long_bodies_keep_their_pieces_and_say_their_length() {
        for (size, frames) in [(100, 1), (JOINED_BYTES, 3)] {
            let mut pieces = Pieces::default();
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
