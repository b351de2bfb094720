//! A client's socket with the clocks that hyper has not: a head that has begun must end, and an answer must move on.
//!
//! hyper's one clock for heads runs while a kept-alive connection idles as well, so there it is the long one, for
//! idling. The clocks here cost a request nothing but a look at the time: they are set only where the socket waits.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::exchange::Exchange;

/// A client that takes no byte for so long is gone or means harm; TCP resends a lost packet several times within it.
const WRITE_STALL: Duration = Duration::from_secs(30);

/// A socket that gives up on its client in time.
pub(super) struct Stream<S> {
    socket: S,
    exchange: Arc<Exchange>,
    head_timeout: Duration,
    /// The head that has begun to come, and by when it must be whole.
    head: (u64, Instant),
    head_clock: Pin<Box<Sleep>>,
    /// Set while the client takes nothing.
    write_clock: Option<Pin<Box<Sleep>>>,
}

impl<S> Stream<S> {
    /// A new connection, whose first head counts from now: nobody connects to say nothing.
    pub(super) fn new(socket: S, exchange: Arc<Exchange>, head_timeout: Duration) -> Self {
        let deadline = Instant::now() + head_timeout;
        let head_clock = Box::pin(tokio::time::sleep_until(deadline));
        Self { socket, exchange, head_timeout, head: (0, deadline), head_clock, write_clock: None }
    }

    /// An error once the head that has begun is late.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let (begun, deadline) = self.head;
        if self.exchange.awaited_head() != Some(begun) {
            return Poll::Pending;
        }
        if self.head_clock.deadline() != deadline {
            self.head_clock.as_mut().reset(deadline);
        }
        ready!(self.head_clock.as_mut().poll(cx));
        Poll::Ready(io::Error::new(ErrorKind::TimedOut, "the request head took too long"))
    }

    /// `written`, or an error where nothing was for too long.
    fn poll_stalled(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.write_clock = None;
            return written;
        }
        let clock = self.write_clock.get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_STALL)));
        ready!(clock.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the client takes no more of the answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, buf);
        if read.is_pending() {
            return self.poll_head(cx).map(Err);
        }
        if let Some(awaited) = self.exchange.awaited_head()
            && awaited != self.head.0
            && buf.filled().len() > before
        {
            self.head = (awaited, Instant::now() + self.head_timeout);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stream<S> {
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

    /// hyper flushes once all that it had is written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.exchange.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use hyper::Response;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    const HEAD: Duration = Duration::from_secs(10);

    fn pair() -> (DuplexStream, Stream<DuplexStream>, Arc<Exchange>) {
        let (client, socket) = tokio::io::duplex(16);
        let exchange = Arc::new(Exchange::default());
        (client, Stream::new(socket, Arc::clone(&exchange), HEAD), exchange)
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_trickles_in_is_given_up() {
        for kept_alive in [false, true] {
            let (mut client, mut stream, exchange) = pair();
            let mut byte = [0];
            if kept_alive {
                client.write_all(b"x").await.unwrap();
                stream.read_exact(&mut byte).await.unwrap();
                exchange.begin();
                drop(Arc::clone(&exchange).answer(Response::new(Body::empty())));
                // It may idle for as long as hyper lets it.
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
    async fn a_request_that_is_being_answered_has_no_late_head() {
        let (mut client, mut stream, exchange) = pair();
        client.write_all(b"x").await.unwrap();
        stream.read_exact(&mut [0]).await.unwrap();
        exchange.begin();
        let waited = tokio::time::timeout(HEAD * 6, stream.read(&mut [0])).await;
        assert!(waited.is_err(), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up_and_a_slow_one_is_not() {
        let (mut client, mut stream, _exchange) = pair();
        let slow = async {
            for _ in 0..4 {
                tokio::time::sleep(WRITE_STALL / 2).await;
                client.read_exact(&mut [0; 16]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(stream.write_all(&[0; 5 * 16]), slow);
        written.unwrap();
        let begun = Instant::now();
        let stalled = stream.write_all(&[0; 32]).await.unwrap_err();
        assert_eq!((stalled.kind(), begun.elapsed()), (ErrorKind::TimedOut, WRITE_STALL));
    }
}
