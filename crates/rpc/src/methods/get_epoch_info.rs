//! `getEpochInfo [config?]`: the newest slot with its height and its place in the epoch.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Slot;
use super::description::{Description, schema};

/// The result of getEpochInfo: all that one bank says about its place in the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EpochInfo {
    /// The slot of the bank.
    pub absolute_slot: Slot,
    /// The height of its block.
    pub block_height: u64,
    /// The epoch of the slot.
    pub epoch: u64,
    /// The number of slots of the epoch before this one.
    pub slot_index: u64,
    /// The number of slots of the epoch.
    pub slots_in_epoch: u64,
    /// The number of transactions since genesis, and members that newer nodes have added.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

impl EpochInfo {
    /// Returns what the bank of a later or earlier block of the same epoch says. `None` if the slot is in another epoch.
    #[must_use]
    pub fn moved_to(mut self, slot: Slot, height: u64) -> Option<Self> {
        let first = self.absolute_slot.checked_sub(self.slot_index)?;
        self.slot_index = slot.checked_sub(first).filter(|index| *index < self.slots_in_epoch)?;
        (self.absolute_slot, self.block_height) = (slot, height);
        Some(self)
    }
}

pub(super) fn describe() -> Description {
    let count = schema("U64");
    Description::of_state(
        "The newest slot with its height and its place in the epoch, as of one block.",
        json!({
            "type": "object",
            "required": ["absoluteSlot", "blockHeight", "epoch", "slotIndex", "slotsInEpoch"],
            "properties": {
                "absoluteSlot": schema("Slot"),
                "blockHeight": count,
                "epoch": count,
                "slotIndex": count,
                "slotsInEpoch": count,
                "transactionCount": { "description": "As of one of the last slots.", "type": ["integer", "null"] },
            },
        }),
        json!({
            "absoluteSlot": 2900,
            "blockHeight": 2896,
            "epoch": 0,
            "slotIndex": 2900,
            "slotsInEpoch": 432_000,
            "transactionCount": 2899,
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_moves_within_its_epoch() {
        let text = r#"{"absoluteSlot":105,"blockHeight":90,"epoch":3,"slotIndex":5,"slotsInEpoch":32,"transactionCount":7}"#;
        let info: EpochInfo = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&info).unwrap(), text);
        for (slot, index) in [(99, None), (100, Some(0)), (105, Some(5)), (131, Some(31)), (132, None)] {
            let moved = info.clone().moved_to(slot, 1);
            assert_eq!(moved.map(|info| (info.absolute_slot, info.slot_index)), index.map(|i| (slot, i)));
        }
    }
}
