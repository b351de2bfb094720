//! The forms of accounts: which form is fetched, under which form an answer is stored, and which stored form
//! serves a caller.
//!
//! A form is an encoding and, sometimes, a slice. Fewer forms in the cache mean more hits. A caller's form is
//! therefore fetched in a form from which others can be made, as far as the size of the account allows
//! ([`fetch_form`]):
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

use super::derive::account::{AccountKind, AccountValue};
use super::sizes::SizeClass;
use crate::methods::AccountEncoding::{Base58, Base64, Base64Zstd, Binary, JsonParsed};
use crate::methods::{AccountForm, BASE58_MAX, DataSlice};

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

/// Returns the stored forms that serve `asked`, at most two. The form from which most others can be made
/// comes first.
pub(super) fn serving_forms(asked: AccountForm) -> impl Iterator<Item = AccountForm> {
    let widest = fetch_form(asked, SizeClass::Small);
    // The account may have been larger, or of unknown size, when it was fetched. At most one of the forms for
    // these two cases differs from `widest`.
    let others = [SizeClass::Unknown, SizeClass::Large].map(|size| fetch_form(asked, size));
    std::iter::once(widest).chain(others.into_iter().find(|other| *other != widest))
}

/// Returns the forms in which a stored account usually shows its owner.
pub(super) fn owner_forms() -> impl Iterator<Item = AccountForm> {
    [WHOLE, AccountForm { encoding: JsonParsed, slice: None }].into_iter()
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

/// Returns the form under which an assembled list is stored for a caller who asks for `asked`. Some stored forms,
/// such as a slice of jsonParsed, serve no other form. If an account is in such a form, the list is stored under
/// `asked`.
pub(super) fn stored_assembled_form(asked: AccountForm, values: &[AccountValue]) -> AccountForm {
    if values.iter().any(|value| value.kind() == AccountKind::AsAsked) {
        return asked;
    }
    stored_list_form(fetch_form(asked, SizeClass::Unknown), values)
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
}
