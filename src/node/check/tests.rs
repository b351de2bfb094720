use bytes::Bytes;
use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;
use crate::node::{Arrived, NodeReply};

/// `text`, read up to each of these places first.
fn read(text: &[u8], places: impl IntoIterator<Item = usize>) -> Check {
    let mut check = Check::default();
    places.into_iter().for_each(|end| check.read(&text[..end]));
    check
}

fn response(result: &[u8]) -> Vec<u8> {
    [&br#"{"jsonrpc":"2.0","result":"#[..], result, br#","id":7}"#].concat()
}

#[test]
fn responses_as_nodes_write_them_are_read_and_all_else_is_left() {
    let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    for (text, is_read) in [
        (r#"{"jsonrpc":"2.0","result":{"a":[1,-2.5e+3,"\"\u00e9\\é"],"b":{}},"id":7}"#, true),
        ("{\"jsonrpc\":\"2.0\",\"result\":null,\"id\":7}\n", true),
        ("{ \"id\" : 7 ,\r\n\"result\" : [ ] , \"jsonrpc\" : \"2.0\" } ", true),
        (&format!(r#"{{"jsonrpc":"2.0","result":{},"id":7}}"#, deep(127)), true),
        (&format!(r#"{{"jsonrpc":"2.0","result":{},"id":7}}"#, deep(128)), false),
        (&format!(r#"{{"jsonrpc":"2.0","result":{}e,"id":7}}"#, "1".repeat(200)), false),
        (r#"{"jsonrpc":"2.0","error":{"code":1,"message":""},"id":7}"#, false),
        (r#"{"jsonrpc":"2.0","result":1,"error":null,"id":7}"#, false),
        (r#"{"jsonrpc":"2.0","result":1,"result":1,"id":7}"#, false),
        (r#"{"jsonrpc":"2.0","result":1,"id":7,"more":1}"#, false),
        (r#"{"jsonrpc":"2.0","result":1,"i\u0064":7}"#, false),
        (r#"{"jsonrpc":"2\u002e0","result":1,"id":7}"#, false),
        (r#"{"jsonrpc":"2.0","result":1}"#, false),
        (r#"{"jsonrpc":"2.0","result":1,"id":7}}"#, false),
        (r#"{"jsonrpc":"2.0","result":1,"id":7"#, false),
        (r#"["2.0",1,7]"#, false),
        ("7", false),
        ("", false),
    ] {
        let text = text.as_bytes();
        for check in [Check::default(), read(text, 0..text.len())] {
            let parts = check.finish(text);
            assert_eq!(parts.is_some(), is_read, "{}", String::from_utf8_lossy(text));
        }
    }
    let text = br#"{"jsonrpc":"2.0", "result" : [1] ,"id": 70 }"#;
    let parts = Check::default().finish(text).unwrap();
    assert_eq!((&text[parts.result], &text[parts.id]), (&b"[1]"[..], &b"70"[..]));
}

/// What values are made of, and what breaks them.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let pieces: Vec<&[u8]> = vec![
        b"\"",
        b"\"",
        b"\"a\"",
        b"\"a\":",
        b"\\",
        b"\\n",
        b"\\\"",
        b"\\u00e9",
        b"\\ud800",
        b"\\x",
        b"\xc3\xa9",
        b"\xc3",
        b"\xff",
        b"\xf0\x9f\x98\x80",
        b"\xed\xa0\x80",
        b"0",
        b"1",
        b"-",
        b"-1",
        b".5",
        b"e",
        b"E+",
        b"1e9",
        b"[",
        b"]",
        b"[[",
        b"]]",
        b"{",
        b"}",
        b":",
        b",",
        b" ",
        b"\n",
        b"\t",
        b"\x0b",
        b"\x1f",
        b"\x7f",
        b"true",
        b"false",
        b"null",
        b"nul",
        b"\"id\":7",
        b"abcdefghijklmnopqrstuvwxyz",
        b"0123456789012345678901234567890",
    ];
    prop::collection::vec(prop::sample::select(pieces), 0..14).prop_map(|pieces| pieces.concat())
}

/// Values, mostly whole.
fn values() -> impl Strategy<Value = Vec<u8>> {
    let words = ["null", "true", "-0.5E-7", "1", "18446744073709551616", r#""\\\"\/\u1aF0é""#, "[]", "{ }"];
    let leaf = prop_oneof![
        prop::sample::select(words.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        "[a-zé ]{0,200}".prop_map(|text| format!("\"{text}\"").into_bytes()),
    ];
    let values = leaf.prop_recursive(5, 40, 4, |inner| {
        (prop::collection::vec(inner, 0..4), any::<bool>()).prop_map(|(inner, object)| {
            let name: &[u8] = if object { b"\"id\" :" } else { b"" };
            let inner: Vec<_> = inner.into_iter().map(|value| [name, &value].concat()).collect();
            let [begin, end]: [&[u8]; 2] = if object { [b"{", b"}"] } else { [b"[", b"]"] };
            [begin, &inner.join(&b", "[..]), end].concat()
        })
    });
    (values, prop::option::weighted(0.3, (any::<prop::sample::Index>(), pieces()))).prop_map(
        |(mut value, change)| {
            if let Some((at, pieces)) = change {
                let at = at.index(value.len() + 1);
                drop(value.splice(at..at, pieces));
            }
            value
        },
    )
}

proptest! {
    /// serde's word, and the same word however the text comes.
    #[test]
    fn there_are_never_two_opinions(
        result in prop_oneof![pieces(), values()],
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let text = Bytes::from(response(&result));
        let expected = NodeReply::parse(&text, 7);
        let mut places: Vec<_> = places.iter().map(|place| place.index(text.len() + 1)).collect();
        places.sort_unstable();
        for check in [Check::default(), read(&text, 0..text.len()), read(&text, places)] {
            // Not only where it is serde's own.
            let is_json = str::from_utf8(&result).is_ok_and(|text| serde_json::from_str::<&RawValue>(text).is_ok());
            let parts = check.finish(&text);
            prop_assert!(parts.is_some() || !is_json);
            if let Some(parts) = parts {
                let result = text.slice(parts.result);
                prop_assert_eq!(Ok(NodeReply::Result(result)), expected.clone());
                prop_assert_eq!(&text[parts.id], b"7");
            }
        }
        let arrived = Arrived::new(text.clone(), Some(read(&text, 0..text.len())));
        prop_assert_eq!(arrived.reply(7), expected);
    }

    #[test]
    fn the_end_of_a_string_is_found_wherever_it_stands(
        letters in 0..400_usize,
        end in prop::sample::select(vec![b'"', b'\\', 0, 0x1f, b'\n']),
        letter in prop::sample::select(vec![b' ', b'a', 0x7f, 0x80, 0xff, b'!', b'#', b'[', b']', 0xa2, 0xdc]),
    ) {
        let mut text = vec![letter; letters];
        prop_assert_eq!(plain(&text), letters);
        text.extend([end, letter, b'"', letter, letter, letter, letter, letter, letter, letter]);
        prop_assert_eq!(plain(&text), letters);
    }
}
