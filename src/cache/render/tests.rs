//! Tests of writing and compressing entries.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::time::Instant;

use super::*;
use crate::cache::entry::{Class, EntryMeta};
use crate::jsonrpc::Params;
use crate::methods::{AccountEncoding, AccountForm, Commitment, Method, Profile, Pubkey};
use crate::node::Contextual;

fn entry(body: EntryBody) -> Entry {
    let class = Class::Account(Commitment::Confirmed);
    let meta =
        EntryMeta { slot: 5, sent_at: Instant::now(), class, derived: false, carried: false, node: None };
    Entry::new(body, meta, None)
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
    for (encoding, is_written) in [(AccountEncoding::Base64, false), (AccountEncoding::Base64Zstd, true)] {
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

#[tokio::test]
async fn text_without_a_permit_is_not_compressed() {
    let metrics = Metrics::new();
    let compressor = Compressor::new(1, Arc::clone(&metrics));
    let (go, held) = std::sync::mpsc::channel::<()>();
    let long = COMPRESS_OFF_WORKER_BYTES + 1;
    let first = compressor.compress(long, move || held.recv().ok());
    let mut first = std::pin::pin!(first);
    assert!(futures_util::poll!(&mut first).is_pending());
    assert_eq!(compressor.compress(long, || Some(2)).await, None);
    assert_eq!(
        compressor.compress(COMPRESS_OFF_WORKER_BYTES, || Some(3)).await,
        Some(3),
        "short work is done at once"
    );
    go.send(()).unwrap();
    assert_eq!(first.await, Some(()));
    assert_eq!(compressor.compress(long, || Some(4)).await, Some(4));
    let counted = [Compression::Done, Compression::Skipped].map(|what| metrics.compressions.at(what).get());
    assert_eq!(counted, [3, 1]);
}
