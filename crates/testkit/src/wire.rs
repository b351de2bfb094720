//! HTTP/1.1 as text, for requests that HTTP clients cannot send.

use std::collections::BTreeSet;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::PATIENCE;

/// The parts of a response that do not depend on the clock: the status line, the header fields without their
/// times, and the body.
pub type TimelessAnswer = (String, BTreeSet<String>, Vec<u8>);

/// Returns the text of a POST request. Each line of `headers` must end in CRLF.
pub fn post(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
}

/// Returns the text of a POST request with a call that has no params, for the key `dev`.
pub fn call(method: &str) -> String {
    post("/v3/dev", "", &json!({"jsonrpc": "2.0", "id": 1, "method": method}).to_string())
}

/// Reads until `enough` returns true for the text so far, the connection ends, or [`PATIENCE`] is over.
/// Returns the text.
pub async fn read_until(socket: &mut TcpStream, enough: impl Fn(&str) -> bool) -> String {
    let mut seen = Vec::new();
    let reading = async {
        while !enough(&String::from_utf8_lossy(&seen)) {
            if !matches!(socket.read_buf(&mut seen).await, Ok(n) if n > 0) {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(PATIENCE, reading).await;
    String::from_utf8_lossy(&seen).into_owned()
}

/// Returns true if the text is a whole response: a head, and a body as long as the content-length of the head.
pub fn is_whole(seen: &str) -> bool {
    let length =
        |head: &str| head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    seen.split_once("\r\n\r\n").is_some_and(|(head, body)| body.len() >= length(head).unwrap_or(0))
}

/// Removes the digits from a header field whose value depends on the clock: `ratelimit` or `cache-status`. Leaves
/// other fields as they are.
fn without_time(field: String) -> String {
    if field.starts_with("ratelimit: ") || field.starts_with("cache-status: ") {
        field.replace(|c: char| c.is_ascii_digit(), "")
    } else {
        field
    }
}

/// Sends a request on an open connection, and returns the response without the parts that depend on the
/// clock. Panics if no whole response comes.
pub async fn exchange(socket: &mut TcpStream, request: &[u8]) -> TimelessAnswer {
    socket.write_all(request).await.expect("an open connection");
    let mut read = Vec::new();
    let end = loop {
        let more = tokio::time::timeout(PATIENCE, socket.read_buf(&mut read)).await;
        assert!(matches!(more, Ok(Ok(n)) if n > 0), "{more:?} after {:?}", String::from_utf8_lossy(&read));
        let Some(end) = read.windows(4).position(|end| end == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&read[..end]);
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.map_or(0, |length| length.parse().expect("a length is a number"));
        if read.len() >= end + 4 + length {
            break end;
        }
    };
    let head = String::from_utf8_lossy(&read[..end]).into_owned();
    let mut lines = head.lines().map(str::to_owned);
    let status = lines.next().expect("a status line");
    let fields = lines.filter(|line| !line.starts_with("date: ")).map(without_time).collect();
    assert_eq!(head.matches("\r\ndate: ").count(), 1, "{head}");
    (status, fields, read.split_off(end + 4))
}
