//! What a request's head says of its sender, and of the form in which the sender wants the answer.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::header::{CACHE_CONTROL, HeaderMap, HeaderName, HeaderValue, ORIGIN};

use super::Front;
use super::accepted::Accepted;
use super::client_ip::{self, Peer};
use super::fields::{all, elements};
use crate::telemetry::Trace;
use crate::telemetry::trace::{TRACEPARENT, TRACESTATE};

/// The sender of a request, and the form in which the sender wants the answer.
#[derive(Clone)]
pub(super) struct ClientInfo {
    /// Behind trusted proxies this is the address that the proxies report. `None` if the address is unknown.
    pub(super) address: Option<IpAddr>,
    /// The `Origin` header of a browser, cut to [`FIELD_BYTES`].
    pub(super) origin: Option<Box<str>>,
    pub(super) id: RequestId,
    /// The caller's trace context (W3C Trace Context).
    pub(super) trace: Trace,
    pub(super) accepts: Accepted,
    /// True if the request has `Cache-Control: no-cache` (RFC 9111, 5.2.1.4). Such a request bypasses the cache if the
    /// plan allows that.
    pub(super) no_cache: bool,
}

impl ClientInfo {
    /// Reads the header fields of a request, which `peer` has sent.
    pub(super) fn of(front: &Front, peer: Peer, headers: &HeaderMap) -> Self {
        let origin = headers.get(ORIGIN).and_then(|origin| str::from_utf8(origin.as_bytes()).ok());
        let mut directives =
            headers.get_all(CACHE_CONTROL).iter().flat_map(|value| elements(value.as_bytes()));
        Self {
            address: client_ip::of(front, peer, headers),
            origin: origin.map(|origin| cut(origin, FIELD_BYTES).into()),
            id: RequestId::of(headers),
            trace: Trace::of_caller(all(headers, TRACEPARENT), || all(headers, TRACESTATE)),
            accepts: Accepted::of(headers),
            no_cache: directives.any(|directive| directive.eq_ignore_ascii_case(b"no-cache")),
        }
    }
}

/// The length in bytes to which copied values of header fields are cut. Origins are shorter, and so are the lists
/// of header names that browsers send.
pub(super) const FIELD_BYTES: usize = 1024;

/// Returns the start of `text`, at most `most` bytes, without splitting a character.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The maximum length of a caller's id, in bytes. A new id replaces a longer one, which would fill the logs.
/// Tracing systems use shorter ids.
const MAX_ID_LEN: usize = 128;
/// The number of low bits in a new id that count the ids of one thread. The bits above them identify the thread.
/// No thread serves 2^40 requests.
const BLOCK_BITS: u32 = 40;

/// The first half of each new id, random for each process.
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
static BLOCKS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The second half of this thread's next id. Each thread has its own range, because cores would contend for a
    /// shared counter.
    static NEXT: Cell<u64> = Cell::new(BLOCKS.fetch_add(1, Ordering::Relaxed) << BLOCK_BITS);
}

/// The `X-Request-Id` of a request: the caller's id, or a new one. The id connects the log lines of different services.
///
/// Every response of slotfront has the id. hyper's refusals of malformed or too long heads have none.
#[derive(Debug, Clone)]
pub(super) enum RequestId {
    Sent(Box<str>),
    /// An id made by slotfront, in hexadecimal.
    Made([u8; 32]),
}

impl RequestId {
    /// Returns the id that the caller sent if it is 1 to 128 visible ASCII characters, otherwise a new id.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let sent = headers.get(REQUEST_ID).filter(|value| is_token(value.as_bytes()));
        sent.and_then(|id| id.to_str().ok()).map_or_else(Self::fresh, |id| Self::Sent(id.into()))
    }

    /// Makes an id that is unique in this process and, very probably, among processes. The id is predictable,
    /// because its second half is a counter.
    fn fresh() -> Self {
        let number = NEXT.replace(NEXT.get().wrapping_add(1));
        let bytes = (u128::from(*PROCESS) << 64 | u128::from(number)).to_be_bytes();
        let mut text = [0; 32];
        for (digits, byte) in text.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
            *digits = [hex(byte >> 4), hex(byte & 15)];
        }
        Self::Made(text)
    }

    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Sent(id) => id,
            Self::Made(id) => str::from_utf8(id).unwrap_or_default(),
        }
    }

    pub(super) fn header(&self) -> HeaderValue {
        HeaderValue::from_str(self.as_str()).unwrap_or_else(|_| HeaderValue::from_static("none"))
    }
}

const fn hex(digit: u8) -> u8 {
    if digit < 10 { b'0' + digit } else { b'a' + digit - 10 }
}

fn is_token(value: &[u8]) -> bool {
    (1..=MAX_ID_LEN).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sane_id_is_kept_and_another_replaced() {
        let (long, longer) = ("x".repeat(128), "x".repeat(129));
        for (sent, kept) in [
            ("4bf92f3577b34da6a3ce929d0e0e4736", true),
            ("!a-b_c/d~", true),
            (&long, true),
            (&longer, false),
            ("", false),
            ("two words", false),
            ("caf\u{e9}", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(sent.as_bytes()).unwrap());
            let id = RequestId::of(&headers);
            assert_eq!(id.as_str() == sent, kept, "{sent:?}");
            assert!((1..=128).contains(&id.as_str().len()));
        }
    }

    #[test]
    fn no_two_made_here_are_the_same() {
        let fresh = || RequestId::of(&HeaderMap::new()).as_str().to_owned();
        let elsewhere = std::thread::spawn(move || [fresh(), fresh()]).join().unwrap();
        let ids: std::collections::BTreeSet<_> = [fresh(), fresh()].into_iter().chain(elsewhere).collect();
        assert_eq!(ids.len(), 4);
        assert!(ids.iter().all(|id| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit())), "{ids:?}");
    }
}
