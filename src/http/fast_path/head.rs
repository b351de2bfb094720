//! A plain request's head: which requests are plain is decided here, and nowhere else.

use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::ops::Range;

use super::super::Front;
use super::super::caller::{self, Caller};
use super::MAX_BODY;

/// What a plain request begins with; the blank and the slash alone say that the method ends there.
const BEGINNING: &[u8] = b"POST /";
/// A longer head is no usual one.
const MAX_HEAD: usize = 4096;
/// More fields than clients and two proxies send.
const MAX_FIELDS: usize = 32;

/// What has come of a request.
pub(super) enum Head {
    /// Not enough to tell.
    Partial,
    /// A plain request, if its body comes.
    Plain(Plain),
    /// hyper's.
    Other,
}

/// A plain request's head.
pub(super) struct Plain {
    /// Where the API key stands.
    pub(super) key: Range<usize>,
    /// Where the body stands.
    pub(super) body: Range<usize>,
    pub(super) caller: Caller,
}

/// What stands at the front of `read`.
pub(super) fn head(read: &[u8], front: &Front, peer: Option<IpAddr>) -> Head {
    let known = read.len().min(BEGINNING.len());
    if read[..known] != BEGINNING[..known] {
        return Head::Other;
    }
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(read, &mut fields) {
        Ok(httparse::Status::Complete(length)) => length,
        // A head that comes byte by byte is read from its start each time: a long one is hyper's, which knows better.
        Ok(httparse::Status::Partial) if read.len() < MAX_HEAD => return Head::Partial,
        Ok(httparse::Status::Partial) | Err(_) => return Head::Other,
    };
    let (Some(1), Some(path)) = (request.version, request.path) else { return Head::Other };
    // Anything but plain segments might be another path to somebody else.
    let is_plain = path.bytes().all(|byte| IN_PATHS[usize::from(byte)]);
    let Some(key) = super::super::route(path, front).filter(|_| is_plain) else { return Head::Other };
    let (mut hosts, mut media, mut size) = (0, 0, None);
    for httparse::Header { name, value } in &*request.headers {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        // By length first: a field is compared with few names, most with none.
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
            return Head::Other;
        }
    }
    let (1, 1, Some(size)) = (hosts, media, size.flatten().filter(|size| *size <= MAX_BODY)) else {
        return Head::Other;
    };
    if size > front.config.server.max_body {
        return Head::Other;
    }
    // The key ends the path, which begins with the last byte of the beginning.
    let end = BEGINNING.len() - 1 + path.len();
    Head::Plain(Plain {
        key: end - key.len()..end,
        body: length..length + size,
        caller: Caller::of(front, peer, &*request.headers),
    })
}

/// What stands in plain paths.
const IN_PATHS: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0_u8;
    while byte.is_ascii() {
        plain[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'_' | b'-');
        byte += 1;
    }
    plain
};

/// A length in plain digits.
fn digits(value: &[u8]) -> Option<usize> {
    let plain = (1..=9).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    plain.then(|| value.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0')))
}
