//! Single transactions of a full block: where they are in its text, and the answer to getTransaction that is made of one.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::super::super::entry::Payload;
use super::super::account::ByteSpan;
use super::super::object::{JsonPart, ParseDepth};
use super::{BlockShape, OwnHeight, TRIM, WIRE, first_signature, rewrite, unsupported};
use crate::methods::{BlockEncoding, Signature, Slot};
use crate::node::shape::member;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionPlace {
    pub slot: Slot,
    /// The span of the transaction within the block.
    pub span: ByteSpan,
    /// The position among the transactions of the block.
    pub index: u32,
}

pub struct SingleTransaction {
    /// The first signature of the transaction.
    pub signature: Signature,
    pub asked: BlockShape,
    pub place: TransactionPlace,
}

/// Returns the signatures and places of the transactions of `block`, a full block in base64 or jsonParsed at `slot`.
/// Those that are not in the format that nodes write are left out.
pub fn places(block: &Bytes, slot: Slot, encoding: BlockEncoding) -> Vec<(Signature, TransactionPlace)> {
    let texts: Vec<&RawValue> = member(block, "transactions").unwrap_or_default();
    let place = |(index, text): (usize, &RawValue)| {
        let text = block.slice_ref(text.get().as_bytes());
        let from = text.as_ptr() as usize - block.as_ptr() as usize;
        let span = (u32::try_from(from).ok()?, u32::try_from(from + text.len()).ok()?);
        let signature = first_signature(&mut JsonPart::read(&text, depth(encoding))?)?;
        Some((signature, TransactionPlace { slot, span, index: u32::try_from(index).ok()? }))
    };
    texts.into_iter().enumerate().filter_map(place).collect()
}

const fn depth(encoding: BlockEncoding) -> ParseDepth {
    if matches!(encoding, BlockEncoding::JsonParsed) { TRIM } else { WIRE }
}

impl SingleTransaction {
    /// Returns the answer to getTransaction, made from `block`. It is an error if the caller does not accept the version.
    /// `None` if another transaction is at the place, because the block is of another fork than the one that was
    /// noted, and if the transaction has no `meta` or is not in the format that nodes write. `of_nodes` is as for
    /// [`super::reshape`].
    pub fn make(&self, block: &Bytes, of_nodes: Option<OwnHeight>) -> Option<Payload> {
        let TransactionPlace { slot, span: (from, to), index } = self.place;
        // The first blocks of a cluster may have no time.
        let time = member::<&RawValue>(block, "blockTime").map_or("null", RawValue::get);
        serde_json::from_str::<Option<i64>>(time).ok()?;
        let text = block.get(from as usize..to as usize).map(|text| block.slice_ref(text))?;
        let mut transaction = JsonPart::read(&text, depth(self.asked.encoding))?;
        if first_signature(&mut transaction)? != self.signature {
            return None;
        }
        let numbers = [Cow::Borrowed(time), Cow::Owned(slot.to_string()), Cow::Owned(index.to_string())];
        let numbers = NUMBERS.into_iter().zip(numbers.map(JsonPart::Text)).collect();
        finish(transaction, numbers, self.asked, self.asked.height(block, of_nodes))
    }
}

const NUMBERS: [&str; 3] = ["blockTime", "slot", "transactionIndex"];

/// Returns the answer to getTransaction as blocks of the shape `asked` write transactions, made from `source`, the answer as
/// blocks of its source write them. The rest is as for [`SingleTransaction::make`].
pub fn rewritten(source: &Bytes, asked: BlockShape, of_nodes: Option<OwnHeight>) -> Option<Payload> {
    let mut transaction = JsonPart::read(source, depth(asked.encoding))?;
    let members = transaction.as_object()?;
    let numbers = NUMBERS.iter().filter_map(|name| Some((*name, members.remove(name)?))).collect();
    finish(transaction, numbers, asked, asked.height(source, of_nodes))
}

/// Rewrites a transaction of a block in the shape `asked`, and inserts `numbers`.
fn finish<'a>(
    mut transaction: JsonPart<'a>,
    numbers: Vec<(&'static str, JsonPart<'a>)>,
    asked: BlockShape,
    height: Option<OwnHeight>,
) -> Option<Payload> {
    let members = transaction.as_object()?;
    members.get("meta")?.as_object()?;
    if let Err(version) = rewrite(members, asked, height)? {
        return Some(unsupported(version));
    }
    for (name, number) in numbers {
        members.insert(name, number);
    }
    Some(Payload::Result(transaction.write().into()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::super::super::entry::TextParts;
    use super::super::super::tests::{RecordedCall, load};
    use super::*;
    use crate::methods::{BlockDetails, Query, TransactionQuery};
    use crate::node::NodeReply;

    const BASE64: BlockEncoding = BlockEncoding::Base64;

    /// Returns the recorded block in this encoding from the group of `call`, and the places of its transactions.
    fn block_of(
        recorded: &[RecordedCall],
        call: &RecordedCall,
        encoding: BlockEncoding,
    ) -> (Bytes, Vec<(Signature, TransactionPlace)>) {
        let is_it = |other: &&RecordedCall| {
            other.group == call.group
                && matches!(&other.query, Some(Query::Block(block)) if block.encoding == encoding)
        };
        let found = recorded.iter().find(is_it).unwrap();
        let Some(Query::Block(query)) = &found.query else { panic!("no block") };
        let block = found.result().unwrap().clone();
        let places = places(&block, query.slot, encoding);
        (block, places)
    }

    fn wanted(
        signature: Signature,
        (encoding, max_version): (BlockEncoding, Option<u8>),
        place: TransactionPlace,
    ) -> SingleTransaction {
        let asked = BlockShape { details: BlockDetails::Full, encoding, rewards: true, max_version };
        SingleTransaction { signature, asked, place }
    }

    #[test]
    fn recorded_transactions_derive_from_their_block() {
        let recorded = load("getTransaction");
        let mut proved: BTreeMap<&str, usize> = BTreeMap::new();
        for call in &recorded {
            let Some(Query::Transaction(TransactionQuery { signature, encoding, max_version, .. })) =
                call.query
            else {
                continue;
            };
            let is_parsed = encoding == BlockEncoding::JsonParsed;
            let (block, places) = block_of(&recorded, call, if is_parsed { encoding } else { BASE64 });
            let (_, place) = places.into_iter().find(|(noted, _)| *noted == signature).unwrap();
            let (expected, what) = match &call.reply {
                NodeReply::Result(text) => (Payload::Result(text.clone().into()), encoding.as_str()),
                NodeReply::Error { code, body } => {
                    (Payload::Error { code: *code, body: body.clone() }, "a version that is not supported")
                }
            };
            let made = wanted(signature, (encoding, max_version), place).make(&block, None);
            assert!(made.as_ref() == Some(&expected), "{}: {made:?} instead of {expected:?}", call.name);
            *proved.entry(what).or_default() += 1;
        }
        // The expected numbers are exact, so the test fails if the derivations of a row are no longer tested.
        let expected = [
            ("a version that is not supported", 30),
            ("base58", 56),
            ("base64", 56),
            ("binary", 56),
            ("json", 56),
            ("jsonParsed", 56),
        ];
        assert_eq!(proved.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn recorded_transactions_are_written_from_one() {
        let recorded = load("getTransaction");
        let asked = |call: &RecordedCall| match &call.query {
            Some(Query::Transaction(query)) => Some((query.signature, BlockShape::of_transactions(query))),
            _ => None,
        };
        let (mut results, mut refusals) = (0, 0);
        for call in &recorded {
            let Some((signature, shape)) = asked(call) else { continue };
            let Some(source) = shape.source() else { continue };
            let is_it = |other: &&RecordedCall| asked(other) == Some((signature, source));
            let Some(source) = recorded.iter().find(is_it) else { continue };
            let made = rewritten(source.result().unwrap(), shape, None);
            let expected = match &call.reply {
                NodeReply::Result(text) => Payload::Result(text.clone().into()),
                NodeReply::Error { code, body } => Payload::Error { code: *code, body: body.clone() },
            };
            assert!(made.as_ref() == Some(&expected), "{}: {made:?} instead of {expected:?}", call.name);
            *if matches!(expected, Payload::Result(_)) { &mut results } else { &mut refusals } += 1;
        }
        assert!(results > 150 && refusals > 5, "{results} results, {refusals} refusals");
    }

    #[test]
    fn other_transactions_and_incomplete_ones_make_no_answer() {
        let recorded = load("getTransaction");
        let mut blocks = recorded.iter().map(|call| block_of(&recorded, call, BASE64));
        let (block, places) = blocks.find(|(_, places)| places.len() > 1).unwrap();
        let [(first, place), (second, other), ..] = places[..] else { panic!("one transaction") };
        let make =
            |signature, place, block: &Bytes| wanted(signature, (BASE64, Some(0)), place).make(block, None);
        assert!(make(first, place, &block).is_some() && make(second, other, &block).is_some());
        // A hash may be that of another transaction, too.
        assert_eq!(make(second, place, &block), None);
        // The block at the slot may have become that of another fork, of any length.
        let shifted = |by: u32| TransactionPlace { span: (place.span.0 + by, place.span.1 + by), ..place };
        for by in [1, place.span.1, u32::try_from(block.len()).unwrap()] {
            assert_eq!(make(first, shifted(by), &block), None, "{by}");
        }
        let with = |old: &str, new: &str| {
            let text = str::from_utf8(&block).unwrap();
            assert!(text.contains(old), "{old}");
            let block = Bytes::from(text.replacen(old, new, 1));
            let places = super::places(&block, place.slot, BASE64);
            make(first, places.into_iter().find(|(signature, _)| *signature == first)?.1, &block)
        };
        let (meta, _) = str::from_utf8(&block).unwrap().split_once(r#","transaction":["#).unwrap();
        let (_, meta) = meta.split_once(r#"{"meta":"#).unwrap();
        assert!(with(r#""blockHeight":"#, r#""unknown":1,"blockHeight":"#).is_some());
        for time in [r#""blockTime":null,"of":"#, r#""of":"#] {
            let Some(Payload::Result(found)) = with(r#""blockTime":"#, time) else {
                panic!("nothing with {time}")
            };
            let Some(Payload::Result(expected)) = make(first, place, &block) else { panic!("nothing") };
            let of = |text: TextParts| serde_json::from_slice::<serde_json::Value>(&text.whole()).unwrap();
            let (found, mut expected) = (of(found), of(expected));
            expected["blockTime"] = serde_json::Value::Null;
            assert_eq!(found, expected, "{time}");
        }
        for (old, new) in [
            (r#""blockTime":"#, r#""blockTime":"","of":"#),
            (r#""blockTime":"#, r#""blockTime":1.5,"of":"#),
            (meta, "null"),
            (r#""status":"#, r#""unknown":1,"status":"#),
            (r#"{"meta":"#, r#"{"unknown":1,"meta":"#),
        ] {
            assert_eq!(with(old, new), None, "{new}");
        }
    }
}
