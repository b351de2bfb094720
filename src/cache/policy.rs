//! What becomes of a node's answer: where it is kept and how long it lives, or why it is not kept.
//!
//! Pure: the Freshness table of the design, row by row.

use super::class::Class;
use super::entry::{Payload, TextParts};
use super::key::{Key, LookupPlan};
use crate::frontier::Frontier;
use crate::methods::{Commitment, Query};
use crate::node::{Contextual, NodeReply};
use crate::pool::Reply;
use crate::telemetry::UncacheableReason;

/// Long-term storage is filled by the nodes themselves, with a delay: a recent slot that it lacks may still come.
const LONG_TERM_STORAGE_LAG_SLOTS: u64 = 9_000;

/// Where an answer is kept and how long it lives, or why it is not.
pub(super) type Place = Result<(Key, Class), UncacheableReason>;

/// What `reply` says, and where it is kept as the frontier stands.
pub(super) fn cache_policy(plan: &LookupPlan, reply: &Reply, frontier: &Frontier) -> (Payload, Place) {
    let finalized = frontier.slot(Commitment::Finalized);
    let keep = |class| Ok((plan.key.clone(), class));
    let absent = |class| Ok((plan.other.clone().unwrap_or_else(|| plan.key.clone()), class));
    match &reply.body {
        NodeReply::Result(result) => {
            let place = match plan.upstream {
                // Null from getBlock proves nothing, and a fee's null may become a number at any slot.
                Query::Block(_) if result.as_ref() == b"null" => Err(UncacheableReason::Null),
                Query::Fee(_)
                    if Contextual::split(result).is_none_or(|fee| fee.value.as_ref() == b"null") =>
                {
                    Err(UncacheableReason::Null)
                }
                _ => keep(plan.class),
            };
            (Payload::Result(TextParts::One(result.clone())), place)
        }
        NodeReply::Error { code, body } => {
            let place = match (&plan.upstream, code) {
                // Errors that depend on an account live as long as the account.
                (Query::Account(_) | Query::Accounts(_), -32600) | (Query::Balance(_), -32602) => {
                    keep(plan.class)
                }
                (Query::Block(_), -32015) => keep(plan.class),
                (Query::Block(q), -32007 | -32009) if matches!(plan.other, Some(Key::NoBlock(_))) => {
                    let may_come =
                        *code == -32009 && finalized.saturating_sub(q.slot) < LONG_TERM_STORAGE_LAG_SLOTS;
                    let settled = reply.confirmed && !may_come;
                    absent(if settled { Class::Skipped } else { Class::SkippedUnconfirmed })
                }
                // At or under the frontier it is over already.
                (Query::Block(q), -32004)
                    if matches!(plan.other, Some(Key::NotYet(..)))
                        && q.slot > frontier.slot(q.commitment) =>
                {
                    absent(Class::NotYet(q.slot, q.commitment))
                }
                _ => Err(UncacheableReason::Transient),
            };
            (Payload::Error { code: *code, body: body.clone() }, place)
        }
    }
}
