//! A batch: each element is answered by itself, and all of them leave together.
//!
//! An element that is there early waits for the others, and ages. So hits are looked at once more before they leave.

use bytes::Bytes;
use futures_util::future::join_all;
use hyper::StatusCode;
use tokio::time::Instant;

use super::accept_encoding::Accepted;
use super::access::Calls;
use super::call::PendingHit;
use super::encoding;
use super::pieces::Pieces;
use super::rpc::{CallResponse, Context, Done, END};
use crate::cache::CacheStatus;
use crate::coding::{self, Coding, Part, WORTH_BYTES};
use crate::jsonrpc::envelope::Element;
use crate::methods::Profile;

/// The coding in which the cache gives each long answer of a batch of so many elements. A batch of several goes out in
/// gzip alone: zstd cannot hold more than one text that was compressed before.
pub(super) fn coding(accepts: Accepted, elements: usize) -> Option<Coding> {
    if elements == 1 { accepts.best() } else { Some(Coding::Gzip).filter(|gzip| accepts.takes(*gzip)) }
}

impl Context<'_> {
    /// The reply to a batch: 200, each element with its own outcome, in order; notifications have none.
    pub(super) async fn batch(&self, elements: Vec<Element>, accepts: Accepted) -> Done {
        let spoken = join_all(elements.into_iter().map(|element| self.element(element))).await;
        let mut spoken: Vec<CallResponse> = spoken.into_iter().flatten().collect();
        if spoken.is_empty() {
            return Done::nothing();
        }
        self.renew(&mut spoken).await;
        let packed = self.packed(&mut spoken, array, accepts).await;
        let packed = packed.or_else(|| spliced(self.coding?, &spoken));
        let calls = spoken.iter().fold(Calls::NONE, |calls, spoken| calls.and(spoken.ended));
        let answers: Vec<CacheStatus> = spoken.iter().filter_map(|spoken| spoken.status).collect();
        let body = array(&spoken);
        let bytes = body.len();
        let mut reply = self.reply(StatusCode::OK, body);
        if let Some((coding, body)) = packed {
            reply.packed(coding, body);
        }
        if !answers.is_empty() {
            let hits = answers.iter().filter(|status| status.is_hit()).count();
            reply.cache = Some(CacheStatus::Batch { hits, of: answers.len() });
        }
        Done { reply, calls, reason: None, bytes }
    }

    /// One element's answer; a notification has none.
    async fn element(&self, element: Element) -> Option<CallResponse> {
        match element {
            Element::Notification => {
                self.principal.note_call(Instant::now());
                None
            }
            Element::Refused { id, error } => {
                let error = self.principal.take(Instant::now()).err().unwrap_or(error);
                Some(self.refused(&id, error))
            }
            Element::Call(call) => Some(match self.begin(call) {
                Ok(spoken) => spoken,
                Err(rest) => Box::pin(self.rest(*rest)).await,
            }),
        }
    }

    /// The reply to a call that stands alone, compressed as a whole where the cache has not seen to that.
    pub(super) async fn alone_packed(&self, spoken: CallResponse, accepts: Accepted) -> Done {
        if !self.is_packed(&spoken, accepts) {
            return self.alone(spoken);
        }
        let mut spoken = [spoken];
        let packed = self.packed(&mut spoken, line, accepts).await;
        let [spoken] = spoken;
        let mut done = self.alone(spoken);
        if let Some((coding, body)) = packed {
            done.reply.packed(coding, body);
        }
        done
    }

    /// Returns true if an answer that stands alone is to be compressed as a whole: it is long, and no text of a node's is
    /// in it as the cache has it.
    pub(super) fn is_packed(&self, spoken: &CallResponse, accepts: Accepted) -> bool {
        let by_cache = self.front.config.profile == Profile::Node && spoken.ended.method.is_some();
        accepts.best().is_some() && !by_cache && coding::is_worth(spoken.body.len())
    }

    /// What `text` makes of all that is spoken, compressed as a whole. `None` where that is not worth it, or where the
    /// cache compresses long answers one by one.
    async fn packed(
        &self,
        spoken: &mut [CallResponse],
        text: fn(&[CallResponse]) -> Pieces,
        accepts: Accepted,
    ) -> Option<(Coding, Vec<Bytes>)> {
        let coding = accepts.best()?;
        let by_cache = |spoken: &CallResponse| {
            self.front.config.profile == Profile::Node
                && spoken.ended.method.is_some()
                && spoken.body.len() >= WORTH_BYTES
        };
        let plain = text(spoken);
        if !coding::is_worth(plain.len()) || spoken.iter().any(by_cache) {
            return None;
        }
        let body = encoding::encoded(self.front.cache.compressor(), coding, plain).await;
        // What has aged meanwhile is not the same text any more.
        let renewed = self.renew(spoken).await;
        body.filter(|_| !renewed).map(|body| (coding, vec![body]))
    }

    /// Answers anew each hit that has aged while it waited for something else. Returns true if there was any.
    async fn renew(&self, spoken: &mut [CallResponse]) -> bool {
        let cache = &self.front.cache;
        let has_aged = |spoken: &&mut CallResponse| {
            spoken.hit.as_ref().is_some_and(|hit| !cache.still_serves(&hit.query, &hit.stamp, hit.status))
        };
        let mut any = false;
        loop {
            let aged: Vec<_> = spoken.iter_mut().filter(has_aged).collect();
            if aged.is_empty() {
                return any;
            }
            any = true;
            join_all(aged.into_iter().map(|spoken| Box::pin(self.speak_again(spoken)))).await;
        }
    }

    /// Answers a call once more that was answered by a hit.
    async fn speak_again(&self, spoken: &mut CallResponse) {
        let Some(hit) = spoken.hit.take() else { return };
        let PendingHit { id, query, .. } = *hit;
        let (method, commitment) = (Some(query.method()), query.commitment());
        self.gives_back(spoken.body.len());
        match self.again(&query).await {
            Ok(answer) => {
                let body = self.text(&id, &query, &answer);
                if let Err(error) = self.takes(&body) {
                    *spoken = self.count_refused(&id, method, commitment, error);
                    return;
                }
                (spoken.body, spoken.coded, spoken.status) =
                    (body, answer.coded.clone(), Some(answer.status));
                spoken.hit = self.hit(&id, &query, &answer);
            }
            Err(error) => *spoken = self.count_refused(&id, method, commitment, error),
        }
    }
}

/// The text of a call that stands alone.
fn line(spoken: &[CallResponse]) -> Pieces {
    let mut body = Pieces::default();
    for spoken in spoken {
        body.append(spoken.body.clone());
    }
    body.push(Bytes::from_static(END));
    body
}

/// The text of a batch.
fn array(spoken: &[CallResponse]) -> Pieces {
    let mut body = Pieces::default();
    for (i, spoken) in spoken.iter().enumerate() {
        body.push(Bytes::from_static(if i == 0 { b"[" } else { b"," }));
        body.append(spoken.body.clone());
    }
    body.push(Bytes::from_static(b"]\n"));
    body
}

/// The text of a batch in `coding`, put together of the answers that the cache has compressed; what else is in it goes as
/// it is. `None` where the cache has compressed none.
fn spliced(coding: Coding, spoken: &[CallResponse]) -> Option<(Coding, Vec<Bytes>)> {
    if spoken.iter().all(|spoken| spoken.coded.is_none()) {
        return None;
    }
    let mut parts = Vec::with_capacity(4 * spoken.len() + 1);
    for (i, spoken) in spoken.iter().enumerate() {
        parts.push(Part::Plain(Bytes::from_static(if i == 0 { b"[" } else { b"," })));
        spoken.add_to(&mut parts);
    }
    parts.push(Part::Plain(Bytes::from_static(b"]\n")));
    Some((coding, coding::spliced(coding, &parts)?))
}
