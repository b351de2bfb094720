//! The conversion of an entry into the form that a caller asked for.

use bytes::Bytes;

use super::derive::account::DeriveError;
use super::derive::{list, samples};
use super::entry::{Entry, EntryBody, Payload, TextParts};
use super::key::ALL_SAMPLES;
use crate::methods::{BASE58_TOO_LONG, BASE58_TOO_LONG_CODE, Query};
use crate::node::OFF_WORKER_BYTES;

/// Returns the payload of `entry` in the form of `query`, and true if the payload was derived from another
/// form.
pub(super) fn write_for(query: &Query, entry: &Entry) -> Result<(Payload, bool), DeriveError> {
    let (form, asked, made) = match (&entry.body, query) {
        (EntryBody::Account { result, value, asked, .. }, Query::Account(q)) => {
            (q.form, *asked, list::write_single(result, value, q.form))
        }
        (EntryBody::Accounts { context, values, asked }, Query::Accounts(q)) => {
            (q.form, *asked, list::write_list(context, values, q.form))
        }
        (EntryBody::Verbatim(Payload::Result(TextParts::One(all))), Query::Samples(q))
            if q.limit < ALL_SAMPLES =>
        {
            let head = samples::head(all, q.limit).ok_or(DeriveError::Broken)?;
            return Ok((Payload::Result(head.into()), true));
        }
        (EntryBody::Verbatim(payload), _) => return Ok((payload.clone(), entry.meta.derived)),
        _ => return Err(DeriveError::Broken),
    };
    // An answer that was fetched for the caller's own form is not reported as derived.
    let fetched_for_it = form.slice.is_none() && asked == Some(form.encoding);
    match made {
        Ok((body, differs)) => {
            Ok((Payload::Result(body), entry.meta.derived || (differs && !fetched_for_it)))
        }
        Err(DeriveError::Base58TooLong) => Ok((base58_too_long(), !fetched_for_it)),
        Err(DeriveError::Broken) => Err(DeriveError::Broken),
    }
}

/// Returns the error with which a node refuses long data in base58.
fn base58_too_long() -> Payload {
    let body = format!(r#"{{"code":{BASE58_TOO_LONG_CODE},"message":"{BASE58_TOO_LONG}"}}"#);
    Payload::Error { code: BASE58_TOO_LONG_CODE, body: Bytes::from(body) }
}

/// Returns the most bytes that the caller's form of `entry` adds to the stored ones.
pub(super) fn max_written_bytes(query: &Query, entry: &Entry) -> usize {
    match (&entry.body, query) {
        (EntryBody::Account { value, .. }, Query::Account(q)) => value.max_written_bytes(q.form),
        (EntryBody::Accounts { values, .. }, Query::Accounts(q)) => {
            values.iter().map(|value| value.max_written_bytes(q.form)).sum()
        }
        (EntryBody::Verbatim(payload), _) => payload.len(),
        _ => 0,
    }
}

/// Returns true if writing the caller's form of `entry` would block an async worker for too long.
pub(super) fn is_long_work(query: &Query, entry: &Entry) -> bool {
    entry.body.weight() > OFF_WORKER_BYTES && !is_stored_form(query, entry)
}

/// Returns true if the caller's form of `entry` is the one that is stored.
pub(super) fn is_stored_form(query: &Query, entry: &Entry) -> bool {
    match (&entry.body, query) {
        (EntryBody::Account { value, .. }, Query::Account(q)) => value.is_stored_in(q.form),
        (EntryBody::Accounts { values, .. }, Query::Accounts(q)) => {
            values.iter().all(|value| value.is_stored_in(q.form))
        }
        (EntryBody::Verbatim(_), Query::Samples(q)) => q.limit == ALL_SAMPLES,
        (EntryBody::Verbatim(_), _) => true,
        _ => false,
    }
}
