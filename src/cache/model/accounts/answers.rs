//! The accounts of the simulated cluster, and the texts of answers about them. Each text contains the number
//! of the upstream call that fetched it.

use super::*;
use crate::methods::{AccountEncoding, AccountQuery, AccountsQuery, DataSlice};

/// The number of accounts. Account 0 is a nonce account of 40 bytes, which nodes parse. Account 1 has no
/// data. Account 2 is at times too large to be fetched whole. Account 3 does not exist.
pub(super) const ACCOUNTS: u8 = 4;
const PARSED: u8 = 0;
const LARGE: u8 = 2;
pub(super) const ABSENT: u8 = 3;

/// A caller's call, or an upstream call of the cache.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TestCall {
    pub(super) accounts: Vec<u8>,
    /// True for a list, false for a single account.
    pub(super) list: bool,
    pub(super) form: AccountForm,
    pub(super) commitment: Commitment,
}

/// Returns the key of account `n`.
pub(super) fn pubkey(n: u8) -> Pubkey {
    Pubkey([n + 1; 32])
}

fn data(n: u8, mark: usize) -> Vec<u8> {
    let bytes = [40, 0, 200, 0][usize::from(n)];
    (0..bytes).map(|at| u8::try_from((mark * 7 + at) % 251).unwrap()).collect()
}

fn part(all: &[u8], slice: Option<DataSlice>) -> &[u8] {
    let Some(DataSlice { offset, length }) = slice else { return all };
    let end = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(all.len());
    &all[end(offset)..end(offset.saturating_add(length))]
}

fn space(n: u8, mark: usize) -> usize {
    if n == LARGE && mark.is_multiple_of(2) { 70_000 } else { data(n, mark).len() }
}

/// Returns account `n` as a node writes it in `form`, in its answer to the upstream call with the number
/// `mark`. `None` if nodes refuse the form.
pub(super) fn account_text(n: u8, form: AccountForm, mark: usize) -> Option<String> {
    use AccountEncoding::{Base58, Base64, Base64Zstd, Binary, JsonParsed};
    if n == ABSENT {
        return Some("null".to_owned());
    }
    let all = data(n, mark);
    let bytes = part(&all, form.slice);
    let data = match form.encoding {
        JsonParsed if n == PARSED => {
            format!(r#"{{"parsed":{{"mark":{mark}}},"program":"nonce","space":40}}"#)
        }
        Base58 | Binary if bytes.len() > 128 => return None,
        Base64 | JsonParsed => format!(r#"["{}","base64"]"#, BASE64.encode(bytes)),
        Base58 => format!(r#"["{}","base58"]"#, bs58::encode(bytes).into_string()),
        Binary => format!(r#""{}""#, bs58::encode(bytes).into_string()),
        Base64Zstd => {
            let packed = zstd::stream::encode_all(bytes, 0).unwrap();
            format!(r#"["{}","base64+zstd"]"#, BASE64.encode(packed))
        }
    };
    let (owner, space) = (Pubkey([0; 32]), space(n, mark));
    Some(format!(
        r#"{{"data":{data},"executable":false,"lamports":{mark},"owner":"{owner}","rentEpoch":0,"space":{space}}}"#
    ))
}

/// Returns the text of an answer at `slot`. `context` is the number of the upstream call that brought the context,
/// and `marks` has the numbers of the upstream calls that brought the accounts. `None` if nodes refuse the form.
pub(super) fn answer_text(call: &TestCall, context: usize, slot: Slot, marks: &[usize]) -> Option<String> {
    let values = call.accounts.iter().zip(marks).map(|(n, mark)| account_text(*n, call.form, *mark));
    let values = values.collect::<Option<Vec<_>>>()?.join(",");
    let values = if call.list { format!("[{values}]") } else { values };
    Some(format!(r#"{{"context":{{"apiVersion":"4.0.{context}","slot":{slot}}},"value":{values}}}"#))
}

/// The numbers of the upstream calls from which an answer is made.
pub(super) struct AnswerMarks {
    /// The number of the call that brought the answer's context.
    pub(super) context: usize,
    /// The number of the call that brought each account. The text about an account that does not exist has no
    /// number, so `context` stands for it.
    pub(super) accounts: Vec<usize>,
}

/// Reads from an answer's text the numbers of the upstream calls that brought its parts.
pub(super) fn answer_marks(call: &TestCall, text: &str) -> AnswerMarks {
    let text: serde_json::Value = serde_json::from_str(text).unwrap();
    let context =
        text["context"]["apiVersion"].as_str().unwrap().rsplit_once('.').unwrap().1.parse().unwrap();
    let values =
        if call.list { text["value"].as_array().unwrap().clone() } else { vec![text["value"].clone()] };
    let mark = |value: &serde_json::Value| {
        value["lamports"].as_u64().map_or(context, |mark| usize::try_from(mark).unwrap())
    };
    AnswerMarks { context, accounts: values.iter().map(mark).collect() }
}

/// Converts the query of an upstream call to a [`TestCall`]. Panics if the query is not about accounts.
pub(super) fn described(query: &Query) -> TestCall {
    let n = |pubkey: &Pubkey| pubkey.0[0] - 1;
    match query {
        Query::Account(q) => {
            TestCall { accounts: vec![n(&q.pubkey)], list: false, form: q.form, commitment: q.commitment }
        }
        Query::Accounts(q) => {
            let accounts = q.pubkeys.iter().map(n).collect();
            TestCall { accounts, list: true, form: q.form, commitment: q.commitment }
        }
        other => panic!("{other:?}"),
    }
}

/// Converts a test's call to a query.
pub(super) fn query(call: &TestCall, min_context_slot: Option<Slot>) -> Query {
    let &TestCall { form, commitment, .. } = call;
    if call.list {
        let pubkeys = call.accounts.iter().map(|n| pubkey(*n)).collect();
        Query::Accounts(AccountsQuery { pubkeys, form, commitment, min_context_slot })
    } else {
        Query::Account(AccountQuery { pubkey: pubkey(call.accounts[0]), form, commitment, min_context_slot })
    }
}

/// Returns true if a stored account serves callers who ask for the form `asked`, according to the table in
/// docs/caching.md. The upstream call with the number `mark` has fetched account `n` in the form `stored`.
pub(super) fn serves_form(n: u8, stored: AccountForm, mark: usize, asked: AccountForm) -> bool {
    if stored == asked {
        return true;
    }
    if stored.encoding == AccountEncoding::JsonParsed {
        return stored.slice.is_none();
    }
    let everything = part(&data(n, mark), stored.slice).len() == space(n, mark) || stored.slice.is_none();
    n == ABSENT || (stored.encoding == AccountEncoding::Base64 && everything)
}
