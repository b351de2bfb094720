//! The two messages of an exchange on the fast path: the head of a request, with the decision if the request is plain (a
//! usual POST that the fast path can serve), and the response, written without hyper.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, IoSlice};
use std::mem::{self, MaybeUninit};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use tokio::io::AsyncWrite;
use tokio::time::Instant;

use super::super::Front;
use super::super::client_ip::Peer;
use super::super::fields::{Fields, is_host, is_json};
use super::super::key;
use super::super::reply::{HttpReply, JOINED_BYTES, Value};
use super::super::request_head::{ClientInfo, REQUEST_ID, RequestId};
use super::super::timed_socket::StallTimer;
use crate::error::Error;
use crate::gateway::Principal;

/// The first bytes of each request on the fast path. They include the space after the method and the slash at the start
/// of the path.
const BEGINNING: &[u8] = b"POST /";
/// The longest request body on the fast path, in bytes.
const MAX_BODY: usize = 64 * 1024;
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
    /// The error is boxed, so that an idle connection takes little memory.
    pub(super) caller: Result<Arc<Principal>, Box<Error>>,
    /// The position of the body, directly after the head. The end may lie beyond the bytes that were read.
    pub(super) body: Range<usize>,
    pub(super) client: ClientInfo,
}

impl Head {
    /// Parses the request at the start of `read`, which `peer` has sent at the time `started`.
    pub(super) fn parse(read: &[u8], front: &Front, peer: Peer, started: Instant) -> Self {
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
        let is_plain = path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/_-".contains(&byte));
        let Some(in_path) = key::in_path(path).filter(|_| is_plain) else { return Self::Other };
        let (mut hosts, mut media, mut size) = (0, 0, None);
        for httparse::Header { name, value } in &*request.headers {
            let is = |known: &str| name.eq_ignore_ascii_case(known);
            // The length is compared first, so that most fields need no comparison of names.
            let plain = match name.len() {
                4 if is("host") => {
                    hosts += 1;
                    is_host(value)
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
        let client = ClientInfo::of(front, peer, &*request.headers);
        let caller = client.caller(front, key::of(front, in_path, None, &*request.headers), started);
        Self::Plain(Plain { caller: caller.map_err(Box::new), body: length..length + size, client })
    }
}

impl Fields for [httparse::Header<'_>] {
    fn all<'a>(&'a self, name: &'static str) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        self.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    }
}

/// Parses a length of one to nine digits. `None` if `value` is anything else.
fn digits(value: &[u8]) -> Option<usize> {
    let plain = (1..=9).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    plain.then(|| value.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0')))
}

/// The maximum number of body pieces that one vectored write sends.
const VECTORS: usize = 16;
/// The maximum capacity, in bytes, that the buffer for response heads keeps between two responses.
const HEAD_BYTES: usize = 4096;

pub(super) struct ResponseWriter {
    reply: HttpReply,
    /// The head, and the body if it is short.
    head: Vec<u8>,
    written: usize,
}

thread_local! {
    /// The buffer for response heads. The connections of this thread share it, because a buffer for each connection
    /// would not stay in the processor's caches.
    static HEAD_BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl ResponseWriter {
    /// Creates the writer of `reply`, which answers the request with the id `id`. `by_origin` is true if the answer to
    /// another origin differs.
    pub(super) fn new(mut reply: HttpReply, id: &RequestId, by_origin: bool) -> Self {
        let mut head = HEAD_BUFFER.take();
        write_head(&mut head, &reply, id, by_origin);
        if reply.body.len() <= JOINED_BYTES {
            mem::take(&mut reply.body).iter().for_each(|piece| head.extend_from_slice(piece));
        }
        Self { reply, head, written: 0 }
    }

    /// Writes the rest of the response and flushes the socket.
    ///
    /// # Errors
    /// Errors of the socket; [`ErrorKind::TimedOut`] if the client reads nothing for `timeout`.
    pub(super) async fn write_all<S: AsyncWrite + Unpin>(
        &mut self,
        socket: &mut S,
        timeout: Duration,
    ) -> io::Result<()> {
        let mut timer = StallTimer::default();
        std::future::poll_fn(|cx| {
            loop {
                let written = self.poll_write(socket, cx);
                if ready!(timer.poll(cx, timeout, written))? {
                    return Poll::Ready(Ok(()));
                }
            }
        })
        .await
    }

    /// Writes a part of the response. Returns true once everything is written and flushed.
    fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        socket: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<bool>> {
        let Self { reply, head, written } = self;
        let mut socket = Pin::new(socket);
        let bytes = if let Some(left @ [_, ..]) = head.get(*written..) {
            let bytes = ready!(socket.as_mut().poll_write(cx, left))?;
            *written += bytes;
            bytes
        } else if !reply.body.is_empty() {
            let mut slices = [IoSlice::new(&[]); VECTORS];
            let pieces = slices.iter_mut().zip(reply.body.iter());
            let count = pieces.map(|(slice, piece)| *slice = IoSlice::new(piece)).count();
            let bytes = ready!(socket.as_mut().poll_write_vectored(cx, &slices[..count]))?;
            reply.body.advance(bytes);
            bytes
        } else {
            return socket.poll_flush(cx).map_ok(|()| true);
        };
        if bytes == 0 {
            return Poll::Ready(Err(ErrorKind::WriteZero.into()));
        }
        if *written < head.len() || !reply.body.is_empty() {
            return Poll::Ready(Ok(false));
        }
        socket.poll_flush(cx).map_ok(|()| true)
    }
}

impl Drop for ResponseWriter {
    fn drop(&mut self) {
        let mut head = mem::take(&mut self.head);
        head.clear();
        head.shrink_to(HEAD_BYTES);
        // Fails if the thread is ending, and then the buffer is not needed.
        let _ = HEAD_BUFFER.try_with(|buffer| buffer.set(head));
    }
}

/// Appends the head of `reply` to `out`. `id` is the request's id.
fn write_head(out: &mut Vec<u8>, reply: &HttpReply, id: &RequestId, by_origin: bool) {
    if reply.status == StatusCode::OK {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    } else {
        let reason = reply.status.canonical_reason().unwrap_or_default();
        out.extend_from_slice(format!("HTTP/1.1 {} {reason}\r\n", reply.status.as_str()).as_bytes());
    }
    let mut field = |name: &str, value: Value<'_>| {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b": ");
        value.write(out);
        out.extend_from_slice(b"\r\n");
    };
    reply.fields().for_each(|(name, value)| field(name, value));
    field(REQUEST_ID, Value::Text(id.as_str()));
    if by_origin {
        field("vary", Value::Text("origin"));
    }
    if reply.last {
        field("connection", Value::Text("close"));
    }
    field("content-length", Value::Number(reply.body.len() as u64));
    out.extend_from_slice(b"date: ");
    DATE.with_borrow_mut(|date| out.extend_from_slice(date.text(reply.made_at()).as_bytes()));
    out.extend_from_slice(b"\r\n\r\n");
}

thread_local! {
    static DATE: RefCell<Date> = const { RefCell::new(Date { text: String::new(), until: None }) };
}

/// The value of the `Date` field (RFC 9110, 5.6.7), formatted at most once a second.
struct Date {
    text: String,
    until: Option<Instant>,
}

impl Date {
    fn text(&mut self, now: Instant) -> &str {
        if self.until.is_none_or(|until| now >= until) {
            let wall = SystemTime::now();
            let begun = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_nanos();
            self.text = httpdate::fmt_http_date(wall);
            self.until = Some(now + Duration::from_secs(1) - Duration::from_nanos(begun.into()));
        }
        &self.text
    }
}
