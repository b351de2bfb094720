//! Lists of accounts that are put together from single accounts, and single accounts that are taken from lists. A
//! list shares the bytes of its accounts with the single entries.
//!
//! Element i of a list equals the `value` of the single answer in the same form at the same slot. An assembled list is
//! as consistent as a node's own: at finalized even a node's list may mix neighbouring slots.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use serde_json::value::RawValue;

use super::super::entry::{Entry, EntryBody, EntryMeta, TextParts};
use super::super::follow_stamp;
use super::account::{AccountFacts, AccountValue, ByteSpan, DeriveError};
use crate::methods::{AccountEncoding, AccountForm, Slot};
use crate::node::Contextual;
use crate::node::shape::{elements, member};

const CONTEXT: &[u8] = br#"{"context":"#;
const VALUE: &[u8] = br#","value":"#;

/// One account, parsed from its own answer or from the answer about a list.
pub struct SingleAccount {
    /// The whole answer, as if the account had been asked for alone.
    pub result: Bytes,
    /// The span of the context within `result`.
    pub context: ByteSpan,
    pub value: AccountValue,
    pub facts: AccountFacts,
}

impl SingleAccount {
    /// Returns the entry body of the account. `asked` is the encoding for which the account was fetched, or `None`
    /// for a slice.
    pub fn into_body(self, asked: Option<AccountEncoding>) -> EntryBody {
        let Self { result, context, value, .. } = self;
        EntryBody::Account { result, context, value, asked }
    }
}

/// Parses a single account's answer. `None` if the answer is not in the format that nodes write.
pub fn read_single(result: &Bytes, form: AccountForm) -> Option<SingleAccount> {
    let Contextual { context, value, .. } = Contextual::split(result)?;
    let (read, facts) = AccountValue::read(&value, form)?;
    if read.text().as_ptr() == value.as_ptr() {
        let from = context.as_ptr() as usize - result.as_ptr() as usize;
        let context = (u32::try_from(from).ok()?, u32::try_from(from + context.len()).ok()?);
        return Some(SingleAccount { result: result.clone(), context, value: read, facts });
    }
    // The value was rewritten, so it needs a result of its own.
    let (result, context, value) = alone(&context, &read)?;
    Some(SingleAccount { result, context, value, facts })
}

/// Parses a list's answer into its context and its single answers, in order. `None` if the answer is not a
/// list of `count` accounts.
///
/// Each single answer has memory of its own. A single answer that outlives the others thus keeps only its own
/// bytes in memory.
pub fn read_list(list: &Bytes, form: AccountForm, count: usize) -> Option<(Bytes, Vec<SingleAccount>)> {
    let Contextual { context, value, .. } = Contextual::split(list)?;
    let elements = elements(&value)?;
    if elements.len() != count {
        return None;
    }
    let singles = elements.iter().map(|text| {
        let (value, facts) = AccountValue::read(text, form)?;
        let (result, context, value) = alone(&context, &value)?;
        Some(SingleAccount { result, context, value, facts })
    });
    let singles = singles.collect::<Option<Vec<_>>>()?;
    Some((Bytes::copy_from_slice(&context), singles))
}

/// Writes `context` and `value` as getAccountInfo's answer, into new memory. Returns the answer, the range of
/// its context, and the value as a slice of the answer.
pub fn alone(context: &[u8], value: &AccountValue) -> Option<(Bytes, ByteSpan, AccountValue)> {
    let mut result =
        BytesMut::with_capacity(CONTEXT.len() + context.len() + VALUE.len() + value.text().len() + 1);
    for piece in [CONTEXT, context, VALUE] {
        result.extend_from_slice(piece);
    }
    let from = result.len();
    result.extend_from_slice(value.text());
    let to = result.len();
    result.extend_from_slice(b"}");
    let result = result.freeze();
    let at = (u32::try_from(CONTEXT.len()).ok()?, u32::try_from(CONTEXT.len() + context.len()).ok()?);
    let value = value.moved_into(&result, from..to);
    Some((result, at, value))
}

/// Returns a copy of the JSON object `context` with another slot. `None` if `context` states no slot.
pub fn context_at(context: &[u8], slot: Slot) -> Option<Bytes> {
    let digits: &RawValue = member(context, "slot")?;
    let from = digits.get().as_ptr() as usize - context.as_ptr() as usize;
    let to = from + digits.get().len();
    Some([&context[..from], itoa::Buffer::new().format(slot).as_bytes(), &context[to..]].concat().into())
}

/// Returns a copy of `result` with `slot` in its context. `None` if `result` has no context.
pub fn result_at(result: &Bytes, slot: Slot) -> Option<Bytes> {
    let Contextual { context, value, .. } = Contextual::split(result)?;
    Some([CONTEXT, &context_at(&context, slot)?, VALUE, &value, b"}"].concat().into())
}

/// Puts a list together from the entries of its accounts. `None` if there are none, if they are of different slots, or
/// if one is not an account. The list is as old as its oldest account.
pub fn joined(singles: &[Arc<Entry>]) -> Option<Entry> {
    let Entry { body: EntryBody::Account { result, context: (from, to), .. }, meta, .. } =
        &**singles.first()?
    else {
        return None;
    };
    let context = result.slice(*from as usize..*to as usize);
    let sent_at = singles.iter().map(|single| single.meta.sent_at).min()?;
    let values = singles.iter().map(|single| match &single.body {
        EntryBody::Account { value, .. } if single.meta.slot == meta.slot => Some(value.clone()),
        _ => None,
    });
    let values = values.collect::<Option<Arc<[_]>>>()?;
    let stamp = follow_stamp::of_list(meta.slot, singles.iter().map(|single| single.stamp.as_ref()));
    let carried = singles.iter().all(|single| single.meta.carried);
    let meta = EntryMeta { sent_at, derived: true, carried, ..*meta };
    let body = EntryBody::Accounts { context, values, asked: None };
    Some(Entry::new(body, meta, stamp))
}

/// Returns the answer `result` about one account in `form`, and true if the returned text differs from `result`.
///
/// # Errors
/// [`AccountValue::write`] fails.
pub fn write_single(
    result: &Bytes,
    value: &AccountValue,
    form: AccountForm,
) -> Result<(TextParts, bool), DeriveError> {
    if value.is_stored_in(form) {
        return Ok((TextParts::One(result.clone()), false));
    }
    let (from, to) = value.place_in(result).ok_or(DeriveError::Broken)?;
    let mut pieces = vec![result.slice(..from as usize)];
    value.write(form, &mut pieces)?;
    pieces.push(result.slice(to as usize..));
    Ok((TextParts::of(pieces), true))
}

/// Returns the answer about a list of accounts in `form`, and true if the text of any account differs from
/// its stored text.
///
/// # Errors
/// [`AccountValue::write`] fails for an account. The error is that of the first such account, as in a node's
/// answer.
pub fn write_list(
    context: &Bytes,
    values: &[AccountValue],
    form: AccountForm,
) -> Result<(TextParts, bool), DeriveError> {
    let mut pieces = vec![Bytes::from_static(CONTEXT), context.clone(), Bytes::from_static(br#","value":["#)];
    let mut differs = false;
    for (i, value) in values.iter().enumerate() {
        if i > 0 {
            pieces.push(Bytes::from_static(b","));
        }
        differs |= value.write(form, &mut pieces)?;
    }
    pieces.push(Bytes::from_static(b"]}"));
    Ok((TextParts::of(pieces), differs))
}

#[cfg(test)]
mod tests;
