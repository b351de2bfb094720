//! A body in the pieces that it is made of, so that a long answer leaves as slices of the kept text.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::{Buf, Bytes, BytesMut};
use hyper::body::{Frame, SizeHint};

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
