//! Single transactions of a full block: where they are in its text, and the answer to getTransaction that is made of one.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::super::super::entry::Payload;
use super::super::account::ByteSpan;
use super::super::object::{JsonPart, ParseDepth};
use super::{BlockShape, TRIM, WIRE, first_signature, rewrite, unsupported};
use crate::methods::{BlockEncoding, Signature, Slot};
use crate::node::shape::member;

/// The place of a transaction in the text of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionPlace {
    /// The slot of the block.
    pub slot: Slot,
    span: ByteSpan,
    /// The position among the transactions of the block.
    index: u32,
}

/// A transaction that getTransaction asks for, and where it may be.
pub struct SingleTransaction {
    /// The first signature of the transaction.
    pub signature: Signature,
    /// The shape of a block that writes its transactions as the caller wants this one.
    pub asked: BlockShape,
    /// The place where the block may have the transaction.
    pub place: TransactionPlace,
}

/// Returns the signatures and places of the transactions of `block`, a full block in base64 or jsonParsed at `slot`.
/// None if the block is not in the format that nodes write.
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

/// Returns the depth to which a transaction is parsed.
const fn depth(encoding: BlockEncoding) -> ParseDepth {
    if matches!(encoding, BlockEncoding::JsonParsed) { TRIM } else { WIRE }
}

impl SingleTransaction {
    /// Returns the answer to getTransaction, made from `block`. It is an error if the caller does not accept the version.
    /// `None` if another transaction is at the place, because the block is of another fork than the one that was
    /// noted, and if the transaction has no `meta` or is not in the format that nodes write.
    pub fn make(&self, block: &Bytes) -> Option<Payload> {
        let TransactionPlace { slot, span: (from, to), index } = self.place;
        let time: i64 = member(block, "blockTime")?;
        let text = block.get(from as usize..to as usize).map(|text| block.slice_ref(text))?;
        let mut transaction = JsonPart::read(&text, depth(self.asked.encoding))?;
        if first_signature(&mut transaction)? != self.signature {
            return None;
        }
        let members = transaction.as_object()?;
        members.get("meta")?.as_object()?;
        if let Err(version) = rewrite(members, self.asked)? {
            return Some(unsupported(version));
        }
        let numbers = [("blockTime", time.to_string()), ("slot", slot.to_string()), ("transactionIndex", index.to_string())];
        for (name, number) in numbers {
            members.insert(name, JsonPart::Text(Cow::Owned(number)));
        }
        Some(Payload::Result(transaction.write().into()))
    }
}
