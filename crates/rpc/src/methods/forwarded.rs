//! The calls that go to a node as the caller has written them: simulations, and the methods that the operator lists.
//!
//! The node checks the params. So this module reads only what the choice of a node and the rules of plans need, the
//! commitment and `minContextSlot`, and reads them as a node does: the last of several members of the same name wins,
//! and any param may be the configuration.

use bytes::Bytes;
use serde_json::{Map, Value};

use super::{AnyMethod, Commitment, Slot};
use crate::jsonrpc::Params;

/// A call that is forwarded to a node. Its params are unparsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardedCall {
    /// The method.
    pub method: AnyMethod,
    /// The params of the caller.
    pub params: Params,
    /// The commitment in the params, or finalized if the params have none.
    pub commitment: Commitment,
    /// The caller's `minContextSlot`.
    pub min_context_slot: Option<Slot>,
}

/// The name of the config's member that holds the commitment.
const COMMITMENT: &str = "commitment";

impl ForwardedCall {
    /// Creates a call, and reads its commitment and `minContextSlot`.
    pub fn new(method: AnyMethod, params: Params) -> Self {
        let (mut named, mut min_context_slot) = (None, None);
        for param in values(&params) {
            match param {
                Value::Object(config) => {
                    named = config.get(COMMITMENT).and_then(commitment).or(named);
                    min_context_slot =
                        config.get("minContextSlot").and_then(Value::as_u64).or(min_context_slot);
                }
                Value::Array(config) => named = by_position(&config).or(named),
                _ => {}
            }
        }
        let commitment = named.unwrap_or_default();
        Self { method, params, commitment, min_context_slot }
    }

    /// Returns the call with rewritten params, from which every node reads the same commitment as slotfront.
    #[must_use]
    pub fn canonical(mut self) -> Self {
        let own = self.commitment.as_str();
        let rewrite = |config: &mut Map<String, Value>| {
            // A commitment with an unknown name is removed. A node that accepts such a name treats it as finalized.
            let known = config.get(COMMITMENT).and_then(commitment).map(|_| own);
            match (known, config.get_mut(COMMITMENT)) {
                (Some(own), Some(named)) => *named = own.into(),
                (None, Some(_)) => drop(config.remove(COMMITMENT)),
                (_, None) => {}
            }
        };
        match &self.params {
            Params::None => {}
            Params::Object(_) => {
                if let Some(Value::Object(mut config)) = values(&self.params).pop() {
                    rewrite(&mut config);
                    self.params = Params::Object(Value::Object(config).to_string().into());
                }
            }
            Params::Array(_) => {
                let mut list = values(&self.params);
                while list.last().is_some_and(Value::is_null) {
                    list.pop();
                }
                for param in &mut list {
                    match param {
                        Value::Object(config) => rewrite(config),
                        Value::Array(config) if by_position(config).is_some() => {
                            *config = vec![own.into()];
                        }
                        _ => {}
                    }
                }
                self.params = Params::Array(Value::Array(list).to_string().into());
            }
        }
        self
    }

    /// Returns the JSON-RPC body of the call to a node, with this id.
    pub fn body(&self, id: u64) -> Bytes {
        let method = self.method.as_str();
        let mut body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}""#).into_bytes();
        if let Params::Array(params) | Params::Object(params) = &self.params {
            body.extend_from_slice(br#","params":"#);
            body.extend_from_slice(params);
        }
        body.push(b'}');
        body.into()
    }
}

/// Returns positional params as values. Named ones are a configuration alone.
fn values(params: &Params) -> Vec<Value> {
    match params {
        // The envelope has validated the text.
        Params::Array(text) => serde_json::from_slice(text).unwrap_or_default(),
        Params::Object(text) => serde_json::from_slice(text).map(|config| vec![config]).unwrap_or_default(),
        Params::None => Vec::new(),
    }
}

/// Returns the commitment that a JSON value names. Like serde, accepts `"confirmed"` and an object with the only member
/// `confirmed`.
pub(super) fn commitment(value: &Value) -> Option<Commitment> {
    let name = match value {
        Value::String(name) => name,
        Value::Object(variant) if variant.len() == 1 => variant.keys().next()?,
        _ => return None,
    };
    Commitment::ALL.into_iter().find(|commitment| commitment.as_str() == name)
}

/// Returns the commitment of a configuration that is written as an array. serde reads such an array as a struct.
fn by_position(config: &[Value]) -> Option<Commitment> {
    if let [only] = config { commitment(only) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_chooses_a_node_is_read_from_the_params() {
        let call_of = |name: &str, params: &'static str| {
            let params = match params.as_bytes().first() {
                None => Params::None,
                Some(b'{') => Params::Object(params.into()),
                Some(_) => Params::Array(params.into()),
            };
            ForwardedCall::new(AnyMethod::from_name(name).unwrap(), params)
        };
        for (name, params, commitment, floor) in [
            ("simulateTransaction", "", Commitment::Finalized, None),
            (
                "simulateTransaction",
                r#"[{"commitment":"processed","minContextSlot":7}]"#,
                Commitment::Processed,
                Some(7),
            ),
            ("simulateTransaction", r#"[{"commitment":"nonsense"}]"#, Commitment::Finalized, None),
            (
                "simulateTransaction",
                r#"[{"commitment":7,"minContextSlot":"x"}]"#,
                Commitment::Finalized,
                None,
            ),
            ("simulateTransaction", r#"{"commitment":"processed"}"#, Commitment::Processed, None),
            (
                "simulateTransaction",
                r#"[{"commitment":"finalized","minContextSlot":3,"commitment":"processed","minContextSlot":7}]"#,
                Commitment::Processed,
                Some(7),
            ),
            (
                "simulateTransaction",
                r#"[5,{"commitment":"confirmed","minContextSlot":7},null]"#,
                Commitment::Confirmed,
                Some(7),
            ),
            ("simulateTransaction", r#"[{"comm\u0069tment":"confirmed"},null]"#, Commitment::Confirmed, None),
            ("simulateTransaction", r#"["x",["processed"]]"#, Commitment::Processed, None),
            ("simulateTransaction", r#"[{"commitment":{"processed":null}}]"#, Commitment::Processed, None),
            (
                "simulateTransaction",
                r#"["x",{"mint":"y"},{"commitment":"confirmed"}]"#,
                Commitment::Confirmed,
                None,
            ),
            ("simulateTransaction", r#"["x",  {"a" :1}]"#, Commitment::Finalized, None),
        ] {
            let call = call_of(name, params);
            assert_eq!((call.commitment, call.min_context_slot), (commitment, floor), "{name} {params}");
            let with = if params.is_empty() { String::new() } else { format!(r#","params":{params}"#) };
            let body = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"{name}"{with}}}"#);
            assert_eq!(call.body(5), body);
        }
    }

    #[test]
    fn the_canonical_text_names_one_commitment_at_most() {
        for (params, expected) in [
            (
                r#"[7,{"commitment":"finalized","commitment":"processed"},null,null]"#,
                r#"[7,{"commitment":"processed"}]"#,
            ),
            (
                r#"[{"commitment":"confirmed"},{"commitment":{"processed":null}}]"#,
                r#"[{"commitment":"processed"},{"commitment":"processed"}]"#,
            ),
            (r#"[{"commitment":"recent","a":1}]"#, r#"[{"a":1}]"#),
            (r#"["x",["processed"]]"#, r#"["x",["processed"]]"#),
            (r#"["x",[{"processed":null}]]"#, r#"["x",["processed"]]"#),
            (
                r#"[["x","y"],{"a":{"commitment":"processed"}}]"#,
                r#"[["x","y"],{"a":{"commitment":"processed"}}]"#,
            ),
            (
                r#"{"commitment":"processed","a":18446744073709551615}"#,
                r#"{"commitment":"processed","a":18446744073709551615}"#,
            ),
            ("[null]", "[]"),
        ] {
            let text = Bytes::from_static(params.as_bytes());
            let params = if params.starts_with('{') { Params::Object(text) } else { Params::Array(text) };
            let call =
                ForwardedCall::new(AnyMethod::from_name("simulateTransaction").unwrap(), params).canonical();
            let (Params::Array(text) | Params::Object(text)) = &call.params else { panic!("{call:?}") };
            let [text, expected] =
                [&text[..], expected.as_bytes()].map(|text| serde_json::from_slice::<Value>(text).unwrap());
            assert_eq!(text, expected);
        }
    }
}
