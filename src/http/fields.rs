//! A request's header fields, whoever parsed them: hyper, or the fast path.

use hyper::header::{HeaderMap, HeaderValue};

/// The most that is kept of one header field. No page's origin and no browser's list of header names is longer.
pub(super) const FIELD_BYTES: usize = 1024;

/// Header fields by name.
pub trait Fields {
    /// The values of all fields called `name`, which is in lower case, in order.
    fn all<'a>(&'a self, name: &'static str) -> impl DoubleEndedIterator<Item = &'a [u8]>;

    /// The value of the first field called `name`.
    fn first<'a>(&'a self, name: &'static str) -> Option<&'a [u8]> {
        self.all(name).next()
    }
}

impl Fields for HeaderMap {
    fn all<'a>(&'a self, name: &'static str) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        self.get_all(name).iter().map(HeaderValue::as_bytes)
    }
}

impl Fields for [httparse::Header<'_>] {
    fn all<'a>(&'a self, name: &'static str) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        self.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    }
}

/// The elements of a field that is a list (RFC 9110, 5.6.1), without the blanks around them.
pub(super) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// Returns the first `most` bytes of a text, or fewer if they would end within a character.
pub(super) fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}
