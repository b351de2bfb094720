//! `getTokenAccountBalance [pubkey, commitment?]`: one token account's balance. The only method whose second param *is*
//! the commitment struct, so that a bad commitment is an error here and `["confirmed"]` is none.

use serde::Deserialize;
use serde_json::{Value, json};

use super::params::{self, ParamError};
use super::pubkey::Address;
use super::{Commitment, Pubkey};
use crate::jsonrpc::Params;

/// getTokenAccountBalance: one token account's balance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BalanceQuery {
    /// Which token account.
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
