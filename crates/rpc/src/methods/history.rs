//! The history of the chain: `getBlockTime`, `getBlocks`, `getBlocksWithLimit`, `getTransaction` and
//! `getSignaturesForAddress`.

use serde::Deserialize;
use serde_json::{Value, json};

use super::description::{self, Description, Param, context_config, schema};
use super::get_block::RpcEncodingConfigWrapper;
use super::get_fee_for_message::RpcContextConfig;
use super::params::{self, ParamError};
use super::plain::{Life, PlainQuery, ResultKind, at_least_confirmed, next};
use super::pubkey::Address;
use super::{BlockEncoding, Commitment, Method, Query, Signature, Slot, commitment};
use crate::jsonrpc::Params;

/// The maximum number of blocks of a list. A node refuses a longer range only if its own chain is that long.
const MAX_BLOCKS: u64 = 500_000;
/// The maximum and default number of signatures of a page.
const MAX_PAGE: usize = 1000;

/// A call of getBlockTime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockTimeQuery {
    /// The slot of the block.
    pub slot: Slot,
    /// The call as a node gets it.
    pub call: PlainQuery,
}

pub(super) fn block_time(params: &Params) -> Result<Query, ParamError> {
    let (slot,) = params::tuple::<(Slot,)>(params)?;
    let kind = ResultKind::NumberOrNull;
    let call = PlainQuery::new(Method::GetBlockTime, &json!([slot]), kind, Life::Final);
    Ok(Query::BlockTime(BlockTimeQuery { slot, call }))
}

pub(super) fn describe_block_time() -> Description {
    Description {
        summary: "When the block of a slot was produced, by the validators' estimate.",
        params: vec![Param::required("slot", "Which block.", schema("Slot"))],
        result: json!({ "description": "Unix time in seconds.", "type": ["integer", "null"] }),
        errors: BLOCK_ERRORS,
        example: json!([2642]),
        example_result: json!(1_795_649_598),
    }
}

const BLOCK_ERRORS: &[&str] = &[
    "BlockCleanedUp",
    "BlockNotAvailable",
    "SlotSkipped",
    "LongTermStorageSlotSkipped",
    "BlockStatusNotAvailableYet",
];

/// The second param of getBlocks. The type has the name of a node's type, because that name occurs in a node's errors.
#[derive(Deserialize)]
#[serde(untagged)]
enum RpcBlocksConfigWrapper {
    EndSlotOnly(Option<Slot>),
    ConfigOnly(Option<RpcContextConfig>),
}

/// A call of getBlocks or getBlocksWithLimit, whose answer lists the slots of blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlocksQuery {
    /// The first slot of the range.
    pub first: Slot,
    /// The last slot of the range. `None` if the range ends after `limit` blocks, or with the newest one.
    pub last: Option<Slot>,
    /// The number of blocks at which the list ends.
    pub limit: Option<u64>,
    /// The call as a node gets it.
    pub call: PlainQuery,
}

pub(super) fn blocks(params: &Params) -> Result<Query, ParamError> {
    let mut params = params::list(params, 1, 3)?;
    let first: Slot = next(&mut params)?;
    let second: Option<RpcBlocksConfigWrapper> = next(&mut params)?;
    let third: Option<RpcContextConfig> = next(&mut params)?;
    let (last, second) = match second {
        None => (None, None),
        Some(RpcBlocksConfigWrapper::EndSlotOnly(last)) => (last, None),
        Some(RpcBlocksConfigWrapper::ConfigOnly(config)) => (None, config),
    };
    // Of two configs, a node reads the last one.
    let config = third.or(second).unwrap_or_default();
    at_least_confirmed(config.commitment)?;
    let params = json!([first, last, {}]);
    let call = PlainQuery::new(Method::GetBlocks, &params, ResultKind::List, Life::Final).within(&config);
    Ok(Query::Blocks(BlocksQuery { first, last, limit: None, call }))
}

pub(super) fn describe_blocks() -> Description {
    Description {
        summary: "The slots of a range that have a block.",
        params: vec![
            Param::required("start", "The first slot.", schema("Slot")),
            Param::optional(
                "end",
                "The last slot, at most 500,000 later; default: the newest one.",
                description::nullable(schema("Slot")),
            ),
            context_config(),
        ],
        result: json!({ "type": "array", "items": schema("Slot") }),
        errors: &["MinContextSlotNotReached"],
        example: json!([5, 8]),
        example_result: json!([5, 6, 8]),
    }
}

pub(super) fn blocks_with_limit(params: &Params) -> Result<Query, ParamError> {
    let mut params = params::list(params, 2, 3)?;
    let first: Slot = next(&mut params)?;
    let limit = next::<usize>(&mut params)? as u64;
    let config = next::<Option<RpcContextConfig>>(&mut params)?.unwrap_or_default();
    at_least_confirmed(config.commitment)?;
    if limit > MAX_BLOCKS {
        return Err(ParamError::new(format!("Limit too large; max {MAX_BLOCKS}")));
    }
    let (method, params) = (Method::GetBlocksWithLimit, json!([first, limit, {}]));
    let call = PlainQuery::new(method, &params, ResultKind::List, Life::Final).within(&config);
    Ok(Query::Blocks(BlocksQuery { first, last: None, limit: Some(limit), call }))
}

pub(super) fn describe_blocks_with_limit() -> Description {
    let limit = json!({ "type": "integer", "minimum": 0, "maximum": MAX_BLOCKS });
    Description {
        summary: "The next slots that have a block.",
        params: vec![
            Param::required("start", "The first slot.", schema("Slot")),
            Param::required("limit", "How many.", limit),
            context_config(),
        ],
        example: json!([5, 3]),
        ..describe_blocks()
    }
}

/// A call of getTransaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionQuery {
    /// The first signature of the transaction.
    pub signature: Signature,
    /// The encoding of the transaction.
    pub encoding: BlockEncoding,
    /// The highest transaction version that the caller accepts. Without a number, it accepts only legacy ones.
    pub max_version: Option<u8>,
    /// The call as a node gets it.
    pub call: PlainQuery,
}

impl TransactionQuery {
    /// Returns the call for the same transaction, written in another way.
    #[must_use]
    pub fn written(&self, encoding: BlockEncoding, max_version: Option<u8>) -> Self {
        let mut members = json!({ "encoding": encoding.as_str() });
        if let Some(version) = max_version {
            members["maxSupportedTransactionVersion"] = version.into();
        }
        let params = json!([self.signature.to_string(), members]).to_string().into();
        let call = PlainQuery { params, ..self.call.clone() };
        Self { signature: self.signature, encoding, max_version, call }
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RpcTransactionConfig {
    encoding: Option<BlockEncoding>,
    #[serde(flatten, deserialize_with = "commitment::lenient")]
    commitment: Commitment,
    max_supported_transaction_version: Option<u8>,
}

pub(super) fn transaction(params: &Params) -> Result<Query, ParamError> {
    // The config is read into a tree. Of two members with the same name, the last one must win.
    let (signature, config) = params::one_or_two::<String, Value>(params)?;
    let config: Option<RpcEncodingConfigWrapper<RpcTransactionConfig>> =
        params::typed(config.unwrap_or_default())?;
    let config = match config {
        Some(RpcEncodingConfigWrapper::Deprecated(encoding)) => {
            RpcTransactionConfig { encoding, ..RpcTransactionConfig::default() }
        }
        Some(RpcEncodingConfigWrapper::Current(Some(config))) => config,
        _ => RpcTransactionConfig::default(),
    };
    let signature = Signature::param(&signature)?;
    let commitment = at_least_confirmed(config.commitment)?;
    let encoding = config.encoding.unwrap_or(BlockEncoding::Json);
    let max_version = config.max_supported_transaction_version;
    let (params, kind) = (json!([]), ResultKind::ObjectOrNull);
    let call = PlainQuery::new(Method::GetTransaction, &params, kind, Life::Final).at(commitment);
    let query = TransactionQuery { signature, encoding, max_version, call };
    Ok(Query::Transaction(query.written(encoding, max_version)))
}

pub(super) fn describe_transaction() -> Description {
    let config = json!({
        "encoding": { "enum": BlockEncoding::ALL.map(BlockEncoding::as_str), "default": BlockEncoding::Json.as_str() },
        "commitment": description::commitment(),
        "maxSupportedTransactionVersion": {
            "description": "Without it a versioned transaction is an error.",
            "type": "integer", "minimum": 0, "maximum": u8::MAX,
        },
    });
    Description {
        summary: "A transaction by its first signature. null proves nothing.",
        params: vec![
            Param::required("signature", "Which transaction.", signature()),
            Param::optional("config", "How it is written.", description::config(config)),
        ],
        result: json!({
            "type": ["object", "null"],
            "required": ["slot", "blockTime", "meta", "transaction"],
            "properties": { "slot": schema("Slot"), "blockTime": { "type": ["integer", "null"] } },
        }),
        errors: &["UnsupportedTransactionVersion", "TransactionHistoryNotAvailable"],
        example: json!([EXAMPLE, { "maxSupportedTransactionVersion": 0 }]),
        example_result: json!({
            "slot": 2858, "blockTime": 1_795_649_616, "meta": null, "version": 0,
            "transaction": { "message": {}, "signatures": [EXAMPLE] },
        }),
    }
}

const EXAMPLE: &str =
    "5VERv8NMvzbJMEkV8xnrLkEaWRtSz9CosKDYjCJjBRnbJLgp8uirBgmQpjKhoR4tjF3ZpRzrFmBV6UjKdiSZkQUW";

fn signature() -> Value {
    json!({ "type": "string", "pattern": "^[1-9A-HJ-NP-Za-km-z]{64,88}$" })
}

/// The limits of the pages that nodes are asked for. A caller of another limit gets the beginning of the next longer page, so
/// that close limits are one question, and a node reads at most two and a half times what it is asked for.
const PAGES: [usize; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, MAX_PAGE];

/// A call of getSignaturesForAddress, whose answer lists the transactions of an account, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageQuery {
    /// The number of transactions at which the page is full.
    pub limit: usize,
    /// True if the page begins before a transaction that the caller names. It then stays once it is full and final.
    pub has_before: bool,
    /// The call as a node gets it.
    pub call: PlainQuery,
}

impl PageQuery {
    /// Returns the call for the page with whose beginning this call is answered.
    #[must_use]
    pub fn longer(mut self) -> Self {
        let [old, new] = [self.limit, self.longer_limit()].map(|limit| format!(r#""limit":{limit}"#));
        self.call.params = self.call.params.replace(&old, &new).into();
        self.limit = self.longer_limit();
        self
    }

    /// Returns the limit of that page.
    pub fn longer_limit(&self) -> usize {
        PAGES.into_iter().find(|limit| *limit >= self.limit).unwrap_or(MAX_PAGE)
    }
}

/// The config of getSignaturesForAddress. The type has the name of a node's type, because that name occurs in a node's
/// errors.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RpcSignaturesForAddressConfig {
    before: Option<String>,
    until: Option<String>,
    limit: Option<usize>,
    #[serde(flatten, deserialize_with = "commitment::lenient")]
    commitment: Commitment,
    min_context_slot: Option<Slot>,
}

pub(super) fn signatures(params: &Params) -> Result<Query, ParamError> {
    let (address, config) = params::one_or_two::<Address, RpcSignaturesForAddressConfig>(params)?;
    let config = config.unwrap_or_default();
    let address = address.into_pubkey()?.to_string();
    let limit = config.limit.unwrap_or(MAX_PAGE);
    let mut members = json!({ "limit": limit });
    let has_before = config.before.is_some();
    for (name, bound) in [("before", config.before), ("until", config.until)] {
        if let Some(text) = bound {
            members[name] = Signature::param(&text)?.to_string().into();
        }
    }
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(ParamError::new(format!("Invalid limit; max {MAX_PAGE}")));
    }
    let RpcSignaturesForAddressConfig { commitment, min_context_slot, .. } = config;
    at_least_confirmed(commitment)?;
    let (method, params) = (Method::GetSignaturesForAddress, json!([address, members]));
    let call = PlainQuery::new(method, &params, ResultKind::List, Life::Final)
        .within(&RpcContextConfig { commitment, min_context_slot });
    Ok(Query::Page(PageQuery { limit, has_before, call }))
}

pub(super) fn describe_signatures() -> Description {
    let config = json!({
        "before": signature(),
        "until": signature(),
        "limit": { "type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": MAX_PAGE },
        "commitment": description::commitment(),
        "minContextSlot": schema("MinContextSlot"),
    });
    Description {
        summary: "The transactions that name an account, newest first.",
        params: vec![
            Param::required("address", "Which account.", schema("Pubkey")),
            Param::optional("config", "Which page.", description::config(config)),
        ],
        result: json!({
            "type": "array",
            "items": {
                "type": "object",
                "required": ["signature", "slot", "err", "memo", "blockTime", "confirmationStatus"],
                "properties": { "signature": signature(), "slot": schema("Slot") },
            },
        }),
        errors: &["MinContextSlotNotReached", "TransactionHistoryNotAvailable", "FilterTransactionNotFound"],
        example: json!(["SysvarC1ock11111111111111111111111111111111", { "limit": 2 }]),
        example_result: json!([]),
    }
}
