//! The forms of accounts: which form is fetched, under which form an answer is stored, and which stored form
//! serves a caller.
//!
//! A form is an encoding and, sometimes, a slice. Fewer forms in the cache mean more hits. A caller's form is therefore
//! fetched in a form from which others can be made, as far as the size of the account allows ([`fetch_form`]):
//!
//! | the caller asks for | small account | unknown size | large account |
//! | --- | --- | --- | --- |
//! | base64, base64+zstd | base64, whole | as asked | as asked |
//! | base58, binary | base64, whole | base64, 129 bytes of the slice | base64, 129 bytes of the slice |
//! | jsonParsed | jsonParsed, whole | jsonParsed, whole | as asked |
//!
//! Nodes refuse more than 128 bytes in base58, so 129 bytes of base64 are enough to answer.
//!
//! An answer is stored under the form in which it was fetched. A slice that proves to be the whole account is
//! stored as "base64, whole" ([`stored_form`]). A stored form serves these callers ([`serving_forms`]):
//!
//! | stored under | serves callers who ask for |
//! | --- | --- |
//! | base64, whole | base64, base64+zstd, base58 and binary, with any slice or none |
//! | base64, a slice | base64, base58 and binary with that slice |
//! | base64+zstd, whole or a slice | base64+zstd with the same slice, or with none if whole |
//! | jsonParsed, whole | jsonParsed, with any slice or none |
//! | jsonParsed, a slice | jsonParsed with that slice |
//!
//! A list of accounts follows the rules of one account. The size of a list is that of its largest account. A
//! list is whole if each of its accounts is.

use std::sync::atomic::{AtomicU64, Ordering};

use super::derive::account::{AccountKind, AccountValue};
use crate::methods::AccountEncoding::{Base58, Base64, Base64Zstd, Binary, JsonParsed};
use crate::methods::{AccountForm, BASE58_MAX, DataSlice, Pubkey};

/// The number of cells, of 8 bytes each.
const CELLS: usize = 1 << 16;
/// The largest account, in bytes, that is fetched and stored whole even if a caller asks for a slice.
const SMALL_BYTES: u64 = 64 * 1024;
/// The largest total size, in bytes, of several accounts that are fetched whole in one call.
const TOGETHER_BYTES: u64 = 1024 * 1024;
/// The bits of a cell that hold an account's size, which always fits in them. The other bits identify the account.
const SIZE_BITS: u64 = (1 << 24) - 1;

/// The form from which every form but `jsonParsed` can be made.
const WHOLE: AccountForm = AccountForm { encoding: Base64, slice: None };

/// Returns the form in which an account of this size is fetched for a caller who asks for `asked`.
pub(super) fn fetch_form(asked: AccountForm, size: SizeClass) -> AccountForm {
    let enough = BASE58_MAX as u64 + 1;
    match (asked.encoding, size) {
        (JsonParsed, SizeClass::Large) => asked,
        (JsonParsed, _) => AccountForm { slice: None, ..asked },
        (Base58 | Binary | Base64 | Base64Zstd, SizeClass::Small) => WHOLE,
        (Base64 | Base64Zstd, _) => asked,
        (Base58 | Binary, _) => {
            let DataSlice { offset, length } = asked.slice.unwrap_or(DataSlice { offset: 0, length: enough });
            let slice = DataSlice { offset, length: length.min(enough) };
            AccountForm { encoding: Base64, slice: Some(slice) }
        }
    }
}

/// Returns the stored forms that serve `asked`, at most two. The form from which most others can be made comes first.
pub(super) fn serving_forms(asked: AccountForm) -> impl Iterator<Item = AccountForm> {
    let widest = fetch_form(asked, SizeClass::Small);
    // The account may have been larger, or of unknown size, when it was fetched. At most one of the forms for
    // these two cases differs from `widest`.
    let others = [SizeClass::Unknown, SizeClass::Large].map(|size| fetch_form(asked, size));
    std::iter::once(widest).chain(others.into_iter().find(|other| *other != widest))
}

pub(super) fn owner_forms() -> impl Iterator<Item = AccountForm> {
    [WHOLE, AccountForm { encoding: JsonParsed, slice: None }].into_iter()
}

pub(super) fn lamport_forms() -> impl Iterator<Item = AccountForm> {
    let whole = |encoding| AccountForm { encoding, slice: None };
    [JsonParsed, Base64Zstd, Base58]
        .map(|encoding| fetch_form(whole(encoding), SizeClass::Unknown))
        .into_iter()
}

/// Returns the form under which a value is stored. `fetched` is the form that the node was asked for, and
/// `kind` is what the value proved to be.
pub(super) fn stored_form(fetched: AccountForm, kind: AccountKind) -> AccountForm {
    if kind == AccountKind::Whole { WHOLE } else { fetched }
}

/// Returns the form under which a list is stored after it was fetched in the form `fetched`. An empty list is
/// stored under `fetched`, because it has no account that is known to be whole.
pub(super) fn stored_list_form(fetched: AccountForm, values: &[AccountValue]) -> AccountForm {
    let is_whole = !values.is_empty() && values.iter().all(|value| value.kind() == AccountKind::Whole);
    if is_whole { WHOLE } else { fetched }
}

/// Returns the form under which an assembled list is stored for a caller who asks for `asked`. Some stored forms, such
/// as a slice of jsonParsed, serve no other form. If an account is in such a form, the list is stored under `asked`.
pub(super) fn stored_assembled_form(asked: AccountForm, values: &[AccountValue]) -> AccountForm {
    if values.iter().any(|value| value.kind() == AccountKind::AsAsked) {
        return asked;
    }
    stored_list_form(fetch_form(asked, SizeClass::Unknown), values)
}

/// The size of an account, or of several, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SizeClass {
    /// The account had at most 64 KiB when last seen. For several accounts: each is small, and together they
    /// have at most 1 MiB.
    Small,
    /// The account was not seen, or its size was forgotten. For several accounts: one of them is unknown, and
    /// none is large.
    Unknown,
    /// The account had more than 64 KiB when last seen, or was once too large to fetch. For several accounts:
    /// one of them is large, or together they have more than 1 MiB.
    Large,
}

/// The table of the known sizes of accounts. Small accounts are fetched whole, so that an answer in any encoding, and any
/// slice, can be made from one stored answer.
///
/// The table has a fixed number of cells, and the address of an account picks its cell. Noting the size of an
/// account replaces the account that had the cell before. No answer depends on the table: a wrong guess only
/// makes an upstream call ask for another encoding or slice.
#[derive(Debug)]
pub struct Sizes(Box<[AtomicU64]>);

impl Default for Sizes {
    fn default() -> Self {
        Self((0..CELLS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Sizes {
    /// Notes that an account was seen with `space` bytes.
    pub fn note(&self, pubkey: &Pubkey, space: u64) {
        let (cell, mark) = self.cell(pubkey);
        let (known, noted) = (cell.load(Ordering::Relaxed), mark | space.min(SIZE_BITS));
        if known != noted && known != mark | SIZE_BITS {
            cell.store(noted, Ordering::Relaxed);
        }
    }

    /// Notes that an account was too large to be fetched whole. Sizes noted later for the account are ignored.
    pub fn note_large(&self, pubkey: &Pubkey) {
        self.note(pubkey, SIZE_BITS);
    }

    /// Returns the account's size in bytes when it was last seen. `None` if the size is not known. An account
    /// that was too large to fetch has the size 2²⁴ − 1.
    fn space(&self, pubkey: &Pubkey) -> Option<u64> {
        let (cell, mark) = self.cell(pubkey);
        let noted = cell.load(Ordering::Relaxed);
        (noted & !SIZE_BITS == mark).then_some(noted & SIZE_BITS)
    }

    pub fn of(&self, pubkey: &Pubkey) -> SizeClass {
        match self.space(pubkey) {
            None => SizeClass::Unknown,
            Some(..=SMALL_BYTES) => SizeClass::Small,
            Some(_) => SizeClass::Large,
        }
    }

    /// Returns how large several accounts are, as far as their sizes are known: as large as the largest one.
    /// Small accounts of more than 1 MiB together count as large.
    pub fn of_all(&self, pubkeys: &[Pubkey]) -> SizeClass {
        let size = pubkeys.iter().map(|pubkey| self.of(pubkey)).max().unwrap_or(SizeClass::Small);
        let together = || pubkeys.iter().filter_map(|pubkey| self.space(pubkey)).sum::<u64>();
        if size == SizeClass::Small && together() > TOGETHER_BYTES { SizeClass::Large } else { size }
    }

    fn cell(&self, pubkey: &Pubkey) -> (&AtomicU64, u64) {
        let word = |at: usize| pubkey.0[at..at + 8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        // Zero stands for an empty cell, so the mark is never zero.
        let mark = (word(0) ^ word(8).rotate_left(17)) | 1 << 63;
        #[expect(clippy::cast_possible_truncation, reason = "any cell will do")]
        let cell = (word(16) ^ word(24)) as usize % CELLS;
        (&self.0[cell], mark & !SIZE_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::AccountEncoding;

    #[test]
    fn sliced_list_serves_that_slice_only() {
        let whole = AccountForm { encoding: JsonParsed, slice: None };
        let sliced = AccountForm { encoding: JsonParsed, slice: Some(DataSlice { offset: 1, length: 3 }) };
        let value = |form| {
            let text = r#"{"data":["MjM0","base64"],"owner":"11111111111111111111111111111111","space":200}"#;
            AccountValue::read(&bytes::Bytes::from_static(text.as_bytes()), form).unwrap().0
        };
        for (forms, expected) in
            [([whole, whole], whole), ([whole, sliced], sliced), ([sliced, sliced], sliced)]
        {
            assert_eq!(stored_assembled_form(sliced, &forms.map(value)), expected, "{forms:?}");
        }
    }

    #[test]
    fn fetched_form_serves_the_asked_form() {
        use SizeClass::{Large, Small, Unknown};
        let form = |encoding: AccountEncoding, slice: Option<(u64, u64)>| AccountForm {
            encoding,
            slice: slice.map(|(offset, length)| DataSlice { offset, length }),
        };
        let some = Some((4, 7));
        for (asked, size, expected) in [
            (form(Base64, None), Unknown, form(Base64, None)),
            (form(Base64, some), Unknown, form(Base64, some)),
            (form(Base64, some), Large, form(Base64, some)),
            (form(Base64, some), Small, form(Base64, None)),
            (form(Base64Zstd, None), Unknown, form(Base64Zstd, None)),
            (form(Base64Zstd, some), Small, form(Base64, None)),
            (form(Binary, None), Unknown, form(Base64, Some((0, 129)))),
            (form(Binary, None), Small, form(Base64, None)),
            (form(Base58, some), Large, form(Base64, some)),
            (form(Base58, Some((9, u64::MAX))), Unknown, form(Base64, Some((9, 129)))),
            (form(JsonParsed, some), Unknown, form(JsonParsed, None)),
            (form(JsonParsed, some), Large, form(JsonParsed, some)),
        ] {
            assert_eq!(fetch_form(asked, size), expected, "{asked:?} {size:?}");
            assert!(serving_forms(asked).any(|source| source == expected), "{asked:?} {size:?}");
        }
    }

    #[test]
    fn size_is_known_until_its_cell_is_reused() {
        let sizes = Sizes::default();
        let (one, same_cell) = (Pubkey([1; 32]), {
            let mut bytes = [1; 32];
            bytes[0] = 2;
            Pubkey(bytes)
        });
        assert_eq!(sizes.of(&one), SizeClass::Unknown);
        sizes.note(&one, SMALL_BYTES);
        assert_eq!((sizes.of(&one), sizes.of(&same_cell)), (SizeClass::Small, SizeClass::Unknown));
        sizes.note(&one, SMALL_BYTES + 1);
        assert_eq!(sizes.of(&one), SizeClass::Large);
        assert_eq!(sizes.of_all(&[one, same_cell]), SizeClass::Large);
        sizes.note_large(&one);
        sizes.note(&one, 1);
        assert_eq!(sizes.of(&one), SizeClass::Large, "once too much, always too much");
        sizes.note(&same_cell, 0);
        assert_eq!((sizes.of(&one), sizes.of(&same_cell)), (SizeClass::Unknown, SizeClass::Small));
        assert_eq!(sizes.of_all(&[]), SizeClass::Small);
        sizes.note(&one, SMALL_BYTES);
        assert_eq!(
            (sizes.of_all(&[one; 16]), sizes.of_all(&[one; 17])),
            (SizeClass::Small, SizeClass::Large)
        );
    }
}
