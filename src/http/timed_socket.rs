//! A client's socket with the timeouts that hyper lacks: for a request head, for an idle connection, and for a client
//! that does not read a response.
//!
//! hyper's `header_read_timeout` runs from the end of the previous response, so it cannot be shorter than the time for
//! which a connection may be idle.

use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::activity::ConnectionActivity;

/// The first bytes of a client that speaks HTTP/2 without negotiation (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The length up to which the head and the body of an answer are written in one piece, in bytes.
const SHORT_BYTES: usize = 1024;

#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    /// The longest time from the first byte of a head to its end.
    pub(super) head: Duration,
    /// The longest time between a response and the next request.
    pub(super) idle: Duration,
    /// The longest time for which a write may make no progress, because the client does not read.
    pub(super) write: Duration,
    /// The longest time from the last answer until the socket is closed.
    pub(super) linger: Duration,
}

/// A client's socket with timeouts, for hyper to read and write.
pub(super) struct TimedSocket<S> {
    socket: S,
    activity: Arc<ConnectionActivity>,
    timeouts: Timeouts,
    /// `None` until the close has begun.
    close: Option<LingeringClose>,
    head_timer: LazyTimer,
    write_timer: Option<Pin<Box<Sleep>>>,
    /// The bytes that were read to detect the protocol. The next reads return them.
    read_ahead: Bytes,
}

impl<S> TimedSocket<S> {
    /// Creates the stream of a new connection. The timeout for a request head runs from now, so it also applies to a
    /// client that sends nothing.
    pub(super) fn new(socket: S, activity: Arc<ConnectionActivity>, timeouts: Timeouts) -> Self {
        let now = Instant::now();
        activity.start(now);
        Self {
            socket,
            activity,
            timeouts,
            close: None,
            head_timer: LazyTimer::new(now + timeouts.head),
            write_timer: None,
            read_ahead: Bytes::new(),
        }
    }

    /// Returns the socket, and the bytes that no read has returned yet.
    pub(super) fn into_parts(self) -> (S, Bytes) {
        (self.socket, self.read_ahead)
    }

    /// Returns `written`, the result of polling a write.
    ///
    /// # Errors
    /// `written` is an error, or writes have been pending for `timeouts.write` ([`ErrorKind::TimedOut`]).
    fn poll_stalled<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_timer = None;
            return written;
        }
        let time = self.timeouts.write;
        let timer = self.write_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the client has stopped reading the answer")))
    }

    /// Waits until the deadline of the next request head has passed. Returns `Ok` if no byte of the head has arrived.
    /// The connection then ends as if the client had closed it.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if a part of the head has arrived.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Timeouts { head, idle, .. } = self.timeouts;
        let Some((deadline, has_begun)) = self.activity.head_deadline(head, idle) else {
            return Poll::Pending;
        };
        ready!(self.head_timer.poll(cx, deadline));
        if has_begun {
            return Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the request head took too long")));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> TimedSocket<S> {
    /// Returns true if the client's first bytes are the HTTP/2 preface. Later reads return these bytes again.
    ///
    /// # Errors
    /// Reading from the socket fails, or the first bytes take too long ([`ErrorKind::TimedOut`]).
    pub(super) async fn opens_with_http2(&mut self) -> io::Result<bool> {
        let mut read = BytesMut::from(std::mem::take(&mut self.read_ahead));
        let preface = loop {
            let known = read.len().min(PREFACE.len());
            if read[..known] != PREFACE[..known] {
                break false;
            }
            if known == PREFACE.len() {
                break true;
            }
            // No more, because many clients may say nothing else.
            read.reserve(PREFACE.len());
            if self.read_buf(&mut read).await? == 0 {
                break false;
            }
        };
        self.read_ahead = read.freeze();
        Ok(preface)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.read_ahead.is_empty() {
            let most = self.read_ahead.len().min(buf.remaining());
            buf.put_slice(&self.read_ahead[..most]);
            self.read_ahead.advance(most);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, buf);
        if read.is_pending() {
            return self.poll_late(cx);
        }
        if buf.filled().len() > before {
            self.activity.note_bytes();
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TimedSocket<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.poll_stalled(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // One short buffer costs the kernel less than two.
        let mut short = [0; SHORT_BYTES];
        let written = match joined(&mut short, bufs) {
            Some(bytes) => Pin::new(&mut self.socket).poll_write(cx, bytes),
            None => Pin::new(&mut self.socket).poll_write_vectored(cx, bufs),
        };
        self.poll_stalled(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    /// Flushes the socket, and then frees the permits of the requests whose answers are written. hyper flushes
    /// after it has written everything.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.activity.flushed();
            // The wait for the next request begins here. hyper may have asked for its bytes already, and does not ask again.
            if self.poll_late(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
        self.poll_stalled(cx, flushed)
    }

    /// Closes the socket lingeringly. hyper has flushed it before.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { socket, timeouts, close, .. } = &mut *self;
        close.get_or_insert_with(|| LingeringClose::new(timeouts.linger)).poll(socket, cx).map(Ok)
    }
}

/// Returns `pieces` in one piece, written to `short`. `None` if they do not fit.
fn joined<'a>(short: &'a mut [u8], pieces: &[IoSlice<'_>]) -> Option<&'a [u8]> {
    let mut length = 0;
    for piece in pieces {
        short.get_mut(length..length + piece.len())?.copy_from_slice(piece);
        length += piece.len();
    }
    Some(&short[..length])
}

/// A timer that costs little if it rarely fires, although its deadline often changes. The caller keeps the deadline, so
/// setting it only stores a time. The runtime's timer is reset only if it fires too early or would fire too late.
struct LazyTimer {
    sleep: Pin<Box<Sleep>>,
    /// The deadline of `sleep`, so that its memory need not be read.
    sleeps_until: Instant,
    is_registered: bool,
}

impl LazyTimer {
    fn new(deadline: Instant) -> Self {
        Self {
            sleep: Box::pin(tokio::time::sleep_until(deadline)),
            sleeps_until: deadline,
            is_registered: false,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        loop {
            if self.sleeps_until > deadline || self.sleep.is_elapsed() {
                self.sleep.as_mut().reset(deadline);
                self.sleeps_until = deadline;
            } else if self.is_registered {
                // A timer has one task, which it wakes.
                return Poll::Pending;
            }
            self.is_registered = true;
            // Without `unconstrained`, a task that has used up its coop budget would not register with the sleep.
            let sleep = tokio::task::coop::unconstrained(self.sleep.as_mut());
            ready!(pin!(sleep).poll(cx));
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
        }
    }
}

/// The maximum number of bytes that one lingering close reads and discards. This is many times the default limit on a
/// request's length.
const MAX_BYTES: usize = 4 << 20;
/// The maximum number of bytes that one read discards.
const READ_BYTES: usize = 8 << 10;

/// The lingering close, by which every connection ends that slotfront closes (RFC 9112, 9.6).
///
/// The kernel sends a TCP reset if a socket is closed while bytes are unread, or if more bytes arrive after the
/// close. The reset may discard an answer that the client has not read yet. Therefore slotfront first shuts down
/// only the writing half of the socket. It then reads and discards the client's bytes until the client closes.
/// Both the time for this and the number of bytes are bounded.
struct LingeringClose {
    clock: Pin<Box<Sleep>>,
    bytes_left: usize,
    is_shut: bool,
}

impl LingeringClose {
    pub(super) fn new(time: Duration) -> Self {
        Self { clock: Box::pin(tokio::time::sleep(time)), bytes_left: MAX_BYTES, is_shut: false }
    }

    /// Shuts down the writing half of `socket`, then reads until the client closes or a bound is reached. Once the poll
    /// is ready, the socket may be closed. An error also makes the poll ready, because the answer is already written.
    pub(super) fn poll<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        socket: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let mut socket = Pin::new(socket);
        // The shutdown comes before the clock, so that even without time a client is told of the end. Over TLS it sends
        // `close_notify`, without which a client would suspect that data was cut off.
        if !self.is_shut
            && let Poll::Ready(shut) = socket.as_mut().poll_shutdown(cx)
        {
            if shut.is_err() {
                return Poll::Ready(());
            }
            self.is_shut = true;
        }
        if self.clock.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        if !self.is_shut {
            return Poll::Pending;
        }
        let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
        loop {
            let mut read = ReadBuf::uninit(&mut buffer);
            let result = ready!(socket.as_mut().poll_read(cx, &mut read));
            let bytes = read.filled().len();
            if result.is_err() || bytes == 0 || bytes >= self.bytes_left {
                return Poll::Ready(());
            }
            self.bytes_left -= bytes;
        }
    }
}

/// Closes `socket` lingeringly: shuts down the writing half, then reads and discards the client's bytes for at most
/// `time`.
pub(super) async fn linger<S: AsyncRead + AsyncWrite + Unpin>(socket: &mut S, time: Duration) {
    let mut close = LingeringClose::new(time);
    std::future::poll_fn(|cx| close.poll(socket, cx)).await;
}

#[cfg(test)]
mod tests;
