//! The shape of a result: the members that callers need, and the members from which the cache makes answers in
//! other encodings.

use std::borrow::Cow;

use bytes::Bytes;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::methods::{AccountEncoding, BlockDetails, BlockQuery, BlocksQuery, Query, ResultKind, Slot};

/// Returns true if `result` has the shape of an answer to `query`. Only the parts that the cache or a caller needs
/// are checked.
pub fn fits(query: &Query, result: &Bytes) -> bool {
    let account = |value: &[u8], encoding| {
        let base64 = encoding == AccountEncoding::Base64;
        let is_account = |account: AccountShape| !base64 || base64_text(account.data).is_some();
        value == b"null" || serde_json::from_slice(value).is_ok_and(is_account)
    };
    let value = || Contextual::split(result).map(|parts| parts.value);
    match query {
        Query::Account(q) => value().is_some_and(|value| account(&value, q.form.encoding)),
        Query::Accounts(q) => value().and_then(|value| elements(&value)).is_some_and(|list| {
            list.len() == q.pubkeys.len() && list.iter().all(|value| account(value, q.form.encoding))
        }),
        Query::Balance(_) | Query::Supply(_) => value().is_some_and(|value| has_text(&value, "amount")),
        Query::Lamports(_) => value().is_some_and(|value| serde_json::from_slice::<u64>(&value).is_ok()),
        Query::Fee(_) => value().is_some_and(|value| serde_json::from_slice::<Option<u64>>(&value).is_ok()),
        Query::Votes(_) => ["current", "delinquent"].into_iter().all(|list| {
            let list = member::<&RawValue>(result, list).map(|list| result.slice_ref(list.get().as_bytes()));
            list.is_some_and(|list| each(&list, |vote| has_text(vote, "votePubkey")))
        }),
        Query::Samples(_) => each(result, |sample| member::<Slot>(sample, "slot").is_some()),
        Query::ClusterNodes => each(result, |node| has_text(node, "pubkey")),
        // `null` is a valid answer for a missing block, after which the pool asks another node.
        Query::Block(q) => result.as_ref() == b"null" || is_block(q, result),
        _ => query.plain().is_some_and(|call| is_kind(call.result, result)),
    }
}

/// Returns true if `result` is of this kind.
fn is_kind(kind: ResultKind, result: &Bytes) -> bool {
    let (first, is_null) = (result.first().copied(), result.as_ref() == b"null");
    let is_number = || first.is_some_and(|byte| byte == b'-' || byte.is_ascii_digit());
    match kind {
        ResultKind::Context => Contextual::split(result).is_some(),
        ResultKind::Object => first == Some(b'{'),
        ResultKind::ObjectOrNull => first == Some(b'{') || is_null,
        ResultKind::List => first == Some(b'['),
        ResultKind::Number => is_number(),
        ResultKind::NumberOrNull => is_number() || is_null,
        ResultKind::Text => first == Some(b'"'),
    }
}

/// The number of slots in a row that may be without a block. A leader has four slots in a row, and may miss all of them.
pub const LONGEST_SKIP: u64 = 8;

/// What the text of a list of blocks tells. It may be megabytes, so it is read once, off the async workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockList {
    /// The number of blocks.
    pub count: u64,
    /// The slot of the last block. `None` without a block.
    pub end: Option<Slot>,
    /// True if no more slots in a row are missing before the end than may be without a block.
    is_joined: bool,
}

impl BlockList {
    /// Reads `result`, the answer to `query`. `None` if it is no list of blocks.
    pub fn read(query: &Query, result: &[u8]) -> Option<Self> {
        let Query::Blocks(BlocksQuery { first, .. }) = query else { return None };
        let slots: Vec<Slot> = serde_json::from_slice(result).ok()?;
        let mut next = *first;
        let joins = |slot: &Slot| {
            let is_near = (next..=next.saturating_add(LONGEST_SKIP)).contains(slot);
            next = slot.saturating_add(1);
            is_near
        };
        let is_joined = slots.iter().all(joins);
        Some(Self { count: slots.len() as u64, end: slots.last().copied(), is_joined })
    }

    /// Returns true if the list leaves out no more slots in a row than may be without a block, up to `last` or to its own
    /// end. If more slots are missing, the node may not hold their blocks.
    pub fn is_whole(&self, last: Option<Slot>) -> bool {
        let reaches = |end| last.is_none_or(|last| last.saturating_sub(end) <= LONGEST_SKIP);
        self.is_joined && self.end.is_some_and(reaches)
    }
}

/// Returns true if `result` is a block that names its parent, with the list that the requested details promise. The
/// elements of the list are not read.
fn is_block(query: &BlockQuery, result: &[u8]) -> bool {
    let list = match query.details {
        BlockDetails::Full | BlockDetails::Accounts => Some("transactions"),
        BlockDetails::Signatures => Some("signatures"),
        BlockDetails::None => None,
    };
    has_text(result, "blockhash")
        && has_text(result, "previousBlockhash")
        // The block at slot 0 is its own parent.
        && parent_slot(result).is_some_and(|parent| parent < query.slot.max(1))
        && list.is_none_or(|list| member(result, list).is_some_and(|IsList(is_list)| is_list))
}

/// Returns the slot of a block's parent. `None` if `block` is not a block.
pub fn parent_slot(block: &[u8]) -> Option<Slot> {
    member(block, "parentSlot")
}

/// A result of the form `{context, value}`, as slices of its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contextual {
    /// `context.slot`.
    pub slot: Slot,
    /// The `context` object as JSON text.
    pub context: Bytes,
    /// The `value` member as JSON text.
    pub value: Bytes,
}

impl Contextual {
    /// Splits a result of the form `{context: {slot}, value}`. `None` if it has another form.
    pub fn split(result: &Bytes) -> Option<Self> {
        #[derive(Deserialize)]
        struct Parts<'a> {
            #[serde(borrow)]
            context: &'a RawValue,
            #[serde(borrow)]
            value: &'a RawValue,
        }
        #[derive(Deserialize)]
        struct Context {
            slot: Slot,
        }
        let parts: Parts = serde_json::from_slice(result).ok()?;
        let Context { slot } = serde_json::from_str(parts.context.get()).ok()?;
        let slice = |raw: &RawValue| result.slice_ref(raw.get().as_bytes());
        Some(Self { slot, context: slice(parts.context), value: slice(parts.value) })
    }
}

/// Returns the elements of a JSON array, as slices of its text. `None` if `array` is not a JSON array.
pub fn elements(array: &Bytes) -> Option<Vec<Bytes>> {
    let parts: Vec<&RawValue> = serde_json::from_slice(array).ok()?;
    Some(parts.into_iter().map(|raw| array.slice_ref(raw.get().as_bytes())).collect())
}

/// The members of an account that decide which other encodings and data slices the cache can make from the account.
#[derive(Deserialize)]
pub struct AccountMembers<'a> {
    /// The account's data, in the encoding that the call asked for.
    #[serde(borrow)]
    pub data: &'a RawValue,
    /// The owning program, in base58.
    #[serde(borrow)]
    pub owner: Cow<'a, str>,
    /// The account's size in bytes. `None` from old nodes, which do not report the size.
    pub space: Option<u64>,
}

/// Returns the member `data` of an account as base64 text. `None` if the data has another encoding.
pub fn base64_text(data: &RawValue) -> Option<&str> {
    let (data, encoding): (&str, &str) = serde_json::from_str(data.get()).ok()?;
    (encoding == AccountEncoding::Base64.as_str()).then_some(data)
}

/// An account object, parsed to check the types of its members.
#[derive(Deserialize)]
struct AccountShape<'a> {
    #[serde(borrow)]
    data: &'a RawValue,
    #[serde(borrow, rename = "owner")]
    _owner: Text<'a>,
    #[serde(rename = "lamports")]
    _lamports: u64,
    #[serde(rename = "executable")]
    _executable: bool,
    /// Usually the highest 64-bit number, which a gateway in front of a node may have rounded up. Nodes no longer
    /// collect rent, so this member may be missing one day.
    #[serde(rename = "rentEpoch")]
    _rent_epoch: Option<f64>,
    #[serde(rename = "space")]
    _space: Option<u64>,
}

fn each(array: &Bytes, right: impl Fn(&[u8]) -> bool) -> bool {
    elements(array).is_some_and(|elements| elements.iter().all(|element| right(element)))
}

fn has_text(object: &[u8], name: &str) -> bool {
    member::<Text>(object, name).is_some()
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// True for a JSON array, of which only the first byte is read.
struct IsList(bool);

impl<'de> Deserialize<'de> for IsList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut is_list = false;
        // Stopping before the end of the array is an error, which does not matter here.
        let _ = deserializer.deserialize_seq(ListStart(&mut is_list));
        Ok(Self(is_list))
    }
}

/// A visitor that notes that an array begins.
struct ListStart<'f>(&'f mut bool);

impl<'de> Visitor<'de> for ListStart<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<(), A::Error> {
        *self.0 = true;
        Ok(())
    }
}

/// Returns the first member `name` of the JSON object `object`. `None` if it is missing or of another type.
/// The text after that member is not read.
pub fn member<'a, T: Deserialize<'a>>(object: &'a [u8], name: &str) -> Option<T> {
    let mut found = None;
    let members = FirstNamed { name, found: &mut found };
    // Stopping before the end of the object is an error, which does not matter here.
    let _ = serde_json::Deserializer::from_slice(object).deserialize_map(members);
    found
}

/// A visitor that finds the first member called `name`.
struct FirstNamed<'n, 'f, T> {
    name: &'n str,
    found: &'f mut Option<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for FirstNamed<'_, '_, T> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(Text(name)) = members.next_key()? {
            if name == self.name {
                *self.found = Some(members.next_value()?);
                return Ok(());
            }
            members.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jsonrpc::Params;
    use crate::methods::{Method, Profile};

    #[test]
    fn contextual_result_is_split_without_copies() {
        let result =
            Bytes::from_static(br#"{"context":{"apiVersion":"4.0.0","slot":5},"value":[null,{"a":1.50}]}"#);
        let parts = Contextual::split(&result).unwrap();
        assert_eq!((parts.slot, &parts.value[..]), (5, &br#"[null,{"a":1.50}]"#[..]));
        assert_eq!(elements(&parts.value).unwrap(), [&b"null"[..], br#"{"a":1.50}"#]);
        assert!(result.as_ptr_range().contains(&parts.value.as_ptr()));
        assert_eq!(Contextual::split(&Bytes::from_static(b"[]")), None);
    }

    #[test]
    fn other_shapes_are_refused() {
        let key = "11111111111111111111111111111111";
        let one = |encoding: &str| {
            query(Method::GetAccountInfo, &format!(r#"["{key}",{{"encoding":"{encoding}"}}]"#))
        };
        let two = query(Method::GetMultipleAccounts, &format!(r#"[["{key}","{key}"]]"#));
        let account = r#"{"data":["","base64"],"executable":false,"lamports":5,"owner":"x","rentEpoch":18446744073709551615,"space":0}"#;
        let with = |old: &str, new: &str| {
            assert!(account.contains(old), "{old}");
            account.replace(old, new)
        };
        for (query, value, expected) in [
            (&one("base64"), "null", true),
            (&one("base64"), account, true),
            (&one("base64"), &with(r#","rentEpoch":18446744073709551615,"space":0"#, ""), true),
            // Some gateways in front of nodes read numbers as floating point, and so round `rentEpoch` to this number.
            (&one("base64"), &with("18446744073709551615", "18446744073709552000"), true),
            (&one("base64"), &with(r#""data":["","base64"],"#, ""), false),
            (&one("base64"), &with("base64", "base58"), false),
            (&one("jsonParsed"), &with(r#"["","base64"]"#, r#"{"parsed":{}}"#), true),
            (&one("jsonParsed"), &with(r#""lamports":5,"#, ""), false),
            (&one("base64"), &with(r#""lamports":5,"#, ""), false),
            (&one("base64"), &with(r#""lamports":5"#, r#""lamports":"5""#), false),
            (&one("base64"), &with(r#""lamports":5"#, r#""lamports":-5"#), false),
            (&one("base64"), &with(r#""lamports":5"#, r#""lamports":null"#), false),
            (&one("base64"), &with(r#""executable":false,"#, ""), false),
            (&one("base64"), &with("false", "0"), false),
            (&one("base64"), &with("18446744073709551615", r#""18446744073709551615""#), false),
            (&one("base64"), &with(r#""space":0"#, r#""space":"0""#), false),
            (&one("base64"), &with(r#""owner":"x""#, r#""owner":7"#), false),
            (&one("base64"), "[]", false),
            (&two, &format!("[{account},null]"), true),
            (&two, &format!("[{account}]"), false),
            (&two, &format!("[{account},7]"), false),
            (&two, "null", false),
        ] {
            let result = Bytes::from(format!(r#"{{"context":{{"slot":5}},"value":{value}}}"#));
            assert_eq!(fits(query, &result), expected, "{value}");
        }
        assert!(!fits(&two, &Bytes::from_static(b"null")));
    }

    #[test]
    fn blocks_hold_what_their_details_promise() {
        let query = |slot: Slot, details: &str| {
            query(Method::GetBlock, &format!(r#"[{slot},{{"transactionDetails":"{details}"}}]"#))
        };
        let head = r#""blockhash":"x","parentSlot":4,"previousBlockhash":"y""#;
        let block = |members: &str| Bytes::from(format!("{{{head}{members}}}"));
        for (members, fitting) in [
            (r#","transactions":[]"#, &["full", "accounts", "none"][..]),
            (r#","rewards":[],"transactions":[{"meta":null}]"#, &["full", "accounts", "none"]),
            (r#","signatures":["z"]"#, &["signatures", "none"]),
            (r#","signatures":null,"transactions":{}"#, &["none"]),
            (r#","transactions":"[]""#, &["none"]),
            ("", &["none"]),
        ] {
            for details in ["full", "accounts", "signatures", "none"] {
                let fits = fits(&query(5, details), &block(members));
                assert_eq!(fits, fitting.contains(&details), "{details}: {members}");
            }
        }
        for (member, replacement) in [
            (r#""blockhash":"x""#, r#""blockhash":null"#),
            (r#""parentSlot":4"#, r#""parentSlot":5"#),
            (r#""parentSlot":4"#, r#""parentSlot":-1"#),
            (r#""parentSlot":4"#, r#""parentSlot":"4""#),
            (r#""previousBlockhash":"y""#, r#""previousBlockhash":null"#),
            (r#","previousBlockhash":"y""#, ""),
        ] {
            assert!(head.contains(member), "{member}");
            let block = Bytes::from(format!("{{{}}}", head.replace(member, replacement)));
            assert!(!fits(&query(5, "none"), &block), "{replacement}");
        }
        let first = Bytes::from(format!("{{{}}}", head.replace('4', "0")));
        assert!(fits(&query(0, "none"), &first), "the first block of a cluster");
    }

    #[test]
    fn every_method_has_its_shape() {
        let key = "11111111111111111111111111111111";
        // The transaction message has one signer, no further account and no instruction.
        let message = [&[1, 0, 0, 1][..], &[9; 32], &[8; 32], &[0]].concat();
        let message = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, message);
        let rows = [
            (
                Method::GetAccountInfo,
                format!(r#"["{key}"]"#),
                r#"{"context":{"slot":5},"value":{"data":"","executable":true,"lamports":0,"owner":"x"}}"#,
            ),
            (
                Method::GetMultipleAccounts,
                format!(r#"[["{key}"]]"#),
                r#"{"context":{"slot":5},"value":[null]}"#,
            ),
            (
                Method::GetTokenAccountBalance,
                format!(r#"["{key}"]"#),
                r#"{"context":{"slot":5},"value":{"amount":"7","decimals":2,"uiAmount":null,"more":{}}}"#,
            ),
            (Method::GetFeeForMessage, format!(r#"["{message}"]"#), r#"{"context":{"slot":5},"value":5000}"#),
            (
                Method::GetVoteAccounts,
                "[]".to_owned(),
                r#"{"current":[{"votePubkey":"x","inflationRewardsCommissionBps":1}],"delinquent":[],"more":1}"#,
            ),
            (Method::GetRecentPerformanceSamples, "[]".to_owned(), r#"[{"slot":5,"more":1}]"#),
            (Method::GetClusterNodes, "[]".to_owned(), r#"[{"pubkey":"x","gossip":null}]"#),
            (
                Method::GetBlock,
                "[5]".to_owned(),
                r#"{"blockhash":"x","parentSlot":4,"previousBlockhash":"y","transactions":[7],"more":1}"#,
            ),
        ];
        let odd = [
            "7",
            "-1",
            "1.5",
            "true",
            r#""""#,
            r#""text""#,
            "{}",
            "[7]",
            "[[]]",
            "[null]",
            r#"{"not":"an array"}"#,
            r#"{"context":{"slot":5}}"#,
            r#"{"value":null}"#,
            r#"{"context":{"slot":"5"},"value":null}"#,
            r#"{"context":{"slot":5},"value":{}}"#,
            r#"{"context":{"slot":5},"value":"5"}"#,
            r#"{"context":{"slot":5},"value":-5}"#,
            r#"{"context":{"slot":5},"value":{"amount":7}}"#,
            r#"{"context":{"slot":5},"value":[7]}"#,
            r#"{"current":[],"delinquent":null}"#,
            r#"{"current":[]}"#,
            r#"{"current":[{}],"delinquent":[]}"#,
            r#"{"current":{},"delinquent":[]}"#,
            r#"[{"slot":"5"}]"#,
            r#"[{"pubkey":7}]"#,
            "[{}]",
            r#"["x"]"#,
            r#"[["x"]]"#,
            "[[5]]",
            r#"{"context":{"slot":5},"value":["7"]}"#,
            r#"{"blockhash":null}"#,
            r#"{"blockhash":5,"transactions":[]}"#,
        ];
        for (at, (method, params, own)) in rows.iter().enumerate() {
            let query = query(*method, params);
            for (of, (_, _, result)) in rows.iter().enumerate() {
                assert_eq!(
                    fits(&query, &Bytes::from_static(result.as_bytes())),
                    at == of,
                    "{method:?}: {result}"
                );
            }
            for result in odd {
                assert!(!fits(&query, &Bytes::from_static(result.as_bytes())), "{method:?}: {result}");
            }
            let is_null = fits(&query, &Bytes::from_static(b"null"));
            assert_eq!(is_null, *method == Method::GetBlock, "{own}");
        }
        for (method, params, result) in [
            (Method::GetFeeForMessage, format!(r#"["{message}"]"#), r#"{"context":{"slot":5},"value":null}"#),
            (Method::GetVoteAccounts, "[]".to_owned(), r#"{"delinquent":[],"current":[]}"#),
            (Method::GetRecentPerformanceSamples, "[]".to_owned(), "[]"),
            (Method::GetClusterNodes, "[]".to_owned(), "[]"),
        ] {
            assert!(
                fits(&query(method, &params), &Bytes::from_static(result.as_bytes())),
                "{method:?}: {result}"
            );
        }
    }

    fn query(method: Method, params: &str) -> Query {
        let params = Params::Array(Bytes::copy_from_slice(params.as_bytes()));
        Query::parse(method, &params, Profile::Node).unwrap()
    }
}
