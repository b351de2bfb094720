//! Read methods beyond the eight, which `[passthrough] methods` may have forwarded; and the writes that never are.
//!
//! Of their params nothing is judged here: a node does. Only the caller's commitment and `minContextSlot` are read, to
//! choose a node and to hold the plan's rule. The list is fixed: what is not on it is not forwarded, so no write ever is.

use bytes::Bytes;
use serde::Deserialize;

use super::{Commitment, Method, Slot};
use crate::jsonrpc::Params;

/// The methods, as Agave 4.0 serves them, and whether a commitment may be asked for.
const TABLE: [(&str, bool); 43] = [
    ("getBalance", true),
    ("getBlockCommitment", false),
    ("getBlockHeight", true),
    ("getBlockProduction", true),
    ("getBlockTime", false),
    ("getBlocks", true),
    ("getBlocksWithLimit", true),
    ("getEpochInfo", true),
    ("getEpochSchedule", false),
    ("getFirstAvailableBlock", false),
    ("getGenesisHash", false),
    ("getHealth", false),
    ("getHighestSnapshotSlot", false),
    ("getIdentity", false),
    ("getInflationGovernor", true),
    ("getInflationRate", false),
    ("getInflationReward", true),
    ("getLargestAccounts", true),
    ("getLatestBlockhash", true),
    ("getLeaderSchedule", true),
    ("getMaxRetransmitSlot", false),
    ("getMaxShredInsertSlot", false),
    ("getMinimumBalanceForRentExemption", true),
    ("getProgramAccounts", true),
    ("getRecentPrioritizationFees", false),
    ("getSignatureStatuses", false),
    ("getSignaturesForAddress", true),
    ("getSlot", true),
    ("getSlotLeader", true),
    ("getSlotLeaders", false),
    ("getStakeActivation", true),
    ("getStakeMinimumDelegation", true),
    ("getSupply", true),
    ("getTokenAccountsByDelegate", true),
    ("getTokenAccountsByOwner", true),
    ("getTokenLargestAccounts", true),
    ("getTokenSupply", true),
    ("getTransaction", true),
    ("getTransactionCount", true),
    ("getVersion", false),
    ("isBlockhashValid", true),
    ("minimumLedgerSlot", false),
    // Runs a transaction without sending it: nothing is written.
    ("simulateTransaction", true),
];

/// What writes, on a node or on what stands in front of one.
const WRITES: [&str; 3] = ["sendTransaction", "requestAirdrop", "sendBundle"];

/// The write method of this name, if it is one.
pub fn write_method(name: &str) -> Option<&'static str> {
    WRITES.into_iter().find(|write| *write == name)
}

/// A read method beyond the eight that may be forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Further(u8);

impl Further {
    /// How many there are.
    pub const COUNT: usize = TABLE.len();

    /// All of them; a method's position is [`Further::index`].
    pub fn all() -> impl Iterator<Item = Self> {
        (0..).take(Self::COUNT).map(Self)
    }

    /// The name on the wire, in metrics and in settings.
    pub const fn as_str(self) -> &'static str {
        TABLE[self.index()].0
    }

    /// Position in a table of all.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Reads the exact wire name (case matters, as on a node).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|method| method.as_str() == name)
    }

    const fn takes_commitment(self) -> bool {
        TABLE[self.index()].1
    }
}

/// A method that a plan or a key may be narrowed to: one of the eight, or a further one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AnyMethod {
    /// One of the eight.
    Own(Method),
    /// One that is forwarded, where `[passthrough] methods` says so.
    Further(Further),
}

impl AnyMethod {
    /// The name on the wire, in metrics and in settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Own(method) => method.as_str(),
            Self::Further(method) => method.as_str(),
        }
    }

    /// Reads the exact wire name.
    pub fn from_name(name: &str) -> Option<Self> {
        let own = Method::from_name(name).map(Self::Own);
        own.or_else(|| Further::from_name(name).map(Self::Further))
    }
}

/// A call that is forwarded as it is, its params unread but for what chooses a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forwarded {
    /// The method.
    pub method: Further,
    /// As the caller wrote them.
    pub params: Params,
    /// The commitment asked for, finalized where the method takes one and none is named; `None` for other methods.
    pub commitment: Option<Commitment>,
    /// The caller's condition on the node's slot.
    pub min_context_slot: Option<Slot>,
}

/// The members of a call's configuration object that matter here; anything else in it is the node's to judge.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    commitment: serde_json::Value,
    min_context_slot: serde_json::Value,
}

impl Forwarded {
    /// The call of `method` with `params`.
    pub fn new(method: Further, params: Params) -> Self {
        // The configuration is the last of the params, where it is one.
        let config: Config = match &params {
            Params::Array(text) => serde_json::from_slice::<Vec<&serde_json::value::RawValue>>(text)
                .ok()
                .and_then(|list| serde_json::from_str(list.last()?.get()).ok())
                .unwrap_or_default(),
            Params::Object(_) | Params::None => Config::default(),
        };
        let named = config
            .commitment
            .as_str()
            .and_then(|name| Commitment::ALL.into_iter().find(|commitment| commitment.as_str() == name));
        let commitment = method.takes_commitment().then(|| named.unwrap_or(Commitment::Finalized));
        Self { method, params, commitment, min_context_slot: config.min_context_slot.as_u64() }
    }

    /// The whole call as it goes upstream.
    pub fn body(&self, id: u64) -> Bytes {
        let method = self.method.as_str();
        let mut body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}""#).into_bytes();
        if let Params::Array(params) | Params::Object(params) = &self.params {
            body.extend_from_slice(br#","params":"#);
            body.extend_from_slice(params);
        }
        body.push(b'}');
        body.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_method_is_listed_twice_and_no_write_is() {
        let mut names: Vec<_> = Further::all().map(Further::as_str).collect();
        names.extend(Method::ALL.map(Method::as_str));
        names.extend(WRITES);
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(Further::all().all(|method| Further::from_name(method.as_str()) == Some(method)));
    }

    #[test]
    fn only_what_chooses_a_node_is_read_and_the_params_go_up_as_they_came() {
        let forwarded = |name: &str, params: &'static str| {
            let params = match params.as_bytes().first() {
                None => Params::None,
                Some(b'{') => Params::Object(params.into()),
                Some(_) => Params::Array(params.into()),
            };
            Forwarded::new(Further::from_name(name).unwrap(), params)
        };
        for (name, params, commitment, floor) in [
            ("getSlot", "", Some(Commitment::Finalized), None),
            (
                "getSlot",
                r#"[{"commitment":"processed","minContextSlot":7}]"#,
                Some(Commitment::Processed),
                Some(7),
            ),
            ("getSlot", r#"[{"commitment":"nonsense"}]"#, Some(Commitment::Finalized), None),
            ("getSlot", r#"[{"commitment":7,"minContextSlot":"x"}]"#, Some(Commitment::Finalized), None),
            ("getSlot", r#"{"commitment":"processed"}"#, Some(Commitment::Finalized), None),
            ("getVersion", r#"[{"commitment":"processed"}]"#, None, None),
            (
                "getTokenAccountsByOwner",
                r#"["x",{"mint":"y"},{"commitment":"confirmed"}]"#,
                Some(Commitment::Confirmed),
                None,
            ),
            ("getBalance", r#"["x",  {"a" :1}]"#, Some(Commitment::Finalized), None),
        ] {
            let call = forwarded(name, params);
            assert_eq!((call.commitment, call.min_context_slot), (commitment, floor), "{name} {params}");
            let with = if params.is_empty() { String::new() } else { format!(r#","params":{params}"#) };
            let body = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"{name}"{with}}}"#);
            assert_eq!(call.body(5), body);
        }
    }
}
