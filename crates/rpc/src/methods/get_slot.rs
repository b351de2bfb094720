//! `getSlot [config?]`: the newest slot at a commitment.

use serde_json::json;

use super::description::{Description, context_config, schema};

pub(super) fn describe() -> Description {
    Description {
        summary: "The newest slot. It never falls from one call to the next.",
        params: vec![context_config()],
        result: schema("Slot"),
        errors: &["MinContextSlotNotReached"],
        example: json!([{ "commitment": "confirmed" }]),
        example_result: json!(2900),
    }
}
