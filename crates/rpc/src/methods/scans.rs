//! What makes a node walk over many accounts: `getTokenAccountsByOwner`, `getTokenAccountsByDelegate`,
//! `getProgramAccounts`, `getTokenLargestAccounts`, `getLargestAccounts` and `getSupply`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::constants::commitment_config;
use super::description::{self, Description, Param, contextual, schema};
use super::get_account_info::{RpcAccountInfoConfig, config_schema, form_json};
use super::get_fee_for_message::RpcContextConfig;
use super::params::{self, ParamError};
use super::plain::{CommitmentConfig, Life, PlainQuery, ResultKind, next};
use super::pubkey::Address;
use super::{AccountEncoding, Commitment, Method, Query, commitment};
use crate::jsonrpc::Params;

/// The maximum number of filters of getProgramAccounts.
const MAX_FILTERS: usize = 4;

/// The maximum number of bytes that a filter compares, and of characters that write them in base58.
const MAX_COMPARED: usize = 128;
const MAX_BASE58: usize = 175;

/// The second param of getTokenAccountsByOwner. The type has the name of a node's type.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum RpcTokenAccountsFilter {
    Mint(Address),
    ProgramId(Address),
}

pub(super) fn by_owner(params: &Params) -> Result<Query, ParamError> {
    token_accounts(Method::GetTokenAccountsByOwner, params, Life::State)
}

pub(super) fn by_delegate(params: &Params) -> Result<Query, ParamError> {
    token_accounts(Method::GetTokenAccountsByDelegate, params, Life::Never)
}

fn token_accounts(method: Method, params: &Params, life: Life) -> Result<Query, ParamError> {
    let mut params = params::list(params, 2, 3)?;
    let owner: Address = next(&mut params)?;
    let filter: RpcTokenAccountsFilter = next(&mut params)?;
    let config = next::<Option<RpcAccountInfoConfig>>(&mut params)?.unwrap_or_default();
    let owner = owner.into_pubkey()?.to_string();
    let filter = match filter {
        RpcTokenAccountsFilter::Mint(mint) => json!({ "mint": mint.into_pubkey()?.to_string() }),
        RpcTokenAccountsFilter::ProgramId(id) => json!({ "programId": id.into_pubkey()?.to_string() }),
    };
    let mut form = config.form(AccountEncoding::Binary);
    // A node that parses token accounts cuts none of them.
    form.slice = form.slice.filter(|_| form.encoding != AccountEncoding::JsonParsed);
    let params = json!([owner, filter, form_json(form)]);
    Ok(PlainQuery::new(method, &params, ResultKind::Context, life).within(&context_of(&config)).into())
}

fn context_of(config: &RpcAccountInfoConfig) -> RpcContextConfig {
    RpcContextConfig { commitment: config.commitment, min_context_slot: config.min_context_slot }
}

pub(super) fn describe_by_owner() -> Description {
    let filter = json!({
        "type": "object", "minProperties": 1, "maxProperties": 1,
        "properties": { "mint": schema("Pubkey"), "programId": schema("Pubkey") },
    });
    Description {
        summary: "The token accounts of an owner.",
        params: vec![
            Param::required("owner", "Whose accounts.", schema("Pubkey")),
            Param::required("filter", "Of one mint, or of one token program.", filter),
            Param::optional("config", "Form and commitment.", config_schema(AccountEncoding::Binary)),
        ],
        result: contextual(&json!({ "type": "array", "items": keyed_account() })),
        errors: &["MinContextSlotNotReached", "Base58TooLarge"],
        example: json!([
            "SysvarC1ock11111111111111111111111111111111",
            { "programId": "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA" },
            { "encoding": "jsonParsed" },
        ]),
        example_result: json!({ "context": { "apiVersion": "4.0.0", "slot": 2858 }, "value": [] }),
    }
}

pub(super) fn describe_by_delegate() -> Description {
    let mut params = describe_by_owner().params;
    params[0] = Param::required("delegate", "Whose delegations.", schema("Pubkey"));
    Description {
        summary: "The token accounts that a delegate may spend from.",
        params,
        ..describe_by_owner()
    }
}

fn keyed_account() -> Value {
    json!({
        "type": "object",
        "required": ["account", "pubkey"],
        "properties": { "account": schema("Account"), "pubkey": schema("Pubkey") },
    })
}

/// The config of getProgramAccounts. The type has the name of a node's type, because that name occurs in a node's
/// errors.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RpcProgramAccountsConfig {
    filters: Option<Vec<RpcFilterType>>,
    #[serde(flatten)]
    account_config: RpcAccountInfoConfig,
    with_context: Option<bool>,
    #[serde(rename = "sortResults")]
    _sort_results: Option<bool>,
}

/// A filter. What it compares is checked by the node, whose words for a fault depend on the filter's kind.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum RpcFilterType {
    DataSize(u64),
    Memcmp(Value),
    TokenAccountState,
}

pub(super) fn program_accounts(params: &Params) -> Result<Query, ParamError> {
    let (program, config) = params::one_or_two::<Address, Value>(params)?;
    let config = params::typed::<Option<RpcProgramAccountsConfig>>(config.unwrap_or_default())?;
    let config = config.unwrap_or_default();
    let program = program.into_pubkey()?.to_string();
    let filters = config.filters.unwrap_or_default();
    if filters.len() > MAX_FILTERS {
        return Err(ParamError::new(format!("Too many filters provided; max {MAX_FILTERS}")));
    }
    // An account must pass all filters, so neither their order nor repetitions matter.
    let mut filters: Vec<_> = filters.into_iter().map(RpcFilterType::into_json).collect();
    filters.sort_by_cached_key(Value::to_string);
    filters.dedup();
    let mut members = form_json(config.account_config.form(AccountEncoding::Binary));
    members["filters"] = filters.into();
    // Whoever asks for no order gets the list in order, too.
    members["sortResults"] = true.into();
    let with_context = config.with_context.unwrap_or(false);
    members["withContext"] = with_context.into();
    let kind = if with_context { ResultKind::Context } else { ResultKind::List };
    let query = PlainQuery::new(Method::GetProgramAccounts, &json!([program, members]), kind, Life::Scan);
    Ok(query.within(&context_of(&config.account_config)).into())
}

impl PlainQuery {
    /// Returns the call for the same list within its context, whose value is the answer to this call. `None` for other calls.
    pub fn in_context(&self) -> Option<Self> {
        let is_bare = self.method == Method::GetProgramAccounts && self.result == ResultKind::List;
        let before = self.params.strip_suffix(BARE).filter(|_| is_bare)?;
        let params = format!("{before}{IN_CONTEXT}").into();
        Some(Self { params, result: ResultKind::Context, ..self.clone() })
    }

    /// Returns the call for the supply with the list of accounts, from which this call without it is answered. `None` for
    /// other calls.
    pub fn with_all_accounts(&self) -> Option<Self> {
        let params = supply_params(false).to_string().into();
        let is_without = self.method == Method::GetSupply && self.params != params;
        is_without.then(|| Self { params, ..self.clone() })
    }
}

/// The end of the canonical params of getProgramAccounts, for a list alone and for one within its context.
const BARE: &str = r#""withContext":false}]"#;
const IN_CONTEXT: &str = r#""withContext":true}]"#;

impl RpcFilterType {
    fn into_json(self) -> Value {
        match self {
            Self::DataSize(bytes) => json!({ "dataSize": bytes }),
            Self::Memcmp(compared) => json!({ "memcmp": in_base58(&compared).unwrap_or(compared) }),
            Self::TokenAccountState => json!({ "tokenAccountState": null }),
        }
    }
}

/// Returns a comparison with its bytes in base58, which is the default of nodes of all versions. `None` for one that a node
/// refuses.
pub(super) fn in_base58(compared: &Value) -> Option<Value> {
    let offset = compared.get("offset")?.as_u64()?;
    let encoding = match compared.get("encoding") {
        None | Some(Value::Null) => "base58",
        Some(encoding) => encoding.as_str()?,
    };
    // A node reads a list as bytes under any encoding that it knows, and a text under the name `bytes` as base58.
    let bytes = match (compared.get("bytes")?, encoding) {
        (Value::String(text), "base58" | "bytes") if text.len() <= MAX_BASE58 => {
            bs58::decode(text).into_vec().ok()?
        }
        (Value::String(text), "base64") => STANDARD.decode(text).ok()?,
        (Value::Array(list), "base58" | "base64" | "bytes") => {
            let byte = |byte: &Value| byte.as_u64().and_then(|byte| u8::try_from(byte).ok());
            list.iter().map(byte).collect::<Option<Vec<_>>>()?
        }
        _ => return None,
    };
    let text = || bs58::encode(&bytes).into_string();
    (bytes.len() <= MAX_COMPARED).then(|| json!({ "offset": offset, "bytes": text() }))
}

pub(super) fn describe_program_accounts() -> Description {
    let config = description::config(json!({
        "encoding": { "allOf": [schema("AccountEncoding")], "default": AccountEncoding::Binary.as_str() },
        "dataSlice": schema("DataSlice"),
        "commitment": description::commitment(),
        "minContextSlot": schema("MinContextSlot"),
        "filters": {
            "description": "An account must pass all of them.",
            "type": "array", "maxItems": MAX_FILTERS, "default": [],
        },
        "sortResults": { "type": "boolean", "default": true },
        "withContext": { "type": "boolean", "default": false },
    }));
    let accounts = json!({ "type": "array", "items": keyed_account() });
    Description {
        summary: "The accounts of a program.",
        params: vec![
            Param::required("program", "Which program.", schema("Pubkey")),
            Param::optional("config", "Which accounts, and their form.", config),
        ],
        result: json!({ "oneOf": [accounts, contextual(&accounts)] }),
        errors: &["MinContextSlotNotReached", "Base58TooLarge"],
        example: json!([
            "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA",
            { "encoding": "base64", "filters": [{ "dataSize": 82 }] },
        ]),
        example_result: json!([]),
    }
}

pub(super) fn token_largest(params: &Params) -> Result<Query, ParamError> {
    let (mint, config) = params::one_or_two::<Address, CommitmentConfig>(params)?;
    let params = json!([mint.into_pubkey()?.to_string(), {}]);
    let query = PlainQuery::new(Method::GetTokenLargestAccounts, &params, ResultKind::Context, Life::Scan);
    Ok(query.at(config.unwrap_or_default().commitment).into())
}

pub(super) fn describe_token_largest() -> Description {
    Description {
        summary: "The 20 largest accounts of a token.",
        params: vec![Param::required("mint", "Which token.", schema("Pubkey")), commitment_config()],
        result: contextual(&json!({ "type": "array", "items": schema("TokenAmount") })),
        errors: &[],
        example: json!(["So11111111111111111111111111111111111111112"]),
        example_result: json!({ "context": { "apiVersion": "4.0.0", "slot": 2858 }, "value": [] }),
    }
}

/// The config of getLargestAccounts. The types have the names of a node's types.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RpcLargestAccountsConfig {
    #[serde(flatten, deserialize_with = "commitment::lenient")]
    commitment: Commitment,
    filter: Option<RpcLargestAccountsFilter>,
    #[serde(rename = "sortResults")]
    _sort_results: Option<bool>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
enum RpcLargestAccountsFilter {
    Circulating,
    NonCirculating,
}

pub(super) fn largest(params: &Params) -> Result<Query, ParamError> {
    let config = params::at_most_one::<RpcLargestAccountsConfig>(params)?.unwrap_or_default();
    let mut members = json!({ "sortResults": true });
    if let Some(filter) = config.filter {
        members["filter"] = json!(filter);
    }
    // A node finds the accounts every two hours, at whichever commitment it is asked then. The context of its answers has
    // the slot of that time, which says nothing about the node's slot at this commitment.
    let query =
        PlainQuery::new(Method::GetLargestAccounts, &json!([members]), ResultKind::Object, Life::Scan);
    Ok(query.at(config.commitment).into())
}

pub(super) fn describe_largest() -> Description {
    let config = json!({
        "commitment": description::commitment(),
        "filter": { "enum": ["circulating", "nonCirculating"] },
        "sortResults": { "type": "boolean", "default": true },
    });
    Description {
        summary: "The 20 accounts with the most lamports.",
        params: vec![Param::optional("config", "Which accounts.", description::config(config))],
        result: contextual(&json!({
            "type": "array",
            "items": {
                "type": "object",
                "required": ["address", "lamports"],
                "properties": { "address": schema("Pubkey"), "lamports": schema("Lamports") },
            },
        })),
        errors: &[],
        example: json!([]),
        example_result: json!({ "context": { "apiVersion": "4.0.0", "slot": 2858 }, "value": [] }),
    }
}

/// The config of getSupply. The type has the name of a node's type.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RpcSupplyConfig {
    #[serde(flatten, deserialize_with = "commitment::lenient")]
    commitment: Commitment,
    #[serde(default)]
    exclude_non_circulating_accounts_list: bool,
}

pub(super) fn supply(params: &Params) -> Result<Query, ParamError> {
    let config = params::at_most_one::<RpcSupplyConfig>(params)?.unwrap_or_default();
    let params = supply_params(config.exclude_non_circulating_accounts_list);
    let query = PlainQuery::new(Method::GetSupply, &params, ResultKind::Context, Life::Scan);
    Ok(query.at(config.commitment).into())
}

fn supply_params(without_accounts: bool) -> Value {
    json!([{ "excludeNonCirculatingAccountsList": without_accounts }])
}

pub(super) fn describe_supply() -> Description {
    let members = json!({
        "commitment": description::commitment(),
        "excludeNonCirculatingAccountsList": { "type": "boolean", "default": false },
    });
    // Unlike in other configs, null is an error here.
    let config = description::nullable(json!({ "type": "object", "properties": members }));
    Description {
        summary: "How many lamports there are, and how many of them circulate.",
        params: vec![Param::optional("config", "What is listed.", config)],
        result: contextual(&json!({
            "type": "object",
            "required": ["total", "circulating", "nonCirculating", "nonCirculatingAccounts"],
            "properties": { "total": schema("Lamports"), "circulating": schema("Lamports") },
        })),
        errors: &[],
        example: json!([{ "excludeNonCirculatingAccountsList": true }]),
        example_result: json!({
            "context": { "apiVersion": "4.0.0", "slot": 14 },
            "value": { "circulating": 500, "nonCirculating": 0, "nonCirculatingAccounts": [], "total": 500 },
        }),
    }
}
