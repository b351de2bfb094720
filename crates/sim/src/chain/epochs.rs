//! The slots at which epochs begin, with or without a warm-up of shorter epochs.

use slotfront_rpc::methods::Slot;

/// The number of slots in the shortest epoch, with which a warm-up begins.
pub(crate) const SHORTEST: u64 = 32;

/// The epochs of a chain. During a warm-up each epoch has twice as many slots as the epoch before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epochs {
    /// The number of slots in each epoch after the warm-up.
    pub(crate) slots: u64,
    pub(crate) warmup: bool,
    /// The first epoch after the warm-up.
    pub(crate) first_normal: u64,
    /// The first slot after the warm-up.
    pub(crate) first_normal_slot: Slot,
}

/// The epoch of a slot, and the slot's position in that epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch {
    pub(crate) number: u64,
    /// The position of the slot in the epoch, from 0.
    pub(crate) index: u64,
    pub(crate) slots: u64,
}

impl Epochs {
    /// Creates the epochs of a chain. Each epoch has `slots` slots, at least 32. With `warmup`, shorter epochs come
    /// first.
    pub(crate) fn new(slots: u64, warmup: bool) -> Self {
        let slots = slots.max(SHORTEST);
        let ceiling = slots.next_power_of_two();
        let (first_normal, first_normal_slot) =
            if warmup { (u64::from((ceiling / SHORTEST).ilog2()), ceiling - SHORTEST) } else { (0, 0) };
        Self { slots, warmup, first_normal, first_normal_slot }
    }

    /// Returns the first slot of an epoch.
    pub(crate) fn first_slot(&self, epoch: u64) -> Slot {
        match epoch.checked_sub(self.first_normal) {
            Some(after) => self.first_normal_slot.saturating_add(after.saturating_mul(self.slots)),
            None => (SHORTEST << epoch) - SHORTEST,
        }
    }

    pub(crate) fn of(&self, slot: Slot) -> Epoch {
        if let Some(after) = slot.checked_sub(self.first_normal_slot) {
            let number = self.first_normal + after / self.slots;
            return Epoch { number, index: after % self.slots, slots: self.slots };
        }
        let number = u64::from((slot / SHORTEST + 1).ilog2());
        let slots = SHORTEST << number;
        Epoch { number, index: slot + SHORTEST - slots, slots }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warmup_epochs_double() {
        let epochs = Epochs::new(8_192, true);
        assert_eq!((epochs.first_normal, epochs.first_normal_slot), (8, 8_160));
        for (slot, number, index, slots) in [
            (0, 0, 0, 32),
            (31, 0, 31, 32),
            (32, 1, 0, 64),
            (95, 1, 63, 64),
            (96, 2, 0, 128),
            (8_159, 7, 4_095, 4_096),
            (8_160, 8, 0, 8_192),
            (16_352, 9, 0, 8_192),
        ] {
            assert_eq!(epochs.of(slot), Epoch { number, index, slots }, "{slot}");
        }
    }

    #[test]
    fn epochs_without_warmup_have_one_length() {
        let epochs = Epochs::new(432_000, false);
        assert_eq!(epochs.of(431_999), Epoch { number: 0, index: 431_999, slots: 432_000 });
        assert_eq!(epochs.of(864_001), Epoch { number: 2, index: 1, slots: 432_000 });
        assert_eq!(Epochs::new(1, false).slots, SHORTEST, "an epoch has room for a full tower of votes");
        assert_eq!(Epochs::new(32, true).first_normal_slot, 0, "the shortest epochs need no warm-up");
    }
}
