//! Attacks by a node, or by a machine in its place.

use std::io::Write;
use std::time::Duration;

use serde_json::json;
use slotfront::config::Config;
use slotfront_sim::Fault;
use slotfront_testkit::{LoopbackTap, TestGateway};
use tokio::net::{TcpListener, TcpStream};

/// Returns a gateway over `nodes` nodes, and a recording proxy (tap) in front of the first node. That node is
/// asked first, but the tap answers getVoteAccounts with `answer`.
async fn answered_by(
    nodes: usize,
    answer: Vec<u8>,
    configure: impl FnOnce(&mut Config),
) -> (TestGateway, LoopbackTap) {
    let tap = LoopbackTap::start().await;
    tap.answer_instead("getVoteAccounts", answer);
    let asked_first = |config: &mut Config| {
        config.upstreams.iter_mut().skip(1).for_each(|upstream| upstream.tier = 1);
        config.pool.max_response = 1 << 20;
    };
    let gateway = TestGateway::builder().nodes(nodes).tap(&tap).config(asked_first).config(configure);
    (gateway.start().await, tap)
}

fn answer(head: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {head}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Returns `text` as one gzip member.
fn gzip(text: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(text).unwrap();
    packed.finish().unwrap()
}

/// Returns at least 16 GiB of the character 0, compressed to at most 32 MiB. Unpacking it takes longer than
/// an attempt may take.
fn bomb(encoding: &str) -> Vec<u8> {
    if encoding == "zstd" {
        // RFC 8878: the magic number, a window of 128 KiB, and then blocks of one byte repeated 128 Ki times.
        let head = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 7 << 3];
        return [&head[..], &[0x02, 0x00, 0x10, b'0'].repeat(128 << 10)].concat();
    }
    if encoding == "x-gzip" {
        return gzip(&vec![b'0'; 1 << 20]).repeat(16 << 10);
    }
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let mut ends = [0; 2];
    for end in &mut ends {
        packed.write_all(&vec![b'0'; 1 << 20]).unwrap();
        packed.flush().unwrap();
        *end = packed.get_ref().len();
    }
    // The second mebibyte is compressed to references to the first. Its compressed bytes are repeated as they are.
    let again = packed.get_ref()[ends[0]..ends[1]].to_vec();
    [packed.get_ref()[..ends[1]].to_vec(), again.repeat(16 << 10)].concat()
}

#[tokio::test]
async fn compression_bomb_stops_at_the_answer_limit() {
    for encoding in ["gzip", "x-gzip", "zstd"] {
        let packed = bomb(encoding);
        assert!(packed.len() <= 32 << 20, "{}", packed.len());
        let head = format!("200 OK\r\ncontent-encoding: {encoding}");
        let (gateway, _tap) = answered_by(1, answer(&head, &packed), |_| {}).await;
        let reply = gateway.get_votes().send().await;
        assert_eq!((reply.status, reply.code()), (502, -32095), "{encoding}");
        assert!(reply.text.contains("too_large"), "{encoding}: {}", reply.text);
        assert_eq!(gateway.get_nodes().send().await.status, 200, "the node is still used");
    }
}

#[tokio::test]
async fn compressed_answers_are_read_by_every_name_and_to_the_last_member() {
    let text = br#"{"jsonrpc":"2.0","result":{"current":[],"delinquent":[]},"id":""}"#;
    let members = [gzip(&text[..30]), gzip(b""), gzip(&text[30..])].concat();
    let frames = [&text[..30], &text[30..]].map(|part| zstd::bulk::compress(part, 3).unwrap()).concat();
    for (coding, body) in [
        ("gzip", gzip(text)),
        ("gzip", members.clone()),
        ("x-gzip", gzip(text)),
        ("X-GZIP", members),
        ("Zstd", frames),
    ] {
        let head = format!("200 OK\r\ncontent-encoding: {coding}");
        let (gateway, _tap) = answered_by(1, answer(&head, &body), |_| {}).await;
        let reply = gateway.get_votes().send().await;
        // The answer is read to its end, where it has the id of another call.
        assert_eq!(reply.error()["data"]["attempts"][0]["reason"], "wrong_id", "{coding}: {}", reply.text);
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed_anywhere() {
    let inside = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = inside.local_addr().unwrap();
    for status in [
        "301 Moved Permanently",
        "302 Found",
        "303 See Other",
        "307 Temporary Redirect",
        "308 Permanent Redirect",
    ] {
        let location = format!("{status}\r\nlocation: http://{address}/latest/meta-data/");
        let (gateway, tap) = answered_by(2, answer(&location, b"{}"), |_| {}).await;
        let reply = gateway.get_votes().send().await;
        assert_eq!(reply.status, 200, "another node answers: {}", reply.text);
        assert_eq!(tap.seen("getVoteAccounts").len(), 1, "{status}");
        assert!(!reply.text.contains("meta-data") && !format!("{:?}", reply.headers).contains("meta-data"));
    }
    // Who followed it has connected before the caller got an answer, or at least before this one.
    let last = TcpStream::connect(address).await.unwrap();
    let (_, first) = inside.accept().await.unwrap();
    assert_eq!(first, last.local_addr().unwrap(), "the gateway followed the redirect");
}

#[tokio::test]
async fn answers_with_two_lengths_are_refused() {
    let whole = br#"{"jsonrpc":"2.0","result":{"current":[],"delinquent":[]},"id":1}"#;
    for head in [
        format!("content-length: {}\r\ncontent-length: 5\r\n\r\n", whole.len()),
        "content-length: -5\r\n\r\n".to_owned(),
        "transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n".to_owned(),
        "content-encoding: gzip\r\ncontent-length: 66\r\n\r\n".to_owned(),
        "x: a\0b\r\ncontent-length: 66\r\n\r\n".to_owned(),
    ] {
        let raw = [b"HTTP/1.1 200 OK\r\n", head.as_bytes(), whole].concat();
        let (gateway, _tap) = answered_by(2, raw, |_| {}).await;
        let reply = gateway.get_votes().send().await;
        assert_eq!(reply.status, 200, "{head:?}: {}", reply.text);
        assert_ne!(reply.result()["current"], json!([]), "{head:?}: the other node answers");
    }
}

/// Returns a response with this body in chunks, without a content-length.
fn chunked(body: &[u8]) -> Vec<u8> {
    let chunk = |piece: &[u8]| [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
    [
        &b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"[..],
        &body.chunks(99_999).flat_map(chunk).collect::<Vec<_>>(),
        b"0\r\n\r\n",
    ]
    .concat()
}

#[tokio::test]
async fn a_body_is_charged_its_own_length() {
    let body = vec![b' '; 300_000];
    for raw in [answer("200 OK", &body), chunked(&body)] {
        // One key may take eight ninths of the budget.
        let enough = body.len() * 9 / 8 - 1;
        for (budget, reason) in [(enough, "bad_json"), (enough - 1, "buffers_full")] {
            let configure = |config: &mut Config| {
                patiently(config);
                config.pool.max_buffered = budget;
            };
            let (gateway, _tap) = answered_by(1, raw.clone(), configure).await;
            // The second call shows that the first body has released the whole memory budget.
            for _ in 0..2 {
                let reply = gateway.get_votes().send().await;
                let attempts = &reply.error()["data"]["attempts"];
                assert_eq!(attempts[0]["reason"], reason, "{budget}: {}", reply.text);
            }
        }
    }
}

/// Sets timeouts of five minutes, because long answers are slow on a busy machine.
fn patiently(config: &mut Config) {
    let patience = Duration::from_mins(5);
    config.pool.attempt_timeout.fill(patience);
    config.server.request_timeout = patience;
}

/// Checks that a long answer is parsed completely before any of it leaves, however it arrives.
#[tokio::test]
async fn long_answers_must_be_json_throughout() {
    let vote = r#"{"votePubkey":"Vote111111111111111111111111111111111111111","note":"\"\u00e9\" é","credits":[[1,-2.5e3,0]]}"#;
    let votes = vec![vote; 3_000].join(",");
    let whole = format!(r#"{{"jsonrpc":"2.0","result":{{"current":[{votes}],"delinquent":[]}},"id":""}}"#);
    assert!(whole.len() > 256 << 10, "{}", whole.len());
    let with = |from: &str, to: &[u8]| {
        let at = whole.rfind(from).unwrap();
        [&whole.as_bytes()[..at], to, &whole.as_bytes()[at + from.len()..]].concat()
    };
    let nested = |levels: usize| with("[]", ("[".repeat(levels) + &"]".repeat(levels)).as_bytes());
    // A body that is parsed to its end is refused only because its id belongs to another call (`wrong_id`).
    for (i, (name, body, reason)) in [
        ("as nodes write it", whole.clone().into_bytes(), "wrong_id"),
        ("a member more", with("\"id\"", b"\"x\":1,\"id\""), "wrong_id"),
        ("nested deeper than any answer", nested(1000), "wrong_id"),
        ("two results", with("\"id\"", b"\"result\":1,\"id\""), "bad_json"),
        ("a control character", with("é", b"\n"), "bad_json"),
        ("half a character", with("é", &[0xc3]), "bad_json"),
        ("something behind it", with("\"\"}", b"\"\"}1"), "bad_json"),
        ("half of it", whole.as_bytes()[..whole.len() / 2].to_vec(), "bad_json"),
    ]
    .into_iter()
    .enumerate()
    {
        let raw = if i % 2 == 0 { chunked(&body) } else { answer("200 OK", &body) };
        let (gateway, _tap) = answered_by(1, raw, patiently).await;
        let reply = gateway.get_votes().send().await;
        assert_eq!((reply.status, reply.code()), (502, -32095), "{name}");
        assert_eq!(reply.error()["data"]["attempts"][0]["reason"], reason, "{name}");
    }
    let gateway = TestGateway::builder().nodes(1).config(patiently).start().await;
    let result: serde_json::Value = serde_json::from_str(&whole).unwrap();
    gateway.cluster.node(0).fault_on("getVoteAccounts", Fault::Result(result["result"].clone()), None);
    let reply = gateway.get_votes().send().await;
    assert_eq!((reply.status, &reply.result()), (200, &result["result"]));
}
