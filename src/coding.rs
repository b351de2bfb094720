//! Content codings (RFC 9110, 8.4.1): a text is compressed once, and sent between others any number of times.
//!
//! A kept result is the same to all callers, and what surrounds it is not: the caller's id stands behind it. Both formats
//! are made of blocks, some of which hold bytes as they are: so the compressed blocks of the result go out between two
//! such blocks, in one gzip member or one zstd frame, and any decoder reads them. Two members, or two frames, one after
//! the other would be allowed as well, but not all decoders read on.

use std::io::Write;

use bytes::{BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Crc, FlushCompress, Status};

/// Level 3 of either format: most of the gain at a tenth of the cost of the highest.
const LEVEL: u32 = 3;
/// Longest text before or after a result that fits one stored block of either format.
const MAX_STORED: usize = 0xffff;
/// Magic number, no flags, unknown modification time, unknown system (RFC 1952, 2.3).
const GZIP_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
/// RFC 8878, 3.1.1.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The window that level 3 uses at most, and the least that lets a block be as long as blocks may be; both as powers of 2.
const WINDOW_LOG: std::ops::RangeInclusive<u32> = 17..=21;

/// A content coding of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
}

impl Coding {
    /// Both; a coding's position is its number.
    pub const ALL: [Self; 2] = [Self::Gzip, Self::Zstd];

    /// As it stands in `Content-Encoding`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// The whole of `plain`, compressed; `None` only where memory is short.
    pub fn encode(self, plain: &[u8]) -> Option<Bytes> {
        match self {
            Self::Zstd => zstd::bulk::compress(plain, LEVEL.cast_signed()).ok().map(Bytes::from),
            Self::Gzip => {
                let mut gzip = flate2::write::GzEncoder::new(Vec::new(), Compression::new(LEVEL));
                gzip.write_all(plain).ok()?;
                gzip.finish().ok().map(Bytes::from)
            }
        }
    }
}

/// A text compressed so that others can stand around it.
#[derive(Debug)]
pub struct Coded {
    coding: Coding,
    /// Whole blocks, none of them marked as the last.
    blocks: Bytes,
    /// Length of the plain text.
    length: usize,
    /// gzip's checksum of the plain text.
    crc: Crc,
}

impl Coded {
    /// Compresses `plain`; `None` where that cannot be done, for example of nothing.
    pub fn new(coding: Coding, plain: &[u8]) -> Option<Self> {
        let (blocks, mut crc) = match coding {
            Coding::Gzip => (deflate(plain)?, Crc::new()),
            Coding::Zstd => (zstd_blocks(plain)?, Crc::new()),
        };
        if coding == Coding::Gzip {
            crc.update(plain);
        }
        Some(Self { coding, blocks: blocks.into(), length: plain.len(), crc })
    }

    /// Bytes that it holds.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether it holds nothing; never so.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The text between `head` and `tail`, in pieces of which only the first and the last are new. `None` where what is
    /// around it is too long to be sent as it is.
    pub fn between(&self, head: &[u8], tail: &[u8]) -> Option<[Bytes; 3]> {
        if head.len() > MAX_STORED || tail.len() > MAX_STORED {
            return None;
        }
        let (mut first, mut last) = (BytesMut::new(), BytesMut::new());
        match self.coding {
            Coding::Gzip => {
                first.extend_from_slice(&GZIP_HEAD);
                stored_deflate(&mut first, head, false);
                stored_deflate(&mut last, tail, true);
                let mut crc = Crc::new();
                crc.update(head);
                crc.combine(&self.crc);
                let mut after = Crc::new();
                after.update(tail);
                crc.combine(&after);
                last.put_u32_le(crc.sum());
                // The length modulo 2^32 is what the format asks for.
                last.put_u32_le(crc.amount());
            }
            Coding::Zstd => {
                first.extend_from_slice(&ZSTD_MAGIC);
                // No content size, no checksum, no dictionary, a window descriptor.
                first.put_u8(0);
                let all = (head.len() + self.length + tail.len()).max(1).next_power_of_two().ilog2();
                first
                    .put_u8(((all.clamp(*WINDOW_LOG.start(), *WINDOW_LOG.end()) - 10) << 3).to_le_bytes()[0]);
                raw_zstd(&mut first, head, false);
                raw_zstd(&mut last, tail, true);
            }
        }
        Some([first.freeze(), self.blocks.clone(), last.freeze()])
    }
}

/// `plain` as deflate blocks that end at a whole byte (RFC 1951; zlib calls that a sync flush).
fn deflate(plain: &[u8]) -> Option<Vec<u8>> {
    let mut deflate = Compress::new(Compression::new(LEVEL), false);
    let mut blocks = Vec::with_capacity(plain.len() / 4 + 1024);
    loop {
        let read = usize::try_from(deflate.total_in()).ok()?;
        let status = deflate.compress_vec(&plain[read..], &mut blocks, FlushCompress::Sync).ok()?;
        // Room that is left over says that there was nothing more to write.
        if status == Status::Ok
            && deflate.total_in() == plain.len() as u64
            && blocks.len() < blocks.capacity()
        {
            blocks.shrink_to_fit();
            return Some(blocks);
        }
        blocks.reserve(plain.len() / 4 + 1024);
    }
}

/// A stored block; its length is one that fits.
fn stored_deflate(out: &mut BytesMut, text: &[u8], is_last: bool) {
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.put_u8(u8::from(is_last));
    out.put_u16_le(length);
    out.put_u16_le(!length);
    out.extend_from_slice(text);
}

/// `plain` as the blocks of a zstd frame, without the frame.
fn zstd_blocks(plain: &[u8]) -> Option<Vec<u8>> {
    let frame = zstd::bulk::compress(plain, LEVEL.cast_signed()).ok()?;
    // Which fields the header has: RFC 8878, 3.1.1.1.1.
    let descriptor = *frame.get(4)?;
    let is_single_segment = descriptor & 0x20 != 0;
    let window = usize::from(!is_single_segment);
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size = [usize::from(is_single_segment), 2, 4, 8][usize::from(descriptor >> 6)];
    let mut blocks = frame.get(5 + window + dictionary + size..)?.to_vec();
    let mut at = 0;
    loop {
        let head = blocks.get_mut(at..at + 3)?;
        let is_last = head[0] & 1 != 0;
        head[0] &= !1;
        let bytes = usize::from(head[0]) | usize::from(head[1]) << 8 | usize::from(head[2]) << 16;
        // A block of one byte that is repeated holds it once.
        let size = if bytes >> 1 & 3 == 1 { 1 } else { bytes >> 3 };
        at += 3 + size;
        if is_last {
            // A checksum may follow, of a text that is not the whole.
            blocks.truncate(at);
            blocks.shrink_to_fit();
            return (blocks.len() == at).then_some(blocks);
        }
    }
}

/// A raw block; its length is one that fits.
fn raw_zstd(out: &mut BytesMut, text: &[u8], is_last: bool) {
    let size = u32::try_from(text.len()).unwrap_or(u32::MAX) << 3 | u32::from(is_last);
    out.extend_from_slice(&size.to_le_bytes()[..3]);
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::*;

    fn decoded(coding: Coding, bytes: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        match coding {
            // Not the decoder of several members: everything must stand in one.
            Coding::Gzip => flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain).unwrap(),
            Coding::Zstd => {
                zstd::stream::Decoder::new(bytes).unwrap().single_frame().read_to_end(&mut plain).unwrap()
            }
        };
        plain
    }

    #[track_caller]
    fn check(head: &[u8], text: &[u8], tail: &[u8]) {
        for coding in Coding::ALL {
            let coded = Coded::new(coding, text).unwrap();
            // Twice: it is as good for the next caller.
            for tail in [tail, b"another"] {
                let sent = coded.between(head, tail).unwrap().concat();
                assert!(decoded(coding, &sent) == [head, text, tail].concat(), "{coding:?} {}", text.len());
            }
            assert_eq!(decoded(coding, &coding.encode(text).unwrap()), text);
        }
    }

    #[test]
    fn a_text_is_read_with_what_stands_around_it() {
        let numbers: String = (0..200_000).map(|i: u64| (i * i).to_string()).collect();
        let noise: Vec<u8> = (0..300_000_u64)
            .scan(1_u64, |x, _| {
                *x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                Some(x.to_be_bytes()[0])
            })
            .collect();
        for text in [
            &b"x"[..],
            br#"{"context":{"slot":1},"value":null}"#,
            // Longer than one block, than the smallest window, than the largest; not to be compressed; one byte alone.
            &numbers.as_bytes()[..140_000],
            numbers.as_bytes(),
            &numbers.repeat(4).into_bytes(),
            &noise,
            &vec![b'1'; 1 << 20],
        ] {
            check(br#"{"jsonrpc":"2.0","result":"#, text, b",\"id\":1}\n");
        }
        check(b"", b"text", b"");
        check(&vec![b'h'; MAX_STORED], b"text", &vec![b't'; MAX_STORED]);
    }

    #[test]
    fn what_is_too_long_to_stand_around_is_refused() {
        let coded = Coded::new(Coding::Gzip, b"text").unwrap();
        assert!(coded.between(&vec![0; MAX_STORED + 1], b"").is_none());
        assert!(coded.between(b"", &vec![0; MAX_STORED + 1]).is_none());
    }

    #[test]
    fn it_is_much_smaller_than_the_text() {
        let text = r#"{"pubkey":"11111111111111111111111111111111","lamports":1}"#.repeat(1000);
        for coding in Coding::ALL {
            assert!(Coded::new(coding, text.as_bytes()).unwrap().len() < text.len() / 20, "{coding:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_back(
            head in prop::collection::vec(any::<u8>(), 0..40),
            text in prop::collection::vec(prop::sample::select(&b"abc{}\","[..]), 1..3000),
            tail in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            check(&head, &text, &tail);
        }
    }
}
