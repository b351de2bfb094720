//! `getTokenAccountBalance [pubkey, commitment?]`: one token account's balance. The only method whose second param *is*
//! the commitment struct, so that a bad commitment is an error here and `["confirmed"]` is none.

use serde::Deserialize;
use serde_json::{Value, json};

use super::description::{self, Description, Param, contextual, schema};
use super::params::{self, ParamError};
use super::pubkey::Address;
use super::{Commitment, Pubkey};
use crate::jsonrpc::Params;

/// getTokenAccountBalance: one token account's balance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BalanceQuery {
    /// The address of the token account.
    pub pubkey: Pubkey,
    /// At which commitment.
    pub commitment: Commitment,
}

impl BalanceQuery {
    pub(super) fn parse(params: &Params) -> Result<Self, ParamError> {
        let (address, config) = params::one_or_two::<Address, CommitmentConfig>(params)?;
        Ok(Self { pubkey: address.judge()?, commitment: config.map(|c| c.commitment).unwrap_or_default() })
    }

    pub(super) fn params_json(&self) -> Value {
        json!([self.pubkey.to_string(), { "commitment": self.commitment }])
    }
}

/// By the name that a node's errors give it.
#[derive(Deserialize)]
struct CommitmentConfig {
    commitment: Commitment,
}

pub(super) fn describe() -> Description {
    Description {
        summary: "A token account's balance.",
        params: vec![
            Param::required("address", "Which token account.", schema("Pubkey")),
            Param::optional(
                "config",
                "A config that is there must hold a commitment.",
                description::config(json!({ "commitment": description::commitment() })),
            ),
        ],
        result: contextual(&json!({
            "type": "object",
            "required": ["amount", "decimals", "uiAmountString"],
            "properties": {
                "amount": { "description": "In the token's smallest unit, a u64 as text.", "type": "string" },
                "decimals": { "type": "integer", "minimum": 0, "maximum": u8::MAX },
                "uiAmount": { "description": "Inexact; prefer uiAmountString.", "type": ["number", "null"] },
                "uiAmountString": { "description": "In whole tokens.", "type": "string" },
            },
        })),
        errors: &[],
        example: json!(["2HsEyZXw4EKL94QZEgFKa4xr9ccvXXCk9E8g1K7GzDWa", { "commitment": "processed" }]),
        example_result: json!({
            "context": { "apiVersion": "4.0.0", "slot": 2896 },
            "value": { "amount": "1499994", "decimals": 6, "uiAmount": 1.499_994, "uiAmountString": "1.499994" },
        }),
    }
}
