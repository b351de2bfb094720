//! `getBalance [pubkey, config?]`: the lamports of an account, 0 for one that does not exist.

use serde_json::{Value, json};

use super::description::{Description, Param, context_config, contextual, schema};
use super::get_fee_for_message::{RpcContextConfig, with_context};
use super::params::{self, ParamError};
use super::pubkey::Address;
use super::{AccountEncoding, AccountForm, AccountQuery, Commitment, DataSlice, Pubkey, Slot};
use crate::jsonrpc::Params;

/// getBalance: the lamports of an account. Every form of the account shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LamportsQuery {
    /// The address of the account.
    pub pubkey: Pubkey,
    /// The commitment at which the account is read.
    pub commitment: Commitment,
    /// The caller's `minContextSlot`. It is never part of a cache key.
    pub min_context_slot: Option<Slot>,
}

impl LamportsQuery {
    pub(super) fn parse(params: &Params) -> Result<Self, ParamError> {
        let (address, config) = params::one_or_two::<Address, RpcContextConfig>(params)?;
        let RpcContextConfig { commitment, min_context_slot } = config.unwrap_or_default();
        Ok(Self { pubkey: address.into_pubkey()?, commitment, min_context_slot })
    }

    /// Returns the shortest call for the account itself: without its data, whose size it still shows.
    pub fn account(&self) -> AccountQuery {
        let slice = Some(DataSlice { offset: 0, length: 0 });
        self.account_in(AccountForm { encoding: AccountEncoding::Base64, slice })
    }

    /// Returns the call for the account itself in `form`.
    pub fn account_in(&self, form: AccountForm) -> AccountQuery {
        let Self { pubkey, commitment, min_context_slot } = *self;
        AccountQuery { pubkey, form, commitment, min_context_slot }
    }

    pub(super) fn params_json(&self) -> Value {
        let config = with_context(json!({}), self.commitment, self.min_context_slot);
        json!([self.pubkey.to_string(), config])
    }
}

pub(super) fn describe() -> Description {
    Description {
        summary: "The lamports of an account; 0 if it does not exist.",
        params: vec![Param::required("address", "Whose account.", schema("Pubkey")), context_config()],
        result: contextual(&schema("Lamports")),
        errors: &["MinContextSlotNotReached"],
        example: json!(["SysvarC1ock11111111111111111111111111111111", { "commitment": "confirmed" }]),
        example_result: json!({ "context": { "apiVersion": "4.0.0", "slot": 2858 }, "value": 1_169_280 }),
    }
}
