//! The body of a node's answer: decompressed while it arrives, and limited in bytes.
//!
//! All limits hold for what comes out of the decompression, so that a small body cannot grow without bound.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use reqwest::header::{CONTENT_ENCODING, HeaderMap, HeaderValue};
use zstd::stream::write::Decoder as ZstdDecoder;

use super::Fault;
use crate::chunks::{BodyBuffer, OverLimit};
use crate::coding::Coding;
use crate::fair::{ByteBudget, CallerHoldings, CallerId};

/// The limit on the bytes of all upstream bodies that are being read: `pool.max_buffered`. All nodes share
/// it. By the rule of `fair.rs`, no caller can take all of it.
#[derive(Debug)]
pub struct BufferBudget {
    bytes: ByteBudget,
    by_caller: CallerHoldings,
}

/// The bytes that one body has taken from the budget, for the caller that asked for it. They are given back on drop.
#[derive(Debug)]
pub(super) struct Buffered<'a> {
    budget: &'a BufferBudget,
    caller: CallerId,
    bytes: AtomicUsize,
}

impl BufferBudget {
    /// Creates a budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { bytes: ByteBudget::new(limit), by_caller: CallerHoldings::default() }
    }

    /// Replaces the limit. Bytes that are already taken stay taken.
    pub fn set_limit(&self, limit: usize) {
        self.bytes.set_limit(limit);
    }
}

impl<'a> Buffered<'a> {
    pub(super) fn new(budget: &'a BufferBudget, caller: CallerId) -> Self {
        Self { budget, caller, bytes: AtomicUsize::new(0) }
    }

    /// Takes `bytes` more bytes from the budget. Returns false if the bytes in use would exceed the limit, or those
    /// of the caller its share.
    fn grow(&self, bytes: usize) -> bool {
        let BufferBudget { bytes: all, by_caller } = self.budget;
        let taken =
            by_caller.may_add(self.caller, bytes, all.used(), all.free()) && all.take(bytes, all.limit());
        if taken {
            by_caller.add(self.caller, bytes);
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        taken
    }

    /// Returns the number of bytes that were read.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Buffered<'_> {
    fn drop(&mut self) {
        self.budget.bytes.give_back(self.bytes());
        self.budget.by_caller.remove(self.caller, self.bytes());
    }
}

/// The decompressed bytes of a body.
pub(super) struct PlainBody<'a> {
    bytes: BodyBuffer,
    buffered: &'a Buffered<'a>,
}

impl PlainBody<'_> {
    fn push(&mut self, chunk: Bytes) -> Result<(), Fault> {
        if !self.buffered.grow(chunk.len()) {
            return Err(Fault::BuffersFull);
        }
        self.bytes.push(chunk).map_err(|OverLimit| Fault::TooLarge)
    }
}

impl Write for PlainBody<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(Bytes::copy_from_slice(bytes)).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) enum Body<'a> {
    Plain(PlainBody<'a>),
    Gzip(MultiGzDecoder<PlainBody<'a>>),
    Zstd(ZstdDecoder<'static, PlainBody<'a>>),
}

impl<'a> Body<'a> {
    /// Creates the empty body of a response with these headers. A body in an unknown coding, or in several, stays as it
    /// is, and so is no JSON.
    ///
    /// # Errors
    /// There is no memory for the decompression.
    pub(super) fn new(
        headers: &HeaderMap,
        bytes: BodyBuffer,
        buffered: &'a Buffered<'a>,
    ) -> Result<Self, Fault> {
        let plain = PlainBody { bytes, buffered };
        let values = headers.get_all(CONTENT_ENCODING).into_iter().map(HeaderValue::as_bytes);
        let names = values.flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
        let mut names = names.filter(|name| !name.is_empty());
        let coding = names.next().filter(|_| names.next().is_none()).and_then(Coding::of_header);
        Ok(match coding {
            None => Self::Plain(plain),
            Some(Coding::Gzip) => Self::Gzip(MultiGzDecoder::new(plain)),
            Some(Coding::Zstd) => Self::Zstd(ZstdDecoder::new(plain).map_err(fault_of)?),
        })
    }

    /// Adds the next piece of the response.
    ///
    /// # Errors
    /// The body exceeds a limit, or is not in the coding that the response names.
    pub(super) fn push(&mut self, piece: Bytes) -> Result<(), Fault> {
        match self {
            Self::Plain(plain) => plain.push(piece),
            Self::Gzip(gzip) => gzip.write_all(&piece).map_err(fault_of),
            Self::Zstd(zstd) => zstd.write_all(&piece).map_err(fault_of),
        }
    }

    /// Returns the whole body.
    ///
    /// # Errors
    /// The compressed data has no end.
    pub(super) fn finish(self) -> Result<Bytes, Fault> {
        let plain = match self {
            Self::Plain(plain) => Ok(plain),
            Self::Gzip(gzip) => gzip.finish(),
            Self::Zstd(zstd) => zstd.finish(),
        };
        Ok(plain.map_err(fault_of)?.bytes.finish_compact())
    }
}

fn fault_of(error: io::Error) -> Fault {
    error.downcast().unwrap_or(Fault::Truncated)
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn buffer_budget_is_shared_and_released() {
        let budget = BufferBudget::new(90);
        let of = |caller| Buffered::new(&budget, CallerId::numbered(caller));
        let (one, again, other) = (of(1), of(1), of(2));
        assert!(one.grow(50) && again.grow(30) && !again.grow(1), "eight ninths are one caller's");
        assert!(other.grow(9) && !other.grow(1), "eight times what would be left");
        drop(one);
        assert!(other.grow(30));
        drop((again, other));
        let own = of(0);
        assert!(own.grow(90) && !own.grow(1), "no particular caller, no share");
    }

    /// Reads `sent`, in pieces of `piece` bytes, as a body with the header `coding`, of at most `limit` bytes.
    fn read(coding: &'static str, sent: &[u8], piece: usize, limit: usize) -> Result<Bytes, Fault> {
        let headers = HeaderMap::from_iter([(CONTENT_ENCODING, HeaderValue::from_static(coding))]);
        let budget = BufferBudget::new(1000);
        let buffered = Buffered::new(&budget, CallerId::default());
        let mut body = Body::new(&headers, BodyBuffer::new(limit), &buffered)?;
        sent.chunks(piece).try_for_each(|piece| body.push(Bytes::copy_from_slice(piece)))?;
        let read = body.finish()?;
        assert_eq!(buffered.bytes(), read.len());
        drop(buffered);
        assert_eq!(budget.bytes.used(), 0);
        Ok(read)
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut packed = GzEncoder::new(Vec::new(), Compression::default());
        packed.write_all(text).unwrap();
        packed.finish().unwrap()
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        zstd::bulk::compress(text, 3).unwrap()
    }

    #[test]
    fn every_member_and_frame_is_read_by_every_name() {
        let texts = [&b"{\"a\":"[..], b"", &[b'1'; 300], b"}"];
        let [gzip, zstd] = [gzip, zstd].map(|pack| texts.map(pack).concat());
        for (coding, sent) in [
            ("gzip", &gzip),
            ("x-gzip", &gzip),
            ("X-GZip", &gzip),
            (" gzip ,", &gzip),
            ("zstd", &zstd),
            ("Zstd", &zstd),
            ("identity", &texts.concat()),
        ] {
            for piece in 1..=sent.len() {
                assert_eq!(read(coding, sent, piece, 1000).unwrap(), texts.concat(), "{coding}, {piece}");
            }
        }
        for coding in ["br", "gzip, gzip", "gzip, zstd", ""] {
            assert_eq!(read(coding, &gzip, 50, 1000).unwrap(), gzip, "{coding}");
        }
    }

    #[test]
    fn limits_hold_for_all_members_together() {
        let text = [b'1'; 400];
        for (coding, member) in [("gzip", gzip(&text)), ("x-gzip", gzip(&text)), ("zstd", zstd(&text))] {
            let sent = [&member[..], &member].concat();
            assert_eq!(read(coding, &sent, 7, 800).unwrap().len(), 800, "{coding}");
            assert_eq!(read(coding, &sent, 7, 799), Err(Fault::TooLarge), "{coding}");
            let more = [&sent[..], &member].concat();
            for piece in [7, more.len()] {
                assert_eq!(read(coding, &more, piece, 9999), Err(Fault::BuffersFull), "{coding}");
            }
        }
    }

    #[test]
    fn damaged_bodies_are_faults() {
        for (coding, good) in [("gzip", gzip(b"{}")), ("zstd", zstd(b"{}"))] {
            let two = [&good[..], &good].concat();
            let lengths = (1..two.len()).filter(|length| *length != good.len());
            for length in lengths {
                assert_eq!(read(coding, &two[..length], 3, 99), Err(Fault::Truncated), "{coding} {length}");
            }
            assert_eq!(read(coding, b"{\"jsonrpc\":\"2.0\"}", 99, 99), Err(Fault::Truncated), "{coding}");
        }
        let mut wrong_sum = gzip(b"{}");
        let at = wrong_sum.len() - 8;
        wrong_sum[at] ^= 1;
        assert_eq!(read("gzip", &wrong_sum, 99, 99), Err(Fault::Truncated));
    }
}
