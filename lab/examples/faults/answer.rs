//! The judgement of an answer: the result of a getAccountInfo in base64, or the reason why it is none.

use serde::Deserialize;
use slotfront_lab::wire::Answer;
use slotfront_rpc::methods::Slot;

/// The most bytes of a bad answer that a remark shows.
const SHOWN: usize = 120;

/// The part of an answer that the chain can confirm.
pub(crate) struct Found {
    pub(crate) slot: Slot,
    pub(crate) lamports: u64,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    jsonrpc: &'a str,
    id: u64,
    #[serde(borrow)]
    result: Contextual<'a>,
}

#[derive(Deserialize)]
struct Contextual<'a> {
    context: Context,
    #[serde(borrow)]
    value: Account<'a>,
}

#[derive(Deserialize)]
struct Context {
    slot: Slot,
}

/// Every member of an account, so that another type in any of them is seen.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Account<'a> {
    data: (String, String),
    #[serde(rename = "executable")]
    _executable: bool,
    lamports: u64,
    owner: &'a str,
    #[serde(rename = "rentEpoch")]
    _rent_epoch: u64,
    #[serde(rename = "space")]
    _space: u64,
}

/// Reads the answer to the call with this id.
///
/// # Errors
/// The reason why it is not an account of the right shape.
pub(crate) fn read(answer: &Answer, id: u64) -> Result<Found, String> {
    let shown = || String::from_utf8_lossy(&answer.body[..answer.body.len().min(SHOWN)]).into_owned();
    if answer.status != 200 {
        return Err(format!("status {}: {}", answer.status, shown()));
    }
    let envelope: Envelope<'_> =
        serde_json::from_slice(&answer.body).map_err(|error| format!("{error}: {}", shown()))?;
    let Contextual { context, value } = envelope.result;
    let well = envelope.jsonrpc == "2.0" && value.data.1 == "base64" && !value.owner.is_empty();
    match well {
        true if envelope.id == id => Ok(Found { slot: context.slot, lamports: value.lamports }),
        true => Err(format!("id {} instead of {id}", envelope.id)),
        false => Err(format!("no account in base64: {}", shown())),
    }
}
