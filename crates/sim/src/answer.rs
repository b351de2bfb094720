//! The answer of a node to one call, from the state that the node sees.
//!
//! Each answer is that of an Agave 4.0 node with its full API and transaction history. The params are validated before,
//! so only errors that depend on state occur here. The members of objects are sorted, as on a node.

mod account;
mod block;
mod cluster;
mod fee;
mod history;
mod leaders;
mod parsed;
mod plain;
mod probe;
mod scan;
mod send;
mod status;
mod transaction;
mod votes;

use std::sync::Arc;

use serde_json::{Value, json};
use slotfront_rpc::jsonrpc::Params;
use slotfront_rpc::methods::{Commitment, Method, ParamError, Profile, Query, Slot};

use super::chain::Chain;
use super::chain::block::Block;
use super::traits::NodeTraits;

pub(crate) use account::notified;
pub(crate) use cluster::FEATURE_SET;
pub(crate) use plain::genesis_hash;
use probe::public_key;
pub(crate) use probe::{HEALTH, PROBE_METHODS, argument, array, health};
pub(crate) use status::signature;
pub(crate) use transaction::{error as transaction_error, logged};

/// A node's error object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) code: i32,
    pub(crate) message: String,
    pub(crate) data: Option<Value>,
}

impl Refusal {
    /// Creates an error without data.
    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// Creates an error -32602 with a message.
    pub(crate) fn param(message: impl Into<String>) -> Self {
        Self::new(-32_602, message)
    }

    /// Returns the object as JSON text.
    pub(crate) fn to_json(&self) -> String {
        let data = self.data.as_ref().map(|data| format!(r#","data":{data}"#)).unwrap_or_default();
        format!(r#"{{"code":{},"message":{}{data}}}"#, self.code, Value::from(&*self.message))
    }
}

impl From<ParamError> for Refusal {
    fn from(refused: ParamError) -> Self {
        Self { code: refused.code, message: refused.message, data: refused.data.map(Value::from) }
    }
}

/// The chain as one node sees it, up to the newest block of the node.
pub(crate) struct View<'a> {
    pub(crate) chain: &'a Chain,
    pub(crate) node: &'a NodeTraits,
    /// The newest processed block of the node.
    pub(crate) tip: Arc<Block>,
    /// True if the node answers even if it has not reached the caller's `minContextSlot`.
    pub(crate) ignores_min_slot: bool,
}

impl View<'_> {
    /// Returns the slot that the node answers from at `commitment`.
    pub(crate) fn slot(&self, commitment: Commitment) -> Slot {
        match commitment {
            Commitment::Processed => self.tip.slot,
            Commitment::Confirmed => self.tip.confirmed,
            Commitment::Finalized => self.tip.finalized,
        }
    }

    /// Returns the slot that the node answers from at `commitment`.
    ///
    /// # Errors
    /// The slot is below `minimum`.
    fn slot_from(&self, commitment: Commitment, minimum: Option<Slot>) -> Result<Slot, Refusal> {
        let slot = self.slot(commitment);
        if minimum.is_some_and(|minimum| slot < minimum && !self.ignores_min_slot) {
            let data = Some(json!({ "contextSlot": slot }));
            return Err(Refusal {
                data,
                ..Refusal::new(-32_016, "Minimum context slot has not been reached")
            });
        }
        Ok(slot)
    }

    /// Returns a result that consists of `value` and of a context with this slot.
    fn contextual(&self, slot: Slot, value: &Value) -> Value {
        json!({ "context": { "apiVersion": self.node.version(), "slot": slot }, "value": value })
    }

    /// Returns the block of `slot`, if the node holds it.
    fn block(&self, slot: Slot) -> Option<&Arc<Block>> {
        self.chain.block(slot).filter(|_| !self.node.has_lost(slot))
    }

    /// Returns true if the node holds the block of `slot`, if there is one.
    fn keeps(&self, slot: Slot) -> bool {
        slot >= self.first_available() && !self.node.has_lost(slot)
    }

    /// Returns the oldest slot whose block the node still has.
    fn first_available(&self) -> Slot {
        self.chain.first_block().slot.max(self.node.first_available())
    }
}

/// Adds `slots` to the slot in a result: to the result itself if it is a number, otherwise to its context slot.
pub(crate) fn ahead(mut result: Value, slots: u64) -> Value {
    let slot = match &mut result {
        slot @ Value::Number(_) => Some(slot),
        result => result.pointer_mut("/context/slot"),
    };
    if let Some(slot) = slot {
        *slot = slot.as_u64().unwrap_or(0).saturating_add(slots).into();
    }
    result
}

/// Returns the object `result` with `members` added. A member of `result` with the same name is replaced.
pub(crate) fn with(mut result: Value, members: &Value) -> Value {
    if let (Some(result), Some(members)) = (result.as_object_mut(), members.as_object()) {
        result.extend(members.clone());
    }
    result
}

/// Answers a call by the name of its method.
///
/// # Errors
/// The answer of the node is an error object.
pub(crate) fn call(view: &View<'_>, method: &str, params: &Params) -> Result<Value, Refusal> {
    let Some(known) = Method::from_name(method) else {
        return probe::call(view, method, params);
    };
    if !view.node.full_api() && !plain::is_minimal(known) {
        return Err(Refusal::new(-32_601, "Method not found"));
    }
    answer(view, Query::parse(known, params, Profile::Node)?.known())
}

/// Answers a call whose params are valid.
pub(crate) fn answer(view: &View<'_>, query: &Query) -> Result<Value, Refusal> {
    match query {
        Query::Block(query) => block::answer(view, query),
        Query::Account(query) => account::one(view, query),
        Query::Accounts(query) => account::several(view, query),
        Query::Balance(query) => account::balance(view, query),
        Query::Fee(query) => fee::answer(view, query),
        Query::Votes(query) => Ok(votes::answer(view, query)),
        Query::Samples(query) => Ok(cluster::samples(view, query.limit)),
        Query::ClusterNodes => Ok(cluster::nodes(view)),
        Query::Supply(query) => scan::token_supply(view, query),
        Query::Lamports(query) => account::lamports(view, query),
        _ => match query.plain() {
            Some(call) => plain::answer(view, call),
            None => Err(Refusal::new(-32_601, "Method not found")),
        },
    }
}
