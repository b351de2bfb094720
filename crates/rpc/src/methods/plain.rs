//! Queries that need no type of their own: a method, its params in canonical form, and how long an answer lives.
//!
//! A node answers such a query as it is asked, and its result is kept as text. A file of such methods has two functions
//! for each: one parses the params, one describes them. A row in the table of [`Method`] joins them.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::get_fee_for_message::RpcContextConfig;
use super::params::{self, ParamError};
use super::{BlockEncoding, Commitment, Method, Query, Signature, Slot};
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
    /// The answer is the same as long as the cluster exists.
    Cluster,
    /// The answer is the same as long as the newest slot belongs to one epoch.
    Epoch,
    /// The answer is about the block of this slot, and stays once the block is final.
    Block(Slot),
    /// The answer lists the slots of blocks. It stays if it ends with a final one.
    Blocks {
        /// The first slot of the range.
        first: Slot,
        /// The last slot of the range. `None` if the range ends after `limit` blocks, or with the newest one.
        last: Option<Slot>,
        /// The number of blocks at which the list ends.
        limit: Option<u64>,
    },
    /// The answer is about a transaction, and stays once its block is final.
    Transaction {
        /// The first signature of the transaction.
        signature: Signature,
        /// The encoding of the transaction.
        encoding: BlockEncoding,
        /// The highest transaction version that the caller accepts. Without a number, it accepts only legacy ones.
        max_version: Option<u8>,
    },
    /// The answer lists the transactions of an account, newest first.
    Page {
        /// The number of transactions at which the page is full.
        limit: usize,
        /// True if the page begins before a transaction that the caller names. It then stays once it is full and final.
        has_before: bool,
    },
    /// The answer is about the newest state, as an account is.
    State,
    /// The answer may be another in each slot.
    OneSlot,
    /// The answer is about the newest state, and costs the node so much that it is kept for longer.
    Scan,
    /// The pool answers for its nodes.
    Pool,
    /// The answer belongs to the node at this moment.
    Forwarded,
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

    /// Returns the call of getEpochSchedule, which tells when the answers of an epoch end.
    pub fn epoch_schedule() -> Self {
        Self::new(Method::GetEpochSchedule, &json!([]), ResultKind::Object, Life::Cluster)
    }

    /// Returns the slot of the block that the answer is about. `None` if it is not about one block.
    pub fn block_slot(&self) -> Option<Slot> {
        if let Life::Block(slot) = self.life { Some(slot) } else { None }
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
