//! Passthrough methods as upstream calls: sent as they came, and answered by any usable node.
//!
//! These calls use the same nodes and limits as typed queries, but the gateway does not interpret their answers: an
//! error is the answer, unless it means that the node cannot serve the call or is unhealthy. Neither hangs nor faults
//! of these calls count against a node, because how much work one of them makes is up to the caller, and any caller
//! could open breakers. For the same reason their retries have a budget of their own.

use std::time::Duration;

use bytes::Bytes;

use super::member::Member;
use super::members::Members;
use super::reply::{Meaning, PoolReply};
use super::upstream_call::{CallContext, MinSlotUse, ParsedReply, SentRequest, UpstreamCall};
use crate::config;
use crate::error::FailedAttempt;
use crate::frontier::Frontier;
use crate::methods::{AnyMethod, Commitment, PassthroughCall, Slot};
use crate::node::{Fault, NodeReply};
use crate::telemetry::AttemptResult;

/// A call of a passthrough method on its way to a node.
#[derive(Debug, Clone)]
pub struct PassthroughRequest {
    /// The call, with its params as the caller sent them.
    pub call: PassthroughCall,
    /// A slot that the node should have reached.
    pub prefer: Option<Slot>,
    /// The caller, with its deadline and trace.
    pub context: CallContext,
}

impl UpstreamCall for PassthroughRequest {
    type Answer = NodeReply;

    fn method(&self) -> AnyMethod {
        AnyMethod::Passthrough(self.call.method)
    }

    fn context(&self) -> &CallContext {
        &self.context
    }

    fn attempt_timeout(&self, settings: &config::PoolSettings) -> Duration {
        settings.forward_timeout
    }

    fn commitment(&self) -> Option<Commitment> {
        Some(self.call.commitment)
    }

    fn preferred_slot(&self) -> Option<Slot> {
        self.call.min_context_slot.max(self.prefer)
    }

    fn write(&self, id: u64, _: &Member, _: MinSlotUse) -> (Bytes, Option<Slot>) {
        (self.call.body(id), self.call.min_context_slot)
    }

    fn reader(&self) -> impl FnOnce(NodeReply) -> Result<ParsedReply, Fault> + Send + 'static {
        |reply| Ok((reply, None))
    }

    fn classify(&self, (body, _): &ParsedReply, _: &SentRequest, _: &Frontier) -> Result<Meaning, Fault> {
        match body {
            NodeReply::Result(_) => Ok(Meaning::Answer),
            NodeReply::Error { code, .. } => Meaning::of_code(*code),
        }
    }

    /// Accepts a refusal as the answer if every node that was asked has refused. Nobody knows if the other nodes
    /// could serve the call.
    fn accepts_refusal(&self, attempts: &[FailedAttempt], _: &Members) -> bool {
        let refusals = [AttemptResult::Incapable.as_str(), AttemptResult::Behind.as_str()];
        attempts.iter().all(|attempt| refusals.contains(&attempt.reason.as_str()))
    }

    fn answer(reply: PoolReply) -> NodeReply {
        reply.body
    }
}
