//! The reads of the tip as upstream calls. An answer below the tip is never shown, so it is not an answer.

use bytes::Bytes;

use super::call_context::CallContext;
use super::member::Member;
use super::members::Members;
use super::question::{ParsedReply, Question, SentRequest};
use super::upstream_call::{MinSlotUse, UpstreamCall};
use crate::error::FailedAttempt;
use crate::frontier::Frontier;
use crate::methods::{
    AnyMethod, Commitment, EpochInfo, LatestBlockhash, SignatureStatus, Slot, TipMethod, TipQuery,
};
use crate::node::answer::error_context_slot;
use crate::node::{Contextual, Fault, NodeReply, code};
use crate::telemetry::AttemptResult;

/// A read of the tip on its way to a node: getEpochInfo, getLatestBlockhash, isBlockhashValid, getSignatureStatuses, or any
/// of the six with members that slotfront does not know.
#[derive(Debug, Clone)]
pub struct TipRequest {
    /// The query, with its caller's `minContextSlot`.
    pub query: TipQuery,
    /// The lowest slot of an answer at each commitment, by [`Commitment::index`].
    pub floors: [Slot; 3],
    pub context: CallContext,
}

impl TipRequest {
    fn is_search(&self) -> bool {
        matches!(self.query.known(), TipQuery::Statuses { search_history: true, .. })
    }

    fn at(&self) -> Commitment {
        self.query.commitment().unwrap_or(Commitment::Processed)
    }

    /// Returns the lowest slot of an answer: the tip, or the caller's minimum if it is higher.
    fn floor(&self) -> Slot {
        self.floors[self.at().index()].max(self.callers_minimum().unwrap_or(0))
    }

    fn callers_minimum(&self) -> Option<Slot> {
        self.query.read_at().and_then(|at| at.min_context_slot)
    }

    /// Returns true if the caller asks for a slot that nobody was shown yet, so that a refusal is an answer.
    fn may_be_refused(&self) -> bool {
        self.callers_minimum().is_some_and(|minimum| minimum > self.floors[self.at().index()])
    }
}

/// Returns the slot of a result. `None` if the result does not fit the query. A height names no slot: it is of `floor`, for
/// which the node was asked, or of a later one.
///
/// A status below its commitment shows that the node's chain is behind the tip at that commitment, so its slot is then
/// 0, below every tip.
fn slot_of(query: &TipQuery, floors: [Slot; 3], floor: Slot, result: &Bytes) -> Option<Slot> {
    match query {
        TipQuery::State(TipMethod::GetEpochInfo, _) => {
            return Some(serde_json::from_slice::<EpochInfo>(result).ok()?.absolute_slot);
        }
        TipQuery::State(TipMethod::GetSlot, _) => return serde_json::from_slice(result).ok(),
        TipQuery::State(TipMethod::GetBlockHeight, _) => {
            return serde_json::from_slice(result).ok().map(|_: u64| floor);
        }
        _ => {}
    }
    let Contextual { slot, value, .. } = Contextual::split(result)?;
    match query {
        TipQuery::State(..) => serde_json::from_slice(&value).ok().map(|_: LatestBlockhash| slot),
        TipQuery::BlockhashValid(..) => serde_json::from_slice(&value).ok().map(|_: bool| slot),
        TipQuery::Statuses { signatures, .. } => {
            let statuses = statuses(&value)?;
            let is_behind = |status: &SignatureStatus<'_>| {
                let reached = status.confirmation_status;
                let due = Commitment::ALL.into_iter().filter(|c| floors[c.index()] >= status.slot).max();
                reached.is_some() && due > reached
            };
            let slot = if statuses.iter().flatten().any(is_behind) { 0 } else { slot };
            (statuses.len() == signatures.len()).then_some(slot)
        }
        TipQuery::Extended(..) => None,
    }
}

fn statuses(value: &Bytes) -> Option<Vec<Option<SignatureStatus<'_>>>> {
    serde_json::from_slice(value).ok()
}

impl UpstreamCall for TipRequest {
    fn question(&self) -> Question<'_> {
        Question {
            commitment: Some(self.at()),
            has_slot: true,
            lowest_slot: Some(self.floor()),
            wanted_slot: Some(self.floor()),
            // A search of the history takes as long as the history is.
            is_quick: !self.is_search(),
            is_of_any_length: self.is_search(),
            ..Question::new(AnyMethod::Tip(self.query.method()), &self.context)
        }
    }

    fn write(&self, id: u64, _: &Member, _: MinSlotUse) -> (Bytes, Option<Slot>) {
        let floor = Some(self.floor()).filter(|floor| *floor > 0 && self.query.read_at().is_some());
        let (method, params) = (self.query.method().as_str(), self.query.params_json(floor));
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        (body.into(), floor)
    }

    fn reader(&self, _: Slot) -> impl FnOnce(NodeReply) -> Result<ParsedReply, Fault> + Send + 'static {
        let (query, floors, minimum) = (self.query.clone(), self.floors, self.callers_minimum());
        let floor = self.floor();
        move |reply| match &reply {
            NodeReply::Error { .. } => Ok(ParsedReply::new(reply, None)),
            NodeReply::Result(result) => {
                let slot = slot_of(query.known(), floors, floor, result).ok_or(Fault::BadJson)?;
                // Behind one address there may be several machines, and some ignore the minimum.
                let reply = match minimum {
                    Some(minimum) if slot < minimum => NodeReply::min_context_slot_not_reached(slot),
                    _ => reply,
                };
                Ok(ParsedReply::new(reply, Some(slot)))
            }
        }
    }

    fn learn(
        &self,
        frontier: &Frontier,
        member: &Member,
        ParsedReply { reply, slot, .. }: &ParsedReply,
        sent: &SentRequest,
        now: tokio::time::Instant,
    ) {
        match (reply, slot) {
            (NodeReply::Error { code: code::MIN_CONTEXT_SLOT_NOT_REACHED, body }, None) => {
                // It may be below a slot that it had reached: it was restarted, or replaced by another machine.
                if let Some(slot) = error_context_slot(body) {
                    frontier.probed(sent.era, member.id, self.at(), slot, now);
                }
            }
            (_, Some(slot)) if *slot > 0 => {
                frontier.answered(sent.era, member.id, self.at(), *slot, now);
            }
            _ => {}
        }
        // Where the node has a transaction at a commitment, its chain is there, too. Accounts are then read from such nodes. Its
        // first slot is not that of a transaction, which may be years old.
        if let (TipQuery::Statuses { .. }, NodeReply::Result(result)) = (self.query.known(), reply)
            && let Some(Contextual { value, .. }) = Contextual::split(result)
        {
            for SignatureStatus { slot, confirmation_status, .. } in
                statuses(&value).into_iter().flatten().flatten()
            {
                let is_newer = |at: &Commitment| member.slot(*at).is_some_and(|known| known < slot);
                if let Some(at) = confirmation_status.filter(is_newer) {
                    frontier.answered(sent.era, member.id, at, slot, now);
                }
            }
        }
    }

    fn accepts_refusal(&self, attempts: &[FailedAttempt], _: &Members) -> bool {
        let is_behind = |attempt: &FailedAttempt| attempt.is(AttemptResult::Behind);
        self.may_be_refused() || !attempts.iter().any(is_behind)
    }
}
