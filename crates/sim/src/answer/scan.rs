//! What a node walks over many accounts for: token accounts of an owner or delegate, accounts of a program, the largest
//! accounts, and the supply of lamports and of tokens.

use std::cmp::Reverse;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use slotfront_rpc::methods::{AccountEncoding, AccountForm, BalanceQuery, DataSlice, Pubkey, Slot};

use super::parsed::{is_token_program, token_amount};
use super::{Refusal, View, account, public_key};
use crate::chain::accounts::Account;
use crate::chain::token::{Mint, TokenAccount};

/// The number of accounts in a list of the largest.
const LARGEST: usize = 20;

pub(super) fn token_supply(view: &View<'_>, query: &BalanceQuery) -> Result<Value, Refusal> {
    let slot = view.slot(query.commitment);
    let refuse = |reason: &str| Refusal::param(format!("Invalid param: {reason}"));
    let account = view.chain.account(&query.pubkey, slot);
    let account = account.ok_or_else(|| refuse("could not find account"))?;
    if !is_token_program(&account.owner) {
        return Err(refuse("not a Token mint"));
    }
    let mint = Mint::decode(&account.data).ok_or_else(|| refuse("mint could not be unpacked"))?;
    Ok(view.contextual(slot, &token_amount(mint.supply, mint.decimals)))
}

/// Reads the mint whose accounts are listed.
fn mint(view: &View<'_>, slot: Slot, key: &Pubkey) -> Result<Mint, Refusal> {
    let refuse = |reason: &str| Refusal::param(format!("Invalid param: {reason}"));
    let account = view.chain.account(key, slot).ok_or_else(|| refuse("could not find mint"))?;
    let mint = Mint::decode(&account.data).filter(|_| is_token_program(&account.owner));
    mint.ok_or_else(|| refuse("Token mint could not be unpacked"))
}

/// Answers getTokenAccountsByOwner, and getTokenAccountsByDelegate with `by_delegate`.
pub(super) fn token_accounts(
    view: &View<'_>,
    slot: Slot,
    params: &[Value],
    by_delegate: bool,
) -> Result<Value, Refusal> {
    let holder = public_key(params, 0)?;
    let key = |name| {
        let text = params.get(1).and_then(|filter| filter.get(name)).and_then(Value::as_str);
        text.and_then(|text| Pubkey::parse(text).ok())
    };
    let of_mint = key("mint");
    let program = key("programId");
    if let Some(key) = of_mint {
        mint(view, slot, &key)?;
    }
    if program.is_some_and(|program| !is_token_program(&program)) {
        return Err(Refusal::param("Invalid param: unrecognized Token program id"));
    }
    let matches = |account: &Account| {
        is_token_program(&account.owner)
            && program.is_none_or(|program| program == account.owner)
            && TokenAccount::decode(&account.data).is_some_and(|token| {
                let held = if by_delegate { token.delegate.map(|(key, _)| key) } else { Some(token.owner) };
                held == Some(holder) && of_mint.is_none_or(|mint| mint == token.mint)
            })
    };
    let listed = keyed(view, slot, params.get(2), matches)?;
    Ok(view.contextual(slot, &listed))
}

pub(super) fn program_accounts(view: &View<'_>, slot: Slot, params: &[Value]) -> Result<Value, Refusal> {
    let program = public_key(params, 0)?;
    let config = params.get(1);
    let member = |name| config.and_then(|config| config.get(name));
    let filters = member("filters").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let matches =
        |account: &Account| account.owner == program && filters.iter().all(|filter| passes(account, filter));
    let listed = keyed(view, slot, config, matches)?;
    let with_context = member("withContext").and_then(Value::as_bool).unwrap_or(false);
    Ok(if with_context { view.contextual(slot, &listed) } else { listed })
}

fn passes(account: &Account, filter: &Value) -> bool {
    if let Some(size) = filter.get("dataSize").and_then(Value::as_u64) {
        return account.data.len() as u64 == size;
    }
    let Some(compared) = filter.get("memcmp") else {
        return TokenAccount::decode(&account.data).is_some();
    };
    let offset = compared["offset"].as_u64().and_then(|offset| usize::try_from(offset).ok());
    let bytes = match &compared["bytes"] {
        Value::String(text) if compared["encoding"] == "base64" => BASE64.decode(text).ok(),
        Value::String(text) => bs58::decode(text).into_vec().ok(),
        list => serde_json::from_value(list.clone()).ok(),
    };
    let found = offset.and_then(|offset| account.data.get(offset..));
    found.zip(bytes).is_some_and(|(found, bytes)| found.starts_with(&bytes))
}

/// Returns the accounts that match, each with its address, in the form of a config.
fn keyed(
    view: &View<'_>,
    slot: Slot,
    config: Option<&Value>,
    matches: impl Fn(&Account) -> bool,
) -> Result<Value, Refusal> {
    let form = form(config);
    let found = all(view, slot).filter(|(_, account)| matches(account));
    found
        .map(|(key, _)| {
            Ok(json!({ "account": account::value(view, slot, key, form)?, "pubkey": key.to_string() }))
        })
        .collect()
}

/// Reads the form of a config. Without an encoding it is `binary`.
fn form(config: Option<&Value>) -> AccountForm {
    let member = |name| config.and_then(|config| config.get(name));
    let encoding = member("encoding").and_then(Value::as_str);
    let encodings = [
        AccountEncoding::Base58,
        AccountEncoding::Base64,
        AccountEncoding::Base64Zstd,
        AccountEncoding::JsonParsed,
    ];
    let encoding = encodings.into_iter().find(|known| Some(known.as_str()) == encoding);
    let slice = member("dataSlice").map(|slice| {
        let number = |name| slice[name].as_u64().unwrap_or(0);
        DataSlice { offset: number("offset"), length: number("length") }
    });
    AccountForm { encoding: encoding.unwrap_or(AccountEncoding::Binary), slice }
}

/// Returns all accounts with lamports, in the order of their addresses.
fn all<'a>(view: &'a View<'_>, slot: Slot) -> impl Iterator<Item = (&'a Pubkey, &'a Arc<Account>)> {
    view.chain.accounts_at(slot).filter(|(_, account)| account.lamports > 0)
}

pub(super) fn token_largest(view: &View<'_>, slot: Slot, params: &[Value]) -> Result<Value, Refusal> {
    let key = public_key(params, 0)?;
    let mint = mint(view, slot, &key)?;
    let mut amounts: Vec<(u64, &Pubkey)> = all(view, slot)
        .filter(|(_, account)| is_token_program(&account.owner))
        .filter_map(|(address, account)| Some((TokenAccount::decode(&account.data)?, address)))
        .filter(|(token, _)| token.mint == key)
        .map(|(token, address)| (token.amount, address))
        .collect();
    amounts.sort_by_key(|(amount, address)| (Reverse(*amount), **address));
    let entries = amounts.into_iter().take(LARGEST).map(|(amount, address)| {
        super::with(json!({ "address": address.to_string() }), &token_amount(amount, mint.decimals))
    });
    Ok(view.contextual(slot, &entries.collect()))
}

/// Answers getLargestAccounts. All lamports circulate.
pub(super) fn largest(view: &View<'_>, slot: Slot, params: &[Value]) -> Value {
    let filter = params.first().and_then(|config| config.get("filter"));
    if filter.is_some_and(|filter| filter == "nonCirculating") {
        return view.contextual(slot, &json!([]));
    }
    let mut accounts: Vec<_> = all(view, slot).collect();
    accounts.sort_by_key(|(_, account)| Reverse(account.lamports));
    let entries = accounts.into_iter().take(LARGEST);
    let entries =
        entries.map(|(key, account)| json!({ "address": key.to_string(), "lamports": account.lamports }));
    view.contextual(slot, &entries.collect())
}

/// Answers getSupply. All lamports circulate.
pub(super) fn supply(view: &View<'_>, slot: Slot) -> Value {
    let total = all(view, slot).fold(0_u64, |total, (_, account)| total.saturating_add(account.lamports));
    let value =
        json!({ "circulating": total, "nonCirculating": 0, "nonCirculatingAccounts": [], "total": total });
    view.contextual(slot, &value)
}
