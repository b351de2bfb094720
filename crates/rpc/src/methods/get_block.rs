//! `getBlock [slot, config?]`: one block by its slot. The second param may also be a bare encoding (`"json"`).
//!
//! Every fault in the second param has the same error text, because a node tries two types and drops their errors.

use serde::Deserialize;
use serde_json::{Value, json};

use super::description::{self, Description, Param, schema};
use super::params::{self, ParamError};
use super::{BlockDetails, BlockEncoding, Commitment, Profile, Slot, commitment};
use crate::jsonrpc::Params;

/// getBlock: one block by its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockQuery {
    /// The slot of the block.
    pub slot: Slot,
    /// The level of detail of the transactions.
    pub details: BlockDetails,
    /// The encoding of the transactions, which matters only for the details `Full`. For other details, the value
    /// is always `Json`.
    pub encoding: BlockEncoding,
    /// True if rewards are included.
    pub rewards: bool,
    /// The highest transaction version that the caller accepts. Without a number, the caller accepts only legacy
    /// transactions. There is no number either if the requested transaction details show no version.
    pub max_version: Option<u8>,
    /// The commitment that the block must have reached: confirmed or finalized.
    pub commitment: Commitment,
}

impl BlockQuery {
    pub(super) fn parse(params: &Params, profile: Profile) -> Result<Self, ParamError> {
        // The config is read into a tree. Of two members with the same name, the last one must win.
        let (slot, config) = params::one_or_two::<Slot, Value>(params)?;
        let config: Option<RpcEncodingConfigWrapper<RpcBlockConfig>> =
            params::typed(config.unwrap_or_default())?;
        let config = config.map(RpcBlockConfig::from).unwrap_or_default();
        if config.commitment == Commitment::Processed {
            return Err(ParamError::new("Method does not support commitment below `confirmed`"));
        }
        let details = config.transaction_details.unwrap_or(BlockDetails::Full);
        Ok(Self {
            slot,
            details,
            encoding: match details {
                BlockDetails::Full => config.encoding.unwrap_or(BlockEncoding::Json),
                _ => BlockEncoding::Json,
            },
            rewards: config.rewards.unwrap_or(profile == Profile::Node),
            max_version: match details {
                BlockDetails::Full | BlockDetails::Accounts => config.max_supported_transaction_version,
                BlockDetails::Signatures | BlockDetails::None => None,
            },
            commitment: config.commitment,
        })
    }

    pub(super) fn params_json(&self) -> Value {
        let mut config = json!({
            "encoding": self.encoding.as_str(),
            "transactionDetails": self.details.as_str(),
            "rewards": self.rewards,
            "commitment": self.commitment,
        });
        if let Some(version) = self.max_version {
            config["maxSupportedTransactionVersion"] = version.into();
        }
        json!([self.slot, config])
    }
}

/// The second param of getBlock and getTransaction. The type has the name of a node's type, because that name occurs in a
/// node's errors.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum RpcEncodingConfigWrapper<T> {
    Deprecated(Option<BlockEncoding>),
    Current(Option<T>),
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RpcBlockConfig {
    encoding: Option<BlockEncoding>,
    transaction_details: Option<BlockDetails>,
    rewards: Option<bool>,
    #[serde(flatten, deserialize_with = "commitment::lenient")]
    commitment: Commitment,
    max_supported_transaction_version: Option<u8>,
}

impl From<RpcEncodingConfigWrapper<Self>> for RpcBlockConfig {
    fn from(wrapper: RpcEncodingConfigWrapper<Self>) -> Self {
        match wrapper {
            RpcEncodingConfigWrapper::Deprecated(encoding) => Self { encoding, ..Self::default() },
            RpcEncodingConfigWrapper::Current(config) => config.unwrap_or_default(),
        }
    }
}

pub(super) fn describe() -> Description {
    let properties = json!({
        "encoding": {
            "description": "How transactions are written, where details are full.",
            "enum": BlockEncoding::ALL.map(BlockEncoding::as_str),
            "default": BlockEncoding::Json.as_str(),
        },
        "transactionDetails": {
            "enum": BlockDetails::ALL.map(BlockDetails::as_str),
            "default": BlockDetails::Full.as_str(),
        },
        "rewards": { "type": "boolean", "default": true },
        "commitment": {
            "description": "Not processed: a block of that commitment may still be dropped.",
            "allOf": [schema("Commitment")],
            "default": Commitment::default(),
        },
        "maxSupportedTransactionVersion": {
            "description": "Without it a block that holds any versioned transaction is an error.",
            "type": "integer",
            "minimum": 0,
            "maximum": u8::MAX,
        },
    });
    Description {
        summary: "The block of a slot.",
        params: vec![
            Param::required("slot", "Which block.", schema("Slot")),
            Param::optional("config", "What to show of it, and how.", description::config(properties)),
        ],
        result: json!({
            "type": ["object", "null"],
            "required": ["blockHeight", "blockTime", "blockhash", "parentSlot", "previousBlockhash"],
            "properties": {
                "blockHeight": { "description": "Blocks before this one.", "type": ["integer", "null"] },
                "blockTime": { "description": "Unix time in seconds, estimated.", "type": ["integer", "null"] },
                "blockhash": { "type": "string" },
                "parentSlot": schema("Slot"),
                "previousBlockhash": { "type": "string" },
                "transactions": {
                    "description": "For details full and accounts.",
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["transaction", "meta"],
                        "properties": {
                            "transaction": { "description": "As the encoding says." },
                            "meta": { "description": "Outcome, fee, balances, logs.", "type": ["object", "null"] },
                            "version": { "description": "\"legacy\" or a number." },
                        },
                    },
                },
                "signatures": {
                    "description": "For details signatures: the first of each transaction.",
                    "type": "array",
                    "items": { "type": "string" },
                },
                "rewards": { "type": "array", "items": schema("Reward") },
                "numRewardPartitions": { "description": "On an epoch's first block.", "type": "integer" },
            },
        }),
        errors: &[
            "BlockCleanedUp",
            "BlockNotAvailable",
            "SlotSkipped",
            "LongTermStorageSlotSkipped",
            "TransactionHistoryNotAvailable",
            "BlockStatusNotAvailableYet",
            "UnsupportedTransactionVersion",
        ],
        example: json!([2642, { "transactionDetails": "none", "rewards": false }]),
        example_result: json!({
            "blockHeight": 2642,
            "blockTime": 1_795_239_856,
            "blockhash": "Hao42wSXVgk8WbtAphyHKz76ecMqqNbLXhuXHaQTaDrF",
            "parentSlot": 2641,
            "previousBlockhash": "CT69kecDtdzHNyFzgBLtmXiYZacWRbX6CrEB2dGwDwME",
        }),
    }
}
