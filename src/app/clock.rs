//! Ages are told by a clock that stands still while the machine is suspended. A look at other clocks finds that out, and then
//! nothing of before counts any more.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::http::Front;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// The clocks of a machine that runs do not part by more than this between two looks, unless somebody sets one.
const MOST: Duration = Duration::from_secs(1);

/// What the clocks show at one moment.
#[derive(Debug, Clone, Copy)]
struct Clocks {
    /// The clock that ages are told by.
    steady: Duration,
    /// The clock that goes on while the machine sleeps, where there is one.
    with_sleep: Duration,
    /// The wall clock, which is set after a virtual machine was stopped.
    wall: Duration,
}

impl Clocks {
    /// The clocks now; the steady one since `started`.
    fn read(started: Instant) -> Self {
        let steady = started.elapsed();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { steady, with_sleep: with_sleep().unwrap_or(steady), wall }
    }

    /// How much longer than the steady clock another one went since `before`, if that is more than clocks part by.
    fn stood_still_since(&self, before: &Self) -> Option<Duration> {
        let steady = self.steady.saturating_sub(before.steady);
        let gone = [(self.with_sleep, before.with_sleep), (self.wall, before.wall)];
        let longest = gone.into_iter().map(|(now, before)| now.saturating_sub(before)).max()?;
        Some(longest.saturating_sub(steady)).filter(|pause| *pause > MOST)
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

/// Empties the cache and forgets the newest slots whenever the machine stood still, until `stop`.
pub(super) fn watch(front: &Arc<Front>, tasks: &TaskTracker, stop: &CancellationToken) {
    let (front, stop, started) = (Arc::clone(front), stop.clone(), Instant::now());
    tasks.spawn(async move {
        let mut before = Clocks::read(started);
        while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
            let now = Clocks::read(started);
            if let Some(pause) = now.stood_still_since(&before) {
                begin_anew(&front, pause);
            }
            before = now;
        }
    });
}

/// Nothing from before the pause is served any more, and no slot from before bounds what comes.
fn begin_anew(front: &Front, pause: Duration) {
    front.cache.clear();
    front.frontier.forget();
    front.metrics.clock_pauses.at(()).inc();
    tracing::warn!(
        pause_s = pause.as_secs(),
        "the clocks have parted: the machine stood still, or its clock was set; the cache was emptied"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn a_machine_stood_still_where_another_clock_went_on() {
        let at = |steady: u64, with_sleep: u64, wall: u64| Clocks {
            steady: Duration::from_millis(steady),
            with_sleep: Duration::from_millis(with_sleep),
            wall: Duration::from_millis(wall),
        };
        let before = at(1_000, 50_000, 1_700_000_000_000);
        for (name, now, expected) in [
            ("all go on", at(1_250, 50_250, 1_700_000_000_250), None),
            ("a busy machine looks late", at(9_000, 58_000, 1_700_000_008_000), None),
            ("as far as clocks part", at(1_250, 51_250, 1_700_000_001_250), None),
            ("asleep", at(1_250, 3_650_250, 1_700_003_600_250), Some(S(3_600))),
            ("a virtual machine that was stopped", at(1_250, 50_250, 1_700_000_060_250), Some(S(60))),
            ("the wall clock is set back", at(1_250, 50_250, 1_699_999_000_250), None),
            ("asleep, and set back", at(1_250, 60_250, 1_699_999_000_250), Some(S(10))),
        ] {
            assert_eq!(now.stood_still_since(&before), expected, "{name}");
        }
    }

    #[test]
    fn the_clocks_of_this_machine_do_not_part() {
        let started = Instant::now();
        let before = Clocks::read(started);
        assert!(before.with_sleep >= before.steady && before.wall > Duration::ZERO);
        assert_eq!(Clocks::read(started).stood_still_since(&before), None);
    }
}
