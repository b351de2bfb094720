//! The conversion of an entry into the form that a caller asked for, such as another encoding or a slice.

use bytes::Bytes;

use super::derive::account::DeriveError;
use super::derive::{list, samples};
use super::entry::{Entry, EntryBody, Payload, TextParts};
use super::key::ALL_SAMPLES;
use crate::methods::{BASE58_TOO_LONG, BASE58_TOO_LONG_CODE, Query};
use crate::node::OFF_WORKER_BYTES;

/// Returns the payload of `entry` in the form that `query` asks for. The second value is true if the answer
/// counts as derived, that is, made from an answer to another call.
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

/// Returns the most memory, in bytes, that `entry` takes once it is written in the form that `query` asks for.
/// The stored text does not count.
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

/// Returns true if writing `entry` in the form that `query` asks for would block an async worker for too
/// long.
pub(super) fn is_long_work(query: &Query, entry: &Entry) -> bool {
    entry.body.weight() > OFF_WORKER_BYTES && !is_stored_form(query, entry)
}

/// Returns true if `entry` is stored in the form that `query` asks for.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use tokio::time::Instant;

    use super::*;
    use crate::cache::class::Class;
    use crate::cache::entry::{CompressedForms, EntryMeta};
    use crate::jsonrpc::Params;
    use crate::methods::{AccountEncoding, AccountForm, Commitment, Method, Profile, Pubkey};
    use crate::node::Contextual;

    fn entry(body: EntryBody) -> Entry {
        let class = Class::Account(Commitment::Confirmed);
        let meta = EntryMeta { slot: 5, sent_at: Instant::now(), class, derived: false, carried: false };
        Entry { body, meta, stamp: None, compressed: CompressedForms::default() }
    }

    fn query(method: Method, address: &str, encoding: AccountEncoding) -> Query {
        let params = format!(r#"[{address},{{"encoding":"{}"}}]"#, encoding.as_str());
        Query::parse(method, &Params::Array(params.into()), Profile::Node).unwrap()
    }

    #[tokio::test]
    async fn reserved_memory_covers_the_written_text() {
        const WHOLE: AccountForm = AccountForm { encoding: AccountEncoding::Base64, slice: None };
        let address = Pubkey([2; 32]);
        // The data is longer than all the rest of an answer.
        let data = STANDARD.encode((0..=255).collect::<Vec<u8>>());
        let value = format!(
            r#"{{"data":["{data}","base64"],"executable":false,"lamports":1,"owner":"{address}","rentEpoch":0,"space":256}}"#
        );
        let account = Bytes::from(format!(r#"{{"context":{{"slot":5}},"value":{value}}}"#));
        let account = list::read_single(&account, WHOLE).unwrap();
        let values: Arc<[_]> = [account.value.clone(), account.value.clone()].into();
        let context = Bytes::from_static(br#"{"slot":5}"#);
        let accounts = entry(EntryBody::Accounts { context, values, asked: None });
        let account = entry(account.into_body(None));
        let written = |query: &Query, entry: &Entry| match write_for(query, entry).unwrap().0 {
            Payload::Result(text) => Contextual::split(&text.whole()).unwrap().value.len(),
            Payload::Error { .. } => panic!("every form can be written"),
        };
        // The stored form takes no memory of its own.
        for (encoding, is_written) in [(AccountEncoding::Base64, false), (AccountEncoding::Base64Zstd, true)]
        {
            let one = query(Method::GetAccountInfo, &format!(r#""{address}""#), encoding);
            let two = query(Method::GetMultipleAccounts, &format!(r#"["{address}","{address}"]"#), encoding);
            for (query, entry) in [(&one, &account), (&two, &accounts)] {
                assert_eq!(is_stored_form(query, entry), !is_written, "{encoding:?}");
                let (bound, bytes) = (max_written_bytes(query, entry), written(query, entry));
                assert_eq!(bound >= bytes, is_written, "{encoding:?}: {bound} for {bytes}");
            }
        }
        let votes = Query::parse(Method::GetVoteAccounts, &Params::None, Profile::Node).unwrap();
        let text = Bytes::from_static(b"{}");
        let verbatim = entry(EntryBody::Verbatim(Payload::Result(text.into())));
        assert_eq!(max_written_bytes(&votes, &verbatim), 2);
    }
}
