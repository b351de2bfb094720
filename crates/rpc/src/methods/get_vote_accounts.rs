//! `getVoteAccounts [config?]`: the validators' vote accounts, current and delinquent. A call has no `minContextSlot`,
//! and a result has no context slot.

use serde::Deserialize;
use serde_json::{Value, json};

use super::description::{self, Description, Param, schema};
use super::params::{self, ParamError};
use super::pubkey::Address;
use super::{Commitment, Pubkey, commitment};
use crate::jsonrpc::Params;

/// The default of `delinquentSlotDistance` on a node. A validator that voted on none of the last 128 slots is
/// delinquent.
const DELINQUENT_SLOT_DISTANCE: u64 = 128;

/// getVoteAccounts: the validators' vote accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VotesQuery {
    /// The commitment at which the vote accounts are read.
    pub commitment: Commitment,
    /// The only vote account to list. `None` means all.
    pub vote_pubkey: Option<Pubkey>,
    /// True if delinquent validators without stake are listed, too.
    pub keep_unstaked_delinquents: bool,
    /// The number of slots without a vote after which a validator is delinquent. The default is 128.
    pub delinquent_slot_distance: u64,
}

impl VotesQuery {
    pub(super) fn parse(params: &Params) -> Result<Self, ParamError> {
        let config = params::at_most_one::<RpcGetVoteAccountsConfig>(params)?.unwrap_or_default();
        Ok(Self {
            commitment: config.commitment,
            vote_pubkey: config.vote_pubkey.map(Address::into_pubkey).transpose()?,
            keep_unstaked_delinquents: config.keep_unstaked_delinquents.unwrap_or(false),
            delinquent_slot_distance: config.delinquent_slot_distance.unwrap_or(DELINQUENT_SLOT_DISTANCE),
        })
    }

    pub(super) fn params_json(&self) -> Value {
        let mut config = json!({
            "commitment": self.commitment,
            "keepUnstakedDelinquents": self.keep_unstaked_delinquents,
            "delinquentSlotDistance": self.delinquent_slot_distance,
        });
        if let Some(pubkey) = self.vote_pubkey {
            config["votePubkey"] = pubkey.to_string().into();
        }
        json!([config])
    }
}

/// The config param of getVoteAccounts. The type has the name of a node's type, because that name occurs in a node's
/// errors.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RpcGetVoteAccountsConfig {
    vote_pubkey: Option<Address>,
    #[serde(flatten, deserialize_with = "commitment::lenient")]
    commitment: Commitment,
    keep_unstaked_delinquents: Option<bool>,
    delinquent_slot_distance: Option<u64>,
}

pub(super) fn describe() -> Description {
    let vote_account = json!({
        "type": "object",
        "required": ["votePubkey", "nodePubkey", "activatedStake", "commission", "epochCredits", "lastVote"],
        "properties": {
            "votePubkey": schema("Pubkey"),
            "nodePubkey": schema("Pubkey"),
            "activatedStake": schema("Lamports"),
            "commission": { "description": "In percent.", "type": "integer", "minimum": 0 },
            "epochVoteAccount": { "type": "boolean" },
            "epochCredits": {
                "description": "Up to five of [epoch, credits, previous credits], the oldest first.",
                "type": "array",
                "items": { "type": "array", "items": schema("U64") },
            },
            "lastVote": schema("Slot"),
            "rootSlot": schema("Slot"),
        },
    });
    let list = json!({ "type": "array", "items": vote_account });
    Description {
        summary: "The validators' vote accounts with their stake, in no order.",
        params: vec![Param::optional(
            "config",
            "Which accounts, at which commitment.",
            description::config(json!({
                "votePubkey": schema("Pubkey"),
                "commitment": description::commitment(),
                "keepUnstakedDelinquents": { "type": "boolean", "default": false },
                "delinquentSlotDistance": {
                    "description": "Slots behind which a validator counts as delinquent.",
                    "allOf": [schema("U64")],
                    "default": DELINQUENT_SLOT_DISTANCE,
                },
            })),
        )],
        result: json!({
            "type": "object",
            "required": ["current", "delinquent"],
            "properties": { "current": list, "delinquent": list },
        }),
        errors: &[],
        example: json!([{ "votePubkey": "GG1CgxxJrkKXzxPn7JbyedczzyCEU7stmX4MSdUZjSSh" }]),
        example_result: json!({
            "current": [{
                "activatedStake": 999_999_997_717_120_u64,
                "commission": 0,
                "epochCredits": [[0, 45_872, 0]],
                "epochVoteAccount": true,
                "lastVote": 2898,
                "nodePubkey": "AtNrpWeYvD1AEFe43adFn74Yq7Tg7Qyow7MzFaatsjQE",
                "rootSlot": 2867,
                "votePubkey": "GG1CgxxJrkKXzxPn7JbyedczzyCEU7stmX4MSdUZjSSh",
            }],
            "delinquent": [],
        }),
    }
}
