//! `isBlockhashValid [blockhash, config?]`: whether a transaction may still use the hash of a block.

use serde_json::json;

use super::Pubkey;
use super::description::{Description, Param, context_config, contextual, schema};
use super::get_fee_for_message::RpcContextConfig;
use super::params::{self, ParamError};
use super::tip::ReadAt;
use crate::jsonrpc::Params;

pub(super) fn parse(params: &Params) -> Result<(Pubkey, ReadAt), ParamError> {
    let (text, config) = params::one_or_two::<String, RpcContextConfig>(params)?;
    // A hash has the form of an address. A node names the fault alone, without "Invalid param".
    let hash = Pubkey::parse(&text).map_err(|error| ParamError::new(error.to_string()))?;
    Ok((hash, ReadAt::of(config)))
}

pub(super) fn describe() -> Description {
    Description {
        summary: "Whether a transaction with this blockhash can still land.",
        params: vec![
            Param::required("blockhash", "The hash of a block.", schema("Pubkey")),
            context_config(),
        ],
        result: contextual(&json!({ "type": "boolean" })),
        errors: &["MinContextSlotNotReached"],
        example: json!(["7p1hEDMXVV1iNxjmdTmGLwPkcDf7gyPh6ghUZGS5Kbvo", { "commitment": "processed" }]),
        example_result: json!({ "context": { "apiVersion": "4.0.0", "slot": 2900 }, "value": true }),
    }
}
