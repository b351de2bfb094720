//! The responses to the calls of one HTTP request, and the body that is assembled from them.

use std::sync::Arc;

use bytes::Bytes;

use super::access::{CallOutcome, Calls};
use super::reply::BodyParts;
use crate::cache::CacheStatus;
use crate::coding::{self, Coding, CompressedText, SplicePart, WORTH_BYTES};
use crate::error::Error;
use crate::jsonrpc::{Id, reply};

pub(super) struct CallResponse {
    pub(super) body: BodyParts,
    /// The compressed text between the first and the last piece of `body`. These two pieces are the JSON-RPC
    /// envelope. `None` if the cache has not compressed the text.
    pub(super) compressed: Option<Arc<CompressedText>>,
    /// The value for the header `Cache-Status`. `None` for a refusal by slotfront.
    pub(super) status: Option<CacheStatus>,
    pub(super) refusal: Option<Error>,
    pub(super) outcome: CallOutcome,
}

impl CallResponse {
    /// Creates a response that is not compressed and has no cache status.
    pub(super) fn new(body: BodyParts, outcome: CallOutcome) -> Self {
        Self { body, compressed: None, status: None, refusal: None, outcome }
    }

    /// Returns true if the cache compresses answers with this response's length and method. `compressed` may still
    /// be `None`, for example if too many answers were being compressed.
    pub(super) fn compression_is_left_to_cache(&self) -> bool {
        self.outcome.method.is_some() && self.body.len() >= WORTH_BYTES
    }

    /// Adds the response's body to `parts`, in compressed form if the cache has compressed it.
    fn add_to<'a>(&'a self, parts: &mut Vec<SplicePart<'a>>) {
        match (&self.compressed, self.body.first_and_last()) {
            (Some(compressed), Some((head, tail))) => {
                parts.extend([
                    SplicePart::Plain(head),
                    SplicePart::Coded(compressed),
                    SplicePart::Plain(tail),
                ]);
            }
            _ => parts.extend(self.body.iter().cloned().map(SplicePart::Plain)),
        }
    }
}

pub(super) enum Responses {
    /// The response to a request that is not a batch.
    Whole(CallResponse),
    /// The responses to the calls of a batch, in order. A notification has no response.
    Batch(Vec<CallResponse>),
}

impl Responses {
    pub(super) fn all(&self) -> &[CallResponse] {
        match self {
            Self::Whole(response) => std::slice::from_ref(response),
            Self::Batch(responses) => responses,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    pub(super) fn len(&self) -> usize {
        let texts: usize = self.all().iter().map(|response| response.body.len()).sum();
        let separators: usize = (0..=self.all().len()).map(|at| self.separator(at).len()).sum();
        texts + separators
    }

    pub(super) fn text(&self) -> BodyParts {
        let mut body = BodyParts::default();
        for (at, response) in self.all().iter().enumerate() {
            body.push(self.separator(at));
            body.append(response.body.clone());
        }
        body.push(self.separator(self.all().len()));
        body
    }

    pub(super) fn into_text(self) -> BodyParts {
        let end = self.separator(1);
        match self {
            Self::Whole(response) => {
                let mut body = response.body;
                body.push(end);
                body
            }
            Self::Batch(_) => self.text(),
        }
    }

    /// Returns the body in `coding`, assembled from the texts that the cache has compressed. The other texts are
    /// embedded without compression. `None` if the cache has compressed no text.
    pub(super) fn spliced(&self, coding: Coding) -> Option<Vec<Bytes>> {
        if self.all().iter().all(|response| response.compressed.is_none()) {
            return None;
        }
        let mut parts = Vec::with_capacity(4 * self.all().len() + 1);
        for (at, response) in self.all().iter().enumerate() {
            parts.push(SplicePart::Plain(self.separator(at)));
            response.add_to(&mut parts);
        }
        parts.push(SplicePart::Plain(self.separator(self.all().len())));
        coding::splice(coding, &parts)
    }

    /// Returns the text before the response at index `at`, such as the comma between two responses of a batch. For the
    /// index after the last response, returns the text that ends the body.
    fn separator(&self, at: usize) -> Bytes {
        Bytes::from_static(match self {
            Self::Whole(_) if at == 0 => b"",
            Self::Whole(_) => b"\n",
            Self::Batch(responses) if at == responses.len() => b"]\n",
            Self::Batch(_) if at == 0 => b"[",
            Self::Batch(_) => b",",
        })
    }

    /// Returns the value of the header `Cache-Status` for the HTTP response. `None` if every response is a refusal
    /// by slotfront.
    pub(super) fn status(&self) -> Option<CacheStatus> {
        match self {
            Self::Whole(response) => response.status,
            Self::Batch(responses) => {
                let answers = || responses.iter().filter_map(|response| response.status);
                let hits = answers().filter(|status| status.is_hit()).count();
                let of = answers().count();
                (of > 0).then_some(CacheStatus::Batch { hits, of })
            }
        }
    }

    /// Returns the refusal of a request that is not a batch. `None` for an answered request, and for every batch.
    pub(super) fn refusal(&self) -> Option<&Error> {
        match self {
            Self::Whole(response) => response.refusal.as_ref(),
            Self::Batch(_) => None,
        }
    }

    pub(super) fn calls(&self) -> Calls {
        self.all().iter().fold(Calls::NONE, |calls, response| calls.and(response.outcome))
    }
}

/// Returns a result, given in pieces, inside the JSON-RPC envelope with the caller's id. The pieces are not copied.
pub(super) fn spliced_result(id: &Id, result: impl IntoIterator<Item = Bytes>) -> BodyParts {
    let (head, tail) = reply::head_and_tail(id);
    let mut body = BodyParts::default();
    body.push(head);
    result.into_iter().for_each(|piece| body.push(piece));
    body.push(tail);
    body
}

/// Returns a node's error object inside the JSON-RPC envelope with the caller's id.
pub(super) fn node_error(id: &Id, error: &[u8]) -> BodyParts {
    let mut text = Vec::with_capacity(error.len() + 64);
    reply::node_error(&mut text, id, error);
    BodyParts::from(Bytes::from(text))
}
