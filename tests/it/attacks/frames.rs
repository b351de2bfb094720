//! Floods of HTTP/2 frames, written by hand. The connection ends, or its frames are dropped; others are served meanwhile.

use slotfront_testkit::TestGateway;
use slotfront_testkit::wire::read_until;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::is_served;

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns a field without an index or a compression (RFC 7541, 6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

/// Returns the head of a GET of `/v3/dev`, which is refused at once.
fn head() -> Vec<u8> {
    [(":method", "GET"), (":scheme", "http"), (":path", "/v3/dev"), (":authority", "x")]
        .map(|(name, value)| field(name, value))
        .concat()
}

async fn connect(gateway: &TestGateway) -> TcpStream {
    let mut socket = gateway.connect().await;
    let preface = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(SETTINGS, 0, 0, &[])[..]].concat();
    socket.write_all(&preface).await.unwrap();
    socket
}

/// Sends `frames` again and again, `bytes` bytes in all, and reads nothing. Returns true if the connection ended meanwhile.
async fn flood(socket: &mut TcpStream, bytes: usize, mut frames: impl FnMut() -> Vec<u8>) -> bool {
    let mut sent = 0;
    while sent < bytes {
        let next = frames();
        sent += next.len();
        if socket.write_all(&next).await.is_err() {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn a_head_without_an_end_ends_the_connection() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut socket = connect(&gateway).await;
    socket.write_all(&frame(HEADERS, END_STREAM, 1, &head())).await.unwrap();
    let more: Vec<u8> = (0..200).flat_map(|_| field("x-more", &"x".repeat(60))).collect();
    let ended = flood(&mut socket, 64 << 20, || frame(CONTINUATION, 0, 1, &more)).await;
    assert!(ended, "64 MiB of a head were taken");
    assert!(is_served(&mut gateway.connect().await).await);
}

#[tokio::test]
async fn empty_parts_of_a_head_end_the_connection() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut socket = connect(&gateway).await;
    socket.write_all(&frame(HEADERS, END_STREAM, 1, &head())).await.unwrap();
    let empty = frame(CONTINUATION, 0, 1, &[]).repeat(1000);
    assert!(flood(&mut socket, 64 << 20, || empty.clone()).await, "seven million empty frames were taken");
    assert!(is_served(&mut gateway.connect().await).await);
}

#[tokio::test]
async fn requests_that_are_reset_without_end_end_the_connection() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut socket = connect(&gateway).await;
    let (head, mut stream) = (head(), 1);
    let ended = flood(&mut socket, 64 << 20, || {
        let begun = frame(HEADERS, END_STREAM | END_HEADERS, stream, &head);
        let reset = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
        stream += 2;
        [begun, reset].concat()
    })
    .await;
    assert!(ended, "{stream} requests were begun and reset");
    gateway.until("nothing is in flight", || gateway.in_flight() == 0).await;
    assert!(is_served(&mut gateway.connect().await).await);
}

/// Frames that each want an answer. As nobody reads the answers, the gateway stops to read.
#[tokio::test]
async fn frames_that_want_an_answer_are_not_read_without_a_reader() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| config.server.write_timeout = std::time::Duration::from_secs(1))
        .start()
        .await;
    for frames in [frame(SETTINGS, 0, 0, &[]), frame(PING, 0, 0, &[0; 8])] {
        let mut socket = connect(&gateway).await;
        let frames = frames.repeat(1000);
        // A kernel's buffers hold a few MiB in each direction.
        assert!(flood(&mut socket, 256 << 20, || frames.clone()).await, "{:?}", &frames[..9]);
        assert!(is_served(&mut gateway.connect().await).await);
    }
}

#[tokio::test]
async fn windows_that_overflow_end_the_connection() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let mut socket = connect(&gateway).await;
    let window = frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes());
    let _ = socket.write_all(&window.repeat(2)).await;
    // The end of the text is the end of the connection.
    read_until(&mut socket, |_| false).await;
    assert!(is_served(&mut gateway.connect().await).await);
}
