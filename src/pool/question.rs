//! The calls that the pool sends (typed queries, reads of the tip, forwarded methods and transactions): the facts by which
//! nodes are chosen for a call, its context, and the few things that each kind of call does in its own way.
//!
//! `call.rs` has the loop over nodes, which is the same for all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::meaning::{Meaning, judge};
use super::member::Member;
use super::members::Members;
use crate::config;
use crate::error::FailedAttempt;
use crate::fair::CallerId;
use crate::frontier::{Era, Frontier};
use crate::methods::{AnyMethod, Commitment, Method, Part, Slot};
use crate::node::shape::BlockList;
use crate::node::{Fault, NodeReply};
use crate::telemetry::Trace;

/// The length of the longest answer that nodes have sent for a call, in bytes, whether it was used or refused. All clones
/// share it.
#[derive(Debug, Clone, Default)]
pub struct LongestRead(Arc<AtomicUsize>);

impl LongestRead {
    /// Notes an answer, or what was read of it.
    pub fn note(&self, bytes: usize) {
        self.0.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Returns the length.
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The context of a call: its caller, and that caller's deadline and trace.
#[derive(Debug, Clone)]
pub struct CallContext {
    /// The time at which the caller stops waiting.
    pub deadline: Instant,
    /// The caller. If several callers share the call, this is the caller that has waited longest.
    pub caller: CallerId,
    /// The caller's trace, to which every attempt adds a span.
    pub trace: Trace,
    /// True if no caller waits for the answer. The call then uses a node's rate limit only while no caller's call wants
    /// it.
    pub is_background: bool,
    /// What nodes have sent for the call, by which its price follows.
    pub read: LongestRead,
}

impl CallContext {
    /// Returns the context of a call that the gateway makes on its own, with this deadline. No caller waits for it.
    pub fn own(deadline: Instant) -> Self {
        let (caller, trace, read) = (CallerId::default(), Trace::default(), LongestRead::default());
        Self { deadline, caller, trace, is_background: true, read }
    }
}

/// The history that a call reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlocksRead {
    /// None.
    Nothing,
    /// The block of this slot.
    Block(Slot),
    /// The blocks from this slot on.
    BlocksFrom(Slot),
    /// As much as a node has.
    All,
}

/// What the pool has to know of a call to choose nodes for it.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Question<'a> {
    pub(super) method: AnyMethod,
    /// The caller that the call is for, with its deadline and trace.
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
    /// True if an answer below the wanted slot is accepted if no usable node reaches the slot.
    pub(super) accepts_behind: bool,
    /// The names of the upstreams that may get the call. All of them, if there is no name.
    pub(super) upstreams: &'a [String],
    /// The ids of the nodes that must not get the call.
    pub(super) without: &'a [usize],
}

impl<'a> Question<'a> {
    /// Returns the question of a call that any node may answer.
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
            accepts_behind: false,
            upstreams: &[],
            without: &[],
        }
    }

    /// Returns the part of a node that answers the call.
    pub(super) fn part(&self) -> Part {
        self.method.rules().part
    }

    /// Returns the method if it is a cached one. `None` for a forwarded method and for a scan: nobody knows how long such a
    /// call may take, so it tells nothing about a node's latency.
    pub(super) fn own_method(&self) -> Option<Method> {
        let AnyMethod::Own(method) = self.method else { return None };
        Some(method).filter(|method| method.rules().part != Part::Scans)
    }

    /// Returns true if slotfront knows what to expect of the call, as of a cached method. Hangs and faults of such a call
    /// count against the node. After a broken connection, the same node is asked again. If no usable node reaches the
    /// wanted slot, unusable nodes are not asked.
    pub(super) fn is_own(&self) -> bool {
        self.own_method().is_some() || matches!(self.method, AnyMethod::Tip(_))
    }

    /// Returns true if what becomes of the call says something about the health of its node. How much work a transaction
    /// makes is up to its caller, and so are its errors.
    pub(super) fn counts(&self) -> bool {
        !matches!(self.method, AnyMethod::Simulate | AnyMethod::Send)
    }

    /// Returns the longest time for an attempt.
    pub(super) fn timeout(&self, settings: &config::PoolSettings) -> Duration {
        let most = settings.attempt_timeout[self.method.index()];
        // The answers of the tip are a few numbers, and everybody waits for one call.
        if matches!(self.method, AnyMethod::Tip(_)) { most.min(LONGEST_READ_OF_TIP) } else { most }
    }

    /// Returns the ids of the nodes that must not get the call.
    pub(super) fn excluded(&self, members: &Members) -> Vec<usize> {
        let is_out = |member: &Member| {
            self.without.contains(&member.id)
                || !self.upstreams.is_empty() && !self.upstreams.contains(&member.name)
        };
        members.iter().filter(|member| is_out(member)).map(|member| member.id).collect()
    }

    /// Returns true if the node is known not to hold the history that the call reads, or has not finalized the block
    /// although another node has. A block is certainly final only if its node has finalized the block's slot. `oldest` is
    /// the first block that a node of the pool holds. `None` if no node has told it. What is unknown may be young.
    pub(super) fn lacks_history(&self, member: &Member, oldest: Option<Slot>, frontier: &Frontier) -> bool {
        let is_younger = |slot: Slot| match member.first_available() {
            Some(first) => first > slot,
            None => oldest.is_some_and(|oldest| oldest <= slot),
        };
        match self.reads {
            BlocksRead::Nothing => false,
            BlocksRead::Block(slot) => {
                let is_final = slot <= frontier.slot(Commitment::Finalized);
                let reached = member.slot(Commitment::Finalized);
                is_younger(slot) || is_final && reached.is_some_and(|reached| reached < slot)
            }
            // Where all nodes have forgotten the start of the list, those with the longest memory leave out the least.
            BlocksRead::BlocksFrom(first) => oldest.is_some_and(|oldest| is_younger(oldest.max(first))),
            BlocksRead::All => oldest.is_some_and(is_younger),
        }
    }
}

/// The longest time for an attempt to read the tip.
const LONGEST_READ_OF_TIP: Duration = Duration::from_secs(2);

/// A call that the pool sends to nodes until one answers.
pub(super) trait UpstreamCall: Sync {
    /// Returns the facts by which nodes are chosen.
    fn question(&self) -> Question<'_>;

    /// Returns the body of the request with this `id` for `member`, and its `minContextSlot` if it has one.
    fn write(&self, id: u64, member: &Member, min_slot: MinSlotUse) -> (Bytes, Option<Slot>);

    /// Returns a function that parses the answer. The function may run on another thread, because long answers take long
    /// to parse. `finalized` is the newest known finalized slot.
    fn reader(
        &self,
        finalized: Slot,
    ) -> impl FnOnce(NodeReply) -> Result<ParsedReply, Fault> + Send + 'static;

    /// Returns the meaning of an answer.
    ///
    /// # Errors
    /// The answer shows a fault of the node.
    fn judge(&self, read: &ParsedReply, sent: &SentRequest, frontier: &Frontier) -> Result<Meaning, Fault> {
        judge(&self.question(), read, sent, frontier)
    }

    /// Updates the newest known slots and the node's state from an answer, even if the call goes on to another node.
    fn learn(
        &self,
        _frontier: &Frontier,
        _member: &Member,
        _read: &ParsedReply,
        _sent: &SentRequest,
        _at: Instant,
    ) {
    }

    /// Returns true if the refusals in `attempts` decide the call, because the remaining nodes would refuse it,
    /// too.
    fn accepts_refusal(&self, attempts: &[FailedAttempt], members: &Members) -> bool;
}

/// The way in which one request uses the gateway's own minimum slot for the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MinSlotUse {
    /// The minimum slot is sent as `minContextSlot` if the node is known to have reached it, so that the node
    /// cannot answer at a lower slot.
    Sent,
    /// The minimum slot is only compared with the slot of the answer. Used after nodes have refused the minimum
    /// slot, to get the answer at the highest slot.
    Withheld,
}

/// The parts of a sent request that are needed to judge its answer.
#[derive(Debug)]
pub(super) struct SentRequest {
    pub(super) id: u64,
    pub(super) at: Instant,
    /// The era in which the request was sent. An era ends when all reports of slots are discarded.
    pub(super) era: Era,
    /// The `minContextSlot` of the request. `None` if the request has none.
    pub(super) min_context_slot: Option<Slot>,
    /// The newest slot that the node was known to have reached before the request was sent. 0 if no slot was
    /// known.
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

/// An answer that was parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParsedReply {
    pub(super) reply: NodeReply,
    /// The slot of a result, usually in its context. `None` if it has none.
    pub(super) slot: Option<Slot>,
    /// True if another node may hold what this result lacks: it is `null`, or a list that is not full.
    pub(super) is_short: bool,
    /// What a list of blocks tells.
    pub(super) blocks: Option<BlockList>,
}

impl ParsedReply {
    /// Returns an answer that lacks nothing, as far as the answer itself tells.
    pub(super) fn new(reply: NodeReply, slot: Option<Slot>) -> Self {
        Self { reply, slot, is_short: false, blocks: None }
    }
}
