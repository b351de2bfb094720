//! The trait of the calls that the pool sends: a typed query, or a method that is passed through.
//!
//! The loop over nodes, in `call.rs`, is the same for both. A kind of call says how its request is written, what an
//! answer means, and what the pool may assume about it.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::caller::CallContext;
use super::member::Member;
use super::members::Members;
use super::reply::Reply;
use super::verdict::Verdict;
use crate::config;
use crate::error::Attempt;
use crate::frontier::{Era, Frontier};
use crate::methods::{AnyMethod, Commitment, Method, Slot};
use crate::node::{Fault, NodeReply};

/// A call that the pool sends to nodes until one answers.
pub(super) trait UpstreamCall: Sync {
    /// The result of the call.
    type Answer;

    /// True if the answers are for the cache. While such calls are answered, the pool keeps the confirmed frontier
    /// young, because the cache judges freshness by it.
    const FOR_CACHE: bool;

    /// True if the method says how heavy a call is. Only then a slow call is hedged or counts as a hang, and a call whose
    /// connection broke is sent to the same node again. Otherwise the call itself may be what the node hangs or breaks on.
    const WEIGHT_IS_KNOWN: bool;

    /// True if an answer below [`Self::wanted_slot`] is still an answer. A floor is the gateway's own wish, and an answer
    /// just below it beats one of a node in a worse state. A slot in the caller's own params makes the node refuse.
    const ACCEPTS_BEHIND: bool;

    /// The method.
    fn method(&self) -> AnyMethod;

    /// The caller that the call is for, and how long it waits.
    fn context(&self) -> &CallContext;

    /// Returns how long one attempt may take.
    fn attempt_timeout(&self, settings: &config::Pool) -> Duration;

    /// The commitment at which nodes are compared; `None` where the answer does not depend on it.
    fn commitment(&self) -> Option<Commitment>;

    /// The slot that a node should have reached. Nodes known to be below come after the others.
    fn wanted_slot(&self) -> Option<Slot>;

    /// Returns true if the node is known not to hold the history that the call reads.
    fn lacks_history(&self, _member: &Member, _frontier: &Frontier) -> bool {
        false
    }

    /// True if the call stays with one node while that node is usable, because each node answers with a view of its own.
    fn is_sticky(&self) -> bool {
        false
    }

    /// True if the answer of one node stands, whatever it is. Only nodes without the method are passed over.
    fn is_alone(&self) -> bool {
        false
    }

    /// True if a refusal for the slot is about a floor of the gateway's own. The caller never sees such a refusal: the
    /// node with the highest slot is asked without the floor.
    fn has_own_floor(&self) -> bool {
        false
    }

    /// Writes the request with this `id` for `member`.
    fn write(&self, id: u64, member: &Member, floor: Floor) -> (Bytes, Sent);

    /// Returns the function that reads an answer to the request `sent`: the answer and the slot of its context. The
    /// function may run on another thread, because long answers take long to read.
    fn reader(&self, sent: Sent) -> impl FnOnce(NodeReply) -> Result<Read, Fault> + Send + 'static;

    /// Returns the meaning of an answer.
    ///
    /// # Errors
    /// The answer is a fault of the node.
    fn classify(&self, read: &Read, sent: Sent, frontier: &Frontier) -> Result<Verdict, Fault>;

    /// Takes in what the answer tells about its node, whatever becomes of the call.
    fn learn(&self, _frontier: &Frontier, _member: &Member, _answer: &Heard<'_>) {}

    /// Returns true if a refusal is the answer of the call, because asking on would bring no other.
    fn accepts_refusal(&self, attempts: &[Attempt], members: &Members) -> bool;

    /// Turns a node's answer into the result of the call.
    fn answer(reply: Reply) -> Self::Answer;

    /// The method as one of the eight, by which durations are learnt and choices are kept.
    fn own_method(&self) -> Option<Method> {
        match self.method() {
            AnyMethod::Own(method) => Some(method),
            AnyMethod::Further(_) => None,
        }
    }
}

/// The use of a floor of the gateway's own in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Floor {
    /// The floor goes up as `minContextSlot` if the node is known to have reached it: then the node cannot answer with
    /// less.
    Sent,
    /// The floor is only compared with the answer: every node has fallen back behind it, and the highest answer is wanted.
    Withheld,
}

/// The parts of a sent request that its answer is judged by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    /// The slot that the request names as its condition.
    pub(super) min_context_slot: Option<Slot>,
    /// The newest slot that the node was known to have reached before the request was sent; 0 if none was known.
    pub(super) slot_before: Slot,
}

/// An answer, and the slot of its context where the method's results have one.
pub(super) type Read = (NodeReply, Option<Slot>);

/// An answer that was just heard.
pub(super) struct Heard<'a> {
    pub(super) body: &'a NodeReply,
    pub(super) context: Option<Slot>,
    pub(super) sent: Sent,
    /// The era in which the request was sent.
    pub(super) era: Era,
    /// The time at which the answer came.
    pub(super) at: Instant,
}
