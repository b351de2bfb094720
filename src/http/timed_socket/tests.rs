//! Tests of the timeouts and of the lingering close, on a clock that only the tests advance.

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
    (client, TimedSocket::new(socket, Arc::clone(&activity), timeouts), activity)
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

#[tokio::test]
async fn no_more_is_kept_than_tells_the_protocol() {
    let (mut client, socket) = tokio::io::duplex(8192);
    let timeouts = Timeouts { head: HEAD, idle: IDLE, write: WRITE, linger: LINGER };
    let mut stream = TimedSocket::new(socket, Arc::default(), timeouts);
    client.write_all(&[PREFACE, &[0; 4000]].concat()).await.unwrap();
    assert!(stream.opens_with_http2().await.unwrap());
    assert_eq!(stream.into_parts().1, PREFACE);
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
