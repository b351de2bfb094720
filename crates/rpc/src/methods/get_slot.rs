//! `getSlot [config?]`: the newest slot at a commitment.

use serde_json::json;

use super::description::{Description, schema};

pub(super) fn describe() -> Description {
    Description::of_state(
        "The newest slot. It never falls from one call to the next.",
        schema("Slot"),
        json!(2900),
    )
}
