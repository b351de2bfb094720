//! `getTokenAccountBalance [pubkey, commitment?]`: the balance of a token account.
//!
//! The second param *is* the commitment struct. Unlike in other methods, an invalid commitment is an error, and the form
//! `["confirmed"]` is valid.

use serde_json::{Value, json};

use super::description::{self, Description, Param, contextual, schema};
use super::params::{self, ParamError};
use super::plain::CommitmentConfig;
use super::pubkey::Address;
use super::{Commitment, Pubkey};
use crate::jsonrpc::Params;

/// getTokenAccountBalance or getTokenSupply: an amount of tokens, of a token account or of a mint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BalanceQuery {
    /// The address of the token account or the mint.
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
        result: contextual(&schema("TokenAmount")),
        errors: &[],
        example: json!(["2HsEyZXw4EKL94QZEgFKa4xr9ccvXXCk9E8g1K7GzDWa", { "commitment": "processed" }]),
        example_result: json!({
            "context": { "apiVersion": "4.0.0", "slot": 2896 },
            "value": { "amount": "1499994", "decimals": 6, "uiAmount": 1.499_994, "uiAmountString": "1.499994" },
        }),
    }
}

/// Describes getTokenSupply, whose params and result are those of getTokenAccountBalance.
pub(super) fn describe_supply() -> Description {
    let mut params = describe().params;
    params[0] = Param::required("mint", "Which token.", schema("Pubkey"));
    Description {
        summary: "How many tokens of a mint there are.",
        params,
        example: json!(["So11111111111111111111111111111111111111112", { "commitment": "confirmed" }]),
        ..describe()
    }
}
