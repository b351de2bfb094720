//! Parses the head of a request, and decides if the request is plain: a usual POST that the fast path can serve.

use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::ops::Range;

use super::super::request_head::Fields;
use super::super::request_head::{ClientInfo, is_json};
use super::super::{Front, route};

/// The first bytes of each request on the fast path. They include the space after the method and the slash at the start
/// of the path.
const BEGINNING: &[u8] = b"POST /";
/// The longest request body on the fast path, in bytes. Also the limit on reading ahead: while a request is
/// served, reading stops at this many bytes of later requests.
pub(super) const MAX_BODY: usize = 64 * 1024;
const MAX_HEAD: usize = 4096;
/// The maximum number of header fields in a request on the fast path. A request that a client sends through two
/// proxies has fewer.
const MAX_FIELDS: usize = 32;

/// The result of parsing the first request in the bytes that were read.
pub(super) enum Head {
    Partial,
    /// A request that the fast path can serve. Its body may not have arrived yet.
    Plain(Plain),
    Other,
}

pub(super) struct Plain {
    /// The position of the API key in the bytes that were read.
    pub(super) key: Range<usize>,
    /// The position of the body, directly after the head. The end may lie beyond the bytes that were read.
    pub(super) body: Range<usize>,
    pub(super) client: ClientInfo,
}

impl Head {
    /// Parses the request at the start of `read`. `peer` is the address of the client or its proxy.
    pub(super) fn parse(read: &[u8], front: &Front, peer: Option<IpAddr>) -> Self {
        let known = read.len().min(BEGINNING.len());
        if read[..known] != BEGINNING[..known] {
            return Self::Other;
        }
        let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
        let mut request = httparse::Request::new(&mut []);
        let length = match request.parse_with_uninit_headers(read, &mut fields) {
            Ok(httparse::Status::Complete(length)) => length,
            // Each read parses the head from its start again, so the length is bounded. hyper gets longer heads.
            Ok(httparse::Status::Partial) if read.len() < MAX_HEAD => return Self::Partial,
            Ok(httparse::Status::Partial) | Err(_) => return Self::Other,
        };
        let (Some(1), Some(path)) = (request.version, request.path) else { return Self::Other };
        // hyper gets every other path, because two parsers might understand an escaped path differently.
        let is_plain = path.bytes().all(|byte| IN_PATHS[usize::from(byte)]);
        let Some(key) = route(path, front).filter(|_| is_plain) else { return Self::Other };
        let (mut hosts, mut media, mut size) = (0, 0, None);
        for httparse::Header { name, value } in &*request.headers {
            let is = |known: &str| name.eq_ignore_ascii_case(known);
            // The length is compared first, so that most fields need no comparison of names.
            let plain = match name.len() {
                4 if is("host") => {
                    hosts += 1;
                    true
                }
                12 if is("content-type") => {
                    media += 1;
                    is_json(value)
                }
                14 if is("content-length") => {
                    let length = digits(value);
                    length.is_some() && size.replace(length).is_none()
                }
                10 if is("connection") => value.eq_ignore_ascii_case(b"keep-alive"),
                6 => !is("origin") && !is("expect"),
                7 => !is("upgrade"),
                17 => !is("transfer-encoding"),
                _ => true,
            };
            if !plain {
                return Self::Other;
            }
        }
        let (1, 1, Some(size)) = (hosts, media, size.flatten().filter(|size| *size <= MAX_BODY)) else {
            return Self::Other;
        };
        if size > front.config.server.max_body {
            return Self::Other;
        }
        // The key is the end of the path, and the path starts with the last byte of `BEGINNING`.
        let end = BEGINNING.len() - 1 + path.len();
        Self::Plain(Plain {
            key: end - key.len()..end,
            body: length..length + size,
            client: ClientInfo::of(front, peer, &*request.headers),
        })
    }
}

impl Fields for [httparse::Header<'_>] {
    fn all<'a>(&'a self, name: &'static str) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        self.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    }
}

/// A table of all byte values. True for each byte that the path of a request on the fast path may contain.
const IN_PATHS: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0_u8;
    while byte.is_ascii() {
        plain[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'_' | b'-');
        byte += 1;
    }
    plain
};

/// Parses a length of one to nine digits. `None` if `value` is anything else.
fn digits(value: &[u8]) -> Option<usize> {
    let plain = (1..=9).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    plain.then(|| value.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0')))
}
