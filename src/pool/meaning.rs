//! What an answer means for its call, and what it says of the node. Both are said here and nowhere else.
//!
//! An error decides a call only if any node would give it for these params: the [rules](crate::methods::Rules) of the
//! method list such errors. Of every other one only its node knows the reason, so another node is asked. Message texts are
//! not read, because nodes may change them, except where one code has two meanings.

use crate::frontier::Frontier;
use crate::methods::{AnyMethod, Commitment, Part, Slot};
use crate::node::answer::error_context_slot;
use crate::node::{Fault, NodeReply, code};
use crate::telemetry::AttemptResult;

use super::question::{BlocksRead, ParsedReply, Question, SentRequest};

/// The number of slots above the newest known one at which a block may be that a node does not have yet: what a caller was
/// told elsewhere, before this gateway has heard of it.
const MAY_BE_AHEAD: u64 = 8;

/// The meaning of a node's answer for its call, if the answer is not a fault of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The answer of the call.
    Decides,
    /// An answer that another node may improve.
    AskOn(WhyAskOn),
    /// The node does not answer such calls. Its error is used only if all nodes refuse.
    NotHere,
}

/// The reason why an answer does not decide its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WhyAskOn {
    /// The node does not hold all of what is asked. That is the answer once every node that may hold it says so.
    Absent(Holders),
    /// The slot is so far above the newest known one that the node may be on a wrong chain. A second node confirms it.
    Unlikely,
    /// An error of which only the node knows the reason. Any other answer is better.
    Private,
    /// The answer is of a lower slot than the call wants.
    Behind,
}

/// The nodes that may hold what another one lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holders {
    /// Any node: each may have lost other blocks.
    Any,
    Older,
    /// The nodes that are ahead. Those that do not answer are not.
    Ahead,
}

/// What an attempt says of a node's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// The node has worked for the call.
    Well,
    PartFailed,
    NodeFailed,
    /// The node has refused the call, or could not serve it. The answer came fast because no work was done.
    Refused,
    /// Nothing: the reason is in the call or here.
    Nothing,
}

impl Meaning {
    /// Returns the word for an answer of this meaning. `None` if the answer itself tells.
    pub(super) const fn result(self) -> Option<AttemptResult> {
        match self {
            Self::AskOn(WhyAskOn::Behind) => Some(AttemptResult::Behind),
            Self::NotHere => Some(AttemptResult::Incapable),
            Self::Decides | Self::AskOn(_) => None,
        }
    }
}

/// Returns the meaning of `read`, a node's answer to `question`.
///
/// # Errors
/// The answer shows a fault of the node.
pub(super) fn judge(
    question: &Question<'_>,
    ParsedReply { reply, slot, is_short, .. }: &ParsedReply,
    sent: &SentRequest,
    frontier: &Frontier,
) -> Result<Meaning, Fault> {
    // Where one node is asked for its own word, its word is the answer. A transaction goes to a node that knows its block.
    let is_own_word = question.is_for_one_node && question.method != AnyMethod::Send;
    let behind = if is_own_word { Meaning::Decides } else { Meaning::AskOn(WhyAskOn::Behind) };
    let is_of_tip = question.method.rules().part == Part::Tip;
    let code = match (reply, *slot) {
        (NodeReply::Error { code, .. }, _) => *code,
        (NodeReply::Result(_), None) if question.has_slot => return Err(Fault::BadJson),
        (NodeReply::Result(_), slot) => {
            let is_below = |slot: Slot| {
                // At processed the newest known slot is not the lowest one. Only the last two checks then reject the
                // answers of a node that has fallen back. Another answer may have shown the fall after this node was
                // chosen, so the node's own earlier slot is not enough.
                question.lowest_slot.is_some_and(|lowest| slot < lowest)
                    || !is_of_tip && (sent.shows_fall(slot) || sent.shows_lag(slot))
            };
            let is_believed = |slot| question.commitment.is_none_or(|at| frontier.believes(at, slot));
            return Ok(match slot {
                Some(slot) if is_below(slot) => behind,
                // A slot that one node invents would become a tip that no other node reaches.
                Some(slot) if !is_believed(slot) && is_of_tip => behind,
                Some(slot) if !is_believed(slot) => Meaning::AskOn(WhyAskOn::Unlikely),
                _ if *is_short => absent(match question.reads {
                    BlocksRead::BlocksFrom(_) | BlocksRead::All => Holders::Older,
                    BlocksRead::Nothing | BlocksRead::Block(_) => Holders::Any,
                }),
                _ => Meaning::Decides,
            });
        }
    };
    let rules = question.method.rules();
    let is_below = question.lowest_slot.is_some_and(|lowest| sent.slot_before < lowest);
    match code {
        // A node tells the slot that it has reached. Without one, the code means something else.
        code::MIN_CONTEXT_SLOT_NOT_REACHED if context_slot(reply).is_some() => Ok(behind),
        code::NODE_UNHEALTHY => Err(Fault::Unhealthy),
        // Nodes use this code for data over the base58 limit and for malformed calls. Only the text distinguishes them.
        code::INVALID_REQUEST if !is_too_long_for_base58(reply) => Err(Fault::UnknownCode),
        code::INTERNAL_ERROR | code::PARSE_ERROR => Err(Fault::UnknownCode),
        code::METHOD_NOT_FOUND
        | code::TRANSACTION_HISTORY_NOT_AVAILABLE
        | code::LONG_TERM_STORAGE_UNREACHABLE => Ok(Meaning::NotHere),
        code::KEY_EXCLUDED_FROM_SECONDARY_INDEX | code::SCAN_ERROR if rules.part == Part::Scans => {
            Ok(Meaning::NotHere)
        }
        // Whoever was shown a slot may ask for what is in it.
        code::BLOCK_NOT_AVAILABLE if rules.absences.contains(&code) => Ok(match question.reads {
            BlocksRead::Block(slot) => {
                let newest = match question.commitment {
                    Some(commitment) => frontier.slot(commitment),
                    None => Commitment::ALL
                        .map(|commitment| frontier.slot(commitment))
                        .into_iter()
                        .max()
                        .unwrap_or(0),
                };
                if slot <= frontier.slot(Commitment::Finalized) {
                    absent(Holders::Any)
                } else if slot <= newest.saturating_add(MAY_BE_AHEAD) {
                    absent(Holders::Ahead)
                } else {
                    Meaning::Decides
                }
            }
            _ => absent(Holders::Any),
        }),
        _ if rules.absences.contains(&code) => Ok(absent(Holders::Any)),
        // The node may answer "no such account" at a slot at which the account did not exist yet.
        _ if rules.errors.contains(&code) && is_below => Ok(behind),
        _ if rules.errors.contains(&code) => Ok(Meaning::Decides),
        _ => Ok(Meaning::AskOn(WhyAskOn::Private)),
    }
}

const fn absent(holders: Holders) -> Meaning {
    Meaning::AskOn(WhyAskOn::Absent(holders))
}

fn context_slot(reply: &NodeReply) -> Option<Slot> {
    if let NodeReply::Error { body, .. } = reply { error_context_slot(body) } else { None }
}

fn is_too_long_for_base58(reply: &NodeReply) -> bool {
    matches!(reply, NodeReply::Error { body, .. } if body.windows(18).any(|w| w == b"Encoded binary (ba"))
}

/// Returns what the outcome of an attempt says of the node's health.
pub(super) fn effect(question: &Question<'_>, outcome: &Result<Meaning, Fault>) -> Effect {
    match outcome {
        _ if !question.counts() => Effect::Nothing,
        Ok(Meaning::Decides | Meaning::AskOn(WhyAskOn::Absent(_) | WhyAskOn::Unlikely)) => Effect::Well,
        // A scan takes as long as its filters make it, and what a provider's own methods take nobody knows.
        Err(Fault::Timeout) if matches!(question.part(), Part::Scans | Part::Provider) => Effect::PartFailed,
        Err(Fault::NoConnection(_) | Fault::Connect | Fault::Truncated | Fault::Timeout) => {
            Effect::NodeFailed
        }
        Err(Fault::Status(500..) | Fault::BadJson | Fault::WrongId | Fault::Unhealthy) => Effect::PartFailed,
        // What a node says of one method says nothing of the others.
        Ok(Meaning::AskOn(WhyAskOn::Private | WhyAskOn::Behind) | Meaning::NotHere)
        | Err(Fault::Status(_) | Fault::UnknownCode | Fault::TooManyRequests(_)) => Effect::Refused,
        Err(Fault::TooLarge | Fault::BuffersFull | Fault::Foreign | Fault::GivenUp) => Effect::Nothing,
    }
}

/// Returns true if `reply` says that the node does not serve the method at all.
pub(super) fn lacks_method(question: &Question<'_>, reply: &NodeReply) -> bool {
    let part = question.method.rules().part;
    match reply {
        // A node may exclude one program from its scans.
        NodeReply::Error { code: code::METHOD_NOT_FOUND, .. } => part != Part::Scans,
        // History is a part of a node that other questions for statuses do not need.
        NodeReply::Error { code: code::TRANSACTION_HISTORY_NOT_AVAILABLE, .. } => part != Part::Tip,
        _ => false,
    }
}

/// Returns true if another node may be asked after `fault`. No other one can help if the deadline has passed, the answer is
/// too long, or the buffers that all nodes share are full. Another node would walk as long as one that has had its time,
/// which walks on. Two nodes may send one transaction, because it lands once.
pub(super) fn may_go_on(question: &Question<'_>, fault: Fault) -> bool {
    match fault {
        Fault::TooLarge | Fault::BuffersFull | Fault::GivenUp => false,
        Fault::Timeout if question.method.rules().walks => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
