//! The requests of a probe: for a node's health, slots and identity, and for the length of a slot.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::methods::{Commitment, PerCommitment, Slot};
use crate::node::version::NodeVersion;
use crate::node::{Client, Fault, NodeReply, code};

/// The maximum length of an answer to a probe, in bytes. Such answers are numbers and short texts.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// The number of performance samples from which the length of a slot is computed. Each sample covers one minute.
const SLOT_TIME_SAMPLES: u64 = 3;
/// The maximum number of bytes that are kept of a text from a node. Such texts go into logs and onto admin pages.
const MAX_WORDS_BYTES: usize = 200;

/// A node's answer to `getGenesisHash`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Genesis {
    Hash(String),
    /// The node does not serve `getGenesisHash`.
    Unsupported,
    /// The node refused for another reason, and may report its genesis hash to the next probe.
    Refused,
}

impl Genesis {
    /// Returns the genesis hash. `None` if the node did not report it.
    pub fn hash(&self) -> Option<&String> {
        if let Self::Hash(genesis) = self { Some(genesis) } else { None }
    }
}

/// A node's identity as the node reports it. `None` stands for a part that the node did not report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The member `solana-core` of the answer to `getVersion`.
    pub version: Option<String>,
    /// The member `feature-set` of the answer to `getVersion`.
    pub feature_set: Option<u64>,
    /// The genesis hash, which names the cluster.
    pub genesis: Genesis,
    /// The answer to `getFirstAvailableBlock`: the oldest block that the node holds.
    pub first_available: Option<Slot>,
    /// True if, by its answer to `getVersion`, the node is of a kind and version whose blocks list every write of
    /// an account.
    pub lists_writes: bool,
}

/// A node's health and slots as the node reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulse {
    /// `Ok` if the node reports that it is healthy, or does not serve `getHealth` but reports a slot. Otherwise the
    /// error text of `getHealth`.
    pub health: Result<(), String>,
    /// The answer to `getSlot` at each commitment. `None` if the node gave none.
    pub slots: PerCommitment<Option<Slot>>,
}

/// Asks a node for its identity. A node may look for its oldest block in long-term storage, whose fault is none of the
/// node.
///
/// # Errors
/// A request for anything else brings no JSON-RPC answer. The error is the fault of the first such request.
pub async fn identity(client: &Client) -> Result<Identity, Fault> {
    let text = |value: Value, pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(bounded);
    let (version, genesis, first): (_, Result<Genesis, Fault>, _) = tokio::join!(
        ask(client, "getVersion", json!([])),
        genesis(client),
        ask(client, "getFirstAvailableBlock", json!([])),
    );
    let version = version?.ok();
    Ok(Identity {
        lists_writes: version.as_ref().is_some_and(lists_writes),
        feature_set: version.as_ref().and_then(|version| version["feature-set"].as_u64()),
        version: version.and_then(|v| text(v, "/solana-core")),
        genesis: genesis?,
        first_available: first.ok().and_then(Result::ok).and_then(|v| v.as_u64()),
    })
}

/// Returns true if `version`, the answer to `getVersion`, is that of an Agave version in whose source every place that
/// stores an account was checked. Other programs add members of their own, or count their versions in another way.
fn lists_writes(version: &Value) -> bool {
    let Some(members) = version.as_object() else { return false };
    let number = members.get("solana-core").and_then(Value::as_str).and_then(NodeVersion::parse_followed);
    members.len() == 2 && members.contains_key("feature-set") && number.is_some()
}

/// Asks a node for its genesis hash.
///
/// # Errors
/// The request brought no JSON-RPC answer.
pub(super) async fn genesis(client: &Client) -> Result<Genesis, Fault> {
    Ok(match question(client, "getGenesisHash", &json!([])).await? {
        NodeReply::Result(result) => match serde_json::from_slice::<String>(&result) {
            Ok(genesis) => Genesis::Hash(bounded(&genesis)),
            Err(_) => Genesis::Refused,
        },
        NodeReply::Error { code: code::METHOD_NOT_FOUND, .. } => Genesis::Unsupported,
        NodeReply::Error { .. } => Genesis::Refused,
    })
}

/// Asks a node for its health and its slots.
///
/// # Errors
/// A request brings no JSON-RPC answer. The error is the fault of the first such request.
pub async fn pulse(client: &Client) -> Result<Pulse, Fault> {
    let slot = |c: Commitment| ask(client, "getSlot", json!([{ "commitment": c.as_str() }]));
    let none = json!([]);
    let (health, processed, confirmed, finalized) = tokio::join!(
        question(client, "getHealth", &none),
        slot(Commitment::Processed),
        slot(Commitment::Confirmed),
        slot(Commitment::Finalized),
    );
    let number = |answer: Result<Value, String>| answer.ok().and_then(|v| v.as_u64());
    let slots = PerCommitment {
        processed: number(processed?),
        confirmed: number(confirmed?),
        finalized: number(finalized?),
    };
    let has_slot = Commitment::ALL.into_iter().any(|c| slots.get(c).is_some());
    let health = match health? {
        NodeReply::Result(_) => Ok(()),
        // Some providers do not serve getHealth. The slots of such a node still show whether it is behind.
        NodeReply::Error { code: code::METHOD_NOT_FOUND, .. } if has_slot => Ok(()),
        NodeReply::Error { code, body } => Err(words(code, &body)),
    };
    Ok(Pulse { health, slots })
}

/// Returns the length of a slot, computed from a node's newest performance samples. `None` if the node gives no
/// usable samples.
///
/// # Errors
/// The request brought no JSON-RPC answer.
pub async fn slot_time(client: &Client) -> Result<Option<Duration>, Fault> {
    let samples = ask(client, "getRecentPerformanceSamples", json!([SLOT_TIME_SAMPLES])).await?;
    Ok(samples.ok().and_then(|samples| time_of_samples(&samples)))
}

/// Returns the mean length of a slot over all `samples`. `None` if the samples are malformed or cover no slot.
fn time_of_samples(samples: &Value) -> Option<Duration> {
    let sum = |name: &str| -> Option<u64> {
        samples.as_array()?.iter().try_fold(0_u64, |sum, sample| sum.checked_add(sample[name].as_u64()?))
    };
    let (seconds, slots) = (sum("samplePeriodSecs")?, u32::try_from(sum("numSlots")?).ok()?);
    Duration::from_secs(seconds).checked_div(slots).filter(|time| !time.is_zero())
}

/// Sends one request, and returns the node's answer. The answer does not count against `pool.max_buffered`.
///
/// # Errors
/// The request brought no JSON-RPC answer.
pub async fn question(client: &Client, method: &str, params: &Value) -> Result<NodeReply, Fault> {
    client.ask(body(method, params), client.probe_timeout, MAX_ANSWER_BYTES).await?.reply(0)
}

/// Returns a node's time: the header `date` of its answer to `getSlot`. `None` if the answer has no such header.
///
/// # Errors
/// The request brought no answer.
pub async fn date(client: &Client) -> Result<Option<String>, Fault> {
    client.date(body("getSlot", &json!([])), client.probe_timeout).await
}

fn body(method: &str, params: &Value) -> Bytes {
    json!({"jsonrpc": "2.0", "id": 0, "method": method, "params": params}).to_string().into()
}

/// Sends one request, and returns the result or the node's own error message.
async fn ask(client: &Client, method: &str, params: Value) -> Result<Result<Value, String>, Fault> {
    match question(client, method, &params).await? {
        NodeReply::Result(result) => Ok(Ok(serde_json::from_slice(&result).map_err(|_| Fault::BadJson)?)),
        NodeReply::Error { code, body } => Ok(Err(words(code, &body))),
    }
}

fn words(code: i32, body: &[u8]) -> String {
    let message = serde_json::from_slice::<Value>(body).ok();
    let message = message.as_ref().and_then(|v| v["message"].as_str()).unwrap_or("no message");
    format!("{} ({code})", bounded(message))
}

/// Returns at most the first [`MAX_WORDS_BYTES`] bytes of a node's text.
fn bounded(words: &str) -> String {
    words[..words.floor_char_boundary(MAX_WORDS_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_time_comes_from_samples() {
        for (samples, expected_ms) in [
            (json!([{"numSlots": 240, "samplePeriodSecs": 60}]), Some(250)),
            (
                json!([{"numSlots": 240, "samplePeriodSecs": 60}, {"numSlots": 360, "samplePeriodSecs": 60}]),
                Some(200),
            ),
            (json!([]), None),
            (json!([{"numSlots": 0, "samplePeriodSecs": 60}]), None),
            (json!([{"numSlots": 240}]), None),
            (json!({"numSlots": 240}), None),
            (
                json!([{"numSlots": u64::MAX, "samplePeriodSecs": u64::MAX}, {"numSlots": 1, "samplePeriodSecs": 1}]),
                None,
            ),
        ] {
            assert_eq!(time_of_samples(&samples), expected_ms.map(Duration::from_millis), "{samples}");
        }
    }

    #[test]
    fn only_checked_versions_of_agave_list_writes() {
        for (version, expected) in [
            (json!({"feature-set": 1, "solana-core": "4.0.0"}), true),
            (json!({"feature-set": 1, "solana-core": "4.4.3"}), true),
            (json!({"feature-set": 1, "solana-core": "4.5.0"}), false),
            (json!({"feature-set": 1, "solana-core": "4.6.0"}), false),
            (json!({"feature-set": 1, "solana-core": "3.1.0"}), false),
            (json!({"feature-set": 1, "solana-core": "0.708.40000"}), false),
            (json!({"feature-set": 1, "solana-core": "4.0.0", "surfnet-version": "1"}), false),
            (json!({"solana-core": "4.0.0"}), false),
            (json!({"feature-set": 1, "solana-core": 4}), false),
            (json!("4.0.0"), false),
        ] {
            assert_eq!(lists_writes(&version), expected, "{version}");
        }
    }

    #[test]
    fn node_texts_are_cut_between_characters() {
        assert_eq!(bounded("Node is unhealthy"), "Node is unhealthy");
        let long = bounded(&"€".repeat(1000));
        assert_eq!((long.len(), long.chars().all(|c| c == '€')), (198, true));
    }
}
