//! One call of the eight methods: admitted, answered by the cache, at once where that can be, and booked.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::encoding;
use super::rpc::{Context, END, Spoken};
use crate::cache::entry::Entry;
use crate::cache::{Answer, Left, Terms};
use crate::coding::{Coded, Coding};
use crate::error::Error;
use crate::gateway::Shown;
use crate::jsonrpc::{Call, Id, Params, reply};
use crate::methods::{Method, Profile, Query};

/// What is left to do of a call that is not answered at once.
#[expect(clippy::large_enum_variant, reason = "it is always in a box")]
pub(super) enum Rest {
    /// It is of none of the eight methods.
    Other { id: Id, method: Bytes, params: Params },
    /// The cache has it not at hand.
    Fetch { id: Id, query: Query, shown: Option<Shown>, left: Box<Left>, coding: Option<Coding> },
    /// Its answer is to be compressed.
    Code { id: Id, query: Query, answer: Answer, spoken: Spoken, source: Arc<Entry>, coding: Coding },
}

impl Context<'_> {
    /// One call, down through the rooms and back up, as far as that goes at once; its answer in `coding`, if it is there
    /// so.
    pub(super) fn begin(&self, call: Call, coding: Option<Coding>) -> Result<Spoken, Box<Rest>> {
        let Call { id, method: name, params } = call;
        let Some(method) = str::from_utf8(&name).ok().and_then(Method::from_name) else {
            return Err(Box::new(Rest::Other { id, method: name, params }));
        };
        let query = match Query::parse(method, &params, self.front.config.profile) {
            Ok(query) => query,
            Err(error) => return Ok(self.count_refused(&id, Some(method), None, Error::Params(error))),
        };
        let (shown, terms) = match self.admitted(&query) {
            Ok(admitted) => admitted,
            Err(error) => return Ok(self.count_refused(&id, Some(method), query.commitment(), error)),
        };
        let answer = match self.front.cache.at_hand(&query, terms) {
            Ok(answer) => answer,
            Err(left) => return Err(Box::new(Rest::Fetch { id, query, shown, left, coding })),
        };
        self.settle(&query, shown, &answer);
        let spoken = self.answered(&id, &query, &answer);
        match self.to_code(&spoken, &answer, coding) {
            None => Ok(spoken),
            Some((source, coding)) => Err(Box::new(Rest::Code { id, query, answer, spoken, source, coding })),
        }
    }

    /// What was left of a call.
    pub(super) async fn rest(&self, rest: Rest) -> Spoken {
        match rest {
            Rest::Other { id, method, params } => {
                self.other(&id, str::from_utf8(&method).unwrap_or_default(), params).await
            }
            Rest::Fetch { id, query, shown, left, coding } => {
                match self.front.cache.go_on(&query, left).await {
                    Ok(answer) => {
                        self.settle(&query, shown, &answer);
                        let mut spoken = self.answered(&id, &query, &answer);
                        if let Some((source, coding)) = self.to_code(&spoken, &answer, coding) {
                            spoken.coded = self.coded(&id, &query, &answer, &source, coding).await;
                        }
                        spoken
                    }
                    Err(error) => self.count_refused(&id, Some(query.method()), query.commitment(), error),
                }
            }
            Rest::Code { id, query, answer, mut spoken, source, coding } => {
                spoken.coded = self.coded(&id, &query, &answer, &source, coding).await;
                spoken
            }
        }
    }

    /// Admits the call: the slot that this caller has seen, and the terms that the cache is asked on.
    fn admitted(&self, query: &Query) -> Result<(Option<Shown>, Terms), Error> {
        self.principal.admit(query)?;
        self.principal.take(Instant::now())?;
        let deadline = self.started + self.front.config.server.request_timeout;
        let shown = self.principal.shown(query);
        let floor = shown.as_ref().and_then(Shown::slot);
        Ok((shown, Terms { bypass: self.bypass, floor, deadline, trace: self.trace.clone() }))
    }

    /// Books what the answer cost, and that it was shown.
    fn settle(&self, query: &Query, shown: Option<Shown>, answer: &Answer) {
        if let Some(shown) = shown {
            shown.show(answer.slot);
        }
        self.principal.charge(query, answer.outcome.is_hit());
    }

    /// The entry whose kept coding is to be sent, where the caller takes `coding` and it is worth it.
    fn to_code(
        &self,
        spoken: &Spoken,
        answer: &Answer,
        coding: Option<Coding>,
    ) -> Option<(Arc<Entry>, Coding)> {
        let (coding, source) = (coding?, answer.source.as_ref()?);
        let is_worth = encoding::is_worth(spoken.body.len()) && self.front.config.profile == Profile::Node;
        is_worth.then(|| (Arc::clone(source), coding))
    }

    /// The answer in `coding`, with what is around its text.
    async fn coded(
        &self,
        id: &Id,
        query: &Query,
        answer: &Answer,
        source: &Arc<Entry>,
        coding: Coding,
    ) -> Option<(Coding, [Bytes; 3])> {
        let (head, tail) = reply::head_and_tail(id);
        let tail = [&tail[..], END].concat();
        let between = |coded: &Coded| coded.between(&head, &tail);
        Some((coding, self.front.cache.coded(query, source, coding, &answer.payload, between).await?))
    }
}
