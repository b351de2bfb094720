//! `sendTransaction [transaction, config?]`: a signed transaction for the cluster.
//!
//! What every node refuses before it looks at its state is refused here, with its words. All else is left to a node.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use super::extended::UnknownMembers;
use super::get_fee_for_message::base64_error;
use super::message::{MAX_MESSAGE, WireTransaction};
use super::params::{self, ParamError};
use super::{Commitment, Pubkey, Signature, Slot};
use crate::jsonrpc::Params;

/// The Rust path of a node's transaction type, as the node's errors spell it.
const TYPE: &str = "solana_transaction::versioned::VersionedTransaction";
/// The maximum lengths of the texts of [`MAX_MESSAGE`] bytes.
const MAX_BASE58: usize = 1683;
const MAX_BASE64: usize = 1644;

/// A call of sendTransaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendQuery {
    /// The bytes of the transaction.
    pub wire: Bytes,
    /// The first signature, which names the transaction. `None` if it has none, which a node refuses.
    pub signature: Option<Signature>,
    /// The recent blockhash, or a durable nonce. `None` if only newer nodes can read the message.
    pub blockhash: Option<Pubkey>,
    /// True if the node sends it without simulating it first.
    pub skip_preflight: bool,
    /// The commitment of the simulation. `None` is the node's default, finalized.
    pub preflight_commitment: Option<Commitment>,
    /// The number of times that the node sends it again.
    pub max_retries: Option<usize>,
    /// The caller's `minContextSlot`.
    pub min_context_slot: Option<Slot>,
    /// The members of the config that slotfront does not know.
    pub unknown: UnknownMembers,
}

/// The members of the config that slotfront knows.
const KNOWN: [&str; 5] = ["encoding", "maxRetries", "minContextSlot", "preflightCommitment", "skipPreflight"];

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RpcSendTransactionConfig {
    #[serde(default)]
    skip_preflight: bool,
    preflight_commitment: Option<Commitment>,
    encoding: Option<UiTransactionEncoding>,
    max_retries: Option<usize>,
    min_context_slot: Option<Slot>,
}

/// The encodings that a node knows, in the order in which its errors list them.
#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "camelCase")]
enum UiTransactionEncoding {
    Binary,
    Base64,
    Base58,
    Json,
    JsonParsed,
}

impl SendQuery {
    /// Validates the params.
    ///
    /// # Errors
    /// Every node version refuses the params. The returned error is the one that a node returns.
    pub fn parse(params: &Params) -> Result<Self, ParamError> {
        let (text, config) = params::one_or_two::<String, RpcSendTransactionConfig>(params)?;
        let config = config.unwrap_or_default();
        let wire = decode(&text, config.encoding.unwrap_or(UiTransactionEncoding::Base58))?;
        let WireTransaction { signatures, message, .. } = WireTransaction::decode(&wire)
            .map_err(|error| ParamError::new(format!("failed to deserialize {TYPE}: {error}")))?;
        Ok(Self {
            signature: signatures.first().copied().map(Signature),
            blockhash: message.map(|message| Pubkey(*message.recent_blockhash)),
            skip_preflight: config.skip_preflight,
            preflight_commitment: config.preflight_commitment,
            max_retries: config.max_retries,
            min_context_slot: config.min_context_slot,
            unknown: UnknownMembers::of(&KNOWN, params).unwrap_or_default(),
            wire: wire.into(),
        })
    }

    /// Returns the params as JSON text for upstream calls.
    pub fn params_json(&self) -> String {
        let mut config = json!({ "encoding": "base64", "skipPreflight": self.skip_preflight });
        if let Some(commitment) = self.preflight_commitment {
            config["preflightCommitment"] = json!(commitment);
        }
        if let Some(retries) = self.max_retries {
            config["maxRetries"] = retries.into();
        }
        if let Some(slot) = self.min_context_slot {
            config["minContextSlot"] = slot.into();
        }
        let mut params = json!([STANDARD.encode(&self.wire), config]);
        self.unknown.add_to(&mut params);
        params.to_string()
    }
}

fn decode(text: &str, encoding: UiTransactionEncoding) -> Result<Vec<u8>, ParamError> {
    use UiTransactionEncoding::{Base58, Base64, Binary, Json, JsonParsed};
    let unsupported = |name| {
        Err(ParamError::new(format!("unsupported encoding: {name}. Supported encodings: base58, base64")))
    };
    let within = |name, limit| {
        let length = text.len();
        let words = format!(
            "{name} encoded {TYPE} too large: {length} bytes (max: encoded/raw {limit}/{MAX_MESSAGE})"
        );
        if length > limit { Err(ParamError::new(words)) } else { Ok(()) }
    };
    let wire = match encoding {
        Json => return unsupported("json"),
        JsonParsed => return unsupported("jsonParsed"),
        Binary | Base58 => {
            within("base58", MAX_BASE58)?;
            let wrong = |error| ParamError::new(format!("invalid base58 encoding: {error:?}"));
            bs58::decode(text).into_vec().map_err(wrong)?
        }
        Base64 => {
            within("base64", MAX_BASE64)?;
            STANDARD.decode(text).map_err(|error| base64_error(&error))?
        }
    };
    if wire.len() > MAX_MESSAGE {
        let words = format!("decoded {TYPE} too large: {} bytes (max: {MAX_MESSAGE} bytes)", wire.len());
        return Err(ParamError::new(words));
    }
    Ok(wire)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Returns a transaction with one signature and a message without accounts, padded to `length` bytes.
    fn wire(length: usize) -> Vec<u8> {
        let message = [&[1, 0, 0, 0][..], &[8; 32], &[0]].concat();
        let mut wire = [&[1][..], &[7; 64], &message].concat();
        wire.resize(length.max(wire.len()), 0);
        wire
    }

    fn parse(params: &Value) -> Result<SendQuery, String> {
        SendQuery::parse(&Params::Array(params.to_string().into())).map_err(|error| error.message)
    }

    #[test]
    fn both_encodings_give_one_query() {
        let base58 = json!([bs58::encode(wire(0)).into_string()]);
        let base64 = json!([STANDARD.encode(wire(0)), { "encoding": "base64" }]);
        let query = parse(&base58).unwrap();
        assert_eq!(parse(&base64), Ok(query.clone()));
        assert_eq!(query.signature, Some(Signature([7; 64])));
        assert_eq!(query.blockhash, Some(Pubkey([8; 32])));
        let full = SendQuery {
            skip_preflight: true,
            preflight_commitment: Some(Commitment::Confirmed),
            max_retries: Some(3),
            min_context_slot: Some(9),
            ..query
        };
        let mut params: Value = serde_json::from_str(&full.params_json()).unwrap();
        assert_eq!(parse(&params), Ok(full));
        params[1]["new"] = json!({ "a": 1 });
        let extended = parse(&params).unwrap();
        assert_eq!(extended.params_json(), params.to_string(), "a node gets what slotfront does not know");
        let later = [&[1][..], &[7; 64], &[0x81, 1]].concat();
        let later = parse(&json!([STANDARD.encode(later), { "encoding": "base64" }])).unwrap();
        assert_eq!((later.signature, later.blockhash), (Some(Signature([7; 64])), None));
    }

    #[test]
    fn transactions_are_refused_in_a_nodes_words() {
        let base64 = |length| json!([STANDARD.encode(wire(length)), { "encoding": "base64" }]);
        assert!(parse(&base64(1232)).is_ok());
        for (params, expected) in [
            (base64(1233), format!("decoded {TYPE} too large: 1233 bytes (max: 1232 bytes)")),
            (
                base64(1236),
                format!("base64 encoded {TYPE} too large: 1648 bytes (max: encoded/raw 1644/1232)"),
            ),
            (
                json!(["z".repeat(1684)]),
                format!("base58 encoded {TYPE} too large: 1684 bytes (max: encoded/raw 1683/1232)"),
            ),
            (
                json!(["AQ=="]),
                "invalid base58 encoding: InvalidCharacter { character: '=', index: 2 }".into(),
            ),
            (json!(["x"]), format!("failed to deserialize {TYPE}: io error: failed to fill whole buffer")),
            (
                json!(["", { "encoding": "jsonParsed" }]),
                "unsupported encoding: jsonParsed. Supported encodings: base58, base64".into(),
            ),
            (
                json!(["", { "encoding": "bogus" }]),
                "Invalid params: unknown variant `bogus`, expected one of `binary`, `base64`, `base58`, `json`, `jsonParsed`."
                    .into(),
            ),
            (
                json!(["", { "maxRetries": "x" }]),
                "Invalid params: invalid type: string \"x\", expected usize.".into(),
            ),
            (json!([]), "`params` should have at least 1 argument(s)".into()),
        ] {
            assert_eq!(parse(&params), Err(expected));
        }
    }
}
