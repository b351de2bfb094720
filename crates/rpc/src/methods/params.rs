//! Positional params, read as a node reads them (jsonrpc-derive 18), and the errors for invalid ones.
//!
//! A node parses params to a JSON tree, and deserialises its structs from the tree. The texts of serde's errors are part
//! of the contract (`docs/node-contract.md`), so the structs here have the names of the node's structs.
//!
//! The text is first read without a tree. This fails even for valid params if a member occurs twice. After a
//! failure, the text is read again through a tree, which decides.

use std::fmt::Debug;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::jsonrpc::Params;

/// The error for invalid params, with the code, message and data of a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParamError {
    /// The code, -32602 for all current methods.
    pub code: i32,
    /// The message of a node.
    pub message: String,
    /// The `data` of a node, a string.
    pub data: Option<String>,
}

impl ParamError {
    /// Creates an error "invalid params" with a message and without data.
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { code: -32602, message: message.into(), data: None }
    }

    /// Creates the error for a wrong number of params. Its `data` shows `details` in Rust's debug format.
    fn arity(message: &str, details: &impl Debug) -> Self {
        let data = Some(format!("{details:?}"));
        Self { data, ..Self::new(format!("Invalid parameters: {message}")) }
    }
}

/// Reads positional params `[A, B]`, of which `B` is optional.
pub(super) fn one_or_two<A: DeserializeOwned, B: DeserializeOwned>(
    params: &Params,
) -> Result<(A, Option<B>), ParamError> {
    #[derive(Deserialize)]
    #[serde(bound = "A: DeserializeOwned, B: DeserializeOwned")]
    struct OneOrTwo<A, B>(A, #[serde(default)] Option<B>);

    if let Params::Array(text) = params
        && let Ok(OneOrTwo(first, second)) = serde_json::from_slice(text)
    {
        return Ok((first, second));
    }
    let mut values = list(params, 1, 2)?;
    let first = typed(values.next().unwrap_or_default())?;
    Ok((first, typed(values.next().unwrap_or_default())?))
}

/// Reads positional params `[A]`. The param is optional.
pub(super) fn at_most_one<A: DeserializeOwned>(params: &Params) -> Result<Option<A>, ParamError> {
    if let Params::Array(text) = params
        && let Ok((only,)) = serde_json::from_slice(text)
    {
        return Ok(only);
    }
    typed(list(params, 0, 1)?.next().unwrap_or_default())
}

/// Checks that the params are absent or `[]`.
pub(super) fn none(params: &Params) -> Result<(), ParamError> {
    /// The params of a call whose method takes none. The names of the variants are part of a node's error.
    #[derive(Debug)]
    #[expect(dead_code, reason = "shown by Debug")]
    enum Unexpected {
        Array(Vec<Value>),
        Map(Map<String, Value>),
    }

    let unexpected = match params {
        Params::None => return Ok(()),
        Params::Array(text) => match from_text::<Vec<Value>>(text)? {
            values if values.is_empty() => return Ok(()),
            values => Unexpected::Array(values),
        },
        Params::Object(text) => Unexpected::Map(from_text(text)?),
    };
    Err(ParamError::arity("No parameters were expected", &unexpected))
}

/// Returns each positional param as a JSON tree. Fewer than `required` or more than `total` params are an error.
pub(super) fn list(
    params: &Params,
    required: usize,
    total: usize,
) -> Result<std::vec::IntoIter<Value>, ParamError> {
    let values: Vec<Value> = match params {
        Params::None => Vec::new(),
        Params::Array(text) => from_text(text)?,
        Params::Object(_) => return Err(ParamError::new("`params` should be an array")),
    };
    let got = values.len();
    if got < required {
        return Err(ParamError::new(format!("`params` should have at least {required} argument(s)")));
    }
    if got > total {
        let expected = format!("Expected from {required} to {total} parameters.");
        return Err(ParamError::arity(&expected, &format!("Got: {got}")));
    }
    Ok(values.into_iter())
}

/// Reads all params as the tuple `T`, as a node reads those of its oldest methods.
pub(super) fn tuple<T: DeserializeOwned>(params: &Params) -> Result<T, ParamError> {
    let (Params::Array(text) | Params::Object(text)) = params else { return typed(Value::Null) };
    typed(from_text(text)?)
}

/// Reads a param of type `T` from its JSON tree.
pub(super) fn typed<T: DeserializeOwned>(value: Value) -> Result<T, ParamError> {
    serde_json::from_value(value).map_err(|error| type_error(&error))
}

fn from_text<T: DeserializeOwned>(text: &[u8]) -> Result<T, ParamError> {
    serde_json::from_slice(text).map_err(|error| type_error(&error))
}

fn type_error(error: &serde_json::Error) -> ParamError {
    ParamError::new(format!("Invalid params: {error}."))
}
