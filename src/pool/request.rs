//! Typed queries as upstream calls: their minimum slot, the format and meaning of their answers, and the effects
//! of answers on a node's state.
//!
//! Some errors are final answers, and some results are not. A node's report of a missing block does not prove that
//! there is no block, because each node holds its own part of history.

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::time::Instant;

use super::member::Member;
use super::members::Members;
use super::question::{CallContext, MinSlotUse, ParsedReply, Question, Reads, SentRequest, UpstreamCall};
use super::reply::Meaning;
use crate::error::FailedAttempt;
use crate::frontier::Frontier;
use crate::methods::{Answerer, AnyMethod, BlocksQuery, Commitment, Part, Query, ResultKind, Slot};
use crate::node::answer::{error_context_slot, first_available_block};
use crate::node::shape::{LONGEST_SKIP, fits, is_whole};
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
    /// The caller, with its deadline and trace.
    pub context: CallContext,
}

impl UpstreamCall for UpstreamRequest {
    fn question(&self) -> Question<'_> {
        let method = self.query.method();
        Question {
            commitment: self.query.commitment(),
            wanted_slot: self.min_slot.max(self.prefer),
            reads: match &self.query {
                Query::Block(query) => Reads::Block(query.slot),
                Query::BlockTime(query) => Reads::Block(query.slot),
                Query::Blocks(query) => Reads::BlocksFrom(query.first),
                Query::Page(_) => Reads::All,
                _ => Reads::Nothing,
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

    fn reader(&self) -> impl FnOnce(NodeReply) -> Result<ParsedReply, Fault> + Send + 'static {
        let query = self.query.clone();
        move |reply| {
            let context = match &reply {
                NodeReply::Result(result) if !fits(&query, result) => return Err(Fault::BadJson),
                NodeReply::Result(result) if query.has_context() => {
                    Contextual::split(result).map(|parts| parts.slot)
                }
                _ => None,
            };
            Ok(as_refusal((reply, context), query.min_context_slot()))
        }
    }

    fn classify(
        &self,
        (body, context): &ParsedReply,
        sent: &SentRequest,
        frontier: &Frontier,
    ) -> Result<Meaning, Fault> {
        // With `one_node` the first node's answer is final, even if its slot is below the minimum slot.
        let behind =
            if self.one_node { Meaning::Answer } else { Meaning::TryElsewhere(AttemptResult::Behind) };
        let (code, error) = match body {
            NodeReply::Result(result) if result.as_ref() == b"null" => {
                return Ok(if may_be_unknown(&self.query) {
                    Meaning::NeedsSecondNode
                } else {
                    Meaning::Answer
                });
            }
            NodeReply::Result(_) => {
                return match (self.query.has_context(), *context) {
                    (true, None) => Err(Fault::BadJson),
                    (true, Some(slot)) if self.min_slot.is_some_and(|min_slot| slot < min_slot) => Ok(behind),
                    // At processed the newest known slot is not used as minimum slot. Only these two checks then
                    // reject the answers of a node that has fallen back. Another answer may have shown the fall
                    // after this node was chosen, so the node's own earlier slot is not enough.
                    (true, Some(slot)) if sent.shows_fall(slot) || sent.shows_lag(slot) => Ok(behind),
                    (true, Some(slot)) if self.needs_second_node(slot, frontier) => {
                        Ok(Meaning::NeedsSecondNode)
                    }
                    _ if self.may_be_cut(body, frontier) => Ok(Meaning::NeedsSecondNode),
                    _ => Ok(Meaning::Answer),
                };
            }
            NodeReply::Error { code, body } => (*code, body),
        };
        let below_min_slot = self.min_slot.is_some_and(|min_slot| sent.slot_before < min_slot);
        match code {
            // This node does not hold the block, but another node may hold it.
            code::BLOCK_CLEANED_UP
            | code::SLOT_SKIPPED
            | code::LONG_TERM_STORAGE_SLOT_SKIPPED
            | code::BLOCK_STATUS_NOT_AVAILABLE_YET
            | code::SLOT_NOT_EPOCH_BOUNDARY
            | code::FILTER_TRANSACTION_NOT_FOUND => Ok(Meaning::NeedsSecondNode),
            code::BLOCK_NOT_AVAILABLE => match &self.query {
                Query::BlockTime(query) if query.slot <= frontier.slot(Commitment::Finalized) => {
                    Ok(Meaning::NeedsSecondNode)
                }
                Query::Block(block) if block.slot <= frontier.slot(block.commitment) => {
                    Ok(Meaning::NeedsSecondNode)
                }
                _ => Ok(Meaning::Answer),
            },
            code::MIN_CONTEXT_SLOT_NOT_REACHED => Ok(behind),
            // Nodes use this code for data over the base58 limit and for malformed calls. Only the text
            // distinguishes them.
            code::INVALID_REQUEST if !error.windows(18).any(|w| w == b"Encoded binary (ba") => {
                Err(Fault::UnknownCode)
            }
            // The node may answer "no such account" at a slot at which the account did not exist yet.
            code::INVALID_PARAMS | code::INVALID_REQUEST if reads_accounts(&self.query) && below_min_slot => {
                Ok(behind)
            }
            _ => Meaning::of_code(code),
        }
    }

    fn learn(
        &self,
        frontier: &Frontier,
        member: &Member,
        (body, context): &ParsedReply,
        sent: &SentRequest,
        now: Instant,
    ) {
        let (slot, has_fallen) = match body {
            NodeReply::Result(_) => (*context, context.is_some_and(|slot| sent.shows_fall(slot))),
            NodeReply::Error { code: code::BLOCK_CLEANED_UP, body } => {
                if let Some(first) = first_available_block(body) {
                    member.state.first_available.store(first, Ordering::Relaxed);
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

    /// Accepts a refusal as the answer only if every node that may serve the method has refused.
    fn accepts_refusal(&self, attempts: &[FailedAttempt], members: &Members) -> bool {
        let refused = |name: &str| {
            attempts.iter().any(|attempt| attempt.upstream == name && attempt.is(AttemptResult::Incapable))
        };
        let method = AnyMethod::Own(self.query.method());
        members.iter().all(|member| !member.serves(method) || refused(&member.name))
    }
}

impl UpstreamRequest {
    /// Returns true if nodes walk over many accounts for the call, as some nodes do for the accounts of an owner.
    pub(super) fn is_scan(&self) -> bool {
        self.query.method().rules().part == Part::Scans
    }

    /// Returns true if `slot` is so far above the newest known slot that one node's answer is not believed. The
    /// node may be on a wrong chain, so a second node is asked, too.
    fn needs_second_node(&self, slot: Slot, frontier: &Frontier) -> bool {
        self.query.commitment().is_some_and(|commitment| !frontier.believes(commitment, slot))
    }

    /// Returns true if the node may have left out blocks of a list that begins in the past, because it does not hold them.
    fn may_be_cut(&self, body: &NodeReply, frontier: &Frontier) -> bool {
        let (Query::Blocks(BlocksQuery { first, last, .. }), NodeReply::Result(result)) = (&self.query, body)
        else {
            return false;
        };
        let finalized = frontier.slot(Commitment::Finalized);
        let is_past = first.saturating_add(LONGEST_SKIP) < finalized;
        let last = last.filter(|last| *last <= finalized);
        let is_list_whole = |slots: Vec<Slot>| is_whole(&slots, *first, last);
        is_past && !serde_json::from_slice(result).is_ok_and(is_list_whole)
    }

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

/// Turns a result below the caller's `minContextSlot` into the refusal that other nodes give.
///
/// It is not a fault of the node: behind one address there may be several machines, which are not all at the same slot.
fn as_refusal((reply, context): ParsedReply, callers_minimum: Option<Slot>) -> ParsedReply {
    match (&reply, context, callers_minimum) {
        (NodeReply::Result(_), Some(slot), Some(minimum)) if slot < minimum => {
            (NodeReply::min_context_slot_not_reached(slot), None)
        }
        _ => (reply, context),
    }
}

/// Returns true if `null` may only mean that the node does not know what another one knows.
fn may_be_unknown(query: &Query) -> bool {
    match query {
        Query::Block(_) => true,
        _ => query
            .plain()
            .is_some_and(|call| matches!(call.result, ResultKind::ObjectOrNull | ResultKind::NumberOrNull)),
    }
}

/// Returns true if the query names accounts, so that an error may depend on the node's slot.
fn reads_accounts(query: &Query) -> bool {
    matches!(query, Query::Balance(_) | Query::Supply(_) | Query::Account(_) | Query::Accounts(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jsonrpc::Params;
    use crate::methods::{Method, Profile};

    const ANSWER: Result<Meaning, Fault> = Ok(Meaning::Answer);
    const NEEDS_SECOND_NODE: Result<Meaning, Fault> = Ok(Meaning::NeedsSecondNode);
    const BEHIND: Result<Meaning, Fault> = Ok(Meaning::TryElsewhere(AttemptResult::Behind));
    const INCAPABLE: Result<Meaning, Fault> = Ok(Meaning::TryElsewhere(AttemptResult::Incapable));
    const ACCOUNT: &str = r#"["11111111111111111111111111111111"]"#;

    fn request(method: Method, params: &str, one_node: bool) -> UpstreamRequest {
        let params = Params::Array(Bytes::copy_from_slice(params.as_bytes()));
        UpstreamRequest {
            query: Query::parse(method, &params, Profile::Node).unwrap(),
            min_slot: Some(100),
            prefer: None,
            one_node,
            context: CallContext::own(Instant::now()),
        }
    }

    fn error(code: i32, message: &str) -> NodeReply {
        NodeReply::Error { code, body: Bytes::from(format!(r#"{{"code":{code},"message":"{message}"}}"#)) }
    }

    fn sent(slot_before: Slot) -> SentRequest {
        SentRequest {
            id: 0,
            at: Instant::now(),
            era: Frontier::new(0).era(),
            min_context_slot: None,
            slot_before,
            newest_before: slot_before,
            max_slot_lag: 20,
        }
    }

    #[tokio::test]
    async fn codes_match_the_node_contract() {
        let frontier = Frontier::new(1);
        frontier.probed(frontier.era(), 0, Commitment::Finalized, 50, Instant::now());
        let classify =
            |request: &UpstreamRequest, error| request.classify(&(error, None), &sent(100), &frontier);
        for (code, message, expected) in [
            (-32005, "Node is unhealthy", Err(Fault::Unhealthy)),
            (-32007, "", NEEDS_SECOND_NODE),
            (-32016, "", BEHIND),
            (-32601, "Method not found", INCAPABLE),
            (-32010, "", INCAPABLE),
            (-32011, "", INCAPABLE),
            (-32012, "", INCAPABLE),
            (-32019, "", INCAPABLE),
            (-32600, "Invalid request", Err(Fault::UnknownCode)),
            (-32600, "Encoded binary (base 58) data should be less than 128 bytes", ANSWER),
            (-32602, "Invalid param: could not find account", ANSWER),
            (-32603, "Internal error", Err(Fault::UnknownCode)),
            (-32700, "Parse error", Err(Fault::UnknownCode)),
            (-32099, "", Ok(Meaning::UnlistedError)),
            (-32000, "", Ok(Meaning::UnlistedError)),
        ] {
            let request = request(Method::GetAccountInfo, ACCOUNT, false);
            assert_eq!(classify(&request, error(code, message)), expected, "{code} {message}");
        }
        let alone = request(Method::GetAccountInfo, ACCOUNT, true);
        assert_eq!(classify(&alone, error(-32016, "")), ANSWER, "the caller's own number");
        for (slot, expected) in [(50, NEEDS_SECOND_NODE), (51, ANSWER)] {
            let request = request(Method::GetBlock, &format!("[{slot}]"), false);
            assert_eq!(classify(&request, error(-32004, "")), expected, "-32004 for {slot}");
        }
    }

    #[tokio::test]
    async fn result_below_the_minimum_slot_is_behind() {
        let frontier = Frontier::new(1);
        let account = request(Method::GetAccountInfo, ACCOUNT, false);
        for (context, expected) in [(Some(99), BEHIND), (Some(100), ANSWER), (None, Err(Fault::BadJson))] {
            let read = (NodeReply::Result(Bytes::from_static(b"{}")), context);
            assert_eq!(account.classify(&read, &sent(99), &frontier), expected, "{context:?}");
        }
    }

    #[tokio::test]
    async fn results_far_from_known_slots_are_doubted() {
        let frontier = Frontier::new(2);
        let account = UpstreamRequest { min_slot: None, ..request(Method::GetAccountInfo, ACCOUNT, false) };
        let result = |slot| (NodeReply::Result(Bytes::from_static(b"{}")), Some(slot));
        let classify = |slot| account.classify(&result(slot), &sent(1000), &frontier);
        assert_eq!(classify(100_000), ANSWER, "no node has told a slot");
        frontier.probed(frontier.era(), 0, Commitment::Finalized, 1000, Instant::now());
        for (slot, expected) in
            [(979, BEHIND), (980, ANSWER), (1000, ANSWER), (1064, ANSWER), (1065, NEEDS_SECOND_NODE)]
        {
            assert_eq!(classify(slot), expected, "{slot}");
        }
    }

    #[tokio::test]
    async fn answer_of_a_fallen_node_is_behind() {
        let frontier = Frontier::new(2);
        let account = UpstreamRequest { min_slot: None, ..request(Method::GetAccountInfo, ACCOUNT, false) };
        // The fall to slot 800 was seen between the choice of the node and the request.
        let sent = SentRequest { newest_before: 1000, ..sent(800) };
        for (slot, expected) in [(800, BEHIND), (979, BEHIND), (980, ANSWER), (1000, ANSWER)] {
            let read = (NodeReply::Result(Bytes::from_static(b"{}")), Some(slot));
            assert_eq!(account.classify(&read, &sent, &frontier), expected, "{slot}");
        }
    }

    #[tokio::test]
    async fn slow_answer_is_not_behind() {
        let frontier = Frontier::new(2);
        let account = UpstreamRequest { min_slot: None, ..request(Method::GetAccountInfo, ACCOUNT, false) };
        // The newest known slot has moved on by 30 slots while the answer was under way.
        frontier.probed(frontier.era(), 0, Commitment::Finalized, 1030, Instant::now());
        let read = (NodeReply::Result(Bytes::from_static(b"{}")), Some(1000));
        assert_eq!(account.classify(&read, &sent(1000), &frontier), ANSWER);
    }

    #[tokio::test]
    async fn account_error_below_the_minimum_is_behind() {
        let frontier = Frontier::new(1);
        for (method, params, expected) in [
            (Method::GetAccountInfo, ACCOUNT, BEHIND),
            (Method::GetTokenAccountBalance, ACCOUNT, BEHIND),
            (Method::GetMultipleAccounts, r#"[["11111111111111111111111111111111"]]"#, BEHIND),
            (Method::GetVoteAccounts, "[]", ANSWER),
        ] {
            let absent = (error(-32602, "Invalid param: could not find account"), None);
            let at = |slot, alone| request(method, params, alone).classify(&absent, &sent(slot), &frontier);
            assert_eq!(
                (at(99, false), at(100, false), at(99, true)),
                (expected, ANSWER, ANSWER),
                "{method:?}"
            );
        }
    }

    #[tokio::test]
    async fn context_is_read_in_any_order() {
        let balance = request(Method::GetTokenAccountBalance, ACCOUNT, false);
        let nodes = request(Method::GetClusterNodes, "[]", false);
        for (result, request, expected) in [
            (r#"{"context":{"slot":5},"value":{"amount":"1"}}"#, &balance, Ok(Some(5))),
            (r#"{ "context" : { "slot" : 5 }, "value" : { "amount" : "1" } }"#, &balance, Ok(Some(5))),
            (r#"{"value":{"amount":"1"},"context":{"apiVersion":"4.0.0","slot":5}}"#, &balance, Ok(Some(5))),
            (r#"{"value":{"amount":"1"}}"#, &balance, Err(Fault::BadJson)),
            ("[]", &nodes, Ok(None)),
        ] {
            let read = request.reader()(NodeReply::Result(Bytes::from_static(result.as_bytes())));
            assert_eq!(read.map(|(_, context)| context), expected, "{result}");
        }
    }
}
