//! The body of a reply, in the pieces that it is sent in.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use hyper::body::{Frame, SizeHint};

use crate::cache::JOINED_BYTES;

/// The pieces of one body, in order. A long answer is sent as slices of the cached text, without a copy.
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
