//! The questions for the statuses of signatures, merged: while one call is under way, all callers who ask wait together
//! for the next one. If that has no room for another question, it is sent at once, so that nobody makes the others wait
//! for many calls by asking for many signatures.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::read::{ASKED, Unread};
use super::{Tip, TipAnswer, own_context};
use crate::error::Error;
use crate::fair::{CallerHoldings, CallerId};
use crate::methods::{Commitment, MAX_SIGNATURES, Signature, SignatureStatus, Slot, TipQuery};
use crate::node::shape::elements;
use crate::node::{Contextual, NodeReply};
use crate::pool::{CallContext, PoolReply};

/// The maximum number of signatures in all questions that have no answer yet: 64 full calls.
const MAX_ASKED: usize = 64 * MAX_SIGNATURES;

/// The statuses of some signatures in their order, each as JSON text, as of one slot.
#[derive(Debug, Clone)]
pub(super) struct Statuses {
    pub(super) slot: Slot,
    pub(super) context: Bytes,
    pub(super) each: Vec<Bytes>,
    pub(super) node: usize,
}

/// The questions that wait, and the turn to ask.
#[derive(Default)]
pub(super) struct Merger {
    open: Mutex<Arc<Batch>>,
    turn: tokio::sync::Mutex<()>,
    /// The signatures in all questions that have no answer yet, and those of each caller.
    asked: AtomicUsize,
    callers: CallerHoldings,
}

/// The place of a question among those that have no answer yet. Dropping it gives the place back.
struct QuestionPlace<'a> {
    of: &'a Merger,
    caller: CallerId,
    signatures: usize,
}

impl Drop for QuestionPlace<'_> {
    fn drop(&mut self) {
        self.of.asked.fetch_sub(self.signatures, Ordering::Relaxed);
        self.of.callers.remove(self.caller, self.signatures);
    }
}

/// Questions that one call answers, which whoever gets the turn first sends for all.
#[derive(Default)]
struct Batch {
    signatures: Mutex<BTreeSet<Signature>>,
    /// Cancelled once there was no room for another question, so that waiting would gather none.
    full: CancellationToken,
    answer: OnceCell<BatchAnswer>,
}

type BatchAnswer = (Arc<[Signature]>, Result<Statuses, Unread>);

impl Tip {
    /// Answers getSignatureStatuses. A status that is not there yet is never kept.
    ///
    /// # Errors
    /// No node answers at or above the tip in time, or a node refuses the call.
    pub(super) async fn statuses(
        &self,
        query: &TipQuery,
        context: &CallContext,
    ) -> Result<TipAnswer, Unread> {
        let statuses = match query {
            TipQuery::Statuses { signatures, search_history: false } if !signatures.is_empty() => {
                self.merged_statuses(signatures, context).await
            }
            _ => split(self.ask(query, context).await?),
        };
        Ok(self.shown_statuses(&statuses?))
    }

    fn shown_statuses(&self, Statuses { slot, context, each, node }: &Statuses) -> TipAnswer {
        self.raise(Commitment::Processed, *slot);
        let mut landed = [0; 3];
        let mut result =
            BytesMut::with_capacity(64 + each.iter().map(|status| status.len() + 1).sum::<usize>());
        result.put_slice(b"{\"context\":");
        result.put_slice(context);
        result.put_slice(b",\"value\":[");
        for (at, text) in each.iter().enumerate() {
            if let Some(SignatureStatus { slot, confirmation_status: Some(reached), .. }) = read_status(text)
            {
                self.raise(reached, slot);
                landed[reached.index()] = slot.max(landed[reached.index()]);
            }
            result.put_slice(if at == 0 { b"" } else { b"," });
            result.put_slice(text);
        }
        result.put_slice(b"]}");
        TipAnswer { landed, ..TipAnswer::new(NodeReply::Result(result.freeze()), ASKED, Some(*node)) }
    }

    async fn merged_statuses(
        &self,
        signatures: &[Signature],
        context: &CallContext,
    ) -> Result<Statuses, Unread> {
        let _place = self.merger.place(context.caller, signatures.len()).ok_or(Error::Overloaded)?;
        let batch = self.merger.join(signatures);
        let ask = async || {
            let _turn = tokio::select! {
                turn = self.merger.turn.lock() => Some(turn),
                () = batch.full.cancelled() => None,
            };
            let all: Arc<[_]> = self.merger.close(&batch).into();
            let context = own_context(context.trace.clone());
            let query = TipQuery::Statuses { signatures: Arc::clone(&all), search_history: false };
            let answer = match self.ask(&query, &context).await {
                Ok(reply) => split(reply),
                Err(error) => Err(error.into()),
            };
            (all, answer)
        };
        let (all, answer) = batch.answer.get_or_init(ask).await;
        let statuses = answer.as_ref().map_err(Clone::clone)?;
        let own = signatures.iter().filter_map(|own| statuses.each.get(all.binary_search(own).ok()?));
        Ok(Statuses { each: own.cloned().collect(), context: statuses.context.clone(), ..*statuses })
    }
}

/// Reads a status. `None` if there is none.
pub(super) fn read_status(text: &[u8]) -> Option<SignatureStatus<'_>> {
    serde_json::from_slice::<Option<SignatureStatus<'_>>>(text).ok()?
}

/// Splits a node's reply into the statuses.
///
/// # Errors
/// The reply is an error.
pub(super) fn split(reply: PoolReply) -> Result<Statuses, Unread> {
    let NodeReply::Result(result) = &reply.body else { return Err(Unread::Refused(reply)) };
    // The pool has checked the form.
    let parts = Contextual::split(result).ok_or(Error::NoUpstream(Vec::new()))?;
    let Contextual { slot, context, value } = parts;
    Ok(Statuses { slot, context, each: elements(&value).unwrap_or_default(), node: reply.node })
}

impl Merger {
    /// Takes the place of a question. `None` if all callers together, or this one, have as many as they may: merged calls
    /// are slotfront's own, so nodes do not share them out.
    fn place(&self, caller: CallerId, signatures: usize) -> Option<QuestionPlace<'_>> {
        let all = self.asked.fetch_add(signatures, Ordering::Relaxed);
        self.callers.add(caller, signatures);
        let place = QuestionPlace { of: self, caller, signatures };
        // The caller's own place is counted already.
        self.callers.may_add(caller, 0, all, MAX_ASKED.checked_sub(all + signatures)?).then_some(place)
    }

    /// Adds a question to the call that is sent next, or to a further one if that has no room.
    fn join(&self, signatures: &[Signature]) -> Arc<Batch> {
        let mut open = self.open.lock();
        if open.lock().len() + signatures.len() > MAX_SIGNATURES {
            std::mem::take(&mut *open).full.cancel();
        }
        open.lock().extend(signatures);
        Arc::clone(&open)
    }

    fn close(&self, batch: &Arc<Batch>) -> Vec<Signature> {
        let mut open = self.open.lock();
        if Arc::ptr_eq(&open, batch) {
            *open = Arc::default();
        }
        batch.lock().iter().copied().collect()
    }
}

impl Batch {
    fn lock(&self) -> parking_lot::MutexGuard<'_, BTreeSet<Signature>> {
        self.signatures.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_caller_takes_all_places() {
        let merger = Merger::default();
        let [hog, other] = [1, 2].map(CallerId::numbered);
        let held: Vec<_> = (0..1_000).map_while(|_| merger.place(hog, MAX_SIGNATURES)).collect();
        assert!(held.len() > 32 && held.len() < 64, "{}", held.len());
        assert!(merger.place(hog, MAX_SIGNATURES).is_none());
        assert!(merger.place(other, MAX_SIGNATURES).is_some());
        drop(held);
        assert_eq!(merger.asked.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn questions_share_calls_of_256_signatures() {
        let signatures = |numbers: std::ops::Range<u16>| -> Vec<_> {
            let signature = |number: u16| {
                let mut bytes = [0; 64];
                bytes[..2].copy_from_slice(&number.to_be_bytes());
                Signature(bytes)
            };
            numbers.map(signature).collect()
        };
        for (questions, expected) in [
            (vec![0..1, 0..1], vec![1, 1]),
            (vec![0..100, 50..150, 0..100], vec![150, 150, 150]),
            (vec![0..200, 200..256, 256..257], vec![256, 256, 1]),
            (vec![0..256, 0..256], vec![256, 256]),
        ] {
            let merger = Merger::default();
            let joined = questions.iter().map(|numbers| merger.join(&signatures(numbers.clone())));
            let batches: Vec<_> = joined.collect();
            let asked: Vec<_> = batches.iter().map(|batch| merger.close(batch)).collect();
            let late = merger.join(&signatures(999..1_000));
            assert!(
                !batches.iter().any(|batch| Arc::ptr_eq(batch, &late)),
                "nobody joins a call that is sent"
            );
            assert_eq!(asked.iter().map(Vec::len).collect::<Vec<_>>(), expected);
            for (asked, numbers) in asked.iter().zip(questions) {
                assert!(signatures(numbers).iter().all(|own| asked.binary_search(own).is_ok()));
            }
        }
    }
}
