use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::Index;
use serde::de::IgnoredAny;

use super::super::tests::{RecordedCall, load, pairs};
use super::*;
use crate::methods::Query;
use crate::node::NodeReply;

/// The error code with which a node refuses a block that has a transaction version unknown to the caller.
const UNSUPPORTED_VERSION: i32 = -32015;

const FULL: BlockShape = BlockShape {
    details: BlockDetails::Full,
    encoding: BlockEncoding::JsonParsed,
    rewards: true,
    max_version: Some(0),
};
const JSON: BlockShape = BlockShape { encoding: BlockEncoding::Json, ..FULL };
const BASE64: BlockShape = BlockShape { encoding: BlockEncoding::Base64, ..FULL };
const ACCOUNTS: BlockShape =
    BlockShape { details: BlockDetails::Accounts, encoding: BlockEncoding::Json, ..FULL };
const SIGNATURES: BlockShape =
    BlockShape { details: BlockDetails::Signatures, max_version: None, ..ACCOUNTS };
const NONE: BlockShape = BlockShape { details: BlockDetails::None, ..SIGNATURES };

fn recorded() -> Vec<RecordedCall> {
    // Each group of recorded blocks is named after their slot. The file `epochs` was recorded on another cluster,
    // so its groups get other names.
    let epochs = load("epochs").into_iter().map(|mut exchange| {
        exchange.group = exchange.group.map(|group| format!("{group} of the epochs"));
        exchange
    });
    load("getBlock").into_iter().chain(load("getBlock-large")).chain(epochs).collect()
}

fn shape(exchange: &RecordedCall) -> Option<BlockShape> {
    match &exchange.query {
        Some(Query::Block(query)) => Some(BlockShape::from(query)),
        _ => None,
    }
}

fn form(shape: BlockShape) -> String {
    match shape.details {
        BlockDetails::Full => shape.encoding.as_str().to_owned(),
        details => details.as_str().to_owned(),
    }
}

#[test]
fn recorded_shapes_derive_from_each_other() {
    let recorded = recorded();
    let mut proved: BTreeMap<String, usize> = BTreeMap::new();
    let mut count = |what: String| *proved.entry(what).or_default() += 1;
    for (from, to) in pairs(&recorded) {
        let (Some(stored), Some(asked), Some(result)) = (shape(from), shape(to), from.result()) else {
            continue;
        };
        if !derivable(stored, asked) {
            assert_eq!(reshape(result, stored, asked), None, "{} from {}", to.name, from.name);
            continue;
        }
        let made = reshape(result, stored, asked);
        match &to.reply {
            NodeReply::Result(expected) => {
                assert!(made.as_ref() == Some(expected), "{} from {}", to.name, from.name);
                if stored == asked {
                    count("the same".to_owned());
                    continue;
                }
                assert!(
                    sources(asked).any(|source| source == stored),
                    "{stored:?} is no source of {asked:?}"
                );
                count(format!("{} from {}", form(asked), form(stored)));
                if stored.rewards && !asked.rewards {
                    count(format!("rewards from {}", form(stored)));
                }
                if stored.max_version.is_some()
                    && matches!(asked.details, BlockDetails::Accounts | BlockDetails::Full)
                    && asked.max_version.is_none()
                {
                    count(format!("version from {}", form(stored)));
                }
            }
            NodeReply::Error { code, .. } => {
                assert_eq!((*code, made), (UNSUPPORTED_VERSION, None), "{} from {}", to.name, from.name);
                count("a version that is not supported".to_owned());
            }
        }
    }
    let proved: Vec<_> = proved.iter().map(|(what, count)| (what.as_str(), *count)).collect();
    // The expected numbers are exact, so the test fails if the derivations of a row are no longer tested.
    let expected = [
        ("a version that is not supported", 75),
        ("accounts from accounts", 86),
        ("accounts from jsonParsed", 119),
        ("base58 from base58", 23),
        ("base64 from base64", 38),
        ("binary from binary", 23),
        ("json from json", 38),
        ("jsonParsed from jsonParsed", 23),
        ("none from accounts", 322),
        ("none from base58", 111),
        ("none from base64", 202),
        ("none from binary", 111),
        ("none from json", 202),
        ("none from jsonParsed", 148),
        ("none from none", 80),
        ("none from signatures", 346),
        ("rewards from accounts", 206),
        ("rewards from base58", 37),
        ("rewards from base64", 92),
        ("rewards from binary", 37),
        ("rewards from json", 92),
        ("rewards from jsonParsed", 74),
        ("rewards from none", 80),
        ("rewards from signatures", 160),
        ("signatures from accounts", 322),
        ("signatures from base64", 202),
        ("signatures from json", 202),
        ("signatures from jsonParsed", 148),
        ("signatures from signatures", 80),
        ("the same", 484),
        ("version from accounts", 49),
        ("version from base58", 12),
        ("version from base64", 21),
        ("version from binary", 12),
        ("version from json", 21),
        ("version from jsonParsed", 24),
    ];
    assert_eq!(proved, expected);
}

/// Returns a recorded text as a node of version 4.2 might write it for callers that accept transaction version 1.
/// The recorded transaction version 0 becomes 1, the messages get a config, and some rewards get a new type.
fn as_newer(text: &Bytes) -> Bytes {
    const CONFIG: &str = r#","transactionConfig":{"computeUnitLimit":1400000,"heapSize":null,"loadedAccountsDataSizeLimit":null,"priorityFee":50000}"#;
    let text = str::from_utf8(text).unwrap().replace(r#""version":0"#, r#""version":1"#);
    let text = text.replace(r#""rewardType":"Voting""#, r#""rewardType":"DeactivatedStake""#);
    let mut pieces = text.split(r#""recentBlockhash":""#);
    let mut newer = pieces.next().unwrap().to_owned();
    for piece in pieces {
        let (blockhash, rest) = piece.split_once('"').unwrap();
        newer.extend([r#""recentBlockhash":""#, blockhash, "\"", CONFIG, rest]);
    }
    newer.into()
}

#[test]
fn derives_blocks_of_newer_nodes() {
    let recorded = recorded();
    let newer = |shape: BlockShape| BlockShape { max_version: shape.max_version.map(|_| 1), ..shape };
    let (mut proved, mut configs, mut types) = (0, 0, 0);
    for (from, to) in pairs(&recorded) {
        let (Some(stored), Some(asked), Some(result)) = (shape(from), shape(to), from.result()) else {
            continue;
        };
        if derivable(stored, asked) && stored != asked {
            let made = reshape(&as_newer(result), newer(stored), newer(asked));
            assert!(made == to.result().map(as_newer), "{} from {}", to.name, from.name);
            proved += 1;
            let source = as_newer(result);
            let source = str::from_utf8(&source).unwrap();
            configs += usize::from(source.contains("transactionConfig"));
            types += usize::from(source.contains("DeactivatedStake"));
        }
    }
    // The expected numbers are exact, so the test fails if a derivation is no longer tested.
    assert_eq!((proved, configs, types), (2_901, 817, 462));
}

#[test]
fn unknown_members_prevent_derivation() {
    let recorded = recorded();
    let with = |at: &str, text: &Bytes| {
        let text = str::from_utf8(text).unwrap();
        let member = format!(r#"{{"aNewMember":1,{}"#, at.trim_start_matches('{'));
        let newer = if at.is_empty() {
            text.replacen('{', r#"{"aNewMember":1,"#, 1)
        } else {
            text.replace(at, &member)
        };
        (newer != text).then(|| Bytes::from(newer))
    };
    let no_rewards = |shape: BlockShape| BlockShape { rewards: false, ..shape };
    for (stored, asked, at, expected) in [
        // A new member of an object that the derivation parses prevents the derivation.
        (NONE, no_rewards(NONE), "", false),
        (SIGNATURES, NONE, "", false),
        (FULL, SIGNATURES, "", false),
        (FULL, no_rewards(FULL), r#"{"meta":"#, false),
        (FULL, ACCOUNTS, r#"{"meta":"#, false),
        (FULL, SIGNATURES, r#"{"meta":"#, false),
        (BASE64, SIGNATURES, r#"{"meta":"#, false),
        (FULL, no_rewards(FULL), r#"{"computeUnitsConsumed":"#, false),
        (ACCOUNTS, no_rewards(ACCOUNTS), r#"{"err":"#, false),
        (FULL, ACCOUNTS, r#"{"accountKeys":"#, false),
        (FULL, SIGNATURES, r#"{"message":"#, false),
        // A new member of an object that is removed or copied as a whole does no harm.
        (FULL, NONE, r#"{"meta":"#, true),
        (JSON, no_rewards(JSON), r#"{"message":"#, true),
        (FULL, SIGNATURES, r#"{"accountKeys":"#, true),
        (FULL, no_rewards(FULL), r#"{"accountKeys":"#, true),
    ] {
        let sources = recorded.iter().filter(|exchange| shape(exchange) == Some(stored));
        let newer: Vec<_> = sources.filter_map(|exchange| with(at, exchange.result()?)).collect();
        assert!(!newer.is_empty(), "no {stored:?} has {at}");
        for source in newer {
            let made = reshape(&source, stored, asked);
            assert_eq!(made.is_some(), expected, "{asked:?} from {stored:?} with a member at {at:?}");
        }
    }
}

#[test]
fn missing_parts_prevent_derivation() {
    let binary = BlockShape { encoding: BlockEncoding::Binary, ..FULL };
    let base58 = BlockShape { encoding: BlockEncoding::Base58, ..FULL };
    let no_rewards = |shape| BlockShape { rewards: false, ..shape };
    let no_version = |shape| BlockShape { max_version: None, ..shape };
    for (stored, asked, expected) in [
        (FULL, FULL, true),
        (FULL, no_rewards(no_version(ACCOUNTS)), true),
        (base58, no_rewards(NONE), true),
        (NONE, no_rewards(NONE), true),
        (JSON, ACCOUNTS, false),
        (BASE64, ACCOUNTS, false),
        (base58, SIGNATURES, false),
        (binary, SIGNATURES, false),
        (JSON, FULL, false),
        (FULL, JSON, false),
        (BASE64, base58, false),
        (ACCOUNTS, FULL, false),
        (SIGNATURES, ACCOUNTS, false),
        (NONE, SIGNATURES, false),
        (no_rewards(FULL), FULL, false),
        (no_rewards(SIGNATURES), NONE, false),
        (no_version(FULL), ACCOUNTS, false),
        (BlockShape { max_version: Some(1), ..FULL }, FULL, false),
    ] {
        assert_eq!(derivable(stored, asked), expected, "{asked:?} from {stored:?}");
    }
}

#[test]
fn cheapest_source_comes_first() {
    let forms = |asked| {
        let mut forms: Vec<_> = sources(asked).map(form).collect();
        forms.dedup();
        forms
    };
    assert_eq!(forms(NONE), ["signatures", "accounts", "base64", "base58", "binary", "json", "jsonParsed"],);
    assert_eq!(forms(SIGNATURES), ["accounts", "base64", "json", "jsonParsed"]);
    assert_eq!(forms(ACCOUNTS), ["jsonParsed"], "a shape without rewards is no source");
    let no_rewards = BlockShape { rewards: false, max_version: Some(7), ..ACCOUNTS };
    let rewards = BlockShape { rewards: true, ..no_rewards };
    let parsed =
        BlockShape { encoding: BlockEncoding::JsonParsed, details: BlockDetails::Full, ..no_rewards };
    let both = BlockShape { rewards: true, ..parsed };
    assert_eq!(sources(no_rewards).collect::<Vec<_>>(), [rewards, parsed, both]);
    assert_eq!(sources(FULL).count(), 0);
}

/// Returns a block of one transaction, in shape [`FULL`].
fn parsed(transaction: &str) -> String {
    format!(r#"{{"blockhash":"B","rewards":[],"transactions":[{transaction}]}}"#)
}

const SHORT: &str = r#""err":null,"fee":1,"postBalances":[],"postTokenBalances":[],"preBalances":[],"preTokenBalances":[],"rewards":[],"status":{"Ok":null}"#;

#[test]
fn derives_rare_transactions_exactly_or_not_at_all() {
    let legacy = BlockShape { max_version: None, rewards: false, ..ACCOUNTS };
    let transaction =
        r#""transaction":{"message":{"accountKeys":[1.0],"recentBlockhash":"R"},"signatures":["S","T"]}"#;
    let made = |transaction: &str, asked| {
        let made = reshape(&parsed(transaction).into(), FULL, asked)?;
        Some(String::from_utf8(made.to_vec()).unwrap())
    };
    // A transaction stored without meta has no version in any shape.
    let old = format!(r#"{{"meta":null,{transaction}}}"#);
    let short = r#"{"meta":null,"transaction":{"accountKeys":[1.0],"signatures":["S","T"]}}"#;
    assert_eq!(made(&old, ACCOUNTS), Some(parsed(short)));
    assert_eq!(made(&old, legacy), Some(parsed(short).replace(r#""rewards":[],"#, "")));
    assert_eq!(made(&old, SIGNATURES).unwrap(), r#"{"blockhash":"B","rewards":[],"signatures":["S"]}"#);
    // The stored order of members is unusual, and the derivation does not change it.
    let unordered = format!(r#"{{"version":"legacy",{transaction},"meta":{{"costUnits":1,{SHORT}}}}}"#);
    let short =
        r#"{"version":"legacy","transaction":{"accountKeys":[1.0],"signatures":["S","T"]},"meta":{SHORT}}"#;
    assert_eq!(made(&unordered, ACCOUNTS), Some(parsed(&short.replace("SHORT", SHORT))));
    for transaction in [
        // Nothing can be derived from these transactions, because members are unknown, missing or of the wrong
        // type.
        &format!(r#"{{"meta":{{"new":1,{SHORT}}},{transaction},"version":0}}"#),
        &format!(r#"{{"meta":{{{SHORT}}},"new":1,{transaction},"version":0}}"#),
        &format!(r#"{{"meta":{{"err":null}},{transaction},"version":0}}"#),
        r#"{"meta":null,"transaction":{"message":{"accountKeys":[]},"new":1,"signatures":["S"]}}"#,
        r#"{"meta":null,"transaction":{"message":{"accountKeys":[]},"new":1}}"#,
        &format!(r#"{{"meta":{{{SHORT}}},"transaction":{{"signatures":["S"]}},"version":0}}"#),
        r#"{"meta":null,"transaction":["AA==","base64"]}"#,
        "null",
    ] {
        assert_eq!(made(transaction, ACCOUNTS), None, "{transaction}");
    }
    for version in ["0", "1", "null", r#""Legacy""#] {
        let transaction = format!(r#"{{"meta":{{{SHORT}}},{transaction},"version":{version}}}"#);
        assert!(made(&transaction, ACCOUNTS).is_some());
        assert_eq!(made(&transaction, legacy), None, "{version}");
    }
    let unversioned = format!(r#"{{"meta":{{{SHORT}}},{transaction}}}"#);
    assert_eq!(made(&unversioned, legacy), None, "nodes write the version of a transaction that has meta");
}

#[test]
fn wire_signatures_are_read_up_to_version_0() {
    let made = |wire: &[u8], encoding: &str| {
        let wire = STANDARD.encode(wire);
        let block = parsed(&format!(r#"{{"meta":null,"transaction":["{wire}","{encoding}"]}}"#));
        reshape(&block.into(), BASE64, SIGNATURES)
    };
    let wire = |count: u8, bytes: usize| [vec![count], vec![7; bytes - 1]].concat();
    let signature = bs58::encode([7; 64]).into_string();
    let expected = format!(r#"{{"blockhash":"B","rewards":[],"signatures":["{signature}"]}}"#);
    for count in [1, 127] {
        assert_eq!(made(&wire(count, 200), "base64").unwrap(), expected);
    }
    for (count, bytes, encoding) in
        [(0, 200, "base64"), (0x81, 200, "base64"), (1, 60, "base64"), (1, 200, "base58")]
    {
        assert_eq!(made(&wire(count, bytes), encoding), None, "{count} {bytes} {encoding}");
    }
}

#[test]
fn other_texts_than_blocks_derive_nothing() {
    for text in [
        "",
        "null",
        "[]",
        "0",
        "{}",
        "<html>",
        r#"{"blockhash":"B"#,
        r#"{"blockhash":"B","rewards":[]}"#,
        r#"{"blockhash":"B","rewards":[],"transactions":null}"#,
        r#"{"blockhash":"B","rewards":[],"transactions":[]}x"#,
        r#"{"rewards":[],"transactions":[]}"#,
        r#"{"blockhash":"B","rewards":[],"transactions":[1]}"#,
        r#"{"blockhash":"B","rewards":[],"transactions":[{"meta":null,"transaction":{"signatures":[]}}]}"#,
        r#"{"blockhash":"B","rewards":[],"transactions":[{"meta":null,"transaction":{"signatures":[7]}}]}"#,
    ] {
        assert_eq!(reshape(&Bytes::from_static(text.as_bytes()), FULL, SIGNATURES), None, "{text}");
    }
    let no_rewards = BlockShape { rewards: false, ..NONE };
    for (text, stored) in [
        (r#"{"blockhash":"B","signatures":[]}"#, SIGNATURES),
        (r#"{"blockhash":"B","rewards":[]}"#, SIGNATURES),
        (r#"{"rewards":[]}"#, NONE),
    ] {
        assert_eq!(reshape(&Bytes::from_static(text.as_bytes()), stored, no_rewards), None, "{text}");
    }
}

/// Returns the shape and the text of a recorded block with these details and this encoding, and with rewards.
fn recorded_in(details: BlockDetails, encoding: BlockEncoding) -> (BlockShape, Bytes) {
    let asked =
        |shape: BlockShape| (shape.details, shape.encoding, shape.rewards) == (details, encoding, true);
    let found = load("getBlock").into_iter().find_map(|exchange| {
        let shape = shape(&exchange).filter(|shape| asked(*shape))?;
        exchange.result().map(|result| (shape, result.clone()))
    });
    found.unwrap()
}

proptest! {
    #[test]
    fn signature_encoder_matches_bs58(
        zeros in 0..=SIGNATURE_BYTES,
        mut signature in prop::collection::vec(any::<u8>(), SIGNATURE_BYTES),
    ) {
        // Leading zeros are a special case of base58, and random bytes rarely have them.
        signature[..zeros].fill(0);
        for signature in [signature.try_into().unwrap(), [255; SIGNATURE_BYTES]] {
            let expected = format!("\"{}\"", bs58::encode(signature).into_string());
            prop_assert_eq!(quoted_base58(&signature), Some(expected));
        }
    }

    #[test]
    fn damaged_blocks_derive_nothing_or_valid_json(
        damages in prop::collection::vec((any::<Index>(), any::<Index>(), prop_oneof![
            "[\\\\\"\\[\\]{},:0e.-]{0,2}", r#"null|"version"|"meta"|"signatures""#, "\\PC{0,3}",
        ]), 1..4),
        cut: Index,
    ) {
        thread_local! {
            static BLOCKS: [(BlockShape, Bytes); 3] = [
                recorded_in(BlockDetails::Full, BlockEncoding::JsonParsed),
                recorded_in(BlockDetails::Full, BlockEncoding::Base64),
                recorded_in(BlockDetails::Accounts, BlockEncoding::Json),
            ];
        }
        for (stored, block) in BLOCKS.with(Clone::clone) {
            let mut damaged = block.to_vec();
            for (at, other, text) in &damages {
                let at = at.index(damaged.len() + 1);
                let end = damaged.len().min(at + other.index(4));
                damaged.splice(at..end, text.bytes());
            }
            let damaged = Bytes::from(damaged);
            let cut = block.slice(..cut.index(block.len()));
            for (details, encoding) in FORMS {
                for (rewards, max_version) in [(true, Some(0)), (false, None)] {
                    let asked = BlockShape { details, encoding, rewards, max_version };
                    prop_assert_eq!(reshape(&cut, stored, asked), None);
                    if let Some(made) = reshape(&damaged, stored, asked) {
                        prop_assert!(serde_json::from_slice::<IgnoredAny>(&made).is_ok(), "{:?}", made);
                    }
                }
            }
        }
    }
}
