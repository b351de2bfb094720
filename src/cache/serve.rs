//! From what is kept to what a caller gets: judged when it leaves, with the word of where it came from.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::class::Class;
use super::derive::Use;
use super::derive::account::Unmade;
use super::entry::{Entry, Kept, Payload, Stamp};
use super::fetch::Landed;
use super::freshness::Freshness;
use super::key::Plan;
use super::render::{is_long_work, most_written, written};
use super::status::{CacheStatus, Why};
use super::{Asked, Cache, CacheAnswer, Demand};
use crate::config::Assemble;
use crate::error::Error;
use crate::methods::{Commitment, Query};
use crate::telemetry::Outcome;

/// An answer that was fetched for its caller may wait for its turn for so long, or for its time to live where that is
/// longer.
const WAITS_AT_MOST: Duration = Duration::from_millis(400);

/// The reason why an entry may serve a call, and so the bounds that it is held to when it leaves.
#[derive(Debug, Clone, Copy)]
pub(super) enum Basis {
    /// It is kept: it is fresh, or a fresh one is being fetched, and it meets what the caller wants.
    Kept,
    /// A flight found it kept: as above, and what the caller wants was looked at by then.
    Found,
    /// No node gives better: it may still stand in.
    StandIn,
    /// Another caller's call brought it, or a part of it was kept: it is fresh. So it is said, and so counted.
    Joined(CacheStatus, Outcome),
    /// A node was asked for it after the caller had come: of its age, only the time counts that it waits for its turn.
    Own(CacheStatus, Outcome),
}

impl Basis {
    /// Returns true if the entry was held when the caller came, and no node was asked.
    fn is_kept(self) -> bool {
        matches!(self, Self::Kept | Self::Found)
    }
}

/// The reason why a node's answer is not the caller's.
pub(super) enum Missed {
    /// The answer passed its bounds on its way, somebody was shown a newer one meanwhile, or it has only the form of the
    /// caller who led.
    Late,
    /// There is no answer.
    Failed(Error),
}

impl From<Error> for Missed {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The part that a caller had in a flight.
#[derive(Debug, Clone, Copy)]
pub(super) enum Role {
    /// The flight started for this caller.
    Leader,
    /// The caller joined it.
    Joiner {
        /// The node was asked after the caller had come.
        asked_since: bool,
    },
}

impl Cache {
    /// The answer that a fetch came back with. A floor of ours is never a caller's error: an answer of the last try that
    /// is behind a slot which somebody was shown meanwhile gives way to a held one, and is given where none reaches it.
    pub(super) async fn land(
        self: &Arc<Self>,
        call: &Asked<'_>,
        landed: &Landed,
        role: Role,
    ) -> Result<CacheAnswer, Missed> {
        let basis = match (landed, role) {
            (Landed::Held(..), _) => Basis::StandIn,
            (Landed::Found(..), _) => Basis::Found,
            (Landed::Fetched(..), Role::Joiner { asked_since: false }) => {
                Basis::Joined(CacheStatus::Collapsed, Outcome::Collapsed)
            }
            (Landed::Fetched(..), Role::Joiner { asked_since: true }) => {
                Basis::Own(CacheStatus::Collapsed, Outcome::Collapsed)
            }
            (Landed::Fetched(_, stored), Role::Leader) => {
                let outcome = if call.why == Why::Request { Outcome::Bypass } else { Outcome::Miss };
                Basis::Own(CacheStatus::forwarded(call.why, *stored), outcome)
            }
        };
        if !landed.serves(&call.plan) {
            return Err(Missed::Late);
        }
        let entry = landed.entry();
        if call.is_anew
            && self.is_overtaken(&call.plan, entry, basis)
            && let Some(held) = self.stands_in(call, Use::InFault).await
        {
            return self.deliver(call, &held, Basis::StandIn).await?.ok_or(Missed::Late);
        }
        self.deliver(call, entry, basis).await?.ok_or(Missed::Late)
    }

    /// Returns an entry as the answer that this caller gets. If that takes long to make, it waits for its turn, by the
    /// caller's deadline and with room for its bytes. `None` if the entry may not serve the call any more by then.
    pub(super) async fn deliver(
        self: &Arc<Self>,
        call: &Asked<'_>,
        entry: &Arc<Entry>,
        basis: Basis,
    ) -> Result<Option<CacheAnswer>, Error> {
        let (query, since) = (call.query, Instant::now());
        let is_long = is_long_work(query, entry);
        let mut room = None;
        let written = if is_long {
            // Before the wait: what there is no room for does not queue.
            room = Some(call.conditions.room(most_written(query, entry)).ok_or(Error::Overloaded)?);
            let turn = timeout_at(call.options.deadline, Arc::clone(&self.makers).acquire_owned()).await;
            let Ok(Ok(turn)) = turn else { return Err(Error::TimedOut(self.request_timeout)) };
            // What is too old by now takes no work.
            if !self.is_in_bounds(call, &entry.stamp, basis, since) || self.goes_back(call, entry, basis) {
                return Ok(None);
            }
            let (query, entry) = (query.clone(), Arc::clone(entry));
            let taken = room.take();
            let work = tokio::task::spawn_blocking(move || {
                // Both are held to the end of the work, which goes on where nobody waits for it any more.
                let _turn = turn;
                (written(&query, &entry), taken)
            });
            let (written, taken) = work.await.unwrap_or((Err(Unmade::Broken), None));
            room = taken;
            written
        } else {
            written(query, entry)
        };
        // What a node wrote amiss is as good as no answer.
        let (payload, derived) = written.map_err(|_| Error::NoUpstream(Vec::new()))?;
        let (coded, coding_waited) = self.coded(call, entry, &payload).await;
        let waited = is_long || coding_waited;
        let basis = match basis {
            // However long the work takes, an answer that was asked for since the caller came is one.
            Basis::Own(..) => basis,
            _ if !waited || self.is_in_bounds(call, &entry.stamp, basis, since) => basis,
            _ if entry.stamp.sent_at >= call.came => Basis::Own(CacheStatus::Collapsed, Outcome::Collapsed),
            _ => return Ok(None),
        };
        // A kept entry that has not waited was looked up just now.
        if (waited || !matches!(basis, Basis::Kept)) && self.goes_back(call, entry, basis) {
            return Ok(None);
        }
        let Some((status, outcome)) = self.status(&entry.stamp, basis) else { return Ok(None) };
        let (status, outcome) = match (status, outcome) {
            (CacheStatus::Hit { ttl_s, stale, .. }, outcome) => {
                self.verifier.maybe(&self.pool, &self.tasks, query, &entry.stamp, &payload);
                let outcome = if derived && outcome == Outcome::Hit { Outcome::Derived } else { outcome };
                (CacheStatus::Hit { ttl_s, derived, stale }, outcome)
            }
            as_it_is => as_it_is,
        };
        if outcome.is_hit() {
            self.observe_lag(query, &entry.stamp);
        }
        if matches!((basis, outcome), (Basis::Kept | Basis::Found, Outcome::Stale)) {
            drop(self.board(&call.plan, Demand::Any, &call.options));
        }
        // Whoever gets the answer counts it from here on.
        drop(room);
        Ok(Some(CacheAnswer { payload, stamp: entry.stamp, status, outcome, coded }))
    }

    /// Returns true if an entry that was judged before a wait meets what the caller wants by now, and is in time.
    fn is_in_bounds(&self, call: &Asked<'_>, stamp: &Stamp, basis: Basis, since: Instant) -> bool {
        let wanted =
            if matches!(basis, Basis::Kept) { call.wanted().max(call.conditions.floor()) } else { None };
        let in_time = match basis {
            Basis::Own(..) => since.elapsed() <= self.rules.ttl(stamp.class).max(WAITS_AT_MOST),
            _ => self.status(stamp, basis).is_some(),
        };
        in_time && stamp.reaches(wanted)
    }

    /// Returns true if an entry may not leave since a newer answer was shown. On the last try only what is kept is held to
    /// that: a floor of ours is never a caller's error.
    fn goes_back(&self, call: &Asked<'_>, entry: &Entry, basis: Basis) -> bool {
        (!call.is_anew || matches!(basis, Basis::Kept)) && self.is_overtaken(&call.plan, entry, basis)
    }

    /// Returns true if a newer answer than `entry` was shown. A node's error shows no account, and so does not go back.
    fn is_overtaken(&self, plan: &Plan, entry: &Entry, basis: Basis) -> bool {
        let is_error = matches!(entry.kept, Kept::Said(Payload::Error { .. }));
        (!is_error || basis.is_kept()) && self.is_behind(plan, &entry.stamp, basis)
    }

    /// Returns true if a newer answer is held, or an account was shown above the slot of `stamp`. At processed only what is
    /// kept is held to it.
    fn is_behind(&self, plan: &Plan, stamp: &Stamp, basis: Basis) -> bool {
        let has_floor = match plan.class {
            Class::Account(c) | Class::Fee(c) | Class::Votes(c) => {
                basis.is_kept() || c != Commitment::Processed
            }
            _ => false,
        };
        let newer = |held: Arc<Entry>| held.stamp.slot > stamp.slot && self.serves(&held.stamp);
        // A list of several slots has the lowest of them.
        let is_mixed = stamp.derived && self.rules.0.assemble == Assemble::WithinBound;
        let is_below = || !is_mixed && stamp.slot < self.floor(&plan.key, Instant::now());
        has_floor && (is_below() || self.candidates(plan).into_iter().flatten().any(newer))
    }

    /// How an entry serves now; `None` where it may not.
    fn status(&self, stamp: &Stamp, basis: Basis) -> Option<(CacheStatus, Outcome)> {
        let now = Instant::now();
        let freshness = self.rules.judge(stamp, &self.frontier, now);
        let left = self.rules.ttl_left_s(stamp, now);
        let hit = |ttl_s, stale| CacheStatus::Hit { ttl_s, derived: false, stale };
        match (basis, freshness) {
            (Basis::Kept | Basis::Found | Basis::StandIn, Freshness::Fresh) => {
                Some((hit(left.max(0), false), Outcome::Hit))
            }
            // Past its bound in slots alone, what is left of its time does not count.
            (Basis::Kept | Basis::Found | Basis::StandIn, Freshness::Stale(_)) => {
                Some((hit(left.min(0), true), Outcome::Stale))
            }
            (Basis::StandIn, Freshness::Expired(_)) => {
                self.serves(stamp).then(|| (CacheStatus::StaleIfError { ttl_s: left.min(0) }, Outcome::Stale))
            }
            (Basis::Kept | Basis::Found, Freshness::Expired(_))
            | (Basis::Joined(..), Freshness::Stale(_) | Freshness::Expired(_)) => None,
            (Basis::Joined(status, outcome), Freshness::Fresh) | (Basis::Own(status, outcome), _) => {
                Some((status, outcome))
            }
        }
    }

    /// Returns true if a hit, which waited for other answers of its batch, still is one: it is within its bounds, and nobody
    /// was shown a newer one meanwhile.
    pub fn still_serves(&self, query: &Query, stamp: &Stamp, status: CacheStatus) -> bool {
        let basis =
            if matches!(status, CacheStatus::StaleIfError { .. }) { Basis::StandIn } else { Basis::Found };
        let plan = Plan::new(query, &self.frontier, &self.sizes);
        self.status(stamp, basis).is_some() && !self.is_behind(&plan, stamp, basis)
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
