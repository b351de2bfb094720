//! The read methods that are forwarded, and the write methods, which are not.
//!
//! The node checks the params. So this module reads only what the choice of a node and the rules of plans need, the
//! commitment and `minContextSlot`, and reads them as a node does: the last of several members of the same name wins,
//! and any param may be the configuration. No setting adds a method to those in this module.

use bytes::Bytes;
use serde_json::{Map, Value};

use super::{Commitment, Group, Method, Rules, Slot, SubscriptionMethod, TipMethod, rules};
use crate::jsonrpc::Params;

const SEND: &str = "sendTransaction";

/// The methods that send transactions. Nodes have the first two. `sendBundle` belongs to services in front of nodes.
const WRITES: [&str; 3] = [SEND, "requestAirdrop", "sendBundle"];

/// Returns the write method of this name, if there is one.
pub fn write_method(name: &str) -> Option<&'static str> {
    WRITES.into_iter().find(|write| *write == name)
}

named! {
    /// A method that slotfront does not answer itself, and forwards to a node: if `[passthrough] methods` lists it, or if it
    /// has a group and the caller's plan opens that. All of them have a commitment.
    pub enum PassthroughMethod {
        /// Nodes before Agave 2 have it.
        GetStakeActivation = "getStakeActivation",
        /// A simulation writes nothing to the chain.
        SimulateTransaction = "simulateTransaction",
        /// No setting can list it. Only `slotfront dev` forwards it.
        RequestAirdrop = "requestAirdrop",
    }
}

/// A method that a plan or a key can allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AnyMethod {
    /// A method that slotfront answers through its cache.
    Own(Method),
    /// One of the six methods whose answers never go back.
    Tip(TipMethod),
    /// A method that is forwarded.
    Passthrough(PassthroughMethod),
    /// A subscription over a WebSocket.
    Subscription(SubscriptionMethod),
    /// `sendTransaction`, which `[send]` may enable.
    Send,
}

impl AnyMethod {
    /// The number of methods.
    pub const COUNT: usize = Self::Send.index() + 1;

    /// Returns the name in calls, metrics and settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Own(method) => method.as_str(),
            Self::Tip(method) => method.as_str(),
            Self::Passthrough(method) => method.as_str(),
            Self::Subscription(method) => method.as_str(),
            Self::Send => SEND,
        }
    }

    /// Returns every method, in the order of [`AnyMethod::index`].
    pub fn all() -> impl Iterator<Item = Self> {
        let own = Method::ALL.into_iter().map(Self::Own).chain(TipMethod::ALL.into_iter().map(Self::Tip));
        own.chain(PassthroughMethod::ALL.into_iter().map(Self::Passthrough))
            .chain(SubscriptionMethod::ALL.into_iter().map(Self::Subscription))
            .chain([Self::Send])
    }

    /// Returns the position of the method among all of them, for tables with one element for each.
    pub const fn index(self) -> usize {
        const TIP: usize = Method::ALL.len();
        const PASSTHROUGH: usize = TIP + TipMethod::ALL.len();
        const SUBSCRIPTION: usize = PASSTHROUGH + PassthroughMethod::ALL.len();
        match self {
            Self::Own(method) => method.index(),
            Self::Tip(method) => TIP + method.index(),
            Self::Passthrough(method) => PASSTHROUGH + method.index(),
            Self::Subscription(method) => SUBSCRIPTION + method.index(),
            Self::Send => SUBSCRIPTION + SubscriptionMethod::ALL.len(),
        }
    }

    /// Returns every method that a setting can name.
    pub fn listed() -> impl Iterator<Item = Self> {
        Self::all().filter(|method| *method != Self::Passthrough(PassthroughMethod::RequestAirdrop))
    }

    /// Returns the group by which a plan opens the method. `None` if it has to be named, or needs a setting of its own.
    pub const fn group(self) -> Option<Group> {
        match self {
            Self::Own(method) => Some(method.group()),
            Self::Tip(_) => Some(Group::Tip),
            Self::Passthrough(PassthroughMethod::SimulateTransaction) => Some(Group::Simulation),
            Self::Subscription(_) => Some(Group::Subscriptions),
            Self::Passthrough(_) | Self::Send => None,
        }
    }

    /// Returns the rules of the method.
    pub const fn rules(self) -> &'static Rules {
        match self {
            Self::Own(method) => method.rules(),
            Self::Tip(_) | Self::Subscription(_) => &rules::TIP,
            Self::Passthrough(PassthroughMethod::GetStakeActivation) => &rules::AMOUNT,
            Self::Passthrough(_) => &rules::SIMULATION,
            Self::Send => &rules::SEND,
        }
    }

    /// Returns true if a plan that names no methods allows the method: what a wallet or an explorer reads, and nothing for
    /// which a node works for long.
    pub fn is_usual(self) -> bool {
        self.group().is_some_and(|group| !matches!(group, Group::Scans | Group::Simulation))
    }

    /// Returns the method of this exact name, if a setting can name it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::listed().find(|method| method.as_str() == name)
    }
}

/// A call that is forwarded to a node. Its params are unparsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassthroughCall {
    /// The method.
    pub method: PassthroughMethod,
    /// The params of the caller.
    pub params: Params,
    /// The commitment in the params, or finalized if the params have none.
    pub commitment: Commitment,
    /// The caller's `minContextSlot`.
    pub min_context_slot: Option<Slot>,
}

/// The name of the config's member that holds the commitment.
const COMMITMENT: &str = "commitment";

impl PassthroughCall {
    /// Creates a call, and reads its commitment and `minContextSlot`.
    pub fn new(method: PassthroughMethod, params: Params) -> Self {
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
        let commitment = named.unwrap_or_default();
        Self { method, params, commitment, min_context_slot }
    }

    /// Returns the call with rewritten params, from which every node reads the same commitment as slotfront.
    #[must_use]
    pub fn canonical(mut self) -> Self {
        let own = self.commitment.as_str();
        let rewrite = |config: &mut Map<String, Value>| {
            // A commitment with an unknown name is removed. A node that accepts such a name treats it as finalized.
            let known = config.get(COMMITMENT).and_then(commitment).map(|_| own);
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
                    match param {
                        Value::Object(config) => rewrite(config),
                        Value::Array(config) if by_position(config).is_some() => {
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

    /// Returns the JSON-RPC body of the call to a node, with this id.
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

/// Returns positional params as values. Returns an empty list for absent or named params.
fn list(params: &Params) -> Vec<Value> {
    match params {
        // The envelope has validated the text.
        Params::Array(text) => serde_json::from_slice(text).unwrap_or_default(),
        Params::Object(_) | Params::None => Vec::new(),
    }
}

/// Returns the commitment that a JSON value names. Like serde, accepts `"confirmed"` and an object with the only member
/// `confirmed`.
pub(super) fn commitment(value: &Value) -> Option<Commitment> {
    let name = match value {
        Value::String(name) => name,
        Value::Object(variant) if variant.len() == 1 => variant.keys().next()?,
        _ => return None,
    };
    Commitment::ALL.into_iter().find(|commitment| commitment.as_str() == name)
}

/// Returns the commitment of a configuration that is written as an array. serde reads such an array as a struct.
fn by_position(config: &[Value]) -> Option<Commitment> {
    if let [only] = config { commitment(only) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_methods_are_unique_and_write_nothing() {
        let mut names: Vec<_> = AnyMethod::all().map(AnyMethod::as_str).collect();
        assert!(AnyMethod::all().enumerate().all(|(at, method)| method.index() == at));
        assert_eq!(names.len(), AnyMethod::COUNT);
        names.push("sendBundle");
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(AnyMethod::listed().all(|method| AnyMethod::from_name(method.as_str()) == Some(method)));
        assert_eq!(AnyMethod::from_name("requestAirdrop"), None);
    }

    #[test]
    fn only_node_selection_is_read_from_passthrough_params() {
        let call_of = |name: &str, params: &'static str| {
            let params = match params.as_bytes().first() {
                None => Params::None,
                Some(b'{') => Params::Object(params.into()),
                Some(_) => Params::Array(params.into()),
            };
            PassthroughCall::new(PassthroughMethod::from_name(name).unwrap(), params)
        };
        for (name, params, commitment, floor) in [
            ("simulateTransaction", "", Commitment::Finalized, None),
            (
                "simulateTransaction",
                r#"[{"commitment":"processed","minContextSlot":7}]"#,
                Commitment::Processed,
                Some(7),
            ),
            ("simulateTransaction", r#"[{"commitment":"nonsense"}]"#, Commitment::Finalized, None),
            (
                "simulateTransaction",
                r#"[{"commitment":7,"minContextSlot":"x"}]"#,
                Commitment::Finalized,
                None,
            ),
            ("simulateTransaction", r#"{"commitment":"processed"}"#, Commitment::Finalized, None),
            (
                "simulateTransaction",
                r#"[{"commitment":"finalized","minContextSlot":3,"commitment":"processed","minContextSlot":7}]"#,
                Commitment::Processed,
                Some(7),
            ),
            (
                "simulateTransaction",
                r#"[5,{"commitment":"confirmed","minContextSlot":7},null]"#,
                Commitment::Confirmed,
                Some(7),
            ),
            ("simulateTransaction", r#"[{"comm\u0069tment":"confirmed"},null]"#, Commitment::Confirmed, None),
            ("simulateTransaction", r#"["x",["processed"]]"#, Commitment::Processed, None),
            ("simulateTransaction", r#"[{"commitment":{"processed":null}}]"#, Commitment::Processed, None),
            (
                "simulateTransaction",
                r#"["x",{"mint":"y"},{"commitment":"confirmed"}]"#,
                Commitment::Confirmed,
                None,
            ),
            ("simulateTransaction", r#"["x",  {"a" :1}]"#, Commitment::Finalized, None),
        ] {
            let call = call_of(name, params);
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
            let call =
                PassthroughCall::new(PassthroughMethod::from_name("simulateTransaction").unwrap(), params)
                    .canonical();
            let (Params::Array(text) | Params::Object(text)) = &call.params else { panic!("{call:?}") };
            let [text, expected] =
                [&text[..], expected.as_bytes()].map(|text| serde_json::from_slice::<Value>(text).unwrap());
            assert_eq!(text, expected);
        }
    }
}
