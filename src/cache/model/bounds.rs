//! The limits of age and lag that the models allow for answers. The limits are read from the default settings and
//! slotfront's constants, so that no model has a limit of its own.
//!
//! A test of the configuration, `caching_page_states_the_defaults`, compares the defaults with
//! docs/caching.md.

use std::sync::LazyLock;
use std::time::Duration;

use crate::cache::fetcher::RENDER_PERMIT_WAIT;
use crate::config::{Config, Ttl};
use crate::frontier::{ASSUMED_SLOT_TIME, SINGLE_NODE_LEAD};
use crate::methods::{Commitment, Slot};

/// The time that a test waits beyond a limit of age.
const MOMENT: Duration = Duration::from_millis(1);

/// The default settings with a smaller cache. Each test copies them and changes at most a few.
pub(super) static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let mut config = Config::dev(any, any, Vec::new());
    // The models count upstream calls.
    config.verify.sample = Some(0.0);
    // The capacity suffices for every test without eviction, and a small cache is created faster.
    (config.cache.capacity, config.cache.max_entry) = (8 << 20, 8 << 20);
    config
});

/// The limits of age and lag for answers at one commitment.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnswerBounds {
    /// The age up to which an answer is fresh.
    ttl: Duration,
    /// The number of slots that a fresh answer may be behind the newest known slot. `None` if the answer is
    /// limited in time only.
    max_lag: Option<u32>,
    /// The factor by which the limits of age and lag are larger for an answer that is served while a fresh one is
    /// fetched.
    stretch: f64,
    /// The age up to which an answer is served when no node answers. `None` if an answer is never served then.
    stale_if_error: Option<Duration>,
}

impl AnswerBounds {
    /// Returns the bounds of account data and token balances.
    pub(super) fn of_accounts(commitment: Commitment) -> Self {
        let max_lag = *CONFIG.cache.max_lag_slots.get(commitment);
        Self::new(*ttl().account.get(commitment), Some(max_lag), commitment)
    }

    /// Returns the bounds of age and lag for answers of getFeeForMessage.
    pub(super) fn of_fees(commitment: Commitment) -> Self {
        Self { ttl: *ttl().fee.get(commitment), ..Self::of_accounts(commitment) }
    }

    /// Returns the bounds of vote accounts, which have no bound in slots.
    pub(super) fn of_vote_accounts(commitment: Commitment) -> Self {
        Self::new(*ttl().vote_accounts.get(commitment), None, commitment)
    }

    fn new(ttl: Duration, max_lag: Option<u64>, commitment: Commitment) -> Self {
        let max_lag = max_lag.map(|slots| slots.try_into().expect("a few slots"));
        let stretch = 1.0 + *CONFIG.cache.stale_while_revalidate.get(commitment);
        let in_fault = &CONFIG.cache.stale_if_error;
        let stale_if_error = match commitment {
            Commitment::Processed => None,
            Commitment::Confirmed => Some(in_fault.confirmed),
            Commitment::Finalized => Some(in_fault.finalized),
        };
        Self { ttl, max_lag, stretch, stale_if_error }
    }

    /// Returns true if an answer of this age is fresh when its slot is `lag` slots below the newest known slot.
    pub(super) fn is_fresh(&self, age: Duration, lag: u64) -> bool {
        age <= self.ttl && self.is_near(lag, 1.0)
    }

    /// Returns true if an answer of this age may be served while a fresh one is fetched. The answer's slot is
    /// `lag` slots below the newest known slot.
    pub(super) fn may_serve_stale(&self, age: Duration, lag: u64) -> bool {
        age <= self.ttl.mul_f64(self.stretch) && self.is_near(lag, self.stretch)
    }

    /// Returns true if an answer of this age may be served when no node answers.
    pub(super) fn may_stand_in(&self, age: Duration) -> bool {
        self.stale_if_error.is_some_and(|bound| age <= bound)
    }

    fn is_near(&self, lag: u64, stretch: f64) -> bool {
        let lag = f64::from(u32::try_from(lag).unwrap_or(u32::MAX));
        self.max_lag.is_none_or(|bound| lag <= f64::from(bound) * stretch)
    }

    /// Returns the longest time for which an answer may be served, whether nodes answer or not. For that time
    /// an account is not served below a slot at which it was shown.
    pub(super) fn longest_life(&self) -> Duration {
        self.ttl.mul_f64(self.stretch).max(self.stale_if_error.unwrap_or_default())
    }

    /// Returns the given part of the age up to which an answer is fresh. A `part` of 1.0 is the whole age.
    pub(super) fn part_of_ttl(&self, part: f64) -> Duration {
        self.ttl.mul_f64(part)
    }

    /// Returns an age just past the limit up to which an answer is fresh.
    pub(super) fn past_ttl(&self) -> Duration {
        self.ttl + MOMENT
    }

    /// Returns an age just past the limit up to which an answer is served while a fresh one is fetched.
    pub(super) fn past_stretched_ttl(&self) -> Duration {
        self.ttl.mul_f64(self.stretch) + MOMENT
    }

    /// Returns the smallest lag, in slots behind the newest known slot, at which an answer is no longer fresh.
    pub(super) fn past_max_lag(&self) -> Slot {
        Slot::from(self.max_lag.expect("an answer with a bound in slots")) + 1
    }
}

/// The time for which an answer about a block may be served.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EntryLife {
    /// The age up to which the answer is fresh.
    pub(super) fresh: Duration,
    /// The age up to which the answer is served when no node answers.
    pub(super) in_fault: Duration,
}

impl EntryLife {
    /// Returns the times for which a final block may be served.
    pub(super) fn of_final_block() -> Self {
        Self { fresh: ttl().block_finalized, in_fault: settled_in_fault() }
    }

    /// Returns the times for which a block that is confirmed but not final may be served.
    pub(super) fn of_confirmed_block() -> Self {
        Self { fresh: ttl().block_confirmed, in_fault: CONFIG.cache.stale_if_error.confirmed }
    }

    /// Returns the times for which the answer that a slot was skipped may be served if a stored block proves it.
    pub(super) fn of_skipped_slot() -> Self {
        Self { fresh: ttl().no_block_skipped, in_fault: settled_in_fault() }
    }

    /// Returns the times for which the answer that a slot was skipped may be served if only nodes report it.
    pub(super) fn of_unconfirmed_skip() -> Self {
        Self { fresh: ttl().no_block_unconfirmed, in_fault: Duration::ZERO }
    }

    /// Returns the times for which it may be served that no node has a block.
    pub(super) fn of_absence() -> Self {
        Self { fresh: ttl().account.processed, in_fault: Duration::ZERO }
    }

    /// Returns the times for which the answer that a block does not exist yet may be served.
    pub(super) fn of_future_block() -> Self {
        Self { fresh: ttl().no_block_not_yet, in_fault: Duration::ZERO }
    }
}

/// Returns the age up to which an answer that cannot change is served when no node answers. By default this age
/// has no limit.
fn settled_in_fault() -> Duration {
    CONFIG.cache.stale_if_error.block.unwrap_or(Duration::MAX)
}

fn ttl() -> &'static Ttl {
    &CONFIG.cache.ttl
}

/// Returns the time that a caller's request may take.
pub(super) fn request_timeout() -> Duration {
    CONFIG.server.request_timeout
}

/// Returns a time slightly longer than the wait of a fetch for a permit to make its answer from other stored
/// answers.
pub(super) fn past_render_permit_wait() -> Duration {
    RENDER_PERMIT_WAIT + MOMENT
}

/// Returns the highest slot that the gateway accepts from a single node while the newest known slot is `frontier`.
/// No test lasts long enough to measure the duration of a slot, so the gateway uses the duration that it assumes
/// at its start.
pub(super) fn highest_believed(frontier: Slot) -> Slot {
    let lead = SINGLE_NODE_LEAD.as_millis() / ASSUMED_SLOT_TIME.as_millis();
    frontier + Slot::try_from(lead).expect("a few slots")
}

/// Returns a time in whole milliseconds.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("a short time")
}
