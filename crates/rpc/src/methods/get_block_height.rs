//! `getBlockHeight [config?]`: the number of blocks below the newest one, which skipped slots do not count.

use serde_json::json;

use super::description::{Description, schema};

pub(super) fn describe() -> Description {
    Description::of_state(
        "The height of the newest block. It is shown only after the signatures that are watched were looked for.",
        schema("U64"),
        json!(2896),
    )
}
