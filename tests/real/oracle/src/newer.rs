//! What nodes that are newer than the crates may write into a block. slotfront can't know it, so it has to copy it where a
//! node would, and to ask a node wherever it can't tell.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use solana_transaction_status::{TransactionDetails, UiTransactionEncoding};

use crate::blocks::BlockShape;

/// A difference of a newer node.
#[derive(Debug, Clone, Copy)]
pub enum News {
    /// A member of the block.
    OfBlock,
    /// A member of each transaction, beside `meta`.
    OfTransaction,
    /// A member of each `meta`.
    OfMeta,
    /// A member of each `meta` that blocks with the details `accounts` lack.
    OfLongMeta,
    /// A member of each reward.
    OfReward,
    /// A type of rewards.
    RewardType,
    /// An error of a transaction.
    Error,
    /// Transactions of version 1, which begin with their version.
    Version1,
}

impl News {
    pub const ALL: [Self; 8] = [
        Self::OfBlock,
        Self::OfTransaction,
        Self::OfMeta,
        Self::OfLongMeta,
        Self::OfReward,
        Self::RewardType,
        Self::Error,
        Self::Version1,
    ];

    /// Changes a result in the shape `shape` into that of the newer node.
    pub fn change(self, shape: BlockShape, block: &mut Value) -> Result<(), Value> {
        let is_full = shape.details == TransactionDetails::Full;
        let (new, versioned) =
            (json!({ "a": [1, "\u{e9}"] }), is_full || shape.details == TransactionDetails::Accounts);
        match self {
            Self::OfBlock => block["news"] = new,
            Self::OfTransaction => {
                each(block, "transactions", |transaction| transaction["news"] = new.clone())
            }
            Self::OfMeta => {
                each(block, "transactions", |transaction| transaction["meta"]["news"] = new.clone())
            }
            Self::OfLongMeta if !is_full => {}
            Self::OfLongMeta => {
                each(block, "transactions", |transaction| transaction["meta"]["news"] = new.clone())
            }
            Self::OfReward => each(block, "rewards", |reward| reward["news"] = new.clone()),
            Self::RewardType => each(block, "rewards", |reward| reward["rewardType"] = "News".into()),
            Self::Error => each(block, "transactions", |transaction| {
                transaction["meta"]["err"] = json!({ "News": [1] });
                transaction["meta"]["status"] = json!({ "Err": { "News": [1] } });
            }),
            Self::Version1 if versioned && shape.max_version != Some(1) => {
                let has_any =
                    block["transactions"].as_array().is_some_and(|transactions| !transactions.is_empty());
                if has_any {
                    return Err(BlockShape::unsupported_version(1));
                }
            }
            Self::Version1 => each(block, "transactions", |transaction| {
                transaction["version"] = 1.into();
                if is_full {
                    rewrite(shape.encoding, &mut transaction["transaction"]);
                }
            }),
        }
        Ok(())
    }
}

fn each(block: &mut Value, list: &str, change: impl Fn(&mut Value)) {
    if let Some(elements) = block.get_mut(list).and_then(Value::as_array_mut) {
        elements.iter_mut().for_each(change);
    }
}

/// Puts the version in front of a transaction that is written as bytes.
fn rewrite(encoding: UiTransactionEncoding, transaction: &mut Value) {
    let of_version_1 = |bytes: Vec<u8>| [&[0x81][..], &bytes].concat();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let base58 = |text: String| {
        let bytes = bs58::decode(text).into_vec().expect("base58 of the crates");
        Value::from(bs58::encode(of_version_1(bytes)).into_string())
    };
    match encoding {
        UiTransactionEncoding::Base64 => {
            let bytes = BASE64_STANDARD.decode(text(&transaction[0])).expect("base64 of the crates");
            transaction[0] = BASE64_STANDARD.encode(of_version_1(bytes)).into();
        }
        UiTransactionEncoding::Base58 => transaction[0] = base58(text(&transaction[0])),
        UiTransactionEncoding::Binary => *transaction = base58(text(transaction)),
        UiTransactionEncoding::Json | UiTransactionEncoding::JsonParsed => {}
    }
}
