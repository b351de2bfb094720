//! The slots at which epochs begin, from a node's answer to `getEpochSchedule`.

use serde::Deserialize;

use crate::methods::Slot;

/// The number of slots in the first epoch of a warm-up. Each further epoch of the warm-up has twice as many
/// slots as the one before (solana-epoch-schedule: `MINIMUM_SLOTS_PER_EPOCH`).
const FIRST_WARMUP_EPOCH: u64 = 32;

/// The slots at which the epochs of a cluster begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EpochSchedule {
    slots_per_epoch: u64,
    first_normal_epoch: u64,
    first_normal_slot: Slot,
}

impl EpochSchedule {
    /// Reads the result of `getEpochSchedule`. `None` if the text is not such a result.
    pub(super) fn parse(result: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Schedule {
            slots_per_epoch: u64,
            first_normal_epoch: u64,
            first_normal_slot: Slot,
        }
        let schedule: Schedule = serde_json::from_slice(result).ok()?;
        let Schedule { slots_per_epoch, first_normal_epoch, first_normal_slot } = schedule;
        (slots_per_epoch > 0).then_some(Self { slots_per_epoch, first_normal_epoch, first_normal_slot })
    }

    pub(super) fn epoch(&self, slot: Slot) -> u64 {
        match slot.checked_sub(self.first_normal_slot) {
            Some(after_warmup) => self.first_normal_epoch.saturating_add(after_warmup / self.slots_per_epoch),
            // Epoch n of the warm-up begins at slot 32 · (2^n - 1).
            None => (slot / FIRST_WARMUP_EPOCH + 1).ilog2().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(slots_per_epoch: u64, first_normal_epoch: u64, first_normal_slot: u64) -> EpochSchedule {
        let text = format!(
            r#"{{"slotsPerEpoch":{slots_per_epoch},"leaderScheduleSlotOffset":1,"warmup":true,"firstNormalEpoch":{first_normal_epoch},"firstNormalSlot":{first_normal_slot}}}"#
        );
        EpochSchedule::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn epochs_without_warmup_have_one_length() {
        let mainnet = schedule(432_000, 0, 0);
        for (slot, epoch) in [(0, 0), (431_999, 0), (432_000, 1), (400_000_000, 925)] {
            assert_eq!(mainnet.epoch(slot), epoch, "{slot}");
        }
    }

    #[test]
    fn epochs_of_a_warmup_double() {
        // The schedule that solana-epoch-schedule computes for epochs of 8,192 slots, with eight epochs of
        // warm-up.
        let warmup = schedule(8_192, 8, 8_160);
        let firsts = [(0, 0), (1, 32), (2, 96), (3, 224), (7, 4_064), (8, 8_160), (9, 16_352)];
        for (epoch, first) in firsts {
            assert_eq!(warmup.epoch(first), epoch, "{first}");
            if first > 0 {
                assert_eq!(warmup.epoch(first - 1), epoch - 1, "{first}");
            }
        }
    }

    #[test]
    fn schedules_without_slots_are_refused() {
        for text in [
            r#"{"slotsPerEpoch":0,"firstNormalEpoch":0,"firstNormalSlot":0}"#,
            r#"{"firstNormalEpoch":0,"firstNormalSlot":0}"#,
            "null",
            "",
        ] {
            assert_eq!(EpochSchedule::parse(text.as_bytes()), None, "{text}");
        }
    }
}
