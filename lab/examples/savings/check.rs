//! Comparison of answers with the state of the simulated chain at the slot that each answer names.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use slotfront_lab::reads::PlannedRead;
use slotfront_rpc::methods::{Pubkey, Slot};
use slotfront_sim::{Account, Cluster};

/// The bytes of a token account that hold its amount.
const AMOUNT: std::ops::Range<usize> = 64..72;

/// Checks that the accounts of an answer have the states that the chain has at the answer's slot. Returns this slot.
///
/// # Errors
/// The body is no answer to the read, its slot is in the future, or an account has another state at that slot. The text
/// says why.
pub(crate) fn check(cluster: &Cluster, read: &PlannedRead, body: &[u8]) -> Result<Slot, String> {
    let answer: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let result = &answer["result"];
    let slot = result["context"]["slot"].as_u64().ok_or_else(|| format!("no slot: {answer:.200}"))?;
    if slot > cluster.slot(read.commitment) {
        return Err(format!("a slot in the future: {slot}"));
    }
    let value = &result["value"];
    let values = if read.is_list {
        value.as_array().map_or(&[][..], Vec::as_slice)
    } else {
        std::slice::from_ref(value)
    };
    if values.len() != read.accounts.len() {
        return Err(format!("{} accounts instead of {}", values.len(), read.accounts.len()));
    }
    for (key, value) in read.accounts.iter().zip(values) {
        check_account(cluster, key, slot, value)?;
    }
    Ok(slot)
}

fn check_account(cluster: &Cluster, key: &Pubkey, slot: Slot, value: &Value) -> Result<(), String> {
    let account = cluster.account_at(key, slot).ok_or_else(|| format!("{key} does not exist at {slot}"))?;
    let is_same = value["lamports"] == account.lamports
        && value["owner"] == account.owner.to_string()
        && value["space"] == account.data.len()
        && is_data(&value["data"], &account);
    if is_same { Ok(()) } else { Err(format!("{key} is not {value} at {slot}")) }
}

/// Returns true if `data`, from an answer, is right for `account`. Of parsed data, only the token amount is
/// compared. Sliced data hold only the token amount.
fn is_data(data: &Value, account: &Account) -> bool {
    let amount = &account.data[AMOUNT];
    if let Some(parsed) = data.get("parsed") {
        let amount: Result<[u8; 8], _> = amount.try_into();
        return amount.is_ok_and(|amount| {
            parsed["info"]["tokenAmount"]["amount"] == json!(u64::from_le_bytes(amount).to_string())
        });
    }
    let Some((text, encoding)) = data[0].as_str().zip(data[1].as_str()) else { return false };
    let bytes = match encoding {
        "base58" => bs58::decode(text).into_vec().ok(),
        "base64" => STANDARD.decode(text).ok(),
        _ => STANDARD.decode(text).ok().and_then(|packed| zstd::stream::decode_all(&packed[..]).ok()),
    };
    bytes.is_some_and(|bytes| bytes == account.data || bytes == amount)
}
