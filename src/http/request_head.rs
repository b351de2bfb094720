//! The part of a request's head that slotfront uses: who sends the request, what the sender wants, and in which form.
//!
//! A parsed head may take many times the memory of its bytes: over HTTP/2 one byte may stand for a whole header
//! field. While the body is awaited, only the fields that slotfront needs are therefore kept, each up to a bound.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use axum::body::Body;
use hyper::header::{
    ACCESS_CONTROL_REQUEST_HEADERS, AUTHORIZATION, CONTENT_TYPE, HeaderValue, IF_NONE_MATCH,
};
use hyper::http::request::Parts;
use hyper::http::uri::PathAndQuery;
use hyper::{Method as Verb, Request, Response, Uri};
use tokio::time::Instant;

use super::client_ip::{self, Peer};
use super::fields::{Fields, elements, has_one_host, is_json, is_readable};
use super::upgrade::Handshake;
use super::{Front, key, routes};
use crate::coding::Coding;
use crate::error::Error;
use crate::gateway::{MAX_KEY, Principal};
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
    pub(super) fn of(front: &Front, peer: Peer, fields: &(impl Fields + ?Sized)) -> Self {
        let origin = fields.first("origin").and_then(|origin| str::from_utf8(origin).ok());
        Self {
            address: client_ip::of(front, peer, fields),
            origin: origin.map(|origin| cut(origin, FIELD_BYTES).into()),
            id: RequestId::of(fields),
            trace: Trace::of_caller(fields.all(TRACEPARENT), || fields.all(TRACESTATE)),
            accepts: Accepted::of(fields),
            no_cache: fields
                .all("cache-control")
                .flat_map(elements)
                .any(|directive| directive.eq_ignore_ascii_case(b"no-cache")),
        }
    }

    /// Returns the caller that `key` identifies. `None` stands for two keys that differ.
    ///
    /// # Errors
    /// As for [`Gateway::authenticate`](crate::gateway::Gateway::authenticate).
    pub(super) fn caller(
        &self,
        front: &Front,
        key: Option<&str>,
        now: Instant,
    ) -> Result<Arc<Principal>, Error> {
        let Some(key) = key else { return Err(front.gateway.refuse_two_keys(self.address, now)) };
        front.gateway.authenticate(key, self.address, self.origin.as_deref(), now)
    }
}

/// What is kept of a head that hyper has read.
pub(super) struct RequestHead {
    pub(super) client: ClientInfo,
    pub(super) started: Instant,
    /// The value of a preflight's `Access-Control-Request-Headers`.
    pub(super) wanted_headers: Option<HeaderValue>,
    pub(super) wants: Wants,
}

pub(super) enum Wants {
    /// A POST of JSON to the route of the JSON-RPC calls, by this caller or by nobody who may call.
    Call(Result<Arc<Principal>, Error>),
    /// A WebSocket.
    Socket(Handshake),
    /// A request whose answer depends on nothing else.
    Fixed(fn() -> Response<Body>),
    /// A request for another route, without its body and most of its header fields.
    Route(Box<Request<Body>>),
}

impl RequestHead {
    /// Copies the needed parts of a request's head, which `peer` has sent, and asks whose key it has.
    pub(super) fn of(front: &Front, peer: Peer, head: &Parts) -> Self {
        let (client, started) = (ClientInfo::of(front, peer, &head.headers), Instant::now());
        let copied = |value: &HeaderValue| {
            HeaderValue::from_bytes(&value.as_bytes()[..value.len().min(FIELD_BYTES)]).ok()
        };
        let is_json = || head.headers.get(CONTENT_TYPE).is_some_and(|media| is_json(media.as_bytes()));
        let key = |in_path| key::of(front, in_path, head.uri.query(), &head.headers);
        let wants = match key::in_path(head.uri.path()) {
            _ if !has_one_host(head.version, &head.headers) => Wants::Fixed(routes::wrong_host),
            _ if !is_readable(&head.headers) => Wants::Fixed(routes::wrong_coding),
            Some(in_path) if head.method == Verb::POST && is_json() => {
                Wants::Call(client.caller(front, key(in_path), started))
            }
            Some(_) if head.method == Verb::POST => Wants::Fixed(routes::wrong_media),
            _ if head.method == Verb::OPTIONS => Wants::Fixed(routes::options),
            Some(in_path) => {
                let key = key(in_path).map(|key| cut(key, MAX_KEY + 1).into());
                Handshake::of(head, key).map_or(Wants::Fixed(routes::wrong_verb), Wants::Socket)
            }
            None => {
                let mut request = Request::new(Body::empty());
                *request.method_mut() = head.method.clone();
                // The target is copied, because the head's own keeps the whole read buffer alive. A copy of a valid
                // target is valid.
                let target = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
                *request.uri_mut() = Uri::try_from(target).unwrap_or_default();
                for name in [IF_NONE_MATCH, AUTHORIZATION, key::HEADER] {
                    let values = head.headers.get_all(&name).iter().filter_map(copied);
                    request.headers_mut().extend(values.map(|value| (name.clone(), value)));
                }
                Wants::Route(Box::new(request))
            }
        };
        Self {
            client,
            started,
            wanted_headers: head.headers.get(ACCESS_CONTROL_REQUEST_HEADERS).and_then(copied),
            wants,
        }
    }
}

/// The length in bytes to which copied values of header fields are cut. Origins are shorter, and so are the lists
/// of header names that browsers send.
pub(super) const FIELD_BYTES: usize = 1024;

/// Returns the start of `text`, at most `most` bytes, without splitting a character.
pub(super) fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

pub(super) const REQUEST_ID: &str = "x-request-id";
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
    /// The id that the caller sent.
    Sent(Box<str>),
    /// An id made by slotfront, in hexadecimal.
    Made([u8; 32]),
}

impl RequestId {
    /// Returns the id that the caller sent if it is 1 to 128 visible ASCII characters, otherwise a new id.
    pub(super) fn of(fields: &(impl Fields + ?Sized)) -> Self {
        let sent = fields.first(REQUEST_ID).filter(|value| is_token(value));
        sent.and_then(|id| str::from_utf8(id).ok()).map_or_else(Self::fresh, |id| Self::Sent(id.into()))
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

/// The weight of a coding in thousandths, 0 to 1000. Weight 0 refuses the coding.
type Weight = u16;
/// The weight of a coding that is named without a weight.
const FULL: Weight = 1000;

/// The content codings that a client accepts, of those that slotfront supports (`Accept-Encoding`: RFC 9110, 12.5.3).
///
/// A client that refuses `identity` still gets short responses uncompressed, as RFC 9110, 12.1, permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accepted {
    /// The weights, indexed by `Coding as usize`. 0 if the client does not accept the coding, or prefers `identity`.
    weights: [Weight; Coding::ALL.len()],
}

impl Accepted {
    /// Parses all `Accept-Encoding` fields as one list. Without such a field no coding is accepted.
    pub(super) fn of(fields: &(impl Fields + ?Sized)) -> Self {
        let (mut named, mut identity, mut star) = ([None; Coding::ALL.len()], None, None);
        for (name, weight) in fields.all("accept-encoding").flat_map(elements).filter_map(element) {
            let known = if let Some(coding) = Coding::of_header(name) {
                &mut named[coding as usize]
            } else if name.eq_ignore_ascii_case(b"identity") {
                &mut identity
            } else if name == b"*" {
                &mut star
            } else {
                continue;
            };
            // If a coding is named twice, the lower weight counts.
            *known = Some(known.map_or(weight, |before: Weight| before.min(weight)));
        }
        let plain = identity.or(star).unwrap_or(0);
        let weights = named.map(|own| own.or(star).unwrap_or(0)).map(|own| if own < plain { 0 } else { own });
        Self { weights }
    }

    /// Returns the accepted coding with the highest weight. On a tie it is zstd, which is faster and compresses better.
    /// `None` if the client accepts no coding.
    pub(super) fn best(self) -> Option<Coding> {
        let weight = |coding: &Coding| self.weights[*coding as usize];
        let taken = [Coding::Gzip, Coding::Zstd].into_iter().filter(|coding| weight(coding) > 0);
        taken.max_by_key(weight)
    }

    /// Returns true if the client accepts `coding`, even if it prefers another.
    pub(super) fn takes(self, coding: Coding) -> bool {
        self.weights[coding as usize] > 0
    }
}

/// Parses an element such as `gzip;q=0.5` into its name and weight. `None` if it is malformed.
fn element(text: &[u8]) -> Option<(&[u8], Weight)> {
    let mut parts = text.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let name = parts.next().filter(|name| !name.is_empty())?;
    let weight = match parts.next() {
        None => FULL,
        Some([b'q' | b'Q', b'=', digits @ ..]) => weight(digits)?,
        Some(_) => return None,
    };
    parts.next().is_none().then_some((name, weight))
}

/// Parses a weight such as `0`, `0.25` or `1.000`. `None` if it is malformed, above 1, or has over three decimals.
fn weight(text: &[u8]) -> Option<Weight> {
    let (whole, fraction) = match text {
        [whole] => (whole, &[][..]),
        [whole, b'.', fraction @ ..] if fraction.len() <= 3 => (whole, fraction),
        _ => return None,
    };
    let digits = (0..3).map(|place| fraction.get(place).copied().unwrap_or(b'0'));
    let all = std::iter::once(*whole).chain(digits).try_fold(0, |weight, digit| {
        digit.is_ascii_digit().then(|| weight * 10 + Weight::from(digit - b'0'))
    })?;
    (all <= FULL).then_some(all)
}

#[cfg(test)]
mod tests {
    use hyper::header::{ACCEPT_ENCODING, HeaderMap};

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

    #[test]
    fn the_client_chooses() {
        for (header, expected) in [
            ("", None),
            ("br", None),
            ("identity", None),
            ("gzip, deflate", Some(Coding::Gzip)),
            ("GZIP;q=0.5", Some(Coding::Gzip)),
            ("x-gzip", Some(Coding::Gzip)),
            ("gzip, zstd", Some(Coding::Zstd)),
            ("ZSTD ; Q=0.001 , br", Some(Coding::Zstd)),
            // A weight of zero refuses the coding in any notation.
            ("gzip;q=0", None),
            ("gzip;Q=0", None),
            ("gzip; q=0.000", None),
            ("gzip ;\tq=0.", None),
            ("zstd;q=0, gzip", Some(Coding::Gzip)),
            // The higher weight wins; `identity` competes, too.
            ("zstd;q=0.2, gzip;q=0.9", Some(Coding::Gzip)),
            ("zstd;q=0.9, gzip;q=1.000", Some(Coding::Gzip)),
            ("identity, gzip;q=0.5", None),
            ("identity;q=0.5, gzip;q=0.5", Some(Coding::Gzip)),
            ("identity;q=0, gzip", Some(Coding::Gzip)),
            ("identity;q=0", None),
            // The star stands for all codings that are not named.
            ("*", Some(Coding::Zstd)),
            ("*;q=0", None),
            ("gzip, *;q=0", Some(Coding::Gzip)),
            ("zstd;q=0, *", Some(Coding::Gzip)),
            ("*;q=0.1, gzip;q=0", Some(Coding::Zstd)),
            ("gzip;q=0, zstd;q=0, *", None),
            ("*;q=0.5", Some(Coding::Zstd)),
            ("*;q=0.5, gzip;q=0.501", Some(Coding::Gzip)),
            ("br, *;q=0.001", Some(Coding::Zstd)),
            ("br, deflate;q=0.9, gzip;q=0.001, *;q=0", Some(Coding::Gzip)),
            ("gzip;q=0.333, zstd;q=0.332", Some(Coding::Gzip)),
            ("*;q=0.25, zstd;q=0.2, gzip;q=0.3", Some(Coding::Gzip)),
            // `identity` is also one of those, unless it is named.
            ("*;q=0.5, gzip;q=0.2, zstd;q=0.2", None),
            ("identity;q=0, *", Some(Coding::Zstd)),
            ("identity;q=0.5, *;q=0", None),
            ("identity, *;q=0.999", None),
            ("identity;q=0.001, *;q=0.002", Some(Coding::Zstd)),
            ("identity;q=0, *;q=0", None),
            // Elements with invalid weights or unknown parameters are ignored.
            ("gzip;q=2", None),
            ("gzip;q=-1", None),
            ("gzip;q=0.0001", None),
            ("gzip;q=1.001", None),
            ("gzip;q=.5", None),
            ("gzip;q=", None),
            ("gzip;level=1", None),
            ("gzip;q=1;q=0", None),
            (",, ,gzip,", Some(Coding::Gzip)),
            // If a coding is named twice, the lower weight counts.
            ("gzip, gzip;q=0", None),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(header))]);
            assert_eq!(Accepted::of(&headers).best(), expected, "{header}");
            // The order does not count, and neither does the number of fields.
            let mut headers = HeaderMap::new();
            for element in header.rsplit(',') {
                headers.append(ACCEPT_ENCODING, HeaderValue::from_static(element));
            }
            assert_eq!(Accepted::of(&headers).best(), expected, "{header}, backwards");
        }
        let mut headers = HeaderMap::new();
        headers.append(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        headers.append(ACCEPT_ENCODING, HeaderValue::from_static("*;q=0"));
        assert_eq!(Accepted::of(&headers).best(), Some(Coding::Gzip), "several fields are one list");
    }
}
