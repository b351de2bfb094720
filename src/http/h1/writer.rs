//! Writes the head and the body of a response to an HTTP/1.1 connection, without hyper.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, IoSlice};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use tokio::io::AsyncWrite;
use tokio::time::Instant;

use super::super::reply::JOINED_BYTES;
use super::super::reply::{HttpReply, Value};
use super::super::request_head::{REQUEST_ID, RequestId};
use super::super::timed_socket::StallTimer;

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
    /// Creates the writer of `reply`, which answers the request with the id `id`.
    pub(super) fn new(mut reply: HttpReply, id: &RequestId) -> Self {
        let mut head = HEAD_BUFFER.take();
        write_head(&mut head, &reply, id);
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
fn write_head(out: &mut Vec<u8>, reply: &HttpReply, id: &RequestId) {
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
