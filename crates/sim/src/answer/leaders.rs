//! Who produces which slot: getLeaderSchedule, getSlotLeaders, getSlotLeader and getBlockProduction.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use slotfront_rpc::methods::{Pubkey, Slot};

use super::{Refusal, View};
use crate::chain::slot::{leader, leaders};

/// Answers getLeaderSchedule: the slots of each leader, counted within the epoch. A node knows the schedule of its epoch, the
/// one before and the next one.
pub(super) fn schedule(view: &View<'_>, newest: Slot, params: &[Value]) -> Value {
    let epochs = view.chain.genesis.epochs;
    let asked = params.first().and_then(Value::as_u64).unwrap_or(newest);
    let (epoch, current) = (epochs.of(asked), epochs.of(newest));
    if epoch.number.abs_diff(current.number) > 1 {
        return Value::Null;
    }
    let identity = params.get(1).and_then(|config| config.get("identity")).and_then(Value::as_str);
    let first = epochs.first_slot(epoch.number);
    let mut slots: BTreeMap<Pubkey, Vec<u64>> = BTreeMap::new();
    for (slot, leader) in leaders(view.chain, first..first + epoch.slots) {
        slots.entry(leader).or_default().push(slot - first);
    }
    let named = slots.into_iter().map(|(leader, slots)| (leader.to_string(), slots));
    let named = named.filter(|(leader, _)| identity.is_none_or(|identity| identity == leader));
    json!(named.collect::<BTreeMap<_, _>>())
}

/// Answers getSlotLeaders.
pub(super) fn of_slots(view: &View<'_>, newest: Slot, first: Slot, limit: u64) -> Result<Value, Refusal> {
    let epochs = view.chain.genesis.epochs;
    let current = epochs.of(newest).number;
    let slots = first..first.saturating_add(limit);
    let unknown = [slots.start, slots.end.saturating_sub(1)].map(|slot| epochs.of(slot).number);
    if let Some(epoch) = unknown.into_iter().find(|epoch| epoch.abs_diff(current) > 1) {
        let words = format!("Invalid slot range: leader schedule for epoch {epoch} is unavailable");
        return Err(Refusal::param(words));
    }
    Ok(slots.map(|slot| of_slot(view, slot)).collect())
}

/// Returns the identity of the leader of a slot.
pub(super) fn of_slot(view: &View<'_>, slot: Slot) -> String {
    leader(view.chain, slot).to_string()
}

/// Answers getBlockProduction: for each leader the number of its slots, and of those with a block.
pub(super) fn production(view: &View<'_>, newest: Slot, params: &[Value]) -> Result<Value, Refusal> {
    let member = |name| params.first().and_then(|config| config.get(name));
    let range = member("range");
    let end = |name| range.and_then(|range| range.get(name)).and_then(Value::as_u64);
    let epochs = view.chain.genesis.epochs;
    // A node knows the slots since the start of its epoch, and here only those whose blocks it has.
    let oldest = epochs.first_slot(epochs.of(newest).number).max(view.first_available());
    let first = end("firstSlot").unwrap_or(oldest);
    let last = end("lastSlot").unwrap_or(newest);
    if first < oldest {
        return Err(Refusal::param(format!("firstSlot, {first}, is too small; min {oldest}")));
    }
    if last > newest {
        return Err(Refusal::param(format!("lastSlot, {last}, is too large; max {newest}")));
    }
    if first > last {
        return Err(Refusal::param(format!("lastSlot, {last}, cannot be less than firstSlot, {first}")));
    }
    let identity = member("identity").and_then(Value::as_str);
    let mut by_identity: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    for slot in first..=last {
        let leader = of_slot(view, slot);
        if identity.is_none_or(|identity| identity == leader) {
            let [slots, blocks] = by_identity.entry(leader).or_default();
            *slots += 1;
            *blocks += u64::from(view.chain.block(slot).is_some());
        }
    }
    let value = json!({ "byIdentity": by_identity, "range": { "firstSlot": first, "lastSlot": last } });
    Ok(view.contextual(newest, &value))
}
