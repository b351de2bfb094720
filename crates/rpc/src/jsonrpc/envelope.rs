//! The split of a request body into calls, as paritytech/jsonrpc 18 does it, fault by fault.
//!
//! This module looks up no method and reads no params. Two rules surprise readers. A node parses a body as one value,
//! so one bad id, or one batch element that is no call, makes the *whole* body a parse error. A node's call is a
//! derived struct, so an array can be a call with its members by position: `["2.0", method, params, id]`.

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::scan::Scan;
use super::{Call, Id, Params};

/// The content of a request body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A call that stands alone.
    One(Element),
    /// An array of calls, possibly empty. Answers keep its order; where nothing is to be answered the body is empty.
    Batch(Vec<Element>),
    /// No JSON, or not shaped like calls: one parse error with id null, whatever else the body holds.
    ParseError,
}

/// One element of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Element {
    /// To be carried out and answered.
    Call(Call),
    /// Well-formed but without an id: neither carried out nor answered.
    Notification,
    /// Not a call that can be carried out: answered with `error`, which is
    /// [`EnvelopeError::InvalidRequest`] or [`EnvelopeError::UnsupportedVersion`].
    Refused {
        /// The caller's id, null where it has none.
        id: Id,
        /// The fault of the call.
        error: EnvelopeError,
    },
}

/// A fault for which a body, or one of its calls, is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvelopeError {
    /// Not JSON, or not shaped like a call at all.
    Parse,
    /// JSON, but not a call.
    InvalidRequest,
    /// `jsonrpc` is missing or null. Answered without a `jsonrpc` member, as a node does.
    UnsupportedVersion,
}

impl EnvelopeError {
    /// Returns the JSON-RPC code.
    pub const fn code(self) -> i32 {
        match self {
            Self::Parse => -32_700,
            Self::InvalidRequest | Self::UnsupportedVersion => -32_600,
        }
    }

    /// Returns the JSON-RPC message, in a node's words.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Parse => "Parse error",
            Self::InvalidRequest => "Invalid request",
            Self::UnsupportedVersion => "Unsupported JSON-RPC protocol version",
        }
    }
}

/// Splits `body`, whose slices the calls keep. Never fails: every fault has its own answer.
///
/// A call with several faults gets the answer of the first in this order: [`Request::ParseError`],
/// [`EnvelopeError::InvalidRequest`], silence for a missing id, [`EnvelopeError::UnsupportedVersion`].
pub fn parse(body: &Bytes) -> Request {
    parse_within(body, usize::MAX).unwrap_or(Request::ParseError)
}

/// A batch of more elements than are wanted; of these it has so many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMany(pub usize);

/// Splits `body` as [`parse`] does.
///
/// # Errors
/// [`TooMany`] for a batch of more than `most` elements, which are counted and not read.
pub fn parse_within(body: &Bytes, most: usize) -> Result<Request, TooMany> {
    if let Some(call) = plain(body) {
        return Ok(Request::One(Element::Call(call)));
    }
    // No element is shorter than `{}`, and one byte parts it from the next.
    let may_be_more = body.len() / 3 >= most;
    match may_be_more.then(|| elements(body)).flatten() {
        Some(count) if count > most => Err(TooMany(count)),
        _ => Ok(split(body).unwrap_or(Request::ParseError)),
    }
}

/// Returns how many elements `body` has; `None` unless it is an array that begins like a batch.
fn elements(body: &[u8]) -> Option<usize> {
    let batch = body.trim_ascii_start().strip_prefix(b"[")?.trim_ascii_start();
    if !batch.starts_with(b"{") && !batch.starts_with(b"[") {
        return None;
    }
    serde_json::from_slice::<Vec<IgnoredAny>>(body).ok().map(|elements| elements.len())
}

/// The call of a body that is nothing but a plain one, each member there once: most are. `None` says nothing.
fn plain(body: &Bytes) -> Option<Call> {
    let mut scan = Scan::new(body);
    let (mut jsonrpc, mut id, mut method, mut params) = (None, None, None, None);
    scan.members(|scan, name| {
        let fault = match name {
            b"jsonrpc" => jsonrpc.replace((scan.string()? == b"2.0").then_some(())?).is_some(),
            b"method" => method.replace(scan.string()?).is_some(),
            b"id" if scan.peek()? == b'"' => {
                let start = scan.position();
                scan.string()?;
                id.replace(Id::Text(body.slice(start..scan.position()))).is_some()
            }
            b"id" => id.replace(Id::Number(scan.number()?)).is_some(),
            b"params" if scan.peek()? == b'[' => {
                let start = scan.position();
                scan.skip()?;
                params.replace(start..scan.position()).is_some()
            }
            _ => true,
        };
        (!fault).then_some(())
    })?;
    let (Some(()), Some(id), Some(method), true) = (jsonrpc, id, method, scan.is_done()) else { return None };
    let params = params.map_or(Params::None, |place| Params::Array(body.slice(place)));
    Some(Call { id, method: body.slice_ref(method), params })
}

/// The whole body is lost.
struct Malformed;

impl From<serde_json::Error> for Malformed {
    fn from(_: serde_json::Error) -> Self {
        Self
    }
}

fn split(body: &Bytes) -> Result<Request, Malformed> {
    let text = std::str::from_utf8(body).map_err(|_| Malformed)?;
    serde_json::from_str::<WellFormed>(text)?;
    let text = text.trim_ascii();
    if !text.starts_with('[') {
        return element(body, text).map(Request::One);
    }
    let parts: Vec<&RawValue> = serde_json::from_str(text)?;
    // A batch holds objects and arrays, a call by position starts with a string or null: they cannot be mistaken.
    if parts.first().is_some_and(|part| part.get().starts_with(['"', 'n'])) {
        return by_position(body, &parts).map(Request::One);
    }
    parts.iter().map(|part| element(body, part.get())).collect::<Result<_, _>>().map(Request::Batch)
}

fn element(body: &Bytes, text: &str) -> Result<Element, Malformed> {
    if text.starts_with('{') {
        serde_json::from_str::<Members>(text)?.judge(body)
    } else {
        by_position(body, &serde_json::from_str::<Vec<&RawValue>>(text)?)
    }
}

/// Reads `[jsonrpc, method, params, id]`, or a notification without the last one or two. Every fault is fatal here.
fn by_position(body: &Bytes, parts: &[&RawValue]) -> Result<Element, Malformed> {
    let (jsonrpc, method, params, id) = match *parts {
        [jsonrpc, method] => (jsonrpc, method, None, None),
        [jsonrpc, method, params] => (jsonrpc, method, Some(params), None),
        [jsonrpc, method, params, id] => (jsonrpc, method, Some(params), Some(id)),
        _ => return Err(Malformed),
    };
    let members = Members { jsonrpc: Some(jsonrpc), method: Some(method), params, id, fault: false };
    match members.judge(body)? {
        Element::Refused { error: EnvelopeError::InvalidRequest, .. } => Err(Malformed),
        element => Ok(element),
    }
}

/// The members of one call as found, not yet judged.
#[derive(Default)]
struct Members<'a> {
    jsonrpc: Option<&'a RawValue>,
    method: Option<&'a RawValue>,
    params: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    /// A member that no call has, or one that is there twice.
    fault: bool,
}

impl Members<'_> {
    fn judge(&self, body: &Bytes) -> Result<Element, Malformed> {
        let id = self.id.map(|raw| read_id(body, raw)).transpose()?;
        let Some((version, method, params)) = self.read_call(body) else {
            return Ok(Element::Refused { id: id.unwrap_or(Id::Null), error: EnvelopeError::InvalidRequest });
        };
        Ok(match (id, version) {
            (None, _) => Element::Notification,
            (Some(id), JsonRpcVersion::Absent) => {
                Element::Refused { id, error: EnvelopeError::UnsupportedVersion }
            }
            (Some(id), JsonRpcVersion::Two) => Element::Call(Call { id, method, params }),
        })
    }

    /// Everything but the id; `None` where a member is missing, odd or of the wrong type.
    fn read_call(&self, body: &Bytes) -> Option<(JsonRpcVersion, Bytes, Params)> {
        if self.fault {
            return None;
        }
        let version = match self.jsonrpc.map(RawValue::get) {
            None | Some("null") => JsonRpcVersion::Absent,
            Some(text) => (unquote(body, text)? == "2.0").then_some(JsonRpcVersion::Two)?,
        };
        let method = unquote(body, self.method?.get())?;
        let params = match self.params.map(RawValue::get) {
            None | Some("null") => Params::None,
            Some(text) if text.starts_with('[') => Params::Array(body.slice_ref(text.as_bytes())),
            Some(text) if text.starts_with('{') => Params::Object(body.slice_ref(text.as_bytes())),
            Some(_) => return None,
        };
        Some((version, method, params))
    }
}

/// The `jsonrpc` member, where it is not an outright fault.
enum JsonRpcVersion {
    /// Missing or null.
    Absent,
    /// `"2.0"`
    Two,
}

/// An id is null, a u64 written as an integer, or a string; anything else loses the body.
fn read_id(body: &Bytes, raw: &RawValue) -> Result<Id, Malformed> {
    let text = raw.get();
    Ok(match text.as_bytes()[0] {
        b'n' => Id::Null,
        b'"' if !text.contains('\\') => Id::Text(body.slice_ref(text.as_bytes())),
        // A node answers with the string re-escaped, which need not be how it came.
        b'"' => Id::Text(serde_json::to_vec(&serde_json::from_str::<String>(text)?)?.into()),
        _ => Id::Number(serde_json::from_str(text)?),
    })
}

/// Returns the text of a JSON string: a slice of the body, or the unescaped text. `None` for other types.
fn unquote(body: &Bytes, text: &str) -> Option<Bytes> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        return serde_json::from_str::<String>(text).ok().map(Bytes::from);
    }
    Some(body.slice_ref(inner.as_bytes()))
}

/// A member's name, however escaped.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Member {
    Jsonrpc,
    Method,
    Params,
    Id,
    #[serde(other)]
    Unknown,
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a call")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members = Members::default();
        while let Some(name) = map.next_key()? {
            let place = match name {
                Member::Jsonrpc => &mut members.jsonrpc,
                Member::Method => &mut members.method,
                Member::Params => &mut members.params,
                Member::Id if members.id.is_some() => return Err(A::Error::duplicate_field("id")),
                Member::Id => &mut members.id,
                Member::Unknown => {
                    map.next_value::<IgnoredAny>()?;
                    members.fault = true;
                    continue;
                }
            };
            members.fault |= place.replace(map.next_value()?).is_some();
        }
        Ok(members)
    }
}

/// Any JSON value that a node can hold, thrown away.
///
/// Stricter than [`IgnoredAny`] and [`RawValue`], which skip over text: it refuses what a node cannot take in, which
/// is a number beyond f64, half a surrogate pair, and a nesting of 128 levels.
struct WellFormed;

impl<'de> Deserialize<'de> for WellFormed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for WellFormed {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self, A::Error> {
        while seq.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests;
