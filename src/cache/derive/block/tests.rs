use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use proptest::sample::Index;
use serde::de::IgnoredAny;

use super::super::tests::{RecordedCall, load};
use super::*;
use crate::methods::{Pubkey, Query};
use crate::node::NodeReply;

const PARSED: BlockShape = BlockShape { encoding: BlockEncoding::JsonParsed, ..BlockShape::BASE64 };
const JSON: BlockShape = BlockShape { encoding: BlockEncoding::Json, ..BlockShape::BASE64 };
const ACCOUNTS: BlockShape = BlockShape { details: BlockDetails::Accounts, ..JSON };
const SIGNATURES: BlockShape =
    BlockShape { details: BlockDetails::Signatures, max_version: None, ..ACCOUNTS };
const NONE: BlockShape = BlockShape { details: BlockDetails::None, ..SIGNATURES };

/// Returns the answer in the shape `asked`, made from `source` as nodes of 2.3 and later write it.
fn reshape(source: &Bytes, asked: BlockShape) -> Option<Payload> {
    super::reshape(source, asked, Some(OwnHeight::One))
}

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

/// Returns the recorded result in the shape from which `asked` is made.
fn source<'a>(recorded: &'a [RecordedCall], call: &RecordedCall, asked: BlockShape) -> Option<&'a Bytes> {
    let source = asked.source().unwrap_or(asked);
    let is_source = |other: &&RecordedCall| {
        call.group.is_some() && other.group == call.group && shape(other) == Some(source)
    };
    recorded.iter().find(is_source)?.result()
}

fn every_shape() -> impl Iterator<Item = BlockShape> {
    let details = [
        (BlockDetails::None, BlockEncoding::Json),
        (BlockDetails::Signatures, BlockEncoding::Json),
        (BlockDetails::Accounts, BlockEncoding::Json),
        (BlockDetails::Full, BlockEncoding::Base64),
        (BlockDetails::Full, BlockEncoding::Base58),
        (BlockDetails::Full, BlockEncoding::Binary),
        (BlockDetails::Full, BlockEncoding::Json),
        (BlockDetails::Full, BlockEncoding::JsonParsed),
    ];
    details.into_iter().flat_map(|(details, encoding)| {
        [(true, Some(0)), (true, None), (false, Some(0)), (false, None), (true, Some(7))]
            .map(|(rewards, max_version)| BlockShape { details, encoding, rewards, max_version })
    })
}

#[test]
fn recorded_shapes_derive_from_base64() {
    let recorded = recorded();
    let mut proved: BTreeMap<String, usize> = BTreeMap::new();
    let mut count = |what: &str| *proved.entry(what.to_owned()).or_default() += 1;
    for call in &recorded {
        let Some(asked) = shape(call) else { continue };
        let Some(source) = source(&recorded, call, asked) else {
            count("without a recorded source");
            continue;
        };
        let expected = match &call.reply {
            NodeReply::Result(text) => Payload::Result(text.clone().into()),
            NodeReply::Error { code, body } => Payload::Error { code: *code, body: body.clone() },
        };
        let made = super::reshape(source, asked, None);
        assert!(made.as_ref() == Some(&expected), "{}: {made:?} instead of {expected:?}", call.name);
        match (&call.reply, asked.details) {
            (NodeReply::Error { .. }, _) => count("a version that is not supported"),
            (_, BlockDetails::Full) => count(asked.encoding.as_str()),
            (_, details) => count(details.as_str()),
        }
        if !asked.rewards {
            count("without rewards");
        }
        if asked.max_version.is_none() && asked.source() != Some(BlockShape::BASE64) {
            count("without version");
        }
    }
    let proved: Vec<_> = proved.iter().map(|(what, count)| (what.as_str(), *count)).collect();
    // The expected numbers are exact, so the test fails if the derivations of a row are no longer tested.
    let expected = [
        ("a version that is not supported", 36),
        ("accounts", 96),
        ("base58", 45),
        ("base64", 76),
        ("binary", 45),
        ("json", 76),
        ("jsonParsed", 58),
        ("none", 102),
        ("signatures", 102),
        ("without a recorded source", 10),
        ("without rewards", 142),
        ("without version", 14),
    ];
    assert_eq!(proved, expected);
}

#[test]
fn unknown_reward_types_stay() {
    let recorded = recorded();
    let newer = |text: &Bytes| {
        let text = str::from_utf8(text).unwrap();
        Bytes::from(text.replace(r#""rewardType":"Voting""#, r#""rewardType":"DeactivatedStake""#))
    };
    let mut proved = 0;
    for call in &recorded {
        let Some((asked, result)) = shape(call).zip(call.result()) else { continue };
        let Some(source) = source(&recorded, call, asked).filter(|source| newer(source) != **source) else {
            continue;
        };
        let made = reshape(&newer(source), asked);
        assert!(made == Some(Payload::Result(newer(result).into())), "{}", call.name);
        proved += 1;
    }
    assert_eq!(proved, 78);
}

#[test]
fn each_shape_has_one_source() {
    for asked in every_shape() {
        let is_parsed = (asked.details, asked.encoding) == (BlockDetails::Full, BlockEncoding::JsonParsed);
        let source = if is_parsed { PARSED } else { BlockShape::BASE64 };
        assert_eq!(asked.source(), (asked != source).then_some(source), "{asked:?}");
        let is_fetched = is_parsed || matches!(asked.details, BlockDetails::Signatures | BlockDetails::None);
        let fetched = asked.source().filter(|_| !is_fetched);
        assert_eq!(asked.fetched_source(), fetched, "{asked:?}");
    }
    assert!(BlockShape::usual().all(|shape| every_shape().any(|other| other == shape)));
}

#[test]
fn unknown_members_prevent_derivation() {
    const META: &str = r#"{"computeUnitsConsumed":"#;
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
    for (asked, at, expected) in [
        // A new member of an object that the derivation parses prevents the derivation.
        (NONE, "", false),
        (no_rewards(PARSED), "", false),
        (SIGNATURES, r#"{"meta":"#, false),
        (JSON, r#"{"meta":"#, false),
        (ACCOUNTS, r#"{"meta":"#, false),
        (no_rewards(PARSED), r#"{"meta":"#, false),
        (JSON, META, false),
        (ACCOUNTS, META, false),
        (no_rewards(BlockShape::BASE64), META, false),
        (no_rewards(PARSED), META, false),
        (ACCOUNTS, r#"{"readonly":"#, false),
        // A new member of an object that is removed or copied as a whole does no harm.
        (NONE, r#"{"meta":"#, true),
        (SIGNATURES, META, true),
        (JSON, r#"{"readonly":"#, true),
        (no_rewards(PARSED), r#"{"accountKeys":"#, true),
    ] {
        let sources = recorded.iter().filter(|exchange| shape(exchange) == asked.source());
        let newer: Vec<_> = sources.filter_map(|exchange| with(at, exchange.result()?)).collect();
        assert!(!newer.is_empty(), "no source of {asked:?} has {at}");
        for source in newer {
            let made = reshape(&source, asked);
            assert_eq!(made.is_some(), expected, "{asked:?} with a member at {at:?}");
        }
    }
}

/// Returns a block of one transaction.
fn block_of(transaction: &str) -> Bytes {
    format!(r#"{{"blockhash":"B","rewards":[],"transactions":[{transaction}]}}"#).into()
}

const SHORT: &str = r#""err":null,"fee":1,"postBalances":[],"postTokenBalances":[],"preBalances":[],"preTokenBalances":[],"rewards":[],"status":{"Ok":null}"#;

/// Returns the bytes of a transaction with one signature, two accounts and one instruction. Its message begins with
/// `version`.
fn wire(version: &[u8]) -> Vec<u8> {
    let keys = [[3; 32], [4; 32]].concat();
    let instruction = [&[1, 1, 0, 2][..], &[9, 9]].concat();
    let lookups: &[u8] = if version.is_empty() { &[] } else { &[0] };
    [&[1], &[7; 64][..], version, &[1, 0, 1, 2], &keys, &[5; 32], &[1], &instruction, lookups].concat()
}

fn in_base64(wire: &[u8]) -> String {
    format!(r#""transaction":["{}","base64"]"#, STANDARD.encode(wire))
}

fn text(made: Option<Payload>) -> Option<String> {
    match made? {
        Payload::Result(text) => Some(String::from_utf8(text.whole().to_vec()).unwrap()),
        Payload::Error { .. } => panic!("an error"),
    }
}

#[test]
fn derives_rare_transactions_exactly_or_not_at_all() {
    let made = |transaction: &str, asked| text(reshape(&block_of(transaction), asked));
    let expected = |transaction: &str| Some(String::from_utf8(block_of(transaction).to_vec()).unwrap());
    let [s, a, b, h] = [&[7; 64][..], &[3; 32], &[4; 32], &[5; 32]].map(|x| bs58::encode(x).into_string());
    let (legacy, v0) = (in_base64(&wire(&[])), in_base64(&wire(&[0x80])));

    // A transaction stored without meta has no version in any shape.
    let old = format!(r#"{{"meta":null,{legacy}}}"#);
    let accounts = format!(
        r#""accountKeys":[{{"pubkey":"{a}","signer":true,"source":"transaction","writable":true}},{{"pubkey":"{b}","signer":false,"source":"transaction","writable":false}}],"signatures":["{s}"]"#
    );
    let short = expected(&format!(r#"{{"meta":null,"transaction":{{{accounts}}}}}"#));
    assert_eq!(made(&old, ACCOUNTS), short);
    assert_eq!(made(&old, BlockShape { max_version: None, ..ACCOUNTS }), short);
    let data = bs58::encode([9, 9]).into_string();
    let instructions = format!(r#"[{{"accounts":[0],"data":"{data}","programIdIndex":1,"stackHeight":1}}]"#);
    let header = r#""header":{"numReadonlySignedAccounts":0,"numReadonlyUnsignedAccounts":1,"numRequiredSignatures":1}"#;
    let message = |lookups| {
        format!(
            r#""message":{{"accountKeys":["{a}","{b}"],{lookups}{header},"instructions":{instructions},"recentBlockhash":"{h}"}},"signatures":["{s}"]"#
        )
    };
    assert_eq!(made(&old, JSON), expected(&format!(r#"{{"meta":null,"transaction":{{{}}}}}"#, message(""))));
    assert_eq!(
        made(&old, SIGNATURES).unwrap(),
        format!(r#"{{"blockhash":"B","rewards":[],"signatures":["{s}"]}}"#)
    );

    // The stored order of members is unusual, and the derivation does not change it.
    let meta =
        format!(r#""meta":{{"costUnits":1,"loadedAddresses":{{"readonly":[],"writable":[]}},{SHORT}}}"#);
    let unordered = format!(r#"{{"version":0,{v0},{meta}}}"#);
    assert_eq!(
        made(&unordered, ACCOUNTS),
        expected(&format!(r#"{{"version":0,"transaction":{{{accounts}}},"meta":{{{SHORT}}}}}"#))
    );
    assert_eq!(
        made(&unordered, JSON),
        expected(&format!(
            r#"{{"version":0,"transaction":{{{}}},{meta}}}"#,
            message(r#""addressTableLookups":[],"#)
        ))
    );
    for bad in [
        // Nothing can be derived from these transactions, because members are unknown, missing, of the wrong type, or
        // do not agree.
        &format!(r#"{{{meta},"new":1,{legacy},"version":"legacy"}}"#),
        &format!(r#"{{"meta":{{"err":null}},{legacy},"version":"legacy"}}"#),
        &format!(r#"{{"meta":{{{SHORT}}},{legacy},"version":"legacy"}}"#),
        &format!("{{{meta},{legacy}}}"),
        &format!(r#"{{{meta},{legacy},"version":0}}"#),
        &format!(r#"{{{meta},{legacy},"version":1}}"#),
        &format!(r#"{{{meta},{legacy},"version":null}}"#),
        &format!(r#"{{{meta},{legacy},"version":"Legacy"}}"#),
        &format!(r#"{{{meta},{v0},"version":"legacy"}}"#),
        &format!(r#"{{"meta":null,{v0}}}"#),
        &old.replace("base64", "base58"),
        r#"{"meta":null,"transaction":["AA==","base64"]}"#,
        r#"{"meta":null,"transaction":{"message":{"accountKeys":[]},"signatures":["S"]}}"#,
        "null",
    ] {
        assert_eq!(made(bad, ACCOUNTS), None, "{bad}");
    }
    let rest = [in_base64(&[wire(&[]), vec![0]].concat()), in_base64(&wire(&[])[..150])];
    for damaged in rest.iter().chain([&in_base64(&wire(&[0x81])), &legacy.replace("Aw", "A=")]) {
        let block = format!(r#"{{"meta":null,{damaged}}}"#);
        for asked in every_shape().filter(|asked| asked.source() == Some(BlockShape::BASE64)) {
            let is_read = !matches!((asked.details, asked.encoding), (BlockDetails::None, _))
                && (asked.details != BlockDetails::Full || asked.encoding != BlockEncoding::Base64);
            assert_eq!(made(&block, asked).is_none(), is_read, "{asked:?} of {damaged}");
        }
    }
}

#[test]
fn own_instructions_have_the_height_that_their_node_writes() {
    let inner = |height: &str| {
        let instruction = format!(r#"{{"accounts":[],"data":"","programIdIndex":0{height}}}"#);
        format!(
            r#""innerInstructions":[{{"index":0,"instructions":[{instruction}]}}],"loadedAddresses":{{"readonly":[],"writable":[]}}"#
        )
    };
    let (wire, number) = (in_base64(&wire(&[])), inner(r#","stackHeight":2"#));
    for (meta, of_nodes, expected) in [
        (format!(r#""costUnits":1,{number}"#), Some(OwnHeight::Null), Some(r#","stackHeight":1"#)),
        (number.clone(), Some(OwnHeight::One), Some(r#","stackHeight":1"#)),
        (number.clone(), Some(OwnHeight::Null), Some(r#","stackHeight":null"#)),
        (number.clone(), None, None),
        (inner(""), None, Some("")),
        (inner(""), Some(OwnHeight::One), Some("")),
    ] {
        let block = block_of(&format!(r#"{{"meta":{{{meta},{SHORT}}},{wire},"version":"legacy"}}"#));
        let made = text(super::reshape(&block, JSON, of_nodes));
        let instruction = expected.map(|height| format!(r#""programIdIndex":1{height}}}"#));
        assert_eq!(made.is_some(), expected.is_some(), "{meta}");
        if let (Some(made), Some(instruction)) = (made, instruction) {
            assert!(made.contains(&instruction), "{instruction}: {made}");
        }
        let place = places(&block, 5, BlockEncoding::Base64)[0];
        let single = SingleTransaction { signature: place.0, asked: JSON, place: place.1 };
        assert_eq!(single.make(&block, of_nodes).is_some(), expected.is_some(), "{meta}");
        // No other shape depends on it.
        assert!(
            super::reshape(&block, ACCOUNTS, None).is_some()
                && super::reshape(&block, SIGNATURES, None).is_some()
        );
    }
}

#[test]
fn loaded_accounts_follow_the_tables() {
    let key = |byte: u8| Pubkey([byte; 32]).to_string();
    let rent = "SysvarRent111111111111111111111111111111111";
    let loaded = format!(r#"{{"readonly":["{}"],"writable":["{}","{rent}"]}}"#, key(8), key(9));
    let meta = format!(r#""meta":{{"loadedAddresses":{loaded},{SHORT}}}"#);
    let flags = |wire: &[u8], version: &str| {
        let block = block_of(&format!(r#"{{{meta},{},"version":{version}}}"#, in_base64(wire)));
        let block: serde_json::Value =
            serde_json::from_str(&text(reshape(&block, ACCOUNTS)).unwrap()).unwrap();
        let keys = block["transactions"][0]["transaction"]["accountKeys"].as_array().unwrap().clone();
        keys.iter().map(|key| (key["source"] == "lookupTable", key["writable"] == true)).collect::<Vec<_>>()
    };
    let [own, looked_up] = [|writable| (false, writable), |writable| (true, writable)];
    assert_eq!(
        flags(&wire(&[0x80]), "0"),
        [own(true), own(false), looked_up(true), looked_up(false), looked_up(false)],
        "a reserved account is not writable"
    );
    assert_eq!(flags(&wire(&[]), "\"legacy\""), [own(true), own(false)], "a legacy message has no tables");
    // The called program is writable only beside the upgradeable loader.
    let mut called = wire(&[0x80]);
    called[68] = 0;
    assert_eq!(flags(&called, "0")[1], own(false));
    let meta = meta.replace(rent, "BPFLoaderUpgradeab1e11111111111111111111111");
    let block = block_of(&format!(r#"{{{meta},{},"version":0}}"#, in_base64(&called)));
    let made = text(reshape(&block, ACCOUNTS)).unwrap();
    assert_eq!(made.matches(r#""writable":true"#).count(), 3, "{made}");
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
        r#"{"blockhash":"B","rewards":[],"transactions":[{"meta":null,"transaction":{"signatures":[7]}}]}"#,
    ] {
        assert_eq!(reshape(&Bytes::from_static(text.as_bytes()), SIGNATURES), None, "{text}");
    }
    for text in [r#"{"blockhash":"B","transactions":[]}"#, r#"{"rewards":[],"transactions":[]}"#] {
        let asked = BlockShape { rewards: false, ..NONE };
        assert_eq!(reshape(&Bytes::from_static(text.as_bytes()), asked), None, "{text}");
    }
}

/// Returns a recorded block in this shape.
fn recorded_in(asked: BlockShape) -> Bytes {
    let found =
        load("getBlock").into_iter().find(|call| shape(call) == Some(asked) && call.result().is_some());
    found.unwrap().result().unwrap().clone()
}

proptest! {
    #[test]
    fn damaged_blocks_derive_nothing_or_valid_json(
        damages in prop::collection::vec((any::<Index>(), any::<Index>(), prop_oneof![
            "[\\\\\"\\[\\]{},:0e.-]{0,2}", r#"null|"version"|"meta"|"signatures""#, "[A-Za-z0-9+/=]{1,4}", "\\PC{0,3}",
        ]), 1..4),
        cut: Index,
    ) {
        thread_local! {
            static BLOCKS: [Bytes; 2] = [recorded_in(BlockShape::BASE64), recorded_in(PARSED)];
        }
        let [base64, parsed] = BLOCKS.with(Clone::clone);
        for asked in every_shape() {
            let block = if asked.source().unwrap_or(asked) == PARSED { &parsed } else { &base64 };
            let mut damaged = block.to_vec();
            for (at, other, text) in &damages {
                let at = at.index(damaged.len() + 1);
                let end = damaged.len().min(at + other.index(4));
                damaged.splice(at..end, text.bytes());
            }
            prop_assert_eq!(reshape(&block.slice(..cut.index(block.len())), asked), None);
            if let Some(made) = reshape(&damaged.into(), asked) {
                let text = match &made {
                    Payload::Result(text) => text.whole(),
                    Payload::Error { body, .. } => body.clone(),
                };
                prop_assert!(serde_json::from_slice::<IgnoredAny>(&text).is_ok(), "{:?}", made);
            }
        }
    }
}
