//! Simulations and listed methods as upstream calls: sent as they came, and answered by any usable node.
//!
//! These calls use the same nodes and limits as typed queries, but the gateway does not interpret their results. How much
//! work one of them makes is up to the caller, so their retries have a budget of their own.

use bytes::Bytes;

use super::call_context::CallContext;
use super::member::Member;
use super::members::Members;
use super::question::{ParsedReply, Question};
use super::upstream_call::{MinSlotUse, UpstreamCall};
use crate::error::FailedAttempt;
use crate::methods::{ForwardedCall, Slot};
use crate::node::{Fault, NodeReply};
use crate::telemetry::AttemptResult;

/// A call that is forwarded, on its way to a node.
#[derive(Debug, Clone)]
pub struct ForwardedRequest {
    pub call: ForwardedCall,
    /// A slot that the node should have reached.
    pub prefer: Option<Slot>,
    /// The names of the upstreams that may get it. All of them, if there is no name.
    pub upstreams: Vec<String>,
    pub context: CallContext,
}

impl UpstreamCall for ForwardedRequest {
    fn question(&self) -> Question<'_> {
        Question {
            commitment: Some(self.call.commitment),
            wanted_slot: self.call.min_context_slot.max(self.prefer),
            upstreams: &self.upstreams,
            ..Question::new(self.call.method, &self.context)
        }
    }

    fn write(&self, id: u64, _: &Member, _: MinSlotUse) -> (Bytes, Option<Slot>) {
        (self.call.body(id), self.call.min_context_slot)
    }

    fn reader(&self, _: Slot) -> impl FnOnce(NodeReply) -> Result<ParsedReply, Fault> + Send + 'static {
        |reply| Ok(ParsedReply::new(reply, None))
    }

    /// Accepts a refusal as the answer if every node that was asked has refused. Nobody knows if the other nodes
    /// could serve the call.
    fn accepts_refusal(&self, attempts: &[FailedAttempt], _: &Members) -> bool {
        let refusals = [AttemptResult::Incapable, AttemptResult::Behind];
        attempts.iter().all(|attempt| refusals.iter().any(|refusal| attempt.is(*refusal)))
    }
}
