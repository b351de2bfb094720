//! Writes responses: a JSON text inside the envelope with the caller's id.
//!
//! The text is copied unchanged. The order of members is that of a node: `jsonrpc`, `result` or `error`, `id`. The HTTP
//! layer adds the newline at the end of the body.

use bytes::Bytes;

use super::Id;
use super::envelope::EnvelopeError;

const RESULT_HEAD: &[u8] = br#"{"jsonrpc":"2.0","result":"#;
const ERROR_HEAD: &[u8] = br#"{"jsonrpc":"2.0","error":"#;
const ERROR_HEAD_UNVERSIONED: &[u8] = br#"{"error":"#;

/// Appends an answer to `out`, with the JSON text `result` as its result.
pub fn result(out: &mut Vec<u8>, id: &Id, result: &[u8]) {
    splice(out, RESULT_HEAD, result, id);
}

/// Appends an answer to `out`, with a node's error object, given as JSON text.
pub fn node_error(out: &mut Vec<u8>, id: &Id, error_object: &[u8]) {
    splice(out, ERROR_HEAD, error_object, id);
}

/// Appends an answer to `out`, with an error of this code and message. `data` is JSON text.
pub fn refusal(out: &mut Vec<u8>, id: &Id, code: i32, message: &str, data: Option<&str>) {
    splice(out, ERROR_HEAD, error_object(code, message, data).as_bytes(), id);
}

/// Appends the answer to a fault of the envelope to `out`. If the call lacks the `jsonrpc` member, the answer lacks
/// this member, too.
pub fn envelope_refusal(out: &mut Vec<u8>, id: &Id, error: EnvelopeError) {
    let head = match error {
        EnvelopeError::UnsupportedVersion => ERROR_HEAD_UNVERSIONED,
        EnvelopeError::Parse | EnvelopeError::InvalidRequest => ERROR_HEAD,
    };
    splice(out, head, error_object(error.code(), error.message(), None).as_bytes(), id);
}

fn error_object(code: i32, message: &str, data: Option<&str>) -> String {
    let message = serde_json::Value::from(message);
    let data = data.map(|data| format!(r#","data":{data}"#)).unwrap_or_default();
    format!(r#"{{"code":{code},"message":{message}{data}}}"#)
}

/// Returns the text of an answer before and after its `result`, so that a long result can be sent between them in
/// chunks.
pub fn head_and_tail(id: &Id) -> (Bytes, Bytes) {
    let mut tail = Vec::with_capacity(32);
    write_tail(&mut tail, id);
    (Bytes::from_static(RESULT_HEAD), tail.into())
}

fn splice(out: &mut Vec<u8>, head: &[u8], value: &[u8], id: &Id) {
    out.reserve(head.len() + value.len() + 32);
    out.extend_from_slice(head);
    out.extend_from_slice(value);
    write_tail(out, id);
}

fn write_tail(out: &mut Vec<u8>, id: &Id) {
    out.extend_from_slice(br#","id":"#);
    match id {
        Id::Null => out.extend_from_slice(b"null"),
        Id::Number(number) => out.extend_from_slice(itoa::Buffer::new().format(*number).as_bytes()),
        Id::Text(text) => out.extend_from_slice(text),
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn refused(id: &Id, error: EnvelopeError) -> String {
        let mut out = Vec::new();
        envelope_refusal(&mut out, id, error);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_result_is_spliced_before_the_callers_id() {
        let mut out = Vec::new();
        result(&mut out, &Id::Text(Bytes::from_static(br#""a\n""#)), b"[1.0]");
        assert_snapshot!(str::from_utf8(&out).unwrap(), @r#"{"jsonrpc":"2.0","result":[1.0],"id":"a\n"}"#);
    }

    #[test]
    fn head_and_tail_enclose_what_result_writes() {
        for id in [Id::Null, Id::Number(u64::MAX), Id::Text(Bytes::from_static(b"\"x\""))] {
            let mut whole = Vec::new();
            result(&mut whole, &id, b"{}");
            let (head, tail) = head_and_tail(&id);
            assert_eq!(whole, [&head[..], b"{}", &tail[..]].concat());
        }
    }

    #[test]
    fn a_nodes_error_passes_byte_for_byte() {
        let mut out = Vec::new();
        node_error(&mut out, &Id::Number(1), br#"{"code":-32004,"message":"x"}"#);
        assert_snapshot!(
            str::from_utf8(&out).unwrap(),
            @r#"{"jsonrpc":"2.0","error":{"code":-32004,"message":"x"},"id":1}"#
        );
    }

    #[test]
    fn refusals_read_like_a_nodes() {
        assert_snapshot!(
            refused(&Id::Null, EnvelopeError::Parse),
            @r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"},"id":null}"#
        );
        assert_snapshot!(
            refused(&Id::Number(1), EnvelopeError::UnsupportedVersion),
            @r#"{"error":{"code":-32600,"message":"Unsupported JSON-RPC protocol version"},"id":1}"#
        );
        let mut out = Vec::new();
        refusal(&mut out, &Id::Number(1), -32602, "say \"a\"", Some(r#""\"Got: 3\"""#));
        assert_snapshot!(
            str::from_utf8(&out).unwrap(),
            @r#"{"jsonrpc":"2.0","error":{"code":-32602,"message":"say \"a\"","data":"\"Got: 3\""},"id":1}"#
        );
    }
}
