//! A client's socket with the timeouts that hyper lacks: for a request head, for an idle connection, and for a client
//! that does not read a response.
//!
//! hyper's `header_read_timeout` runs from the end of the previous response, so it cannot be shorter than the time for
//! which a connection may be idle.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::connection_activity::ConnectionActivity;
use super::lazy_timer::{LazyTimer, StallTimer};
use super::lingering_close::LingeringClose;

/// The first bytes of a client that speaks HTTP/2 without negotiation (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The capacity for the first read, in bytes. The head and body of a usual request fit into it.
const FIRST_READ_BYTES: usize = 4096;

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
    write_timer: StallTimer,
    /// The bytes that were read to detect the protocol. The next reads return them.
    read_ahead: Bytes,
}

impl<S> TimedSocket<S> {
    /// Creates the stream of a new connection. The timeout for a request head runs from now, so it also applies to a
    /// client that sends nothing. Reads return the bytes of `read_ahead` first.
    pub(super) fn new(
        socket: S,
        activity: Arc<ConnectionActivity>,
        timeouts: Timeouts,
        read_ahead: Bytes,
    ) -> Self {
        let now = Instant::now();
        activity.start(now);
        Self {
            socket,
            activity,
            timeouts,
            close: None,
            head_timer: LazyTimer::new(now + timeouts.head),
            write_timer: StallTimer::default(),
            read_ahead,
        }
    }

    fn poll_stalled<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.write_timer.poll(cx, self.timeouts.write, written)
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
            read.reserve(FIRST_READ_BYTES);
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
            self.activity.note_bytes(Instant::now());
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
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
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
        }
        self.poll_stalled(cx, flushed)
    }

    /// Closes the socket lingeringly. hyper has flushed it before.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { socket, timeouts, close, .. } = &mut *self;
        close.get_or_insert_with(|| LingeringClose::new(timeouts.linger)).poll(socket, cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use hyper::Response;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    const HEAD: Duration = Duration::from_secs(10);
    const IDLE: Duration = Duration::from_mins(2);
    const WRITE: Duration = Duration::from_secs(30);
    const LINGER: Duration = Duration::from_secs(1);

    fn pair() -> (DuplexStream, TimedSocket<DuplexStream>, Arc<ConnectionActivity>) {
        let (client, socket) = tokio::io::duplex(16);
        let activity = Arc::new(ConnectionActivity::default());
        let timeouts = Timeouts { head: HEAD, idle: IDLE, write: WRITE, linger: LINGER };
        (client, TimedSocket::new(socket, Arc::clone(&activity), timeouts, Bytes::new()), activity)
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_trickles_in_is_given_up() {
        for kept_alive in [false, true] {
            let (mut client, mut stream, activity) = pair();
            let mut byte = [0];
            if kept_alive {
                client.write_all(b"x").await.unwrap();
                stream.read_exact(&mut byte).await.unwrap();
                drop(activity.begin().answer(Response::new(Body::empty())));
                // The idle timeout is longer than the head timeout.
                let idle = tokio::time::timeout(HEAD * 6, stream.read(&mut byte)).await;
                assert!(idle.is_err(), "{idle:?}");
            }
            let begun = Instant::now();
            let late = loop {
                let _ = client.write_all(b"x").await;
                stream.read_exact(&mut byte).await.unwrap();
                if let Ok(late) = tokio::time::timeout(Duration::from_secs(3), stream.read(&mut byte)).await {
                    break late;
                }
            };
            assert_eq!(late.unwrap_err().kind(), ErrorKind::TimedOut);
            assert_eq!(begun.elapsed(), HEAD);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_ends_like_a_closed_one() {
        let (mut client, mut stream, activity) = pair();
        for _ in 0..2 {
            client.write_all(b"x").await.unwrap();
            stream.read_exact(&mut [0]).await.unwrap();
            drop(activity.begin().answer(Response::new(Body::empty())));
            assert!(tokio::time::timeout(IDLE / 2, stream.read(&mut [0])).await.is_err());
        }
        let begun = Instant::now();
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(begun.elapsed(), IDLE / 2, "since the last response");
    }

    #[tokio::test(start_paused = true)]
    async fn no_head_is_late_during_an_answer() {
        let (mut client, mut stream, activity) = pair();
        client.write_all(b"x").await.unwrap();
        stream.read_exact(&mut [0]).await.unwrap();
        let _turn = activity.begin();
        let waited = tokio::time::timeout(HEAD * 6, stream.read(&mut [0])).await;
        assert!(waited.is_err(), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn first_bytes_tell_the_protocol() {
        let get = &b"GET / HTTP/1.1\r\n\r\n"[..];
        for (name, sent, expected) in [
            ("HTTP/2", PREFACE, true),
            ("HTTP/2 and more", &[PREFACE, b"frame"].concat()[..], true),
            ("HTTP/1.1", get, false),
            ("a word that begins alike", b"PRINT / HTTP/1.1\r\n\r\n", false),
            ("cut off", &PREFACE[..9], false),
            ("nothing", b"", false),
        ] {
            let (mut client, mut stream, _exchange) = pair();
            let all = async {
                for byte in sent {
                    client.write_all(&[*byte]).await.unwrap();
                }
                drop(client);
            };
            let read = async {
                let http2 = stream.opens_with_http2().await.unwrap();
                let mut all = Vec::new();
                stream.read_to_end(&mut all).await.unwrap();
                (http2, all)
            };
            let (read, ()) = tokio::join!(read, all);
            assert_eq!(read, (expected, sent.to_vec()), "{name}");
        }
        let (_client, mut stream, _exchange) = pair();
        let late = stream.opens_with_http2().await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut, "a client that says nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_client_that_takes_nothing_times_out() {
        let (mut client, mut stream, _exchange) = pair();
        let slow = async {
            for _ in 0..4 {
                tokio::time::sleep(WRITE / 2).await;
                client.read_exact(&mut [0; 16]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(stream.write_all(&[0; 5 * 16]), slow);
        written.unwrap();
        let begun = Instant::now();
        let stalled = stream.write_all(&[0; 32]).await.unwrap_err();
        assert_eq!((stalled.kind(), begun.elapsed()), (ErrorKind::TimedOut, WRITE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stays_is_left_after_the_close() {
        let (mut client, mut stream, _exchange) = pair();
        stream.write_all(b"answer").await.unwrap();
        let begun = Instant::now();
        stream.shutdown().await.unwrap();
        assert_eq!(begun.elapsed(), LINGER);
        let mut seen = Vec::new();
        client.read_to_end(&mut seen).await.unwrap();
        assert_eq!(seen, b"answer");
    }
}
