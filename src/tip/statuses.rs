//! The questions for the statuses of signatures, merged: while one call is under way, all callers who ask wait together
//! for the next one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::join_all;
use tokio::sync::oneshot;

use super::read::ASKED;
use super::{Tip, TipAnswer};
use crate::error::Error;
use crate::methods::{Commitment, MAX_SIGNATURES, Signature, SignatureStatus, Slot, TipQuery};
use crate::node::answer::elements;
use crate::node::{Contextual, NodeReply};
use crate::pool::CallContext;

/// The statuses of some signatures in their order, each as JSON text, as of one slot.
#[derive(Debug, Clone)]
pub(super) struct Statuses {
    pub(super) slot: Slot,
    pub(super) context: Bytes,
    pub(super) each: Vec<Bytes>,
}

/// A node's answer: the statuses, or its error.
pub(super) type StatusReply = Result<Result<Statuses, NodeReply>, Error>;

/// The callers who wait for the next call.
#[derive(Default)]
pub(super) struct Merger(Mutex<WaitingQuestions>);

#[derive(Default)]
struct WaitingQuestions {
    questions: Vec<Question>,
    /// True while a task asks nodes.
    is_asking: bool,
}

struct Question {
    signatures: Arc<[Signature]>,
    context: CallContext,
    answer: oneshot::Sender<StatusReply>,
}

/// Questions that one call answers.
#[derive(Default)]
struct Batch {
    signatures: Vec<Signature>,
    places: HashMap<Signature, usize>,
    questions: Vec<Question>,
}

impl Tip {
    /// Answers getSignatureStatuses. A status that is not there yet is never kept.
    ///
    /// # Errors
    /// No node answers at or above the tip in time.
    pub(super) async fn statuses(
        self: &Arc<Self>,
        signatures: Arc<[Signature]>,
        search_history: bool,
        context: &CallContext,
    ) -> Result<TipAnswer, Error> {
        let reply = if search_history || signatures.is_empty() {
            self.ask_for_statuses(signatures, search_history, context).await?
        } else {
            self.merged_statuses(signatures, context).await?
        };
        Ok(reply
            .map_or_else(|refusal| TipAnswer::new(refusal, ASKED), |statuses| self.shown_statuses(&statuses)))
    }

    /// Returns the answer with these statuses, which count as shown.
    fn shown_statuses(&self, Statuses { slot, context, each }: &Statuses) -> TipAnswer {
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
        TipAnswer { landed, ..TipAnswer::new(NodeReply::Result(result.freeze()), ASKED) }
    }

    async fn merged_statuses(
        self: &Arc<Self>,
        signatures: Arc<[Signature]>,
        context: &CallContext,
    ) -> StatusReply {
        let (answer, answered) = oneshot::channel();
        let starts = {
            let mut waiting = self.merger.lock();
            waiting.questions.push(Question { signatures, context: context.clone(), answer });
            !std::mem::replace(&mut waiting.is_asking, true)
        };
        if starts {
            let tip = Arc::clone(self);
            self.tasks.spawn(async move {
                while let Some(batches) = tip.merger.take() {
                    join_all(batches.into_iter().map(|batch| tip.ask_batch(batch))).await;
                }
            });
        }
        // The task answers every question.
        answered.await.unwrap_or_else(|_| Err(Error::NoUpstream(Vec::new())))
    }

    async fn ask_batch(self: &Arc<Self>, Batch { signatures, places, questions }: Batch) {
        let Some(first) = questions.first() else { return };
        // Those who came later have more time.
        let latest = questions.iter().map(|question| question.context.deadline).max();
        let deadline = latest.unwrap_or(first.context.deadline);
        let context = CallContext { deadline, ..first.context.clone() };
        let reply = self.ask_for_statuses(signatures.into(), false, &context).await;
        for Question { signatures, answer, .. } in questions {
            let own = |statuses: &Statuses| {
                let each =
                    signatures.iter().filter_map(|signature| statuses.each.get(*places.get(signature)?));
                Statuses { each: each.cloned().collect(), ..statuses.clone() }
            };
            let _ = answer.send(
                reply
                    .as_ref()
                    .map(|reply| reply.as_ref().map(own).map_err(Clone::clone))
                    .map_err(Clone::clone),
            );
        }
    }

    /// Asks nodes for statuses until one answers at or above the tip.
    async fn ask_for_statuses(
        self: &Arc<Self>,
        signatures: Arc<[Signature]>,
        search_history: bool,
        context: &CallContext,
    ) -> StatusReply {
        let reply = self.ask(&TipQuery::Statuses { signatures, search_history }, context).await?;
        Ok(split(reply.body))
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
pub(super) fn split(reply: NodeReply) -> Result<Statuses, NodeReply> {
    let NodeReply::Result(result) = &reply else { return Err(reply) };
    // The pool has checked the form.
    let Some(Contextual { slot, context, value }) = Contextual::split(result) else { return Err(reply) };
    Ok(Statuses { slot, context, each: elements(&value).unwrap_or_default() })
}

impl Merger {
    fn lock(&self) -> std::sync::MutexGuard<'_, WaitingQuestions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all questions, in batches of the signatures that one call may have. `None` if nobody waits.
    fn take(&self) -> Option<Vec<Batch>> {
        let mut waiting = self.lock();
        if waiting.questions.is_empty() {
            waiting.is_asking = false;
            return None;
        }
        let mut batches = vec![Batch::default()];
        for question in std::mem::take(&mut waiting.questions) {
            let full = |batch: &Batch| batch.signatures.len() + question.signatures.len() > MAX_SIGNATURES;
            if batches.last().is_none_or(full) {
                batches.push(Batch::default());
            }
            let Some(batch) = batches.last_mut() else { continue };
            for signature in &*question.signatures {
                batch.places.entry(*signature).or_insert_with(|| {
                    batch.signatures.push(*signature);
                    batch.signatures.len() - 1
                });
            }
            batch.questions.push(question);
        }
        Some(batches)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn question(numbers: std::ops::Range<u16>) -> Question {
        let signature = |number: u16| {
            let mut bytes = [0; 64];
            bytes[..2].copy_from_slice(&number.to_be_bytes());
            Signature(bytes)
        };
        let (answer, _) = oneshot::channel();
        let signatures = numbers.map(signature).collect();
        Question { signatures, context: CallContext::own(Instant::now()), answer }
    }

    #[tokio::test]
    async fn questions_share_calls_of_256_signatures() {
        for (questions, expected) in [
            (vec![], None),
            (vec![0..1, 0..1], Some(vec![(1, 2)])),
            (vec![0..100, 50..150, 0..100], Some(vec![(150, 3)])),
            (vec![0..200, 200..256, 256..257], Some(vec![(256, 2), (1, 1)])),
            (vec![0..256, 0..256], Some(vec![(256, 1), (256, 1)])),
        ] {
            let merger = Merger::default();
            merger.lock().questions = questions.into_iter().map(question).collect();
            let batches = merger.take();
            let sizes = batches.as_ref().map(|batches| {
                let size = |batch: &Batch| (batch.signatures.len(), batch.questions.len());
                batches.iter().map(size).collect::<Vec<_>>()
            });
            assert_eq!(sizes, expected);
            for batch in batches.into_iter().flatten() {
                let asked = batch.questions.iter().flat_map(|question| question.signatures.iter());
                assert!(asked.into_iter().all(|asked| batch.signatures[batch.places[asked]] == *asked));
            }
        }
    }
}
