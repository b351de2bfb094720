//! getFeeForMessage: the current fee of a message, or `null` for a blockhash that the bank does not know.

use serde_json::Value;
use slotfront_rpc::methods::message::{Instruction, MAX_MESSAGE, Message};
use slotfront_rpc::methods::{FeeQuery, Pubkey, Slot};

use super::{Refusal, View};
use crate::chain::layout::{LookupTable, Nonce};
use crate::chain::{BLOCKHASH_QUEUE, address, fee};

/// The Rust path of the message type, as the errors of a 4.0 node spell it.
const TYPE: &str = "solana_message::non_bpf_modules::versions::VersionedMessage";
/// The maximum length of the base64 text of a message.
const MAX_TEXT: usize = 1_644;
/// The system instruction at the beginning of a durable-nonce transaction: `AdvanceNonceAccount`.
const ADVANCE_NONCE: [u8; 4] = [4, 0, 0, 0];

/// Answers getFeeForMessage. The checks are made in the same order as in a node.
pub(super) fn answer(view: &View<'_>, query: &FeeQuery) -> Result<Value, Refusal> {
    too_large(&query.message)?;
    let message = Message::decode(&query.message)
        .map_err(|reason| Refusal::param(format!("failed to deserialize {TYPE}: {reason}")))?;
    let slot = view.slot_from(query.commitment, query.min_context_slot)?;
    let invalid = |reason: String| Refusal::param(format!("invalid transaction message: {reason}"));
    message.sanitize().map_err(|reason| invalid(reason.to_string()))?;
    check_lookups(view, slot, &message).map_err(|reason| invalid(reason.to_owned()))?;

    let mut recent = view.chain.blocks_back_from(slot).take(BLOCKHASH_QUEUE);
    let known =
        recent.any(|block| block.hash == *message.recent_blockhash) || uses_nonce(view, slot, &message);
    let fee = known.then(|| {
        let program = |i: &Instruction<'_>| Pubkey(message.account_keys[usize::from(i.program)]);
        let instructions = message.instructions.iter().map(|i| (program(i), i.data));
        fee::fee(u64::from(message.required_signatures), instructions).total()
    });
    Ok(view.contextual(slot, &fee.into()))
}

/// Refuses a message that is too long for a 4.0 node. The parser of params also accepts the longer messages of
/// later node versions.
fn too_large(message: &[u8]) -> Result<(), Refusal> {
    let (raw, text) = (message.len(), message.len().div_ceil(3) * 4);
    if text > MAX_TEXT {
        let limits = format!("(max: encoded/raw {MAX_TEXT}/{MAX_MESSAGE})");
        return Err(Refusal::param(format!("base64 encoded {TYPE} too large: {text} bytes {limits}")));
    }
    if raw > MAX_MESSAGE {
        let words = format!("decoded {TYPE} too large: {raw} bytes (max: {MAX_MESSAGE} bytes)");
        return Err(Refusal::param(words));
    }
    Ok(())
}

/// Checks that each lookup table exists and has an address at every index that the message looks up.
fn check_lookups(view: &View<'_>, slot: Slot, message: &Message<'_>) -> Result<(), &'static str> {
    for lookup in &message.lookups {
        let account = view.chain.account(&lookup.table, slot);
        let account = account.ok_or("Attempted to lookup addresses from a table that does not exist")?;
        if account.owner != address::LOOKUP_TABLE {
            return Err("Attempted to lookup addresses from an account owned by the wrong program");
        }
        let table = LookupTable::decode(&account.data)
            .ok_or("Attempted to lookup addresses from an invalid account")?;
        let mut indexes = lookup.writable.iter().chain(lookup.readonly);
        if indexes.any(|index| usize::from(*index) >= table.addresses.len()) {
            return Err("Address lookup contains an invalid index");
        }
    }
    Ok(())
}

/// Returns true if the message has the blockhash of a nonce account and advances that account.
fn uses_nonce(view: &View<'_>, slot: Slot, message: &Message<'_>) -> bool {
    let stored = || {
        let first = message.instructions.first()?;
        let key = |index: u8| message.account_keys.get(usize::from(index)).map(|key| Pubkey(*key));
        if key(first.program)? != address::SYSTEM || !first.data.starts_with(&ADVANCE_NONCE) {
            return None;
        }
        let account = view.chain.account(&key(*first.accounts.first()?)?, slot)?;
        let nonce = Nonce::decode(&account.data).filter(|_| account.owner == address::SYSTEM)?;
        let signers = &message.account_keys[..usize::from(message.required_signatures)];
        signers.contains(&nonce.authority.0).then_some(nonce.blockhash)
    };
    stored().is_some_and(|blockhash| blockhash == *message.recent_blockhash)
}
