//! The readers of getFeeForMessage and sendTransaction, against `solana-message` and `bincode`, as a node's
//! `decode_and_deserialize` uses them.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bincode::Options as _;
use serde::de::DeserializeOwned;
use slotfront_rpc::jsonrpc::Params;
use slotfront_rpc::methods::message::{DecodeError, Message, MessageVersion};
use slotfront_rpc::methods::{Method, Profile, Query, SendQuery};
use solana_message::VersionedMessage;
use solana_transaction::versioned::VersionedTransaction;

use crate::draw::Draw;

/// The limits of a node: the size of a packet, and the lengths of its texts.
const PACKET_DATA_SIZE: usize = 1232;
const MAX_BASE58_SIZE: usize = 1683;
const MAX_BASE64_SIZE: usize = 1644;

/// Judges one case. Returns whether its message is valid.
///
/// # Errors
/// The difference, if there is one.
pub fn judge(seed: u64, case: u64) -> Result<bool, String> {
    let mut draw = Draw::of_case(seed, case);
    let bytes = random(&mut draw);
    // Longer ones are refused before they are read.
    if bytes.len() <= PACKET_DATA_SIZE {
        judge_bytes(&bytes).map_err(|difference| format!("message {bytes:02x?}: {difference}"))?;
    }
    // The texts are judged more rarely, because they end in the same reader, and texts in base58 take long.
    match draw.below(512) {
        0..64 => {
            let text = text(&mut draw, BASE64_STANDARD.encode(&bytes));
            judge_fee(&text).map_err(|difference| format!("getFeeForMessage {text:?}: {difference}"))?;
        }
        at @ 64..128 => {
            let signatures = draw.below(4);
            let claimed = if draw.once_in(10) { draw.byte() & 0x7f } else { signatures as u8 };
            let wire = [&[claimed][..], &draw.bytes(64 * signatures), &bytes].concat();
            let (encoding, encoded) = match at {
                64 => ("base58", bs58::encode(&wire).into_string()),
                _ => ("base64", BASE64_STANDARD.encode(&wire)),
            };
            let text = text(&mut draw, encoded);
            judge_send(&text, encoding)
                .map_err(|difference| format!("sendTransaction {text:?}, {encoding}: {difference}"))?;
        }
        _ => {}
    }
    Ok(Message::decode(&bytes).is_ok_and(|message| message.sanitize().is_ok()))
}

/// Returns the text, sometimes with a fault.
fn text(draw: &mut Draw, text: String) -> String {
    let mut text = text.into_bytes();
    if draw.once_in(3) {
        draw.mutate(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn judge_bytes(bytes: &[u8]) -> Result<(), String> {
    match (Message::decode(bytes), node_reads::<VersionedMessage>(bytes)) {
        (Err(ours), Err(node)) if ours.to_string() == node => Ok(()),
        (Ok(ours), Ok(node)) if rewritten(&ours) == node => {
            let (ours, node) = (ours.sanitize(), node.sanitize());
            let text = |verdict: Result<(), String>| verdict.err().unwrap_or_else(|| "ok".to_owned());
            let (ours, node) = (text(ours.map_err(|e| e.to_string())), text(node.map_err(|e| e.to_string())));
            if ours == node { Ok(()) } else { Err(format!("sanitize: {ours}, node: {node}")) }
        }
        (ours, node) => Err(format!("{ours:?}, node: {node:?}")),
    }
}

/// Reads a message or a transaction as a node does.
fn node_reads<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let options = bincode::options().with_limit(PACKET_DATA_SIZE as u64).with_fixint_encoding();
    options.allow_trailing_bytes().deserialize_from(bytes).map_err(|error| error.to_string())
}

/// Returns our message in the node's type.
fn rewritten(ours: &Message<'_>) -> VersionedMessage {
    use solana_message::compiled_instruction::CompiledInstruction;
    use solana_message::{MessageHeader, legacy, v0};

    let header = MessageHeader {
        num_required_signatures: ours.required_signatures,
        num_readonly_signed_accounts: ours.readonly_signed,
        num_readonly_unsigned_accounts: ours.readonly_unsigned,
    };
    let account_keys = ours.account_keys.iter().map(|key| (*key).into()).collect();
    let recent_blockhash = (*ours.recent_blockhash).into();
    let instructions = ours.instructions.iter().map(|instruction| CompiledInstruction {
        program_id_index: instruction.program,
        accounts: instruction.accounts.to_vec(),
        data: instruction.data.to_vec(),
    });
    let instructions = instructions.collect();
    match ours.version {
        MessageVersion::Legacy => {
            VersionedMessage::Legacy(legacy::Message { header, account_keys, recent_blockhash, instructions })
        }
        MessageVersion::V0 => {
            let lookups = ours.lookups.iter().map(|lookup| v0::MessageAddressTableLookup {
                account_key: lookup.table.0.into(),
                writable_indexes: lookup.writable.to_vec(),
                readonly_indexes: lookup.readonly.to_vec(),
            });
            let address_table_lookups = lookups.collect();
            VersionedMessage::V0(v0::Message {
                header,
                account_keys,
                recent_blockhash,
                instructions,
                address_table_lookups,
            })
        }
    }
}

/// Judges getFeeForMessage's first param.
fn judge_fee(text: &str) -> Result<(), String> {
    let params = params_of(text, "base64");
    // The encoding is a member that this method does not know, and that a node passes over.
    let ours = match Query::parse(Method::GetFeeForMessage, &params, Profile::Node)
        .map(|query| query.known().clone())
    {
        Ok(Query::Fee(query)) => Ok(query.message.to_vec()),
        Ok(other) => return Err(format!("{other:?}")),
        Err(refusal) => Err(refusal.message),
    };
    // Intended (docs/node-contract.md): nodes newer than 4.0 read further versions, and longer messages of
    // these versions, so slotfront asks a node about them.
    let later = |bytes: &[u8]| matches!(Message::decode(bytes), Err(DecodeError::Version(_)));
    compare_texts(&ours, &node_decodes::<VersionedMessage>(text, "base64"), later)
}

/// Judges sendTransaction's first param.
fn judge_send(text: &str, encoding: &str) -> Result<(), String> {
    let ours = SendQuery::parse(&params_of(text, encoding))
        .map(|query| query.wire.to_vec())
        .map_err(|refusal| refusal.message);
    // Intended: as above. The first byte of the message follows the signatures, whose number is below 128 here.
    let later = |bytes: &[u8]| {
        let message = bytes.first().and_then(|count| bytes.get(1 + 64 * usize::from(*count)..));
        message.is_some_and(|message| matches!(Message::decode(message), Err(DecodeError::Version(_))))
    };
    compare_texts(&ours, &node_decodes::<VersionedTransaction>(text, encoding), later)
}

fn params_of(text: &str, encoding: &str) -> Params {
    Params::Array(serde_json::json!([text, { "encoding": encoding }]).to_string().into())
}

fn compare_texts(
    ours: &Result<Vec<u8>, String>,
    node: &Result<Vec<u8>, String>,
    is_intended: impl Fn(&[u8]) -> bool,
) -> Result<(), String> {
    match (ours, node) {
        (Ok(bytes), Err(_)) if is_intended(bytes) => Ok(()),
        _ if ours == node => Ok(()),
        _ => Err(format!("{ours:?}, node: {node:?}")),
    }
}

/// Decodes a text as a node of 4.0 does, in its `decode_and_deserialize`.
fn node_decodes<T: DeserializeOwned>(text: &str, encoding: &str) -> Result<Vec<u8>, String> {
    let name = std::any::type_name::<T>();
    let most = if encoding == "base58" { MAX_BASE58_SIZE } else { MAX_BASE64_SIZE };
    if text.len() > most {
        let max = format!("max: encoded/raw {most}/{PACKET_DATA_SIZE}");
        return Err(format!("{encoding} encoded {name} too large: {} bytes ({max})", text.len()));
    }
    let bytes = if encoding == "base58" {
        bs58::decode(text).into_vec().map_err(|error| format!("{error:?}"))
    } else {
        BASE64_STANDARD.decode(text).map_err(|error| format!("{error:?}"))
    };
    let bytes = bytes.map_err(|error| format!("invalid {encoding} encoding: {error}"))?;
    if bytes.len() > PACKET_DATA_SIZE {
        let max = format!("max: {PACKET_DATA_SIZE} bytes");
        return Err(format!("decoded {name} too large: {} bytes ({max})", bytes.len()));
    }
    match node_reads::<T>(&bytes) {
        Ok(_) => Ok(bytes),
        Err(error) => Err(format!("failed to deserialize {name}: {error}")),
    }
}

/// Returns a message: about a third of them valid, the others with faults in the header, the indexes or the bytes.
fn random(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    let v0 = draw.once_in(2);
    if v0 {
        out.push(0x80);
    }
    let keys = if draw.once_in(20) { draw.below(60) } else { 1 + draw.below(6) };
    let signers = 1 + draw.below(keys.clamp(1, 3));
    let fault = |draw: &mut Draw, count: usize| {
        if draw.once_in(12) { *draw.pick(&[0, 1, 0x7f, 0x80, 0xff]) } else { count as u8 }
    };
    let readonly = [draw.below(signers), draw.below(keys.saturating_sub(signers) + 1)];
    for count in [signers, readonly[0], readonly[1]] {
        out.push(fault(draw, count));
    }
    length(draw, &mut out, keys);
    out.extend(draw.bytes(32 * keys + 32));
    let looked_up: Vec<(usize, usize)> = match draw.below(3) {
        0 if v0 => (0..1 + draw.below(3)).map(|_| (draw.below(4), draw.below(4))).collect(),
        1 if v0 && draw.once_in(8) => vec![(draw.below(140), draw.below(140))],
        _ => Vec::new(),
    };
    let accounts = keys + looked_up.iter().map(|(writable, readonly)| writable + readonly).sum::<usize>();
    let instructions = draw.below(4);
    length(draw, &mut out, instructions);
    for _ in 0..instructions {
        let program = 1 + draw.below(keys.saturating_sub(1).max(1));
        out.push(fault(draw, program));
        let count = draw.below(5);
        length(draw, &mut out, count);
        out.extend((0..count).map(|_| {
            let account = draw.below(accounts.max(1));
            if draw.once_in(40) { accounts as u8 } else { account as u8 }
        }));
        let data = if draw.once_in(10) { draw.below(400) } else { draw.below(20) };
        length(draw, &mut out, data);
        out.extend(draw.bytes(data));
    }
    if v0 {
        length(draw, &mut out, looked_up.len());
        for (writable, readonly) in looked_up {
            out.extend(draw.bytes(32));
            for count in [writable, readonly] {
                length(draw, &mut out, count);
                out.extend(draw.bytes(count));
            }
        }
    }
    let filler = *draw.pick(&[0, 0xff]);
    match draw.below(8) {
        // Longer than a packet, or exactly as long as one.
        0 => out.resize(*draw.pick(&[1231, 1232, 1233, 1240, 4096, 4097]), filler),
        1 => out.truncate(draw.below(out.len() + 1)),
        2..5 => (0..1 + draw.below(3)).for_each(|_| draw.mutate(&mut out)),
        _ => {}
    }
    out
}

/// Writes a length as compact-u16, seldom in more bytes than necessary.
fn length(draw: &mut Draw, out: &mut Vec<u8>, length: usize) {
    let (low, high) = ((length & 0x7f) as u8, (length >> 7) as u8);
    match draw.below(60) {
        0 => out.extend([low | 0x80, high]),
        1 => out.extend([low | 0x80, high | 0x80, 0]),
        2 => out.extend([low | 0x80, high | 0x80, *draw.pick(&[1, 3, 4, 0x80, 0xff])]),
        _ if length < 0x80 => out.push(low),
        _ => out.extend([low | 0x80, high]),
    }
}
