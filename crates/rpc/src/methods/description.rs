//! A method's own part of the `OpenRPC` document: params, result, errors and an example, and how their schemas are written.

use serde_json::{Map, Value, json};

use super::Commitment;

/// The part that a method's file writes.
pub(super) struct Description {
    /// One line.
    pub(super) summary: &'static str,
    /// In order.
    pub(super) params: Vec<Param>,
    /// JSON Schema of the result.
    pub(super) result: Value,
    /// Names, under `components.errors`, of what a node may answer besides invalid params.
    pub(super) errors: &'static [&'static str],
    /// Params of a call.
    pub(super) example: Value,
    /// A possible result of the example call.
    pub(super) example_result: Value,
}

/// One positional param.
pub(super) struct Param {
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) required: bool,
    /// JSON Schema, defaults included.
    pub(super) schema: Value,
}

impl Param {
    pub(super) fn required(name: &'static str, summary: &'static str, schema: Value) -> Self {
        Self { name, summary, required: true, schema }
    }

    pub(super) fn optional(name: &'static str, summary: &'static str, schema: Value) -> Self {
        Self { name, summary, required: false, schema }
    }
}

/// A reference to a schema of `components`.
pub(super) fn schema(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// The commitment member of a config.
pub(super) fn commitment() -> Value {
    json!({ "allOf": [schema("Commitment")], "default": Commitment::default() })
}

/// `schema` or null. In params null is the same as absent; a default stays outermost.
pub(super) fn nullable(mut schema: Value) -> Value {
    let default = schema.as_object_mut().and_then(|members| members.remove("default"));
    let mut either = json!({ "anyOf": [schema, { "type": "null" }] });
    if let Some(default) = default {
        either["default"] = default;
    }
    either
}

/// A config object of these members, each of which may be left out.
pub(super) fn config(mut members: Value) -> Value {
    for schema in members.as_object_mut().into_iter().flat_map(Map::values_mut) {
        *schema = nullable(schema.take());
    }
    nullable(json!({ "type": "object", "properties": members }))
}

/// A result that says at which slot it was true.
pub(super) fn contextual(value: &Value) -> Value {
    json!({
        "type": "object",
        "required": ["context", "value"],
        "properties": { "context": schema("Context"), "value": value },
    })
}
