//! Accounts in every encoding, and token balances.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use slotfront_rpc::methods::{
    AccountEncoding, AccountForm, AccountQuery, AccountsQuery, BASE58_MAX, BASE58_TOO_LONG,
    BASE58_TOO_LONG_CODE, BalanceQuery, DataSlice, LamportsQuery, Pubkey, Slot,
};

use super::{Refusal, View, parsed};
use crate::chain::accounts::Account;
use crate::chain::address;
use crate::chain::token::{Mint, TokenAccount};

/// The text that a notification has in place of data that is too long for base58.
const NOT_BASE58: &str = "error: data too large for bs58 encoding";

/// Answers getAccountInfo.
pub(super) fn one(view: &View<'_>, query: &AccountQuery) -> Result<Value, Refusal> {
    let slot = view.slot_from(query.commitment, query.min_context_slot)?;
    let read_at = view.node.reads_at(slot, query.commitment, 0);
    Ok(view.contextual(slot, &value(view, read_at, &query.pubkey, query.form)?))
}

/// Answers getMultipleAccounts.
pub(super) fn several(view: &View<'_>, query: &AccountsQuery) -> Result<Value, Refusal> {
    let slot = view.slot_from(query.commitment, query.min_context_slot)?;
    let read_at = |position| view.node.reads_at(slot, query.commitment, position);
    let values: Result<Value, Refusal> = query
        .pubkeys
        .iter()
        .enumerate()
        .map(|(position, key)| value(view, read_at(position), key, query.form))
        .collect();
    Ok(view.contextual(slot, &values?))
}

/// Answers getBalance.
pub(super) fn lamports(view: &View<'_>, query: &LamportsQuery) -> Result<Value, Refusal> {
    let slot = view.slot_from(query.commitment, query.min_context_slot)?;
    let lamports = view.chain.account(&query.pubkey, slot).map_or(0, |account| account.lamports);
    Ok(view.contextual(slot, &lamports.into()))
}

/// Answers getTokenAccountBalance.
pub(super) fn balance(view: &View<'_>, query: &BalanceQuery) -> Result<Value, Refusal> {
    let slot = view.slot(query.commitment);
    let refuse = |reason| Refusal::param(format!("Invalid param: {reason}"));
    let account = view.chain.account(&query.pubkey, slot).ok_or_else(|| refuse("could not find account"))?;
    let is_token = [address::TOKEN, address::TOKEN_2022].contains(&account.owner);
    let token = TokenAccount::decode(&account.data).filter(|_| is_token);
    let token = token.ok_or_else(|| refuse("not a Token account"))?;
    let decimals = if token.mint == address::NATIVE_MINT {
        9
    } else {
        let mint = view.chain.account(&token.mint, slot).ok_or_else(|| refuse("could not find mint"))?;
        let mint = Mint::decode(&mint.data).ok_or_else(|| refuse("Token mint could not be unpacked"))?;
        mint.decimals
    };
    Ok(view.contextual(slot, &parsed::token_amount(token.amount, decimals)))
}

/// Returns the account in a form, `null` if it does not exist.
pub(super) fn value(view: &View<'_>, slot: Slot, key: &Pubkey, form: AccountForm) -> Result<Value, Refusal> {
    let Some(account) = view.chain.account(key, slot) else {
        return Ok(Value::Null);
    };
    Ok(shown(account, &data(view, slot, key, account, form)?))
}

/// Returns the account of a notification. An account that is gone has no lamports and no data.
pub(crate) fn notified(view: &View<'_>, slot: Slot, key: &Pubkey, form: AccountForm) -> Value {
    let account = view.chain.account(key, slot);
    let account = account.cloned().unwrap_or_else(|| Account { rent_epoch: 0, ..Account::wallet(0) }.into());
    let too_long = |_| match form.encoding {
        AccountEncoding::Binary => NOT_BASE58.into(),
        encoding => json!([NOT_BASE58, encoding.as_str()]),
    };
    shown(&account, &data(view, slot, key, &account, form).unwrap_or_else(too_long))
}

fn shown(account: &Account, data: &Value) -> Value {
    json!({
        "data": data,
        "executable": account.executable,
        "lamports": account.lamports,
        "owner": account.owner.to_string(),
        "rentEpoch": account.rent_epoch,
        "space": account.data.len(),
    })
}

fn data(
    view: &View<'_>,
    slot: Slot,
    key: &Pubkey,
    account: &Account,
    form: AccountForm,
) -> Result<Value, Refusal> {
    let bytes = sliced(&account.data, form.slice);
    let pair = |text: String, encoding: AccountEncoding| json!([text, encoding.as_str()]);
    Ok(match form.encoding {
        AccountEncoding::Binary => Value::from(base58(bytes)?),
        AccountEncoding::Base58 => pair(base58(bytes)?, AccountEncoding::Base58),
        AccountEncoding::Base64 => pair(BASE64.encode(bytes), AccountEncoding::Base64),
        AccountEncoding::Base64Zstd => {
            let packed = zstd::stream::encode_all(bytes, 0);
            let packed = packed.map_err(|_| Refusal::new(-32_603, "Internal error"))?;
            pair(BASE64.encode(packed), AccountEncoding::Base64Zstd)
        }
        AccountEncoding::JsonParsed => match parsed::parse(view.chain, slot, key, account) {
            Some(parsed) => parsed,
            // If a node cannot parse an account of a token program, it ignores the slice and returns all data.
            None if parsed::is_token_program(&account.owner) => {
                pair(BASE64.encode(&account.data), AccountEncoding::Base64)
            }
            None => pair(BASE64.encode(bytes), AccountEncoding::Base64),
        },
    })
}

fn sliced(data: &[u8], slice: Option<DataSlice>) -> &[u8] {
    let Some(DataSlice { offset, length }) = slice else {
        return data;
    };
    let clip = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(data.len());
    let (from, to) = (clip(offset), clip(offset.saturating_add(length)));
    &data[from..to]
}

fn base58(bytes: &[u8]) -> Result<String, Refusal> {
    if bytes.len() > BASE58_MAX {
        return Err(Refusal::new(BASE58_TOO_LONG_CODE, BASE58_TOO_LONG));
    }
    Ok(bs58::encode(bytes).into_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_clipped_never_refused() {
        let data = [0, 1, 2, 3, 4];
        let slice = |offset, length| sliced(&data, Some(DataSlice { offset, length }));
        assert_eq!(slice(1, 2), [1, 2]);
        assert_eq!(slice(3, 9), [3, 4]);
        assert_eq!(slice(5, 1), [0u8; 0]);
        assert_eq!(slice(u64::MAX, u64::MAX), [0u8; 0]);
        assert_eq!(slice(0, u64::MAX), data);
        assert_eq!(sliced(&data, None), data);
    }

    #[test]
    fn base58_ends_at_128_bytes() {
        assert!(base58(&[1; BASE58_MAX]).is_ok());
        assert_eq!(base58(&[1; BASE58_MAX + 1]).unwrap_err().code, -32_600);
    }
}
