//! What each kind of call does in its own way: typed queries, reads of the tip, forwarded methods and transactions.
//!
//! `call.rs` has the loop over nodes, which is the same for all.

use bytes::Bytes;
use tokio::time::Instant;

use super::meaning::{Meaning, judge};
use super::member::Member;
use super::members::Members;
use super::question::{ParsedReply, Question, SentRequest};
use crate::error::FailedAttempt;
use crate::frontier::Frontier;
use crate::methods::Slot;
use crate::node::{Fault, NodeReply};

/// A call that the pool sends to nodes until one answers.
pub(super) trait UpstreamCall: Sync {
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

    /// Returns true if the refusals in `attempts` decide the call, because the remaining nodes would refuse it, too.
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
