//! `getTokenAccountBalance [pubkey, commitment?]`: the balance of a token account.
//!
//! The second param *is* the commitment struct. Unlike in other methods, an invalid commitment is an error, and the form
//! `["confirmed"]` is valid.

use serde::Deserialize;
use serde_json::{Value, json};

use super::description::{self, Description, Param, contextual, schema};
use super::params::{self, ParamError};
use super::pubkey::Address;
use super::{Commitment, Pubkey};
use crate::jsonrpc::Params;

/// getTokenAccountBalance: the balance of a token account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BalanceQuery {
    /// The address of the token account.
    pub pubkey: Pubkey,
    /// The commitment at which the account is read.
    pub commitment: Commitment,
}

impl BalanceQuery {
    pub(super) fn parse(params: &Params) -> Result<Self, ParamError> {
        let (address, config) = params::one_or_two::<Address, CommitmentConfig>(params)?;
        Ok(Self {
            pubkey: address.into_pubkey()?,
            commitment: config.map(|c| c.commitment).unwrap_or_default(),
        })
    }

    pub(super) fn params_json(&self) -> Value {
        json!([self.pubkey.to_string(), { "commitment": self.commitment }])
    }
}

/// The second param of getTokenAccountBalance. The type has the name of a node's type, because that name occurs in a
/// node's errors.
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
