//! The facts of a call by which nodes are chosen for it and its answers judged, and those of a request and its answer.

use std::time::Duration;

use tokio::time::Instant;

use super::call_context::CallContext;
use crate::config;
use crate::frontier::Era;
use crate::methods::{AnyMethod, Commitment, Part, Slot};
use crate::node::NodeReply;
use crate::node::shape::BlockList;

/// The history that a call reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlocksRead {
    /// None.
    Nothing,
    Block(Slot),
    BlocksFrom(Slot),
    /// As much as a node has.
    All,
}

/// What the pool has to know of a call to choose nodes for it.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Question<'a> {
    pub(super) method: AnyMethod,
    pub(super) context: &'a CallContext,
    /// The commitment at which nodes are compared by their slots. `None` if the answer does not depend on one.
    pub(super) commitment: Option<Commitment>,
    /// True if a result has a slot of its own, usually in its context.
    pub(super) has_slot: bool,
    /// The lowest slot of an answer. `None` if any slot will do.
    pub(super) lowest_slot: Option<Slot>,
    /// The slot that a node should have reached. Nodes known to be below this slot are asked only if no other node is
    /// usable. `None` if any slot will do.
    pub(super) wanted_slot: Option<Slot>,
    pub(super) reads: BlocksRead,
    /// True if the call stays with one node while that node is usable. The answers of different nodes differ, because
    /// each node has its own view of the cluster.
    pub(super) is_sticky: bool,
    /// True if the first answer of a node is final, whatever it is. Only nodes that fail or do not serve the method are
    /// skipped.
    pub(super) is_for_one_node: bool,
    /// True if the gateway may send its own minimum slot as `minContextSlot`, because the caller has set none. The caller
    /// never sees a node's refusal of that minimum slot. The node with the highest slot is then asked without it.
    pub(super) may_send_min_slot: bool,
    /// True if a second node is asked when one takes many times its usual time.
    pub(super) is_quick: bool,
    /// True if another node may get the transaction after this attempt.
    pub(super) has_other_nodes: bool,
    /// True if the work that the call makes is up to its caller, as for a search in all of the history.
    pub(super) is_of_any_length: bool,
    /// True if an answer below the wanted slot is accepted if no usable node reaches the slot.
    pub(super) accepts_behind: bool,
    /// The names of the upstreams that may get the call. All of them, if there is no name.
    pub(super) upstreams: &'a [String],
    pub(super) without: &'a [usize],
}

impl<'a> Question<'a> {
    pub(super) fn new(method: AnyMethod, context: &'a CallContext) -> Self {
        Self {
            method,
            context,
            commitment: None,
            has_slot: false,
            lowest_slot: None,
            wanted_slot: None,
            reads: BlocksRead::Nothing,
            is_sticky: false,
            is_for_one_node: false,
            may_send_min_slot: false,
            is_quick: method.rules().is_quick,
            has_other_nodes: false,
            is_of_any_length: false,
            accepts_behind: false,
            upstreams: &[],
            without: &[],
        }
    }

    pub(super) fn part(&self) -> Part {
        self.method.rules().part
    }

    /// Returns true if slotfront knows how much work the call is: that of a cached method that is no scan, or a read of the
    /// tip. How much another one is, and whether it fails everywhere, is up to its caller.
    pub(super) fn is_known_work(&self) -> bool {
        let is_cached = matches!(self.method, AnyMethod::Own(_)) && self.part() != Part::Scans;
        is_cached || matches!(self.method, AnyMethod::Tip(_)) && !self.is_of_any_length
    }

    /// Returns true if what becomes of the call says something about the health of its node. How much work a transaction
    /// makes is up to its caller, and so are its errors.
    pub(super) fn counts(&self) -> bool {
        !self.is_of_any_length && !matches!(self.method, AnyMethod::Simulate | AnyMethod::Send)
    }

    pub(super) fn timeout(&self, settings: &config::PoolSettings) -> Duration {
        let most = settings.attempt_timeout[self.method.index()];
        match self.method {
            _ if self.is_of_any_length => self.context.deadline.saturating_duration_since(Instant::now()),
            // The answers of the tip are a few numbers, and everybody waits for one call.
            AnyMethod::Tip(_) => most.min(LONGEST_READ_OF_TIP),
            AnyMethod::Send if self.has_other_nodes => most.min(LONGEST_FIRST_SEND),
            _ => most,
        }
    }
}

const LONGEST_READ_OF_TIP: Duration = Duration::from_secs(2);

/// The longest time for the first attempt to send a transaction, whose blockhash grows older.
const LONGEST_FIRST_SEND: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct SentRequest {
    pub(super) id: u64,
    pub(super) at: Instant,
    /// The era in which the request was sent. An era ends when all reports of slots are discarded.
    pub(super) era: Era,
    /// The `minContextSlot` of the request. `None` if the request has none.
    pub(super) min_context_slot: Option<Slot>,
    /// The newest slot that the node was known to have reached before the request was sent. 0 if no slot was known.
    pub(super) slot_before: Slot,
    /// The newest slot that the node was known to have finalized before the request was sent. 0 if none was known.
    pub(super) finalized_before: Slot,
    /// The newest slot known to the pool before the request was sent. 0 if no slot was known.
    pub(super) newest_before: Slot,
    pub(super) max_slot_lag: u64,
}

impl SentRequest {
    /// Returns true if an answer at `slot` shows that the node has fallen back, to more than `pool.max_slot_lag`
    /// slots below its earlier slot. When a node drops a fork, its slot falls by less.
    pub(super) fn shows_fall(&self, slot: Slot) -> bool {
        slot.saturating_add(self.max_slot_lag) < self.slot_before
    }

    /// Returns true if an answer at `slot` is more than `pool.max_slot_lag` slots behind the newest slot known before
    /// the request was sent. An answer that is only slow does not lag.
    pub(super) fn shows_lag(&self, slot: Slot) -> bool {
        slot.saturating_add(self.max_slot_lag) < self.newest_before
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParsedReply {
    pub(super) reply: NodeReply,
    /// The slot of a result, usually in its context. `None` if it has none.
    pub(super) slot: Option<Slot>,
    /// True if another node may hold what this result lacks: it is `null`, or a list that is not full.
    pub(super) is_short: bool,
    pub(super) blocks: Option<BlockList>,
}

impl ParsedReply {
    pub(super) fn new(reply: NodeReply, slot: Option<Slot>) -> Self {
        Self { reply, slot, is_short: false, blocks: None }
    }
}
