//! `getLatestBlockhash [config?]`: the hash of the newest block, and the last height at which it can be used.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::description::{Description, contextual, schema};

/// The value of getLatestBlockhash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LatestBlockhash {
    /// The hash of the newest block, in base58.
    pub blockhash: String,
    /// The last height at which a transaction with this hash can land.
    pub last_valid_block_height: u64,
}

pub(super) fn describe() -> Description {
    Description::of_state(
        "The hash of the newest block, and the last block height at which a transaction may use it.",
        contextual(&json!({
            "type": "object",
            "required": ["blockhash", "lastValidBlockHeight"],
            "properties": { "blockhash": schema("Pubkey"), "lastValidBlockHeight": schema("U64") },
        })),
        json!({
            "context": { "apiVersion": "4.0.0", "slot": 2900 },
            "value": {
                "blockhash": "7p1hEDMXVV1iNxjmdTmGLwPkcDf7gyPh6ghUZGS5Kbvo",
                "lastValidBlockHeight": 3046,
            },
        }),
    )
}
