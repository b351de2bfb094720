//! The part of the `OpenRPC` document that describes one method: params, result, errors and an example.

use serde_json::{Map, Value, json};

use super::Commitment;

/// The description of a method.
pub(super) struct Description {
    /// A summary of one line.
    pub(super) summary: &'static str,
    /// The params in order.
    pub(super) params: Vec<Param>,
    /// The JSON Schema of the result.
    pub(super) result: Value,
    /// The errors that a node can return for the method, by their names under `components.errors`. Invalid params are
    /// left out, because every method can return them.
    pub(super) errors: &'static [&'static str],
    /// The params of an example call.
    pub(super) example: Value,
    /// A possible result of the example call.
    pub(super) example_result: Value,
}

impl Description {
    /// Describes a method without params.
    pub(super) fn bare(summary: &'static str, result: Value, example_result: Value) -> Self {
        Self { summary, params: Vec::new(), result, errors: &[], example: json!([]), example_result }
    }

    /// Describes a method that has only the param that says from which state it is answered.
    pub(super) fn of_state(summary: &'static str, result: Value, example_result: Value) -> Self {
        Self {
            params: vec![context_config()],
            errors: &["MinContextSlotNotReached"],
            example: json!([{ "commitment": "confirmed" }]),
            ..Self::bare(summary, result, example_result)
        }
    }
}

/// A positional param.
pub(super) struct Param {
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) required: bool,
    /// The JSON Schema with defaults.
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

/// Returns a reference to a schema of `components`.
pub(super) fn schema(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// Returns the schema of a config's commitment.
pub(super) fn commitment() -> Value {
    json!({ "allOf": [schema("Commitment")], "default": Commitment::default() })
}

/// Returns `schema` with null as a further value, because null means absent in params. A `default` of `schema` becomes
/// a member of the returned schema.
pub(super) fn nullable(mut schema: Value) -> Value {
    let default = schema.as_object_mut().and_then(|members| members.remove("default"));
    let mut either = json!({ "anyOf": [schema, { "type": "null" }] });
    if let Some(default) = default {
        either["default"] = default;
    }
    either
}

/// Returns the schema of a config object with these optional members.
pub(super) fn config(mut members: Value) -> Value {
    for schema in members.as_object_mut().into_iter().flat_map(Map::values_mut) {
        *schema = nullable(schema.take());
    }
    nullable(json!({ "type": "object", "properties": members }))
}

/// Returns the param that says from which state a call is answered.
pub(super) fn context_config() -> Param {
    let members = json!({ "commitment": commitment(), "minContextSlot": schema("MinContextSlot") });
    Param::optional("config", "At which commitment.", config(members))
}

/// Returns the schema of a result with a context.
pub(super) fn contextual(value: &Value) -> Value {
    json!({
        "type": "object",
        "required": ["context", "value"],
        "properties": { "context": schema("Context"), "value": value },
    })
}
