//! One call of the eight methods: admitted, answered by the cache, at once where that can be, and booked.

use bytes::Bytes;
use tokio::time::Instant;

use super::rpc::{CallResponse, Context};
use super::{Front, outgoing};
use crate::cache::entry::Stamp;
use crate::cache::{CacheAnswer, CacheStatus, CallOptions, Charge, Conditions, Left, Room};
use crate::error::Error;
use crate::gateway::{Principal, Shown};
use crate::jsonrpc::{Call, Id, Params};
use crate::methods::{Method, Query, Slot};

/// What is left to do of a call that is not answered at once.
pub(super) enum Rest {
    /// It is of none of the eight methods.
    Other { id: Id, method: Bytes, params: Params },
    /// The cache has it not at hand.
    Fetch { id: Id, query: Query, shown: Option<Shown>, left: Box<Left> },
}

/// A hit that is to be looked at once more before it leaves.
pub(super) struct PendingHit {
    pub(super) id: Id,
    pub(super) query: Query,
    pub(super) stamp: Stamp,
    pub(super) status: CacheStatus,
}

/// The conditions of a call whose answer takes a while.
struct CallConditions<'a> {
    front: &'a Front,
    principal: &'a Principal,
    shown: Option<&'a Shown>,
}

impl Conditions for CallConditions<'_> {
    fn floor(&self) -> Option<Slot> {
        self.shown.and_then(Shown::slot)
    }

    fn room(&self, bytes: usize) -> Option<Room> {
        outgoing::room(&self.front.outgoing, self.principal, bytes)
    }
}

impl Context<'_> {
    /// One call, down through the rooms and back up, as far as that goes at once.
    pub(super) fn begin(&self, call: Call) -> Result<CallResponse, Box<Rest>> {
        let Call { id, method: name, params } = call;
        let Some(method) = str::from_utf8(&name).ok().and_then(Method::from_name) else {
            return Err(Box::new(Rest::Other { id, method: name, params }));
        };
        // Before its params are read: a call that is refused for them is a call.
        if let Err(error) = self.principal.take(Instant::now()) {
            return Ok(self.count_refused(&id, Some(method), None, error));
        }
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
            Err(left) => return Err(Box::new(Rest::Fetch { id, query, shown, left })),
        };
        Self::show(shown.as_ref(), &answer);
        self.principal.charge(&query, answer.outcome.is_hit());
        Ok(self.answered(&id, &query, &answer))
    }

    /// What was left of a call.
    pub(super) async fn rest(&self, rest: Rest) -> CallResponse {
        match rest {
            Rest::Other { id, method, params } => {
                self.other(&id, str::from_utf8(&method).unwrap_or_default(), params).await
            }
            Rest::Fetch { id, query, shown, left } => {
                let charge = Charge::new(self.principal.charge_on_landing(&query));
                let conditions = self.conditions(shown.as_ref());
                match self.front.cache.go_on(&query, left, charge, &conditions).await {
                    Ok(answer) => {
                        Self::show(shown.as_ref(), &answer);
                        self.answered(&id, &query, &answer)
                    }
                    Err(error) => self.count_refused(&id, Some(query.method()), query.commitment(), error),
                }
            }
        }
    }

    /// Another answer to a call that was admitted and paid as a hit, which has aged while it waited for others. Where that
    /// is no hit, the call costs what is missing to a miss.
    pub(super) async fn again(&self, query: &Query) -> Result<CacheAnswer, Error> {
        let shown = self.principal.shown(query);
        let conditions = self.conditions(shown.as_ref());
        let answer = match self.front.cache.at_hand(query, self.terms(shown.as_ref())) {
            Ok(answer) => answer,
            Err(left) => {
                let charge = Charge::new(self.principal.charge_hit_anew_on_landing(query));
                self.front.cache.go_on(query, left, charge, &conditions).await?
            }
        };
        Self::show(shown.as_ref(), &answer);
        Ok(answer)
    }

    /// Admits the call: the slot that this caller has seen, and the terms that the cache is asked on.
    fn admitted(&self, query: &Query) -> Result<(Option<Shown>, CallOptions), Error> {
        self.principal.admit(query)?;
        let shown = self.principal.shown(query);
        let terms = self.terms(shown.as_ref());
        Ok((shown, terms))
    }

    /// The terms on which the cache is asked.
    fn terms(&self, shown: Option<&Shown>) -> CallOptions {
        CallOptions {
            bypass: self.bypass,
            floor: shown.and_then(Shown::slot),
            deadline: self.started + self.front.config.server.request_timeout,
            coding: self.coding,
            caller: self.principal.caller(),
            trace: self.trace.clone(),
        }
    }

    /// The hit that `answer` is, where it may have to wait before it leaves and was not asked for since the request came.
    pub(super) fn hit(&self, id: &Id, query: &Query, answer: &CacheAnswer) -> Option<Box<PendingHit>> {
        let is_hit = self.waits && answer.status.is_hit() && answer.stamp.sent_at < self.started;
        let hit = || PendingHit {
            id: id.clone(),
            query: query.clone(),
            stamp: answer.stamp,
            status: answer.status,
        };
        is_hit.then(|| Box::new(hit()))
    }

    /// The conditions of a call while its answer takes a while.
    fn conditions<'a>(&'a self, shown: Option<&'a Shown>) -> CallConditions<'a> {
        CallConditions { front: self.front, principal: &self.principal, shown }
    }

    /// Notes the slot that the caller is shown, where its plan asks for that.
    fn show(shown: Option<&Shown>, answer: &CacheAnswer) {
        if let Some(shown) = shown {
            shown.show(answer.stamp.slot);
        }
    }
}
