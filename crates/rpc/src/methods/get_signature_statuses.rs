//! `getSignatureStatuses [[signature…], config?]`: how far the transactions of these signatures have come.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::description::{self, Description, Param, contextual, schema};
use super::params::{self, ParamError};
use super::{Commitment, Signature, Slot};
use crate::jsonrpc::Params;

/// The maximum number of signatures of one call.
pub const MAX_SIGNATURES: usize = 256;

pub(super) fn parse(params: &Params) -> Result<(Arc<[Signature]>, bool), ParamError> {
    let (texts, config) = params::one_or_two::<Vec<String>, RpcSignatureStatusConfig>(params)?;
    if texts.len() > MAX_SIGNATURES {
        return Err(ParamError::new(format!("Too many inputs provided; max {MAX_SIGNATURES}")));
    }
    let signatures = texts.iter().map(|text| Signature::param(text)).collect::<Result<_, _>>()?;
    Ok((signatures, config.is_some_and(|config| config.search_transaction_history)))
}

/// The config param. The type has the name of a node's type, because that name occurs in a node's errors.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RpcSignatureStatusConfig {
    search_transaction_history: bool,
}

pub(super) fn params_json(signatures: &[Signature], search_history: bool) -> Value {
    let texts: Vec<_> = signatures.iter().map(Signature::to_string).collect();
    json!([texts, { "searchTransactionHistory": search_history }])
}

/// The status of a transaction, as far as it is read here.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SignatureStatus<'a> {
    /// The slot of the transaction's block.
    pub slot: Slot,
    /// The error of the transaction as JSON text, or `null`.
    #[serde(borrow)]
    pub err: &'a RawValue,
    /// The commitment of the block, by the node's own chain.
    pub confirmation_status: Option<Commitment>,
}

pub(super) fn describe() -> Description {
    let status = json!({
        "type": ["object", "null"],
        "required": ["slot", "confirmations", "err", "confirmationStatus"],
        "properties": {
            "slot": schema("Slot"),
            "confirmations": { "description": "null once the block is final.", "type": ["integer", "null"] },
            "err": { "description": "null if the transaction succeeded." },
            "confirmationStatus": schema("Commitment"),
        },
    });
    let signature = json!({ "type": "string", "pattern": "^[1-9A-HJ-NP-Za-km-z]{64,88}$" });
    Description {
        summary: "How far transactions are, by their first signatures. null proves nothing.",
        params: vec![
            Param::required(
                "signatures",
                "At most 256 signatures.",
                json!({ "type": "array", "items": signature, "maxItems": MAX_SIGNATURES }),
            ),
            Param::optional(
                "config",
                "Whether history is searched.",
                description::nullable(json!({
                    "type": "object",
                    "required": ["searchTransactionHistory"],
                    "properties": { "searchTransactionHistory": { "type": "boolean", "default": false } },
                })),
            ),
        ],
        result: contextual(&json!({ "type": "array", "items": status })),
        errors: &["TransactionHistoryNotAvailable"],
        example: json!([[
            "5VERv8NMvzbJMEkV8xnrLkEaWRtSz9CosKDYjCJjBRnbJLgp8uirBgmQpjKhoR4tjF3ZpRzrFmBV6UjKdiSZkQUW"
        ]]),
        example_result: json!({ "context": { "apiVersion": "4.0.0", "slot": 2900 }, "value": [null] }),
    }
}
