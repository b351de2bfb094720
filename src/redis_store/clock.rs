//! The clock of the store, as far as a gateway knows it.

use std::sync::Mutex;
use std::time::Duration;

use redis::{FromRedisValue, Value};
use tokio::time::Instant;

use super::{lock, micros};

/// A store that was heard longer ago tells nothing of its time: two clocks differ by less than a millisecond until then.
const CLOCK_HOLDS: Duration = Duration::from_secs(10);
/// The most by which two steady clocks differ after that time.
const DRIFT: Duration = Duration::from_millis(1);
/// The most by which the clocks of a cluster's nodes differ: a value may lie on another node than the clock that was read.
const CLUSTER_CLOCKS: Duration = Duration::from_millis(100);

/// A moment by the store's clock, in microseconds since 1970.
pub type StoreTime = u64;

/// A lower bound of the time that the store shows.
pub(super) struct StoreClock {
    is_cluster: bool,
    /// The time that the store showed, and when that was heard.
    last: Mutex<Option<(StoreTime, Instant)>>,
}

impl StoreClock {
    /// Creates a clock that was not heard yet.
    pub(super) fn new(is_cluster: bool) -> Self {
        Self { is_cluster, last: Mutex::default() }
    }

    /// Notes that the store's clock showed `time`: from now on it shows that or more.
    pub(super) fn heard(&self, time: StoreTime) {
        *lock(&self.last) = Some((time, Instant::now()));
    }

    /// Returns the moment `at` by the store's clock, not later than it was; `None` while that is not known.
    pub(super) fn time_of(&self, at: Instant) -> Option<StoreTime> {
        let (time, heard) = (*lock(&self.last))?;
        let back = heard.saturating_duration_since(at);
        let time = (time + micros(at.saturating_duration_since(heard))).checked_sub(micros(back))?;
        time.checked_sub(micros(if self.is_cluster { CLUSTER_CLOCKS } else { DRIFT }))
    }

    /// Returns the time that the store's clock shows at least; `None` if it was not heard lately.
    pub(super) fn shows(&self, now: Instant) -> Option<StoreTime> {
        let (_, heard) = (*lock(&self.last))?;
        if now.saturating_duration_since(heard) > CLOCK_HOLDS {
            return None;
        }
        self.time_of(now)
    }

    /// Returns the most by which the clocks of the store's nodes differ.
    pub(super) fn nodes_differ_by(&self) -> Duration {
        if self.is_cluster { CLUSTER_CLOCKS } else { Duration::ZERO }
    }
}

/// Reads seconds and microseconds, as the store writes them.
pub(super) fn read_time(seconds: Option<Value>, micros: Option<Value>) -> Option<StoreTime> {
    let number = |value| u64::from_redis_value(value).ok();
    number(seconds?)?.checked_mul(1_000_000)?.checked_add(number(micros?)?)
}
