//! The head of a plain request. No other place decides which requests are plain.

use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::ops::Range;

use super::super::caller::{self, ClientInfo};
use super::super::fields::Fields;
use super::super::{Front, route};

/// The first bytes of a plain request. They include the space and the slash, which end the method.
const BEGINNING: &[u8] = b"POST /";
/// The longest body of a plain request, and the most bytes that are read ahead while a call waits.
pub(super) const MAX_BODY: usize = 64 * 1024;
/// The longest plain head, in bytes.
const MAX_HEAD: usize = 4096;
/// The most header fields of a plain request. Clients and two proxies send fewer.
const MAX_FIELDS: usize = 32;

/// The request at the front of the bytes that were read.
pub(super) enum Head {
    /// More bytes must come to tell.
    Partial,
    /// A plain request. Its body may still be on its way.
    Plain(Plain),
    /// A request for hyper.
    Other,
}

/// A plain request's head.
pub(super) struct Plain {
    /// The position of the API key.
    pub(super) key: Range<usize>,
    /// The position of the body.
    pub(super) body: Range<usize>,
    pub(super) caller: ClientInfo,
}

impl Head {
    /// Parses the request from `peer` at the front of `read`.
    pub(super) fn parse(read: &[u8], front: &Front, peer: Option<IpAddr>) -> Self {
        let known = read.len().min(BEGINNING.len());
        if read[..known] != BEGINNING[..known] {
            return Self::Other;
        }
        let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
        let mut request = httparse::Request::new(&mut []);
        let length = match request.parse_with_uninit_headers(read, &mut fields) {
            Ok(httparse::Status::Complete(length)) => length,
            // A head that comes byte by byte is parsed from its start each time, so hyper gets a long one.
            Ok(httparse::Status::Partial) if read.len() < MAX_HEAD => return Self::Partial,
            Ok(httparse::Status::Partial) | Err(_) => return Self::Other,
        };
        let (Some(1), Some(path)) = (request.version, request.path) else { return Self::Other };
        // Two parsers might read an escaped path as different paths.
        let is_plain = path.bytes().all(|byte| IN_PATHS[usize::from(byte)]);
        let Some(key) = route(path, front).filter(|_| is_plain) else { return Self::Other };
        let (mut hosts, mut media, mut size) = (0, 0, None);
        for httparse::Header { name, value } in &*request.headers {
            let is = |known: &str| name.eq_ignore_ascii_case(known);
            // By length first, so that most fields are compared with no name.
            let plain = match name.len() {
                4 if is("host") => {
                    hosts += 1;
                    true
                }
                12 if is("content-type") => {
                    media += 1;
                    caller::is_json(value)
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
        // The key ends the path, which begins with the last byte of the beginning.
        let end = BEGINNING.len() - 1 + path.len();
        Self::Plain(Plain {
            key: end - key.len()..end,
            body: length..length + size,
            caller: ClientInfo::of(front, peer, &*request.headers),
        })
    }
}

impl Fields for [httparse::Header<'_>] {
    fn all<'a>(&'a self, name: &'static str) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        self.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    }
}

/// The bytes of a plain path.
const IN_PATHS: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0_u8;
    while byte.is_ascii() {
        plain[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'_' | b'-');
        byte += 1;
    }
    plain
};

/// Parses a length in plain digits.
fn digits(value: &[u8]) -> Option<usize> {
    let plain = (1..=9).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    plain.then(|| value.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0')))
}
