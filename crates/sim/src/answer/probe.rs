//! The methods of the tip and of transactions.

use serde_json::{Value, json};
use slotfront_rpc::jsonrpc::Params;
use slotfront_rpc::methods::{Commitment, Pubkey, Slot};

use super::{Refusal, View, send, status};

/// The method that returns a node's health.
pub(crate) const HEALTH: &str = "getHealth";
pub(crate) const PROBE_METHODS: [&str; 8] = [
    HEALTH,
    "getSlot",
    "getBlockHeight",
    "getVersion",
    "getGenesisHash",
    "getFirstAvailableBlock",
    "minimumLedgerSlot",
    "getEpochInfo",
];
/// The smallest lag, in slots, at which a node is unhealthy.
const HEALTH_SLOTS: u64 = 128;

/// Answers a call of a method of which slotfront keeps no answers.
pub(super) fn call(view: &View<'_>, method: &str, params: &Params) -> Result<Value, Refusal> {
    match method {
        "simulateTransaction" => return send::simulate(view, params),
        "sendTransaction" => return send::send(view, params),
        _ => {}
    }
    let params = array(params)?;
    match method {
        "getSlot" => Ok(config(view, params.first())?.into()),
        "getBlockHeight" => Ok(view.chain.tip_at(config(view, params.first())?).height.into()),
        "getEpochInfo" => Ok(epoch_info(view, config(view, params.first())?)),
        "getLatestBlockhash" => Ok(latest_blockhash(view, config(view, params.first())?)),
        "isBlockhashValid" => is_blockhash_valid(view, &params),
        "getSignatureStatuses" => status::statuses(view, &params),
        "requestAirdrop" => send::airdrop(view, &params),
        _ => Err(Refusal::new(-32_601, "Method not found")),
    }
}

/// Returns the param at `index`.
pub(crate) fn argument(params: &[Value], index: usize) -> Result<&Value, Refusal> {
    params
        .get(index)
        .ok_or_else(|| Refusal::param(format!("`params` should have at least {} argument(s)", index + 1)))
}

/// Returns the address at `index`.
pub(super) fn public_key(params: &[Value], index: usize) -> Result<Pubkey, Refusal> {
    let key = argument(params, index)?.as_str().and_then(|text| Pubkey::parse(text).ok());
    key.ok_or_else(|| Refusal::param("Invalid param: WrongSize"))
}

/// Returns the params as a list. Without params the list is empty.
pub(crate) fn array(params: &Params) -> Result<Vec<Value>, Refusal> {
    match params {
        Params::None => Ok(vec![]),
        Params::Array(text) => {
            serde_json::from_slice(text).map_err(|e| Refusal::param(format!("Invalid params: {e}.")))
        }
        Params::Object(_) => Err(Refusal::param("`params` should be an array")),
    }
}

/// Returns the slot to answer from, by the `commitment` and the `minContextSlot` of a config. A config without a
/// commitment means the finalized slot.
pub(super) fn config(view: &View<'_>, config: Option<&Value>) -> Result<Slot, Refusal> {
    let member = |name| config.and_then(|config| config.get(name));
    let commitment = member("commitment").and_then(Value::as_str).and_then(Commitment::from_name);
    let minimum = member("minContextSlot").and_then(Value::as_u64);
    view.slot_from(commitment.unwrap_or(Commitment::Finalized), minimum)
}

/// Returns `ok` for a healthy node, otherwise the error -32005. The error states the lag of the node in slots,
/// unless a test has made the node unhealthy.
pub(crate) fn health(view: &View<'_>) -> Result<&'static str, Refusal> {
    let behind = view.chain.slot().saturating_sub(view.tip.slot);
    let refuse = |message: String, behind: Option<u64>| {
        let data = Some(json!({ "numSlotsBehind": behind }));
        Err(Refusal { data, ..Refusal::new(-32_005, message) })
    };
    match behind {
        _ if !view.node.is_healthy() => refuse("Node is unhealthy".to_owned(), None),
        HEALTH_SLOTS.. => refuse(format!("Node is behind by {behind} slots"), Some(behind)),
        _ => Ok("ok"),
    }
}

fn epoch_info(view: &View<'_>, slot: Slot) -> Value {
    let block = view.chain.tip_at(slot);
    let epoch = view.chain.genesis.epochs.of(slot);
    json!({
        "absoluteSlot": slot,
        "blockHeight": block.height,
        "epoch": epoch.number,
        "slotIndex": epoch.index,
        "slotsInEpoch": epoch.slots,
        "transactionCount": block.transaction_count,
    })
}

fn latest_blockhash(view: &View<'_>, slot: Slot) -> Value {
    view.contextual(slot, &send::latest_blockhash(view, slot))
}

fn is_blockhash_valid(view: &View<'_>, params: &[Value]) -> Result<Value, Refusal> {
    let Pubkey(hash) = public_key(params, 0)?;
    let slot = config(view, params.get(1))?;
    Ok(view.contextual(slot, &view.chain.is_recent(&hash, slot).into()))
}
