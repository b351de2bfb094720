//! The subscriptions of a node's WebSocket (`PubSub`), and the parsing of their params into one canonical, typed
//! [`Subscription`]. Subscriptions with the same meaning are equal, as on a node.

use serde::Deserialize;
use serde_json::{Value, json};

use super::get_account_info::RpcAccountInfoConfig;
use super::params::{self, ParamError};
use super::scans::in_base58;
use super::{AccountEncoding, AccountForm, Commitment, Pubkey, Signature, commitment, forwarded};
use crate::jsonrpc::Params;

named! {
    /// A kind of subscription, by the method that subscribes.
    pub enum SubscriptionMethod {
        /// `accountSubscribe [pubkey, config?]`
        Account = "accountSubscribe",
        /// `signatureSubscribe [signature, config?]`
        Signature = "signatureSubscribe",
        /// `slotSubscribe []`
        Slot = "slotSubscribe",
        /// `rootSubscribe []`
        Root = "rootSubscribe",
        /// `logsSubscribe [filter, config?]`
        Logs = "logsSubscribe",
        /// `programSubscribe [pubkey, config?]`
        Program = "programSubscribe",
        /// `slotsUpdatesSubscribe []`
        SlotsUpdates = "slotsUpdatesSubscribe",
        /// `blockSubscribe [filter, config?]`
        Block = "blockSubscribe",
        /// `voteSubscribe []`
        Vote = "voteSubscribe",
    }
}

impl SubscriptionMethod {
    /// Returns the name of the kind alone, such as `account`. `accountUnsubscribe` ends a subscription of it, and
    /// `accountNotification` names its notifications.
    pub fn kind(self) -> &'static str {
        self.as_str().trim_end_matches("Subscribe")
    }

    /// Returns the kind whose method to unsubscribe has this name.
    pub fn from_unsubscribe(name: &str) -> Option<Self> {
        Self::from_kind(name.strip_suffix("Unsubscribe")?)
    }

    /// Returns the kind whose notifications have this name.
    pub fn from_notification(name: &str) -> Option<Self> {
        Self::from_kind(name.strip_suffix("Notification")?)
    }

    fn from_kind(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.kind() == kind)
    }

    /// Returns the members of the config that a node reads, beside the commitment.
    fn config_members(self) -> &'static [&'static str] {
        match self {
            Self::Program => &["encoding", "dataSlice", "filters", "withContext"],
            Self::Block => {
                &["encoding", "transactionDetails", "showRewards", "maxSupportedTransactionVersion"]
            }
            _ => &[],
        }
    }
}

/// The validated params of a subscription in canonical form.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subscription {
    /// The changes of an account.
    Account {
        /// The address of the account.
        pubkey: Pubkey,
        /// The form of the account's data.
        form: AccountForm,
        /// The commitment at which the account is read.
        commitment: Commitment,
    },
    /// The end of a transaction.
    Signature {
        /// The signature of the transaction.
        signature: Signature,
        /// The commitment that the transaction has to reach.
        commitment: Commitment,
        /// True if the caller is also told once a node has processed the transaction (`enableReceivedNotification`).
        received: bool,
    },
    /// Each new slot.
    Slot,
    /// Each new root.
    Root,
    /// A subscription that only a node can serve.
    Relayed {
        /// The kind.
        method: SubscriptionMethod,
        /// The params as JSON text in canonical form. The node checks them.
        params: String,
        /// The commitment in the params, or finalized if the params have none. `None` if the kind has no commitment.
        commitment: Option<Commitment>,
    },
}

/// The config param of signatureSubscribe. The type has the name of a node's type, because that name occurs in a node's
/// errors.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RpcSignatureSubscribeConfig {
    #[serde(flatten, deserialize_with = "commitment::lenient")]
    commitment: Commitment,
    enable_received_notification: Option<bool>,
}

impl Subscription {
    /// Validates the `params` of `method`, and fills in the defaults.
    ///
    /// # Errors
    /// A node refuses the params. The returned error is the one that a node returns.
    pub fn parse(method: SubscriptionMethod, params: &Params) -> Result<Self, ParamError> {
        let invalid = |what| move |_| ParamError::new(format!("Invalid Request: Invalid {what} provided"));
        Ok(match method {
            SubscriptionMethod::Account => {
                let (pubkey, config) = params::one_or_two::<String, RpcAccountInfoConfig>(params)?;
                let config = config.unwrap_or_default();
                Self::Account {
                    pubkey: Pubkey::parse(&pubkey).map_err(invalid("pubkey"))?,
                    form: config.form(AccountEncoding::Binary),
                    commitment: config.commitment,
                }
            }
            SubscriptionMethod::Signature => {
                let (signature, config) = params::one_or_two::<String, RpcSignatureSubscribeConfig>(params)?;
                let config = config.unwrap_or_default();
                Self::Signature {
                    signature: Signature::parse(&signature).map_err(invalid("signature"))?,
                    commitment: config.commitment,
                    received: config.enable_received_notification.unwrap_or_default(),
                }
            }
            SubscriptionMethod::Slot => params::none(params).map(|()| Self::Slot)?,
            SubscriptionMethod::Root => params::none(params).map(|()| Self::Root)?,
            SubscriptionMethod::Logs | SubscriptionMethod::Program | SubscriptionMethod::Block => {
                let (first, config) = params::one_or_two::<Value, Value>(params)?;
                let (config, commitment) = canonical(method, config);
                let params: Vec<_> = [first].into_iter().chain(config).collect();
                let params = Value::from(params).to_string();
                Self::Relayed { method, params, commitment: Some(commitment) }
            }
            SubscriptionMethod::SlotsUpdates | SubscriptionMethod::Vote => {
                params::none(params)?;
                Self::Relayed { method, params: "[]".to_owned(), commitment: None }
            }
        })
    }

    /// Returns the kind.
    pub const fn method(&self) -> SubscriptionMethod {
        match self {
            Self::Account { .. } => SubscriptionMethod::Account,
            Self::Signature { .. } => SubscriptionMethod::Signature,
            Self::Slot => SubscriptionMethod::Slot,
            Self::Root => SubscriptionMethod::Root,
            Self::Relayed { method, .. } => *method,
        }
    }

    /// Returns the requested commitment. `None` if the kind has no commitment.
    pub const fn commitment(&self) -> Option<Commitment> {
        match self {
            Self::Account { commitment, .. } | Self::Signature { commitment, .. } => Some(*commitment),
            Self::Slot | Self::Root => None,
            Self::Relayed { commitment, .. } => *commitment,
        }
    }
}

/// Returns the config of a subscription without what a node does not read and what means nothing, and its commitment.
fn canonical(method: SubscriptionMethod, config: Option<Value>) -> (Option<Value>, Commitment) {
    let mut config = match config {
        Some(Value::Object(config)) => config,
        // A node refuses anything else.
        other => return (other, Commitment::default()),
    };
    // Written in a node's words, so that no node reads another one, whose slots would count for this one.
    let commitment = config.get("commitment").and_then(forwarded::commitment).unwrap_or_default();
    config.retain(|name, value| method.config_members().contains(&name.as_str()) && !value.is_null());
    if method == SubscriptionMethod::Program {
        let defaults = [("encoding", json!("binary")), ("filters", json!([])), ("withContext", json!(false))];
        config.retain(|name, value| !defaults.iter().any(|(of, default)| name == of && value == default));
        // An account must pass all filters, so neither their order nor repetitions matter.
        if let Some(Value::Array(filters)) = config.get_mut("filters") {
            for compared in filters.iter_mut().filter_map(|filter| filter.get_mut("memcmp")) {
                if let Some(same) = in_base58(compared) {
                    *compared = same;
                }
            }
            filters.sort_by_cached_key(Value::to_string);
            filters.dedup();
        }
    }
    if commitment != Commitment::default() {
        config.insert("commitment".to_owned(), commitment.as_str().into());
    }
    (Some(Value::Object(config)).filter(|config| *config != json!({})), commitment)
}

/// Reads the id of an unsubscribing call: a whole number.
///
/// # Errors
/// The params are not `[id]`. The returned error is the one that a node returns.
pub fn unsubscribed_id(params: &Params) -> Result<u64, ParamError> {
    params::one_or_two::<u64, ()>(params).map(|(id, _)| id)
}

/// Returns a node's error for an id that is no subscription of the connection.
pub fn invalid_subscription_id() -> ParamError {
    ParamError::new("Invalid subscription id.")
}

/// Returns a node's error for a subscription beyond a limit.
pub fn subscription_limit_reached() -> ParamError {
    let message = "Internal Error: Subscription refused. Node subscription limit reached";
    ParamError { code: -32603, ..ParamError::new(message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: SubscriptionMethod, params: &str) -> Result<Subscription, String> {
        let params = Params::Array(params.to_owned().into());
        Subscription::parse(method, &params).map_err(|error| format!("{} {}", error.code, error.message))
    }

    const KEY: &str = "SysvarC1ock11111111111111111111111111111111";

    #[test]
    fn equal_meanings_are_equal_subscriptions() {
        use SubscriptionMethod::{Account, Logs, Program, Signature};
        let signature = "1".repeat(64);
        for (method, one, other) in [
            (
                Account,
                format!("[\"{KEY}\"]"),
                format!("[\"{KEY}\",{{\"encoding\":\"binary\",\"commitment\":\"finalized\"}}]"),
            ),
            (Account, format!("[\"{KEY}\",null]"), format!("[\"{KEY}\",{{\"commitment\":\"other\"}}]")),
            (
                Signature,
                format!("[\"{signature}\"]"),
                format!("[\"{signature}\",{{\"enableReceivedNotification\":false}}]"),
            ),
            (
                Logs,
                "[\"all\", {\"commitment\":\"confirmed\",\"a\":1}]".into(),
                "[\"all\",{\"a\":1,\"commitment\":\"confirmed\"}]".into(),
            ),
            (
                Logs,
                "[\"all\",{\"commitment\":\"recent\"}]".into(),
                "[\"all\",{\"commitment\":\"finalized\"}]".into(),
            ),
            (Logs, "[\"all\"]".into(), "[\"all\",{\"x\":1,\"commitment\":null}]".into()),
            (Logs, "[\"all\",null]".into(), "[\"all\",{}]".into()),
            (
                Program,
                format!("[\"{KEY}\"]"),
                format!(
                    "[\"{KEY}\",{{\"filters\":[],\"encoding\":\"binary\",\"withContext\":false,\"minContextSlot\":7}}]"
                ),
            ),
            (
                Program,
                format!(
                    "[\"{KEY}\",{{\"filters\":[{{\"dataSize\":1}},{{\"memcmp\":{{\"offset\":0,\"bytes\":\"2\"}}}}]}}]"
                ),
                format!(
                    "[\"{KEY}\",{{\"dataSlice\":null,\"filters\":[{{\"memcmp\":{{\"bytes\":\"2\",\"encoding\":\"base58\",\"offset\":0}}}},{{\"dataSize\":1}},{{\"dataSize\":1}}]}}]"
                ),
            ),
            (
                Program,
                format!("[\"{KEY}\",{{\"filters\":[{{\"memcmp\":{{\"offset\":0,\"bytes\":\"5T\"}}}}]}}]"),
                format!("[\"{KEY}\",{{\"filters\":[{{\"memcmp\":{{\"offset\":0,\"bytes\":[1,2]}}}}]}}]"),
            ),
        ] {
            assert_eq!(parse(method, &one).unwrap(), parse(method, &other).unwrap(), "{one} {other}");
        }
        for (method, one, other) in [
            (Logs, "[\"all\"]", "[\"allWithVotes\"]"),
            (Logs, "[\"all\"]", "[\"all\",{\"commitment\":\"processed\"}]"),
            (Program, "[\"x\"]", "[\"x\",{\"encoding\":\"base64\"}]"),
            (Program, "[\"x\"]", "[\"x\",{\"filters\":[{\"dataSize\":1}]}]"),
            (Program, "[\"x\"]", "[\"x\",{\"filters\":\"what a node refuses\"}]"),
            (Program, "[\"x\"]", "[\"x\",7]"),
        ] {
            assert_ne!(parse(method, one).unwrap(), parse(method, other).unwrap(), "{one} {other}");
        }
        let commitment = |params| parse(Logs, params).unwrap().commitment();
        assert_eq!(commitment("[\"all\"]"), Some(Commitment::Finalized));
        assert_eq!(commitment("[\"all\",{\"commitment\":\"confirmed\"}]"), Some(Commitment::Confirmed));
    }

    #[test]
    fn faults_have_a_nodes_words() {
        use SubscriptionMethod::{Account, Signature, Slot};
        for (method, params, expected) in [
            (Account, "[]", "-32602 `params` should have at least 1 argument(s)"),
            (Account, "[\"x\"]", "-32602 Invalid Request: Invalid pubkey provided"),
            (Account, "[1]", "-32602 Invalid params: invalid type: integer `1`, expected a string."),
            (Signature, "[\"x\"]", "-32602 Invalid Request: Invalid signature provided"),
            (Slot, "[1]", "-32602 Invalid parameters: No parameters were expected"),
        ] {
            assert_eq!(parse(method, params).unwrap_err(), expected, "{params}");
        }
        let id = |params: &str| unsubscribed_id(&Params::Array(params.to_owned().into()));
        assert_eq!(id("[7]"), Ok(7));
        assert!(id("[-1]").is_err() && id("[\"7\"]").is_err() && id("[]").is_err());
    }
}
