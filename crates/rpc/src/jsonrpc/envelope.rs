//! Parsing of a request body into calls, with the same result as paritytech/jsonrpc 18 for every fault.
//!
//! This module looks up no method and reads no params. Two of its rules surprise everybody, and both follow from how a
//! node is written:
//!
//! - A node parses the body as one value, so one invalid id, or one batch element that is not a call, makes the *whole*
//!   body a parse error.
//! - A node's call is a derived struct, so an array of its members is a call, too: `["2.0", method, params, id]`.

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::scan::Scan;
use super::{Call, Id, Params};

/// The content of a request body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A single call.
    One(Element),
    /// An array of calls, possibly empty. The answers have the order of the calls. If no call gets an answer, the
    /// response is empty.
    Batch(Vec<Element>),
    /// A body that is not JSON, or that holds something other than calls. The answer is one parse error with the id
    /// null.
    ParseError,
}

/// One element of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Element {
    /// A valid call.
    Call(Call),
    /// A well-formed call without an id. It is neither executed nor answered.
    Notification,
    /// An invalid call. It is answered with `error`.
    Refused {
        /// The id of the call, or null if it has none.
        id: Id,
        /// [`EnvelopeError::InvalidRequest`] or [`EnvelopeError::UnsupportedVersion`].
        error: EnvelopeError,
    },
}

/// A fault of a body or of one of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvelopeError {
    /// The body is not JSON, or is not a call.
    Parse,
    /// The call is an object without `method`, or with a member that is unknown, repeated or invalid. An invalid `id`
    /// is an error [`Self::Parse`] instead.
    InvalidRequest,
    /// `jsonrpc` is missing or null. As on a node, the answer has no `jsonrpc` member.
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

    /// Returns the JSON-RPC message that a node sends for this fault.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Parse => "Parse error",
            Self::InvalidRequest => "Invalid request",
            Self::UnsupportedVersion => "Unsupported JSON-RPC protocol version",
        }
    }
}

/// Parses `body` into calls. The texts in a call are slices of `body`, except for a method name with escapes.
///
/// A call with several faults gets the answer of the first fault in this order: [`Request::ParseError`],
/// [`EnvelopeError::InvalidRequest`], no answer for a missing id, [`EnvelopeError::UnsupportedVersion`].
pub fn parse(body: &Bytes) -> Request {
    parse_within(body, usize::MAX).unwrap_or(Request::ParseError)
}

/// The error for a batch with too many elements. Holds the number of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMany(pub usize);

/// Parses `body` as [`parse`] does, with a limit for batches.
///
/// # Errors
/// [`TooMany`] for a batch of more than `most` elements, which are counted but not parsed.
pub fn parse_within(body: &Bytes, most: usize) -> Result<Request, TooMany> {
    if let Some(call) = scan_call(body) {
        return Ok(Request::One(Element::Call(call)));
    }
    // An element has at least two bytes (`{}`) and a separator.
    let may_be_more = body.len() / 3 >= most;
    match may_be_more.then(|| elements(body)).flatten() {
        Some(count) if count > most => Err(TooMany(count)),
        _ => Ok(split(body).unwrap_or(Request::ParseError)),
    }
}

/// Returns the number of elements of the array `body`. Returns `None` if the first element is neither an object nor an
/// array, or if `body` is not valid JSON.
fn elements(body: &[u8]) -> Option<usize> {
    let batch = body.trim_ascii_start().strip_prefix(b"[")?.trim_ascii_start();
    if !batch.starts_with(b"{") && !batch.starts_with(b"[") {
        return None;
    }
    serde_json::from_slice::<Vec<IgnoredAny>>(body).ok().map(|elements| elements.len())
}

/// Reads a body that holds one call, written as most clients write it. Returns `None` for any other body, valid or not.
/// The caller then parses the body with serde.
fn scan_call(body: &Bytes) -> Option<Call> {
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

/// The error for a fault that makes the whole body invalid.
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
    // A batch begins with an object or an array, and a call by position begins with a string or null.
    if parts.first().is_some_and(|part| part.get().starts_with(['"', 'n'])) {
        return by_position(body, &parts).map(Request::One);
    }
    parts.iter().map(|part| element(body, part.get())).collect::<Result<_, _>>().map(Request::Batch)
}

fn element(body: &Bytes, text: &str) -> Result<Element, Malformed> {
    if text.starts_with('{') {
        serde_json::from_str::<CallMembers>(text)?.to_element(body)
    } else {
        by_position(body, &serde_json::from_str::<Vec<&RawValue>>(text)?)
    }
}

/// Reads the array `[jsonrpc, method, params, id]`. A notification lacks `id`, or both `params` and `id`. Any fault
/// invalidates the body, except a null `jsonrpc`.
fn by_position(body: &Bytes, parts: &[&RawValue]) -> Result<Element, Malformed> {
    let (jsonrpc, method, params, id) = match *parts {
        [jsonrpc, method] => (jsonrpc, method, None, None),
        [jsonrpc, method, params] => (jsonrpc, method, Some(params), None),
        [jsonrpc, method, params, id] => (jsonrpc, method, Some(params), Some(id)),
        _ => return Err(Malformed),
    };
    let members = CallMembers { jsonrpc: Some(jsonrpc), method: Some(method), params, id, fault: false };
    match members.to_element(body)? {
        Element::Refused { error: EnvelopeError::InvalidRequest, .. } => Err(Malformed),
        element => Ok(element),
    }
}

/// The unchecked members of a call.
#[derive(Default)]
struct CallMembers<'a> {
    jsonrpc: Option<&'a RawValue>,
    method: Option<&'a RawValue>,
    params: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    /// True if a member is unknown or occurs twice.
    fault: bool,
}

impl CallMembers<'_> {
    fn to_element(&self, body: &Bytes) -> Result<Element, Malformed> {
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

    /// Returns version, method and params. Returns `None` if `method` is missing, or if a member is unknown, repeated
    /// or invalid.
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

/// A valid or missing `jsonrpc` member.
enum JsonRpcVersion {
    /// The member is missing or null.
    Absent,
    /// The member is `"2.0"`.
    Two,
}

/// Reads an id: null, a u64 written as an integer, or a string. Any other value invalidates the body.
fn read_id(body: &Bytes, raw: &RawValue) -> Result<Id, Malformed> {
    let text = raw.get();
    Ok(match text.as_bytes()[0] {
        b'n' => Id::Null,
        b'"' if !text.contains('\\') => Id::Text(body.slice_ref(text.as_bytes())),
        // A node escapes the string anew in its answer.
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

/// The name of a member of a call, unescaped.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum MemberName {
    Jsonrpc,
    Method,
    Params,
    Id,
    #[serde(other)]
    Unknown,
}

impl<'de> Deserialize<'de> for CallMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = CallMembers<'de>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a call")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<CallMembers<'de>, A::Error> {
        let mut members = CallMembers::default();
        while let Some(name) = map.next_key()? {
            let place = match name {
                MemberName::Jsonrpc => &mut members.jsonrpc,
                MemberName::Method => &mut members.method,
                MemberName::Params => &mut members.params,
                MemberName::Id if members.id.is_some() => return Err(A::Error::duplicate_field("id")),
                MemberName::Id => &mut members.id,
                MemberName::Unknown => {
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

/// A check that a JSON value is one that a node can parse. Keeps nothing of the value.
///
/// The check is stricter than [`IgnoredAny`] and [`RawValue`]. Like a node, it refuses numbers beyond the range of
/// f64, unpaired surrogates, and nesting of 128 or more levels.
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
