//! The caching rules: the key and class under which a node's answer is stored, or the reason why it is not
//! stored. Accounts are stored under the key of the form that the answer has (`cache/forms.rs`).
//!
//! The rules are pure functions of the answer and the newest known slots.

use super::class::Class;
use super::entry::{Payload, TextParts};
use super::key::{Key, LookupPlan};
use crate::frontier::Frontier;
use crate::methods::{Commitment, Query};
use crate::node::{Contextual, NodeReply, code};
use crate::pool::PoolReply;
use crate::telemetry::UncacheableReason;

/// The number of slots below the newest finalized slot whose blocks may still be missing in long-term
/// storage. Nodes fill that storage with a delay.
const LONG_TERM_STORAGE_LAG_SLOTS: u64 = 9_000;

/// The key and class under which an answer is stored, or the reason why it is not stored.
pub(super) type Placement = Result<(Key, Class), UncacheableReason>;

/// Returns the payload of `reply`, a node's answer to the upstream call of the look-up `plan`. The second value
/// is the key and class under which it is stored, or the reason why it is not. If the node says that a block is
/// missing, the key and class depend on the newest known slots in `frontier`.
pub(super) fn cache_policy(
    plan: &LookupPlan,
    reply: &PoolReply,
    frontier: &Frontier,
) -> (Payload, Placement) {
    let finalized = frontier.slot(Commitment::Finalized);
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
                    let may_come = *code == code::LONG_TERM_STORAGE_SLOT_SKIPPED
                        && finalized.saturating_sub(q.slot) < LONG_TERM_STORAGE_LAG_SLOTS;
                    let settled = reply.is_settled && !may_come;
                    absent(if settled { Class::Skipped } else { Class::SkippedUnconfirmed })
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
