//! The lingering close, by which every connection ends that slotfront closes (RFC 9112, 9.6).
//!
//! The kernel sends a TCP reset if a socket is closed while bytes are unread, or if more bytes arrive after the
//! close. The reset may discard an answer that the client has not read yet. Therefore slotfront first shuts down
//! only the writing half of the socket. It then reads and discards the client's bytes until the client closes.
//! Both the time for this and the number of bytes are bounded.

use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// The maximum number of bytes that one lingering close reads and discards. This is many times the default limit on a
/// request's length.
const MAX_BYTES: usize = 4 << 20;
/// The maximum number of bytes that one read discards.
const READ_BYTES: usize = 8 << 10;

pub(super) struct LingeringClose {
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
#[cfg(any(test, feature = "h1-fast-path"))]
pub(super) async fn linger<S: AsyncRead + AsyncWrite + Unpin>(socket: &mut S, time: Duration) {
    let mut close = LingeringClose::new(time);
    std::future::poll_fn(|cx| close.poll(socket, cx)).await;
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::*;

    const TIME: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn it_ends_when_the_client_closes() {
        let (mut client, mut socket) = tokio::io::duplex(16);
        let begun = Instant::now();
        let closes = async {
            // slotfront shuts down its writing half first.
            assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
            client.write_all(&[0; 100]).await.unwrap();
            tokio::time::sleep(TIME / 2).await;
            drop(client);
        };
        tokio::join!(linger(&mut socket, TIME), closes);
        assert_eq!(begun.elapsed(), TIME / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stays_is_left() {
        let (_client, mut socket) = tokio::io::duplex(16);
        let begun = Instant::now();
        linger(&mut socket, TIME).await;
        assert_eq!(begun.elapsed(), TIME);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_without_end_is_left() {
        let (mut client, mut socket) = tokio::io::duplex(64 << 10);
        let begun = Instant::now();
        let sends = async move {
            let mut sent = 0;
            while client.write_all(&[0; 1024]).await.is_ok() {
                sent += 1024;
            }
            sent
        };
        let leaves = async move { linger(&mut socket, TIME).await };
        let (sent, ()) = tokio::join!(sends, leaves);
        assert!((MAX_BYTES..=MAX_BYTES + (128 << 10)).contains(&sent), "{sent}");
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    /// A socket whose shutdown never completes, as over TLS when the client reads nothing.
    struct Stuck;

    impl AsyncRead for Stuck {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            unreachable!("the writing half is not shut down")
        }
    }

    impl AsyncWrite for Stuck {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_left() {
        let begun = Instant::now();
        linger(&mut Stuck, TIME).await;
        assert_eq!(begun.elapsed(), TIME);
    }
}
