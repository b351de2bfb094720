//! The length of a slot, measured from the moves of the newest known slot.
//!
//! The moves are measured in steps of several seconds. Steps that differ much from the others are ignored, because
//! the newest known slot may also jump: a cluster is restarted, nodes come back, or a machine was suspended.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::methods::Slot;

/// The minimum duration of a measuring step, in which the length of a slot is measured once. A step begins and
/// ends when the newest known slot moves.
const STEP: Duration = Duration::from_secs(5);
/// The number of measuring steps that are kept; older steps are dropped. The kept steps cover at least a minute.
const STEPS: usize = 12;
/// The largest factor by which the slot length in one measuring step may differ from the median of all steps.
/// Steps that differ more are ignored.
const USUAL: f64 = 2.0;

/// Measures the length of a slot from the moves of the newest known slot.
#[derive(Debug, Default)]
pub(super) struct SlotPace {
    /// The time and the slot at which the current measuring step began.
    mark: Option<(Instant, Slot)>,
    /// The length of a slot in each measuring step, in seconds. The newest step is last.
    steps: VecDeque<f64>,
}

impl SlotPace {
    /// Records that the newest known slot has moved to `slot`, forwards or back.
    pub(super) fn moved(&mut self, slot: Slot, now: Instant) {
        let Some((at, from)) = self.mark.filter(|(_, from)| slot > *from) else {
            self.mark = Some((now, slot));
            return;
        };
        let time = now.saturating_duration_since(at);
        if time < STEP {
            return;
        }
        if self.steps.len() == STEPS {
            self.steps.pop_front();
        }
        #[expect(clippy::cast_precision_loss, reason = "a number of slots that passed in some seconds")]
        self.steps.push_back(time.as_secs_f64() / (slot - from) as f64);
        self.mark = Some((now, slot));
    }

    /// Returns the length of a slot. `None` until twelve steps are measured, which takes at least a minute.
    ///
    /// The result is the mean of the steps close to the median, so up to five of twelve may be outliers.
    pub(super) fn slot_time(&self) -> Option<Duration> {
        if self.steps.len() < STEPS {
            return None;
        }
        let mut steps: Vec<f64> = self.steps.iter().copied().collect();
        steps.sort_unstable_by(f64::total_cmp);
        let middle = steps[STEPS / 2];
        steps.retain(|step| (middle / USUAL..=middle * USUAL).contains(step));
        #[expect(clippy::cast_precision_loss, reason = "at most twelve")]
        let mean = steps.iter().sum::<f64>() / steps.len() as f64;
        Some(Duration::from_secs_f64(mean))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A period in the life of a simulated Solana cluster, described by the moves of the newest known slot.
    #[derive(Debug, Clone, Copy)]
    enum Stretch {
        /// Slots pass for a number of seconds (first value). Each slot takes a number of milliseconds (second value).
        Runs(u64, u64),
        /// Slots pass for a number of seconds (first value). Each slot takes a number of milliseconds (second
        /// value). Every fourth slot is skipped.
        Skips(u64, u64),
        /// The newest known slot stands still for the given seconds.
        Stands(u64),
        /// The newest known slot jumps by the given number of slots, forwards or back. No time passes.
        Jumps(i64),
        /// The nodes are unreachable for a number of seconds (first value). Meanwhile slots pass, and each takes a
        /// number of milliseconds (second value).
        Unseen(u64, u64),
    }
    use Stretch::{Jumps, Runs, Skips, Stands, Unseen};

    /// Returns the pace that is measured while the periods `stretches` follow one another. The newest slot is read
    /// every `poll` milliseconds.
    fn after(stretches: &[Stretch], poll: u64) -> SlotPace {
        let start = Instant::now();
        let (mut pace, mut ms, mut slot, mut shown) = (SlotPace::default(), 0, 1_000_000, 0);
        for stretch in stretches {
            match *stretch {
                Runs(seconds, slot_ms) | Skips(seconds, slot_ms) => {
                    let (began, from) = (ms, slot);
                    while ms < began + seconds * 1_000 {
                        ms += poll;
                        slot = from + (ms - began) / slot_ms;
                        let skipped = matches!(stretch, Skips(..)) && slot.is_multiple_of(4);
                        if slot != shown && !skipped {
                            shown = slot;
                            pace.moved(slot, start + Duration::from_millis(ms));
                        }
                    }
                }
                Stands(seconds) => ms += seconds * 1_000,
                Jumps(slots) => {
                    slot = slot.saturating_add_signed(slots);
                    shown = slot;
                    pace.moved(slot, start + Duration::from_millis(ms));
                }
                Unseen(seconds, slot_ms) => {
                    ms += seconds * 1_000;
                    slot += seconds * 1_000 / slot_ms;
                }
            }
        }
        pace
    }

    /// Returns the measured slot time in whole milliseconds. `None` if the slot time is unknown.
    fn ms(pace: &SlotPace) -> Option<u128> {
        pace.slot_time().map(|time| (time + Duration::from_micros(500)).as_millis())
    }

    #[test]
    fn a_minute_of_slots_gives_their_length() {
        for (name, stretches, expected) in [
            ("nothing", &[][..], None),
            ("less than a minute", &[Runs(55, 250)][..], None),
            ("a minute and a bit", &[Runs(62, 250)][..], Some(250)),
            ("slots of 200 ms", &[Runs(70, 200)][..], Some(200)),
            ("slots of 400 ms", &[Runs(70, 400)][..], Some(400)),
            ("many are skipped", &[Skips(70, 250)][..], Some(250)),
            ("the chain becomes faster", &[Runs(70, 400), Runs(65, 250)][..], Some(250)),
            ("the chain stands still", &[Runs(70, 250), Stands(60)][..], Some(250)),
            ("it goes on after standing still", &[Runs(70, 250), Stands(60), Runs(20, 250)][..], Some(250)),
            ("the nodes were not reached", &[Runs(70, 250), Unseen(600, 250), Runs(20, 250)][..], Some(250)),
            ("the machine slept", &[Runs(70, 250), Jumps(100_000), Runs(20, 250)][..], Some(250)),
            (
                "the cluster began again below",
                &[Runs(70, 250), Jumps(-500_000), Runs(20, 250)][..],
                Some(250),
            ),
            ("it flaps", &[Runs(70, 250), Jumps(900), Jumps(-900), Runs(9, 250), Jumps(900)][..], Some(250)),
        ] {
            for poll in [10, 50] {
                assert_eq!(ms(&after(stretches, poll)), expected, "{name}, seen each {poll} ms");
            }
        }
    }

    #[test]
    fn slow_probes_measure_nearly_as_well() {
        for slot_ms in [200, 250, 300, 400] {
            for poll in [900, 1_000, 1_100] {
                let reported = after(&[Runs(70, slot_ms)], poll).slot_time().unwrap().as_secs_f64() * 1_000.0;
                #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
                let off = reported / slot_ms as f64 - 1.0;
                assert!(off.abs() < 0.05, "{reported} for {slot_ms} by {poll}");
            }
        }
    }

    #[test]
    fn backward_clock_changes_nothing() {
        let (mut pace, now) = (SlotPace::default(), Instant::now() + Duration::from_secs(100));
        for second in 0..=70 {
            pace.moved(second * 4, now + Duration::from_secs(second));
            pace.moved(second * 4 + 1, now - Duration::from_secs(50));
        }
        let reported = pace.slot_time().map(|time| time.as_secs_f64());
        assert!(reported.is_some_and(|reported| (0.24..0.26).contains(&reported)), "{reported:?}");
    }

    /// A measuring step in which the newest known slot may move at any pace: by `slots` slots within `time`.
    #[derive(Debug, Clone, Copy)]
    struct OutlierStep {
        step: usize,
        slots: Slot,
        time: Duration,
    }

    fn outlier() -> impl Strategy<Value = OutlierStep> {
        (0..STEPS, 1..100_000_u64, 5..10_000_u64).prop_map(|(step, slots, seconds)| OutlierStep {
            step,
            slots,
            time: Duration::from_secs(seconds),
        })
    }

    proptest! {
        #[test]
        fn outliers_move_the_slot_time_little(
            slot_ms in 50..2_000_u64,
            outliers in prop::collection::vec(outlier(), 0..=5),
        ) {
            let (mut pace, mut now, mut slot) = (SlotPace::default(), Instant::now(), 7);
            pace.moved(slot, now);
            for step in 0..STEPS {
                let usual = 60_000 / slot_ms;
                let (slots, time) = outliers.iter().find(|outlier| outlier.step == step)
                    .map_or((usual, Duration::from_millis(usual * slot_ms)), |outlier| (outlier.slots, outlier.time));
                now += time;
                slot += slots;
                pace.moved(slot, now);
            }
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let times = pace.slot_time().unwrap().as_secs_f64() * 1_000.0 / slot_ms as f64;
            prop_assert!((0.5..=2.0).contains(&times), "{times} times {slot_ms} ms");
        }
    }
}
