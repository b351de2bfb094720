//! `getVoteAccounts [config?]`: the validators' vote accounts, current and delinquent. Honours no minContextSlot, and
//! its answer carries no slot.

use serde::Deserialize;
use serde_json::{Value, json};

use super::params::{self, ParamError};
use super::pubkey::Address;
use super::{Commitment, Pubkey, commitment};
use crate::jsonrpc::Params;

/// A node's default: a validator that voted on none of the last 128 slots is delinquent.
const DELINQUENT_SLOT_DISTANCE: u64 = 128;

/// getVoteAccounts: the validators' vote accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VotesQuery {
    /// At which commitment.
    pub commitment: Commitment,
    /// Only this vote account.
    pub vote_pubkey: Option<Pubkey>,
    /// Whether unstaked delinquents are listed.
    pub keep_unstaked_delinquents: bool,
    /// Slots behind which a validator counts as delinquent; canonical default 128.
    pub delinquent_slot_distance: u64,
}

impl VotesQuery {
    pub(super) fn parse(params: &Params) -> Result<Self, ParamError> {
        let config = params::at_most_one::<RpcGetVoteAccountsConfig>(params)?.unwrap_or_default();
        Ok(Self {
            commitment: config.commitment,
            vote_pubkey: config.vote_pubkey.map(Address::judge).transpose()?,
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

/// By the name that a node's errors give it.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RpcGetVoteAccountsConfig {
    vote_pubkey: Option<Address>,
    #[serde(flatten, deserialize_with = "commitment::lenient")]
    commitment: Commitment,
    keep_unstaked_delinquents: Option<bool>,
    delinquent_slot_distance: Option<u64>,
}
