//! The texts of blocks. Each text contains the number of the upstream call that fetched it.

use super::*;

/// Returns the slot of the parent of the block at `slot`.
pub(super) fn parent_of(slot: Slot) -> Slot {
    slot - 1 - slot % 3
}

/// Returns a block of one legacy transaction, as a node writes it in its answer to the upstream call with the
/// number `mark`.
pub(super) fn block_text(query: &BlockQuery, mark: usize) -> String {
    let (slot, hash) = (query.slot, Pubkey([7; 32]));
    let parent = parent_of(slot);
    let head = format!(
        r#""blockHeight":{mark},"blockTime":{slot},"blockhash":"{hash}","parentSlot":{parent},"previousBlockhash":"{hash}""#
    );
    let rewards =
        if query.rewards { format!(r#","rewards":[{{"lamports":{mark}}}]"#) } else { String::new() };
    // The wire form has one signature, whose bytes depend on the call.
    let signature = [u8::try_from(mark % 251).unwrap() + 1; 64];
    let wire = BASE64.encode([&[1][..], &signature, &[1, 0, 0]].concat());
    let signature = bs58::encode(signature).into_string();
    let of_meta = if query.rewards { "[]" } else { "null" };
    let short = r#""err":null,"fee":5,"postBalances":[1],"postTokenBalances":[],"preBalances":[6],"preTokenBalances":[]"#;
    let meta = match query.details {
        BlockDetails::Accounts if query.rewards => {
            format!(r#"{{{short},"rewards":[],"status":{{"Ok":null}}}}"#)
        }
        BlockDetails::Accounts => format!(r#"{{{short},"status":{{"Ok":null}}}}"#),
        _ => format!(r#"{{{short},"logMessages":[],"rewards":{of_meta},"status":{{"Ok":null}}}}"#),
    };
    let transaction = match (query.details, query.encoding) {
        (BlockDetails::Accounts, _) => format!(r#"{{"accountKeys":[{mark}],"signatures":["{signature}"]}}"#),
        (_, BlockEncoding::Base64) => format!(r#"["{wire}","base64"]"#),
        (_, encoding) => format!(
            r#"{{"message":{{"accountKeys":[{mark}],"recentBlockhash":"{}"}},"signatures":["{signature}"]}}"#,
            encoding.as_str()
        ),
    };
    let version = if query.max_version.is_some() { r#","version":"legacy""# } else { "" };
    let body = match query.details {
        BlockDetails::None => String::new(),
        BlockDetails::Signatures => format!(r#","signatures":["{signature}"]"#),
        _ => format!(r#","transactions":[{{"meta":{meta},"transaction":{transaction}{version}}}]"#),
    };
    format!("{{{head}{rewards}{body}}}")
}

/// Returns true if a block that was fetched for the query `stored` serves `asked`, according to the table in
/// docs/caching.md.
pub(super) fn serves_shape(stored: &BlockQuery, asked: &BlockQuery) -> bool {
    use BlockDetails::{Accounts, Full, None as Nothing, Signatures};
    let form = |query: &BlockQuery| (query.details, query.encoding, query.max_version);
    let details = match (stored.details, asked.details) {
        _ if form(stored) == form(asked) => true,
        (Full, Nothing | Signatures) => true,
        (Full, Accounts) => {
            stored.encoding == BlockEncoding::JsonParsed && stored.max_version == asked.max_version
        }
        // The blocks here hold legacy transactions only.
        (Full, Full) => stored.encoding == asked.encoding && asked.max_version.is_none(),
        _ => false,
    };
    details && (stored.rewards || !asked.rewards)
}
