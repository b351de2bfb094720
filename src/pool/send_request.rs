//! A transaction as an upstream call.
//!
//! A node that has got a transaction may have sent it even if it does not answer. A transaction lands once, so another node
//! is asked nevertheless, and what the second node has seen already was sent by the first.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use super::call_context::CallContext;
use super::meaning::{Meaning, WhyAskOn, judge};
use super::member::Member;
use super::members::Members;
use super::question::{ParsedReply, Question, SentRequest};
use super::upstream_call::{MinSlotUse, UpstreamCall};
use crate::error::FailedAttempt;
use crate::frontier::Frontier;
use crate::methods::{AnyMethod, Commitment, SendQuery, Slot};
use crate::node::shape::member;
use crate::node::{Fault, NodeReply, code};
use crate::telemetry::AttemptResult;

/// A transaction on its way to a node.
pub struct SendRequest {
    /// The call.
    pub query: SendQuery,
    /// The slot of the block whose hash the transaction has. `None` if it is not known.
    pub block: Option<Slot>,
    /// The names of the upstreams that may get it. All of them, if there is no name.
    pub upstreams: Vec<String>,
    /// The ids of the nodes that have it already.
    pub sent_to: Vec<usize>,
    pub nodes: usize,
    pub attempts: AtomicUsize,
    pub context: CallContext,
}

/// Returns true if a simulation has failed for the reason `words`. Only the node writes the message. The other members
/// hold what programs log, which may be the same words.
fn has_failed(reply: &NodeReply, words: &str) -> bool {
    let NodeReply::Error { code: code::PREFLIGHT_FAILURE, body } = reply else { return false };
    member::<Cow<'_, str>>(body, "message").is_some_and(|message| message.contains(words))
}

impl UpstreamCall for SendRequest {
    fn question(&self) -> Question<'_> {
        let simulated = self.query.preflight_commitment.unwrap_or_default();
        Question {
            // The bank that simulates the transaction has to know its blockhash.
            commitment: Some(if self.query.skip_preflight { Commitment::Processed } else { simulated }),
            wanted_slot: self.query.min_context_slot.max(self.block),
            // Each node that gets a transaction may send it, so its first answer is the answer.
            is_for_one_node: true,
            has_other_nodes: self.nodes > 1 && self.attempts.load(Ordering::Relaxed) <= 1,
            upstreams: &self.upstreams,
            without: &self.sent_to,
            ..Question::new(AnyMethod::Send, &self.context)
        }
    }

    fn write(&self, id: u64, _: &Member, _: MinSlotUse) -> (Bytes, Option<Slot>) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        let (method, params) = (AnyMethod::Send.as_str(), self.query.params_json());
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        (body.into(), self.query.min_context_slot)
    }

    fn reader(&self, _: Slot) -> impl FnOnce(NodeReply) -> Result<ParsedReply, Fault> + Send + 'static {
        let is_repeated = self.attempts.load(Ordering::Relaxed) > 1;
        let signature = self.query.signature.filter(|_| is_repeated);
        move |reply| {
            let sent_before = signature.filter(|_| has_failed(&reply, "already been processed"));
            let result = sent_before.map(|signature| NodeReply::Result(format!("\"{signature}\"").into()));
            Ok(ParsedReply::new(result.unwrap_or(reply), None))
        }
    }

    fn judge(&self, read: &ParsedReply, sent: &SentRequest, frontier: &Frontier) -> Result<Meaning, Fault> {
        if self.block.is_some() && has_failed(&read.reply, "Blockhash not found") {
            return Ok(Meaning::AskOn(WhyAskOn::Behind));
        }
        judge(&self.question(), read, sent, frontier)
    }

    fn accepts_refusal(&self, attempts: &[FailedAttempt], _: &Members) -> bool {
        let refusals = [AttemptResult::Incapable, AttemptResult::Behind, AttemptResult::Unhealthy];
        attempts.iter().all(|attempt| refusals.iter().any(|refusal| attempt.is(*refusal)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_logs_is_no_reason_of_a_node() {
        let error = |message: &str, log: &str| NodeReply::Error {
            code: code::PREFLIGHT_FAILURE,
            body: format!(r#"{{"code":-32002,"data":{{"logs":["{log}"]}},"message":"{message}"}}"#).into(),
        };
        let words = "already been processed";
        let by_node = "Transaction simulation failed: This transaction has already been processed";
        let by_program =
            "Transaction simulation failed: Error processing Instruction 0: custom program error: 0x1";
        assert!(has_failed(&error(by_node, ""), words));
        assert!(!has_failed(&error(by_program, "Program log: the claim has already been processed"), words));
    }
}
