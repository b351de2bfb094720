//! Attacks with bodies that never end, and with connections that show no key: what they make the gateway keep.

use bytes::Bytes;
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use hyper::Request;
use slotfront::config::Config;
use slotfront::gateway::keys::file::{KeyFile, NewKey};
use slotfront_testkit::wire::{is_whole, post, read_until};
use slotfront_testkit::{PATIENCE, TestGateway};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_util::task::TaskTracker;

use super::{CALL, from, is_served};

/// The length of a long body. It is read in several pieces.
const LONG: usize = 48 * 1024;
/// The length of a body that is too long for one read as well.
const SHORT: usize = 16 * 1024;
const MIB: usize = 1 << 20;

/// Returns a call of `bytes` bytes.
fn call_of(bytes: usize) -> String {
    format!("{CALL}{}", " ".repeat(bytes - CALL.len()))
}

/// The ways by which a request is read.
#[derive(Debug, Clone, Copy)]
enum Way {
    Http1,
    Http2,
}

const WAYS: [Way; 2] = [Way::Http1, Way::Http2];

/// A request whose last byte has not been sent.
enum Unfinished {
    Http1(TcpStream),
    /// The connection ends when the first part is dropped.
    Http2(SendRequest<Bytes>, ResponseFuture, SendStream<Bytes>),
}

async fn http2(gateway: &TestGateway, address: [u8; 4]) -> SendRequest<Bytes> {
    let (calls, connection) = h2::client::handshake(from(gateway, address).await).await.unwrap();
    TaskTracker::new().spawn(connection);
    calls
}

impl Unfinished {
    /// Begins a call of `bytes` bytes with `key`, and sends all of it but the last byte, which is a blank.
    async fn begin(gateway: &TestGateway, way: Way, key: &str, bytes: usize) -> Self {
        let mut body = call_of(bytes);
        if matches!(way, Way::Http2) {
            let mut calls = http2(gateway, [127, 0, 0, 1]).await.ready().await.unwrap();
            let head = Request::post(gateway.url_of(key)).header("content-type", "application/json");
            let head = head.header("content-length", bytes).body(()).unwrap();
            let (reply, mut sending) = calls.send_request(head, false).unwrap();
            body.pop();
            sending.send_data(body.into(), false).unwrap();
            return Self::Http2(calls, reply, sending);
        }
        let mut socket = gateway.connect().await;
        let request = post(&format!("/v3/{key}"), "", &body);
        socket.write_all(&request.as_bytes()[..request.len() - 1]).await.unwrap();
        Self::Http1(socket)
    }

    /// Sends the last byte. Returns the status, whether there is a `Retry-After`, and the body of the answer.
    async fn end(self) -> (u16, bool, String) {
        match self {
            Self::Http1(mut socket) => {
                socket.write_all(b" ").await.unwrap();
                let answer = read_until(&mut socket, is_whole).await;
                let (head, text) = answer.split_once("\r\n\r\n").expect("an answer");
                let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
                (status.expect("a status"), head.contains("\r\nretry-after: "), text.to_owned())
            }
            Self::Http2(_calls, reply, mut sending) => {
                sending.send_data(Bytes::from_static(b" "), true).unwrap();
                let (head, mut body) = reply.await.unwrap().into_parts();
                let mut text = Vec::new();
                while let Some(data) = body.data().await {
                    text.extend_from_slice(&data.unwrap());
                }
                let waits = head.headers.contains_key("retry-after");
                (head.status.as_u16(), waits, String::from_utf8(text).unwrap())
            }
        }
    }
}

#[tokio::test]
async fn a_wrong_key_is_known_before_its_body_has_arrived() {
    let gateway = TestGateway::builder()
        .nodes(1)
        .config(|config| config.server.body_timeout = 3 * PATIENCE)
        .start()
        .await;
    let mut failed = 0;
    for way in WAYS {
        for bytes in [1000, LONG] {
            let begun = Unfinished::begin(&gateway, way, "wrong", bytes).await;
            failed += 1;
            gateway.until_metric(r#"slotfront_auth_failures_total{reason="unknown"}"#, failed).await;
            let (status, _, text) = begun.end().await;
            assert_eq!(status, 401, "{way:?}, {bytes}: {text}");
            assert_eq!(gateway.front().incoming.used(), 0, "{way:?}, {bytes}");
        }
    }
}

/// Starts a gateway with 1 MiB for bodies. Besides the key `dev` there is a second key, which is returned.
async fn narrow(change: impl FnOnce(&mut Config)) -> (TestGateway, String, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let file = KeyFile::new(dir.path().join("keys.toml"));
    let key = file.create(&NewKey::of("other", "dev"), jiff::Timestamp::now()).unwrap().key;
    let configure = |config: &mut Config| {
        config.auth.keys_file = Some(file.path().to_path_buf());
        config.server.max_incoming = MIB;
        // No connection is to end for another reason.
        (config.server.body_timeout, config.server.header_timeout) = (3 * PATIENCE, 3 * PATIENCE);
        change(config);
    };
    (TestGateway::builder().nodes(1).config(configure).start().await, key.expose().to_owned(), dir)
}

#[tokio::test]
async fn one_key_cannot_take_the_memory_for_bodies() {
    let (gateway, other, _dir) = narrow(|_| {}).await;
    let used = || gateway.front().incoming.used();
    for way in WAYS {
        let mut held = Vec::new();
        // A key may hold eight times as much as is free. So many of these bodies fit, whoever reads them, that a long one
        // does not.
        while used() + SHORT + 8 * 1024 <= 8 * (MIB - used()) {
            let before = used();
            held.push(Unfinished::begin(&gateway, way, "dev", SHORT).await);
            gateway.until("the body is counted", || used() >= before + SHORT).await;
        }
        let (status, waits, text) = Unfinished::begin(&gateway, way, "dev", LONG).await.end().await;
        assert_eq!((status, waits), (503, true), "{way:?}: {text}");
        assert!(text.contains("-32094") && used() <= MIB / 9 * 8 + SHORT, "{way:?}: {} used, {text}", used());
        // Others have their share, and a short call that comes whole needs none.
        let (status, _, text) = Unfinished::begin(&gateway, way, &other, SHORT).await.end().await;
        assert_eq!(status, 200, "{way:?}: {text}");
        for reply in gateway.get_nodes().request().send_every_way().await {
            assert_eq!(reply.status, 200, "{way:?}: {}", reply.text);
        }
        let (status, _, text) = held.swap_remove(0).end().await;
        assert_eq!(status, 200, "{way:?}: {text}");
        drop(held);
        gateway.until("all memory is given back", || used() == 0).await;
    }
}

#[tokio::test]
async fn a_thousand_endless_bodies_of_one_key_leave_room_for_another() {
    let (gateway, other, _dir) = narrow(|_| {}).await;
    let mut open = Vec::new();
    for _ in 0..10 {
        let mut calls = http2(&gateway, [127, 0, 0, 1]).await.ready().await.unwrap();
        for _ in 0..100 {
            let head = Request::post(gateway.url_of("dev")).header("content-type", "application/json");
            let (reply, mut sending) = calls.send_request(head.body(()).unwrap(), false).unwrap();
            sending.send_data(vec![b' '; SHORT].into(), false).unwrap();
            open.push((reply, sending));
        }
        open.push({
            // The last request of the connection comes after all others, so these have been read as far as they came.
            let head = Request::post(gateway.url_of("wrong")).header("content-type", "application/json");
            let (reply, mut sending) = calls.send_request(head.body(()).unwrap(), false).unwrap();
            sending.send_data(CALL.into(), true).unwrap();
            (reply, sending)
        });
        let (reply, _) = open.pop().expect("it was pushed");
        assert_eq!(reply.await.unwrap().status(), 401);
    }
    for _ in 0..10 {
        let mut served = from(&gateway, [127, 0, 0, 2]).await;
        served.write_all(post(&format!("/v3/{other}"), "", &call_of(SHORT)).as_bytes()).await.unwrap();
        assert!(read_until(&mut served, is_whole).await.contains("200 OK"), "the other key is served");
    }
    let used = gateway.front().incoming.used();
    assert!(used > SHORT && used <= MIB, "{used} bytes are kept");
}

#[tokio::test]
async fn an_address_without_a_key_keeps_its_newest_connections() {
    let (gateway, other, _dir) = narrow(|_| {}).await;
    let mut shown = from(&gateway, [127, 0, 0, 1]).await;
    assert!(is_served(&mut shown).await);
    let mut elsewhere = from(&gateway, [127, 0, 0, 2]).await;
    let mut idle = Vec::new();
    for _ in 0..64 {
        idle.push(from(&gateway, [127, 0, 0, 1]).await);
    }
    let ended = tokio::time::timeout(PATIENCE, idle[0].read(&mut [0; 1])).await;
    assert!(
        ended.is_ok_and(|read| read.is_err() || read.is_ok_and(|bytes| bytes == 0)),
        "the oldest has made room"
    );
    let newest = idle.last_mut().expect("a connection");
    let call = post(&format!("/v3/{other}"), "", CALL);
    newest.write_all(call.as_bytes()).await.unwrap();
    assert!(read_until(newest, is_whole).await.contains("200 OK"), "a newcomer can show its key");
    assert!(is_served(&mut shown).await, "and so could an old connection");
    assert!(is_served(&mut elsewhere).await, "another address is not concerned");
}

#[tokio::test]
async fn an_address_without_a_key_has_few_http2_connections() {
    let (gateway, ..) = narrow(|_| {}).await;
    let mut shown = http2(&gateway, [127, 0, 0, 1]).await.ready().await.unwrap();
    let head = || Request::post(&gateway.url).header("content-type", "application/json").body(()).unwrap();
    let served = async |calls: &mut SendRequest<Bytes>| {
        let (reply, mut sending) = calls.send_request(head(), false).unwrap();
        sending.send_data(CALL.into(), true).unwrap();
        reply.await.unwrap().status()
    };
    assert_eq!(served(&mut shown).await, 200);
    let mut begun = Vec::new();
    for _ in 0..5 {
        begun.push(Unfinished::begin(&gateway, Way::Http2, "wrong", LONG).await);
    }
    let Unfinished::Http2(_, reply, _) = begun.swap_remove(0) else { unreachable!("it is HTTP/2") };
    let ended = tokio::time::timeout(PATIENCE, reply).await;
    assert!(ended.is_ok_and(|reply| reply.is_err()), "the oldest has made room");
    assert_eq!(served(&mut shown).await, 200, "a connection that has shown a key stays");
}

#[tokio::test]
async fn trusted_proxies_need_no_key_for_their_connections() {
    let (gateway, ..) =
        narrow(|config| config.server.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()]).await;
    let mut sockets = Vec::new();
    for _ in 0..64 {
        let socket = TcpSocket::new_v4().unwrap();
        sockets.push(socket.connect(gateway.app.public).await.unwrap());
    }
    gateway.until("all are accepted", || gateway.connections() >= 64).await;
    assert!(is_served(&mut sockets[0]).await);
}
