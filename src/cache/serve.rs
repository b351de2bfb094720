//! From what is kept to what a caller gets: in the caller's form, with the word of where it came from.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::coded;
use super::derive::account::Unmade;
use super::derive::{list, samples};
use super::entry::{Body, Entry, Kept, Payload, Stamp};
use super::fetch::Landed;
use super::freshness::{Class, Freshness};
use super::key::ALL_SAMPLES;
use super::status::{CacheStatus, Why};
use super::store::Held;
use super::{Answer, Asked, Cache};
use crate::error::Error;
use crate::methods::{BASE58_TOO_LONG, BASE58_TOO_LONG_CODE, Query};
use crate::node::OFF_WORKER_BYTES;
use crate::telemetry::Outcome;

impl Cache {
    /// What a fetch came back with, as the answer of one who led it or waited for it.
    pub(super) async fn land(&self, call: &Asked<'_>, landed: &Landed, leads: bool) -> Result<Answer, Error> {
        match landed {
            Landed::Held(entry) => self.held(call.query, entry).await,
            Landed::Found(entry) => self.hit(call.query, entry, Outcome::Hit).await,
            Landed::Fetched(entry, _) if !leads => {
                self.deliver(call.query, entry, CacheStatus::Collapsed, Outcome::Collapsed).await
            }
            Landed::Fetched(entry, stored) => {
                let outcome = if call.why == Why::Request { Outcome::Bypass } else { Outcome::Miss };
                self.deliver(call.query, entry, CacheStatus::forwarded(call.why, *stored), outcome).await
            }
        }
    }

    /// What is held, said to be what it is: a hit, or what stands in where no node gives better.
    pub(super) async fn held(&self, query: &Query, entry: &Arc<Entry>) -> Result<Answer, Error> {
        let now = Instant::now();
        match self.rules.judge(&entry.stamp, &self.frontier, now) {
            Freshness::Fresh => self.hit(query, entry, Outcome::Hit).await,
            Freshness::Stale(_) => self.hit(query, entry, Outcome::Stale).await,
            Freshness::Expired(_) => {
                let status =
                    CacheStatus::StaleIfError { ttl_s: self.rules.ttl_left_s(&entry.stamp, now).min(0) };
                self.deliver(query, entry, status, Outcome::Stale).await
            }
        }
    }

    /// An answer from what is kept, at once; `None` where making it takes longer, or cannot be done.
    pub(super) fn hit_at_once(&self, query: &Query, held: &Held) -> Option<Answer> {
        let stamp = held.stamp();
        let (payload, derived, source) = if let Some(payload) = short(query, held) {
            (payload, stamp.derived, None)
        } else {
            let entry = held.entry();
            if is_long_work(query, &entry) {
                return None;
            }
            let (payload, derived) = written(query, &entry).ok()?;
            let source = coded::source(query, &entry, &payload);
            (payload, derived, source)
        };
        self.observe_lag(query, stamp);
        let ttl_s = self.rules.ttl_left_s(stamp, Instant::now()).max(0);
        let status = CacheStatus::Hit { ttl_s, derived, stale: false };
        let outcome = if derived { Outcome::Derived } else { Outcome::Hit };
        self.verifier.maybe(&self.pool, &self.tasks, query, stamp, &payload);
        Some(Answer { payload, slot: stamp.slot, status, outcome, source })
    }

    /// An answer from what is kept.
    pub(super) async fn hit(
        &self,
        query: &Query,
        entry: &Arc<Entry>,
        outcome: Outcome,
    ) -> Result<Answer, Error> {
        let left = self.rules.ttl_left_s(&entry.stamp, Instant::now());
        // Past its bound in slots alone, what is left of its time does not count.
        let stale = outcome == Outcome::Stale;
        let ttl_s = if stale { left.min(0) } else { left.max(0) };
        let answer =
            self.deliver(query, entry, CacheStatus::Hit { ttl_s, derived: false, stale }, outcome).await?;
        self.verifier.maybe(&self.pool, &self.tasks, query, &entry.stamp, &answer.payload);
        Ok(answer)
    }

    /// The answer as this caller gets it.
    pub(super) async fn deliver(
        &self,
        query: &Query,
        entry: &Arc<Entry>,
        status: CacheStatus,
        outcome: Outcome,
    ) -> Result<Answer, Error> {
        if outcome.is_hit() {
            self.observe_lag(query, &entry.stamp);
        }
        let written = if is_long_work(query, entry) {
            let (query, entry) = (query.clone(), Arc::clone(entry));
            let place = Arc::clone(&self.makers).acquire_owned().await;
            let work = tokio::task::spawn_blocking(move || {
                // Held to the end of the work, which goes on where nobody waits for it any more.
                let _place = place;
                written(&query, &entry)
            });
            work.await.unwrap_or(Err(Unmade::Broken))
        } else {
            written(query, entry)
        };
        // What a node wrote amiss is as good as no answer.
        let (payload, derived) = written.map_err(|_| Error::NoUpstream(Vec::new()))?;
        let (status, outcome) = match (status, outcome) {
            (CacheStatus::Hit { ttl_s, stale, .. }, outcome) => {
                let outcome = if derived && outcome == Outcome::Hit { Outcome::Derived } else { outcome };
                (CacheStatus::Hit { ttl_s, derived, stale }, outcome)
            }
            as_it_is => as_it_is,
        };
        let source = coded::source(query, entry, &payload);
        Ok(Answer { payload, slot: entry.stamp.slot, status, outcome, source })
    }

    /// How far behind the frontier what is served is, where that is bounded; vote accounts are bounded in time alone.
    fn observe_lag(&self, query: &Query, stamp: &Stamp) {
        if let (Some(commitment), Class::Account(_) | Class::Fee(_)) = (query.commitment(), stamp.class) {
            let lag = self.frontier.slot(commitment).saturating_sub(stamp.slot);
            #[expect(clippy::cast_precision_loss, reason = "a histogram of slots")]
            self.metrics.cache_served_lag.at(Some(commitment)).observe(lag as f64);
        }
    }
}

/// The answer to `query` where it is a short one and is held as the caller wants it.
fn short(query: &Query, held: &Held) -> Option<Payload> {
    match query {
        Query::Account(q) => held.short(Some(q.form)),
        Query::Samples(q) if q.limit < ALL_SAMPLES => None,
        _ => held.short(None),
    }
}

/// What `entry` says in the form of `query`, and whether it was made from another.
fn written(query: &Query, entry: &Entry) -> Result<(Payload, bool), Unmade> {
    let (form, asked, made) = match (&entry.kept, query) {
        (Kept::Account { result, value, asked, .. }, Query::Account(q)) => {
            (q.form, *asked, list::write_single(result, value, q.form))
        }
        (Kept::Accounts { context, values, asked }, Query::Accounts(q)) => {
            (q.form, *asked, list::write_list(context, values, q.form))
        }
        (Kept::Said(Payload::Result(Body::One(all))), Query::Samples(q)) if q.limit < ALL_SAMPLES => {
            let head = samples::head(all, q.limit).ok_or(Unmade::Broken)?;
            return Ok((Payload::Result(head.into()), true));
        }
        (Kept::Said(payload), _) => return Ok((payload.clone(), entry.stamp.derived)),
        _ => return Err(Unmade::Broken),
    };
    // For the caller's own form it was fetched, whatever form served.
    let fetched_for_it = form.slice.is_none() && asked == Some(form.encoding);
    match made {
        Ok((body, differs)) => {
            Ok((Payload::Result(body), entry.stamp.derived || (differs && !fetched_for_it)))
        }
        Err(Unmade::Base58TooLong) => Ok((base58_too_long(), !fetched_for_it)),
        Err(Unmade::Broken) => Err(Unmade::Broken),
    }
}

/// A node's own refusal.
fn base58_too_long() -> Payload {
    let body = format!(r#"{{"code":{BASE58_TOO_LONG_CODE},"message":"{BASE58_TOO_LONG}"}}"#);
    Payload::Error { code: BASE58_TOO_LONG_CODE, body: Bytes::from(body) }
}

/// Whether making the caller's form of `entry` would keep an async worker from others.
fn is_long_work(query: &Query, entry: &Entry) -> bool {
    entry.kept.weight() > OFF_WORKER_BYTES && !is_as_kept(query, entry)
}

/// Whether the caller's form of `entry` is the one that is kept.
pub(super) fn is_as_kept(query: &Query, entry: &Entry) -> bool {
    match (&entry.kept, query) {
        (Kept::Account { value, .. }, Query::Account(q)) => value.is_kept_in(q.form),
        (Kept::Accounts { values, .. }, Query::Accounts(q)) => {
            values.iter().all(|value| value.is_kept_in(q.form))
        }
        (Kept::Said(_), Query::Samples(q)) => q.limit == ALL_SAMPLES,
        (Kept::Said(_), _) => true,
        _ => false,
    }
}
