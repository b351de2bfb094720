//! Tests of lists that are put together from single answers, and of lists that are split into single answers. The
//! texts are written for the test, or recorded from nodes.

use tokio::time::Instant;

use super::super::super::entry::{Class, CompressedForms};
use super::super::super::forms;
use super::super::account::AccountKind;
use super::super::tests::{RecordedCall, load};
use super::*;
use crate::fair::TakenOnce;
use crate::methods::{AccountEncoding, AccountForm as Form, BASE58_TOO_LONG, Commitment, Query};
use crate::node::NodeReply;

const FORM: AccountForm = AccountForm { encoding: AccountEncoding::Base64, slice: None };
const LIST: &str = r#"{"context":{"apiVersion":"4.0.0","slot":9},"value":[{"data":["AQ==","base64"],"owner":"x","space":1},null]}"#;

#[test]
fn results_are_shown_at_another_slot() {
    let balance = |slot: u64| {
        Bytes::from(format!(
            r#"{{"context":{{"apiVersion":"4.0.0","slot":{slot}}},"value":{{"amount":"9"}}}}"#
        ))
    };
    assert_eq!(result_at(&balance(9), 1_234), Some(balance(1_234)));
    for text in ["null", r#"{"value":{"amount":"9"}}"#, r#"{"context":{},"value":{"amount":"9"}}"#] {
        assert_eq!(result_at(&Bytes::from_static(text.as_bytes()), 1_234), None, "{text}");
    }
}

fn entry(single: SingleAccount, slot: u64) -> Arc<Entry> {
    let body = single.into_body(None);
    let class = Class::Account(Commitment::Finalized);
    Arc::new(Entry {
        body,
        meta: EntryMeta { slot, sent_at: Instant::now(), class, derived: false, carried: false, node: None },
        stamp: None,
        compressed: CompressedForms::default(),
        unsent: TakenOnce::default(),
    })
}

fn text(list: &Entry) -> String {
    let EntryBody::Accounts { context, values, .. } = &list.body else { panic!("no list") };
    String::from_utf8(write_list(context, values, FORM).unwrap().0.whole().to_vec()).unwrap()
}

#[tokio::test]
async fn splits_lists_and_joins_singles() {
    let (context, singles) = read_list(&Bytes::from_static(LIST.as_bytes()), FORM, 2).unwrap();
    assert_eq!(context, r#"{"apiVersion":"4.0.0","slot":9}"#);
    assert_eq!(
        singles.iter().map(|single| (&single.result[..], single.facts.space())).collect::<Vec<_>>(),
        [
            (
                &br#"{"context":{"apiVersion":"4.0.0","slot":9},"value":{"data":["AQ==","base64"],"owner":"x","space":1}}"#[..],
                Some(1)
            ),
            (&br#"{"context":{"apiVersion":"4.0.0","slot":9},"value":null}"#[..], None),
        ]
    );
    let stored: Vec<_> = singles.into_iter().map(|single| entry(single, 9)).collect();
    let list = joined(&stored).unwrap();
    assert_eq!((text(&list).as_str(), list.meta.slot), (LIST, 9));
    let later = Bytes::from_static(br#"{"context":{"slot":10},"value":null}"#);
    let later = entry(read_single(&later, FORM).unwrap(), 10);
    assert!(joined(&[later, Arc::clone(&stored[0])]).is_none(), "their slots differ");
    assert!(joined(&[]).is_none(), "nothing to take a context from");
}

#[test]
fn lists_of_wrong_length_are_refused() {
    let list = Bytes::from_static(LIST.as_bytes());
    assert!(read_list(&list, FORM, 1).is_none());
    assert!(read_list(&Bytes::from_static(b"null"), FORM, 0).is_none());
    let (_, none) = read_list(&Bytes::from_static(br#"{"context":{"slot":9},"value":[]}"#), FORM, 0).unwrap();
    assert!(none.is_empty());
}

/// Returns three values about a recorded call: its form; the keys of its accounts; and true if it asks for a list.
/// `None` if the call asks for no account data.
fn asked(exchange: &RecordedCall) -> Option<(Form, Vec<crate::methods::Pubkey>, bool)> {
    match exchange.query.as_ref()? {
        Query::Account(q) => Some((q.form, vec![q.pubkey], false)),
        Query::Accounts(q) => Some((q.form, q.pubkeys.to_vec(), true)),
        _ => None,
    }
}

/// Returns the text with zstd-packed data unpacked, because encoders may pack the same data differently.
fn unpacked(text: &str) -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;
    let mut out = String::new();
    let mut rest = text;
    while let Some(end) = rest.find("\",\"base64+zstd\"]") {
        let start = rest[..end].rfind('"').unwrap() + 1;
        let packed = BASE64.decode(&rest[start..end]).unwrap();
        out.push_str(&rest[..start]);
        out.push_str(&BASE64.encode(zstd::stream::decode_all(&packed[..]).unwrap()));
        out.push_str("\",\"unpacked\"]");
        rest = &rest[end + "\",\"base64+zstd\"]".len()..];
    }
    out + rest
}

/// Derives the result in the form `wanted` from the result `stored`, which has the form `form`. `keys` is the
/// number of accounts.
fn made(stored: &Bytes, form: Form, keys: usize, is_list: bool, wanted: Form) -> Result<String, DeriveError> {
    let (body, _) = if is_list {
        let (context, singles) = read_list(stored, form, keys).unwrap();
        let values: Vec<AccountValue> = singles.into_iter().map(|single| single.value).collect();
        write_list(&context, &values, wanted)?
    } else {
        let SingleAccount { result, value, .. } = read_single(stored, form).unwrap();
        write_single(&result, &value, wanted)?
    };
    Ok(String::from_utf8(body.whole().to_vec()).unwrap())
}

/// Checks that each recorded answer can be derived from every other answer about the same accounts at the same
/// slot. Answers whose forms do not allow it are left out.
#[test]
fn recorded_answers_derive_from_each_other() {
    let (mut proved, mut refused, mut packed) = (0, 0, 0);
    for file in ["getAccountInfo", "getAccountInfo-large", "getMultipleAccounts", "getTokenAccountBalance"] {
        let exchanges = load(file);
        for one in exchanges.iter().filter(|one| one.group.is_some()) {
            let (Some((form, keys, is_list)), Some(stored)) = (asked(one), one.result()) else { continue };
            for other in exchanges.iter().filter(|other| other.group == one.group) {
                let Some((wanted, other_keys, other_is_list)) = asked(other) else { continue };
                let holds = form != wanted && forms::serving_forms(wanted).any(|source| source == form);
                if !holds || (&keys, is_list) != (&other_keys, other_is_list) {
                    continue;
                }
                let made = made(stored, form, keys.len(), is_list, wanted);
                match &other.reply {
                    NodeReply::Result(result) => {
                        let said = std::str::from_utf8(result).unwrap();
                        let made = made.unwrap_or_else(|unmade| panic!("{}: {unmade:?}", other.name));
                        if wanted.encoding == AccountEncoding::Base64Zstd {
                            packed += 1;
                            assert_eq!(unpacked(&made), unpacked(said), "{} from {}", other.name, one.name);
                        } else {
                            assert_eq!(made, said, "{} from {}", other.name, one.name);
                        }
                        proved += 1;
                    }
                    NodeReply::Error { body, .. } => {
                        assert_eq!(made, Err(DeriveError::Base58TooLong), "{} from {}", other.name, one.name);
                        assert!(std::str::from_utf8(body).unwrap().contains(BASE58_TOO_LONG));
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(
        proved > 500 && refused > 100 && packed > 100,
        "{proved} proved, {refused} refused, {packed} packed"
    );
}

/// Checks that a list assembled from recorded single answers equals the recorded list.
#[test]
fn recorded_lists_match_recorded_singles() {
    let mut proved = 0;
    let exchanges: Vec<_> = load("getMultipleAccounts").into_iter().chain(load("getAccountInfo")).collect();
    for list in exchanges.iter().filter(|list| list.group.is_some()) {
        let (Some((form, keys, true)), Some(said)) = (asked(list), list.result()) else { continue };
        let single = |key: &crate::methods::Pubkey| {
            let same = |one: &&RecordedCall| {
                one.group == list.group
                    && asked(one) == Some((form, vec![*key], false))
                    && one.result().is_some()
            };
            let one = exchanges.iter().find(same)?;
            let single = read_single(one.result()?, form)?;
            (single.value.kind() == AccountKind::from(form) || single.value.text() == "null")
                .then(|| entry(single, 1))
        };
        let Some(singles) = keys.iter().map(single).collect::<Option<Vec<_>>>() else { continue };
        let Some(made) = joined(&singles) else { continue };
        let EntryBody::Accounts { context, values, .. } = &made.body else { panic!("no list") };
        let (body, _) = write_list(context, values, form).unwrap();
        assert_eq!(body.whole(), said, "{}", list.name);
        proved += 1;
    }
    assert!(proved >= 9, "{proved} lists were proved");
}
