//! sendTransaction, simulateTransaction and requestAirdrop.

use serde_json::{Value, json};
use slotfront_rpc::jsonrpc::Params;
use slotfront_rpc::methods::{Commitment, Pubkey, SendQuery, Slot};

use super::probe::{argument, array, config, health, public_key};
use super::{Refusal, View, transaction};
use crate::chain::error::TransactionError;
use crate::chain::mempool::{BLOCKHASH_AGE, Full};
use crate::chain::signed::SignedTransaction;
use crate::chain::transaction::Transaction;

/// Answers sendTransaction. The checks are made in the same order as in a node.
pub(super) fn send(view: &View<'_>, params: &Params) -> Result<Value, Refusal> {
    let (signed, query) = decode(params)?;
    let skips = query.skip_preflight;
    let commitment = if skips { Some(Commitment::Processed) } else { query.preflight_commitment };
    let slot = view.slot_from(commitment.unwrap_or(Commitment::Finalized), query.min_context_slot)?;
    let verifies = signed.verifies();
    if !skips {
        health(view)?;
        let ran = if verifies {
            view.chain.simulate(signed.clone(), slot)
        } else {
            Err(TransactionError::SignatureFailure)
        };
        if let Some(error) = ran.as_ref().map_or_else(|error| Some(*error), |ran| ran.failure) {
            let message = format!("Transaction simulation failed: {error}");
            return Err(Refusal { data: Some(outcome(&ran)), ..Refusal::new(-32_002, message) });
        }
    }
    let signature = transaction::signature(&signed.signatures[0]);
    // Without preflight, a node takes a transaction with wrong signatures, and no leader does.
    if verifies {
        view.chain.send(signed).map_err(full)?;
    }
    Ok(signature)
}

pub(super) fn simulate(view: &View<'_>, params: &Params) -> Result<Value, Refusal> {
    let (mut signed, _) = decode(params)?;
    let params = array(params)?;
    let options = params.get(1);
    let (verify, replace) = (is_set(options, "sigVerify"), is_set(options, "replaceRecentBlockhash"));
    if verify && replace {
        return Err(Refusal::param("sigVerify may not be used with replaceRecentBlockhash"));
    }
    if options.is_some_and(|options| options.get("accounts").is_some_and(|accounts| !accounts.is_null())) {
        return Err(Refusal::param("the simulated cluster returns no accounts of a simulation"));
    }
    let slot = config(view, options)?;
    let replacement = replace.then(|| latest_blockhash(view, slot));
    if replace {
        signed.message.blockhash = view.chain.tip_at(slot).hash;
    }
    let ran = if verify && !signed.verifies() {
        Err(TransactionError::SignatureFailure)
    } else {
        view.chain.simulate(signed, slot)
    };
    let mut value = outcome(&ran);
    value["loadedAddresses"] = json!({ "readonly": [], "writable": [] });
    value["replacementBlockhash"] = replacement.into();
    if let Ok(ran) = &ran {
        for (name, balances) in transaction::balances(ran) {
            value[name] = balances;
        }
    }
    Ok(view.contextual(slot, &value))
}

/// Answers requestAirdrop: a transfer from the faucet.
pub(super) fn airdrop(view: &View<'_>, params: &[Value]) -> Result<Value, Refusal> {
    let to = public_key(params, 0)?;
    let lamports = typed(params, 1)?;
    let block = view.chain.tip_at(view.slot(Commitment::Processed));
    let signature = view.chain.airdrop(to, lamports, block).map_err(full)?;
    Ok(transaction::signature(&signature))
}

/// Returns the blockhash of `slot` and the last height at which a transaction may have it.
pub(super) fn latest_blockhash(view: &View<'_>, slot: Slot) -> Value {
    let block = view.chain.tip_at(slot);
    json!({
        "blockhash": Pubkey(block.hash).to_string(),
        "lastValidBlockHeight": block.height + BLOCKHASH_AGE as u64,
    })
}

fn full(full: Full) -> Refusal {
    Refusal::new(-32_603, full.to_string())
}

fn is_set(options: Option<&Value>, name: &str) -> bool {
    options.and_then(|options| options.get(name)).and_then(Value::as_bool).unwrap_or(false)
}

/// Returns the members of a simulation that the error of a preflight has, too.
fn outcome(ran: &Result<Transaction, TransactionError>) -> Value {
    let failure = ran.as_ref().map_or_else(|error| Some(*error), |ran| ran.failure);
    let ran = ran.as_ref().ok();
    json!({
        "accounts": null,
        "err": failure.map(transaction::error),
        "fee": ran.map(|ran| ran.fee.total()),
        "innerInstructions": null,
        "loadedAccountsDataSize": 0,
        "loadedAddresses": null,
        "logs": ran.map(transaction::logs).unwrap_or_default(),
        "postBalances": null,
        "postTokenBalances": null,
        "preBalances": null,
        "preTokenBalances": null,
        "replacementBlockhash": null,
        "returnData": null,
        "unitsConsumed": ran.map_or(0, Transaction::units),
    })
}

/// Reads the param at `index`.
fn typed<T: serde::de::DeserializeOwned>(params: &[Value], index: usize) -> Result<T, Refusal> {
    let malformed = |error: serde_json::Error| Refusal::param(format!("Invalid params: {error}."));
    serde_json::from_value(argument(params, index)?.clone()).map_err(malformed)
}

/// Reads the transaction of a call, and what the call says about it.
fn decode(params: &Params) -> Result<(SignedTransaction, SendQuery), Refusal> {
    let query = SendQuery::parse(params)?;
    let signed = SignedTransaction::decode(&query.wire);
    Ok((signed.map_err(|malformed| Refusal::param(malformed.to_string()))?, query))
}
