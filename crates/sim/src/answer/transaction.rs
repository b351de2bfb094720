//! Transactions in all shapes of getBlock, with their meta.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use slotfront_rpc::methods::{BlockEncoding, BlockQuery, Pubkey, is_reserved};

use super::parsed;
use crate::chain::address;
use crate::chain::error::{InstructionError, TransactionError};
use crate::chain::instruction::TypedInstruction;
use crate::chain::message::{Compiled, encode_transaction};
use crate::chain::transaction::{TokenBalance, Transaction};
use crate::chain::vote::TowerSync;

/// Returns a signature in base58.
pub(super) fn signature(signature: &[u8; 64]) -> Value {
    bs58::encode(signature).into_string().into()
}

/// Renders a transaction with the details `full`, in the requested encoding.
pub(super) fn full(transaction: &Transaction, query: &BlockQuery) -> Value {
    let wire = || encode_transaction(&transaction.signatures, &transaction.message);
    let written = match query.encoding {
        BlockEncoding::Json => {
            json!({ "message": message(transaction), "signatures": signatures(transaction) })
        }
        BlockEncoding::JsonParsed => {
            json!({ "message": parsed_message(transaction), "signatures": signatures(transaction) })
        }
        BlockEncoding::Base64 => json!([BASE64.encode(wire()), "base64"]),
        BlockEncoding::Base58 => json!([bs58::encode(wire()).into_string(), "base58"]),
        BlockEncoding::Binary => bs58::encode(wire()).into_string().into(),
    };
    let mut meta = meta(transaction);
    meta["computeUnitsConsumed"] = transaction.units().into();
    meta["costUnits"] = cost_units(transaction).into();
    meta["innerInstructions"] = json!([]);
    meta["logMessages"] = logs(transaction).into();
    meta["rewards"] = if query.rewards { json!([]) } else { Value::Null };
    if query.encoding != BlockEncoding::JsonParsed {
        let texts = |keys: &[Pubkey]| keys.iter().map(ToString::to_string).collect::<Value>();
        let loaded = &transaction.loaded;
        meta["loadedAddresses"] =
            json!({ "readonly": texts(&loaded.readonly), "writable": texts(&loaded.writable) });
    }
    versioned(transaction, query, &meta, &written)
}

/// Renders a transaction with the details `accounts`: its accounts and a short meta.
pub(super) fn accounts(transaction: &Transaction, query: &BlockQuery) -> Value {
    let written =
        json!({ "accountKeys": annotated_keys(transaction), "signatures": signatures(transaction) });
    let mut meta = meta(transaction);
    if query.rewards {
        meta["rewards"] = json!([]);
    }
    versioned(transaction, query, &meta, &written)
}

fn versioned(transaction: &Transaction, query: &BlockQuery, meta: &Value, written: &Value) -> Value {
    let mut answer = json!({ "meta": meta, "transaction": written });
    if query.max_version.is_some() {
        answer["version"] = if transaction.message.v0 { 0.into() } else { "legacy".into() };
    }
    answer
}

fn signatures(transaction: &Transaction) -> Value {
    transaction.signatures.iter().map(signature).collect()
}

/// Returns the members of `meta` that blocks with the details `full` and `accounts` share.
fn meta(transaction: &Transaction) -> Value {
    let err = transaction.failure.map_or(Value::Null, error);
    let status = status(&err);
    let mut meta = json!({ "err": err, "fee": transaction.fee.total(), "status": status });
    for (name, balances) in balances(transaction) {
        meta[name] = balances;
    }
    meta
}

/// Returns the members of `meta` that have the balances of a transaction's accounts.
pub(super) fn balances(transaction: &Transaction) -> [(&'static str, Value); 4] {
    let [pre, post] = &transaction.balances;
    let [pre_tokens, post_tokens] = &transaction.tokens;
    let tokens = |balances: &[TokenBalance]| balances.iter().map(token_balance).collect::<Value>();
    [
        ("postBalances", json!(post)),
        ("postTokenBalances", tokens(post_tokens)),
        ("preBalances", json!(pre)),
        ("preTokenBalances", tokens(pre_tokens)),
    ]
}

/// Returns the `status` of an `err`.
pub(super) fn status(err: &Value) -> Value {
    if err.is_null() { json!({ "Ok": null }) } else { json!({ "Err": err }) }
}

/// Returns the JSON form of an error.
pub(crate) fn error(error: TransactionError) -> Value {
    match error {
        TransactionError::InstructionError(at, error) => {
            let reason = match error {
                InstructionError::Lamports { .. } | InstructionError::Tokens => json!({ "Custom": 1 }),
                other => format!("{other:?}").into(),
            };
            json!({ "InstructionError": [at, reason] })
        }
        TransactionError::InsufficientFundsForRent(at) => {
            json!({ "InsufficientFundsForRent": { "account_index": at } })
        }
        other => format!("{other:?}").into(),
    }
}

fn token_balance(balance: &TokenBalance) -> Value {
    json!({
        "accountIndex": balance.index,
        "mint": balance.mint.to_string(),
        "owner": balance.owner.to_string(),
        "programId": balance.program.to_string(),
        "uiTokenAmount": parsed::token_amount(balance.amount, balance.decimals),
    })
}

/// Returns the cost of a transaction by a node's cost model. It is the sum of the costs of signatures, write
/// locks, instruction data, compute units, and one page of account data.
fn cost_units(transaction: &Transaction) -> u64 {
    let message = &transaction.message;
    let writable = (0..message.keys.len()).filter(|at| message.is_writable(*at)).count();
    let locks = (writable + transaction.loaded.writable.len()) as u64;
    let data: usize = message.instructions.iter().map(|instruction| instruction.data.len()).sum();
    720 * u64::from(message.signatures()) + 300 * locks + data as u64 / 4 + transaction.units() + 8
}

/// Returns the value of a logsNotification.
pub(crate) fn logged(transaction: &Transaction) -> Value {
    json!({
        "err": transaction.failure.map(error),
        "logs": logs(transaction),
        "signature": signature(&transaction.signatures[0]),
    })
}

/// Returns the lines that the runtime logs while it executes the transaction.
pub(super) fn logs(transaction: &Transaction) -> Vec<String> {
    let mut logs = Vec::new();
    let mut left = transaction.unit_limit();
    for (at, instruction) in transaction.executed().iter().enumerate() {
        let program = instruction.program();
        let failed = transaction.failure.and_then(TransactionError::instruction);
        let failure = failed.filter(|(failed, _)| *failed == at).map(|(_, failure)| failure);
        logs.push(format!("Program {program} invoke [1]"));
        match (instruction, failure) {
            (TypedInstruction::Memo { signers, text }, _) => {
                logs.extend(signers.iter().map(|signer| format!("Program log: Signed by {signer}")));
                logs.push(format!("Program log: Memo (len {}): {text:?}", text.len()));
            }
            (TypedInstruction::TokenTransfer { checked, .. }, None) if program == address::TOKEN_2022 => {
                let name = if checked.is_some() { "TransferChecked" } else { "Transfer" };
                logs.push(format!("Program log: TypedInstruction: {name}"));
            }
            (_, Some(InstructionError::Lamports { have, need })) => {
                logs.push(format!("Transfer: insufficient lamports {have}, need {need}"));
            }
            (_, Some(InstructionError::Tokens)) => {
                logs.push("Program log: Error: insufficient funds".to_owned());
            }
            _ => {}
        }
        let units = instruction.units();
        if matches!(instruction, TypedInstruction::Memo { .. } | TypedInstruction::TokenTransfer { .. }) {
            logs.push(format!("Program {program} consumed {units} of {left} compute units"));
        }
        left = left.saturating_sub(units);
        logs.push(match failure {
            None => format!("Program {program} success"),
            Some(failure) => format!("Program {program} failed: {failure}"),
        });
    }
    logs
}

fn message(transaction: &Transaction) -> Value {
    let message = &transaction.message;
    let [signed, readonly_signed, readonly_unsigned] = message.header;
    let mut answer = json!({
        "accountKeys": message.keys.iter().map(ToString::to_string).collect::<Value>(),
        "header": {
            "numReadonlySignedAccounts": readonly_signed,
            "numReadonlyUnsignedAccounts": readonly_unsigned,
            "numRequiredSignatures": signed,
        },
        "instructions": message.instructions.iter().map(compiled).collect::<Value>(),
        "recentBlockhash": Pubkey(message.blockhash).to_string(),
    });
    add_lookups(&mut answer, transaction);
    answer
}

fn parsed_message(transaction: &Transaction) -> Value {
    let instructions = transaction.instructions.iter().zip(&transaction.message.instructions);
    let mut answer = json!({
        "accountKeys": annotated_keys(transaction),
        "instructions": instructions.map(|(typed, raw)| instruction(transaction, typed, raw)).collect::<Value>(),
        "recentBlockhash": Pubkey(transaction.message.blockhash).to_string(),
    });
    add_lookups(&mut answer, transaction);
    answer
}

fn add_lookups(answer: &mut Value, transaction: &Transaction) {
    if transaction.message.v0 {
        let lookups = transaction.message.lookups.iter().map(|lookup| {
            json!({
                "accountKey": lookup.table.to_string(),
                "readonlyIndexes": lookup.readonly,
                "writableIndexes": lookup.writable,
            })
        });
        answer["addressTableLookups"] = lookups.collect();
    }
}

fn compiled(instruction: &Compiled) -> Value {
    json!({
        "accounts": instruction.accounts,
        "data": bs58::encode(&instruction.data).into_string(),
        "programIdIndex": instruction.program,
        "stackHeight": 1,
    })
}

/// Returns each account with its flags. Reserved accounts are never shown as writable. Accounts that are called as
/// programs are shown as writable only if the upgradeable loader is among the accounts.
fn annotated_keys(transaction: &Transaction) -> Value {
    let message = &transaction.message;
    let upgradeable = transaction.accounts().any(|key| *key == address::LOADER_UPGRADEABLE);
    let called = |at: usize| message.instructions.iter().any(|i| usize::from(i.program) == at);
    let keys = transaction.accounts().enumerate().map(|(at, key)| {
        let in_message = at < message.keys.len();
        let claimed = if in_message {
            message.is_writable(at)
        } else {
            at - message.keys.len() < transaction.loaded.writable.len()
        };
        json!({
            "pubkey": key.to_string(),
            "signer": message.is_signer(at),
            "source": if in_message { "transaction" } else { "lookupTable" },
            "writable": claimed && !is_reserved(key) && (upgradeable || !called(at)),
        })
    });
    keys.collect()
}

/// Renders an instruction for jsonParsed: by name if the node knows the program, otherwise by accounts and data.
fn instruction(transaction: &Transaction, typed: &TypedInstruction, raw: &Compiled) -> Value {
    let key = |at: &u8| transaction.accounts().nth(usize::from(*at)).map(ToString::to_string);
    let program_id = typed.program().to_string();
    let known = |program: &str, parsed: &Value| json!({ "parsed": parsed, "program": program, "programId": program_id, "stackHeight": 1 });
    match typed {
        TypedInstruction::Transfer { from, to, lamports, .. } => {
            let info =
                json!({ "destination": to.to_string(), "lamports": lamports, "source": from.to_string() });
            known("system", &json!({ "info": info, "type": "transfer" }))
        }
        TypedInstruction::TokenTransfer { source, destination, authority, amount, checked, .. } => {
            let mut info = json!({
                "authority": authority.to_string(),
                "destination": destination.to_string(),
                "source": source.to_string(),
            });
            let kind = if let Some((mint, decimals)) = checked {
                info["mint"] = mint.to_string().into();
                info["tokenAmount"] = parsed::token_amount(*amount, *decimals);
                "transferChecked"
            } else {
                info["amount"] = amount.to_string().into();
                "transfer"
            };
            // In parsed instructions, unlike in parsed accounts, a node uses this name for both token programs.
            known("spl-token", &json!({ "info": info, "type": kind }))
        }
        TypedInstruction::Memo { text, .. } => known("spl-memo", &text.as_str().into()),
        TypedInstruction::Vote { account, authority, sync, .. } => {
            known("vote", &vote(account, authority, sync))
        }
        TypedInstruction::UnitLimit(_) | TypedInstruction::UnitPrice(_) | TypedInstruction::Other { .. } => {
            json!({
                "accounts": raw.accounts.iter().map(key).collect::<Value>(),
                "data": bs58::encode(&raw.data).into_string(),
                "programId": program_id,
                "stackHeight": 1,
            })
        }
    }
}

fn vote(account: &Pubkey, authority: &Pubkey, sync: &TowerSync) -> Value {
    let lockouts = sync.tower.lockouts();
    let lockouts: Value =
        lockouts.map(|(slot, count)| json!({ "confirmation_count": count, "slot": slot })).collect();
    let tower_sync = json!({
        "blockId": address::SYSTEM.to_string(),
        "hash": Pubkey(sync.bank_hash).to_string(),
        "lockouts": lockouts,
        "root": sync.tower.root,
        "timestamp": sync.now,
    });
    let info = json!({
        "towerSync": tower_sync,
        "voteAccount": account.to_string(),
        "voteAuthority": authority.to_string(),
    });
    json!({ "info": info, "type": "towersync" })
}
