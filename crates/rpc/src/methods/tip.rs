//! The six methods whose answers never go back behind a slot that a caller was shown, and their typed params.

use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};

use super::description::Description;
use super::extended::{UnknownMembers, members_of};
use super::get_fee_for_message::{RpcContextConfig, with_context};
use super::params::{self, ParamError};
use super::{
    Commitment, Pubkey, Signature, Slot, get_block_height, get_epoch_info, get_latest_blockhash,
    get_signature_statuses, get_slot, is_blockhash_valid,
};
use crate::jsonrpc::Params;

named! {
    /// One of the six methods by which clients follow a payment.
    pub enum TipMethod {
        /// `getSlot [config?]`
        GetSlot = "getSlot",
        /// `getBlockHeight [config?]`
        GetBlockHeight = "getBlockHeight",
        /// `getLatestBlockhash [config?]`
        GetLatestBlockhash = "getLatestBlockhash",
        /// `getEpochInfo [config?]`
        GetEpochInfo = "getEpochInfo",
        /// `isBlockhashValid [blockhash, config?]`
        IsBlockhashValid = "isBlockhashValid",
        /// `getSignatureStatuses [[signature…], config?]`
        GetSignatureStatuses = "getSignatureStatuses",
    }
}

impl TipMethod {
    pub(super) fn describe(self) -> Description {
        match self {
            Self::GetSlot => get_slot::describe(),
            Self::GetBlockHeight => get_block_height::describe(),
            Self::GetLatestBlockhash => get_latest_blockhash::describe(),
            Self::GetEpochInfo => get_epoch_info::describe(),
            Self::IsBlockhashValid => is_blockhash_valid::describe(),
            Self::GetSignatureStatuses => get_signature_statuses::describe(),
        }
    }
}

/// The state from which a call is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadAt {
    /// The commitment of the state.
    pub commitment: Commitment,
    /// The caller's `minContextSlot`.
    pub min_context_slot: Option<Slot>,
}

impl ReadAt {
    pub(super) fn of(config: Option<RpcContextConfig>) -> Self {
        let RpcContextConfig { commitment, min_context_slot } = config.unwrap_or_default();
        Self { commitment, min_context_slot }
    }
}

/// The validated params of a call of one of the six methods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TipQuery {
    /// A call of one of the four methods that have a config alone.
    State(TipMethod, ReadAt),
    /// A call of isBlockhashValid: the hash, which has the form of an address.
    BlockhashValid(Pubkey, ReadAt),
    /// A call of getSignatureStatuses.
    Statuses {
        /// The signatures, at most 256.
        signatures: Arc<[Signature]>,
        /// True if the node's history is searched, too, and not only its last few minutes.
        search_history: bool,
    },
    /// One of the other calls, with members that slotfront does not know.
    Extended(Box<Self>, UnknownMembers),
}

/// The members that the configs of each method may have, by [`TipMethod::index`].
static KNOWN: LazyLock<[Vec<String>; TipMethod::ALL.len()]> =
    LazyLock::new(|| TipMethod::ALL.map(|method| members_of(&method.describe())));

impl TipQuery {
    /// Validates the `params` of `method`.
    ///
    /// # Errors
    /// Every node version refuses the params. The returned error is the one that a node returns.
    pub fn parse(method: TipMethod, params: &Params) -> Result<Self, ParamError> {
        let query = match method {
            TipMethod::IsBlockhashValid => {
                is_blockhash_valid::parse(params).map(|(hash, at)| Self::BlockhashValid(hash, at))
            }
            TipMethod::GetSignatureStatuses => get_signature_statuses::parse(params)
                .map(|(signatures, search_history)| Self::Statuses { signatures, search_history }),
            _ => params::at_most_one(params).map(|config| Self::State(method, ReadAt::of(config))),
        }?;
        Ok(match UnknownMembers::of(&KNOWN[method.index()], params) {
            Some(unknown) => Self::Extended(Box::new(query), unknown),
            None => query,
        })
    }

    /// Returns what the call asks for, apart from members that slotfront does not know.
    pub fn known(&self) -> &Self {
        if let Self::Extended(known, _) = self { known } else { self }
    }

    /// Returns the method of the call.
    pub fn method(&self) -> TipMethod {
        match self {
            Self::State(method, _) => *method,
            Self::BlockhashValid(..) => TipMethod::IsBlockhashValid,
            Self::Statuses { .. } => TipMethod::GetSignatureStatuses,
            Self::Extended(known, _) => known.method(),
        }
    }

    /// Returns the state from which the call is answered. `None` for getSignatureStatuses, which looks at all states.
    pub fn read_at(&self) -> Option<ReadAt> {
        match self {
            Self::State(_, at) | Self::BlockhashValid(_, at) => Some(*at),
            Self::Statuses { .. } => None,
            Self::Extended(known, _) => known.read_at(),
        }
    }

    /// Returns the requested commitment. `None` for getSignatureStatuses.
    pub fn commitment(&self) -> Option<Commitment> {
        self.read_at().map(|at| at.commitment)
    }

    /// Returns the canonical params as JSON text for upstream calls, with every default written out. `floor` is the
    /// `minContextSlot`, which getSignatureStatuses does not have.
    pub fn params_json(&self, floor: Option<Slot>) -> String {
        self.params(floor).to_string()
    }

    fn params(&self, floor: Option<Slot>) -> Value {
        let config = |at: &ReadAt| with_context(json!({}), at.commitment, floor);
        match self {
            Self::State(_, at) => json!([config(at)]),
            Self::BlockhashValid(hash, at) => json!([hash.to_string(), config(at)]),
            Self::Statuses { signatures, search_history } => {
                get_signature_statuses::params_json(signatures, *search_history)
            }
            Self::Extended(known, unknown) => {
                let mut params = known.params(floor);
                unknown.add_to(&mut params);
                params
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "7p1hEDMXVV1iNxjmdTmGLwPkcDf7gyPh6ghUZGS5Kbvo";
    const SIGNATURE: &str =
        "5VERv8NMvzbJMEkV8xnrLkEaWRtSz9CosKDYjCJjBRnbJLgp8uirBgmQpjKhoR4tjF3ZpRzrFmBV6UjKdiSZkQUW";

    fn parse(method: TipMethod, params: &Value) -> Result<TipQuery, ParamError> {
        TipQuery::parse(method, &Params::Array(params.to_string().into()))
    }

    #[test]
    fn canonical_params_parse_to_the_same_query() {
        let signature = Signature::parse(SIGNATURE).unwrap();
        for commitment in Commitment::ALL {
            for min_context_slot in [None, Some(7)] {
                let at = ReadAt { commitment, min_context_slot };
                for query in [
                    TipQuery::State(TipMethod::GetSlot, at),
                    TipQuery::State(TipMethod::GetEpochInfo, at),
                    TipQuery::BlockhashValid(Pubkey::parse(HASH).unwrap(), at),
                    TipQuery::Statuses {
                        signatures: [signature; 3].into(),
                        search_history: min_context_slot.is_some(),
                    },
                ] {
                    let params: Value = serde_json::from_str(&query.params_json(min_context_slot)).unwrap();
                    assert_eq!(parse(query.method(), &params), Ok(query.clone()));
                    assert_eq!(TipMethod::from_name(query.method().as_str()), Some(query.method()));
                    assert_eq!(TipMethod::ALL[query.method().index()], query.method());
                }
            }
        }
    }

    #[test]
    fn members_that_are_unknown_go_to_the_node() {
        use TipMethod::{GetSignatureStatuses, GetSlot, IsBlockhashValid};
        let known = json!({ "commitment": "confirmed", "minContextSlot": 7 });
        let extended = json!({ "commitment": "confirmed", "minContextSlot": 7, "new": [1], "null": null });
        let expected = json!({ "commitment": "confirmed", "minContextSlot": 9, "new": [1] });
        for (method, first) in [(GetSlot, None), (IsBlockhashValid, Some(json!(HASH)))] {
            let params = |config: &Value| first.iter().chain([config]).cloned().collect::<Value>();
            let query = parse(method, &params(&extended)).unwrap();
            assert_eq!(*query.known(), parse(method, &params(&known)).unwrap());
            assert_eq!((query.method(), query.commitment()), (method, Some(Commitment::Confirmed)));
            assert_eq!(query.params_json(Some(9)), params(&expected).to_string());
        }
        let config = json!({ "searchTransactionHistory": false, "new": 1 });
        let statuses = parse(GetSignatureStatuses, &json!([[SIGNATURE], config])).unwrap();
        assert_eq!(statuses.params_json(None), json!([[SIGNATURE], config]).to_string());
        assert!(matches!(parse(GetSlot, &json!([{ "new": null }])), Ok(TipQuery::State(..))));
    }

    #[test]
    fn params_are_refused_in_a_nodes_words() {
        use TipMethod::{GetSignatureStatuses, GetSlot, IsBlockhashValid};
        let config = "Invalid params: invalid type: integer `5`, expected struct RpcContextConfig.";
        let unsearched = json!([[SIGNATURE], {}]);
        for (method, params, expected) in [
            (GetSlot, json!([5]), config),
            (GetSlot, json!([null, 1]), "Invalid parameters: Expected from 0 to 1 parameters."),
            (IsBlockhashValid, json!([]), "`params` should have at least 1 argument(s)"),
            (IsBlockhashValid, json!(["x"]), "WrongSize"),
            (IsBlockhashValid, json!(["0"]), "Invalid"),
            (IsBlockhashValid, json!(["0", 5]), config),
            (GetSignatureStatuses, json!([["x"]]), "Invalid param: WrongSize"),
            (GetSignatureStatuses, json!([[SIGNATURE, "0"]]), "Invalid param: Invalid"),
            (GetSignatureStatuses, json!([vec!["0"; 257]]), "Too many inputs provided; max 256"),
            (
                GetSignatureStatuses,
                json!([[SIGNATURE], 5]),
                "Invalid params: invalid type: integer `5`, expected struct RpcSignatureStatusConfig.",
            ),
            (GetSignatureStatuses, unsearched, "Invalid params: missing field `searchTransactionHistory`."),
            (
                GetSignatureStatuses,
                json!([[5]]),
                "Invalid params: invalid type: integer `5`, expected a string.",
            ),
        ] {
            let refused = parse(method, &params).map_err(|error| error.message);
            assert_eq!(refused, Err(expected.to_owned()), "{params}");
        }
        let bogus = parse(GetSlot, &json!([{ "commitment": "bogus" }])).unwrap();
        assert_eq!(bogus.commitment(), Some(Commitment::Finalized));
    }
}
