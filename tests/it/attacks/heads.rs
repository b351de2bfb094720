//! Heads that two readers could take for different requests, and fields that hold rubbish.

use slotfront_testkit::TestGateway;
use slotfront_testkit::wire::{is_whole, post, read_until};
use tokio::io::AsyncWriteExt;

use super::{ANSWERED, CALL, all, answers};

/// Returns a call with this request line, and `lines` in its head.
fn call(line: &str, lines: &str) -> String {
    let length = CALL.len();
    format!(
        "{line}\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{lines}\r\n{CALL}"
    )
}

const LINE: &str = "POST /v3/dev HTTP/1.1";

/// Returns the statuses of all answers in `seen`.
fn statuses(seen: &str) -> Vec<u16> {
    let after = seen.split("HTTP/1.1 ").skip(1);
    after.filter_map(|answer| answer.get(..3)?.parse().ok()).collect()
}

#[tokio::test]
async fn odd_heads_are_read_in_one_way_or_refused() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let next = post("/v3/dev", "connection: close\r\n", CALL);
    let long = format!("cookie: {}\r\n", "c".repeat(8 << 10));
    // Whoever reads these otherwise reads a call all the same: the call behind it is served, too.
    for request in [
        call(LINE, ""),
        call(LINE, &format!("content-length: {}\r\n", CALL.len())),
        call(LINE, "content-type: text/plain\r\n"),
        call(LINE, "x-empty:\r\n"),
        call(LINE, "x-blank: \t \r\n"),
        call(LINE, "X-UPPER: 1\r\nx-upper: 2\r\n"),
        call(LINE, "x-bytes: \u{e9}\u{fffd}\r\n"),
        call(LINE, "expect: 200-ok\r\n"),
        call(LINE, "connection: content-length, host\r\n"),
        call(LINE, "connection: upgrade\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"),
        call(LINE, "upgrade: websocket\r\n"),
        call(LINE, "te: trailers, gzip\r\n"),
        call(LINE, "trailer: content-length\r\n"),
        call(LINE, "range: bytes=0-1\r\n"),
        call(LINE, "if-none-match: *\r\nif-match: \"x\"\r\n"),
        call(LINE, "x-http-method-override: DELETE\r\n"),
        call(LINE, "x-original-url: /v3/other\r\nx-rewrite-url: /v3/other\r\n"),
        call(LINE, "x-forwarded-for: \", 1\r\nforwarded: for=\"\r\nx-real-ip: 1.2.3.4\r\n"),
        call(LINE, "authorization: Basic ZGV2Om90aGVy\r\n"),
        call(LINE, "authorization: bearer   dev  \r\nx-api-key: dev\r\n"),
        call(LINE, "cache-control: no-cache, max-age=0, \"\r\n"),
        call(LINE, "traceparent: 00-0-0-0\r\ntracestate: =,=\r\n"),
        call(LINE, &long),
        call("POST http://other.example:1/v3/dev HTTP/1.1", ""),
        call("POST /v3/dev#fragment HTTP/1.1", ""),
        call("\r\n\r\nPOST /v3/dev HTTP/1.1", ""),
        call(LINE, "").replace("\r\n", "\n"),
    ] {
        let seen = all(&gateway, (request.clone() + &next).as_bytes()).await;
        assert_eq!(
            (statuses(&seen), seen.matches(ANSWERED).count()),
            (vec![200, 200], 2),
            "{request:?}: {seen:?}"
        );
    }
    // These are no calls, whatever follows: it is not read.
    for request in [
        call(LINE, "x-folded: 1\r\n 2\r\n"),
        call(LINE, " x-begins: folded\r\n"),
        call(LINE, "x-fold:\r\n\tcontent-length: 0\r\n"),
        call(LINE, "no colon\r\n"),
        call(LINE, ": no name\r\n"),
        call(LINE, "two words: 1\r\n"),
        call(LINE, "x-tab\t: 1\r\n"),
        call(LINE, "x(y): 1\r\n"),
        call(LINE, "x\0y: 1\r\n"),
        call(LINE, "\u{e9}: 1\r\n"),
        call(LINE, "x-nul: a\0b\r\n"),
        call(LINE, "x-cr: a\rb\r\n"),
        call(LINE, "x-del: a\x7fb\r\n"),
        call(LINE, "x-escape: a\x1bb\r\n"),
        call(LINE, "content-length: 0\r\n"),
        call(LINE, "Content-Length: 1, 1\r\n"),
        call(LINE, "transfer-encoding: gzip, chunked\r\n"),
        call(LINE, "host: y\r\n"),
        call(LINE, "").replace("host: x\r\n", ""),
        call(LINE, "").replace("host: x", "host: x y"),
        call("POST /v3/dev HTTP/1.2", ""),
        call("POST /v3/dev HTTP/2.0", ""),
        call("POST /v3/dev http/1.1", ""),
        call("POST /v3/dev HTTP/1.1 HTTP/1.1", ""),
        call("POST /v3/dev", ""),
        call("POST /v3/dev extra HTTP/1.1", ""),
        call("POST", ""),
        call("", "").replacen("\r\n", " \r\n", 1),
        call(" POST /v3/dev HTTP/1.1", ""),
        call("PO\0ST /v3/dev HTTP/1.1", ""),
        call("POST(x) /v3/dev HTTP/1.1", ""),
        call("POST /v3/dev\0 HTTP/1.1", ""),
        call("POST /v3/d\tev HTTP/1.1", ""),
    ] {
        let seen = all(&gateway, (request.clone() + &next).as_bytes()).await;
        assert!(!seen.contains(ANSWERED) && answers(&seen) <= 1, "{request:?}: {seen:?}");
        assert!(statuses(&seen).iter().all(|status| matches!(status, 400 | 501)), "{request:?}: {seen:?}");
        assert!(seen.is_empty() || seen.contains("connection: close"), "{request:?}: {seen:?}");
    }
    // These are requests, but no calls.
    for (line, status) in [
        ("post /v3/dev HTTP/1.1", 405),
        ("PRI /v3/dev HTTP/1.1", 405),
        ("QUERY /v3/dev HTTP/1.1", 405),
        ("CONNECT /v3/dev HTTP/1.1", 405),
        ("TRACE /v3/dev HTTP/1.1", 405),
        ("POST /V3/dev HTTP/1.1", 404),
    ] {
        let seen = all(&gateway, (call(line, "connection: close\r\n") + &next).as_bytes()).await;
        assert!(!seen.contains(ANSWERED) && statuses(&seen) == [status], "{line}: {seen:?}");
    }
}

#[tokio::test]
async fn who_asks_before_he_sends_a_body_is_told_to() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let request = call(LINE, "expect: 100-continue\r\n");
    let (head, body) = request.split_at(request.len() - CALL.len());
    let mut socket = gateway.connect().await;
    socket.write_all(head.as_bytes()).await.unwrap();
    let seen = read_until(&mut socket, |seen| seen.ends_with("\r\n\r\n")).await;
    assert_eq!(seen, "HTTP/1.1 100 Continue\r\n\r\n");
    socket.write_all(body.as_bytes()).await.unwrap();
    assert!(read_until(&mut socket, is_whole).await.contains(ANSWERED));
}

#[tokio::test]
async fn rubbish_in_accept_encoding_gets_the_answer_as_it_is() {
    let gateway = TestGateway::builder().nodes(1).start().await;
    let block = gateway.cluster.examples().block_with_v0;
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"getBlock","params":[{block},{{"maxSupportedTransactionVersion":0}}]}}"#
    );
    for rubbish in [
        "",
        ",,,,",
        ";q=1",
        "gzip;q=nan",
        "gzip;q=1e0",
        "gzip;q=18446744073709551616",
        "gzip;;q=1",
        "gzip;q=1;q=1",
        "gzip q=1",
        "\"gzip\"",
        "gzip\u{e9}",
        "gzip/zstd",
        "x-zstd, compress, br, deflate, dcb",
        "*;q=",
        "zstd;level=19",
        &"gzip;q=0,".repeat(900),
        &",".repeat(8 << 10),
    ] {
        let mut socket = gateway.connect().await;
        let head = format!("accept-encoding: {rubbish}\r\n");
        socket.write_all(post("/v3/dev", &head, &body).as_bytes()).await.unwrap();
        let seen = read_until(&mut socket, is_whole).await;
        let shown = &rubbish[..rubbish.floor_char_boundary(40)];
        assert!(seen.starts_with("HTTP/1.1 200") && seen.contains(r#""blockhash":"#), "{shown}: {seen:.300}");
        assert!(!seen.contains("content-encoding"), "{shown}: {seen:.300}");
    }
}
