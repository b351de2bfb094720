//! An entry as the store holds it: a short answer in one piece of memory with its key and all that is known of it, a long
//! one behind a pointer.

use std::sync::Arc;

use bytes::Bytes;
use triomphe::ThinArc;

use super::super::derive::account::{Layout, Value};
use super::super::entry::{Body, CodedForms, Entry, Kept, Payload, Place, SHORT_BYTES, Stamp};
use super::super::key::Key;
use crate::methods::{AccountEncoding, AccountForm, Slot};

/// A held entry.
#[derive(Debug, Clone)]
pub struct Held(ThinArc<Head, u8>);

/// What is known of an entry, and what stands before the text of a short one.
#[derive(Debug)]
struct Head {
    key: Key,
    /// The number of its placing.
    number: u64,
    stamp: Stamp,
    what: What,
}

#[derive(Debug)]
enum What {
    /// A result as it was said, short.
    Result,
    /// An error of this code, short.
    Error(i32),
    /// An account's answer, short.
    Account { context: Place, value: Place, layout: Layout, asked: Option<AccountEncoding> },
    /// Anything else.
    Long(Arc<Entry>),
}

impl Held {
    /// `entry` under `key`, by the number of its placing.
    pub(super) fn new(key: Key, entry: &Arc<Entry>, number: u64) -> Self {
        let (what, text): (_, &[u8]) = match short(&entry.kept) {
            Some((what, text)) => (what, text),
            None => (What::Long(Arc::clone(entry)), &[]),
        };
        Self(ThinArc::from_header_and_slice(Head { key, number, stamp: entry.stamp, what }, text))
    }

    /// What it stands for.
    pub fn stamp(&self) -> &Stamp {
        &self.head().stamp
    }

    /// The slot that it stands for.
    pub fn slot(&self) -> Slot {
        self.stamp().slot
    }

    /// All of it; a short one is copied.
    pub fn entry(&self) -> Arc<Entry> {
        let text = || Bytes::copy_from_slice(self.text());
        let part = |text: &Bytes, (from, to): Place| text.slice(from as usize..to as usize);
        let kept = match &self.head().what {
            What::Long(entry) => return Arc::clone(entry),
            What::Result => Kept::Said(Payload::Result(Body::One(text()))),
            What::Error(code) => Kept::Said(Payload::Error { code: *code, body: text() }),
            What::Account { context, value, layout, asked } => {
                let result = text();
                let value = Value::laid_out(part(&result, *value), *layout);
                Kept::Account { result, context: *context, value, asked: *asked }
            }
        };
        Arc::new(Entry { kept, stamp: *self.stamp(), coded: CodedForms::default() })
    }

    /// The text of a short answer that is no account's, or of one in `form` if it is kept so.
    pub fn short(&self, form: Option<AccountForm>) -> Option<Payload> {
        let text = || Bytes::copy_from_slice(self.text());
        match (&self.head().what, form) {
            (What::Result, _) => Some(Payload::Result(Body::One(text()))),
            (What::Error(code), _) => Some(Payload::Error { code: *code, body: text() }),
            (What::Account { layout, .. }, Some(form)) if layout.is_kept_in(form) => {
                Some(Payload::Result(Body::One(text())))
            }
            (What::Account { .. } | What::Long(_), _) => None,
        }
    }

    pub(super) fn key(&self) -> &Key {
        &self.head().key
    }

    pub(super) fn number(&self) -> u64 {
        self.head().number
    }

    /// Whether it is this entry itself, which a short one never is.
    pub(super) fn is(&self, other: &Arc<Entry>) -> bool {
        matches!(&self.head().what, What::Long(entry) if Arc::ptr_eq(entry, other))
    }

    fn head(&self) -> &Head {
        &self.0.header.header
    }

    fn text(&self) -> &[u8] {
        &self.0.slice
    }
}

/// Whether it is held in one piece with all that is known of it.
pub(super) fn is_short(kept: &Kept) -> bool {
    short(kept).is_some()
}

/// The text of what is short enough, and what it is.
fn short(kept: &Kept) -> Option<(What, &[u8])> {
    let (what, text) = match kept {
        Kept::Said(Payload::Result(Body::One(text))) => (What::Result, text),
        Kept::Said(Payload::Error { code, body }) => (What::Error(*code), body),
        Kept::Account { result, context, value, asked } => {
            let what = What::Account {
                context: *context,
                value: value.place_in(result)?,
                layout: value.layout(),
                asked: *asked,
            };
            (what, result)
        }
        Kept::Said(Payload::Result(Body::Many(_))) | Kept::Accounts { .. } => return None,
    };
    (text.len() <= SHORT_BYTES).then_some((what, text))
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::super::super::derive::list::{read_list, read_single, write_single};
    use super::super::super::derive::recorded::load;
    use super::super::super::freshness::Class;
    use super::*;
    use crate::methods::{Commitment, DataSlice, Query};

    fn held(kept: Kept) -> (Arc<Entry>, Held) {
        let class = Class::Account(Commitment::Confirmed);
        let stamp = Stamp { slot: 9, sent_at: Instant::now(), class, derived: true };
        let entry = Arc::new(Entry { kept, stamp, coded: CodedForms::default() });
        let held = Held::new(Key::Samples, &entry, 7);
        assert_eq!((held.key(), held.number(), held.slot()), (&Key::Samples, 7, 9));
        (entry, held)
    }

    fn forms() -> impl Iterator<Item = AccountForm> {
        use AccountEncoding::{Base58, Base64, Base64Zstd, Binary, JsonParsed};
        let slices =
            [None, Some(DataSlice { offset: 0, length: 4 }), Some(DataSlice { offset: 1, length: 129 })];
        [Base58, Base64, Base64Zstd, Binary, JsonParsed]
            .into_iter()
            .flat_map(move |encoding| slices.map(|slice| AccountForm { encoding, slice }))
    }

    #[test]
    fn an_account_is_in_every_form_what_it_was() {
        let (mut short, mut long) = (0, 0);
        for exchange in load("getAccountInfo") {
            let (Some(Query::Account(query)), Some(result)) = (&exchange.query, exchange.result()) else {
                continue;
            };
            let Some(single) = read_single(result, query.form) else { continue };
            let (text, layout) = (single.result.clone(), single.value.layout());
            let (entry, held) = held(single.kept(Some(query.form.encoding)));
            let is_short = text.len() <= SHORT_BYTES;
            (short, long) = (short + usize::from(is_short), long + usize::from(!is_short));
            let again = held.entry();
            assert_eq!(held.is(&again), !is_short, "{}", exchange.name);
            let written = |entry: &Entry, form| match &entry.kept {
                Kept::Account { result, value, context: (from, to), asked } => {
                    let context = result.slice(*from as usize..*to as usize);
                    let body = write_single(result, value, form);
                    (context, *asked, body.map(|(body, differs)| (body.whole(), differs)))
                }
                other => panic!("{other:?}"),
            };
            for form in forms() {
                assert_eq!(written(&again, form), written(&entry, form), "{} {form:?}", exchange.name);
                let as_it_is = Some(Payload::Result(Body::One(text.clone())));
                let expected = as_it_is.filter(|_| is_short && layout.is_kept_in(form));
                assert_eq!(held.short(Some(form)), expected, "{} {form:?}", exchange.name);
            }
            assert!(held.short(None).is_none());
        }
        assert!(short > 20 && long > 5, "{short} short, {long} long");
    }

    #[test]
    fn what_was_said_is_said_again() {
        let text = |bytes: usize| Bytes::from(vec![b'1'; bytes]);
        for bytes in [0, 1, SHORT_BYTES, SHORT_BYTES + 1] {
            let error = Payload::Error { code: -32009, body: text(bytes) };
            for payload in [Payload::Result(Body::One(text(bytes))), error] {
                let (entry, held) = held(Kept::Said(payload.clone()));
                let Kept::Said(again) = &held.entry().kept else { panic!("not said") };
                assert_eq!(again, &payload);
                let is_short = bytes <= SHORT_BYTES;
                assert_eq!((held.short(None), held.is(&entry)), (is_short.then_some(payload), !is_short));
            }
        }
    }

    #[test]
    fn a_list_is_never_short() {
        let list = Bytes::from_static(br#"{"context":{"slot":9},"value":[null,null]}"#);
        let form = AccountForm { encoding: AccountEncoding::Base64, slice: None };
        let (context, singles) = read_list(&list, form, 2).unwrap();
        let values = singles.into_iter().map(|single| single.value).collect();
        let (entry, held) = held(Kept::Accounts { context, values, asked: None });
        assert!(held.is(&entry) && Arc::ptr_eq(&held.entry(), &entry) && held.short(None).is_none());
    }
}
