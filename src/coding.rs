//! Content codings (RFC 9110, 8.4.1): a text is compressed once, and sent between other texts any number of times.
//!
//! A cached result is the same for all callers, but the text around the result is not: it holds the caller's id. Both
//! formats consist of blocks, some of which hold bytes uncompressed. The compressed blocks of the result are sent
//! between uncompressed blocks, in one gzip member or one zstd frame, which any decoder reads. Several members or
//! frames in a row would be allowed, too, but not all decoders read beyond the first.

use std::io::Write;

use bytes::{BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Crc, FlushCompress, Status};

use crate::fair::TakenOnce;
use crate::named;

/// The compression level of both formats. This level saves most of the bytes that the highest level saves, at
/// a tenth of its cost.
const LEVEL: u32 = 3;
/// The maximum length of an uncompressed block that both formats allow, in bytes.
const MAX_STORED: usize = 0xffff;
/// The head of a gzip member: the magic number, no flags, unknown modification time, unknown system (RFC 1952, 2.3).
const GZIP_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
/// The magic number of a zstd frame (RFC 8878, 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The window sizes of zstd, as exponents of 2: the least that allows blocks of full length, and the most
/// that level 3 uses.
const WINDOW_LOG: std::ops::RangeInclusive<u32> = 17..=21;

/// The shortest text that is compressed, in bytes. Compressing a shorter text saves less than a packet.
pub const WORTH_BYTES: usize = 4 * 1024;
/// The longest text that is compressed, in bytes. Only the answers of batches are longer. Compressing one of
/// those would need a copy, and a core for a tenth of a second or more.
pub const TOO_LONG_BYTES: usize = 16 * 1024 * 1024;

/// Returns true if a text of `bytes` bytes is worth compressing.
pub fn is_worth(bytes: usize) -> bool {
    (WORTH_BYTES..=TOO_LONG_BYTES).contains(&bytes)
}

named! {
    /// A content coding that is supported.
    pub enum Coding {
        /// The coding `gzip` (RFC 1952).
        Gzip = "gzip",
        /// The coding `zstd` (RFC 8878).
        Zstd = "zstd",
    }
}

impl Coding {
    /// Returns the coding that a header calls by `name`. Case does not matter, and `x-gzip` is `gzip` (RFC 9110, 8.4.1).
    pub fn of_header(name: &[u8]) -> Option<Self> {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        Self::ALL
            .into_iter()
            .find(|coding| is(coding.as_str()))
            .or_else(|| is("x-gzip").then_some(Self::Gzip))
    }

    /// Compresses the whole of `plain`. `None` if the compressor fails, which happens only without free memory.
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

#[derive(Debug)]
pub struct CompressedText {
    coding: Coding,
    /// The compressed text, as complete blocks of the coding's format. None of the blocks is marked as the last.
    blocks: Bytes,
    length: usize,
    crc: Crc,
    /// The bytes of the text in answers that are not sent yet.
    pub(crate) unsent: TakenOnce,
}

impl CompressedText {
    /// Compresses `plain`. `None` if that fails, for example for an empty text.
    pub fn new(coding: Coding, plain: &[u8]) -> Option<Self> {
        let (blocks, mut crc) = match coding {
            Coding::Gzip => (deflate(plain)?, Crc::new()),
            Coding::Zstd => (zstd_blocks(plain)?, Crc::new()),
        };
        if coding == Coding::Gzip {
            crc.update(plain);
        }
        Some(Self { coding, blocks: blocks.into(), length: plain.len(), crc, unsent: TakenOnce::default() })
    }

    pub fn coding(&self) -> Coding {
        self.coding
    }

    pub fn bytes(&self) -> usize {
        self.blocks.len()
    }
}

/// One part of a text. Each part is either compressed or not.
#[derive(Debug, Clone)]
pub enum SplicePart<'a> {
    /// A part that is sent uncompressed.
    Plain(Bytes),
    /// A part that is sent as compressed blocks.
    Coded(&'a CompressedText),
}

/// Compresses the text of all `parts` by `coding`, and returns the result in pieces. Only short pieces are
/// copied. `None` if a part is already compressed by another coding. Also `None` if several parts are
/// compressed by zstd, because zstd blocks refer to earlier blocks.
pub fn splice(coding: Coding, parts: &[SplicePart<'_>]) -> Option<Vec<Bytes>> {
    let coded = || {
        parts.iter().filter_map(|part| if let SplicePart::Coded(coded) = part { Some(*coded) } else { None })
    };
    if coded().any(|coded| coded.coding != coding) || (coding == Coding::Zstd && coded().count() > 1) {
        return None;
    }
    let mut out = Splice { pieces: Vec::new(), short: BytesMut::new() };
    match coding {
        Coding::Gzip => {
            let mut crc = Crc::new();
            out.short.extend_from_slice(&GZIP_HEAD);
            for part in parts {
                match part {
                    SplicePart::Plain(text) => {
                        let mut of_text = Crc::new();
                        of_text.update(text);
                        crc.combine(&of_text);
                        out.plain(text, |head, bytes| stored_deflate(head, bytes, false));
                    }
                    SplicePart::Coded(coded) => {
                        crc.combine(&coded.crc);
                        out.piece(coded.blocks.clone());
                    }
                }
            }
            stored_deflate(&mut out.short, 0, true);
            out.short.put_u32_le(crc.sum());
            // The format wants the length modulo 2^32.
            out.short.put_u32_le(crc.amount());
        }
        Coding::Zstd => {
            let length = |part: &SplicePart<'_>| match part {
                SplicePart::Plain(text) => text.len(),
                SplicePart::Coded(coded) => coded.length,
            };
            let log = parts.iter().map(length).sum::<usize>().max(1).next_power_of_two().ilog2();
            out.short.extend_from_slice(&ZSTD_MAGIC);
            // This header byte means: no content size, no checksum, no dictionary. A window descriptor follows.
            out.short.put_u8(0);
            out.short
                .put_u8(((log.clamp(*WINDOW_LOG.start(), *WINDOW_LOG.end()) - 10) << 3).to_le_bytes()[0]);
            for part in parts {
                match part {
                    SplicePart::Plain(text) => out.plain(text, |head, bytes| raw_zstd(head, bytes, false)),
                    SplicePart::Coded(coded) => out.piece(coded.blocks.clone()),
                }
            }
            raw_zstd(&mut out.short, 0, true);
        }
    }
    out.piece(Bytes::new());
    Some(out.pieces)
}

/// A compressed text that [`splice`] builds from its parts.
struct Splice {
    pieces: Vec<Bytes>,
    /// The last bytes of the compressed text, which are collected until there are enough for a piece.
    short: BytesMut,
}

impl Splice {
    /// Adds `text` in uncompressed blocks. `head` appends the head of a block of the given length to the given buffer.
    fn plain(&mut self, text: &Bytes, head: impl Fn(&mut BytesMut, usize)) {
        for from in (0..text.len()).step_by(MAX_STORED) {
            let block = text.slice(from..text.len().min(from + MAX_STORED));
            head(&mut self.short, block.len());
            if block.len() < WORTH_BYTES {
                self.short.extend_from_slice(&block);
            } else {
                self.piece(block);
            }
        }
    }

    /// Adds `piece` to the compressed text without copying it. The bytes collected in `short` go before it,
    /// as a piece of their own.
    fn piece(&mut self, piece: Bytes) {
        if !self.short.is_empty() {
            self.pieces.push(self.short.split().freeze());
        }
        if !piece.is_empty() {
            self.pieces.push(piece);
        }
    }
}

/// Compresses `plain` into deflate blocks that end at a whole byte (RFC 1951, zlib's sync flush).
fn deflate(plain: &[u8]) -> Option<Vec<u8>> {
    let mut deflate = Compress::new(Compression::new(LEVEL), false);
    let mut blocks = Vec::with_capacity(plain.len() / 4 + 1024);
    loop {
        let read = usize::try_from(deflate.total_in()).ok()?;
        let status = deflate.compress_vec(&plain[read..], &mut blocks, FlushCompress::Sync).ok()?;
        // Unused capacity means that there was nothing more to write.
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

/// Writes the head of a stored deflate block of `bytes` bytes, which are at most [`MAX_STORED`].
fn stored_deflate(out: &mut BytesMut, bytes: usize, is_last: bool) {
    let length = u16::try_from(bytes).unwrap_or(u16::MAX);
    out.put_u8(u8::from(is_last));
    out.put_u16_le(length);
    out.put_u16_le(!length);
}

/// Compresses `plain` into the blocks of a zstd frame, without the frame's header and checksum.
fn zstd_blocks(plain: &[u8]) -> Option<Vec<u8>> {
    let frame = zstd::bulk::compress(plain, LEVEL.cast_signed()).ok()?;
    // The header fields: RFC 8878, 3.1.1.1.1.
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
        // A block that repeats one byte holds that byte once.
        let size = if bytes >> 1 & 3 == 1 { 1 } else { bytes >> 3 };
        at += 3 + size;
        if is_last {
            // If a checksum follows, it covers only this text, so it is dropped.
            blocks.truncate(at);
            blocks.shrink_to_fit();
            return (blocks.len() == at).then_some(blocks);
        }
    }
}

/// Writes the head of a raw zstd block of `bytes` bytes, which are at most [`MAX_STORED`].
fn raw_zstd(out: &mut BytesMut, bytes: usize, is_last: bool) {
    let size = u32::try_from(bytes).unwrap_or(u32::MAX) << 3 | u32::from(is_last);
    out.extend_from_slice(&size.to_le_bytes()[..3]);
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::*;

    fn decoded(coding: Coding, bytes: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        match coding {
            // This decoder reads one gzip member only, so the member must hold the whole text.
            Coding::Gzip => flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain).unwrap(),
            Coding::Zstd => {
                zstd::stream::Decoder::new(bytes).unwrap().single_frame().read_to_end(&mut plain).unwrap()
            }
        };
        plain
    }

    fn plain(text: &[u8]) -> SplicePart<'static> {
        SplicePart::Plain(Bytes::copy_from_slice(text))
    }

    #[track_caller]
    fn check(head: &[u8], text: &[u8], tail: &[u8]) {
        for coding in Coding::ALL {
            let coded = CompressedText::new(coding, text).unwrap();
            // The compressed text is sent twice, because it serves many callers.
            for tail in [tail, b"another"] {
                let sent =
                    splice(coding, &[plain(head), SplicePart::Coded(&coded), plain(tail)]).unwrap().concat();
                assert!(decoded(coding, &sent) == [head, text, tail].concat(), "{coding:?} {}", text.len());
            }
            assert_eq!(decoded(coding, &coding.encode(text).unwrap()), text);
        }
    }

    #[test]
    fn texts_decode_with_their_surroundings() {
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
            // These are, in this order: longer than one block; longer than the smallest window; longer than
            // the largest window; incompressible; one byte repeated.
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
    fn surroundings_may_have_any_length() {
        check(&vec![0; 3 * MAX_STORED + 1], b"text", &vec![1; WORTH_BYTES]);
    }

    #[test]
    fn gzip_holds_several_texts_and_zstd_one() {
        let long = vec![b'2'; 100_000];
        let texts = [&b"one one one"[..], &long, b"one one one"];
        for coding in Coding::ALL {
            let coded = texts.map(|text| CompressedText::new(coding, text).unwrap());
            let mut parts = vec![plain(b"[")];
            for coded in &coded {
                parts.extend([SplicePart::Coded(coded), plain(b",")]);
            }
            let sent = splice(coding, &parts).map(|pieces| decoded(coding, &pieces.concat()));
            let expected = [b"[", &texts.map(|text| [text, b","].concat()).concat()[..]].concat();
            assert_eq!(sent, (coding == Coding::Gzip).then_some(expected), "{coding:?}");
        }
    }

    #[test]
    fn codings_do_not_mix() {
        let coded = CompressedText::new(Coding::Gzip, b"text").unwrap();
        assert!(splice(Coding::Zstd, &[SplicePart::Coded(&coded)]).is_none());
    }

    #[test]
    fn compressed_text_is_much_smaller() {
        let text = r#"{"pubkey":"11111111111111111111111111111111","lamports":1}"#.repeat(1000);
        for coding in Coding::ALL {
            assert!(
                CompressedText::new(coding, text.as_bytes()).unwrap().bytes() < text.len() / 20,
                "{coding:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_round_trips(
            head in prop::collection::vec(any::<u8>(), 0..40),
            text in prop::collection::vec(prop::sample::select(&b"abc{}\","[..]), 1..3000),
            tail in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            check(&head, &text, &tail);
        }
    }
}
