//! One account's value in every form. Slices and other encodings are made here from a value that was fetched once.
//!
//! `binary`, `base58`, `base64` and every slice are derived from base64 byte for byte. `base64+zstd` may differ
//! from a node's text, because encoders compress differently. `jsonParsed` needs the program's decoder, so it is
//! fetched and stored apart. In `jsonParsed`, data that no decoder knows is base64, and nodes slice it unless a
//! token program owns the account. Members beside `data` are never changed.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;

use crate::methods::{AccountEncoding, AccountForm, BASE58_MAX, DataSlice, Pubkey};
use crate::node::shape::{AccountMembers, base64_text};

const TOKEN_PROGRAM: &str = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA";
/// The Token-2022 program. Some of its accounts have amounts that nodes compute from the time of the answer.
const TOKEN_2022: &str = "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb";

/// The owners whose accounts are never sliced in `jsonParsed`.
const TOKEN_PROGRAMS: [&str; 2] = [TOKEN_PROGRAM, TOKEN_2022];

/// A range of bytes of a text: the offset of its first byte, and the offset after its last one.
pub type ByteSpan = (u32, u32);

/// The kind of a stored value, which decides the forms that can be made of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccountKind {
    /// All of the data, in base64. Every form but `jsonParsed` can be made of it.
    Whole,
    /// The slice that was asked for, in base64. That slice can be written in every encoding but `jsonParsed`.
    Part,
    /// `jsonParsed` without a slice. `jsonParsed` with any slice can be made of it.
    Parsed,
    /// A form from which no other form can be made.
    AsAsked,
}

impl From<AccountForm> for AccountKind {
    /// Returns the kind of an answer that was fetched in `form`.
    fn from(form: AccountForm) -> Self {
        match form {
            AccountForm { encoding: AccountEncoding::Base64, slice: None } => Self::Whole,
            AccountForm { encoding: AccountEncoding::Base64, slice: Some(_) } => Self::Part,
            AccountForm { encoding: AccountEncoding::JsonParsed, slice: None } => Self::Parsed,
            _ => Self::AsAsked,
        }
    }
}

/// One stored account: the `value` of getAccountInfo, or an element of getMultipleAccounts' list.
#[derive(Debug, Clone)]
pub struct AccountValue {
    text: Bytes,
    /// The span of the member `data` within the text. `None` if `data` is the same in every form that the value serves.
    data: Option<ByteSpan>,
    kind: AccountKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenProgram {
    /// The classic token program. Amounts of its accounts depend on their data alone.
    Classic,
    /// The Token-2022 program. Some of its accounts have amounts that nodes compute from the time of the answer.
    Token2022,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountFacts {
    Absent,
    Present {
        /// The owning program. `None` if the value's owner is not an address.
        owner: Option<Pubkey>,
        token: Option<TokenProgram>,
        /// The size in bytes. `None` if the value does not state it.
        space: Option<u64>,
    },
}

impl AccountFacts {
    /// Returns the account's size in bytes. `None` if the account is absent or its size is not stated.
    pub fn space(&self) -> Option<u64> {
        if let Self::Present { space, .. } = self { *space } else { None }
    }
}

/// The reason why an account cannot be written in another encoding or slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeriveError {
    /// The data is longer than 128 bytes, which nodes refuse in base58.
    Base58TooLong,
    /// The stored text is not in the format that nodes write.
    Broken,
}

/// The memory in bytes for the list of pieces in which an account is written, and for the text around the
/// account's data.
const PIECES_BYTES: usize = 8 * size_of::<Bytes>();

/// The text before the base64 data in an account's member `data`, as nodes write it. [`TAIL`] is the text
/// after the data.
const HEAD: &str = "[\"";
const TAIL: &str = "\",\"base64\"]";

impl AccountValue {
    /// Parses `text`, the value of an account that was fetched in `form`. Returns the value, and the facts that it
    /// states about the account. `None` if the text is not in the format that nodes write.
    ///
    /// A slice that proves to be the whole account gets the kind [`AccountKind::Whole`].
    pub fn read(text: &Bytes, form: AccountForm) -> Option<(Self, AccountFacts)> {
        let kind = AccountKind::from(form);
        if text.as_ref() == b"null" {
            // An absent account is `null` in every form. For jsonParsed it is nevertheless stored as a separate entry.
            let kind = if form.encoding == AccountEncoding::JsonParsed { kind } else { AccountKind::Whole };
            return Some((Self { text: text.clone(), data: None, kind }, AccountFacts::Absent));
        }
        let members: AccountMembers<'_> = serde_json::from_slice(text).ok()?;
        let facts = AccountFacts::Present {
            owner: Pubkey::parse(&members.owner).ok(),
            token: match &*members.owner {
                TOKEN_PROGRAM => Some(TokenProgram::Classic),
                TOKEN_2022 => Some(TokenProgram::Token2022),
                _ => None,
            },
            space: members.space,
        };
        let text_of_data = members.data.get();
        let from = text_of_data.as_ptr() as usize - text.as_ptr() as usize;
        let at = from..from + text_of_data.len();
        let fixed = match kind {
            AccountKind::AsAsked => true,
            AccountKind::Parsed => {
                !text_of_data.starts_with('[') || TOKEN_PROGRAMS.contains(&&*members.owner)
            }
            AccountKind::Whole | AccountKind::Part => false,
        };
        if fixed {
            return Some((Self { text: text.clone(), data: None, kind }, facts));
        }
        let data = base64_text(members.data)?;
        let compact = text_of_data.len() == HEAD.len() + data.len() + TAIL.len();
        let (text, at) = if compact { (text.clone(), at) } else { rewritten(text, &at, data) };
        let whole = kind == AccountKind::Part && members.space == Some(decoded_len(data.as_bytes()) as u64);
        let data = Some((u32::try_from(at.start).ok()?, u32::try_from(at.end).ok()?));
        let kind = if whole { AccountKind::Whole } else { kind };
        Some((Self { text, data, kind }, facts))
    }

    pub fn kind(&self) -> AccountKind {
        self.kind
    }

    /// Returns the value's span in `text`. `None` if the value is not a slice of `text`.
    pub fn place_in(&self, text: &Bytes) -> Option<ByteSpan> {
        let from = (self.text.as_ptr() as usize).checked_sub(text.as_ptr() as usize)?;
        let to = from.checked_add(self.text.len()).filter(|to| *to <= text.len())?;
        Some((u32::try_from(from).ok()?, u32::try_from(to).ok()?))
    }

    /// Returns the same value, with its text kept as the range `at` of `text`.
    pub(super) fn moved_into(&self, text: &Bytes, at: Range<usize>) -> Self {
        Self { text: text.slice(at), data: self.data, kind: self.kind }
    }

    pub fn text(&self) -> &Bytes {
        &self.text
    }

    /// Returns true if the value in `form` is the stored text.
    pub fn is_stored_in(&self, form: AccountForm) -> bool {
        self.data.is_none()
            || match self.kind {
                AccountKind::AsAsked => true,
                AccountKind::Parsed => form.slice.is_none(),
                AccountKind::Part => form.encoding == AccountEncoding::Base64,
                AccountKind::Whole => form.encoding == AccountEncoding::Base64 && form.slice.is_none(),
            }
    }

    /// Returns the most memory that [`Self::write`] takes beyond the stored text, in bytes. The list of
    /// pieces is included.
    pub fn max_written_bytes(&self, form: AccountForm) -> usize {
        let Some((from, to)) = self.data.filter(|_| !self.is_stored_in(form)) else {
            return PIECES_BYTES;
        };
        let all = (to - from) as usize / 4 * 3;
        let bytes = if self.kind == AccountKind::Part { all } else { clip(form.slice, all).len() };
        let data = match form.encoding {
            AccountEncoding::Base64 | AccountEncoding::JsonParsed => bytes,
            AccountEncoding::Base58 | AccountEncoding::Binary => bytes.min(2 * BASE58_MAX),
            AccountEncoding::Base64Zstd => zstd::zstd_safe::compress_bound(bytes),
        };
        self.text.len() - (to - from) as usize + data / 3 * 4 + PIECES_BYTES
    }

    /// Writes the value in `form`, as pieces that are appended to `out`. Returns true if the written text
    /// differs from the stored one.
    ///
    /// The caller must make sure that `form` can be made of the value's kind. An [`AccountKind::Part`] can be
    /// written only with the slice for which it was fetched.
    ///
    /// # Errors
    /// The form cannot be made. `out` then holds nothing of use.
    pub fn write(&self, form: AccountForm, out: &mut Vec<Bytes>) -> Result<bool, DeriveError> {
        let Some((from, to)) = self.data.filter(|_| !self.is_stored_in(form)) else {
            out.push(self.text.clone());
            return Ok(false);
        };
        let (from, to) = (from as usize, to as usize);
        let base64 = self.text.slice(from + HEAD.len()..to - TAIL.len());
        let all = 0..decoded_len(&base64);
        let bytes = if self.kind == AccountKind::Part { all } else { clip(form.slice, all.end) };
        let (head, data, tail) = match form.encoding {
            // Data that jsonParsed cannot decode is base64.
            AccountEncoding::Base64 | AccountEncoding::JsonParsed => {
                (HEAD, cut(&base64, bytes)?, Bytes::from_static(TAIL.as_bytes()))
            }
            AccountEncoding::Base58 | AccountEncoding::Binary if bytes.len() > BASE58_MAX => {
                return Err(DeriveError::Base58TooLong);
            }
            AccountEncoding::Base58 => (HEAD, base58(&base64, bytes)?, Bytes::from_static(b"\",\"base58\"]")),
            AccountEncoding::Binary => ("\"", base58(&base64, bytes)?, Bytes::from_static(b"\"")),
            AccountEncoding::Base64Zstd => {
                let packed = zstd::stream::encode_all(&decode(&base64, bytes)?[..], 0);
                let packed = BASE64.encode(packed.map_err(|_| DeriveError::Broken)?);
                (HEAD, packed.into(), Bytes::from_static(b"\",\"base64+zstd\"]"))
            }
        };
        // A slice keeps the whole text in memory, so a short slice is copied.
        let is_short = data.len() < self.text.len() / 2;
        let part = |part: Bytes| if is_short { Bytes::copy_from_slice(&part) } else { part };
        let (before, after) = (part(self.text.slice(..from)), part(self.text.slice(to..)));
        out.extend([before, Bytes::from_static(head.as_bytes()), part(data), tail, after]);
        Ok(true)
    }
}

/// Replaces the value of the member `data` in `text` by the base64 text `data` with its encoding. `at` is the
/// range of the value. Returns the new text and the value's new range.
fn rewritten(text: &Bytes, at: &Range<usize>, data: &str) -> (Bytes, Range<usize>) {
    let pair = [HEAD, data, TAIL].concat();
    let end = at.start + pair.len();
    ([&text[..at.start], pair.as_bytes(), &text[at.end..]].concat().into(), at.start..end)
}

fn decoded_len(base64: &[u8]) -> usize {
    let padding = base64.iter().rev().take(2).take_while(|byte| **byte == b'=').count();
    (base64.len() / 4 * 3).saturating_sub(padding)
}

/// Returns the range of bytes that `slice` takes of data of `len` bytes. A slice past the end is cut short.
fn clip(slice: Option<DataSlice>, len: usize) -> Range<usize> {
    let Some(DataSlice { offset, length }) = slice else { return 0..len };
    let clip = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(len);
    clip(offset)..clip(offset.saturating_add(length))
}

/// Returns the bytes `bytes` of the data that `base64` encodes, again in base64. No copy is made if the range
/// begins and ends at the boundary of a group of three bytes.
fn cut(base64: &Bytes, bytes: Range<usize>) -> Result<Bytes, DeriveError> {
    let ends_with_group = bytes.end.is_multiple_of(3) || bytes.end == decoded_len(base64);
    if bytes.start.is_multiple_of(3) && ends_with_group && !bytes.is_empty() {
        return Ok(base64.slice(bytes.start / 3 * 4..bytes.end.div_ceil(3) * 4));
    }
    Ok(BASE64.encode(decode(base64, bytes)?).into())
}

fn base58(base64: &Bytes, bytes: Range<usize>) -> Result<Bytes, DeriveError> {
    Ok(super::base58::encode(&decode(base64, bytes)?).into())
}

/// Decodes the bytes `bytes` of the data that `base64` encodes. Only the groups that hold these bytes are read.
fn decode(base64: &Bytes, bytes: Range<usize>) -> Result<Vec<u8>, DeriveError> {
    let groups = bytes.start / 3..bytes.end.div_ceil(3);
    let text = base64.get(groups.start * 4..groups.end * 4).ok_or(DeriveError::Broken)?;
    let mut decoded = BASE64.decode(text).map_err(|_| DeriveError::Broken)?;
    decoded.truncate(bytes.end - groups.start * 3);
    decoded.drain(..(bytes.start - groups.start * 3).min(decoded.len()));
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: AccountForm = AccountForm { encoding: AccountEncoding::Base64, slice: None };
    const SLICES: [Option<(u64, u64)>; 8] = [
        None,
        Some((0, 0)),
        Some((0, 3)),
        Some((1, 4)),
        Some((3, 9)),
        Some((5, 1000)),
        Some((1000, 1)),
        Some((u64::MAX, u64::MAX)),
    ];

    fn form(encoding: AccountEncoding, slice: Option<(u64, u64)>) -> AccountForm {
        AccountForm { encoding, slice: slice.map(|(offset, length)| DataSlice { offset, length }) }
    }

    fn value(data: &[u8], owner: &str) -> Bytes {
        let (base64, space) = (BASE64.encode(data), data.len());
        format!(r#"{{"data":["{base64}","base64"],"lamports":1,"owner":"{owner}","space":{space}}}"#).into()
    }

    fn written(value: &AccountValue, form: AccountForm) -> Result<String, DeriveError> {
        let mut out = Vec::new();
        value.write(form, &mut out)?;
        Ok(String::from_utf8(out.concat()).unwrap())
    }

    #[test]
    fn slices_and_encodings_match_the_bytes() {
        for len in [0, 1, 2, 3, 4, 5, 6, 127, 128, 129, 300] {
            let data: Vec<u8> = (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect();
            let (stored, _) = AccountValue::read(&value(&data, "x"), WHOLE).unwrap();
            for slice in SLICES {
                let bytes = &data[clip(form(AccountEncoding::Base64, slice).slice, len)];
                let tail = format!(r#","lamports":1,"owner":"x","space":{len}}}"#);
                let base64 = BASE64.encode(bytes);
                let got = |encoding| written(&stored, form(encoding, slice));
                assert_eq!(
                    got(AccountEncoding::Base64),
                    Ok(format!(r#"{{"data":["{base64}","base64"]{tail}"#)),
                    "{len} {slice:?}"
                );
                if bytes.len() > 128 {
                    assert_eq!(got(AccountEncoding::Base58), Err(DeriveError::Base58TooLong));
                    assert_eq!(got(AccountEncoding::Binary), Err(DeriveError::Base58TooLong));
                } else {
                    let base58 = bs58::encode(bytes).into_string();
                    let pair = format!(r#"{{"data":["{base58}","base58"]{tail}"#);
                    assert_eq!(got(AccountEncoding::Base58), Ok(pair));
                    assert_eq!(got(AccountEncoding::Binary), Ok(format!(r#"{{"data":"{base58}"{tail}"#)));
                }
                let packed = got(AccountEncoding::Base64Zstd).unwrap();
                let packed = packed.strip_prefix("{\"data\":[\"").unwrap().split('"').next().unwrap();
                let unpacked = zstd::stream::decode_all(&BASE64.decode(packed).unwrap()[..]).unwrap();
                assert_eq!(unpacked, bytes);
            }
        }
    }

    #[test]
    fn unknown_members_stay_in_every_form() {
        let text = r#"{"a":{"data":1},"data":["AQIDBA==","base64"],"newMember":1.50,"owner":"x","space":4}"#;
        let (stored, _) = AccountValue::read(&Bytes::from_static(text.as_bytes()), WHOLE).unwrap();
        for (encoding, slice, data) in [
            (AccountEncoding::Base64, None, r#"["AQIDBA==","base64"]"#),
            (AccountEncoding::Base64, Some((1, 2)), r#"["AgM=","base64"]"#),
            (AccountEncoding::Base58, None, r#"["2VfUX","base58"]"#),
            (AccountEncoding::Binary, Some((0, 4)), r#""2VfUX""#),
        ] {
            let expected = text.replace(r#"["AQIDBA==","base64"]"#, data);
            assert_eq!(written(&stored, form(encoding, slice)), Ok(expected));
        }
    }

    #[test]
    fn json_parsed_is_sliced_like_a_node() {
        let parsed = form(AccountEncoding::JsonParsed, None);
        let sliced = form(AccountEncoding::JsonParsed, Some((1, 1)));
        let read = |text: &Bytes| AccountValue::read(text, parsed).unwrap().0;
        let object =
            Bytes::from_static(br#"{"data":{"parsed":{},"program":"nonce","space":80},"owner":"x"}"#);
        assert_eq!(written(&read(&object), sliced).unwrap().as_bytes(), object);
        let fallback = value(&[1, 2, 3], "x");
        assert!(written(&read(&fallback), sliced).unwrap().starts_with(r#"{"data":["Ag==","base64"],"#));
        assert_eq!(written(&read(&fallback), parsed).unwrap().as_bytes(), fallback);
        for program in TOKEN_PROGRAMS {
            let token = value(&[1, 2, 3], program);
            assert_eq!(written(&read(&token), sliced).unwrap().as_bytes(), token);
        }
    }

    #[test]
    fn complete_slices_and_absent_accounts_are_whole() {
        let sliced = form(AccountEncoding::Base64, Some((0, 129)));
        let kind = |text: &str| {
            AccountValue::read(&Bytes::copy_from_slice(text.as_bytes()), sliced)
                .map(|(value, _)| value.kind())
        };
        for (text, expected) in [
            ("null", Some(AccountKind::Whole)),
            (r#"{"data":["","base64"],"owner":"x","space":0}"#, Some(AccountKind::Whole)),
            (r#"{"data":["AQI=","base64"],"owner":"x","space":2}"#, Some(AccountKind::Whole)),
            (r#"{"data":["AQI=","base64"],"owner":"x","space":3}"#, Some(AccountKind::Part)),
            (r#"{"data":["AQI=","base64"],"owner":"x"}"#, Some(AccountKind::Part)),
            (r#"{"data":["AQI=","base58"],"owner":"x","space":2}"#, None),
            (r#"{"data":"AQI=","owner":"x","space":2}"#, None),
            (r#"{"owner":"x","space":2}"#, None),
            ("7", None),
        ] {
            assert_eq!(kind(text), expected, "{text}");
        }
    }

    #[test]
    fn reads_loose_json_and_reports_bad_base64() {
        let loose = Bytes::from_static(br#"{ "space": 3, "owner": "x", "data": [ "AQID" , "base64" ] }"#);
        let (stored, facts) = AccountValue::read(&loose, WHOLE).unwrap();
        assert_eq!(facts.space(), Some(3));
        let sliced = form(AccountEncoding::Base64, Some((1, 1)));
        assert_eq!(
            written(&stored, sliced).unwrap(),
            r#"{ "space": 3, "owner": "x", "data": ["Ag==","base64"] }"#
        );
        let bad = Bytes::from_static(br#"{"data":["!!!!","base64"],"owner":"x","space":3}"#);
        let (stored, _) = AccountValue::read(&bad, WHOLE).unwrap();
        assert_eq!(written(&stored, form(AccountEncoding::Binary, None)), Err(DeriveError::Broken));
    }
}
