//! Who produces which slot: `getLeaderSchedule`, `getSlotLeaders` and `getSlotLeader`.

use serde::Deserialize;
use serde_json::{Value, json};

use super::description::{self, Description, Param, schema};
use super::params::{self, ParamError};
use super::plain::{Life, PlainQuery, ResultKind, next};
use super::pubkey::Address;
use super::{Commitment, Method, Pubkey, Query, Slot, commitment};
use crate::jsonrpc::Params;

/// The maximum number of slots of one getSlotLeaders.
const MAX_LEADERS: u64 = 5000;

/// The first param of getLeaderSchedule. The types have the names of a node's types, because these names occur in a
/// node's errors.
#[derive(Deserialize)]
#[serde(untagged)]
enum RpcLeaderScheduleConfigWrapper {
    SlotOnly(Option<Slot>),
    ConfigOnly(Option<RpcLeaderScheduleConfig>),
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RpcLeaderScheduleConfig {
    identity: Option<Address>,
    #[serde(flatten, deserialize_with = "commitment::lenient")]
    commitment: Commitment,
}

pub(super) fn leader_schedule(params: &Params) -> Result<Query, ParamError> {
    let mut params = params::list(params, 0, 2)?;
    let first: Option<RpcLeaderScheduleConfigWrapper> = next(&mut params)?;
    let second: Option<RpcLeaderScheduleConfig> = next(&mut params)?;
    let (slot, config) = match first {
        None => (None, second),
        Some(RpcLeaderScheduleConfigWrapper::SlotOnly(slot)) => (slot, second),
        Some(RpcLeaderScheduleConfigWrapper::ConfigOnly(config)) => (None, config),
    };
    let config = config.unwrap_or_default();
    let mut members = json!({});
    if let Some(identity) = config.identity {
        members["identity"] = identity.into_pubkey()?.to_string().into();
    }
    let life = if slot.is_some() { Life::Cluster } else { Life::Epoch };
    let query =
        PlainQuery::new(Method::GetLeaderSchedule, &json!([slot, members]), ResultKind::ObjectOrNull, life);
    // Of the epoch of a slot that is named, all commitments have the same schedule.
    Ok(if slot.is_some() { query } else { query.at(config.commitment) }.into())
}

impl PlainQuery {
    /// Returns the call for the schedule of all leaders, from which this call for one of them is answered, and that one.
    /// `None` for other calls.
    pub fn of_all_leaders(&self) -> Option<(Self, Pubkey)> {
        let (slot, config): (Value, RpcLeaderScheduleConfig) = serde_json::from_str(&self.params).ok()?;
        let params = json!([slot, {}]).to_string().into();
        Some((Self { params, ..self.clone() }, config.identity?.into_pubkey().ok()?))
    }
}

pub(super) fn describe_leader_schedule() -> Description {
    let config = json!({ "identity": schema("Pubkey"), "commitment": description::commitment() });
    Description {
        summary: "Who produces which slots of an epoch, by index within the epoch. null for an unknown epoch.",
        params: vec![
            Param::optional(
                "slot",
                "A slot of the epoch; default: the current one.",
                description::nullable(schema("Slot")),
            ),
            Param::optional("config", "Of whom, and at which commitment.", description::config(config)),
        ],
        result: json!({
            "type": ["object", "null"],
            "additionalProperties": { "type": "array", "items": schema("U64") },
        }),
        errors: &[],
        example: json!([5]),
        example_result: json!({ "8VjqqZcYo6drjcVUEnfvFkhy1bLrqFxzYpc5zpAANEjU": [0, 1, 2, 3] }),
    }
}

pub(super) fn slot_leaders(params: &Params) -> Result<Query, ParamError> {
    let (start, limit) = params::tuple::<(Slot, u64)>(params)?;
    if limit > MAX_LEADERS {
        return Err(ParamError::new(format!("Invalid limit; max {MAX_LEADERS}")));
    }
    let params = json!([start, limit]);
    Ok(PlainQuery::new(Method::GetSlotLeaders, &params, ResultKind::List, Life::Cluster).into())
}

pub(super) fn describe_slot_leaders() -> Description {
    let limit = json!({ "type": "integer", "minimum": 0, "maximum": MAX_LEADERS });
    Description {
        summary: "Who produces the slots from one on.",
        params: vec![
            Param::required("start", "The first slot.", schema("Slot")),
            Param::required("limit", "How many slots.", limit),
        ],
        result: json!({ "type": "array", "items": schema("Pubkey") }),
        errors: &[],
        example: json!([5, 1]),
        example_result: json!(["8VjqqZcYo6drjcVUEnfvFkhy1bLrqFxzYpc5zpAANEjU"]),
    }
}

pub(super) fn describe_slot_leader() -> Description {
    Description::of_state(
        "Who produces the newest slot.",
        schema("Pubkey"),
        json!("8VjqqZcYo6drjcVUEnfvFkhy1bLrqFxzYpc5zpAANEjU"),
    )
}
