//! What a cluster keeps for an epoch or for ever: `getGenesisHash`, `getEpochSchedule`, `getInflationGovernor`,
//! `getInflationRate`, `getStakeMinimumDelegation`, `getMinimumBalanceForRentExemption` and `getInflationReward`.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::description::{self, Description, Param, contextual, nullable, schema};
use super::get_fee_for_message::RpcContextConfig;
use super::params::{self, ParamError};
use super::plain::{CommitmentConfig, Life, PlainQuery, ResultKind};
use super::pubkey::Address;
use super::{Method, Query, Slot, commitment};
use crate::jsonrpc::Params;

/// The size of the largest account in bytes. For more, a node answers that the request is invalid.
const MAX_ACCOUNT_BYTES: usize = 10 * 1024 * 1024;

pub(super) fn describe_genesis_hash() -> Description {
    Description::bare(
        "The hash of the cluster's first block, which names the cluster.",
        json!({ "type": "string" }),
        json!("5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d"),
    )
}

pub(super) fn epoch_schedule(params: &Params) -> Result<Query, ParamError> {
    params::none(params)?;
    Ok(PlainQuery::epoch_schedule().into())
}

/// The answer to getEpochSchedule: which slots belong to which epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EpochSchedule {
    /// The number of slots of an epoch, once the epochs no longer grow.
    slots_per_epoch: u64,
    /// The first epoch of that length, and its first slot.
    first_normal_epoch: u64,
    first_normal_slot: Slot,
}

/// The number of slots of the first epoch of a cluster whose epochs double until they have their length
/// (solana-epoch-schedule: `MINIMUM_SLOTS_PER_EPOCH`).
const SHORTEST_EPOCH: u64 = 32;

impl EpochSchedule {
    /// Reads the result of getEpochSchedule. `None` if the text is not such a result.
    pub fn parse(result: &[u8]) -> Option<Self> {
        serde_json::from_slice(result).ok().filter(|schedule: &Self| schedule.slots_per_epoch > 0)
    }

    /// Returns the epoch of `slot`.
    pub fn epoch(&self, slot: Slot) -> u64 {
        self.epoch_and_start(slot).0
    }

    /// Returns the epoch of `slot`, and its first slot.
    fn epoch_and_start(&self, slot: Slot) -> (u64, Slot) {
        let Some(since) = slot.checked_sub(self.first_normal_slot) else {
            let epoch = (slot / SHORTEST_EPOCH + 1).ilog2();
            return (epoch.into(), ((1 << epoch) - 1) * SHORTEST_EPOCH);
        };
        let epoch = self.first_normal_epoch.saturating_add(since / self.slots_per_epoch);
        (epoch, slot - since % self.slots_per_epoch)
    }

    /// Returns `call` with the name of the epoch that it is about: the first slot of that of its own slot, or of `newest`, or
    /// for rewards the epoch before. `None` if it has no such name, or if the epoch is unknown.
    pub fn named(&self, call: &PlainQuery, newest: Option<Slot>) -> Option<PlainQuery> {
        let is_of_leaders = call.method == Method::GetLeaderSchedule;
        if !is_of_leaders && call.method != Method::GetInflationReward {
            return None;
        }
        let mut params: Value = serde_json::from_str(&call.params).ok()?;
        if is_of_leaders {
            let slot = params[0].as_u64().or(newest)?;
            params[0] = self.epoch_and_start(slot).1.into();
        } else {
            params[1]["epoch"] = self.epoch(newest?).saturating_sub(1).into();
        }
        let commitment = call.commitment.filter(|_| !is_of_leaders);
        let params = params.to_string().into();
        Some(PlainQuery { params, commitment, life: Life::Cluster, ..call.clone() })
    }
}

pub(super) fn describe_epoch_schedule() -> Description {
    Description::bare(
        "Which slots belong to which epoch.",
        json!({
            "type": "object",
            "required": ["firstNormalEpoch", "firstNormalSlot", "leaderScheduleSlotOffset", "slotsPerEpoch", "warmup"],
        }),
        json!({
            "firstNormalEpoch": 0, "firstNormalSlot": 0, "leaderScheduleSlotOffset": 432_000,
            "slotsPerEpoch": 432_000, "warmup": false,
        }),
    )
}

pub(super) fn inflation_governor(params: &Params) -> Result<Query, ParamError> {
    let config = params::at_most_one::<CommitmentConfig>(params)?.unwrap_or_default();
    let query = PlainQuery::new(Method::GetInflationGovernor, &json!([{}]), ResultKind::Object, Life::Epoch);
    Ok(query.at(config.commitment).into())
}

pub(super) fn describe_inflation_governor() -> Description {
    Description {
        summary: "The rules by which new lamports are created.",
        params: vec![commitment_config()],
        result: json!({ "type": "object", "required": ["foundation", "foundationTerm", "initial", "taper", "terminal"] }),
        errors: &[],
        example: json!([]),
        example_result: json!({
            "foundation": 0.05, "foundationTerm": 7.0, "initial": 0.08, "taper": 0.15, "terminal": 0.015,
        }),
    }
}

/// Describes a config that must hold a commitment.
pub(super) fn commitment_config() -> Param {
    let config = description::config(json!({ "commitment": description::commitment() }));
    Param::optional("config", "A config that is there must hold a commitment.", config)
}

pub(super) fn describe_inflation_rate() -> Description {
    Description::bare(
        "The yearly inflation of the current epoch.",
        json!({ "type": "object", "required": ["epoch", "foundation", "total", "validator"] }),
        json!({ "epoch": 0, "foundation": 0.004, "total": 0.08, "validator": 0.076 }),
    )
}

pub(super) fn describe_stake_minimum_delegation() -> Description {
    Description::of_state(
        "The least that can be delegated to a validator.",
        contextual(&schema("Lamports")),
        json!({ "context": { "apiVersion": "4.0.0", "slot": 12 }, "value": 1_000_000_000 }),
    )
}

pub(super) fn rent_exemption(params: &Params) -> Result<Query, ParamError> {
    let (bytes, config) = params::one_or_two::<usize, CommitmentConfig>(params)?;
    if bytes > MAX_ACCOUNT_BYTES {
        return Err(ParamError { code: -32600, ..ParamError::new("Invalid request") });
    }
    let method = Method::GetMinimumBalanceForRentExemption;
    let query = PlainQuery::new(method, &json!([bytes, {}]), ResultKind::Number, Life::Epoch);
    Ok(query.at(config.unwrap_or_default().commitment).into())
}

pub(super) fn describe_rent_exemption() -> Description {
    let bytes = json!({ "type": "integer", "minimum": 0, "maximum": MAX_ACCOUNT_BYTES });
    Description {
        summary: "The least balance with which an account of this size stays.",
        params: vec![Param::required("bytes", "The size of the account's data.", bytes), commitment_config()],
        result: schema("Lamports"),
        errors: &[],
        example: json!([165]),
        example_result: json!(2_039_280),
    }
}

/// The config of getInflationReward. The type has the name of a node's type, because that name occurs in a node's
/// errors.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RpcEpochConfig {
    epoch: Option<u64>,
    #[serde(flatten, deserialize_with = "commitment::lenient")]
    commitment: super::Commitment,
    min_context_slot: Option<Slot>,
}

impl PlainQuery {
    /// Returns the call for the rewards of the same addresses as a set in order, and the place in that set of each address
    /// of this call. `None` for other calls.
    pub fn of_address_set(&self) -> Option<(Self, Vec<usize>)> {
        if self.method != Method::GetInflationReward {
            return None;
        }
        let (addresses, config): (Vec<String>, Value) = serde_json::from_str(&self.params).ok()?;
        let set: BTreeSet<_> = addresses.iter().collect();
        let set: Vec<_> = set.into_iter().collect();
        let places = addresses.iter().map(|address| set.binary_search(&address).ok());
        let places = places.collect::<Option<_>>()?;
        Some((Self { params: json!([set, config]).to_string().into(), ..self.clone() }, places))
    }
}

/// Parses getInflationReward. The rewards of an epoch that is named stay as they are.
pub(super) fn inflation_reward(params: &Params) -> Result<Query, ParamError> {
    let (addresses, config) = params::one_or_two::<Vec<Address>, RpcEpochConfig>(params)?;
    let addresses = addresses.into_iter().map(|address| Ok(address.into_pubkey()?.to_string()));
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    let RpcEpochConfig { epoch, commitment, min_context_slot } = config.unwrap_or_default();
    let (life, config) = match epoch {
        Some(epoch) => (Life::Cluster, json!({ "epoch": epoch })),
        None => (Life::Epoch, json!({})),
    };
    let query =
        PlainQuery::new(Method::GetInflationReward, &json!([addresses, config]), ResultKind::List, life);
    Ok(query.within(&RpcContextConfig { commitment, min_context_slot }).into())
}

pub(super) fn describe_inflation_reward() -> Description {
    let addresses = json!({ "type": "array", "items": schema("Pubkey") });
    let config = description::config(json!({
        "epoch": schema("U64"),
        "commitment": description::commitment(),
        "minContextSlot": schema("MinContextSlot"),
    }));
    let reward = nullable(json!({
        "type": "object",
        "required": ["amount", "effectiveSlot", "epoch", "postBalance"],
        "properties": { "amount": schema("Lamports"), "effectiveSlot": schema("Slot"), "epoch": schema("U64") },
    }));
    Description {
        summary: "What accounts have got for an epoch, by default the last one.",
        params: vec![
            Param::required("addresses", "Whose rewards.", addresses),
            Param::optional("config", "Of which epoch.", config),
        ],
        result: json!({ "type": "array", "items": reward }),
        errors: &[
            "MinContextSlotNotReached",
            "BlockCleanedUp",
            "BlockNotAvailable",
            "EpochRewardsPeriodActive",
            "SlotNotEpochBoundary",
        ],
        example: json!([["8YWaQ1CRFaJoW2o18kkivA5oWV9BFUZsL67rCnsYs5V9"], { "epoch": 3 }]),
        example_result: json!([Value::Null]),
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
        // The schedule that solana-epoch-schedule computes for epochs of 8,192 slots, with eight epochs of warm-up.
        let warmup = schedule(8_192, 8, 8_160);
        let firsts = [(0, 0), (1, 32), (2, 96), (3, 224), (7, 4_064), (8, 8_160), (9, 16_352)];
        for (epoch, first) in firsts {
            for slot in [first, first + 31] {
                assert_eq!(warmup.epoch_and_start(slot), (epoch, first), "{slot}");
            }
            if first > 0 {
                assert_eq!(warmup.epoch(first - 1), epoch - 1, "{first}");
            }
        }
        // No cluster has such epochs, and no text of a node makes the arithmetic overflow.
        for (slot, schedule) in [
            (u64::MAX - 1, schedule(32, 0, u64::MAX)),
            (u64::MAX, schedule(1, u64::MAX, 0)),
            (u64::MAX, schedule(u64::MAX, 0, 0)),
        ] {
            assert!(schedule.epoch_and_start(slot).1 <= slot);
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
