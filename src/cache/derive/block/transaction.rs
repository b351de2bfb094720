//! One transaction of a block: read from base64, and written in another encoding as a node does.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::super::base58;
use super::super::object::JsonPart;
use super::height::OwnHeight;
use crate::methods::message::{AddressTableLookup, Instruction, Message, MessageVersion, WireTransaction};
use crate::methods::{BlockEncoding, Pubkey, Signature};

/// The addresses that a node has read from lookup tables, as `meta` shows them.
#[derive(Default)]
pub(super) struct LoadedAddresses {
    writable: Vec<Pubkey>,
    readonly: Vec<Pubkey>,
}

impl LoadedAddresses {
    /// Parses the member `loadedAddresses` of `meta`. `None` if a member is unknown or missing.
    pub(super) fn read(text: &str) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Texts<'a> {
            #[serde(borrow)]
            readonly: Vec<&'a str>,
            writable: Vec<&'a str>,
        }
        let Texts { readonly, writable } = serde_json::from_str(text).ok()?;
        let keys =
            |texts: Vec<&str>| texts.into_iter().map(Pubkey::parse).collect::<Result<Vec<_>, _>>().ok();
        Some(Self { writable: keys(writable)?, readonly: keys(readonly)? })
    }
}

/// Returns the bytes of a transaction in encoding base64. `None` if it has another encoding, or is cut or damaged.
pub(super) fn wire(part: &mut JsonPart) -> Option<Vec<u8>> {
    let [wire, encoding] = part.as_list()?.as_slice() else { return None };
    let text = wire.as_text()?.strip_prefix('"')?.strip_suffix('"')?;
    if encoding.as_text()? != "\"base64\"" {
        return None;
    }
    STANDARD.decode(text).ok()
}

/// A transaction whose bytes were read to their end.
pub(super) struct DecodedTransaction<'a> {
    wire: &'a [u8],
    signatures: &'a [[u8; 64]],
    message: Message<'a>,
}

impl<'a> DecodedTransaction<'a> {
    /// Reads a legacy or version 0 transaction. `None` if bytes are missing or left.
    pub(super) fn read(wire: &'a [u8]) -> Option<Self> {
        let WireTransaction { signatures, message, rest } = WireTransaction::decode(wire).ok()?;
        rest.is_empty().then_some(Self { wire, signatures, message: message? })
    }

    /// Returns the version. `None` for a legacy transaction.
    pub(super) fn version(&self) -> Option<u8> {
        match self.message.version {
            MessageVersion::Legacy => None,
            MessageVersion::V0 => Some(0),
        }
    }

    pub(super) fn first_signature(&self) -> Option<Signature> {
        self.signatures.first().map(|signature| Signature(*signature))
    }

    /// Returns the transaction as JSON text in `encoding`. `None` for jsonParsed, which needs a decoder for each program,
    /// and for json if `height` is unknown.
    pub(super) fn encoded(&self, encoding: BlockEncoding, height: Option<OwnHeight>) -> Option<String> {
        match encoding {
            BlockEncoding::Json => json(&JsonTransaction::of(self, height?)),
            BlockEncoding::Base58 => Some(format!(r#"["{}","base58"]"#, base58::encode(self.wire))),
            BlockEncoding::Binary => Some(format!("\"{}\"", base58::encode(self.wire))),
            BlockEncoding::Base64 => Some(format!(r#"["{}","base64"]"#, STANDARD.encode(self.wire))),
            BlockEncoding::JsonParsed => None,
        }
    }

    /// Returns the transaction as JSON text with details `accounts`.
    pub(super) fn accounts(&self, loaded: &LoadedAddresses) -> Option<String> {
        let keys = self.message.account_keys.iter().map(|key| Pubkey(*key));
        let tables = [&loaded.writable, &loaded.readonly].into_iter().filter(|_| self.version().is_some());
        let accounts: Vec<_> = keys.chain(tables.flatten().copied()).collect();
        let account_keys = accounts.iter().enumerate().map(|(at, key)| JsonAccount {
            pubkey: key.to_string(),
            signer: self.message.is_signer(at),
            source: if at < self.message.account_keys.len() { "transaction" } else { "lookupTable" },
            writable: self.message.is_writable(at, &accounts, loaded.writable.len()),
        });
        json(&JsonAccounts { account_keys: account_keys.collect(), signatures: self.signatures() })
    }

    fn signatures(&self) -> Vec<String> {
        self.signatures.iter().map(|signature| Signature(*signature).to_string()).collect()
    }
}

fn json(value: &impl Serialize) -> Option<String> {
    serde_json::to_string(value).ok()
}

fn address(key: &[u8; 32]) -> String {
    Pubkey(*key).to_string()
}

// The members below are in the order of a node: that of the alphabet.

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonAccounts {
    account_keys: Vec<JsonAccount>,
    signatures: Vec<String>,
}

#[derive(Serialize)]
struct JsonAccount {
    pubkey: String,
    signer: bool,
    source: &'static str,
    writable: bool,
}

#[derive(Serialize)]
struct JsonTransaction<'a> {
    message: JsonMessage<'a>,
    signatures: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonMessage<'a> {
    account_keys: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address_table_lookups: Option<Vec<JsonLookup<'a>>>,
    header: JsonHeader,
    instructions: Vec<JsonInstruction<'a>>,
    recent_blockhash: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonLookup<'a> {
    account_key: String,
    readonly_indexes: &'a [u8],
    writable_indexes: &'a [u8],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "names of a node")]
struct JsonHeader {
    num_readonly_signed_accounts: u8,
    num_readonly_unsigned_accounts: u8,
    num_required_signatures: u8,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonInstruction<'a> {
    accounts: &'a [u8],
    data: String,
    program_id_index: u8,
    #[serde(skip_serializing_if = "OwnHeight::is_missing")]
    stack_height: OwnHeight,
}

impl<'a> JsonTransaction<'a> {
    fn of(transaction: &DecodedTransaction<'a>, stack_height: OwnHeight) -> Self {
        let message = &transaction.message;
        let lookup = |lookup: &AddressTableLookup<'a>| JsonLookup {
            account_key: lookup.table.to_string(),
            readonly_indexes: lookup.readonly,
            writable_indexes: lookup.writable,
        };
        let instruction = |instruction: &Instruction<'a>| JsonInstruction {
            accounts: instruction.accounts,
            data: base58::encode(instruction.data),
            program_id_index: instruction.program,
            stack_height,
        };
        let message = JsonMessage {
            account_keys: message.account_keys.iter().map(address).collect(),
            address_table_lookups: transaction
                .version()
                .map(|_| message.lookups.iter().map(lookup).collect()),
            header: JsonHeader {
                num_readonly_signed_accounts: message.readonly_signed,
                num_readonly_unsigned_accounts: message.readonly_unsigned,
                num_required_signatures: message.required_signatures,
            },
            instructions: message.instructions.iter().map(instruction).collect(),
            recent_blockhash: address(message.recent_blockhash),
        };
        Self { message, signatures: transaction.signatures() }
    }
}
