//! The small methods that probes and clients ask besides the eight.

use serde_json::{Value, json};
use slotfront_rpc::jsonrpc::Params;
use slotfront_rpc::methods::{Commitment, Pubkey, Slot};

use super::{FEATURE_SET, Refusal, VERSION, View, contextual};
use crate::chain::BLOCKHASH_QUEUE;
use crate::draw::Draw;

/// The method that tells a node's health.
pub(crate) const HEALTH: &str = "getHealth";
/// The methods that only probes ask.
pub(crate) const PROBES: [&str; 8] = [
    HEALTH,
    "getSlot",
    "getBlockHeight",
    "getVersion",
    "getGenesisHash",
    "getFirstAvailableBlock",
    "minimumLedgerSlot",
    "getEpochInfo",
];
/// The methods beside the eight that a simulated node answers.
pub(crate) const FURTHER: [&str; 11] = [
    HEALTH,
    "getSlot",
    "getBlockHeight",
    "getVersion",
    "getGenesisHash",
    "getFirstAvailableBlock",
    "minimumLedgerSlot",
    "getBalance",
    "getEpochInfo",
    "getLatestBlockhash",
    "isBlockhashValid",
];
/// Slots behind the cluster from which on a node calls itself unhealthy.
const HEALTH_SLOTS: u64 = 128;
/// Blocks for which a transaction may still use a blockhash.
const BLOCKHASH_AGE: u64 = 150;

/// Answers a method other than the eight.
pub(super) fn call(view: &View<'_>, method: &str, params: &Params) -> Result<Value, Refusal> {
    let params = array(params)?;
    match method {
        HEALTH => health(view).map(Value::from),
        "getSlot" => Ok(config(view, params.first())?.into()),
        "getBlockHeight" => Ok(view.chain.tip_at(config(view, params.first())?).height.into()),
        "getVersion" => Ok(json!({ "feature-set": FEATURE_SET, "solana-core": VERSION })),
        "getGenesisHash" => Ok(genesis_hash(view.chain.genesis.seed).into()),
        "getFirstAvailableBlock" | "minimumLedgerSlot" => Ok(view.first_available().into()),
        "getBalance" => balance(view, &params),
        "getEpochInfo" => Ok(epoch_info(view, config(view, params.first())?)),
        "getLatestBlockhash" => Ok(latest_blockhash(view, config(view, params.first())?)),
        "isBlockhashValid" => is_blockhash_valid(view, &params),
        _ => Err(Refusal::new(-32_601, "Method not found")),
    }
}

/// The params as a list; none at all is an empty list.
fn array(params: &Params) -> Result<Vec<Value>, Refusal> {
    match params {
        Params::None => Ok(vec![]),
        Params::Array(text) => {
            serde_json::from_slice(text).map_err(|e| Refusal::param(format!("Invalid params: {e}.")))
        }
        Params::Object(_) => Err(Refusal::param("`params` should be an array")),
    }
}

/// The slot that a `{commitment, minContextSlot}` object asks for; finalized by default.
fn config(view: &View<'_>, config: Option<&Value>) -> Result<Slot, Refusal> {
    let member = |name| config.and_then(|config| config.get(name));
    let commitment = member("commitment").and_then(Value::as_str).and_then(Commitment::from_name);
    let minimum = member("minContextSlot").and_then(Value::as_u64);
    view.slot_from(commitment.unwrap_or(Commitment::Finalized), minimum)
}

/// `ok`, or -32005 and how far behind.
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

fn genesis_hash(seed: u64) -> String {
    Pubkey(Draw::new(seed, "genesis", 0).bytes()).to_string()
}

fn epoch_info(view: &View<'_>, slot: Slot) -> Value {
    let block = view.chain.tip_at(slot);
    let slots = view.chain.genesis.slots_per_epoch;
    json!({
        "absoluteSlot": slot,
        "blockHeight": block.height,
        "epoch": view.chain.epoch(slot),
        "slotIndex": slot % slots,
        "slotsInEpoch": slots,
        "transactionCount": block.transaction_count,
    })
}

fn latest_blockhash(view: &View<'_>, slot: Slot) -> Value {
    let block = view.chain.tip_at(slot);
    let value = json!({
        "blockhash": Pubkey(block.hash).to_string(),
        "lastValidBlockHeight": block.height + BLOCKHASH_AGE,
    });
    contextual(slot, &value)
}

fn balance(view: &View<'_>, params: &[Value]) -> Result<Value, Refusal> {
    let key = params.first().and_then(Value::as_str).and_then(|text| Pubkey::parse(text).ok());
    let key = key.ok_or_else(|| Refusal::param("Invalid param: WrongSize"))?;
    let slot = config(view, params.get(1))?;
    let lamports = view.chain.account(&key, slot).map_or(0, |account| account.lamports);
    Ok(contextual(slot, &lamports.into()))
}

fn is_blockhash_valid(view: &View<'_>, params: &[Value]) -> Result<Value, Refusal> {
    let hash = params.first().and_then(Value::as_str).and_then(|text| Pubkey::parse(text).ok());
    let Pubkey(hash) = hash.ok_or_else(|| Refusal::param("Invalid param: WrongSize"))?;
    let slot = config(view, params.get(1))?;
    let recent = usize::try_from(BLOCKHASH_AGE).unwrap_or(BLOCKHASH_QUEUE);
    let valid = view.chain.blocks_back_from(slot).take(recent + 1).any(|block| block.hash == hash);
    Ok(contextual(slot, &valid.into()))
}
