//! `getMultipleAccounts [[pubkey…], config?]`: up to 100 accounts. The default encoding is base64, unlike that of
//! getAccountInfo.

use std::sync::Arc;

use serde_json::{Value, json};

use super::description::{Description, Param, contextual, nullable, schema};
use super::get_account_info::{RpcAccountInfoConfig, config_json, config_schema};
use super::params::{self, ParamError};
use super::pubkey::Address;
use super::{AccountEncoding, AccountForm, Commitment, Pubkey, Slot};
use crate::jsonrpc::Params;
use crate::jsonrpc::scan::Scan;

/// The maximum number of keys in a call, by the default of a node (`--rpc-max-multiple-accounts`).
pub const MAX_KEYS: usize = 100;

/// getMultipleAccounts: up to 100 accounts, in the caller's order with duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountsQuery {
    /// The addresses of the accounts.
    pub pubkeys: Arc<[Pubkey]>,
    /// The form of the data of each account, as the caller asked for it.
    pub form: AccountForm,
    /// The commitment at which the accounts are read.
    pub commitment: Commitment,
    /// The caller's `minContextSlot`. It is never part of a cache key.
    pub min_context_slot: Option<Slot>,
}

impl AccountsQuery {
    pub(super) fn parse(params: &Params) -> Result<Self, ParamError> {
        if let Params::Array(text) = params
            && let Some(query) = Self::scan_params(text)
        {
            return Ok(query);
        }
        let (addresses, config) = params::one_or_two::<Vec<Address>, RpcAccountInfoConfig>(params)?;
        let config = config.unwrap_or_default();
        if addresses.len() > MAX_KEYS {
            return Err(ParamError::new(format!("Too many inputs provided; max {MAX_KEYS}")));
        }
        Ok(Self {
            pubkeys: addresses.into_iter().map(Address::into_pubkey).collect::<Result<_, _>>()?,
            form: config.form(AccountEncoding::Base64),
            commitment: config.commitment,
            min_context_slot: config.min_context_slot,
        })
    }

    /// Scans params as most clients write them. Returns `None` for any other params, valid or not. The caller then
    /// reads the params with serde.
    fn scan_params(text: &[u8]) -> Option<Self> {
        let mut scan = Scan::new(text);
        scan.expect(b'[')?;
        let mut pubkeys = Vec::new();
        scan.elements(|scan| {
            pubkeys.push(Pubkey::parse(scan.text()?).ok()?);
            (pubkeys.len() <= MAX_KEYS).then_some(())
        })?;
        let config = RpcAccountInfoConfig::scan_last(&mut scan)?;
        Some(Self {
            pubkeys: pubkeys.into(),
            form: config.form(AccountEncoding::Base64),
            commitment: config.commitment,
            min_context_slot: config.min_context_slot,
        })
    }

    pub(super) fn params_json(&self) -> Value {
        let pubkeys: Vec<_> = self.pubkeys.iter().map(ToString::to_string).collect();
        json!([pubkeys, config_json(self.form, self.commitment, self.min_context_slot)])
    }
}

pub(super) fn describe() -> Description {
    Description {
        summary: "Up to 100 accounts, read at one slot.",
        params: vec![
            Param::required(
                "addresses",
                "Whose accounts; the answer keeps their order.",
                json!({ "type": "array", "items": schema("Pubkey"), "maxItems": MAX_KEYS }),
            ),
            Param::optional("config", "Form and commitment.", config_schema(AccountEncoding::Base64)),
        ],
        result: contextual(&json!({
            "description": "one element for each address, null where there is no such account",
            "type": "array",
            "items": nullable(schema("Account")),
        })),
        errors: &["MinContextSlotNotReached", "Base58TooLarge"],
        example: json!([["3uWi9x2SRpmjztkpkr2WWeBoVq3exjXG2YfDWLvm8KsQ"], { "commitment": "confirmed" }]),
        example_result: json!({ "context": { "apiVersion": "4.0.0", "slot": 2863 }, "value": [null] }),
    }
}
