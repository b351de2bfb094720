//! Validation of an answer to getAccountInfo in base64.

use serde::Deserialize;
use slotfront_lab::wire::HttpResponse;
use slotfront_rpc::methods::Slot;

/// The maximum number of bytes of a bad answer that the output quotes.
const SHOWN: usize = 120;

/// The part of an answer that is compared with the chain.
pub(crate) struct AccountAnswer {
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
    value: AccountJson<'a>,
}

#[derive(Deserialize)]
struct Context {
    slot: Slot,
}

/// An account with all its members, so that a wrong type in any of them is detected.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AccountJson<'a> {
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
/// The answer has an HTTP error, another id, or no account with members of the right types. The text says why.
pub(crate) fn read(answer: &HttpResponse, id: u64) -> Result<AccountAnswer, String> {
    if answer.status != 200 {
        return Err(format!("status {}: {}", answer.status, shown(answer)));
    }
    let envelope: Envelope<'_> =
        serde_json::from_slice(&answer.body).map_err(|error| format!("{error}: {}", shown(answer)))?;
    let Contextual { context, value } = envelope.result;
    let is_account = envelope.jsonrpc == "2.0" && value.data.1 == "base64" && !value.owner.is_empty();
    match is_account {
        true if envelope.id == id => Ok(AccountAnswer { slot: context.slot, lamports: value.lamports }),
        true => Err(format!("id {} instead of {id}", envelope.id)),
        false => Err(format!("no account in base64: {}", shown(answer))),
    }
}

/// Returns the beginning of an answer's body.
pub(crate) fn shown(answer: &HttpResponse) -> String {
    String::from_utf8_lossy(&answer.body[..answer.body.len().min(SHOWN)]).into_owned()
}
