//! getSignatureStatuses and getTransaction.

use serde_json::{Value, json};
use slotfront_rpc::methods::{BlockDetails, BlockEncoding, BlockQuery, Commitment, Slot};

use super::probe::{argument, config};
use super::{Refusal, View, block, transaction};
use crate::chain::BLOCKHASH_QUEUE;
use crate::chain::block::Block;
use crate::chain::transaction::Transaction;

/// The maximum number of signatures of a getSignatureStatuses call.
const MAX_SIGNATURES: usize = 256;

/// Answers getSignatureStatuses. Without a search of the history, a node knows the newest 300 blocks.
pub(super) fn statuses(view: &View<'_>, params: &[Value]) -> Result<Value, Refusal> {
    let list = argument(params, 0)?.as_array();
    let list = list.ok_or_else(|| Refusal::param("Invalid params: expected a sequence."))?;
    if list.len() > MAX_SIGNATURES {
        return Err(Refusal::param(format!("Too many inputs provided; max {MAX_SIGNATURES}")));
    }
    let searches = params.get(1).and_then(|options| options.get("searchTransactionHistory"));
    let searches = searches.and_then(Value::as_bool).unwrap_or(false);
    if searches && !view.node.keeps_history() {
        return Err(block::no_history());
    }
    let newest = view.slot(Commitment::Processed);
    let recent = view.chain.blocks_back_from(newest).take(BLOCKHASH_QUEUE).last();
    let recent = recent.map_or(newest, |block| block.slot);
    let status = |text: &Value| {
        let known = view.chain.landed(&signature(text)?, newest);
        let known = known.filter(|(block, _)| block.slot >= recent || searches && view.keeps(block.slot));
        Ok(known.map_or(Value::Null, |(block, transaction)| status(view, block, transaction)))
    };
    let statuses: Value = list.iter().map(status).collect::<Result<_, Refusal>>()?;
    Ok(view.contextual(newest, &statuses))
}

fn status(view: &View<'_>, block: &Block, transaction: &Transaction) -> Value {
    let level = |commitment: &Commitment| block.slot <= view.slot(*commitment);
    let reached = [Commitment::Finalized, Commitment::Confirmed].into_iter().find(level);
    let newer = view.chain.blocks_back_from(view.tip.slot).take_while(|newer| newer.slot > block.slot);
    let confirmations = (reached != Some(Commitment::Finalized)).then(|| newer.count());
    let err = transaction.failure.map_or(Value::Null, transaction::error);
    json!({
        "confirmationStatus": reached.unwrap_or(Commitment::Processed).as_str(),
        "confirmations": confirmations,
        "slot": block.slot,
        "status": transaction::status(&err),
        "err": err,
    })
}

/// Answers getTransaction.
pub(super) fn one(view: &View<'_>, params: &[Value]) -> Result<Value, Refusal> {
    let signature = signature(argument(params, 0)?)?;
    let options = params.get(1);
    let member = |name| options.and_then(|options| options.get(name));
    if member("commitment").and_then(Value::as_str) == Some("processed") {
        return Err(Refusal::param("Method does not support commitment below `confirmed`"));
    }
    if !view.node.keeps_history() {
        return Err(block::no_history());
    }
    let encoding = member("encoding").or(options).and_then(Value::as_str).unwrap_or("json");
    let encoding = match encoding {
        "json" => BlockEncoding::Json,
        "jsonParsed" => BlockEncoding::JsonParsed,
        "base58" => BlockEncoding::Base58,
        "base64" => BlockEncoding::Base64,
        "binary" => BlockEncoding::Binary,
        other => return Err(Refusal::param(format!("Invalid params: unknown variant `{other}`."))),
    };
    let slot: Slot = config(view, options)?;
    let Some((found, transaction)) =
        view.chain.landed(&signature, slot).filter(|(block, _)| view.keeps(block.slot))
    else {
        return Ok(Value::Null);
    };
    let max_version = member("maxSupportedTransactionVersion").and_then(Value::as_u64).map(|_| 0);
    if transaction.message.v0 && max_version.is_none() {
        return Err(block::unsupported_version());
    }
    let query = BlockQuery {
        slot: found.slot,
        details: BlockDetails::Full,
        encoding,
        rewards: true,
        max_version,
        commitment: Commitment::Confirmed,
    };
    let mut answer = transaction::full(transaction, &query);
    answer["blockTime"] = found.time.into();
    answer["slot"] = found.slot.into();
    answer["transactionIndex"] =
        found.transactions.iter().position(|each| each.signatures[0] == signature).into();
    Ok(answer)
}

pub(crate) fn signature(text: &Value) -> Result<[u8; 64], Refusal> {
    let refuse = |reason| Refusal::param(format!("Invalid param: {reason}"));
    let text = text.as_str().ok_or_else(|| refuse("Invalid"))?;
    let mut bytes = [0; 64];
    match bs58::decode(text).onto(&mut bytes) {
        Ok(64) => Ok(bytes),
        Ok(_) | Err(bs58::decode::Error::BufferTooSmall) => Err(refuse("WrongSize")),
        Err(_) => Err(refuse("Invalid")),
    }
}
