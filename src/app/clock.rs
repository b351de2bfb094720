//! Detects that the machine was suspended, and then empties the cache.
//!
//! The ages of answers are measured by the steady clock, which stands still during a suspension, so afterwards every
//! answer would look younger than it is. The suspension shows in another clock, which has advanced more meanwhile.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::http::Front;

const COMPARE_INTERVAL: Duration = Duration::from_millis(250);
/// The largest tolerated difference between the advances of two clocks. Only a suspension, or the setting of a
/// clock, causes a larger difference.
const TOLERANCE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
struct ClockReadings {
    /// The clock by which the ages of answers are measured.
    steady: Duration,
    /// The clock that also runs during a suspension. Equal to `steady` if the system has no such clock.
    with_sleep: Duration,
    /// The wall clock, which jumps when a stopped virtual machine resumes.
    wall: Duration,
}

impl ClockReadings {
    /// Reads all clocks. `started` is the moment from which the steady clock counts.
    fn read(started: Instant) -> Self {
        let steady = started.elapsed();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { steady, with_sleep: with_sleep().unwrap_or(steady), wall }
    }

    /// Returns the pause since `before`: the time by which another clock has advanced more than the steady clock.
    /// `None` if that time is within [`TOLERANCE`].
    fn paused_since(&self, before: &Self) -> Option<Duration> {
        let steady = self.steady.saturating_sub(before.steady);
        let gone = [(self.with_sleep, before.with_sleep), (self.wall, before.wall)];
        let longest = gone.into_iter().map(|(now, before)| now.saturating_sub(before)).max()?;
        Some(longest.saturating_sub(steady)).filter(|pause| *pause > TOLERANCE)
    }
}

#[cfg(target_os = "linux")]
fn with_sleep() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?))
}

#[cfg(not(target_os = "linux"))]
fn with_sleep() -> Option<Duration> {
    None
}

/// After each suspension, empties the cache and forgets the newest known slots. Ends when `stop` is cancelled.
pub(super) fn watch(front: &Arc<Front>, tasks: &TaskTracker, stop: &CancellationToken) {
    let (front, stop, started) = (Arc::clone(front), stop.clone(), Instant::now());
    tasks.spawn(async move {
        let mut before = ClockReadings::read(started);
        while stop.run_until_cancelled(tokio::time::sleep(COMPARE_INTERVAL)).await.is_some() {
            let now = ClockReadings::read(started);
            if let Some(pause) = now.paused_since(&before) {
                reset(&front, pause);
            }
            before = now;
        }
    });
}

/// Drops everything that may be out of date after a suspension: the cached answers and the newest known slots. Counts
/// and logs the suspension, which lasted for `pause`.
fn reset(front: &Front, pause: Duration) {
    front.cache.purger().clear();
    front.frontier.forget();
    front.metrics.clock_pauses.at(()).inc();
    tracing::warn!(
        pause_s = pause.as_secs(),
        "the machine was suspended, or its clock was set; the cache was emptied"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn suspension_is_seen_by_other_clocks() {
        let at = |steady: u64, with_sleep: u64, wall: u64| ClockReadings {
            steady: Duration::from_millis(steady),
            with_sleep: Duration::from_millis(with_sleep),
            wall: Duration::from_millis(wall),
        };
        let before = at(1_000, 50_000, 1_700_000_000_000);
        for (name, now, expected) in [
            ("all clocks run", at(1_250, 50_250, 1_700_000_000_250), None),
            ("a busy machine compares late", at(9_000, 58_000, 1_700_000_008_000), None),
            ("within the tolerance", at(1_250, 51_250, 1_700_000_001_250), None),
            ("asleep", at(1_250, 3_650_250, 1_700_003_600_250), Some(S(3_600))),
            ("a virtual machine that was stopped", at(1_250, 50_250, 1_700_000_060_250), Some(S(60))),
            ("the wall clock is set back", at(1_250, 50_250, 1_699_999_000_250), None),
            ("asleep, and set back", at(1_250, 60_250, 1_699_999_000_250), Some(S(10))),
        ] {
            assert_eq!(now.paused_since(&before), expected, "{name}");
        }
    }

    #[test]
    fn clocks_of_a_running_machine_agree() {
        let started = Instant::now();
        let before = ClockReadings::read(started);
        assert!(before.with_sleep >= before.steady && before.wall > Duration::ZERO);
        assert_eq!(ClockReadings::read(started).paused_since(&before), None);
    }
}
