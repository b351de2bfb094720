//! The caching rules: the key and class under which a node's answer is stored, or the reason why it is not
//! stored. Accounts are stored under the key of the form that the answer has (`cache/forms.rs`).
//!
//! The rules are pure functions of the answer, the newest known slots and the stored blocks.

use super::entry::{Class, Payload, TextParts};
use super::key::{Key, LookupPlan};
use crate::frontier::Frontier;
use crate::methods::{Query, Slot};
use crate::node::{Contextual, NodeReply, code};
use crate::pool::PoolReply;
use crate::telemetry::UncacheableReason;

/// The key and class under which an answer is stored, or the reason why it is not stored.
pub(super) type Placement = Result<(Key, Class), UncacheableReason>;

/// Returns the payload of `reply`, a node's answer to the upstream call of the look-up `plan`. The second value
/// is the key and class under which it is stored, or the reason why it is not. If the node says that a block is
/// missing, the key and class depend on the newest known slots in `frontier`, and on `proves_skip`, which returns
/// true for a slot that was certainly skipped.
pub(super) fn cache_policy(
    plan: &LookupPlan,
    reply: &PoolReply,
    frontier: &Frontier,
    proves_skip: impl FnOnce(Slot) -> bool,
) -> (Payload, Placement) {
    let keep = |class| Ok((plan.key.clone(), class));
    let absent = |class| Ok((plan.alternate_key.clone().unwrap_or_else(|| plan.key.clone()), class));
    match &reply.body {
        NodeReply::Result(result) => {
            let placement = match plan.upstream {
                // Null from getBlock proves nothing, and a fee's null may become a number at any slot.
                Query::Block(_) if result.as_ref() == b"null" => Err(UncacheableReason::Null),
                Query::Fee(_)
                    if Contextual::split(result).is_none_or(|fee| fee.value.as_ref() == b"null") =>
                {
                    Err(UncacheableReason::Null)
                }
                _ => keep(plan.class),
            };
            (Payload::Result(TextParts::One(result.clone())), placement)
        }
        NodeReply::Error { code, body } => {
            let placement = match (&plan.upstream, *code) {
                // An error that depends on an account or a block is stored for as long as the account or block
                // would be.
                (Query::Account(_) | Query::Accounts(_), code::INVALID_REQUEST)
                | (Query::Balance(_), code::INVALID_PARAMS)
                | (Query::Block(_), code::UNSUPPORTED_TRANSACTION_VERSION) => keep(plan.class),
                (Query::Block(q), code::SLOT_SKIPPED | code::LONG_TERM_STORAGE_SLOT_SKIPPED)
                    if matches!(plan.alternate_key, Some(Key::NoBlock(_))) =>
                {
                    // All nodes may have lost the same block, and long-term storage is filled with a delay.
                    absent(if proves_skip(q.slot) { Class::Skipped } else { Class::SkippedUnconfirmed })
                }
                // At or below the frontier the block exists or the slot was skipped, so a node's "not yet" is
                // out of date.
                (Query::Block(q), code::BLOCK_NOT_AVAILABLE)
                    if matches!(plan.alternate_key, Some(Key::NotYet(..)))
                        && q.slot > frontier.slot(q.commitment) =>
                {
                    absent(Class::NotYet(q.slot, q.commitment))
                }
                _ => Err(UncacheableReason::Transient),
            };
            (Payload::Error { code: *code, body: body.clone() }, placement)
        }
    }
}
