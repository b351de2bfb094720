//! Typed queries as upstream calls: their minimum slot, the format and meaning of their answers, and the effects
//! of answers on a node's state.
//!
//! Some errors are final answers, and some results are not. A node's report of a missing block does not prove that
//! there is no block, because each node holds its own part of history.

use std::borrow::Cow;

use bytes::Bytes;
use tokio::time::Instant;

use super::call_context::CallContext;
use super::member::Member;
use super::members::Members;
use super::question::{BlocksRead, ParsedReply, Question, SentRequest};
use super::upstream_call::{MinSlotUse, UpstreamCall};
use crate::error::FailedAttempt;
use crate::frontier::Frontier;
use crate::methods::{Answerer, AnyMethod, BlocksQuery, Commitment, Method, Query, Slot};
use crate::node::answer::{error_context_slot, first_available_block};
use crate::node::shape::{BlockList, LONGEST_SKIP, elements, fits};
use crate::node::{Contextual, Fault, NodeReply, code};
use crate::telemetry::AttemptResult;

/// A typed query on its way to a node.
#[derive(Debug, Clone)]
pub struct UpstreamRequest {
    /// The query. Its params are serialized anew for the node.
    pub query: Query,
    /// The slot that the answer's context should reach. Nodes that have reached the slot are preferred. At confirmed
    /// and finalized, such nodes get the slot as `minContextSlot`. If no node reaches the slot, the answer with the
    /// highest slot is returned.
    pub min_slot: Option<Slot>,
    /// A slot that the asked node should have reached. An answer at a lower slot is accepted, too, because the
    /// preferred slot may belong to a dropped fork.
    pub prefer: Option<Slot>,
    /// True if the first answer of a node is final, whatever it is. Only nodes that fail or do not serve the method are
    /// skipped. Used for a caller's minContextSlot above the newest known slot, and for the verification of cached
    /// answers.
    pub one_node: bool,
    pub context: CallContext,
}

impl UpstreamCall for UpstreamRequest {
    fn question(&self) -> Question<'_> {
        let method = self.query.method();
        Question {
            commitment: self.query.commitment(),
            has_slot: self.query.has_context(),
            lowest_slot: self.min_slot,
            wanted_slot: self.min_slot.max(self.prefer),
            reads: match self.query.known() {
                Query::Block(query) => BlocksRead::Block(query.slot),
                Query::BlockTime(query) => BlocksRead::Block(query.slot),
                Query::Blocks(query) => BlocksRead::BlocksFrom(query.first),
                Query::Page(_) => BlocksRead::All,
                _ => BlocksRead::Nothing,
            },
            is_sticky: method.rules().answerer != Answerer::AnyNode,
            is_for_one_node: self.one_node,
            may_send_min_slot: self.query.min_context_slot().is_none(),
            accepts_behind: true,
            ..Question::new(AnyMethod::Own(method), &self.context)
        }
    }

    fn write(&self, id: u64, member: &Member, min_slot: MinSlotUse) -> (Bytes, Option<Slot>) {
        let query = match min_slot {
            MinSlotUse::Sent => self.with_min_slot(member),
            MinSlotUse::Withheld => Cow::Borrowed(&self.query),
        };
        let (method, params) = (query.method().as_str(), query.params_json());
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        (body.into(), query.min_context_slot())
    }

    fn reader(
        &self,
        finalized: Slot,
    ) -> impl FnOnce(NodeReply) -> Result<ParsedReply, Fault> + Send + 'static {
        let query = self.query.clone();
        move |reply| {
            let NodeReply::Result(result) = &reply else { return Ok(ParsedReply::new(reply, None)) };
            if !fits(&query, result) {
                return Err(Fault::BadJson);
            }
            let parts = if query.has_context() { Contextual::split(result) } else { None };
            let slot = parts.map(|parts| parts.slot);
            // It is not a fault of the node: behind one address there may be several machines, which are not all at the
            // same slot.
            if let (Some(slot), Some(minimum)) = (slot, query.min_context_slot())
                && slot < minimum
            {
                return Ok(ParsedReply::new(NodeReply::min_context_slot_not_reached(slot), None));
            }
            let blocks = BlockList::read(query.known(), result);
            let is_short = is_short(&query, result, blocks, finalized);
            Ok(ParsedReply { reply, slot, is_short, blocks })
        }
    }

    fn learn(
        &self,
        frontier: &Frontier,
        member: &Member,
        ParsedReply { reply, slot: context, .. }: &ParsedReply,
        sent: &SentRequest,
        now: Instant,
    ) {
        let (slot, has_fallen) = match reply {
            NodeReply::Result(_) => (*context, context.is_some_and(|slot| sent.shows_fall(slot))),
            NodeReply::Error { code: code::BLOCK_CLEANED_UP, body } => {
                if let Some(first) = first_available_block(body) {
                    member.set_first_available(first);
                }
                return;
            }
            NodeReply::Error { code: code::MIN_CONTEXT_SLOT_NOT_REACHED, body } => {
                let slot = error_context_slot(body);
                // The node is below a slot that it had reached: it was restarted, or replaced by another machine.
                let promised = sent.min_context_slot.filter(|promised| sent.slot_before >= *promised);
                (slot, slot < promised)
            }
            NodeReply::Error { .. } => return,
        };
        let (Some(slot), Some(commitment)) = (slot, self.query.commitment()) else { return };
        if has_fallen {
            frontier.probed(sent.era, member.id, commitment, slot, now);
        } else {
            frontier.answered(sent.era, member.id, commitment, slot, now);
        }
    }

    fn accepts_refusal(&self, attempts: &[FailedAttempt], members: &Members) -> bool {
        let refused = |name: &str| {
            attempts.iter().any(|attempt| attempt.upstream == name && attempt.is(AttemptResult::Incapable))
        };
        let method = AnyMethod::Own(self.query.method());
        members.iter().all(|member| !member.serves(method) || refused(&member.name))
    }
}

impl UpstreamRequest {
    /// Returns the query with the minimum slot as `minContextSlot`, if the method has that parameter and the
    /// caller has not set it.
    ///
    /// A node that may not have reached the minimum slot gets no `minContextSlot`, because its answer may still be
    /// the one at the highest slot. At processed no node gets a `minContextSlot`, because a node that drops a fork
    /// may fall back to a lower slot.
    fn with_min_slot(&self, member: &Member) -> Cow<'_, Query> {
        let commitment = self.query.commitment().filter(|commitment| *commitment != Commitment::Processed);
        let reached = commitment.and_then(|commitment| member.slot(commitment));
        match (self.min_slot, reached) {
            (Some(min_slot), Some(reached))
                if min_slot <= reached && self.query.min_context_slot().is_none() =>
            {
                Cow::Owned(self.query.clone().with_min_context_slot(Some(min_slot)))
            }
            _ => Cow::Borrowed(&self.query),
        }
    }
}

/// Returns true if a node may not hold all of what `result` should have: it is `null`, a page that is not full, rewards that
/// are missing, or a list of past blocks with more of them missing in a row than can have been skipped.
fn is_short(query: &Query, result: &Bytes, blocks: Option<BlockList>, finalized: Slot) -> bool {
    match query.known() {
        Query::Page(query) => elements(result).is_none_or(|page| page.len() < query.limit),
        Query::Blocks(BlocksQuery { first, last, .. }) => {
            let is_past = first.saturating_add(LONGEST_SKIP) < finalized;
            let last = last.filter(|last| *last <= finalized);
            is_past && !blocks.is_some_and(|list| list.is_whole(last))
        }
        Query::Plain(call) if call.method == Method::GetInflationReward => {
            elements(result).is_none_or(|rewards| rewards.iter().any(|reward| reward.as_ref() == b"null"))
        }
        _ => result.as_ref() == b"null",
    }
}
