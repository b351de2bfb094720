//! Parses recorded calls, one JSON object on each line.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::jsonrpc::Params;
use crate::methods::{Method, Profile, Query};

/// The JSON-RPC id of every call that is sent.
pub(super) const ID: u64 = 1;
/// The maximum length of printed params, in bytes.
const SHOWN_BYTES: usize = 120;

/// A recorded call.
#[derive(Debug, Clone)]
pub(super) struct Recorded {
    /// The number of the line in the file, from 1.
    pub(super) line: usize,
    pub(super) method: String,
    params: Option<String>,
    /// The parsed call. `None` if the call is invalid, or its method is not one of the eight cached methods.
    pub(super) query: Option<Query>,
}

#[derive(Deserialize)]
struct RecordedLine<'a> {
    method: String,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

/// Parses the calls of a file. Empty lines are skipped.
///
/// # Errors
/// A line is not a call, or the file has no calls. The text names the first line that is not a call.
pub(super) fn read(text: &str) -> Result<Vec<Recorded>, String> {
    let calls = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let calls: Vec<Recorded> = calls.map(|(i, line)| parse_line(i + 1, line)).collect::<Result<_, _>>()?;
    if calls.is_empty() { Err("the file has no calls".to_owned()) } else { Ok(calls) }
}

fn parse_line(line: usize, text: &str) -> Result<Recorded, String> {
    let written: RecordedLine = serde_json::from_str(text).map_err(|e| {
        format!(
            r#"line {line}: expected one call as a JSON object, like {{"method":"getSlot","params":[]}}: {e}"#
        )
    })?;
    let params = written.params.map(|raw| raw.get().to_owned());
    let slice = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let as_params = match params.as_deref() {
        Some(text) if text.starts_with('[') => Params::Array(slice(text)),
        Some(text) if text.starts_with('{') => Params::Object(slice(text)),
        Some("null") | None => Params::None,
        Some(_) => return Err(format!("line {line}: expected params to be an array, an object or null")),
    };
    let method = Method::from_name(&written.method);
    let query = method.and_then(|method| Query::parse(method, &as_params, Profile::Node).ok());
    Ok(Recorded { line, method: written.method, params, query })
}

impl Recorded {
    /// Returns the JSON-RPC request of the call.
    pub(super) fn body(&self) -> Bytes {
        let params =
            self.params.as_deref().map(|params| format!(r#","params":{params}"#)).unwrap_or_default();
        let method = serde_json::Value::from(self.method.as_str());
        Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{ID},"method":{method}{params}}}"#))
    }

    /// Returns the JSON text of the params, cut to [`SHOWN_BYTES`] bytes for printing.
    pub(super) fn shown(&self) -> &str {
        let params = self.params.as_deref().unwrap_or_default();
        &params[..params.floor_char_boundary(SHOWN_BYTES)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_must_be_calls() {
        let text = "{\"method\":\"getSlot\"}\n\n{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"getBlock\",\"params\":[5]}\r\n";
        let calls = read(text).unwrap();
        let seen: Vec<_> =
            calls.iter().map(|call| (call.line, call.method.as_str(), call.query.is_some())).collect();
        assert_eq!(seen, [(1, "getSlot", false), (3, "getBlock", true)]);
        assert_eq!(calls[1].body(), r#"{"jsonrpc":"2.0","id":1,"method":"getBlock","params":[5]}"#);
        for (text, words) in [
            ("", "the file has no calls"),
            ("{\"method\":\"getSlot\"}\nnonsense", "line 2: expected one call"),
            ("[{\"method\":\"getSlot\"}]", "line 1: expected one call"),
            ("{\"params\":[]}", "missing field `method`"),
            ("{\"method\":\"getSlot\",\"params\":7}", "line 1: expected params"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
