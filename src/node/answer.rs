//! A node's answer, checked and parsed without building a JSON tree. Its parts are slices of the body.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::shape::member;
use super::words::{NodeRefusal, refusal};
use super::{Fault, OFF_WORKER_BYTES, code};
use crate::methods::Slot;

/// The number of bytes of a body without an error in which the words of a refusal are looked for.
const MAX_WORDS: usize = 512;

/// The body of a node's HTTP response, complete and not yet parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawAnswer {
    /// The text of the body, not checked yet.
    pub body: Bytes,
    status: u16,
}

impl RawAnswer {
    pub fn new(status: u16, body: Bytes) -> Self {
        Self { body, status }
    }

    /// Parses the body as the response to the request `id`. An error is what the node said, also with a status that is not
    /// 2xx, because gateways in front of nodes choose statuses by their own rules. What hosted nodes refuse in
    /// [their words](super::words) becomes what it means: too many calls, or -32601 for a method that this node does not serve.
    ///
    /// # Errors
    /// As for [`NodeReply::parse`], and [`Fault::Status`] for a status that is not 2xx with any other body.
    pub fn reply(&self, id: u64) -> Result<NodeReply, Fault> {
        let parsed = NodeReply::parse(&self.body, id);
        match (self.refusal(&parsed), &parsed) {
            (Some(NodeRefusal::TooMany | NodeRefusal::OutOfCredits), _) => {
                return Err(Fault::TooManyRequests(None));
            }
            (Some(NodeRefusal::NotOnPlan | NodeRefusal::NotThisMethod), _) => {
                return Ok(NodeReply::method_not_found());
            }
            (Some(NodeRefusal::NotThisCall), Ok(NodeReply::Error { body, .. })) => {
                return Ok(NodeReply::Error { code: code::OF_A_PROVIDER, body: body.clone() });
            }
            _ => {}
        }
        match (self.status, parsed) {
            (200..=299, parsed) => parsed,
            (_, said @ Ok(NodeReply::Error { .. })) => said,
            (status, _) => Err(Fault::Status(status)),
        }
    }

    /// Returns what the body means in the words of hosted nodes, if it is a refusal.
    fn refusal(&self, parsed: &Result<NodeReply, Fault>) -> Option<NodeRefusal> {
        match parsed {
            Ok(NodeReply::Result(_)) => None,
            Ok(NodeReply::Error { code, body }) => {
                let message = member::<Cow<'_, str>>(body, "message").unwrap_or_default();
                refusal(self.status, Some(*code), &message)
            }
            Err(_) => {
                let text = &self.body[..self.body.len().min(MAX_WORDS)];
                refusal(self.status, None, &String::from_utf8_lossy(text))
            }
        }
    }

    /// Parses the body as the response to the request `id`, and the reply with `read`. A long body is parsed on a blocking
    /// thread.
    ///
    /// # Errors
    /// As for [`NodeReply::parse`] and `read`.
    pub async fn read<T: Send + 'static>(
        self,
        id: u64,
        read: impl FnOnce(NodeReply) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let is_long = self.body.len() > OFF_WORKER_BYTES;
        let parse = move || read(self.reply(id)?);
        if is_long {
            tokio::task::spawn_blocking(parse).await.unwrap_or(Err(Fault::BadJson))
        } else {
            parse()
        }
    }
}

/// Returns the number of an id, which some providers write as a string. `None` for any other id.
pub fn id_number(id: &RawValue) -> Option<u64> {
    id.get().trim_matches('"').parse().ok()
}

/// A node's answer: either the result or the error of a JSON-RPC response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeReply {
    /// The `result` member as JSON text, which may be `null`.
    Result(Bytes),
    /// The `error` member as JSON text, with its code.
    Error { code: i32, body: Bytes },
}

/// The maximum number of bytes by which a body that is kept in memory may exceed its result or error. From a
/// longer body, the result or error is copied.
const ENVELOPE_BYTES: usize = 128;

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: &'a str,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    /// `None` also if the member is `null`, as some providers write it beside a result.
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    id: &'a RawValue,
}

/// The member of an error object that says what it means.
#[derive(Deserialize)]
struct Code {
    code: i32,
}

/// Reads a member of a JSON object as `Some`, even if the member is `null`. An absent member stays `None`.
fn present<'de: 'a, 'a, D: serde::Deserializer<'de>>(d: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(d).map(Some)
}

impl NodeReply {
    fn method_not_found() -> Self {
        let body = Bytes::from_static(br#"{"code":-32601,"message":"Method not found"}"#);
        Self::Error { code: code::METHOD_NOT_FOUND, body }
    }

    /// Returns the error of a node that has not reached a caller's minContextSlot. `slot` is the node's slot.
    pub fn min_context_slot_not_reached(slot: Slot) -> Self {
        let (code, message) =
            (code::MIN_CONTEXT_SLOT_NOT_REACHED, "Minimum context slot has not been reached");
        let body = format!(r#"{{"code":{code},"message":"{message}","data":{{"contextSlot":{slot}}}}}"#);
        Self::Error { code, body: body.into() }
    }

    /// Parses the body of the response to the request `id`. The whole text is checked to be JSON.
    ///
    /// # Errors
    /// [`Fault::BadJson`] if the body is not a JSON-RPC 2.0 response, [`Fault::WrongId`] if it answers another call.
    pub fn parse(body: &Bytes, id: u64) -> Result<Self, Fault> {
        let text = std::str::from_utf8(body).map_err(|_| Fault::BadJson)?;
        let envelope: Envelope = serde_json::from_str(text).map_err(|_| Fault::BadJson)?;
        // serde reads an array as a struct, too.
        if envelope.jsonrpc != "2.0" || !text.trim_start().starts_with('{') {
            return Err(Fault::BadJson);
        }
        let error = envelope.error.map(|error| Ok((serde_json::from_str::<Code>(error.get())?.code, error)));
        let error: Option<(i32, &RawValue)> =
            error.transpose().map_err(|_: serde_json::Error| Fault::BadJson)?;
        let is_own_id = id_number(envelope.id) == Some(id);
        match error {
            // The limiter of a provider may not have read the call's id.
            Some(_) if envelope.id.get() == "null" => {}
            _ if !is_own_id => return Err(Fault::WrongId),
            _ => {}
        }
        // A slice keeps the whole body in memory, so the part is copied if the body is much longer.
        let slice = |raw: &RawValue| {
            let part = raw.get().as_bytes();
            let is_all = body.len() - part.len() <= ENVELOPE_BYTES;
            if is_all { body.slice_ref(part) } else { Bytes::copy_from_slice(part) }
        };
        // A result that is `null` is one only if there is no error.
        let result = envelope.result.filter(|result| error.is_none() || result.get() != "null");
        match (result, error) {
            (Some(result), None) => Ok(Self::Result(slice(result))),
            (None, Some((code, error))) => Ok(Self::Error { code, body: slice(error) }),
            _ => Err(Fault::BadJson),
        }
    }
}

/// Returns `data.contextSlot` of the error -32016: the slot that the node has reached at the call's
/// commitment. `None` if the error lacks this member.
pub fn error_context_slot(error: &[u8]) -> Option<Slot> {
    member::<&RawValue>(error, "data").and_then(|data| member(data.get().as_bytes(), "contextSlot"))
}

/// Returns the slot of the oldest block that a node still holds, from the message of its error -32001. `None` if
/// the message does not name the slot. No other member of the error names the slot.
pub fn first_available_block(error: &[u8]) -> Option<Slot> {
    let message = member::<Cow<'_, str>>(error, "message")?;
    message.rsplit_once("First available block: ")?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: impl AsRef<[u8]>) -> Result<NodeReply, Fault> {
        RawAnswer::new(200, Bytes::copy_from_slice(text.as_ref())).reply(7)
    }

    #[test]
    fn only_a_response_to_the_call_is_accepted() {
        let result = |text: &str| Ok(NodeReply::Result(Bytes::copy_from_slice(text.as_bytes())));
        for (body, expected) in [
            (r#"{"jsonrpc":"2.0","result":{"a": [1]},"id":7}"#, result(r#"{"a": [1]}"#)),
            (r#"{"id":7,"result":null,"jsonrpc":"2.0"}"#, result("null")),
            (r#"{"jsonrpc":"2.0","result":1,"id":8}"#, Err(Fault::WrongId)),
            (r#"{"jsonrpc":"2.0","result":1,"id":"8"}"#, Err(Fault::WrongId)),
            (r#"{"jsonrpc":"2.0","result":1,"id":null}"#, Err(Fault::WrongId)),
            (r#"{"jsonrpc":"2.0","result":1}"#, Err(Fault::BadJson)),
            (r#"{"jsonrpc":"1.0","result":1,"id":7}"#, Err(Fault::BadJson)),
            (r#"{"jsonrpc":"2.0","id":7}"#, Err(Fault::BadJson)),
            (r#"{"jsonrpc":"2.0","result":1,"error":{"code":1},"id":7}"#, Err(Fault::BadJson)),
            (r#"{"jsonrpc":"2.0","result":{"a":[1,"#, Err(Fault::BadJson)),
            (r#"{"jsonrpc":"2.0","result":{"a":1x},"id":7}"#, Err(Fault::BadJson)),
            ("<html>", Err(Fault::BadJson)),
            ("", Err(Fault::BadJson)),
            (r#"{"jsonrpc":"2.0","error":"no","id":7}"#, Err(Fault::BadJson)),
            (r#"{"jsonrpc":"2.0","error":{"code":429},"id":7}"#, Err(Fault::TooManyRequests(None))),
            (r#"{"jsonrpc":"2.0","error":{"code":-32429},"id":null}"#, Err(Fault::TooManyRequests(None))),
            (r#"{"jsonrpc":"2.0","error":{"code":429},"id":8}"#, Err(Fault::WrongId)),
            (
                r#"{"jsonrpc":"2.0","error":{"code":-32000},"id":null}"#,
                Ok(NodeReply::Error { code: -32000, body: Bytes::from_static(br#"{"code":-32000}"#) }),
            ),
        ] {
            assert_eq!(parse(body), expected, "{body}");
        }
    }

    #[test]
    fn null_members_are_absent_and_ids_may_be_strings() {
        let body = Bytes::from_static(br#"{"code":-32602,"message":"no"}"#);
        let (result, error) = (
            |text| Ok(NodeReply::Result(Bytes::from_static(text))),
            Ok(NodeReply::Error { code: -32602, body }),
        );
        for (text, expected) in [
            (r#"{"jsonrpc":"2.0","result":{"a":null},"error":null,"id":7}"#, result(br#"{"a":null}"#)),
            (r#"{"error": null, "jsonrpc":"2.0","id":"7","result":1}"#, result(b"1")),
            (r#"{"jsonrpc":"2.0","result":null,"error":null,"id":"7"}"#, result(b"null")),
            (
                r#"{"jsonrpc":"2.0","result":null,"error":{"code":-32602,"message":"no"},"id":"7"}"#,
                error.clone(),
            ),
            (r#"{"jsonrpc":"2.0","error":{"code":-32602,"message":"no"},"result": null,"id":7}"#, error),
            (
                r#"{"jsonrpc":"2.0","result":null,"error":{"code":-32429},"id":null}"#,
                Err(Fault::TooManyRequests(None)),
            ),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    #[test]
    fn an_error_is_an_error_with_any_status() {
        let reply =
            |status, text: &'static str| RawAnswer::new(status, Bytes::from_static(text.as_bytes())).reply(7);
        let error = r#"{"jsonrpc":"2.0","error":{"code":-32602,"message":"no"},"id":7}"#;
        for status in [200, 301, 400, 403, 404, 410, 413, 422, 500, 501, 503] {
            let reply = reply(status, error);
            assert!(matches!(reply, Ok(NodeReply::Error { code: -32602, .. })), "{status}: {reply:?}");
        }
        let others = ["", "<html>", r#"{"jsonrpc":"2.0","result":1,"id":7}"#, &error.replace(":7}", ":8}")];
        for status in [400, 404, 500, 503] {
            let limited = reply(status, r#"{"jsonrpc":"2.0","error":{"code":429,"message":"no"},"id":null}"#);
            assert_eq!(limited, Err(Fault::TooManyRequests(None)), "{status}");
            for other in others {
                let answer = RawAnswer::new(status, Bytes::copy_from_slice(other.as_bytes()));
                assert_eq!(answer.reply(7), Err(Fault::Status(status)), "{other}");
            }
        }
        assert_eq!(reply(501, ""), Ok(NodeReply::method_not_found()));
    }

    #[test]
    fn envelope_is_read_by_one_rule() {
        let read = Ok(NodeReply::Result(Bytes::from_static(b"1")));
        for (text, expected) in [
            ("{ \"id\" : 7 ,\r\n\"result\" : 1 , \"jsonrpc\" : \"2.0\" } \n", read.clone()),
            (r#"{"jsonrpc":"2.0","more":{"result":2},"result":1,"id":7}"#, read.clone()),
            (r#"{"jsonrpc":"2.0","r\u0065sult":1,"id":7}"#, read),
            (r#"{"jsonrpc":"2\u002e0","result":1,"id":7}"#, Err(Fault::BadJson)),
            (r#"{"jsonrpc":"2.0","result":1,"result":1,"id":7}"#, Err(Fault::BadJson)),
            (r#"{"jsonrpc":"2.0","result":1,"r\u0065sult":1,"id":7}"#, Err(Fault::BadJson)),
            (r#"{"jsonrpc":"2.0","jsonrpc":"2.0","result":1,"id":7}"#, Err(Fault::BadJson)),
            (r#"{"jsonrpc":"2.0","result":1,"id":7,"id":7}"#, Err(Fault::BadJson)),
            (r#"{"jsonrpc":"2.0","error":null,"id":7}"#, Err(Fault::BadJson)),
            (r#"{"jsonrpc":"2.0","result":1,"id":7}}"#, Err(Fault::BadJson)),
            (r#"{"jsonrpc":"2.0","result":1,"id":7}1"#, Err(Fault::BadJson)),
            (r#"{"jsonrpc":"2.0","result":1,"id":7"#, Err(Fault::BadJson)),
            (r#"["2.0",1,null,7]"#, Err(Fault::BadJson)),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    #[test]
    fn result_must_be_json_to_its_end() {
        let nested = |levels: usize| ("[".repeat(levels) + &"]".repeat(levels)).into_bytes();
        for (result, is_json) in [
            (br#"{"a":[1,-2.5e+3,"\"\u00e9\\"],"b":{}}"#.to_vec(), true),
            ("\"é\"".into(), true),
            // A raw value is read without recursion, so its nesting needs no bound.
            (nested(127), true),
            (nested(100_000), true),
            (b"1".repeat(400), true),
            (nested(5)[..9].to_vec(), false),
            (b"-02".to_vec(), false),
            (b"1.".to_vec(), false),
            (b"nul".to_vec(), false),
            (b"[1,]".to_vec(), false),
            (b"{\"a\"}".to_vec(), false),
            (b"\"\x1f\"".to_vec(), false),
            (br#""\x""#.to_vec(), false),
            (br#""\u00""#.to_vec(), false),
            (b"\"\xc3\"".to_vec(), false),
            (b"\"\xed\xa0\x80\"".to_vec(), false),
        ] {
            let text = [&br#"{"jsonrpc":"2.0","result":"#[..], &result, br#","id":7}"#].concat();
            let expected =
                if is_json { Ok(NodeReply::Result(result.clone().into())) } else { Err(Fault::BadJson) };
            assert_eq!(parse(text), expected, "{}", String::from_utf8_lossy(&result));
        }
    }

    #[test]
    fn error_keeps_its_text_and_numbers() {
        let body = r#"{"code":-32016,"data":{"contextSlot":41},"message":"Minimum context slot has not been reached"}"#;
        let Ok(NodeReply::Error { code, body }) =
            parse(format!(r#"{{"jsonrpc":"2.0","error":{body},"id":7}}"#))
        else {
            panic!("no error")
        };
        assert_eq!((code, error_context_slot(&body)), (-32016, Some(41)));
        let cleaned =
            br#"{"code":-32001,"message":"Block 3 cleaned up, does not exist on node. First available block: 95"}"#;
        assert_eq!(first_available_block(cleaned), Some(95));
    }
}
