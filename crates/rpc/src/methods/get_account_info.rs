//! `getAccountInfo [pubkey, config?]`: one account, and the config that both account methods share.

use serde::Deserialize;
use serde_json::{Value, json};

use super::description::{self, Description, Param, contextual, nullable, schema};
use super::get_fee_for_message::with_context;
use super::params::{self, ParamError};
use super::pubkey::Address;
use super::{AccountEncoding, AccountForm, Commitment, DataSlice, Pubkey, Slot, commitment};
use crate::jsonrpc::Params;
use crate::jsonrpc::scan::Scan;

/// getAccountInfo: one account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AccountQuery {
    /// The address of the account.
    pub pubkey: Pubkey,
    /// The form of the account's data, as the caller asked for it. A slice is kept even if the encoding does not
    /// support slices.
    pub form: AccountForm,
    /// The commitment at which the account is read.
    pub commitment: Commitment,
    /// The caller's `minContextSlot`. It is never part of a cache key.
    pub min_context_slot: Option<Slot>,
}

impl AccountQuery {
    pub(super) fn parse(params: &Params) -> Result<Self, ParamError> {
        if let Params::Array(text) = params
            && let Some(query) = Self::scan_params(text)
        {
            return Ok(query);
        }
        let (address, config) = params::one_or_two::<Address, RpcAccountInfoConfig>(params)?;
        let config = config.unwrap_or_default();
        Ok(Self {
            pubkey: address.into_pubkey()?,
            form: config.form(AccountEncoding::Binary),
            commitment: config.commitment,
            min_context_slot: config.min_context_slot,
        })
    }

    /// Scans params as most clients write them. Returns `None` for any other params, valid or not. The caller then
    /// reads the params with serde.
    fn scan_params(text: &[u8]) -> Option<Self> {
        let mut scan = Scan::new(text);
        scan.expect(b'[')?;
        let pubkey = Pubkey::parse(scan.text()?).ok()?;
        let config = RpcAccountInfoConfig::scan_last(&mut scan)?;
        Some(Self {
            pubkey,
            form: config.form(AccountEncoding::Binary),
            commitment: config.commitment,
            min_context_slot: config.min_context_slot,
        })
    }

    pub(super) fn params_json(&self) -> Value {
        json!([self.pubkey.to_string(), config_json(self.form, self.commitment, self.min_context_slot)])
    }
}

/// The config param of getAccountInfo and getMultipleAccounts. The type has the name of a node's type, because that
/// name occurs in a node's errors.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct RpcAccountInfoConfig {
    encoding: Option<AccountEncoding>,
    data_slice: Option<UiDataSliceConfig>,
    #[serde(flatten, deserialize_with = "commitment::lenient")]
    pub(super) commitment: Commitment,
    pub(super) min_context_slot: Option<Slot>,
}

#[derive(Deserialize)]
struct UiDataSliceConfig {
    offset: usize,
    length: usize,
}

impl RpcAccountInfoConfig {
    /// Scans the rest of an array of params: the config, if there is one, and the end of the array. Returns the
    /// default if the array has no config. Returns `None` for a config that most clients do not write, valid or
    /// not. The caller then reads the params with serde.
    pub(super) fn scan_last(scan: &mut Scan<'_>) -> Option<Self> {
        let mut config = Self::default();
        if scan.takes(b',') {
            let (mut commitment, mut encoding, mut slot) = (None, None, None);
            scan.members(|scan, name| {
                let twice = match name {
                    b"commitment" => commitment.replace(Commitment::from_name(scan.text()?)?).is_some(),
                    b"encoding" => encoding.replace(AccountEncoding::from_name(scan.text()?)?).is_some(),
                    b"minContextSlot" => slot.replace(scan.number()?).is_some(),
                    _ => true,
                };
                (!twice).then_some(())
            })?;
            config.commitment = commitment.unwrap_or_default();
            (config.encoding, config.min_context_slot) = (encoding, slot);
        }
        scan.expect(b']')?;
        scan.is_done().then_some(config)
    }

    /// Returns the requested form of account data. A config without an encoding gets the encoding `default`.
    pub(super) fn form(&self, default: AccountEncoding) -> AccountForm {
        AccountForm {
            encoding: self.encoding.unwrap_or(default),
            slice: self.data_slice.as_ref().map(|slice| {
                // Nothing is the same from everywhere.
                let offset = if slice.length == 0 { 0 } else { slice.offset as u64 };
                DataSlice { offset, length: slice.length as u64 }
            }),
        }
    }
}

/// Returns the config param in canonical form, for a call to a node.
pub(super) fn config_json(
    form: AccountForm,
    commitment: Commitment,
    min_context_slot: Option<Slot>,
) -> Value {
    with_context(form_json(form), commitment, min_context_slot)
}

/// Returns the encoding and the slice as members of a config.
pub(super) fn form_json(form: AccountForm) -> Value {
    let mut members = json!({ "encoding": form.encoding.as_str() });
    if let Some(DataSlice { offset, length }) = form.slice {
        members["dataSlice"] = json!({ "offset": offset, "length": length });
    }
    members
}

/// Returns the JSON Schema of the config param. `default` is the encoding if the config names none.
pub(super) fn config_schema(default: AccountEncoding) -> Value {
    description::config(json!({
        "encoding": { "allOf": [schema("AccountEncoding")], "default": default.as_str() },
        "dataSlice": schema("DataSlice"),
        "commitment": description::commitment(),
        "minContextSlot": schema("MinContextSlot"),
    }))
}

pub(super) fn describe() -> Description {
    Description {
        summary: "One account.",
        params: vec![
            Param::required("address", "Whose account.", schema("Pubkey")),
            Param::optional("config", "Form and commitment.", config_schema(AccountEncoding::Binary)),
        ],
        result: contextual(&nullable(schema("Account"))),
        errors: &["MinContextSlotNotReached", "Base58TooLarge"],
        example: json!(["SysvarC1ock11111111111111111111111111111111", { "encoding": "base64" }]),
        example_result: json!({
            "context": { "apiVersion": "4.0.0", "slot": 2858 },
            "value": {
                "data": ["KgsAAAAAAAC8KgFrAAAAAAAAAAAAAAAAAQAAAAAAAAAmMAFrAAAAAA==", "base64"],
                "executable": false,
                "lamports": 1_169_280,
                "owner": "Sysvar1111111111111111111111111111111111111",
                "rentEpoch": 0,
                "space": 40,
            },
        }),
    }
}
