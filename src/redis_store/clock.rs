//! An estimate of the store's clock, from its last reading.

use std::time::Duration;

use parking_lot::Mutex;
use redis::{FromRedisValue, Value};
use tokio::time::Instant;

use super::{lock, micros};

/// The age beyond which a reading of the store's clock is not used for writes.
const CLOCK_HOLDS: Duration = Duration::from_secs(10);
/// The largest assumed drift between the store's clock and this machine's clock within [`CLOCK_HOLDS`].
const DRIFT: Duration = Duration::from_millis(1);
/// The largest assumed difference between the clocks of two nodes of a Redis cluster. A value may be on another
/// node than the one whose clock was read.
const CLUSTER_CLOCKS: Duration = Duration::from_millis(100);

/// A time by the store's clock, in microseconds since 1970.
pub type StoreTime = u64;

/// The last reading of the store's clock. Lower bounds of the store's time are computed from it.
pub(super) struct StoreClock {
    is_cluster: bool,
    last: Mutex<Option<(StoreTime, Instant)>>,
}

impl StoreClock {
    pub(super) fn new(is_cluster: bool) -> Self {
        Self { is_cluster, last: Mutex::default() }
    }

    /// Records `time`, a reading of the store's clock that has just arrived.
    pub(super) fn heard(&self, time: StoreTime) {
        *lock(&self.last) = Some((time, Instant::now()));
    }

    /// Returns a lower bound of the store's time at the moment `at`. `None` before the first reading.
    pub(super) fn time_of(&self, at: Instant) -> Option<StoreTime> {
        let (time, heard) = (*lock(&self.last))?;
        let back = heard.saturating_duration_since(at);
        let time = (time + micros(at.saturating_duration_since(heard))).checked_sub(micros(back))?;
        time.checked_sub(micros(if self.is_cluster { CLUSTER_CLOCKS } else { DRIFT }))
    }

    /// Returns a lower bound of the store's time at the moment `now`. `None` if no reading arrived in the last ten
    /// seconds.
    pub(super) fn shows(&self, now: Instant) -> Option<StoreTime> {
        let (_, heard) = (*lock(&self.last))?;
        if now.saturating_duration_since(heard) > CLOCK_HOLDS {
            return None;
        }
        self.time_of(now)
    }
}

/// Parses a time that the store returned as seconds and microseconds. `None` if either part is missing or not a number.
pub(super) fn read_time(seconds: Option<Value>, micros: Option<Value>) -> Option<StoreTime> {
    let number = |value| u64::from_redis_value(value).ok();
    number(seconds?)?.checked_mul(1_000_000)?.checked_add(number(micros?)?)
}
