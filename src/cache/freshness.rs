//! The freshness rules: the age and the lag in slots up to which an answer may be served. Both limits depend on
//! the answer's class.
//!
//! The rules hold no state of the cache. They depend on the settings, the time and the frontier, that is, the
//! newest known slot at each commitment. When the frontier moves, all entries too far behind it stop being fresh
//! at once, without a scan. The time limit always holds. The limit in slots is only as exact as the gateway's
//! knowledge of the newest slot.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::basis::{Basis, Tolerance};
use super::class::Class;
use super::entry::EntryMeta;
use super::status::CacheStatus;
use crate::config::{self, Assemble};
use crate::frontier::Frontier;
use crate::methods::Commitment;
use crate::telemetry::{Outcome, StaleCause};

/// The freshness of an entry at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Within the limits of age and lag. The entry may be served.
    Fresh,
    /// Slightly past the limit of age or lag. The entry may be served while a fresh answer is fetched.
    Stale(StaleCause),
    /// Far past the limit of age or lag. The entry may be served only if no node answers.
    Expired(StaleCause),
}

/// The limits of age and lag for every class of answers, from the settings.
pub(super) struct FreshnessPolicy {
    settings: config::CacheSettings,
    frontier: Arc<Frontier>,
}

impl FreshnessPolicy {
    /// Creates the rules from these settings. An answer's slot is compared with the newest slot in `frontier`.
    pub(super) fn new(settings: config::CacheSettings, frontier: Arc<Frontier>) -> Self {
        Self { settings, frontier }
    }

    /// Returns the freshness of an answer with this `meta` at `now`.
    pub(super) fn assess(&self, meta: &EntryMeta, now: Instant) -> Freshness {
        let age = now.saturating_duration_since(meta.sent_at);
        let (ttl, commitment) = (self.ttl(meta.class), commitment(meta.class));
        let stretch = stretched_at(meta.class).map_or(0.0, |c| *self.settings.stale_while_revalidate.get(c));
        let lag = commitment.map_or(0, |c| self.frontier.slot(c).saturating_sub(meta.slot));
        let max_lag = commitment.map_or(u64::MAX, |c| self.max_lag_slots(c));
        if let Class::NotYet(slot, commitment) = meta.class
            && self.frontier.slot(commitment) >= slot
        {
            return Freshness::Expired(StaleCause::Lag);
        }
        match (age <= ttl, lag <= max_lag) {
            (true, true) => Freshness::Fresh,
            (in_time, in_slots) => {
                let cause = if in_slots { StaleCause::Ttl } else { StaleCause::Lag };
                let stale = (in_time || age <= ttl.mul_f64(1.0 + stretch))
                    && (in_slots || lag <= stretched(max_lag, stretch))
                    && stretch > 0.0;
                if stale { Freshness::Stale(cause) } else { Freshness::Expired(cause) }
            }
        }
    }

    /// Returns true if `tolerance` allows an answer with this `meta` to be served at `now`.
    pub(super) fn allows(&self, meta: &EntryMeta, tolerance: Tolerance, now: Instant) -> bool {
        match tolerance {
            Tolerance::Fresh => self.assess(meta, now) == Freshness::Fresh,
            Tolerance::InFault | Tolerance::LastResort => self.may_serve(meta),
        }
    }

    /// Returns true if an entry may still be served, at least while no node answers. Such an entry is not
    /// replaced by an older one.
    pub(super) fn may_serve(&self, meta: &EntryMeta) -> bool {
        let now = Instant::now();
        self.in_fault(meta, now) || !matches!(self.assess(meta, now), Freshness::Expired(_))
    }

    /// Returns the `Cache-Status` and the outcome for metrics with which an entry is served now. `None` if
    /// the entry may not be served. `basis` is the reason why the entry was chosen.
    pub(super) fn status(&self, meta: &EntryMeta, basis: Basis) -> Option<(CacheStatus, Outcome)> {
        let now = Instant::now();
        let freshness = self.assess(meta, now);
        let left = self.ttl_left_s(meta, now);
        let hit = |ttl_s, stale| CacheStatus::Hit { ttl_s, derived: false, stale };
        match (basis, freshness) {
            (Basis::LookedUp | Basis::FoundByFlight | Basis::StandIn, Freshness::Fresh) if meta.carried => {
                Some((CacheStatus::Carried, Outcome::Carried))
            }
            (Basis::LookedUp | Basis::FoundByFlight | Basis::StandIn, Freshness::Fresh) => {
                Some((hit(left.max(0), false), Outcome::Hit))
            }
            // An entry that lags too many slots may have time left. The status reports no time left for such an
            // entry.
            (Basis::LookedUp | Basis::FoundByFlight | Basis::StandIn, Freshness::Stale(_)) => {
                Some((hit(left.min(0), true), Outcome::Stale))
            }
            (Basis::StandIn, Freshness::Expired(_)) => self
                .may_serve(meta)
                .then(|| (CacheStatus::StaleIfError { ttl_s: left.min(0) }, Outcome::Stale)),
            (Basis::LookedUp | Basis::FoundByFlight, Freshness::Expired(_))
            | (Basis::SharedFetch(..), Freshness::Stale(_) | Freshness::Expired(_)) => None,
            (Basis::SharedFetch(status, outcome), Freshness::Fresh)
            | (Basis::FetchedSinceArrival(status, outcome), _) => Some((status, outcome)),
        }
    }

    /// Returns the commitment of an answer, and by how many slots the answer is behind the newest known slot.
    /// `None` if the answer's class is limited in time only, as vote accounts are.
    pub(super) fn slots_behind(&self, meta: &EntryMeta) -> Option<(Commitment, u64)> {
        let commitment = commitment(meta.class)?;
        Some((commitment, self.frontier.slot(commitment).saturating_sub(meta.slot)))
    }

    /// Returns the number of slots that a fresh answer may be behind the newest known slot of a commitment.
    pub(super) fn max_lag_slots(&self, commitment: Commitment) -> u64 {
        *self.settings.max_lag_slots.get(commitment)
    }

    /// Returns the setting `cache.assemble`: the rule for lists that are assembled from stored accounts.
    pub(super) fn assemble(&self) -> Assemble {
        self.settings.assemble
    }

    /// Returns true if the answer may be served when no node answers.
    fn in_fault(&self, meta: &EntryMeta, now: Instant) -> bool {
        let age = now.saturating_duration_since(meta.sent_at);
        let rules = &self.settings.stale_if_error;
        match meta.class {
            Class::Account(c) | Class::Fee(c) | Class::Votes(c) => match c {
                Commitment::Processed => false,
                Commitment::Confirmed => age <= rules.confirmed,
                Commitment::Finalized => age <= rules.finalized,
            },
            Class::Samples | Class::ClusterNodes => age <= rules.finalized,
            Class::BlockFinal | Class::Skipped => rules.block.is_none_or(|bound| age <= bound),
            Class::BlockConfirmed => age <= rules.confirmed,
            Class::NotYet(..) | Class::SkippedUnconfirmed => false,
        }
    }

    /// Returns the longest time for which an answer that shows accounts at `commitment` may be served, whether
    /// nodes answer or not.
    pub(super) fn longest_life(&self, commitment: Commitment) -> Duration {
        let stretch = 1.0 + *self.settings.stale_while_revalidate.get(commitment);
        let ttl = self.ttl(Class::Account(commitment)).mul_f64(stretch);
        match commitment {
            Commitment::Processed => ttl,
            Commitment::Confirmed => ttl.max(self.settings.stale_if_error.confirmed),
            Commitment::Finalized => ttl.max(self.settings.stale_if_error.finalized),
        }
    }

    /// Returns the number of seconds until the answer reaches its time limit, rounded towards zero. Negative
    /// once the limit has passed.
    fn ttl_left_s(&self, meta: &EntryMeta, now: Instant) -> i64 {
        let (age, ttl) = (now.saturating_duration_since(meta.sent_at), self.ttl(meta.class));
        let seconds = |d: Duration| i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
        if age <= ttl { seconds(ttl.saturating_sub(age)) } else { -seconds(age.saturating_sub(ttl)) }
    }

    /// Returns the age up to which an answer of a class is fresh.
    pub(super) fn ttl(&self, class: Class) -> Duration {
        let ttl = &self.settings.ttl;
        match class {
            Class::Account(c) => *ttl.account.get(c),
            Class::Fee(c) => *ttl.fee.get(c),
            Class::Votes(c) => *ttl.vote_accounts.get(c),
            Class::Samples => ttl.performance_samples,
            Class::ClusterNodes => ttl.cluster_nodes,
            Class::BlockFinal => ttl.block_finalized,
            Class::BlockConfirmed => ttl.block_confirmed,
            Class::NotYet(..) => ttl.no_block_not_yet,
            Class::Skipped => ttl.no_block_skipped,
            Class::SkippedUnconfirmed => ttl.no_block_unconfirmed,
        }
    }
}

/// Returns the commitment at which answers of the class are compared with the newest known slot. `None` for
/// classes that are limited in time only. Vote accounts are such a class, although they change with every slot.
const fn commitment(class: Class) -> Option<Commitment> {
    match class {
        Class::Account(c) | Class::Fee(c) => Some(c),
        _ => None,
    }
}

/// Returns the commitment whose setting of `cache.stale_while_revalidate` applies to the class. `None` if an
/// answer of the class is never served past its limits while a fresh one is fetched.
const fn stretched_at(class: Class) -> Option<Commitment> {
    match class {
        Class::Account(c) | Class::Fee(c) | Class::Votes(c) => Some(c),
        _ => None,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a bound of some slots times a small factor"
)]
fn stretched(slots: u64, factor: f64) -> u64 {
    (slots as f64 * (1.0 + factor)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::methods::{PerCommitment, Slot};

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn rules(frontier: Frontier) -> FreshnessPolicy {
        let any = ([127, 0, 0, 1], 0);
        FreshnessPolicy::new(Config::dev(any.into(), any.into(), Vec::new()).cache, Arc::new(frontier))
    }

    fn meta(class: Class, slot: Slot, sent_at: Instant) -> EntryMeta {
        EntryMeta { slot, sent_at, class, derived: false, carried: false }
    }

    #[tokio::test]
    async fn both_bounds_hold_and_stretch_together() {
        use Commitment::{Confirmed, Finalized, Processed};
        use Freshness::{Expired, Fresh, Stale};
        let t0 = Instant::now();
        for (name, class, age, lag, expected) in [
            ("young and near", Class::Account(Processed), MS(400), 1, Fresh),
            (
                "processed is never stretched in time",
                Class::Account(Processed),
                MS(401),
                1,
                Expired(StaleCause::Ttl),
            ),
            ("nor in slots", Class::Account(Processed), MS(10), 2, Expired(StaleCause::Lag)),
            ("confirmed at its bounds", Class::Account(Confirmed), MS(800), 2, Fresh),
            ("past its ttl by half", Class::Account(Confirmed), MS(1200), 2, Stale(StaleCause::Ttl)),
            ("past its lag by half", Class::Account(Confirmed), MS(800), 3, Stale(StaleCause::Lag)),
            ("past both", Class::Account(Confirmed), MS(1200), 3, Stale(StaleCause::Lag)),
            ("too old", Class::Account(Confirmed), MS(1201), 0, Expired(StaleCause::Ttl)),
            ("too far behind", Class::Account(Confirmed), MS(0), 4, Expired(StaleCause::Lag)),
            ("finalized at its bounds", Class::Account(Finalized), MS(5000), 12, Fresh),
            ("finalized, one slot past", Class::Account(Finalized), MS(5000), 13, Stale(StaleCause::Lag)),
            ("votes have no slot bound", Class::Votes(Finalized), MS(10_000), 500, Fresh),
            ("votes past their ttl", Class::Votes(Finalized), MS(15_000), 500, Stale(StaleCause::Ttl)),
            ("votes at processed", Class::Votes(Processed), MS(1_001), 0, Expired(StaleCause::Ttl)),
            ("a final block only ages", Class::BlockFinal, Duration::from_hours(24), 1_000_000, Fresh),
            ("samples", Class::Samples, MS(15_001), 0, Expired(StaleCause::Ttl)),
        ] {
            let frontier = Frontier::new(1);
            for c in Commitment::ALL {
                frontier.probed(0, c, 1_000_000, t0);
            }
            let meta = meta(class, 1_000_000 - lag, t0);
            assert_eq!(rules(frontier).assess(&meta, t0 + age), expected, "{name}");
        }
    }

    #[tokio::test]
    async fn not_yet_expires_when_the_frontier_arrives() {
        let (rules, t0) = (rules(Frontier::new(1)), Instant::now());
        let meta = meta(Class::NotYet(101, Commitment::Confirmed), 100, t0);
        rules.frontier.probed(0, Commitment::Confirmed, 100, t0);
        assert_eq!(rules.assess(&meta, t0 + MS(200)), Freshness::Fresh);
        rules.frontier.probed(0, Commitment::Confirmed, 101, t0);
        assert_eq!(rules.assess(&meta, t0 + MS(1)), Freshness::Expired(StaleCause::Lag));
    }

    #[tokio::test]
    async fn stale_if_error_depends_on_commitment() {
        let (rules, t0) = (rules(Frontier::new(1)), Instant::now());
        for (class, age_s, expected) in [
            (Class::Account(Commitment::Processed), 0, false),
            (Class::Account(Commitment::Confirmed), 10, true),
            (Class::Account(Commitment::Confirmed), 11, false),
            (Class::Account(Commitment::Finalized), 60, true),
            (Class::Account(Commitment::Finalized), 61, false),
            (Class::BlockFinal, 1_000_000, true),
            (Class::NotYet(1, Commitment::Confirmed), 0, false),
        ] {
            let now = t0 + Duration::from_secs(age_s);
            assert_eq!(rules.in_fault(&meta(class, 1, t0), now), expected, "{class:?} after {age_s} s");
        }
    }

    #[tokio::test]
    async fn ttl_left_rounds_towards_zero() {
        let (rules, t0) = (rules(Frontier::new(1)), Instant::now());
        let meta = meta(Class::Account(Commitment::Finalized), 1, t0);
        for (age, expected) in [(0, 5), (100, 4), (4100, 0), (5900, 0), (6000, -1), (7999, -2)] {
            assert_eq!(rules.ttl_left_s(&meta, t0 + MS(age)), expected, "{age} ms");
        }
    }

    #[tokio::test]
    async fn longest_life_covers_refetches_and_faults() {
        let any = ([127, 0, 0, 1], 0).into();
        let mut settings = Config::dev(any, any, Vec::new()).cache;
        settings.stale_while_revalidate = PerCommitment::uniform(0.5);
        settings.stale_if_error.confirmed = MS(0);
        let ttl = settings.ttl.account;
        let rules = FreshnessPolicy::new(settings, Arc::new(Frontier::new(1)));
        for (commitment, expected) in [
            (Commitment::Processed, ttl.processed.mul_f64(1.5)),
            (Commitment::Confirmed, ttl.confirmed.mul_f64(1.5)),
            (Commitment::Finalized, rules.settings.stale_if_error.finalized),
        ] {
            assert_eq!(rules.longest_life(commitment), expected, "{commitment}");
        }
    }
}
