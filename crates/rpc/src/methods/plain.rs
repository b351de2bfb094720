//! Queries whose answers are kept as a node has written them: a method, its params in canonical form, and how long an
//! answer lives.
//!
//! A file of such methods has two functions for each: one parses the params, one describes them. A row in the table of
//! [`Method`] joins them with the [rules](super::rules) of the method. [`bare`] and [`within_context`] parse those of methods
//! without params of their own.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::get_fee_for_message::RpcContextConfig;
use super::params::{self, ParamError};
use super::{Commitment, Method, Query, Slot};
use crate::jsonrpc::Params;

/// A call whose answer is kept as the node has written it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainQuery {
    /// The method.
    pub method: Method,
    /// The canonical params as JSON text, without the commitment and `minContextSlot`. They go into the last param
    /// if the method has a commitment.
    pub params: Arc<str>,
    /// The commitment. `None` if the method has none.
    pub commitment: Option<Commitment>,
    /// The caller's `minContextSlot`. `None` also if the method has none. It is never part of a cache key.
    pub min_context_slot: Option<Slot>,
    /// True if the method has a `minContextSlot`.
    pub takes_min_slot: bool,
    /// The kind of a result.
    pub result: ResultKind,
    /// How long an answer lives.
    pub life: Life,
}

/// The kind of a result, of which a node's answer must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultKind {
    /// An object with `context` and `value`.
    Context,
    /// Any other object.
    Object,
    /// An object, or `null` for what the node does not know.
    ObjectOrNull,
    /// A list.
    List,
    /// A number.
    Number,
    /// A number, or `null` for what the node does not know.
    NumberOrNull,
    /// A text.
    Text,
}

/// How long an answer to a [`PlainQuery`] lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// As long as the cluster exists.
    Cluster,
    /// As long as the newest slot belongs to one epoch.
    Epoch,
    /// For good, once it is only about final blocks.
    Final,
    /// As long as the state of an account.
    State,
    /// For one slot.
    OneSlot,
    /// For longer than a slot, because it costs the node so much.
    Scan,
    /// Not at all: it belongs to the node at this moment.
    Never,
}

impl PlainQuery {
    /// Creates a query of a method without commitment.
    pub(super) fn new(method: Method, params: &Value, result: ResultKind, life: Life) -> Self {
        Self {
            method,
            params: params.to_string().into(),
            commitment: None,
            min_context_slot: None,
            takes_min_slot: false,
            result,
            life,
        }
    }

    /// Returns the query at `commitment`. Its last param must be an object.
    pub(super) fn at(self, commitment: Commitment) -> Self {
        Self { commitment: Some(commitment), ..self }
    }

    /// Returns the query at the commitment and `minContextSlot` of `config`. Its last param must be an object.
    pub(super) fn within(self, config: &RpcContextConfig) -> Self {
        let min_context_slot = config.min_context_slot;
        Self { min_context_slot, takes_min_slot: true, ..self.at(config.commitment) }
    }

    /// Returns true if it depends on the epochs of the cluster which call means the same, or how long its answer lives.
    pub fn is_of_epoch(&self) -> bool {
        self.life == Life::Epoch || self.method == Method::GetLeaderSchedule
    }

    /// Returns the call of getEpochSchedule, which tells when the answers of an epoch end.
    pub fn epoch_schedule() -> Self {
        Self::new(Method::GetEpochSchedule, &json!([]), ResultKind::Object, Life::Cluster)
    }

    /// Returns the canonical params as JSON text for upstream calls, with every default written out.
    pub(super) fn params_json(&self) -> String {
        let (Some(commitment), Some(before)) = (self.commitment, self.params.strip_suffix("}]")) else {
            return self.params.to_string();
        };
        let comma = if before.ends_with('{') { "" } else { "," };
        let slot = self.min_context_slot.map(|slot| format!(r#","minContextSlot":{slot}"#));
        format!(r#"{before}{comma}"commitment":"{commitment}"{}}}]"#, slot.unwrap_or_default())
    }
}

/// The config of a method that refuses a commitment with an unknown name. The type has the name of a node's type,
/// because that name occurs in a node's errors.
#[derive(Deserialize, Default)]
pub(super) struct CommitmentConfig {
    pub(super) commitment: Commitment,
}

/// Parses the params of a method that has none.
pub(super) fn bare(
    method: Method,
    params: &Params,
    result: ResultKind,
    life: Life,
) -> Result<Query, ParamError> {
    params::none(params)?;
    Ok(PlainQuery::new(method, &json!([]), result, life).into())
}

/// Parses the params of a method that has a config alone, with a commitment and `minContextSlot`.
pub(super) fn within_context(
    method: Method,
    params: &Params,
    result: ResultKind,
    life: Life,
) -> Result<Query, ParamError> {
    let config = params::at_most_one::<RpcContextConfig>(params)?.unwrap_or_default();
    Ok(PlainQuery::new(method, &json!([{}]), result, life).within(&config).into())
}

/// Reads the next of the params that [`params::list`] has returned. A missing one reads as `null`.
pub(super) fn next<T: DeserializeOwned>(params: &mut std::vec::IntoIter<Value>) -> Result<T, ParamError> {
    params::typed(params.next().unwrap_or_default())
}

/// Refuses processed, at which a node does not read history.
pub(super) fn at_least_confirmed(commitment: Commitment) -> Result<Commitment, ParamError> {
    match commitment {
        Commitment::Processed => Err(ParamError::new("Method does not support commitment below `confirmed`")),
        settled => Ok(settled),
    }
}

impl From<PlainQuery> for Query {
    fn from(query: PlainQuery) -> Self {
        Self::Plain(query)
    }
}
