//! `getBlockHeight [config?]`: the number of blocks below the newest one, which skipped slots do not count.

use serde_json::json;

use super::description::{Description, context_config, schema};

pub(super) fn describe() -> Description {
    Description {
        summary: "The height of the newest block. It is shown only after the signatures that are watched were looked for.",
        params: vec![context_config()],
        result: schema("U64"),
        errors: &["MinContextSlotNotReached"],
        example: json!([{ "commitment": "confirmed" }]),
        example_result: json!(2896),
    }
}
