//! `getFeeForMessage [message, config?]`: the fee that the cluster would charge for a transaction message.
//!
//! Messages that every node version refuses get the error text of 4.0. All other messages go to the node. Newer nodes
//! accept the message versions 1 to 126, and longer texts. A node checks indexes and lookup tables only after
//! `minContextSlot`, so messages with such faults also go to the node.

use base64::engine::general_purpose::STANDARD;
use base64::{DecodeError as Base64Error, Engine};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::description::{self, Description, Param, contextual, schema};
use super::message::{DecodeError, MAX_MESSAGE, Message, TYPE};
use super::params::{self, ParamError};
use super::{Commitment, Slot, commitment};
use crate::jsonrpc::Params;

/// The maximum length of the base64 text of [`MAX_MESSAGE`] bytes.
const MAX_TEXT: usize = 1644;

/// The beginning of the base64 text of a version 1 message. Nodes that know version 1 compare each text with this
/// beginning in ASCII order. To them, an equal or greater text is a message of version 1 or later. Nodes of 4.0 do
/// not know these versions.
const LATER_VERSIONS: &str = "gQ";

/// The maximum number of bytes of a message of version 1 or later.
const LATER_MAX_MESSAGE: usize = 4096;

/// The maximum length of the base64 text of a message of version 1 or later.
const LATER_MAX_TEXT: usize = 5464;

/// getFeeForMessage: the fee that the cluster would charge for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeeQuery {
    /// The bytes of the message, decoded from base64.
    pub message: Bytes,
    /// The commitment of the state from which the fee is read.
    pub commitment: Commitment,
    /// The caller's `minContextSlot`. It is never part of a cache key.
    pub min_context_slot: Option<Slot>,
}

impl FeeQuery {
    pub(super) fn parse(params: &Params) -> Result<Self, ParamError> {
        let (text, config) = params::one_or_two::<String, RpcContextConfig>(params)?;
        let config = config.unwrap_or_default();
        Ok(Self {
            message: decode(&text)?.into(),
            commitment: config.commitment,
            min_context_slot: config.min_context_slot,
        })
    }

    pub(super) fn params_json(&self) -> Value {
        let config = with_context(json!({}), self.commitment, self.min_context_slot);
        json!([STANDARD.encode(&self.message), config])
    }
}

/// The config param of a call that reads one state. The type has the name of a node's type, because that name occurs in a node's
/// errors.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct RpcContextConfig {
    #[serde(flatten, deserialize_with = "commitment::lenient")]
    pub(super) commitment: Commitment,
    pub(super) min_context_slot: Option<Slot>,
}

/// Returns `config` with the state from which a call is answered.
pub(super) fn with_context(
    mut config: Value,
    commitment: Commitment,
    min_context_slot: Option<Slot>,
) -> Value {
    config["commitment"] = json!(commitment);
    if let Some(slot) = min_context_slot {
        config["minContextSlot"] = slot.into();
    }
    config
}

fn decode(text: &str) -> Result<Vec<u8>, ParamError> {
    if text.len() > MAX_TEXT {
        return decode_later_version(text).ok_or_else(|| {
            ParamError::new(format!(
                "base64 encoded {TYPE} too large: {} bytes (max: encoded/raw {MAX_TEXT}/{MAX_MESSAGE})",
                text.len()
            ))
        });
    }
    let bytes = STANDARD.decode(text).map_err(|error| base64_error(&error))?;
    if bytes.len() > MAX_MESSAGE && !is_later_version(text) {
        let words = format!("decoded {TYPE} too large: {} bytes (max: {MAX_MESSAGE} bytes)", bytes.len());
        return Err(ParamError::new(words));
    }
    match Message::decode(&bytes) {
        Ok(_) | Err(DecodeError::Version(_)) => Ok(bytes),
        Err(error) => Err(ParamError::new(format!("failed to deserialize {TYPE}: {error}"))),
    }
}

/// Returns a node's error for text that is not base64. Nodes use the crate base64 0.22. Later releases of the
/// crate have other error texts.
pub(super) fn base64_error(error: &Base64Error) -> ParamError {
    let shown = match error {
        Base64Error::InvalidByte(offset, byte) => format!("InvalidByte({offset}, {byte})"),
        Base64Error::InvalidLength(symbols) => format!("InvalidLength({symbols})"),
        Base64Error::InvalidLastSymbol { offset, symbol, .. } => {
            format!("InvalidLastSymbol({offset}, {symbol})")
        }
        Base64Error::InvalidPadding => "InvalidPadding".to_owned(),
    };
    ParamError::new(format!("invalid base64 encoding: {shown}"))
}

fn is_later_version(text: &str) -> bool {
    text >= LATER_VERSIONS
}

/// Decodes the base64 text of a message that is too long for 4.0 nodes. Returns `None` if newer nodes refuse it, too.
fn decode_later_version(text: &str) -> Option<Vec<u8>> {
    if !is_later_version(text) || text.len() > LATER_MAX_TEXT {
        return None;
    }
    STANDARD.decode(text).ok().filter(|bytes| bytes.len() <= LATER_MAX_MESSAGE)
}

pub(super) fn describe() -> Description {
    Description {
        summary: "The fee that the cluster would charge for a transaction message.",
        params: vec![
            Param::required(
                "message",
                "A legacy or version 0 message in base64, without signatures.",
                json!({ "type": "string", "contentEncoding": "base64" }),
            ),
            description::context_config(),
        ],
        result: contextual(&json!({
            "description": "null where the message's blockhash is unknown at the commitment: too old, or too new",
            "anyOf": [schema("Lamports"), { "type": "null" }],
        })),
        errors: &["MinContextSlotNotReached"],
        example: json!([
            "AQABAto3vAQS8Zq1FQ6sZfhjQ0uKMkGtyy23l6Ap4bwdZIFaAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAADTfUlKQRC1CwXpz3jbkIf9vUUBZ+r8xJeHDAu5DNb6oAEBAgAADAIAAAABAAAAAAAAAA==",
            { "commitment": "processed" },
        ]),
        example_result: json!({ "context": { "apiVersion": "4.0.0", "slot": 2900 }, "value": 5000 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a legacy message without keys and instructions, padded with zeros to `length` bytes.
    fn message(length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        bytes[0] = 1;
        bytes
    }

    fn words(text: &str) -> String {
        decode(text).map_or_else(|refusal| refusal.message, |bytes| format!("{} bytes", bytes.len()))
    }

    #[test]
    fn a_text_is_refused_in_a_nodes_words() {
        let long = |bytes| STANDARD.encode(message(bytes));
        let cases = [
            (long(1232), "1232 bytes".to_owned()),
            ("AQABAA=".into(), "invalid base64 encoding: InvalidPadding".into()),
            ("AQABA".into(), "invalid base64 encoding: InvalidLength(5)".into()),
            ("AQB=".into(), "invalid base64 encoding: InvalidLastSymbol(2, 66)".into()),
            ("AQ-_".into(), "invalid base64 encoding: InvalidByte(2, 45)".into()),
            (long(1233), format!("decoded {TYPE} too large: 1233 bytes (max: 1232 bytes)")),
            (long(1234), format!("base64 encoded {TYPE} too large: 1648 bytes (max: encoded/raw 1644/1232)")),
            (
                "!".repeat(1645),
                format!("base64 encoded {TYPE} too large: 1645 bytes (max: encoded/raw 1644/1232)"),
            ),
            ("AQAB".into(), format!("failed to deserialize {TYPE}: io error: failed to fill whole buffer")),
        ];
        for (text, expected) in cases {
            assert_eq!(words(&text), expected, "{}", text.len());
        }
    }

    #[test]
    fn members_of_newer_nodes_go_to_a_node() {
        for version in [0x81, 0x90, 0xc0] {
            for length in [1, 1232, 1233, 1234, 4096] {
                let text = STANDARD.encode([&[version], &message(length)[1..]].concat());
                assert_eq!(words(&text), format!("{length} bytes"), "version byte {version:x}");
            }
            let text = STANDARD.encode([&[version], &message(4097)[1..]].concat());
            assert!(words(&text).starts_with("base64 encoded"), "version byte {version:x}");
        }
        assert!(words(&format!("gQ{}", "!".repeat(2000))).starts_with("base64 encoded"), "no base64");
        assert!(words("gQ!!").starts_with("invalid base64 encoding"));
    }
}
