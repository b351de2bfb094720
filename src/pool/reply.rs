//! A node's answer to a call, and the rules by which one answer is better than another.

use bytes::Bytes;
use tokio::time::Instant;

use crate::methods::Slot;
use crate::node::{NodeReply, code};
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
    /// Returns the code of an error. `None` if the answer is a result.
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

/// The best answer that was not good enough, kept in case no node gives a better one.
///
/// Answers behind the minimum slot are better than refusals. Among answers behind the minimum slot, results are better
/// than errors, and higher slots are better than lower ones.
#[derive(Debug)]
pub(super) struct LastResort {
    pub(super) reply: PoolReply,
    /// The reason why another node was asked.
    pub(super) why: AttemptResult,
}

impl LastResort {
    /// Returns the better of the two answers, or `held` if they are equally good.
    pub(super) fn better(held: Option<Self>, other: Self) -> Self {
        let rank = |resort: &Self| {
            let behind = resort.why == AttemptResult::Behind;
            (behind, behind && resort.reply.code().is_none(), if behind { resort.reply.slot } else { 0 })
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
    async fn last_resort_is_the_highest_answer() {
        let resort = |node, body: NodeReply, slot, why| {
            let reply = PoolReply { node, body, sent_at: Instant::now(), slot };
            LastResort { reply, why }
        };
        let result = || NodeReply::Result(Bytes::from_static(b"{}"));
        let best = [
            (resort(0, error(-32601), 9, AttemptResult::Incapable), 0),
            (resort(1, error(-32011), 99, AttemptResult::Incapable), 0),
            (resort(2, error(-32016), 5, AttemptResult::Behind), 2),
            (resort(3, result(), 3, AttemptResult::Behind), 3),
            (resort(4, result(), 4, AttemptResult::Behind), 4),
            (resort(5, result(), 2, AttemptResult::Behind), 4),
        ];
        let mut held = None;
        for (other, expected) in best {
            let better = LastResort::better(held.take(), other);
            assert_eq!(better.reply.node, expected);
            held = Some(better);
        }
    }
}
