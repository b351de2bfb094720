//! What belongs to nodes rather than to the chain. The pool answers some of these methods for all its nodes, and the
//! others go to one node: `getHealth`, `getVersion`, `getFirstAvailableBlock`, `minimumLedgerSlot`,
//! `getRecentPrioritizationFees`, `getTransactionCount`, `getBlockProduction`, `getBlockCommitment`,
//! `getHighestSnapshotSlot`, `getMaxRetransmitSlot`, `getMaxShredInsertSlot` and `getIdentity`.

use serde::Deserialize;
use serde_json::json;

use super::description::{self, Description, Param, contextual, nullable, schema};
use super::params::{self, ParamError};
use super::plain::{Life, PlainQuery, ResultKind};
use super::pubkey::Address;
use super::{Commitment, Method, Query, Slot, commitment};
use crate::jsonrpc::Params;

/// The maximum number of accounts of one getRecentPrioritizationFees.
const MAX_FEE_ACCOUNTS: usize = 128;

pub(super) fn describe_health() -> Description {
    let described =
        Description::bare("\"ok\" while a node is usable.", json!({ "const": "ok" }), json!("ok"));
    Description { errors: &["NodeUnhealthy"], ..described }
}

pub(super) fn describe_version() -> Description {
    let result = json!({
        "type": "object",
        "required": ["solana-core"],
        "properties": { "solana-core": { "type": "string" }, "feature-set": { "type": ["integer", "null"] } },
    });
    let example = json!({ "feature-set": 3_718_597_879_u32, "solana-core": "4.0.0" });
    Description::bare("The lowest version of the usable nodes.", result, example)
}

pub(super) fn describe_first_available_block() -> Description {
    Description::bare("The oldest block that a usable node has.", schema("Slot"), json!(0))
}

pub(super) fn describe_minimum_ledger_slot() -> Description {
    Description::bare("The oldest slot of which a usable node knows.", schema("Slot"), json!(0))
}

pub(super) fn describe_transaction_count() -> Description {
    Description::of_state("The number of transactions since genesis.", schema("U64"), json!(2899))
}

pub(super) fn describe_highest_snapshot_slot() -> Description {
    let result = json!({ "type": "object", "required": ["full"], "properties": { "full": schema("Slot") } });
    let described = Description::bare(
        "The newest snapshot of one node.",
        result,
        json!({ "full": 100, "incremental": 110 }),
    );
    Description { errors: &["NoSnapshot"], ..described }
}

pub(super) fn describe_max_retransmit_slot() -> Description {
    Description::bare("The newest slot that one node has passed on.", schema("Slot"), json!(2900))
}

pub(super) fn describe_max_shred_insert_slot() -> Description {
    Description::bare("The newest slot of which one node has got a part.", schema("Slot"), json!(2900))
}

pub(super) fn describe_identity() -> Description {
    let result =
        json!({ "type": "object", "required": ["identity"], "properties": { "identity": schema("Pubkey") } });
    Description::bare(
        "The identity of one node.",
        result,
        json!({ "identity": "8VjqqZcYo6drjcVUEnfvFkhy1bLrqFxzYpc5zpAANEjU" }),
    )
}

/// Parses getRecentPrioritizationFees. Its addresses are a set.
pub(super) fn prioritization_fees(params: &Params) -> Result<Query, ParamError> {
    let addresses = params::at_most_one::<Vec<Address>>(params)?.unwrap_or_default();
    if addresses.len() > MAX_FEE_ACCOUNTS {
        return Err(ParamError::new(format!("Too many inputs provided; max {MAX_FEE_ACCOUNTS}")));
    }
    let addresses = addresses
        .into_iter()
        .map(Address::into_pubkey)
        .collect::<Result<std::collections::BTreeSet<_>, _>>()?;
    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let params = json!([addresses]);
    Ok(PlainQuery::new(Method::GetRecentPrioritizationFees, &params, ResultKind::List, Life::OneSlot).into())
}

pub(super) fn describe_prioritization_fees() -> Description {
    let addresses =
        json!({ "type": "array", "items": schema("Pubkey"), "maxItems": MAX_FEE_ACCOUNTS, "default": [] });
    let fee = json!({
        "type": "object",
        "required": ["slot", "prioritizationFee"],
        "properties": { "slot": schema("Slot"), "prioritizationFee": schema("U64") },
    });
    Description {
        params: vec![Param::optional(
            "addresses",
            "Accounts that the transactions lock.",
            nullable(addresses),
        )],
        ..Description::bare(
            "The lowest fees of the last blocks, as one node has seen them.",
            json!({ "type": "array", "items": fee }),
            json!([{ "slot": 2899, "prioritizationFee": 0 }]),
        )
    }
}

/// The config of getBlockProduction. The types have the names of a node's types, because these names occur in a node's
/// errors.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RpcBlockProductionConfig {
    identity: Option<Address>,
    range: Option<RpcBlockProductionConfigRange>,
    #[serde(flatten, deserialize_with = "commitment::lenient")]
    commitment: Commitment,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RpcBlockProductionConfigRange {
    first_slot: Slot,
    last_slot: Option<Slot>,
}

pub(super) fn block_production(params: &Params) -> Result<Query, ParamError> {
    let config = params::at_most_one::<RpcBlockProductionConfig>(params)?.unwrap_or_default();
    let mut members = json!({});
    if let Some(identity) = config.identity {
        members["identity"] = identity.into_pubkey()?.to_string().into();
    }
    if let Some(RpcBlockProductionConfigRange { first_slot, last_slot }) = config.range {
        members["range"] = json!({ "firstSlot": first_slot, "lastSlot": last_slot });
    }
    let params = json!([members]);
    let query = PlainQuery::new(Method::GetBlockProduction, &params, ResultKind::Context, Life::OneSlot);
    Ok(query.at(config.commitment).into())
}

pub(super) fn describe_block_production() -> Description {
    let range = json!({
        "type": "object",
        "required": ["firstSlot"],
        "properties": { "firstSlot": schema("Slot"), "lastSlot": nullable(schema("Slot")) },
    });
    let config =
        json!({ "identity": schema("Pubkey"), "range": range, "commitment": description::commitment() });
    let result = contextual(&json!({ "type": "object", "required": ["byIdentity", "range"] }));
    let value = json!({ "byIdentity": {}, "range": { "firstSlot": 0, "lastSlot": 13 } });
    Description {
        params: vec![Param::optional("config", "Of whom, and of which slots.", description::config(config))],
        ..Description::bare(
            "How many blocks validators have produced in their slots.",
            result,
            json!({ "context": { "apiVersion": "4.0.0", "slot": 13 }, "value": value }),
        )
    }
}

pub(super) fn block_commitment(params: &Params) -> Result<Query, ParamError> {
    let (slot,) = params::tuple::<(Slot,)>(params)?;
    let (params, life) = (json!([slot]), Life::OneSlot);
    Ok(PlainQuery::new(Method::GetBlockCommitment, &params, ResultKind::Object, life).into())
}

pub(super) fn describe_block_commitment() -> Description {
    let result = json!({ "type": "object", "required": ["commitment", "totalStake"] });
    let example = json!({ "commitment": null, "totalStake": 999_999_997_717_120_u64 });
    Description {
        params: vec![Param::required("slot", "Which block.", schema("Slot"))],
        example: json!([5]),
        ..Description::bare("How much stake has voted on a block.", result, example)
    }
}
