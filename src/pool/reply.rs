//! A node's answer to a call, and which of two answers is better.

use bytes::Bytes;
use tokio::time::Instant;

use super::meaning::{Meaning, WhyAskOn};
use crate::methods::Slot;
use crate::node::shape::BlockList;
use crate::node::{NodeReply, code};

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
    /// The newest slot that the node was known to have finalized before the request was sent. 0 if none was known.
    pub finalized: Slot,
    /// True if another node might have held what this result lacks: it is `null`, or a list that is not full.
    pub is_short: bool,
    /// What a list of blocks tells. `None` for other answers.
    pub blocks: Option<BlockList>,
}

impl PoolReply {
    /// Returns the result. `None` for an error.
    pub(crate) fn result(&self) -> Option<&Bytes> {
        if let NodeReply::Result(result) = &self.body { Some(result) } else { None }
    }

    pub(super) fn code(&self) -> Option<i32> {
        match &self.body {
            NodeReply::Error { code, .. } => Some(*code),
            NodeReply::Result(_) => None,
        }
    }

    fn is_null(&self) -> bool {
        self.body == NodeReply::Result(Bytes::from_static(b"null"))
    }

    /// Returns true if `second` is better, where neither of the two is certain.
    ///
    /// A result that is not null beats an error, and an error beats null. Of two lists, the longer one lacks less. Between
    /// two other results that are not null, the higher slot wins.
    fn is_worse_than(&self, second: &Self) -> bool {
        match (&self.body, &second.body) {
            // The second node has passed the block's slot and knows that there is no block.
            (NodeReply::Error { code: a, .. }, NodeReply::Error { code: b, .. }) => {
                lacks_block(*a) && !lacks_block(*b)
            }
            (NodeReply::Result(_), NodeReply::Error { .. }) => self.is_null(),
            (NodeReply::Error { .. }, NodeReply::Result(_)) => !second.is_null(),
            (NodeReply::Result(a), NodeReply::Result(b)) if a.starts_with(b"[") && b.starts_with(b"[") => {
                b.len() > a.len()
            }
            (NodeReply::Result(_), NodeReply::Result(_)) => {
                !second.is_null() && (self.is_null() || second.slot > self.slot)
            }
        }
    }
}

fn lacks_block(code: i32) -> bool {
    matches!(code, code::BLOCK_CLEANED_UP | code::BLOCK_NOT_AVAILABLE)
}

/// The best answer to a call so far, with its meaning, which is never [`Meaning::Decides`].
#[derive(Debug)]
pub(super) struct Best {
    pub(super) meaning: Meaning,
    pub(super) reply: PoolReply,
}

impl Best {
    /// Returns true if the caller may get the answer as it is. Other nodes only improve or confirm it.
    pub(super) fn is_answer(&self) -> bool {
        self.rank() > Rank::Behind || self.meaning == Meaning::AskOn(WhyAskOn::Private)
    }

    pub(super) fn refuses_min_slot(&self) -> bool {
        !self.is_answer() && self.reply.code() == Some(code::MIN_CONTEXT_SLOT_NOT_REACHED)
    }

    fn rank(&self) -> Rank {
        match self.meaning {
            Meaning::NotHere => Rank::Refusal,
            Meaning::AskOn(WhyAskOn::Private) => Rank::Private,
            Meaning::AskOn(WhyAskOn::Behind) => Rank::Behind,
            Meaning::AskOn(WhyAskOn::Absent(_) | WhyAskOn::Unlikely) | Meaning::Decides => Rank::Answer,
        }
    }

    /// Returns the better of the two, or `held` if they are equally good. `other` is an answer that is not good enough.
    /// Among answers behind the minimum slot, results are better than errors, and higher slots are better than lower ones.
    pub(super) fn better(held: Option<Self>, other: Self) -> Self {
        let Some(held) = held else { return other };
        let height = |best: &Self| (best.reply.code().is_none(), best.reply.slot);
        let is_worse = match (held.rank(), other.rank()) {
            (Rank::Answer, Rank::Answer) => held.reply.is_worse_than(&other.reply),
            (Rank::Behind, Rank::Behind) => height(&held) < height(&other),
            (rank, other) => rank < other,
        };
        if is_worse { other } else { held }
    }
}

/// How good an answer is that does not decide its call, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Refusal,
    Private,
    Behind,
    Answer,
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
        let reply = |node, body, slot| PoolReply {
            node,
            body,
            sent_at: Instant::now(),
            slot,
            finalized: 0,
            is_short: false,
            blocks: None,
        };
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
            ("the longer of two lists", (result(b"[]"), 2), (result(b"[5]"), 1), 1),
            ("null twice", (result(b"null"), 1), (result(b"null"), 2), 0),
            ("another reason for a missing block", (error(not_yet), 1), (error(unknown), 1), 1),
        ] {
            let [first, second] = [reply(0, first.0, first.1), reply(1, second.0, second.1)];
            assert_eq!(usize::from(first.is_worse_than(&second)), expected, "{name}");
        }
    }

    #[tokio::test]
    async fn answers_that_are_not_good_enough_have_an_order() {
        let best_of = |node, body: NodeReply, slot, meaning| {
            let reply = PoolReply {
                node,
                body,
                sent_at: Instant::now(),
                slot,
                finalized: 0,
                is_short: false,
                blocks: None,
            };
            Best { meaning, reply }
        };
        let (behind, incapable) = (Meaning::AskOn(WhyAskOn::Behind), Meaning::NotHere);
        let result = || NodeReply::Result(Bytes::from_static(b"{}"));
        let best = [
            (best_of(0, error(-32601), 9, incapable), 0),
            (best_of(1, error(-32011), 99, incapable), 0),
            (best_of(2, error(-32016), 5, behind), 2),
            (best_of(3, result(), 3, behind), 3),
            (best_of(4, result(), 4, behind), 4),
            (best_of(5, result(), 2, behind), 4),
            (best_of(6, result(), 1, Meaning::AskOn(WhyAskOn::Unlikely)), 6),
            (best_of(7, result(), 9, behind), 6),
        ];
        let mut held = None;
        for (other, expected) in best {
            let better = Best::better(held.take(), other);
            assert_eq!(better.reply.node, expected);
            held = Some(better);
        }
    }
}
