//! The texts of blocks. Each text contains the number of the upstream call that fetched it.

use super::*;
use crate::cache::derive::block::{BlockShape, reshape};

/// Returns the slot of the parent of the block at `slot`.
pub(super) fn parent_of(slot: Slot) -> Slot {
    slot - 1 - slot % 3
}

/// Returns a block of one legacy transaction, as a node writes it in its answer to the upstream call with the
/// number `mark`.
pub(super) fn block_text(query: &BlockQuery, mark: usize) -> Bytes {
    let (slot, hash, asked) = (query.slot, Pubkey([7; 32]), BlockShape::from(query));
    let parent = parent_of(slot);
    // The transaction has one signature, whose bytes depend on the call, one account and no instruction.
    let signature = [u8::try_from(mark % 251).unwrap() + 1; 64];
    let wire = [&[1][..], &signature, &[1, 0, 0, 1], &[3; 32], &[4; 32], &[0]].concat();
    let (loaded, transaction) = if query.encoding == BlockEncoding::JsonParsed {
        ("", format!(r#"{{"message":{{}},"signatures":[{mark}]}}"#))
    } else {
        let loaded = r#""loadedAddresses":{"readonly":[],"writable":[]},"#;
        (loaded, format!(r#"["{}","base64"]"#, BASE64.encode(wire)))
    };
    let meta = format!(
        r#"{{"costUnits":1,"err":null,"fee":5,{loaded}"postBalances":[1],"postTokenBalances":[],"preBalances":[6],"preTokenBalances":[],"rewards":[],"status":{{"Ok":null}}}}"#
    );
    let source = format!(
        r#"{{"blockHeight":{mark},"blockTime":{slot},"blockhash":"{hash}","parentSlot":{parent},"previousBlockhash":"{hash}","rewards":[{{"lamports":{mark}}}],"transactions":[{{"meta":{meta},"transaction":{transaction},"version":"legacy"}}]}}"#
    );
    if asked.source().is_none() {
        return source.into();
    }
    match reshape(&source.into(), asked, None) {
        Some(Payload::Result(text)) => text.whole(),
        made => panic!("{made:?}"),
    }
}

/// Returns true if a block that was fetched for the query `stored` serves `asked`, according to the table in
/// docs/caching.md.
pub(super) fn serves_shape(stored: &BlockQuery, asked: &BlockQuery) -> bool {
    let (stored, asked) = (BlockShape::from(stored), BlockShape::from(asked));
    stored == asked || asked.source() == Some(stored)
}
