//! The read methods beside the eight, which `[passthrough] methods` may forward, and the writes, which are never
//! forwarded.
//!
//! A node checks their params. This module reads only the commitment and `minContextSlot`, which decide the choice of a
//! node and the plan's rule. They are read as a node reads them: of several members with one name the last counts, and
//! the configuration may be any of the params. The list is fixed. A method that is not on it is not forwarded.

use bytes::Bytes;
use serde_json::{Map, Value};

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

/// The methods that write, on a node or on a service in front of one.
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
    /// The commitment that is named; else finalized where the method takes one, and `None` where it does not.
    pub commitment: Option<Commitment>,
    /// The caller's condition on the node's slot.
    pub min_context_slot: Option<Slot>,
}

/// The member that names a commitment.
const COMMITMENT: &str = "commitment";

impl Forwarded {
    /// The call of `method` with `params`.
    pub fn new(method: Further, params: Params) -> Self {
        let (mut named, mut min_context_slot) = (None, None);
        for param in list(&params) {
            match param {
                Value::Object(config) => {
                    named = config.get(COMMITMENT).and_then(commitment).or(named);
                    min_context_slot =
                        config.get("minContextSlot").and_then(Value::as_u64).or(min_context_slot);
                }
                Value::Array(config) => named = by_position(&config).or(named),
                _ => {}
            }
        }
        let commitment = named.or(method.takes_commitment().then_some(Commitment::Finalized));
        Self { method, params, commitment, min_context_slot }
    }

    /// The call written anew, so that no node can read another commitment from it than was read here.
    #[must_use]
    pub fn canonical(mut self) -> Self {
        let own = self.commitment.map(Commitment::as_str);
        let rewrite = |config: &mut Map<String, Value>| {
            // Where a node takes a name that is unknown here, it takes it for finalized at best.
            let known = config.get(COMMITMENT).and_then(commitment).and(own);
            match (known, config.get_mut(COMMITMENT)) {
                (Some(own), Some(named)) => *named = own.into(),
                (None, Some(_)) => drop(config.remove(COMMITMENT)),
                (_, None) => {}
            }
        };
        match &self.params {
            Params::None => {}
            Params::Object(text) => {
                if let Ok(Value::Object(mut config)) = serde_json::from_slice(text) {
                    rewrite(&mut config);
                    self.params = Params::Object(Value::Object(config).to_string().into());
                }
            }
            Params::Array(_) => {
                let mut list = list(&self.params);
                while list.last().is_some_and(Value::is_null) {
                    list.pop();
                }
                for param in &mut list {
                    match (param, own) {
                        (Value::Object(config), _) => rewrite(config),
                        (Value::Array(config), Some(own)) if by_position(config).is_some() => {
                            *config = vec![own.into()];
                        }
                        _ => {}
                    }
                }
                self.params = Params::Array(Value::Array(list).to_string().into());
            }
        }
        self
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

/// Positional params as a node holds them; none where they are not positional.
fn list(params: &Params) -> Vec<Value> {
    match params {
        // It was found well-formed with the envelope.
        Params::Array(text) => serde_json::from_slice(text).unwrap_or_default(),
        Params::Object(_) | Params::None => Vec::new(),
    }
}

/// The commitment that `value` names. To serde a variant is also an object whose only member has its name.
fn commitment(value: &Value) -> Option<Commitment> {
    let name = match value {
        Value::String(name) => name,
        Value::Object(variant) if variant.len() == 1 => variant.keys().next()?,
        _ => return None,
    };
    Commitment::ALL.into_iter().find(|commitment| commitment.as_str() == name)
}

/// The commitment of a configuration that is written as an array, which to serde is a struct by position.
fn by_position(config: &[Value]) -> Option<Commitment> {
    if let [only] = config { commitment(only) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_methods_are_unique_and_write_nothing() {
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
    fn only_node_selection_is_read_from_passthrough_params() {
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
            ("getVersion", "[]", None, None),
            ("getVersion", r#"[{"commitment":"processed"}]"#, Some(Commitment::Processed), None),
            (
                "getSlot",
                r#"[{"commitment":"finalized","minContextSlot":3,"commitment":"processed","minContextSlot":7}]"#,
                Some(Commitment::Processed),
                Some(7),
            ),
            (
                "getBlocks",
                r#"[5,{"commitment":"confirmed","minContextSlot":7},null]"#,
                Some(Commitment::Confirmed),
                Some(7),
            ),
            ("getBlocks", r#"[{"comm\u0069tment":"confirmed"},null]"#, Some(Commitment::Confirmed), None),
            ("getTokenSupply", r#"["x",["processed"]]"#, Some(Commitment::Processed), None),
            ("getSlot", r#"[{"commitment":{"processed":null}}]"#, Some(Commitment::Processed), None),
            ("getSignatureStatuses", r#"[["x"],{"searchTransactionHistory":true}]"#, None, None),
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

    #[test]
    fn the_canonical_text_names_one_commitment_at_most() {
        for (params, expected) in [
            (
                r#"[7,{"commitment":"finalized","commitment":"processed"},null,null]"#,
                r#"[7,{"commitment":"processed"}]"#,
            ),
            (
                r#"[{"commitment":"confirmed"},{"commitment":{"processed":null}}]"#,
                r#"[{"commitment":"processed"},{"commitment":"processed"}]"#,
            ),
            (r#"[{"commitment":"recent","a":1}]"#, r#"[{"a":1}]"#),
            (r#"["x",["processed"]]"#, r#"["x",["processed"]]"#),
            (r#"["x",[{"processed":null}]]"#, r#"["x",["processed"]]"#),
            (
                r#"[["x","y"],{"a":{"commitment":"processed"}}]"#,
                r#"[["x","y"],{"a":{"commitment":"processed"}}]"#,
            ),
            (
                r#"{"commitment":"processed","a":18446744073709551615}"#,
                r#"{"commitment":"finalized","a":18446744073709551615}"#,
            ),
            ("[null]", "[]"),
        ] {
            let text = Bytes::from_static(params.as_bytes());
            let params = if params.starts_with('{') { Params::Object(text) } else { Params::Array(text) };
            let call = Forwarded::new(Further::from_name("getBlocks").unwrap(), params).canonical();
            let (Params::Array(text) | Params::Object(text)) = &call.params else { panic!("{call:?}") };
            let [text, expected] =
                [&text[..], expected.as_bytes()].map(|text| serde_json::from_slice::<Value>(text).unwrap());
            assert_eq!(text, expected);
        }
    }
}
