//! `getRecentPerformanceSamples [limit?]`: a node's samples of throughput, newest first. A call has no commitment, and
//! a result has no context slot.

use serde_json::{Value, json};

use super::description::{Description, Param, nullable, schema};
use super::params::{self, ParamError};
use crate::jsonrpc::Params;

/// The maximum and default number of samples: twelve hours with one sample per minute.
const MAX_SAMPLES: u16 = 720;

/// getRecentPerformanceSamples: the newest samples of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SamplesQuery {
    /// The maximum number of samples, 0 to 720. The default is 720.
    pub limit: u16,
}

impl SamplesQuery {
    pub(super) fn parse(params: &Params) -> Result<Self, ParamError> {
        let Some(limit) = params::at_most_one::<usize>(params)? else {
            return Ok(Self { limit: MAX_SAMPLES });
        };
        match u16::try_from(limit) {
            Ok(limit) if limit <= MAX_SAMPLES => Ok(Self { limit }),
            _ => Err(ParamError::new(format!("Invalid limit; max {MAX_SAMPLES}"))),
        }
    }

    pub(super) fn params_json(self) -> Value {
        json!([self.limit])
    }
}

pub(super) fn describe() -> Description {
    Description {
        summary: "A node's latest samples of throughput, one a minute, the newest first.",
        params: vec![Param::optional(
            "limit",
            "How many.",
            nullable(
                json!({ "type": "integer", "minimum": 0, "maximum": MAX_SAMPLES, "default": MAX_SAMPLES }),
            ),
        )],
        result: json!({
            "type": "array",
            "items": {
                "type": "object",
                "required": ["slot", "numSlots", "numTransactions", "samplePeriodSecs"],
                "properties": {
                    "slot": schema("Slot"),
                    "numSlots": schema("U64"),
                    "numTransactions": schema("U64"),
                    "numNonVoteTransactions": nullable(schema("U64")),
                    "samplePeriodSecs": { "type": "integer", "minimum": 0 },
                },
            },
        }),
        errors: &[],
        example: json!([1]),
        example_result: json!([{
            "numNonVoteTransactions": 183,
            "numSlots": 100,
            "numTransactions": 283,
            "samplePeriodSecs": 60,
            "slot": 2949,
        }]),
    }
}
