//! A node's answer to a call, what it means, and which of two answers is better.
//!
//! Each kind of call applies its own rules first, and then the table of error codes here. The table ignores message
//! texts, because nodes may change them.

use bytes::Bytes;
use tokio::time::Instant;

use crate::methods::Slot;
use crate::node::{Fault, NodeReply, code};
use crate::telemetry::AttemptResult;

/// The answer of one node, with its time and slot.
#[derive(Debug, Clone)]
pub struct PoolReply {
    /// The id ([`Member::id`](super::member::Member::id)) of the node that answered.
    pub node: usize,
    /// The answer itself.
    pub body: NodeReply,
    /// The time at which the request was sent. The answer's age counts from here.
    pub sent_at: Instant,
    /// The slot in the answer's context. Without a context, the newest slot that the node was known to have
    /// reached before the request was sent.
    pub slot: Slot,
}

impl PoolReply {
    pub(super) fn code(&self) -> Option<i32> {
        match &self.body {
            NodeReply::Error { code, .. } => Some(*code),
            NodeReply::Result(_) => None,
        }
    }

    /// Returns true if the answer to getBlock holds no block: it is an error or `null`.
    pub(super) fn has_no_block(&self) -> bool {
        self.code().is_some() || self.is_null()
    }

    fn is_null(&self) -> bool {
        self.body == NodeReply::Result(Bytes::from_static(b"null"))
    }

    /// Returns the better of two answers of which neither is certain.
    ///
    /// A result that is not null beats an error, and an error beats null. Between two results that are not null,
    /// the higher slot wins.
    pub(super) fn better_of(self, second: Self) -> Self {
        let second_is_better = match (self.code(), second.code()) {
            // The second node has passed the block's slot and knows that there is no block.
            (Some(a), Some(b)) => lacks_block(a) && !lacks_block(b),
            (None, Some(_)) => self.is_null(),
            (Some(_), None) => !second.is_null(),
            (None, None) => !second.is_null() && (self.is_null() || second.slot > self.slot),
        };
        if second_is_better { second } else { self }
    }
}

fn lacks_block(code: i32) -> bool {
    matches!(code, code::BLOCK_CLEANED_UP | code::BLOCK_NOT_AVAILABLE)
}

/// The meaning of a node's answer for its call, if the answer is not a fault of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The final answer of the call.
    Answer,
    /// An answer that another node may improve. A second node is asked, and the better of the two answers is used.
    NeedsSecondNode,
    /// An error with a code that nodes are not known to use. A second node is asked, and a result of the second
    /// node replaces the error.
    UnlistedError,
    /// An answer that is used only if no other node is left to ask. Holds the reason why it is not final:
    /// [`AttemptResult::Behind`] or [`AttemptResult::Incapable`].
    TryElsewhere(AttemptResult),
}

impl Meaning {
    /// Returns the meaning that an error code has for all kinds of calls.
    ///
    /// # Errors
    /// The code stands for a fault of the node.
    pub(super) const fn of_code(code: i32) -> Result<Self, Fault> {
        match code {
            code::NODE_UNHEALTHY => Err(Fault::Unhealthy),
            code::INTERNAL_ERROR | code::PARSE_ERROR => Err(Fault::UnknownCode),
            code::MIN_CONTEXT_SLOT_NOT_REACHED => Ok(Self::TryElsewhere(AttemptResult::Behind)),
            // The node does not serve the method, or its storage or indexes do not support the call.
            code::METHOD_NOT_FOUND
            | code::KEY_EXCLUDED_FROM_SECONDARY_INDEX
            | code::TRANSACTION_HISTORY_NOT_AVAILABLE
            | code::SCAN_ERROR
            | code::LONG_TERM_STORAGE_UNREACHABLE => Ok(Self::TryElsewhere(AttemptResult::Incapable)),
            code::LOWEST_OF_SOLANA..=code::BLOCK_CLEANED_UP
            | code::INVALID_PARAMS
            | code::INVALID_REQUEST => Ok(Self::Answer),
            _ => Ok(Self::UnlistedError),
        }
    }
}

/// The best answer to a call so far, with its meaning, which is never [`Meaning::Answer`].
#[derive(Debug)]
pub(super) struct Best {
    pub(super) meaning: Meaning,
    pub(super) reply: PoolReply,
}

impl Best {
    /// Returns true if the caller may get the answer as it is. Other nodes only improve or confirm it.
    pub(super) fn is_answer(&self) -> bool {
        !matches!(self.meaning, Meaning::TryElsewhere(_))
    }

    /// Returns true if the node has refused the minimum slot of the request.
    pub(super) fn refuses_min_slot(&self) -> bool {
        !self.is_answer() && self.reply.code() == Some(code::MIN_CONTEXT_SLOT_NOT_REACHED)
    }

    /// Returns the better of the two, or `held` if they are equally good. `other` is an answer that is not good enough.
    ///
    /// Answers behind the minimum slot are better than refusals. Among answers behind the minimum slot, results are
    /// better than errors, and higher slots are better than lower ones.
    pub(super) fn better(held: Option<Self>, other: Self) -> Self {
        let rank = |best: &Self| {
            let behind = best.meaning == Meaning::TryElsewhere(AttemptResult::Behind);
            let is_result = behind && best.reply.code().is_none();
            (best.is_answer(), behind, is_result, if behind { best.reply.slot } else { 0 })
        };
        match held {
            Some(held) if rank(&held) >= rank(&other) => held,
            _ => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: i32) -> NodeReply {
        NodeReply::Error { code, body: Bytes::from(format!(r#"{{"code":{code},"message":""}}"#)) }
    }

    #[tokio::test]
    async fn better_answers_are_results_then_reasons() {
        let result = |text| NodeReply::Result(Bytes::from_static(text));
        let reply = |node, body, slot| PoolReply { node, body, sent_at: Instant::now(), slot };
        let (unknown, not_yet) = (-32000, code::BLOCK_NOT_AVAILABLE);
        for (name, first, second, expected) in [
            ("a result at a lower slot than an error", (result(b"{}"), 1), (error(unknown), 2), 0),
            ("a result after an error", (error(unknown), 2), (result(b"{}"), 1), 1),
            ("an error after null", (result(b"null"), 2), (error(unknown), 1), 1),
            ("null after an error", (error(unknown), 1), (result(b"null"), 2), 0),
            ("the higher of two results", (result(b"{}"), 1), (result(b"{}"), 2), 1),
            ("a result and null", (result(b"{}"), 1), (result(b"null"), 2), 0),
            ("null and a result", (result(b"null"), 2), (result(b"{}"), 1), 1),
            ("one code twice", (error(not_yet), 1), (error(not_yet), 2), 0),
            ("null twice", (result(b"null"), 1), (result(b"null"), 2), 0),
            ("another reason for a missing block", (error(not_yet), 1), (error(unknown), 1), 1),
        ] {
            let better = reply(0, first.0, first.1).better_of(reply(1, second.0, second.1));
            assert_eq!(better.node, expected, "{name}");
        }
    }

    #[tokio::test]
    async fn answers_that_are_not_good_enough_have_an_order() {
        let best_of = |node, body: NodeReply, slot, meaning| {
            let reply = PoolReply { node, body, sent_at: Instant::now(), slot };
            Best { meaning, reply }
        };
        let [behind, incapable] =
            [AttemptResult::Behind, AttemptResult::Incapable].map(Meaning::TryElsewhere);
        let result = || NodeReply::Result(Bytes::from_static(b"{}"));
        let best = [
            (best_of(0, error(-32601), 9, incapable), 0),
            (best_of(1, error(-32011), 99, incapable), 0),
            (best_of(2, error(-32016), 5, behind), 2),
            (best_of(3, result(), 3, behind), 3),
            (best_of(4, result(), 4, behind), 4),
            (best_of(5, result(), 2, behind), 4),
            (best_of(6, result(), 1, Meaning::NeedsSecondNode), 6),
            (best_of(7, result(), 9, behind), 6),
        ];
        let mut held = None;
        for (other, expected) in best {
            let better = Best::better(held.take(), other);
            assert_eq!(better.reply.node, expected);
            held = Some(better);
        }
    }

    #[test]
    fn codes_match_the_node_contract() {
        let elsewhere = |why| Ok(Meaning::TryElsewhere(why));
        let (behind, incapable) = (elsewhere(AttemptResult::Behind), elsewhere(AttemptResult::Incapable));
        for (codes, expected) in [
            (&[-32005][..], Err(Fault::Unhealthy)),
            (&[-32603, -32700], Err(Fault::UnknownCode)),
            (&[-32016], behind),
            (&[-32601, -32010, -32011, -32012, -32019], incapable),
            (&[-32600, -32602, -32001, -32004, -32007, -32009, -32015, -32020, -32022], Ok(Meaning::Answer)),
            (&[-32000, -32023, -32099, -32604, -1, 0], Ok(Meaning::UnlistedError)),
        ] {
            for code in codes {
                assert_eq!(Meaning::of_code(*code), expected, "{code}");
            }
        }
    }
}
