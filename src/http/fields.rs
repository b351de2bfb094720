//! A request's header fields, as hyper or the fast path has parsed them.

use hyper::header::{HeaderMap, HeaderValue};

/// The length in bytes to which copied values of header fields are cut. Origins are shorter, and so are the lists
/// of header names that browsers send.
pub(super) const FIELD_BYTES: usize = 1024;

pub(super) trait Fields {
    /// Returns the values of all fields called `name`, in order. `name` must be in lower case.
    fn all<'a>(&'a self, name: &'static str) -> impl DoubleEndedIterator<Item = &'a [u8]>;

    fn first<'a>(&'a self, name: &'static str) -> Option<&'a [u8]> {
        self.all(name).next()
    }
}

impl Fields for HeaderMap {
    fn all<'a>(&'a self, name: &'static str) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        self.get_all(name).iter().map(HeaderValue::as_bytes)
    }
}

/// Returns the elements of a list field (RFC 9110, 5.6.1), without the whitespace around them.
pub(super) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// Returns the start of `text`, at most `most` bytes, without splitting a character.
pub(super) fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}
